"""Softmax of CuPy's arrays."""

from __future__ import annotations

import cupy

from .launching import device
from .planning import SIZES, row_stride


def softmax(x: cupy.ndarray, axis: int = -1, out: cupy.ndarray | None = None) -> cupy.ndarray:
    """Softmax of a CuPy array along its last axis, on the current stream.

    x is float32, float16 or bfloat16 (the dtype of `ml_dtypes`) of any shape; its rows may be
    apart, start at any element and have any length. Of other strides a contiguous copy is made
    first. `out` is a new array, or one of x's shape and dtype whose rows may be apart too; it must
    not overlap x. A kernel is compiled when it is first needed and kept on disk.

    While a graph is captured `out` must be given, and x is not copied: CuPy would give a new
    array's memory to others, into which the graph then writes. A graph of few long rows keeps a
    workspace for good, 140 KB for one row on an H200.

    Raises `TypeError` for another dtype or no CuPy array, `ValueError` for another axis, an array
    without axes, an `out` that does not fit, a new array in a graph, and what no kernel takes,
    `CudaError` if CUDA or NVRTC refuses.
    """
    if not isinstance(x, cupy.ndarray):
        raise TypeError(f"x is no CuPy array but {type(x).__name__}; cupy.asarray(x) makes one")
    if x.dtype.name not in SIZES:
        raise TypeError(f"the kernels take {', '.join(SIZES)}, not {x.dtype}")
    if x.ndim == 0 or axis not in (-1, x.ndim - 1):
        raise ValueError(f"axis = {axis} of {x.ndim} is not the last; move it: cupy.moveaxis")
    with x.device:
        if out is not None:
            _check_out(x, out)
        stream, copied = cupy.cuda.get_current_stream(), _row_stride(x) is None
        if (out is None or copied) and stream.is_capturing():
            what = "give out" if out is None else f"x has strides {x.strides}: copy it before"
            raise ValueError(f"a graph is captured, which keeps no new array alive; {what}")
        y = cupy.empty(x.shape, x.dtype) if out is None else out
        if x.size == 0:
            return y
        if copied:
            x = cupy.ascontiguousarray(x)
        cols, addresses = x.shape[-1], (x.data.ptr, y.data.ptr)
        matrix = x.size // cols, cols, x.dtype.name, (_row_stride(x), _row_stride(y))
        launch = device(x.device.id).launch(*matrix, addresses, _workspace_of_graph)
        launch(*addresses, stream.ptr)
        return y


def _check_out(x: cupy.ndarray, out: cupy.ndarray) -> None:
    if not isinstance(out, cupy.ndarray) or (out.shape, out.dtype) != (x.shape, x.dtype):
        raise ValueError(f"out is no CuPy array of shape {x.shape} and {x.dtype}")
    if out.device != x.device:
        raise ValueError(f"x is on {x.device}, out on {out.device}")
    if _row_stride(out) is None:
        raise ValueError(f"out has strides {out.strides}: its rows must be contiguous")
    first, second = _extent(x), _extent(out)
    if first[0] < second[1] and second[0] < first[1]:
        raise ValueError("out overlaps x; these kernels do not work in place")


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


def _workspace_of_graph(size: int) -> tuple[int, None]:
    """Bytes that a graph clears and nobody else is given: they are never freed."""
    here = cupy.cuda.Device().id
    return device(here).zeros(size, cupy.cuda.get_current_stream().ptr), None
