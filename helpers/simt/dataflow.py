"""What can be known of a kernel's registers before it runs."""

from __future__ import annotations

import functools

import numpy as np

from .instructions import (
    Address,
    Immediate,
    Instruction,
    Label,
    Negated,
    Operand,
    PtxKernel,
    Register,
    Vector,
    elements,
)
from .operations.rounding import TINY


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def never_subnormal(kernel: PtxKernel) -> set[str]:
    """Registers whose every writer flushes subnormals or is a normal constant.

    Their readers need not flush again, which halves the work of -ftz=true.
    """
    writers: dict[str, list[Instruction]] = {}
    for instruction in kernel.instructions:
        for operand in instruction.operands[:1]:
            for target in elements(operand):
                if isinstance(target, Register):
                    writers.setdefault(target.name, []).append(instruction)

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


WRITES_NOTHING = frozenset("st red bra brx ret exit trap nanosleep call return".split())


def registers_of(operands: tuple[Operand, ...]) -> list[str]:
    """The names of the registers in some operands."""
    names = []
    for operand in operands:
        for part in operand.elements if isinstance(operand, Vector) else (operand,):
            if isinstance(part, Address):
                part = part.base
            elif isinstance(part, Negated):
                part = part.register
            if isinstance(part, Register):
                names.append(part.name)
    return names


def target_count(instruction: Instruction) -> int:
    """How many of the operands an instruction writes; they come first."""
    opcode, operands, modifiers = instruction.opcode, instruction.operands, instruction.modifiers
    if opcode in WRITES_NOTHING or not operands or isinstance(operands[0], Address):
        return 0
    if opcode in ("bar", "barrier"):
        return int("red" in modifiers)
    if opcode == "shfl":
        return len(operands) - 4
    if opcode == "setp":
        return len(operands) - 2 - bool({"and", "or", "xor"} & {*modifiers})
    if opcode in ("elect", "match"):
        return len(operands) - (1 if opcode == "elect" else 2)
    return 1


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def unset(kernel: PtxKernel) -> dict[str, Instruction]:
    """Registers that some way through the kernel reads before anything writes them, each with the
    first instruction that reads it."""
    instructions = kernel.instructions
    bits = {name: 1 << place for place, name in enumerate(kernel.registers)}
    read, written = [], []
    for one in instructions:
        count = target_count(one)
        guard = [one.guard[0].name] if one.guard else []
        names = registers_of(one.operands[count:]) + guard
        read.append(sum({bits.get(name, 0) for name in names}))
        names = [] if one.guard else registers_of(one.operands[:count])
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
    sources: dict[str, list] = {}
    found: list = []
    for instruction in kernel.instructions:
        if instruction.guard:
            found.append(instruction.guard[0])
        found += [operand.base for operand in instruction.operands if isinstance(operand, Address)]
        if instruction.opcode != "setp" or not instruction.modifiers[-1].startswith("f"):
            for target in instruction.operands[:1]:
                for element in elements(target):
                    sources.setdefault(element, []).extend(instruction.operands[1:])
    names: set[str] = set()
    while found:
        operand = found.pop()
        if isinstance(operand, Vector):
            found += operand.elements
        elif isinstance(operand, Register) and operand.name not in names:
            names.add(operand.name)
            found += sources.get(operand, [])
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
        (registers_of(one.operands[:count]), _address_sources(kernel, one, one.operands[count:]))
        for one in kernel.instructions
        if (count := target_count(one))
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


def _address_sources(
    kernel: PtxKernel, instruction: Instruction, sources: tuple[Operand, ...]
) -> list[str]:
    """What an instruction may make an address of: registers, names of variables."""
    given = {parameter.name for parameter in kernel.parameters}
    if any(isinstance(one, Address) and one.base in given for one in sources):
        return []
    if instruction.opcode in ("ld", "ldu", "atom", "shfl"):
        # Addresses in memory have 64 bits; what has fewer is an index.
        wide = "64" in instruction.modifiers[-1]
        return [ANYWHERE] if wide else []
    labels = [part.name for part in sources if isinstance(part, Label)]
    return labels + registers_of(sources)
