"""Inputs that expose mistakes, fp64 references, and tight tolerances for each operation.

Tolerances are per element, because the mean of a softmax is 1/cols: a fixed 1e-4 would accept an
all-zero answer for long rows. With u = 2^-24, the unit roundoff of fp32, and d = |x - max|:

    softmax       |y - exact| <= r exact + tiny,  r = (16 + d + 3 sqrt(cols)) u + lost

d is the error from rounding the argument of exp. sqrt(cols) is the growth of random rounding errors
in a serial sum (Higham, Accuracy and Stability of Numerical Algorithms, section 2.6); each error is
uniform up to u, so the factor 3 is five standard deviations. `lost` is the sum of the row's outputs
below u, which a serial sum drops once it has added its largest term. 16 covers the few ulp of exp,
the reduction tree and the division. `tiny` is the smallest normal fp32, because CuPy compiles with
-ftz=true. A 16-bit output adds half an ulp of its type. The other tolerances follow from a first-
order expansion of each formula in the rounding errors of its terms (Higham, section 3.1):

    scale, bias   a logit z = scale x + bias is rounded twice, and so is the maximum: d grows by
                  |scale x| + |z| of both
    log-softmax   absolute, because it is a difference: |y - exact| <= e + 2 (d + |y|) u, where
                  e = (16 + 3 sqrt(cols) + sum(y d) + 2 log(sum)) u + lost is the error of
                  log(sum), with softmax as y
    backward      dx = y (g - s), s = sum(y g): the error of s is (16 + 3 sqrt(cols)) u sum|y g|,
                  however small s is, and that of g - s is an ulp of both. If softmax is
                  recomputed, y and each term of the sum have the relative error r
    statistics    the maximum m is exact; the error of log(sum(exp(x - m))) is e
    loss          log(sum) + (m - x[target]): e, and ulps of both terms; a mean of x has the error
                  of a sum; the error of z_loss lse^2 is twice the rounding of lse = m + log(sum),
                  and two ulps for the products
    its gradient  the relative error of exp((x - m) - log(sum)), with given statistics, is
                  (20 + 4 |x - m| + 4 log(sum)) u: the 16 above, a multiply-add, three roundings of
                  the argument and that of log2(e); each term adds ulps of itself
    loss and gradient together  as with exact statistics, and e for that of log(sum)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np

from ..problem.operations import BYTES, CAUSAL, SUMMED, Argument, Operation
from ..problem.problem import Problem

UNIT_ROUNDOFF = 2.0**-24
TINY = 2.0**-126

# ---- inputs -------------------------------------------------------------------------------------


def make_input(rows: int, cols: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Return a matrix of shape (rows, cols) that exposes typical mistakes of a softmax kernel.

    Values are normal with standard deviation 2, and no two rows are alike. Each row is shifted by
    100 to 200 up or down, so that a kernel that ignores the maximum overflows or divides by zero.
    Each row has one value 4 above its maximum in a random column and, if it is long enough, a tie
    of two values. In 16 bits every second row is not shifted, because shifting leaves few digits.
    """
    random = np.random.default_rng(seed)
    x = random.normal(0, 2, (rows, cols))
    peak = random.integers(0, cols, rows)
    x[np.arange(rows), peak] = x.max(axis=1) + 4
    if cols > 2:
        x[np.arange(rows), (peak + 2) % cols] = x[np.arange(rows), (peak + 1) % cols]
    shifts = random.uniform(100, 200, (rows, 1)) * random.choice([-1.0, 1.0], (rows, 1))
    if np.dtype(dtype).itemsize == 2:
        shifts[1::2] = 0
    return (x + shifts).astype(dtype)


def special_rows(cols: int, dtype: str = "float32") -> np.ndarray:
    """Return six rows: four with -inf (tail, scattered, all but one, all), then NaN, then +inf."""
    x = make_input(6, cols, seed=1, dtype=dtype)
    minus_infinity = np.float32(-np.inf)
    x[0, (cols + 1) // 2 :] = minus_infinity
    x[1, 1::3] = minus_infinity
    x[2, :-1] = minus_infinity
    x[3] = minus_infinity
    x[4, cols // 2] = np.nan
    x[5, cols // 3] = np.inf
    return x


def poisoned(x: np.ndarray) -> np.ndarray:
    """Return an output array like x, full of NaN, so that unwritten elements are easy to spot."""
    return np.full_like(x, np.nan)


def make_inputs(problem: Problem, seed: int = 0) -> dict[str, object]:
    """Return values for all inputs of a problem, none of them neutral or constant."""
    random = np.random.default_rng(seed + 1)
    x = make_input(problem.rows, problem.cols, seed, problem.dtype)
    if dict(problem.features).get("LOG") and problem.cols > 1:
        x[:, 1::3] -= 300  # softmax underflows to 0, log-softmax must not become log(0)
    return _inputs_of(problem, x, random)


def special_inputs(problem: Problem) -> dict[str, object]:
    """Return inputs with `special_rows`, for a problem of 6 * inner rows: with masked and ignored
    rows, zero and NaN gradients, and targets out of range."""
    cols, inner = problem.cols, problem.inner
    x = np.concatenate([special_rows(cols, problem.dtype)] * inner)
    inputs = _inputs_of(problem, x, np.random.default_rng(2))
    if "mask" in inputs:
        # An unmasked row with -inf, a fully masked row, and rows whose NaN or +inf are masked.
        inputs["mask_repeat"] = np.int32(1)
        inputs["mask"][0] = 0
        inputs["mask"][1] = 1
        inputs["mask"][4:] = ~np.isfinite(x[4:])
    if "dy" in inputs and {"mask", "diagonal"} & {*inputs}:
        inputs["dy"][1, 3:] = np.nan  # masked
    if "dy" in inputs and cols > 1:
        inputs["dy"][0] = 0
        inputs["dy"][2, 0] = np.nan
    if "target" in inputs:
        inputs["target"][:3] = np.array([-1, cols, -100 if cols > 1 else 2**40])
        inputs["target"][2] = inputs.get("ignore_index", -100)
    return inputs


def _inputs_of(problem: Problem, x: np.ndarray, random: np.random.Generator) -> dict[str, object]:
    """Return the inputs of an operation for which `x` is the matrix of logits."""
    rows, cols, features = problem.rows, problem.cols, dict(problem.features)
    exact = Rows.of(x)

    def gradient(*shape: int) -> np.ndarray:
        return random.normal(0.3, 1, shape)

    forward_output = exact.logarithm if features.get("LOG") else exact.softmax
    # A mask or a bias has one group of rows, or two, of which the second is shorter.
    groups = 1 + (rows % 2 and rows > 1)
    group = -(-rows // groups)
    beside = -(-group // groups)  # its rows for each group
    causal = features.get("MASK") == CAUSAL
    makers: dict[str, Callable[[], object]] = {
        "x": lambda: x,
        "a": lambda: x,
        "b": lambda: random.normal(0, 2, x.shape),
        "y": lambda: x if features.get("FROM_X") else forward_output,
        "dy": lambda: gradient(rows, cols),
        "dloss": lambda: gradient(rows),
        "statistics": lambda: exact.statistics,
        "bias": lambda: random.normal(0, 3, (groups * beside, cols)),
        "mask": lambda: _mask((groups * beside, cols), random),
        "bias_rows": lambda: beside,
        "mask_rows": lambda: 1 + rows // 2 if causal else beside,
        **dict.fromkeys(("bias_repeat", "mask_repeat"), lambda: 1 if rows % 3 else 3),
        **dict.fromkeys(("bias_group", "mask_group"), lambda: group),
        "diagonal": lambda: (2, -1, 5)[rows % 3],
        "target": lambda: _targets(x.shape, random),
        "scale": lambda: 0.37,
        "p": lambda: 0.3,
        "seed": lambda: 0x9E3779B97F4A7C15,
        "offset": lambda: 2**33 + 5,
        "ignore_index": lambda: min(3, cols - 1),
        "smoothing": lambda: 0.1,
        "z_loss": lambda: 1e-3,
    }
    inputs = {}
    for argument in problem.arguments:
        if argument.output or argument.name not in makers:
            continue
        value = makers[argument.name]()
        kind = argument.numpy_dtype(problem.dtype)
        if argument.shape:
            value = _with_axes(np.asarray(value), argument, problem).astype(kind)
        inputs[argument.name] = value if argument.shape else kind.type(value)
    return inputs


def _with_axes(value: np.ndarray, argument: Argument, problem: Problem) -> np.ndarray:
    """Convert a matrix to outer x dim x inner if the problem has inner > 1."""
    if len(argument.shape) < 2 or problem.inner == 1:
        return value
    rows = value.reshape(problem.outer, problem.inner, problem.cols)
    return np.ascontiguousarray(rows.transpose(0, 2, 1))


def _mask(shape: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Return a mask, with bytes from 1 to 255, that hides 30% of the elements and one whole row."""
    mask = random.integers(1, 256, shape) * (random.random(shape) < 0.3)
    if len(mask) > 3:
        mask[len(mask) // 2] = 255
    return mask


def _targets(shape: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Return a column for each row, including the first and the last column."""
    rows, cols = shape
    targets = random.integers(0, cols, rows)
    targets[rows // 2], targets[0] = 0, cols - 1
    return targets


def outputs(problem: Problem, values: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Return the outputs of a problem as arrays full of NaN; shapes may depend on `values`."""
    return {
        argument.name: np.full(
            problem.array_shape(argument, values), np.nan, argument.numpy_dtype(problem.dtype)
        )
        for argument in problem.arrays
        if argument.output
    }


# ---- references ---------------------------------------------------------------------------------


class Exact(NamedTuple):
    """An output in fp64, and the tolerance for a kernel's output before any 16-bit rounding."""

    value: np.ndarray
    error: np.ndarray


class Rows(NamedTuple):
    """Softmax of rows in fp64, with PyTorch's rules: a row of all -inf, or one with NaN or +inf,
    gives NaN. The fields have shape (rows, cols) or (rows, 1)."""

    softmax: np.ndarray
    logarithm: np.ndarray
    top: np.ndarray  # the maximum of a row, ignoring NaN
    log_sum: np.ndarray  # log(sum(exp(x - top))); -inf for a row of all -inf
    relative: np.ndarray  # tolerated relative error of softmax
    log_error: np.ndarray  # tolerated absolute error of log(sum)
    distance: np.ndarray  # distance from the maximum plus `rounded`

    @classmethod
    def of(cls, x: np.ndarray, rounded: np.ndarray | float = 0.0) -> Rows:
        """`rounded` is the error of a kernel's logits in units of u."""
        with np.errstate(all="ignore"):
            exact = x.astype(np.float64)
            top = exact.max(axis=-1, keepdims=True)
            below = exact - top
            exponentials = np.exp(below)
            total = exponentials.sum(axis=-1, keepdims=True)
            softmax = exponentials / total
            log_sum = np.where(top == -np.inf, top, np.log(total))
            distance = np.where(np.isfinite(below), -below, 0.0) + rounded
            lost = np.where(softmax < UNIT_ROUNDOFF, softmax, 0.0).sum(axis=-1, keepdims=True)
            summed = 16 + 3 * np.sqrt(x.shape[-1])
            weighted = (softmax * distance).sum(axis=-1, keepdims=True)
            return cls(
                softmax,
                below - np.log(total),
                np.fmax.reduce(exact, axis=-1, keepdims=True),
                log_sum,
                (summed + distance) * UNIT_ROUNDOFF + lost,
                (summed + weighted + 2 * np.log(total)) * UNIT_ROUNDOFF + lost,
                distance,
            )

    @property
    def statistics(self) -> np.ndarray:
        """Maximum and log(sum) per row, (rows, 2): written by the loss, read by its gradient."""
        return np.concatenate([self.top, self.log_sum], axis=-1)


def reference(x: np.ndarray) -> np.ndarray:
    """Return softmax over the last axis in fp64, with PyTorch's rules: a row of all -inf, or one
    with NaN or +inf, gives NaN."""
    return Rows.of(x).softmax


def ulp(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the unit in the last place of a dtype at each value."""
    stored = ml_dtypes.finfo(dtype)
    _, exponent = np.frexp(values)
    spacing = np.ldexp(float(stored.eps), exponent - 1)
    return np.maximum(spacing, float(stored.smallest_subnormal))


def allowed(exact: Exact, dtype: np.dtype) -> np.ndarray:
    """Return the tolerance of |output - value| per element, for an output of a dtype."""
    half_ulp = ulp(exact.value, dtype) / 2 if dtype.itemsize == 2 else 0.0
    return exact.error + half_ulp + TINY


def agrees(y: np.ndarray, exact: Exact) -> np.ndarray:
    """Return per element whether an output is within its tolerance; NaN and infinities must be
    where the reference has them."""
    value = exact.value
    with np.errstate(invalid="ignore"):
        right = (np.abs(y.astype(np.float64) - value) <= allowed(exact, y.dtype)) | (y == value)
    return right | (np.isnan(value) & np.isnan(y))


def expected(
    operation: Operation,
    values: Mapping[str, object],
    features: Mapping[str, int] | None = None,
    at: np.ndarray | None = None,
) -> dict[str, Exact]:
    """Return the exact outputs of an operation from all its arguments (`Problem.complete`). `at`
    are the row numbers if only some rows are given."""
    with np.errstate(all="ignore"):
        return _REFERENCES[operation.name](values, features or {}, at)


def _copy(values, features, at) -> dict[str, Exact]:
    x = values["x"].astype(np.float64)
    return {"y": Exact(x, 0 * x)}


def _two_reads(values, features, at) -> dict[str, Exact]:
    total = values["a"].astype(np.float64) + values["b"].astype(np.float64)
    return {"y": Exact(total, np.abs(total) * UNIT_ROUNDOFF)}


def _softmax(values, features, at) -> dict[str, Exact]:
    x = values["x"].astype(np.float64)
    at = np.arange(len(x)) if at is None else at
    logits, rounded = _logits(x, values, features, at)
    rows = Rows.of(logits, rounded)
    value, error = rows.softmax, rows.relative * np.abs(rows.softmax)
    if features.get("ZERO"):
        empty = (logits == -np.inf).all(axis=-1, keepdims=True)
        value, error = (np.where(empty, 0.0, part) for part in (value, error))
    if features.get("LOG"):
        value = rows.logarithm
        error = rows.log_error + 2 * (rows.distance + np.abs(value)) * UNIT_ROUNDOFF
        error = np.where(np.isfinite(value), error, 0.0)
    if features.get("DROPOUT"):
        factor = dropout(values, at, x.shape[-1])
        value, error = value * factor, (error + 4 * UNIT_ROUNDOFF * np.abs(value)) * factor
    return {"y": Exact(value, error)}


def _logits(x: np.ndarray, values, features, at: np.ndarray):
    """Return the input of softmax, and the rounding error of a kernel's logits in units of u."""
    scaled = float(values.get("scale", 1.0)) * x
    logits = scaled
    if features.get("BIAS"):
        logits = scaled + values["bias"].astype(np.float64)[_rows_beside("bias", values, at)]
    if features.get("MASK"):
        logits = np.where(hidden(values, features, at, x.shape[-1]), -np.inf, logits)
    if features.get("BIAS") or values.get("scale", 1.0) != 1:
        rounded = np.where(np.isfinite(logits), np.abs(scaled) + np.abs(logits), 0.0)
        return logits, rounded + rounded.max(axis=-1, keepdims=True)
    return logits, 0.0


def _rows_beside(name: str, values: Mapping, at: np.ndarray) -> np.ndarray:
    """Return the row of a mask or a bias for each of the rows `at`."""
    rows, repeat, group = (
        int(values[f"{name}_{number}"]) for number in ("rows", "repeat", "group")
    )
    return at // group * rows + at // repeat % rows


def hidden(values: Mapping, features: Mapping, at: np.ndarray, cols: int) -> np.ndarray:
    """Return which elements of the rows `at` a mask hides."""
    if features["MASK"] == BYTES:
        return values["mask"][_rows_beside("mask", values, at)] != 0
    query = at // int(values["mask_repeat"]) % int(values["mask_rows"])
    return np.arange(cols) > query[:, None] + int(values["diagonal"])


def dropout(values: Mapping, at: np.ndarray, cols: int) -> np.ndarray:
    """Return the dropout factor of each element of the rows `at`: 0, or 1 / (1 - p) with p rounded
    down to a multiple of 1/65536; all 0 if that is 1.

    The generator is Philox 4x32 with seven rounds (Salmon et al., Parallel random numbers: as easy
    as 1, 2, 3, 2011). The key is the seed, the counter (column / 8, row, offset). Column c is
    dropped if number c % 8 of the eight 16-bit results is less than 65536 p.
    """
    seed, offset = int(values["seed"]), int(values["offset"])
    threshold = int(float(np.float32(values["p"])) * 65536)
    counter = np.broadcast_arrays(
        np.arange(-(-cols // 8), dtype=np.uint64),
        np.asarray(at).astype(np.uint64)[:, None],
        np.uint64(offset % 2**32),
        np.uint64(offset >> 32),
    )
    key = [seed % 2**32, seed >> 32]
    low = np.uint64(2**32 - 1)
    for _ in range(7):
        a, b = np.uint64(0xD2511F53) * counter[0], np.uint64(0xCD9E8D57) * counter[2]
        high = (b >> np.uint64(32)) ^ counter[1], (a >> np.uint64(32)) ^ counter[3]
        counter = high[0] ^ np.uint64(key[0]), b & low, high[1] ^ np.uint64(key[1]), a & low
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    halves = [half for word in counter for half in (word % 2**16, word >> np.uint64(16))]
    numbers = np.stack(halves, axis=-1).reshape(len(at), -1)[:, :cols]
    factor = 65536 / (65536 - threshold) if threshold < 65536 else 0.0
    return np.where(numbers < threshold, 0.0, factor)


def _any_axis(values, features, at) -> dict[str, Exact]:
    by_row = {**values, "x": np.moveaxis(values["x"], 1, -1)} if values["x"].ndim == 3 else values
    y = _softmax(by_row, features, at)["y"]
    if values["x"].ndim == 2:
        return {"y": y}
    return {"y": Exact(*(np.moveaxis(part, -1, 1) for part in y))}


def _backward(values, features, at) -> dict[str, Exact]:
    given, g = values["y"].astype(np.float64), values["dy"].astype(np.float64)
    at = np.arange(len(g)) if at is None else at
    scale, log, from_x = float(values["scale"]), features.get("LOG"), features.get("FROM_X")
    if features.get("MASK"):
        masked = hidden(values, features, at, g.shape[-1])
        given, g = np.where(masked, -np.inf if from_x else 0.0, given), np.where(masked, 0.0, g)
    if features.get("DROPOUT"):
        g = g * dropout(values, at, g.shape[-1])
    summed = (16 + 3 * np.sqrt(g.shape[-1])) * UNIT_ROUNDOFF
    if from_x:
        rows = Rows.of(given)
        y, relative = rows.softmax, rows.relative
        if features.get("MASK"):
            empty = (given == -np.inf).all(axis=-1, keepdims=True)
            y, relative = (np.where(empty, 0.0, part) for part in (y, relative))
    elif log:
        y, relative = np.exp(given), (16 + np.abs(given)) * UNIT_ROUNDOFF
        relative = np.where(y > 0, relative, 0.0)
    else:
        y, relative = given, np.zeros_like(given)
    terms = g if log else y * g
    total = terms.sum(axis=-1, keepdims=True)
    total_error = summed * np.abs(terms).sum(axis=-1, keepdims=True)
    if not log:
        total_error = total_error + (relative * np.abs(terms)).sum(axis=-1, keepdims=True)
    value = g - y * total if log else y * (g - total)
    inner = np.abs(y) * np.abs(total) + (np.abs(g) if log else np.abs(y * g))
    # A product with softmax inherits the relative error of softmax.
    error = np.abs(y) * total_error + relative * np.abs(y * total if log else value)
    error = error + 8 * UNIT_ROUNDOFF * inner + TINY * (2 + g.shape[-1])
    return {"dx": Exact(scale * value, abs(scale) * error)}


def _cross_entropy(values, features, at) -> dict[str, Exact]:
    x = values["x"].astype(np.float64)
    rows, smoothing, z = Rows.of(x), float(values["smoothing"]), float(values["z_loss"])
    top, log_sum, log_error = (part[:, 0] for part in (rows.top, rows.log_sum, rows.log_error))
    lse = top + log_sum
    valid, ignored, column = _targets_of(values, x.shape)
    below = top - np.where(valid, x[np.arange(len(x)), column], np.nan)  # target below maximum
    smoothed = smoothing * (top - x.mean(axis=-1)) if smoothing else 0.0
    loss = log_sum + (1 - smoothing) * below + smoothed + z * lse**2
    size = np.abs(x).mean(axis=-1) + np.abs(top)
    summed = smoothing * (16 + 3 * np.sqrt(x.shape[-1])) * size
    ulps = summed + 4 * z * lse**2 + 4 * (np.abs(log_sum) + np.abs(below) + np.abs(loss))
    loss_error = (1 + 2 * z * np.abs(lse)) * log_error + ulps * UNIT_ROUNDOFF
    statistics_error = np.where(np.isfinite(log_sum), log_error, 0.0)
    return {
        "loss": Exact(np.where(ignored, 0.0, loss), np.where(ignored, 0.0, loss_error)),
        "statistics": Exact(rows.statistics, np.stack([0 * log_error, statistics_error], axis=-1)),
    }


def _targets_of(values, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each row whether its target is a column, whether it is ignored, and the target's
    column, or 0 if the target is not a column."""
    target = values["target"]
    valid = (target >= 0) & (target < shape[1])
    return valid, target == int(values["ignore_index"]), np.where(valid, target, 0)


def _cross_entropy_backward(values, features, at) -> dict[str, Exact]:
    x, dloss = (values[name].astype(np.float64) for name in ("x", "dloss"))
    top, log_sum = np.hsplit(values["statistics"].astype(np.float64), 2)
    smoothing, z, dloss = float(values["smoothing"]), float(values["z_loss"]), dloss[:, None]
    valid, ignored, column = _targets_of(values, x.shape)
    softmax = np.exp(x - top - log_sum)
    far = np.abs(x - top) + np.abs(log_sum)
    relative = np.where(softmax > 0, (20 + 4 * far) * UNIT_ROUNDOFF, 0.0)
    with_z_loss = softmax * (1 + 2 * z * (top + log_sum))
    onehot = np.zeros_like(x)
    onehot[np.arange(len(x)), column] = 1 - smoothing
    value = dloss * (with_z_loss - onehot - smoothing / x.shape[-1])
    value = np.where(valid[:, None], value, np.nan)
    parts = relative * softmax * (1 + 2 * z * (np.abs(top) + np.abs(log_sum)))
    parts = parts + 4 * UNIT_ROUNDOFF * (np.abs(with_z_loss) + onehot + smoothing / x.shape[-1])
    ignored = ignored[:, None]
    error = np.where(ignored, 0.0, np.abs(dloss) * (parts + TINY))
    return {"dx": Exact(np.where(ignored, 0.0, value), error)}


def _loss_and_gradient(values, features, at) -> dict[str, Exact]:
    rows, z = Rows.of(values["x"]), abs(float(values["z_loss"]))
    loss = _cross_entropy(values, features, at)["loss"]
    dx = _cross_entropy_backward({**values, "statistics": rows.statistics}, features, at)["dx"]
    by_sum = rows.softmax * (1 + 2 * z * (1 + np.abs(rows.top + rows.log_sum))) * rows.log_error
    by_sum = np.where(dx.error > 0, by_sum * np.abs(values["dloss"])[:, None], 0.0)
    return {"loss": loss, "dx": Exact(dx.value, dx.error + by_sum)}


def _read(values, features, at) -> dict[str, Exact]:
    flat = values["x"].astype(np.float64).reshape(-1)
    edges = np.arange(0, flat.size, SUMMED)
    error = np.add.reduceat(np.abs(flat), edges) * 64 * UNIT_ROUNDOFF
    return {"y": Exact(np.add.reduceat(flat, edges), error)}


_REFERENCES: dict[str, Callable[..., dict[str, Exact]]] = {
    "softmax": _softmax,
    "softmax_any_axis": _any_axis,
    "softmax_backward": _backward,
    "cross_entropy": _cross_entropy,
    "cross_entropy_backward": _cross_entropy_backward,
    "cross_entropy_loss_and_gradient": _loss_and_gradient,
    "copy": _copy,
    "two_reads": _two_reads,
    "read": _read,
}
