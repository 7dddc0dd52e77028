"""What can be known of a kernel's registers before it runs."""

from __future__ import annotations

import functools

import numpy as np

from .instructions import Address, Immediate, Instruction, PtxKernel, Register, Vector, elements
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
