"""Softmax in pipelines: the kernel that `choose` returns, compared with variants of its hints.

`helpers.measure.pipeline_timer` times them. A variant has other cache hints or another launch than
the kernel's Build table (`registry.HINT_MACROS`), and its name spells all of them out. So a case
remains valid when the rules of a table change: the chosen kernel then has the name of another timed
variant. Fused and related operations are timed too (`shapes.linked`), with the two best
baselines of the comparison. The result is `pipelines.jsonl`.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from ..base.gpu import Gpu, gpu_for_plans
from ..base.json_files import Count, Must, Natural, Samples
from ..catalogue import registry, store
from ..catalogue.dispatch import chosen, launch_of, step_hash
from ..catalogue.registry import COPY, HINT_MACROS, split_trial, with_hints
from ..catalogue.store import AtProblem
from ..problem.problem import Problem
from ..problem.shapes import PIPELINE_SHAPES, group_of, linked, name_of
from . import baselines, samples
from .comparison import DTYPES, SLOWER, TOLERANCE, Comparison

MOST_EVICTED = 4  # multiple of the L2: a larger x is evicted before its writer ends
ORDINARY = ", ordinary launch"  # of a kernel that supports programmatic launches
STATES = ("fresh", "evicted")  # of x
FEW_ROWS = 16  # few rows, so that the launch is a large part of a call
VERDICTS = ("best", "unclear", "BEHIND", "not timed")  # on the kernel that `choose` returns
TIES = ("ahead", "level", SLOWER, "LOSS")  # verdicts on the chosen kernel and the best baseline


@dataclass(frozen=True)
class Pipeline(AtProblem):
    """One problem in one state: our kernels by the names of `variants`, baselines and the copy,
    timed in turn.

    `pipeline_us` are samples of the pipeline with a kernel, `base_us` those of the pipeline without
    it, replayed right before, in microseconds per call.
    """

    file = campaign = "pipelines"

    state: Annotated[str, Must(f"one of {', '.join(STATES)}", STATES.__contains__)]
    launches: dict[str, dict[str, Natural]]  # of our kernels
    hashes: dict[str, str]  # of our kernel files
    calls: Count  # calls per replay
    pipeline_us: dict[str, Samples]
    base_us: dict[str, Samples]
    skipped: dict[str, str] = field(default_factory=dict)  # baseline -> why it was not timed

    def __post_init__(self) -> None:
        with_it, without = (
            {name: len(series) for name, series in one.items()}
            for one in (self.pipeline_us, self.base_us)
        )
        if with_it != without:
            raise ValueError("other samples of pipelines with softmax than of those without")
        if untimed := self.launches.keys() - self.pipeline_us.keys():
            raise ValueError(f"a launch of {min(untimed)[:60]} and no time")

    @property
    def key(self) -> tuple[Problem, str]:
        return self.problem, self.state

    @property
    def names(self) -> Set[str]:
        return {*self.pipeline_us, *self.skipped}

    @property
    def megabytes(self) -> float:
        """Size of x in 10^6 bytes."""
        return self.rows * self.problem.row_bytes / 1e6

    def launch_now(self, step: str) -> dict[str, int]:
        """The launch that the header of one of our kernels requires."""
        return launch_of(step, self.problem, self.run.gpu)

    def is_current(self) -> bool:
        """Whether all of our kernels have the code and launch that were timed."""
        return all(step_hash(file) == known for file, known in self.hashes.items()) and all(
            self.launch_now(trial_of(name)) == launch for name, launch in self.launches.items()
        )

    def us(self, name: str) -> samples.Estimate:
        """The time that a kernel adds to the pipeline, in microseconds per call."""
        return samples.difference(self.pipeline_us[name], self.base_us[name])

    def gain(self, name: str, other: str) -> samples.Estimate:
        """How much less time the pipeline takes with `name` than with `other`, as a fraction of
        what `other` adds; NaN, which is neither above nor below a limit, if that is not
        positive."""
        whole = self.us(other).value
        less = samples.difference(self.pipeline_us[other], self.pipeline_us[name])
        return samples.Estimate(*(part / whole if whole > 0 else np.nan for part in less))

    @property
    def chosen(self) -> str | None:
        """The name of the kernel that `choose` returns now; None if it was not timed in this
        form."""
        step = chosen(self.problem, self.run.gpu)
        if not step:
            return None
        launch = self.launch_now(step)
        name = with_hints(step, launch)
        file = file_of(step)
        same = self.launches.get(name) == launch and self.hashes.get(file) == step_hash(file)
        return name if same else None

    @property
    def plain(self) -> str | None:
        """The variant of `chosen` without hints."""
        name = registry.without_hints(self.chosen) if self.chosen else None
        return name if name in self.launches else None

    @property
    def best(self) -> str:
        """Our kernel that adds the least time."""
        return min(self.launches, key=lambda name: statistics.median(self.pipeline_us[name]))

    @property
    def best_baseline(self) -> str | None:
        """The baseline that adds the least time; None if none was timed."""
        others = self.pipeline_us.keys() - self.launches.keys() - {COPY}
        return min(others, key=lambda name: self.us(name).value, default=None)

    @property
    def against_best_baseline(self) -> str:
        """One of `TIES`, beyond run-to-run variation; "" if either was not timed."""
        if not self.chosen or not self.best_baseline:
            return ""
        gain = self.gain(self.chosen, self.best_baseline)
        if gain.above(TOLERANCE):
            return "ahead"
        if gain.below(-TOLERANCE):
            return "LOSS"
        return SLOWER if gain.below(0) else "level"

    def faster(self, name: str) -> dict[str, samples.Estimate]:
        """Our kernels that gain more than the tolerance over `name`, beyond run-to-run variation;
        the best first."""
        gains = {other: self.gain(other, name) for other in self.launches if other != name}
        found = {other: gain for other, gain in gains.items() if gain.above(TOLERANCE)}
        return dict(sorted(found.items(), key=lambda entry: -entry[1].value))

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`: whether a variant is faster by more than the tolerance, beyond
        run-to-run variation ("BEHIND"), or surely none is ("best")."""
        name = self.chosen
        if name is None:
            return "not timed"
        if self.us(name).low <= 0:
            return "unclear"  # a fraction of nothing
        if self.faster(name):
            return "BEHIND"
        rivals = (other for other in self.launches if other != name)
        sure = all(self.gain(other, name).high <= TOLERANCE for other in rivals)
        return "best" if sure else "unclear"


def states_of(problem: Problem, l2: int) -> tuple[str, ...]:
    """The states in which a problem is timed on a GPU with `l2` bytes of L2."""
    size = problem.rows * problem.row_bytes
    return STATES if size <= MOST_EVICTED * l2 else STATES[:1]


def order() -> list[tuple[Problem, str]]:
    """Problems and states in the order of the file: softmax by dtype, shape and state, then
    `shapes.linked`."""
    alone = itertools.product(DTYPES, PIPELINE_SHAPES)
    problems = [*(Problem(*shape, dtype) for dtype, shape in alone), *linked()]
    return [*itertools.product(problems, STATES)]


# ---- variants ----------------------------------------------------------------------------------


def variants(step: str, problem: Problem, gpu: Gpu | None = None) -> list[str]:
    """A step with the hints of its table for a problem, and with the other combinations: trials
    that spell them out, the step's own first. The cache hint is included if x and y together exceed
    the L2, the programmatic launch if there are few rows."""
    gpu = gpu or gpu_for_plans()
    own = launch_of(step, problem, gpu)
    size = 2 * problem.rows * problem.row_bytes
    sensible = {
        "STREAMING": (1, 0),
        "EVICT_LAST": (1, 0) if size > gpu.l2 else (0,),
        "PROGRAMMATIC": (1, 0) if problem.rows <= FEW_ROWS else (0,),
    }
    names = [name for name in HINT_MACROS if name in own]
    combined = itertools.product(*(sensible[name] for name in names))
    changes = [{}, *(dict(zip(names, values, strict=True)) for values in combined)]
    return list(dict.fromkeys(with_hints(step, {**own, **change}) for change in changes))


def trial_of(name: str) -> str:
    """The trial of one of our kernels, without its kind of launch."""
    return name.removesuffix(ORDINARY)


def file_of(name: str) -> str:
    """The kernel file of one of our kernels."""
    return split_trial(trial_of(name)).file


def best_baselines(comparison: Sequence[Comparison], problem: Problem) -> list[str]:
    """The two best baselines of the comparison for the operation and dtype of a problem, by the
    median of their fractions of the bandwidth baseline; empty if there is no comparison."""
    shares: dict[str, list[float]] = {}
    for case in comparison:
        if case.dtype == problem.dtype and group_of(case.problem) == group_of(problem):
            for name in {*case.timed} - {case.step}:
                shares.setdefault(name, []).append(case.share(name))
    return sorted(shares, key=lambda name: -statistics.median(shares[name]))[:2]


# ---- what is said of it -------------------------------------------------------------------------


def load_pipelines(gpu: str | None = None) -> list[Pipeline]:
    """The recorded pipelines; raises as `store.read`."""
    return store.read(Pipeline, gpu)


def around_cases(recorded: Sequence[Pipeline]) -> list[Pipeline]:
    """The cases of other operations than softmax alone."""
    return [case for case in recorded if not case.problem.plain]


def pipeline_cases(dtype: str, gpu: str | None = None) -> list[Pipeline]:
    """The recorded cases of a dtype in the order of `PIPELINE_SHAPES` and `STATES`; raises as
    `load_pipelines`."""
    return [case for case in load_pipelines(gpu) if case.dtype == dtype and case.problem.plain]


def behind(cases: Sequence[Pipeline]) -> list[str]:
    """A line for each case in which a variant is faster than the kernel that `choose` returns."""
    lines = []
    for case in cases:
        if case.verdict == "BEHIND":
            (other, gain), *_ = case.faster(case.chosen).items()
            where = name_of(case.problem)
            lines.append(f"{where}, {case.state}: {other} is faster by {gain.value:.1%}")
    return lines


def summary(case: Pipeline) -> str:
    """One line of progress for a case, with the baselines that were left out and why."""
    times = []
    for name in case.pipeline_us:
        us = case.us(name)
        label = shown(name) if name in case.launches else name
        times.append(f"{label} {us.value:.2f} ({us.low:.2f} to {us.high:.2f})")
    copy = case.us(COPY).value
    odd = " below a copy: look!" if case.us(case.best).value < 0.95 * copy else ""
    said = f"{', '.join(times)}; {case.verdict}{odd}{baselines.left_out(case.skipped)}"
    return f"{name_of(case.problem)}, {case.state}: us {said}"


def shown(name: str) -> str:
    """One of our kernels in a table: its file and its hints."""
    trial = split_trial(trial_of(name))
    asked = [what for what, value in trial.changes if value and what in HINT_MACROS]
    words = " ".join([trial.file, *asked])
    return words + ORDINARY if name.endswith(ORDINARY) else words
