"""Choose the kernel for a matrix."""

from __future__ import annotations

import functools  # [best]
import re  # [best]
from collections.abc import Iterator, Mapping  # [best]
from types import MappingProxyType  # [best]

from .planning import (
    FUNCTIONS,
    TUNED_ON,
    Gpu,
    Kernel,
    Plan,
    Refused,
    _compiled,
    _plan,
    _problem,
    _table,
    kernel,
)


def plan(
    rows: int,
    cols: int,
    dtype: str = "float32",
    x_stride: int | None = None,
    y_stride: int | None = None,
    aligned: bool = True,
    alike: bool = True,
    gpu: Gpu | None = None,
    operation: str = "softmax",  # [best]
    features: Mapping[str, int] = MappingProxyType({}),  # [best]
    inner: int = 1,  # [best]
) -> Plan:
    """Return the launch of the first kernel that accepts a matrix of rows x cols.

    x_stride and y_stride are the row strides in elements, by default cols. `aligned` says whether x
    and y start at multiples of 16 bytes, `alike` whether their addresses are equal modulo 16 bytes.
    `gpu` is by default the one that the plans were tuned on.
    `operation` is "softmax" or a key of `OPERATIONS`; `features` are its options, such  # [best]
    as {"MASK": 2, "LOG": 1} for a causal log-softmax. "scaled_softmax" is softmax by a  # [best]
    kernel that takes a scale. Along an axis other than the last, neighbouring elements  # [best]
    are `inner` elements apart and rows is outer * inner.  # [best]

    Raises `Refused`, a `ValueError`, if no kernel accepts the matrix, and `TypeError` for sizes
    that are not integers.
    """
    m = _problem(rows, cols, dtype, x_stride, y_stride, aligned, alike, gpu)  # [not best]
    return _plan(KERNEL, _table(kernel(KERNEL), m, CHANGES, dtype), dtype)  # [not best]
    m = _problem(rows, cols, dtype, x_stride, y_stride, aligned, alike, gpu, inner)  # [best]
    return _ranked(m, dtype, gpu, operation, features)  # [best]


def _ranked(  # [best]
    m: dict, dtype: str, gpu: Gpu | None, operation: str, features: Mapping[str, int]
) -> Plan:
    """Return what `plan` returns, given the names that rules may read. Raises `Refused`."""
    inner, alike = m["inner"], m["isAlike"]
    if operation == "softmax" and inner != 1:
        operation = "softmax_any_axis"
    if operation == "softmax_any_axis" and inner == 1 and not any(features.values()):
        operation = "softmax"
    whole = m["isAligned"] and m["isContiguous"]
    packs = whole and m["row"] % 16 == 0
    candidates = RANKING
    if operation != "softmax" or any(features.values()):
        candidates = OPERATIONS.get(operation.removeprefix("scaled_"), ())
        if not candidates:
            known = ", ".join(OPERATIONS) or "softmax"
            raise Refused(f"operation must be one of {known}, got {operation}")
    reasons = []
    for name, condition, reason in candidates:
        file, given = _trial(name)
        try:
            given = given | _features(kernel(file), features)
            table = _table(kernel(file), m, given, dtype)
        except Refused as error:
            reasons.append(f"{name}: {error}")
            continue
        if eval(_compiled(condition), FUNCTIONS, {**table, "packs": packs, "alike": alike}):
            as_timed = whole and gpu in (None, TUNED_ON)
            for trial in _tuned(name, m, packs) if as_timed else ():
                other, given = _trial(trial)
                try:
                    table = _table(kernel(other), m, given, dtype)
                except Refused:
                    continue
                file, reason = other, "tuned for such a shape"
                break
            return _plan(file, {**table, "reason": reason}, dtype)
    raise Refused("; ".join(dict.fromkeys(reasons)) or "no kernel is meant for this matrix")


@functools.cache  # [best]
def _trial(name: str) -> tuple[str, dict[str, int]]:  # [best]
    """Return a file and the values that replace those of its rules: "08_cluster-THREADS192"."""
    file, *values = name.split("-")
    pairs = (re.fullmatch(r"(\D+)(\d+)", value).groups() for value in values)
    return file, {name: int(value) for name, value in pairs}


def _tuned(name: str, m: dict, packs: bool) -> Iterator[str]:  # [best]
    """Yield what was found to be faster than a kernel's own plan."""
    for trial, *ranges in TUNED.get((name, m["size"], packs), ()):
        for cols, last_cols, rows, last_rows in ranges:
            if cols <= m["cols"] <= last_cols and rows <= m["rows"] <= last_rows:
                yield trial


def _features(kernel: Kernel, features: Mapping[str, int]) -> dict[str, int]:  # [best]
    """Return the values of a kernel's macros for features. Raises `Refused` if it lacks one."""
    built = FEATURES.intersection([*kernel.rules, *kernel.numbers])
    if other := [name for name, value in features.items() if value and name not in built]:
        raise Refused(f"does not support {other[0]} = {features[other[0]]}")
    return {name: value for name, value in features.items() if name in built}


# ---- generated by the export --------------------------------------------------------------------

KERNEL = ""  # the only one, if the file is of one kernel
CHANGES: dict[str, int] = {}  # values that replace those of its rules
FEATURES: frozenset[str] = frozenset()
RANKING: tuple[tuple[str, str, str], ...] = ()
TUNED: dict[tuple[str, int, bool], tuple[tuple, ...]] = {}
OPERATIONS: dict[str, tuple[tuple[str, str, str], ...]] = {}
