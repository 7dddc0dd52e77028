"""Races in the arrays in global memory that a kernel writes to.

Strong accesses do not race with each other if they have scopes that include the other thread and
reach the same bytes ([ptx] "Morally strong operations"). A volatile access is a relaxed one of the
whole system ([ptx] "ld.volatile").

Not seen: a bulk copy that writes with no fence of the proxy behind ordinary accesses. A store races
with an earlier load also where its value is not used.
"""

from __future__ import annotations

import numpy as np

from ..analysis import ORDINARY, guarded_loads
from ..hardware import WARP
from ..instructions import PtxKernel
from ..suspicion import Suspicion
from .access import Access
from .causality import BLOCK, CLUSTER, GPU, WEAK, Causality
from .races import (
    ATOMIC,
    STRONG,
    STRONG_WRITE,
    THREAD,
    UNFINISHED,
    WEAK_READ,
    WEAK_WRITE,
    Epochs,
    Races,
    verb,
)

KIND = "race on global memory"
STALE = "read-only load of what is written"
PACKED = {"f16x2", "bf16x2"}


class GlobalRaces(Races):
    """Checks the accesses of a launch to global memory."""

    covered = WEAK_READ + STRONG

    def __init__(self, kernel: PtxKernel, suspicion: Suspicion, causality: Causality):
        super().__init__(kernel, suspicion, causality)
        self.guarded = guarded_loads(kernel)
        self.pieces = np.zeros(len(kernel.instructions), np.int8)  # bytes of a strong access
        self.scopes = np.zeros(len(kernel.instructions), np.int8)  # of its accesses
        self.mixed = False  # has seen strong accesses that need not be atomic to one another

    def read(
        self, epochs: Epochs, offsets: np.ndarray, slots: np.ndarray, access: Access
    ) -> np.ndarray:
        self._look_at(epochs, access)
        if access.read_only:
            self._look_for_writes(epochs, epochs.entries(offsets, access.width), slots, access)
        entries = super().read(epochs, offsets, slots, access)
        if access.instruction.number in self.guarded and self.causality.beliefs:
            self._look_for_beliefs(epochs, entries, slots, access)
        return entries

    def write(self, epochs: Epochs, offsets, slots, access: Access, *more, **named):
        self._look_at(epochs, access)
        return super().write(epochs, offsets, slots, access, *more, **named)

    def _look_at(self, epochs: Epochs, access: Access) -> None:
        """From the first strong access on that is not like others, of a narrower scope or of other
        bytes, strong accesses are held against one another. A vector, a packed one too, is an
        access for each element."""
        self.scopes[access.instruction.number] = access.scope
        if access.scope:
            piece = 2 if PACKED & {*access.instruction.modifiers} else access.size
            self.pieces[access.instruction.number] = piece
            self.mixed |= access.scope < GPU or epochs.piece not in (0, piece)
            epochs.piece = piece

    def compares_strong(self, access: Access) -> bool:
        return self.mixed

    # ---- judging ----

    def conflicts(
        self, kind: int, stamps: np.ndarray, slots: np.ndarray, access: Access
    ) -> np.ndarray:
        sites = self.site(stamps)
        racing, scopes = np.ones(len(stamps), bool), self.scopes[sites]
        if access.scope and scopes.any():
            distances = self.causality.distance(stamps & THREAD, self.threads[slots])
            weak = (scopes == WEAK) | (np.minimum(scopes, access.scope) < distances)
            racing &= weak | (self.pieces[sites] != self.pieces[access.instruction.number])
        return racing

    def _look_for_writes(
        self, epochs: Epochs, entries: np.ndarray, slots: np.ndarray, access: Access
    ) -> None:
        """Bytes that the launch has written must not be read by a cache that does not see that, not
        even by who wrote them."""
        for kind in (*WEAK_WRITE, STRONG_WRITE[0]):
            stamps = epochs.stamps[kind]
            written = None if stamps is None else stamps[entries] != 0
            if written is not None and written.any():
                where = np.nonzero(written)
                other = self.instructions[self.site(stamps[entries][where][0])]
                message = (
                    f"the {verb(other)} in line {other.line} has written these bytes of "
                    f"{epochs.name} in this launch, and __ldg, or a pointer to const with "
                    "__restrict__, reads them through a cache that need not see it"
                )
                self.suspicion.doubt(
                    STALE, access.instruction, message, np.unique(slots[where[0]]), other=other
                )
                return

    def _look_for_beliefs(
        self, epochs: Epochs, entries: np.ndarray, slots: np.ndarray, access: Access
    ) -> None:
        """What others have written there must have come, if a flag that these slots have seen was
        set behind it. A word that an atomic has changed and asked is a flag itself: a thread that
        has seen it once sees nothing older ([ptx] "Coherence")."""
        asked = epochs.stamps[ATOMIC]
        for kind in STRONG_WRITE:
            stamps = epochs.stamps[kind]
            if stamps is None or not stamps[entries].any():
                continue
            where = np.nonzero((stamps[entries] != 0) & (asked is None or asked[entries] == 0))
            found, mine = stamps[entries][where], slots[where[0]]
            other = found & THREAD != self.threads[mine]
            found, mine = found[other], mine[other]
            beliefs = self.causality.beliefs
            early = beliefs.ordered(found & THREAD, self.time(found), mine)
            early[early] = ~self.ordered(found[early], mine[early], strong=True)
            if early.any():
                other = self.instructions[self.site(found[early][0])]
                message = (
                    f"this load and the {verb(other)} in line {other.line} reach the same bytes of "
                    f"{epochs.name}; a flag that is read before says that they have been written, "
                    "but it needs a fence before it is set and one behind it where it is read, "
                    "__threadfence() where that is another block"
                )
                self.suspicion.doubt(
                    KIND, access.instruction, message, np.unique(mine[early]), other=other
                )
                return

    # ---- saying ----

    def report(
        self,
        epochs: Epochs,
        kind: int,
        stamps: np.ndarray,
        faulty: np.ndarray,
        slots: np.ndarray,
        access: Access,
    ) -> np.ndarray:
        found, mine = stamps[faulty], slots[np.nonzero(faulty)[0]]
        sites = self.site(found)
        for site in np.unique(sites).tolist():
            ours = np.flatnonzero(sites == site)
            first = found[ours[0]]
            self._say(epochs.name, first, np.unique(mine[ours]), access)
        return np.zeros(len(slots), bool)  # each pair of lines is a race of its own

    def _say(self, name: str, stamp: np.int64, slots: np.ndarray, access: Access) -> None:
        thread, time, site = int(stamp & THREAD), int(self.time(stamp)), int(self.site(stamp))
        scope = self.scopes[site]
        other, batch = self.instructions[site], self.reporter.batch
        slot, mine = int(slots[0]), int(self.threads[slots[0]])
        (distance,) = self.causality.distance(np.array([thread]), np.array([mine]))
        block, place = batch.place(thread - self.causality.first)
        what = f"line {other.line}" if other is not access.instruction else "this line"
        message = (
            f"this {verb(access.instruction)} and the {verb(other)} in {what} by thread {place} of "
            f"block {block} reach the same bytes of {name}, and nothing orders them: "
        )
        pieces = self.pieces[site], self.pieces[access.instruction.number]
        if scope and access.scope and pieces[0] != pieces[1]:
            cure = (
                f"one is of {pieces[0]} bytes, the other of {pieces[1]}, and only accesses of the "
                "very same bytes are atomic to one another"
            )
        elif scope and access.scope:
            least = "cluster" if distance == CLUSTER else "whole GPU"
            name = "block" if min(scope, access.scope) == BLOCK else "cluster"
            cure = (
                f"an atomic access of {name} scope orders nothing further away; use {least} scope"
            )
        elif scope or access.scope:
            weak = access.instruction if scope else other
            strong, what = "atomic or volatile", "neither"
            if ORDINARY in weak.modifiers:
                strong, what = "atomic", "volatile, which counts as ordinary here"
            cure = (
                f"one is {strong}, the {verb(weak)} in line {weak.line} is {what}; make it "
                f"{strong}, or order it: {self._cure(thread, time, slot, distance)}"
            )
        elif other is access.instruction and time != UNFINISHED:
            cure = "if both threads are to write there, they need an atomic"
        else:
            cure = self._cure(thread, time, slot, distance)
        instruction = access.instruction
        about = KIND, instruction, message + cure, slots
        if instruction.opcode == "ld":  # reported where what it loads is used
            self.suspicion.doubt(*about, other=other)
        else:
            self.reporter.report(*about, other=other)

    def _cure(self, thread: int, time: int, slot: int, distance: int) -> str:
        """What would order an access of a thread before that of a slot."""
        earlier, causality = thread - self.causality.first, self.causality
        if time == UNFINISHED:
            return (
                "the copy goes on until its thread has waited for it (cp.async.wait_group, or the "
                "mbarrier), and others have met it at a barrier after that"
            )
        if distance == BLOCK:
            if earlier // WARP == slot // WARP:
                return "__syncwarp() between them would"
            return "__syncthreads() between them would"
        if distance == CLUSTER:
            return "a barrier of the cluster between them would"
        if earlier >= 0 and causality.last_fence(earlier, GPU) > time:
            return (
                "the first thread has executed __threadfence() since; what it then writes by an "
                "atomic or volatile access the second thread has to read by one, with a "
                "__threadfence() of its own behind it"
            )
        if earlier >= 0 and causality.last_fence(earlier, BLOCK) > time:
            return "the fence that follows the first reaches no other block; __threadfence() does"
        return (
            "blocks are ordered by a barrier of the grid, by the next launch, or by a flag: "
            "__threadfence() and an atomic write after the first, an atomic read of it and "
            "__threadfence() before the second"
        )
