"""The table of opcodes: their forms, and the functions that compute them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..instructions import UnsupportedPTX


@dataclass(frozen=True)
class PtxOperation:
    apply: Callable[..., np.ndarray]
    sources: tuple[str, ...]  # PTX type of each source
    result: str  # PTX type of the result
    flush: bool = False  # .ftz: subnormal fp32 sources and results count as zero
    complement: Callable[..., np.ndarray] | None = None  # what a second target gets (setp, .cc)


@dataclass(frozen=True)
class Form:
    modifiers: str  # a pattern, compiled when it is needed: there are many
    operation: PtxOperation  # its types may be names of modifiers


OPCODES: dict[str, list[Form]] = {}
# Modifiers that stand for several.
CLASSES = {
    "integer": "[bus](?:8|16|32|64)",
    "float": "f32|f64",
    "half": "b?f16",
    "f16s": "f16|f16x2",
    "bf16s": "bf16|bf16x2",
    "direction": "r[nzmp]",
    "whole": "r[nzmp]i",
}


def form(
    names: str,
    modifiers: str = "T:integer",
    sources: str = "T T",
    result: str = "T",
    complement: Callable[..., np.ndarray] | None = None,
) -> Callable[[Callable], Callable]:
    """Enter a function in the table, for these opcodes with these modifiers.

    A modifier is written `rn`, `rn|rz` if it is one of several, `rn?` if it may be missing, and
    may have a name, as in `T:u32|s32`. Types of sources and result are such names, or types. The
    function gets an array for each source, and by keyword each modifier with a name in lower case,
    "" if it is missing; `.ftz` without a name is dealt with outside. The first form that fits
    counts.
    """
    pattern = "".join(map(_slot, modifiers.split()))

    def register(function: Callable) -> Callable:
        operation = PtxOperation(function, tuple(sources.split()), result, complement=complement)
        for name in names.split():
            OPCODES.setdefault(name, []).append(Form(pattern, operation))
        return function

    return register


def _slot(text: str) -> str:
    name, _, choices = text.rpartition(":")
    optional, choices = choices[-1:] == "?", choices.rstrip("?")
    name = name or ("FTZ" if choices == "ftz" else "")
    choices = "|".join(CLASSES.get(one, one) for one in choices.split("|"))
    group = f"(?P<{name}>{choices})" if name else f"(?:{choices})"
    return rf"(?:{group}\.)" + "?" * optional


@functools.lru_cache(maxsize=4096)
def find_operation(name: str, modifiers: tuple[str, ...]) -> PtxOperation:
    """Return the operation of an opcode; raises `UnsupportedPTX` if there is none."""
    written = ".".join((name, *modifiers))
    if name not in OPCODES:
        raise UnsupportedPTX(f"the SIMT machine does not know the opcode {written!r}")
    for one in OPCODES[name]:
        if match := re.fullmatch(one.modifiers, "".join(f"{word}." for word in modifiers)):
            return _bound(one.operation, match.groupdict(""))
    raise UnsupportedPTX(f"the SIMT machine does not know this form of {written!r}")


def _bound(operation: PtxOperation, named: dict[str, str]) -> PtxOperation:
    """The operation with the modifiers that were written."""
    given = {name: value for name, value in named.items() if name.islower()}
    apply, complement = (
        functools.partial(one, **given) if one and given else one
        for one in (operation.apply, operation.complement)
    )
    sources = tuple(named.get(kind, kind) for kind in operation.sources)
    result = named.get(operation.result, operation.result)
    return PtxOperation(apply, sources, result, bool(named.get("FTZ")), complement)
