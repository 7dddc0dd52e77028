"""Where threads wait for one another: barriers of a block, of a warp, of a cluster.

Threads that arrive park. They are judged only when no other thread can run: then either all have
come, or the missing ones never will. A collective of a warp whose lanes have all come passes at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .collectives import (
    bits_of_warps,
    is_collective,
    member_mask,
    membership,
    translate_collective,
)
from .parse import Instruction, UnsupportedPTX
from .translate import Context, Lanes, Step, reader, writer

OPCODES = ("bar", "barrier", "shfl", "vote", "match", "redux", "elect")


@dataclass
class Sync:
    """What threads wait for at one instruction."""

    instruction: Instruction
    kind: str  # "warp", "block" or "cluster"
    step: Step | None = None  # what those that have met execute together
    members: Callable | None = None  # reads the mask of a warp's lanes
    barrier: Callable | None = None  # reads which of the block's barriers
    expected: Callable | None = None  # reads how many threads it waits for; None: all


def translate_sync(syncs: dict[int, Sync]):
    """A translator that files the instructions where threads wait in `syncs`, and returns None
    for them; those that only announce an arrival get a function."""

    def translate_one(context: Context, instruction: Instruction) -> Step | None:
        if is_collective(instruction):
            step = translate_collective(context, instruction)
            members = member_mask(context, instruction)
            syncs[id(instruction)] = Sync(instruction, "warp", step, members)
            return None
        kinds = [kind for kind in instruction.modifiers if kind not in ("aligned", "cta")]
        if kinds[:1] == ["cluster"]:
            return _cluster_barrier(context, instruction, kinds[1:], syncs)
        operands = list(instruction.operands)
        step = None
        if kinds[:1] == ["red"]:
            target, predicate = operands.pop(0), operands.pop()
            step = _reduce(context, instruction, target, predicate)
        elif kinds not in (["sync"], ["arrive"]) or len(operands) > 2:
            raise UnsupportedPTX(f"the SIMT machine does not know {instruction.text!r}")
        numbers = [reader(context, operand, "u32") for operand in operands]
        if kinds == ["arrive"]:
            return lambda lanes: context.barriers.announce(lanes, numbers[0]())
        syncs[id(instruction)] = Sync(instruction, "block", step, None, *numbers)
        return None

    return translate_one


def _cluster_barrier(
    context: Context, instruction: Instruction, kinds: list[str], syncs: dict[int, Sync]
) -> Step | None:
    if kinds[0] == "arrive":
        return lambda lanes: context.barriers.announce_to_cluster(lanes.mask)
    if kinds[0] != "wait":
        raise UnsupportedPTX(f"the SIMT machine does not know {instruction.text!r}")
    syncs[id(instruction)] = Sync(instruction, "cluster")
    return None


def _reduce(context: Context, instruction: Instruction, target, predicate) -> Step:
    """bar.red: how many of the block's threads say yes, or whether all or any do."""
    mode = instruction.modifiers[-2]
    read = reader(context, getattr(predicate, "register", predicate), "pred")
    negated = hasattr(predicate, "register")
    write = writer(context, target, "u32" if mode == "popc" else "pred")

    def reduce(lanes: Lanes) -> None:
        padded = context.shared.padded
        yes = (np.broadcast_to(read(), context.slots) ^ negated) & lanes.mask
        votes = yes.reshape(-1, padded).sum(axis=1, dtype=np.uint32)
        present = lanes.mask.reshape(-1, padded).sum(axis=1, dtype=np.uint32)
        result = {"popc": votes, "and": votes == present, "or": votes > 0}[mode]
        write(np.repeat(result, padded), lanes)

    return reduce


class Barriers:
    """Who waits where, in one batch. `blocks` are the kernel's basic blocks; threads parked at
    number k go on at k + 1."""

    def __init__(self, context: Context, blocks: list, started: np.ndarray):
        self.context, self.blocks, self.started = context, blocks, started
        self.padded = context.shared.padded
        self.parked: dict[int, np.ndarray] = {}
        self.number = np.zeros(len(started), np.int64)  # the barrier that a parked thread is at
        # Of bar.arrive, by (block, barrier): the warps that came, and what each had seen then.
        self.early: dict[tuple[int, int], dict[int, np.ndarray]] = {}
        self.announced = np.zeros(len(started), bool)  # has arrived at the cluster's barrier
        # What each warp had seen when it arrived there, and what a cluster knows since its last.
        self.arrived = np.zeros_like(context.shared.seen)
        self.known = np.zeros_like(context.shared.seen[:: context.shared.warps])
        self.released = np.zeros(len(started), bool)  # all others have as well
        # A warp arrives at a barrier as 32 threads even where the block ends within it.
        self.padding = ~started

    # ---- arriving ----

    def arrive(self, block, lanes: Lanes, place: int) -> np.ndarray | None:
        """Threads reach a sync point; returns those that may pass at once, None for nobody."""
        sync, mask, skipping = block.sync, lanes.mask, None
        if block.guard is not None:
            chosen = mask & block.guard()
            skipping, mask = mask & ~chosen, chosen
        if sync.kind == "warp":
            return self._arrive_at_collective(sync, lanes, mask, skipping, place)
        passing = np.zeros_like(mask) if skipping is None else skipping
        if sync.kind == "cluster":
            late = mask & self.released
            self.context.shared.learn(late, self.known)
            passing = passing | late
            self.released &= ~mask
            mask = mask & ~passing
        else:
            self.number = np.where(mask, sync.barrier(), self.number)
        self._park(place, mask)
        return passing if passing.any() else None

    def announce(self, lanes: Lanes, barrier: np.ndarray) -> None:
        """bar.arrive: these warps have arrived at a barrier and do not wait for it."""
        numbers = np.broadcast_to(barrier, len(self.started))[::32]
        warps = np.flatnonzero(lanes.active_warps)
        for warp, seen in zip(warps.tolist(), self._seen_by(warps), strict=True):
            key = warp * 32 // self.padded, int(numbers[warp])
            self.early.setdefault(key, {})[warp] = seen

    def announce_to_cluster(self, mask: np.ndarray) -> None:
        """barrier.cluster.arrive: what these warps do from now on is not ordered by the barrier."""
        warps = np.flatnonzero(mask.reshape(-1, 32).any(axis=1))
        self.arrived[warps] = self._seen_by(warps)
        self.announced |= mask

    def _seen_by(self, warps: np.ndarray) -> np.ndarray:
        """What each of these warps has seen, and done itself, until now."""
        shared = self.context.shared
        shared.now += 1
        seen = shared.seen[warps].copy()
        seen[np.arange(len(warps)), warps % shared.warps] = shared.now
        return seen

    def _park(self, place: int, mask: np.ndarray) -> None:
        if mask.any():
            self.parked[place] = self.parked[place] | mask if place in self.parked else mask

    def _arrive_at_collective(self, sync: Sync, lanes: Lanes, mask, skipping, place: int):
        required = sync.members()
        lane = (np.arange(len(mask)) & 31).astype(np.uint32)
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
        exist = np.repeat(bits_of_warps(self.started), 32)  # a block need not be whole warps
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
                self._park(place, part & ~complete)
            if complete.any():
                sync.step(Lanes(complete, False))
                passing = passing | complete
        return passing if passing.any() else None

    # ---- opening ----

    def open(self, waiting: dict[int, np.ndarray], alive: np.ndarray) -> bool:
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
        return {n: mask for n, mask in self.parked.items() if self.blocks[n].sync.kind == kind}

    def _open_block_barrier(self, barrier: int, places: dict, alive: np.ndarray) -> np.ndarray:
        """The threads that pass; reports threads of one block that wait at different places, and
        warps of which some lanes have returned."""
        padded, sync = self.padded, self.blocks[next(iter(places))].sync
        arrived = np.logical_or.reduce(list(places.values()))
        padding = self.padding & np.repeat(arrived.reshape(-1, 32).any(axis=1), 32)
        count = (arrived | padding).reshape(-1, padded).sum(axis=1)
        early = {block: warps for (block, n), warps in self.early.items() if n == barrier}
        for block, warps in early.items():
            count[block] += 32 * len(warps)
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
                self.blocks[min(places)].sync.instruction,
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
        self.context.shared.order_blocks(complete, came)
        for place, mask in places.items():
            if self.blocks[place].sync.step and (mask & complete).any():
                self.blocks[place].sync.step(Lanes(mask & complete, False))
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
                self.blocks[first].sync.instruction,
                "threads of one block wait at different barriers of the source",
                places[first] & np.repeat(split, padded),
            )
        gone = self.started & ~alive
        partial = gone.reshape(-1, 32).any(axis=1) & complete.reshape(-1, 32).any(axis=1)
        for number, mask in places.items():
            short = mask & complete & np.repeat(partial, 32)
            if short.any():
                self.context.report(
                    "barrier after an early return",
                    self.blocks[number].sync.instruction,
                    "some lanes of this warp have returned and never reach the barrier",
                    short,
                )

    def _open_cluster_barriers(self, alive: np.ndarray) -> np.ndarray:
        threads = self.context.shared.cluster * self.padded
        missing = (alive & ~self.announced).reshape(-1, threads).any(axis=1)
        came = self.announced & np.repeat(~missing, threads)
        if not came.any():
            return came
        shared = self.context.shared
        shared.clusters_met(came)
        gone = np.flatnonzero(~alive.reshape(-1, 32).any(axis=1))  # they do nothing more
        self.arrived[gone] = self._seen_by(gone)
        met = np.unique(np.flatnonzero(came) // threads)
        self.known[met] = self.arrived.reshape(-1, shared.warps, shared.warps)[met].max(axis=1)
        self.announced &= ~came
        self.released |= came
        parked = np.logical_or.reduce(list(self._parked_at("cluster").values()))
        passing = parked & self.released
        shared.learn(passing, self.known)
        self.released &= ~passing
        return passing

    def _let_go(self, free: np.ndarray, waiting: dict[int, np.ndarray]) -> None:
        """Move threads from where they are parked to the basic blocks behind."""
        for number in list(self.parked):
            going, staying = self.parked[number] & free, self.parked[number] & ~free
            if staying.any():
                self.parked[number] = staying
            else:
                del self.parked[number]
            if going.any():
                join(waiting, number + 1, going, len(self.blocks))

    # ---- giving up ----

    def give_up(self, waiting: dict[int, np.ndarray]) -> None:
        """Nobody will come any more: report what is missing. Lanes that wait in a collective go
        on, so that one run shows every bug; threads at barriers end."""
        collectives = self._parked_at("warp")
        for number, mask in collectives.items():
            sync = self.blocks[number].sync
            self.context.report(
                "lane missing from a warp operation",
                sync.instruction,
                f"lanes of {membership(sync.instruction)} never execute it: they have returned "
                "or wait elsewhere",
                mask,
            )
            for part in _by_members(mask, sync.members()):
                sync.step(Lanes(part, False))
            self._let_go(mask, waiting)
        if collectives:
            return
        for number, mask in self.parked.items():
            sync = self.blocks[number].sync
            kind = "cluster barrier" if sync.kind == "cluster" else "barrier"
            self.context.report(
                f"{kind} that never completes",
                sync.instruction,
                f"the other threads of the {sync.kind} wait at another barrier or have returned",
                mask,
            )
        self.parked.clear()


def join(waiting: dict[int, np.ndarray], number: int | None, mask: np.ndarray, end: int) -> None:
    """Let a group wait at a basic block, together with those that wait there already."""
    if number is not None and number < end:
        waiting[number] = waiting[number] | mask if number in waiting else mask


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
