"""Softmax of CuPy's arrays."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import cupy

from .launching import device
from .planning import SIZES, row_stride


def softmax(x: cupy.ndarray, axis: int = -1, out: cupy.ndarray | None = None) -> cupy.ndarray:
    """Softmax of a CuPy array along an axis, on the current stream.

    x is float32, float16 or bfloat16 (the dtype of `ml_dtypes`) of any shape. Along the last axis
    its rows may be apart, start at any element and have any length; of other strides, and along
    another axis of an array that is not contiguous, a contiguous copy is made first. `out` is a new
    array, or one of x's shape and dtype whose rows may be apart too, but along another axis must
    follow each other; it must not overlap x. A kernel is compiled when it is first needed and kept
    on disk.

    While a graph is captured `out` must be given, and x is not copied: CuPy would give a new
    array's memory to others, into which the graph then writes. A graph of few long rows keeps a
    workspace for good, 140 KB for one row on an H200.

    Raises `TypeError` for another dtype or no CuPy array, `ValueError` for an axis that there is
    not, an `out` that does not fit, a new array in a graph, and what no kernel takes, `CudaError`
    if CUDA or NVRTC refuses.
    """
    _check_array("x", x)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis = {axis} is none of {x.ndim}")
    last, inner = axis in (-1, x.ndim - 1), prod(x.shape[axis:][1:])
    with x.device:
        stride = _row_stride if last else _whole_stride
        if out is not None:
            _check_out(x, out, stride)
        copied = stride(x) is None
        copy_it = f"x has strides {x.strides}: copy it before" if copied else ""
        _check_new("give out" if out is None else copy_it)
        y = cupy.empty(x.shape, x.dtype) if out is None else out
        if x.size == 0:
            return y
        if copied:
            x = x.copy()
        cols, addresses = x.shape[axis], (x.data.ptr, y.data.ptr)
        matrix, here = (x.size // cols, cols, x.dtype.name), device(x.device.id)
        if inner > 1:
            launch = here.launch(*matrix, operation="softmax_any_axis", inner=inner)
        else:
            strides = (_row_stride(x), _row_stride(y)) if last else (cols, cols)
            starts = addresses[0] & 15, addresses[1] & 15
            launch = here.launch(*matrix, strides, starts, _workspace_of_graph)
        launch(*addresses, cupy.cuda.get_current_stream().ptr)
        return y


def _check_array(name: str, x: cupy.ndarray) -> None:
    if not isinstance(x, cupy.ndarray):
        raise TypeError(
            f"{name} is no CuPy array but {type(x).__name__}; cupy.asarray(x) makes one"
        )
    if x.dtype.name not in SIZES:
        raise TypeError(f"the kernels take {', '.join(SIZES)}, not {x.dtype}")
    if x.ndim == 0:
        raise ValueError(f"{name} has no axes")


def _check_new(what: str) -> None:
    """Refuse a new array while a graph is captured, and say what to do instead."""
    if what and cupy.cuda.get_current_stream().is_capturing():
        raise ValueError(f"a graph is captured, which keeps no new array alive; {what}")


def _check_out(x: cupy.ndarray, out: cupy.ndarray, stride: Callable) -> None:
    if not isinstance(out, cupy.ndarray) or (out.shape, out.dtype) != (x.shape, x.dtype):
        raise ValueError(f"out is no CuPy array of shape {x.shape} and {x.dtype}")
    if out.device != x.device:
        raise ValueError(f"x is on {x.device}, out on {out.device}")
    if stride(out) is None:
        raise ValueError(f"out has strides {out.strides}: its rows must be contiguous")
    if _overlap(x, out):
        raise ValueError("out overlaps x; these kernels do not work in place")


def _overlap(one: cupy.ndarray, other: cupy.ndarray) -> bool:
    first, second = _extent(one), _extent(other)
    return first[0] < second[1] and second[0] < first[1]


def _extent(array: cupy.ndarray) -> tuple[int, int]:
    """The addresses between which an array's elements are; empty where it has none."""
    if array.size == 0:
        return 0, 0
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    low, high = (sum(pick(0, step) for step in steps) for pick in (min, max))
    return array.data.ptr + low, array.data.ptr + high + array.itemsize


def _row_stride(x: cupy.ndarray) -> int | None:
    if any(stride % x.itemsize for stride in x.strides):
        return None
    return row_stride(x.shape, tuple(stride // x.itemsize for stride in x.strides))


def _whole_stride(x: cupy.ndarray) -> int | None:
    """1 where elements follow each other from a multiple of 16 bytes on."""
    return 1 if x.flags.c_contiguous and x.data.ptr % 16 == 0 else None


def _workspace_of_graph(size: int) -> tuple[int, None]:
    """Bytes that a graph clears and nobody else is given: they are never freed."""
    here = cupy.cuda.Device().id
    return device(here).zeros(size, cupy.cuda.get_current_stream().ptr), None
