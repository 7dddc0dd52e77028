"""Calls of other libraries on CuPy's arrays and stream.

Each function named `..._call` returns a call for a problem: it takes the arrays of the operation in
their order (`helpers.problem.operations`), with the numbers of the comparison
(`shapes.numbers`), and enqueues on CuPy's current stream. It neither copies nor allocates,
so that it can be captured into a CUDA graph. A library is imported when its call is made.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..problem.operations import (
    ANY_AXIS,
    BACKWARD,
    CAUSAL,
    CROSS_ENTROPY,
    CROSS_ENTROPY_BACKWARD,
    CROSS_ENTROPY_LOSS_AND_GRADIENT,
    SOFTMAX,
)
from ..problem.problem import Problem
from ..problem.shapes import SCALE
from .campaign import CACHE

Call = Callable[..., None]  # takes CuPy arrays, enqueues on CuPy's current stream

# ---- PyTorch's tensors --------------------------------------------------------------------------

# Elements whose type the interface does not know are passed as integers of their size.
STORED = {"bfloat16": "<i2", "float16": "<i2", "bool": "|u1"}


class _Memory:
    """CuPy's memory in the form that `torch.as_tensor` reads."""

    def __init__(self, array, stored: str):
        self.array = array  # kept alive
        self.__cuda_array_interface__ = {
            "version": 2,
            "shape": array.shape,
            "typestr": stored,
            "data": (array.data.ptr, False),
        }


def with_tensors(call: Call, *dtypes: str) -> Call:
    """Wrap `call` on PyTorch tensors of given dtypes as a call on CuPy arrays and CuPy's current
    stream.

    One tensor per array is made and kept, so that capturing a graph allocates nothing.
    """
    import cupy
    import torch

    tensors: dict[int, torch.Tensor] = {}

    def tensor(array, dtype: str) -> torch.Tensor:
        address = array.data.ptr
        if address not in tensors:
            stored = STORED.get(dtype) or np.dtype(dtype).str
            whole = torch.as_tensor(_Memory(array, stored), device="cuda")
            # detach: otherwise it is a view of integers, which torch.compile would trace to its
            # base.
            tensors[address] = whole.view(getattr(torch, dtype)).detach()
        return tensors[address]

    def run(*arrays) -> None:
        stream = torch.cuda.ExternalStream(cupy.cuda.get_current_stream().ptr)
        with torch.cuda.stream(stream):
            call(*map(tensor, arrays, dtypes))

    return run


def compiled(function: Callable) -> Callable:
    """A function of tensors compiled by torch.compile for one shape, autotuned."""
    import torch
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 1000
    torch._dynamo.config.accumulated_recompile_limit = 1000
    # fullgraph: an error instead of a silent fallback to eager PyTorch.
    return torch.compile(function, fullgraph=True, dynamic=False, mode="max-autotune-no-cudagraphs")


def torch_dtypes(problem: Problem) -> list[str]:
    """The PyTorch types of the arrays of a problem; a byte mask becomes a boolean one."""
    names = [argument.numpy_dtype(problem.dtype).name for argument in problem.arrays]
    return ["bool" if name == "uint8" else name for name in names]


# ---- PyTorch: formulas on tensors ---------------------------------------------------------------


def _causal(x):
    """The mask of the columns above the diagonal, for consecutive squares of scores."""
    import torch

    cols = x.shape[-1]
    return torch.ones(cols, cols, dtype=torch.bool, device=x.device).triu(1)


def eager(problem: Problem) -> Callable:
    """A function of tensors as people write it: one kernel per operation."""
    import torch

    features, never, kept = dict(problem.features), -float("inf"), {}
    aten = torch.ops.aten

    def masked(x, y, mask):
        torch.softmax((x * SCALE).masked_fill_(mask, never), -1, out=y)

    def causal(x, y):
        if "mask" not in kept:
            kept["mask"] = _causal(x)
        scores = (x * SCALE).view(-1, *kept["mask"].shape).masked_fill_(kept["mask"], never)
        torch.softmax(scores, -1, out=y.view(scores.shape))

    def loss(x, target, loss, statistics):
        loss.copy_(torch.nn.functional.cross_entropy(x, target, reduction="none"))

    def gradient_of_loss(x, target, statistics, dloss, dx):
        """The function that autograd calls, with the log-probabilities kept from the loss."""
        if x.data_ptr() not in kept:
            kept[x.data_ptr()] = torch.log_softmax(x, -1), x.new_zeros(())
        logarithms, weight = kept[x.data_ptr()]
        g = aten.nll_loss_backward(dloss.to(x.dtype), logarithms, target, None, 0, -100, weight)
        aten._log_softmax_backward_data.out(g, logarithms, -1, x.dtype, out=dx)

    def loss_and_gradient(x, target, dloss, loss, dx):
        logarithms, weight = torch.log_softmax(x, -1), x.new_zeros(())
        loss.copy_(torch.nn.functional.nll_loss(logarithms, target, reduction="none"))
        g = aten.nll_loss_backward(dloss.to(x.dtype), logarithms, target, None, 0, -100, weight)
        aten._log_softmax_backward_data.out(g, logarithms, -1, x.dtype, out=dx)

    def gradient(y, dy, dx):
        aten._softmax_backward_data.out(dy, y, -1, y.dtype, grad_input=dx)

    def gradient_of_log(y, dy, dx):
        aten._log_softmax_backward_data.out(dy, y, -1, y.dtype, out=dx)

    if problem.operation is ANY_AXIS:
        return lambda x, y: torch.softmax(x, 1, out=y)
    if problem.operation is BACKWARD:
        return gradient_of_log if features.get("LOG") else gradient
    if problem.operation is CROSS_ENTROPY:
        return loss
    if problem.operation is CROSS_ENTROPY_BACKWARD:
        return gradient_of_loss
    if problem.operation is CROSS_ENTROPY_LOSS_AND_GRADIENT:
        return loss_and_gradient
    if features.get("MASK"):
        return causal if features["MASK"] == CAUSAL else masked
    if problem.plain:
        return lambda x, y: torch.softmax(x, -1, out=y)
    if features.get("LOG"):
        return lambda x, y: torch.log_softmax(x, -1, out=y)
    if features.get("WIDE"):
        return lambda x, y: torch.softmax(x, -1, dtype=torch.float32, out=y)
    return lambda x, y, bias: torch.softmax(torch.add(bias, x, alpha=SCALE), -1, out=y)


def formula(problem: Problem) -> Callable:
    """The same as one expression for torch.compile. The copy becomes the store of the last kernel;
    a returned result would be allocated by each call."""
    import torch

    features, never = dict(problem.features), -float("inf")

    def softmax(x, y):
        y.copy_(torch.softmax(x, -1))

    def masked(x, y, mask):
        y.copy_(torch.softmax(torch.where(mask, never, x * SCALE), -1))

    def causal(x, y):
        row = torch.arange(x.shape[0], device=x.device)[:, None] % x.shape[1]
        hidden = torch.arange(x.shape[1], device=x.device)[None] > row
        y.copy_(torch.softmax(torch.where(hidden, never, x * SCALE), -1))

    def logarithm(x, y):
        y.copy_(torch.log_softmax(x, -1))

    def wide(x, y):
        y.copy_(torch.softmax(x, -1, dtype=torch.float32))

    def biased(x, y, bias):
        y.copy_(torch.softmax(x * SCALE + bias, -1))

    def any_axis(x, y):
        y.copy_(torch.softmax(x, 1))

    def gradient(y, dy, dx):
        g, kept = dy.float(), y.float()
        dx.copy_(kept * (g - (kept * g).sum(-1, keepdim=True)))

    def gradient_of_log(y, dy, dx):
        g = dy.float()
        dx.copy_(g - torch.exp(y.float()) * g.sum(-1, keepdim=True))

    def loss(x, target, loss, statistics):
        loss.copy_(torch.nn.functional.cross_entropy(x.float(), target, reduction="none"))

    def gradient_of_loss(x, target, lse, dloss, dx):
        here = torch.arange(x.shape[1], device=x.device)[None] == target[:, None]
        dx.copy_((torch.exp(x.float() - lse[:, None]) - here.float()) * dloss[:, None])

    def loss_and_gradient(x, target, dloss, loss, dx):
        logarithms = torch.log_softmax(x.float(), -1)
        loss.copy_(torch.nn.functional.nll_loss(logarithms, target, reduction="none"))
        here = torch.arange(x.shape[1], device=x.device)[None] == target[:, None]
        dx.copy_((torch.exp(logarithms) - here.float()) * dloss[:, None])

    if problem.plain:
        return softmax
    if problem.operation is SOFTMAX:
        if features.get("MASK"):
            return causal if features["MASK"] == CAUSAL else masked
        return logarithm if features.get("LOG") else wide if features.get("WIDE") else biased
    if problem.operation is BACKWARD:
        return gradient_of_log if features.get("LOG") else gradient
    others = {ANY_AXIS: any_axis, CROSS_ENTROPY: loss, CROSS_ENTROPY_BACKWARD: gradient_of_loss}
    return {**others, CROSS_ENTROPY_LOSS_AND_GRADIENT: loss_and_gradient}[problem.operation]


def eager_call(problem: Problem) -> Call:
    return with_tensors(eager(problem), *torch_dtypes(problem))


def compiled_call(problem: Problem) -> Call:
    call = compiled(formula(problem))
    if problem.operation is CROSS_ENTROPY_BACKWARD:
        call = _given_lse(call)
    return with_tensors(call, *torch_dtypes(problem))


def _given_lse(call: Callable) -> Callable:
    """A gradient from one number per row, lse, whose tensor the first call makes before anything is
    timed. It is less precise at large logits, and not slower than from two numbers."""
    lse = {}

    def given(x, target, statistics, dloss, dx) -> None:
        key = statistics.data_ptr()
        if key not in lse:
            lse[key] = _summed(statistics)
        call(x, target, lse[key], dloss, dx)

    return given


def _summed(statistics):
    """The sum of the statistics per row, in CuPy's memory: PyTorch may reuse the memory of a tensor
    that is freed during a capture, while replays of the graph still write to it."""
    import cupy
    import torch

    found = torch.as_tensor(cupy.empty(len(statistics), cupy.float32), device="cuda")
    return torch.sum(statistics, -1, out=found)


# ---- Triton -------------------------------------------------------------------------------------


def liger_call(problem: Problem) -> Call:
    """Its kernels for softmax and its gradient, with an output that is given."""
    liger = importlib.import_module("liger_kernel.ops.softmax")
    rows, cols = problem.shape
    width, warps = liger.calculate_settings(cols)
    sizes = {"BLOCK_SIZE": width, "num_warps": warps}
    forward = liger._softmax_single_block_forward_kernel[(rows,)]
    backward = liger._softmax_single_block_backward_kernel[(rows,)]

    def softmax(x, y) -> None:
        forward(y, cols, x, cols, cols, **sizes)

    def gradient(y, dy, dx) -> None:
        backward(dy, cols, y, cols, dx, cols, cols, **sizes)

    call = gradient if problem.operation is BACKWARD else softmax
    return with_tensors(call, *torch_dtypes(problem))


def liger_loss_call(problem: Problem) -> Call:
    """Its kernel for the loss alone, or with the gradient, by which it overwrites the logits: those
    are copied to dx by the first call, and each later call works on what is there."""
    import triton

    liger = importlib.import_module("liger_kernel.ops.cross_entropy")
    rows, cols = problem.shape
    width = min(liger.MAX_FUSED_SIZE, triton.next_power_of_2(cols))
    kernel, copied = liger.liger_cross_entropy_kernel[(rows,)], set()
    gradient = problem.operation is CROSS_ENTROPY_LOSS_AND_GRADIENT

    def call(x, target, *others) -> None:
        loss, logits = others[gradient], others[-1] if gradient else x
        if gradient and logits.data_ptr() not in copied:
            copied.add(logits.data_ptr())
            logits.copy_(x)
        kernel(
            *(logits, cols, target, 1, None, loss, None, 1, None, 0, None, 0),
            *(cols, rows, rows, 0.0, -100),  # columns; counted rows, their weight; ignored index
            lse_square_scale=0.0,
            label_smoothing=0.0,
            reduction="none",
            softcap=None,
            RETURN_Z_LOSS=False,
            RETURN_TOKEN_ACCURACY=False,
            RETURN_PREDICTED_TOKENS=False,
            BLOCK_SIZE=width,
            HAS_WEIGHT=False,
            HAS_SOFTCAPPING=False,
            HAS_GRADIENTS=gradient,
            num_warps=32,
        )

    return with_tensors(call, *torch_dtypes(problem))


def triton_call(problem: Problem) -> Call:
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


# ---- QuACK --------------------------------------------------------------------------------------


def quack_call(module: str, function: str, order: Callable) -> Callable[[Problem], Call]:
    """A QuACK function, called on the arrays in the order that `order` returns."""

    def make(problem: Problem) -> Call:
        # The package has functions of the modules' names, which hide the modules.
        called = getattr(importlib.import_module(f"quack.{module}"), function)
        return with_tensors(lambda *tensors: called(*order(*tensors)), *torch_dtypes(problem))

    return make


def loss_of_quack(x, target, loss, statistics) -> tuple:
    """It writes only lse, into the first half of the statistics, which are not compared."""
    return x, target, None, loss, statistics.reshape(-1)[: len(x)], None, None


def loss_and_gradient_of_quack(x, target, dloss, loss, dx) -> tuple:
    return x, target, None, loss, None, dx, None


def quack_gradient_call(problem: Problem) -> Call:
    called = importlib.import_module("quack.cross_entropy").cross_entropy_bwd_out

    def gradient(x, target, lse, dloss, dx) -> None:
        called(x, target, dloss, lse, dx)

    return with_tensors(_given_lse(gradient), *torch_dtypes(problem))


# ---- cuDNN --------------------------------------------------------------------------------------

NCHW, ACCURATE, LOGARITHM, INSTANCE, CHANNEL = 0, 1, 2, 0, 1  # cuDNN's constants
ELEMENTS = {"float32": 0, "float16": 2, "bfloat16": 9}


def folders(package: str, *below: str) -> list[Path]:
    """The existing folders of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    found = [Path(place, *below) for place in (spec and spec.submodule_search_locations) or ()]
    return [folder for folder in found if folder.is_dir()]


@functools.cache
def cudnn() -> ctypes.CDLL | None:
    """The library of PyTorch or nvidia-cudnn, otherwise the system's; None if there is none."""
    packaged = [str(folder / "libcudnn.so.9") for folder in folders("nvidia", "cudnn", "lib")]
    for name in (*packaged, "libcudnn.so.9"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@functools.cache
def cudnn_handle() -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    call_cudnn("cudnnCreate", ctypes.byref(handle))
    return handle


def call_cudnn(function: str, *arguments) -> None:
    status = getattr(cudnn(), function)(*arguments)
    if status:
        raise RuntimeError(f"{function} returned status {status}")


def cudnn_call(
    function: str, algorithm: int, mode: int, sizes: Sequence[int], *dtypes: str
) -> Call:
    """A softmax function of cuDNN on matrices of these NCHW sizes, its inputs and then its output:
    `ACCURATE`, which subtracts the maximum, or `LOGARITHM`, over a whole image (`INSTANCE`) or its
    channels."""
    import cupy

    one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
    described = []
    for dtype in dtypes:
        matrix = ctypes.c_void_p()  # a few bytes per shape that are never freed
        call_cudnn("cudnnCreateTensorDescriptor", ctypes.byref(matrix))
        call_cudnn("cudnnSetTensor4dDescriptor", matrix, NCHW, ELEMENTS[dtype], *sizes)
        described.append(matrix)

    def call(*arrays) -> None:
        handle, stream = cudnn_handle(), cupy.cuda.get_current_stream().ptr
        call_cudnn("cudnnSetStream", handle, ctypes.c_void_p(stream))
        pointers = [ctypes.c_void_p(array.data.ptr) for array in arrays]
        (*read, written) = zip(described, pointers, strict=True)
        inputs = [part for pair in read for part in pair]
        call_cudnn(function, handle, algorithm, mode, one, *inputs, zero, *written)

    return call


def cudnn_softmax_call(function: str) -> Callable[[Problem], Call]:
    """The same for a problem: a row is one image of `cols` channels and one pixel."""

    def make(problem: Problem) -> Call:
        images = (problem.outer, problem.cols, problem.inner, 1)
        mode = CHANNEL if problem.inner > 1 else INSTANCE
        algorithm = LOGARITHM if dict(problem.features).get("LOG") else ACCURATE
        return cudnn_call(function, algorithm, mode, images, *torch_dtypes(problem))

    return make


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


def nvcc() -> str | None:
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    places = [Path(home, "bin") for home in homes if home]
    return shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(map(str, places)))


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
            [nvcc(), *options, *includes, "-o", str(scratch), str(source)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            raise RuntimeError(f"nvcc: {(errors or ['no message'])[0]}")
        os.replace(scratch, library)
    return ctypes.CDLL(str(library))


def flashinfer_call(problem: Problem) -> Call:
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
