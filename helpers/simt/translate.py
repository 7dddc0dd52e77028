"""Each instruction of a kernel to one Python function that executes it for some lanes."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import numpy as np

from .analysis import JUMPS, never_subnormal
from .asynchronous import translate_async_store, translate_copy, translate_mbarrier
from .context import Context
from .geometry import Lanes, Step
from .instructions import Instruction, Register, UnsupportedPTX, is_float
from .loads_and_stores import (
    convert,
    is_in_space,
    map_to_block,
    rank_of,
    translate_atomic,
    translate_fence,
    translate_load,
    translate_store,
)
from .memory.access import LOCAL_END, LOCAL_WINDOW, Access
from .operations.base import operation_of
from .operations.rounding import flush
from .recording import around

Translator = Callable[[Context, Instruction], "Step | None"]

# Prefetches only warm caches, and there are none.
# setmaxnreg and griddepcontrol are about registers and about when a launch starts.
NOTHING = frozenset(
    "prefetch prefetchu applypriority discard nanosleep setmaxnreg griddepcontrol pmevent".split()
)
UNCHANGED_BITS = ("max", "min", "neg", "abs")  # cannot make a subnormal out of normal values


def _nothing(context: Context, instruction: Instruction) -> Step:
    return lambda lanes: None


def _refused(context: Context, instruction: Instruction) -> Step:
    """A call that cannot be run, in a function that may never be called."""

    def refuse(lanes: Lanes) -> None:
        raise UnsupportedPTX(instruction.text)

    return refuse


def _policy(context: Context, instruction: Instruction) -> Step:
    """createpolicy: a hint for the L2 cache, so that any number will do."""
    write = context.writer(instruction.operands[0], "b64")
    return lambda lanes: write(np.zeros(1, np.uint64), lanes)


def _convert_address(context: Context, instruction: Instruction) -> Step:
    """cvta: generic and global addresses are the same number."""
    same = {"global", "const"} & {*instruction.modifiers}
    return (_arithmetic if same else convert)(context, instruction)


def _store(context: Context, instruction: Instruction) -> Step:
    """st: plain, or st.async, a copy that an mbarrier counts."""
    translate_one = translate_async_store if "async" in instruction.modifiers else translate_store
    return translate_one(context, instruction)


def _guarded(context: Context, instruction: Instruction, step: Step) -> Step:
    read = context.predicate_reader(instruction)

    def guarded(lanes: Lanes) -> None:
        chosen = lanes.mask & read()
        if chosen.any():
            everyone = lanes.whole and bool((chosen == lanes.mask).all())
            step(lanes if everyone else Lanes(chosen))

    return guarded


def _division(context: Context, instruction: Instruction) -> Step:
    """div and rem; of integers, a diagnostic for the threads that divide by zero."""
    step, divisor = _arithmetic(context, instruction), instruction.operands[-1]
    if is_float(instruction.modifiers[-1]):
        return step
    read = context.reader(divisor, instruction.modifiers[-1])
    number = context.index.get(divisor.name) if isinstance(divisor, Register) else None

    def divide(lanes: Lanes) -> None:
        zero = read() == 0
        if zero.any():
            zero = lanes.mask & zero
            if number in context.suspicion.shadows:  # undefined: reported where it is used
                zero &= context.suspicion.shadows[number].bits == 0
            if zero.any():
                message = "the divisor is 0, and the result is unspecified"
                context.report("integer division by zero", instruction, message, zero)
        step(lanes)

    return divide


def _arithmetic(context: Context, instruction: Instruction) -> Step:
    operation, targets, sources = operation_of(instruction)
    write = context.writer(targets[0], operation.result)
    readers, normal = [], never_subnormal(context.kernel)
    for operand, kind in zip(sources, operation.sources, strict=True):
        read = context.reader(operand, kind)
        subnormal = getattr(operand, "name", "") not in normal
        if operation.flush and kind == "f32" and subnormal:
            read = _flushed(read)
        readers.append(read)
    apply = operation.apply
    if operation.flush and operation.result == "f32" and instruction.opcode not in UNCHANGED_BITS:
        apply = _flushed(apply)
    others = [
        (context.writer(target, one.result), one.apply)
        for target, one in zip(targets[1:], operation.others, strict=False)
    ]

    def calculate(lanes: Lanes) -> None:
        values = [read() for read in readers]
        write(apply(*values), lanes)
        for write_other, apply_other in others:
            write_other(apply_other(*values), lanes)

    return calculate


def _flushed(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda *sources: flush(function(*sources))


# ---- functions of CUDA that a kernel calls -------------------------------------------------------

# printf, and what a failed assert calls. Their PTX passes arguments in memory; printf's are one
# buffer, each argument at a multiple of its size, as C's default promotions leave it.

# flags, width, precision, length, conversion
CONVERSION = re.compile(
    r"%([-+ #0]*)(\*|\d*)((?:\.(?:\*|\d*))?)(hh|h|ll|l|z|j|t|L)?([diouxXeEfFgGaAcsp%])"
)
MOST_TEXT = 1 << 10  # bytes of a string, so that one without an end is cut
MOST_CALLS = 10_000  # of printf that are kept; CUDA's own buffer is finite too


def printf(context: Context, instruction: Instruction) -> Step:
    """vprintf(format, buffer): each thread's text goes to `context.printed`."""
    _, template, buffer = (operand.name for operand in instruction.operands)
    read_template = _argument(context, instruction, template)
    read_buffer = _argument(context, instruction, buffer)

    def step(lanes: Lanes) -> None:
        templates, buffers = read_template(lanes), read_buffer(lanes)
        batch = context.reporter.batch
        for slot in lanes.slots:
            if len(context.printed) >= MOST_CALLS:
                return
            template = text_at(context, int(templates[slot]))
            text = formatted(context, template, int(buffers[slot]), int(slot))
            context.printed.append((batch.first + int(slot) // batch.padded, text))

    return step


def failed_assertion(context: Context, instruction: Instruction) -> Step:
    """__assertfail(message, ...): a finding; an exit follows."""
    read = _argument(context, instruction, instruction.operands[0].name)

    def step(lanes: Lanes) -> None:
        slot = int(lanes.slots[0])
        condition = text_at(context, int(read(lanes)[slot]))
        context.report("trap", instruction, f"the assertion `{condition}` failed", lanes.mask)

    return step


def _argument(context: Context, instruction: Instruction, name: str):
    """A function that reads an 8-byte argument of every slot."""
    offset = context.arguments.offsets[name]
    access = Access(instruction, 8, 1, context.uncounted)

    def read(lanes: Lanes) -> np.ndarray:
        return context.arguments.load(np.full(context.slots, offset, np.int64), access, lanes)[0]

    return read


def text_at(context: Context, address: int) -> str:
    """The C string at an address of global memory."""
    allocation = context.global_memory.allocation_near(address)
    if allocation is None or not allocation.start <= address < allocation.stop:
        return "(null)" if address == 0 else "<no text>"
    first, last = address - allocation.page, allocation.stop - allocation.page
    content = allocation.data[first : min(last, first + MOST_TEXT)].tobytes()
    return content.partition(b"\0")[0].decode(errors="replace")


def formatted(context: Context, template: str, buffer: int, slot: int) -> str:
    """What printf prints of a template and its buffer of arguments."""
    data = _buffer(context, buffer, slot)
    place = 0

    def take(size: int) -> bytes:
        nonlocal place
        place = -(-place // size) * size
        taken = data[place : place + size]
        place += size
        return taken.ljust(size, b"\0")

    def one(match: re.Match) -> str:
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        if width == "*":
            width = str(struct.unpack("<i", take(4))[0])
        if precision == ".*":
            precision = f".{struct.unpack('<i', take(4))[0]}"
        shape = f"%{flags}{width}{precision}"
        if kind in "diouxXc":
            wide = 8 if length in ("l", "ll", "z", "j", "t") else 4
            value = int.from_bytes(take(wide), "little", signed=kind in "di")
            if kind == "c":
                return f"{shape}s" % chr(value & 255)
            if length in ("h", "hh"):
                bits = 16 if length == "h" else 8
                value &= (1 << bits) - 1
                value -= (value >> bits - 1 << bits) if kind in "di" else 0
            # Python has no octal 0 before the digits, but 0o.
            text = f"{shape}{'d' if kind in 'iu' else kind}" % value
            return text.replace("0o", "0", 1) if kind == "o" else text
        if kind in "sp":
            address = int.from_bytes(take(8), "little")
            return f"{shape}s" % (text_at(context, address) if kind == "s" else hex(address))
        (number,) = struct.unpack("<d", take(8))
        if kind in "aA":
            return f"%{flags}{width}s" % (number.hex() if kind == "a" else number.hex().upper())
        return f"{shape}{kind}" % number

    return CONVERSION.sub(one, template)


def _buffer(context: Context, address: int, slot: int) -> bytes:
    """The bytes from an address of a thread's local memory on."""
    if not LOCAL_WINDOW <= address < LOCAL_END:
        return b""
    local = context.local
    start = slot * local.stride
    return local.views[1][start + address - LOCAL_WINDOW : start + local.bytes].tobytes()


# ---- the table -----------------------------------------------------------------------------------


# Of the opcodes that are not arithmetic, which is whatever else there is.
TRANSLATORS: dict[str, Translator] = {
    **dict.fromkeys(NOTHING, _nothing),
    "ld": translate_load,
    "ldu": translate_load,
    "st": _store,
    "atom": translate_atomic,
    "red": translate_atomic,
    "cp": translate_copy,
    "fence": translate_fence,
    "membar": translate_fence,
    "mbarrier": translate_mbarrier,
    **dict.fromkeys(("div", "rem"), _division),
    "cvta": _convert_address,
    "isspacep": is_in_space,
    "mapa": map_to_block,
    "getctarank": rank_of,
    "refused": _refused,
    "createpolicy": _policy,
    "vprintf": printf,
    "assertfail": failed_assertion,
}


def translate(context: Context, extra: dict[str, Translator]) -> list[Step | None]:
    """Return one function per instruction; None for the branches, which the scheduler runs, and
    for what `extra` gives none. `extra` maps further opcodes to functions that translate them.

    Raises `UnsupportedPTX` naming the opcode and the source line.
    """
    steps: list[Step | None] = []
    for instruction in context.kernel.instructions:
        try:
            step = None
            if instruction.opcode not in JUMPS:
                translators = extra if instruction.opcode in extra else TRANSLATORS
                translate_one = translators.get(instruction.opcode, _arithmetic)
                step = translate_one(context, instruction)
            if step is not None:
                step = around(context, instruction, step)
            if instruction.guard and step is not None:
                step = _guarded(context, instruction, step)
        except UnsupportedPTX as error:
            raise UnsupportedPTX(f"{error}, at {instruction.where}: {instruction.text}") from None
        steps.append(step)
    return steps
