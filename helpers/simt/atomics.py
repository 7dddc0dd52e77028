"""Read-modify-write instructions on global and shared memory: atom and red.

Lanes that meet at one address take turns, lowest lane first: one legal order of the many that
hardware may choose. Blocks of a batch take turns likewise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .memory import UNSIGNED, Access
from .operations import DTYPES
from .parse import Instruction, UnsupportedPTX, type_size
from .translate import Context, Lanes, Step, address_reader, memory_space, reader, writer

OPERATIONS: dict[str, Callable] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, new: new,
    "inc": lambda old, limit: np.where(old >= limit, 0, old + 1).astype(old.dtype),
    "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1),
    "cas": lambda old, expected, new: np.where(old == expected, new, old),
}
QUALIFIERS = frozenset(
    "global shared shared_cta relaxed acq_rel acquire release gpu cta sys".split()
)


def translate_atomic(context: Context, instruction: Instruction) -> Step:
    """The function that executes atom (with a result) or red (without one).

    Raises `UnsupportedPTX` for a vector form, a packed type or an operation it does not know.
    """
    kind = instruction.modifiers[-1]
    names = [name for name in instruction.modifiers[:-1] if name not in QUALIFIERS]
    if len(names) != 1 or names[0] not in OPERATIONS or kind not in DTYPES or kind == "pred":
        raise UnsupportedPTX(f"the SIMT machine does not know {instruction.text!r}")
    apply = OPERATIONS[names[0]]
    operands = list(instruction.operands)
    target = operands.pop(0) if instruction.opcode == "atom" else None
    addresses = address_reader(context, operands.pop(0))
    readers = [reader(context, operand, kind) for operand in operands]
    write = writer(context, target, kind) if target is not None else None
    memory, dtype = memory_space(context, instruction), DTYPES[kind]
    tally = context.tallies[context.kernel.instructions.index(instruction)]
    access = Access(instruction, type_size(kind), 1, tally, atomic=True)
    raw = UNSIGNED[access.size]

    def atomic(lanes: Lanes) -> None:
        places = addresses(lanes)
        slots = np.flatnonzero(lanes.mask)
        values = [np.broadcast_to(read(), context.slots) for read in readers]
        result = np.zeros(context.slots, dtype)
        tally.atomic_requests += lanes.warps
        for turn in _turns(places[slots]):
            mask = np.zeros(context.slots, bool)
            mask[slots[turn]] = True
            taking = Lanes(mask, False)
            stand_in = slice(None) if taking.stand_in is None else taking.stand_in
            old = memory.load(places[stand_in], access, taking)[0].view(dtype)
            new = apply(old, *(value[stand_in] for value in values)).astype(dtype)
            memory.store(places[stand_in], [new.view(raw)], access, taking)
            result[mask] = old[mask]
        if write is not None:
            write(result, lanes)

    return atomic


def _turns(places: np.ndarray) -> list[np.ndarray]:
    """Split accesses so that none of a turn meet at one address: turn k holds the k-th of each."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    rank = np.arange(len(places)) - np.repeat(starts, np.diff(np.r_[starts, len(places)]))
    turn = np.empty(len(places), np.int64)
    turn[order] = rank
    return [np.flatnonzero(turn == number) for number in range(int(rank.max()) + 1)]
