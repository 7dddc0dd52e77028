"""Softmax in a pipeline, between a kernel that writes x and one that reads y: `make chain` on a
GPU; --show prints what is recorded, anywhere.

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
import math
import sys
import time
from collections import Counter, deque

from ..base import gpu
from ..measure import bench, peers, workers
from ..measure.chain import COPY
from ..measure.chains import (
    TITLES,
    VERDICTS,
    ChainCase,
    ChainTask,
    behind,
    best_peers,
    chains_path,
    load_chains,
    open_chains,
    run_task,
    save_chains,
    shown,
    table,
)
from ..measure.contests import GROUPS, linked, name_of
from ..measure.peers_around import NOT_OFFERED
from ..measure.races import DTYPES, load_race
from ..measure.records import REFERENCE_GPU, gpu_folder, recorded_gpus
from ..page.tables import lines_of
from ..problem.problem import Problem
from ..problem.shapes import CHAIN_SHAPES
from ..run.bound import load
from ..simt.options import at_least, rows_x_cols
from ..simt.words import counted, often


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = parse_arguments(arguments)
    if options.show:
        return show(options.show)
    if not gpu.has_gpu():
        print("pipelines are timed on a GPU, and CuPy finds none here", file=sys.stderr)
        return 1
    peers.use_cache()
    device = gpu.describe_device()
    folder = gpu_folder(device["name"])
    wanted = [*tasks_alone(options), *tasks_around(options, folder)]
    versions = {**gpu.describe_versions(), **peers.versions()}
    chains = open_chains(folder, device, versions, options.fresh)
    missing = [task for task in wanted if not chains.has(task)]
    print(f"{len(missing)} of {counted(len(wanted), 'shape')} to time on {device['name']}")
    if options.warm:
        names = [name for name in options.peers if any(name in task.peers for task in missing)]
        seconds = 20.0 * options.minutes if options.minutes else math.inf
        peers.warm_up([task.problem for task in missing], names, options.warm, seconds)
    tasks, done, failed, began = deque(missing), 0, [], time.perf_counter()
    for task, cases in workers.deal(run_task, tasks, options.jobs):
        if isinstance(cases, workers.Failure):
            if cases.culprit in task.peers:  # once more without it
                tasks.append(task.without(cases))
                continue
            failed.append(cases.at(name_of(task.problem)))
            print(failed[-1], file=sys.stderr, flush=True)
            cases = []
        done += 1
        for case in cases:
            chains.add(case)
        save_chains(chains, folder)
        seconds = time.perf_counter() - began
        for case in cases:
            print(f"[{done}/{len(missing)}, {seconds:.0f} s] {summary(case)}", flush=True)
        if options.minutes and seconds > 60 * options.minutes and tasks:
            print(f"time is up: {counted(len(tasks), 'shape')} left for another run")
            tasks.clear()
    print(f"the pipelines are in {chains_path(folder)}")
    for line in failed:
        print(f"not timed: {line}", file=sys.stderr)
    return 1 if failed else 0


def tasks_alone(options: argparse.Namespace) -> list[ChainTask]:
    """Softmax at the shapes that fit this GPU's memory, unless groups are named."""
    if options.groups:
        return []
    fitting = bench.shapes_that_fit(options.shapes)
    for shape in [shape for shape in options.shapes if shape not in fitting]:
        print(f"{Problem(*shape).place()} does not fit this GPU's memory")
    return [
        ChainTask(Problem(*shape, dtype), tuple(options.peers), steps=tuple(options.steps))
        for dtype in options.dtypes
        for shape in options.shapes
        if shape in fitting
    ]


def tasks_around(options: argparse.Namespace, folder: str) -> list[ChainTask]:
    """What is around softmax, unless shapes of softmax are named: the groups, each with the peers
    that are best in the race; where there is none, with all that are asked for."""
    if tuple(options.shapes) != CHAIN_SHAPES and not options.groups:
        return []
    try:
        race = load_race(folder)
    except (FileNotFoundError, ValueError):
        race = None
    tasks = []
    for problem in linked(*([options.groups] if options.groups else [])):
        best = best_peers(race, problem) if race else ()
        names = [name for name in options.peers if name in best or not best]
        if problem.dtype in options.dtypes:
            tasks.append(ChainTask(problem, tuple(names)))
    return tasks


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    def step(text: str) -> str:
        try:
            load(text)
        except (FileNotFoundError, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    parser = argparse.ArgumentParser(prog="python -m helpers.commands.chain", description=__doc__)
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
    parser.add_argument("--fresh", action="store_true", help="forget what is recorded")
    parser.add_argument(
        "--minutes", type=at_least(1), metavar="N", help="begin no shape after so many"
    )
    parser.add_argument(
        "--warm",
        type=at_least(0),
        default=0,
        metavar="N",
        help="compile the peers in N processes first",
    )
    parser.add_argument(
        "--show",
        nargs="?",
        const=REFERENCE_GPU,
        choices=recorded_gpus(),
        help=f"print what is recorded, of {REFERENCE_GPU} if none is named, and time nothing",
    )
    workers.add_jobs_option(parser)
    return parser.parse_args(arguments)


def show(folder: str) -> int:
    """Print what is recorded on a GPU; returns the exit status."""
    try:
        chains = load_chains(folder)
    except (FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    aligns = ("<21", ">6", "<7", ">8", ">8", ">8", "<38", "<16", "")
    print(f"microseconds that softmax adds to a pipeline, {chains.device['name']}")
    print(*lines_of([*zip(TITLES, aligns, strict=True)], table(chains.cases)), sep="\n")
    print(*behind(chains.cases), sep="\n")
    for verdict, count in Counter(case.verdict for case in chains.cases).items():
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


if __name__ == "__main__":
    sys.exit(main())
