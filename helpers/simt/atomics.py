"""Read-modify-write instructions on global and shared memory: atom and red.

Lanes that meet at one address take turns, lowest lane first: one legal order of the many that
hardware may choose. Blocks of a batch take turns likewise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .memory import UNSIGNED, Access
from .operations import DTYPES, find_operation
from .parse import Instruction, UnsupportedPTX, Vector, type_size
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
    "global shared shared_cta shared_cluster L2_cache_hint noftz relaxed acq_rel acquire release"
    " gpu cta cluster sys".split()
)


def translate_atomic(context: Context, instruction: Instruction) -> Step:
    """The function that executes atom (with a result) or red (without one).

    A vector is one atomic operation for each element. Raises `UnsupportedPTX` for an operation
    or a type that it does not know.
    """
    names = [name for name in instruction.modifiers if name not in QUALIFIERS]
    kind = next((name for name in names if name in DTYPES and name != "pred"), None)
    vector = next((name for name in names if name in ("v2", "v4", "v8")), None)
    name = next((name for name in names if name in OPERATIONS), None)
    if kind is None or name is None or {*names} != {kind, name, vector} - {None}:
        raise UnsupportedPTX(f"the SIMT machine does not know {instruction.text!r}")
    apply = OPERATIONS[name]
    if "16" in kind and kind[0] in "fb" and kind != "b16":  # f16, bf16, f16x2, bf16x2
        apply = find_operation(name, (kind,)).apply
    operands = list(instruction.operands)
    targets = _elements(operands.pop(0)) if instruction.opcode == "atom" else ()
    addresses = address_reader(context, operands.pop(0))
    if "L2_cache_hint" in instruction.modifiers:
        operands.pop()
    sources = [[reader(context, part, kind) for part in _elements(one)] for one in operands]
    writers = [writer(context, target, kind) for target in targets]
    memory, dtype = memory_space(context, instruction), DTYPES[kind]
    tally = context.tally_of(instruction)
    access = Access(instruction, type_size(kind), 1, tally, atomic=True, strong=True)
    raw = UNSIGNED[access.size]

    def change(lanes: Lanes, places: np.ndarray, values: list[np.ndarray]) -> np.ndarray:
        """Returns what was there before."""
        slots = np.flatnonzero(lanes.mask)
        result = np.zeros(context.slots, dtype)
        for turn in _turns(places[slots]):
            mask = np.zeros(context.slots, bool)
            mask[slots[turn]] = True
            taking = Lanes(mask, False)
            stand_in = slice(None) if taking.stand_in is None else taking.stand_in
            old = memory.load(places[stand_in], access, taking)[0].view(dtype)
            new = apply(old, *(value[stand_in] for value in values)).astype(dtype)
            memory.store(places[stand_in], [new.view(raw)], access, taking)
            context.memory.changes += int((new.view(raw) != old.view(raw)).any())
            result[mask] = old[mask]
        return result

    def atomic(lanes: Lanes) -> None:
        places = addresses(lanes)
        tally.atomic_requests += lanes.warps
        for number in range(len(sources[0])):
            values = [np.broadcast_to(parts[number](), context.slots) for parts in sources]
            before = change(lanes, places + number * access.size, values)
            if writers:
                writers[number](before, lanes)

    return atomic


def _elements(operand) -> tuple:
    return operand.elements if isinstance(operand, Vector) else (operand,)


def _turns(places: np.ndarray) -> list[np.ndarray]:
    """Split accesses so that none of a turn meet at one address: turn k holds the k-th of each."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    rank = np.arange(len(places)) - np.repeat(starts, np.diff(np.r_[starts, len(places)]))
    turn = np.empty(len(places), np.int64)
    turn[order] = rank
    return [np.flatnonzero(turn == number) for number in range(int(rank.max()) + 1)]
