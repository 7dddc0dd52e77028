"""Threads that may run, by where they stand."""

from __future__ import annotations

import numpy as np


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
