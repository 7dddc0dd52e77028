"""Each instruction of a kernel to one Python function that executes it for some lanes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .analysis import JUMPS
from .collectives import active_mask
from .context import Context
from .device_calls import failed_assertion, printf
from .instructions import Immediate, Instruction, Register, UnsupportedPTX, Vector
from .lanes import Lanes, Step
from .memory_instructions import atomics, copies, loads_and_stores
from .operands import predicate_reader, reader, writer
from .operations import find_operation, flush
from .ptx_types import UNSIGNED, is_float
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
    write = writer(context, instruction.operands[0], "b64")
    return lambda lanes: write(np.zeros(1, np.uint64), lanes)


def _move(context: Context, instruction: Instruction) -> Step:
    vector = any(isinstance(operand, Vector) for operand in instruction.operands)
    return (_pack_or_unpack if vector else _arithmetic)(context, instruction)


def _convert_address(context: Context, instruction: Instruction) -> Step:
    """cvta: generic and global addresses are the same number."""
    same = {"global", "const"} & {*instruction.modifiers}
    return (_arithmetic if same else loads_and_stores.convert)(context, instruction)


def _store(context: Context, instruction: Instruction) -> Step:
    """st: plain, or st.async, a copy that an mbarrier counts."""
    module = copies if "async" in instruction.modifiers else loads_and_stores
    return module.translate_store(context, instruction)


def _guarded(context: Context, instruction: Instruction, step: Step) -> Step:
    read = predicate_reader(context, instruction)

    def guarded(lanes: Lanes) -> None:
        chosen = lanes.mask & read()
        if chosen.any():
            everyone = lanes.whole and bool((chosen == lanes.mask).all())
            step(lanes if everyone else Lanes(chosen))

    return guarded


def _arithmetic(context: Context, instruction: Instruction) -> Step:
    """One that was made for an earlier launch if it only knows registers and numbers."""
    known = context.arithmetic.get(instruction.number)
    if known is None:
        known = _calculate(context, instruction)
        if all(isinstance(one, (Register, Immediate)) for one in instruction.operands):
            context.arithmetic[instruction.number] = known
    return known


def _division(context: Context, instruction: Instruction) -> Step:
    """div and rem; of integers, a diagnostic for the threads that divide by zero."""
    step, divisor = _arithmetic(context, instruction), instruction.operands[-1]
    if is_float(instruction.modifiers[-1]):
        return step
    read = reader(context, divisor, instruction.modifiers[-1])
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


def _calculate(context: Context, instruction: Instruction) -> Step:
    operation = find_operation(instruction.opcode, instruction.modifiers)
    operands = instruction.operands
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


# Of the opcodes that are not arithmetic, which is whatever else there is.
TRANSLATORS: dict[str, Translator] = {
    **dict.fromkeys(NOTHING, _nothing),
    "ld": loads_and_stores.translate_load,
    "ldu": loads_and_stores.translate_load,
    "st": _store,
    "atom": atomics.translate_atomic,
    "red": atomics.translate_atomic,
    "cp": copies.translate_copy,
    "fence": loads_and_stores.translate_fence,
    "membar": loads_and_stores.translate_fence,
    "mbarrier": copies.translate_mbarrier,
    **dict.fromkeys(("div", "rem"), _division),
    "mov": _move,
    "cvta": _convert_address,
    "isspacep": loads_and_stores.is_in_space,
    "mapa": loads_and_stores.map_to_block,
    "getctarank": loads_and_stores.rank_of,
    "activemask": active_mask,
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
