"""Which threads run next: the order of execution of a launch.

Blocks run in batches of up to `BATCH_THREADS` threads, padded to whole warps. Threads that stand
at the same instruction form a group; the group at the lowest instruction runs first, straight on
to the next branch. Groups that meet become one again: this is how lanes that parted at an `if`
reconverge behind it.

At a barrier, and at a shuffle whose mask names absent lanes, threads park. They are judged only
when no other thread can run: then either all have come, or the missing ones never will.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .atomics import translate_atomic
from .collectives import (
    active_mask,
    bits_of_warps,
    is_collective,
    member_mask,
    membership,
    translate_collective,
)
from .counters import Counters
from .parse import Immediate, Instruction, Kernel, Label, UnsupportedPTX
from .translate import Context, Lanes, Step, predicate_reader, translate

BATCH_THREADS = 32768
BATCH_SHARED_BYTES = 16 << 20


@dataclass
class BasicBlock:
    """Instructions that run one after the other; only the last may branch."""

    first: int
    steps: list[Step]
    branch: Instruction | None
    target: int | None  # basic block that a taken branch goes to
    guard: object  # reads the predicate of the branch or sync, None if it is always taken
    size: int
    sync: Sync | None = None  # what the threads wait for behind the steps


@dataclass
class Sync:
    """A barrier of the block, or a collective of the warp with its mask and its function."""

    instruction: Instruction
    barrier: int = 0  # which of the block's barriers
    expected: int | None = None  # threads that the barrier waits for; None: all of the block
    members: object = None  # reads the mask of lanes, None for a barrier
    step: Step | None = None


class Hang(Exception):
    """The instruction budget of a batch is used up."""

    def __init__(self, instruction: Instruction, slot: int, count: int):
        self.instruction, self.slot, self.count = instruction, slot, count


def basic_blocks(context: Context) -> list[BasicBlock]:
    """Translate the kernel and cut it at branches and labels that branches name."""
    kernel = context.kernel
    syncs: dict[int, Sync] = {}
    extra = {name: _translate_sync(syncs) for name in SYNC_OPCODES}
    steps = translate(
        context,
        {
            **extra,
            "activemask": active_mask,
            "atom": translate_atomic,
            "red": translate_atomic,
        },
    )
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
        ends = steps[stop - 1] is None
        sync = syncs.get(id(last)) if ends else None
        branches = ends and sync is None
        target = None
        if branches and last.opcode == "bra":
            target = number_of.get(_target(kernel, last))  # a label at the end means return
        guard = predicate_reader(context, last) if ends and last.guard else None
        body = steps[start : stop - 1] if ends else steps[start:stop]
        blocks.append(
            BasicBlock(start, body, last if branches else None, target, guard, stop - start, sync)
        )
    return blocks


SYNC_OPCODES = ("bar", "barrier", "shfl", "vote", "match", "redux")


def _translate_sync(syncs: dict[int, Sync]):
    """A translator that files barriers and collectives in `syncs` and returns None for them."""

    def translate_one(context: Context, instruction: Instruction) -> None:
        if is_collective(instruction):
            step = translate_collective(context, instruction)
            members = member_mask(context, instruction)
            syncs[id(instruction)] = Sync(instruction, members=members, step=step)
            return
        kinds = [kind for kind in instruction.modifiers if kind not in ("aligned", "cta")]
        numbers = [
            operand.value for operand in instruction.operands if isinstance(operand, Immediate)
        ]
        if kinds != ["sync"] or len(numbers) != len(instruction.operands):
            raise UnsupportedPTX(f"the SIMT machine does not know {instruction.text!r}")
        syncs[id(instruction)] = Sync(instruction, *numbers)

    return translate_one


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
    parked: dict[int, np.ndarray] = {}
    budget = instruction_limit
    current, lanes = -1, None
    while waiting or parked:
        if not waiting:
            _release(context, blocks, alive, parked, waiting)
            continue
        number = min(waiting)
        mask = waiting.pop(number)
        whole = not waiting and not parked
        if lanes is None or lanes.mask is not mask or lanes.whole != whole:
            lanes = Lanes(mask, whole)
        current = number
        # Straight on, as long as no other group waits at or before the next basic block.
        while True:
            block = blocks[current]
            executed[current] += lanes.warps
            for step in block.steps:
                step(lanes)
            budget -= block.size
            if block.sync:
                passing = _arrive(context, block, lanes, alive, parked, current)
                if passing is None:
                    break
                if passing is not lanes.mask:
                    _join(waiting, current + 1, passing, len(blocks))
                    break
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


def _arrive(
    context: Context,
    block: BasicBlock,
    lanes: Lanes,
    started: np.ndarray,
    parked: dict[int, np.ndarray],
    number: int,
) -> np.ndarray | None:
    """Threads reach a sync point; returns those that may pass at once, None for nobody."""
    sync, mask = block.sync, lanes.mask
    skipping = None
    if block.guard is not None:
        chosen = mask & block.guard()
        skipping = mask & ~chosen
        mask = chosen
    if sync.members is None:
        if mask.any():
            parked[number] = parked[number] | mask if number in parked else mask
        return skipping if skipping is not None and skipping.any() else None
    required = sync.members()
    unnamed = mask & (required >> (np.arange(len(mask)) & 31).astype(np.uint32) & 1 == 0)
    if unnamed.any():
        context.report(
            "lane missing from its own mask",
            sync.instruction,
            f"it executes this, but {membership(sync.instruction)} does not name it",
            unnamed,
        )
    if number in parked:
        mask = mask | parked.pop(number)
    exist = np.repeat(bits_of_warps(started), 32)  # a block need not be whole warps
    passing = np.zeros_like(mask) if skipping is None else skipping
    for part in _by_members(mask, required):
        present = np.repeat(bits_of_warps(part), 32)
        complete = part & (required & exist & ~present == 0)
        if not (part & ~complete).any():
            if part is lanes.mask:
                sync.step(lanes)
                return part
            complete = part
        else:
            waits = part & ~complete
            parked[number] = parked[number] | waits if number in parked else waits
        if complete.any():
            sync.step(Lanes(complete, False))
            passing = passing | complete
    return passing if passing.any() else None


def _by_members(mask: np.ndarray, required: np.ndarray) -> Iterator[np.ndarray]:
    """Cut threads into groups that, in each warp, name the same lanes."""
    if len(required) == 1:
        if mask.any():
            yield mask
        return
    by_warp = required.reshape(-1, 32)
    while mask.any():
        first = mask.reshape(-1, 32).argmax(axis=1)
        named = np.repeat(by_warp[np.arange(len(first)), first], 32)
        part = mask & (required == named)
        if (part == mask).all():
            yield mask
            return
        yield part
        mask = mask & ~part


def _release(
    context: Context,
    blocks: list[BasicBlock],
    started: np.ndarray,
    parked: dict[int, np.ndarray],
    waiting: dict[int, np.ndarray],
) -> None:
    """No thread can run: open the barriers that are complete; failing that, report what is
    missing and let the threads go on, so that one run shows every bug."""
    alive = np.logical_or.reduce(list(parked.values()))
    opened = np.zeros_like(alive)
    barriers = sorted({blocks[n].sync.barrier for n in parked if blocks[n].sync.members is None})
    for barrier in barriers:
        places = {
            n: mask
            for n, mask in parked.items()
            if blocks[n].sync.members is None and blocks[n].sync.barrier == barrier
        }
        opened |= _complete_blocks(context, blocks, alive, started, places)
    if opened.any():
        context.shared.end_block_epoch(np.unique(np.flatnonzero(opened) // context.shared.padded))
        _let_go(parked, waiting, opened, len(blocks))
        return
    collectives = [n for n in parked if blocks[n].sync.members is not None]
    if collectives:
        for number in collectives:
            sync, mask = blocks[number].sync, parked[number]
            context.report(
                "lane missing from a warp operation",
                sync.instruction,
                f"lanes of {membership(sync.instruction)} never execute it: they have returned "
                "or wait elsewhere",
                mask,
            )
            for part in _by_members(mask, sync.members()):
                sync.step(Lanes(part, False))
            _let_go(parked, waiting, mask, len(blocks))
        return
    for number, mask in parked.items():
        context.report(
            "barrier that never completes",
            blocks[number].sync.instruction,
            "the other threads of the block wait at another barrier or have returned",
            mask,
        )
    parked.clear()


def _complete_blocks(
    context: Context,
    blocks: list[BasicBlock],
    alive: np.ndarray,
    started: np.ndarray,
    places: dict[int, np.ndarray],
) -> np.ndarray:
    """The threads parked at one barrier of the block that now may pass; reports threads of one
    block that wait at different places, and warps of which some lanes have returned."""
    padded = context.shared.padded
    arrived = np.logical_or.reduce(list(places.values()))
    # A warp arrives as 32 threads even where the block ends within it.
    padding = ~started & np.repeat(arrived.reshape(-1, 32).any(axis=1), 32)
    count = (arrived | padding).reshape(-1, padded).sum(axis=1)
    expected = next(iter(blocks[n].sync.expected for n in places))
    needed = (alive | padding).reshape(-1, padded).sum(axis=1) if expected is None else expected
    complete = np.repeat((count > 0) & (count >= needed), padded) & arrived
    if expected is not None and (crowded := count > needed).any():
        number = min(places)
        context.report(
            "barrier for fewer threads",
            blocks[number].sync.instruction,
            f"it opens after {expected} threads, but {int(count[crowded][0])} wait at it",
            arrived & np.repeat(crowded, padded),
        )
    if expected is None and complete.any():
        at = [(n, (mask & complete).reshape(-1, padded).any(axis=1)) for n, mask in places.items()]
        split = np.sum([here for _, here in at], axis=0) > 1
        if split.any():
            # Whoever waits further on has gone around this one, so it stands in a branch.
            early = min(n for n, here in at if (here & split).any())
            context.report(
                "barrier in divergent code",
                blocks[early].sync.instruction,
                "threads of one block wait at different barriers of the source",
                places[early] & np.repeat(split, padded),
            )
        gone = started & ~alive
        partial = gone.reshape(-1, 32).any(axis=1) & complete.reshape(-1, 32).any(axis=1)
        for number, mask in places.items():
            short = mask & complete & np.repeat(partial, 32)
            if short.any():
                context.report(
                    "barrier after an early return",
                    blocks[number].sync.instruction,
                    "some lanes of this warp have returned and never reach the barrier",
                    short,
                )
    return complete


def _let_go(
    parked: dict[int, np.ndarray], waiting: dict[int, np.ndarray], free: np.ndarray, end: int
) -> None:
    """Move threads from their sync points to the basic blocks behind them."""
    for number in list(parked):
        going, staying = parked[number] & free, parked[number] & ~free
        if staying.any():
            parked[number] = staying
        else:
            del parked[number]
        if going.any():
            _join(waiting, number + 1, going, end)


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
    grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int = 0
) -> Iterator[tuple[int, int, int]]:
    """Cut the grid: yields (first block, number of blocks, slots per block).

    A batch is bounded in threads and in shared memory, so that memory is bounded for any grid.
    """
    threads = block[0] * block[1] * block[2]
    padded = -(-threads // 32) * 32
    count = grid[0] * grid[1] * grid[2]
    step = max(1, min(BATCH_THREADS // padded, BATCH_SHARED_BYTES // max(1, shared_bytes)))
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
    lane = thread % 32
    bits = np.int64(1) << lane
    values["%lanemask_eq"], values["%lanemask_lt"] = bits, bits - 1
    values["%lanemask_le"] = 2 * bits - 1
    values["%lanemask_gt"] = 0xFFFFFFFF - values["%lanemask_le"]
    values["%lanemask_ge"] = 0xFFFFFFFF - values["%lanemask_lt"]
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
