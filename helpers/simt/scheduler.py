"""Which threads run next: the order of execution of a launch.

Threads that stand at the same instruction form a group; the group at the lowest instruction runs
first, straight on to the next branch. Groups that meet become one again: this is how lanes that
parted at an `if` reconverge behind it.

Threads that wait for one another park: see barriers.py. Threads that spin, reading memory until
another thread has stored something there, let all others go first: blocks and warps take turns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .analysis import MEMORY, MORE, Poll, unrolled_loops
from .barriers import OPCODES, Barriers
from .calls import Calls, Site
from .context import Context
from .geometry import Batch
from .hardware import WARP
from .instructions import Function, Instruction, Label, PtxKernel, UnsupportedPTX
from .lanes import Groups, Lanes, Step
from .operands import Reader, predicate_reader, reader
from .spreading import follow
from .translate import translate

SPINS = 32  # rounds of a loop that polls, before it lets others go first
STALE_ROUNDS = 100  # rounds in which every thread polls and none stores anything
PATIENCE = 10_000  # the same, where threads also count rounds or look at a clock: they may give up


@dataclass
class BasicBlock:
    """Instructions that run one after the other; only the last may branch."""

    first: int
    size: int
    steps: list[Step]
    branch: Instruction | None
    target: int | None = None  # basic block that a taken branch goes to; None: it returns
    guard: Reader | None = None  # the predicate of the branch; None if it is always taken
    waits: bool = False  # behind the steps, threads wait for one another
    poll: Poll | None = None  # the branch closes a loop that ends once this reads otherwise
    table: tuple[Reader, list[int]] | None = None  # of a switch: the case, basic block of each
    call: Site | None = None  # it ends in a call of a function that stays one
    leaves: Function | None = None  # it ends in the return of such a function


class Hang(Exception):
    """The threads of a batch will not come to an end."""

    def __init__(self, instruction: Instruction, slots: np.ndarray, reason: str):
        self.instruction, self.slots, self.reason = instruction, slots, reason


def basic_blocks(context: Context, barriers: Barriers, calls: Calls | None) -> list[BasicBlock]:
    """Translate the kernel and cut it at branches and labels that branches name."""
    kernel = context.kernel
    steps = translate(context, dict.fromkeys(OPCODES, barriers.translate))
    leaders = {0}
    for instruction, step in zip(kernel.instructions, steps, strict=True):
        if step is None:
            leaders |= {instruction.number + 1, *_targets(kernel, instruction)}
    starts = sorted(leader for leader in leaders if leader < len(steps))
    number_of = {start: number for number, start in enumerate(starts)}
    functions = {one.stop - 1: one for one in kernel.functions}
    if calls:
        calls.starts = {one.name: number_of[one.start] for one in kernel.functions}
    blocks = []
    for start, stop in zip(starts, [*starts[1:], len(steps)], strict=True):
        last = kernel.instructions[stop - 1]
        if steps[stop - 1] is not None:
            blocks.append(BasicBlock(start, stop - start, steps[start:stop], None))
            continue
        block = BasicBlock(start, stop - start, steps[start : stop - 1], None)
        if last.number in barriers.syncs:
            barriers.places[len(blocks)] = barriers.syncs[last.number]
            block.waits = True
        elif last.opcode == "call":
            block.branch = last
            block.call = Site(kernel.calls[last.number], last, number_of[stop])
            calls.sites[number_of[stop]] = block.call
        elif last.opcode == "return":
            block.leaves = functions[last.number]
        else:
            targets = [number_of.get(to) for to in _targets(kernel, last)]
            block.branch = last
            block.guard = predicate_reader(context, last) if last.guard else None
            block.poll = context.polls.get(last.number)
            if last.opcode == "brx":
                block.table = reader(context, last.operands[0], "u32"), targets
            elif targets:
                block.target = targets[0]  # None: a label at the end means return
        blocks.append(block)
    return blocks


def follow_values(context: Context, code_blocks: list[BasicBlock]) -> None:
    """From now on each instruction passes undefined bits on."""
    for block in code_blocks:
        instructions = context.kernel.instructions[block.first :]
        pairs = zip(block.steps, instructions, strict=False)
        # In place: the block that runs goes on with them at once.
        block.steps[:] = [follow(context, one, step) for step, one in pairs]


def _targets(kernel: PtxKernel, instruction: Instruction) -> list[int]:
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
    batch: Batch,
    code_blocks: list[BasicBlock],
    barriers: Barriers,
    calls: Calls | None,
    executed: list[int],
    instruction_limit: int,
) -> None:
    """Run one batch to its end. `executed[k]` counts warps that entered basic block k.

    Raises `Hang` at the first jump back once more than `instruction_limit` instructions were
    executed (in a kernel that has none, before there are more), and when all threads wait for
    something that none of them can bring about.
    """
    context.start_batch(batch)
    barriers.start_batch(batch)
    if calls:
        calls.start_batch(batch)
    waiting, polling = (Groups(len(code_blocks), calls and calls.depth) for _ in range(2))
    waiting.add(0, batch.alive)
    spins = [0] * len(code_blocks)
    polls: dict[int, Poll] = {}  # by the basic block that a polling loop begins with
    stale, changes = 0, -1
    parked = barriers.parked
    budget = instruction_limit
    lanes = None
    endless = bool(calls) or any(
        block.table or block.target is not None and block.target <= number
        for number, block in enumerate(code_blocks)
    )
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
            context.clock += 100 * stale  # to nobody's eyes but those that wait for a time
            places = {key: key % polling.step for key in polling}
            alone = all(polls[place].alone for place in places.values())
            if stale > (STALE_ROUNDS if alone else PATIENCE):
                key = min(polling)
                poll = polls[places[key]].instruction
                raise Hang(poll, polling[key], _explain_wait(context))
            waiting, polling = polling, waiting
        key = min(waiting)
        mask = waiting.pop(key)
        number = key % waiting.step
        above = key - number  # what makes a key of a basic block, for these threads
        if number == len(code_blocks):
            continue  # these threads are done
        whole = not waiting and not parked and not polling
        if lanes is None or lanes.mask is not mask or lanes.whole != whole:
            lanes = Lanes(mask, whole)
        current = number
        # Straight on, as long as no other group waits at or before the next basic block.
        while True:
            block = code_blocks[current]
            if block.size > budget and not endless:
                last = context.kernel.instructions[block.first + max(budget, 0)]
                raise Hang(last, lanes.mask, _explain_limit(instruction_limit))
            executed[current] += lanes.warps
            for step in block.steps:
                step(lanes)
            context.clock += block.size
            budget -= block.size
            if block.waits:
                passing = barriers.arrive(lanes, current)
                if passing is None:
                    break
                if passing is not lanes.mask:
                    waiting.add(current + 1, passing)
                    break
            if block.call:
                if budget < 0:
                    raise Hang(block.branch, lanes.mask, _explain_limit(instruction_limit))
                calls.enter(block.call, lanes, waiting)
                break
            if block.leaves:
                calls.leave(block.leaves, lanes, waiting)
                break
            if block.table:
                _switch(context, block, lanes, waiting)
                break
            taken, staying = _branch(context, block, lanes)
            if context.watch.follow and taken is not None and block.target is None:
                context.watch.event("end", block.branch, taken)
            if taken is not None and block.target in range(current + 1):
                if budget < 0:
                    raise Hang(block.branch, taken, _explain_limit(instruction_limit))
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
                        polling.add(block.target, taken)
                        if staying is not None:
                            waiting.add(current + 1, staying)
                        break
            if taken is not None and staying is None:
                following, mask = block.target, taken
            elif taken is None:
                following, mask = current + 1, staying
            else:
                waiting.add(block.target, taken)
                waiting.add(current + 1, staying)
                break
            if mask is None or following is None or following == len(code_blocks):
                break  # these threads are done
            if waiting and min(waiting) <= following + above:
                waiting.add(following, mask)
                break
            current = following
    context.end_batch()


def _explain_limit(limit: int) -> str:
    return (
        f"stopped after {limit} instructions of its batch of blocks: an endless loop, or work that "
        "needs a larger instruction_limit"
    )


def _explain_wait(context: Context) -> str:
    if context.mbarriers.failed:
        return f"this wait never ends: {context.mbarriers.failed}"
    return "it waits for a store that no thread of the blocks that run at once will make"


def _switch(context: Context, block: BasicBlock, lanes: Lanes, waiting: Groups) -> None:
    """A jump through a table; more than one group of a warp's lanes makes it divergent."""
    read, targets = block.table
    case = np.broadcast_to(read(), context.slots)
    mask = lanes.mask
    if context.suspicion.shadows:
        register = block.branch.operands[0]
        context.suspicion.use(context.index[register.name], mask, block.branch)
    groups = [(targets[int(k)], mask & (case == k)) for k in np.unique(case[mask])]
    parts = sum(group.reshape(-1, WARP).any(axis=1).astype(int) for _, group in groups)
    tally = context.tally_of(block.branch)
    tally.branches += lanes.warps
    tally.divergent_branches += int(np.count_nonzero(parts > 1))
    for target, group in groups:
        waiting.add(target, group)


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
    if context.suspicion.shadows:
        number = context.index[block.branch.guard[0].name]
        context.suspicion.use(number, lanes.mask, block.branch)
    predicate = block.guard()
    tally = context.tally_of(block.branch)
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
    both = taken.reshape(-1, WARP).any(axis=1) & staying.reshape(-1, WARP).any(axis=1)
    parted = int(np.count_nonzero(both))
    tally.divergent_branches += parted
    if block.branch.number in context.parted:
        context.parted[block.branch.number] += parted
    return taken, staying


def _trap(
    context: Context, block: BasicBlock, lanes: Lanes
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The threads that reach a trap end there."""
    mask = lanes.mask & block.guard() if block.guard else lanes.mask
    if not mask.any():
        return None, lanes.mask
    message = "the kernel stops itself here: a failed assertion, or __trap()"
    context.report("trap", block.branch, message, mask)
    staying = lanes.mask & ~mask
    return mask, staying if staying.any() else None


def count_instructions(
    context: Context, code_blocks: list[BasicBlock], executed: list[int]
) -> None:
    """Fill in the warp instructions of each line, and the requests that may be more."""
    for block, warps in zip(code_blocks, executed, strict=True):
        for instruction in context.kernel.instructions[block.first : block.first + block.size]:
            context.tally_of(instruction).warp_instructions += warps
    for branch, numbers in unrolled_loops(context.kernel).items():
        for instruction in context.kernel.instructions[numbers.start : numbers.stop]:
            if instruction.opcode in MEMORY and not {"local", "param"} & {*instruction.modifiers}:
                more = MORE * context.parted[branch]
                context.more[instruction.file, instruction.line] += more
