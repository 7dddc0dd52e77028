"""Generic addresses: a window for shared memory, one for local memory, all others global."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..lanes import Lanes
from .access import LOCAL_END, LOCAL_WINDOW, SHARED_END, SHARED_WINDOW, Access
from .global_memory import GlobalMemory
from .local import LocalMemory
from .shared import SharedMemory


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
