"""What can be known of a kernel before it runs: its registers, what it stores, loops that wait for
another thread, and loops that lanes may leave one after another.

Threads in a loop that waits must let others run, or the loop would never end.

ptxas makes four rounds of an unrolled loop one, with two and one for what is left. A lane with four
rounds left runs them at once; lanes with three or fewer wait, and run two and one of their own. So
a warp whose lanes have three and four rounds left makes seven rounds of requests, not four. What
ptxas unrolls is written nowhere, so any loop may be: of a warp that leaves it in parts, each load
or store of it makes at most `MORE` requests more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

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
from .operations.rounding import TINY

once = functools.lru_cache(maxsize=64)  # as many kernels as are kept when they are parsed
JUMPS = ("bra", "brx", "ret", "exit", "trap", "call", "return")  # the scheduler runs them


def _carried_along(moves: Sequence[tuple[Iterable, set, Collection]]) -> dict[str, set]:
    """By name, all that comes there by moves: (to, what comes from nowhere else, from)."""
    found: dict[str, set] = {}
    changed = True
    while changed:
        changed = False
        for targets, known, sources in moves:
            here = known.union(*(found[name] for name in sources if name in found))
            for target in targets if here else ():
                if not here <= found.get(target, set()):
                    found.setdefault(target, set()).update(here)
                    changed = True
    return found


def _reached(names: Iterable[str], behind: Callable[[str], Iterable[str]]) -> set[str]:
    """These names, all that is behind them, and so on."""
    found, waiting = set(), [*names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += behind(name)
    return found


# ---- registers ----------------------------------------------------------------------------------


@once
def never_subnormal(kernel: PtxKernel) -> set[str]:
    """Registers whose every writer flushes subnormals or is a normal constant.

    Their readers need not flush again, which halves the work of -ftz=true.
    """
    copies: dict[str, list[str]] = {}
    found: list[str] = []
    for one in kernel.instructions:
        if one.opcode == "mov" and isinstance(one.operands[1], Register):
            copies.setdefault(one.operands[1].name, []).extend(one.writes)
        elif not _is_normal(one):
            found += one.writes
    found += copies.keys() - kernel.writers.keys()
    return kernel.writers.keys() - _reached(found, lambda name: copies.get(name, ()))


def _is_normal(one: Instruction) -> bool:
    if "ftz" in one.modifiers and one.opcode not in ("setp", "slct"):
        return one.modifiers[-2 if one.opcode == "cvt" else -1] == "f32"
    source = one.operands[1] if one.opcode == "mov" else None
    if not isinstance(source, Immediate) or source.float_bits != 32:
        return False
    value = np.array([source.value], np.uint32).view(np.float32)[0]
    return bool(value == 0 or not abs(value) < TINY)


@once
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
            for target in kernel.targets(one):
                behind |= needed[target]
            now = read[number] | behind & ~written[number]
            changed |= now != needed[number]
            needed[number] = now
    found: dict[str, Instruction] = {}
    for name, bit in bits.items() if needed[0] else ():
        if needed[0] & bit:
            found[name] = next(one for one in instructions if read[one.number] & bit)
    return found


@once
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
    return _reached(found, lambda name: sources.get(name, ()))


# ---- stores to global memory --------------------------------------------------------------------


ANYTHING = "*"  # where a pointer may point that was loaded from memory
# Results that differ from thread to thread although their operands do not.
OF_A_THREAD = ("ld", "atom", "shfl", "vote", "match", "redux", "elect", "activemask", "mapa")
NOWHERE = ("shared", "shared_cta", "shared_cluster", "local", "param", "param_func")
DEPTH = 16  # of an expression that is followed


@once
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


@once
def alike(kernel: PtxKernel) -> np.ndarray:
    """A number for each instruction, the same for stores of the same constant."""
    first: dict[tuple, int] = {}
    result = np.arange(len(kernel.instructions))
    for number, constant in constant_stores(kernel).items():
        result[number] = first.setdefault(constant, number)
    return result


@once
def used_atomics(kernel: PtxKernel) -> frozenset[int]:
    """The atomics whose result some instruction reads, by number."""
    read = {name for one in kernel.instructions for name in one.reads}
    atomics = [one for one in kernel.instructions if one.opcode == "atom"]
    return frozenset(one.number for one in atomics if not read.isdisjoint(one.writes))


@once
def optimistic_loads(kernel: PtxKernel) -> frozenset[int]:
    """The ordinary loads whose value is the first guess of a compare-and-swap: a wrong one costs a
    round and nothing else, so that they count as strong. What also says which word is swapped, as
    the parent in a union-find, is no guess. By the number of the instruction."""
    swaps = [one for one in kernel.instructions if "cas" in one.modifiers]

    def made_of(place: int, by: Callable[[Instruction], bool]) -> set[str]:
        """The registers that an operand of the swaps is made of, by such instructions."""

        def behind(name: str) -> list[str]:
            makers = filter(by, kernel.writers.get(name, ()))
            return [source for one in makers for source in registers_of(one.sources)]

        return _reached(registers_of(one.operands[place] for one in swaps), behind)

    guesses = made_of(2, lambda one: one.opcode == "mov")
    guesses -= made_of(1, lambda one: one.opcode not in ("ld", "ldu", "atom"))
    makers = [one for name in guesses for one in kernel.writers.get(name, ())]
    return frozenset(one.number for one in makers if one.opcode == "ld")


@once
def _points(kernel: PtxKernel) -> dict[str, set[str]]:
    """By register, and by argument of a call, the parameters and variables that it may point to;
    `ANYTHING` is among them if it may come from memory."""
    moves = []  # (to, what is known to be there, registers and parameters that it comes from)
    for one in kernel.instructions:
        passes = one.opcode == "st" and "param" in one.modifiers  # to a function
        targets = (one.operands[0].base,) if passes else one.writes
        moves.append((targets, *_points_to(one)) if targets else ((), set(), ()))
    return _carried_along(moves)


def _reaches(kernel: PtxKernel, address: Address) -> set[str]:
    """The parameters and variables that an address may be reckoned from."""
    names, registers = _names((address,))
    return names.union(*(_points(kernel).get(name, set()) for name in registers))


@once
def written(kernel: PtxKernel) -> frozenset[str]:
    """The parameters and variables whose arrays the kernel may write to; `ANYTHING` is among them
    if it takes pointers from memory."""
    found: set[str] = {ANYTHING} if kernel.functions else set()
    for one in kernel.instructions:
        bulk = one.opcode == "cp" and one.modifiers[:3] == ("async", "bulk", "global")
        if one.opcode in ("st", "atom", "red") and not {*NOWHERE} & {*one.modifiers} or bulk:
            address = next(part for part in one.operands if isinstance(part, Address))
            found |= _reaches(kernel, address)
    return frozenset(found)


@once
def shared_variables(kernel: PtxKernel) -> dict[int, str]:
    """The one shared variable that the address of an instruction is reckoned from, by the
    instruction's number; none if it may be from several, or comes from memory."""
    names, result = {variable.name for variable in kernel.shared} | {ANYTHING}, {}
    for one in kernel.instructions if kernel.shared else ():
        addresses = [part for part in one.operands if isinstance(part, Address)]
        if one.opcode in ("ld", "ldu", "st", "atom", "red") and len(addresses) == 1:
            found = _reaches(kernel, addresses[0]) & names
            if len(found) == 1 and ANYTHING not in found:
                (result[one.number],) = found
    return result


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


# ---- loops that wait for another thread ---------------------------------------------------------


STRONG_LOADS = frozenset(("volatile", "relaxed", "acquire", "mmio"))
ORDINARY = "volatile_ordinary"  # in place of .volatile, where it is to order nothing
CLOCKS = ("%clock", "%clock64", "%globaltimer")


@dataclass(frozen=True)
class Poll:
    """What polls: a volatile or acquiring load, an atomic, a test of an mbarrier."""

    instruction: Instruction
    alone: bool  # nothing else changes from round to round: only another thread can end the loop


@once
def without_volatile(kernel: PtxKernel) -> PtxKernel:
    """The kernel with volatile accesses that count as ordinary ones, although loops poll them."""
    instructions = [
        replace(one, modifiers=tuple(ORDINARY if m == "volatile" else m for m in one.modifiers))
        for one in kernel.instructions
    ]
    return replace(kernel, instructions=instructions)


@once
def polling_loops(kernel: PtxKernel) -> dict[int, Poll]:
    """Of the loops that poll, by the number of the branch that closes them."""
    found = {}
    for branch, start in _branches(kernel):
        loop = kernel.instructions[start : branch.number + 1]
        poll = _polling(loop) if any(map(_reads_what_others_store, loop)) else None
        if poll:
            found[branch.number] = Poll(poll, not _goes_on(loop))
    return found


def _branches(kernel: PtxKernel) -> Iterator[tuple[Instruction, int]]:
    """Each branch with the number of the instruction that it goes to."""
    for one in kernel.instructions:
        if one.opcode == "bra":
            yield one, *kernel.targets(one)


@once
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
    moves = [
        (one.writes, {one.number}, ())
        if _reads_what_others_store(one)
        else (one.writes, set(), one.reads)
        for one in loop
    ]
    polled = _carried_along(moves)
    for one in loop:
        if one.opcode in ("bra", "exit", "ret") and one.guard and one.guard[0].name in polled:
            return loop[min(polled[one.guard[0].name]) - loop[0].number]
    return None


def _reads_what_others_store(instruction: Instruction) -> bool:
    modifiers = instruction.modifiers
    if instruction.opcode == "ld":
        return bool((STRONG_LOADS | {ORDINARY}) & {*modifiers})
    return instruction.opcode == "atom" or (
        instruction.opcode == "mbarrier" and modifiers[0] in ("test_wait", "try_wait")
    )


# ---- loops that lanes may leave one after another ------------------------------------------------


MORE = 3  # rounds: fours, a two and a one, of which the longest lane needs the fours alone
SHORT = 20  # instructions of PTX behind a branch that may be predicated
MEMORY = ("ld", "st")


@once
def ragged_loops(kernel: PtxKernel) -> dict[int, range]:
    """By the number of the branch that decides whether a loop goes on, the numbers of the loop's
    instructions."""
    found = {}
    for branch, start in _branches(kernel):
        decides = branch.number
        if not branch.guard and kernel.instructions[decides - 1].opcode == "bra":
            decides -= 1  # a jump out of the loop stands before the jump back
        if start <= decides:
            found[decides] = range(start, decides)
    return found


@once
def skipped_shared(kernel: PtxKernel) -> frozenset[tuple[str, int]]:
    """File and line of accesses to shared memory that a short branch jumps over: the assembler may
    predicate them, and the hardware then counts requests of warps without an active lane too."""
    found = set()
    for branch, stop in _branches(kernel):
        inside = kernel.instructions[branch.number + 1 : stop]
        if branch.guard and len(inside) <= SHORT:
            found |= {
                (one.file, one.line)
                for one in inside
                if one.opcode in MEMORY and "shared" in one.modifiers
            }
    return frozenset(found)
