"""Instructions in which the lanes of a warp take part together: shuffles, votes, matches.

Each function gets the lanes that take part, all of them present (the scheduler waits for that),
and works on arrays of shape (warps, WARP).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from .context import Context
from .hardware import WARP
from .instructions import Immediate, Instruction, unknown
from .lanes import Lanes, Step
from .operands import reader, writer

WEIGHTS = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
EVERY_LANE = np.uint32(0xFFFFFFFF)


def is_collective(instruction: Instruction) -> bool:
    """Whether the instruction names the lanes that must take part in it."""
    if instruction.opcode == "bar":
        return instruction.modifiers[:1] == ("warp",)
    return instruction.opcode in ("shfl", "vote", "match", "redux", "elect") and (
        "sync" in instruction.modifiers
    )


def member_mask(context: Context, instruction: Instruction) -> Callable[[], np.ndarray]:
    """Reads the mask of lanes that an instruction waits for."""
    return reader(context, instruction.operands[-1], "b32")


def bits_of_warps(mask: np.ndarray) -> np.ndarray:
    """One uint32 per warp from a bool per slot."""
    return (mask.reshape(-1, WARP) * WEIGHTS).sum(axis=1, dtype=np.uint32)


def translate_collective(context: Context, instruction: Instruction) -> Step:
    """The function that executes the instruction; raises `UnsupportedPTX` for a form it does
    not know."""
    builders = {"shfl": _shuffle, "vote": _vote, "match": _match, "redux": _reduce}
    builders |= {"bar": _sync, "elect": _elect}
    return builders[instruction.opcode](context, instruction)


def active_mask(context: Context, instruction: Instruction) -> Step:
    """activemask.b32: the lanes that execute this together."""
    write = writer(context, instruction.operands[0], "b32")
    return lambda lanes: write(np.repeat(bits_of_warps(lanes.mask), WARP), lanes)


@functools.lru_cache(maxsize=4)
def _numbered(slots: int) -> tuple[np.ndarray, np.ndarray]:
    """(its lane, the first slot of its warp) of each slot."""
    every = np.arange(slots)
    return every & (WARP - 1), every & ~(WARP - 1)


def _wide(context: Context, values: np.ndarray) -> np.ndarray:
    return np.broadcast_to(values, context.slots) if len(values) == 1 else values


def _source_reader(
    context: Context, instruction: Instruction
) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Reads of a shuffle (the lane that each slot takes from, whether that is within bounds)."""
    mode = next(m for m in instruction.modifiers if m in ("up", "down", "bfly", "idx"))
    *_, amount, clamp, _ = instruction.operands
    read_amount, read_clamp = reader(context, amount, "u32"), reader(context, clamp, "u32")

    def read() -> tuple[np.ndarray, np.ndarray]:
        lane = _numbered(context.slots)[0]
        by, control = read_amount().astype(np.int64), read_clamp().astype(np.int64)
        segment, limit = control >> 8 & 31, control & 31  # PTX ISA, shfl.sync
        last = lane & segment | limit & ~segment
        source = {
            "up": lambda: lane - (by & 31),
            "down": lambda: lane + (by & 31),
            "bfly": lambda: lane ^ by & 31,
            "idx": lambda: lane & segment | by & ~segment & 31,
        }[mode]()
        valid = source >= last if mode == "up" else source <= last
        return np.where(valid, source, lane), valid

    return read


def exchange_reader(
    context: Context, instruction: Instruction
) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Reads of a shuffle (the lane that each slot takes from, what each slot offers as uint32)."""
    sources = _source_reader(context, instruction)
    read = reader(context, instruction.operands[-4], "b32")
    return lambda: (sources()[0], _wide(context, read()))


def _shuffle(context: Context, instruction: Instruction) -> Step:
    *targets, value, _, _, _ = instruction.operands
    sources, read = _source_reader(context, instruction), reader(context, value, "b32")
    write, number = writer(context, targets[0], "b32"), context.index.get(targets[0].name)
    write_valid = writer(context, targets[1], "pred") if len(targets) == 2 else None

    def shuffle(lanes: Lanes) -> None:
        source, valid = sources()
        base = _numbered(context.slots)[1]
        absent = lanes.mask & ~lanes.mask[base + source]
        write(_wide(context, read())[base + source], lanes)
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
    read = reader(context, predicate, "pred")
    write = writer(context, target, "b32" if mode == "ballot" else "pred")

    def vote(lanes: Lanes) -> None:
        yes = _wide(context, read())
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
    read, write = reader(context, value, kind), writer(context, targets[0], "b32")
    write_same = writer(context, targets[1], "pred") if len(targets) == 2 else None

    def match(lanes: Lanes) -> None:
        values = _wide(context, read()).reshape(-1, WARP)
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
    functions = {
        "add": (np.add, 0),
        "and": (np.bitwise_and, -1),
        "or": (np.bitwise_or, 0),
        "xor": (np.bitwise_xor, 0),
        "min": (np.minimum, None),
        "max": (np.maximum, None),
    }
    name = next((m for m in instruction.modifiers if m in functions), None)
    if name is None or kind not in ("u32", "s32", "b32"):
        raise unknown(instruction)
    function, identity = functions[name]
    target, value, _ = instruction.operands
    read, write = reader(context, value, kind), writer(context, target, kind)

    def reduce(lanes: Lanes) -> None:
        values = _wide(context, read())
        limits = np.iinfo(values.dtype)
        start = {None: limits.max if name == "min" else limits.min, -1: ~values.dtype.type(0)}
        neutral = values.dtype.type(start.get(identity, 0))
        kept = np.where(lanes.mask, values, neutral).reshape(-1, WARP)
        write(np.repeat(function.reduce(kept, axis=1, dtype=values.dtype), WARP), lanes)

    return reduce


def _sync(context: Context, instruction: Instruction) -> Step:
    named = member_mask(context, instruction)

    def sync(lanes: Lanes) -> None:
        order, names = context.shared.order, named()
        if len(names) == 1 and names[0] == 0xFFFFFFFF:
            order.order_warps(np.flatnonzero(lanes.active_warps))
        else:
            order.order_lanes(lanes.mask, names)

    return sync


def _elect(context: Context, instruction: Instruction) -> Step:
    """elect.sync: the lowest lane that takes part."""
    write_lane = writer(context, instruction.operands[0], "b32")
    write_chosen = writer(context, instruction.operands[1], "pred")

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
