"""What is raced and chained around softmax: operations, their shapes, the numbers they are given.

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
from ..problem.operations import BYTES, CAUSAL, OPERATIONS, SOFTMAX, Sizes
from ..problem.shapes import Shape, place
from .problems import Problem

ELEMENTS = 2**27
DTYPES = ("float32", "bfloat16")
# As attention has it for heads of 64. A power of two: who rounds the product to 16 bits loses
# nothing by it, and is raced against for its speed.
SCALE = 0.125


class Kind(NamedTuple):
    """What is computed: an operation with those of its features that are not 0, and how many
    elements its columns are apart."""

    operation: str = SOFTMAX.name
    features: tuple[tuple[str, int], ...] = ()
    inner: int = 1

    def problem(self, rows: int, cols: int, dtype: str) -> Problem:
        sizes = Sizes(rows, cols, self.inner)
        return Problem(sizes, dtype, OPERATIONS[self.operation], self.features)

    def choose(self, rows: int, cols: int, dtype: str, gpu: Gpu | None = None) -> str:
        """What `dispatch.choose` picks; "" if none of our kernels takes it."""
        if self == ALONE:
            return dispatch.choose(rows, cols, dtype, gpu) or ""
        asked = {"features": dict(self.features), "inner": self.inner}
        try:
            return dispatch.choose(rows, cols, dtype, gpu, operation=self.operation, **asked)
        except ValueError:
            return ""

    @property
    def numbers(self) -> Mapping[str, float]:
        """The numbers that it is given; the others are neutral, since not all peers have them."""
        fused = {"MASK", "BIAS"} & {*dict(self.features)}
        return MappingProxyType({"scale": SCALE} if fused else {})

    @property
    def yardstick(self) -> str:
        """The kernel that moves as many bytes."""
        return OPERATIONS[self.operation].yardstick


ALONE = Kind()  # softmax and nothing else


class Entry(NamedTuple):
    """One contest."""

    rows: int
    cols: int
    dtype: str
    kind: Kind = ALONE

    @property
    def problem(self) -> Problem:
        return self.kind.problem(self.rows, self.cols, self.dtype)

    @property
    def name(self) -> str:
        """ "32768 x 4096 bfloat16", behind the name of its group if it is not softmax alone."""
        where = place(*self[:2], self.dtype, always=True, inner=self.kind.inner)
        return where if self.kind == ALONE else f"{group_of(self.kind)}, {where}"


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
    """Contests of one operation with one feature: the same shapes in each of its dtypes."""

    kind: Kind  # inner apart
    shapes: tuple[tuple[int, ...], ...]  # (rows, cols), or (rows, dim, inner)
    dtypes: tuple[str, ...] = DTYPES

    def entries(self, number: int) -> Iterator[Entry]:
        """At one of its shapes; none past the last."""
        for rows, cols, *inner in self.shapes[number : number + 1]:
            kind = self.kind._replace(inner=inner[0]) if inner else self.kind
            yield from (Entry(rows, cols, dtype, kind) for dtype in self.dtypes)


GROUPS: Mapping[str, Group] = MappingProxyType(
    {
        "gradient of softmax": Group(Kind("softmax_backward"), LONG_ROWS),
        "cross-entropy": Group(Kind("cross_entropy"), LOGITS),
        "gradient of cross-entropy": Group(Kind("cross_entropy_backward"), LOGITS),
        "any axis": Group(
            Kind("softmax_any_axis"),
            tuple((_rows(dim, inner), dim, inner) for dim, inner in AXES),
        ),
        "scale and mask": Group(Kind(features=(("MASK", BYTES),)), ROW_LENGTHS),
        "scale and causal mask": Group(Kind(features=(("MASK", CAUSAL),)), SQUARES),
        "log-softmax": Group(Kind(features=(("LOG", 1),)), ROW_LENGTHS),
        "16 bits in, float32 out": Group(Kind(features=(("WIDE", 1),)), ROW_LENGTHS, SIXTEEN_BITS),
        "scale and bias": Group(Kind(features=(("BIAS", 1),)), ROW_LENGTHS),
        "gradient of log-softmax": Group(Kind("softmax_backward", (("LOG", 1),)), LONG_ROWS[:2]),
    }
)


def group_of(kind: Kind) -> str:
    """The name of the group that computes it; the operation's own for one asked for by hand."""
    wanted = kind._replace(inner=1)
    return next((name for name, group in GROUPS.items() if group.kind == wanted), kind.operation)


def entries(names: Sequence[str] = tuple(GROUPS)) -> list[Entry]:
    """The contests of some groups in the order in which they are raced: the first shape of each
    group, then the second of each, so that one that is cut short knows something of all."""
    most = max(len(group.shapes) for group in GROUPS.values())
    numbered = itertools.product(range(most), names)
    return [entry for number, name in numbered for entry in GROUPS[name].entries(number)]


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


def linked(names: Sequence[str] = tuple(_LINKED)) -> list[Entry]:
    """What is timed in a pipeline, of the groups that are; in the order of `entries`."""
    groups = [GROUPS[name]._replace(shapes=_LINKED[name]) for name in names if name in _LINKED]
    return [entry for number in range(3) for group in groups for entry in group.entries(number)]
