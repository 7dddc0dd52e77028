"""Kernels `k` from pieces of source, run on numpy arrays in place: on the machine or on a GPU."""

import struct
from collections.abc import Callable

import cupy
import numpy as np

from helpers.simt import simulate

FILE = '#line 1 "kernels/x.cu"\n'
Run = Callable[..., None]


def on_simt(code: str, grid, block, *args, shared: int = 0, options: tuple[str, ...] = ()) -> None:
    trace = simulate(cupy.RawKernel(FILE + code, "k", options), grid, block, args, shared)
    assert not trace.findings, str(trace.findings)


def on_gpu(code: str, grid, block, *args, shared: int = 0, options: tuple[str, ...] = ()) -> None:
    arrays = {id(a): cupy.array(a) for a in args if isinstance(a, np.ndarray) and a.ndim}
    sizes = [(size,) if isinstance(size, int) else size for size in (grid, block)]
    values = tuple(arrays.get(id(a), a) for a in args)
    cupy.RawKernel(code, "k", options)(*sizes, values, shared_mem=shared)
    for array in args:
        if id(array) in arrays and array.flags.writeable:
            array[...] = arrays[id(array)].get()


def small_kernel(body: str, parameters: str = "int* y, int n", before: str = "") -> str:
    """Source of a kernel `k`; `i` is its thread's number in a one-dimensional launch."""
    return (
        f'{before}\nextern "C" __global__ void k({parameters})\n{{\n'
        f"    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n{body}\n}}\n"
    )


def kernel(body: str, parameters: str = "float* y, const float* x, int n", before="") -> str:
    """Source of a kernel `k`; `t` is the thread in its block, `i` in the launch."""
    return (
        f'{before}\nextern "C" __global__ void k({parameters})\n{{\n'
        "    const int t = threadIdx.x;\n"
        f"    const int i = blockIdx.x * blockDim.x + t;\n{body}\n}}\n"
    )


def numbers(*shape: int) -> np.ndarray:
    """Small whole numbers, whose sums are exact in fp32."""
    return np.random.default_rng(len(shape)).integers(-50, 50, shape).astype(np.float32)


def floats(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def rounded(number: float) -> float:
    """To fp32 and back."""
    return struct.unpack("<f", struct.pack("<f", number))[0]
