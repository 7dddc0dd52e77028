"""One launch as the functions of its instructions see it: registers, memories, counters, findings;
and how they read and write their operands.

It is made before the kernel is translated, so that each function can keep hold of its parts; a
new batch changes what is in them.

A register is a numpy array over all threads of a batch, or of length one while its value is the
same in every thread. It holds raw bits; an instruction views them as its own type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from .analysis import CLOCKS, guarded_loads, polling_loops, ragged_loops, unset
from .findings import Findings, Reporter, Suspicion
from .geometry import Batch, Lanes, Shape, SpecialRegisters, numbered
from .hardware import Counters
from .instructions import (
    DTYPES,
    UNSIGNED,
    Address,
    Immediate,
    Instruction,
    Label,
    Negated,
    Operand,
    PtxKernel,
    Register,
    Special,
    UnsupportedPTX,
    cleared,
    type_size,
)
from .memory.access import SHARED_WINDOW
from .memory.causality import Beliefs, Causality
from .memory.copies import Copies, MBarriers
from .memory.global_memory import GlobalMemory, GlobalRaces
from .memory.local import GenericMemory, LocalMemory
from .memory.order import Order
from .memory.shared import SharedMemory
from .trace import Watch

Memory = GlobalMemory | SharedMemory | LocalMemory | GenericMemory
# Where functions are, by their number: no array is there.
FUNCTIONS, FUNCTION_STEP = 1 << 16, 256
STACK = 1 << 15  # bytes of a thread, for the local variables of calls

Reader = Callable[[], np.ndarray]
Writer = Callable[[np.ndarray, Lanes], None]
AddressReader = Callable[[Lanes], np.ndarray]


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


class Context:
    """A kernel with its memories and registers; the registers change from batch to batch."""

    def __init__(
        self, kernel: PtxKernel, shape: Shape, dynamic_shared: int, findings: Findings, watch: Watch
    ):
        self.kernel, self.shape, self.watch = kernel, shape, watch
        self.reporter = Reporter(findings)
        self.suspicion = Suspicion(kernel, self.reporter)
        self.polls = polling_loops(kernel)
        self.polling = {poll.instruction.number for poll in self.polls.values()}
        order = Order()
        beliefs = Beliefs(order) if guarded_loads(kernel) else None
        self.causality = Causality(order, beliefs)
        self.shared = SharedMemory(kernel, dynamic_shared, self.suspicion, self.causality)
        races = GlobalRaces(kernel, self.suspicion, self.causality)
        self.global_memory = GlobalMemory(self.reporter, races)
        frames = [one.frame_bytes for one in kernel.functions]
        self.local = LocalMemory(kernel.local, self.suspicion, STACK if any(frames) else 0)
        self.arguments = LocalMemory(kernel.arguments, self.suspicion)  # of function calls
        self.generic = GenericMemory(self.global_memory, self.shared, self.local)
        self.copies = Copies(self.shared, races)
        self.mbarriers = MBarriers(self.shared, self.copies)
        self.printed: list[tuple[int, str]] = []  # by printf: number of the block, text
        self.parameters = b""  # the kernel's parameter space
        places = dict.fromkeys((one.file, one.line) for one in kernel.instructions)
        self.lines = {place: Counters() for place in places}
        # Of loops, how often lanes of a warp parted at their end; of lines,
        # how many requests more there may be for it.
        self.parted = dict.fromkeys(ragged_loops(kernel), 0)
        self.more: Counter[tuple[str, int]] = Counter()
        self.uncounted = Counters()  # of accesses that the hardware serves in other ways
        self.registers: list[np.ndarray] = []
        self.index = {name: number for number, name in enumerate(kernel.registers)}
        self.clock = 0  # instructions that a batch has executed
        self.specials = SpecialRegisters(Batch(shape, 0, 1))
        self.specials.same["%dynamic_smem_size"] = dynamic_shared
        self.specials.same["%total_smem_size"] = self.shared.bytes

    def place_variables(self) -> None:
        """Note where each variable is, in its own address space; call it when all are mapped."""
        self.addresses = {
            **{parameter.name: parameter.offset for parameter in self.kernel.parameters},
            **{one.name: one.start for one in self.global_memory.allocations},
            **self.local.offsets,
            **self.arguments.offsets,
            **self.shared.offsets,
            **self.functions(),
        }

    def functions(self) -> dict[str, int]:
        """The addresses of functions by their names."""
        names = enumerate(self.kernel.functions)
        return {one.name: FUNCTIONS + number * FUNCTION_STEP for number, one in names}

    def start_batch(self, batch: Batch) -> None:
        """Fresh registers, shared and local memory."""
        self.slots = batch.slots
        self.specials.start_batch(batch)
        self.registers[:] = map(cleared, self.kernel.registers.values())
        self.reporter.start_batch(batch)
        self.suspicion.start_batch(batch.slots)
        for memory in (self.shared, self.local, self.arguments, self.global_memory):
            memory.start_batch(batch)
        self.copies.start_batch(batch)
        self.mbarriers.start_batch()
        self.watch.start_batch(batch)
        for name, first in unset(self.kernel).items():
            self.suspicion.taint(
                "read of an uninitialised variable",
                first,
                "nothing has assigned it a value on the way here",
                self.index[name],
                np.flatnonzero(batch.alive),
            )

    def end_batch(self) -> None:
        """Report what the end of the batch shows."""
        self.shared.end_batch()
        self.copies.end_batch()
        self.mbarriers.end_batch()

    def tally_of(self, instruction: Instruction) -> Counters:
        """The counters of its line."""
        return self.lines[instruction.file, instruction.line]

    def changes(self) -> int:
        """Counts what may end another thread's wait."""
        return self.global_memory.changes + self.shared.changes + self.mbarriers.changes

    def report(self, kind: str, instruction: Instruction, message: str, slots: np.ndarray) -> None:
        """Add a finding about the slots of a bool array."""
        self.reporter.report(kind, instruction, message, np.flatnonzero(slots))

    def memory_space(self, instruction: Instruction) -> Memory:
        """The memory that a load or store goes to."""
        modifiers = {*instruction.modifiers}
        if instruction.names_shared:
            return self.shared
        if modifiers & {"param", "param_func"}:
            return self.arguments
        if "local" in modifiers:
            return self.local
        return self.global_memory if modifiers & {"global", "const"} else self.generic

    # ---- operands ----

    def predicate_reader(self, instruction: Instruction) -> Reader:
        """A function that returns, per thread, whether the guard lets the instruction run."""
        register, negated = instruction.guard
        return self.reader(Negated(register) if negated else register, "pred")

    def reader(self, operand: Operand, kind: str) -> Reader:
        """A function that returns an operand's value as an array of PTX type `kind`."""
        wanted = DTYPES[kind]
        if isinstance(operand, Negated):
            positive = self.reader(operand.register, kind)
            return lambda: ~positive()
        if isinstance(operand, Immediate):
            constant = _constant(operand, kind)
            return lambda: constant
        if isinstance(operand, Special):
            if operand.name in CLOCKS:

                def tick() -> np.ndarray:
                    self.clock += 1
                    return np.array([self.clock]).astype(UNSIGNED[wanted.itemsize]).view(wanted)

                return tick
            if operand.name not in self.specials:
                raise UnsupportedPTX(
                    f"the SIMT machine does not have the register {operand.name!r}"
                )
            specials, name, bits = self.specials, operand.name, UNSIGNED[wanted.itemsize]
            return lambda: specials.read(name).astype(bits, copy=False).view(wanted)
        if isinstance(operand, Label) and operand.name in self.kernel.framed:
            frame, offset = self.kernel.framed[operand.name]
            registers, number, shift = self.registers, self.index[frame], np.uint64(offset)
            return lambda: (
                (registers[number] + shift).astype(UNSIGNED[wanted.itemsize]).view(wanted)
            )
        if isinstance(operand, Label) and operand.name in self.addresses:
            place = np.array([self.addresses[operand.name]], UNSIGNED[wanted.itemsize])
            return lambda: place.view(wanted)
        if not isinstance(operand, Register) or operand.name not in self.index:
            raise UnsupportedPTX(f"the SIMT machine does not know the operand {operand}")
        registers, number = self.registers, self.index[operand.name]
        held = type_size(self.kernel.registers[operand.name])
        if held != wanted.itemsize:  # a narrow type reads the low bits of a wide register

            def read_low_bits() -> np.ndarray:
                narrow = registers[number].view(UNSIGNED[held]).astype(UNSIGNED[wanted.itemsize])
                return narrow.view(wanted)

            return read_low_bits

        def read() -> np.ndarray:
            value = registers[number]
            return value if value.dtype is wanted else value.view(wanted)

        return read

    def writer(self, operand: Operand, kind: str) -> Writer:
        """A function that stores a result of PTX type `kind` for the given lanes."""
        if not isinstance(operand, Register):
            raise UnsupportedPTX(f"the SIMT machine cannot write to {operand}")
        if operand.name == "_":
            return lambda value, lanes: None
        registers, number = self.registers, self.index[operand.name]
        held = type_size(self.kernel.registers[operand.name])
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

    def wide_reader(self, operand: Operand, kind: str) -> Reader:
        """Reads an operand as one int64 per slot."""
        read = self.reader(operand, kind)
        return lambda: np.broadcast_to(read(), self.slots).astype(np.int64)

    def address_reader(self, address: Operand) -> AddressReader:
        """A function that returns the int64 address of every slot, stand-ins for idle slots."""
        if not isinstance(address, Address):
            raise UnsupportedPTX(f"the SIMT machine does not know the address {address}")
        offset = np.int64(address.offset)
        if isinstance(address.base, str) and address.base in self.kernel.framed:
            frame, within = self.kernel.framed[address.base]
            return self.address_reader(Address(Register(frame), within + address.offset))
        if isinstance(address.base, str):
            if address.base not in self.addresses:
                raise UnsupportedPTX(f"the SIMT machine does not hold {address.base!r}")
            place = np.array([self.addresses[address.base]], np.int64)
            return lambda lanes: np.broadcast_to(place + offset, self.slots)
        wide = self.kernel.registers[address.base.name].endswith("64")
        read_narrow = self.reader(address.base, "s64" if wide else "s32")

        def read() -> np.ndarray:
            return read_narrow() if wide else read_narrow().astype(np.int64)

        def addresses(lanes: Lanes) -> np.ndarray:
            value = read() + offset if offset else read()
            if len(value) != self.slots:
                return np.broadcast_to(value, self.slots)
            return lanes.with_stand_ins(value)

        return addresses

    def shared_reader(self, operand: Address, generic: bool = False) -> AddressReader:
        """As `address_reader`, for the operand of an instruction on shared memory; `generic` if a
        register there holds a generic address."""
        read = self.address_reader(operand)
        start = np.int64(SHARED_WINDOW if generic and isinstance(operand.base, Register) else 0)
        return lambda lanes: read(lanes) - start

    # ---- shuffles ----

    def wide(self, values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(values, self.slots) if len(values) == 1 else values

    def source_reader(
        self, instruction: Instruction
    ) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
        """Reads of a shuffle (the lane that each slot takes from, whether it is within bounds)."""
        mode = next(m for m in instruction.modifiers if m in ("up", "down", "bfly", "idx"))
        *_, amount, clamp, _ = instruction.operands
        read_amount, read_clamp = self.reader(amount, "u32"), self.reader(clamp, "u32")

        def read() -> tuple[np.ndarray, np.ndarray]:
            lane = numbered(self.slots)[0]
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
        self, instruction: Instruction
    ) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
        """Reads of a shuffle (the lane that each slot takes from, what each offers as uint32)."""
        sources = self.source_reader(instruction)
        read = self.reader(instruction.operands[-4], "b32")
        return lambda: (sources()[0], self.wide(read()))
