"""Who has touched a piece of memory, how, and when: what the shadows of shared and of global memory
remember of each."""

from __future__ import annotations

import numpy as np

EVENT_BITS = 32  # of a stamp: the number of the event, above the thread
THREAD = (1 << EVENT_BITS) - 1


class Stamps:
    """A stamp is one int64 for a thread and an event: an instruction that was executed at a time. 0
    stands for no access."""

    def __init__(self) -> None:
        self.events: dict[tuple[int, int], int] = {}  # by (number of the instruction, time)
        self.last = 0  # event
        self.sites, self.times = np.zeros((2, 64), np.int32)  # of the events

    def new_event(self, site: int, time: int) -> int:
        self.last += 1
        if self.last == len(self.sites):
            self.sites, self.times = (
                np.concatenate([one, np.zeros_like(one)]) for one in (self.sites, self.times)
            )
        self.sites[self.last], self.times[self.last] = site, time
        return self.last

    def made(self, site: int, time: int, threads: np.ndarray) -> np.ndarray:
        """The stamps of these threads for an instruction that they execute at that time."""
        event = self.events.get((site, time))
        if event is None:
            event = self.events[site, time] = self.new_event(site, time)
        return threads + (event << EVENT_BITS)

    def site(self, stamps: np.ndarray) -> np.ndarray:
        return self.sites[stamps >> EVENT_BITS]

    def time(self, stamps: np.ndarray) -> np.ndarray:
        return self.times[stamps >> EVENT_BITS]


def keep_two(
    kept: tuple[np.ndarray, np.ndarray], entries: np.ndarray, new: np.ndarray, gone
) -> None:
    """Remember an access of which two are kept: those of the lowest and of the highest thread but
    for the ones that are `gone`, since there are none or a later access comes after them. A row of
    `entries` for each lane, and its stamp in `new`."""
    low, high = kept
    lows, highs = low[entries], high[entries]
    free_low, free_high = gone(lows), gone(highs)
    thread = new & THREAD
    take_low = free_low | (thread < (lows & THREAD)) & ~free_high
    take_high = free_high | (thread > (highs & THREAD)) & ~free_low
    # Lanes ascend and the last assignment wins: the lowest of them, and the highest.
    low[entries[::-1]] = np.where(take_low, new, lows)[::-1]
    high[entries] = np.where(take_high, new, highs)
