"""Compare the outputs of a kernel with their fp64 reference; `helpers.run.references` defines the
references and tolerances."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ..base.arguments import checked, short
from ..problem.operations import COPY, SOFTMAX, Operation
from ..simt.places import ShownShort
from ..simt.words import are
from .references import agrees, expected


class WrongResult(ShownShort, AssertionError):
    """A kernel's output is wrong; the message shows where and how.

    `summary` omits the values, whose last digits depend on the machine.
    """

    def __init__(self, summary: str, values: str = ""):
        super().__init__(f"{summary}: {values}" if values else summary)
        self.summary, self.values = summary, values


def strided_copy(x: np.ndarray, stride: int, phase: int, around: float = np.nan) -> np.ndarray:
    """Copy a matrix to a view with row stride `stride` that starts `phase` elements into its base
    array; all other elements of the base array are `around`."""
    rows, cols = x.shape
    base = np.full(phase + rows * stride + 3, around, x.dtype)
    view = base[phase : phase + rows * stride].reshape(rows, stride)[:, :cols]
    view[:] = x
    return view


def check_outputs(
    operation: Operation,
    values: Mapping[str, object],
    written: Mapping[str, np.ndarray],
    features: Mapping[str, int] = MappingProxyType({}),
    at: np.ndarray | None = None,
) -> None:
    """Raise `WrongResult` unless the outputs in `written` match the reference of an operation.

    `values` are all arguments of the operation (`Problem.complete`). NaN and infinities are
    accepted exactly where the reference has them. `at` are the row numbers if only some rows are
    given.
    """
    if operation is COPY:
        return check_copy(values["x"], written["y"])
    exact = expected(operation, values, features, at)
    for name, y in written.items():
        exact_y, right = exact[name].value, agrees(y, exact[name])
        if right.all():
            continue
        hint = _nan_hint(exact_y, y)
        if operation is SOFTMAX and not features.get("LOG") and not features.get("DROPOUT"):
            hint = hint or _softmax_hint(values["x"], y, exact_y)
        index = tuple(map(int, np.argwhere(~right)[0]))
        label = "" if len(written) == 1 else f" of {name}"
        wrong = np.count_nonzero(~right)
        raise WrongResult(
            f"{wrong} of {y.size} elements{label} {are(wrong)} wrong, first at "
            f"{_describe_index(index)}{hint}",
            f"got {float(y[index]):.6g}, expected {exact_y[index]:.6g}",
        )


def _describe_index(index: tuple[int, ...]) -> str:
    """Return an index in words: "row 1", "row 1, column 2", or "(1, 2, 3)"."""
    words = {1: ("row",), 2: ("row", "column")}.get(len(index))
    return (
        ", ".join(map(" ".join, zip(words, map(str, index), strict=True))) if words else str(index)
    )


@checked
def check_softmax(x: np.ndarray, y: np.ndarray) -> None:
    """Raise `WrongResult` unless y is softmax of x over the last axis.

    Both have the same shape and dtype. NaN is accepted exactly where the reference has it.
    """
    _check_same_form(x, y)
    if x.dtype.kind not in "fV" or not x.ndim:  # V: bfloat16
        raise TypeError(f"x must be a matrix of floats, not {short(x)}")
    x, y = (array.reshape(-1, array.shape[-1]) for array in (x, y))
    check_outputs(SOFTMAX, {"x": x, "scale": 1.0}, {"y": y})


@checked
def check_copy(x: np.ndarray, y: np.ndarray) -> None:
    """Raise `WrongResult` unless y equals x bit for bit."""
    _check_same_form(x, y)
    same = x.reshape(-1).view(np.uint8) == y.reshape(-1).view(np.uint8)
    if not same.all():
        first = int(np.argmin(same)) // x.itemsize
        index = tuple(map(int, np.unravel_index(first, x.shape)))
        raise WrongResult(f"y differs from x, first at {index}: {y[index]} instead of {x[index]}")


def _check_same_form(x: np.ndarray, y: np.ndarray) -> None:
    for name, array in (("x", x), ("y", y)):
        if np.ma.isMaskedArray(array):
            raise TypeError(f"{name} is a masked array: fill it, for example by {name}.filled(0.0)")
    if x.shape != y.shape or x.dtype != y.dtype:
        raise WrongResult(f"y is {y.dtype}{y.shape}, but x is {x.dtype}{x.shape}")


def _softmax_hint(x: np.ndarray, y: np.ndarray, expected: np.ndarray) -> str:
    """Return the mistake that a softmax without wrong NaN suggests; "" if it suggests none."""
    finite = np.isfinite(expected).all(axis=-1)
    if not finite.any():
        return ""
    stored = y.dtype
    x, y, expected = x[finite], y[finite].astype(np.float64), expected[finite]
    if not y.any():
        return " (all zero)"
    sums = y.sum(axis=-1)
    worst = sums.reshape(-1)[np.abs(sums - 1).argmax()]
    if abs(worst - 1) > (1e-2 if stored.itemsize == 2 else 1e-3):
        return f" (rows do not sum to 1; the worst sums to {worst:.4g})"
    if x.shape[-1] > 1 and (y.argmax(axis=-1) != expected.argmax(axis=-1)).any():
        return " (rows sum to 1, but the largest element is at the wrong place)"
    return ""


def _nan_hint(expected: np.ndarray, y: np.ndarray) -> str:
    """Return a hint at elements that are NaN where the reference is not; "" if there are none."""
    wrong = np.isnan(y[np.isfinite(expected)])
    if wrong.size and wrong.all():
        return " (nothing was written, or every row overflowed)"
    return " (some elements are NaN: not written, or inf / inf)" if wrong.any() else ""
