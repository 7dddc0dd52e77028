"""The operations that kernels of the series compute, with their arguments and features.

    // Computes: softmax_backward                in a header; without such a line it is softmax
    // Computes: softmax with DROPOUT = 1        a file with one fixed value of a feature

An operation names its arguments as kernels declare them. A feature is a macro that fuses a further
computation into the kernel; 0 disables it. A kernel that supports a feature has its macro in the
Build table or defines it under #ifndef, and declares all arguments of all its features: an array
that no enabled feature uses is a null pointer, and an omitted number has its neutral value.
`helpers.run.references` defines the results. Softmax follows PyTorch, with its fused operations:

    y = dropout(softmax(scale * x + bias, where mask is 0)), or its logarithm

Row r of x goes with row r / group * rows + r / repeat % rows of a mask or a bias, by its numbers
mask_rows, mask_repeat and mask_group: of a mask of shape (batch, 1, queries, keys), rows are the
queries and a group is heads * queries. An array that broadcasts in other ways has no such numbers.
A causal mask shows query i the keys 0 to i + diagonal; row r is query r / mask_repeat % mask_rows.

Shapes are tuples of size names (`Problem.sizes`): rows, cols and others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

SUMMED = 512  # elements per partial sum that `read` writes
MATRIX, ROWS, NUMBER = ("rows", "cols"), ("rows",), ()
STATISTICS = ("rows", "2")  # per row: its maximum m, and log(sum(exp(x - m)))


@dataclass(frozen=True)
class Argument:
    """An array or number that kernels of an operation take."""

    name: str
    shape: tuple[str, ...]  # names of sizes or of other arguments; () for a number
    dtype: str = "T"  # "T" stands for the dtype of the problem
    output: bool = False
    when: Mapping[str, int] = field(default_factory=dict)  # feature values that require it
    # The value of an omitted number, or names: the value is then the row count of the first name
    # that is an array given, or the size of that name.
    neutral: float | tuple[str, ...] | None = None
    between: tuple[float, float] | None = None  # the range of a number, inclusive

    def applies(self, features: Mapping[str, int]) -> bool:
        """Return whether a kernel with these features uses the argument."""
        return all(features.get(name, 0) == value for name, value in self.when.items())

    def numpy_dtype(self, dtype: str | np.dtype) -> np.dtype:
        """Return the NumPy dtype of the argument in a problem of the given dtype."""
        return np.dtype(dtype if self.dtype == "T" else self.dtype)


@dataclass(frozen=True, eq=False)
class Operation:
    """A computation, defined by its arguments in the order of a kernel's parameters."""

    name: str
    arguments: tuple[Argument, ...]
    features: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # words for its values 0, 1, ...
    sizes: tuple[str, ...] = MATRIX
    strided: bool = False  # whether its kernels may take x_stride and y_stride
    bandwidth_baseline: str = "00_copy"  # the kernel that only moves the same bytes

    def __repr__(self) -> str:
        return f"Operation({self.name})"

    def __reduce__(self) -> tuple:  # operations are singletons, also after unpickling
        return operation_named, (self.name,)

    def arguments_for(self, features: Mapping[str, int]) -> tuple[Argument, ...]:
        """Return the arguments that a kernel with these features uses."""
        return tuple(argument for argument in self.arguments if argument.applies(features))

    def arrays(self, features: Mapping[str, int]) -> tuple[Argument, ...]:
        """Return those of `arguments_for` that are arrays."""
        return tuple(argument for argument in self.arguments_for(features) if argument.shape)

    @property
    def required(self) -> tuple[str, ...]:
        """The parameters that every kernel declares first, in this order: arrays, then sizes."""
        always = (argument.name for argument in self.arrays({}))
        return (*dict.fromkeys(always), *self.sizes)

    @property
    def parameters(self) -> tuple[str, ...]:
        """All parameters that a kernel may declare, in this order."""
        strides = ("x_stride", "y_stride") if self.strided else ()
        names = (*self.required, *strides, *(argument.name for argument in self.arguments))
        return (*dict.fromkeys(names), "workspace")

    def value(self, feature: str, given: int | str) -> int:
        """Return a feature's value, given as a number or a word. Raises `ValueError` that lists the
        features and their words."""
        words = self.features.get(feature, ())
        number = words.index(given) if given in words else given
        if not isinstance(number, int) or not 0 <= number < len(words):
            known = "; ".join(f"{name} = {', '.join(of)}" for name, of in self.features.items())
            raise ValueError(
                f"{self.name} has no {feature} = {given}; its features: {known or 'none'}"
            )
        return int(number)


# ---- the operations -----------------------------------------------------------------------------

NO_MASK, BYTES, CAUSAL = range(3)  # values of MASK
MASKS = ("none", "bytes", "causal")
YES_OR_NO = ("no", "yes")
DROPOUT_ARGUMENTS = (  # dropout probability, key and counter of the random number generator
    Argument("p", NUMBER, "float32", when={"DROPOUT": 1}, neutral=0.0, between=(0, 1)),
    Argument("seed", NUMBER, "uint64", when={"DROPOUT": 1}, neutral=0),
    Argument("offset", NUMBER, "uint64", when={"DROPOUT": 1}, neutral=0),
)
MASK_ARGUMENTS = (
    Argument("mask", ("mask_rows", "cols"), "uint8", when={"MASK": BYTES}),
    Argument("mask_rows", NUMBER, "int32", when={"MASK": BYTES}, neutral=("mask",)),
    Argument("mask_rows", NUMBER, "int32", when={"MASK": CAUSAL}, neutral=("cols",)),
    Argument("mask_repeat", NUMBER, "int32", when={"MASK": BYTES}, neutral=1),
    Argument("mask_repeat", NUMBER, "int32", when={"MASK": CAUSAL}, neutral=1),
)
MASK_PLACEMENT = (
    Argument("mask_group", NUMBER, "int32", when={"MASK": BYTES}, neutral=("rows",)),
    Argument("diagonal", NUMBER, "int64", when={"MASK": CAUSAL}, neutral=0),
)
SCALE = Argument("scale", NUMBER, "float32", neutral=1.0)

COPY = Operation("copy", (Argument("x", MATRIX), Argument("y", MATRIX, output=True)), strided=True)
SOFTMAX = Operation(
    "softmax",
    (
        Argument("x", MATRIX),
        Argument("y", MATRIX, output=True, when={"WIDE": 0}),
        Argument("y", MATRIX, "float32", output=True, when={"WIDE": 1}),
        SCALE,
        Argument("bias", ("bias_rows", "cols"), when={"BIAS": 1}),
        Argument("bias_rows", NUMBER, "int32", when={"BIAS": 1}, neutral=("bias",)),
        *MASK_ARGUMENTS,
        *DROPOUT_ARGUMENTS,
        Argument("bias_repeat", NUMBER, "int32", when={"BIAS": 1}, neutral=1),
        Argument("bias_group", NUMBER, "int32", when={"BIAS": 1}, neutral=("rows",)),
        *MASK_PLACEMENT,
    ),
    {
        "MASK": MASKS,
        "BIAS": YES_OR_NO,
        "LOG": YES_OR_NO,
        "WIDE": YES_OR_NO,
        "DROPOUT": YES_OR_NO,
        "ZERO": YES_OR_NO,
    },
    strided=True,
)
ANY_AXIS = Operation(
    "softmax_any_axis",
    (Argument("x", MATRIX), Argument("y", MATRIX, output=True)),
    {"LOG": YES_OR_NO},
    ("outer", "dim", "inner"),
)
BACKWARD = Operation(
    "softmax_backward",
    (
        Argument("y", MATRIX),
        Argument("dy", MATRIX),
        Argument("dx", MATRIX, output=True),
        SCALE,
        *DROPOUT_ARGUMENTS,
        *MASK_ARGUMENTS,
        *MASK_PLACEMENT,
    ),
    {
        "LOG": YES_OR_NO,
        "FROM_X": YES_OR_NO,
        "DROPOUT": YES_OR_NO,
        "MASK": MASKS,
    },
    bandwidth_baseline="variants/00_two_reads",
)
LOSS_ARGUMENTS = (
    Argument("ignore_index", NUMBER, "int64", neutral=-100),
    Argument("smoothing", NUMBER, "float32", neutral=0.0, between=(0, 1)),
    Argument("z_loss", NUMBER, "float32", neutral=0.0),
)
CROSS_ENTROPY = Operation(
    "cross_entropy",
    (
        Argument("x", MATRIX),
        Argument("target", ROWS, "int64"),
        Argument("loss", ROWS, "float32", output=True),
        Argument("statistics", STATISTICS, "float32", output=True),
        *LOSS_ARGUMENTS,
    ),
    bandwidth_baseline="variants/00_read",
)
CROSS_ENTROPY_BACKWARD = Operation(
    "cross_entropy_backward",
    (
        Argument("x", MATRIX),
        Argument("target", ROWS, "int64"),
        Argument("statistics", STATISTICS, "float32"),
        Argument("dloss", ROWS, "float32"),
        Argument("dx", MATRIX, output=True),
        *LOSS_ARGUMENTS,
    ),
)
CROSS_ENTROPY_LOSS_AND_GRADIENT = Operation(
    "cross_entropy_loss_and_gradient",
    (
        Argument("x", MATRIX),
        Argument("target", ROWS, "int64"),
        Argument("dloss", ROWS, "float32"),
        Argument("loss", ROWS, "float32", output=True),
        Argument("dx", MATRIX, output=True),
        *LOSS_ARGUMENTS,
    ),
)
# Operations of the bandwidth baselines, which only move bytes.
TWO_READS = Operation(
    "two_reads",
    (Argument("a", MATRIX), Argument("b", MATRIX), Argument("y", MATRIX, output=True)),
    bandwidth_baseline="variants/00_two_reads",
)
READ = Operation(
    "read",
    (Argument("x", MATRIX), Argument("y", ("sums",), "float32", output=True)),
    bandwidth_baseline="variants/00_read",
)

BANDWIDTH_BASELINES = {
    operation.bandwidth_baseline: operation for operation in (COPY, TWO_READS, READ)
}
OPERATIONS = {
    operation.name: operation
    for operation in (
        *(SOFTMAX, ANY_AXIS, BACKWARD, CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD),
        *(CROSS_ENTROPY_LOSS_AND_GRADIENT, COPY, TWO_READS, READ),
    )
}


def operation_named(name: str) -> Operation:
    """Return the operation of a name; raises `KeyError`."""
    return OPERATIONS[name]


def parse_computes(text: str) -> tuple[Operation, dict[str, int]]:
    """Parse the text of a header's `Computes` line: the operation and its fixed feature values.
    Raises `ValueError` with the reason if the text is invalid."""
    name, _, fixed = text.partition(" with ")
    if name not in OPERATIONS:
        raise ValueError(f"`{name}` is not one of {', '.join(OPERATIONS)}")
    operation = OPERATIONS[name]
    return operation, dict(_features(operation, fixed))


def _features(operation: Operation, text: str) -> Iterator[tuple[str, int]]:
    for part in filter(None, text.split(", ")):
        given = re.fullmatch(r"([A-Z_]+) = (\w+)", part)
        if not given:
            raise ValueError(f"`{part}` is not NAME = value")
        number = int(given[2]) if given[2].isdecimal() else given[2]
        yield given[1], operation.value(given[1], number)
