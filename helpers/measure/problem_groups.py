"""Problems around softmax that are compared, alone and in pipelines: operations, their shapes, the
numbers that they are given.

Each group of `GROUPS` is one operation, or softmax with something fused into it, at shapes of 2^27
elements or nearly: half a gigabyte of float32, which no cache holds. Rows are short, middling and
long, another axis lies near and far, vocabularies are those of language models.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ..base.gpu import Gpu
from ..catalogue import dispatch
from ..problem.operations import (
    ANY_AXIS,
    BACKWARD,
    BYTES,
    CAUSAL,
    CROSS_ENTROPY,
    CROSS_ENTROPY_BACKWARD,
    SOFTMAX,
    Operation,
)
from ..problem.problem import Problem
from ..problem.shapes import Shape

ELEMENTS = 2**27
DTYPES = ("float32", "bfloat16")
# As attention has it for heads of 64. A power of two: who rounds the product to 16 bits loses
# nothing by it, and is compared for its speed.
SCALE = 0.125


def chosen(problem: Problem, gpu: Gpu | None = None) -> str:
    """What `choose` picks for a problem; "" if none of our kernels takes it."""
    try:
        return dispatch.best(problem, gpu)
    except ValueError:
        return ""


def numbers(problem: Problem) -> Mapping[str, float]:
    """The numbers that a problem is given; the others are neutral, since not all baselines have
    them."""
    fused = {"MASK", "BIAS"} & {*dict(problem.features)}
    return MappingProxyType({"scale": SCALE} if fused else {})


def name_of(problem: Problem) -> str:
    """ "32768 x 4096 bfloat16", behind the name of its group if it is not softmax alone."""
    place = problem.place(dtype=True)
    return place if problem.plain else f"{group_of(problem)}, {place}"


def _rows(cols: int, inner: int = 1) -> int:
    """Rows of `ELEMENTS`; even, and whole lots of `inner`."""
    each = cols * inner * (2 if inner == 1 else 1)
    return ELEMENTS // each * each // cols


def _at(*columns: int) -> tuple[Shape, ...]:
    return tuple((_rows(cols), cols) for cols in columns)


ROW_LENGTHS = _at(4096, 1024, 32768)
SQUARES = ((8192, 8192), *_at(4096, 1024))  # scores of attention; rows are whole squares
LONG_ROWS = _at(4096, 32768, 1024, 131072)
# (dim, inner)
AXES = ((512, 32), (64, 1024), (512, 7), (8192, 64), (64, 2), (16, 4096), (2048, 1024))
LOGITS = _at(128256, 32000, 50257, 262144)  # vocabularies
SIXTEEN_BITS = DTYPES[1:]


class Group(NamedTuple):
    """One operation with one feature: the same shapes in each of its dtypes."""

    operation: Operation
    shapes: tuple[tuple[int, ...], ...]  # (rows, cols), or (rows, dim, inner)
    features: tuple[tuple[str, int], ...] = ()
    dtypes: tuple[str, ...] = DTYPES

    def problem(self, rows: int, cols: int, dtype: str, inner: int = 1) -> Problem:
        return Problem(rows, cols, dtype, inner, self.operation, self.features)

    def problems(self, number: int) -> Iterator[Problem]:
        """At one of its shapes; none past the last."""
        for rows, cols, *inner in self.shapes[number : number + 1]:
            yield from (self.problem(rows, cols, dtype, *inner) for dtype in self.dtypes)


GROUPS: Mapping[str, Group] = MappingProxyType(
    {
        "gradient of softmax": Group(BACKWARD, LONG_ROWS),
        "cross-entropy": Group(CROSS_ENTROPY, LOGITS),
        "gradient of cross-entropy": Group(CROSS_ENTROPY_BACKWARD, LOGITS),
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
    """The name of the group that computes it; the operation's own for one asked for by hand."""
    for name, group in GROUPS.items():
        if (group.operation, group.features) == (problem.operation, problem.features):
            return name
    return problem.operation.name


def entries(names: Sequence[str] = tuple(GROUPS)) -> list[Problem]:
    """The problems of some groups in the order in which they are compared: the first shape of each
    group, then the second of each, so that one that is cut short knows something of all."""
    most = max(len(group.shapes) for group in GROUPS.values())
    numbered = itertools.product(range(most), names)
    return [problem for number, name in numbered for problem in GROUPS[name].problems(number)]


# ---- in a pipeline ------------------------------------------------------------------------------

# Of each operation a size that the L2 holds, one about as large, one that it does not hold.
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
    """What is timed in a pipeline, of the groups that are; in the order of `entries`."""
    groups = [GROUPS[name]._replace(shapes=_LINKED[name]) for name in names if name in _LINKED]
    return [one for number in range(3) for group in groups for one in group.problems(number)]
