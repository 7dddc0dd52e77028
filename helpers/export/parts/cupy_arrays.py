"""Softmax for CuPy arrays."""

from __future__ import annotations

from math import prod  # [best]

import cupy

from .launching import Device, device
from .layouts import row_stride
from .planning import SIZES


def softmax(x: cupy.ndarray, axis: int = -1, out: cupy.ndarray | None = None) -> cupy.ndarray:
    """Return softmax of a CuPy array along an axis, computed on the current stream.

    x is float32, float16 or bfloat16 (the dtype of `ml_dtypes`).
    It has any shape. Along the last axis its rows may be strided, unaligned and of any  # [best]
    length. Another array that is not contiguous is copied first.  # [best]
    The axis is the last; `plan` says which rows the kernel supports.  # [not best]
    An array whose rows have no common stride is copied first.  # [not best]
    `out` has the shape and dtype of x and must not overlap x; its rows may be strided along the
    last axis and must be contiguous otherwise. A kernel is compiled when it is first needed and
    then kept on disk.

    While a graph is captured, `out` is required and x is not copied: CuPy would hand out the memory
    of a new array again while the graph still writes to it.
    A graph with few long rows keeps a workspace forever, 140 KB on an H200.  # [workspace]

    Raises `TypeError` for another dtype and an argument that is not a CuPy array, `ValueError` for
    an axis out of range, an invalid `out`, a new array in a graph, and an array that no kernel
    accepts, and `CudaError`.
    """
    _check_array("x", x)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis = {axis} is out of range for {x.ndim} dimensions")
    if axis not in (-1, x.ndim - 1):  # [not best]
        raise ValueError(f"the kernel of this file takes the last axis, got axis = {axis}")
    last, inner = axis in (-1, x.ndim - 1), prod(x.shape[axis:][1:])  # [best]
    with x.device:
        stride = _row_stride  # [not best]
        stride = _row_stride if last else _whole_stride  # [best]
        if out is not None:
            _check_like("out", out, x.shape, (x.dtype.name,), x)
            if stride(out) is None:
                raise ValueError(f"out must have contiguous rows, got strides {out.strides}")
            _check_no_overlap(out, x)
        copied = stride(x) is None
        _check_capture(out is None, f"copy x, whose strides are {x.strides}" if copied else "")
        y = cupy.empty(x.shape, x.dtype) if out is None else out
        if x.size == 0:
            return y
        if copied:
            x = x.copy()
        cols, addresses = x.shape[axis], (x.data.ptr, y.data.ptr)
        matrix, here = (x.size // cols, cols, x.dtype.name), device(x.device.id)
        strides = _row_stride(x), _row_stride(y)  # [not best]
        strides = (_row_stride(x), _row_stride(y)) if last else (cols, cols)  # [best]
        starts = addresses[0] & 15, addresses[1] & 15
        launch = here.launch(*matrix, strides, starts)  # [not best]
        launch = here.launch(*matrix, strides, starts, inner)  # [best]
        launch(cupy.cuda.get_current_stream().ptr, *addresses)
        return y


def _graph_workspace(device: Device, size: int) -> tuple[int, None]:  # [workspace]
    """Allocate bytes for a graph, which clears them at each replay; they are never freed."""
    return device.zeros(size, cupy.cuda.get_current_stream().ptr), None


Device.graph_workspace = _graph_workspace  # [workspace]


def _row_stride(x: cupy.ndarray) -> int | None:
    if any(stride % x.itemsize for stride in x.strides):
        return None
    return row_stride(x.shape, tuple(stride // x.itemsize for stride in x.strides))


def _whole_stride(x: cupy.ndarray) -> int | None:  # [best]
    """Return 1 if x is contiguous and aligned to 16 bytes, else None."""
    return 1 if x.flags.c_contiguous and x.data.ptr % 16 == 0 else None


def _check_array(name: str, x: cupy.ndarray) -> None:
    if not isinstance(x, cupy.ndarray):
        raise TypeError(
            f"{name} must be a CuPy array, got {type(x).__name__}; cupy.asarray({name}) makes one"
        )
    if x.dtype.name not in SIZES:
        raise TypeError(f"dtype must be one of {', '.join(SIZES)}, got {x.dtype}")
    if x.ndim == 0:
        raise ValueError(f"{name} must have at least one dimension")


def _check_like(name: str, array, shape: tuple, dtypes: tuple[str, ...], x: cupy.ndarray) -> None:
    if not isinstance(array, cupy.ndarray) or array.dtype.name not in dtypes:
        what = getattr(array, "dtype", type(array).__name__)
        raise TypeError(f"{name} must be a CuPy array of {' or '.join(dtypes)}, got {what}")
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    if array.device != x.device:
        raise ValueError(f"{name} must be on {x.device}, like the first array, not {array.device}")


def _check_no_overlap(out: cupy.ndarray, *others: cupy.ndarray) -> None:
    first = _extent(out)
    for low, high in map(_extent, others):
        if first[0] < high and low < first[1]:
            raise ValueError("an output must not overlap another array")


def _check_capture(new_output: bool, otherwise: str) -> None:
    """Reject a new array while a graph is captured, and say what to do instead."""
    what = "pass out" if new_output else otherwise
    if what and cupy.cuda.get_current_stream().is_capturing():
        raise ValueError(f"a captured graph does not keep new arrays alive: {what}")


def _extent(array: cupy.ndarray) -> tuple[int, int]:
    """Return the range of addresses of an array's elements; empty if it has none."""
    if array.size == 0:
        return 0, 0
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    low, high = (sum(pick(0, step) for step in steps) for pick in (min, max))
    return array.data.ptr + low, array.data.ptr + high + array.itemsize
