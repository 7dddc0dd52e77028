"""Compare our kernels with other libraries.

At each shape our kernel, every baseline that supports the shape, and copies are timed in turn:
softmax first, then fused and related operations. Shapes whose kernel, baselines or versions differ
from the record are compared, most valuable first. The file is written after each, so an interrupted
run, or one ended by `--minutes`, is resumed by the next. Finally, baselines that tune anew in each
process are timed in further processes. A baseline that does not support a shape, fails or is wrong
is left out there, with the reason. A shape at which our kernel is wrong or fails is not recorded;
it is named at the end, and the exit status is 1.

`--drawn N` compares N problems drawn at random instead, with the rule's plan beside ours where the
table of tuned plans has another one, and prints the losses first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from ...base import gpu
from ...catalogue import store
from ...catalogue.store import Run, gpu_folder, utc_now
from ...measure import baselines, bench, campaign
from ...measure.campaign import Clock, add_shared_options
from ...measure.comparison import (
    COPIES,
    DRAWS,
    DTYPES,
    REASONS,
    Comparison,
    ComparisonTask,
    Draw,
    Unseen,
    order,
    run_draw,
    run_task,
    unseen_lines,
    why_again,
)
from ...measure.fused_baselines import NOT_OFFERED
from ...measure.problem_groups import ALONE, GROUPS, drawn, entries, name_of
from ...measure.workers import Failure
from ...problem.problem import Problem
from ...problem.shapes import COMPARED_FAMILIES, COMPARED_SHAPES, compared_family, compared_shapes
from ...simt.checks import at_least, rows_x_cols
from ...simt.words import counted

ALL, NONE = "all", "none"  # of the groups


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--shapes", nargs="+", type=rows_x_cols, metavar="ROWSxCOLS", default=())
    parser.add_argument("--families", nargs="+", choices=COMPARED_FAMILIES, default=())
    parser.add_argument(
        "--groups",
        nargs="+",
        choices=[*GROUPS, ALL, NONE],
        metavar="GROUP",
        help=f"of what is around softmax these alone, and no softmax: {'; '.join(GROUPS)}; "
        f"{ALL} of it; {NONE} of it, but softmax",
    )
    parser.add_argument(
        "--baselines", nargs="+", default=[*baselines.BASELINES], choices=[*baselines.BASELINES]
    )
    help = f"N problems drawn at random instead, of {ALONE} or of each group"
    parser.add_argument("--drawn", type=at_least(1), metavar="N", help=help)
    help = "of the draw: the commit that froze the tuned plans"
    parser.add_argument("--seed", type=hexadecimal, metavar="COMMIT", default="0", help=help)
    add_shared_options(parser, "minutes", "warm", "jobs", "fresh")


def hexadecimal(text: str) -> str:
    """The text, if it is a hexadecimal number. Raises `ValueError`, as `argparse` expects."""
    int(text, 16)
    return text


def run(options: argparse.Namespace) -> int:
    """Measure; return the exit status."""
    clock = Clock(options.minutes)
    baselines.use_cache()
    device = gpu.describe_device()
    folder = gpu_folder(device["name"])
    versions = {**gpu.describe_versions(), **baselines.versions()}
    run = Run(device, versions, utc_now(), bench.PROTOCOL)
    problems = problems_asked_for(options)
    if options.drawn:
        draw = {problem: place for place, problem in enumerate(problems)}
        recorded = Recorded(Unseen, folder, run, draw, options.fresh)
    else:
        recorded = Recorded(Comparison, folder, run, order(), options.fresh)
    why = {one: recorded.why_again(one, options.baselines) for one in problems}
    missing = [one for one in problems if why[one]]
    if not options.drawn:
        missing.sort(key=lambda one: worth(one, why[one]))
    reasons = ", ".join(f"{[*why.values()].count(reason)} {reason}" for reason in REASONS)
    total = counted(len(problems), "case")
    print(f"{len(missing)} of {total} to compare on {device['name']}: {reasons}")
    if options.warm:
        baselines.warm_up(missing, options.baselines, options.warm, clock.left_s / 3)

    def keep(task: ComparisonTask, case: Comparison) -> Iterator[str]:
        recorded.put(case)
        yield summary(case)

    seed = options.seed if options.drawn else ""
    tasks = [ComparisonTask(problem, run, tuple(options.baselines), seed) for problem in missing]
    name = lambda task: name_of(task.problem)  # noqa: E731
    failed = campaign.run(tasks, run_task, keep, name, without, options.jobs, clock=clock)
    for number in range(2, DRAWS + 1):
        failed += draw_all(recorded, problems, number, options.jobs, clock)
    print(f"the comparison is in {store.path_of(recorded.kind, folder)}")
    left = sum(bool(recorded.why_again(one, options.baselines)) for one in problems)
    drawn = sum(bool(case.to_draw()) for case in recorded.cases if case.problem in problems)
    if left or drawn:
        print(f"left: {counted(left, 'case')}, and {drawn} to draw again; run it again to go on")
    for line in failed:
        print(f"not compared: {line}", file=sys.stderr)
    if options.drawn:
        shown = {*problems}
        for line in unseen_lines([case for case in recorded.cases if case.problem in shown]):
            print(line)
    return 1 if failed else 0


class Recorded:
    """The records of a kind on a GPU, to be continued in a run."""

    def __init__(
        self,
        kind: type[Comparison],
        folder: str,
        run: Run,
        order: Mapping[Hashable, int],
        fresh: bool = False,
    ):
        known = store.read_if_any(kind, folder)
        self.cases = [case for case in known if store.same_meaning(case.run, run.protocol)]
        self.kind, self.folder, self.run, self.order = kind, folder, run, order
        self.old = {case.problem for case in self.cases} if fresh else set()  # to be replaced

    def why_again(self, problem: Problem, names: Sequence[str]) -> str:
        """One of `REASONS` to compare a problem, or ""."""
        valid = (case for case in self.cases if case.problem not in self.old)
        case = next((case for case in valid if case.problem == problem), None)
        return why_again(case, names, self.run.versions)

    def put(self, case: Comparison) -> None:
        """Insert a case, and write the file."""
        self.cases = store.put(self.cases, case, self.order)
        self.old.discard(case.problem)
        store.write(self.kind, self.folder, self.cases)


def without(task: ComparisonTask, failure: Failure) -> tuple[ComparisonTask | None, bool]:
    """The task without a failed baseline or copy, which does not count as our failure."""
    theirs = failure.culprit in task.baselines or failure.culprit.startswith(COPIES)
    return (task.without(failure), False) if theirs else (None, True)


def problems_asked_for(options: argparse.Namespace) -> list[Problem]:
    """The problems that the options name or draw and that fit in this GPU's memory."""
    problems = problems_drawn(options) if options.drawn else problems_named(options)
    fitting = {*bench.shapes_that_fit([one.shape for one in problems])}
    for one in [one for one in problems if one.shape not in fitting]:
        print(f"{name_of(one)} does not fit this GPU's memory")
    return [one for one in problems if one.shape in fitting]


def problems_drawn(options: argparse.Namespace) -> list[Problem]:
    """Problems of softmax or of the groups that are named, drawn at random, each once."""
    names = [*GROUPS] if ALL in (options.groups or ()) else options.groups or [NONE]
    names = [ALONE if name == NONE else name for name in names]
    found = (one for name in names for one in drawn(options.drawn, options.seed, name))
    return [*dict.fromkeys(found)]


def problems_named(options: argparse.Namespace) -> list[Problem]:
    """Softmax unless groups are named, the other operations unless shapes or families of softmax
    are."""
    problems, families = [], options.families or COMPARED_FAMILIES
    groups = options.groups or ([NONE] if options.shapes or options.families else [ALL])
    wanted = {shape for family in families for shape in COMPARED_FAMILIES[family]}
    for dtype in options.dtypes if not options.groups or NONE in groups else ():
        shapes = options.shapes or [shape for shape in compared_shapes(dtype) if shape in wanted]
        problems += [Problem(*shape, dtype) for shape in shapes]
    if NONE not in groups:
        around = entries([*GROUPS] if ALL in groups else groups)
        problems += [problem for problem in around if problem.dtype in options.dtypes]
    return problems


def worth(problem: Problem, why: str) -> tuple:
    """The order of the comparison: unknown problems, then changed kernels of ours, then baselines;
    within each, the families of softmax in order, then the other operations."""
    if not problem.plain:
        return REASONS.index(why), len(COMPARED_FAMILIES) + 1, 0
    shape = problem.shape
    family = [*COMPARED_FAMILIES, ""].index(compared_family(*shape))
    place = COMPARED_SHAPES.index(shape) if shape in COMPARED_SHAPES else 0
    return REASONS.index(why), family, place


def draw_all(
    recorded: Recorded, problems: Sequence[Problem], number: int, jobs: int, clock: Clock
) -> list[str]:
    """Time the baselines that need another process; return failures of our kernels."""
    known = {case.problem: case for case in recorded.cases if case.problem in problems}
    drawn = [case for case in known.values() if len(case.draws) == number - 2]
    tasks = [Draw(case.problem, case.step, case.to_draw()) for case in drawn if case.to_draw()]
    if clock.left_s < 0 or not tasks:
        return []

    def keep(draw: Draw, named: dict[str, list[float]]) -> Iterator[str]:
        case = known[draw.problem]
        case = replace(case, draws=[*case.draws, named])
        recorded.put(case)
        shares = ", ".join(f"{name} {case.share(name):.3f}" for name in draw.baselines)
        yield f"process {number}: {name_of(draw.problem)}: {shares}; {case.verdict}"

    def without(draw: Draw, failure: Failure) -> tuple[None, bool]:
        if failure.culprit != draw.step:
            print(f"drawing at {name_of(draw.problem)}: {failure}", file=sys.stderr)
        return None, failure.culprit == draw.step

    name = lambda draw: name_of(draw.problem)  # noqa: E731
    with baselines.tuned_anew(number):
        return campaign.run(tasks, run_draw, keep, name, without, jobs, apart=True, clock=clock)


def summary(case: Comparison) -> str:
    """One line of progress: fractions of a copy, the verdict with its interval, and which baselines
    were left out and why."""
    shares = ", ".join(
        f"{name} {case.share(name):.3f}"
        + (f" (less precise: {case.precision(name):.1f} ulp)" if case.precision(name) else "")
        for name in case.timed
    )
    verdict = case.verdict
    if case.best_baseline and case.step:
        speedup = case.speedup_over(case.best_baseline)
        interval = f"{speedup.low:.3f} to {speedup.high:.3f}"
        verdict += f" of {case.best_baseline}: {speedup.value:.3f} ({interval})"
    if case.programmatic_share:
        verdict += f"; programmatic {case.programmatic_share:.3f} of a copy launched so"
    flag = " above the copy: look!" if case.step and case.share(case.step) > 1.05 else ""
    told = {name: why for name, why in case.skipped.items() if not why.endswith(NOT_OFFERED)}
    reasons = "".join(f"\n    {name}: {reason}" for name, reason in told.items())
    return f"{name_of(case.problem)}: {shares}; {verdict}{flag}{reasons}"
