"""What can be known of a kernel's registers before it runs."""

from __future__ import annotations

import functools

import numpy as np

from .instructions import (
    Address,
    Immediate,
    Instruction,
    Label,
    PtxKernel,
    Register,
    registers_of,
)
from .operations.rounding import TINY


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def never_subnormal(kernel: PtxKernel) -> set[str]:
    """Registers whose every writer flushes subnormals or is a normal constant.

    Their readers need not flush again, which halves the work of -ftz=true.
    """
    writers = kernel.writers

    def is_normal(instruction: Instruction, normal: set[str]) -> bool:
        if "ftz" in instruction.modifiers and instruction.opcode not in ("setp", "slct"):
            return instruction.modifiers[-2 if instruction.opcode == "cvt" else -1] == "f32"
        if instruction.opcode != "mov":
            return False
        source = instruction.operands[1]
        if isinstance(source, Register):
            return source.name in normal
        if isinstance(source, Immediate) and source.float_bits == 32:
            value = np.array([source.value], np.uint32).view(np.float32)[0]
            return bool(value == 0 or not abs(value) < TINY)
        return False

    normal = set(writers)
    while True:
        kept = {name for name in normal if all(is_normal(w, normal) for w in writers[name])}
        if kept == normal:
            return normal
        normal = kept


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def unset(kernel: PtxKernel) -> dict[str, Instruction]:
    """Registers that some way through the kernel reads before anything writes them, each with the
    first instruction that reads it."""
    instructions = kernel.instructions
    bits = {name: 1 << place for place, name in enumerate(kernel.registers)}
    read, written = [], []
    for one in instructions:
        read.append(sum({bits.get(name, 0) for name in one.reads}))
        names = () if one.guard else one.writes
        written.append(sum({bits.get(name, 0) for name in names}))
    needed = [0] * (len(instructions) + 1)  # before each instruction
    changed = True
    while changed:
        changed = False
        for number in range(len(instructions) - 1, -1, -1):
            one = instructions[number]
            behind = 0
            if one.guard or one.opcode not in ("bra", "brx", "ret", "exit", "trap", "return"):
                behind = needed[number + 1]
            if one.opcode in ("bra", "brx"):
                label = one.operands[-1]
                names = [label.name] if isinstance(label, Label) else []
                names = kernel.tables.get(names[0], []) if one.opcode == "brx" else names
                for name in names:
                    behind |= needed[kernel.labels.get(name, len(instructions))]
            now = read[number] | behind & ~written[number]
            changed |= now != needed[number]
            needed[number] = now
    found: dict[str, Instruction] = {}
    for name, bit in bits.items() if needed[0] else ():
        if needed[0] & bit:
            found[name] = next(one for one in instructions if read[one.number] & bit)
    return found


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def steering(kernel: PtxKernel) -> set[str]:
    """Registers that an address depends on, or a jump through a comparison of integers.

    What a bad load puts into one of them leads to accesses that are no bugs of their own.
    """
    sources: dict[str, list[str]] = {}
    found: list[str] = []
    for one in kernel.instructions:
        values = [operand for operand in one.sources if not isinstance(operand, Address)]
        if one.guard:
            found.append(one.guard[0].name)
        found += registers_of(part for part in one.operands if isinstance(part, Address))
        if one.opcode != "setp" or not one.modifiers[-1].startswith("f"):
            for name in registers_of(one.targets[:1]):
                sources.setdefault(name, []).extend(registers_of(values))
    names: set[str] = set()
    while found:
        name = found.pop()
        if name not in names:
            names.add(name)
            found += sources.get(name, ())
    return names


ANYWHERE = "?"  # what an address that was loaded points to


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def shared_variables(kernel: PtxKernel) -> dict[int, str]:
    """The one shared variable that the address of an instruction is reckoned from, by the
    instruction's number; none if it may be from several, or comes from memory."""
    names = {variable.name for variable in kernel.shared}
    if not names:
        return {}
    writers = [
        (one.writes, _address_sources(kernel, one)) for one in kernel.instructions if one.writes
    ]
    origins: dict[str, frozenset[str]] = {}
    changed = True
    while changed:
        changed = False
        for targets, sources in writers:
            found = {name for name in sources if name in names or name == ANYWHERE}
            found.update(*(origins[name] for name in sources if name in origins))
            for target in targets if found else ():
                known = origins.get(target, frozenset())
                if not found <= known:
                    origins[target] = known | found
                    changed = True
    result = {}
    for one in kernel.instructions:
        bases = [part.base for part in one.operands if isinstance(part, Address)]
        if one.opcode in ("ld", "ldu", "st", "atom", "red") and len(bases) == 1:
            (base,) = bases
            of = origins.get(base.name, ()) if isinstance(base, Register) else {base} & names
            if len(of) == 1 and ANYWHERE not in of:
                (result[one.number],) = of
    return result


def _address_sources(kernel: PtxKernel, instruction: Instruction) -> list[str]:
    """What an instruction may make an address of: registers, names of variables."""
    given, sources = {parameter.name for parameter in kernel.parameters}, instruction.sources
    if any(isinstance(one, Address) and one.base in given for one in sources):
        return []
    if instruction.opcode in ("ld", "ldu", "atom", "shfl"):
        # Addresses in memory have 64 bits; what has fewer is an index.
        wide = "64" in instruction.modifiers[-1]
        return [ANYWHERE] if wide else []
    labels = [part.name for part in sources if isinstance(part, Label)]
    return [*labels, *registers_of(sources)]
