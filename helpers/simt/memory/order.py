"""Which accesses come before which, as barriers and waits order them: what a race is judged by.

A clock counts synchronisations; `seen[w, v]` says up to when the accesses of warp v are ordered
before those that warp w makes now. A barrier, a `__syncwarp` or a wait moves it on. Where lanes of
a warp meet without the others, `lanes[w, l, m]` says it of lanes l and m of warp w.
"""

from __future__ import annotations

import numpy as np

from ..geometry import Batch
from ..hardware import WARP

WARP_BITS = WARP.bit_length() - 1


class Order:
    """The clock of a batch, and what each of its warps has seen. The columns of `seen` are the
    warps of a cluster."""

    def start_batch(self, batch: Batch) -> None:
        self.padded = batch.padded
        self.cluster = batch.shape.cluster_blocks
        self.now = 1
        self.warps = self.cluster * self.padded // WARP  # of a cluster
        self.seen = np.zeros((batch.slots // WARP, self.warps), np.int32)
        self.lanes: np.ndarray | None = None  # made when some lanes meet first
        self.alive = batch.alive

    def order_blocks(
        self, passing: np.ndarray, arrived: dict[int, np.ndarray] | None = None
    ) -> None:
        """The warps of these threads have met at a barrier of their block. `arrived` holds the
        warps that came earlier without waiting, and what each of them had seen then."""
        self.now += 1
        by_block = passing.reshape(-1, WARP).any(axis=1).reshape(-1, self.padded // WARP)
        blocks = np.flatnonzero(by_block.any(axis=1))
        per_block = self.padded // WARP
        for number, seen in (arrived or {}).items():
            rows = number // per_block * per_block + np.flatnonzero(by_block[number // per_block])
            self.seen[rows] = np.maximum(self.seen[rows], seen)
        seen = self.seen.reshape(-1, per_block, self.warps)[blocks]
        taking = by_block[blocks]
        if self.cluster > 1 or not taking.all():  # what one of them knows, all know now
            known = np.where(taking[:, :, None], seen, 0).max(axis=1, keepdims=True)
            seen = np.where(taking[:, :, None], np.maximum(seen, known), seen)
        first = blocks % self.cluster * per_block  # the columns of the block's own warps
        columns = np.arange(self.warps) - first[:, None]
        own = (columns >= 0) & (columns < per_block)
        own &= np.take_along_axis(taking, np.clip(columns, 0, per_block - 1), axis=1)
        seen[taking[:, :, None] & own[:, None, :]] = self.now
        self.seen.reshape(-1, per_block, self.warps)[blocks] = seen

    def order_warps(self, warps: np.ndarray) -> None:
        """The lanes of these warps have met."""
        self.now += 1
        self.seen[warps, warps % self.warps] = self.now

    def order_lanes(self, mask: np.ndarray) -> None:
        """These lanes have met those of their warp."""
        by_warp = mask.reshape(-1, WARP)
        whole = (mask == self.alive).reshape(-1, WARP).all(axis=1)
        present = by_warp.any(axis=1)
        self.order_warps(np.flatnonzero(present & whole))
        if (rest := np.flatnonzero(present & ~whole)).size:
            if self.lanes is None:
                self.lanes = np.zeros((len(self.seen), WARP, WARP), np.int32)
            patterns, which = np.unique(by_warp[rest], axis=0, return_inverse=True)
            for number, pattern in enumerate(patterns):
                self._meet(rest[which.reshape(-1) == number], np.flatnonzero(pattern))

    def _meet(self, warps: np.ndarray, members: np.ndarray) -> None:
        known = self.lanes[warps[:, None], members].max(axis=1)
        known[:, members] = self.now
        self.lanes[warps[:, None], members] = known[:, None]

    def until(self, slots: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Up to when accesses of the threads `others` come before those of `slots` now."""
        # Shifts, or a mask: a quotient of whole arrays takes several times as long.
        column, warps = others >> WARP_BITS, self.warps
        column = column & (warps - 1) if warps & (warps - 1) == 0 else column % warps
        seen = self.seen.reshape(-1)[(slots >> WARP_BITS) * warps + column]
        if self.lanes is None:
            return seen
        lanes = self.lanes[slots // WARP, slots % WARP, others % WARP]
        return np.where(slots // WARP == others // WARP, np.maximum(seen, lanes), seen)

    def learn(self, threads: np.ndarray, known: np.ndarray) -> None:
        """The warps of these threads see what comes before them: `known`, by cluster."""
        warps = np.flatnonzero(threads.reshape(-1, WARP).any(axis=1))
        self.seen[warps] = np.maximum(self.seen[warps], known[warps // self.warps])

    def holds(self, earlier: np.ndarray, times: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Whether an access of the threads `earlier` at that time comes before one of `slots`
        now."""
        return (times < self.until(slots, earlier)) | (earlier == slots)

    def column(self, slot: int) -> int:
        """The column of a thread's warp."""
        return slot // WARP % self.warps
