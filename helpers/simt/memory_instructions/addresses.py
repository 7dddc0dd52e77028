"""Addresses from one space to another: cvta, isspacep, mapa, getctarank."""

from __future__ import annotations

import numpy as np

from ..context import Context
from ..instructions import Address, Instruction, Register, unknown
from ..lanes import Lanes, Step
from ..memory.access import LOCAL_END, LOCAL_WINDOW, SHARED_END, SHARED_STEP, SHARED_WINDOW
from ..operands import AddressReader, address_reader, reader, writer
from ..ptx_types import DTYPES


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
