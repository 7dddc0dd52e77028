"""The instructions on mbarriers: mbarrier.*"""

from __future__ import annotations

import numpy as np

from ..context import Context
from ..instructions import Address, Instruction, Operand, unknown
from ..lanes import Lanes, Step
from ..memory.mbarriers import MBarrier, MBarriers
from ..operands import AddressReader, Reader, Writer, reader, wide_reader, writer
from .loads_and_stores import names_shared, shared_reader


def translate_mbarrier(context: Context, instruction: Instruction) -> Step:
    """The function that executes mbarrier.init, .inval, .arrive, .test_wait and alike."""
    action = instruction.modifiers[0]
    operands, mbarriers = list(instruction.operands), context.mbarriers
    if action == "pending_count":
        read, write = reader(context, operands[1], "u64"), writer(context, operands[0], "u32")
        return lambda lanes: write((read() & np.uint64(0xFFFFFFFF)).astype(np.uint32), lanes)
    target = None if isinstance(operands[0], Address) else operands.pop(0)
    addresses = shared_reader(context, operands.pop(0), not names_shared(instruction))
    given = wide_reader(context, operands[0], "u32") if operands else None
    if action in ("init", "inval", "expect_tx", "complete_tx"):
        return _change(mbarriers, instruction, action, addresses, given)
    if action in ("arrive", "arrive_drop"):
        return _arrive(context, instruction, addresses, given, writer(context, target, "b64"))
    if action in ("test_wait", "try_wait"):
        return _test(context, instruction, addresses, operands[0], writer(context, target, "pred"))
    raise unknown(instruction)


def _change(
    mbarriers: MBarriers,
    instruction: Instruction,
    action: str,
    addresses: AddressReader,
    given: Reader | None,
) -> Step:
    def change(lanes: Lanes) -> None:
        where = addresses(lanes)
        if action == "init":
            mbarriers.initialise(lanes, where, given(), instruction)
            return
        for barrier, slots in mbarriers.find(lanes, where, instruction):
            if action == "inval":
                mbarriers.invalidate(barrier)
                continue
            total = int(given()[slots].sum())
            mbarriers.changes += 1
            if action == "complete_tx":
                mbarriers.complete(barrier, total)
            else:
                barrier.bytes += total
                barrier.settle()

    return change


def _arrive(
    context: Context,
    instruction: Instruction,
    addresses: AddressReader,
    given: Reader | None,
    write: Writer,
) -> Step:
    expects, drop = "expect_tx" in instruction.modifiers, instruction.modifiers[0] == "arrive_drop"
    mbarriers = context.mbarriers

    def arrive(lanes: Lanes) -> None:
        state = np.zeros(context.slots, np.uint64)
        ones = np.ones(context.slots, np.int64)
        number = ones if given is None else given()
        for barrier, slots in mbarriers.find(lanes, addresses(lanes), instruction):
            state[slots] = barrier.phase << 32 | barrier.pending & 0xFFFFFFFF
            counts, expected = (ones, number) if expects else (number, 0 * ones)
            mbarriers.arrive(barrier, slots, counts, expected, drop)
        write(state, lanes)

    return arrive


def _test(
    context: Context,
    instruction: Instruction,
    addresses: AddressReader,
    phase: Operand,
    write: Writer,
) -> Step:
    parity, mbarriers = "parity" in instruction.modifiers, context.mbarriers
    expected = wide_reader(context, phase, "u32" if parity else "u64")

    def is_over(barrier: MBarrier, phases: np.ndarray) -> np.ndarray:
        if parity:
            return (barrier.phase & 1) != (phases & 1)
        return barrier.phase > phases >> 32

    def test(lanes: Lanes) -> None:
        done = np.ones(context.slots, bool)  # of what is no mbarrier, so that the thread goes on
        wanted = expected()
        for barrier, slots in mbarriers.find(lanes, addresses(lanes), instruction):
            over = is_over(barrier, wanted[slots])
            if not over.all():
                barrier.take()
                over |= is_over(barrier, wanted[slots])
            done[slots] = over
            if over.any():
                mbarriers.observe(barrier, slots[over])
            if not over.all():
                mbarriers.failed = (
                    f"the mbarrier still waits for {barrier.pending} arrivals and "
                    f"{barrier.bytes} bytes"
                )
        write(done, lanes)

    return test
