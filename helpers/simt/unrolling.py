"""Loops that the assembler unrolls: in which order their rounds then run.

ptxas makes four rounds of one, with two and one for what is left. A lane with four rounds left runs
them at once; lanes with three or fewer wait, and run two and one of their own. So a warp whose
lanes have three and four rounds left makes seven rounds of requests, not four.

What ptxas unrolls is written nowhere. The rules here are what disassembled code showed (CUDA 13,
sm_90) of loops of one basic block that step by a constant; an H200 counts the same of the loops in
tests/hardware/ragged_loops.cu. Of the loops that may be unrolled in another way it is said how many
requests more there may be: of a warp that leaves a loop in parts, each load or store of it at most
`MORE`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .hardware import WARP
from .instructions import (
    Address,
    Immediate,
    Instruction,
    Label,
    Operand,
    PtxKernel,
    Register,
)

AT_MOST = 43  # instructions of PTX of a loop that is surely unrolled; some are up to 60
NEVER = 61  # and of one that surely is not
MORE = 3  # rounds: fours, a two and a one, of which the longest lane needs the fours alone
SHORT = 20  # instructions of PTX behind a branch that may be predicated
MEMORY = ("ld", "st")
# What ptxas leaves alone in a loop, or makes branches of.
KEPT = frozenset("atom red shfl vote match redux bar barrier call membar fence cp div rem".split())
JUMPS = ("bra", "brx", "ret", "exit", "trap", "call", "return")
BRANCHING = frozenset(("sqrt", "rcp"))  # with "rn": a slow path for subnormals


@dataclass(frozen=True)
class Loop:
    """A basic block that jumps to itself while its counter compares so with a bound."""

    counter: str
    kind: str  # of the counter, such as "s32"
    step: int
    compare: str  # "lt", "gt", "le", "ge" or "ne"
    bound: Operand

    def rounds(self, start: np.ndarray, bound: np.ndarray) -> np.ndarray | None:
        """How many rounds lanes make from a counter's value on, at least one; None if the counter
        runs over on the way."""
        bits = int(self.kind[1:])
        if bits == 64 and (np.abs(start) > 2**61).any() | (np.abs(bound) > 2**61).any():
            return None
        left = (bound - start) * (1 if self.step > 0 else -1)
        step = abs(self.step)
        if self.compare == "ne" and ((left <= 0) | (left % step != 0)).any():
            return None
        inclusive = self.compare in ("le", "ge")
        count = np.maximum(left // step + 1 if inclusive else -(-left // step), 1)
        end = start + count * self.step
        lowest = 0 if self.kind[0] == "u" else -(2 ** (bits - 1))
        if (end < lowest).any() or (end >= lowest + 2**bits).any():
            return None
        return count

    def past(self, start: np.ndarray, bound: np.ndarray) -> np.ndarray:
        """Which lanes run one round before the others: with an unsigned counter those for which it
        is at or past its bound as they come."""
        if self.kind != "u32":
            return np.zeros(start.shape, bool)
        return start >= bound if self.step > 0 else start <= bound


def unrolled_loops(kernel: PtxKernel) -> dict[int, Loop]:
    """Of the loops that are surely unrolled, by the number of the branch that closes them."""
    return {number: loop for number, loop in _loops(kernel).items() if isinstance(loop, Loop)}


def uncertain_loops(kernel: PtxKernel) -> dict[int, range]:
    """Of the loops that may be unrolled in a way that is not known here: by the number of the
    branch that ends them, the numbers of their instructions."""
    return {number: loop for number, loop in _loops(kernel).items() if isinstance(loop, range)}


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def skipped_shared(kernel: PtxKernel) -> frozenset[tuple[str, int]]:
    """File and line of accesses to shared memory that a short branch jumps over: the assembler may
    predicate them, and the hardware then counts requests of warps without an active lane too."""
    found = set()
    for branch in kernel.instructions:
        label = branch.operands[-1] if branch.operands else None
        if branch.opcode == "bra" and branch.guard and isinstance(label, Label):
            stop = kernel.labels.get(label.name, 0)
            inside = kernel.instructions[branch.number + 1 : stop]
            if len(inside) <= SHORT:
                found |= {
                    (one.file, one.line)
                    for one in inside
                    if one.opcode in MEMORY and "shared" in one.modifiers
                }
    return frozenset(found)


def ragged(mask: np.ndarray, rounds: np.ndarray) -> bool:
    """Whether lanes of a warp make different numbers of rounds."""
    most = np.where(mask, rounds, 0).reshape(-1, WARP).max(axis=1)
    least = np.where(mask, rounds, np.iinfo(np.int64).max).reshape(-1, WARP).min(axis=1)
    return bool((least < most).any())


def order(mask: np.ndarray, rounds: np.ndarray, past: np.ndarray) -> Iterator[np.ndarray]:
    """Which lanes of a mask run, round by round, if those `past` the bound come first."""
    if (first := mask & past).any():
        yield first
        mask = mask & ~past
        if not mask.any():
            return
    fours, left = rounds // 4, rounds % 4
    for number in range(int(fours[mask].max())):
        yield from [mask & (fours > number)] * 4
    for part, count in ((left >= 2, 2), (left % 2 == 1, 1)):
        if (together := mask & part).any():
            yield from [together] * count


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def _loops(kernel: PtxKernel) -> dict[int, Loop | range]:
    found: dict[int, Loop | range] = {}
    for branch in kernel.instructions:
        label = branch.operands[-1] if branch.operands else None
        if branch.opcode != "bra" or not isinstance(label, Label):
            continue
        start = kernel.labels.get(label.name, branch.number + 1)
        if start > branch.number or start in kernel.as_written:
            continue
        body = kernel.instructions[start : branch.number]
        decides = branch
        if not branch.guard and body and body[-1].opcode == "bra":
            decides = body.pop()  # a jump out of the loop stands before the jump back
        loop = _unrolled(kernel, start, body, decides)
        if decides is not branch and isinstance(loop, Loop):
            loop = range(start, decides.number)
        if loop is not None:
            found[decides.number] = loop
    return found


def _unrolled(
    kernel: PtxKernel, start: int, body: list[Instruction], branch: Instruction
) -> Loop | range | None:
    """The loop, if it is known to be unrolled; its instructions, if that is not known; else
    nothing."""
    unknown = range(start, branch.number)
    if len(body) >= NEVER or any(_is_kept(one) for one in body):
        return None
    if not any(one.opcode in MEMORY for one in body):
        return None  # nothing that is counted
    inner = [one for one in body if one.opcode in JUMPS]
    if not all(start < _target(kernel, one) <= branch.number for one in inner):
        return None  # a loop around another, or one with a second way out
    if inner or any(start < place <= branch.number for place in kernel.labels.values()):
        return unknown if _steps(body) else None
    loop = _counted(kernel, body, branch)
    if loop is None:
        return None
    if not _tells_places_apart(body, loop):
        return None
    if loop.kind == "u64" or len(body) > AT_MOST:
        return unknown
    return loop


def _jumps_back(kernel: PtxKernel, branch: Instruction) -> bool:
    return kernel.labels.get(branch.operands[-1].name, branch.number + 1) <= branch.number


def _target(kernel: PtxKernel, jump: Instruction) -> int:
    """The instruction that a jump inside a loop goes on to; -1 for one that is left by it, or that
    goes back."""
    label = jump.operands[-1] if jump.operands else None
    place = kernel.labels.get(label.name, -1) if isinstance(label, Label) else -1
    return place if jump.opcode == "bra" and place > jump.number else -1


def _is_kept(one: Instruction) -> bool:
    return one.opcode in KEPT or one.opcode in BRANCHING and "rn" in one.modifiers


def _steps(body: list[Instruction]) -> bool:
    """Whether anything is counted by a constant."""
    return any(
        one.opcode in ("add", "sub")
        and one.operands[0] == one.operands[1]
        and isinstance(one.operands[2], Immediate)
        for one in body
        if len(one.operands) == 3
    )


def _counted(kernel: PtxKernel, body: list[Instruction], branch: Instruction) -> Loop | None:
    """What is counted, if the branch depends on that alone."""
    if not branch.guard:
        return None
    predicate, negated = branch.guard
    compared = [one for one in body if predicate.name in one.writes]
    if len(compared) != 1 or compared[0].opcode != "setp" or len(compared[0].modifiers) != 2:
        return None
    compare, kind = compared[0].modifiers
    kind = kind.replace("b", "s")
    opposite = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
    if negated is _jumps_back(kernel, branch):
        compare = opposite.get(compare, "")
    counter, bound = compared[0].sources
    steps = [one for one in body if getattr(counter, "name", "") in one.writes]
    if len(steps) != 1 or any(getattr(bound, "name", "") in one.writes for one in body):
        return None
    step = steps[0]
    if step.opcode != "add" or step.number > compared[0].number or step.guard:
        return None
    if step.operands[1] != counter or not isinstance(step.operands[2], Immediate):
        return None
    if not isinstance(bound, Register | Immediate) or kind not in ("s32", "s64", "u32", "u64"):
        return None
    by = step.operands[2].value
    towards = {"lt": by > 0, "le": by > 0, "gt": by < 0, "ge": by < 0, "ne": by != 0}
    if not towards.get(compare, False):
        return None
    return Loop(counter.name, kind, by, compare, bound)


def _tells_places_apart(body: list[Instruction], loop: Loop) -> bool:
    """Whether ptxas sees that a load of a later round is of no place stored to before: with loads
    and stores of global memory each address must be a register that is itself stepped."""
    accesses = [one for one in body if one.opcode in MEMORY and "global" in one.modifiers]
    if len({one.opcode for one in accesses}) < 2:
        return True
    if loop.kind == "u32":
        return False
    stepped = [
        one.operands[0]
        for one in body
        if one.opcode == "add"
        and one.operands[0] == one.operands[1]
        and isinstance(one.operands[2], Immediate)
    ]
    bases = [
        operand.base for one in accesses for operand in one.operands if isinstance(operand, Address)
    ]
    return all(base in stepped for base in bases)
