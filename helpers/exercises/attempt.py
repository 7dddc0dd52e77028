"""A graded kernel, its runs on the SIMT machine, each made once, and the expected y."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..catalogue.header import header
from ..problem.operations import BACKWARD, COPY, SOFTMAX
from ..run.bound import BoundKernel, bind
from ..run.references import UNIT_ROUNDOFF, Exact, agrees, expected, make_input
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
    file: str

    @property
    def counters(self) -> Counters:
        return self.trace.counters

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
            self._runs[key] = Execution(x, y, trace, self.file)
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


Goal = Callable[[np.ndarray], Exact]


def copy(x: np.ndarray) -> Exact:
    return expected(COPY, {"x": x})["y"]


def softmax(x: np.ndarray) -> Exact:
    return expected(SOFTMAX, {"x": x})["y"]


def log_softmax(x: np.ndarray) -> Exact:
    """Log-softmax of each row. An answer may subtract the maximum and the logarithm together, so
    its error also grows with the maximum."""
    value, error = expected(SOFTMAX, {"x": x}, {"LOG": 1})["y"]
    row_max = np.abs(x.astype(np.float64).max(axis=-1, keepdims=True))
    return Exact(value, error + 2 * UNIT_ROUNDOFF * np.where(np.isfinite(row_max), row_max, 0))


def softmax_of_columns(x: np.ndarray) -> Exact:
    return Exact(*(part.T for part in softmax(np.ascontiguousarray(x.T))))


def softmax_of_seen(x: np.ndarray, window: int | None = None) -> Exact:
    """Softmax of the unmasked columns of each row, 0 elsewhere: row r has the columns up to r, or
    the last `window` of them. A fully masked row is NaN."""
    seen = np.tri(*x.shape, dtype=bool)
    if window is not None:
        seen &= ~np.tri(*x.shape, -window, dtype=bool)
    return softmax(np.where(seen, x, x.dtype.type(-np.inf)))


def backward(x: np.ndarray, log: int = 0) -> Exact:
    """The backward pass of softmax of x, or of log-softmax, where dy is x."""
    return expected(BACKWARD, {"y": x, "dy": x, "scale": 1}, {"FROM_X": 1, "LOG": log})["dx"]


def minus_target(x: np.ndarray) -> Exact:
    """Softmax, minus 1 in the column of the row's target, row % cols."""
    p, error = softmax(x)
    rows = np.arange(len(x))
    p[rows, rows % x.shape[-1]] -= 1
    return Exact(p, error + 2 * UNIT_ROUNDOFF)


def unwritten(x: np.ndarray) -> np.ndarray:
    """An array like x in which unwritten elements can be recognised."""
    size = x.dtype.itemsize
    return np.full(x.shape, UNWRITTEN[size]).view(x.dtype)


def first_wrong(y: np.ndarray, exact: Exact) -> str:
    """The first difference of y from the expected values in a sentence, or "" if there is none."""
    size = y.dtype.itemsize
    missing = y.view(UNWRITTEN[size].dtype) == UNWRITTEN[size]
    right = agrees(y, exact) & ~missing
    if right.all():
        return ""
    row, col = map(int, np.argwhere(~right)[0])
    # fp64 has numbers beyond the range of the output.
    wanted, what = _different(float(np.float32(exact.value[row, col])), float(y[row, col]))
    if missing[row, col]:
        what = "nothing (no thread wrote there)"
    wrong = int(np.count_nonzero(~right))
    count = f"{'all' if wrong == y.size else f'{wrong} of {y.size}'} elements are wrong"
    return f"row {row}, column {col}: expected {wanted}, got {what}; {count}"


def _different(a: float, b: float) -> tuple[str, str]:
    """Two numbers with enough digits to distinguish them."""
    for digits in (3, 5, 8):
        texts = ["NaN" if np.isnan(value) else f"{value:.{digits}g}" for value in (a, b)]
        if texts[0] != texts[1]:
            break
    return texts[0], texts[1]
