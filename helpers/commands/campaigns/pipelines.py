"""Time softmax between a kernel that writes x and one that reads y; --show prints what is
recorded, anywhere.

At each shape what `choose` picks, its variants (usual accesses for streaming ones, no hint for the
L2, an ordinary launch), every peer that can run the shape and a copy are timed in turn, with x in
the L2 and evicted from it. What is around softmax is timed beside the two peers that are best in
the race. The file is written after each shape; a run that was interrupted goes on where it stopped.
A peer that cannot run a shape, fails or computes something else is left out
there, with the reason; a shape at which a kernel of ours is wrong or fails is not recorded, named
at the end, and makes the exit status 1. Needs CuPy, numpy and ml_dtypes only, but for the peers.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator

from ...base import gpu
from ...measure import bench, campaign, chain, peers, store
from ...measure.campaign import add_shared_options
from ...measure.chain import COPY
from ...measure.chains import (
    TITLES,
    VERDICTS,
    ChainCase,
    ChainTask,
    behind,
    best_peers,
    holds,
    load_chains,
    order,
    run_task,
    shown,
    table,
)
from ...measure.contests import GROUPS, linked, name_of
from ...measure.peers_around import NOT_OFFERED
from ...measure.races import DTYPES, load_race
from ...measure.store import REFERENCE_GPU, Run, gpu_folder, latest, recorded_gpus, utc_now
from ...measure.workers import Failure
from ...page.tables import lines_of
from ...problem.problem import Problem
from ...problem.shapes import CHAIN_SHAPES
from ...run.bound import load
from ...simt.options import rows_x_cols
from ...simt.words import counted, often


def run(options: argparse.Namespace) -> int:
    """Measure, or print what is recorded; return the exit status."""
    if options.show:
        return show(options.show)
    peers.use_cache()
    device = gpu.describe_device()
    folder = gpu_folder(device["name"])
    versions = {**gpu.describe_versions(), **peers.versions()}
    run = Run(device, versions, utc_now(), chain.PROTOCOL)
    wanted = [*tasks_alone(options, run), *tasks_around(options, run)]
    known = [] if options.fresh else store.read_if_any(ChainCase, folder)
    known = [case for case in known if store.same_meaning(case.run, chain.PROTOCOL)]
    missing = [task for task in wanted if not holds(known, task)]
    print(f"{len(missing)} of {counted(len(wanted), 'shape')} to time on {device['name']}")
    clock = campaign.Clock(options.minutes)
    if options.warm:
        names = [name for name in options.peers if any(name in task.peers for task in missing)]
        peers.warm_up([task.problem for task in missing], names, options.warm, clock.left_s / 3)

    def keep(task: ChainTask, cases: list[ChainCase]) -> Iterator[str]:
        nonlocal known
        for case in cases:
            known = store.put(known, case, order())
        store.write(ChainCase, folder, known)
        yield from map(summary, cases)

    name = lambda task: name_of(task.problem)  # noqa: E731
    failed = campaign.run(missing, run_task, keep, name, without, options.jobs, clock=clock)
    print(f"the pipelines are in {store.path_of(ChainCase, folder)}")
    for line in failed:
        print(f"not timed: {line}", file=sys.stderr)
    return 1 if failed else 0


def without(task: ChainTask, failure: Failure) -> tuple[ChainTask | None, bool]:
    """The task without a peer that fails, which is no failure of ours."""
    return (task.without(failure), False) if failure.culprit in task.peers else (None, True)


def tasks_alone(options: argparse.Namespace, run: Run) -> list[ChainTask]:
    """Softmax at the shapes that fit this GPU's memory, unless groups are named."""
    if options.groups:
        return []
    fitting = bench.shapes_that_fit(options.shapes)
    for shape in [shape for shape in options.shapes if shape not in fitting]:
        print(f"{Problem(*shape).place()} does not fit this GPU's memory")
    return [
        ChainTask(Problem(*shape, dtype), run, tuple(options.peers), steps=tuple(options.steps))
        for dtype in options.dtypes
        for shape in options.shapes
        if shape in fitting
    ]


def tasks_around(options: argparse.Namespace, run: Run) -> list[ChainTask]:
    """What is around softmax, unless shapes of softmax are named: the groups, each with the peers
    that are best in the race; where there is none, with all that are asked for."""
    if tuple(options.shapes) != CHAIN_SHAPES and not options.groups:
        return []
    try:
        race = load_race(gpu_folder(run.device["name"]))
    except (FileNotFoundError, ValueError):
        race = []
    tasks = []
    for problem in linked(*([options.groups] if options.groups else [])):
        best = best_peers(race, problem)
        names = [name for name in options.peers if name in best or not best]
        if problem.dtype in options.dtypes:
            tasks.append(ChainTask(problem, run, tuple(names)))
    return tasks


def add_options(parser: argparse.ArgumentParser) -> None:
    def step(text: str) -> str:
        try:
            load(text)
        except (FileNotFoundError, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument(
        "--shapes", nargs="+", type=rows_x_cols, default=CHAIN_SHAPES, metavar="ROWSxCOLS"
    )
    parser.add_argument(
        "--groups",
        nargs="+",
        choices=[*GROUPS],
        metavar="GROUP",
        help=f"of what is around softmax these alone, and no softmax: {'; '.join(GROUPS)}",
    )
    parser.add_argument(
        "--steps",
        nargs="+",
        type=step,
        default=(),
        metavar="STEP",
        help="also these steps, variants or trials, where they take the shape",
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        default=[*peers.PEERS],
        choices=[*peers.PEERS],
        help="only these peers; none if nothing follows",
    )
    add_shared_options(parser, "minutes", "warm", "jobs", "fresh")
    parser.add_argument(
        "--show",
        nargs="?",
        const=REFERENCE_GPU,
        choices=recorded_gpus(),
        help=f"print what is recorded, of {REFERENCE_GPU} if none is named, and time nothing",
    )


def show(folder: str) -> int:
    """Print what is recorded on a GPU; returns the exit status."""
    try:
        cases = load_chains(folder)
    except (FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    aligns = ("<21", ">6", "<7", ">8", ">8", ">8", "<38", "<16", "")
    print(f"microseconds that softmax adds to a pipeline, {latest(cases).device['name']}")
    print(*lines_of([*zip(TITLES, aligns, strict=True)], table(cases)), sep="\n")
    print(*behind(cases), sep="\n")
    for verdict, count in Counter(case.verdict for case in cases).items():
        print(f"{verdict} {often(count)}: {VERDICTS[verdict]}")
    return 0


def summary(case: ChainCase) -> str:
    """A case in one line of progress, and who was left out why."""
    times = []
    for name in case.chain_us:
        us = case.us(name)
        label = shown(name) if name in case.launches else name
        times.append(f"{label} {us.value:.2f} ({us.low:.2f} to {us.high:.2f})")
    odd = " below a copy: look!" if case.us(case.best).value < 0.95 * case.us(COPY).value else ""
    told = {name: why for name, why in case.skipped.items() if not why.endswith(NOT_OFFERED)}
    reasons = "".join(f"\n    {name}: {reason}" for name, reason in told.items())
    said = f"{', '.join(times)}; {case.verdict}{odd}{reasons}"
    return f"{name_of(case.problem)}, {case.state}: us {said}"
