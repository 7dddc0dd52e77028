"""The dispatch heuristic: which kernel suits a matrix, and why."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ..base.gpu import Gpu
from ..base.mode import gpu_for_plans
from ..problem.operations import (
    ANY_AXIS,
    BACKWARD,
    CROSS_ENTROPY,
    CROSS_ENTROPY_BACKWARD,
    OPERATIONS,
    SOFTMAX,
    Operation,
)
from ..simt.cuda_text import code_hash
from .expressions import Expression
from .header import header
from .plan import DTYPES, MAX_INT, Header, Plan, inputs, integer, known_dtype, row_strides
from .registry import Trial, source, split_trial
from .tuned import Tuned, tuned_here


def choose(
    rows: int,
    cols: int,
    dtype: str = "float32",
    gpu: Gpu | None = None,
    x_stride: int | None = None,
    y_stride: int | None = None,
    aligned: bool = True,
    alike: bool = True,
    operation: str = "softmax",
    features: Mapping[str, int | str] = MappingProxyType({}),
    inner: int = 1,
) -> str:
    """The kernel file, or trial of one, that ought to be fastest for a matrix of rows x cols, as
    measured on an H200: from 07 on, or 06 on a GPU without clusters.

    The strides count elements from one row to the next, cols if not given; `aligned` says that x
    and y start at multiples of 16 bytes, `alike` that they start equally far from such multiples.
    `gpu` is that in use, or in replay an H200. Where it is not given, a plan that `make tune` found
    on the GPU in use goes first, of a matrix whose rows follow each other and start at such
    multiples; for a GPU that is given, as by a record, only what is shipped counts.

    `operation` is one of `helpers.problem.operations`, `features` what it computes beside it, which
    the trial spells out: "12_fused-MASK2". Of another axis than the last `inner` is how many
    elements its columns are apart, and rows is outer * inner.

    Raises `TypeError` for what is no integer, `ValueError` naming what no kernel takes: an empty
    matrix, 2^31 rows or columns, another dtype, strides below cols, a GPU older than 7.5, features
    that no file builds.
    """
    if wanted := _wanted(operation, features, inner):
        shape = rows, cols, dtype, gpu, x_stride, y_stride, inner
        tuned = _tuned_around(*wanted, shape, aligned and alike)
        if tuned and not out_of_date(tuned, gpu_for_plans()):
            return tuned.trial
        return _around(*wanted, shape, aligned and alike)[0]
    matrix = _matrix(rows, cols, dtype, gpu, x_stride, y_stride, aligned, alike)
    tuned = _tuned(matrix)
    if tuned and not out_of_date(tuned, matrix.gpu):
        return tuned.trial
    return next(_taking(matrix))


# The kernel files of what is around softmax, best first.
AROUND = {
    SOFTMAX.name: ("12_fused",),
    ANY_AXIS.name: ("13_any_axis",),
    BACKWARD.name: ("14_backward",),
    CROSS_ENTROPY.name: ("15_cross_entropy",),
    CROSS_ENTROPY_BACKWARD.name: ("variants/15_gradient",),
}
REASONS = {
    "12_fused": "a row that the registers of a cluster can hold, fused at both ends",
    "13_any_axis": "columns that are apart, which neighbouring threads take",
    "14_backward": "both rows of a gradient, which the registers of a cluster can hold",
    "15_cross_entropy": "a loss, in one read of rows that need not be held",
    "variants/15_gradient": "a gradient in which no column waits for another",
}


def _wanted(
    operation: str, features: Mapping[str, int | str], inner: int
) -> tuple[Operation, dict[str, int]] | None:
    """The operation and its features, if that is not softmax alone. Raises `ValueError`."""
    if inner != 1 and operation == SOFTMAX.name:
        operation = ANY_AXIS.name
    if inner == 1 and operation == ANY_AXIS.name and not any(features.values()):
        operation = SOFTMAX.name
    if operation not in AROUND:
        raise ValueError(f"operations are {', '.join(AROUND)}, not {operation!r}")
    wanted = OPERATIONS[operation]
    asked = {name: wanted.value(name, value) for name, value in features.items()}
    return (wanted, asked) if wanted is not SOFTMAX or any(asked.values()) else None


def _around(
    operation: Operation, features: Mapping[str, int], shape: tuple, aligned: bool
) -> list[str]:
    """Trials of its files that build the features and take what `Header.why_not` is given, best
    first. Raises `ValueError` if there is none."""
    found = [_refused(file, features, shape, aligned) for file in AROUND[operation.name]]
    taking = [trial for trial, reason in found if not reason]
    if not taking:
        raise ValueError("; ".join(reason for _, reason in found))
    return taking


def _tuned_around(
    operation: Operation, features: Mapping[str, int], shape: tuple, aligned: bool
) -> Tuned | None:
    """What was tuned for it on the GPU in use, out of date or not."""
    rows, cols, dtype, gpu, *strides, inner = shape
    usual = aligned and gpu is None and all(stride in (None, cols) for stride in strides)
    name = known_dtype(dtype).name
    return tuned_here(rows, cols, name, operation.name, features, inner) if usual else None


def _refused(
    file: str, features: Mapping[str, int], shape: tuple, aligned: bool
) -> tuple[str, str]:
    """A file's trial with features, and why it does not take them or the shape, "" if it does."""
    rows, cols, dtype, gpu, *rest = shape
    shape = rows, cols, dtype, gpu or gpu_for_plans(), *rest
    try:
        trial = with_features(file, features)
        contract, dtype = _contract(trial), known_dtype(dtype)
        reason = contract.why_not(*shape)
    except ValueError as error:
        return file, str(error)
    if not (reason or aligned) and contract.align(dtype) > dtype.itemsize:
        reason = f"arrays must start at multiples of {contract.align(dtype)} bytes"
    return trial, reason


def with_features(step: str, features: Mapping[str, int | str]) -> str:
    """The trial of a file that spells out features: "12_fused-MASK2-LOG1". Raises `ValueError` for
    one that its operation has not or that the file does not build."""
    changes = _contract(step).changes_for(features)
    return "".join([step, *(f"-{name}{value}" for name, value in changes.items())])


def why(*given, **options) -> str:
    """What `choose` takes and why, then what ranks before it and why that is not taken: a line
    each. Takes and raises what `choose` does."""
    bound = inspect.signature(choose).bind(*given, **options)
    bound.apply_defaults()
    named = dict(bound.arguments)
    kind = named.pop("operation"), named.pop("features"), named.pop("inner")
    if wanted := _wanted(*kind):
        return _why_around(*wanted, kind[2], **named)
    matrix = _matrix(**named)
    taken, passed, tuned = [], [], _tuned(matrix)
    if tuned and (old := out_of_date(tuned, matrix.gpu)):
        passed = [f"not {tuned.trial} ({tuned.reason}): {old}"]
    elif tuned:
        taken = [f"{tuned.trial}: {tuned.reason}"]
    for file, reason in _ranked(matrix):
        if refused := _why_not(file, matrix):
            passed.append(f"not {file} ({reason}): {refused}")
        else:
            break
    shipped = f"not {file} ({reason}): it is the shipped plan" if taken else f"{file}: {reason}"
    return "\n".join([*taken, shipped, *passed])


def _why_around(operation: Operation, features: Mapping[str, int], inner: int, **named) -> str:
    """The same of what is around softmax."""
    aligned = all((named.pop("aligned"), named.pop("alike")))
    shape = *named.values(), inner
    shipped = _around(operation, features, shape, aligned)[0]
    file, taken, passed = split_trial(shipped).file, [], []
    tuned = _tuned_around(operation, features, shape, aligned)
    if tuned and (old := out_of_date(tuned, gpu_for_plans())):
        passed = [f"not {tuned.trial} ({tuned.reason}): {old}"]
    elif tuned:
        taken = [f"{tuned.trial}: {tuned.reason}"]
    why_shipped = f"{shipped}: {REASONS[file]}"
    if taken:
        why_shipped = f"not {shipped} ({REASONS[file]}): it is the shipped plan"
    return "\n".join([*taken, why_shipped, *passed])


def candidates(
    rows: int,
    cols: int,
    dtype: str,
    gpu: Gpu,
    most: int,
    operation: str = SOFTMAX.name,
    features: Mapping[str, int] = MappingProxyType({}),
    inner: int = 1,
) -> list[str]:
    """The first files or trials in the order of `choose` that take a matrix, what it picks of those
    shipped first, at most so many. Raises what `choose` raises."""
    if wanted := _wanted(operation, features, inner):
        return _around(*wanted, (rows, cols, dtype, gpu, None, None, inner), True)[:most]
    return [*dict.fromkeys(_taking(_matrix(rows, cols, dtype, gpu)))][:most]


def as_it_is(step: str, rows: int, cols: int, dtype: str, gpu: Gpu, inner: int = 1) -> dict:
    """What a step, a variant or a trial is now, for a matrix: the hash of its code and its launch.
    Raises `ValueError` if its header does not take the matrix, `FileNotFoundError`."""
    trial = split_trial(step)
    kind = known_dtype(dtype)
    plan = _contract(step).plan(rows, cols, kind, trial.block, gpu, inner=inner)
    return {"hash": code_hash(source(f"{trial.file}.cu")), "launch": plan.launch}


def out_of_date(tuned: Tuned, gpu: Gpu) -> str:
    """Why a tuned plan is no longer used on its GPU; "" if it is."""
    matrix = tuned.rows, tuned.cols, tuned.dtype, gpu
    operation, features, inner = tuned.kind
    try:
        shipped = candidates(*matrix, 1, operation, dict(features), inner)[0]
        if shipped != tuned.shipped:
            return f"{shipped} is the shipped plan now, not {tuned.shipped}"
        for step in (tuned.trial, tuned.shipped):
            if as_it_is(step, *matrix, inner) != tuned.kernels[step]:
                return f"{step} is another text or another launch now"
    except (OSError, TypeError, ValueError, KeyError) as error:
        return f"it is no plan here any more: {error}"
    return ""


def _tuned(matrix: _Matrix) -> Tuned | None:
    """What was tuned for a matrix on the GPU in use, out of date or not."""
    rows, cols, dtype, *_ = matrix
    usual = matrix.aligned and matrix.alike and matrix.strides == (cols, cols)
    return tuned_here(rows, cols, dtype.name) if matrix.in_use and usual else None


class _Matrix(NamedTuple):
    """What a kernel is chosen for."""

    rows: int
    cols: int
    dtype: np.dtype
    gpu: Gpu
    strides: tuple[int, int]
    aligned: bool
    alike: bool
    in_use: bool  # whether the GPU is that in use, which nobody gave

    @property
    def packs(self) -> bool:
        """Whether rows follow each other and each is whole packs of 16 bytes."""
        apart = self.rows > 1 and self.strides != (self.cols, self.cols)
        row = self.cols * self.dtype.itemsize
        return self.aligned and self.alike and not apart and row % 16 == 0


def _matrix(
    rows,
    cols,
    dtype="float32",
    gpu=None,
    x_stride=None,
    y_stride=None,
    aligned=True,
    alike=True,
) -> _Matrix:
    """Raises what `choose` raises."""
    rows, cols = integer("rows", rows), integer("cols", cols)
    strides = row_strides(cols, x_stride, y_stride)
    dtype, in_use, gpu = known_dtype(dtype), gpu is None, gpu or gpu_for_plans()
    if dtype.name not in DTYPES:
        raise ValueError(f"the kernels take {', '.join(DTYPES)}, not {dtype}")
    for name, number in (("rows", rows), ("cols", cols)):
        if not 1 <= number <= MAX_INT:
            raise ValueError(f"{name} = {number} is not 1 to {MAX_INT}")
    matrix = _Matrix(rows, cols, dtype, gpu, strides, aligned, alike, in_use)
    if refused := _why_not(ANY_LENGTH, matrix):
        raise ValueError(refused)
    return matrix


ANY_LENGTH = "variants/11_any_length"  # takes every matrix


class Rank(NamedTuple):
    """A place in the order of `choose`."""

    file: str  # kernel file, or trial of one
    when: Expression  # over what a header reads, what this file's own table has, packs and alike
    reason: str  # may name values of that table in braces

    def names(self, matrix: _Matrix) -> Mapping[str, int] | None:
        """What the condition may read, if it holds; None if it does not."""
        rows, cols, dtype, gpu, strides, aligned, alike, _ = matrix
        names = inputs(rows, cols, dtype, gpu, *strides)
        names |= {"packs": int(matrix.packs), "alike": int(alike)}
        if not self.when.names <= {*names}:
            if _why_not(self.file, matrix):
                return None
            names |= _plan(self.file, matrix).values
        return names if self.when.value(names) else None


def _rank(file: str, when: str, reason: str) -> Rank:
    return Rank(file, Expression(when), reason)


# The kernel files that a matrix may be for, best first. `packs` is 1 where rows follow each other
# and each is whole packs of 16 bytes, `alike` where x and y start equally far from such places.
# `rows == 8`: on an H200 clusters of 16 with a block per SM find room for 7, on 112 of 132 SMs
# (`active_clusters` of 08_cluster at 512 x 524288), so the eighth row shares SMs with another.
RANKING = (
    _rank(
        "07_warp",
        "packs == 1 && size == 2 && row <= 1024 && 2 * rows * row <= l2",
        "rows of at most 1 KB that the L2 has room for, x and y: no hint for it is worth having",
    ),
    _rank(
        "10_sixteen_bit",
        "row <= 1024",
        "rows of at most 1 KB, for each of which a block is too much",
    ),
    _rank(
        "10_sixteen_bit",
        "row > 1024 && row <= 2048 && 2 * rows * row <= l2",
        "rows of at most 2 KB that the L2 has room for, x and y: a warp for each is faster",
    ),
    _rank(
        "09_grid",
        "row >= 1048576 && (rows == 1 || rows == 8)",
        "1 MB and more: one row for all blocks, or one more than there is room for clusters",
    ),
    _rank(
        "variants/08_ahead",
        "row > 1048576 && rows > 16",
        "many rows past 1 MB: a block of a cluster fills an SM, so that clusters stay",
    ),
    _rank("08_cluster", "row > 1024", "a row that the registers of a cluster can hold"),
    _rank(
        "variants/08_ahead",
        "row > 1024 && (row <= 1048576 || rows <= 16) && rows % clusters == 0",
        "rows that go evenly into the {clusters} clusters that stay",
    ),
    _rank("09_grid", "row > 1024", "a row that the registers of the GPU can hold"),
    _rank(
        "variants/11_short_rows",
        "packs == 0 && row <= 2560",
        "short rows that are no whole packs, or start anywhere",
    ),
    _rank(
        "11_any_row",
        "packs == 0 && alike == 1",
        "rows that are no whole packs, or start anywhere",
    ),
    _rank("11_any_row-LATE1", "alike == 0", "rows that are no whole packs, or start anywhere"),
    _rank("07_warp", "1", "rows that a warp can hold"),
    _rank("06_registers", "capability < 90", "a GPU without clusters, a row that a block can hold"),
    _rank("11_any_row", "packs == 1", "a row that a block or a cluster can hold"),
    _rank(ANY_LENGTH, "1", "any other matrix: what registers do not hold is read twice"),
)


def _ranked(matrix: _Matrix) -> Iterator[tuple[str, str]]:
    """The kernel files that a matrix may be for, best first, each with the reason for its place."""
    for rank in RANKING:
        if (names := rank.names(matrix)) is not None:
            yield rank.file, rank.reason.format(**names)


def _taking(matrix: _Matrix) -> Iterator[str]:
    """Those of them that take it."""
    return (file for file, _ in _ranked(matrix) if not _why_not(file, matrix))


def _why_not(step: str, matrix: _Matrix) -> str:
    """Why a kernel file or a trial does not take a matrix; "" if it does."""
    contract = _contract(step)
    align = contract.align(matrix.dtype)
    if not (matrix.aligned and matrix.alike) and align > matrix.dtype.itemsize:
        return f"x and y must start at multiples of {align} bytes"
    rows, cols, dtype, gpu, strides, *_ = matrix
    return contract.why_not(rows, cols, dtype, gpu, *strides)


def _plan(step: str, matrix: _Matrix) -> Plan:
    rows, cols, dtype, gpu, strides, *_ = matrix
    return _contract(step).plan(rows, cols, dtype, split_trial(step).block, gpu, *strides)


def _contract(step: str) -> Header:
    trial = split_trial(step)
    code = source(f"{trial.file}.cu")
    return header(code, (), changes_of(trial, header(code)))


def changes_of(trial: Trial, contract: Header) -> tuple[tuple[str, int], ...]:
    """A trial's changes by the names that its header has; those of a trial are all in capitals.
    Raises `ValueError` for one that is not there."""
    known = [*contract.numbers, *(value.name for value in contract.build)]
    changes = []
    for name, value in trial.changes:
        found = name if name in known else name.lower()
        if found not in known:
            there = f"; there are {', '.join(known).upper()}" if known else ""
            raise ValueError(f"kernels/{trial.file}.cu has no {name}{there}")
        changes.append((found, value))
    return tuple(changes)
