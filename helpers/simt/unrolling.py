"""Loops that the assembler may unroll, which then make more requests on the hardware.

ptxas makes four rounds of one, with two and one for what is left. A lane with four rounds left runs
them at once; lanes with three or fewer wait, and run two and one of their own. So a warp whose
lanes have three and four rounds left makes seven rounds of requests, not four.

What ptxas unrolls is written nowhere. The rules here are what disassembled code showed (CUDA 13,
sm_90), so a loop that is unrolled is never missed in tests/hardware/ragged_loops.cu; of a warp that
leaves such a loop in parts, each load or store of it makes at most `MORE` requests more.
"""

from __future__ import annotations

import functools

from .instructions import Immediate, Instruction, Label, PtxKernel

NEVER = 61  # instructions of PTX of a loop that surely is not unrolled
MORE = 3  # rounds: fours, a two and a one, of which the longest lane needs the fours alone
SHORT = 20  # instructions of PTX behind a branch that may be predicated
MEMORY = ("ld", "st")
# What ptxas leaves alone in a loop, or makes branches of.
KEPT = frozenset("atom red shfl vote match redux bar barrier call membar fence cp div rem".split())
JUMPS = ("bra", "brx", "ret", "exit", "trap", "call", "return")
BRANCHING = frozenset(("sqrt", "rcp"))  # with "rn": a slow path for subnormals


@functools.lru_cache(maxsize=64)  # as many as are kept when they are parsed
def unrolled_loops(kernel: PtxKernel) -> dict[int, range]:
    """The loops that may be unrolled: by the number of the branch that ends them, the numbers of
    their instructions."""
    found = {}
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
        if _may_be_unrolled(kernel, body, range(start, decides.number)):
            found[decides.number] = range(start, decides.number)
    return found


def _may_be_unrolled(kernel: PtxKernel, body: list[Instruction], loop: range) -> bool:
    if len(body) >= NEVER or any(_is_kept(one) for one in body):
        return False
    if not any(one.opcode in MEMORY for one in body):
        return False  # nothing that is counted
    inner = [one for one in body if one.opcode in JUMPS]
    if not all(loop.start < _target(kernel, one) <= loop.stop for one in inner):
        return False  # a loop around another, or one with a second way out
    return _steps(body)


@functools.lru_cache(maxsize=64)
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
