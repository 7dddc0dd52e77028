"""Read-modify-write instructions on global and shared memory: atom and red.

Lanes that meet at one address take turns, lowest lane first: one legal order of the many that
hardware may choose. Blocks of a batch take turns likewise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..context import Context
from ..instructions import Instruction, elements, unknown
from ..lanes import Lanes, Step
from ..memory.access import SHARED_END, SHARED_WINDOW
from ..memory.shared_races import FLAGS
from ..operands import address_reader, reader, writer
from ..operations import find_operation
from ..ptx_types import DTYPES, UNSIGNED, type_size
from .loads_and_stores import Memory, access_of, memory_space

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
QUEUE = 64  # lanes at one address from which on they are computed apart
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
        raise unknown(instruction)
    apply = OPERATIONS[name]
    if "16" in kind and kind[0] in "fb" and kind != "b16":  # f16, bf16, f16x2, bf16x2
        apply = find_operation(name, (kind,)).apply
    operands = list(instruction.operands)
    targets = elements(operands.pop(0)) if instruction.opcode == "atom" else ()
    addresses = address_reader(context, operands.pop(0))
    if "L2_cache_hint" in instruction.modifiers:
        operands.pop()
    sources = [[reader(context, part, kind) for part in elements(one)] for one in operands]
    writers = [writer(context, target, kind) for target in targets]
    memory, dtype = memory_space(context, instruction), DTYPES[kind]
    tally = context.tally_of(instruction)
    access = access_of(context, instruction, type_size(kind), 1, tally, atomic=True)
    raw = UNSIGNED[access.size]

    def change(lanes: Lanes, places: np.ndarray, values: list[np.ndarray]) -> np.ndarray:
        """Returns what was there before."""
        slots = lanes.slots
        result, wrote = np.zeros(context.slots, dtype), lanes.mask.copy()
        where = _locations(context, memory, places[slots], slots)
        for chosen, many in _turns(where):
            waiting, mask = slots[chosen], np.zeros(context.slots, bool)
            mask[waiting] = True
            taking = Lanes(mask)
            at = taking.with_stand_ins(places)
            old = memory.load(at, access, taking)[0].view(dtype)
            if many:  # all store what the last one leaves
                given = [value[waiting] for value in values]
                history = _in_turn(name, apply, old[waiting[-1]], given)
                new = np.full(context.slots, history[-1], dtype)
                before, after = history[:-1], history[1:]
            else:
                new = apply(old, *map(taking.with_stand_ins, values)).astype(dtype)
                before, after = old[waiting], new[waiting]
            memory.store(at, [new.view(raw)], access, taking)
            changed = before.view(raw) != after.view(raw)
            context.global_memory.changes += int(changed.any())
            result[waiting] = before
            if name == "cas":
                wrote[waiting] = changed
        if memory is not context.shared:
            context.global_memory.changed(places[slots], slots, wrote[slots], access)
        near = where < 0 if context.causality.in_shared else np.zeros(0, bool)
        if near.any():
            context.causality.change(slots[near], where[near], wrote[slots[near]], access)
        return result

    def atomic(lanes: Lanes) -> None:
        places = addresses(lanes)
        tally.atomic_requests += lanes.warps
        for number in range(len(sources[0])):
            values = [np.broadcast_to(parts[number](), context.slots) for parts in sources]
            before = change(lanes, places + number * access.size, values)
            if context.suspicion.pending:
                context.suspicion.use_loaded(instruction)
            if writers:
                writers[number](before, lanes)

    return atomic


def _locations(
    context: Context, memory: Memory, places: np.ndarray, slots: np.ndarray
) -> np.ndarray:
    """A number for each address that is the same for lanes that mean the same bytes: addresses
    of shared memory are those of the own block, or name another one."""
    shared = context.shared
    start = 0 if memory is shared else SHARED_WINDOW
    inside = np.ones(len(places), bool)
    if memory is not shared:
        inside = (places >= SHARED_WINDOW) & (places < SHARED_END)
        if memory is context.global_memory or not inside.any():
            return places
    block, near = shared.block_of(slots, places - start)
    return np.where(inside, FLAGS + block * shared.stride + near, places)


def _turns(places: np.ndarray) -> list[tuple[np.ndarray, bool]]:
    """Split accesses so that none of a turn meet at one address: turn k holds the k-th of each.
    Addresses that many lanes want come apart, all of them in one turn: True."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[starts, len(places)])
    rank = np.arange(len(places)) - np.repeat(starts, counts)
    rank[np.repeat(counts > QUEUE, counts)] = -1
    turn = np.empty(len(places), np.int64)
    turn[order] = rank
    turns = [(np.flatnonzero(turn == number), False) for number in range(int(rank.max()) + 1)]
    pairs = zip(starts, counts, strict=True)
    return turns + [(order[start : start + n], True) for start, n in pairs if n > QUEUE]


def _compare_and_swap(before, expected: np.ndarray, new: np.ndarray) -> np.ndarray:
    """As `_in_turn`: from one lane that finds what it expects to the next."""
    history = np.full(len(new) + 1, before)
    lane = 0
    while len(found := np.flatnonzero(expected[lane:] == history[lane])):
        lane += int(found[0]) + 1
        history[lane:] = new[lane - 1]
    return history


def _in_turn(name: str, apply: Callable, before, values: list[np.ndarray]) -> np.ndarray:
    """What is there before the first lane, and after each of them."""
    function = OPERATIONS[name]
    if isinstance(function, np.ufunc) and apply is function:
        return function.accumulate(np.r_[np.array([before]), values[0]], dtype=values[0].dtype)
    if name == "cas" and apply is function:
        return _compare_and_swap(before, *values)
    history = [np.array([before])]
    for lane in range(len(values[0])):
        operands = [value[lane : lane + 1] for value in values]
        history.append(np.asarray(apply(history[-1], *operands)).astype(history[0].dtype))
    return np.concatenate(history)
