"""Which threads run next: the order of execution of a launch.

Threads that stand at the same instruction form a group; the group at the lowest instruction runs
first, straight on to the next branch. Groups that meet become one again: this is how lanes that
parted at an `if` reconverge behind it.

Threads that wait for one another park: see barriers.py. Threads that spin, reading memory until
another thread has stored something there, let all others go first: blocks and warps take turns.

Functions that call themselves, or are called through their address, stay functions. A thread's
calls of them are nested: each has its own registers and local variables. The registers of a
function are put aside when a thread calls it that is in it already, and come back when that call
ends. Local variables of calls lie on a stack behind those of the kernel. How deep calls may be
nested is stated here, since the frames of the machine code are not known: a GPU's stack has 1024
bytes a thread unless `cudaDeviceSetLimit` says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .analysis import MEMORY, MORE, Poll, ragged_loops
from .barriers import OPCODES, Barriers
from .context import FUNCTION_STEP, FUNCTIONS, Context, Reader
from .cuda_text import plain_name
from .findings import UndefinedBits
from .geometry import Batch, Groups, Lanes, Step
from .hardware import WARP
from .instructions import Call, Function, Instruction, Register
from .spreading import follow
from .translate import translate

MOST_NESTED = 256  # calls, but for one that is inlined
OVERFLOW, NO_FUNCTION = "stack overflow", "call of no function"


@dataclass(frozen=True)
class Site:
    """Where a call stands."""

    call: Call
    instruction: Instruction
    behind: int  # the basic block that it goes back to


@dataclass
class Aside:
    """What calls of one function at one level of nesting have put aside."""

    registers: list[np.ndarray]
    shadows: list[UndefinedBits | None]
    arguments: list[np.ndarray]


class Calls:
    """The calls of a batch."""

    def __init__(self, context: Context):
        self.context, self.arguments = context, context.arguments
        kernel = context.kernel
        self.functions = {one.name: one for one in kernel.functions}
        self.numbers = {
            one.name: [context.index[name] for name in one.registers] for one in kernel.functions
        }
        self.sizes = {one.name: one.size for one in kernel.arguments}
        self.starts: dict[str, int] = {}  # by function, its first basic block
        self.sites: dict[int, Site] = {}  # by the basic block behind the call

    @property
    def bytes(self) -> int:
        """Of a thread, so that not too many run at once."""
        return 8 * MOST_NESTED // 4 * max(map(len, self.numbers.values()))

    def start_batch(self, batch: Batch) -> None:
        self.depth = np.zeros(batch.slots, np.int32)
        self.top = np.full(batch.slots, self.context.local.stack_start, np.int64)
        self.level = {name: np.zeros(batch.slots, np.int32) for name in self.functions}
        self.aside: dict[tuple[str, int], Aside] = {}

    # ---- calling ----

    def enter(self, site: Site, lanes: Lanes, waiting: Groups) -> None:
        """These threads call; who cannot ends here."""
        target = site.call.target
        if not isinstance(target, Register):
            self._enter(self.functions[target], site, lanes.mask, waiting)
            return
        context = self.context
        number = context.index[target.name]
        doubtful = context.suspicion.shadows.get(number)
        sure = lanes.mask if doubtful is None else lanes.mask & (doubtful.bits == 0)
        context.suspicion.use(number, lanes.mask, site.instruction)
        addresses = context.wide_reader(target, "u64")()
        for address in np.unique(addresses[lanes.mask]).tolist():
            mask = lanes.mask & (addresses == address)
            function = self._at(address)
            if function is None and not (mask & sure).any():
                continue  # that it is doubtful has been said
            if function is None:
                what = "a null pointer" if address == 0 else f"{address & (1 << 64) - 1:#x}"
                message = f"what is called here is {what}, and no function that the kernel knows"
                context.report(NO_FUNCTION, site.instruction, message, mask & sure)
            elif self._shape(site.call) != self._shape(function):
                name = plain_name(function.name)
                message = f"{name} is called here with other parameters than it takes"
                context.report(NO_FUNCTION, site.instruction, message, mask)
            else:
                self._enter(function, site, mask, waiting)

    def _at(self, address: int) -> Function | None:
        number, beside = divmod(address - FUNCTIONS, FUNCTION_STEP)
        functions = self.context.kernel.functions
        return functions[number] if not beside and 0 <= number < len(functions) else None

    def _shape(self, one: Call | Function) -> tuple[list[int], list[int]]:
        given = one.arguments if isinstance(one, Call) else one.parameters
        return [self.sizes[name] for name in one.results], [self.sizes[name] for name in given]

    def _enter(self, function: Function, site: Site, mask: np.ndarray, waiting: Groups) -> None:
        context, local = self.context, self.context.local
        over = mask & (
            (self.depth >= MOST_NESTED) | (self.top + function.frame_bytes > local.bytes)
        )
        if over.any():
            message = (
                f"{int(self.depth[over].max())} calls are nested here: a recursion without an end, "
                "or one too deep for the stack of a thread"
            )
            context.report(OVERFLOW, site.instruction, message, over)
            mask = mask & ~over
            if not mask.any():
                return
        slots = np.flatnonzero(mask)
        level = self.level[function.name]
        for one in np.unique(level[mask]).tolist():
            if one:
                self._put_aside(function, one, mask & (level == one))
        self._copy(slots, site.call.arguments, function.parameters)
        registers, frame = context.registers, context.index[function.frame]
        registers[frame] = np.where(mask, self.top, registers[frame].view(np.int64)).view(np.uint64)
        back = context.index[function.back]
        registers[back] = np.where(mask, np.uint32(site.behind), registers[back])
        for number in self.numbers[function.name]:
            context.suspicion.put(number, None, Lanes(mask))
        local.begin_frame(slots, self.top[slots], function.frame_bytes)
        level[mask] += 1
        self.depth[mask] += 1
        self.top[mask] += function.frame_bytes
        waiting.add(self.starts[function.name], mask)

    def _copy(self, slots: np.ndarray, sources: tuple, targets: tuple) -> None:
        offsets = self.arguments.offsets
        for source, target in zip(sources, targets, strict=True):
            self.arguments.copy(slots, offsets[source], offsets[target], self.sizes[source])

    def _put_aside(self, function: Function, level: int, mask: np.ndarray) -> None:
        """Keep what these threads have in the function, beside what others keep at the level."""
        numbers, shadows = self.numbers[function.name], self.context.suspicion.shadows
        registers = [self.context.registers[number] for number in numbers]
        kept = [shadows.get(number) for number in numbers]
        arguments = [self._bytes(name).copy() for name in function.parameters]
        old = self.aside.get((function.name, level))
        if old is not None and (self.level[function.name] > level).any():
            pairs = zip(registers, old.registers, strict=True)
            registers = [_chosen(mask, new, before) for new, before in pairs]
            pairs = zip(kept, old.shadows, strict=True)
            kept = [self.context.suspicion.mixed(mask, new, before) for new, before in pairs]
            for new, before in zip(arguments, old.arguments, strict=True):
                new[~mask] = before[~mask]
        self.aside[function.name, level] = Aside(registers, kept, arguments)

    def _bytes(self, name: str) -> np.ndarray:
        """Of an argument, a row of bytes a thread."""
        start = self.arguments.offsets[name]
        rows = self.arguments.views[1].reshape(-1, self.arguments.stride)
        return rows[:, start : start + self.sizes[name]]

    # ---- going back ----

    def leave(self, function: Function, lanes: Lanes, waiting: Groups) -> None:
        """These threads go back to where they called the function."""
        context, mask = self.context, lanes.mask
        back = np.broadcast_to(context.registers[context.index[function.back]], context.slots)
        groups = [(int(one), mask & (back == one)) for one in np.unique(back[mask])]
        for behind, group in groups:
            results = self.sites[behind].call.results
            self._copy(np.flatnonzero(group), function.results, results)
        level = self.level[function.name]
        level[mask] -= 1
        self.depth[mask] -= 1
        self.top[mask] -= function.frame_bytes
        for one in np.unique(level[mask]).tolist():
            if one:
                self._bring_back(function, one, mask & (level == one))
        for behind, group in groups:
            waiting.add(behind, group)

    def _bring_back(self, function: Function, level: int, mask: np.ndarray) -> None:
        aside, lanes = self.aside[function.name, level], Lanes(mask)
        registers, suspicion = self.context.registers, self.context.suspicion
        numbers = self.numbers[function.name]
        for number, value, shadow in zip(numbers, aside.registers, aside.shadows, strict=True):
            registers[number] = _chosen(mask, value, registers[number])
            suspicion.put(number, shadow, lanes)
        for name, value in zip(function.parameters, aside.arguments, strict=True):
            self._bytes(name)[mask] = value[mask]


def _chosen(mask: np.ndarray, values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Of two values of a register, whatever types they are seen as."""
    return np.where(mask, values, others.view(values.dtype))


# ---- the scheduler -------------------------------------------------------------------------------


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
                block.guard = context.predicate_reader(last) if last.guard else None
                block.poll = context.polls.get(last.number)
                block.end = Scheduler._trap if last.opcode == "trap" else Scheduler._branch
                if last.opcode == "brx":
                    block.table = context.reader(last.operands[0], "u32"), targets
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
        self.budget, parked = self.limit, self.barriers.parked
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
            self._run(Lanes(mask, whole), number, key - number)
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
        for branch, numbers in ragged_loops(context.kernel).items():
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
    return "a thread waits for a store that no thread of the resident blocks will make"
