"""What an operation is, and the table of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..instructions import UnsupportedPTX
from ..ptx_types import DTYPES, EIGHTS, HALVES, PAIRS, is_float

# The rooms of this folder: an opcode may mean something else for each kind of type.
INTEGER, FLOAT, SIXTEEN_BIT, EIGHT_BIT = "integer", "float", "16 bits", "8 bits"


@dataclass(frozen=True)
class PtxOperation:
    apply: Callable[..., np.ndarray]
    sources: tuple[str, ...]  # PTX type of each source
    result: str  # PTX type of the result
    flush: bool = False  # .ftz: subnormal fp32 sources and results count as zero
    complement: Callable[..., np.ndarray] | None = None  # what a second target gets (setp, .cc)


Builder = Callable[
    [list[str]], PtxOperation
]  # from the modifiers, of which it removes what it knows
OPCODES: dict[str, dict[str, Builder]] = {}  # by name, then by kind


def opcode(*names: str, kinds: tuple[str, ...] = (INTEGER, FLOAT)) -> Callable[[Builder], Builder]:
    """Enters a builder in the table."""

    def register(builder: Builder) -> Builder:
        for name in names:
            OPCODES.setdefault(name, {}).update(dict.fromkeys(kinds, builder))
        return builder

    return register


def kind_of(modifiers: tuple[str, ...]) -> str:
    """The room that knows an instruction. 8-bit floats anywhere lead to theirs, then a 16-bit float
    or a pair to theirs; otherwise the last type decides."""
    if any(kind in EIGHTS for kind in modifiers):
        return EIGHT_BIT
    if any(kind in HALVES or kind in PAIRS for kind in modifiers):
        return SIXTEEN_BIT
    return FLOAT if modifiers and is_float(modifiers[-1]) else INTEGER


@functools.lru_cache(maxsize=4096)
def find_operation(name: str, modifiers: tuple[str, ...]) -> PtxOperation:
    """Return the operation of an opcode; raises `UnsupportedPTX` if there is none."""
    written = ".".join((name, *modifiers))
    if name not in OPCODES:
        raise UnsupportedPTX(f"the SIMT machine does not know the opcode {written!r}")
    remaining = list(modifiers)
    try:
        operation = OPCODES[name][kind_of(modifiers)](remaining)
        known = all(kind in DTYPES for kind in (*operation.sources, operation.result))
    except (KeyError, IndexError):
        known = False
    if not known:
        raise UnsupportedPTX(f"the SIMT machine does not know this form of {written!r}")
    if remaining:
        unknown = ", ".join(f".{item}" for item in remaining)
        raise UnsupportedPTX(f"the SIMT machine does not know {unknown} in {written!r}")
    return operation


def take(modifiers: list[str], *choices: str) -> str:
    """Remove and return the first of `choices` found among the modifiers, or ""."""
    for choice in choices:
        if choice in modifiers:
            modifiers.remove(choice)
            return choice
    return ""


def same_type(function: Callable[..., np.ndarray], count: int) -> Builder:
    """Of an opcode whose sources and result have one type, the last modifier."""

    def build(modifiers: list[str]) -> PtxOperation:
        kind = modifiers.pop()
        return PtxOperation(function, (kind,) * count, kind)

    return build
