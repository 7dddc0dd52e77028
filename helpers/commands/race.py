"""Our kernels against the peers: `make race` on a GPU, tables and plots anywhere.

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
import time
from collections import deque
from collections.abc import Iterable

from ..base import gpu
from ..measure import bench, peers, workers
from ..measure.contested import Task
from ..measure.contests import GROUPS, entries, name_of
from ..measure.peers_around import NOT_OFFERED
from ..measure.races import (
    COPIES,
    DRAWS,
    DTYPES,
    REASONS,
    Draw,
    Race,
    RaceCase,
    open_race,
    race_path,
    run_draw,
    run_task,
    save_race,
)
from ..measure.records import gpu_folder
from ..problem.problem import Problem
from ..problem.shapes import RACE_FAMILIES, RACE_SHAPES, race_family, raced
from ..simt.options import at_least, rows_x_cols
from ..simt.words import counted

ALL, NONE = "all", "none"  # of the groups


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = parse_arguments(arguments)
    if not gpu.has_gpu():
        print("the race is run on a GPU, and CuPy finds none here", file=sys.stderr)
        return 1
    clock = Clock(options.minutes)
    peers.use_cache()
    device = gpu.describe_device()
    folder = gpu_folder(device["name"])
    versions = {**gpu.describe_versions(), **peers.versions()}
    race = open_race(folder, device, versions, options.fresh)
    runs = runs_asked_for(options)
    why = {run: race.why_again(run, options.peers) for run in runs}
    missing = sorted((run for run in runs if why[run]), key=lambda run: worth(run, why[run]))
    reasons = ", ".join(f"{[*why.values()].count(reason)} {reason}" for reason in REASONS)
    print(f"{len(missing)} of {counted(len(runs), 'case')} to race on {device['name']}: {reasons}")
    if options.warm:
        peers.warm_up(missing, options.peers, options.warm, clock.left_s / 3)
    failed = race_all(race, missing, options, folder, clock)
    for number in range(2, DRAWS + 1):
        failed += draw_all(race, runs, number, options.jobs, folder, clock)
    print(f"the race is in {race_path(folder)}")
    left = sum(bool(race.why_again(run, options.peers)) for run in runs)
    drawn = sum(bool(case.to_draw()) for case in race.cases if case.problem in runs)
    if left or drawn:
        print(f"left: {counted(left, 'case')}, and {drawn} to draw again; run it again to go on")
    for line in failed:
        print(f"not raced: {line}", file=sys.stderr)
    return 1 if failed else 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m helpers.commands.race", description=__doc__)
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
    parser.add_argument("--fresh", action="store_true", help="forget what is recorded")
    parser.add_argument(
        "--minutes", type=at_least(1), metavar="N", help="begin no case after so many minutes"
    )
    parser.add_argument(
        "--warm",
        type=at_least(0),
        default=0,
        metavar="N",
        help="compile the peers in N processes first",
    )
    workers.add_jobs_option(parser)
    return parser.parse_args(arguments)


def runs_asked_for(options: argparse.Namespace) -> list[Problem]:
    """What the options name, as far as it fits this GPU's memory: softmax unless groups are named,
    what is around it unless shapes or families of softmax are."""
    runs, families = [], options.families or RACE_FAMILIES
    groups = options.groups or ([NONE] if options.shapes or options.families else [ALL])
    wanted = {shape for family in families for shape in RACE_FAMILIES[family]}
    for dtype in options.dtypes if not options.groups or NONE in groups else ():
        shapes = options.shapes or [shape for shape in raced(dtype) if shape in wanted]
        runs += [Problem(*shape, dtype) for shape in shapes]
    if NONE not in groups:
        around = entries([*GROUPS] if ALL in groups else groups)
        runs += [problem for problem in around if problem.dtype in options.dtypes]
    fitting = {*bench.shapes_that_fit([run.shape for run in runs])}
    for run in [run for run in runs if run.shape not in fitting]:
        print(f"{name_of(run)} does not fit this GPU's memory")
    return [run for run in runs if run.shape in fitting]


def worth(run: Problem, why: str) -> tuple:
    """What is raced first: what is not known at all, then our kernels that changed, then peers; of
    each the families in their order, and then what is around softmax in its own."""
    if not run.plain:
        return REASONS.index(why), len(RACE_FAMILIES) + 1, 0
    family = race_family(*run.shape)
    order = [*RACE_FAMILIES, ""].index(family)
    shape = RACE_SHAPES.index(run.shape) if run.shape in RACE_SHAPES else 0
    return REASONS.index(why), order, shape


class Clock:
    """How long it took, how long it may take."""

    def __init__(self, minutes: int | None):
        self.began = time.perf_counter()
        self.limit_s = 60.0 * minutes if minutes else float("inf")

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    @property
    def left_s(self) -> float:
        return self.limit_s - self.seconds

    def progress(self, done: int, total: int, since: float) -> str:
        """ "3/12, 40 s, 2 min to go", by what those took that were begun at `since`."""
        rest = (self.seconds - since) / done * (total - done) / 60
        return f"{done}/{total}, {self.seconds:.0f} s, {rest:.0f} min to go"


def race_all(
    race: Race, missing: Iterable[Problem], options: argparse.Namespace, folder: str, clock: Clock
) -> list[str]:
    """Race the shapes and write each; returns what failed of ours."""
    tasks = deque(Task(run, tuple(options.peers)) for run in missing)
    done, total, failed, since = 0, len(tasks), [], clock.seconds
    if clock.left_s < 0:
        tasks.clear()
    for task, case in workers.deal(run_task, tasks, options.jobs):
        if isinstance(case, workers.Failure):
            if case.culprit in task.peers or case.culprit.startswith(COPIES):  # again without it
                tasks.appendleft(task.without(case))
                continue
            failed.append(case.at(name_of(task.problem)))
            print(failed[-1], file=sys.stderr, flush=True)
        done += 1
        if isinstance(case, RaceCase):
            race.add(case)
            save_race(race, folder)
            print(f"[{clock.progress(done, total, since)}] {summary(case)}", flush=True)
        if clock.left_s < 0:
            tasks.clear()
    return failed


def draw_all(
    race: Race, runs: Iterable[Problem], number: int, jobs: int, folder: str, clock: Clock
) -> list[str]:
    """Time what is to be drawn once more, in new processes; returns what failed of ours."""
    tasks = deque()
    for case in race.cases:
        if case.problem in runs and len(case.draws) == number - 2:
            if names := case.to_draw():
                tasks.append(Draw(case.problem, case.step, names))
    done, total, failed, since = 0, len(tasks), [], clock.seconds
    if clock.left_s < 0 or not tasks:
        return []
    with peers.tuned_anew(number):
        for draw, named in workers.deal(run_draw, tasks, jobs, apart=True):
            where = name_of(draw.problem)
            done += 1
            if isinstance(named, workers.Failure):
                print(f"drawing {', '.join(draw.peers)} at {where}: {named}", file=sys.stderr)
                failed += [f"{named} at {where}"] if named.culprit == draw.step else []
            else:
                case = race.add_draw(draw.problem, named)
                save_race(race, folder)
                shares = ", ".join(f"{name} {case.share(name):.3f}" for name in draw.peers)
                head = f"[process {number}: {clock.progress(done, total, since)}]"
                print(f"{head} {where}: {shares}; {case.verdict}", flush=True)
            if clock.left_s < 0:
                tasks.clear()
    return failed


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


if __name__ == "__main__":
    sys.exit(main())
