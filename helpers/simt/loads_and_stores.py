"""Loads and stores, atomics (atom and red), fences, and addresses from one space to another (cvta,
isspacep, mapa, getctarank).

Lanes of an atomic that meet at one address take turns, lowest lane first: one legal order of the
many that hardware may choose. Blocks of a batch take turns likewise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .analysis import ORDINARY, STRONG_LOADS, optimistic_loads, shared_variables, steering
from .context import Context, Memory
from .geometry import Lanes, Step
from .hardware import Counters
from .instructions import (
    DTYPES,
    UNSIGNED,
    Instruction,
    Register,
    UnsupportedPTX,
    elements,
    type_size,
    unknown,
)
from .memory.access import (
    LOCAL_END,
    LOCAL_WINDOW,
    SHARED_END,
    SHARED_STEP,
    SHARED_WINDOW,
    Access,
)
from .memory.causality import GPU, scope_of
from .memory.shared import FLAGS
from .operations.base import find_operation

# Qualifiers of an access that change caching or ordering, never the value that one thread
# of a race-free kernel sees.
CACHE_QUALIFIERS = frozenset(
    "global nc weak ca cg cs cv lu wb wt L1_no_allocate L1_evict_last L1_evict_first"
    " L1_evict_normal L1_evict_unchanged L2_64B L2_128B L2_256B L2_evict_first L2_evict_last"
    " L2_evict_normal L2_cache_hint shared shared_cta shared_cluster volatile local const param"
    f" relaxed acquire release gpu cta cluster sys mmio unified {ORDINARY}".split()
)


def _check_qualifiers(instruction: Instruction) -> None:
    for modifier in instruction.modifiers[:-1]:
        if modifier not in CACHE_QUALIFIERS and modifier not in ("v2", "v4", "v8"):
            raise UnsupportedPTX(f"the SIMT machine does not know .{modifier} in a memory access")


def translate_load(context: Context, instruction: Instruction) -> Step:
    """The function that executes an ordinary load, of a parameter too."""
    if any("param" in name for name in instruction.modifiers):
        return _load_parameter(context, instruction)
    if "const" in instruction.modifiers:  # served by a cache of its own
        return _load(context, instruction, context.uncounted)
    return _load(context, instruction, context.tally_of(instruction))


def _load_parameter(context: Context, instruction: Instruction) -> Step:
    target, address = instruction.operands
    kind = instruction.modifiers[-1]
    if address.base in context.arguments.offsets:  # an argument or the result of a function call
        return _load(context, instruction, context.uncounted)
    writers = [context.writer(element, kind) for element in elements(target)]
    size, space = type_size(kind), np.frombuffer(context.parameters, np.uint8)
    if isinstance(address.base, Register):  # an array in a struct, indexed at run time
        addresses = context.address_reader(address)

        def load_indexed(lanes: Lanes) -> None:
            for place, write in enumerate(writers):
                start = addresses(lanes) + place * size
                start = np.clip(start, 0, len(space) - size)  # the parameters and nothing else
                taken = space[start[:, None] + np.arange(size)]
                write(taken.view(DTYPES[kind]).reshape(-1), lanes)

        return load_indexed
    offset = address.offset + context.addresses[address.base]
    values = [space[offset + k * size : offset + (k + 1) * size] for k in range(len(writers))]

    def load_parameter(lanes: Lanes) -> None:
        for write, value in zip(writers, values, strict=True):
            write(value.view(DTYPES[kind]), lanes)

    return load_parameter


def access_of(context: Context, instruction: Instruction, size: int, *more, **named) -> Access:
    """The access of an instruction, of elements of `size` bytes. A volatile one is a relaxed one of
    the system."""
    access, modifiers = Access(instruction, size, *more, **named), {*instruction.modifiers}
    if access.atomic or modifiers & (STRONG_LOADS | {"release"}):
        access.scope = scope_of(instruction.modifiers, GPU)
    access.acquires = bool({"acquire", "acq_rel"} & modifiers)
    access.releases = bool({"release", "acq_rel"} & modifiers)
    access.read_only = "nc" in modifiers
    access.variable = shared_variables(context.kernel).get(instruction.number, "")
    return access


def _load(context: Context, instruction: Instruction, tally: Counters) -> Step:
    _check_qualifiers(instruction)
    kind = instruction.modifiers[-1]
    targets = elements(instruction.operands[0])
    steers = any(isinstance(t, Register) and t.name in steering(context.kernel) for t in targets)
    polls = instruction.number in context.polling
    about = type_size(kind), len(targets), tally, steers
    access = access_of(context, instruction, *about, polls=polls)
    if instruction.number in optimistic_loads(context.kernel):
        access.scope = GPU
    addresses = context.address_reader(instruction.operands[1])
    writers = [context.writer(target, kind) for target in targets]
    memory, dtype = context.memory_space(instruction), DTYPES[kind]
    suspicion, numbers = context.suspicion, [context.index.get(t.name) for t in targets]

    def load(lanes: Lanes) -> None:
        values = memory.load(addresses(lanes), access, lanes)
        for write, value in zip(writers, values, strict=True):
            write(value.view(dtype), lanes)
        if suspicion.pending:
            suspicion.loaded(numbers, access.size, kind[0] == "s")

    return load


def translate_store(context: Context, instruction: Instruction) -> Step:
    """The function that executes an ordinary store."""
    _check_qualifiers(instruction)
    tally = context.tally_of(instruction)
    if any("param" in name for name in instruction.modifiers):
        tally = context.uncounted
    kind = instruction.modifiers[-1]
    sources = elements(instruction.operands[1])
    access = access_of(context, instruction, type_size(kind), len(sources), tally)
    addresses = context.address_reader(instruction.operands[0])
    readers = [context.reader(source, f"b{8 * access.size}") for source in sources]
    memory = context.memory_space(instruction)

    def store(lanes: Lanes) -> None:
        values = []
        for read in readers:
            value = read()
            values.append(lanes.with_stand_ins(value) if len(value) == context.slots else value)
        memory.store(addresses(lanes), values, access, lanes)

    return store


# ---- addresses ----------------------------------------------------------------------------------


def convert(context: Context, instruction: Instruction) -> Step:
    """cvta between addresses within shared or local memory and generic ones."""
    target, source = instruction.operands
    kind = instruction.modifiers[-1]
    if instruction.names_shared:
        start = SHARED_WINDOW
    elif "local" in instruction.modifiers:
        start = LOCAL_WINDOW
    else:
        raise unknown(instruction)
    shift = np.int64(-start if "to" in instruction.modifiers else start)
    read, write = context.reader(source, f"s{kind[1:]}"), context.writer(target, f"s{kind[1:]}")
    return lambda lanes: write(read() + shift, lanes)


def is_in_space(context: Context, instruction: Instruction) -> Step:
    """isspacep: whether a generic address lies in shared, local or global memory."""
    target, source = instruction.operands
    space = instruction.modifiers[0]
    read, write = context.reader(source, "s64"), context.writer(target, "pred")
    spaces = {
        "shared": (SHARED_WINDOW, SHARED_WINDOW + SHARED_STEP),
        "shared_cta": (SHARED_WINDOW, SHARED_WINDOW + SHARED_STEP),
        "shared_cluster": (SHARED_WINDOW, SHARED_END),
        "local": (LOCAL_WINDOW, LOCAL_END),
        "global": (SHARED_WINDOW, LOCAL_END),  # all that is outside
    }
    if space not in spaces:
        raise unknown(instruction)
    start, end = spaces[space]

    def test(lanes: Lanes) -> None:
        address = read()
        write(((address >= start) & (address < end)) ^ (space == "global"), lanes)

    return test


def map_to_block(context: Context, instruction: Instruction) -> Step:
    """mapa: an address of the own shared memory as that of a block of the cluster."""
    start, kind = _start(instruction), f"s{instruction.modifiers[-1][1:]}"
    target, source, rank = instruction.operands
    read, write = context.reader(source, kind), context.writer(target, kind)
    read_rank = context.reader(rank, "u32")

    def map_address(lanes: Lanes) -> None:
        near = (read() - start) % SHARED_STEP
        value = near + (read_rank().astype(np.int64) + 1) * SHARED_STEP + start
        write(value.astype(DTYPES[kind]), lanes)

    return map_address


def rank_of(context: Context, instruction: Instruction) -> Step:
    """getctarank: the block that an address belongs to."""
    start = _start(instruction)
    target, source = instruction.operands
    read, write = context.reader(source, "s64" if start else "s32"), context.writer(target, "u32")

    def find_rank(lanes: Lanes) -> None:
        rank = (read() - start) // SHARED_STEP - 1
        own = context.specials.read("%cluster_ctarank").astype(np.int64)
        write(np.where(rank < 0, own, rank).astype(np.uint32), lanes)

    return find_rank


def _start(instruction: Instruction) -> np.int64:
    """Where the addresses of shared memory start: generic ones in a window."""
    return np.int64(0 if "shared_cluster" in instruction.modifiers else SHARED_WINDOW)


# ---- fences -------------------------------------------------------------------------------------


def translate_fence(context: Context, instruction: Instruction) -> Step:
    """Other threads see every store at once, so that a fence only counts for what is ordered: for
    flags, or for the asynchronous proxy."""
    kinds = instruction.modifiers
    if any(kind.startswith("async") for kind in kinds):

        def fence_proxy(lanes: Lanes) -> None:
            context.copies.fence(lanes.mask, kinds)

        return fence_proxy
    if "proxy" in kinds:
        return lambda lanes: None
    # Those that are for shared memory or an mbarrier's init alone count for everything.
    scope, causality = scope_of(kinds, GPU), context.causality
    releases, acquires = "acquire" not in kinds, "release" not in kinds
    return lambda lanes: causality.fence(lanes.mask, scope, releases, acquires)


# ---- atomics -------------------------------------------------------------------------------------


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
    addresses = context.address_reader(operands.pop(0))
    if "L2_cache_hint" in instruction.modifiers:
        operands.pop()
    sources = [[context.reader(part, kind) for part in elements(one)] for one in operands]
    writers = [context.writer(target, kind) for target in targets]
    memory, dtype = context.memory_space(instruction), DTYPES[kind]
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
        near = where < 0
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
