"""Time softmax between a kernel that writes x and one that reads y; --show prints the records, also
without a GPU.

At each shape the kernel that `choose` returns, its variants (plain instead of streaming accesses,
no L2 hint, an ordinary launch), every baseline that supports the shape, and a copy are timed in
turn, with x in the L2 and evicted from it. Other operations are timed with the two best baselines
of the comparison. The file is written after each shape; an interrupted run is resumed by the next.
A baseline that does not support a shape, fails or is wrong is left out there, with the reason. A
shape at which our kernel is wrong or fails is not recorded; it is named at the end, and the exit
status is 1. Apart from the baselines it needs only CuPy, cuda-bindings, NumPy and
ml_dtypes.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator

from ...base import gpu
from ...catalogue import store
from ...catalogue.store import REFERENCE_GPU, Run, gpu_folder, latest, recorded_gpus, utc_now
from ...measure import baselines, bench, campaign, pipeline_timer
from ...measure.campaign import add_shared_options
from ...measure.comparison import DTYPES, load_comparisons
from ...measure.fused_baselines import NOT_OFFERED
from ...measure.pipeline_timer import COPY
from ...measure.pipelines import (
    TITLES,
    VERDICTS,
    Pipeline,
    PipelineTask,
    behind,
    best_baselines,
    holds,
    load_pipelines,
    order,
    run_task,
    shown,
    table,
)
from ...measure.problem_groups import GROUPS, linked, name_of
from ...measure.workers import Failure
from ...page.tables import lines_of
from ...problem.problem import Problem
from ...problem.shapes import PIPELINE_SHAPES
from ...run.bound import load
from ...simt.checks import rows_x_cols
from ...simt.words import counted, often


def run(options: argparse.Namespace) -> int:
    """Measure, or print the records; return the exit status."""
    if options.show:
        return show(options.show)
    baselines.use_cache()
    device = gpu.describe_device()
    folder = gpu_folder(device["name"])
    versions = {**gpu.describe_versions(), **baselines.versions()}
    run = Run(device, versions, utc_now(), pipeline_timer.PROTOCOL)
    wanted = [*tasks_alone(options, run), *tasks_around(options, run)]
    known = store.read_if_any(Pipeline, folder)
    known = [case for case in known if store.same_meaning(case.run, pipeline_timer.PROTOCOL)]
    missing = [task for task in wanted if options.fresh or not holds(known, task)]
    print(f"{len(missing)} of {counted(len(wanted), 'shape')} to time on {device['name']}")
    clock = campaign.Clock(options.minutes)
    if options.warm:
        names = [
            name for name in options.baselines if any(name in task.baselines for task in missing)
        ]
        baselines.warm_up([task.problem for task in missing], names, options.warm, clock.left_s / 3)

    def keep(task: PipelineTask, cases: list[Pipeline]) -> Iterator[str]:
        nonlocal known
        for case in cases:
            known = store.put(known, case, order())
        store.write(Pipeline, folder, known)
        yield from map(summary, cases)

    name = lambda task: name_of(task.problem)  # noqa: E731
    failed = campaign.run(missing, run_task, keep, name, without, options.jobs, clock=clock)
    print(f"the pipelines are in {store.path_of(Pipeline, folder)}")
    for line in failed:
        print(f"not timed: {line}", file=sys.stderr)
    return 1 if failed else 0


def without(task: PipelineTask, failure: Failure) -> tuple[PipelineTask | None, bool]:
    """The task without a failed baseline, which does not count as our failure."""
    return (task.without(failure), False) if failure.culprit in task.baselines else (None, True)


def tasks_alone(options: argparse.Namespace, run: Run) -> list[PipelineTask]:
    """Softmax at the shapes that fit this GPU's memory, unless groups are named."""
    if options.groups:
        return []
    fitting = bench.shapes_that_fit(options.shapes)
    for shape in [shape for shape in options.shapes if shape not in fitting]:
        print(f"{Problem(*shape).place()} does not fit this GPU's memory")
    return [
        PipelineTask(
            Problem(*shape, dtype), run, tuple(options.baselines), steps=tuple(options.steps)
        )
        for dtype in options.dtypes
        for shape in options.shapes
        if shape in fitting
    ]


def tasks_around(options: argparse.Namespace, run: Run) -> list[PipelineTask]:
    """The other operations, unless shapes of softmax are named: the groups, each with the best
    baselines of the comparison, or with all requested ones if there is no comparison."""
    if tuple(options.shapes) != PIPELINE_SHAPES and not options.groups:
        return []
    try:
        comparison = load_comparisons(gpu_folder(run.device["name"]))
    except (FileNotFoundError, ValueError):
        comparison = []
    tasks = []
    for problem in linked(*([options.groups] if options.groups else [])):
        best = best_baselines(comparison, problem)
        names = [name for name in options.baselines if name in best or not best]
        if problem.dtype in options.dtypes:
            tasks.append(PipelineTask(problem, run, tuple(names)))
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
        "--shapes", nargs="+", type=rows_x_cols, default=PIPELINE_SHAPES, metavar="ROWSxCOLS"
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
        "--baselines",
        nargs="*",
        default=[*baselines.BASELINES],
        choices=[*baselines.BASELINES],
        help="only these baselines; none if nothing follows",
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
    """Print the records of a GPU; returns the exit status."""
    try:
        cases = load_pipelines(folder)
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


def summary(case: Pipeline) -> str:
    """One line of progress for a case, with the baselines that were left out and why."""
    times = []
    for name in case.pipeline_us:
        us = case.us(name)
        label = shown(name) if name in case.launches else name
        times.append(f"{label} {us.value:.2f} ({us.low:.2f} to {us.high:.2f})")
    odd = " below a copy: look!" if case.us(case.best).value < 0.95 * case.us(COPY).value else ""
    told = {name: why for name, why in case.skipped.items() if not why.endswith(NOT_OFFERED)}
    reasons = "".join(f"\n    {name}: {reason}" for name, reason in told.items())
    said = f"{', '.join(times)}; {case.verdict}{odd}{reasons}"
    return f"{name_of(case.problem)}, {case.state}: us {said}"
