"""Choose the kernel for a matrix, and plan how it is compiled and launched."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
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
    """A kernel file: the rules of its header, and its text."""

    table: Callable[..., dict]  # the rules: values by name
    macros: tuple[str, ...]  # names of the table that the code is compiled with
    dtypes: tuple[str, ...]  # the first needs no compiler option
    align: int  # required alignment of arrays in bytes; 0: that of an element
    parameters: tuple[str, ...]  # of the function, in order
    features: dict[str, int]  # values of the supported features; 0 is disabled
    builds: tuple[str, ...]  # the features that the table takes as arguments
    cooperative: bool  # whether all blocks must be co-resident
    arch: int  # the lowest compute capability, 75 for 7.5
    function: str
    text: str


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
    reason: str  # why this kernel was chosen


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
    operation: str = "softmax",
    features: Mapping[str, int] = MappingProxyType({}),
    inner: int = 1,
) -> Plan:
    """Return the first kernel of the ranking that accepts a matrix of rows x cols, with its launch.

    x_stride and y_stride are the row strides in elements, by default cols. `aligned` says whether x
    and y start at multiples of 16 bytes, `alike` whether their addresses are equal modulo 16 bytes.
    `gpu` is by default the one that the plans were tuned on. `operation` is "softmax" or a key of
    `OPERATIONS`; `features` are its options, such as {"MASK": 2, "LOG": 1} for a causal
    log-softmax. "scaled_softmax" is softmax by a kernel that takes a scale. Along an axis other
    than the last, neighbouring elements are `inner` elements apart and rows is outer * inner.

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
    if operation == "softmax" and inner != 1:
        operation = "softmax_any_axis"
    if operation == "softmax_any_axis" and inner == 1 and not any(features.values()):
        operation = "softmax"
    if inner < 1 or rows % inner:
        raise Refused(f"rows must be a multiple of inner = {inner}, got {rows}")
    m = {"rows": rows, "cols": cols, "size": size, "row": cols * size, **gpu._asdict()}
    m |= {"x_stride": strides[0], "y_stride": strides[1]}
    m |= {"outer": rows // inner, "dim": cols, "inner": inner}
    m |= {"isAligned": aligned and alike, "isAlike": alike}
    m["isContiguous"] = rows == 1 or strides == [cols, cols]
    packs = aligned and alike and m["isContiguous"] and m["row"] % 16 == 0
    candidates = RANKING
    if operation != "softmax" or any(features.values()):
        kernels = OPERATIONS.get(operation.removeprefix("scaled_"), ())
        candidates = [(name, lambda m: True, operation) for name in kernels]
        if not kernels:
            known = ", ".join(OPERATIONS) or "softmax"
            raise Refused(f"operation must be one of {known}, got {operation}")
    reasons = []
    for name, condition, reason in candidates:
        try:
            kernel = KERNELS[name]
            table = _table(kernel, m | _built(kernel, features), dtype)
        except Refused as error:
            reasons.append(f"{name}: {error}")
            continue
        if condition(SimpleNamespace(**{**m, **table, "packs": packs, "alike": alike})):
            as_timed = gpu == TUNED_ON and aligned and alike and m["isContiguous"]
            for other, values in _tuned(name, m, packs) if as_timed else ():
                try:
                    table = _table(KERNELS[other], m | values, dtype)
                except Refused:
                    continue
                name, reason = other, "tuned for such a shape"
                break
            return _plan(name, table, dtype, reason)
    raise Refused("; ".join(dict.fromkeys(reasons)) or "no kernel is meant for this matrix")


def _tuned(name: str, m: dict, packs: bool) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield what was found to be faster than a kernel's own plan: kernels, and values of names."""
    for rule, size, whole, cols, rows, other, values in TUNED:
        if rule == name and size == m["size"] and whole == packs:
            if cols[0] <= m["cols"] <= cols[1] and rows[0] <= m["rows"] <= rows[1]:
                yield other, values


def _built(kernel: Kernel, features: Mapping[str, int]) -> dict[str, int]:
    """Return the arguments of a kernel's table for features. Raises `Refused` if it lacks one."""
    given = {name: n for name, n in features.items() if n != kernel.features.get(name, 0)}
    if other := [name for name in given if name not in kernel.builds]:
        raise Refused(f"does not support {other[0]} = {given[other[0]]}")
    return given


def _table(kernel: Kernel, m: dict, dtype: str) -> dict:
    """Return the values of a kernel's rules. Raises `Refused` if it rejects the matrix."""
    if m["inner"] != 1 and "inner" not in kernel.parameters:
        raise Refused("requires inner = 1")
    if dtype not in kernel.dtypes:
        raise Refused(f"requires {' or '.join(kernel.dtypes)}")
    if m["capability"] < kernel.arch:
        raise Refused(f"requires sm_{kernel.arch}, the GPU is sm_{m['capability']}")
    if not m["isAligned"] and kernel.align > m["size"]:
        raise Refused(f"requires x and y aligned to {kernel.align} bytes")
    if not m["isContiguous"] and "x_stride" not in kernel.parameters:
        raise Refused("requires rows without gaps: x_stride = y_stride = cols")
    try:
        table = kernel.table(**m)
    except ZeroDivisionError:  # the table may be meaningless for short rows
        raise Refused("its rules have no value for this shape") from None
    accepted = table["columns"] and all(0 <= table[name] <= MAX_INT for name in kernel.macros)
    if not (accepted and 1 <= table["block"] <= 1024 and 1 <= table["grid"] <= MAX_INT):
        raise Refused(f"does not accept rows = {m['rows']}, cols = {m['cols']}")
    most = SHARED_KB[max(known for known in SHARED_KB if known <= m["capability"])] * 1024
    if not 0 <= table["shared_mem"] <= most:
        raise Refused(f"requires {table['shared_mem']} bytes of shared memory; a block has {most}")
    if table.get("LATE") == 0 and not m["isAlike"]:
        raise Refused("requires x and y with equal addresses modulo 16 bytes")
    if m["capability"] < 90 and (table.get("CLUSTER", 1) > 1 or table.get("PROGRAMMATIC")):
        raise Refused("clusters and programmatic launches require sm_90")
    return table


def no_case() -> int:
    """Reject a matrix for which no case of a table holds."""
    raise Refused("no case of its table holds for this shape")


def ceil_div(number: int, by: int) -> int:
    return -(-number // by)


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least the number."""
    return 1 << max(number - 1, 0).bit_length()


def _plan(name: str, table: dict, dtype: str, reason: str) -> Plan:
    kernel = KERNELS[name]
    options = [f"-D{macro}={table[macro]}" for macro in kernel.macros]
    if dtype != kernel.dtypes[0]:
        options.append(DTYPE_OPTIONS[dtype])
    launch = (table.get(key, 0) for key in ("grid", "block", "shared_mem", "workspace"))
    cluster, reason = table.get("CLUSTER", 1), reason.format(**table)
    return Plan(name, tuple(options), *launch, kernel.cooperative, cluster, reason)


# ---- generated by the export --------------------------------------------------------------------

TUNED_ON = Gpu(0, 0, 0)
SHARED_KB: dict[int, int] = {}
# (kernel, condition, reason), best first
RANKING: tuple[tuple[str, Callable[[SimpleNamespace], bool], str], ...] = ()
# (kernel, bytes of an element, whether rows are whole packs, cols, rows, faster kernel, its values)
TUNED: tuple[tuple, ...] = ()
OPERATIONS: dict[str, tuple[str, ...]] = {}  # kernels, best first
KERNELS: dict[str, Kernel] = {}
