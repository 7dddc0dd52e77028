"""Measure on this machine's GPU and write notebooks/records: `make measure ARGS="steps"`.

Each campaign can be interrupted: every result is written as soon as it is measured, and a second
run resumes where the first one stopped. What is wrong or fails is left out, named at the end, and
makes the exit status 1.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..base import gpu
from ..catalogue import store
from ..catalogue.dispatch import out_of_date
from ..catalogue.registry import TORCH, known_steps
from ..catalogue.store import Run
from ..catalogue.tuned import Tuned
from ..measure import baselines, bench, side_by_side
from ..measure import pipelines as pipelined
from ..measure.campaign import Campaign, CampaignTask, Failure, minutes, use_cache
from ..measure.comparison import DRAWS, Comparison, Unseen, order
from ..measure.comparison import DTYPES as COMPARED
from ..measure.pipelines import Pipeline
from ..measure.profiler import Launch
from ..measure.profiling import FILES, run_kernels, update
from ..measure.records import Case, takes
from ..measure.samples import ratio
from ..measure.side_by_side import ComparisonTask, Draw, PipelineTask
from ..measure.tuning import PROTOCOL, GridPoint, Lab, grid, starts, tuned
from ..page.comparison_text import unseen_lines
from ..problem.problem import DTYPES, Problem
from ..problem.shapes import (
    ALONE,
    AXES,
    COMPARED_FAMILIES,
    GROUPS,
    PIPELINE_SHAPES,
    RECORDED_SHAPES,
    REFERENCE_SHAPE,
    compared_shapes,
    drawn,
    entries,
    group_of,
    linked,
)
from ..simt.words import at_least

# ---- steps --------------------------------------------------------------------------------------


def step_maker(step: str) -> bench.Maker:
    """The maker of a step's candidate, as `bench.maker`; for `TORCH` that of eager PyTorch."""
    return partial(side_by_side.candidate, "torch") if step == TORCH else bench.maker(step)


@dataclass(frozen=True)
class StepsTask(CampaignTask):
    """Steps to be recorded at the sizes and dtype of a problem, timed with the same copy."""

    at: Problem
    names: tuple[str, ...]
    run: Run

    def __str__(self) -> str:
        return self.at.place(dtype=True)

    def wanted_keys(self) -> list[tuple[str, Problem]]:
        return [(name, self.at) for name in self.names]

    def title(self, key: tuple[str, Problem]) -> str:
        return f"{key[0]} at {self}"

    def of(self, keys: Sequence[tuple[str, Problem]]) -> StepsTask:
        return replace(self, names=tuple(name for name, _ in keys))

    def measure(self) -> list[Case]:
        side_by_side.free_memory()
        times = bench.measure_steps(self.at, self.names, step_maker)
        problems = {name: bench.problem_of(name, self.at) for name in self.names}
        return [Case.of(times[name], name, one, self.run) for name, one in problems.items()]

    def without(self, failure: Failure) -> tuple[StepsTask | None, bool]:
        """The steps that did not fail; none if the failure names no step."""
        others = tuple(name for name in self.names if name != failure.culprit)
        rest = 0 < len(others) < len(self.names)
        return (replace(self, names=others) if rest else None), True

    def lines(self, found: Sequence[Case]) -> list[str]:
        return [f"{self}: GB/s {', '.join(map(rate, found))}"]


def rate(case: Case) -> str:
    flag = " above the copy: look!" if case.share > 1.05 else ""
    return f"{case.step} {case.gbps:.0f} ({case.share:.2f}){flag}"


class Steps(Campaign):
    """The first new case of a step replaces all cases of the step that are out of date."""

    def __init__(self, options: argparse.Namespace, torch: Mapping[str, str]):
        super().__init__(Case, bench.PROTOCOL, options, torch)
        self.stale = {key for key in self.known if self.change(key)}

    def versions_of(self, key: tuple[str, Problem]) -> Mapping[str, str]:
        """Only `TORCH` depends on the version of PyTorch."""
        names = {*self.versions} - ({"torch"} if key[0] != TORCH else set())
        return {name: self.versions[name] for name in names}

    def put(self, found: Sequence[Case]) -> None:
        steps = {case.step for case in found}
        gone = {key for key in self.stale if self.known[key].step in steps}
        self.stale -= gone
        self.known = {key: one for key, one in self.known.items() if key not in gone}
        super().put(found)


def steps(options: argparse.Namespace) -> int:
    """Time every kernel of the series in turn with a copy of the same bytes.

    Cases are measured again if the kernel's code or launch, a version or the text of the protocol
    changed. A kernel that is wrong or fails at a shape is left out there. Needs only CuPy,
    cuda-bindings, NumPy and ml_dtypes; if PyTorch is installed, its softmax is timed too, as
    "00_torch". --only finds names such as "07_warp-ROWS2 at 262144 x 1024 float32".
    """
    names, torch = [*known_steps(), TORCH], {}
    if reason := baselines.why_not("torch", Problem(*REFERENCE_SHAPE)):
        print(f"{TORCH} is not recorded: {reason}")
        names.remove(TORCH)
    else:
        torch = {"torch": baselines.versions()["torch"]}
    campaign = Steps(options, torch)
    run = campaign.run
    fitting = bench.shapes_that_fit((*RECORDED_SHAPES, *AXES))
    every = [Problem(r, c, dtype, *inner) for r, c, *inner in fitting for dtype in DTYPES]
    campaign.order = [*itertools.product([*known_steps(), TORCH], every)]
    tasks = []
    for at in every:
        some = (name for name in names if campaign.asked(f"{name} at {at.place(True)}"))
        tasks.append(StepsTask(at, tuple(name for name in some if takes(name, at, run.gpu)), run))
    if run.versions.get("commit") == "unknown":
        print("git does not say which commit this is; set GIT_COMMIT to have it in the record")
    return campaign.complete(campaign.due(tasks))


# ---- tuned --------------------------------------------------------------------------------------

AHEAD = 60  # shapes whose trials are compiled before they are timed


@dataclass(frozen=True)
class TuningTask(CampaignTask):
    """A point of the grid to be tuned in this process. `points` are those whose trials are not
    being compiled yet."""

    point: GridPoint
    run: Run
    lab: Lab
    points: deque[GridPoint]

    def __str__(self) -> str:
        return self.problem.place(True)

    @property
    def problem(self) -> Problem:
        return self.point.problem

    def prepare(self, count: int) -> None:
        """Begin to compile the trials of the next points."""
        for _ in range(min(count, len(self.points))):
            problem = self.points.popleft().problem
            self.lab.begin(problem, starts(problem, self.run.gpu))

    def measure(self) -> list[Tuned]:
        self.prepare(1)
        return [tuned(self.point, self.run, self.lab)]

    def lines(self, found: Sequence[Tuned]) -> Iterator[str]:
        for line in found:
            gain = line.rule
            if line.rule_us:
                gain = f"{line.trial} {ratio(line.rule_us, line.trial_us).value:.3f}"
            yield f"{self}: {gain}, {ratio(line.copy_us, line.trial_us).value:.3f} of a copy"


def tune_grid(options: argparse.Namespace) -> int:
    """Tune the plans of softmax over a grid of shapes: the table that `choose` and exports read.

    A shape takes a second or two, and the whole grid about half an hour on an H200. Shapes that are
    in the file with the current kernels are left out, and the most valuable ones come first.
    `comparison --drawn N` times the plans, with the table and without, at shapes drawn at random.
    """
    campaign = Campaign(Tuned, PROTOCOL, options)
    run, at = campaign.run, {one.problem: {"rows": one.rows, "cols": one.cols} for one in grid()}
    current = [line for line in campaign.known.values() if not out_of_date(line, run.gpu)]
    campaign.known = {
        one.problem: replace(one, **at[one.problem]) for one in current if one.problem in at
    }
    campaign.order = [*at]
    fitting = {*bench.shapes_that_fit([problem.shape for problem in at])}
    points = [point for point in grid() if point.problem.shape in fitting]
    with Lab() as lab:
        ahead: deque[GridPoint] = deque()
        tasks = campaign.due(TuningTask(point, run, lab, ahead) for point in points)
        ahead.extend(task.point for task in tasks)
        for task in tasks[:1]:
            task.prepare(AHEAD)
        return campaign.complete(tasks)


# ---- comparison ---------------------------------------------------------------------------------


def comparison(options: argparse.Namespace) -> int:
    """Compare our kernels with other libraries.

    At each shape our kernel, every baseline that supports the shape, and copies are timed in turn:
    softmax first, then fused and related operations. Shapes whose kernel, baselines or versions
    differ from the record are compared, most valuable first. Finally, baselines that tune anew in
    each process are timed in further processes. A baseline that does not support a shape, fails or
    is wrong is left out there, with the reason. A shape at which our kernel is wrong or fails is
    not recorded.

    `--drawn N` compares N problems drawn at random instead, with the rule's plan beside ours where
    the table of tuned plans has another one, and prints the losses first; baselines are timed in
    one process. It replaces an earlier draw of the same operations.
    """
    use_cache()
    kind = Unseen if options.drawn else Comparison
    campaign = Campaign(kind, bench.PROTOCOL, options, baselines.versions())
    seed = options.seed if options.drawn else ""
    names = tuple(options.baselines)
    tasks = {one: ComparisonTask(one, campaign.run, names, seed) for one in compared(options)}
    asked = [one for one, task in tasks.items() if campaign.asked(task.title(one))]
    problems = bench.that_fit(asked)
    campaign.order = problems if options.drawn else order()
    if options.drawn:  # a draw replaces those of its operations with another seed
        drawn_now = {group_of(one) for one in problems}
        campaign.known = {
            key: one
            for key, one in campaign.known.items()
            if one.seed == seed or group_of(one.problem) not in drawn_now
        }
    due = campaign.due(tasks[one] for one in problems)
    if options.drawn:  # when the time is up, what was compared must be the head of the draw
        due.sort(key=lambda task: problems.index(task.problem))
    failed = campaign.carry_out(due)
    for number in range(2, 2 if options.drawn else DRAWS + 1):
        known = [campaign.known[one] for one in problems if one in campaign.known]
        tasks = [Draw(case, names) for case in known if (names := case.to_draw())]
        tasks = [task for task in tasks if len(task.case.draws) == number - 2]
        if tasks and campaign.left_s >= 0:
            with side_by_side.tuned_anew(number):
                failed += campaign.measure(tasks, apart=True)
    status = campaign.end(failed)
    if options.drawn:
        known = [campaign.known[one] for one in problems if one in campaign.known]
        print(*unseen_lines(known), sep="\n")
    return status


def compared(options: argparse.Namespace) -> list[Problem]:
    """The problems that are drawn, or those of softmax and then of the other operations, most
    valuable first."""
    if options.drawn:
        names = (ALONE, *GROUPS) if options.only else (ALONE,)
        found = (one for name in names for one in drawn(options.drawn, options.seed, name))
        return [*dict.fromkeys(found)]
    families = (shape for shapes in COMPARED_FAMILIES.values() for shape in shapes)
    alone = [
        Problem(*shape, dtype)
        for shape in options.shapes or dict.fromkeys(families)
        for dtype in COMPARED
        if options.shapes or shape in compared_shapes(dtype)
    ]
    return alone if options.shapes else [*alone, *entries()]


# ---- pipelines ----------------------------------------------------------------------------------


def pipelines(options: argparse.Namespace) -> int:
    """Time softmax between a kernel that writes x and one that reads y.

    At each shape the kernel that `choose` returns, its variants (plain instead of streaming
    accesses, no L2 hint, an ordinary launch), every baseline that supports the shape, and a copy
    are timed in turn, with x in the L2 and evicted from it. Other operations are timed with the two
    best baselines of the comparison. A baseline that does not support a shape, fails or is wrong is
    left out there, with the reason. A shape at which our kernel is wrong or fails is not recorded.
    Apart from the baselines it needs only CuPy, cuda-bindings, NumPy and ml_dtypes.
    """
    use_cache()
    campaign = Campaign(Pipeline, pipelined.PROTOCOL, options, baselines.versions())
    campaign.order = pipelined.order()
    shapes = itertools.product(COMPARED, options.shapes or PIPELINE_SHAPES)
    problems = bench.that_fit([Problem(*shape, dtype) for dtype, shape in shapes])
    problems += [] if options.shapes else linked()
    best, tasks = store.read_if_any(Comparison, campaign.folder), []
    for problem in problems:
        known = [] if problem.plain else pipelined.best_baselines(best, problem)
        names = tuple(name for name in options.baselines if name in known or not known)
        tasks.append(PipelineTask(problem, campaign.run, names))
    return campaign.complete(campaign.due(tasks))


# ---- profile ------------------------------------------------------------------------------------


def profile(options: argparse.Namespace) -> int:
    """Collect profiler data.

    counters.jsonl   Nsight Compute's counters: for every step at small shapes (which the tests
                     compare with the SIMT machine's), for steps, variants and block trials at large
                     shapes (which the prose explains), and for each launch of the array version
    sass.jsonl       the machine instructions of every kernel: those that matter in order (loads,
                     stores, special functions, barriers, branches, calls), all of them counted
    numerics.jsonl   the error of the arithmetic that the kernels use, in units of the last place
    sanitizer.jsonl  compute-sanitizer's verdicts on every kernel at the small shapes

    The tools run on one step at a time. A second call only repeats kernels whose code or launch
    changed since, and results with another driver, NVRTC or CuPy. --only finds names such as
    "counters 07_warp" and "sanitizer racecheck 07_warp".

    Needs a GPU, `ncu`, `cuobjdump` and `compute-sanitizer` on the PATH, and the right to read
    counters.
    """
    if options.worker:
        run_kernels([Launch.parse(text) for text in options.worker])
        return 0
    statuses = [status for file in FILES if (status := update(file, options)) is not None]
    if not statuses:
        print("--only finds no task", file=sys.stderr)
    return max(statuses, default=1)


# ---- the command --------------------------------------------------------------------------------

LIBRARIES = ("shapes", "baselines", "minutes", "warm", "jobs")
CAMPAIGNS = {  # name -> (what does it, its options beside --fresh and --only, help)
    "steps": (steps, ("minutes", "jobs"), "every kernel of the series beside a copy"),
    "tuned": (tune_grid, ("minutes",), "the plans of softmax over a grid of shapes"),
    "comparison": (comparison, (*LIBRARIES, "drawn", "seed"), "our kernels beside other libraries"),
    "pipelines": (pipelines, LIBRARIES, "softmax between a producer and a consumer kernel"),
    "profile": (profile, ("jobs", "worker"), "profiler counters, sanitizer, disassembly"),
}


def rows_x_cols(text: str) -> tuple[int, int]:
    """The type of an option ROWSxCOLS."""
    rows, cols = map(at_least(1), text.split("x"))
    return rows, cols


def pattern(text: str) -> re.Pattern:
    """The type of an option that is a regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def hexadecimal(text: str) -> str:
    """The text, if it is a hexadecimal number. Raises `ValueError`, as `argparse` expects."""
    int(text, 16)
    return text


def add_options(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Add the options of these names, and those of every campaign; others have their default."""

    def add(name: str, help: str, default: object = None, **how) -> None:
        if name in (*names, "fresh", "only"):
            parser.add_argument(f"--{name}", default=default, help=help, **how)
        else:
            parser.set_defaults(**{name: default})

    known, flag = [*baselines.BASELINES], "store_true"
    help = "softmax at these shapes alone"
    add("shapes", help, nargs="+", type=rows_x_cols, metavar="ROWSxCOLS")
    help = "only these baselines; none if nothing follows"
    add("baselines", help, known, nargs="*", choices=known)
    help = "N problems drawn at random instead; with --only, those that match of N per operation"
    add("drawn", help, type=at_least(1), metavar="N")
    help = "of the draw: the commit that froze kernels, launch rules and tuned plans"
    add("seed", help, "0", type=hexadecimal, metavar="COMMIT")
    add("minutes", "begin nothing after so many minutes", type=minutes, metavar="M")
    help = "compile other libraries' kernels in N processes first"
    add("warm", help, 0, type=at_least(0), metavar="N")
    add("jobs", "deal the work out to so many GPUs (1)", 1, type=at_least(1), metavar="N")
    add("worker", argparse.SUPPRESS, nargs="+", metavar="LAUNCH")
    add("fresh", "measure again what is recorded", False, action=flag)
    help = "only tasks in whose name one of these regular expressions finds something"
    add("only", help, nargs="+", type=pattern, metavar="PATTERN")


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m helpers.commands.measure", description=__doc__)
    campaigns = parser.add_subparsers(required=True, metavar="CAMPAIGN")
    for name, (run, options, help) in CAMPAIGNS.items():
        one = campaigns.add_parser(
            name,
            help=help,
            description=inspect.getdoc(run),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.set_defaults(run=run)
        add_options(one, options)
    options = parser.parse_args(arguments)
    if not gpu.has_gpu():
        print("kernels are measured on a GPU, and CuPy finds none here", file=sys.stderr)
        return 1
    try:
        return options.run(options)
    except (FileNotFoundError, ValueError) as error:  # records that are missing or damaged
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
