"""Calls of functions that stay functions: recursive ones, and those called through their address.

A thread's calls are nested: each has its own registers and local variables. The registers of a
function are put aside when a thread calls it that is in it already, and come back when that call
ends. Local variables of calls lie on a stack behind those of the kernel. How deep calls may be
nested is stated here, since the frames of the machine code are not known: a GPU's stack has 1024
bytes a thread unless `cudaDeviceSetLimit` says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .context import FUNCTION_STEP, FUNCTIONS, Context
from .cuda_text import plain_name
from .geometry import Batch
from .instructions import Call, Function, Instruction, Register
from .lanes import Groups, Lanes
from .operands import wide_reader
from .suspicion import UndefinedBits

MOST_NESTED = 256  # calls
OVERFLOW, NO_FUNCTION = "stack overflow", "call of no function"


@dataclass(frozen=True)
class Site:
    """Where a call stands."""

    call: Call
    instruction: Instruction
    behind: int  # the basic block that it goes back to


@dataclass
class Aside:
    """What calls of one function at one level of nesting have put aside."""

    registers: list[np.ndarray]
    shadows: list[UndefinedBits | None]
    arguments: list[np.ndarray]


class Calls:
    """The calls of a batch."""

    def __init__(self, context: Context):
        self.context, self.arguments = context, context.arguments
        kernel = context.kernel
        self.functions = {one.name: one for one in kernel.functions}
        self.numbers = {
            one.name: [context.index[name] for name in one.registers] for one in kernel.functions
        }
        self.sizes = {one.name: one.size for one in kernel.arguments}
        self.starts: dict[str, int] = {}  # by function, its first basic block
        self.sites: dict[int, Site] = {}  # by the basic block behind the call

    @property
    def bytes(self) -> int:
        """Of a thread, so that not too many run at once."""
        return 8 * MOST_NESTED // 4 * max(map(len, self.numbers.values()))

    def start_batch(self, batch: Batch) -> None:
        self.depth = np.zeros(batch.slots, np.int32)
        self.top = np.full(batch.slots, self.context.local.stack_start, np.int64)
        self.level = {name: np.zeros(batch.slots, np.int32) for name in self.functions}
        self.aside: dict[tuple[str, int], Aside] = {}

    # ---- calling ----

    def enter(self, site: Site, lanes: Lanes, waiting: Groups) -> None:
        """These threads call; who cannot ends here."""
        target = site.call.target
        if not isinstance(target, Register):
            self._enter(self.functions[target], site, lanes.mask, waiting)
            return
        context = self.context
        number = context.index[target.name]
        doubtful = context.suspicion.shadows.get(number)
        sure = lanes.mask if doubtful is None else lanes.mask & (doubtful.bits == 0)
        context.suspicion.use(number, lanes.mask, site.instruction)
        addresses = wide_reader(context, target, "u64")()
        for address in np.unique(addresses[lanes.mask]).tolist():
            mask = lanes.mask & (addresses == address)
            function = self._at(address)
            if function is None and not (mask & sure).any():
                continue  # that it is doubtful has been said
            if function is None:
                what = "a null pointer" if address == 0 else f"{address & (1 << 64) - 1:#x}"
                message = f"what is called here is {what}, and no function that the kernel knows"
                context.report(NO_FUNCTION, site.instruction, message, mask & sure)
            elif self._shape(site.call) != self._shape(function):
                name = plain_name(function.name)
                message = f"{name} is called here with other parameters than it takes"
                context.report(NO_FUNCTION, site.instruction, message, mask)
            else:
                self._enter(function, site, mask, waiting)

    def _at(self, address: int) -> Function | None:
        number, beside = divmod(address - FUNCTIONS, FUNCTION_STEP)
        functions = self.context.kernel.functions
        return functions[number] if not beside and 0 <= number < len(functions) else None

    def _shape(self, one: Call | Function) -> tuple[list[int], list[int]]:
        given = one.arguments if isinstance(one, Call) else one.parameters
        return [self.sizes[name] for name in one.results], [self.sizes[name] for name in given]

    def _enter(self, function: Function, site: Site, mask: np.ndarray, waiting: Groups) -> None:
        context, local = self.context, self.context.local
        over = mask & (
            (self.depth >= MOST_NESTED) | (self.top + function.frame_bytes > local.bytes)
        )
        if over.any():
            message = (
                f"{int(self.depth[over].max())} calls are nested here: a recursion without an end, "
                "or one too deep for the stack of a thread"
            )
            context.report(OVERFLOW, site.instruction, message, over)
            mask = mask & ~over
            if not mask.any():
                return
        slots = np.flatnonzero(mask)
        level = self.level[function.name]
        for one in np.unique(level[mask]).tolist():
            if one:
                self._put_aside(function, one, mask & (level == one))
        self._copy(slots, site.call.arguments, function.parameters)
        registers, frame = context.registers, context.index[function.frame]
        registers[frame] = np.where(mask, self.top, registers[frame].view(np.int64)).view(np.uint64)
        back = context.index[function.back]
        registers[back] = np.where(mask, np.uint32(site.behind), registers[back])
        for number in self.numbers[function.name]:
            context.suspicion.put(number, None, Lanes(mask))
        local.begin_frame(slots, self.top[slots], function.frame_bytes)
        level[mask] += 1
        self.depth[mask] += 1
        self.top[mask] += function.frame_bytes
        waiting.add(self.starts[function.name], mask)

    def _copy(self, slots: np.ndarray, sources: tuple, targets: tuple) -> None:
        offsets = self.arguments.offsets
        for source, target in zip(sources, targets, strict=True):
            self.arguments.copy(slots, offsets[source], offsets[target], self.sizes[source])

    def _put_aside(self, function: Function, level: int, mask: np.ndarray) -> None:
        """Keep what these threads have in the function, beside what others keep at the level."""
        numbers, shadows = self.numbers[function.name], self.context.suspicion.shadows
        registers = [self.context.registers[number] for number in numbers]
        kept = [shadows.get(number) for number in numbers]
        arguments = [self._bytes(name).copy() for name in function.parameters]
        old = self.aside.get((function.name, level))
        if old is not None and (self.level[function.name] > level).any():
            pairs = zip(registers, old.registers, strict=True)
            registers = [_chosen(mask, new, before) for new, before in pairs]
            pairs = zip(kept, old.shadows, strict=True)
            kept = [self.context.suspicion.mixed(mask, new, before) for new, before in pairs]
            for new, before in zip(arguments, old.arguments, strict=True):
                new[~mask] = before[~mask]
        self.aside[function.name, level] = Aside(registers, kept, arguments)

    def _bytes(self, name: str) -> np.ndarray:
        """Of an argument, a row of bytes a thread."""
        start = self.arguments.offsets[name]
        rows = self.arguments.views[1].reshape(-1, self.arguments.stride)
        return rows[:, start : start + self.sizes[name]]

    # ---- going back ----

    def leave(self, function: Function, lanes: Lanes, waiting: Groups) -> None:
        """These threads go back to where they called the function."""
        context, mask = self.context, lanes.mask
        back = np.broadcast_to(context.registers[context.index[function.back]], context.slots)
        groups = [(int(one), mask & (back == one)) for one in np.unique(back[mask])]
        for behind, group in groups:
            results = self.sites[behind].call.results
            self._copy(np.flatnonzero(group), function.results, results)
        level = self.level[function.name]
        level[mask] -= 1
        self.depth[mask] -= 1
        self.top[mask] -= function.frame_bytes
        for one in np.unique(level[mask]).tolist():
            if one:
                self._bring_back(function, one, mask & (level == one))
        for behind, group in groups:
            waiting.add(behind, group)

    def _bring_back(self, function: Function, level: int, mask: np.ndarray) -> None:
        aside, lanes = self.aside[function.name, level], Lanes(mask)
        registers, suspicion = self.context.registers, self.context.suspicion
        numbers = self.numbers[function.name]
        for number, value, shadow in zip(numbers, aside.registers, aside.shadows, strict=True):
            registers[number] = _chosen(mask, value, registers[number])
            suspicion.put(number, shadow, lanes)
        for name, value in zip(function.parameters, aside.arguments, strict=True):
            self._bytes(name)[mask] = value[mask]


def _chosen(mask: np.ndarray, values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Of two values of a register, whatever types they are seen as."""
    return np.where(mask, values, others.view(values.dtype))
