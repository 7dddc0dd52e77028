"""The comparison: our kernels beside the baselines, and what is said of the result.

At each shape one `bench.measure` call times our kernel, every baseline that can run the shape, and
copies, replayed in turn in one process: only such figures are compared with each other. What is
around softmax is compared at the shapes of `helpers.measure.problem_groups`, beside the bandwidth
baseline of the operation in the copy's place. A baseline that tunes anew in each process is timed
in more of them, beside ours, and its best counts. The result is `comparison.jsonl` beside the
records.
"""

from __future__ import annotations

import itertools
import statistics
import textwrap
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ..base.arguments import checked
from ..base.gpu import gpu_in_use
from ..base.typed_json import Count, Date, Natural, Samples, Time
from ..catalogue import registry
from ..problem.problem import Problem
from ..problem.shapes import COMPARED_SHAPES, REFERENCE_SHAPE
from ..run.bound import load
from . import baselines, bench, samples, store
from .fused_baselines import NOT_OFFERED
from .problem_groups import chosen, entries, numbers
from .records import Case, Timed, launch_of, load_record, step_hash
from .store import AtProblem, Run, latest
from .workers import Failure

DTYPES = ("float32", "bfloat16")
TOLERANCE = 0.01  # a difference of medians below this, or inside the spread, is a tie
ROOM = 0.97  # a best baseline below this share of a copy must be beaten, not equalled
DRAWS = 3  # processes in which a baseline that tunes anew is timed, if it comes near
NEAR = 0.9  # a share of the best, after two draws; one may be much worse than the next:
HOPE = 0.5  # after the first
MATTERS = 2**30  # bytes read and written, from which on the recorded copies are what they are here
SLOWER = "level (slower)"  # slower beyond run-to-run variation, by no more than the tolerance
VERDICTS = ("ahead", "level", SLOWER, "LOSS", "unsupported")
COPIES = "variants/00_copy"  # how the names of the other copies begin
REASONS = ("new", "ours", "baselines")  # why a shape is compared, what gains most first
MARKS = {
    "+": "ours starts before the call ahead of it has ended, which no other does; its ordinary "
    "launch is not timed yet",
    "#": "ours was timed with an earlier version of the kernel, or with another kernel or launch "
    "than is chosen now",
}


class Beside(NamedTuple):
    """Samples of one process, in microseconds a call."""

    samples_us: list[float]
    ours_us: list[float]
    copy_us: list[float]

    @property
    def share(self) -> float:
        return statistics.median(self.copy_us) / statistics.median(self.samples_us)


@dataclass(frozen=True)
class Added:
    """Baselines timed beside ours and a copy in a later process than the case, and with what."""

    samples_us: dict[str, Samples]  # step, baselines and copy -> as those of a case
    versions: dict[str, str]
    utc: Date
    less_precise: dict[str, float] = field(default_factory=dict)  # as of a case


@dataclass(frozen=True)
class Comparison(AtProblem):
    """One problem: our kernel, the baselines and the copy, or of another operation than softmax its
    bandwidth baseline, timed in turn."""

    file = campaign = "comparison"

    step: str  # our kernel; "" if none takes the shape
    kernel_hash: str
    launch: dict[str, Natural]  # of our kernel
    samples_us: dict[str, Samples]  # step or baseline -> microseconds a call, one a replay
    copy_samples_us: Samples
    calls: dict[str, Count]  # calls per replay
    skipped: dict[str, str] = field(default_factory=dict)  # baseline -> why it was not timed
    notes: dict[str, str] = field(default_factory=dict)
    programmatic_us: list[Time] = field(default_factory=list)  # of our kernel, as a record's case
    programmatic_copy_us: list[Time] = field(default_factory=list)
    copies_us: dict[str, Samples] = field(default_factory=dict)  # other copies -> as samples_us
    # Of the other processes in which what a baseline tunes anew in each was timed: who -> samples.
    draws: list[dict[str, Samples]] = field(default_factory=list)
    less_precise: dict[str, float] = field(default_factory=dict)  # baseline -> error, ulp
    added: list[Added] = field(default_factory=list)

    def __post_init__(self) -> None:
        if any(bench.COPY not in draw for draw in self.draws):
            raise ValueError(f"a draw is without {bench.COPY}")
        if any({bench.COPY, self.step} - {*later.samples_us} for later in self.added):
            raise ValueError(f"what was added is without {bench.COPY} or {self.step}")

    @property
    def copy_us(self) -> float:
        return statistics.median(self.copy_samples_us)

    @property
    def copy_gbps(self) -> float:
        return self.problem.moved / self.copy_us / 1e3

    def beside(self, name: str) -> Beside:
        """The samples of a competitor and of those beside it, of the process in which it was
        fastest."""
        found = [
            Beside(one[name], one.get(self.step, []), one[bench.COPY])
            for one in (
                {**self.samples_us, bench.COPY: self.copy_samples_us},
                *self.draws,
                *(later.samples_us for later in self.added),
            )
            if name in one
        ]
        return found[0] if name == self.step else max(found, key=lambda one: one.share)

    @property
    def timed(self) -> list[str]:
        """Ours and the baselines that were timed, in the first process or in one of `added`."""
        later = [name for one in self.added for name in one.samples_us]
        return [name for name in dict.fromkeys([*self.samples_us, *later]) if name != bench.COPY]

    def precision(self, name: str) -> float:
        """The largest error in ulp of a baseline whose result is less precise; 0.0 of another."""
        known = [self.less_precise, *(one.less_precise for one in self.added)]
        return max(one.get(name, 0.0) for one in known)

    def median_us(self, name: str) -> float:
        return statistics.median(self.beside(name).samples_us)

    def share(self, name: str) -> float:
        """Bandwidth as a share of the same-size copy's."""
        return self.beside(name).share

    @property
    def best_copy(self) -> str:
        """The fastest copy, the plain one or another."""
        copies = {bench.COPY: self.copy_samples_us, **self.copies_us}
        return min(copies, key=lambda name: statistics.median(copies[name]))

    def share_of_copy(self, copy: str) -> float:
        """Bandwidth of another copy as a share of the plain one's."""
        return self.copy_us / statistics.median(self.copies_us.get(copy, self.copy_samples_us))

    def share_of_best_copy(self, name: str) -> float:
        """Bandwidth as a share of the best same-size copy's."""
        return self.share(name) / self.share_of_copy(self.best_copy)

    @property
    def programmatic_share(self) -> float | None:
        """Bandwidth of ours by a programmatic launch as a share of a copy launched so; None if it
        was not timed."""
        if not self.programmatic_us:
            return None
        copied = statistics.median(self.programmatic_copy_us)
        return copied / statistics.median(self.programmatic_us)

    @property
    def best_baseline(self) -> str | None:
        """The fastest baseline; None if none was timed."""
        return max((n for n in self.timed if n != self.step), key=self.share, default=None)

    def speedup_over(self, name: str) -> samples.Estimate:
        """How many times as fast as a baseline we are."""
        beside = self.beside(name)
        return samples.ratio(beside.samples_us, beside.ours_us)

    @property
    def speedup(self) -> float:
        """How many times as fast as the best baseline we are; infinite without a baseline, 0 if
        none of our kernels takes the shape."""
        if self.step not in self.samples_us:
            return 0.0
        return self.speedup_over(self.best_baseline).value if self.best_baseline else np.inf

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`: a LOSS is slower than the best baseline by more than the tolerance, or
        not faster where that baseline leaves room below the copy; a unsupported has no kernel of
        ours. What is ahead, slower or lost is so beyond the spread of both."""
        if self.step not in self.samples_us:
            return "unsupported"
        if not self.best_baseline:
            return "ahead"
        speedup, room = self.speedup_over(self.best_baseline), self.share(self.best_baseline) < ROOM
        if speedup.below(1 - TOLERANCE) or (room and speedup.below(1)):
            return "LOSS"
        if speedup.above(1 + TOLERANCE):
            return "ahead"
        return SLOWER if speedup.below(1) else "level"

    @property
    def unsupported(self) -> dict[str, str]:
        """Baseline -> why it was not timed at a shape that it was asked to run; one that is not
        installed, or computes no such thing, is not in the comparison."""
        return {
            name: reason
            for name, reason in self.skipped.items()
            if not reason.endswith((baselines.ABSENT, NOT_OFFERED))
        }

    def to_draw(self) -> tuple[str, ...]:
        """The baselines to be timed in one more process: those that tune anew in each and are near
        the best, or after one draw have hope to be."""
        if self.protocol == 1 or self.step not in self.samples_us:
            return ()
        best, wanted = max(map(self.share, self.samples_us)), []
        for name in self.samples_us:
            drawn = 1 + sum(name in draw for draw in self.draws)
            near = HOPE if drawn == 1 else NEAR
            if name in baselines.BASELINES and baselines.BASELINES[name].draws and drawn < DRAWS:
                wanted += [name] if self.share(name) >= near * best else []
        return tuple(wanted)

    @property
    def overlaps_unlike_the_copy(self) -> bool:
        """Whether ours was launched programmatically and the copy not, as protocol 1 had it."""
        return self.protocol == 1 and bool(self.launch.get("PROGRAMMATIC"))

    def is_current(self) -> bool:
        """Whether it was compared with the kernel that would be chosen now, code and launch as
        now."""
        step = chosen(self.problem, self.run.gpu)
        now = (step_hash(step), launch_of(step, self.problem, self.run.gpu)) if step else ("", {})
        return self.step == step and (self.kernel_hash, self.launch) == now

    @property
    def marks(self) -> str:
        """Those of `MARKS` that the case has."""
        overlaps = "+" if self.overlaps_unlike_the_copy else ""
        return overlaps + ("" if self.is_current() else "#")


def why_again(case: Comparison | None, names: Sequence[str], versions: Mapping[str, str]) -> str:
    """Why a problem is to be compared (again), one of `REASONS`, where `case` is what is recorded
    of it; "" if that is with our kernel as it is now and with each of the baselines in the version
    of now, timed or left out. A baseline that is not installed now stays as it was."""
    if case is None:
        return "new"
    if not case.is_current() or case.overlaps_unlike_the_copy:
        return "ours"
    asked = set(names) <= {*case.timed, *case.skipped}
    return "" if asked and has_versions(case, versions) else "baselines"


def compared(versions: Mapping[str, str]) -> dict[str, str]:
    """Those of some versions that what is compared with baselines must have been timed with."""
    names = (*store.MUST_NOT_CHANGE, *baselines.PACKAGES)
    return {name: versions[name] for name in names if name in versions}


def has_versions(case: AtProblem, versions: Mapping[str, str]) -> bool:
    """Whether a case was timed with the versions of now, as far as they are compared."""
    return compared(versions).items() <= case.run.versions.items()


def order() -> dict[Hashable, int]:
    """Problem -> its place in the file: dtypes and shapes of softmax, then what is around it."""
    alone = [Problem(*shape, dtype) for dtype, shape in itertools.product(DTYPES, COMPARED_SHAPES)]
    return {problem: place for place, problem in enumerate([*alone, *entries()])}


# ---- what is said of it -------------------------------------------------------------------------


@checked
def load_comparisons(gpu: str | None = None) -> list[Comparison]:
    """What was compared on a GPU; raises as `store.read`."""
    return store.read(Comparison, gpu)


@checked
def comparison_cases(dtype: str, gpu: str | None = None) -> list[Comparison]:
    """The recorded cases of a dtype in the order of `COMPARED_SHAPES`; raises as
    `load_comparisons`."""
    known = {case.problem: case for case in load_comparisons(gpu)}
    wanted = [Problem(*shape, dtype) for shape in COMPARED_SHAPES]
    return [known[problem] for problem in wanted if problem in known]


def best_copies(gpu: str | None = None) -> dict[tuple[int, int, str], float]:
    """(rows, cols, dtype) -> bandwidth of the fastest copy kernel as a share of the plain one's,
    at the shapes where several were timed in turn; empty without a comparison."""
    try:
        cases = load_comparisons(gpu)
    except FileNotFoundError:
        return {}
    return {
        (*case.shape, case.dtype): case.share_of_copy(case.best_copy)
        for case in cases
        if case.problem.plain and case.copies_us
    }


def best_copy(copies: Mapping[tuple[int, int, str], float], case: Case) -> float | None:
    """Of `best_copies` what stands beside a case; None of another baseline than the copy."""
    if case.bandwidth_baseline != bench.COPY:
        return None
    return copies.get((case.rows, case.cols, case.dtype))


def versions_of(cases: Sequence[Comparison]) -> dict[str, str]:
    """The versions that are compared of what was compared last; of what was not installed then, as
    most cases of softmax have them."""
    found = [compared(case.run.versions) for case in cases if case.problem.plain]
    now = compared(latest(cases).versions)
    return {**max(found, key=found.count, default={}), **now}


def around_cases(recorded: Sequence[Comparison]) -> list[Comparison]:
    """Its cases around softmax at the shapes of `problem_groups.GROUPS`, in that order."""
    known = {case.problem: case for case in recorded}
    return [known[problem] for problem in entries() if problem in known]


@checked
def comparison_origin(gpu: str | None = None) -> str:
    """One sentence on where the figures of softmax come from, with the baselines' versions; in
    lines that fit a notebook."""
    cases = load_comparisons(gpu)
    known, run = versions_of(cases), latest(cases)
    versions = ", ".join(f"{name} {known[name]}" for name in baselines.PACKAGES if name in known)
    return textwrap.fill(
        f"recorded on {run.device['name']}, last updated on {run.utc[:10]} "
        f"(driver {known['driver']}, {versions})",
        100,
        break_on_hyphens=False,
    )


def explained_marks(cases: Sequence[Comparison]) -> list[str]:
    """A line for each of `MARKS` that any of the cases has."""
    seen = "".join(case.marks for case in cases)
    return [f"{mark}: {meaning}" for mark, meaning in MARKS.items() if mark in seen]


# ---- one shape ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparisonTask:
    """A problem to be timed at in a run."""

    problem: Problem
    run: Run
    baselines: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(
        default_factory=dict
    )  # baseline that was tried -> why not again

    def without(self, failure: Failure) -> ComparisonTask:
        """The same without the baseline that is to blame."""
        return replace(self, failed={**self.failed, failure.culprit: failure.reason})

    def skipped(self) -> dict[str, str]:
        """Its baselines that failed, or that cannot run the problem -> why."""
        reasons = {
            name: self.failed.get(name) or baselines.why_not(name, self.problem)
            for name in self.baselines
        }
        return {name: reason for name, reason in reasons.items() if reason}


def run_task(task: ComparisonTask) -> Comparison:
    """Time our kernel, the baselines that can run the shape, and copies. Raises `Failure`, which
    names our kernel, the baseline or the copy that is wrong or fails."""
    problem, skipped = task.problem, task.skipped()
    step = chosen(problem, gpu_in_use())
    names = [name for name in task.baselines if name not in skipped]
    copies = other_copies(problem) if problem.plain else []
    copies = [name for name in copies if name not in task.failed]
    cases, less_precise = measure_beside(step, names, copies, problem)
    timed = {name: cases[name] for name in filter(None, (step, *names))}
    of_ours = cases.get(step) or cases[problem.operation.bandwidth_baseline]
    notes = {name: baselines.note(name, problem) for name in names}
    return Comparison(
        problem,
        task.run,
        step,
        step_hash(step) if step else "",
        of_ours.launch if step else {},
        {name: case.samples_us for name, case in timed.items()},
        of_ours.copy_samples_us,
        {name: case.calls for name, case in timed.items()},
        skipped,
        {name: note for name, note in notes.items() if note},
        of_ours.programmatic_us,
        of_ours.programmatic_copy_us,
        {name: cases[name].samples_us for name in copies},
        less_precise=less_precise,
    )


def measure_beside(
    step: str, names: Sequence[str], copies: Sequence[str], problem: Problem
) -> tuple[dict[str, Timed], dict[str, float]]:
    """The times of our kernel, unless it is "", of baselines and of copies, timed in turn; and the
    errors in ulp of the baselines that are less precise."""
    baselines.free_memory()
    of_ours = None if problem.plain else numbers(problem)
    makers = {step: bench.maker(step, of_ours)} if step else {}
    compared: dict[str, object] = {}
    makers |= {name: maker_of(name, compared) for name in names}
    makers |= {name: bench.copy_maker(name) for name in copies}
    cases = bench.measure(makers, problem)
    found = {name: one for name, one in compared.items() if isinstance(one, baselines.Precision)}
    return cases, {name: round(one.worst_ulp, 2) for name, one in found.items() if one.worst_ulp}


def maker_of(name: str, compared: dict[str, object] | None = None) -> bench.Maker:
    """What makes the candidate of a baseline; what compares its result is put into `compared`."""

    def make(problem: Problem) -> bench.Candidate:
        candidate = baselines.candidate(name, problem)
        if compared is not None:
            compared[name] = candidate.compare
        return candidate

    return make


def other_copies(problem: Problem) -> list[str]:
    """The copies that may be faster than the plain one: of a large matrix those that the records
    say are, of a smaller one those that come near it there."""
    least = 1.0 if problem.moved >= MATTERS else NEAR
    shape = bench.copied_shape(problem)
    return [
        name
        for name in registry.variants()
        if name.startswith(COPIES)
        and load(name).accepts(*shape, gpu=gpu_in_use())
        and load_record(name).case(*REFERENCE_SHAPE).share >= least
    ]


class Draw(NamedTuple):
    """Baselines to be timed beside our kernel at a shape, in a process that tunes them anew."""

    problem: Problem
    step: str
    baselines: tuple[str, ...]


def run_draw(draw: Draw) -> dict[str, list[float]]:
    """Who -> samples in this process, of the copy too. Raises as `run_task`."""
    cases, _ = measure_beside(draw.step, draw.baselines, (), draw.problem)
    named = {name: cases[name].samples_us for name in filter(None, (draw.step, *draw.baselines))}
    return {**named, bench.COPY: cases[draw.baselines[0]].copy_samples_us}
