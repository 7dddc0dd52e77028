"""Functions of CUDA that a kernel calls: printf, and what a failed assert calls.

Their PTX passes arguments in memory; printf's are one buffer, each argument at a multiple of its
size, as C's default promotions leave it.
"""

from __future__ import annotations

import re
import struct

import numpy as np

from .context import Context
from .instructions import Instruction
from .lanes import Lanes, Step
from .memory.access import LOCAL_END, LOCAL_WINDOW, Access

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
