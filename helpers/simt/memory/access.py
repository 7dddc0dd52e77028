"""What all memories share: an access, undefined bits, and where the address spaces lie."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..counters import Counters
from ..hardware import MAX_CLUSTER, WARP
from ..instructions import Instruction
from ..ptx_types import UNSIGNED
from ..suspicion import Suspicion

# Addresses within the shared memory of the own block start at 0, those of rank r of the cluster
# at (r + 1) * SHARED_STEP; addresses of local memory start at 0 in every thread. Generic addresses
# of either are in a window, and every array of global memory lies above both.
SHARED_WINDOW = 1 << 32
SHARED_STEP = 1 << 24
SHARED_END = SHARED_WINDOW + (MAX_CLUSTER + 1) * SHARED_STEP
LOCAL_WINDOW = 1 << 33
LOCAL_END = LOCAL_WINDOW + (1 << 24)


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

    @property
    def width(self) -> int:
        return self.size * self.elements

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


def distinct_per_warp(sectors: np.ndarray) -> int:
    """Sum over warps of the number of different sectors among the warp's lanes."""
    by_warp = sectors.reshape(-1, WARP)
    steps = by_warp[:, 1:] - by_warp[:, :-1]
    if steps.min() < 0:  # lanes out of order: rare, and sorting costs
        by_warp = np.sort(by_warp, axis=1)
        steps = by_warp[:, 1:] - by_warp[:, :-1]
    return int(np.count_nonzero(steps)) + len(by_warp)


class Carried:
    """Undefined bits that were stored, and their origin, beside every byte of a batch's shared or
    local memory until it is written again. Nothing costs before the first of them."""

    def __init__(self, suspicion: Suspicion):
        self.suspicion = suspicion

    def start_batch(self, size: int) -> None:
        self.size = size
        self.bits: np.ndarray | None = None
        self.origins = np.zeros(0, np.int64)

    def overwrite(self, places: np.ndarray, width: int) -> None:
        """Bytes that are all defined have come to these places."""
        if self.bits is not None:
            self.bits[places[:, None] + np.arange(width)] = 0

    def store(self, slots: np.ndarray, places: np.ndarray, width: int) -> None:
        """These threads have stored `width` bytes at these places."""
        shadows = self.suspicion.storing
        self.overwrite(places, width)
        if shadows is None:
            return
        if self.bits is None:
            self.bits = np.zeros(self.size, np.uint8)
            self.origins = np.full(self.size, -1)
        size = width // len(shadows)
        for element, shadow in enumerate(shadows):
            if shadow is not None:
                at = places[:, None] + np.arange(element * size, (element + 1) * size)
                bits = shadow.bits[slots].astype(UNSIGNED[size])
                self.bits[at] = bits.view(np.uint8).reshape(-1, size)
                self.origins[at] = np.max([one[slots] for one in shadow.origins], axis=0)[:, None]

    def load(self, slots: np.ndarray, places: np.ndarray, width: int) -> None:
        """These threads load `width` bytes from these places."""
        if self.bits is not None:
            at = places[:, None] + np.arange(width)
            bits = self.bits[at]
            if bits.any():
                self.suspicion.found(slots, bits, self.origins[at])
