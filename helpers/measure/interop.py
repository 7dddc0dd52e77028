"""CuPy's arrays and stream for other libraries: PyTorch tensors, cuDNN pointers.

Calls neither copy nor allocate, so that they can be captured into a CUDA graph.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

Call = Callable[..., None]  # takes CuPy arrays, enqueues on CuPy's current stream

# ---- PyTorch and what takes its tensors ---------------------------------------------------------

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
