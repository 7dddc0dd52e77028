"""What can be known before it runs of what a kernel stores to global memory, and swaps there."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from .instructions import (
    Address,
    Immediate,
    Instruction,
    Label,
    Operand,
    PtxKernel,
    Register,
    Special,
    elements,
    registers_of,
)

ANYTHING = "*"  # where a pointer may point that was loaded from memory
# Results that differ from thread to thread although their operands do not.
OF_A_THREAD = ("ld", "atom", "shfl", "vote", "match", "redux", "elect", "activemask", "mapa")
NOWHERE = ("shared", "shared_cta", "shared_cluster", "local", "param", "param_func")
DEPTH = 16  # of an expression that is followed


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def constant_stores(kernel: PtxKernel) -> dict[int, tuple]:
    """The stores whose value is made of literals and the launch's arguments alone, so that it is
    the same in every thread: by the number of the instruction what it stores."""
    writers, given = kernel.writers, {parameter.name for parameter in kernel.parameters}

    def fixed(operand: Operand, depth: int = DEPTH) -> object:
        """The same for operands of equal value; None if it may differ."""
        if isinstance(operand, Immediate):
            return operand.value
        return of_register(operand.name, depth) if isinstance(operand, Register) and depth else None

    @functools.cache
    def of_register(name: str, depth: int) -> object:
        if len(writers.get(name, ())) != 1:
            return None
        (one,) = writers[name]
        if one.guard or (one.opcode in OF_A_THREAD and "param" not in one.modifiers):
            return None
        if one.opcode == "ld":
            return one.text if one.operands[1].base in given else None
        parts = [fixed(source, depth - 1) for source in one.sources]
        if None in parts:
            return None
        return parts[0] if one.opcode == "mov" else (one.opcode, one.modifiers, *parts)

    found = {}
    for one in kernel.instructions:
        if one.opcode == "st" and not {"local", "param", "param_func"} & {*one.modifiers}:
            parts = tuple(fixed(value) for value in elements(one.operands[1]))
            if None not in parts:
                found[one.number] = parts
    return found


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def alike(kernel: PtxKernel) -> np.ndarray:
    """A number for each instruction, the same for stores of the same constant."""
    first: dict[tuple, int] = {}
    result = np.arange(len(kernel.instructions))
    for number, constant in constant_stores(kernel).items():
        result[number] = first.setdefault(constant, number)
    return result


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def used_atomics(kernel: PtxKernel) -> frozenset[int]:
    """The atomics whose result some instruction reads, by number."""
    read = {name for one in kernel.instructions for name in one.reads}
    atomics = [one for one in kernel.instructions if one.opcode == "atom"]
    return frozenset(one.number for one in atomics if not read.isdisjoint(one.writes))


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def optimistic_loads(kernel: PtxKernel) -> frozenset[int]:
    """The ordinary loads whose value is the first guess of a compare-and-swap: a wrong one costs a
    round and nothing else, so that they count as strong. What also says which word is swapped, as
    the parent in a union-find, is no guess. By the number of the instruction."""
    swaps = [one for one in kernel.instructions if "cas" in one.modifiers]
    writers = kernel.writers
    waiting = [one.operands[2] for one in swaps]
    steering = _sources([one.operands[1] for one in swaps], writers)
    found, met = set(), set()
    while waiting:
        operand = waiting.pop()
        if isinstance(operand, Register) and operand.name not in met:
            met.add(operand.name)
            for one in writers.get(operand.name, ()):
                if one.opcode == "ld" and operand.name not in steering:
                    found.add(one.number)
                elif one.opcode == "mov":
                    waiting += elements(one.operands[1])
    return frozenset(found)


def _sources(operands: Sequence[Operand], writers: dict[str, list[Instruction]]) -> set[str]:
    """The registers that operands are worked out from, as far back as memory."""
    found: set[str] = set()
    waiting = {*registers_of(operands)}
    while waiting:
        name = waiting.pop()
        found.add(name)
        for one in writers.get(name, ()):
            if one.opcode not in ("ld", "ldu", "atom"):
                waiting |= {*registers_of(one.sources)} - found
    return found


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def written(kernel: PtxKernel) -> frozenset[str]:
    """The parameters and variables whose arrays the kernel may write to; `ANYTHING` is among them
    if it takes pointers from memory."""
    moves = []  # (to, what is known to be there, registers and parameters that it comes from)
    for one in kernel.instructions:
        passes = one.opcode == "st" and "param" in one.modifiers  # to a function
        targets = (one.operands[0].base,) if passes else one.writes
        known, sources = _points_to(one) if targets else ((), ())
        if known or sources:
            moves.append((targets, known, sources))
    points: dict[str, set[str]] = {}
    changed = True
    while changed:
        changed = False
        for targets, known, sources in moves:
            found = known.union(*(points[name] for name in sources if name in points))
            for target in targets:
                if not found <= points.get(target, set()):
                    points.setdefault(target, set()).update(found)
                    changed = True
    found: set[str] = {ANYTHING} if kernel.functions else set()
    for one in kernel.instructions:
        bulk = one.opcode == "cp" and one.modifiers[:3] == ("async", "bulk", "global")
        if one.opcode in ("st", "atom", "red") and not {*NOWHERE} & {*one.modifiers} or bulk:
            address = next(part for part in one.operands if isinstance(part, Address))
            names, registers = _names((address,))
            found |= names.union(*(points.get(name, set()) for name in registers))
    return frozenset(found)


def _points_to(one: Instruction) -> tuple[set[str], set[str]]:
    """Where a result may point: to these, and as these registers and parameters do. What is loaded
    points anywhere if it is as wide as a pointer."""
    if one.opcode in ("ld", "ldu", "atom"):
        if "param" in one.modifiers:
            names, registers = _names(one.operands[1:2])
            return names, registers | names
        return {ANYTHING} if one.modifiers[-1] in ("b64", "u64", "s64") else set(), set()
    return _names([part for source in one.operands[1:] for part in elements(source)])


def _names(operands: Sequence[Operand]) -> tuple[set[str], set[str]]:
    """(names, registers) among operands, and those that addresses begin with."""
    names, registers = set(), set()
    for operand in operands:
        base = operand.base if isinstance(operand, Address) else operand
        if isinstance(base, Register):
            registers.add(base.name)
        elif isinstance(base, (Label, Special, str)):
            names.add(getattr(base, "name", base))
    return names, registers
