"""Which threads run together, where each of them stands in the launch, and which execute an
instruction together.

Blocks run in batches. A batch has a slot for each of its threads, block after block, each block
padded to whole warps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from .hardware import SM_BLOCKS, SM_SHARED_BYTES, SM_THREADS, SMS, SYSTEM_SHARED_BYTES, WARP

BATCH_THREADS = 32768
BATCH_BYTES = 16 << 20  # of shared and local memory

Place = tuple[int, int, int]


@dataclass(frozen=True)
class Shape:
    """Of a launch: its blocks, the threads of each, and the blocks of a cluster."""

    grid: Place
    block: Place
    cluster: Place = (1, 1, 1)
    backwards: bool = False  # the last cluster runs first

    @property
    def blocks(self) -> int:
        return prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return prod(self.block)

    @property
    def padded(self) -> int:
        """Slots of a block: its threads, to whole warps."""
        return -(-self.threads // WARP) * WARP

    @property
    def cluster_blocks(self) -> int:
        return prod(self.cluster)

    def resident(self, shared_bytes: int) -> int:
        """How many blocks an H200 runs at once, as far as threads and shared memory go."""
        by_shared = SM_SHARED_BYTES // (shared_bytes + SYSTEM_SHARED_BYTES)
        return SMS * min(SM_THREADS // self.padded, SM_BLOCKS, by_shared)

    def batches(self, bytes_per_block: int = 0, resident: int = 0) -> Iterator[Batch]:
        """Cut the grid.

        A batch is bounded in threads and in shared and local memory, so that memory is bounded
        for any grid. It holds whole clusters, and if blocks wait for others at least the
        `resident` ones, those that run at once.
        """
        step = min(BATCH_THREADS // self.padded, BATCH_BYTES // max(1, bytes_per_block))
        step = max(1, (resident or step) // self.cluster_blocks) * self.cluster_blocks
        for first in range(0, self.blocks, step):
            yield Batch(self, first, min(step, self.blocks - first))

    def block_place(self, number):
        """(x, y, z) in the grid of the block that runs as that number: cluster after cluster."""
        of = self.cluster_place(number)
        own = unravel(number % self.cluster_blocks, self.cluster)
        return tuple(a * one + b for a, b, one in zip(of, own, self.cluster, strict=True))

    def cluster_place(self, number):
        """(x, y, z) among the clusters of the cluster that this block belongs to."""
        place = number // self.cluster_blocks
        if self.backwards:
            place = self.blocks // self.cluster_blocks - 1 - place
        return unravel(place, self.clusters)

    @property
    def clusters(self) -> Place:
        return tuple(all_ // one for all_, one in zip(self.grid, self.cluster, strict=True))


@dataclass(frozen=True)
class Batch:
    """Blocks `first`, `first + 1`, ... of a launch, as many as `count`."""

    shape: Shape
    first: int
    count: int

    @cached_property
    def padded(self) -> int:
        """Slots of a block."""
        return self.shape.padded

    @cached_property
    def slots(self) -> int:
        return self.count * self.padded

    @cached_property
    def alive(self) -> np.ndarray:
        """Which slots hold a thread."""
        return np.arange(self.slots) % self.padded < self.shape.threads

    def place(self, slot: int) -> tuple[Place, Place]:
        """(block, thread) of a slot."""
        block = self.shape.block_place(self.first + slot // self.padded)
        return block, unravel(slot % self.padded, self.shape.block)


def unravel(number, sizes: Place) -> tuple:
    """A linear number (or an array of them) as (x, y, z), x fastest."""
    return number % sizes[0], number // sizes[0] % sizes[1], number // (sizes[0] * sizes[1])


class SpecialRegisters:
    """The registers that differ from thread to thread or tell of the launch, all as uint32: made
    for a batch when they are read."""

    def __init__(self, batch: Batch):
        self.same: dict[str, int] = {}  # of the launch, by name
        self.start_batch(batch)

    def start_batch(self, batch: Batch) -> None:
        self.batch = batch
        self.values: dict[str, np.ndarray] = {}

    def __contains__(self, name: str) -> bool:
        try:
            return bool(len(self.read(name)))
        except (KeyError, ValueError):
            return False

    def read(self, name: str) -> np.ndarray:
        """An element for each slot, or one where the value is the same in all."""
        if name not in self.values:
            value = np.atleast_1d(self.same[name] if name in self.same else self._of(name))
            of_blocks = "cta" in name or "cluster" in name
            if not value.any() or (of_blocks and self.batch.count == 1):
                value = value[:1]  # one value serves all
            self.values[name] = value.astype(np.uint32)
        return self.values[name]

    def _of(self, name: str):
        """A number, or an array of one for each slot."""
        shape, padded = self.batch.shape, self.batch.padded
        slots = np.arange(self.batch.slots, dtype=np.int64)
        thread, block_number = slots % padded, self.batch.first + slots // padded
        lane, rank = thread % WARP, slots // padded % shape.cluster_blocks
        name, _, axis = name[1:].partition(".")
        if axis:
            triple = {
                "tid": lambda: unravel(thread, shape.block),
                "ctaid": lambda: shape.block_place(block_number),
                "ntid": lambda: shape.block,
                "nctaid": lambda: shape.grid,
                "clusterid": lambda: shape.cluster_place(block_number),
                "nclusterid": lambda: shape.clusters,
                "cluster_ctaid": lambda: unravel(rank, shape.cluster),
                "cluster_nctaid": lambda: shape.cluster,
            }[name]()
            return triple["xyz".index(axis)]
        bit = np.int64(1) << lane
        return {
            "laneid": lambda: lane,
            "warpid": lambda: thread // WARP,
            "lanemask_eq": lambda: bit,
            "lanemask_lt": lambda: bit - 1,
            "lanemask_le": lambda: 2 * bit - 1,
            "lanemask_gt": lambda: 0xFFFFFFFF - (2 * bit - 1),
            "lanemask_ge": lambda: 0xFFFFFFFF - (bit - 1),
            "cluster_ctarank": lambda: rank,
            "cluster_nctarank": lambda: shape.cluster_blocks,
            "is_explicit_cluster": lambda: shape.cluster_blocks > 1,
            "nwarpid": lambda: padded // WARP,
            "gridid": lambda: 0,
            "smid": lambda: 0,
            "nsmid": lambda: SMS,
        }[name]()


# ---- lanes ---------------------------------------------------------------------------------------


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
        self.depth = depth  # of each thread, in calls; None: no calls

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


@functools.lru_cache(maxsize=4)
def numbered(slots: int) -> tuple[np.ndarray, np.ndarray]:
    """(its lane, the first slot of its warp) of each slot."""
    every = np.arange(slots)
    return every & (WARP - 1), every & ~(WARP - 1)
