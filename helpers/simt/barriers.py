"""Where threads wait for one another: barriers of a block, of a warp, of a cluster; and what the
lanes of a warp do together: shuffles, votes, matches.

Threads that arrive park. They are judged only when no other thread can run: then either all have
come, or the missing ones never will. A collective of a warp whose lanes have all come passes at
once; its function gets the lanes that take part and works on arrays of shape (warps, WARP).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .context import Context, Reader
from .geometry import Batch, Groups, Lanes, Step, numbered
from .hardware import WARP
from .instructions import Immediate, Instruction, Operand, Register, unknown
from .loads_and_stores import OPERATIONS
from .memory.causality import CLUSTER
from .recording import around
from .spreading import follow

WEIGHTS = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
EVERY_LANE = np.uint32(0xFFFFFFFF)


def bits_of_warps(mask: np.ndarray) -> np.ndarray:
    """One uint32 per warp from a bool per slot."""
    return (mask.reshape(-1, WARP) * WEIGHTS).sum(axis=1, dtype=np.uint32)


def active_mask(context: Context, instruction: Instruction) -> Step:
    """activemask.b32: the lanes that execute this together."""
    write = context.writer(instruction.operands[0], "b32")
    return lambda lanes: write(np.repeat(bits_of_warps(lanes.mask), WARP), lanes)


def _shuffle(context: Context, instruction: Instruction) -> Step:
    *targets, value, _, _, _ = instruction.operands
    sources, read = context.source_reader(instruction), context.reader(value, "b32")
    write, number = context.writer(targets[0], "b32"), context.index.get(targets[0].name)
    write_valid = context.writer(targets[1], "pred") if len(targets) == 2 else None

    def shuffle(lanes: Lanes) -> None:
        source, valid = sources()
        base = numbered(context.slots)[1]
        absent = lanes.mask & ~lanes.mask[base + source]
        write(context.wide(read())[base + source], lanes)
        if absent.any() and number is not None:
            context.suspicion.taint(
                "shuffle from a lane that takes no part",
                instruction,
                "the lane that is read does not execute this shuffle; its value is undefined",
                number,
                np.flatnonzero(absent),
            )
        if write_valid:
            write_valid(valid, lanes)

    return shuffle


def _vote(context: Context, instruction: Instruction) -> Step:
    mode = next((m for m in instruction.modifiers if m in ("any", "all", "uni", "ballot")), None)
    if mode is None:
        raise unknown(instruction)
    target, predicate, _ = instruction.operands
    read = context.reader(predicate, "pred")
    write = context.writer(target, "b32" if mode == "ballot" else "pred")

    def vote(lanes: Lanes) -> None:
        yes = context.wide(read())
        votes, present = bits_of_warps(yes & lanes.mask), bits_of_warps(lanes.mask)
        result = {
            "ballot": lambda: votes,
            "any": lambda: votes != 0,
            "all": lambda: votes == present,
            "uni": lambda: (votes == present) | (votes == 0),
        }[mode]()
        write(np.repeat(result, WARP), lanes)

    return vote


def _match(context: Context, instruction: Instruction) -> Step:
    *targets, value, _ = instruction.operands
    kind = instruction.modifiers[-1]
    everyone = "all" in instruction.modifiers
    read, write = context.reader(value, kind), context.writer(targets[0], "b32")
    write_same = context.writer(targets[1], "pred") if len(targets) == 2 else None

    def match(lanes: Lanes) -> None:
        values = context.wide(read()).reshape(-1, WARP)
        active = lanes.mask.reshape(-1, WARP)
        equal = (values[:, :, None] == values[:, None, :]) & active[:, None, :]
        peers = (equal * WEIGHTS).sum(axis=2, dtype=np.uint32).reshape(-1)
        if everyone:
            present = np.repeat(bits_of_warps(lanes.mask), WARP)
            same = peers == present
            write(np.where(same, present, np.uint32(0)), lanes)
            if write_same:
                write_same(same, lanes)
        else:
            write(peers, lanes)

    return match


def _reduce(context: Context, instruction: Instruction) -> Step:
    kind = instruction.modifiers[-1]
    name = next((m for m in instruction.modifiers if isinstance(OPERATIONS.get(m), np.ufunc)), None)
    if name is None or kind not in ("u32", "s32", "b32"):
        raise unknown(instruction)
    target, value, _ = instruction.operands
    read, write = context.reader(value, kind), context.writer(target, kind)

    def reduce(lanes: Lanes) -> None:
        values = context.wide(read())
        # An idle lane adds nothing; elsewhere a value that is there already changes nothing.
        neutral = 0 if name in ("add", "xor") else lanes.with_stand_ins(values)
        kept = np.where(lanes.mask, values, neutral).astype(values.dtype).reshape(-1, WARP)
        write(np.repeat(OPERATIONS[name].reduce(kept, axis=1, dtype=values.dtype), WARP), lanes)

    return reduce


def _sync(context: Context, instruction: Instruction) -> Step:
    named = context.reader(instruction.operands[-1], "b32")

    def sync(lanes: Lanes) -> None:
        order, names = context.shared.order, named()
        if len(names) == 1 and names[0] == 0xFFFFFFFF:
            order.order_warps(np.flatnonzero(lanes.active_warps))
        else:
            order.order_lanes(lanes.mask)

    return sync


def _elect(context: Context, instruction: Instruction) -> Step:
    """elect.sync: the lowest lane that takes part."""
    write_lane = context.writer(instruction.operands[0], "b32")
    write_chosen = context.writer(instruction.operands[1], "pred")

    def elect(lanes: Lanes) -> None:
        first = lanes.mask.reshape(-1, WARP).argmax(axis=1).astype(np.uint32)
        leader = np.repeat(first, WARP)
        write_lane(leader, lanes)
        write_chosen(leader == np.arange(context.slots) % WARP, lanes)

    return elect


def membership(instruction: Instruction) -> str:
    """The member mask as the PTX writes it, for messages."""
    operand = instruction.operands[-1]
    if isinstance(operand, Immediate):
        return f"{operand.value & 0xFFFFFFFF:#x}"
    return "its mask"


# ---- barriers ------------------------------------------------------------------------------------


# What lanes of a warp do together: those that the last operand names must take part.
COLLECTIVES = {"shfl": _shuffle, "vote": _vote, "match": _match, "redux": _reduce, "elect": _elect}
OPCODES = ("bar", "barrier", "activemask", *COLLECTIVES)


@dataclass
class Sync:
    """What threads wait for at one instruction."""

    instruction: Instruction
    kind: str  # "warp", "block" or "cluster"
    step: Step | None = None  # what those that have met execute together
    members: Reader | None = None  # the mask of a warp's lanes
    barrier: Reader | None = None  # which of the block's barriers
    expected: Reader | None = None  # how many threads it waits for; None: all
    guard: Reader | None = None  # which threads execute it at all


class Barriers:
    """Who waits where, in one batch. A place is the number of the basic block that ends in a sync
    point; threads parked at place k go on at k + 1."""

    def __init__(self, context: Context):
        self.context, self.watch = context, context.watch
        self.syncs: dict[int, Sync] = {}  # by the number of the instruction
        self.places: dict[int, Sync] = {}  # by the number of the basic block that it ends

    def start_batch(self, batch: Batch) -> None:
        self.started, self.padded, self.order = batch.alive, batch.padded, self.context.shared.order
        self.parked: dict[int, np.ndarray] = {}
        self.number = np.zeros(batch.slots, np.int64)  # the barrier that a parked thread is at
        # Of bar.arrive, by (block, barrier): the warps that came, and what each had seen then.
        self.early: dict[tuple[int, int], dict[int, np.ndarray]] = {}
        self.announced = self.context.shared.announced  # have arrived at the cluster's barrier
        # What each warp had seen when it arrived there, and what a cluster knows since its last.
        self.arrived = np.zeros_like(self.order.seen)
        self.known = np.zeros_like(self.order.seen[:: self.order.warps])
        self.released = np.zeros(batch.slots, bool)  # all others have as well
        # A warp arrives at a barrier as 32 threads even where the block ends within it.
        self.padding = ~self.started

    # ---- translating ----

    def translate(self, context: Context, instruction: Instruction) -> Step | None:
        """Note where threads wait, and return None; what only announces an arrival gets a
        function."""
        if instruction.opcode == "activemask":
            return active_mask(context, instruction)
        build = COLLECTIVES.get(instruction.opcode) if "sync" in instruction.modifiers else None
        if instruction.opcode == "bar" and instruction.modifiers[:1] == ("warp",):
            build = _sync
        if build:
            members = context.reader(instruction.operands[-1], "b32")
            self._add(Sync(instruction, "warp", build(context, instruction), members))
            return None
        kinds = [kind for kind in instruction.modifiers if kind not in ("aligned", "cta")]
        if kinds[:2] == ["cluster", "wait"]:
            self._add(Sync(instruction, "cluster"))
            return None
        if kinds[:2] == ["cluster", "arrive"]:
            return lambda lanes: self._announce_to_cluster(instruction, lanes.mask)
        operands = list(instruction.operands)
        step = None
        if kinds[:1] == ["red"]:
            target, predicate = operands.pop(0), operands.pop()
            step = _reduce_block(context, instruction, target, predicate)
        elif kinds not in (["sync"], ["arrive"]) or len(operands) > 2:
            raise unknown(instruction)
        numbers = [context.reader(operand, "u32") for operand in operands]
        if kinds == ["arrive"]:
            return lambda lanes: self._announce(instruction, lanes, numbers[0]())
        self._add(Sync(instruction, "block", step, None, *numbers))
        return None

    def _add(self, sync: Sync) -> None:
        if sync.instruction.guard:
            sync.guard = self.context.predicate_reader(sync.instruction)
        if sync.step:
            sync.step = around(self.context, sync.instruction, sync.step)
        self.syncs[sync.instruction.number] = sync

    def follow_values(self) -> None:
        """From now on collectives pass undefined bits on."""
        for sync in self.syncs.values():
            if sync.step:
                sync.step = follow(self.context, sync.instruction, sync.step, guarded=False)

    # ---- arriving ----

    def arrive(self, lanes: Lanes, place: int) -> np.ndarray | None:
        """Threads reach a sync point; returns those that may pass at once, or None."""
        sync, mask, skipping = self.places[place], lanes.mask, None
        if self.context.suspicion.shadows:
            self._use_operands(sync, mask)
        if sync.guard is not None:
            chosen = mask & sync.guard()
            skipping, mask = mask & ~chosen, chosen
        if sync.kind == "warp":
            return self._arrive_at_collective(sync, lanes, mask, skipping, place)
        passing = np.zeros_like(mask) if skipping is None else skipping
        if sync.kind == "cluster":
            self.watch.event("cluster wait", sync.instruction, mask)
            late = mask & self.released
            self.order.learn(late, self.known)
            passing = passing | late
            self.released &= ~mask
            mask = mask & ~passing
            self.watch.event("cluster leave", sync.instruction, late)
        else:
            self.watch.event("barrier arrive", sync.instruction, mask)
            self.number = np.where(mask, sync.barrier(), self.number)
        self._park(place, mask)
        return passing if passing.any() else None

    def _use_operands(self, sync: Sync, mask: np.ndarray) -> None:
        """These threads rely on what says whether, where and for whom they wait."""
        instruction, index = sync.instruction, self.context.index
        parts = instruction.operands if sync.kind == "block" else instruction.operands[-1:]
        parts = [getattr(part, "register", part) for part in parts]
        parts += [instruction.guard[0]] if instruction.guard else []
        for part in parts:
            if isinstance(part, Register) and part.name in index:
                self.context.suspicion.use(index[part.name], mask, instruction)

    def _announce(self, instruction: Instruction, lanes: Lanes, barrier: np.ndarray) -> None:
        """bar.arrive: these warps have arrived at a barrier and do not wait for it."""
        self.watch.event("barrier arrive", instruction, lanes.mask)
        numbers = np.broadcast_to(barrier, len(self.started))[::WARP]
        warps = np.flatnonzero(lanes.active_warps)
        for warp, seen in zip(warps.tolist(), self._seen_by(warps), strict=True):
            key = warp * WARP // self.padded, int(numbers[warp])
            self.early.setdefault(key, {})[warp] = seen

    def _announce_to_cluster(self, instruction: Instruction, mask: np.ndarray) -> None:
        """barrier.cluster.arrive: what these warps do from now on is not ordered by the barrier;
        a relaxed one orders what came before a fence."""
        self.watch.event("cluster arrive", instruction, mask)
        warps = np.flatnonzero(mask.reshape(-1, WARP).any(axis=1))
        relaxed = "relaxed" in instruction.modifiers
        before_fences = self.context.causality.before_fences
        self.arrived[warps] = before_fences(warps, CLUSTER) if relaxed else self._seen_by(warps)
        self.announced |= mask

    def _seen_by(self, warps: np.ndarray) -> np.ndarray:
        """What each of these warps has seen, and done itself, until now."""
        order = self.order
        order.now += 1
        seen = order.seen[warps].copy()
        seen[np.arange(len(warps)), warps % order.warps] = order.now
        return seen

    def _park(self, place: int, mask: np.ndarray) -> None:
        if mask.any():
            self.parked[place] = self.parked[place] | mask if place in self.parked else mask

    def _arrive_at_collective(self, sync: Sync, lanes: Lanes, mask, skipping, place: int):
        required = sync.members()
        whole = skipping is None and place not in self.parked and mask.all()
        if whole and len(required) == 1 and required[0] == EVERY_LANE:
            sync.step(lanes)
            return mask
        lane = (np.arange(len(mask)) % WARP).astype(np.uint32)
        unnamed = mask & (required >> lane & 1 == 0)
        if unnamed.any():
            self.context.report(
                "lane missing from its own mask",
                sync.instruction,
                f"it executes this, but {membership(sync.instruction)} does not name it",
                unnamed,
            )
        if place in self.parked:
            mask = mask | self.parked.pop(place)
        exist = np.repeat(bits_of_warps(self.started), WARP)  # a block need not be whole warps
        passing = np.zeros_like(mask) if skipping is None else skipping
        for part in _by_members(mask, required):
            present = np.repeat(bits_of_warps(part), WARP)
            complete = part & (required & exist & ~present == 0)
            if not (part & ~complete).any():
                if part is lanes.mask:
                    sync.step(lanes)
                    return part
                complete = part
            else:
                self._park(place, part & ~complete)
            if complete.any():
                sync.step(Lanes(complete))
                passing = passing | complete
        return passing if passing.any() else None

    # ---- opening ----

    def open(self, waiting: Groups, alive: np.ndarray) -> bool:
        """Let go whom nothing holds any more; `alive` are all threads that have not returned.
        Call it when no thread can run. Returns whether somebody can now."""
        opened = np.zeros_like(alive)
        at_block = self._parked_at("block")
        if at_block:
            here = np.logical_or.reduce(list(at_block.values()))
            for barrier in np.unique(self.number[here]):
                places = {n: mask & (self.number == barrier) for n, mask in at_block.items()}
                places = {n: mask for n, mask in places.items() if mask.any()}
                opened |= self._open_block_barrier(int(barrier), places, alive)
        if self._parked_at("cluster"):
            opened |= self._open_cluster_barriers(alive)
        self._let_go(opened, waiting)
        return bool(opened.any())

    def _parked_at(self, kind: str) -> dict[int, np.ndarray]:
        return {n: mask for n, mask in self.parked.items() if self.places[n].kind == kind}

    def _open_block_barrier(self, barrier: int, places: dict, alive: np.ndarray) -> np.ndarray:
        """The threads that pass; reports threads of one block that wait at different places, and
        warps of which some lanes have returned."""
        padded, sync = self.padded, self.places[next(iter(places))]
        arrived = np.logical_or.reduce(list(places.values()))
        padding = self.padding & np.repeat(arrived.reshape(-1, WARP).any(axis=1), WARP)
        count = (arrived | padding).reshape(-1, padded).sum(axis=1)
        early = {block: warps for (block, n), warps in self.early.items() if n == barrier}
        for block, warps in early.items():
            count[block] += WARP * len(warps)
        if sync.expected is None:
            needed = (alive | padding).reshape(-1, padded).sum(axis=1)
        else:
            each = np.broadcast_to(sync.expected(), len(alive)).reshape(-1, padded)
            needed = each.max(axis=1, where=arrived.reshape(-1, padded), initial=0)
        full = (arrived.reshape(-1, padded).any(axis=1)) & (count >= needed)
        complete = np.repeat(full, padded) & arrived
        if sync.expected is not None and (full & (count > needed)).any():
            crowded = full & (count > needed)
            self.context.report(
                "barrier for fewer threads",
                self.places[min(places)].instruction,
                f"it opens after {int(needed[crowded][0])} threads, but "
                f"{int(count[crowded][0])} wait at it",
                arrived & np.repeat(crowded, padded),
            )
        if not complete.any():
            return complete
        if sync.expected is None:
            self._report_misuse(places, complete, alive)
        came: dict[int, np.ndarray] = {}
        for block in early:
            if full[block]:
                came.update(self.early.pop((block, barrier)))
        self.order.order_blocks(complete, came)
        for place, mask in places.items():
            if self.places[place].step and (mask & complete).any():
                self.places[place].step(Lanes(mask & complete))
        return complete

    def _report_misuse(self, places: dict, complete: np.ndarray, alive: np.ndarray) -> None:
        padded = self.padded
        at = [(n, (mask & complete).reshape(-1, padded).any(axis=1)) for n, mask in places.items()]
        split = np.sum([here for _, here in at], axis=0) > 1
        if split.any():
            # Whoever waits further on has gone around this one, so it stands in a branch.
            first = min(n for n, here in at if (here & split).any())
            self.context.report(
                "barrier in divergent code",
                self.places[first].instruction,
                "threads of one block wait at different barriers of the source",
                places[first] & np.repeat(split, padded),
            )
        gone = self.started & ~alive
        partial = gone.reshape(-1, WARP).any(axis=1) & complete.reshape(-1, WARP).any(axis=1)
        for number, mask in places.items():
            short = mask & complete & np.repeat(partial, WARP)
            if short.any():
                self.context.report(
                    "barrier after an early return",
                    self.places[number].instruction,
                    "some lanes of this warp have returned and never reach the barrier",
                    short,
                )

    def _open_cluster_barriers(self, alive: np.ndarray) -> np.ndarray:
        threads = self.context.shared.cluster * self.padded
        missing = (alive & ~self.announced).reshape(-1, threads).any(axis=1)
        came = self.announced & np.repeat(~missing, threads)
        if not came.any():
            return came
        self.context.shared.clusters_met(came)
        gone = np.flatnonzero(~alive.reshape(-1, WARP).any(axis=1))  # they do nothing more
        self.arrived[gone] = self._seen_by(gone)
        met = np.unique(np.flatnonzero(came) // threads)
        self.known[met] = self.arrived.reshape(-1, self.order.warps, self.order.warps)[met].max(
            axis=1
        )
        self.announced &= ~came
        self.released |= came
        parked = np.logical_or.reduce(list(self._parked_at("cluster").values()))
        passing = parked & self.released
        self.order.learn(passing, self.known)
        self.released &= ~passing
        return passing

    def _let_go(self, free: np.ndarray, waiting: Groups) -> None:
        """Move threads from where they are parked to the basic blocks behind."""
        for number in list(self.parked):
            going, staying = self.parked[number] & free, self.parked[number] & ~free
            if staying.any():
                self.parked[number] = staying
            else:
                del self.parked[number]
            if going.any():
                sync = self.places[number]
                if sync.kind != "warp":
                    name = "cluster" if sync.kind == "cluster" else "barrier"
                    self.watch.event(f"{name} leave", sync.instruction, going)
                waiting.add(number + 1, going)

    # ---- giving up ----

    def give_up(self, waiting: Groups) -> None:
        """Nobody will come any more: report what is missing. Lanes that wait in a collective go
        on, so that one run shows every bug; threads at barriers end."""
        collectives = self._parked_at("warp")
        for number, mask in collectives.items():
            sync = self.places[number]
            self.context.report(
                "lane missing from a warp operation",
                sync.instruction,
                f"some lanes of {membership(sync.instruction)} never execute it; they have "
                "returned or are waiting elsewhere",
                mask,
            )
            for part in _by_members(mask, sync.members()):
                sync.step(Lanes(part))
            self._let_go(mask, waiting)
        if collectives:
            return
        for number, mask in self.parked.items():
            sync = self.places[number]
            kind = "cluster barrier" if sync.kind == "cluster" else "barrier"
            self.context.report(
                f"{kind} that never completes",
                sync.instruction,
                f"the other threads of the {sync.kind} wait at another barrier or have returned",
                mask,
            )
        self.parked.clear()


def _by_members(mask: np.ndarray, required: np.ndarray) -> Iterator[np.ndarray]:
    """Cut threads into groups that, in each warp, name the same lanes."""
    if len(required) == 1:
        if mask.any():
            yield mask
        return
    by_warp = required.reshape(-1, WARP)
    while mask.any():
        first = mask.reshape(-1, WARP).argmax(axis=1)
        named = np.repeat(by_warp[np.arange(len(first)), first], WARP)
        part = mask & (required == named)
        if (part == mask).all():
            yield mask
            return
        yield part
        mask = mask & ~part


def _reduce_block(
    context: Context, instruction: Instruction, target: Operand, predicate: Operand
) -> Step:
    """bar.red: how many of the block's threads say yes, or whether all or any do."""
    mode = instruction.modifiers[-2]
    read = context.reader(predicate, "pred")
    write = context.writer(target, "u32" if mode == "popc" else "pred")

    def reduce(lanes: Lanes) -> None:
        padded = context.shared.padded
        yes = np.broadcast_to(read(), context.slots) & lanes.mask
        votes = yes.reshape(-1, padded).sum(axis=1, dtype=np.uint32)
        present = lanes.mask.reshape(-1, padded).sum(axis=1, dtype=np.uint32)
        result = {"popc": votes, "and": votes == present, "or": votes > 0}[mode]
        write(np.repeat(result, padded), lanes)

    return reduce
