"""Softmax by other libraries, as candidates for `bench.measure`.

    torch       eager PyTorch, with a preallocated output
    compile     torch.compile for one shape, autotuned: best of several processes
    triton      the scheme of Triton's fused-softmax tutorial: persistent programs that take every
                n-th row, each row padded to a power of two
    liger       the Triton kernel of Liger-Kernel
    quack       QuACK, in CUTLASS's Python language
    flashinfer  FlashInfer's OnlineSoftmax, built from its headers
    cudnn       cudnnSoftmaxForward

`helpers.measure.fused_baselines` has their fused and related operations. Nothing else depends on
them; `requirements/baselines.txt` lists their packages. All use CuPy's memory without a copy, write
to a given output, and run on CuPy's current stream, so that they can be captured into the same kind
of CUDA graph as our kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import hashlib
import importlib.metadata
import importlib.util
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, TimeoutError, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from ..base.gpu import gpu_in_use
from ..catalogue.registry import TORCH
from ..catalogue.store import Run
from ..problem.problem import Problem
from ..run.check import WrongResult
from ..run.references import reference, tolerance, ulp
from ..simt.words import are
from . import bench, fused_baselines
from .bench import Candidate, fresh_pool
from .campaign import Task
from .gpu_arrays import verify
from .interop import ACCURATE, INSTANCE, Call, compiled, cudnn, cudnn_call, folders, with_tensors
from .problem_groups import chosen, name_of, numbers
from .records import Case
from .workers import Failure

PACKAGES = (
    *("torch", "triton", "liger-kernel", "quack-kernels", "nvidia-cutlass-dsl"),
    *("flashinfer-python", "cudnn"),
)
ABSENT = "is not installed"  # end of the reason why a baseline is missing altogether


@dataclass(frozen=True)
class Baseline:
    """A softmax of another library."""

    title: str  # its usual name
    packages: tuple[str, ...]  # the module that it imports
    make: Callable[[Problem], Call]  # -> a call on CuPy arrays
    refuses: Callable[[Problem], str] = lambda problem: ""  # -> why, or ""
    absent: Callable[[], str] = lambda: ""  # other modules that it needs
    note: str = ""
    disk_cache: bool = False  # whether compiled code is cached across processes
    draws: bool = False  # whether each process tunes anew, with varying results


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
    if not problem.plain:
        return fused_baselines.why_not(name, BASELINES[name].title, problem)
    return BASELINES[name].refuses(problem)


def title(name: str) -> str:
    """The usual name of a baseline; any other name unchanged."""
    return BASELINES[name].title if name in BASELINES else name


def note(name: str, problem: Problem) -> str:
    """A note on how a baseline is called; "" if there is none."""
    if problem.plain:
        return BASELINES[name].note
    return fused_baselines.OFFERS[problem.operation.name][name].note


def left_out(skipped: Mapping[str, str]) -> str:
    """A line for each baseline that was left out, unless it does not offer the operation."""
    told = {
        name: why for name, why in skipped.items() if not why.endswith(fused_baselines.NOT_OFFERED)
    }
    return "".join(f"\n    {name}: {reason}" for name, reason in told.items())


def candidate(name: str, problem: Problem) -> Candidate:
    """A baseline for `bench.measure`: its `run(x, y)` takes CuPy arrays of shape (rows, cols),
    16-bit ones of any 2-byte type, or the arrays of another operation, and enqueues one call on
    CuPy's current stream.

    Call `why_not` first. A baseline compiles here or in its first call.
    """
    if not problem.plain:
        offer = fused_baselines.OFFERS[problem.operation.name][name]
        judge = partial(
            verify,
            problem,
            numbers(problem),
            check=fused_baselines.check_result,
            unwritten=offer.unwritten,
        )
        return Candidate(offer.make(problem), {}, {}, None, judge=judge)
    return Candidate(BASELINES[name].make(problem), {}, {}, Precision())


def step_maker(step: str) -> bench.Maker:
    """The maker of a step's candidate, as `bench.maker`; for `TORCH` that of eager PyTorch."""
    if step != TORCH:
        return bench.maker(step)

    def make(problem: Problem) -> Candidate:
        free_memory()
        return candidate("torch", problem)

    return make


@dataclass(frozen=True)
class StepsTask(Task):
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


def check_result(x: np.ndarray, y: np.ndarray) -> float:
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
    """`check_result` that records the largest error of the less precise results."""

    worst_ulp: float = 0.0

    def __call__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.worst_ulp = max(self.worst_ulp, check_result(x, y))


def versions() -> dict[str, str]:
    """Versions of the installed ones of `PACKAGES`; for cuDNN that of its library."""
    found = {}
    for package in PACKAGES[:-1]:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if library := cudnn():
        library.cudnnGetVersion.restype = ctypes.c_size_t
        found["cudnn"] = str(library.cudnnGetVersion())
    return found


def free_memory() -> None:
    """Free the memory that PyTorch caches for the streams of earlier shapes; no graph may be in
    use."""
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


# ---- PyTorch and what takes its tensors ---------------------------------------------------------


def _torch(problem: Problem) -> Call:
    import torch

    return with_tensors(lambda x, y: torch.softmax(x, -1, out=y), problem.dtype, problem.dtype)


def _compile(problem: Problem) -> Call:
    return with_tensors(_compiled_softmax(), problem.dtype, problem.dtype)


@functools.cache
def _compiled_softmax() -> Call:
    """Compiled anew for every shape. The copy into y becomes the store of the last kernel; a
    returned result would be allocated by each call."""
    import torch

    def softmax_into(x, y) -> None:
        y.copy_(torch.softmax(x, -1))

    return compiled(softmax_into)


def _quack(problem: Problem) -> Call:
    # The package has a function of the same name, which hides the module.
    return with_tensors(
        importlib.import_module("quack.softmax")._softmax_fwd, problem.dtype, problem.dtype
    )


def _quack_refuses(problem: Problem) -> str:
    if problem.cols % (pack := 16 // problem.itemsize):
        return f"QuACK needs cols % {pack} == 0"
    if problem.row_bytes > 16 * 227 * 1024:
        return "QuACK holds a row in the shared memory of at most 16 blocks of 227 KB"
    return ""


# ---- Triton -------------------------------------------------------------------------------------


def _liger(problem: Problem) -> Call:
    liger = importlib.import_module("liger_kernel.ops.softmax")
    rows, cols = problem.shape
    width, warps = liger.calculate_settings(cols)
    kernel = liger._softmax_single_block_forward_kernel[(rows,)]

    def call(x, y) -> None:
        kernel(y, cols, x, cols, cols, BLOCK_SIZE=width, num_warps=warps)

    return with_tensors(call, problem.dtype, problem.dtype)


def _liger_refuses(problem: Problem) -> str:
    return "Liger refuses more than 65536 columns" if problem.cols > 65536 else ""


def _triton(problem: Problem) -> Call:
    """As many programs as are resident on the GPU, by registers and shared memory; the loads of up
    to three later rows are in flight while a row is computed."""
    import torch
    import triton

    rows, cols = problem.shape
    kernel, width, warps = _padded_rows_kernel(), triton.next_power_of_2(cols), 8
    gpu = triton.runtime.driver.active.utils.get_device_properties(0)
    # All stages but one need a row buffer; 1 KB is reserved for the reductions.
    buffers = (gpu["max_shared_mem"] - 1024) // (width * problem.itemsize)
    constants = {"WIDTH": width, "STAGES": min(4, 1 + buffers), "num_warps": warps}
    pointer = getattr(torch, problem.dtype)  # stands for an aligned tensor of this type
    built = kernel.warmup(pointer, pointer, rows, cols, grid=(1,), **constants)
    built._init_handles()  # loads the kernel, which reports its registers
    by_registers = gpu["max_num_regs"] // (built.n_regs * gpu["warpSize"] * warps)
    by_shared = gpu["max_shared_mem"] // max(1, built.metadata.shared)
    programs = min(rows, gpu["multiprocessor_count"] * max(1, min(by_registers, by_shared)))

    def call(x, y) -> None:
        kernel[(programs,)](y, x, rows, cols, **constants)

    return with_tensors(call, problem.dtype, problem.dtype)


def _triton_refuses(problem: Problem) -> str:
    return (
        "a row of more than 65536 columns fits no program's registers"
        if problem.cols > 65536
        else ""
    )


@functools.cache
def _padded_rows_kernel():
    """The kernel, made here because Triton is optional."""
    import triton
    import triton.language as tl

    @triton.jit
    def padded_rows(y, x, rows, cols, WIDTH: tl.constexpr, STAGES: tl.constexpr):
        columns = tl.arange(0, WIDTH)
        inside = columns < cols
        for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
            place = row * cols + columns
            values = tl.load(x + place, mask=inside, other=-float("inf")).to(tl.float32)
            terms = tl.exp(values - tl.max(values, axis=0))
            tl.store(y + place, terms / tl.sum(terms, axis=0), mask=inside)

    return padded_rows


# ---- cuDNN --------------------------------------------------------------------------------------


def _cudnn_softmax(problem: Problem) -> Call:
    """A row is one image of `cols` channels and one pixel."""
    sizes, dtype = (*problem.shape, 1, 1), problem.dtype
    return cudnn_call("cudnnSoftmaxForward", ACCURATE, INSTANCE, sizes, dtype, dtype)


# ---- FlashInfer ---------------------------------------------------------------------------------

# Its `softmax` for float32 with temperature 1 and a workspace of the size that it uses.
FLASHINFER = """
#include <flashinfer/sampling.cuh>
extern "C" int softmax(float* x, float* y, unsigned rows, unsigned cols, void* workspace,
                       size_t bytes, cudaStream_t stream)
{
    return flashinfer::sampling::OnlineSoftmax<float>(x, y, rows, cols, nullptr, 1.0f, workspace,
                                                      bytes, false, stream);
}
"""
FLASHINFER_WORKSPACE = 2**20


def _nvcc() -> str | None:
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    places = [Path(home, "bin") for home in homes if home]
    return shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(map(str, places)))


def _flashinfer_absent() -> str:
    if not folders("flashinfer", "data", "include", "flashinfer"):
        return "flashinfer"
    return "" if _nvcc() else "nvcc, with which flashinfer is built,"


@functools.cache
def _flashinfer_library() -> ctypes.CDLL:
    """Built once per version. Raises `RuntimeError` with the first error of nvcc."""
    (include, *_) = folders("flashinfer", "data", "include")
    header = (include / "flashinfer" / "sampling.cuh").read_bytes()
    name = hashlib.sha256(header + FLASHINFER.encode()).hexdigest()[:16]
    library = CACHE / "flashinfer" / f"{name}.so"
    if not library.is_file():
        library.parent.mkdir(parents=True, exist_ok=True)
        source = library.with_suffix(".cu")
        source.write_text(FLASHINFER)
        # It includes cuRAND's headers, which may come with PyTorch instead of nvcc.
        for package in ("curand", "cu13"):
            for folder in folders("nvidia", package, "include"):
                for file in folder.glob("curand*.h"):
                    shutil.copy(file, library.parent)
        scratch = library.with_suffix(f".{os.getpid()}.tmp")
        options = ["-shared", "-Xcompiler", "-fPIC", "-O3", "-std=c++17", "-arch=native"]
        includes = [f"-I{include}", f"-I{library.parent}"]
        done = subprocess.run(
            [_nvcc(), *options, *includes, "-o", str(scratch), str(source)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            raise RuntimeError(f"nvcc: {(errors or ['no message'])[0]}")
        os.replace(scratch, library)
    return ctypes.CDLL(str(library))


def _flashinfer(problem: Problem) -> Call:
    import cupy

    if problem.dtype != "float32":
        raise TypeError("FlashInfer's softmax takes float32")
    library = _flashinfer_library()
    workspace = cupy.empty(FLASHINFER_WORKSPACE, cupy.uint8)

    def call(x, y) -> None:
        pointers = [ctypes.c_void_p(array.data.ptr) for array in (x, y, workspace)]
        stream = ctypes.c_void_p(cupy.cuda.get_current_stream().ptr)
        sizes = map(ctypes.c_uint, problem.shape)
        room = ctypes.c_size_t(FLASHINFER_WORKSPACE)
        if status := library.softmax(*pointers[:2], *sizes, pointers[2], room, stream):
            raise RuntimeError(f"FlashInfer's softmax returned {status}")

    return call


def _flashinfer_refuses(problem: Problem) -> str:
    return "" if problem.itemsize == 4 else "FlashInfer's softmax takes float32 alone"


# ---- all of them --------------------------------------------------------------------------------

BASELINES = {
    "torch": Baseline("PyTorch", ("torch",), _torch),
    "compile": Baseline(
        "torch.compile", ("torch", "triton"), _compile, disk_cache=True, draws=True
    ),
    "triton": Baseline(
        "Triton tutorial", ("torch", "triton"), _triton, _triton_refuses, disk_cache=True
    ),
    "liger": Baseline(
        "Liger",
        ("torch", "triton", "liger_kernel"),
        _liger,
        _liger_refuses,
        note="its kernel, with an output that is given; Liger itself allocates one",
        disk_cache=True,
    ),
    "quack": Baseline(
        "QuACK",
        ("torch", "tvm_ffi", "cutlass", "quack"),
        _quack,
        _quack_refuses,
        disk_cache=True,
    ),
    "flashinfer": Baseline(
        "FlashInfer",
        (),
        _flashinfer,
        _flashinfer_refuses,
        _flashinfer_absent,
        note="by an ordinary launch",
    ),
    "cudnn": Baseline("cuDNN", (), _cudnn_softmax, absent=lambda: "" if cudnn() else "cuDNN"),
}


# ---- compiling ahead ----------------------------------------------------------------------------

# The cache of Inductor and Triton for comparisons; separate, because the warm-up deletes from it.
CACHE = Path(tempfile.gettempdir()) / "softmax-worklog-comparison"


def use_cache() -> None:
    """Direct the compile caches of the baselines to `CACHE`; call it before they are imported."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(CACHE / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(CACHE / "triton")
    os.environ["QUACK_CACHE_DIR"] = str(CACHE / "quack")


@contextlib.contextmanager
def tuned_anew(number: int) -> Iterator[None]:
    """Hide earlier tuning results from processes started within; `number` names their own cache
    folder, which is emptied. They reuse what Triton compiled."""
    folder, before = CACHE / f"inductor-{number}", os.environ["TORCHINDUCTOR_CACHE_DIR"]
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
    for tuned in CACHE.rglob("*.best_config"):
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
            arrays = fused_baselines.empty_arrays(problem)
            with cupy.cuda.Stream(non_blocking=True) as stream:
                candidate(name, problem).run(*arrays)
                stream.synchronize()
        return ""
    except Exception as error:  # the comparison meets the error again and records it
        return f"{name} at {name_of(problem)}: {type(error).__name__}"
