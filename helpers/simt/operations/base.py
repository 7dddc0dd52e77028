"""The table of opcodes: their forms, and the functions that compute them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..instructions import DTYPES, Instruction, Operand, UnsupportedPTX, Vector, elements


@dataclass(frozen=True)
class PtxOperation:
    apply: Callable[..., np.ndarray]
    sources: tuple[str, ...]  # PTX type of each source
    result: str  # PTX type of the result
    flush: bool = False  # .ftz: subnormal fp32 sources and results count as zero
    others: tuple[PtxOperation, ...] = ()  # of further targets, which may be left out


@dataclass(frozen=True)
class Form:
    modifiers: str  # a pattern, compiled when it is needed: there are many
    operation: PtxOperation  # its types may be names of modifiers


OPCODES: dict[str, list[Form]] = {}
# Modifiers that stand for several.
CLASSES = {
    "integer": "[bus](?:8|16|32|64)",
    "float": "f32|f64",
    "half": "b?f16",
    "f16s": "f16|f16x2",
    "bf16s": "bf16|bf16x2",
    "direction": "r[nzmp]",
    "whole": "r[nzmp]i",
}


def form(
    names: str,
    modifiers: str = "T:integer",
    sources: str = "T T",
    result: str = "T",
    complement: Callable[..., np.ndarray] | None = None,
) -> Callable[[Callable], Callable]:
    """Enter a function in the table, for these opcodes with these modifiers.

    A modifier is written `rn`, `rn|rz` if it is one of several, `rn?` if it may be missing, and
    may have a name, as in `T:u32|s32`. Types of sources and result are such names, or types. The
    function gets an array for each source, and by keyword each modifier with a name in lower case,
    "" if it is missing; `.ftz` without a name is dealt with outside. `complement` is for a second
    target, a predicate. The first form that fits counts.
    """
    pattern, types = "".join(map(_slot, modifiers.split())), tuple(sources.split())
    others = (PtxOperation(complement, types, "pred"),) if complement else ()

    def register(function: Callable) -> Callable:
        operation = PtxOperation(function, types, result, others=others)
        for name in names.split():
            OPCODES.setdefault(name, []).append(Form(pattern, operation))
        return function

    return register


def _slot(text: str) -> str:
    name, _, choices = text.rpartition(":")
    optional, choices = choices[-1:] == "?", choices.rstrip("?")
    name = name or ("FTZ" if choices == "ftz" else "")
    choices = "|".join(CLASSES.get(one, one) for one in choices.split("|"))
    group = f"(?P<{name}>{choices})" if name else f"(?:{choices})"
    return rf"(?:{group}\.)" + "?" * optional


@functools.lru_cache(maxsize=4096)
def find_operation(name: str, modifiers: tuple[str, ...]) -> PtxOperation:
    """Return the operation of an opcode; raises `UnsupportedPTX` if there is none."""
    written = ".".join((name, *modifiers))
    if name not in OPCODES:
        raise UnsupportedPTX(f"the SIMT machine does not know the opcode {written!r}")
    for one in OPCODES[name]:
        if match := re.fullmatch(one.modifiers, "".join(f"{word}." for word in modifiers)):
            return _bound(one.operation, match.groupdict(""))
    raise UnsupportedPTX(f"the SIMT machine does not know this form of {written!r}")


def _bound(operation: PtxOperation, named: dict[str, str]) -> PtxOperation:
    """The operation with the modifiers that were written."""
    given = {name: value for name, value in named.items() if name.islower()}
    apply = functools.partial(operation.apply, **given) if given else operation.apply
    sources = tuple(named.get(kind, kind) for kind in operation.sources)
    result = named.get(operation.result, operation.result)
    others = tuple(_bound(one, named) for one in operation.others)
    return PtxOperation(apply, sources, result, bool(named.get("FTZ")), others)


def operation_of(
    instruction: Instruction,
) -> tuple[PtxOperation, tuple[Operand, ...], tuple[Operand, ...]]:
    """(its operation, the operands that it writes, those that it reads), the parts of a vector one
    by one. Raises `UnsupportedPTX` if there is no such operation."""
    operands = tuple(part for one in instruction.operands for part in elements(one))
    if len(operands) > len(instruction.operands) and instruction.opcode == "mov":
        operation = _vector_move(instruction)
    else:
        operation = find_operation(instruction.opcode, instruction.modifiers)
    count = len(operands) - len(operation.sources)
    if not 1 <= count <= 1 + len(operation.others):
        raise UnsupportedPTX(
            f"the SIMT machine expects another operand count in {instruction.text!r}"
        )
    return operation, operands[:count], operands[count:]


def _vector_move(instruction: Instruction) -> PtxOperation:
    """mov between one wide register and a vector of narrow ones."""
    target, source = instruction.operands
    wide, count = instruction.modifiers[-1], max(len(elements(target)), len(elements(source)))
    bits = int(wide[1:]) // count
    narrow = f"b{bits}"

    def pack(*parts: np.ndarray) -> np.ndarray:
        value = np.zeros(1, DTYPES[wide])
        for place, part in enumerate(parts):
            value = value | part.astype(value.dtype) << value.dtype.type(place * bits)
        return value

    def unpack(place: int, value: np.ndarray) -> np.ndarray:
        return (value >> value.dtype.type(place * bits)).astype(DTYPES[narrow])

    if not isinstance(target, Vector):
        return PtxOperation(pack, (narrow,) * count, wide)
    first, *others = (
        PtxOperation(functools.partial(unpack, place), (wide,), narrow) for place in range(count)
    )
    return replace(first, others=tuple(others))
