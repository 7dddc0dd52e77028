"""Which loops wait for another thread: those that end once memory reads otherwise.

Threads in such a loop must let others run, or they would spin for ever.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from .instructions import Instruction, Label, PtxKernel

STRONG_LOADS = frozenset(("volatile", "relaxed", "acquire", "mmio"))
ORDINARY = "volatile_ordinary"  # in place of .volatile, where it is to order nothing
CLOCKS = ("%clock", "%clock64", "%globaltimer")


@dataclass(frozen=True)
class Poll:
    """What polls: a volatile or acquiring load, an atomic, a test of an mbarrier."""

    instruction: Instruction
    alone: bool  # nothing else changes from round to round: only another thread can end the loop


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def without_volatile(kernel: PtxKernel) -> PtxKernel:
    """The kernel with volatile accesses that count as ordinary ones, although loops poll them."""
    instructions = [
        replace(one, modifiers=tuple(ORDINARY if m == "volatile" else m for m in one.modifiers))
        for one in kernel.instructions
    ]
    return replace(kernel, instructions=instructions, spare=[])


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def polling_loops(kernel: PtxKernel) -> dict[int, Poll]:
    """Of the loops that poll, by the number of the branch that closes them."""
    found = {}
    for number, instruction in enumerate(kernel.instructions):
        label = instruction.operands[-1] if instruction.operands else None
        if instruction.opcode == "bra" and isinstance(label, Label):
            start = kernel.labels.get(label.name, number + 1)
            loop = kernel.instructions[start : number + 1]
            poll = _polling(loop) if any(map(_reads_what_others_store, loop)) else None
            if poll:
                found[number] = Poll(poll, not _goes_on(loop))
    return found


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def hands_over(kernel: PtxKernel) -> bool:
    """Whether threads may tell one another in shared memory what they have done: by a load that is
    volatile or stronger, or an atomic whose result is used."""
    for instruction in kernel.instructions:
        strong = instruction.opcode == "ld" and STRONG_LOADS & {*instruction.modifiers}
        if strong and "global" not in instruction.modifiers:
            return True
    results = {
        name
        for instruction in kernel.instructions
        if instruction.opcode == "atom" and "global" not in instruction.modifiers
        for name in instruction.writes
    }
    return bool(results) and any(
        not results.isdisjoint(instruction.reads) for instruction in kernel.instructions
    )


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def guarded_loads(kernel: PtxKernel) -> frozenset[int]:
    """The volatile or stronger loads that no loop polls, by number, where something else may be a
    flag that guards what they load: a poll, or an atomic with a result."""
    polls = {poll.instruction.number for poll in polling_loops(kernel).values()}
    if not polls and not any(one.opcode == "atom" for one in kernel.instructions):
        return frozenset()
    strong = [one for one in kernel.instructions if STRONG_LOADS & {*one.modifiers}]
    return frozenset(one.number for one in strong if one.opcode == "ld") - polls


def _goes_on(loop: list[Instruction]) -> bool:
    """Whether a round differs from the one before: a register is carried over, or time passes."""
    written: set[str] = set()
    carried: set[str] = set()
    for instruction in loop:
        carried |= {*instruction.reads} - written
        if any(getattr(operand, "name", "") in CLOCKS for operand in instruction.operands):
            return True
        written |= {*instruction.writes}
    return bool(carried & written)


def _polling(loop: list[Instruction]) -> Instruction | None:
    """What one of the loop's conditional jumps depends on and another thread can change."""
    source: dict[str, Instruction] = {}
    known = -1
    while known != len(source):  # until no register is found to depend on one any more
        known = len(source)
        for instruction in loop:
            read = (source[name] for name in instruction.reads if name in source)
            origin = next(read, None)
            if _reads_what_others_store(instruction):
                origin = instruction
            if origin is not None:
                for name in instruction.writes:
                    source.setdefault(name, origin)
            if instruction.opcode in ("bra", "exit", "ret") and instruction.guard:
                if instruction.guard[0].name in source:
                    return source[instruction.guard[0].name]
    return None


def _reads_what_others_store(instruction: Instruction) -> bool:
    modifiers = instruction.modifiers
    if instruction.opcode == "ld":
        return bool((STRONG_LOADS | {ORDINARY}) & {*modifiers})
    return instruction.opcode == "atom" or (
        instruction.opcode == "mbarrier" and modifiers[0] in ("test_wait", "try_wait")
    )
