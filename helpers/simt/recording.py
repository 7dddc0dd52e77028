"""Which instructions a watch records, and how: a function around the one that executes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .context import AddressReader, Context, Memory, Reader
from .geometry import Lanes, Step
from .hardware import ALLOCATION_ALIGN, WARP
from .instructions import (
    DTYPES,
    UNSIGNED,
    Address,
    Immediate,
    Instruction,
    Operand,
    elements,
    type_size,
)
from .memory.global_memory import PAGE_BITS
from .trace import WatchedAccess

NAMES = {
    "shfl": "shuffle",
    "vote": "vote",
    "match": "match",
    "redux": "reduce",
    "elect": "elect",
    "mbarrier": "mbarrier",
    "cp": "copy",
}
VERBS = {"ld": "load", "ldu": "load", "st": "store", "atom": "atomic", "red": "atomic"}


@dataclass(frozen=True)
class Part:
    """What an instruction does to one memory."""

    kind: str
    memory: Memory
    addresses: AddressReader
    widths: int | Reader  # bytes
    values: Sequence[Reader] = ()  # of a load, once it has run


def around(context: Context, instruction: Instruction, step: Step) -> Step:
    """`step` with its records; `step` itself if nothing is watched."""
    watch = context.watch
    if not watch.on:
        return step
    parts = list(_parts(context, instruction))
    watched = watch.watches(instruction) and bool(parts)
    line, kind = watch.line_of(instruction), _event_kind(context, instruction, parts)
    exchange = context.exchange_reader(instruction) if kind == "shuffle" else None

    def recorded(lanes: Lanes) -> None:
        kept = []
        if watched:
            for part in parts:
                kept += [(part, *one) for one in _record(context, part, line, lanes)]
        if exchange:
            watch.event(kind, instruction, lanes.mask, *exchange())
        elif kind:
            watch.event(kind, instruction, lanes.mask)
        watch.steps += lanes.active_warps
        step(lanes)
        for part, access, warp in kept:
            own = slice(warp * WARP, (warp + 1) * WARP)
            for place, read in enumerate(part.values):  # what was loaded or stored
                ours = np.broadcast_to(read(), context.slots)[own]
                access.values[access.mask, place] = ours[access.mask]

    return recorded


def watchable_lines(context: Context) -> set[int]:
    """The lines of the kernel's own file that load or store."""
    kernel, watch = context.kernel, context.watch
    return {watch.line_of(one) for one in kernel.instructions if any(_parts(context, one))} - {0}


def _event_kind(context: Context, instruction: Instruction, parts: list[Part]) -> str:
    if instruction.opcode in VERBS:
        names = {id(context.shared): "shared", id(context.local): "local"}
        names |= {id(context.global_memory): "global", id(context.generic): "generic"}
        verb = VERBS[instruction.opcode]
        return f"{verb} {names[id(parts[0].memory)]}" if parts else ""
    if instruction.opcode == "bar" and instruction.modifiers[:1] == ("warp",):
        return "warp barrier"
    return NAMES.get(instruction.opcode, "")


def _parts(context: Context, instruction: Instruction) -> Iterator[Part]:
    """The memories that an instruction reaches; none for the parameters of the kernel."""
    operands, modifiers = instruction.operands, instruction.modifiers
    if instruction.opcode in VERBS:
        memory = context.memory_space(instruction)
        if memory is context.arguments:
            return
        place = next(k for k, one in enumerate(operands) if isinstance(one, Address))
        kind = next(one for one in reversed(modifiers) if one in DTYPES)
        values = operands[1 - place] if len(operands) > 1 else operands[0]
        width = type_size(kind) * len(elements(values))
        addresses = context.address_reader(operands[place])
        readers = _value_readers(context, elements(values), type_size(kind))
        yield Part(VERBS[instruction.opcode], memory, addresses, width, readers)
    elif instruction.opcode == "cp" and isinstance(operands[0] if operands else None, Address):
        if len(operands) < 3 or not isinstance(operands[1], Address):
            return  # a prefetch, or cp.async.mbarrier.arrive
        size = operands[2]
        fixed = isinstance(size, Immediate)
        widths = size.value if fixed else context.wide_reader(size, "u32")
        shared, outside = context.shared, context.global_memory
        to, source = (
            (shared, outside)
            if modifiers[1] != "bulk"
            else (outside if one == "global" else shared for one in modifiers[2:4])
        )
        yield Part("load", source, context.address_reader(operands[1]), widths)
        yield Part("store", to, context.address_reader(operands[0]), widths)


def _value_readers(context: Context, operands: Sequence[Operand], size: int) -> list[Reader]:
    """Readers of what is loaded or stored, as bits; none if a part of it goes nowhere."""
    known = all(
        isinstance(one, Immediate) or getattr(one, "name", "") in context.index for one in operands
    )
    return [context.reader(one, f"b{8 * size}") for one in operands] if known else []


def _record(
    context: Context, part: Part, line: int, lanes: Lanes
) -> Iterator[tuple[WatchedAccess, int]]:
    """Keep the accesses; each with the batch's number of its warp."""
    watch = context.watch
    addresses = part.addresses(lanes)
    varied = None if isinstance(part.widths, int) else part.widths()
    for warp in np.flatnonzero(lanes.active_warps & watch.chosen).tolist():
        head = int(watch.steps[warp]), line, part.kind
        running = np.flatnonzero(lanes.mask[warp * WARP : (warp + 1) * WARP])
        slots = warp * WARP + running
        for (memory, array, start, owner), chosen, offsets in _located(
            context, part.memory, slots, addresses[slots]
        ):
            widths = part.widths if varied is None else varied[slots[chosen]]
            for width in dict.fromkeys(np.ravel(widths).tolist()):
                alike = np.broadcast_to(widths == width, len(offsets))
                mask, places = np.zeros(WARP, bool), np.zeros(WARP, np.int64)
                mask[running[chosen][alike]] = True
                places[mask] = offsets[alike]
                where = memory, *watch.where(warp), mask, array, places, width, start, owner
                values = None
                if part.values:
                    size = width // len(part.values)
                    values = np.zeros((WARP, len(part.values)), UNSIGNED[size])
                access = WatchedAccess(*head, *where, values)
                watch.keep(watch.accesses, access)
                yield access, warp


def _located(
    context: Context, memory: Memory, slots: np.ndarray, addresses: np.ndarray
) -> Iterator[tuple[tuple, np.ndarray, np.ndarray]]:
    """((memory, array, its start, owner), which of the slots reach it, their offsets there)."""
    if memory is context.generic:
        for one, low, inside in memory.split(addresses):
            there = np.flatnonzero(inside)
            for where, chosen, offsets in _located(
                context, one, slots[there], addresses[there] - low
            ):
                yield where, there[chosen], offsets
    elif memory is context.local:
        yield ("local", "", 0, None), np.arange(len(slots)), addresses
    elif memory is context.shared:
        blocks, near = memory.block_of(slots, addresses)
        own, batch = int(slots[0]) // memory.padded, context.watch.batch
        for block, chosen in _alike(blocks):
            owner = batch.shape.block_place(batch.first + block)
            where = ("shared", "", 0, None) if block == own else ("remote", "", 0, owner)
            yield where, chosen, near[chosen]
    else:
        for page, chosen in _alike(addresses >> PAGE_BITS):
            allocation = memory.allocation_near(page << PAGE_BITS)
            if allocation is None:
                yield ("global", "", 0, None), chosen, addresses[chosen]
            else:
                place = "global", allocation.name, allocation.start % ALLOCATION_ALIGN, None
                yield place, chosen, addresses[chosen] - allocation.start


def _alike(values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(value, where it stands), as they come."""
    for value in dict.fromkeys(values.tolist()):
        yield value, np.flatnonzero(values == value)
