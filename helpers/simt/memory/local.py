"""Local memory: what each thread keeps for itself and registers cannot hold; and generic addresses,
with a window for shared memory, one for local memory, and all others global.

Arrays that are indexed at run time, and the arguments of function calls. The hardware interleaves
the threads of a warp word by word, so that a warp whose lanes all access the same word of theirs
touches one contiguous piece of 128 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..findings import Suspicion
from ..geometry import Batch, Lanes
from ..hardware import WARP, WORD
from ..instructions import Variable
from .access import (
    LOCAL_END,
    LOCAL_WINDOW,
    SHARED_END,
    SHARED_WINDOW,
    Access,
    distinct_per_warp,
)
from .global_memory import GlobalMemory
from .own import OwnMemory
from .shared import SharedMemory


class LocalMemory(OwnMemory):
    """The local memory of all threads of a batch. Behind the variables is a stack of so many bytes
    for those of calls."""

    name = "local"

    def __init__(self, variables: list[Variable], suspicion: Suspicion, stack: int = 0):
        kind, message = "read of an uninitialised variable", "this thread has stored nothing there"
        super().__init__(variables, suspicion, kind, message)
        self.stack_start = -(-self.bytes // 16) * 16 if stack else self.bytes
        self.bytes = self.stack_start + stack

    def start_batch(self, batch: Batch) -> None:
        self.fill(batch.slots, 8)

    def begin_frame(self, slots: np.ndarray, starts: np.ndarray, size: int) -> None:
        """A call of these threads begins: its variables, from these bytes on, are unwritten."""
        if size:
            self.overwrite(slots * self.stride + starts, size, written=False)

    def copy(self, slots: np.ndarray, source: int, target: int, size: int) -> None:
        """These threads pass `size` bytes on, and what is known of them."""
        rows = (slots * self.stride)[:, None] + np.arange(size)
        for bytes_ in (self.views[1], self.bits[1], self.origins):
            if bytes_ is not None and len(bytes_):
                bytes_[rows + target] = bytes_[rows + source]

    def where(self, slots: np.ndarray, wanted: np.ndarray, access: Access):
        return slots, wanted, (wanted < 0) | (wanted + access.width > self.bytes)

    def explain(self, kind: str, address: int, access: Access) -> str:
        return (
            f"{access.width} bytes at byte {address} of the thread's {self.bytes} bytes of local "
            "memory"
        )

    def count(self, verb: str, addresses: np.ndarray, access: Access, lanes: Lanes) -> None:
        """In the interleaved layout word k of lane l is number 32 k + l of its warp."""
        tally, lane = vars(access.tally), np.arange(len(addresses)) % WARP
        tally[f"local_{verb}_requests"] += lanes.warps
        for word in range(max(1, access.width // WORD)):
            sectors = lanes.with_stand_ins((addresses // WORD + word) * 4 + lane // 8)
            tally[f"local_{verb}_sectors"] += distinct_per_warp(sectors) - lanes.idle_warps


# ---- generic addresses ---------------------------------------------------------------------------


class GenericMemory:
    """Hands each lane's address to the memory that it is in."""

    def __init__(self, memory: GlobalMemory, shared: SharedMemory, local: LocalMemory):
        self.global_memory = memory
        self.windows = (
            (SHARED_WINDOW, SHARED_END, shared),
            (LOCAL_WINDOW, LOCAL_END, local),
        )

    def parts(self, addresses: np.ndarray, lanes: Lanes):
        """Yields (memory, first address of its window, lanes whose addresses are there)."""
        if addresses.min() >= self.windows[-1][1]:
            yield self.global_memory, 0, lanes
            return
        for memory, low, inside in self.split(addresses):
            if (lanes.mask & inside).any():
                yield memory, low, Lanes(lanes.mask & inside)

    def split(
        self, addresses: np.ndarray
    ) -> Iterator[tuple[GlobalMemory | SharedMemory | LocalMemory, int, np.ndarray]]:
        """Yields (memory, first address of its window, which addresses are there)."""
        outside = np.ones(len(addresses), bool)
        for low, high, memory in self.windows:
            inside = (addresses >= low) & (addresses < high)
            outside &= ~inside
            if inside.any():
                yield memory, low, inside
        if outside.any():
            yield self.global_memory, 0, outside

    def load(self, addresses: np.ndarray, access: Access, lanes: Lanes) -> list[np.ndarray]:
        result = None
        for memory, low, chosen in self.parts(addresses, lanes):
            values = memory.load(chosen.with_stand_ins(addresses) - low, access, chosen)
            if result is None:
                result = values
            else:
                pairs = zip(values, result, strict=True)
                result = [np.where(chosen.mask, new, old) for new, old in pairs]
        return result

    def store(self, addresses, values, access: Access, lanes: Lanes) -> None:
        for memory, low, chosen in self.parts(addresses, lanes):
            wide = [np.broadcast_to(value, addresses.shape) for value in values]
            kept = [chosen.with_stand_ins(value) for value in wide]
            memory.store(chosen.with_stand_ins(addresses) - low, kept, access, chosen)
