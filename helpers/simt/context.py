"""One launch as the functions of its instructions see it: registers, memories, counters, findings.

It is made before the kernel is translated, so that each function can keep hold of its parts; a
new batch changes what is in them.

A register is a numpy array over all threads of a batch, or of length one while its value is the
same in every thread. It holds raw bits; an instruction views them as its own type.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from .analysis import (
    guarded_loads,
    hands_over,
    never_subnormal,
    polling_loops,
    shared_variables,
    steering,
    unrolled_loops,
    unset,
)
from .counters import Counters
from .findings import Findings, Reporter
from .geometry import Batch, Shape, SpecialRegisters
from .instructions import Instruction, PtxKernel
from .memory.causality import Beliefs, Causality
from .memory.copies import Copies, MBarriers
from .memory.generic import GenericMemory
from .memory.global_memory import GlobalMemory
from .memory.global_races import GlobalRaces
from .memory.local import LocalMemory
from .memory.order import Order
from .memory.shared import SharedMemory
from .ptx_types import cleared
from .suspicion import Suspicion
from .trace import Watch

# Where functions are, by their number: no array is there.
FUNCTIONS, FUNCTION_STEP = 1 << 16, 256
STACK = 1 << 15  # bytes of a thread, for the local variables of calls


class Context:
    """A kernel with its memories and registers; the registers change from batch to batch."""

    def __init__(
        self, kernel: PtxKernel, shape: Shape, dynamic_shared: int, findings: Findings, watch: Watch
    ):
        self.kernel, self.shape, self.watch = kernel, shape, watch
        self.reporter = Reporter(findings)
        self.suspicion = Suspicion(kernel, self.reporter)
        self.polls = polling_loops(kernel)
        self.polling = {poll.instruction.number for poll in self.polls.values()}
        flags = bool(self.polls) or hands_over(kernel)
        order = Order()
        beliefs = Beliefs(order, flags) if guarded_loads(kernel) else None
        self.causality = Causality(order, flags, beliefs)
        self.shared = SharedMemory(kernel, dynamic_shared, self.suspicion, self.causality)
        races = GlobalRaces(kernel, self.suspicion, self.causality)
        self.global_memory = GlobalMemory(self.reporter, races)
        frames = [one.frame_bytes for one in kernel.functions]
        self.local = LocalMemory(kernel.local, self.suspicion, STACK if any(frames) else 0)
        self.arguments = LocalMemory(kernel.arguments, self.suspicion)  # of function calls
        self.generic = GenericMemory(self.global_memory, self.shared, self.local)
        self.copies = Copies(self.shared, races)
        self.mbarriers = MBarriers(self.shared, self.copies)
        self.printed: list[tuple[int, str]] = []  # by printf: number of the block, text
        self.parameters = b""  # the kernel's parameter space
        places = dict.fromkeys((one.file, one.line) for one in kernel.instructions)
        self.lines = {place: Counters() for place in places}
        # Of loops that may be unrolled, how often lanes of a warp parted at their end; of lines,
        # how many requests more there may be for it.
        self.parted = dict.fromkeys(unrolled_loops(kernel), 0)
        self.more: Counter[tuple[str, int]] = Counter()
        self.uncounted = Counters()  # of accesses that the hardware serves in other ways
        # Arithmetic knows nothing of a launch but its registers: a later one goes on with both.
        try:
            self.registers, self.arithmetic = kernel.spare.pop()
        except IndexError:
            self.registers, self.arithmetic = [], {}
        self.index = {name: number for number, name in enumerate(kernel.registers)}
        self.normal = never_subnormal(kernel)
        self.steering = steering(kernel)
        self.unset = unset(kernel)
        self.shared_variables = shared_variables(kernel)
        self.clock = 0  # instructions that a batch has executed
        self.specials = SpecialRegisters(Batch(shape, 0, 1))
        self.specials.same["%dynamic_smem_size"] = dynamic_shared
        self.specials.same["%total_smem_size"] = self.shared.bytes

    def place_variables(self) -> None:
        """Note where each variable is, in its own address space; call it when all are mapped."""
        self.addresses = {
            **{parameter.name: parameter.offset for parameter in self.kernel.parameters},
            **{one.name: one.start for one in self.global_memory.allocations},
            **self.local.offsets,
            **self.arguments.offsets,
            **self.shared.offsets,
            **self.functions(),
        }

    def functions(self) -> dict[str, int]:
        """The addresses of functions by their names."""
        names = enumerate(self.kernel.functions)
        return {one.name: FUNCTIONS + number * FUNCTION_STEP for number, one in names}

    def start_batch(self, batch: Batch) -> None:
        """Fresh registers, shared and local memory."""
        self.slots = batch.slots
        self.specials.start_batch(batch)
        self.registers[:] = map(cleared, self.kernel.registers.values())
        self.reporter.start_batch(batch)
        self.suspicion.start_batch(batch.slots)
        for memory in (self.shared, self.local, self.arguments, self.global_memory):
            memory.start_batch(batch)
        self.copies.start_batch(batch)
        self.mbarriers.start_batch()
        self.watch.start_batch(batch)
        for name, first in self.unset.items():
            self.suspicion.taint(
                "read of an uninitialised variable",
                first,
                "nothing has given it a value on the way here",
                self.index[name],
                np.flatnonzero(batch.alive),
            )

    def end_launch(self) -> None:
        """Leave the registers to a later launch of the same kernel."""
        self.registers.clear()
        self.kernel.spare.append((self.registers, self.arithmetic))

    def end_batch(self) -> None:
        """Report what the end of the batch shows."""
        self.shared.end_batch()
        self.copies.end_batch()
        self.mbarriers.end_batch()

    def tally_of(self, instruction: Instruction) -> Counters:
        """The counters of its line."""
        return self.lines[instruction.file, instruction.line]

    def changes(self) -> int:
        """Counts what may end another thread's wait."""
        return self.global_memory.changes + self.shared.changes + self.mbarriers.changes

    def report(self, kind: str, instruction: Instruction, message: str, slots: np.ndarray) -> None:
        """Add a finding about the slots of a bool array."""
        self.reporter.report(kind, instruction, message, np.flatnonzero(slots))
