"""A shadow of the arrays in global memory that a kernel writes to: it sees races.

Two accesses of the same bytes by different threads, at least one of them a write, race unless they
are ordered, or are both strong with scopes that include the other thread ([ptx] "Memory Consistency
Model", data races and "Morally strong operations"). That is judged by who comes before whom, not
by values, so that a race is found also where the order of this run happens to be right.

For every few bytes the shadow remembers the last weak write, and of weak reads, strong reads and
strong writes two: those of the lowest and of the highest thread that nothing has ordered before a
later one. A volatile access is a relaxed one of the whole system ([ptx] "ld.volatile").

Not seen: of many readers of the same bytes those between the lowest and the highest; a bulk copy
that writes with no fence of the proxy behind ordinary accesses. A store races with an earlier load
also where nobody uses its value.

Stores of equal bits by one instruction do not race with each other, nor do those of one constant
by several, whether the threads are of one block or not: a result that each thread knows is often
stored by all, and so are flags. A read of what they store is held against the last of them. Shared
memory has the same rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from ..analysis import ORDINARY, alike, constant_stores, guarded_loads, used_atomics
from ..geometry import Batch
from ..hardware import WARP
from ..instructions import Instruction, PtxKernel
from ..suspicion import Suspicion
from .access import Access
from .causality import BLOCK, CLUSTER, GPU, WEAK, Causality
from .stamps import EVENT_BITS, THREAD, Stamps, keep_two

KIND = "race on global memory"
STALE = "read-only load of what is written"
UNFINISHED = 2**31 - 1  # the time of an asynchronous access that nobody has waited for
PACKED = {"f16x2", "bf16x2"}
EMPTY = np.zeros(0, np.int64)
# What the shadow of an array remembers. Of reads and strong writes the lowest and highest thread.
WEAK_WRITE, WEAK_READ, STRONG_WRITE, STRONG_READ = (0,), (1, 2), (3, 4), (5, 6)
ATOMIC = 7  # the last access, where it is an atomic whose result is used


class Epochs:
    """The stamps of an array, one for every `grain` bytes; 0 where there is none. The grain is the
    width of the smallest access until now: accesses are aligned, so that none is in part of one."""

    def __init__(self, name: str, size: int):
        self.name, self.size, self.grain = name, size, 0
        self.piece = 0  # bytes of the strong accesses until now
        self.stamps: list[np.ndarray | None] = [None] * 8

    def entries(self, offsets: np.ndarray, width: int) -> np.ndarray:
        """The entries of the bytes from each offset on; a row for each offset if there are many."""
        if self.grain > width:
            times = self.grain // width
            self.stamps = [None if one is None else one.repeat(times) for one in self.stamps]
            self.grain = width
        self.grain = self.grain or width
        first = offsets >> (self.grain.bit_length() - 1)
        if width == self.grain:
            return first
        return first[:, None] + np.arange(width // self.grain)

    def of(self, kind: int) -> np.ndarray:
        """The stamps of a kind, made when they are needed."""
        if self.stamps[kind] is None:
            self.stamps[kind] = np.zeros(-(-self.size // self.grain), np.int64)
        return self.stamps[kind]


class Watched(Protocol):
    """What this needs of an allocation."""

    page: int  # address of the first byte of its page
    epochs: Epochs


class GlobalShadow:
    """Checks the accesses of a launch."""

    def __init__(self, kernel: PtxKernel, suspicion: Suspicion, causality: Causality):
        self.instructions, self.causality = kernel.instructions, causality
        self.suspicion, self.reporter = suspicion, suspicion.reporter
        self.order = causality.order
        self.constants, self.tickets = constant_stores(kernel), used_atomics(kernel)
        self.alike = alike(kernel)
        self.guarded = guarded_loads(kernel)
        self.atomics = np.array([one.opcode in ("atom", "red") for one in kernel.instructions])
        self.copies = np.array([one.opcode == "cp" for one in kernel.instructions])
        self.pieces = np.zeros(len(kernel.instructions), np.int8)  # bytes of a strong access
        self.scopes = np.zeros(len(kernel.instructions), np.int8)  # of its accesses
        self.stamps = Stamps()
        self.begun: list[int] = []  # asynchronous accesses that nobody has taken note of
        self.unfinished = 0  # of them and others, how many nobody has waited for
        self.mixed = False  # has seen strong accesses that need not be atomic to one another

    def start_batch(self, batch: Batch) -> None:
        self.causality.start_batch(batch)
        self.threads = np.arange(batch.slots, dtype=np.int64) + batch.first * batch.padded

    # ---- accesses ----

    def read(
        self, allocation: Watched, offsets: np.ndarray, slots: np.ndarray, access: Access
    ) -> None:
        """These slots load from these bytes of an allocation's page."""
        epochs = allocation.epochs
        entries = epochs.entries(offsets, access.width)
        if access.scope:
            self._look_at_strong(epochs, access)
        if access.read_only:
            self._look_for_writes(epochs, entries, slots, access)
        self._against(epochs, WEAK_WRITE, entries, slots, access)
        if access.scope == WEAK or self.mixed:
            self._against(epochs, STRONG_WRITE, entries, slots, access)
        self._note(epochs, STRONG_READ if access.scope else WEAK_READ, entries, slots, access)
        if access.scope:
            self.causality.read(slots, offsets + allocation.page, access)
            if access.instruction.number in self.guarded and self.causality.beliefs:
                self._look_for_beliefs(epochs, entries, slots, access)

    def write(
        self,
        allocation: Watched,
        offsets: np.ndarray,
        slots: np.ndarray,
        access: Access,
        wrote: np.ndarray | None = None,
        same: Callable[[bool], np.ndarray] | None = None,
    ) -> None:
        """These slots store to these bytes of an allocation's page. Atomics change them, where they
        `wrote`. `same(False)` says of every slot whether what it stores is there already,
        `same(True)` whether it is there after the store."""
        epochs = allocation.epochs
        entries = epochs.entries(offsets, access.width)
        if access.scope:
            self._look_at_strong(epochs, access)
        self._against(epochs, WEAK_WRITE, entries, slots, access, same and (lambda: same(False)))
        self._against(epochs, WEAK_READ, entries, slots, access)
        if access.scope:
            self._note(epochs, STRONG_WRITE, entries, slots, access)
            if self.mixed:
                self._against(epochs, STRONG_WRITE + STRONG_READ, entries, slots, access)
            if access.instruction.number in self.tickets:
                epochs.of(ATOMIC)[entries] = self._stamp(entries, slots, access)
            elif epochs.stamps[ATOMIC] is not None:
                epochs.stamps[ATOMIC][entries] = 0
            self._tell(slots, offsets + allocation.page, access, wrote)
            return
        if self.causality.flags:
            self.causality.weak_write(offsets + allocation.page)
        self._against(epochs, STRONG_WRITE + STRONG_READ, entries, slots, access)
        stamps, stamp = epochs.of(*WEAK_WRITE), self._stamp(entries, slots, access)
        stamps[entries] = stamp
        flat = entries.reshape(-1)
        apart = bool((flat[1:] > flat[:-1]).all())  # as they mostly are; else lanes may race
        if not access.asynchronous and not apart:
            self._against(epochs, WEAK_WRITE, entries, slots, access, same and (lambda: same(True)))
        for kind in WEAK_READ + STRONG_WRITE + STRONG_READ + (ATOMIC,):
            # Who comes after this write comes after them too, or races with this write.
            if epochs.stamps[kind] is not None:
                epochs.stamps[kind][entries] = 0

    def _look_at_strong(self, epochs: Epochs, access: Access) -> None:
        """From the first strong access on that is not like others, of a narrower scope or of other
        bytes, strong accesses are held against one another. A vector, a packed one too, is an
        access for each element."""
        piece = 2 if PACKED & {*access.instruction.modifiers} else access.size
        self.pieces[access.instruction.number] = piece
        self.mixed |= access.scope < GPU or epochs.piece not in (0, piece)
        epochs.piece = piece

    def _tell(
        self, slots: np.ndarray, addresses: np.ndarray, access: Access, wrote: np.ndarray | None
    ) -> None:
        if wrote is None:
            self.causality.write(slots, addresses, access)
        else:
            self.causality.change(slots, addresses, wrote, access)

    # ---- stamps ----

    def _stamp(self, entries: np.ndarray, slots: np.ndarray, access: Access) -> np.ndarray:
        site, threads = access.instruction.number, self.threads[slots]
        threads = threads if entries.ndim == 1 else threads[:, None]
        self.scopes[site] = access.scope
        if not access.asynchronous:
            return self.stamps.made(site, self.order.now, threads)
        event = self.stamps.new_event(site, UNFINISHED)
        self.begun.append(event)
        self.unfinished += 1
        return threads + (event << EVENT_BITS)

    def _note(
        self, epochs: Epochs, kinds: tuple, entries: np.ndarray, slots: np.ndarray, access: Access
    ) -> None:
        """Remember an access of which two are kept."""
        stamp = self._stamp(entries, slots, access)
        low, high = (epochs.of(kind) for kind in kinds)
        if not low[entries].any():
            # Lanes ascend and the last assignment wins: the lowest of them, and the highest.
            low[entries[::-1]] = np.broadcast_to(stamp, entries.shape)[::-1]
            if (low[entries] != stamp).any():
                high[entries] = stamp
            return
        mine = slots if entries.ndim == 1 else slots[:, None]
        keep_two((low, high), entries, stamp, lambda stamps: self._gone(stamps, mine))

    def _gone(self, stamps: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Whether a stamp need not be kept: there is none, or it comes before what the slots do."""
        result = stamps == 0
        left = np.nonzero(~result)
        if len(left[0]):
            asked = stamps[left]
            slots = np.broadcast_to(slots, stamps.shape)[left]
            times = self.stamps.time(asked)
            result[left] = self.causality.ordered(asked & THREAD, times, slots)
        return result

    # ---- asynchronous accesses ----

    def stored(self, epochs: Epochs, start: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Threads of the batch, as slots, that have stored to bytes of an array last, and when;
        copies are left out."""
        slots, times = [], []
        first, last = start // epochs.grain, -(-(start + size) // epochs.grain)
        for kind in (*WEAK_WRITE, *STRONG_WRITE):
            if epochs.stamps[kind] is not None:
                stamps = epochs.stamps[kind][first:last]
                slot = (stamps & THREAD) - self.causality.first
                mine = (stamps != 0) & (slot >= 0) & (slot < len(self.threads))
                mine &= ~self.copies[self.stamps.site(stamps)]
                slots.append(slot[mine])
                times.append(self.stamps.time(stamps[mine]))
        return np.concatenate(slots or [EMPTY]), np.concatenate(times or [EMPTY])

    def take(self) -> tuple[int, ...]:
        """The asynchronous accesses that have begun since this was last asked, for `finish`."""
        begun, self.begun = tuple(self.begun), []
        return begun

    def finish(self, events: tuple[int, ...]) -> None:
        """Somebody has waited for these accesses: they are as if they were made now."""
        for event in events:
            if self.stamps.times[event] == UNFINISHED:
                self.stamps.times[event] = self.order.now
                self.unfinished -= 1

    # ---- judging ----

    def _against(
        self,
        epochs: Epochs,
        kinds: tuple,
        entries: np.ndarray,
        slots: np.ndarray,
        access: Access,
        same: Callable[[], np.ndarray] | None = None,
    ) -> None:
        """Hold these accesses against what is remembered. `same` says of every slot whether it
        stores what is there."""
        for kind in kinds:
            if epochs.stamps[kind] is None:
                continue
            stamps = epochs.stamps[kind][entries]
            if not stamps.any():
                continue
            threads = self.threads[slots]
            other = (stamps & THREAD) != (threads if entries.ndim == 1 else threads[:, None])
            if self.unfinished:  # not even its own thread comes after it
                other |= self.stamps.time(stamps) == UNFINISHED
            other &= stamps != 0
            if other.any():
                where = np.nonzero(other)
                last = None
                if kind in STRONG_WRITE and epochs.stamps[ATOMIC] is not None:
                    last = epochs.stamps[ATOMIC][entries][where]
                self._judge(epochs.name, stamps[where], slots[where[0]], access, last, same)

    def _taken_turns(self, stamps: np.ndarray, slots: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Whether these are atomics, and the slots come behind the last atomic at the same place,
        whose result is used and says what all before it made: whoever draws the last ticket may
        reset it."""
        result = self.atomics[self.stamps.site(stamps)] & (last != 0)
        if result.any():
            last, slots = last[result], slots[result]
            times = self.stamps.time(last)
            result[result] = self.causality.ordered(last & THREAD, times, slots)
        return result

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
                other = self.instructions[self.stamps.site(stamps[entries][where][0])]
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
        set behind it. A word that an atomic has changed and asked is a flag itself: who has seen
        it once sees nothing older ([ptx] "Coherence")."""
        asked = epochs.stamps[ATOMIC]
        for kind in STRONG_WRITE:
            stamps = epochs.stamps[kind]
            if stamps is None or not stamps[entries].any():
                continue
            where = np.nonzero((stamps[entries] != 0) & (asked is None or asked[entries] == 0))
            found, mine = stamps[entries][where], slots[where[0]]
            threads, times = found & THREAD, self.stamps.time(found)
            left = np.flatnonzero(threads != self.threads[mine])
            about = threads[left], times[left], mine[left]
            left = left[self.causality.beliefs.ordered(*about)]
            about = threads[left], times[left], mine[left]
            left = left[~self.causality.ordered(*about, strong=True)]
            if len(left):
                other = self.instructions[self.stamps.site(found[left[0]])]
                message = (
                    f"this load and the {verb(other)} in line {other.line} reach the same bytes of "
                    f"{epochs.name}; a flag that is read before says that they have been written, "
                    "but it needs a fence before it is set and one behind it where it is read, "
                    "__threadfence() where that is another block"
                )
                self.suspicion.doubt(
                    KIND, access.instruction, message, np.unique(mine[left]), other=other
                )
                return

    def _judge(
        self,
        name: str,
        stamps: np.ndarray,
        slots: np.ndarray,
        access: Access,
        last: np.ndarray | None,
        same: Callable[[], np.ndarray] | None,
    ) -> None:
        threads, sites = stamps & THREAD, self.stamps.site(stamps)
        racing = np.ones(len(stamps), bool)
        scopes = self.scopes[sites]
        distances = None
        if access.scope and scopes.any():
            distances = self.causality.distance(threads, self.threads[slots])
            weak = (scopes == WEAK) | (np.minimum(scopes, access.scope) < distances)
            racing &= weak | (self.pieces[sites] != self.pieces[access.instruction.number])
        again = self.alike[sites] == self.alike[access.instruction.number]
        if access.instruction.number in self.constants:
            racing &= ~again
        if last is not None and racing.any():
            racing &= ~self._taken_turns(stamps, slots, last)
        left = np.flatnonzero(racing)
        if not len(left):
            return
        times = self.stamps.time(stamps[left])
        strong = bool(access.scope)
        ordered = self.causality.ordered(threads[left], times, slots[left], strong)
        left = left[~ordered | (times == UNFINISHED)]
        if same is not None and not access.scope and len(left):
            if again[left].any():
                left = left[~(again[left] & same()[slots[left]])]
        if not len(left):
            return
        for site in np.unique(sites[left]).tolist():
            ours = left[sites[left] == site]
            first = ours[0]
            earlier = int(threads[first]), int(self.stamps.time(stamps[first])), site
            self._report(name, earlier, int(scopes[first]), np.unique(slots[ours]), access)

    # ---- saying ----

    def _report(
        self,
        name: str,
        earlier: tuple[int, int, int],
        scope: int,
        slots: np.ndarray,
        access: Access,
    ) -> None:
        thread, time, site = earlier
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


def verb(instruction: Instruction) -> str:
    """What an instruction does, in a word."""
    return {"ld": "load", "ldu": "load", "st": "store", "cp": "copy"}.get(
        instruction.opcode, "atomic"
    )
