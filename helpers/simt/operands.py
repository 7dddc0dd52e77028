"""How a translated instruction reads and writes its operands.

Each function here returns a function that does it for the batch that runs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .analysis import CLOCKS
from .context import Context
from .instructions import (
    Address,
    Immediate,
    Instruction,
    Label,
    Negated,
    Operand,
    Register,
    Special,
    UnsupportedPTX,
)
from .lanes import Lanes
from .ptx_types import DTYPES, UNSIGNED, type_size

Reader = Callable[[], np.ndarray]
Writer = Callable[[np.ndarray, Lanes], None]
AddressReader = Callable[[Lanes], np.ndarray]


def predicate_reader(context: Context, instruction: Instruction) -> Reader:
    """A function that returns, per thread, whether the guard lets the instruction run."""
    register, negated = instruction.guard
    return reader(context, Negated(register) if negated else register, "pred")


def reader(context: Context, operand: Operand, kind: str) -> Reader:
    """A function that returns an operand's value as an array of PTX type `kind`."""
    wanted = DTYPES[kind]
    if isinstance(operand, Negated):
        positive = reader(context, operand.register, kind)
        return lambda: ~positive()
    if isinstance(operand, Immediate):
        constant = _constant(operand, kind)
        return lambda: constant
    if isinstance(operand, Special):
        if operand.name in CLOCKS:

            def tick() -> np.ndarray:
                context.clock += 1
                return np.array([context.clock]).astype(UNSIGNED[wanted.itemsize]).view(wanted)

            return tick
        if operand.name not in context.specials:
            raise UnsupportedPTX(f"the SIMT machine does not have the register {operand.name!r}")
        specials, name, bits = context.specials, operand.name, UNSIGNED[wanted.itemsize]
        return lambda: specials.read(name).astype(bits, copy=False).view(wanted)
    if isinstance(operand, Label) and operand.name in context.kernel.framed:
        frame, offset = context.kernel.framed[operand.name]
        registers, number, shift = context.registers, context.index[frame], np.uint64(offset)
        return lambda: (registers[number] + shift).astype(UNSIGNED[wanted.itemsize]).view(wanted)
    if isinstance(operand, Label) and operand.name in context.addresses:
        place = np.array([context.addresses[operand.name]], UNSIGNED[wanted.itemsize])
        return lambda: place.view(wanted)
    if not isinstance(operand, Register) or operand.name not in context.index:
        raise UnsupportedPTX(f"the SIMT machine does not know the operand {operand}")
    registers, number = context.registers, context.index[operand.name]
    held = type_size(context.kernel.registers[operand.name])
    if held != wanted.itemsize:  # a narrow type reads the low bits of a wide register

        def read_low_bits() -> np.ndarray:
            narrow = registers[number].view(UNSIGNED[held]).astype(UNSIGNED[wanted.itemsize])
            return narrow.view(wanted)

        return read_low_bits

    def read() -> np.ndarray:
        value = registers[number]
        return value if value.dtype is wanted else value.view(wanted)

    return read


def _constant(operand: Immediate, kind: str) -> np.ndarray:
    dtype = DTYPES[kind]
    if kind == "pred":
        return np.array([operand.value != 0])
    if operand.float_bits == 0 and kind.startswith("f"):
        return np.array([operand.value], dtype)
    if operand.float_bits == 64 and kind == "f32":  # a decimal, or 0d...
        return np.array([operand.value], np.uint64).view(np.float64).astype(dtype)
    bits = operand.value & (1 << 8 * dtype.itemsize) - 1
    return np.array([bits], UNSIGNED[dtype.itemsize]).view(dtype)


def writer(context: Context, operand: Operand, kind: str) -> Writer:
    """A function that stores a result of PTX type `kind` for the given lanes."""
    if not isinstance(operand, Register):
        raise UnsupportedPTX(f"the SIMT machine cannot write to {operand}")
    if operand.name == "_":
        return lambda value, lanes: None
    registers, number = context.registers, context.index[operand.name]
    held = type_size(context.kernel.registers[operand.name])
    widen = None
    if held != DTYPES[kind].itemsize:
        widen = np.dtype(f"{'int' if kind[0] == 's' else 'uint'}{8 * held}")

    def write(value: np.ndarray, lanes: Lanes) -> None:
        if widen is not None:
            value = value.astype(widen)
        if lanes.whole:
            registers[number] = value
        else:
            registers[number] = np.where(lanes.mask, value, registers[number].view(value.dtype))

    return write


def wide_reader(context: Context, operand: Operand, kind: str) -> Reader:
    """Reads an operand as one int64 per slot."""
    read = reader(context, operand, kind)
    return lambda: np.broadcast_to(read(), context.slots).astype(np.int64)


def address_reader(context: Context, address: Operand) -> AddressReader:
    """A function that returns the int64 address of every slot, stand-ins for idle slots."""
    if not isinstance(address, Address):
        raise UnsupportedPTX(f"the SIMT machine does not know the address {address}")
    offset = np.int64(address.offset)
    if isinstance(address.base, str) and address.base in context.kernel.framed:
        frame, within = context.kernel.framed[address.base]
        return address_reader(context, Address(Register(frame), within + address.offset))
    if isinstance(address.base, str):
        if address.base not in context.addresses:
            raise UnsupportedPTX(f"the SIMT machine does not hold {address.base!r}")
        place = np.array([context.addresses[address.base]], np.int64)
        return lambda lanes: np.broadcast_to(place + offset, context.slots)
    wide = context.kernel.registers[address.base.name].endswith("64")
    read_narrow = reader(context, address.base, "s64" if wide else "s32")

    def read() -> np.ndarray:
        return read_narrow() if wide else read_narrow().astype(np.int64)

    def addresses(lanes: Lanes) -> np.ndarray:
        value = read() + offset if offset else read()
        if len(value) != context.slots:
            return np.broadcast_to(value, context.slots)
        return lanes.with_stand_ins(value)

    return addresses
