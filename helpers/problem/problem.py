"""One object for what is computed on what: `Problem`."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import TypedDict

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 after this)
import numpy as np

from ..base.typed_json import Count, Dtype
from .operations import (
    BANDWIDTH_BASELINES,
    CAUSAL,
    COPY,
    MATRIX,
    OPERATIONS,
    SOFTMAX,
    SUMMED,
    Argument,
    Operation,
)

DTYPES = ("float32", "float16", "bfloat16")  # of the series' kernels
MAX_INT = 2**31 - 1  # the range of a kernel's `int rows, int cols` and of a macro
# Limit for a matrix: keeps the products of rows and bytes in header expressions within 64 bits.
MAX_BYTES = 2**57
PACK_BYTES = 16  # the widest load or store of a thread
ROOM = 512  # columns of a bandwidth baseline are a multiple of this or of a smaller power of two


class _Needed(TypedDict):
    rows: Count
    cols: Count
    dtype: Dtype


class ProblemFields(_Needed, total=False):
    """A problem in a file: contiguous and aligned."""

    inner: Count
    operation: str
    features: dict[str, Count]


@dataclass(frozen=True)
class Problem:
    """An operation with its features on matrices of one shape and dtype, in memory as described.

    `rows` and `cols` count rows and the elements of a row; the elements of a row are `inner`
    elements apart, so that above 1 the arrays are outer x dim x inner with rows = outer * inner and
    cols = dim. `features` may be given as a mapping from names to numbers or words, `operation` by
    name. Row strides count elements from one row to the next; None is cols.

    Raises `TypeError` for sizes that are not integers, and `ValueError` for an empty matrix, one
    that no kernel can address, a stride below cols, a dtype that NumPy does not know, and
    operations and features that do not exist.
    """

    rows: int
    cols: int
    dtype: str = "float32"
    inner: int = 1
    operation: Operation = SOFTMAX
    features: tuple[tuple[str, int], ...] = ()  # the nonzero ones, in the order of the operation
    x_stride: int | None = None  # None: cols
    y_stride: int | None = None
    aligned: bool = True  # whether x and y start at multiples of 16 bytes
    alike: bool = True  # whether x and y start at the same offset from a multiple of 16 bytes

    def __post_init__(self) -> None:
        keep = object.__setattr__
        for name in ("rows", "cols", "inner"):
            keep(self, name, integer(name, getattr(self, name)))
        for name in ("rows", "cols"):
            if not 1 <= getattr(self, name) <= MAX_INT:
                raise ValueError(f"{name} = {getattr(self, name)} is not 1 to {MAX_INT}")
        if self.inner < 1 or self.rows % self.inner:
            raise ValueError(f"rows = {self.rows} is not outer * inner, with inner = {self.inner}")
        keep(self, "dtype", known_dtype(self.dtype).name)
        for name in ("x_stride", "y_stride"):
            given = getattr(self, name)
            stride = self.cols if given is None else integer(name, given)
            if stride < self.cols:
                raise ValueError(
                    f"{name} = {stride} is less than a row, which has cols = {self.cols}"
                )
            if self.rows * stride * self.itemsize > MAX_BYTES:
                raise ValueError(f"{name} = {stride} makes a matrix of more than {MAX_BYTES} bytes")
            keep(self, name, None if stride == self.cols else stride)
        if isinstance(self.operation, str):
            if self.operation not in OPERATIONS:
                known = ", ".join(OPERATIONS)
                raise ValueError(f"operations are {known}, not {self.operation!r}")
            keep(self, "operation", OPERATIONS[self.operation])
        value, order = self.operation.value, [*self.operation.features]
        asked = {name: value(name, wanted) for name, wanted in dict(self.features).items()}
        chosen = sorted((name for name in asked if asked[name]), key=order.index)
        keep(self, "features", tuple((name, asked[name]) for name in chosen))

    # ---- sizes ----------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols

    @property
    def outer(self) -> int:
        return self.rows // self.inner

    @property
    def strides(self) -> tuple[int, int]:
        """Row strides of x and y in elements."""
        return self.x_stride or self.cols, self.y_stride or self.cols

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return np.dtype(self.dtype).itemsize

    @property
    def row_bytes(self) -> int:
        return self.cols * self.itemsize

    @property
    def contiguous(self) -> bool:
        """Whether there is no gap between rows; always true for a single row."""
        return self.rows == 1 or self.strides == (self.cols, self.cols)

    @property
    def packed(self) -> bool:
        """Whether there is no gap between rows and each row consists of whole aligned packs of 16
        bytes."""
        whole = self.row_bytes % PACK_BYTES == 0
        return self.aligned and self.alike and self.contiguous and whole

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes that a kernel may declare as parameters, and that array shapes are expressed
        in."""
        sums = -(-self.rows * self.cols // SUMMED)
        return {
            **{"rows": self.rows, "cols": self.cols, "inner": self.inner, "outer": self.outer},
            **{"dim": self.cols, "sums": sums, "2": 2},
        }

    # ---- arguments ------------------------------------------------------------------------------

    @property
    def plain(self) -> bool:
        """Whether it is softmax, or a copy, of x into y of the same dtype."""
        return self.operation in (SOFTMAX, COPY) and not self.features

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments that the features require."""
        return self.operation.asked(dict(self.features))

    @property
    def arrays(self) -> tuple[Argument, ...]:
        return tuple(argument for argument in self.arguments if argument.shape)

    @property
    def numbers(self) -> dict[str, int]:
        """Numbers of rows of the bias and the mask that are timed: one row of bias for all rows,
        one row of the mask per row."""
        return {"bias_rows": 1, "mask_rows": self.rows, "mask_repeat": 1}

    def array_shape(self, argument: Argument, values: Mapping[str, object]) -> tuple[int, ...]:
        """The shape of an array, which may depend on numbers among `values`. A matrix with `inner`
        above 1 has shape (outer, dim, inner)."""
        if argument.shape == MATRIX and self.inner > 1:
            return self.outer, self.cols, self.inner
        known = {**values, **self.sizes}
        return tuple(int(known[name]) for name in argument.shape)

    def complete(self, given: Mapping[str, object]) -> dict[str, object]:
        """The arguments that the features require; numbers that were not given are neutral.

        Raises `TypeError` naming a missing or an unknown argument, `ValueError` naming a number
        that is out of range.
        """
        values, asked = {}, self.arguments
        if unknown := [name for name in given if name not in {a.name for a in asked}]:
            takes = ", ".join(argument.name for argument in asked)
            raise TypeError(f"{self.name} takes {takes}, not {unknown[0]}")
        for argument in asked:
            if argument.name in given:
                values[argument.name] = value = given[argument.name]
                if argument.between and isinstance(value, Real):
                    low, high = argument.between
                    if not low <= value <= high:
                        raise ValueError(f"{argument.name} = {value} is not {low} to {high}")
            elif argument.shape:
                if not argument.output:
                    raise TypeError(f"{self.name} needs {argument.name}")
            else:
                values[argument.name] = self._neutral(argument, values)
        return values

    def _neutral(self, argument: Argument, values: Mapping[str, object]) -> float:
        if not isinstance(argument.neutral, tuple):
            return argument.neutral
        for name in argument.neutral:
            if name in values:
                # A value that is not an array is reported later.
                return len(values[name]) if np.ndim(values[name]) else 1
            if name in self.sizes:
                return self.sizes[name]
        raise AssertionError(argument)

    # ---- traffic --------------------------------------------------------------------------------

    @property
    def moved(self) -> int:
        """Bytes that a kernel must read and write, each counted once. Columns hidden by a causal
        mask are not read."""
        return sum(self._bytes(argument) for argument in self.arrays)

    def _bytes(self, argument: Argument) -> int:
        known = {**self.numbers, **self.sizes}
        count = math.prod(known[name] for name in argument.shape)
        if dict(self.features).get("MASK") == CAUSAL and argument.name == "x":
            whole, rest = divmod(self.rows, self.cols)
            count = (whole * self.cols * (self.cols + 1) + rest * (rest + 1)) // 2
        return count * argument.numpy_dtype(self.dtype).itemsize

    @property
    def bandwidth_baseline(self) -> Problem:
        """The bandwidth baseline: an operation that moves the same number of bytes to within 0.01%,
        with the same fractions read and written."""
        operation = BANDWIDTH_BASELINES[self.operation.bandwidth_baseline]
        bytes_of_a_float = Problem(ROOM, ROOM, operation=operation).moved / ROOM**2
        floats = max(1, int(self.moved / bytes_of_a_float))
        cols = min(8 * ROOM, 2 ** (floats.bit_length() - 1))
        return Problem(floats // cols, cols, operation=operation)

    # ---- in files -------------------------------------------------------------------------------

    @classmethod
    def of_json(cls, fields: ProblemFields) -> Problem:
        """The problem that a file contains. Raises `ValueError` as `Problem` does, and for other
        keys."""
        if unknown := fields.keys() - ProblemFields.__annotations__.keys():
            raise ValueError(f"a problem has no {min(unknown)!r}")
        return cls(**{**fields, "features": tuple(fields.get("features", {}).items())})

    def to_json(self) -> ProblemFields:
        """The fields as a file has them: defaults are left out, except for the dtype."""
        operation = {} if self.operation is SOFTMAX else {"operation": self.operation.name}
        features = {"features": dict(self.features)} if self.features else {}
        inner = {"inner": self.inner} if self.inner > 1 else {}
        sizes = {"rows": self.rows, "cols": self.cols, "dtype": self.dtype}
        return {**sizes, **inner, **operation, **features}

    # ---- text -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What is computed: "softmax with MASK = 2"."""
        asked = ", ".join(f"{name} = {value}" for name, value in self.features)
        return f"{self.operation.name} with {asked}" if asked else self.operation.name

    def place(self, dtype: bool | None = None) -> str:
        """ "65536 x 4096", or "8192 x 512 x 64" for another axis; with or without the dtype, by
        default with any dtype but float32."""
        sizes = self.shape if self.inner == 1 else (self.outer, self.cols, self.inner)
        said = " x ".join(map(str, sizes))
        shown = self.dtype != "float32" if dtype is None else dtype
        return f"{said} {self.dtype}" if shown else said


def integer(name: str, value) -> int:
    """Any integer as a Python int, which does not overflow. Raises `TypeError` that names the
    size."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {reprlib.repr(value)}") from None


def known_dtype(dtype: str | np.dtype | type) -> np.dtype:
    """NumPy's dtype. Raises `ValueError` for a dtype that NumPy does not know."""
    try:
        return np.dtype(dtype)
    except (TypeError, ValueError):
        given = f"{reprlib.repr(dtype)} ({type(dtype).__name__})"
        raise ValueError(f"dtype is one of {', '.join(DTYPES)}, not {given}") from None
