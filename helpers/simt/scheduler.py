"""Which threads run next: the order of execution of a launch.

Blocks run in batches of up to `BATCH_THREADS` threads, padded to whole warps. Threads that stand
at the same instruction form a group; the group at the lowest instruction runs first, straight on
to the next branch. Groups that meet become one again: this is how lanes that parted at an `if`
reconverge behind it.

Threads that wait for one another park: see barriers.py. Threads that spin, reading memory until
another thread has stored something there, let all others go first: blocks and warps take turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from .asynchronous import translators
from .atomics import translate_atomic
from .barriers import OPCODES, Barriers, Sync, join, translate_sync
from .collectives import active_mask
from .counters import Counters
from .parse import Instruction, Kernel, Label, UnsupportedPTX
from .polling import Poll
from .translate import Context, Lanes, Step, predicate_reader, reader, translate

BATCH_THREADS = 32768
BATCH_BYTES = 16 << 20  # of shared and local memory
# What one of an H200's SMs runs at once.
SMS, SM_THREADS, SM_BLOCKS, SM_SHARED_BYTES = 132, 2048, 32, 228 * 1024
SPINS = 32  # rounds of a loop that polls, before it lets others go first
STALE_ROUNDS = 100  # rounds in which every thread polls and none stores anything


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
    poll: Poll | None = None  # the branch closes a loop that ends once this reads otherwise
    table: tuple | None = None  # of a switch: (reads the case, basic block of each case)


class Hang(Exception):
    """The threads of a batch will not come to an end."""

    def __init__(self, instruction: Instruction, slots: np.ndarray, reason: str):
        self.instruction, self.slots, self.reason = instruction, slots, reason


def basic_blocks(context: Context) -> list[BasicBlock]:
    """Translate the kernel and cut it at branches and labels that branches name."""
    kernel = context.kernel
    syncs: dict[int, Sync] = {}
    extra = dict.fromkeys(OPCODES, translate_sync(syncs))
    extra |= {"activemask": active_mask, "atom": translate_atomic, "red": translate_atomic}
    steps = translate(context, extra | translators())
    leaders = {0}
    for number, instruction in enumerate(kernel.instructions):
        if steps[number] is None:
            leaders |= {number + 1, *_targets(kernel, instruction)}
    starts = sorted(leader for leader in leaders if leader < len(steps))
    number_of = {start: number for number, start in enumerate(starts)}
    blocks = []
    for start, stop in zip(starts, [*starts[1:], len(steps)], strict=True):
        last = kernel.instructions[stop - 1]
        ends = steps[stop - 1] is None
        sync = syncs.get(id(last)) if ends else None
        branches = ends and sync is None
        targets = [number_of.get(to) for to in _targets(kernel, last)] if branches else []
        guard = predicate_reader(context, last) if ends and last.guard else None
        body = steps[start : stop - 1] if ends else steps[start:stop]
        block = BasicBlock(start, body, last if branches else None, None, guard, stop - start, sync)
        if branches and last.opcode == "brx":
            block.table = reader(context, last.operands[0], "u32"), targets
        elif targets:
            block.target = targets[0]  # None: a label at the end means return
        block.poll = context.polls.get(stop - 1)
        blocks.append(block)
    return blocks


def _targets(kernel: Kernel, instruction: Instruction) -> list[int]:
    """The instructions that a branch may go to."""
    if instruction.opcode not in ("bra", "brx"):
        return []
    label = instruction.operands[-1]
    names = [label.name] if isinstance(label, Label) else [None]
    if instruction.opcode == "brx":
        names = kernel.tables.get(names[0], [None])
    if any(name not in kernel.labels for name in names):
        raise UnsupportedPTX(f"the SIMT machine cannot follow {instruction.text!r}")
    return [kernel.labels[name] for name in names]


def run_batch(
    context: Context,
    blocks: list[BasicBlock],
    alive: np.ndarray,
    executed: list[int],
    instruction_limit: int,
) -> None:
    """Run one batch to its end. `executed[k]` counts warps that entered basic block k.

    Raises `Hang` at the first jump back once more than `instruction_limit` instructions were
    executed, and when all threads wait for something that none of them can bring about.
    """
    waiting: dict[int, np.ndarray] = {0: alive}
    polling: dict[int, np.ndarray] = {}
    spins = [0] * len(blocks)
    polls: dict[int, Poll] = {}  # by the basic block that a polling loop begins with
    stale, changes = 0, -1
    barriers = context.barriers = Barriers(context, blocks, alive)
    parked = barriers.parked
    budget = instruction_limit
    lanes = None
    while waiting or parked or polling:
        if not waiting:
            present = np.logical_or.reduce([*parked.values(), *polling.values()])
            if parked and barriers.open(waiting, present):
                continue
            if not polling:
                barriers.give_up(waiting)
                continue
            stale = stale + 1 if context.changes() == changes else 0
            changes = context.changes()
            if stale > STALE_ROUNDS and all(polls[number].alone for number in polling):
                number = min(polling)
                poll = polls[number].instruction
                raise Hang(poll, polling[number], _explain_wait(context))
            waiting, polling = polling, {}
        number = min(waiting)
        mask = waiting.pop(number)
        whole = not waiting and not parked and not polling
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
            context.clock += block.size
            if block.sync:
                passing = barriers.arrive(block, lanes, current)
                if passing is None:
                    break
                if passing is not lanes.mask:
                    join(waiting, current + 1, passing, len(blocks))
                    break
            if block.table:
                _switch(context, block, lanes, waiting, len(blocks))
                break
            taken, staying = _branch(context, block, lanes)
            if taken is not None and block.target in range(current + 1):
                if budget < 0:
                    reason = (
                        f"stopped after {instruction_limit} instructions of its batch of blocks: "
                        "an endless loop, or work that needs a larger instruction_limit"
                    )
                    raise Hang(block.branch, taken, reason)
                if block.target == current and not block.steps:
                    reason = (
                        "an endless loop with nothing in it: has the compiler moved a load out of "
                        "it, because volatile or an atomic is missing?"
                    )
                    raise Hang(block.branch, taken, reason)
                if block.poll:
                    spins[current] += 1
                    if spins[current] > SPINS:
                        polls[block.target] = block.poll
                        join(polling, block.target, taken, len(blocks))
                        if staying is not None:
                            join(waiting, current + 1, staying, len(blocks))
                        break
            if taken is not None and staying is None:
                following, mask = block.target, taken
            elif taken is None:
                following, mask = current + 1, staying
            else:
                join(waiting, block.target, taken, len(blocks))
                join(waiting, current + 1, staying, len(blocks))
                break
            if mask is None or following is None or following >= len(blocks):
                break  # these threads are done
            if waiting and min(waiting) <= following:
                join(waiting, following, mask, len(blocks))
                break
            current = following
    context.shared.end_batch()
    context.copies.end_batch()


def _explain_wait(context: Context) -> str:
    if context.copies.failed:
        return f"this wait never ends: {context.copies.failed}"
    return "it waits for a store that no thread of the blocks that run at once will make"


def _switch(context: Context, block: BasicBlock, lanes: Lanes, waiting: dict, end: int) -> None:
    """A jump through a table; more than one group of a warp's lanes makes it divergent."""
    read, targets = block.table
    case = np.broadcast_to(read(), context.slots)
    mask = lanes.mask
    groups = [(targets[int(k)], mask & (case == k)) for k in np.unique(case[mask])]
    parts = sum(group.reshape(-1, 32).any(axis=1).astype(int) for _, group in groups)
    tally = context.tallies[block.first + block.size - 1]
    tally.branches += lanes.warps
    tally.divergent_branches += int(np.count_nonzero(parts > 1))
    for target, group in groups:
        join(waiting, target, group, end)


def _branch(
    context: Context, block: BasicBlock, lanes: Lanes
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """(threads that jump, threads that go on); None for nobody. A return jumps to nowhere."""
    if block.branch is None:
        return None, lanes.mask
    if block.branch.opcode == "trap":
        return _trap(context, block, lanes)
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


def _trap(context: Context, block: BasicBlock, lanes: Lanes):
    """The threads that reach a trap end there."""
    mask = lanes.mask & block.guard() if block.guard else lanes.mask
    if not mask.any():
        return None, lanes.mask
    message = "the kernel stops itself here: a failed assertion, or __trap()"
    context.report("trap", block.branch, message, mask)
    staying = lanes.mask & ~mask
    return mask, staying if staying.any() else None


def resident_blocks(block: tuple[int, int, int], shared_bytes: int) -> int:
    """How many blocks an H200 runs at once, as far as threads and shared memory go."""
    warps = -(-prod(block) // 32)
    by_shared = SM_SHARED_BYTES // (shared_bytes + 1024)  # 1 KB a block is the system's
    return SMS * min(SM_THREADS // (32 * warps), SM_BLOCKS, by_shared)


def batches(
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    bytes_per_block: int = 0,
    cluster: int = 1,
    resident: int = 0,
) -> Iterator[tuple[int, int, int]]:
    """Cut the grid: yields (first block, number of blocks, slots per block).

    A batch is bounded in threads and in shared and local memory, so that memory is bounded for
    any grid. It holds whole clusters, and if blocks wait for others at least the `resident` ones,
    those that run at once.
    """
    threads = block[0] * block[1] * block[2]
    padded = -(-threads // 32) * 32
    count = grid[0] * grid[1] * grid[2]
    step = min(BATCH_THREADS // padded, BATCH_BYTES // max(1, bytes_per_block))
    step = max(1, (resident or step) // cluster) * cluster
    for first in range(0, count, step):
        yield first, min(step, count - first), padded


def unravel(number, sizes: tuple[int, int, int]) -> tuple:
    """A linear number (or an array of them) as (x, y, z), x fastest."""
    return number % sizes[0], number // sizes[0] % sizes[1], number // (sizes[0] * sizes[1])


def block_place(number, grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> tuple:
    """(x, y, z) in the grid of the block that runs as that number: cluster after cluster."""
    size = prod(cluster)
    clusters = tuple(blocks // one for blocks, one in zip(grid, cluster, strict=True))
    pairs = zip(unravel(number // size, clusters), unravel(number % size, cluster), strict=True)
    return tuple(of * one + own for (of, own), one in zip(pairs, cluster, strict=True))


def special_registers(
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    first: int,
    count: int,
    padded: int,
    shared_bytes: int,
    cluster: tuple[int, int, int] = (1, 1, 1),
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
    places = block_place(block_number, grid, cluster)
    for prefix, place in (("tid", unravel(thread, block)), ("ctaid", places)):
        for axis, own in zip("xyz", place, strict=True):
            values[f"%{prefix}.{axis}"] = own
    for sizes, prefix in ((block, "ntid"), (grid, "nctaid")):
        for axis, size in zip("xyz", sizes, strict=True):
            values[f"%{prefix}.{axis}"] = np.array([size])
    rank = np.arange(len(slots)) // padded % prod(cluster)
    for axis, own, size, all_blocks in zip(
        "xyz", unravel(rank, cluster), cluster, grid, strict=True
    ):
        values[f"%cluster_ctaid.{axis}"] = own
        values[f"%cluster_nctaid.{axis}"] = np.array([size])
        values[f"%clusterid.{axis}"] = values[f"%ctaid.{axis}"] // size
        values[f"%nclusterid.{axis}"] = np.array([all_blocks // size])
    values["%cluster_ctarank"], values["%cluster_nctarank"] = rank, np.array([prod(cluster)])
    values["%is_explicit_cluster"] = np.array([prod(cluster) > 1])
    values["%nwarpid"] = np.array([padded // 32])
    values["%gridid"] = values["%smid"] = np.array([0])
    values["%nsmid"] = np.array([132])
    values["%dynamic_smem_size"] = np.array([shared_bytes])
    for name in list(values):
        if not values[name].any():
            values[name] = np.array([0])  # the same in every thread: one value serves all
    if count == 1:
        for name in list(values):
            if "cta" in name or "cluster" in name:
                values[name] = values[name][:1]
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
