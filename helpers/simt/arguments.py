"""What a launch is given: sizes, checked as CUDA would, and arguments, laid out as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

import numpy as np

from .geometry import Shape
from .hardware import (
    BLOCK_SHARED_BYTES,
    MAX_BLOCK,
    MAX_GRID,
    MAX_THREADS,
    STATIC_SHARED_BYTES,
)
from .instructions import PtxKernel
from .memory.global_memory import GlobalMemory, rows_apart
from .memory.shared import SharedMemory
from .ptx_types import UNSIGNED


def launch_shape(shape: int | Sequence[int], what: str) -> tuple[int, int, int]:
    """A grid or block as three sizes. Raises `ValueError` if one is outside CUDA's limits."""
    sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    limits = MAX_GRID if what == "grid" else MAX_BLOCK
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{what} {shape!r} must have one to three sizes")
    sizes = tuple(int(size) for size in sizes) + (1,) * (3 - len(sizes))
    for size, limit in zip(sizes, limits, strict=True):
        if not 1 <= size <= limit:
            raise ValueError(f"{what} {shape!r} is outside CUDA's limits of 1 to {limits}")
    return sizes


def check_threads(block: tuple[int, int, int], threads: int) -> None:
    """Raises `ValueError` if a block has more threads than CUDA allows."""
    if threads > MAX_THREADS:
        raise ValueError(f"block {block} has {threads} threads; CUDA allows {MAX_THREADS}")


def check_shared(name: str, shared: SharedMemory) -> None:
    """Raises `ValueError` for more shared memory than a block can have."""
    if shared.static_bytes > STATIC_SHARED_BYTES or shared.bytes > BLOCK_SHARED_BYTES:
        dynamic = shared.bytes - shared.static_bytes
        raise ValueError(
            f"{name} wants {shared.static_bytes} bytes of static, {dynamic} of dynamic shared "
            f"memory; CUDA allows {STATIC_SHARED_BYTES >> 10} KB static, and "
            f"{BLOCK_SHARED_BYTES >> 10} KB in all on an H200"
        )


def check_grid(name: str, shape: Shape, cooperative: bool, shared_bytes: int) -> None:
    """Raises `ValueError` for a grid that is not whole clusters, or that cannot run at once
    although it must."""
    if any(blocks % size for blocks, size in zip(shape.grid, shape.cluster, strict=True)):
        raise ValueError(
            f"{name}: grid {shape.grid} is not a multiple of the cluster {shape.cluster}"
        )
    resident = shape.resident(shared_bytes)
    if cooperative and shape.blocks > resident:
        raise ValueError(
            f"a cooperative launch of {shape.blocks} blocks of {shape.threads} threads and "
            f"{shared_bytes} bytes of shared memory does not fit on an H200 at once: {resident} do"
        )


def parameter_bytes(
    kernel: PtxKernel, args: Sequence, names: Sequence[str], memory: GlobalMemory
) -> bytes:
    """Lay the arguments out as the kernel's parameter space and map the arrays. The rows of a
    matrix x may be apart where x_stride is one of the names.

    Raises `TypeError` for an argument that does not fit its parameter.
    """
    if len(args) != len(kernel.parameters):
        raise TypeError(
            f"{kernel.name} takes {len(kernel.parameters)} arguments, {len(args)} were given"
        )
    end = max((p.offset + p.size for p in kernel.parameters), default=0)
    space = bytearray(end)
    for number, (parameter, value) in enumerate(zip(kernel.parameters, args, strict=True)):
        name = names[number] if number < len(names) else f"argument {number}"
        if isinstance(value, np.ndarray) and value.ndim:
            if not value.flags.c_contiguous and not (
                f"{name}_stride" in names and rows_apart(value)
            ):
                raise TypeError(f"{name} is not C-contiguous; a kernel ignores strides")
            encoded = np.array([memory.allocate(value, name)], np.int64)
        elif getattr(value, "dtype", np.dtype(int)).kind == "V":  # a struct by value
            encoded = np.frombuffer(value.tobytes(), np.uint8)
        elif isinstance(value, np.float16) and parameter.size == 2:  # __half, a struct in PTX
            encoded = np.array([value])
        elif parameter.size not in UNSIGNED:
            raise TypeError(f"{name} is a struct of {parameter.size} bytes, not {value!r}")
        elif parameter.type[0] == "f":
            encoded = np.array([value], f"float{8 * parameter.size}")
        else:
            number = value.item() if isinstance(value, np.generic) else value
            encoded = np.array([index(number)]).astype(f"int{8 * parameter.size}")
        if encoded.nbytes != parameter.size:
            raise TypeError(f"{name} has {encoded.nbytes} bytes, the kernel takes {parameter.size}")
        space[parameter.offset : parameter.offset + parameter.size] = encoded.tobytes()
    return bytes(space)
