"""Choose the kernel for a matrix, and plan how it is compiled and launched."""

from __future__ import annotations

import functools
import operator
import re  # [best]
from collections.abc import Iterator, Mapping  # [best]
from types import CodeType
from typing import NamedTuple

SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
DTYPE_OPTIONS = {"float16": "-DFLOAT16", "bfloat16": "-DBFLOAT16"}
MAX_INT = 2**31 - 1


class Gpu(NamedTuple):
    """The properties of a GPU that plans depend on."""

    capability: int  # compute capability, 90 for 9.0
    sms: int  # streaming multiprocessors
    l2: int  # bytes of L2 cache


class Kernel(NamedTuple):
    """A kernel, as the header of its file describes it."""

    function: str
    dtypes: tuple[str, ...]  # the first needs no compiler option
    align: int  # required alignment of arrays in bytes; 0: that of an element
    arch: int  # the lowest compute capability, 75 for 7.5
    parameters: tuple[str, ...]  # of the function, in order
    rules: dict[str, str]  # for macros, other values and the launch, in order
    cooperative: bool = False  # whether all blocks must be co-resident
    numbers: dict[str, int] = {}  # macros of the text that the rules may read

    @property
    def macros(self) -> list[str]:
        """The names that the text is compiled with."""
        return [name for name in self.rules if name.isupper()]


class Plan(NamedTuple):
    """How a kernel is compiled and launched for one matrix."""

    kernel: str
    options: tuple[str, ...]  # for the compiler
    grid: int
    block: int
    shared_mem: int  # bytes of dynamic shared memory
    workspace: int  # bytes of zeroed global memory
    cooperative: bool  # whether all blocks must be co-resident
    cluster: int  # blocks per cluster
    reason: str  # why this kernel was chosen  # [best]


class Refused(ValueError):
    """Why a kernel, or every kernel, does not accept a matrix."""


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
    features: Mapping[str, int] | None = None,  # [best]
    inner: int = 1,  # [best]
) -> Plan:
    """Return the launch of the first kernel that accepts a matrix of rows x cols.

    x_stride and y_stride are the row strides in elements, by default cols. `aligned` says whether x
    and y start at multiples of 16 bytes, `alike` whether their addresses are equal modulo 16 bytes.
    `gpu` is by default the one that the plans were tuned on.
    `operation` is a key of `RANKINGS`; `features` are its options, such as  # [best]
    {"MASK": 2, "LOG": 1} for a causal log-softmax. "scaled_softmax" is softmax by a  # [best]
    kernel that takes a scale. Along an axis other than the last, neighbouring elements  # [best]
    are `inner` elements apart and rows is outer * inner.  # [best]

    Raises `Refused`, a `ValueError`, if no kernel accepts the matrix, and `TypeError` for sizes
    that are not integers.
    """
    gpu = TUNED_ON if gpu is None else gpu
    if dtype not in SIZES:
        raise Refused(f"dtype must be one of {', '.join(SIZES)}, got {dtype}")
    rows, cols, size = operator.index(rows), operator.index(cols), SIZES[dtype]
    strides = [cols if s is None else operator.index(s) for s in (x_stride, y_stride)]
    if not (1 <= rows <= MAX_INT and 1 <= cols <= MAX_INT):
        raise Refused(f"rows and cols must be 1 to {MAX_INT}, got {rows} and {cols}")
    if min(strides) < cols or rows * max(strides) * size > 2**57:
        raise Refused(
            f"x_stride and y_stride must be at least cols = {cols} and address at most 2**57 bytes "
            f"for {rows} rows, got {strides[0]} and {strides[1]}"
        )
    if inner < 1 or rows % inner:  # [best]
        raise Refused(f"rows must be a multiple of inner = {inner}, got {rows}")
    m = {"rows": rows, "cols": cols, "size": size, "row": cols * size, **gpu._asdict()}
    m |= {"x_stride": strides[0], "y_stride": strides[1]}
    m |= {"outer": rows // inner, "dim": cols, "inner": inner}  # [best]
    m |= {"isAligned": aligned and alike, "isAlike": alike}
    m["isContiguous"] = rows == 1 or strides == [cols, cols]
    ((file, only),) = KERNELS.items()  # [not best]
    return _plan(file, _table(only, m, {}, dtype), dtype)  # [not best]
    return _ranked(m, dtype, gpu, operation, features or {})  # [best]


def _ranked(  # [best]
    m: dict, dtype: str, gpu: Gpu, operation: str, features: Mapping[str, int]
) -> Plan:
    """Return what `plan` returns, given the names that rules may read. Raises `Refused`."""
    inner, alike = m["inner"], m["isAlike"]
    if operation == "softmax" and inner != 1:
        operation = "softmax_any_axis"
    if operation == "softmax_any_axis" and inner == 1 and not any(features.values()):
        operation = "softmax"
    whole = m["isAligned"] and m["isContiguous"]
    packs = whole and m["row"] % 16 == 0
    plain = operation == "softmax" and not any(features.values())
    ranking = None if plain else operation.removeprefix("scaled_")
    if ranking not in RANKINGS:
        known = ", ".join(filter(None, RANKINGS))
        raise Refused(f"operation must be one of {known}, got {operation}")
    reasons = []
    for file, condition, reason in RANKINGS[ranking]:
        try:
            table = _table(KERNELS[file], m, _features(KERNELS[file], features), dtype)
        except Refused as error:
            reasons.append(f"{file}: {error}")
            continue
        if eval(_compiled(condition), FUNCTIONS, {**table, "packs": packs, "alike": alike}):
            as_timed = whole and gpu == TUNED_ON
            for other, given in _tuned(file, m, packs) if as_timed else ():
                try:
                    table = _table(KERNELS[other], m, given, dtype)
                except Refused:
                    continue
                file, reason = other, "tuned for such a shape"
                break
            return _plan(file, {**table, "reason": reason}, dtype)
    raise Refused("; ".join(dict.fromkeys(reasons)) or "no kernel is meant for this matrix")


def _tuned(file: str, m: dict, packs: bool) -> Iterator[tuple[str, dict[str, int]]]:  # [best]
    """Yield what was found to be faster than a kernel's own plan: a kernel, and the values that
    replace those of its rules."""
    for other, given, *ranges in TUNED.get((file, m["size"], packs), ()):
        for cols, last_cols, rows, last_rows in ranges:
            if cols <= m["cols"] <= last_cols and rows <= m["rows"] <= last_rows:
                yield other, given


def _features(kernel: Kernel, features: Mapping[str, int]) -> dict[str, int]:  # [best]
    """Return the values of a kernel's macros for features. Raises `Refused` if it lacks one."""
    built = {*kernel.rules, *kernel.numbers}
    if other := [name for name, value in features.items() if value and name not in built]:
        raise Refused(f"does not support {other[0]} = {features[other[0]]}")
    return {name: value for name, value in features.items() if name in built}


def _table(kernel: Kernel, m: dict, given: dict[str, int], dtype: str) -> dict:
    """Return the values of a kernel's rules. Raises `Refused` if it rejects the matrix."""
    if m["inner"] != 1 and "inner" not in kernel.parameters:  # [best]
        raise Refused("requires inner = 1")
    if dtype not in kernel.dtypes:
        raise Refused(f"requires {' or '.join(kernel.dtypes)}")
    if m["capability"] < kernel.arch:
        raise Refused(f"requires sm_{kernel.arch}, the GPU is sm_{m['capability']}")
    if not m["isAligned"] and kernel.align > m["size"]:
        raise Refused(f"requires x and y aligned to {kernel.align} bytes")
    if not m["isContiguous"] and "x_stride" not in kernel.parameters:
        raise Refused("requires rows without gaps: x_stride = y_stride = cols")
    table = {"shared_mem": 0, "workspace": 0, **kernel.numbers, **m, **given}
    try:
        for name, rule in kernel.rules.items():
            if name not in given:
                table[name] = int(eval(_compiled(rule), FUNCTIONS, table))
    except ZeroDivisionError:  # the rules may be meaningless for short rows, or no case holds
        raise Refused("its rules have no value for this shape") from None
    accepted = table["columns"] and all(0 <= table[name] <= MAX_INT for name in kernel.macros)
    if not (accepted and 1 <= table["block"] <= 1024 and 1 <= table["grid"] <= MAX_INT):
        raise Refused(f"does not accept rows = {m['rows']}, cols = {m['cols']}")
    most = SHARED_KB[max(known for known in SHARED_KB if known <= m["capability"])] * 1024
    if not 0 <= table["shared_mem"] <= most:
        raise Refused(f"requires {table['shared_mem']} bytes of shared memory; a block has {most}")
    if table.get("LATE") == 0 and not m["isAlike"]:  # [late]
        raise Refused("requires x and y with equal addresses modulo 16 bytes")
    if m["capability"] < 90 and table.get("CLUSTER", 1) > 1:  # [clusters]
        raise Refused("clusters and programmatic launches require sm_90")
    return table


def _plan(file: str, table: dict, dtype: str) -> Plan:
    found = KERNELS[file]
    options = [f"-D{macro}={table[macro]}" for macro in found.macros]
    if dtype != found.dtypes[0]:
        options.append(DTYPE_OPTIONS[dtype])
    # Features that the Build table does not contain.  # [best]
    changed = [name for name, number in found.numbers.items() if table[name] != number]
    options += [f"-D{name}={table[name]}" for name in changed]  # [best]
    launch = (table[key] for key in ("grid", "block", "shared_mem", "workspace"))
    return Plan(
        *(file, tuple(options), *launch, found.cooperative, table.get("CLUSTER", 1)),
        table["reason"].format(**table),  # [best]
    )


def source(file: str) -> str:  # [best]
    """Return the text of a kernel with the files that it includes, each once."""
    done = set()

    def included(line: re.Match) -> str:
        if line[1] in done:
            return ""
        done.add(line[1])
        return directive.sub(included, SOURCES[line[1]])

    directive = re.compile(r'^#include "(?:.*/)?(.*)"\n', re.MULTILINE)
    return directive.sub(included, SOURCES[file]).lstrip()


@functools.cache
def _compiled(rule: str) -> CodeType:
    return compile(rule, "a rule", "eval")


FUNCTIONS = {  # all that a rule can call
    "__builtins__": {},
    "min": min,
    "max": max,
    "ceil_div": lambda number, by: -(-number // by),
    # The smallest power of two that is at least the number.
    "power_of_two": lambda number: 1 << max(number - 1, 0).bit_length(),
}


# ---- generated by the export --------------------------------------------------------------------

TUNED_ON = Gpu(0, 0, 0)
SHARED_KB: dict[int, int] = {}
KERNELS: dict[str, Kernel] = {}
RANKINGS: dict[str | None, tuple[tuple[str, str, str], ...]] = {}
TUNED: dict[tuple[str, int, bool], tuple[tuple, ...]] = {}
SOURCES: dict[str, str] = {}  # texts of kernels, and of the files that they include
