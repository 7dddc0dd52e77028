"""How an instruction passes undefined bits on: from the registers that it reads, and from memory,
to those that it writes. What it uses for good is reported.

Bits are followed one by one where an instruction moves them (mov, shifts, logic, selections,
packing, conversions of integers), from the lowest one up in sums and products, and part by part
where an instruction computes several at once; any other result is undefined as a whole if one bit
of a source is. Bits that cannot matter, because of others that are defined, do not count: what
`selp` does not choose, what `and` clears, what `or` sets, what stands below the highest one for
`clz` and `bfind`, what leaves a comparison as it is. After the paper on Memcheck: Seward and
Nethercote, Using Valgrind to detect undefined value errors with bit-precision, USENIX 2005.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from .context import Context
from .findings import UndefinedBits, joined
from .geometry import Lanes, Step
from .hardware import WARP
from .instructions import (
    DTYPES,
    PAIRS,
    UNSIGNED,
    Instruction,
    Operand,
    UnsupportedPTX,
    elements,
    registers_of,
)
from .memory.access import LOCAL_END, SHARED_WINDOW
from .operations.base import PtxOperation, find_operation, operation_of

Written = list[tuple[int, UndefinedBits | None]]  # registers, and what becomes undefined in each
Rule = Callable[[Lanes], Written]
Bits = list[np.ndarray]  # of each source

# Opcodes that make each bit of the result of one bit of each source; of their sources, by place,
# those that say which bit that is.
BITWISE = dict.fromkeys(("mov", "cvta", "not", "and", "or", "xor", "brev", "cvt"), ())
BITWISE |= {"shl": (1,), "shr": (1,), "shf": (2,), "prmt": (2,), "bfe": (1, 2), "bfi": (2, 3)}
BITWISE |= {"lop3": (3,)}
ORDERS = ("lt", "le", "gt", "ge", "lo", "ls", "hi", "hs")  # comparisons of which is the greater


def follow(context: Context, instruction: Instruction, step: Step, guarded: bool = True) -> Step:
    """`step`, and what it does to undefined bits; `guarded` if the step minds the guard itself."""
    suspicion = context.suspicion
    guard = instruction.guard if guarded else None
    condition = context.predicate_reader(instruction) if guard else None
    gate = context.index[guard[0].name] if guard else -1
    involved = {gate, *_numbers(context, instruction.operands)}
    targets = _numbers(context, instruction.targets)
    rule_of = functools.cache(lambda: _rule(context, instruction))  # few are ever needed

    def followed(lanes: Lanes) -> None:
        shadows = suspicion.shadows
        if not shadows or involved.isdisjoint(shadows):
            step(lanes)
            return
        rule, pure = rule_of()
        chosen, doubtful = lanes, shadows.get(gate)
        if condition is not None:
            mask = lanes.mask & condition()
            chosen = lanes if (mask == lanes.mask).all() else Lanes(mask)
        if doubtful is not None and not pure:
            suspicion.use(gate, lanes.mask, instruction)
        if chosen.count:
            for number, shadow in rule(chosen):
                suspicion.put(number, shadow, chosen)
        step(lanes)
        suspicion.storing = None
        if doubtful is not None and pure:  # both what was there and what is new may be meant
            for number in targets:
                wide = np.where(doubtful.bits & lanes.mask, *_ones(suspicion.bits_type(number)))
                suspicion.merge(number, UndefinedBits(wide, doubtful.only(lanes.mask).origins))

    return followed


def _ones(dtype: np.dtype) -> tuple[np.generic, np.generic]:
    """All ones, and zero."""
    zero = dtype.type(0)
    return ~zero, zero


def _numbers(context: Context, operands: Sequence[Operand]) -> list[int]:
    """The registers of some operands."""
    return [context.index[name] for name in registers_of(operands) if name in context.index]


def _each(context: Context, operands: Sequence[Operand]) -> list[int | None]:
    """The register of each operand; None for what is none."""
    return [(*_numbers(context, [one]), None)[0] for one in operands]


def _rule(context: Context, instruction: Instruction) -> tuple[Rule, bool]:
    """(what becomes of undefined bits, whether the instruction does nothing else)"""
    opcode = instruction.opcode
    if opcode in ("ld", "ldu"):
        return _using(context, instruction), True
    if opcode == "st" and "async" not in instruction.modifiers:
        return _storing(context, instruction), False
    if opcode == "shfl":
        return _shuffling(context, instruction), False
    try:
        return _arithmetic(context, instruction, *operation_of(instruction)), True
    except UnsupportedPTX:  # no arithmetic: what it reads, it uses
        return _using(context, instruction), False


def _using(context: Context, instruction: Instruction) -> Rule:
    """What is read is used; what is written is defined, but for what memory says."""
    targets = _numbers(context, instruction.targets)
    sources = _numbers(context, instruction.sources)

    def rule(lanes: Lanes) -> Written:
        for number in sources:
            context.suspicion.use(number, lanes.mask, instruction)
        return [(number, None) for number in targets]

    return rule


def _storing(context: Context, instruction: Instruction) -> Rule:
    """Bits go along into local and shared memory; in global memory others see them."""
    suspicion = context.suspicion
    address, value = instruction.operands[:2]
    parts = _each(context, elements(value))
    base = _numbers(context, [address])
    memory = context.memory_space(instruction)
    read, stored = context.address_reader(address), _raw(instruction.modifiers[-1])
    # A struct is copied as integers, and bytes behind a defined one may be its padding.
    struct = suspicion.padding and instruction.modifiers[-1][0] in "bus"

    def rule(lanes: Lanes) -> Written:
        for number in base:
            suspicion.use(number, lanes.mask, instruction)
        shadows = [suspicion.shadows.get(part) for part in parts]
        if not any(shadows):
            return []
        shadows = [one and UndefinedBits(one.bits.astype(stored), one.origins) for one in shadows]
        outside = np.zeros(context.slots, bool)
        if memory is context.global_memory:
            outside = lanes.mask
        elif memory is context.generic:
            places = read(lanes)
            outside = lanes.mask & ~((places >= SHARED_WINDOW) & (places < LOCAL_END))
        seen = outside
        if struct:
            start = shadows[0].bits & 255 != 0 if shadows[0] is not None else False
            seen = outside & start
        for shadow in filter(None, shadows):
            suspicion.use_shadow(shadow, seen, instruction)
            if memory not in (context.local, context.arguments):
                suspicion.use_shadow(shadow, lanes.mask, instruction, staying=False)
        suspicion.storing = shadows
        return []

    return rule


def _shuffling(context: Context, instruction: Instruction) -> Rule:
    *targets, value, amount, clamp, members = instruction.operands
    suspicion, sources = context.suspicion, context.exchange_reader(instruction)
    written, read = _numbers(context, targets), _numbers(context, [value])
    controls = _numbers(context, [amount, clamp, members])

    def rule(lanes: Lanes) -> Written:
        for number in controls:
            suspicion.use(number, lanes.mask, instruction)
        shadow = suspicion.shadows.get(read[0]) if read else None
        if shadow is not None:
            taken = np.arange(context.slots) // WARP * WARP + sources()[0]
            shadow = UndefinedBits(shadow.bits[taken], tuple(one[taken] for one in shadow.origins))
        return [(number, shadow if place == 0 else None) for place, number in enumerate(written)]

    return rule


# ---- arithmetic ---------------------------------------------------------------------------------


def _arithmetic(
    context: Context,
    instruction: Instruction,
    operation: PtxOperation,
    targets: Sequence[Operand],
    operands: Sequence[Operand],
) -> Rule:
    suspicion = context.suspicion
    written, sources = _each(context, targets), _each(context, operands)
    pairs = zip(operands, operation.sources, strict=True)
    readers = [context.reader(one, kind) for one, kind in pairs]
    # A comparison's other half, or a carry, is undefined as a whole where the first target is.
    spreads = [
        spreader(instruction, one) if one.result != "pred" or one is operation else None
        for one in (operation, *operation.others)
    ]
    raw = [_raw(kind) for kind in operation.sources]
    wide_kind = f"{'int' if operation.result[0] == 's' else 'uint'}"
    known = [number for number in written if number is not None]

    def rule(lanes: Lanes) -> Written:
        shadows = [suspicion.shadows.get(number) for number in sources]
        if not any(shadows):
            return [(number, None) for number in known]
        bits = [
            np.zeros(context.slots, dtype) if shadow is None else shadow.bits.astype(dtype)
            for shadow, dtype in zip(shadows, raw, strict=True)
        ]
        values = [np.broadcast_to(read(), context.slots) for read in readers]
        parts = shadows
        if instruction.opcode == "selp":
            chosen = values[2]
            ways = (chosen, ~chosen, np.ones(context.slots, bool))
            parts = [one and one.only(way) for one, way in zip(shadows, ways, strict=True)]
        first, result = spreads[0](bits, values), []
        for number, spread in zip(written, spreads, strict=False):
            if number is None:
                continue
            undefined = first if spread in (None, spreads[0]) else spread(bits, values)
            dtype = suspicion.bits_type(number)
            if spread is None or dtype.kind == "b":
                own = np.where(undefined != 0, *_ones(dtype))
            elif undefined.dtype != dtype:
                signed = undefined.view(f"{wide_kind}{8 * undefined.itemsize}")
                own = signed.astype(f"{wide_kind}{8 * dtype.itemsize}").view(dtype)
            else:
                own = undefined
            result.append((number, joined(suspicion, own, parts)))
        return result

    return rule


def _raw(kind: str) -> np.dtype:
    return np.dtype(bool) if kind == "pred" else UNSIGNED[DTYPES[kind].itemsize]


Spreader = Callable[[Bits, list[np.ndarray]], np.ndarray]


def spreader(instruction: Instruction, operation: PtxOperation) -> Spreader:
    """The function of an opcode from undefined bits of the sources, and their values, to undefined
    bits of the result."""
    opcode, kinds = instruction.opcode, operation.sources
    result = _raw(operation.result)
    integers = _integer(operation.result) and all(map(_integer, kinds))
    exact = integers and "sat" not in instruction.modifiers

    def everything(bits: Bits, values: list[np.ndarray]) -> np.ndarray:
        any_bit = np.logical_or.reduce([one != 0 for one in bits])
        return np.where(any_bit, *_ones(result))

    def upward(bits: Bits, values: list[np.ndarray]) -> np.ndarray:
        lowest = np.bitwise_or.reduce([one.astype(result) for one in bits])
        return lowest | (~lowest + result.type(1))

    def product(bits: Bits, values: list[np.ndarray]) -> np.ndarray:
        raw = [value.view(one.dtype) for one, value in zip(bits[:2], values, strict=False)]
        a, b = (_lowest(one).astype(result) for one in bits[:2])
        x, y = (_lowest(one | own).astype(result) for one, own in zip(raw, bits, strict=False))
        return upward([a * y | b * x, *bits[2:]], values)

    def leading(bits: Bits, values: list[np.ndarray]) -> np.ndarray:
        ones = values[0].view(bits[0].dtype) & ~bits[0]
        return np.where(bits[0] > ones, *_ones(result))  # an undefined bit may be the highest one

    if opcode in BITWISE and (exact or kinds[0] == "pred" or opcode == "mov"):
        return _bitwise(operation, BITWISE[opcode])
    if opcode in ("add", "sub", "neg") and exact:
        return upward
    if opcode in ("mul", "mad") and exact and {"lo", "wide"} & {*instruction.modifiers}:
        return product
    if all(kind in PAIRS for kind in kinds) and (opcode == "set" or operation.result in PAIRS):
        return _apart(2)
    if opcode in ("vabsdiff2", "vabsdiff4") and "add" not in instruction.modifiers:
        return _apart(int(opcode[-1]))
    if opcode == "cvt" and len(kinds) == 2 and operation.result in PAIRS:
        return _packed
    if opcode in ("clz", "bfind") and kinds[0][0] in "bu":
        return leading
    if opcode == "selp":
        return _selected
    if opcode == "setp":
        return _compared(instruction, operation, _integer(kinds[0]))
    return everything


def _integer(kind: str) -> bool:
    return kind[0] in "bus" and not kind.startswith("bf") and not kind.endswith("x2")


def _lowest(values: np.ndarray) -> np.ndarray:
    """The lowest one of each unsigned integer."""
    return values & (~values + values.dtype.type(1))


def _apart(parts: int) -> Spreader:
    """Each part of a word by itself, in instructions for several at once."""
    kind = UNSIGNED[4 // parts]

    def apart(bits: Bits, values: list[np.ndarray]) -> np.ndarray:
        loose = np.logical_or.reduce([one.view(kind) != 0 for one in bits])
        return np.where(loose, *_ones(kind)).view(np.uint32)

    return apart


def _packed(bits: Bits, values: list[np.ndarray]) -> np.ndarray:
    """The first source is rounded to the upper half of a word, the second to the lower."""
    upper, lower = (np.where(one != 0, np.uint32(0xFFFF), np.uint32(0)) for one in bits)
    return upper << np.uint32(16) | lower


def _bitwise(operation: PtxOperation, controls: Sequence[int] = ()) -> Spreader:
    """Bits of the result that differ as the undefined bits of each source are all 0 or all 1."""
    result = _raw(operation.result)

    def bitwise(bits: Bits, values: list[np.ndarray]) -> np.ndarray:
        ends = []
        for place, (loose, value) in enumerate(zip(bits, values, strict=True)):
            raw, both = value.view(loose.dtype), loose.any() and place not in controls
            ways = (raw & ~loose, raw | loose) if both else (raw,)
            ends.append([way.view(value.dtype) for way in ways])
        found = [
            operation.apply(*sources).astype(DTYPES[operation.result]).view(result)
            for sources in itertools.product(*ends)
        ]
        differing = np.bitwise_or.reduce(found) ^ np.bitwise_and.reduce(found)
        for place in controls:
            differing = np.where(bits[place] != 0, ~result.type(0), differing)
        return differing

    return bitwise


def _selected(bits: Bits, values: list[np.ndarray]) -> np.ndarray:
    a, b, p = bits
    x, y = (value.view(a.dtype) for value in values[:2])
    same = (x == y) & (a == 0) & (b == 0)
    return np.where(p & ~same, ~a.dtype.type(0), np.where(values[2], a, b))


def _compared(instruction: Instruction, operation: PtxOperation, integers: bool) -> Spreader:
    """A comparison is undefined if a source is, but not where defined bits differ already, or put
    the sources in order, or where the predicate that it is joined with decides."""
    modifiers = instruction.modifiers
    by_bits = integers and modifiers[0] in ("eq", "ne")
    by_order = integers and modifiers[0] in ORDERS
    join = next((one for one in ("and", "or", "xor") if one in modifiers), "")
    joining = _bitwise(find_operation(join, ("pred",))) if join else None

    def compared(bits: Bits, values: list[np.ndarray]) -> np.ndarray:
        loose = (bits[0] != 0) | (bits[1] != 0)
        if by_bits:
            x, y = (value.view(bits[0].dtype) for value in values[:2])
            loose &= (x ^ y) & ~(bits[0] | bits[1]) == 0
        elif by_order and loose.any():
            low, high = _ends(bits[0], values[0])
            lowest, highest = _ends(bits[1], values[1])
            more = [np.full(len(loose), join == "and")] if join else []
            ends = operation.apply(low, highest, *more), operation.apply(high, lowest, *more)
            loose &= ends[0] != ends[1]
        if not join:
            return loose
        neutral = np.full(len(loose), join == "and")
        holds = operation.apply(values[0], values[1], neutral)
        return joining([loose, bits[2]], [holds, values[2]])

    return compared


def _ends(bits: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest that integers may be, whatever their undefined bits are."""
    raw = values.view(bits.dtype)
    sign = bits & bits.dtype.type(1 << 8 * bits.itemsize - 1 if values.dtype.kind == "i" else 0)
    low, high = raw & ~bits | sign, (raw | bits) & ~sign
    return low.view(values.dtype), high.view(values.dtype)
