"""What is around softmax of CuPy's arrays: scale, masks, the way back, cross-entropy."""

from __future__ import annotations

import operator
from typing import NamedTuple

import cupy

from .broadcasting import broadcasts, rows_of
from .cupy_arrays import _check_array, _check_new, _extent, _overlap
from .launching import device


def log_softmax(x: cupy.ndarray, axis: int = -1, out: cupy.ndarray | None = None) -> cupy.ndarray:
    """The logarithm of softmax along an axis of a CuPy array: by a kernel along the last one, of
    rows of 1 KB and more that are whole packs of 16 bytes. All else is as of `softmax`."""
    _check_array("x", x)
    if axis in (-1, x.ndim - 1):
        return scaled_masked_softmax(x, log=True, out=out)
    raise ValueError(f"axis = {axis} of {x.ndim} is not the last, along which log_softmax is")


def scaled_masked_softmax(
    x: cupy.ndarray,
    mask: cupy.ndarray | None = None,
    *,
    scale: float = 1.0,
    bias: cupy.ndarray | None = None,
    is_causal: bool = False,
    log: bool = False,
    dropout_p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    dtype: str | None = None,
    out: cupy.ndarray | None = None,
) -> cupy.ndarray:
    """Softmax along the last axis of scale * x + bias where no mask hides it, in one pass.

    mask is of bool, True where x is hidden, bias of x's dtype; each is of x's shape or broadcast to
    it, and what repeats in the middle, as one mask for all heads of a batch, is written out first.
    `is_causal` hides what is above the diagonal of the last two axes; it takes no mask beside it.
    `log` gives the logarithm, `dtype` "float32" of 16 bits the wide result. Of each row a share of
    `dropout_p` is dropped, the same for the same seed and offset, and the rest divided by what is
    left: `softmax_backward` draws it again. A row that is wholly hidden is NaN.

    Rows are of 1 KB and more and of whole packs of 16 bytes, the GPU of compute capability 9.0 or
    newer. Copies are made, and arrays in a graph refused, as by `softmax`.

    Raises `TypeError` for another dtype, no CuPy array or a seed that is no integer, `ValueError`
    for what does not broadcast, seeds and offsets outside 0 to 2**64 - 1, an `out` that does not
    fit, a new array in a graph, and what no kernel takes.
    """
    _check_array("x", x)
    wide = dtype is not None and cupy.dtype(dtype) != x.dtype
    if wide and cupy.dtype(dtype) != cupy.float32:
        raise ValueError(f"the result is of {x.dtype} or float32, not {dtype}")
    if is_causal and mask is not None:
        raise ValueError("is_causal takes no mask beside it: one mask has both")
    drawn = _of_dropout(dropout_p, seed, offset)
    with x.device:
        arrays, numbers = [_whole(x)], {"scale": float(scale)}
        if mask is not None:
            _check_broadcast("mask", mask, x, ("bool", "uint8"))
            kept, numbers["mask_rows"], numbers["mask_repeat"] = rows_of(mask.shape, x.shape, True)
            rows = _whole(cupy.broadcast_to(mask, kept))
            numbers["mask"] = rows.data.ptr
            arrays.append(rows)  # it must live until the launch
        if is_causal:
            numbers |= {"mask_rows": x.shape[-2] if x.ndim > 1 else 1, "mask_repeat": 1}
        if bias is not None:
            _check_broadcast("bias", bias, x, (x.dtype.name,))
            kept, numbers["bias_rows"], _ = rows_of(bias.shape, x.shape, False)
            rows = _whole(cupy.broadcast_to(bias, kept))
            numbers["bias"] = rows.data.ptr
            arrays.append(rows)
        numbers |= drawn
        features = {"MASK": 1 if mask is not None else 2 * is_causal, "BIAS": bias is not None}
        features |= {"LOG": log, "WIDE": wide, "DROPOUT": dropout_p > 0}
        y = _output(out, x.shape, cupy.float32 if wide else x.dtype, arrays, (x, mask, bias))
        if y.size:
            _run("scaled_softmax", arrays[0], y, features, numbers)
        return y


def softmax_backward(
    y: cupy.ndarray,
    dy: cupy.ndarray,
    *,
    scale: float = 1.0,
    log: bool = False,
    from_x: bool = False,
    dropout_p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    out: cupy.ndarray | None = None,
) -> cupy.ndarray:
    """The gradient by x of y = softmax(scale * x) along the last axis, or of its logarithm if
    `log`, where dy is that by y, or by what dropout left of y.

    y and dy are alike in shape and dtype. With `from_x`, y is what softmax was of, scale * x with
    -inf where it was hidden. Dropout is what `scaled_masked_softmax` dropped for these numbers.
    Rows are of whole packs of 16 bytes. Raises what that raises.
    """
    _check_array("y", y)
    _check_like("dy", dy, y.shape, (y.dtype.name,), y)
    drawn = _of_dropout(dropout_p, seed, offset)
    with y.device:
        arrays = [_whole(y), _whole(dy)]
        dx = _output(out, y.shape, y.dtype, arrays, (y, dy))
        numbers = {"dx": dx.data.ptr, "scale": float(scale)} | drawn
        features = {"LOG": log, "FROM_X": from_x, "DROPOUT": dropout_p > 0}
        if dx.size:
            _run("softmax_backward", *arrays, features, numbers)
        return dx


class Losses(NamedTuple):
    """What `cross_entropy` returns, all of float32."""

    loss: cupy.ndarray  # of target's shape
    statistics: cupy.ndarray  # (..., 2): the row's maximum m, and log(sum(exp(x - m)))

    @property
    def lse(self) -> cupy.ndarray:
        """log(sum(exp(x))) of each row: the sum of its statistics, in a new array."""
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
    """The cross-entropy of each row of logits x with its target's column, in float32, and the two
    statistics per row that `cross_entropy_backward` needs: `Losses`.

    target is of int64 and of x's shape without the last axis. As torch's cross_entropy without
    reduction: a row whose target is `ignore_index` has loss 0, labels may be smoothed; z_loss * lse
    * lse is added. A target that is no column gives NaN. Rows have any length and start anywhere.
    `out` holds the arrays of loss and statistics.

    Raises `TypeError` for another dtype or no CuPy array, `ValueError` for another shape, an `out`
    that does not fit, a new array in a graph, and rows without columns.
    """
    options = _of_a_loss(x, target, ignore_index, label_smoothing, z_loss)
    with x.device:
        arrays = [_contiguous(x), _contiguous(target)]
        _check_kept(out, arrays, (x, target))
        shapes = {"loss": target.shape, "statistics": (*target.shape, 2)}
        loss, statistics = out or (cupy.empty(shape, cupy.float32) for shape in shapes.values())
        if out is not None:
            for array, (name, shape) in zip(out, shapes.items(), strict=True):
                _check_like(name, array, shape, ("float32",), x)
                _check_own(name, array)
            _check_apart(loss, x, target, statistics)
            _check_apart(statistics, x, target)
        if x.size:
            given = {"loss": loss.data.ptr, "statistics": statistics.data.ptr} | options
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
    """The gradient by x of the losses of `cross_entropy`, whose `statistics` it takes, where dloss
    is that by each of them, of float32 and of target's shape. `out` may be x itself, whose logits
    are then gone. Raises what `cross_entropy` raises."""
    options = _of_a_loss(x, target, ignore_index, label_smoothing, z_loss)
    if getattr(statistics, "shape", None) == target.shape:
        raise ValueError(
            "cross_entropy_backward needs both statistics per row, of shape "
            f"{(*target.shape, 2)}, as cross_entropy returns them, not their rounded sum lse"
        )
    _check_like("statistics", statistics, (*target.shape, 2), ("float32",), x)
    _check_like("dloss", dloss, target.shape, ("float32",), x)
    with x.device:
        arrays = [_contiguous(array) for array in (x, target, statistics, dloss)]
        given = (x, target, statistics, dloss)
        _check_kept(out, arrays, given)
        dx = cupy.empty(x.shape, x.dtype) if out is None else out
        if out is not None:
            _check_like("out", out, x.shape, (x.dtype.name,), x)
            _check_own("out", out)
            inplace = _extent(out) == _extent(x) and x.flags.c_contiguous
            _check_apart(out, *given[inplace:])
        if x.size:
            names = {"statistics": arrays[2], "dloss": arrays[3], "dx": dx}
            numbers = {name: array.data.ptr for name, array in names.items()}
            _run("cross_entropy_backward", *arrays[:2], {}, numbers | options)
        return dx


# ---- what they share -----------------------------------------------------------------------------


def _run(
    operation: str, first: cupy.ndarray, second: cupy.ndarray, features: dict, given: dict
) -> None:
    """Launch the kernel of rows like those of `first`; those two arrays are what it takes first."""
    cols = first.shape[-1]
    matrix = first.size // cols, cols, first.dtype.name
    asked = tuple((name, int(value)) for name, value in features.items())
    options = {"operation": operation, "features": asked, "given": tuple(given)}
    launch = device(first.device.id).launch(*matrix, **options)
    stream = cupy.cuda.get_current_stream()
    launch(first.data.ptr, second.data.ptr, stream.ptr, *given.values())


def _whole(x: cupy.ndarray) -> cupy.ndarray:
    """x, or a copy of it, whose elements follow each other from a multiple of 16 bytes on."""
    return x.copy() if x.data.ptr % 16 else _contiguous(x)


def _contiguous(x: cupy.ndarray) -> cupy.ndarray:
    return x if x.flags.c_contiguous else x.copy()


def _check_kept(out, arrays: list, given: tuple) -> None:
    """Refuse copies, and a new output, while a graph is captured."""
    kept = {array.data.ptr for array in given if array is not None}
    copied = any(array.data.ptr not in kept for array in arrays)
    _check_new("give out" if out is None else "give arrays that need no copy" if copied else "")


def _output(out, shape: tuple, dtype, arrays: list, given: tuple) -> cupy.ndarray:
    """`out`, if it fits what was `given`, or a new array; `arrays` are what a kernel takes."""
    _check_kept(out, arrays, given)
    if out is None:
        return cupy.empty(shape, dtype)
    _check_like("out", out, shape, (cupy.dtype(dtype).name,), given[0])
    _check_own("out", out)
    if out.data.ptr % 16:
        raise ValueError("out must start at a multiple of 16 bytes")
    _check_apart(out, *(array for array in given if array is not None))
    return out


def _of_a_loss(x, target, ignore_index: int, smoothing: float, z_loss: float) -> dict:
    """The numbers of a loss, once what they go with is checked."""
    _check_array("x", x)
    _check_like("target", target, x.shape[:-1], ("int64",), x)
    _check_share("label_smoothing", smoothing)
    if target.size and not x.size:
        raise ValueError("rows without columns have no loss")
    numbers = {"ignore_index": int(ignore_index), "smoothing": float(smoothing)}
    return numbers | {"z_loss": float(z_loss)}


def _of_dropout(p: float, seed: int, offset: int) -> dict:
    """The numbers of dropout, once they are checked; none where nothing is dropped."""
    _check_share("dropout_p", p)
    if not p:
        return {}
    numbers = {"seed": operator.index(seed), "offset": operator.index(offset)}
    for name, value in numbers.items():
        if not 0 <= value < 2**64:
            raise ValueError(f"{name} = {value} is not 0 to 2**64 - 1")
    return {"p": float(p)} | numbers


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} = {value} is not 0 to 1")


def _check_like(name: str, array, shape: tuple, dtypes: tuple[str, ...], x: cupy.ndarray) -> None:
    if not isinstance(array, cupy.ndarray) or array.dtype.name not in dtypes:
        what = getattr(array, "dtype", type(array).__name__)
        raise TypeError(f"{name} is no CuPy array of {' or '.join(dtypes)} but {what}")
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, not {shape}")
    if array.device != x.device:
        raise ValueError(f"the first array is on {x.device}, {name} on {array.device}")


def _check_broadcast(name: str, array, x: cupy.ndarray, dtypes: tuple[str, ...]) -> None:
    shape = getattr(array, "shape", ())
    _check_like(name, array, shape, dtypes, x)
    if not broadcasts(shape, x.shape):
        raise ValueError(f"{name} of {shape} is not broadcast to {x.shape}")


def _check_own(name: str, array: cupy.ndarray) -> None:
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} has strides {array.strides}: its elements must follow each other")


def _check_apart(out: cupy.ndarray, *others: cupy.ndarray) -> None:
    if any(_overlap(out, other) for other in others):
        raise ValueError("an output overlaps another array; these kernels do not work in place")
