"""Fused and related operations for CuPy arrays."""

from __future__ import annotations

import operator
from typing import NamedTuple

import cupy

from .cupy_arrays import (
    _check_array,
    _check_capture,
    _check_like,
    _check_no_overlap,
    _extent,
)
from .launching import bits_of, device
from .layouts import broadcasts, diagonal_of, rows_of


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
    features = {"MASK": mask is not None or 2 * is_causal, "BIAS": bias is not None, "LOG": log}
    features |= {"WIDE": wide, "DROPOUT": dropout_p > 0, "ZERO": zero_masked_rows}
    with x.device:
        rows = _mask(mask, is_causal, diagonal, x)
        rows |= {} if bias is None else _rows("bias", bias, x, x.dtype.name)
        inputs = {"x": _whole(x)}
        wanted = {"y": (x.shape, cupy.float32 if wide else x.dtype)}
        output = _outputs(out, wanted, (x, mask, bias), inputs | rows)
        _run("scaled_softmax", features, inputs | output | rows | numbers)
        return output["y"]


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
    features = {"LOG": log, "FROM_X": from_x, "DROPOUT": dropout_p > 0}
    features["MASK"] = mask is not None or 2 * is_causal
    with y.device:
        inputs = {"y": _whole(y), "dy": _whole(dy)} | _mask(mask, is_causal, diagonal, y)
        output = _outputs(out, {"dx": (y.shape, y.dtype)}, (y, dy, mask), inputs)
        _run("softmax_backward", features, inputs | output | numbers)
        return output["dx"]


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
    numbers = _loss_numbers(x, target, ignore_index, label_smoothing, z_loss)
    rows = target.shape
    wanted = {"loss": (rows, cupy.float32), "statistics": ((*rows, 2), cupy.float32)}
    return Losses(*_loss("cross_entropy", {"x": x, "target": target}, numbers, out, wanted))


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
    numbers = _loss_numbers(x, target, ignore_index, label_smoothing, z_loss)
    if getattr(statistics, "shape", None) == target.shape:
        raise ValueError(
            "cross_entropy_backward needs both statistics per row, of shape "
            f"{(*target.shape, 2)}, as cross_entropy returns them, not their rounded sum lse"
        )
    _check_like("statistics", statistics, (*target.shape, 2), ("float32",), x)
    _check_like("dloss", dloss, target.shape, ("float32",), x)
    given = {"x": x, "target": target, "statistics": statistics, "dloss": dloss}
    (dx,) = _loss("cross_entropy_backward", given, numbers, out, {"dx": (x.shape, x.dtype)})
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
    numbers = _loss_numbers(x, target, ignore_index, label_smoothing, z_loss)
    _check_like("dloss", dloss, target.shape, ("float32",), x)
    given = {"x": x, "target": target, "dloss": dloss}
    wanted = {"loss": (target.shape, cupy.float32), "dx": (x.shape, x.dtype)}
    return _loss("cross_entropy_loss_and_gradient", given, numbers, out, wanted)


# ---- arguments and launches ----------------------------------------------------------------------


def _loss(operation: str, given: dict, numbers: dict, out, wanted: dict) -> tuple:
    """Return the outputs of a loss or its gradient, whose shapes and dtypes are `wanted`."""
    with given["x"].device:
        inputs = {name: _contiguous(array) for name, array in given.items()}
        outputs = _outputs(out, wanted, tuple(given.values()), inputs, of_loss=True)
        _run(operation, {}, inputs | outputs | numbers)
        return tuple(outputs.values())


def _run(operation: str, features: dict, given: dict) -> None:
    """Launch the kernel for the rows of the first array of `given`. It takes the addresses of the
    first two, and all other arrays and numbers by name."""
    x = next(iter(given.values()))
    if x.size == 0:
        return
    cols = x.shape[-1]
    launch = device(x.device.id).launch(
        *(x.size // cols, cols, x.dtype.name),
        operation=operation,
        features=tuple((name, int(value)) for name, value in features.items()),
        given=tuple(given)[2:],
    )
    values = (v.data.ptr if isinstance(v, cupy.ndarray) else bits_of(v) for v in given.values())
    launch(cupy.cuda.get_current_stream().ptr, *values)


def _outputs(out, wanted: dict, given: tuple, passed: dict, of_loss: bool = False) -> dict:
    """Return the outputs of a call by name: those of `out`, which are checked, or new ones.

    `wanted` has their shapes and dtypes, `given` are the arrays of the call, and `passed` what the
    kernel takes for them. The outputs of a loss need not be aligned to 16 bytes, and its dx may be
    the first array.
    """
    others = [array for array in given if array is not None]
    known = {array.data.ptr for array in others}
    arrays = (array for array in passed.values() if isinstance(array, cupy.ndarray))
    copied = any(array.data.ptr not in known for array in arrays)
    _check_capture(out is None, "pass arrays that need no copy" if copied else "")
    if out is None:
        return {name: cupy.empty(shape, dtype) for name, (shape, dtype) in wanted.items()}
    outputs = dict(zip(wanted, out if len(wanted) > 1 else (out,), strict=True))
    for name, array in outputs.items():
        shape, dtype = wanted[name]
        called = name if len(wanted) > 1 else "out"
        _check_like(called, array, shape, (cupy.dtype(dtype).name,), given[0])
        if not array.flags.c_contiguous:
            raise ValueError(f"{called} must be contiguous, got strides {array.strides}")
        if array.data.ptr % 16 and not of_loss:
            raise ValueError(f"{called} must be aligned to 16 bytes")
        inplace = of_loss and name == "dx" and given[0].flags.c_contiguous
        same = inplace and _extent(array) == _extent(given[0])
        _check_no_overlap(array, *others[same:])
        others.append(array)
    return outputs


def _whole(x: cupy.ndarray) -> cupy.ndarray:
    """Return x, or a copy, contiguous and aligned to 16 bytes."""
    return x.copy() if x.data.ptr % 16 else _contiguous(x)


def _contiguous(x: cupy.ndarray) -> cupy.ndarray:
    return x if x.flags.c_contiguous else x.copy()


def _mask(mask, is_causal: bool, diagonal: int, x: cupy.ndarray) -> dict:
    """Return what the kernel takes for a mask or a causal one."""
    if is_causal and mask is not None:
        raise ValueError("is_causal and mask exclude each other: pass one mask that hides both")
    below = diagonal_of(is_causal, operator.index(diagonal))
    if mask is not None:
        return _rows("mask", mask, x, "bool", "uint8")
    if below is None:
        return {}
    return {"mask_rows": x.shape[-2] if x.ndim > 1 else 1, "mask_repeat": 1, "diagonal": below}


def _rows(name: str, array, x: cupy.ndarray, *dtypes: str) -> dict:
    """Return the rows of a mask or a bias, and the numbers that place them."""
    shape = getattr(array, "shape", ())
    _check_like(name, array, shape, dtypes, x)
    if not broadcasts(shape, x.shape):
        raise ValueError(f"{name} of shape {shape} cannot be broadcast to {x.shape}")
    kept, numbers = rows_of(name, shape, x.shape)
    return {name: _whole(cupy.broadcast_to(array, kept))} | numbers


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
