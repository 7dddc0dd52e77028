"""Time our kernels beside other libraries.

At each shape our kernel, every peer that can run the shape and copies are timed in turn: softmax,
then what is around it. Shapes are raced whose kernel, peer or versions are not those of the record,
what gains most first; the race is written after each, so that one that was interrupted, or that
`--minutes` ended, goes on where it stopped. Last come more processes for what tunes anew in each. A
peer that cannot run a shape, fails or computes something else is left out there, with the reason; a
shape at which our own kernel is wrong or fails is not recorded, named at the end, and makes the
exit status 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...base import gpu
from ...measure import bench, campaign, peers, store
from ...measure.campaign import Clock, add_shared_options
from ...measure.contests import GROUPS, entries, name_of
from ...measure.peers_around import NOT_OFFERED
from ...measure.races import (
    COPIES,
    DRAWS,
    DTYPES,
    REASONS,
    Draw,
    RaceCase,
    Task,
    order,
    run_draw,
    run_task,
    why_again,
)
from ...measure.store import Run, gpu_folder, utc_now
from ...measure.workers import Failure
from ...problem.problem import Problem
from ...problem.shapes import RACE_FAMILIES, RACE_SHAPES, race_family, raced
from ...simt.options import rows_x_cols
from ...simt.words import counted

ALL, NONE = "all", "none"  # of the groups


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--shapes", nargs="+", type=rows_x_cols, metavar="ROWSxCOLS", default=())
    parser.add_argument("--families", nargs="+", choices=RACE_FAMILIES, default=())
    parser.add_argument(
        "--groups",
        nargs="+",
        choices=[*GROUPS, ALL, NONE],
        metavar="GROUP",
        help=f"of what is around softmax these alone, and no softmax: {'; '.join(GROUPS)}; "
        f"{ALL} of it; {NONE} of it, but softmax",
    )
    parser.add_argument("--peers", nargs="+", default=[*peers.PEERS], choices=[*peers.PEERS])
    add_shared_options(parser, "minutes", "warm", "jobs", "fresh")


def run(options: argparse.Namespace) -> int:
    """Measure; return the exit status."""
    clock = Clock(options.minutes)
    peers.use_cache()
    device = gpu.describe_device()
    folder = gpu_folder(device["name"])
    versions = {**gpu.describe_versions(), **peers.versions()}
    run = Run(device, versions, utc_now(), bench.PROTOCOL)
    race = Race(folder, run, options.fresh)
    problems = problems_asked_for(options)
    why = {one: race.why_again(one, options.peers) for one in problems}
    missing = sorted((one for one in problems if why[one]), key=lambda one: worth(one, why[one]))
    reasons = ", ".join(f"{[*why.values()].count(reason)} {reason}" for reason in REASONS)
    total = counted(len(problems), "case")
    print(f"{len(missing)} of {total} to race on {device['name']}: {reasons}")
    if options.warm:
        peers.warm_up(missing, options.peers, options.warm, clock.left_s / 3)

    def keep(task: Task, case: RaceCase) -> Iterator[str]:
        race.put(case)
        yield summary(case)

    tasks = [Task(problem, run, tuple(options.peers)) for problem in missing]
    name = lambda task: name_of(task.problem)  # noqa: E731
    failed = campaign.run(tasks, run_task, keep, name, without, options.jobs, clock=clock)
    for number in range(2, DRAWS + 1):
        failed += draw_all(race, problems, number, options.jobs, clock)
    print(f"the race is in {store.path_of(RaceCase, folder)}")
    left = sum(bool(race.why_again(one, options.peers)) for one in problems)
    drawn = sum(bool(case.to_draw()) for case in race.cases if case.problem in problems)
    if left or drawn:
        print(f"left: {counted(left, 'case')}, and {drawn} to draw again; run it again to go on")
    for line in failed:
        print(f"not raced: {line}", file=sys.stderr)
    return 1 if failed else 0


class Race:
    """What is recorded of a GPU, to go on with in a run."""

    def __init__(self, folder: str, run: Run, fresh: bool = False):
        known = [] if fresh else store.read_if_any(RaceCase, folder)
        self.cases = [case for case in known if store.same_meaning(case.run, run.protocol)]
        self.folder, self.run = folder, run

    def why_again(self, problem: Problem, names: Sequence[str]) -> str:
        """One of `REASONS` to race a problem, or ""."""
        case = next((case for case in self.cases if case.problem == problem), None)
        return why_again(case, names, self.run.versions)

    def put(self, case: RaceCase) -> None:
        """Put a case in, and write the file."""
        self.cases = store.put(self.cases, case, order())
        store.write(RaceCase, self.folder, self.cases)


def without(task: Task, failure: Failure) -> tuple[Task | None, bool]:
    """The task without a peer or a copy that fails, which is no failure of ours."""
    theirs = failure.culprit in task.peers or failure.culprit.startswith(COPIES)
    return (task.without(failure), False) if theirs else (None, True)


def problems_asked_for(options: argparse.Namespace) -> list[Problem]:
    """What the options name, as far as it fits this GPU's memory: softmax unless groups are named,
    what is around it unless shapes or families of softmax are."""
    problems, families = [], options.families or RACE_FAMILIES
    groups = options.groups or ([NONE] if options.shapes or options.families else [ALL])
    wanted = {shape for family in families for shape in RACE_FAMILIES[family]}
    for dtype in options.dtypes if not options.groups or NONE in groups else ():
        shapes = options.shapes or [shape for shape in raced(dtype) if shape in wanted]
        problems += [Problem(*shape, dtype) for shape in shapes]
    if NONE not in groups:
        around = entries([*GROUPS] if ALL in groups else groups)
        problems += [problem for problem in around if problem.dtype in options.dtypes]
    fitting = {*bench.shapes_that_fit([one.shape for one in problems])}
    for one in [one for one in problems if one.shape not in fitting]:
        print(f"{name_of(one)} does not fit this GPU's memory")
    return [one for one in problems if one.shape in fitting]


def worth(problem: Problem, why: str) -> tuple:
    """What is raced first: what is not known at all, then our kernels that changed, then peers; of
    each the families in their order, and then what is around softmax in its own."""
    if not problem.plain:
        return REASONS.index(why), len(RACE_FAMILIES) + 1, 0
    shape = problem.shape
    family = [*RACE_FAMILIES, ""].index(race_family(*shape))
    place = RACE_SHAPES.index(shape) if shape in RACE_SHAPES else 0
    return REASONS.index(why), family, place


def draw_all(
    race: Race, problems: Sequence[Problem], number: int, jobs: int, clock: Clock
) -> list[str]:
    """Time what is to be drawn once more, in new processes; return what failed of ours."""
    known = {case.problem: case for case in race.cases if case.problem in problems}
    drawn = [case for case in known.values() if len(case.draws) == number - 2]
    tasks = [Draw(case.problem, case.step, case.to_draw()) for case in drawn if case.to_draw()]
    if clock.left_s < 0 or not tasks:
        return []

    def keep(draw: Draw, named: dict[str, list[float]]) -> Iterator[str]:
        case = known[draw.problem]
        case = replace(case, draws=[*case.draws, named])
        race.put(case)
        shares = ", ".join(f"{name} {case.share(name):.3f}" for name in draw.peers)
        yield f"process {number}: {name_of(draw.problem)}: {shares}; {case.verdict}"

    def without(draw: Draw, failure: Failure) -> tuple[None, bool]:
        if failure.culprit != draw.step:
            print(f"drawing at {name_of(draw.problem)}: {failure}", file=sys.stderr)
        return None, failure.culprit == draw.step

    name = lambda draw: name_of(draw.problem)  # noqa: E731
    with peers.tuned_anew(number):
        return campaign.run(tasks, run_draw, keep, name, without, jobs, apart=True, clock=clock)


def summary(case: RaceCase) -> str:
    """One line of progress: shares of a copy, the verdict with its interval, and who was left out
    why."""
    shares = ", ".join(
        f"{name} {case.share(name):.3f}"
        + (f" (less precise: {case.precision(name):.1f} ulp)" if case.precision(name) else "")
        for name in case.timed
    )
    verdict = case.verdict
    if case.best_peer and case.step:
        lead = case.lead_over(case.best_peer)
        verdict += f" of {case.best_peer}: {lead.value:.3f} ({lead.low:.3f} to {lead.high:.3f})"
    if case.programmatic_share:
        verdict += f"; programmatic {case.programmatic_share:.3f} of a copy launched so"
    flag = " above the copy: look!" if case.step and case.share(case.step) > 1.05 else ""
    told = {name: why for name, why in case.skipped.items() if not why.endswith(NOT_OFFERED)}
    reasons = "".join(f"\n    {name}: {reason}" for name, reason in told.items())
    return f"{name_of(case.problem)}: {shares}; {verdict}{flag}{reasons}"
