"""Is it softmax? Inputs that expose mistakes, an fp64 reference, a tolerance that can fail.

The tolerance follows each element, since a mean output is 1/cols: a fixed 1e-4 would accept an
all-zero answer for long rows.

    |y - reference| <= ((16 + |x - max| + 3 sqrt(cols)) u + lost) reference + tiny

u = 2^-24 is the unit roundoff of fp32. |x - max| is what rounding the argument of exp costs,
sqrt(cols) is the growth of a serial sum of random rounding errors (Higham, Accuracy and Stability
of Numerical Algorithms, section 2.6): one of them is uniform up to u, so that 3 stands for five
standard deviations. `lost` is the sum of the row's outputs below u: a serial sum that has passed
its largest term drops them. 16 covers the few ulp of exp, the reduction tree and the division.
`tiny` is the smallest normal fp32, since CuPy compiles with -ftz=true. A 16-bit output adds half
an ulp of its type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import ml_dtypes
import numpy as np

from .bound import Kernel, kernel_of
from .shapes import LONG_QUICK_SHAPES, QUICK_SHAPES, SPECIAL_COLUMNS, SPECIAL_PACKS
from .simt import ShownShort

UNIT_ROUNDOFF = 2.0**-24
TINY = 2.0**-126
UNTOUCHED = 7.0  # stands where a kernel has nothing to write


class WrongResult(ShownShort, AssertionError):
    """A kernel's output is not what it should be; the message shows where and how.

    `summary` leaves out the values, whose last digits depend on the machine.
    """

    def __init__(self, summary: str, values: str = ""):
        super().__init__(f"{summary}: {values}" if values else summary)
        self.summary, self.values = summary, values


def make_input(rows: int, cols: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """A matrix of shape (rows, cols) on which wrong kernels look wrong.

    Normal values of standard deviation 2, no two rows alike; each row is shifted by -200 to 200,
    so that leaving out the maximum overflows or divides by zero; each row has one value 4 above
    its maximum at a random place and, where it is long enough, a tie of two. With 16 bits every
    second row stays where it is, since shifted values have hardly any digits left.
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
    """Six rows with -inf (tail, scattered, all but one, all), NaN and +inf."""
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
    """An output array like x, full of NaN: what a kernel does not write stays visible."""
    return np.full_like(x, np.nan)


def apart(x: np.ndarray, stride: int, phase: int, around: float = np.nan) -> np.ndarray:
    """A copy of a matrix whose rows start `stride` elements apart and the first of them `phase`
    elements into its base array, which holds `around` in all other places."""
    rows, cols = x.shape
    base = np.full(phase + rows * stride + 3, around, x.dtype)
    view = base[phase : phase + rows * stride].reshape(rows, stride)[:, :cols]
    view[:] = x
    return view


def reference(x: np.ndarray) -> np.ndarray:
    """Softmax over the last axis in fp64, with PyTorch's rules: a row of all -inf, or one with
    NaN or +inf, gives NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        exact = x.astype(np.float64)
        exponentials = np.exp(exact - exact.max(axis=-1, keepdims=True))
        return exponentials / exponentials.sum(axis=-1, keepdims=True)


def tolerance(x: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Largest allowed |y - expected| per element; see the formula above."""
    with np.errstate(invalid="ignore"):
        exact = x.astype(np.float64)
        distance = np.abs(exact - exact.max(axis=-1, keepdims=True))
    distance = np.where(np.isfinite(distance), distance, 0.0)
    lost = np.where(expected < UNIT_ROUNDOFF, expected, 0.0).sum(axis=-1, keepdims=True)
    relative = (16 + distance + 3 * np.sqrt(x.shape[-1])) * UNIT_ROUNDOFF + lost
    half_ulp = ulp(expected, x.dtype) / 2 if x.dtype.itemsize == 2 else 0.0
    return relative * np.abs(expected) + half_ulp + TINY


def ulp(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """How far apart numbers of a dtype are at values."""
    stored = ml_dtypes.finfo(dtype)
    _, exponent = np.frexp(values)
    spacing = np.ldexp(float(stored.eps), exponent - 1)
    return np.maximum(spacing, float(stored.smallest_subnormal))


def check_softmax(x: np.ndarray, y: np.ndarray) -> None:
    """Raise `WrongResult` unless y is softmax of x over the last axis.

    Both have the same shape and dtype. NaN is accepted exactly where the reference has it.
    """
    _check_form(x, y)
    expected = reference(x)
    with np.errstate(invalid="ignore"):
        error = np.abs(y.astype(np.float64) - expected)
        right = (error <= tolerance(x, expected)) | (np.isnan(expected) & np.isnan(y))
    if right.all():
        return
    wrong = np.argwhere(~right.reshape(-1, x.shape[-1]))
    row, col = map(int, wrong[0])
    got = y.reshape(-1, x.shape[-1])[row]
    raise WrongResult(
        f"{len(wrong)} of {x.size} elements are wrong, first at row {row}, column {col}"
        f"{_hint(x, y, expected)}",
        f"got {float(got[col]):.6g}, expected {expected.reshape(-1, got.size)[row, col]:.6g}",
    )


def check_copy(x: np.ndarray, y: np.ndarray) -> None:
    """Raise `WrongResult` unless y equals x bit for bit."""
    _check_form(x, y)
    same = x.reshape(-1).view(np.uint8) == y.reshape(-1).view(np.uint8)
    if not same.all():
        first = int(np.argmin(same)) // x.itemsize
        place = tuple(map(int, np.unravel_index(first, x.shape)))
        raise WrongResult(f"y differs from x, first at {place}: {y[place]} instead of {x[place]}")


def _check_form(x: np.ndarray, y: np.ndarray) -> None:
    if x.shape != y.shape or x.dtype != y.dtype:
        raise WrongResult(f"y is {y.dtype}{y.shape}, x is {x.dtype}{x.shape}")


def _hint(x: np.ndarray, y: np.ndarray, expected: np.ndarray) -> str:
    """What kind of mistake it looks like; empty if it looks like none of these."""
    finite = np.isfinite(expected).all(axis=-1)
    if not finite.any():
        return ""
    stored = y.dtype
    x, y, expected = x[finite], y[finite].astype(np.float64), expected[finite]
    if np.isnan(y).all():
        return " (nothing was written, or every row overflowed)"
    if np.isnan(y).any():
        return " (some elements are NaN: not written, or inf / inf)"
    if not y.any():
        return " (all zero)"
    sums = y.sum(axis=-1)
    worst = sums.reshape(-1)[np.abs(sums - 1).argmax()]
    if abs(worst - 1) > (1e-2 if stored.itemsize == 2 else 1e-3):
        return f" (rows do not sum to 1; the worst sums to {worst:.4g})"
    if x.shape[-1] > 1 and (y.argmax(axis=-1) != expected.argmax(axis=-1)).any():
        return " (rows sum to 1, but the largest element is at another place)"
    return ""


def comparison(name: str) -> Callable[[np.ndarray, np.ndarray], None]:
    """What the kernel of a name is held against: its input if it copies, else softmax."""
    return check_copy if name.startswith("copy") else check_softmax


def check_kernel(
    kernel,
    shapes: Iterable[Sequence[int]] | None = None,
    block: int | None = None,
    dtype: str = "float32",
) -> str:
    """Run a kernel of the series over shapes and over special rows, and check every output.

    `kernel` is a `cupy.RawKernel` whose source has a header, or the text of a kernel file, which is
    compiled for each shape as its header says; launch shapes come from there. `shapes` are
    `QUICK_SHAPES`, with `LONG_QUICK_SHAPES` for a text with a Build line or one that takes none of
    those, if none are given. A kernel named "copy" is held against its input, any other against
    softmax. Shapes that the header refuses are left out. A kernel that takes strides computes each
    of them a second time in rows that are apart, or start between two multiples of 16 bytes.
    Returns one sentence; raises `WrongResult` naming the shape, `ValueError` if there is no header
    or it refuses every shape, and `TypeError` for shapes that are no pairs of integers.
    """
    unbound = kernel_of(kernel, block)
    contract = unbound.header
    per_shape = unbound.raw is None and contract.build
    long = per_shape or not any(unbound.accepts(*shape, dtype) for shape in QUICK_SHAPES)
    if shapes is None:
        shapes = (*QUICK_SHAPES, *(LONG_QUICK_SHAPES if long else ()))
    shapes = [*shapes]
    for shape in shapes:
        if np.ndim(shape) != 1 or len(shape) != 2:
            raise TypeError(f"shapes are pairs [(rows, cols), ...], not {shape!r}")
    special_cols = [
        cols
        for cols in SPECIAL_COLUMNS
        if (long or cols < 1000) and unbound.accepts(6, cols, dtype)
    ]
    if not special_cols and unbound.accepts(6, SPECIAL_PACKS, dtype):
        special_cols = [SPECIAL_PACKS]
    taken = [shape for shape in shapes if unbound.accepts(*shape, dtype)]
    if not taken:
        raise ValueError(f"the header takes {dtype} at none of these shapes")
    inputs = [make_input(*shape, dtype=dtype) for shape in taken]
    specials = [special_rows(cols, dtype) for cols in special_cols]
    views = 0
    for number, x in enumerate([*inputs, *specials]):
        _check_run(unbound, x, x, poisoned(x))
        if contract.strided:
            views += _check_apart(unbound, x, number)
    rows = sum(len(x) for x in specials)
    shown = f"{len(inputs)} shapes" + (f", {views} views" if contract.strided else "")
    return f"{unbound.name}: right on {shown} and {rows} rows with -inf, NaN or +inf"


def _check_run(unbound: Kernel, x: np.ndarray, given: np.ndarray, y: np.ndarray) -> None:
    """Run a kernel over x as it is `given`, into y."""
    strides = [array.strides[0] // array.itemsize for array in (given, y)]
    where = f"{unbound.name} at rows x cols = {x.shape}"
    if strides != 2 * [x.shape[1]]:
        where += f", x_stride = {strides[0]}, y_stride = {strides[1]}"
    try:
        kernel = unbound.starting_at(given, y)
        kernel.bind(*x.shape, x.dtype, None, *strides).run(given, y)
        comparison(unbound.name)(x, y)
    except WrongResult as error:
        raise WrongResult(f"{where}: {error.summary}", error.values) from None


def _check_apart(unbound: Kernel, x: np.ndarray, number: int) -> bool:
    """The same in one of three layouts, in turn; False if the header refuses it."""
    rows, cols = x.shape
    pack, unit = 16 // x.itemsize, unbound.header.align(x.dtype) // x.itemsize
    whole = -cols % pack  # elements from the end of a row to the next multiple of 16 bytes
    x_gap, y_gap, x_phase, y_phase = (
        (5, 2, 1, 3),  # each row starts elsewhere between two multiples of 16 bytes
        (0, 0, 3, 1),
        (whole, whole + pack, 0, 0),
    )[number % 3]
    if not unbound.accepts(rows, cols, x.dtype, None, cols + x_gap, cols + y_gap):
        return False
    y = apart(poisoned(x), cols + y_gap, y_phase * unit, UNTOUCHED)
    before = y.base.copy()
    _check_run(unbound, x, apart(x, cols + x_gap, x_phase * unit), y)
    y[:] = poisoned(x)
    if y.base.tobytes() != before.tobytes():
        raise WrongResult(f"{unbound.name} at rows x cols = {x.shape} wrote between the rows of y")
    return True
