"""Measure on this machine's GPU and write notebooks/records: `make measure ARGS="steps"`.

Each campaign can be interrupted: every result is written as soon as it is measured, and a second
run resumes where the first one stopped. What is wrong or fails is left out, named at the end, and
makes the exit status 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import itertools
import shutil
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..base import gpu
from ..catalogue import store
from ..catalogue.dispatch import out_of_date
from ..catalogue.registry import TORCH, known_steps
from ..catalogue.store import REFERENCE_GPU, Run
from ..catalogue.tuned import Tuned
from ..measure import baselines, bench, call_times, side_by_side
from ..measure.call_times import CallTask, CallTimes, best_baselines, to_time
from ..measure.campaign import Campaign, CampaignTask, Failure, add_shared_options
from ..measure.comparison import DTYPES as COMPARED
from ..measure.profiler import Launch
from ..measure.profiling import (
    CountersFile,
    NumericsFile,
    SanitizerFile,
    SassFile,
    examined_steps,
    run_kernels,
    update,
)
from ..measure.records import Case, may_stay, takes
from ..measure.samples import ratio
from ..measure.tuning import PROTOCOL, Compilers, GridPoint, Timer, grid, starts, tuned
from ..page.rich import lines_of
from ..problem.problem import DTYPES, Problem
from ..problem.shapes import AXES, RECORDED_SHAPES, REFERENCE_SHAPE, compared_shapes
from ..simt.words import counted
from . import libraries

# ---- steps --------------------------------------------------------------------------------------


def step_maker(step: str) -> bench.Maker:
    """The maker of a step's candidate, as `bench.maker`; for `TORCH` that of eager PyTorch."""
    if step != TORCH:
        return bench.maker(step)

    def make(problem: Problem) -> bench.Candidate:
        side_by_side.free_memory()
        return side_by_side.candidate("torch", problem)

    return make


@dataclass(frozen=True)
class StepsTask(CampaignTask):
    """Steps to be recorded at the sizes and dtype of a problem, timed with the same copy."""

    at: Problem
    names: tuple[str, ...]
    runs: Mapping[str, Run]  # step -> its run

    def __str__(self) -> str:
        return self.at.place(dtype=True)

    def measure(self) -> list[Case]:
        times = bench.measure_steps(self.at, self.names, step_maker)
        problems = {name: bench.problem_of(name, self.at) for name in self.names}
        return [Case.of(times[n], n, one, self.runs[n]) for n, one in problems.items()]

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
    """Cases of steps that are measured again replace all that are out of date."""

    valid: set[Hashable] = frozenset()

    def put(self, found: Sequence[Case]) -> None:
        self.valid = {*self.valid, *(case.key for case in found)}
        steps = {case.step for case in found}
        self.known = [one for one in self.known if one.step not in steps or one.key in self.valid]
        super().put(found)


def steps_options(parser: argparse.ArgumentParser) -> None:
    known = known_names()
    parser.add_argument(
        "--steps", nargs="+", metavar="STEP", choices=known, default=known, help="only these steps"
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="only these dtypes"
    )
    add_shared_options(parser, "minutes", "jobs", "fresh")


def known_names() -> list[str]:
    """All steps, variants and trials with a record, in the order of the file."""
    return [*known_steps(), TORCH]


def steps(options: argparse.Namespace) -> int:
    """Time every kernel of the series in turn with a copy of the same bytes.

    Cases are measured again if the kernel's code or launch, a version or the text of the protocol
    changed. A kernel that is wrong or fails at a shape is left out there. Needs only CuPy,
    cuda-bindings, NumPy and ml_dtypes; if PyTorch is installed, its softmax is timed too, as
    "00_torch".
    """
    names = [*options.steps]
    if TORCH in names and (reason := baselines.why_not("torch", Problem(*REFERENCE_SHAPE))):
        print(f"{TORCH} is not recorded: {reason}")
        names.remove(TORCH)
        if not names:
            return 1
    campaign = Steps(Case, bench.PROTOCOL, options)
    runs = dict.fromkeys(names, run := campaign.run)
    if TORCH in names:
        torch = {"torch": baselines.versions()["torch"]}
        runs[TORCH] = Run(run.device, {**run.versions, **torch}, run.utc, run.protocol)
    campaign.valid = {
        case.key
        for case in campaign.known
        if case.step in runs and may_stay(case, runs[case.step].versions, bench.PROTOCOL)
    }
    done = set() if options.fresh else campaign.valid
    fitting = bench.shapes_that_fit((*RECORDED_SHAPES, *AXES))
    every = [Problem(r, c, dtype, *inner) for r, c, *inner in fitting for dtype in DTYPES]
    campaign.order = {key: n for n, key in enumerate(itertools.product(known_names(), every))}
    taken = {
        at: [name for name in names if takes(name, at, run.gpu)]
        for at in every
        if at.dtype in options.dtypes
    }
    taken = {at: of for at, of in taken.items() if of}
    tasks = [
        StepsTask(at, tuple(name for name in of if (name, at) not in done), runs)
        for at, of in taken.items()
    ]
    tasks = [task for task in tasks if task.names]
    print(
        f"{len(tasks)} of {counted(len(taken), 'problem')} to record on {run.device['name']}: "
        f"{', '.join(names)}"
    )
    if run.versions.get("commit") == "unknown":
        print("git does not say which commit this is; set GIT_COMMIT to have it in the record")
    return campaign.end(campaign.measure(tasks))


# ---- tuned --------------------------------------------------------------------------------------

AHEAD = 60  # shapes whose trials are compiled before they are timed


@dataclass(frozen=True)
class TuningTask(CampaignTask):
    """A point of the grid to be tuned in this process. `points` are those whose trials are not
    being compiled yet."""

    point: GridPoint
    run: Run
    timer: Timer
    compilers: Compilers
    points: Iterator[GridPoint]

    def __str__(self) -> str:
        return self.point.problem.place(True)

    def prepare(self, count: int) -> None:
        """Begin to compile the trials of the next points."""
        for point in itertools.islice(self.points, count):
            self.compilers.begin(point.problem, starts(point.problem, self.run.gpu))

    def measure(self) -> list[Tuned]:
        self.prepare(1)
        return [tuned(self.point, self.run, self.timer, self.compilers)]

    def lines(self, found: Sequence[Tuned]) -> Iterator[str]:
        for line in found:
            gain = line.rule
            if line.rule_us:
                gain = f"{line.trial} {ratio(line.rule_us, line.trial_us).value:.3f}"
            yield f"{self}: {gain}, {ratio(line.copy_us, line.trial_us).value:.3f} of a copy"


def tuned_options(parser: argparse.ArgumentParser) -> None:
    add_shared_options(parser, "minutes", "fresh")


def tune_grid(options: argparse.Namespace) -> int:
    """Tune the plans of softmax over a grid of shapes: the table that `choose` and exports read.

    A shape takes a second or two, and the whole grid about half an hour on an H200. Shapes that are
    in the file with the current kernels are left out, and the most valuable ones come first.
    `comparison --drawn N` times the plans, with the table and without, at shapes drawn at random.
    """
    campaign = Campaign(Tuned, PROTOCOL, options)
    run, at = campaign.run, {one.problem: {"rows": one.rows, "cols": one.cols} for one in grid()}
    current = [line for line in campaign.known if not out_of_date(line, run.gpu)]
    campaign.known = [replace(one, **at[one.problem]) for one in current if one.problem in at]
    same = (one for one in campaign.known if not store.changed(one.run.versions, run.versions))
    done = set() if options.fresh else {line.problem for line in same}
    campaign.order = {problem: place for place, problem in enumerate(at)}
    fitting = bench.shapes_that_fit([problem.shape for problem in at])
    points = [
        point for point in grid() if point.problem not in done and point.problem.shape in fitting
    ]
    timer, compilers, ahead = Timer(), Compilers(), iter(points)
    tasks = [TuningTask(point, run, timer, compilers, ahead) for point in points]
    try:
        for task in tasks[:1]:
            task.prepare(AHEAD)
        return campaign.end(campaign.measure(tasks))
    finally:
        compilers.close()
        timer.close()


# ---- calls --------------------------------------------------------------------------------------


def calls_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--show", nargs="?", const=REFERENCE_GPU, help="print what is recorded")
    add_shared_options(parser, "warm", "fresh")


def calls(options: argparse.Namespace) -> int:
    """Time calls of the exported PyTorch softmax and of PyTorch's own, at the shapes of the
    comparison; --show prints the records.

    At each shape the best baseline of the comparison is timed too, if it is installed: QuACK, Liger
    or torch.compile, which are called in the same way. A shape that is recorded with the current
    kernel is not timed again, unless --fresh is given or the best baseline is installed and missing
    in the record.
    """
    if options.show:
        return show_calls(options.show)
    if importlib.util.find_spec("torch") is None:
        print("calls are timed on a GPU with PyTorch, which is not installed", file=sys.stderr)
        return 1
    side_by_side.use_cache()
    campaign = Campaign(CallTimes, call_times.PROTOCOL, options, baselines.versions())
    best = best_baselines(campaign.folder)
    wanted = [Problem(*shape, dtype) for dtype in COMPARED for shape in compared_shapes(dtype)]
    campaign.order = {problem: place for place, problem in enumerate(wanted)}
    missing = to_time(wanted, [] if options.fresh else campaign.known, best)
    if options.warm:
        names = ((one, name) for one, name in missing.items())
        jobs = [(name, one) for one, other in names for name in (other, call_times.OURS) if name]
        side_by_side.in_processes(call_times.compile_ahead, jobs, options.warm)
    tasks = [CallTask(one, campaign.run, name, best) for one, name in missing.items()]
    return campaign.end(campaign.measure(tasks))


def show_calls(folder: str) -> int:
    """Print the records of a GPU; returns the exit status."""
    try:
        cases, best = store.read(CallTimes, folder), best_baselines(folder)
    except (FileNotFoundError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    run = store.latest(cases)
    old = "" if all(case.is_current() for case in cases) else ", in part of earlier kernels"
    print(f"microseconds a call, {run.device['name']}, {run.utc[:10]}{old}")
    titles = call_times.TITLES
    aligns = ("<28", "<24", "<9", *[">11"] * (len(titles) - 3))
    rows = lines_of([*zip(titles, aligns, strict=True)], call_times.table(cases, best))
    print(*rows, *call_times.summary(cases, best), sep="\n")
    return 0


# ---- profile ------------------------------------------------------------------------------------

FILES = {part.kind.file: part for part in (CountersFile, SassFile, NumericsFile, SanitizerFile)}
TOOLS = {"counters": "ncu", "sass": "cuobjdump", "sanitizer": "compute-sanitizer"}


def profile_options(parser: argparse.ArgumentParser) -> None:
    known = examined_steps()
    parser.add_argument(
        "--only", nargs="+", choices=[*FILES], default=[*FILES], help="only these files"
    )
    parser.add_argument(
        "--steps", nargs="+", metavar="STEP", choices=known, default=known, help="only these steps"
    )
    add_shared_options(parser, "jobs", "fresh")
    parser.add_argument("--worker", nargs="+", metavar="LAUNCH", help=argparse.SUPPRESS)


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
    changed since, and results with another driver, NVRTC or CuPy.

    Needs a GPU, `ncu`, `cuobjdump` and `compute-sanitizer` on the PATH, and the right to read
    counters.
    """
    if options.worker:
        run_kernels([Launch.parse(text) for text in options.worker])
        return 0
    if "sass" in options.only and importlib.util.find_spec("cuda.bindings") is None:
        print("disassembling needs the package cuda-bindings", file=sys.stderr)
        return 1
    for tool in (TOOLS[part] for part in options.only if part in TOOLS):
        if not shutil.which(tool):
            print(f"profiling needs {tool} of the CUDA toolkit on the PATH", file=sys.stderr)
            return 1
    failed = 0
    for name in options.only:
        try:
            failed += update(FILES[name], options)
        except ValueError as error:  # a file that is damaged
            print(error, file=sys.stderr)
            failed += 1
    return 1 if failed else 0


# ---- the command --------------------------------------------------------------------------------

CAMPAIGNS = {
    "steps": (steps, steps_options, "every kernel of the series beside a copy of the same bytes"),
    "tuned": (tune_grid, tuned_options, "the plans of softmax over a grid of shapes"),
    "comparison": (
        libraries.comparison,
        libraries.comparison_options,
        "our kernels beside other libraries",
    ),
    "pipelines": (
        libraries.pipelines,
        libraries.pipelines_options,
        "softmax between a producer and a consumer kernel",
    ),
    "calls": (calls, calls_options, "what a call of the exported PyTorch file costs"),
    "profile": (profile, profile_options, "profiler counters, sanitizer verdicts, disassembly"),
}


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m helpers.commands.measure", description=__doc__)
    campaigns = parser.add_subparsers(required=True, metavar="CAMPAIGN")
    for name, (run, add_options, help) in CAMPAIGNS.items():
        one = campaigns.add_parser(
            name,
            help=help,
            description=inspect.getdoc(run),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.set_defaults(run=run)
        add_options(one)
    options = parser.parse_args(arguments)
    if not getattr(options, "show", None) and not gpu.has_gpu():
        print("kernels are measured on a GPU, and CuPy finds none here", file=sys.stderr)
        return 1
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
