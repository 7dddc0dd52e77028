"""Reads that a store may race with, kept until it is known whether anybody uses what was read.

A store that touches what another thread has read is no race if that thread throws the value away.
Most launches have no such store, so the first run only notes which loads are touched so; if there
are any, a second run watches what these give.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..instructions import Instruction
from ..suspicion import Suspicion

MOST = 256  # executions of watched loads that are looked back at


@dataclass(eq=False)
class Read:
    """One execution of a watched load; a row for each thread."""

    instruction: Instruction
    slots: np.ndarray
    places: np.ndarray  # (threads, places)
    time: int
    origins: np.ndarray


class Reads:
    """The watched reads of a batch of one memory; a place is any number of a piece of it."""

    def __init__(self, suspicion: Suspicion):
        self.suspicion = suspicion

    def start_batch(self) -> None:
        self.reads: deque[Read] = deque(maxlen=MOST)

    def add(
        self, instruction: Instruction, slots: np.ndarray, places: np.ndarray, time: int
    ) -> bool:
        """Threads read places; False if nobody watches this load."""
        if instruction.number not in self.suspicion.watched:
            return False
        origins = self.suspicion.watch(instruction, slots)
        self.reads.append(Read(instruction, slots, places, time, origins))
        return True

    def overwritten(
        self,
        slots: np.ndarray,
        places: np.ndarray,
        ordered: Callable[[np.ndarray, int, np.ndarray], np.ndarray],
        report: Callable[[np.ndarray, np.ndarray, Instruction], None],
    ) -> None:
        """Threads store into places. `ordered` says of pairs of a reader, its time and a writer
        whether the read comes first; `report` gets what is in doubt, the origins of reads and their
        writers."""
        if not self.reads:
            return
        order = np.argsort(places.reshape(-1), kind="stable")
        written, writers = places.reshape(-1)[order], np.repeat(slots, places.shape[1])[order]
        for read in self.reads:
            wanted = read.places.reshape(-1)
            first = np.searchsorted(written, wanted)
            counts = np.searchsorted(written, wanted, side="right") - first
            rows = np.repeat(np.arange(len(wanted)), counts)  # each reader with each writer
            within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
            rows, by = rows // read.places.shape[1], writers[first[rows] + within]
            racing = ~ordered(read.slots[rows], read.time, by)
            if racing.any():
                report(read.origins[rows[racing]], by[racing], read.instruction)
