"""Which kernel takes a matrix, and how it is compiled and launched."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
DTYPE_OPTIONS = {"float16": "-DFLOAT16", "bfloat16": "-DBFLOAT16"}
MAX_INT = 2**31 - 1


class Gpu(NamedTuple):
    """What a plan depends on."""

    capability: int  # compute capability, 90 for 9.0
    sms: int  # multiprocessors
    l2: int  # bytes of L2 cache


class Kernel(NamedTuple):
    """A kernel file: the contract in its header, and its text."""

    table: Callable[..., dict]  # the header's expressions; it returns the value of each name
    macros: tuple[str, ...]  # names of the table that the code is compiled with
    dtypes: tuple[str, ...]  # the first needs no option
    align: int  # bytes that arrays must start at a multiple of; 0: those of an element
    parameters: tuple[str, ...]  # what the function takes, in this order
    features: dict[str, int]  # what it computes beside its operation; 0: it does not
    builds: tuple[str, ...]  # those of them that its table takes
    cooperative: bool  # whether all blocks must run at once
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
    workspace: int  # bytes of zeros in global memory
    cooperative: bool  # whether all blocks must run at once
    cluster: int  # blocks of a cluster
    reason: str  # why this kernel


class Refused(ValueError):
    """Why a kernel, or every kernel, does not take a matrix."""


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
        raise Refused(f"the kernels take {', '.join(SIZES)}, not {dtype}")
    rows, cols, size = operator.index(rows), operator.index(cols), SIZES[dtype]
    strides = [cols if s is None else operator.index(s) for s in (x_stride, y_stride)]
    if not (1 <= rows <= MAX_INT and 1 <= cols <= MAX_INT):
        raise Refused(f"rows = {rows} and cols = {cols} are not 1 to {MAX_INT}")
    if min(strides) < cols or rows * max(strides) * size > 2**57:
        raise Refused(f"x_stride, y_stride = {strides} are no strides of {rows} rows of {cols}")
    if operation == "softmax" and inner != 1:
        operation = "softmax_any_axis"
    if operation == "softmax_any_axis" and inner == 1 and not any(features.values()):
        operation = "softmax"
    if inner < 1 or rows % inner:
        raise Refused(f"rows = {rows} is not outer * inner, with inner = {inner}")
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
            known = ", ".join(OPERATIONS) or "softmax alone"
            raise Refused(f"there are kernels of {known}, none of {operation}")
    reasons = []
    for name, condition, reason in candidates:
        try:
            kernel = KERNELS[name]
            table = _table(kernel, m | _built(kernel, features), dtype)
        except Refused as error:
            reasons.append(f"{name}: {error}")
            continue
        if condition(SimpleNamespace(**{**m, **table, "packs": packs, "alike": alike})):
            return _plan(name, table, dtype, reason)
    raise Refused("; ".join(dict.fromkeys(reasons)) or "no kernel is for this matrix")


def _built(kernel: Kernel, features: Mapping[str, int]) -> dict[str, int]:
    """What a kernel's table is given for features. Raises `Refused` for what it does not build."""
    given = {name: n for name, n in features.items() if n != kernel.features.get(name, 0)}
    if other := [name for name in given if name not in kernel.builds]:
        raise Refused(f"it does not build {other[0]} = {given[other[0]]}")
    return given


def row_stride(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """Elements from one row to the next, where one number says it and no row overlaps another;
    cols of a single row. `strides` are in elements."""
    *rows, cols = shape
    if cols > 1 and strides[-1] != 1:
        return None
    apart, end = cols, None
    for count, stride in zip(reversed(rows), reversed(strides[:-1]), strict=True):
        if count == 1:  # its stride does not matter
            continue
        if end is None:
            apart = stride
        elif stride != end:
            return None
        end = stride * count
    return apart if apart >= cols else None


def _table(kernel: Kernel, m: dict, dtype: str) -> dict:
    """The values of a kernel's header. Raises `Refused` if it does not take the matrix."""
    if m["inner"] != 1 and "inner" not in kernel.parameters:
        raise Refused("it takes rows whose columns follow each other")
    if dtype not in kernel.dtypes:
        raise Refused(f"it takes {', '.join(kernel.dtypes)}")
    if m["capability"] < kernel.arch:
        raise Refused(f"it needs sm_{kernel.arch}, the GPU is sm_{m['capability']}")
    if not m["isAligned"] and kernel.align > m["size"]:
        raise Refused(f"x and y must start at multiples of {kernel.align} bytes")
    if not m["isContiguous"] and "x_stride" not in kernel.parameters:
        raise Refused("it takes rows that follow each other")
    try:
        table = kernel.table(**m)
    except ZeroDivisionError:  # the table of a long row may have no sense for a short one
        raise Refused("its header has no value for this shape") from None
    takes = table["columns"] and all(0 <= table[name] <= MAX_INT for name in kernel.macros)
    if not (takes and 1 <= table["block"] <= 1024 and 1 <= table["grid"] <= MAX_INT):
        raise Refused(f"it does not take rows = {m['rows']}, cols = {m['cols']}")
    if not 0 <= table["shared_mem"] <= _most_shared(m["capability"]):
        raise Refused(f"{table['shared_mem']} bytes of shared memory are more than a block has")
    if table.get("LATE") == 0 and not m["isAlike"]:
        raise Refused("x and y must start equally far from multiples of 16 bytes")
    if m["capability"] < 90 and (table.get("CLUSTER", 1) > 1 or table.get("PROGRAMMATIC")):
        raise Refused("clusters and programmatic launches need sm_90")
    return table


def no_case() -> int:
    """No case of a table holds."""
    raise Refused("no case of its table holds for this shape")


def ceil_div(number: int, by: int) -> int:
    return -(-number // by)


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below the number."""
    return 1 << max(number - 1, 0).bit_length()


def _plan(name: str, table: dict, dtype: str, reason: str) -> Plan:
    kernel = KERNELS[name]
    options = [f"-D{macro}={table[macro]}" for macro in kernel.macros]
    if dtype != kernel.dtypes[0]:
        options.append(DTYPE_OPTIONS[dtype])
    launch = (table.get(key, 0) for key in ("grid", "block", "shared_mem", "workspace"))
    cluster, reason = table.get("CLUSTER", 1), reason.format(**table)
    return Plan(name, tuple(options), *launch, kernel.cooperative, cluster, reason)


def _most_shared(capability: int) -> int:
    """Bytes of shared memory that a block may have."""
    return SHARED_KB[max(known for known in SHARED_KB if known <= capability)] * 1024


# ---- written by the export ----------------------------------------------------------------------

TUNED_ON = Gpu(0, 0, 0)
SHARED_KB: dict[int, int] = {}
# kernel, for which matrices, why
RANKING: tuple[tuple[str, Callable[[SimpleNamespace], bool], str], ...] = ()
OPERATIONS: dict[str, tuple[str, ...]] = {}  # kernels, best first
KERNELS: dict[str, Kernel] = {}
