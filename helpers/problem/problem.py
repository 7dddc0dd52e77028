"""`Problem`: an operation on matrices of one shape, dtype and memory layout."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import TypedDict

import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy)
import numpy as np

from ..base.json_files import Count, Dtype
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

DTYPES = ("float32", "float16", "bfloat16")  # that kernels of the series support
MAX_INT = 2**31 - 1  # the maximum of a kernel's `int rows, int cols` and of a macro
# The maximum size of a matrix, the range of virtual addresses. It also keeps the products of rows
# and bytes in headers within 64 bits.
MAX_BYTES = 2**57
PACK_BYTES = 16  # the widest load or store of one thread
BASELINE_COLS = 512  # cols of a bandwidth baseline: a power of two up to 8 times this


class _Needed(TypedDict):
    rows: Count
    cols: Count
    dtype: Dtype


class ProblemFields(_Needed, total=False):
    """A problem in a JSON file; it is contiguous and aligned."""

    inner: Count
    operation: str
    features: dict[str, Count]


@dataclass(frozen=True)
class Problem:
    """An operation with its features, on matrices of one shape, dtype and memory layout.

    `rows` is the number of rows and `cols` the number of elements per row. Neighbouring elements of
    a row are `inner` elements apart in memory: with inner > 1 the arrays are outer x dim x inner,
    rows = outer * inner and cols = dim. `features` may be given as a mapping from names to numbers
    or words, `operation` by name. A row stride is in elements; None stands for cols.

    Raises `TypeError` for sizes that are not integers, and `ValueError` for an empty matrix, one
    that no kernel can address, a stride below cols, a dtype unknown to NumPy, and an unknown
    operation or feature.
    """

    rows: int
    cols: int
    dtype: str = "float32"
    inner: int = 1
    operation: Operation = SOFTMAX
    features: tuple[tuple[str, int], ...] = ()  # non-zero ones, in the operation's order
    x_stride: int | None = None  # None: cols
    y_stride: int | None = None
    aligned: bool = True  # whether x and y start at multiples of 16 bytes
    alike: bool = True  # whether their addresses are equal modulo 16 bytes

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the class is frozen
        for name in ("rows", "cols", "inner"):
            set_field(self, name, integer(name, getattr(self, name)))
        for name in ("rows", "cols"):
            if not 1 <= getattr(self, name) <= MAX_INT:
                raise ValueError(f"{name} = {getattr(self, name)} is not 1 to {MAX_INT}")
        if self.inner < 1 or self.rows % self.inner:
            raise ValueError(f"rows = {self.rows} is not outer * inner, with inner = {self.inner}")
        set_field(self, "dtype", known_dtype(self.dtype).name)
        for name in ("x_stride", "y_stride"):
            given = getattr(self, name)
            stride = self.cols if given is None else integer(name, given)
            if stride < self.cols:
                raise ValueError(
                    f"{name} = {stride} is less than a row, which has cols = {self.cols}"
                )
            if self.rows * stride * self.itemsize > MAX_BYTES:
                raise ValueError(f"{name} = {stride} makes a matrix of more than {MAX_BYTES} bytes")
            set_field(self, name, None if stride == self.cols else stride)
        if isinstance(self.operation, str):
            if self.operation not in OPERATIONS:
                known = ", ".join(OPERATIONS)
                raise ValueError(f"operations are {known}, not {self.operation!r}")
            set_field(self, "operation", OPERATIONS[self.operation])
        value, order = self.operation.value, [*self.operation.features]
        values = {name: value(name, given) for name, given in dict(self.features).items()}
        enabled = sorted((name for name in values if values[name]), key=order.index)
        set_field(self, "features", tuple((name, values[name]) for name in enabled))

    # ---- sizes ----------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols

    @property
    def outer(self) -> int:
        return self.rows // self.inner

    @property
    def strides(self) -> tuple[int, int]:
        """Row strides of x and y, in elements."""
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
        """Whether rows follow each other without a gap; always true for a single row."""
        return self.rows == 1 or self.strides == (self.cols, self.cols)

    @property
    def packed(self) -> bool:
        """Whether rows are contiguous and each consists of whole, aligned packs of 16 bytes."""
        whole = self.row_bytes % PACK_BYTES == 0
        return self.aligned and self.alike and self.contiguous and whole

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes by name: those that kernels declare as parameters, and others for shapes."""
        sums = -(-self.rows * self.cols // SUMMED)
        return {
            **{"rows": self.rows, "cols": self.cols, "inner": self.inner, "outer": self.outer},
            **{"dim": self.cols, "sums": sums, "2": 2},
        }

    # ---- arguments ------------------------------------------------------------------------------

    @property
    def plain(self) -> bool:
        """Whether the operation is softmax or copy without features: y has the dtype of x."""
        return self.operation in (SOFTMAX, COPY) and not self.features

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments of the operation that the features use."""
        return self.operation.arguments_for(dict(self.features))

    @property
    def arrays(self) -> tuple[Argument, ...]:
        """The arguments that are arrays."""
        return tuple(argument for argument in self.arguments if argument.shape)

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers that give a timed bias and mask their shapes: one row of bias shared by all
        rows, one row of mask per row."""
        return {"bias_rows": 1, "mask_rows": self.rows, "mask_repeat": 1}

    def array_shape(self, argument: Argument, values: Mapping[str, object]) -> tuple[int, ...]:
        """Return the shape of an array argument, which may depend on numbers in `values`. With
        inner > 1 a matrix is (outer, dim, inner). A mask or a bias has its rows for each group."""
        if argument.shape == MATRIX and self.inner > 1:
            return self.outer, self.cols, self.inner
        known = {**values, **self.sizes}
        groups = -(-self.rows // int(known.get(f"{argument.name}_group", self.rows)))
        first, *others = (int(known[name]) for name in argument.shape)
        return first * groups, *others

    def complete(self, given: Mapping[str, object]) -> dict[str, object]:
        """Return the given arguments with omitted numbers set to their neutral values.

        Raises `TypeError` naming a missing input array or an unknown argument, `ValueError` naming
        a number out of its range.
        """
        values, arguments = {}, self.arguments
        if unknown := [name for name in given if name not in {a.name for a in arguments}]:
            takes = ", ".join(argument.name for argument in arguments)
            raise TypeError(f"{self.name} takes {takes}, not {unknown[0]}")
        for argument in arguments:
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
                # A value that is not an array is rejected later, by name.
                return len(values[name]) if np.ndim(values[name]) else 1
            if name in self.sizes:
                return self.sizes[name]
        raise AssertionError(argument)

    # ---- traffic --------------------------------------------------------------------------------

    @property
    def compulsory_bytes(self) -> int:
        """The compulsory memory traffic in bytes: each input read once, each output written once.
        Elements hidden by a causal mask are not read."""
        return sum(self._bytes(argument) for argument in self.arrays)

    def _bytes(self, argument: Argument) -> int:
        known = {**self.numbers, **self.sizes}
        count = math.prod(known[name] for name in argument.shape)
        causal = dict(self.features).get("MASK") == CAUSAL
        if causal and argument.shape == MATRIX and not argument.output:
            whole, rest = divmod(self.rows, self.cols)
            count = (whole * self.cols * (self.cols + 1) + rest * (rest + 1)) // 2
        return count * argument.numpy_dtype(self.dtype).itemsize

    @property
    def bandwidth_baseline(self) -> Problem:
        """The bandwidth baseline: a problem that only moves bytes, the same number of them to
        within 0.01%, with the same ratio of reads to writes."""
        operation = BANDWIDTH_BASELINES[self.operation.bandwidth_baseline]
        bytes_of_a_float = (
            Problem(BASELINE_COLS, BASELINE_COLS, operation=operation).compulsory_bytes
            / BASELINE_COLS**2
        )
        floats = max(1, int(self.compulsory_bytes / bytes_of_a_float))
        cols = min(8 * BASELINE_COLS, 2 ** (floats.bit_length() - 1))
        return Problem(floats // cols, cols, operation=operation)

    # ---- in files -------------------------------------------------------------------------------

    @classmethod
    def of_json(cls, fields: ProblemFields) -> Problem:
        """Build a problem from its JSON fields. Raises what `Problem` raises, and `ValueError` for
        an unknown key."""
        if unknown := fields.keys() - ProblemFields.__annotations__.keys():
            raise ValueError(f"a problem has no {min(unknown)!r}")
        return cls(**{**fields, "features": tuple(fields.get("features", {}).items())})

    def to_json(self) -> ProblemFields:
        """Return the JSON fields, without those that have their default value; dtype is kept."""
        operation = {} if self.operation is SOFTMAX else {"operation": self.operation.name}
        features = {"features": dict(self.features)} if self.features else {}
        inner = {"inner": self.inner} if self.inner > 1 else {}
        sizes = {"rows": self.rows, "cols": self.cols, "dtype": self.dtype}
        return {**sizes, **inner, **operation, **features}

    # ---- text -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The operation and its features: "softmax with MASK = 2"."""
        features = ", ".join(f"{name} = {value}" for name, value in self.features)
        return f"{self.operation.name} with {features}" if features else self.operation.name

    def place(self, dtype: bool | None = None) -> str:
        """Return the sizes, "65536 x 4096" or for another axis "8192 x 512 x 64", followed by the
        dtype if `dtype` is true, or if it is None and the dtype is not float32."""
        sizes = self.shape if self.inner == 1 else (self.outer, self.cols, self.inner)
        text = " x ".join(map(str, sizes))
        with_dtype = self.dtype != "float32" if dtype is None else dtype
        return f"{text} {self.dtype}" if with_dtype else text


def integer(name: str, value) -> int:
    """Convert any integer type to int, which cannot overflow; others raise `TypeError`."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {reprlib.repr(value)}") from None


def known_dtype(dtype: str | np.dtype | type) -> np.dtype:
    """Return a dtype as NumPy's; raise `ValueError` if NumPy does not know it."""
    try:
        return np.dtype(dtype)
    except (TypeError, ValueError):
        given = f"{reprlib.repr(dtype)} ({type(dtype).__name__})"
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {given}") from None
