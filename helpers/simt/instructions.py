"""What a kernel is made of once its PTX has been read: types and the numpy types that hold them,
instructions, operands, variables.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .hardware import MAX_THREADS
from .places import ShownShort

HALVES = ("f16", "bf16")
PAIRS = {"f16x2": "f16", "bf16x2": "bf16", "u16x2": "u16", "s16x2": "s16"}
UNSIGNED = {size: np.dtype(f"uint{8 * size}") for size in (1, 2, 4, 8)}
DTYPES = {
    "pred": np.dtype(bool),
    **{f"b{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),  # its bits
    **{pair: np.dtype(np.uint32) for pair in PAIRS},  # the bits of both halves
}


def type_size(name: str) -> int:
    """Bytes of a PTX type such as f32, u64 or pred."""
    return DTYPES[name].itemsize


@functools.cache
def cleared(kind: str) -> np.ndarray:
    """What a register of this type holds before anything is written to it, in every thread. Who
    writes to a register puts another array in its place, so that one serves all."""
    value = np.zeros(1, bool if kind == "pred" else UNSIGNED[type_size(kind)])
    value.flags.writeable = False
    return value


def is_float(kind: str) -> bool:
    """Whether it is f32 or f64; the 16-bit floats are a room of their own."""
    return kind in ("f32", "f64")


# ---- kernels -------------------------------------------------------------------------------------


class UnsupportedPTX(ShownShort, RuntimeError):
    """The kernel uses something that the SIMT machine does not execute; named in the message."""


@dataclass(frozen=True)
class Register:
    name: str


@dataclass(frozen=True)
class Special:
    """A read-only register of the hardware, such as %tid.x."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A literal: an int, or the raw bits of a float written as 0f.. or 0d.."""

    value: int
    float_bits: int = 0  # 32 or 64 if the literal was a float, else 0


@dataclass(frozen=True)
class Address:
    """[base + offset]; base is a register, or the name of a parameter or variable."""

    base: Register | str
    offset: int


@dataclass(frozen=True)
class Label:
    name: str


@dataclass(frozen=True)
class Vector:
    elements: tuple


@dataclass(frozen=True)
class Negated:
    """!%p: a predicate read the other way round."""

    register: Register


Operand = Register | Special | Immediate | Address | Label | Vector | Negated


CARRY = Register("%carry")  # the flag, a predicate; the parser names it among the operands
WRITES_NOTHING = frozenset("st red bra brx ret exit trap nanosleep call return".split())
SOURCES = {"shfl": 4, "setp": 2, "elect": 1, "match": 2}  # of those that may have a second target


@dataclass(frozen=True)
class Instruction:
    opcode: str  # "ld"
    modifiers: tuple[str, ...]  # ("global", "nc", "f32")
    operands: tuple[Operand, ...]
    guard: tuple[Register, bool] | None  # (predicate, negated)
    text: str
    file: str
    line: int
    number: int  # its place among the kernel's instructions

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def names_shared(self) -> bool:
        """Whether its addresses are those within shared memory."""
        return bool({"shared", "shared_cta", "shared_cluster"} & {*self.modifiers})

    @cached_property
    def targets(self) -> tuple[Operand, ...]:
        """The operands that it writes; they come first."""
        operands, modifiers, count = self.operands, {*self.modifiers}, 1
        if self.opcode in WRITES_NOTHING or not operands or isinstance(operands[0], Address):
            count = 0
        elif self.opcode in ("bar", "barrier"):
            count = int("red" in modifiers)
        elif self.opcode in SOURCES:
            count = len(operands) - SOURCES[self.opcode]
            count -= self.opcode == "setp" and bool({"and", "or", "xor"} & modifiers)
        return operands[: count + ("cc" in modifiers)]

    @property
    def sources(self) -> tuple[Operand, ...]:
        """The other operands: values, addresses, labels."""
        return self.operands[len(self.targets) :]

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """The names of the registers that it writes."""
        return registers_of(self.targets)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The names of the registers that it reads, as values, in addresses, or as its guard."""
        guard = (self.guard[0].name,) if self.guard else ()
        return guard + registers_of(self.sources)


@dataclass(frozen=True)
class PtxParameter:
    name: str
    type: str  # "u64", "f32", "b8" for a struct by value
    size: int
    offset: int
    struct: bool = False


@dataclass(frozen=True)
class Variable:
    """A variable in memory; size 0 if the launch gives the size (`extern __shared__`)."""

    name: str
    align: int
    size: int
    # Initial bytes from an offset on; or "name" or "name+8", for the address of a variable.
    initial: tuple[tuple[int, bytes | str], ...] = ()


@dataclass(frozen=True)
class Call:
    """A call that is not inlined: of a function, or of what a register holds the address of."""

    target: str | Register
    results: tuple[str, ...]  # variables of `PtxKernel.arguments`
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Function:
    """A function that stays one: recursive, or called through its address."""

    name: str
    start: int  # number of its first instruction
    stop: int  # number past its last, which goes back to the caller
    results: tuple[str, ...]  # variables of `PtxKernel.arguments`
    parameters: tuple[str, ...]
    registers: tuple[str, ...]  # all that it declares; each call has its own
    frame: str  # the register that holds where the call's local variables begin
    back: str  # the register that holds where the call goes back to
    frame_bytes: int


@dataclass(eq=False)  # itself alone, so that what is found out about it can be kept
class PtxKernel:
    name: str
    parameters: list[PtxParameter]
    registers: dict[str, str] = field(default_factory=dict)  # name -> type, e.g. "%r5" -> "b32"
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # label -> index of an instruction
    tables: dict[str, list[str]] = field(default_factory=dict)  # of switches: labels by case
    shared: list[Variable] = field(default_factory=list)  # those that the kernel names
    module: list[Variable] = field(default_factory=list)  # likewise: __device__, __constant__
    local: list[Variable] = field(default_factory=list)  # arrays of each thread
    arguments: list[Variable] = field(default_factory=list)  # of function calls, and results
    functions: list[Function] = field(default_factory=list)
    calls: dict[int, Call] = field(default_factory=dict)  # by the number of the instruction
    framed: dict[str, tuple[str, int]] = field(default_factory=dict)  # (frame, offset) of locals
    cluster: tuple[int, int, int] = (1, 1, 1)
    most_threads: int = MAX_THREADS  # of a block, by __launch_bounds__

    def targets(self, one: Instruction) -> list[int]:
        """The instructions that a branch may go to. Raises `UnsupportedPTX` for a label that is not
        the kernel's."""
        if one.opcode not in ("bra", "brx"):
            return []
        label = one.operands[-1]
        names = [label.name] if isinstance(label, Label) else [None]
        if one.opcode == "brx":
            names = self.tables.get(names[0], [None])
        if any(name not in self.labels for name in names):
            raise UnsupportedPTX(f"the SIMT machine cannot follow {one.text!r}")
        return [self.labels[name] for name in names]

    @cached_property
    def writers(self) -> dict[str, list[Instruction]]:
        """The instructions that may write a register, by its name; call it once parsed."""
        found: dict[str, list[Instruction]] = {}
        for one in self.instructions:
            for name in one.writes:
                found.setdefault(name, []).append(one)
        return found


def registers_of(operands: Iterable[Operand]) -> tuple[str, ...]:
    """The names of the registers in some operands."""
    names = []
    for operand in operands:
        for part in elements(operand):
            if isinstance(part, Address):
                part = part.base
            elif isinstance(part, Negated):
                part = part.register
            if isinstance(part, Register):
                names.append(part.name)
    return tuple(names)


def elements(operand: Operand) -> tuple[Operand, ...]:
    """The parts of a vector; another operand is its own only part."""
    return operand.elements if isinstance(operand, Vector) else (operand,)


def unknown(instruction: Instruction) -> UnsupportedPTX:
    """The error of a form that a translator does not know."""
    return UnsupportedPTX(f"the SIMT machine does not know {instruction.text!r}")
