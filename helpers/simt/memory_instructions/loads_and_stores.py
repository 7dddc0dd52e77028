"""Loads and stores, fences, and addresses from one space to another (cvta, isspacep, mapa,
getctarank).
"""

from __future__ import annotations

import numpy as np

from ..analysis import ORDINARY, STRONG_LOADS, optimistic_loads
from ..context import Context
from ..counters import Counters
from ..instructions import Address, Instruction, Register, UnsupportedPTX, elements, unknown
from ..lanes import Lanes, Step
from ..memory.access import (
    LOCAL_END,
    LOCAL_WINDOW,
    SHARED_END,
    SHARED_STEP,
    SHARED_WINDOW,
    Access,
)
from ..memory.causality import GPU, scope_of
from ..memory.generic import GenericMemory
from ..memory.global_memory import GlobalMemory
from ..memory.local import LocalMemory
from ..memory.shared import SharedMemory
from ..operands import AddressReader, address_reader, reader, writer
from ..ptx_types import DTYPES, type_size

Memory = GlobalMemory | SharedMemory | LocalMemory | GenericMemory

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
    writers = [writer(context, element, kind) for element in elements(target)]
    size, space = type_size(kind), np.frombuffer(context.parameters, np.uint8)
    if isinstance(address.base, Register):  # an array in a struct, indexed at run time
        addresses = address_reader(context, address)

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


def memory_space(context: Context, instruction: Instruction) -> Memory:
    """The memory that a load or store goes to."""
    modifiers = {*instruction.modifiers}
    if names_shared(instruction):
        return context.shared
    if modifiers & {"param", "param_func"}:
        return context.arguments
    if "local" in modifiers:
        return context.local
    return context.global_memory if modifiers & {"global", "const"} else context.generic


def access_of(context: Context, instruction: Instruction, size: int, *more, **named) -> Access:
    """The access of an instruction, of elements of `size` bytes. A volatile one is a relaxed one of
    the system."""
    access, modifiers = Access(instruction, size, *more, **named), {*instruction.modifiers}
    if access.atomic or modifiers & (STRONG_LOADS | {"release"}):
        access.scope = scope_of(instruction.modifiers, GPU)
    access.acquires = bool({"acquire", "acq_rel"} & modifiers)
    access.releases = bool({"release", "acq_rel"} & modifiers)
    access.read_only = "nc" in modifiers
    access.variable = context.shared_variables.get(instruction.number, "")
    return access


def _load(context: Context, instruction: Instruction, tally: Counters) -> Step:
    _check_qualifiers(instruction)
    kind = instruction.modifiers[-1]
    targets = elements(instruction.operands[0])
    steers = any(isinstance(t, Register) and t.name in context.steering for t in targets)
    polls = instruction.number in context.polling
    about = type_size(kind), len(targets), tally, steers
    access = access_of(context, instruction, *about, polls=polls)
    if instruction.number in optimistic_loads(context.kernel):
        access.scope = GPU
    addresses = address_reader(context, instruction.operands[1])
    writers = [writer(context, target, kind) for target in targets]
    memory, dtype = memory_space(context, instruction), DTYPES[kind]
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
    addresses = address_reader(context, instruction.operands[0])
    readers = [reader(context, source, f"b{8 * access.size}") for source in sources]
    memory = memory_space(context, instruction)

    def store(lanes: Lanes) -> None:
        values = []
        for read in readers:
            value = read()
            values.append(lanes.with_stand_ins(value) if len(value) == context.slots else value)
        memory.store(addresses(lanes), values, access, lanes)

    return store


# ---- addresses ----------------------------------------------------------------------------------


def names_shared(instruction: Instruction) -> bool:
    """Whether its addresses are those within shared memory."""
    return bool({"shared", "shared_cta", "shared_cluster"} & {*instruction.modifiers})


def shared_reader(context: Context, operand: Address, generic: bool = False) -> AddressReader:
    """As `address_reader`, for the operand of an instruction on shared memory; `generic` if a
    register there holds a generic address."""
    read = address_reader(context, operand)
    start = np.int64(SHARED_WINDOW if generic and isinstance(operand.base, Register) else 0)
    return lambda lanes: read(lanes) - start


def convert(context: Context, instruction: Instruction) -> Step:
    """cvta between addresses within shared or local memory and generic ones."""
    target, source = instruction.operands
    kind = instruction.modifiers[-1]
    if names_shared(instruction):
        start = SHARED_WINDOW
    elif "local" in instruction.modifiers:
        start = LOCAL_WINDOW
    else:
        raise unknown(instruction)
    shift = np.int64(-start if "to" in instruction.modifiers else start)
    read, write = reader(context, source, f"s{kind[1:]}"), writer(context, target, f"s{kind[1:]}")
    return lambda lanes: write(read() + shift, lanes)


def is_in_space(context: Context, instruction: Instruction) -> Step:
    """isspacep: whether a generic address lies in shared, local or global memory."""
    target, source = instruction.operands
    space = instruction.modifiers[0]
    read, write = reader(context, source, "s64"), writer(context, target, "pred")
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
    read, write = reader(context, source, kind), writer(context, target, kind)
    read_rank = reader(context, rank, "u32")

    def map_address(lanes: Lanes) -> None:
        near = (read() - start) % SHARED_STEP
        value = near + (read_rank().astype(np.int64) + 1) * SHARED_STEP + start
        write(value.astype(DTYPES[kind]), lanes)

    return map_address


def rank_of(context: Context, instruction: Instruction) -> Step:
    """getctarank: the block that an address belongs to."""
    start = _start(instruction)
    target, source = instruction.operands
    read, write = reader(context, source, "s64" if start else "s32"), writer(context, target, "u32")

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
