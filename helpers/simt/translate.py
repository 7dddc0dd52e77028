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
from .local import WINDOW as LOCAL_WINDOW
from .local import WINDOW_BYTES as LOCAL_WINDOW_BYTES
from .local import LocalMemory
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
from .polling import CLOCKS, STRONG_LOADS, hands_over, polling_loops
from .shared import MAX_CLUSTER, WINDOW, WINDOW_BYTES, SharedMemory

# Qualifiers of an access that change caching or ordering, never the value that one thread
# of a race-free kernel sees.
CACHE_QUALIFIERS = frozenset(
    "global nc weak ca cg cs cv lu wb wt L1_no_allocate L1_evict_last L1_evict_first"
    " L1_evict_normal L1_evict_unchanged L2_64B L2_128B L2_256B L2_evict_first L2_evict_last"
    " L2_evict_normal L2_cache_hint shared shared_cta shared_cluster volatile local const param"
    " relaxed acquire release gpu cta cluster sys mmio unified".split()
)
# Fences order what other threads see, prefetches only warm caches: threads here see every store
# at once, and there are no caches. Fences of the asynchronous proxy are another matter.
# setmaxnreg and griddepcontrol are about registers and about when a launch starts.
NOTHING = frozenset(
    "membar fence prefetch prefetchu applypriority discard nanosleep setmaxnreg griddepcontrol"
    " pmevent".split()
)
CARRY = Register("%carry")  # the flag of add.cc and addc, a predicate
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
    local: LocalMemory
    arguments: LocalMemory  # of function calls
    slots: int = 0
    clock: int = 0  # instructions that a batch has executed
    copies: object = None  # asynchronous.Copies of the batch
    barriers: object = None  # barriers.Barriers of the batch

    def __post_init__(self) -> None:
        self.index = {name: number for number, name in enumerate(self.kernel.registers)}
        self.normal = _never_subnormal(self.kernel)
        self.generic = GenericMemory(self.memory, self.shared, self.local)
        self.steering = _steering(self.kernel)
        self.polls = polling_loops(self.kernel)
        self.polling = {id(poll.instruction) for poll in self.polls.values()}
        self.shared.flags = bool(self.polls) or hands_over(self.kernel)
        self.uncounted = Counters()  # of accesses that the hardware serves in other ways
        self.addresses = {  # of the variables, each in its own address space
            **{parameter.name: parameter.offset for parameter in self.kernel.parameters},
            **{one.name: one.start for one in self.memory.allocations},
            **self.local.offsets,
            **self.arguments.offsets,
            **self.shared.offsets,
        }

    def tally_of(self, instruction: Instruction) -> Counters:
        return self.tallies[self.shared.numbers[id(instruction)]]

    def changes(self) -> int:
        """Counts what may end another thread's wait."""
        return self.memory.changes + self.shared.changes + self.copies.changes

    def report(self, kind: str, instruction: Instruction, message: str, slots: np.ndarray) -> None:
        """Add a finding about the slots of a bool array."""
        self.shared.report(kind, instruction, message, np.flatnonzero(slots))


class GenericMemory:
    """Generic addresses: a window for shared memory, one for local memory, all others global."""

    def __init__(self, memory: GlobalMemory, shared: SharedMemory, local: LocalMemory):
        self.memory = memory
        self.windows = (
            (WINDOW, WINDOW + (MAX_CLUSTER + 1) * WINDOW_BYTES, shared),
            (LOCAL_WINDOW, LOCAL_WINDOW + LOCAL_WINDOW_BYTES, local),
        )

    def parts(self, addresses: np.ndarray, lanes: Lanes):
        """Yields (memory, first address of its window, lanes whose addresses are there)."""
        left = lanes.mask
        if addresses.min() < self.windows[-1][1]:
            for low, high, memory in self.windows:
                inside = left & (addresses >= low) & (addresses < high)
                if inside.any():
                    yield memory, low, Lanes(inside, False)
                    left = left & ~inside
        if left is lanes.mask:
            yield self.memory, 0, lanes
        elif left.any():
            yield self.memory, 0, Lanes(left, False)

    def load(self, addresses: np.ndarray, access: Access, lanes: Lanes) -> list[np.ndarray]:
        result = None
        for memory, low, chosen in self.parts(addresses, lanes):
            places = addresses if chosen.stand_in is None else addresses[chosen.stand_in]
            values = memory.load(places - low, access, chosen)
            if result is None:
                result = values
            else:
                pairs = zip(values, result, strict=True)
                result = [np.where(chosen.mask, new, old) for new, old in pairs]
        return result

    def store(self, addresses, values, access: Access, lanes: Lanes) -> None:
        for memory, low, chosen in self.parts(addresses, lanes):
            places, kept = addresses, values
            if chosen.stand_in is not None:
                places = addresses[chosen.stand_in]
                kept = [np.broadcast_to(v, addresses.shape)[chosen.stand_in] for v in values]
            memory.store(places - low, kept, access, chosen)


JUMPS = ("bra", "brx", "ret", "exit", "trap")


def translate(context: Context, extra: dict[str, Translator]) -> list[Step | None]:
    """Return one function per instruction; None for the branches, which the scheduler runs.

    `extra` maps further opcodes to functions that translate them.

    Raises `UnsupportedPTX` naming the opcode and the source line.
    """
    steps: list[Step | None] = []
    for number, instruction in enumerate(context.kernel.instructions):
        try:
            if instruction.opcode in JUMPS:
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
    modifiers = instruction.modifiers
    if instruction.opcode == "ld" and any("param" in name for name in modifiers):
        return _load_parameter(context, instruction)
    if instruction.opcode in ("ld", "ldu"):
        return _load(context, instruction, tally)
    if instruction.opcode == "mov" and any(isinstance(o, Vector) for o in instruction.operands):
        return _pack_or_unpack(context, instruction)
    if instruction.opcode in NOTHING:
        return lambda lanes: None
    if instruction.opcode == "createpolicy":  # a hint for the L2 cache: any number will do
        write = writer(context, instruction.operands[0], "b64")
        return lambda lanes: write(np.zeros(1, np.uint64), lanes)
    if instruction.opcode == "cvta" and not {"global", "const"} & {*modifiers}:
        return _convert_address(context, instruction)
    if instruction.opcode == "isspacep":
        return _is_in_space(context, instruction)
    if instruction.opcode in ("mapa", "getctarank"):
        return _map_address(context, instruction)
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
        if operand.name in CLOCKS:

            def tick() -> np.ndarray:
                context.clock += 1
                return np.array([context.clock]).astype(UNSIGNED[wanted.itemsize]).view(wanted)

            return tick
        if operand.name not in context.specials:
            raise UnsupportedPTX(f"the SIMT machine does not have the register {operand.name!r}")
        specials, name, bits = context.specials, operand.name, UNSIGNED[wanted.itemsize]
        return lambda: specials[name].astype(bits, copy=False).view(wanted)
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
    if operation.writes_carry or operation.reads_carry:
        context.kernel.registers.setdefault(CARRY.name, "pred")
        context.index.setdefault(CARRY.name, len(context.index))
    if operation.writes_carry:
        operands = (operands[0], CARRY, *operands[1:])
    if operation.reads_carry:
        operands = (*operands, CARRY)
    targets = len(operands) - len(operation.sources)
    if targets not in (1, 2) or (targets == 2 and operation.complement is None):
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
        if modifier not in CACHE_QUALIFIERS and modifier not in ("v2", "v4", "v8"):
            raise UnsupportedPTX(f"the SIMT machine does not know .{modifier} in a memory access")


def _load_parameter(context: Context, instruction: Instruction) -> Step:
    target, address = instruction.operands
    kind = instruction.modifiers[-1]
    if address.base in context.arguments.offsets:  # an argument or the result of a function call
        return _load(context, instruction, context.uncounted)
    writers = [writer(context, element, kind) for element in _vector(target)]
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


def _convert_address(context: Context, instruction: Instruction) -> Step:
    """cvta between addresses within shared or local memory and generic ones."""
    target, source = instruction.operands
    kind = instruction.modifiers[-1]
    windows = {"shared": WINDOW, "shared_cta": WINDOW, "shared_cluster": WINDOW}
    windows["local"] = LOCAL_WINDOW
    start = next((windows[name] for name in instruction.modifiers if name in windows), None)
    if start is None:
        raise UnsupportedPTX(f"the SIMT machine does not know {instruction.text!r}")
    shift = np.int64(-start if "to" in instruction.modifiers else start)
    read, write = reader(context, source, f"s{kind[1:]}"), writer(context, target, f"s{kind[1:]}")
    return lambda lanes: write(read() + shift, lanes)


def _is_in_space(context: Context, instruction: Instruction) -> Step:
    """isspacep: whether a generic address lies in shared, local or global memory."""
    target, source = instruction.operands
    space = instruction.modifiers[0]
    read, write = reader(context, source, "s64"), writer(context, target, "pred")
    near, far, _ = context.generic.windows[0]
    local_from, local_to, _ = context.generic.windows[1]
    tests = {
        "shared": lambda a: (a >= near) & (a < near + WINDOW_BYTES),
        "shared_cta": lambda a: (a >= near) & (a < near + WINDOW_BYTES),
        "shared_cluster": lambda a: (a >= near) & (a < far),
        "local": lambda a: (a >= local_from) & (a < local_to),
        "global": lambda a: (a < near) | (a >= local_to),
    }
    if space not in tests:
        raise UnsupportedPTX(f"the SIMT machine does not know {instruction.text!r}")
    return lambda lanes: write(tests[space](read()), lanes)


def _map_address(context: Context, instruction: Instruction) -> Step:
    """mapa: an address of the own shared memory as that of a block of the cluster; getctarank:
    the block that an address belongs to."""
    generic = "shared_cluster" not in instruction.modifiers
    kind = f"s{instruction.modifiers[-1][1:]}"
    start = np.int64(WINDOW if generic else 0)
    if instruction.opcode == "mapa":
        target, source, rank = instruction.operands
        read, write = reader(context, source, kind), writer(context, target, kind)
        read_rank = reader(context, rank, "u32")

        def map_address(lanes: Lanes) -> None:
            near = (read() - start) % WINDOW_BYTES
            value = near + (read_rank().astype(np.int64) + 1) * WINDOW_BYTES + start
            write(value.astype(DTYPES[kind]), lanes)

        return map_address
    target, source = instruction.operands
    width = "s64" if generic else "s32"
    read, write = reader(context, source, width), writer(context, target, "u32")

    def rank_of(lanes: Lanes) -> None:
        rank = (read() - start) // WINDOW_BYTES - 1
        own = context.specials["%cluster_ctarank"].astype(np.int64)
        write(np.where(rank < 0, own, rank).astype(np.uint32), lanes)

    return rank_of


def memory_space(context: Context, instruction: Instruction):
    """The memory that a load or store goes to."""
    modifiers = {*instruction.modifiers}
    if modifiers & {"shared", "shared_cta", "shared_cluster"}:
        return context.shared
    if modifiers & {"param", "param_func"}:
        return context.arguments
    if "local" in modifiers:
        return context.local
    return context.memory if modifiers & {"global", "const"} else context.generic


def address_reader(context: Context, address: Address) -> Callable[[Lanes], np.ndarray]:
    """A function that returns the int64 address of every slot, stand-ins for idle slots."""
    if not isinstance(address, Address):
        raise UnsupportedPTX(f"the SIMT machine does not know the address {address}")
    offset = np.int64(address.offset)
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
        return value if lanes.stand_in is None else value[lanes.stand_in]

    return addresses


def _load(context: Context, instruction: Instruction, tally: Counters) -> Step:
    _check_qualifiers(instruction)
    if "const" in instruction.modifiers:  # served by a cache of its own
        tally = context.uncounted
    kind = instruction.modifiers[-1]
    targets = _vector(instruction.operands[0])
    steers = any(isinstance(t, Register) and t.name in context.steering for t in targets)
    polls = id(instruction) in context.polling
    access = Access(instruction, type_size(kind), len(targets), tally, steers, polls=polls)
    addresses = address_reader(context, instruction.operands[1])
    writers = [writer(context, target, kind) for target in targets]
    memory, dtype = memory_space(context, instruction), DTYPES[kind]

    def load(lanes: Lanes) -> None:
        values = memory.load(addresses(lanes), access, lanes)
        for write, value in zip(writers, values, strict=True):
            write(value.view(dtype), lanes)

    return load


def translate_store(context: Context, instruction: Instruction) -> Step:
    """The function that executes an ordinary store."""
    _check_qualifiers(instruction)
    tally = context.tally_of(instruction)
    if any("param" in name for name in instruction.modifiers):
        tally = context.uncounted
    kind = instruction.modifiers[-1]
    sources = _vector(instruction.operands[1])
    strong = bool((STRONG_LOADS | {"release"}) & {*instruction.modifiers})
    access = Access(instruction, type_size(kind), len(sources), tally, strong=strong)
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
