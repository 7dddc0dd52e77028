"""Each instruction of a kernel to one Python function that executes it for a group of threads.

A register is a numpy array over all threads of a batch, or of length one while its value is the
same in every thread. It holds raw bits; an instruction views them as its own type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .counters import Counters
from .memory import UNSIGNED, Access, GlobalMemory
from .operations import DTYPES, TINY, find_operation, flush
from .parse import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Register,
    Special,
    UnsupportedPTX,
    Vector,
    type_size,
)
from .shared import WINDOW, WINDOW_BYTES, SharedMemory

# Qualifiers of an access that change caching or ordering, never the value that one thread
# of a race-free kernel sees.
CACHE_QUALIFIERS = frozenset(
    "global nc weak ca cg cs cv lu wb wt L1_no_allocate L1_evict_last L1_evict_first"
    " L1_evict_normal L1_evict_unchanged L2_64B L2_128B L2_256B L2_evict_first L2_evict_last"
    " L2_evict_normal shared shared_cta volatile".split()
)
# Fences order what other threads see, prefetches only warm caches: threads here see every store
# at once, and there are no caches. Fences of the asynchronous proxy are another matter.
ORDERING = frozenset(("membar", "fence", "prefetch", "prefetchu"))
ORDERING_UNKNOWN = frozenset(("proxy", "mbarrier_init", "op_restrict"))
UNCHANGED_BITS = ("max", "min", "neg", "abs")  # cannot make a subnormal out of normal values


class Lanes:
    """The threads that execute an instruction together."""

    def __init__(self, mask: np.ndarray, whole: bool):
        self.mask = mask  # bool, one slot per thread of the batch
        self.whole = whole  # no other thread is alive: a result may overwrite every slot
        self.active_warps = mask.reshape(-1, 32).any(axis=1)
        self.warps = int(np.count_nonzero(self.active_warps))
        self.count = int(np.count_nonzero(mask))
        self.idle_warps = len(self.active_warps) - self.warps

    @cached_property
    def stand_in(self) -> np.ndarray | None:
        """For each slot a slot to copy so that every slot holds the address of an active lane,
        of its own warp where it has one; None if every slot is active."""
        if self.count == len(self.mask):
            return None
        slots = np.arange(len(self.mask)).reshape(-1, 32)
        active = self.mask.reshape(-1, 32)
        latest = np.maximum.accumulate(np.where(active, slots, -1), axis=1)
        first = slots[:, 0] + active.argmax(axis=1)
        anywhere = int(self.mask.argmax())
        first = np.where(self.active_warps, first, anywhere)
        return np.where(latest >= 0, latest, first[:, None]).reshape(-1)


Step = Callable[[Lanes], None]
Translator = Callable[["Context", Instruction], "Step | None"]


@dataclass
class Context:
    """What the functions of a launch share; the registers change from batch to batch."""

    kernel: Kernel
    memory: GlobalMemory
    parameters: bytes
    tallies: list[Counters]  # one per instruction
    registers: list[np.ndarray]
    specials: dict[str, np.ndarray]
    shared: SharedMemory
    slots: int = 0

    def __post_init__(self) -> None:
        self.index = {name: number for number, name in enumerate(self.kernel.registers)}
        self.normal = _never_subnormal(self.kernel)
        self.either = EitherMemory(self.memory, self.shared)
        self.steering = _steering(self.kernel)

    def report(self, kind: str, instruction: Instruction, message: str, slots: np.ndarray) -> None:
        """Add a finding about the slots of a bool array."""
        numbers = np.flatnonzero(slots)
        block, thread = self.memory.locate_thread(int(numbers[0]))
        self.memory.findings.report(kind, instruction, message, block, thread, len(numbers))


class EitherMemory:
    """Generic addresses: those in the window of shared memory, and all others global."""

    def __init__(self, memory: GlobalMemory, shared: SharedMemory):
        self.memory, self.shared = memory, shared

    def load(self, addresses: np.ndarray, access: Access, lanes: Lanes) -> list[np.ndarray]:
        inside = _in_window(addresses)
        if not inside.any():
            return self.memory.load(addresses, access, lanes)
        if inside[lanes.mask].all():
            return self.shared.load(addresses - WINDOW, access, lanes)
        chosen, others = Lanes(lanes.mask & inside, False), Lanes(lanes.mask & ~inside, False)
        from_shared = self.shared.load(addresses - WINDOW, access, chosen)
        from_global = self.memory.load(addresses[others.stand_in], access, others)
        pairs = zip(from_shared, from_global, strict=True)
        return [np.where(inside, near, far) for near, far in pairs]

    def store(self, addresses, values, access: Access, lanes: Lanes) -> None:
        inside = _in_window(addresses)
        if not inside.any():
            self.memory.store(addresses, values, access, lanes)
        elif inside[lanes.mask].all():
            self.shared.store(addresses - WINDOW, values, access, lanes)
        else:
            others = Lanes(lanes.mask & ~inside, False)
            self.shared.store(addresses - WINDOW, values, access, Lanes(lanes.mask & inside, False))
            spread = [np.broadcast_to(value, addresses.shape)[others.stand_in] for value in values]
            self.memory.store(addresses[others.stand_in], spread, access, others)


def _in_window(addresses: np.ndarray) -> np.ndarray:
    return (addresses >= WINDOW) & (addresses < WINDOW + WINDOW_BYTES)


def translate(context: Context, extra: dict[str, Translator]) -> list[Step | None]:
    """Return one function per instruction; None for the branches, which the scheduler runs.

    `extra` maps further opcodes to functions that translate them.

    Raises `UnsupportedPTX` naming the opcode and the source line.
    """
    steps: list[Step | None] = []
    for number, instruction in enumerate(context.kernel.instructions):
        try:
            if instruction.opcode in ("bra", "ret", "exit"):
                step = None
            elif instruction.opcode in extra:
                step = extra[instruction.opcode](context, instruction)
            else:
                step = _translate_one(context, instruction, context.tallies[number])
            if instruction.guard and step is not None:
                step = _guarded(context, instruction, step)
        except UnsupportedPTX as error:
            raise UnsupportedPTX(f"{error}, at {instruction.where}: {instruction.text}") from None
        steps.append(step)
    return steps


def _translate_one(context: Context, instruction: Instruction, tally: Counters) -> Step:
    if instruction.opcode == "ld" and "param" in instruction.modifiers:
        return _load_parameter(context, instruction)
    if instruction.opcode in ("ld", "ldu"):
        return _load(context, instruction, tally)
    if instruction.opcode == "st":
        return _store(context, instruction, tally)
    if instruction.opcode == "mov" and any(isinstance(o, Vector) for o in instruction.operands):
        return _pack_or_unpack(context, instruction)
    if instruction.opcode in ORDERING and not ORDERING_UNKNOWN & {*instruction.modifiers}:
        return lambda lanes: None
    if instruction.opcode == "cvta" and "shared" in instruction.modifiers:
        return _convert_shared_address(context, instruction)
    return _arithmetic(context, instruction)


def _guarded(context: Context, instruction: Instruction, step: Step) -> Step:
    read = predicate_reader(context, instruction)

    def guarded(lanes: Lanes) -> None:
        chosen = lanes.mask & read()
        if chosen.any():
            everyone = lanes.whole and bool((chosen == lanes.mask).all())
            step(lanes if everyone else Lanes(chosen, False))

    return guarded


def predicate_reader(context: Context, instruction: Instruction) -> Callable[[], np.ndarray]:
    """A function that returns, per thread, whether the guard lets the instruction run."""
    register, negated = instruction.guard
    registers, number = context.registers, context.index[register.name]
    return (lambda: ~registers[number]) if negated else (lambda: registers[number])


# ---- operands ---------------------------------------------------------------------------------


def reader(context: Context, operand, kind: str) -> Callable[[], np.ndarray]:
    """A function that returns an operand's value as an array of PTX type `kind`."""
    wanted = DTYPES[kind]
    if isinstance(operand, Immediate):
        constant = _constant(operand, kind)
        return lambda: constant
    if isinstance(operand, Special):
        if operand.name not in context.specials:
            raise UnsupportedPTX(f"the SIMT machine does not have the register {operand.name!r}")
        specials, name, bits = context.specials, operand.name, UNSIGNED[wanted.itemsize]
        return lambda: specials[name].astype(bits, copy=False).view(wanted)
    if isinstance(operand, Label) and operand.name in context.shared.offsets:
        place = np.array([context.shared.offsets[operand.name]], UNSIGNED[wanted.itemsize])
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


def writer(context: Context, operand, kind: str) -> Callable[[np.ndarray, Lanes], None]:
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


# ---- arithmetic -------------------------------------------------------------------------------


def _arithmetic(context: Context, instruction: Instruction) -> Step:
    operation = find_operation(instruction.opcode, instruction.modifiers)
    operands = instruction.operands
    targets = len(operands) - len(operation.sources)
    if targets not in (1, 2) or (targets == 2 and instruction.opcode != "setp"):
        raise UnsupportedPTX(
            f"the SIMT machine expects another operand count in {instruction.text!r}"
        )
    write = writer(context, operands[0], operation.result)
    readers = []
    for operand, kind in zip(operands[targets:], operation.sources, strict=True):
        read = reader(context, operand, kind)
        subnormal = not (isinstance(operand, Register) and operand.name in context.normal)
        if operation.flush and kind == "f32" and subnormal:
            read = _flushing(read, isinstance(operand, Immediate))
        readers.append(read)
    apply = operation.apply
    if operation.flush and operation.result == "f32" and instruction.opcode not in UNCHANGED_BITS:
        apply = _flush_result(apply)
    if targets == 2:
        complement, write_complement = operation.complement, writer(context, operands[1], "pred")

        def both(lanes: Lanes) -> None:
            values = [read() for read in readers]
            write(apply(*values), lanes)
            write_complement(complement(*values), lanes)

        return both
    if len(readers) == 1:
        (first,) = readers
        return lambda lanes: write(apply(first()), lanes)
    if len(readers) == 2:
        first, second = readers
        return lambda lanes: write(apply(first(), second()), lanes)
    if len(readers) == 3:
        first, second, third = readers
        return lambda lanes: write(apply(first(), second(), third()), lanes)
    return lambda lanes: write(apply(*(read() for read in readers)), lanes)


def _flushing(read: Callable[[], np.ndarray], constant: bool) -> Callable[[], np.ndarray]:
    if constant:
        value = flush(read())
        return lambda: value
    return lambda: flush(read())


def _flush_result(apply: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda *sources: flush(apply(*sources))


def _never_subnormal(kernel: Kernel) -> set[str]:
    """Registers whose every writer flushes subnormals or is a normal constant.

    Their readers need not flush again, which halves the work of -ftz=true.
    """
    writers: dict[str, list[Instruction]] = {}
    for instruction in kernel.instructions:
        for operand in instruction.operands[:1]:
            targets = operand.elements if isinstance(operand, Vector) else (operand,)
            for target in targets:
                if isinstance(target, Register):
                    writers.setdefault(target.name, []).append(instruction)

    def is_normal(instruction: Instruction, normal: set[str]) -> bool:
        if "ftz" in instruction.modifiers and instruction.opcode not in ("setp", "slct"):
            return instruction.modifiers[-2 if instruction.opcode == "cvt" else -1] == "f32"
        if instruction.opcode != "mov":
            return False
        source = instruction.operands[1]
        if isinstance(source, Register):
            return source.name in normal
        if isinstance(source, Immediate) and source.float_bits == 32:
            value = np.array([source.value], np.uint32).view(np.float32)[0]
            return bool(value == 0 or not abs(value) < TINY)
        return False

    normal = set(writers)
    while True:
        kept = {name for name in normal if all(is_normal(w, normal) for w in writers[name])}
        if kept == normal:
            return normal
        normal = kept


def _pack_or_unpack(context: Context, instruction: Instruction) -> Step:
    """mov between one wide register and a vector of narrow ones."""
    target, source = instruction.operands
    wide = int(instruction.modifiers[-1][1:])
    if isinstance(target, Vector):
        part = wide // len(target.elements)
        read = reader(context, source, f"b{wide}")
        writers = [writer(context, element, f"b{part}") for element in target.elements]

        def unpack(lanes: Lanes) -> None:
            value = read()
            for place, write in enumerate(writers):
                shifted = value >> value.dtype.type(place * part)
                write(shifted.astype(UNSIGNED[part // 8]), lanes)

        return unpack
    part = wide // len(source.elements)
    readers = [reader(context, element, f"b{part}") for element in source.elements]
    write = writer(context, target, f"b{wide}")
    dtype = UNSIGNED[wide // 8]

    def pack(lanes: Lanes) -> None:
        value = np.zeros(1, dtype)
        for place, read in enumerate(readers):
            value = value | read().astype(dtype) << dtype.type(place * part)
        write(value, lanes)

    return pack


# ---- memory -----------------------------------------------------------------------------------


def _vector(operand) -> tuple:
    return operand.elements if isinstance(operand, Vector) else (operand,)


def _check_qualifiers(instruction: Instruction) -> None:
    for modifier in instruction.modifiers[:-1]:
        if modifier not in CACHE_QUALIFIERS and modifier not in ("v2", "v4"):
            raise UnsupportedPTX(f"the SIMT machine does not know .{modifier} in a memory access")


def _load_parameter(context: Context, instruction: Instruction) -> Step:
    target, address = instruction.operands
    kind = instruction.modifiers[-1]
    offset = address.offset + {p.name: p.offset for p in context.kernel.parameters}[address.base]
    steps = []
    for place, element in enumerate(_vector(target)):
        start = offset + place * type_size(kind)
        value = np.frombuffer(context.parameters, UNSIGNED[type_size(kind)], 1, start)
        steps.append((writer(context, element, kind), value.view(DTYPES[kind])))

    def load_parameter(lanes: Lanes) -> None:
        for write, value in steps:
            write(value, lanes)

    return load_parameter


def _steering(kernel: Kernel) -> set[str]:
    """Registers that an address depends on, or a jump through a comparison of integers.

    What a bad load puts into one of them leads to accesses that are no bugs of their own.
    """
    sources: dict[str, list] = {}
    found: list = []
    for instruction in kernel.instructions:
        if instruction.guard:
            found.append(instruction.guard[0])
        found += [operand.base for operand in instruction.operands if isinstance(operand, Address)]
        if instruction.opcode != "setp" or not instruction.modifiers[-1].startswith("f"):
            for target in instruction.operands[:1]:
                for element in _vector(target):
                    sources.setdefault(element, []).extend(instruction.operands[1:])
    names: set[str] = set()
    while found:
        operand = found.pop()
        if isinstance(operand, Vector):
            found += operand.elements
        elif isinstance(operand, Register) and operand.name not in names:
            names.add(operand.name)
            found += sources.get(operand, [])
    return names


def _convert_shared_address(context: Context, instruction: Instruction) -> Step:
    """cvta between addresses within shared memory and generic ones."""
    target, source = instruction.operands
    kind = instruction.modifiers[-1]
    shift = -WINDOW if "to" in instruction.modifiers else WINDOW
    read, write = reader(context, source, f"s{kind[1:]}"), writer(context, target, f"s{kind[1:]}")
    return lambda lanes: write(read() + np.int64(shift), lanes)


def memory_space(context: Context, instruction: Instruction):
    """The memory that a load or store goes to."""
    if "shared" in instruction.modifiers or "shared_cta" in instruction.modifiers:
        return context.shared
    return context.memory if "global" in instruction.modifiers else context.either


def address_reader(context: Context, address: Address) -> Callable[[Lanes], np.ndarray]:
    """A function that returns the int64 address of every slot, stand-ins for idle slots."""
    if not isinstance(address, Address):
        raise UnsupportedPTX(f"the SIMT machine does not know the address {address}")
    offset = np.int64(address.offset)
    if isinstance(address.base, str):
        if address.base not in context.shared.offsets:
            raise UnsupportedPTX(f"the SIMT machine does not hold {address.base!r} yet")
        place = np.array([context.shared.offsets[address.base]], np.int64)
        return lambda lanes: np.broadcast_to(place + offset, context.slots)
    wide = context.kernel.registers[address.base.name].endswith("64")
    read_narrow = reader(context, address.base, "s64" if wide else "s32")

    def read() -> np.ndarray:
        return read_narrow() if wide else read_narrow().astype(np.int64)

    def addresses(lanes: Lanes) -> np.ndarray:
        value = read() + offset if offset else read()
        if len(value) != context.slots:
            return np.broadcast_to(value, context.slots)
        return value if lanes.stand_in is None else value[lanes.stand_in]

    return addresses


def _load(context: Context, instruction: Instruction, tally: Counters) -> Step:
    _check_qualifiers(instruction)
    kind = instruction.modifiers[-1]
    targets = _vector(instruction.operands[0])
    steers = any(isinstance(t, Register) and t.name in context.steering for t in targets)
    access = Access(instruction, type_size(kind), len(targets), tally, steers)
    addresses = address_reader(context, instruction.operands[1])
    writers = [writer(context, target, kind) for target in targets]
    memory, dtype = memory_space(context, instruction), DTYPES[kind]

    def load(lanes: Lanes) -> None:
        values = memory.load(addresses(lanes), access, lanes)
        for write, value in zip(writers, values, strict=True):
            write(value.view(dtype), lanes)

    return load


def _store(context: Context, instruction: Instruction, tally: Counters) -> Step:
    _check_qualifiers(instruction)
    kind = instruction.modifiers[-1]
    sources = _vector(instruction.operands[1])
    access = Access(instruction, type_size(kind), len(sources), tally)
    addresses = address_reader(context, instruction.operands[0])
    readers = [reader(context, source, f"b{8 * access.size}") for source in sources]
    memory = memory_space(context, instruction)

    def store(lanes: Lanes) -> None:
        values = []
        for read in readers:
            value = read()
            if lanes.stand_in is not None and len(value) == context.slots:
                value = value[lanes.stand_in]
            values.append(value)
        memory.store(addresses(lanes), values, access, lanes)

    return store
