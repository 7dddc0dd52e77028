"""The problems of fused and related operations that are compared, alone and in pipelines: shapes
and numbers.

Each group of `GROUPS` is one operation, or softmax with a fused prologue or epilogue, at shapes of
about 2^27 elements: half a gigabyte of float32, which exceeds every cache. Rows are short, medium
and long, the other axis has small and large strides, and vocabularies are those of language models.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ..base.gpu import Gpu
from ..catalogue import dispatch
from ..problem.operations import (
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
from ..problem.problem import DTYPES as PROBLEM_DTYPES
from ..problem.problem import Problem
from ..problem.shapes import Shape

ELEMENTS = 2**27
DTYPES = ("float32", "bfloat16")
# As in attention with heads of 64. A power of two: rounding the product to 16 bits is exact, so
# that baselines which do so are compared by speed alone.
SCALE = 0.125


def chosen(problem: Problem, gpu: Gpu | None = None) -> str:
    """The kernel that `choose` returns for a problem; "" if none of our kernels supports it."""
    try:
        return dispatch.best(problem, gpu)
    except ValueError:
        return ""


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
AXES = ((512, 32), (64, 1024), (512, 7), (8192, 64), (64, 2), (16, 4096), (2048, 1024))
LOGITS = _at(128256, 32000, 50257, 262144)  # vocabularies
SIXTEEN_BITS = DTYPES[1:]


class Group(NamedTuple):
    """One operation with one feature, at the same shapes in each of its dtypes."""

    operation: Operation
    shapes: tuple[tuple[int, ...], ...]  # (rows, cols), or (rows, dim, inner)
    features: tuple[tuple[str, int], ...] = ()
    dtypes: tuple[str, ...] = DTYPES

    def problem(self, rows: int, cols: int, dtype: str, inner: int = 1) -> Problem:
        return Problem(rows, cols, dtype, inner, self.operation, self.features)

    def problems(self, number: int) -> Iterator[Problem]:
        """The problems at one of its shapes; empty after the last."""
        for rows, cols, *inner in self.shapes[number : number + 1]:
            yield from (self.problem(rows, cols, dtype, *inner) for dtype in self.dtypes)


GROUPS: Mapping[str, Group] = MappingProxyType(
    {
        "gradient of softmax": Group(BACKWARD, LONG_ROWS),
        "cross-entropy": Group(CROSS_ENTROPY, LOGITS),
        "gradient of cross-entropy": Group(CROSS_ENTROPY_BACKWARD, LOGITS),
        "cross-entropy with gradient": Group(
            CROSS_ENTROPY_LOSS_AND_GRADIENT, (*LOGITS, *_at(30522, 8192, 1000))
        ),
        "any axis": Group(ANY_AXIS, tuple((_rows(dim, inner), dim, inner) for dim, inner in AXES)),
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
        dtype = str(random.choice([*PROBLEM_DTYPES]))
        cols = int(log_uniform(*LENGTHS))
        if number % 2:
            odd = int(random.choice([3, 5, 7, 9]))
            cols = odd * 2 ** max(0, round(np.log2(cols / odd)))
        rows = int(log_uniform(*BYTES_OF_X) / Problem(1, cols, dtype).row_bytes)
        inner = int(log_uniform(*INNER)) if group.operation is ANY_AXIS else 1
        found.append(group.problem(max(1, rows // inner) * inner, cols, dtype, inner))
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
