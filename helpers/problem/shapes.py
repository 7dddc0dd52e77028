"""Families of matrix shapes (rows, cols) that are recorded, compared, profiled and checked.

2^28 elements are 1 GiB of float32. Tables and figures refer to the families by name:

    "grid"   2^28 elements, rows of 32 to 32768 columns
    "long"   the grid and, on the same axis, long rows of up to 1048576 columns
    "few"    few rows: too little work to fill a GPU
    "sweep"  4096 rows of 256 to 12672 columns, the plot of Triton's fused-softmax tutorial
    "square"  8192 rows of 8192 columns: attention scores, half of them hidden by a causal mask
    "vocabularies"  4096 rows of logits, for the loss of a language model
    "axes"   about 2^28 elements of outer x dim x inner: softmax along the middle axis
    "unaligned"  about 2^28 elements, unaligned rows of 33 to 128257 columns: most do not start at a
             multiple of 16 bytes

predictions.json, which says at which shapes a step is recorded, uses two more names:

    "fused"  the shapes of the grid and the long rows whose length is in `FUSED_COLUMNS`
    "few unaligned"  `UNALIGNED_FEW`
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from .operations import (
    ANY_AXIS,
    BACKWARD,
    BYTES,
    CAUSAL,
    CROSS_ENTROPY,
    CROSS_ENTROPY_BACKWARD,
    CROSS_ENTROPY_LOSS_AND_GRADIENT,
    SOFTMAX,
    Operation,
)
from .problem import DTYPES, Problem

Shape = tuple[int, int]

REFERENCE_SHAPE = (65536, 4096)  # at which predictions are made and steps are compared

# ---- recorded ---------------------------------------------------------------------------------

GRID_SHAPES = tuple((2**28 // cols, cols) for cols in (2**k for k in range(5, 16)))
LONG_SHAPES = tuple((2**28 // cols, cols) for cols in (2**k for k in range(16, 21)))
FEW_SHAPES = ((1, 32000), (4, 102400), (16, 131072), (128, 65536), (1, 1048576))
# Row counts at which a row per grid and persistent clusters take about the same time.
CROSSOVER_SHAPES = ((4, 2**20), (7, 2**20), (16, 2**20))
EVEN_SHAPE = (252, 2**20)  # rows divide evenly among the seven persistent clusters of some kernels
SWEEP_SHAPES = tuple((4096, cols) for cols in range(256, 12673, 128))
# Even numbers of rows, which the 16-bit copy requires.
UNALIGNED_SHAPES = tuple(
    (2**27 // cols * 2, cols)
    for cols in (33, 77, 129, 513, 1023, 4097, 12673, 32001, 50257, 128257)
)
UNALIGNED_FEW = ((65536, 77), (1, 50257))
# Row lengths and shapes of fused and related operations.
FUSED_COLUMNS = (512, 1024, 4096, 8192, 32768, 131072)
SQUARE_SHAPE = (8192, 8192)
VOCABULARY_SHAPES = tuple((4096, cols) for cols in (32000, 50257, 128256, 151936, 262144))
# (rows, dim, inner) with rows = outer * inner.
AXES = tuple(
    (2**28 // (dim * inner) * inner, dim, inner)
    for inner, dims in (
        *((2, (64, 512, 8192)), (3, (512,)), (7, (64, 512)), (16, (512, 8192)), (31, (512,))),
        *((32, (16, 512, 8192)), (64, (64, 512)), (100, (64, 512)), (256, (64, 512, 8192))),
        *((1024, (16, 64, 512, 2048, 8192)), (4096, (16, 512, 8192))),
    )
    for dim in dims
)
RECORDED_SHAPES = (
    *(*GRID_SHAPES, *LONG_SHAPES, *FEW_SHAPES, *CROSSOVER_SHAPES, EVEN_SHAPE, *SWEEP_SHAPES),
    *(*UNALIGNED_SHAPES, *UNALIGNED_FEW, SQUARE_SHAPE, *VOCABULARY_SHAPES),
)

# What a live notebook times of each family, with as many rows as fit in memory.
LIVE_SHAPES: Mapping[str, tuple[tuple[int, ...], ...]] = {
    **{
        family: tuple((2**28 // cols // 2 * 2, cols) for cols in columns)
        for family, columns in {
            "grid": (32, 128, 512, 1024, 4096, 32768),
            "long": (1024, 4096, 32768, 131072, 2**18),
            "unaligned": (1023, 4097, 12673, 32001, 50257, 128257),
            "vocabularies": (32000, 50257, 128256, 151936, 262144),
        }.items()
    },
    **{"few": FEW_SHAPES, "square": (SQUARE_SHAPE,)},
    "axes": tuple(
        (2**28 // (dim * inner) * inner, dim, inner)
        for dim, inner in ((512, 2), (512, 7), (64, 1024), (512, 1024), (2048, 1024), (512, 4096))
    ),
}

# ---- compared ------------------------------------------------------------------------------------

# Vocabulary sizes of language models, of which the second (50257) is not padded to a power of two;
# attention scores, in 16 bits; unaligned rows, with about as many elements as the last family but
# even numbers of rows, which the 16-bit copy requires.
VOCABULARIES = (32000, 50257, 128256, 151936, 262144)
ATTENTION_SHAPES = tuple((131072, cols) for cols in (128, 512, 2048, 8192))
COMPARED_FAMILIES = {  # in the order in which they are compared
    "few rows": FEW_SHAPES,
    "vocabularies": tuple((rows, cols) for cols in VOCABULARIES for rows in (1, 8, 64, 4096)),
    "rows that start anywhere": (
        *((8192, 50257), (65536, 77)),
        *((2**27 // cols * 2, cols) for cols in (77, 129, 1000, 1023, 4097, 12673, 50257, 128257)),
    ),
    "medium sizes": (
        *((8192, cols) for cols in (1024, 4096, 8192, 50304)),
        *((4096, cols) for cols in (256, 1024, 4096, 12672)),
    ),
    "attention": ATTENTION_SHAPES,
    "2^28 elements": tuple(
        (2**28 // cols, cols) for cols in (32, *(2**k for k in range(7, 19) if k != 8), 2**20)
    ),
}
COMPARED_TABLE = tuple(dict.fromkeys(("2^28 elements", "medium sizes", *COMPARED_FAMILIES)))
COMPARED_SHAPES = tuple(
    dict.fromkeys(shape for name in COMPARED_TABLE for shape in COMPARED_FAMILIES[name])
)  # without duplicates


def compared_family(shape: Shape) -> str:
    """Return the first family of the table that contains a compared shape; "" if none does, as for
    a shape given on the command line."""
    families = (name for name in COMPARED_TABLE if shape in COMPARED_FAMILIES[name])
    return next(families, "")


def compared_shapes(dtype: str) -> tuple[Shape, ...]:
    """Return the shapes at which a dtype is compared."""
    only_16_bit = set(ATTENTION_SHAPES) - set(COMPARED_FAMILIES["2^28 elements"])
    return tuple(
        shape for shape in COMPARED_SHAPES if dtype != "float32" or shape not in only_16_bit
    )


# ---- in a pipeline ----------------------------------------------------------------------------

# From launch-bound to far beyond the L2, 0.1 MB to 1.6 GB, denser around the capacity of the L2;
# short, medium and long rows of each size.
PIPELINE_SHAPES = (
    *((1, 32000), (4, 102400), (1, 2**20), (16, 131072)),
    *((4096, 256), (65536, 256), (2**18, 256), (2**21, 128)),
    *((4096, 1024), (8192, 1024), (2**18, 1024)),
    *((4096, 4096), (6144, 4096), (8192, 4096), REFERENCE_SHAPE),
    *((8192, 8192), (2**14, 2**14), (512, 32768), (8192, 50304)),
    *((128, 65536), (1024, 65536), (2048, 2**17), (32, 2**20), (256, 2**20)),
)

# ---- profiled ---------------------------------------------------------------------------------

SMALL_SHAPES = ((64, 1024), (129, 77), (1000, 100))
LARGE_SHAPES = ((8388608, 32), (262144, 1024), REFERENCE_SHAPE, (16384, 16384))  # 2^28 elements
# Also profiled for steps that are not recorded at the sweep.
SMALL_LONG_SHAPES = ((3, 20004), (1, 32000))
LARGE_LONG_SHAPES = ((1024, 262144), (256, 1048576))
LARGE_UNALIGNED_SHAPES = ((5340, 50257),)  # for steps recorded at "few unaligned"
SMALL_16_BIT_SHAPES = ((64, 1024), (129, 72), (3, 20000))

# ---- checked ----------------------------------------------------------------------------------

# Cheap shapes that catch the usual mistakes: one column, one row, lengths around a warp, odd
# lengths, row counts around a block.
QUICK_SHAPES = ((1, 1), (3, 7), (129, 31), (128, 32), (5, 33), (257, 65), (64, 256), (33, 1000))
# Also where several threads compute a row: only long rows have more than one warp in every kernel.
# One thread, which no other can disturb, would take seconds for them.
LONG_QUICK_SHAPES = ((3, 20000), (1, 32001))
# outer x dim x inner: dim 1 and larger, inner with and without whole packs, dims around a warp.
QUICK_AXES = (
    *((1, 1, 2), (3, 7, 5), (2, 33, 31), (5, 16, 32), (1, 130, 8), (3, 64, 100), (1, 1000, 3)),
)
# Lengths of rows with infinities and NaN; `SPECIAL_PACKS` is for a kernel that accepts only short
# rows of whole packs.
SPECIAL_COLUMNS = (5, 100, 20000)
SPECIAL_PACKS = 64
SPECIAL_INNER = 4  # `inner` of such rows, if softmax is along another axis


def family_of(problem: Problem) -> str:
    """Return the family of a recorded shape; "other" if no figure shows it. A smaller GPU records
    the grid and the long rows with fewer rows, so only their columns distinguish them."""
    rows, cols = problem.shape
    if problem.inner > 1:
        return "axes"
    if (rows, cols) == SQUARE_SHAPE or (rows, cols) in VOCABULARY_SHAPES:
        return "square" if (rows, cols) == SQUARE_SHAPE else "vocabularies"
    if (rows, cols) in FEW_SHAPES:
        return "few"
    if (rows, cols) in (*CROSSOVER_SHAPES, EVEN_SHAPE, *UNALIGNED_FEW):
        return "other"
    if any(cols == unaligned for _, unaligned in UNALIGNED_SHAPES):
        return "unaligned"
    if (rows, cols) in SWEEP_SHAPES:
        return "sweep"
    return "grid" if cols <= GRID_SHAPES[-1][1] else "long"


# ---- fused and related operations ---------------------------------------------------------------

ELEMENTS = 2**27
COMPARED_DTYPES = ("float32", "bfloat16")
# As in attention with heads of 64. A power of two: rounding the product to 16 bits is exact, so
# that baselines which do so are compared by speed alone.
SCALE = 0.125


def numbers(problem: Problem) -> Mapping[str, float]:
    """The numbers given for a problem; the others are neutral, since not all baselines have
    them."""
    fused = {"MASK", "BIAS"} & {*dict(problem.features)}
    return MappingProxyType({"scale": SCALE} if fused else {})


def name_of(problem: Problem) -> str:
    """ "32768 x 4096 bfloat16", after the name of its group if it is not softmax alone."""
    place = problem.place(dtype=True)
    return place if problem.plain else f"{group_of(problem)}, {place}"


def _rows(cols: int, inner: int = 1) -> int:
    """The number of rows for `ELEMENTS` elements: even, and a multiple of `inner`."""
    each = cols * inner * (2 if inner == 1 else 1)
    return ELEMENTS // each * each // cols


def _at(*columns: int) -> tuple[Shape, ...]:
    return tuple((_rows(cols), cols) for cols in columns)


ROW_LENGTHS = _at(4096, 1024, 32768)
SQUARES = ((8192, 8192), *_at(4096, 1024))  # attention scores; rows form whole squares
LONG_ROWS = _at(4096, 32768, 1024, 131072)
# (dim, inner)
GROUP_AXES = ((512, 32), (64, 1024), (512, 7), (8192, 64), (64, 2), (16, 4096), (2048, 1024))
LOGITS = _at(128256, 32000, 50257, 262144)  # vocabularies
SIXTEEN_BITS = COMPARED_DTYPES[1:]


class Group(NamedTuple):
    """One operation with one feature, at the same shapes in each of its dtypes."""

    operation: Operation
    shapes: tuple[tuple[int, ...], ...]  # (rows, cols), or (rows, dim, inner)
    features: tuple[tuple[str, int], ...] = ()
    dtypes: tuple[str, ...] = COMPARED_DTYPES

    def problem(self, shape: Sequence[int], dtype: str) -> Problem:
        rows, cols, *inner = shape
        return Problem(rows, cols, dtype, *(inner or [1]), self.operation, self.features)

    def problems(self, number: int) -> Iterator[Problem]:
        """The problems at one of its shapes; empty after the last."""
        for shape in self.shapes[number : number + 1]:
            yield from (self.problem(shape, dtype) for dtype in self.dtypes)


GROUPS: Mapping[str, Group] = MappingProxyType(
    {
        "gradient of softmax": Group(BACKWARD, LONG_ROWS),
        "cross-entropy": Group(CROSS_ENTROPY, LOGITS),
        "gradient of cross-entropy": Group(CROSS_ENTROPY_BACKWARD, LOGITS),
        "cross-entropy with gradient": Group(
            CROSS_ENTROPY_LOSS_AND_GRADIENT, (*LOGITS, *_at(30522, 8192, 1000))
        ),
        "any axis": Group(
            ANY_AXIS, tuple((_rows(dim, inner), dim, inner) for dim, inner in GROUP_AXES)
        ),
        "scale and mask": Group(SOFTMAX, ROW_LENGTHS, (("MASK", BYTES),)),
        "scale and causal mask": Group(SOFTMAX, SQUARES, (("MASK", CAUSAL),)),
        "log-softmax": Group(SOFTMAX, ROW_LENGTHS, (("LOG", 1),)),
        "16 bits in, float32 out": Group(SOFTMAX, ROW_LENGTHS, (("WIDE", 1),), SIXTEEN_BITS),
        "scale and bias": Group(SOFTMAX, ROW_LENGTHS, (("BIAS", 1),)),
        "gradient of log-softmax": Group(BACKWARD, LONG_ROWS[:2], (("LOG", 1),)),
    }
)


def group_of(problem: Problem) -> str:
    """The name of the group of a problem; the name of the operation if there is no group."""
    for name, group in GROUPS.items():
        if (group.operation, group.features) == (problem.operation, problem.features):
            return name
    return problem.operation.name


def entries(names: Sequence[str] = tuple(GROUPS)) -> list[Problem]:
    """The problems of some groups in the order in which they are compared: the first shape of each
    group, then the second of each, so that an interrupted comparison covers all groups."""
    most = max(len(group.shapes) for group in GROUPS.values())
    numbered = itertools.product(range(most), names)
    return [problem for number, name in numbered for problem in GROUPS[name].problems(number)]


# ---- drawn at random ----------------------------------------------------------------------------

ALONE = "softmax"  # the name of softmax alone among the groups that are drawn
LENGTHS, BYTES_OF_X = (32, 200_000), (1e6, 2e9)
INNER = (2, 4096)


def drawn(count: int, seed: str, name: str = ALONE) -> list[Problem]:
    """Problems of a group drawn at random: three dtypes, matrices of 1 MB to 2 GB, lengths of 32 to
    200000, and along another axis an inner size of 2 to 4096, all log-uniform; half of the lengths
    are 3, 5, 7 or 9 times a power of two. `seed` is a hexadecimal number."""
    random, found = np.random.default_rng(int(seed, 16)), []
    group = GROUPS[name] if name != ALONE else Group(SOFTMAX, ())

    def log_uniform(low: float, high: float) -> float:
        return float(np.exp(random.uniform(np.log(low), np.log(high))))

    for number in range(count):
        dtype = str(random.choice([*DTYPES]))
        cols = int(log_uniform(*LENGTHS))
        if number % 2:
            odd = int(random.choice([3, 5, 7, 9]))
            cols = odd * 2 ** max(0, round(np.log2(cols / odd)))
        rows = int(log_uniform(*BYTES_OF_X) / Problem(1, cols, dtype).row_bytes)
        inner = int(log_uniform(*INNER)) if group.operation is ANY_AXIS else 1
        found.append(group.problem((max(1, rows // inner) * inner, cols, inner), dtype))
    return found


# ---- in a pipeline ------------------------------------------------------------------------------

# For each operation a size below, near and above that of the L2.
_SQUARES = ((1024, 4096), (4096, 4096), (8192, 8192))
_LOGITS = ((128, 32000), (512, 50257), (1024, 128256))
_LINKED = {
    "gradient of softmax": _SQUARES,
    "cross-entropy": _LOGITS,
    "gradient of cross-entropy": _LOGITS,
    "any axis": ((8192, 512, 32), (32768, 512, 64), (2**17, 512, 1024)),
    "scale and mask": _SQUARES,
}


def linked(names: Sequence[str] = tuple(_LINKED)) -> list[Problem]:
    """The problems that are timed in pipelines, in the order of `entries`."""
    groups = [GROUPS[name]._replace(shapes=_LINKED[name]) for name in names if name in _LINKED]
    return [one for number in range(3) for group in groups for one in group.problems(number)]
