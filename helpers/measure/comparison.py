"""The comparison of our kernels with the baselines, and its evaluation.

At each shape one `bench.measure` call times our kernel, every baseline that supports the shape, and
copies, replayed in turn in one process; only such times are compared. Fused and related operations
are compared at the problems of `helpers.problem.shapes`, with the bandwidth baseline of the
operation instead of the copy. A baseline that tunes anew in each process is timed in several,
together with ours, and its best result counts. The result is `comparison.jsonl`, and for problems
drawn at random `unseen.jsonl`.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import textwrap
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..base.arguments import checked
from ..base.json_files import Count, Natural, Samples, Time
from ..catalogue import store
from ..catalogue.dispatch import chosen, is_current
from ..catalogue.registry import COPY
from ..catalogue.store import AtProblem, latest
from ..problem.problem import Problem
from ..problem.shapes import ALONE, COMPARED_SHAPES, entries, group_of, name_of
from ..problem.shapes import COMPARED_DTYPES as DTYPES
from . import baselines, samples
from .records import Case

TOLERANCE = 0.01  # a difference of medians below this or within run-to-run variation is a tie
ROOM = 0.97  # a best baseline below this fraction of a copy must be beaten, not equalled
DRAWS = 3  # processes in which a baseline that tunes anew is timed, if it is close
NEAR = 0.9  # fraction of the best after two processes, which may differ much:
HOPE = 0.5  # after the first process
SLOWER = "level (slower)"  # slower beyond run-to-run variation, by no more than the tolerance
VERDICTS = ("ahead", "level", SLOWER, "LOSS", "unsupported")
COPIES = "variants/00_copy"  # prefix of the names of the other copies
OLDER = (
    "#: ours was timed with an earlier version of the kernel, or with another kernel or launch "
    "than is chosen now"
)


def verdict(ours: samples.Estimate, equal: float) -> str:
    """How ours compares with a baseline beyond run-to-run variation, if `equal` stands for a tie:
    one of the first four `VERDICTS`."""
    if ours.above(equal + TOLERANCE):
        return "ahead"
    if ours.below(equal - TOLERANCE):
        return "LOSS"
    return SLOWER if ours.below(equal) else "level"


class Beside(NamedTuple):
    """Samples of one process, in microseconds per call."""

    samples_us: list[float]
    ours_us: list[float]
    copy_us: list[float]

    @property
    def share(self) -> float:
        return statistics.median(self.copy_us) / statistics.median(self.samples_us)


@dataclass(frozen=True)
class Comparison(AtProblem):
    """One problem: our kernel, the baselines, and the copy or the bandwidth baseline of another
    operation, timed in turn."""

    file = campaign = "comparison"

    step: str  # our kernel; "" if none supports the problem
    kernel_hash: str
    launch: dict[str, Natural]  # of our kernel
    samples_us: dict[str, Samples]  # step or baseline -> microseconds per call, per replay
    copy_samples_us: Samples
    calls: dict[str, Count]  # calls per replay
    skipped: dict[str, str] = field(default_factory=dict)  # baseline -> why it was not timed
    copies_us: dict[str, Samples] = field(default_factory=dict)  # other copy -> samples
    # From further processes, each with ours and the copy: name -> samples.
    draws: list[dict[str, Samples]] = field(default_factory=list)
    less_precise: dict[str, float] = field(default_factory=dict)  # baseline -> error, ulp

    def __post_init__(self) -> None:
        if any({COPY, self.step} - {*draw} for draw in self.draws):
            raise ValueError(f"a draw is without {COPY} or {self.step}")

    @property
    def copy_us(self) -> float:
        return statistics.median(self.copy_samples_us)

    def beside(self, name: str) -> Beside:
        """The samples of a competitor and of the others, from the process in which it was
        fastest."""
        found = [
            Beside(one[name], one.get(self.step, []), one[COPY])
            for one in ({**self.samples_us, COPY: self.copy_samples_us}, *self.draws)
            if name in one
        ]
        return found[0] if name == self.step else max(found, key=lambda one: one.share)

    @property
    def timed(self) -> list[str]:
        """Our kernel and the baselines that were timed, in the first process or a further one."""
        names = dict.fromkeys(name for one in (self.samples_us, *self.draws) for name in one)
        return [name for name in names if name != COPY]

    @property
    def names(self) -> Set[str]:
        return {*self.timed, *self.skipped}

    def precision(self, name: str) -> float:
        """The largest error in ulp of a baseline with less precise results; otherwise 0.0."""
        return self.less_precise.get(name, 0.0)

    def median_us(self, name: str) -> float:
        return statistics.median(self.beside(name).samples_us)

    def share(self, name: str) -> float:
        """Bandwidth as a fraction of the same-size copy's."""
        return self.beside(name).share

    @property
    def best_copy(self) -> float:
        """Bandwidth of the fastest copy as a fraction of the plain one's."""
        copies = self.copy_samples_us, *self.copies_us.values()
        return self.copy_us / min(map(statistics.median, copies))

    @property
    def best_baseline(self) -> str | None:
        """The fastest baseline, other than two kernels of ours; None if none was timed."""
        ours = self.step, baselines.TWO_KERNELS
        return max((n for n in self.timed if n not in ours), key=self.share, default=None)

    def speedup_over(self, name: str) -> samples.Estimate:
        """Our speedup over a baseline."""
        beside = self.beside(name)
        return samples.ratio(beside.samples_us, beside.ours_us)

    @property
    def speedup(self) -> float:
        """Our speedup over the best baseline; infinite without a baseline, 0 if none of our kernels
        supports the problem."""
        if self.step not in self.samples_us:
            return 0.0
        return self.speedup_over(self.best_baseline).value if self.best_baseline else np.inf

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`. A LOSS is slower than the best baseline by more than the tolerance, or
        not faster where that baseline is well below the copy; "unsupported" means that we have no
        kernel. Ahead, slower and loss are meant beyond the run-to-run variation of both."""
        if self.step not in self.samples_us:
            return "unsupported"
        if not self.best_baseline:
            return "ahead"
        speedup, room = self.speedup_over(self.best_baseline), self.share(self.best_baseline) < ROOM
        return "LOSS" if room and speedup.below(1) else verdict(speedup, 1)

    @property
    def unsupported(self) -> dict[str, str]:
        """Baseline -> why it was not timed at a problem that it should run; baselines that are not
        installed, or do not offer the operation, are not in the comparison."""
        return {
            name: reason
            for name, reason in self.skipped.items()
            if not reason.endswith((baselines.ABSENT, baselines.NOT_OFFERED))
        }

    def to_draw(self) -> tuple[str, ...]:
        """The baselines to be timed in one more process: those that tune anew in each and are close
        to the best, or may still become it after one process."""
        if self.step not in self.samples_us:
            return ()
        best, wanted = max(map(self.share, self.samples_us)), []
        for name in self.samples_us:
            drawn = 1 + sum(name in draw for draw in self.draws)
            near = HOPE if drawn == 1 else NEAR
            if name in baselines.BASELINES and baselines.BASELINES[name].draws and drawn < DRAWS:
                wanted += [name] if self.share(name) >= near * best else []
        return tuple(wanted)

    def is_current(self) -> bool:
        """Whether the kernel that would be chosen now was compared, with the same code and
        launch."""
        step = chosen(self.problem, self.run.gpu)
        same = (step, self.kernel_hash, self.launch, self.problem, self.run.gpu)
        return self.step == step and (not step or is_current(*same))

    @property
    def marks(self) -> str:
        """ "#" if `OLDER` applies to the case, else ""."""
        return "" if self.is_current() else "#"


@dataclass(frozen=True)
class Unseen(Comparison):
    """The same at a problem drawn at random, with the rule's plan where the table of tuned plans
    replaces it."""

    file = "unseen"

    seed: str = ""  # of the draw: the commit that froze the tuned plans, in hexadecimal
    rule: str = ""  # the rule's plan, if ours is another one
    rule_us: list[Time] = field(default_factory=list)  # samples of the rule's plan

    @property
    def gain(self) -> samples.Estimate | None:
        """How many times as fast as the rule's plan ours is; None if it is the same plan."""
        return samples.ratio(self.rule_us, self.samples_us[self.step]) if self.rule else None

    @property
    def unverified(self) -> list[str]:
        """The baselines that support the problem but failed or were wrong."""
        return [name for name in self.unsupported if not baselines.refusal(name, self.problem)]


def compared(versions: Mapping[str, str]) -> dict[str, str]:
    """The versions that must match for a comparison with baselines."""
    names = (*store.MUST_NOT_CHANGE, *baselines.PACKAGES)
    return {name: versions[name] for name in names if name in versions}


def order() -> list[Problem]:
    """The problems in the order of the file: softmax by dtype and shape, then the other
    operations."""
    alone = [Problem(*shape, dtype) for dtype, shape in itertools.product(DTYPES, COMPARED_SHAPES)]
    return [*alone, *entries()]


# ---- what is said of it -------------------------------------------------------------------------


@checked
def load_comparisons(gpu: str | None = None) -> list[Comparison]:
    """The comparisons on a GPU, by default `store.shown_gpu`. Raises as `store.read`."""
    return store.read(Comparison, gpu)


@checked
def load_unseen(gpu: str | None = None, group: str = ALONE) -> list[Unseen]:
    """The problems drawn at random of softmax alone, or of one of `GROUPS`, that were compared on a
    GPU, in the order of the draw. Raises as `store.read`."""
    return [case for case in store.read(Unseen, gpu) if group_of(case.problem) == group]


@checked
def comparison_cases(dtype: str, gpu: str | None = None) -> list[Comparison]:
    """The recorded cases of a dtype in the order of `COMPARED_SHAPES`; raises as
    `load_comparisons`."""
    known = {case.problem: case for case in load_comparisons(gpu)}
    wanted = [Problem(*shape, dtype) for shape in COMPARED_SHAPES]
    return [known[problem] for problem in wanted if problem in known]


def best_copy(case: Case, gpu: str | None = None) -> float | None:
    """Bandwidth of the fastest copy kernel as a fraction of the plain one's, if several were timed
    in turn at the shape of a case whose baseline is the copy; otherwise None."""
    with contextlib.suppress(FileNotFoundError):
        found = store.find(Comparison, Problem(case.rows, case.cols, case.dtype), gpu)
        if found and found.copies_us and case.bandwidth_baseline == COPY:
            return found.best_copy
    return None


def versions_of(cases: Sequence[Comparison]) -> dict[str, str]:
    """The compared versions of the latest run; for packages that were not installed then, those of
    most cases of softmax."""
    found = [compared(case.run.versions) for case in cases if case.problem.plain]
    now = compared(latest(cases).versions)
    return {**max(found, key=found.count, default={}), **now}


def around_cases(recorded: Sequence[Comparison]) -> list[Comparison]:
    """The cases of the other operations at the problems of `shapes.GROUPS`, in that
    order."""
    known = {case.problem: case for case in recorded}
    return [known[problem] for problem in entries() if problem in known]


@checked
def comparison_origin(gpu: str | None = None) -> str:
    """A sentence on the origin of the figures of softmax, with the baselines' versions, in lines
    that fit a notebook."""
    cases = load_comparisons(gpu)
    known, run = versions_of(cases), latest(cases)
    versions = ", ".join(f"{name} {known[name]}" for name in baselines.PACKAGES if name in known)
    return textwrap.fill(
        f"recorded on {run.device['name']}, last updated on {run.utc[:10]} "
        f"(driver {known['driver']}, {versions})",
        100,
        break_on_hyphens=False,
    )


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
    flag = " above the copy: look!" if case.step and case.share(case.step) > 1.05 else ""
    return f"{name_of(case.problem)}: {shares}; {verdict}{flag}{baselines.left_out(case.skipped)}"
