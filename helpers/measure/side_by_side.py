"""Time our kernels, other libraries and copies in turn: the tasks of the campaigns `comparison` and
`pipelines`, how a result of another library is checked, and how it is compiled ahead.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ..base.gpu import Gpu, gpu_in_use
from ..catalogue import dispatch, registry
from ..catalogue.dispatch import chosen, launch_of, step_hash
from ..catalogue.store import Run
from ..problem.operations import (
    BACKWARD,
    CROSS_ENTROPY,
    CROSS_ENTROPY_BACKWARD,
    SOFTMAX,
    Operation,
)
from ..problem.problem import Problem
from ..problem.shapes import ALONE, REFERENCE_SHAPE, name_of, numbers
from ..run.bound import load
from ..run.check import WrongResult
from ..run.references import allowed, expected, ulp
from ..simt.words import are
from . import baselines, bench, campaign, interop, pipelines
from .baselines import BASELINES, OFFERS, TWO_KERNELS
from .bench import Candidate, fresh_pool
from .campaign import CampaignTask, Failure
from .comparison import COPIES, NEAR, Comparison, Unseen, summary
from .gpu_arrays import buffers, verify
from .pipelines import Pipeline, file_of, trial_of, variants
from .records import Timed, load_record

MATTERS = 2**30  # from this size on, the recorded copies rank as they do here


# ---- other libraries -----------------------------------------------------------------------------


def candidate(name: str, problem: Problem, precision: Precision | None = None) -> Candidate:
    """A baseline for `bench.measure`: its `run(x, y)` takes CuPy arrays of shape (rows, cols),
    16-bit ones of any 2-byte type, or the arrays of another operation, and enqueues one call on
    CuPy's current stream. `precision` records how precise results of softmax alone are.

    Call `baselines.why_not` first. A baseline compiles here or in its first call.
    """
    offer = OFFERS[problem.operation.name][name]
    call = offer.make(problem) if offer.make else two_kernels_call(problem)
    check, given = precision or check_result, (verify, problem, numbers(problem))
    judge = partial(*given, check=check, unwritten=offer.unwritten)
    return Candidate(call, {}, {}, _once(judge) if offer.in_place else judge)


def _once(judge: Callable) -> Callable:
    """`judge`, which does nothing from the second call on."""
    calls = iter((judge,))
    return lambda arrays: next(calls, lambda _: None)(arrays)


def two_kernels_call(problem: Problem) -> interop.Call:
    """Our kernels of cross-entropy and of its gradient, in sequence."""
    import cupy

    def enqueues(operation: Operation) -> Callable:
        at, gpu = replace(problem, operation=operation), gpu_in_use()
        bound = load(chosen(at, gpu)).at(at, gpu)
        bound.prepare()
        return bound.enqueue

    loss_of, gradient_of = map(enqueues, (CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD))
    statistics = cupy.empty((problem.rows, 2), cupy.float32)

    def call(x, target, dloss, loss, dx) -> None:
        loss_of(x, target, loss, statistics)
        gradient_of(x, target, statistics, dloss, dx)

    return call


def free_memory() -> None:
    """Free the memory that PyTorch caches for the streams of earlier shapes; no graph may be in
    use."""
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


PRECISE = 1e-4  # additional relative error of softmax alone
LESS_PRECISE = 1.0  # ulp of the output: the cost of rounding one intermediate result to its dtype
ROUNDED = {4: 1e-4, 2: 2.0**-7}  # bytes per element -> additional relative error of a baseline
# Eager PyTorch rounds biased logits and log-probabilities to 16 bits: errors of up to 2^-4 each
# between 16 and 32.
ROUNDED_LOGITS = 2.0**-3


def check_result(
    operation: Operation,
    values: Mapping[str, object],
    written: Mapping[str, np.ndarray],
    features: Mapping[str, int],
    at: np.ndarray | None = None,
) -> float:
    """Return 0.0 if the outputs of a baseline are precise; if a softmax is less precise, its
    largest error in ulp of its dtype. Raise `WrongResult` if an output is wrong.

    The reference is fp64. Our own kernels must be within `references.allowed` of it: the usual
    error of fp32 arithmetic and half an ulp of a 16-bit output. Beyond that, a baseline's

    - softmax alone is precise within `PRECISE` of each value, and less precise within
      `LESS_PRECISE` ulp;
    - other results, of which some are rounded more often, may have a relative error of `ROUNDED`;
      a gradient of softmax, which is a difference, has that of its terms.

    All else is wrong, and NaN where the reference has none, or the reverse.
    """
    exact = expected(operation, values, features, at)
    alone, worst_ulp = operation is SOFTMAX and not any(features.values()), 0.0
    itemsize = values["dy" if operation is BACKWARD else "x"].dtype.itemsize
    for name, array in written.items():
        rounds = itemsize == 2 and (features.get("BIAS") or (name == "dx" and "dloss" in values))
        share = PRECISE if alone else ROUNDED_LOGITS if rounds else ROUNDED[itemsize]
        wanted = exact[name].value
        size, in_ulp = np.abs(wanted), ulp(wanted, array.dtype)
        if operation is BACKWARD:
            y, g = (values[key].astype(np.float64) for key in ("y", "dy"))
            y, terms = (np.exp(y), np.abs(g)) if features.get("LOG") else (y, np.abs(y * g))
            size = terms + y * terms.sum(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            error, own = (
                np.abs(array.astype(np.float64) - wanted),
                allowed(exact[name], array.dtype),
            )
            same = (array == wanted) | (np.isnan(array.astype(np.float64)) & np.isnan(wanted))
            precise = same | (error <= own + share * size)
            right = precise | (error <= own + LESS_PRECISE * in_ulp * alone)
        if not right.all():
            known = ~right & np.isfinite(error)
            off = float(np.max(error / np.maximum(size, 1e-30), initial=0, where=known))
            wrong = np.count_nonzero(~right)
            raise WrongResult(
                f"{wrong} of {array.size} elements of {name} {are(wrong)} wrong, by up to {off:.1%}"
            )
        worst_ulp = max(worst_ulp, float((error / in_ulp)[~precise].max(initial=0.0)))
    return worst_ulp


@dataclass
class Precision:
    """`check_result` that records the largest error of the less precise results."""

    worst_ulp: float = 0.0

    def __call__(self, *given) -> None:
        self.worst_ulp = max(self.worst_ulp, check_result(*given))


# ---- the comparison -----------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparisonTask(CampaignTask):
    """A problem to be timed in a run."""

    problem: Problem
    run: Run
    baselines: tuple[str, ...] = ()
    seed: str = ""  # of the draw of an `Unseen` problem
    failed: Mapping[str, str] = field(default_factory=dict)  # baseline -> why it is not tried again

    def __str__(self) -> str:
        return name_of(self.problem)

    def wanted_names(self) -> Set[str]:
        return {*self.baselines}

    def title(self, key: Hashable) -> str:
        """ "softmax, 64 x 1024 float32", "any axis, 8192 x 512 x 64 bfloat16"."""
        return f"{ALONE}, {self}" if self.problem.plain else str(self)

    def measure(self) -> list[Comparison]:
        """Time our kernel, the baselines that support the problem, and copies. Raises `Failure`
        that names the kernel, baseline or copy which is wrong or fails."""
        problem, skipped = self.problem, self.skipped()
        step = chosen(problem, gpu_in_use())
        names = [name for name in self.baselines if name not in skipped]
        if TWO_KERNELS not in self.failed and not baselines.refusal(TWO_KERNELS, problem):
            names.append(TWO_KERNELS)
        copies = other_copies(problem) if problem.plain and not self.seed else []
        copies = [name for name in copies if name not in self.failed]
        rule = dispatch.candidates(problem, gpu_in_use(), 1)[0] if self.seed and step else step
        ours = dict.fromkeys(filter(None, (step, rule)))
        cases, less_precise = measure_beside(ours, names, copies, problem)
        timed = {name: cases[name] for name in filter(None, (step, *names))}
        of_ours = cases.get(step) or cases[problem.operation.bandwidth_baseline]
        found = Comparison(
            problem,
            self.run,
            step,
            step_hash(step) if step else "",
            of_ours.launch if step else {},
            {name: case.samples_us for name, case in timed.items()},
            of_ours.copy_samples_us,
            {name: case.calls for name, case in timed.items()},
            skipped,
            {name: cases[name].samples_us for name in copies},
            less_precise=less_precise,
        )
        if not self.seed:
            return [found]
        of_rule = {"rule": rule, "rule_us": cases[rule].samples_us} if rule != step else {}
        return [Unseen(**vars(found), seed=self.seed, **of_rule)]

    def without(self, failure: Failure) -> tuple[ComparisonTask | None, bool]:
        """Leave out a baseline or a copy that failed, which is no failure of ours."""
        culprit = failure.culprit
        beside = (*self.baselines, TWO_KERNELS)
        if culprit not in beside and not culprit.startswith(COPIES):
            return None, True
        return replace(self, failed={**self.failed, culprit: failure.reason}), False

    def lines(self, found: Sequence[Comparison]) -> list[str]:
        return [summary(case) for case in found]

    def to_compile(self) -> list[campaign.Job]:
        cached = [name for name in self.baselines if BASELINES[name].disk_cache]
        names = [name for name in cached if not baselines.why_not(name, self.problem)]
        return [(compile_for, name, self.problem) for name in (*names, OURS)]

    def skipped(self) -> dict[str, str]:
        """Baseline that failed or does not support the problem -> why."""
        reasons = {
            name: self.failed.get(name) or baselines.why_not(name, self.problem)
            for name in self.baselines
        }
        return {name: reason for name, reason in reasons.items() if reason}


def measure_beside(
    ours: Iterable[str], names: Sequence[str], copies: Sequence[str], problem: Problem
) -> tuple[dict[str, Timed], dict[str, float]]:
    """Time kernels of ours, baselines and copies in turn; returns their times, and the errors in
    ulp of the less precise baselines."""
    free_memory()
    makers = {step: bench.maker(step, numbers(problem)) for step in ours}
    precision = {name: Precision() for name in names}
    makers |= {name: partial(candidate, name, precision=precision[name]) for name in names}
    makers |= {name: bench.copy_maker(name) for name in copies}
    cases = bench.measure(makers, problem)
    worst = {name: round(one.worst_ulp, 2) for name, one in precision.items()}
    return cases, {name: ulp for name, ulp in worst.items() if ulp}


def other_copies(problem: Problem) -> list[str]:
    """The copies that may be faster than the plain one: for a large matrix those that are in the
    records, for a smaller one those that come close there."""
    least = 1.0 if problem.compulsory_bytes >= MATTERS else NEAR
    shape = bench.copied_shape(problem)
    return [
        name
        for name in registry.variants()
        if name.startswith(COPIES)
        and load(name).accepts(*shape, gpu=gpu_in_use())
        and load_record(name).case(*REFERENCE_SHAPE).share >= least
    ]


@dataclass(frozen=True)
class Draw(CampaignTask):
    """Baselines to be timed with our kernel once more, in a process that tunes them anew."""

    case: Comparison
    names: tuple[str, ...]

    def __str__(self) -> str:
        return name_of(self.case.problem)

    def measure(self) -> list[Comparison]:
        """The case with the samples of this process, including the copy's."""
        step, names = self.case.step, self.names
        cases, _ = measure_beside([step], names, (), self.case.problem)
        drawn = {name: cases[name].samples_us for name in (step, *names)}
        drawn[bench.COPY] = cases[names[0]].copy_samples_us
        return [replace(self.case, draws=[*self.case.draws, drawn])]

    def without(self, failure: Failure) -> tuple[None, bool]:
        """A baseline that fails has one result less; our kernel may not."""
        if failure.culprit != self.case.step:
            print(f"drawing at {self}: {failure}", file=sys.stderr)
        return None, failure.culprit == self.case.step

    def lines(self, found: Sequence[Comparison]) -> list[str]:
        return [f"process {len(case.draws) + 1}: {summary(case)}" for case in found]


# ---- pipelines ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PipelineTask(ComparisonTask):
    """One problem to be timed."""

    def wanted_keys(self) -> list[Hashable]:
        states = pipelines.states_of(self.problem, self.run.gpu.l2)
        return [(self.problem, state) for state in states]

    def wanted_names(self) -> Set[str]:
        return {*self.baselines, *self.ours(self.run.gpu)}

    def measure(self) -> list[Pipeline]:
        """Time our kernels, the baselines that support the problem, and the copy, in each state.
        Raises `Failure` that names the kernel or baseline which is wrong or fails."""
        gpu, problem = gpu_in_use(), self.problem
        skipped, ours = self.skipped(), self.ours(gpu)
        free_memory()
        makers = {name: bench.maker(name, numbers(problem)) for name in ours}
        makers |= {name: partial(candidate, name) for name in self.baselines if name not in skipped}
        cases = []
        for state, series in pipelines.measure(makers, problem).items():
            timed = [name for name in series.pipeline_us if trial_of(name) in ours]
            launches = {name: launch_of(trial_of(name), problem, gpu) for name in timed}
            cases.append(
                Pipeline(
                    problem,
                    self.run,
                    state,
                    launches,
                    {file: step_hash(file) for file in map(file_of, timed)},
                    series.calls,
                    series.pipeline_us,
                    series.base_us,
                    skipped,
                )
            )
        return cases

    def without(self, failure: Failure) -> tuple[PipelineTask | None, bool]:
        """Leave out a baseline that failed, which is no failure of ours."""
        return super().without(failure) if failure.culprit in self.baselines else (None, True)

    def lines(self, found: Sequence[Pipeline]) -> list[str]:
        return [pipelines.summary(case) for case in found]

    def ours(self, gpu: Gpu) -> list[str]:
        """Our trials to be timed: the kernel that `choose` returns, with its variants."""
        step = chosen(self.problem, gpu)
        return variants(step, self.problem, gpu) if step else []


# ---- compiling ahead ----------------------------------------------------------------------------

OURS = "ours"  # name of our chosen kernel among the baselines


def compile_for(name: str, problem: Problem) -> None:
    """Run a baseline once at a problem in this process, or compile our own kernel."""
    import cupy

    with fresh_pool():
        if name == OURS:
            if step := chosen(problem, gpu_in_use()):
                bench.maker(step)(problem)
            return
        with cupy.cuda.Stream(non_blocking=True) as stream:
            arrays = buffers(problem, cupy.random.default_rng(0))
            candidate(name, problem).run(*arrays)
            stream.synchronize()


@contextlib.contextmanager
def tuned_anew(number: int) -> Iterator[None]:
    """Hide earlier tuning results from processes started within; `number` names their own cache
    folder, which is emptied. They reuse what Triton compiled."""
    folder, before = campaign.CACHE / f"inductor-{number}", os.environ["TORCHINDUCTOR_CACHE_DIR"]
    shutil.rmtree(folder, ignore_errors=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = before
