"""What all memories share: an access, and where the address spaces lie."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..hardware import MAX_CLUSTER, SECTOR, WARP, Counters
from ..instructions import UNSIGNED, Instruction

# Addresses within the shared memory of the own block start at 0, those of rank r of the cluster
# at (r + 1) * SHARED_STEP; addresses of local memory start at 0 in every thread. Generic addresses
# of either are in a window, and every array of global memory lies above both.
SHARED_WINDOW = 1 << 32
SHARED_STEP = 1 << 24
SHARED_END = SHARED_WINDOW + (MAX_CLUSTER + 1) * SHARED_STEP
LOCAL_WINDOW = 1 << 33
LOCAL_END = LOCAL_WINDOW + (1 << 24)


class Pattern:
    """How the addresses of an access lie to the first of them. It is often the same in each round
    of a loop, and what follows from it need not be found again."""

    def __init__(self, offsets: np.ndarray):
        self.offsets = offsets
        self.lowest, self.highest = int(offsets.min()), int(offsets.max())
        self.low_bits = int(np.bitwise_or.reduce(offsets))
        self.sectors: dict[int, int] = {}  # by where in a sector the first address is

    def sectors_from(self, first: int) -> int:
        """Sectors of all warps, if the first address is this."""
        place = first % SECTOR
        if place not in self.sectors:
            self.sectors[place] = distinct_per_warp((self.offsets + place) // SECTOR)
        return self.sectors[place]


@dataclass
class Access:
    """One memory instruction: `elements` values of `size` bytes each for every lane."""

    instruction: Instruction
    size: int
    elements: int
    tally: Counters = field(default_factory=Counters)
    steers: bool = False  # an address or a jump depends on what is loaded
    atomic: bool = False  # half of a read-modify-write; counted and ordered by itself
    polls: bool = False  # a loop runs until this load reads otherwise
    variable: str = ""  # of shared memory: the one that the address is reckoned from, if known
    scope: int = 0  # of a strong access to global memory, as causality.py numbers them
    acquires: bool = False
    releases: bool = False
    read_only: bool = False  # by a cache that does not see what the launch stores
    asynchronous: bool = False  # goes on until somebody waits for it
    pattern: Pattern | None = None  # of the last execution

    @property
    def width(self) -> int:
        return self.size * self.elements

    def placed(self, addresses: np.ndarray) -> tuple[int, Pattern]:
        """(the first address, how the others lie to it)."""
        first = int(addresses[0])
        offsets, known = addresses - first, self.pattern
        same = known is not None and len(known.offsets) == len(offsets)
        if not same or np.count_nonzero(known.offsets != offsets):
            self.pattern = known = Pattern(offsets)
        return first, known

    def explain_alignment(self, place: str) -> str:
        """The message for an address that is no multiple of its width."""
        return (
            f"an access of {self.width} bytes needs an address that is a multiple of "
            f"{self.width}; {place}"
        )


def all_ones(count: int, access: Access) -> list[np.ndarray]:
    """What a load gives where a lane may not read: one array for each element."""
    ones = UNSIGNED[access.size].type(2 ** (8 * access.size) - 1)
    return [np.full(count, ones) for _ in range(access.elements)]


def stores_same(
    view: np.ndarray, index: np.ndarray, values: list[np.ndarray], after: bool
) -> np.ndarray:
    """Whether the bytes that each lane stores are in memory, before or `after` the store."""
    if after:
        for element, value in enumerate(values):
            view[index + element] = value
    there = [view[index + element] == value for element, value in enumerate(values)]
    return np.logical_and.reduce(there)


def distinct_per_warp(sectors: np.ndarray) -> int:
    """Sum over warps of the number of different sectors among the warp's lanes."""
    by_warp = sectors.reshape(-1, WARP)
    steps = by_warp[:, 1:] - by_warp[:, :-1]
    if steps.min() < 0:  # lanes out of order: rare, and sorting costs
        by_warp = np.sort(by_warp, axis=1)
        steps = by_warp[:, 1:] - by_warp[:, :-1]
    return int(np.count_nonzero(steps)) + len(by_warp)
