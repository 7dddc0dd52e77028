"""Baselines: softmax, fused and related operations by other libraries, as candidates for
`bench.measure`.

    torch       eager PyTorch, with a preallocated output where a function takes one; several
                functions in a row if there is no single one
    compile     torch.compile of one formula for one shape, autotuned: best of several processes
    triton      the scheme of Triton's fused-softmax tutorial: persistent programs that take every
                n-th row, each row padded to a power of two
    liger       the Triton kernels of Liger-Kernel: softmax, its gradient, the loss
    quack       QuACK, in CUTLASS's Python language: softmax, also with float32 out, its gradient,
                both of cross-entropy
    flashinfer  FlashInfer's OnlineSoftmax, built from its headers
    cudnn       cudnnSoftmaxForward and cudnnSoftmaxBackward: log, gradients, another axis

`helpers.measure.interop` calls them. Nothing else depends on them; `requirements/baselines.txt`
lists their packages.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.metadata
import importlib.util
import math
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor, TimeoutError, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..base.gpu import gpu_in_use
from ..catalogue.registry import TORCH
from ..catalogue.store import Run
from ..problem.operations import (
    ANY_AXIS,
    BACKWARD,
    CROSS_ENTROPY,
    CROSS_ENTROPY_BACKWARD,
    CROSS_ENTROPY_LOSS_AND_GRADIENT,
    SOFTMAX,
    Operation,
)
from ..problem.problem import Problem
from ..run.bound import load
from ..run.check import WrongResult
from ..run.references import allowed, expected, reference, tolerance, ulp
from ..simt.words import are
from . import bench, interop
from .bench import Candidate, fresh_pool
from .campaign import CampaignTask
from .gpu_arrays import verify
from .problem_groups import chosen, name_of, numbers
from .records import Case
from .workers import Failure

PACKAGES = (
    *("torch", "triton", "liger-kernel", "quack-kernels", "nvidia-cutlass-dsl"),
    *("flashinfer-python", "cudnn"),
)
ABSENT = "is not installed"  # end of the reason why a baseline is missing altogether


NOT_OFFERED = "computes no such thing"  # end of the reason why a baseline is not in a comparison


@dataclass(frozen=True)
class Baseline:
    """Another library."""

    title: str  # its usual name
    packages: tuple[str, ...]  # the modules that it imports
    absent: Callable[[], str] = lambda: ""  # what else it needs and is missing
    disk_cache: bool = False  # whether compiled code is cached across processes
    draws: bool = False  # whether each process tunes anew, with varying results


@dataclass(frozen=True)
class Offer:
    """How a baseline computes an operation."""

    make: Callable[[Problem], interop.Call]  # -> a call on CuPy arrays
    refuses: Callable[[Problem], str] = lambda problem: ""  # why, or ""
    features: Set[str] | None = frozenset()  # that it has; None: all
    unwritten: tuple[str, ...] = ()  # outputs that it does not compute
    note: str = ""
    in_place: bool = False  # whether it overwrites its input: then it is checked once


def why_not(name: str, problem: Problem) -> str:
    """Why a baseline cannot run a problem here, in a few words; "" if it should."""
    baseline = BASELINES[name]
    for package in baseline.packages:
        if importlib.util.find_spec(package) is None:
            return f"{package} {ABSENT}"
    if missing := baseline.absent():
        return f"{missing} {ABSENT}"
    return refusal(name, problem)


def refusal(name: str, problem: Problem) -> str:
    """Why a baseline does not support a problem, in a few words; "" if it does."""
    offer = OFFERS[problem.operation.name].get(name)
    asked = {feature for feature, value in problem.features if value}
    if offer is None or (offer.features is not None and asked - offer.features):
        return f"{title(name)} {NOT_OFFERED}"
    return offer.refuses(problem)


def title(name: str) -> str:
    """The usual name of a baseline; any other name unchanged."""
    return BASELINES[name].title if name in BASELINES else name


def note(name: str, problem: Problem) -> str:
    """A note on how a baseline is called; "" if there is none."""
    return OFFERS[problem.operation.name][name].note


def left_out(skipped: Mapping[str, str]) -> str:
    """A line for each baseline that was left out, unless it does not offer the operation."""
    told = {name: why for name, why in skipped.items() if not why.endswith(NOT_OFFERED)}
    return "".join(f"\n    {name}: {reason}" for name, reason in told.items())


def candidate(name: str, problem: Problem) -> Candidate:
    """A baseline for `bench.measure`: its `run(x, y)` takes CuPy arrays of shape (rows, cols),
    16-bit ones of any 2-byte type, or the arrays of another operation, and enqueues one call on
    CuPy's current stream.

    Call `why_not` first. A baseline compiles here or in its first call.
    """
    offer = OFFERS[problem.operation.name][name]
    call = offer.make(problem)
    if problem.plain:
        return Candidate(call, {}, {}, Precision())
    judge = partial(verify, check=check_result, unwritten=offer.unwritten)
    judge = partial(judge, problem, numbers(problem))
    return Candidate(call, {}, {}, None, judge=_once(judge) if offer.in_place else judge)


def _once(judge: Callable) -> Callable:
    """`judge`, which does nothing from the second call on."""
    calls = iter((judge,))
    return lambda arrays: next(calls, lambda _: None)(arrays)


def step_maker(step: str) -> bench.Maker:
    """The maker of a step's candidate, as `bench.maker`; for `TORCH` that of eager PyTorch."""
    if step != TORCH:
        return bench.maker(step)

    def make(problem: Problem) -> Candidate:
        free_memory()
        return candidate("torch", problem)

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
        times = bench.measure_steps(bench.Task(self.at, self.names), step_maker)
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


LESS_PRECISE = 1.0  # ulp of the output: the cost of rounding one intermediate result to its dtype


def check_softmax(x: np.ndarray, y: np.ndarray) -> float:
    """Return 0.0 if y is a precise softmax of x; if it is less precise, its largest error in ulp
    of its dtype. Raise `WrongResult` if it is wrong.

    The reference is softmax in fp64. Our own kernels must be within `references.tolerance` of it:
    the usual error of fp32 arithmetic and half an ulp of a 16-bit output. A baseline is

    - precise within 1e-4 of each value beyond that;
    - less precise within `LESS_PRECISE` ulp of the output dtype beyond that;
    - wrong in all other cases, and if it has NaN where the reference has none, or the reverse.
    """
    expected, given = reference(x), y.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error, allowed = np.abs(given - expected), tolerance(x, expected)
        precise = (error <= allowed + 1e-4 * expected) | (np.isnan(given) & np.isnan(expected))
        right = precise | (error <= allowed + LESS_PRECISE * ulp(expected, x.dtype))
        ulps = error / ulp(expected, x.dtype)
    if not right.all():
        wrong = np.count_nonzero(~right)
        worst = ulps[~right].max()
        raise WrongResult(
            f"{wrong} of {x.size} elements {are(wrong)} wrong, by up to {worst:.1f} ulp"
        )
    return float(ulps[~precise].max(initial=0.0))


@dataclass
class Precision:
    """`check_softmax` that records the largest error of the less precise results."""

    worst_ulp: float = 0.0

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.worst_ulp = max(self.worst_ulp, check_softmax(x, y))


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
) -> None:
    """`check.check_outputs` with a larger tolerance, because some baselines round more often.
    Raises `WrongResult`.

    Each element may have a relative error of `ROUNDED`; a gradient of softmax, which is a
    difference, has that of its terms.
    """
    exact = expected(operation, values, features, at)
    itemsize = values["dy" if operation is BACKWARD else "x"].dtype.itemsize
    for name, array in written.items():
        rounds = itemsize == 2 and (features.get("BIAS") or (name == "dx" and "dloss" in values))
        share = ROUNDED_LOGITS if rounds else ROUNDED[itemsize]
        wanted = exact[name].value
        size = np.abs(wanted)
        if operation is BACKWARD:
            y, g = (values[key].astype(np.float64) for key in ("y", "dy"))
            y, terms = (np.exp(y), np.abs(g)) if features.get("LOG") else (y, np.abs(y * g))
            size = terms + y * terms.sum(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            error = np.abs(array.astype(np.float64) - wanted)
            right = (error <= allowed(exact[name], array.dtype) + share * size) | (array == wanted)
        if not right.all():
            known = ~right & np.isfinite(error)
            off = float(np.max(error / np.maximum(size, 1e-30), initial=0, where=known))
            wrong = np.count_nonzero(~right)
            raise WrongResult(
                f"{wrong} of {array.size} elements of {name} {are(wrong)} wrong, by up to {off:.1%}"
            )


def versions() -> dict[str, str]:
    """Versions of the installed ones of `PACKAGES`; for cuDNN that of its library."""
    found = {}
    for package in PACKAGES[:-1]:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if library := interop.cudnn():
        library.cudnnGetVersion.restype = ctypes.c_size_t
        found["cudnn"] = str(library.cudnnGetVersion())
    return found


def free_memory() -> None:
    """Free the memory that PyTorch caches for the streams of earlier shapes; no graph may be in
    use."""
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


# ---- all of them --------------------------------------------------------------------------------

LOSS_ALONE = ("statistics",)  # unwritten
AGAIN = "what its autograd calls, of logarithms of probabilities that are kept"
GIVEN = "with an output that is given"
OVERWRITES = "its kernel overwrites the logits; its results were checked before timing alone"
TWO_KERNELS = "two kernels"  # of ours in sequence, beside the one that computes both


def liger_refuses(problem: Problem) -> str:
    most = 65536
    return f"Liger refuses more than {most} columns" if problem.cols > most else ""


def triton_refuses(problem: Problem) -> str:
    most = 65536
    why = f"a row of more than {most} columns fits no program's registers"
    return why if problem.cols > most else ""


def quack_refuses(problem: Problem) -> str:
    if problem.cols % (pack := 16 // problem.itemsize):
        return f"QuACK needs cols % {pack} == 0"
    tiles = 2 if problem.operation is BACKWARD else 1
    if tiles * problem.row_bytes > 16 * 227 * 1024:
        return "QuACK holds a row in the shared memory of at most 16 blocks of 227 KB"
    return ""


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


def flashinfer_refuses(problem: Problem) -> str:
    return "" if problem.itemsize == 4 else "FlashInfer's softmax takes float32 alone"


def flashinfer_absent() -> str:
    if not interop.folders("flashinfer", "data", "include", "flashinfer"):
        return "flashinfer"
    return "" if interop.nvcc() else "nvcc, with which flashinfer is built,"


BASELINES = {
    "torch": Baseline("PyTorch", ("torch",)),
    "compile": Baseline("torch.compile", ("torch", "triton"), disk_cache=True, draws=True),
    "triton": Baseline("Triton tutorial", ("torch", "triton"), disk_cache=True),
    "liger": Baseline("Liger", ("torch", "triton", "liger_kernel"), disk_cache=True),
    "quack": Baseline("QuACK", ("torch", "tvm_ffi", "cutlass", "quack"), disk_cache=True),
    "flashinfer": Baseline("FlashInfer", (), flashinfer_absent),
    "cudnn": Baseline("cuDNN", (), lambda: "" if interop.cudnn() else "cuDNN"),
}
EVERY = Offer(interop.eager_call, features=None), Offer(interop.compiled_call, features=None)
FORWARD = interop.cudnn_softmax_call("cudnnSoftmaxForward")
OFFERS: Mapping[str, Mapping[str, Offer]] = {
    SOFTMAX.name: {
        **dict(zip(("torch", "compile"), EVERY, strict=True)),
        "triton": Offer(interop.triton_call, triton_refuses),
        "liger": Offer(
            interop.liger_call,
            liger_refuses,
            note=f"its kernel, {GIVEN}; Liger itself allocates one",
        ),
        "quack": Offer(
            interop.quack_call("softmax", "_softmax_fwd", lambda x, y: (x, y)),
            quack_refuses,
            features={"WIDE"},
        ),
        "flashinfer": Offer(
            interop.flashinfer_call, flashinfer_refuses, note="by an ordinary launch"
        ),
        "cudnn": Offer(FORWARD, features={"LOG", "WIDE"}),
    },
    ANY_AXIS.name: {
        **dict(zip(("torch", "compile"), EVERY, strict=True)),
        "cudnn": Offer(FORWARD, features={"LOG"}),
    },
    BACKWARD.name: {
        "torch": replace(EVERY[0], note=f"what its autograd calls, {GIVEN}"),
        "compile": EVERY[1],
        "liger": Offer(interop.liger_call, liger_refuses, note=f"its kernel, {GIVEN}"),
        "quack": Offer(
            interop.quack_call("softmax", "_softmax_backward", lambda y, dy, dx: (dy, y, dx)),
            quack_refuses,
        ),
        "cudnn": Offer(interop.cudnn_softmax_call("cudnnSoftmaxBackward"), features={"LOG"}),
    },
    CROSS_ENTROPY.name: {
        "torch": replace(EVERY[0], unwritten=LOSS_ALONE),
        "compile": replace(EVERY[1], unwritten=LOSS_ALONE),
        "liger": Offer(
            interop.liger_loss_call, unwritten=LOSS_ALONE, note="its kernel, for the loss alone"
        ),
        "quack": Offer(
            interop.quack_call("cross_entropy", "cross_entropy_fwd_out", interop.loss_of_quack),
            unwritten=LOSS_ALONE,
        ),
    },
    CROSS_ENTROPY_BACKWARD.name: {
        "torch": replace(EVERY[0], note=AGAIN),
        "compile": EVERY[1],
        "quack": Offer(interop.quack_gradient_call),
    },
    CROSS_ENTROPY_LOSS_AND_GRADIENT.name: {
        **dict(zip(("torch", "compile"), EVERY, strict=True)),
        "liger": Offer(interop.liger_loss_call, note=OVERWRITES, in_place=True),
        "quack": Offer(
            interop.quack_call(
                "cross_entropy", "cross_entropy_fwd_out", interop.loss_and_gradient_of_quack
            )
        ),
        TWO_KERNELS: Offer(two_kernels_call),
    },
}

# ---- compiling ahead ----------------------------------------------------------------------------


def empty_arrays(problem: Problem) -> list:
    """Zeroed CuPy arrays for a problem, on which baselines are called to compile ahead."""
    import cupy

    stored = {"bfloat16": "uint16", "float16": "uint16"}
    return [
        cupy.zeros(problem.array_shape(argument, problem.numbers), stored.get(name, name))
        for argument in problem.arrays
        for name in [argument.numpy_dtype(problem.dtype).name]
    ]


def use_cache() -> None:
    """Direct the compile caches of the baselines to `interop.CACHE`; call it before they are
    imported."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(interop.CACHE / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(interop.CACHE / "triton")
    os.environ["QUACK_CACHE_DIR"] = str(interop.CACHE / "quack")


@contextlib.contextmanager
def tuned_anew(number: int) -> Iterator[None]:
    """Hide earlier tuning results from processes started within; `number` names their own cache
    folder, which is emptied. They reuse what Triton compiled."""
    folder, before = interop.CACHE / f"inductor-{number}", os.environ["TORCHINDUCTOR_CACHE_DIR"]
    shutil.rmtree(folder, ignore_errors=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = before


def warm_up(
    problems: Sequence[Problem],
    names: Sequence[str],
    workers: int,
    seconds: float = math.inf,
) -> None:
    """Fill the baselines' caches on disk, and CuPy's with our kernels, from several processes,
    since compiling takes most of a comparison, in the order of the problems and for so many seconds
    at most.

    torch.compile also tunes while it compiles. The results found while processes shared the GPU are
    deleted; the comparison tunes again with the compiled code.
    """
    cached = [name for name in names if BASELINES[name].disk_cache]
    able = {one: [name for name in cached if not why_not(name, one)] for one in problems}
    jobs = [(name, one) for one in problems for name in (*able[one], OURS)]
    in_processes(compile_ahead, jobs, workers, seconds)


def in_processes(
    compile_it: Callable[..., str],
    jobs: Sequence[tuple],
    workers: int,
    seconds: float = math.inf,
) -> None:
    """Compile the jobs in several processes, by a function of this package that returns what went
    wrong, and delete the tuning results. Otherwise as `warm_up`."""
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    done = 0
    with ProcessPoolExecutor(workers, context, _compile_in_one_thread) as pool:
        tasks = [pool.submit(compile_it, *job) for job in jobs]
        try:
            for task in as_completed(tasks, None if seconds == math.inf else max(0.0, seconds)):
                done += 1
                if failure := task.result():
                    print(f"warm-up: {failure}", flush=True)
        except BrokenProcessPool:
            print("warm-up: a process ended; what is missing is compiled later", flush=True)
        except TimeoutError:
            print("warm-up: out of time; what is missing is compiled later", flush=True)
        for task in tasks:
            task.cancel()
    for tuned in interop.CACHE.rglob("*.best_config"):
        tuned.unlink()
    print(f"warm-up of {done} kernels: {time.perf_counter() - began:.0f} s", flush=True)


def _compile_in_one_thread() -> None:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


OURS = "ours"  # name of our chosen kernel among the baselines


def compile_ahead(name: str, problem: Problem) -> str:
    """Run a baseline once at a problem in this process, or compile our own kernel; returns what
    went wrong, or ""."""
    import cupy

    try:
        with fresh_pool():
            if name == OURS:
                if step := chosen(problem, gpu_in_use()):
                    bench.maker(step)(problem)
                return ""
            arrays = empty_arrays(problem)
            with cupy.cuda.Stream(non_blocking=True) as stream:
                candidate(name, problem).run(*arrays)
                stream.synchronize()
        return ""
    except Exception as error:  # the comparison meets the error again and records it
        return f"{name} at {name_of(problem)}: {type(error).__name__}"
