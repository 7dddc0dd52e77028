"""The threads that execute an instruction together, and those that may run, by where they stand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from .hardware import WARP


class Lanes:
    """Some slots of a batch."""

    def __init__(self, mask: np.ndarray, whole: bool = False):
        self.mask = mask  # bool, one slot per thread of the batch
        self.whole = whole  # no other thread is alive: a result may overwrite every slot
        self.active_warps = mask.reshape(-1, WARP).any(axis=1)
        self.warps = int(np.count_nonzero(self.active_warps))
        self.count = int(np.count_nonzero(mask))
        self.idle_warps = len(self.active_warps) - self.warps

    @cached_property
    def slots(self) -> np.ndarray:
        """The numbers of the active slots."""
        return np.flatnonzero(self.mask)

    @cached_property
    def stand_in(self) -> np.ndarray | None:
        """For each slot a slot to copy so that every slot holds the address of an active lane,
        of its own warp where it has one; None if every slot is active."""
        if self.count == len(self.mask):
            return None
        slots = np.arange(len(self.mask)).reshape(-1, WARP)
        active = self.mask.reshape(-1, WARP)
        latest = np.maximum.accumulate(np.where(active, slots, -1), axis=1)
        first = slots[:, 0] + active.argmax(axis=1)
        anywhere = int(self.mask.argmax())
        first = np.where(self.active_warps, first, anywhere)
        return np.where(latest >= 0, latest, first[:, None]).reshape(-1)

    def with_stand_ins(self, values: np.ndarray) -> np.ndarray:
        """A value for every slot, those of others than these taken from the stand-ins."""
        return values if self.stand_in is None else values[self.stand_in]


Step = Callable[[Lanes], None]  # executes one instruction


class Groups(dict[int, np.ndarray]):
    """Masks of threads by a key: the lowest runs first. It is the number of a basic block; of
    threads within calls, lower by `step` for each call, so that who is deepest in calls goes first
    and all meet again behind them."""

    def __init__(self, blocks: int, depth: np.ndarray | None = None):
        super().__init__()
        self.step = blocks + 1
        self.depth = depth  # of each thread, in calls; None: nobody calls

    def add(self, number: int | None, mask: np.ndarray) -> None:
        """Let threads wait at a basic block, with those that wait there already; None: they
        return."""
        if number is None:
            return
        if self.depth is None:
            self._join(number, mask)
            return
        for depth in np.unique(self.depth[mask]).tolist():
            self._join(number - depth * self.step, mask & (self.depth == depth))

    def _join(self, key: int, mask: np.ndarray) -> None:
        self[key] = self[key] | mask if key in self else mask
