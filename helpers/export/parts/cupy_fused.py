"""Fused and related operations for CuPy arrays."""

from __future__ import annotations

import operator
from typing import NamedTuple

import cupy

from .broadcasting import broadcasts, diagonal_of, rows_of
from .cupy_arrays import _check_array, _check_capture, _check_no_overlap, _extent
from .launching import device


def log_softmax(x: cupy.ndarray, axis: int = -1, out: cupy.ndarray | None = None) -> cupy.ndarray:
    """Return the logarithm of softmax along the last axis of a CuPy array. A row has 1 KB or more
    and consists of whole packs of 16 bytes. Otherwise this is like `softmax`."""
    _check_array("x", x)
    if axis in (-1, x.ndim - 1):
        return scaled_masked_softmax(x, log=True, out=out)
    raise ValueError(f"log_softmax supports only the last of {x.ndim} axes, got axis = {axis}")


def scaled_masked_softmax(
    x: cupy.ndarray,
    mask: cupy.ndarray | None = None,
    *,
    scale: float = 1.0,
    bias: cupy.ndarray | None = None,
    is_causal: bool = False,
    diagonal: int = 0,
    log: bool = False,
    zero_masked_rows: bool = False,
    dropout_p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    dtype: str | None = None,
    out: cupy.ndarray | None = None,
) -> cupy.ndarray:
    """Return softmax of scale * x + bias along the last axis, without masked elements, in one pass.

    mask is bool, True for elements to hide; bias has the dtype of x. Both broadcast to the shape of
    x, without a copy for up to four axes whose last is that of x: one mask of shape (batch, 1,
    queries, keys) serves all heads. `is_causal` hides elements above a diagonal of the last two
    axes, as cupy.tril(x, diagonal) does, and excludes a mask: with keys - queries, the last query
    sees the last key. `log` returns the logarithm; with dtype="float32" the result for 16-bit x is
    float32. Each element is dropped with probability `dropout_p`, and the others are divided by
    1 - dropout_p; `softmax_backward` draws the same elements for the same seed and offset. A fully
    masked row gives NaN, or 0 with `zero_masked_rows`, which excludes `log`.

    A row has 1 KB or more and consists of whole packs of 16 bytes; the GPU has compute capability
    9.0 or newer. Copies, and restrictions in a graph, are those of `softmax`.

    Raises `TypeError` for another dtype, an argument that is not a CuPy array and a seed that is
    not an integer, and `ValueError` for shapes that do not broadcast, a diagonal other than 0
    without `is_causal`, a seed or offset outside 0 to 2**64 - 1, an invalid `out`, a new array in a
    graph, and rows that no kernel accepts.
    """
    _check_array("x", x)
    wide = dtype is not None and cupy.dtype(dtype) != x.dtype
    if wide and cupy.dtype(dtype) != cupy.float32:
        raise ValueError(f"dtype must be float32 or that of x, {x.dtype}, got {dtype}")
    if log and zero_masked_rows:
        raise ValueError("log and zero_masked_rows exclude each other: the logarithm of 0 is -inf")
    numbers = {"scale": float(scale)} | _dropout_numbers(dropout_p, seed, offset)
    with x.device:
        arrays = [_whole(x), *_mask(mask, is_causal, diagonal, x, numbers)]
        if bias is not None:
            arrays.append(_expanded("bias", bias, x, (x.dtype.name,), numbers))
        features = {"MASK": mask is not None or 2 * is_causal, "BIAS": bias is not None, "LOG": log}
        features |= {"WIDE": wide, "DROPOUT": dropout_p > 0, "ZERO": zero_masked_rows}
        y = _output(out, x.shape, cupy.float32 if wide else x.dtype, arrays, (x, mask, bias))
        if y.size:
            _run("scaled_softmax", arrays[0], y, features, numbers)
        return y


def softmax_backward(
    y: cupy.ndarray,
    dy: cupy.ndarray,
    mask: cupy.ndarray | None = None,
    *,
    is_causal: bool = False,
    diagonal: int = 0,
    scale: float = 1.0,
    log: bool = False,
    from_x: bool = False,
    dropout_p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    out: cupy.ndarray | None = None,
) -> cupy.ndarray:
    """Return the gradient with respect to x of y = softmax(scale * x) along the last axis, or of
    its logarithm if `log`, given dy, the gradient with respect to the result after dropout.

    y and dy have the same shape and dtype. With `from_x`, y is the argument of softmax instead:
    scale * x. mask, is_causal, diagonal, dropout_p, seed and offset are those that
    `scaled_masked_softmax` was called with. Without `from_x`, y is 0 where it was masked, and need
    not be masked again; but what `is_causal` hides is not read. The logarithm takes no mask: set
    its gradient to 0 there. With `from_x`, dropout or `is_causal`, or a mask, a row consists of
    whole packs of 16 bytes, up to a maximum length; else it may have any length. Raises what
    `scaled_masked_softmax` raises.
    """
    _check_array("y", y)
    _check_like("dy", dy, y.shape, (y.dtype.name,), y)
    numbers = {"scale": float(scale)} | _dropout_numbers(dropout_p, seed, offset)
    with y.device:
        arrays = [_whole(y), _whole(dy), *_mask(mask, is_causal, diagonal, y, numbers)]
        dx = _output(out, y.shape, y.dtype, arrays, (y, dy, mask))
        numbers["dx"] = dx
        features = {"LOG": log, "FROM_X": from_x, "DROPOUT": dropout_p > 0}
        features["MASK"] = mask is not None or 2 * is_causal
        if dx.size:
            _run("softmax_backward", *arrays[:2], features, numbers)
        return dx


class Losses(NamedTuple):
    """The result of `cross_entropy`, in float32."""

    loss: cupy.ndarray  # the shape of target
    statistics: cupy.ndarray  # (..., 2): the row's maximum m, and log(sum(exp(x - m)))

    @property
    def lse(self) -> cupy.ndarray:
        """log(sum(exp(x))) of each row: the sum of its statistics, as a new array."""
        return self.statistics.sum(axis=-1)


def cross_entropy(
    x: cupy.ndarray,
    target: cupy.ndarray,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    out: tuple[cupy.ndarray, cupy.ndarray] | None = None,
) -> Losses:
    """Return the cross-entropy of each row of logits x with its target class, in float32, and two
    statistics per row that `cross_entropy_backward` needs.

    target is int64 and has the shape of x without the last axis. The loss is that of torch's
    cross_entropy without reduction, plus z_loss * lse**2: a row whose target is `ignore_index` has
    loss 0, and labels may be smoothed. A target that is not a class gives NaN. Rows may have any
    length and alignment. `out` are the arrays for loss and statistics.

    Raises `TypeError` for another dtype and an argument that is not a CuPy array, and `ValueError`
    for another shape, an invalid `out`, a new array in a graph, and rows without columns.
    """
    options = _loss_numbers(x, target, ignore_index, label_smoothing, z_loss)
    with x.device:
        arrays = [_contiguous(x), _contiguous(target)]
        _check_copies(out, arrays, (x, target))
        shapes = {"loss": target.shape, "statistics": (*target.shape, 2)}
        loss, statistics = out or (cupy.empty(shape, cupy.float32) for shape in shapes.values())
        if out is not None:
            _check_output("statistics", statistics, shapes["statistics"], "float32", x, target)
            _check_output("loss", loss, target.shape, "float32", x, target, statistics)
        if x.size:
            given = {"loss": loss, "statistics": statistics} | options
            _run("cross_entropy", *arrays, {}, given)
        return Losses(loss, statistics)


def cross_entropy_backward(
    x: cupy.ndarray,
    target: cupy.ndarray,
    statistics: cupy.ndarray,
    dloss: cupy.ndarray,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    out: cupy.ndarray | None = None,
) -> cupy.ndarray:
    """Return the gradient with respect to x of the losses of `cross_entropy`, given its
    `statistics` and dloss, the gradient with respect to each loss: float32, in the shape of target.
    `out` may be x itself, which overwrites the logits. Raises what `cross_entropy` raises."""
    options = _loss_numbers(x, target, ignore_index, label_smoothing, z_loss)
    if getattr(statistics, "shape", None) == target.shape:
        raise ValueError(
            "cross_entropy_backward needs both statistics per row, of shape "
            f"{(*target.shape, 2)}, as cross_entropy returns them, not their rounded sum lse"
        )
    _check_like("statistics", statistics, (*target.shape, 2), ("float32",), x)
    _check_like("dloss", dloss, target.shape, ("float32",), x)
    with x.device:
        given = (x, target, statistics, dloss)
        arrays = [_contiguous(array) for array in given]
        _check_copies(out, arrays, given)
        dx = _gradient_of(x, out, given)
        if x.size:
            named = {"statistics": arrays[2], "dloss": arrays[3], "dx": dx} | options
            _run("cross_entropy_backward", *arrays[:2], {}, named)
        return dx


def cross_entropy_with_gradient(
    x: cupy.ndarray,
    target: cupy.ndarray,
    dloss: cupy.ndarray,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    out: tuple[cupy.ndarray, cupy.ndarray] | None = None,
) -> tuple[cupy.ndarray, cupy.ndarray]:
    """Return the loss of each row, as `cross_entropy` does, and the gradient with respect to x, as
    `cross_entropy_backward` does, from one read of x. `out` are the arrays for both; the second may
    be x itself. Raises what these raise, and `Refused` for rows that no cluster of blocks can
    hold."""
    options = _loss_numbers(x, target, ignore_index, label_smoothing, z_loss)
    _check_like("dloss", dloss, target.shape, ("float32",), x)
    with x.device:
        given = (x, target, dloss)
        arrays = [_contiguous(array) for array in given]
        _check_copies(out, arrays, given)
        loss, dx = out or (cupy.empty(target.shape, cupy.float32), None)
        dx = _gradient_of(x, dx, given)
        _check_output("loss", loss, target.shape, "float32", *given, dx)
        if x.size:
            named = {"dloss": arrays[2], "loss": loss, "dx": dx} | options
            _run("cross_entropy_loss_and_gradient", *arrays[:2], {}, named)
        return loss, dx


# ---- arguments and launches ----------------------------------------------------------------------


def _run(
    operation: str, first: cupy.ndarray, second: cupy.ndarray, features: dict, given: dict
) -> None:
    """Launch the kernel for the rows of `first`; it takes the addresses of these two arrays first,
    and those and the numbers of `given` by name."""
    cols = first.shape[-1]
    matrix = first.size // cols, cols, first.dtype.name
    enabled = tuple((name, int(value)) for name, value in features.items())
    options = {"operation": operation, "features": enabled, "given": tuple(given)}
    launch = device(first.device.id).launch(*matrix, **options)
    values = (v.data.ptr if isinstance(v, cupy.ndarray) else v for v in given.values())
    stream = cupy.cuda.get_current_stream()
    launch(first.data.ptr, second.data.ptr, stream.ptr, *values)


def _gradient_of(x: cupy.ndarray, out, given: tuple) -> cupy.ndarray:
    """Return `out`, which may be x, the first of the arrays that were `given`, or a new array."""
    if out is None:
        return cupy.empty(x.shape, x.dtype)
    same = isinstance(out, cupy.ndarray) and _extent(out) == _extent(x) and x.flags.c_contiguous
    _check_output("out", out, x.shape, x.dtype.name, *given[same:])
    return out


def _whole(x: cupy.ndarray) -> cupy.ndarray:
    """Return x, or a copy, contiguous and aligned to 16 bytes."""
    return x.copy() if x.data.ptr % 16 else _contiguous(x)


def _contiguous(x: cupy.ndarray) -> cupy.ndarray:
    return x if x.flags.c_contiguous else x.copy()


def _mask(mask, is_causal: bool, diagonal: int, x: cupy.ndarray, numbers: dict) -> list:
    """Return the rows of a mask, if it is given, and add the numbers of a mask or a causal one."""
    if is_causal and mask is not None:
        raise ValueError("is_causal and mask exclude each other: pass one mask that hides both")
    below = diagonal_of(is_causal, operator.index(diagonal))
    if mask is not None:
        return [_expanded("mask", mask, x, ("bool", "uint8"), numbers)]
    if below is not None:
        numbers |= {"mask_rows": x.shape[-2] if x.ndim > 1 else 1, "mask_repeat": 1}
        numbers["diagonal"] = below
    return []


def _expanded(name: str, array, x: cupy.ndarray, dtypes: tuple[str, ...], numbers: dict):
    """Return the rows of a mask or a bias for the kernel, and add the numbers that describe
    them."""
    shape = getattr(array, "shape", ())
    _check_like(name, array, shape, dtypes, x)
    if not broadcasts(shape, x.shape):
        raise ValueError(f"{name} of shape {shape} cannot be broadcast to {x.shape}")
    kept, more = rows_of(name, shape, x.shape)
    rows = _whole(cupy.broadcast_to(array, kept))
    numbers |= {name: rows.data.ptr} | more
    return rows


def _output(out, shape: tuple, dtype, arrays: list, given: tuple) -> cupy.ndarray:
    """Return `out` if it is valid for the arrays that were `given`, or a new array; `arrays` are
    those that the kernel takes."""
    _check_copies(out, arrays, given)
    if out is None:
        return cupy.empty(shape, dtype)
    others = (array for array in given if array is not None)
    _check_output("out", out, shape, cupy.dtype(dtype).name, *others)
    if out.data.ptr % 16:
        raise ValueError("out must be aligned to 16 bytes")
    return out


def _loss_numbers(x, target, ignore_index: int, smoothing: float, z_loss: float) -> dict:
    """Check the arguments of a loss and return its numbers."""
    _check_array("x", x)
    _check_like("target", target, x.shape[:-1], ("int64",), x)
    _check_fraction("label_smoothing", smoothing)
    if target.size and not x.size:
        raise ValueError("rows without columns have no loss")
    numbers = {"ignore_index": int(ignore_index), "smoothing": float(smoothing)}
    return numbers | {"z_loss": float(z_loss)}


def _dropout_numbers(p: float, seed: int, offset: int) -> dict:
    """Check the numbers of dropout and return them; none if nothing is dropped."""
    _check_fraction("dropout_p", p)
    if not p:
        return {}
    numbers = {"seed": operator.index(seed), "offset": operator.index(offset)}
    for name, value in numbers.items():
        if not 0 <= value < 2**64:
            raise ValueError(f"{name} must be 0 to 2**64 - 1, got {value}")
    return {"p": float(p)} | numbers


def _check_fraction(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be 0 to 1, got {value}")


def _check_like(name: str, array, shape: tuple, dtypes: tuple[str, ...], x: cupy.ndarray) -> None:
    if not isinstance(array, cupy.ndarray) or array.dtype.name not in dtypes:
        what = getattr(array, "dtype", type(array).__name__)
        raise TypeError(f"{name} must be a CuPy array of {' or '.join(dtypes)}, got {what}")
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    if array.device != x.device:
        raise ValueError(f"{name} must be on {x.device}, like the first array, not {array.device}")


def _check_output(name: str, out, shape: tuple, dtype: str, *others: cupy.ndarray) -> None:
    """Check an output that must not overlap the other arrays."""
    _check_like(name, out, shape, (dtype,), others[0])
    if not out.flags.c_contiguous:
        raise ValueError(f"{name} must be contiguous, got strides {out.strides}")
    _check_no_overlap(out, *others)


def _check_copies(out, arrays: list, given: tuple) -> None:
    """Reject copies, and a new output, while a graph is captured."""
    addresses = {array.data.ptr for array in given if array is not None}
    copied = any(array.data.ptr not in addresses for array in arrays)
    _check_capture(out is None, "pass arrays that need no copy" if copied else "")
