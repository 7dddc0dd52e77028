"""A graded kernel, its runs on the SIMT machine, each made once, and what y should be."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..catalogue.header import header
from ..run.bound import BoundKernel, bind
from ..run.references import UNIT_ROUNDOFF, make_input, reference, tolerance
from ..simt import Counters, Trace
from ..simt.cuda_text import kernel_names

Shape = tuple[int, int]

# NaN with bits that no arithmetic produces: elements that still have them were never written.
UNWRITTEN = {2: np.uint16(0x7DEA), 4: np.uint32(0x7FDEADBE)}


@dataclass(frozen=True)
class Execution:
    """One launch at one shape."""

    x: np.ndarray
    y: np.ndarray
    trace: Trace

    @property
    def counters(self) -> Counters:
        return self.trace.counters

    @property
    def place(self) -> str:
        rows, cols = self.x.shape
        return f"At {rows} x {cols}"

    @property
    def passes(self) -> tuple[float, float]:
        """The number of passes over x and y."""
        return self.counters.passes(self.x.size, self.x.itemsize)


class Attempt:
    """The text of a kernel file, under the learner's name for it.

    `code` is CUDA C++ that begins with a `#line` directive. Errors show when it runs:
    `run` raises `CompileError`, `UnsupportedPTX`, `ValueError`, `TypeError` or `KeyError`.
    """

    def __init__(self, code: str, file: str, dtype: str):
        self.code, self.file, self.dtype = code, file, dtype
        self._runs: dict[object, Execution] = {}

    @cached_property
    def plain(self) -> str:
        """The code without comments, with the same line numbers."""
        pattern = r"//[^\n]*|/\*.*?\*/"
        return re.sub(
            pattern, lambda found: "\n" * found[0].count("\n"), self.code, flags=re.DOTALL
        )

    def bind(self, rows: int, cols: int) -> BoundKernel:
        if len(kernel_names(self.code)) != 1 or header(self.code) is None:
            raise ValueError("the file needs its header and one __global__ function")
        return bind(self.code, rows, cols, self.dtype)

    def run(self, shape: Shape) -> Execution:
        """The launch on a matrix of `shape` that exposes mistakes."""
        return self.run_on(shape, make_input(*shape, dtype=self.dtype))

    def run_on(self, key: object, x: np.ndarray) -> Execution:
        """The launch on x, made once per key."""
        if key not in self._runs:
            y = unwritten(x)
            trace = self.bind(*x.shape).simulate(x, y, instruction_limit=limit(x.shape))
            self._runs[key] = Execution(x, y, trace)
        return self._runs[key]

    def watch(self, shape: Shape) -> Trace:
        """The launch at `shape` with everything recorded in the trace."""
        x = make_input(*shape, dtype=self.dtype)
        return self.bind(*shape).simulate(
            x, unwritten(x), watch=True, instruction_limit=limit(shape)
        )


def limit(shape: Shape) -> int:
    """The number of instructions of a batch of blocks after which a kernel counts as hanging: at
    least six times what a serial answer needs."""
    return 3_000 + 300 * max(shape)


# ---- the expected y, and the first difference from it ----


class Expected(NamedTuple):
    """The expected y in float64, and the tolerance of each element."""

    values: np.ndarray
    allowed: np.ndarray


Goal = Callable[[np.ndarray], Expected]


def copy(x: np.ndarray) -> Expected:
    return Expected(x.astype(np.float64), np.zeros(x.shape))


def softmax(x: np.ndarray) -> Expected:
    expected = reference(x)
    return Expected(expected, tolerance(x, expected))


def softmax_of_columns(x: np.ndarray) -> Expected:
    values, allowed = softmax(np.ascontiguousarray(x.T))
    return Expected(values.T, allowed.T)


def log_softmax(x: np.ndarray) -> Expected:
    """Log-softmax of each row. Its error is that of x - max, of the logarithm, and of their
    difference, so it grows with the subtracted value; the error of the sum counts unchanged."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        exact = x.astype(np.float64)
        row_max = exact.max(axis=-1, keepdims=True)
        distance = exact - row_max
        log_sum = np.log(np.exp(distance).sum(axis=-1, keepdims=True))
        size = np.abs(distance) + np.abs(log_sum) + np.abs(row_max) + 16 + 3 * np.sqrt(x.shape[-1])
    return Expected(distance - log_sum, np.where(np.isfinite(size), size, 0.0) * UNIT_ROUNDOFF)


def softmax_of_seen(x: np.ndarray, window: int | None = None) -> Expected:
    """Softmax of the unmasked columns of each row, 0 elsewhere: row r has the columns up to r, or
    the last `window` of them. A fully masked row is NaN."""
    seen = np.tri(*x.shape, dtype=bool)
    if window is not None:
        seen &= ~np.tri(*x.shape, -window, dtype=bool)
    return softmax(np.where(seen, x, x.dtype.type(-np.inf)))


def way_back_of_log(x: np.ndarray) -> Expected:
    """dy - softmax(x) * sum(dy), where dy is x."""
    exact, (p, off) = x.astype(np.float64), softmax(x)
    total, size = (part.sum(axis=-1, keepdims=True) for part in (exact, np.abs(exact)))
    lost = (16 + 3 * np.sqrt(x.shape[-1])) * UNIT_ROUNDOFF * size
    return Expected(
        exact - p * total, off * size + p * lost + 4 * UNIT_ROUNDOFF * (np.abs(exact) + p * size)
    )


def way_back_from_x(x: np.ndarray) -> Expected:
    """p * (x - sum(p * x)) for p = softmax(x)."""
    exact, (p, off) = x.astype(np.float64), softmax(x)
    mean = (p * exact).sum(axis=-1, keepdims=True)
    spread = np.abs(exact) + (p * np.abs(exact)).sum(axis=-1, keepdims=True)
    worst = (off / np.maximum(p, off)).max(axis=-1, keepdims=True)
    return Expected(p * (exact - mean), 4 * worst * p * spread + off * spread)


def minus_target(x: np.ndarray) -> Expected:
    """softmax, less 1 where the column is that of the row's target, row % cols."""
    p, off = softmax(x)
    rows, cols = np.arange(len(x)), x.shape[-1]
    p[rows, rows % cols] -= 1
    return Expected(p, off + 2 * UNIT_ROUNDOFF)


def unwritten(x: np.ndarray) -> np.ndarray:
    """An array like x in which unwritten elements can be recognised."""
    size = x.dtype.itemsize
    return np.full(x.shape, UNWRITTEN[size]).view(x.dtype)


def first_wrong(y: np.ndarray, expected: Expected) -> str:
    """The first difference of y from the expected values in a sentence, or "" if there is none."""
    values, allowed = expected
    seen = y.astype(np.float64)
    with np.errstate(invalid="ignore"):
        right = (np.abs(seen - values) <= allowed) | (seen == values)
    right |= np.isnan(values) & np.isnan(seen)
    size = y.dtype.itemsize
    missing = y.view(UNWRITTEN[size].dtype) == UNWRITTEN[size]
    right &= ~missing
    if right.all():
        return ""
    row, col = map(int, np.argwhere(~right)[0])
    at_best = float(np.float32(values[row, col]))  # fp64 has numbers beyond the range of the output
    wanted, what = _different(at_best, seen[row, col])
    if missing[row, col]:
        what = "nothing (no thread has written there)"
    wrong = int(np.count_nonzero(~right))
    count = "all are wrong" if wrong == y.size else f"{wrong} of {y.size} are wrong"
    return f"row {row}, column {col}: expected {wanted}, seen {what}; {count}"


def _different(a: float, b: float) -> tuple[str, str]:
    """Two numbers with enough digits to distinguish them."""
    for digits in (3, 5, 8):
        texts = ["NaN" if np.isnan(value) else f"{value:.{digits}g}" for value in (a, b)]
        if texts[0] != texts[1]:
            break
    return texts[0], texts[1]
