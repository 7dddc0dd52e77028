"""Which threads run next: the order of execution of a launch.

Threads that stand at the same instruction form a group; the group at the lowest instruction runs
first, straight on to the next branch. Groups that meet become one again: this is how lanes that
parted at an `if` reconverge behind it.

Threads that wait for one another park: see barriers.py. Threads that spin, reading memory until
another thread has stored something there, let all others go first: blocks and warps take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .analysis import MEMORY, MORE, Poll, unrolled_loops
from .barriers import OPCODES, Barriers
from .calls import Calls, Site
from .context import Context
from .geometry import Batch
from .hardware import WARP
from .instructions import Function, Instruction
from .lanes import Groups, Lanes, Step
from .operands import Reader, predicate_reader, reader
from .spreading import follow
from .translate import translate

SPINS = 32  # rounds of a loop that polls, before it lets others go first
STALE_ROUNDS = 100  # rounds in which every thread polls and none stores anything
PATIENCE = 10_000  # the same, where threads also count rounds or look at a clock: they may give up


# The threads that jump, and those that go on; None if there are none.
Parted = tuple[np.ndarray | None, np.ndarray | None]


@dataclass
class BasicBlock:
    """Instructions that run one after the other; only the last may branch, or wait for others."""

    number: int
    first: int
    size: int
    steps: list[Step]
    # What the last one does; it returns None if it has put all threads where they wait.
    end: Callable[[Scheduler, BasicBlock, Lanes], Parted | None]
    branch: Instruction | None = None
    target: int | None = None  # basic block that a taken branch goes to; None: it returns
    guard: Reader | None = None  # the predicate of the branch; None if it is always taken
    poll: Poll | None = None  # the branch closes a loop that ends once this reads otherwise
    table: tuple[Reader, list[int]] | None = None  # of a switch: the case, basic block of each
    call: Site | None = None  # of a call of a function that stays one
    leaves: Function | None = None  # of the return of such a function


class Hang(Exception):
    """The threads of a batch will not come to an end."""

    def __init__(self, instruction: Instruction, slots: np.ndarray, reason: str):
        self.instruction, self.slots, self.reason = instruction, slots, reason


class Scheduler:
    """Runs the batches of a launch. A batch counts as a hang at its first jump back once more than
    `instruction_limit` instructions were executed (in a kernel that has none, before there are
    more)."""

    def __init__(self, context: Context, instruction_limit: int):
        self.context, self.limit = context, instruction_limit
        self.barriers = Barriers(context)
        self.calls = Calls(context) if context.kernel.functions else None
        self.blocks = self._basic_blocks()
        self.jumps = {block.number for block in self.blocks if not block.steps}
        self.executed = [0] * len(self.blocks)  # warps that entered each
        # Those where threads only end: threads that wait there no longer need their registers.
        self.last = {
            block.number
            for block in self.blocks
            if block.size == 1
            and block.branch
            and block.branch.opcode in ("ret", "exit")
            and not block.guard
        }
        self.waits = any(block.poll for block in self.blocks)  # for other blocks of the grid, say
        self.endless = bool(self.calls) or any(
            block.table or block.target is not None and block.target <= block.number
            for block in self.blocks
        )

    def _basic_blocks(self) -> list[BasicBlock]:
        """Translate the kernel and cut it at branches and labels that branches name."""
        context, kernel, barriers = self.context, self.context.kernel, self.barriers
        steps = translate(context, dict.fromkeys(OPCODES, barriers.translate))
        leaders = {0}
        for instruction, step in zip(kernel.instructions, steps, strict=True):
            if step is None:
                leaders |= {instruction.number + 1, *kernel.targets(instruction)}
        starts = sorted(leader for leader in leaders if leader < len(steps))
        number_of = {start: number for number, start in enumerate(starts)}
        functions = {one.stop - 1: one for one in kernel.functions}
        if self.calls:
            self.calls.starts = {one.name: number_of[one.start] for one in kernel.functions}
        blocks = []
        for start, stop in zip(starts, [*starts[1:], len(steps)], strict=True):
            last, inside = kernel.instructions[stop - 1], steps[start:stop]
            block = BasicBlock(len(blocks), start, stop - start, inside, Scheduler._go_on)
            blocks.append(block)
            if inside[-1] is not None:
                continue
            inside.pop()
            if last.number in barriers.syncs:
                barriers.places[block.number] = barriers.syncs[last.number]
                block.end = Scheduler._meet
                continue
            block.branch = last
            if last.opcode == "call":
                block.call = Site(kernel.calls[last.number], last, number_of[stop])
                self.calls.sites[number_of[stop]] = block.call
                block.end = Scheduler._call
            elif last.opcode == "return":
                block.leaves, block.end = functions[last.number], Scheduler._return
            else:
                targets = [number_of.get(to) for to in kernel.targets(last)]
                block.guard = predicate_reader(context, last) if last.guard else None
                block.poll = context.polls.get(last.number)
                block.end = Scheduler._trap if last.opcode == "trap" else Scheduler._branch
                if last.opcode == "brx":
                    block.table = reader(context, last.operands[0], "u32"), targets
                    block.end = Scheduler._switch
                elif targets:
                    block.target = targets[0]  # None: a label at the end means return
        return blocks

    def follow_values(self) -> None:
        """From now on each instruction passes undefined bits on."""
        for block in self.blocks:
            instructions = self.context.kernel.instructions[block.first :]
            pairs = zip(block.steps, instructions, strict=False)
            # In place: the block that runs goes on with them at once.
            block.steps[:] = [follow(self.context, one, step) for step, one in pairs]
        self.barriers.follow_values()

    # ---- running ----

    def run_batch(self, batch: Batch) -> None:
        """Run one batch to its end. Raises `Hang`, also when all threads wait for something that
        none of them can bring about."""
        self.context.start_batch(batch)
        self.barriers.start_batch(batch)
        if self.calls:
            self.calls.start_batch(batch)
        depth = self.calls and self.calls.depth
        self.waiting, self.polling = (Groups(len(self.blocks), depth) for _ in range(2))
        self.waiting.add(0, batch.alive)
        self.spins = [0] * len(self.blocks)
        self.polls: dict[int, Poll] = {}  # by the basic block that a polling loop begins with
        self.stale, self.changes = 0, -1
        self.budget, parked, lanes = self.limit, self.barriers.parked, None
        while self.waiting or parked or self.polling:
            if not self.waiting and not self._let_go():
                continue
            key = self._last() if self.context.shape.backwards else min(self.waiting)
            mask = self.waiting.pop(key)
            number = key % self.waiting.step
            if number == len(self.blocks):
                continue  # these threads are done
            whole = not parked and not self.polling
            whole = whole and all(other % self.waiting.step in self.last for other in self.waiting)
            if lanes is None or lanes.mask is not mask or lanes.whole != whole:
                lanes = Lanes(mask, whole)
            self._run(lanes, number, key - number)
        self.context.end_batch()

    def _last(self) -> int:
        """The group to run next in the reverse order: one whose basic block is only a jump, else
        the highest. Where the lanes of a warp are in several groups, the lowest runs first."""
        taken, free = np.zeros(1, bool), []
        for key in sorted(self.waiting):
            warps = self.waiting[key].reshape(-1, WARP).any(axis=1)
            free += [] if (warps & taken).any() else [key]
            taken = taken | warps
        return next((key for key in free if key % self.waiting.step in self.jumps), free[-1])

    def _let_go(self) -> bool:
        """No thread can run: let go some that wait. Returns whether those that poll are to try
        again."""
        parked, polling, context = self.barriers.parked, self.polling, self.context
        present = np.logical_or.reduce([*parked.values(), *polling.values()])
        if parked and self.barriers.open(self.waiting, present):
            return False
        if not polling:
            self.barriers.give_up(self.waiting)
            return False
        self.stale = self.stale + 1 if context.changes() == self.changes else 0
        self.changes = context.changes()
        context.clock += 100 * self.stale  # only a thread that waits for a time sees it
        polls = {key: self.polls[key % polling.step] for key in polling}
        alone = all(poll.alone for poll in polls.values())
        if self.stale > (STALE_ROUNDS if alone else PATIENCE):
            key = min(polling)
            raise Hang(polls[key].instruction, polling[key], _explain_wait(context))
        self.waiting, self.polling = polling, self.waiting
        return True

    def _run(self, lanes: Lanes, number: int, above: int) -> None:
        """Run lanes from a basic block straight on, as long as no other group waits at or before
        the next one. `above` makes a key of a basic block, for these threads."""
        while True:
            block = self.blocks[number]
            if block.size > self.budget and not self.endless:
                last = self.context.kernel.instructions[block.first + max(self.budget, 0)]
                raise Hang(last, lanes.mask, _explain_limit(self.limit))
            self.executed[number] += lanes.warps
            for step in block.steps:
                step(lanes)
            self.context.clock += block.size
            self.budget -= block.size
            parted = block.end(self, block, lanes)
            if parted is None:
                return
            taken, staying = parted
            if taken is not None and block.target in range(number + 1):
                self._check_jump_back(block, taken)
                if block.poll and self.spins[number] > SPINS:
                    self.polls[block.target] = block.poll
                    self.polling.add(block.target, taken)
                    if staying is not None:
                        self.waiting.add(number + 1, staying)
                    return
            if taken is not None and staying is not None:
                self.waiting.add(block.target, taken)
                self.waiting.add(number + 1, staying)
                return
            following, mask = (number + 1, staying) if taken is None else (block.target, taken)
            if mask is None or following is None or following == len(self.blocks):
                return  # these threads are done
            if self.waiting and min(self.waiting) <= following + above:
                self.waiting.add(following, mask)
                return
            number = following

    def _check_jump_back(self, block: BasicBlock, taken: np.ndarray) -> None:
        """Raise `Hang` for a loop that has no end."""
        if self.budget < 0:
            raise Hang(block.branch, taken, _explain_limit(self.limit))
        if block.target == block.number and not block.steps:
            reason = (
                "an endless loop with nothing in it: has the compiler moved a load out of "
                "it, because volatile or an atomic is missing?"
            )
            raise Hang(block.branch, taken, reason)
        self.spins[block.number] += block.poll is not None

    # ---- ends of basic blocks ----

    def _go_on(self, block: BasicBlock, lanes: Lanes) -> Parted:
        return None, lanes.mask

    def _meet(self, block: BasicBlock, lanes: Lanes) -> Parted | None:
        """Threads wait for one another."""
        passing = self.barriers.arrive(lanes, block.number)
        if passing is lanes.mask:
            return None, passing
        if passing is not None:
            self.waiting.add(block.number + 1, passing)
        return None

    def _call(self, block: BasicBlock, lanes: Lanes) -> None:
        if self.budget < 0:
            raise Hang(block.branch, lanes.mask, _explain_limit(self.limit))
        self.calls.enter(block.call, lanes, self.waiting)

    def _return(self, block: BasicBlock, lanes: Lanes) -> None:
        self.calls.leave(block.leaves, lanes, self.waiting)

    def _switch(self, block: BasicBlock, lanes: Lanes) -> None:
        """A jump through a table; more than one group of a warp's lanes makes it divergent."""
        context, (read, targets) = self.context, block.table
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
            self.waiting.add(target, group)

    def _branch(self, block: BasicBlock, lanes: Lanes) -> Parted:
        """A jump; a return jumps to nowhere."""
        taken, staying = self._sides(block, lanes)
        if self.context.watch.follow and taken is not None and block.target is None:
            self.context.watch.event("end", block.branch, taken)
        return taken, staying

    def _sides(self, block: BasicBlock, lanes: Lanes) -> Parted:
        context = self.context
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

    def _trap(self, block: BasicBlock, lanes: Lanes) -> Parted:
        """The threads that reach a trap end there."""
        mask = lanes.mask & block.guard() if block.guard else lanes.mask
        if not mask.any():
            return None, lanes.mask
        message = "the kernel stops itself here: a failed assertion, or __trap()"
        self.context.report("trap", block.branch, message, mask)
        if self.context.watch.follow:
            self.context.watch.event("end", block.branch, mask)
        staying = lanes.mask & ~mask
        return mask, staying if staying.any() else None

    # ---- counting ----

    def count_instructions(self) -> None:
        """Fill in the warp instructions of each line, and the requests that may be more."""
        context = self.context
        for block, warps in zip(self.blocks, self.executed, strict=True):
            for instruction in context.kernel.instructions[block.first : block.first + block.size]:
                context.tally_of(instruction).warp_instructions += warps
        for branch, numbers in unrolled_loops(context.kernel).items():
            for instruction in context.kernel.instructions[numbers.start : numbers.stop]:
                if instruction.opcode in MEMORY and not {"local", "param"} & {
                    *instruction.modifiers
                }:
                    more = MORE * context.parted[branch]
                    context.more[instruction.file, instruction.line] += more


def _explain_limit(limit: int) -> str:
    return (
        f"stopped after {limit} instructions of its batch of blocks: an endless loop, or work that "
        "needs a larger instruction_limit"
    )


def _explain_wait(context: Context) -> str:
    if context.mbarriers.failed:
        return f"this wait never ends: {context.mbarriers.failed}"
    return "it waits for a store that no thread of the blocks that run at once will make"
