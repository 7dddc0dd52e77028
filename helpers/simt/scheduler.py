"""Which threads run next: the order of execution of a launch.

Blocks run in batches of up to `BATCH_THREADS` threads, padded to whole warps. Threads that stand
at the same instruction form a group; the group at the lowest instruction runs first, straight on
to the next branch. Groups that meet become one again: this is how lanes that parted at an `if`
reconverge behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .counters import Counters
from .parse import Instruction, Kernel, Label, UnsupportedPTX
from .translate import Context, Lanes, Step, predicate_reader, translate

BATCH_THREADS = 32768


@dataclass
class BasicBlock:
    """Instructions that run one after the other; only the last may branch."""

    first: int
    steps: list[Step]
    branch: Instruction | None
    target: int | None  # basic block that a taken branch goes to
    guard: object  # reads the branch's predicate, None if it is always taken
    size: int


class Hang(Exception):
    """The instruction budget of a batch is used up."""

    def __init__(self, instruction: Instruction, slot: int, count: int):
        self.instruction, self.slot, self.count = instruction, slot, count


def basic_blocks(context: Context) -> list[BasicBlock]:
    """Translate the kernel and cut it at branches and labels that branches name."""
    kernel = context.kernel
    steps = translate(context)
    leaders = {0}
    for number, instruction in enumerate(kernel.instructions):
        if steps[number] is None:
            leaders.add(number + 1)
            if instruction.opcode == "bra":
                leaders.add(_target(kernel, instruction))
    starts = sorted(leader for leader in leaders if leader < len(steps))
    number_of = {start: number for number, start in enumerate(starts)}
    blocks = []
    for start, stop in zip(starts, [*starts[1:], len(steps)], strict=True):
        last = kernel.instructions[stop - 1]
        branches = steps[stop - 1] is None
        target = None
        if branches and last.opcode == "bra":
            target = number_of.get(_target(kernel, last))  # a label at the end means return
        guard = predicate_reader(context, last) if branches and last.guard else None
        body = steps[start : stop - 1] if branches else steps[start:stop]
        blocks.append(
            BasicBlock(start, body, last if branches else None, target, guard, stop - start)
        )
    return blocks


def _target(kernel: Kernel, instruction: Instruction) -> int:
    label = instruction.operands[-1]
    if not isinstance(label, Label) or label.name not in kernel.labels:
        raise UnsupportedPTX(f"the SIMT machine cannot follow {instruction.text!r}")
    return kernel.labels[label.name]


def run_batch(
    context: Context,
    blocks: list[BasicBlock],
    alive: np.ndarray,
    executed: list[int],
    instruction_limit: int,
) -> None:
    """Run one batch to its end. `executed[k]` counts warps that entered basic block k.

    Raises `Hang` at the first jump back once more than `instruction_limit` instructions were
    executed.
    """
    waiting: dict[int, np.ndarray] = {0: alive}
    budget = instruction_limit
    current, lanes = -1, None
    while waiting:
        number = min(waiting)
        mask = waiting.pop(number)
        if lanes is None or lanes.mask is not mask or lanes.whole != (not waiting):
            lanes = Lanes(mask, whole=not waiting)
        current = number
        # Straight on, as long as no other group waits at or before the next basic block.
        while True:
            block = blocks[current]
            executed[current] += lanes.warps
            for step in block.steps:
                step(lanes)
            budget -= block.size
            taken, staying = _branch(context, block, lanes)
            if budget < 0 and taken is not None and block.target in range(current + 1):
                raise Hang(block.branch, int(taken.argmax()), int(np.count_nonzero(taken)))
            if taken is not None and staying is None:
                following, mask = block.target, taken
            elif taken is None:
                following, mask = current + 1, staying
            else:
                _join(waiting, block.target, taken, len(blocks))
                _join(waiting, current + 1, staying, len(blocks))
                break
            if mask is None or following is None or following >= len(blocks):
                break  # these threads are done
            if waiting and min(waiting) <= following:
                _join(waiting, following, mask, len(blocks))
                break
            current = following


def _join(waiting: dict[int, np.ndarray], number: int | None, mask: np.ndarray, end: int) -> None:
    """Let a group wait at a basic block, together with those that wait there already."""
    if number is not None and number < end:
        waiting[number] = waiting[number] | mask if number in waiting else mask


def _branch(
    context: Context, block: BasicBlock, lanes: Lanes
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """(threads that jump, threads that go on); None for nobody. A return jumps to nowhere."""
    if block.branch is None:
        return None, lanes.mask
    if block.guard is None:
        return lanes.mask, None
    predicate = block.guard()
    tally = context.tallies[block.first + block.size - 1]
    tally.branches += lanes.warps
    if len(predicate) == 1:
        return (lanes.mask, None) if predicate[0] else (None, lanes.mask)
    taken = lanes.mask & predicate
    count = int(np.count_nonzero(taken))
    if count == 0:
        return None, lanes.mask
    if count == lanes.count:
        return lanes.mask, None
    staying = lanes.mask & ~predicate
    both = taken.reshape(-1, 32).any(axis=1) & staying.reshape(-1, 32).any(axis=1)
    tally.divergent_branches += int(np.count_nonzero(both))
    return taken, staying


def batches(
    grid: tuple[int, int, int], block: tuple[int, int, int]
) -> Iterator[tuple[int, int, int]]:
    """Cut the grid: yields (first block, number of blocks, slots per block)."""
    threads = block[0] * block[1] * block[2]
    padded = -(-threads // 32) * 32
    count = grid[0] * grid[1] * grid[2]
    step = max(1, BATCH_THREADS // padded)
    for first in range(0, count, step):
        yield first, min(step, count - first), padded


def special_registers(
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    first: int,
    count: int,
    padded: int,
    shared_bytes: int,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Which slots of a batch hold a thread, and the special registers, all as uint32."""
    slots = np.arange(count * padded, dtype=np.int64)
    thread, block_number = slots % padded, first + slots // padded
    values = {"%laneid": thread % 32, "%warpid": thread // 32}
    for sizes, index, prefix in ((block, thread, "tid"), (grid, block_number, "ctaid")):
        values[f"%{prefix}.x"] = index % sizes[0]
        values[f"%{prefix}.y"] = index // sizes[0] % sizes[1]
        values[f"%{prefix}.z"] = index // (sizes[0] * sizes[1])
    for sizes, prefix in ((block, "ntid"), (grid, "nctaid")):
        for axis, size in zip("xyz", sizes, strict=True):
            values[f"%{prefix}.{axis}"] = np.array([size])
    values["%nwarpid"] = np.array([padded // 32])
    values["%gridid"] = values["%smid"] = np.array([0])
    values["%dynamic_smem_size"] = np.array([shared_bytes])
    for name in ("%tid.y", "%tid.z", "%ctaid.y", "%ctaid.z"):
        if not values[name].any():
            values[name] = np.array([0])  # the same in every thread: one value serves all
    if count == 1:
        for axis in "xyz":
            values[f"%ctaid.{axis}"] = values[f"%ctaid.{axis}"][:1]
    alive = thread < block[0] * block[1] * block[2]
    return alive, {name: value.astype(np.uint32) for name, value in values.items()}


def summed_counters(
    context: Context, blocks: list[BasicBlock], executed: list[int]
) -> list[Counters]:
    """The tallies with warp instructions filled in, one per instruction."""
    for block, warps in zip(blocks, executed, strict=True):
        for number in range(block.first, block.first + block.size):
            context.tallies[number].warp_instructions = warps
    return context.tallies
