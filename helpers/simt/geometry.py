"""Which threads run together, and where each of them stands in the launch.

Blocks run in batches. A batch has a slot for each of its threads, block after block, each block
padded to whole warps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from .hardware import (
    SM_BLOCKS,
    SM_SHARED_BYTES,
    SM_THREADS,
    SMS,
    SYSTEM_SHARED_BYTES,
    WARP,
)

BATCH_THREADS = 32768
BATCH_BYTES = 16 << 20  # of shared and local memory

Place = tuple[int, int, int]


@dataclass(frozen=True)
class Shape:
    """Of a launch: its blocks, the threads of each, and the blocks of a cluster."""

    grid: Place
    block: Place
    cluster: Place = (1, 1, 1)

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
        size, clusters = self.cluster_blocks, self.clusters
        of = unravel(number // size, clusters)
        own = unravel(number % size, self.cluster)
        return tuple(a * one + b for a, b, one in zip(of, own, self.cluster, strict=True))

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


def special_registers(batch: Batch) -> dict[str, np.ndarray]:
    """The registers that differ from thread to thread or tell of the launch, all as uint32."""
    shape, padded = batch.shape, batch.padded
    slots = np.arange(batch.slots, dtype=np.int64)
    thread, block_number = slots % padded, batch.first + slots // padded
    lane = thread % WARP
    values = {"%laneid": lane, "%warpid": thread // WARP}
    bits = np.int64(1) << lane
    values["%lanemask_eq"], values["%lanemask_lt"] = bits, bits - 1
    values["%lanemask_le"] = 2 * bits - 1
    values["%lanemask_gt"] = 0xFFFFFFFF - values["%lanemask_le"]
    values["%lanemask_ge"] = 0xFFFFFFFF - values["%lanemask_lt"]
    rank = slots // padded % shape.cluster_blocks
    triples = {
        "tid": unravel(thread, shape.block),
        "ctaid": shape.block_place(block_number),
        "ntid": shape.block,
        "nctaid": shape.grid,
        "clusterid": unravel(block_number // shape.cluster_blocks, shape.clusters),
        "nclusterid": shape.clusters,
        "cluster_ctaid": unravel(rank, shape.cluster),
        "cluster_nctaid": shape.cluster,
    }
    for prefix, triple in triples.items():
        for axis, value in zip("xyz", triple, strict=True):
            values[f"%{prefix}.{axis}"] = np.atleast_1d(value)
    values["%cluster_ctarank"] = rank
    values["%cluster_nctarank"] = np.array([shape.cluster_blocks])
    values["%is_explicit_cluster"] = np.array([shape.cluster_blocks > 1])
    values["%nwarpid"] = np.array([padded // WARP])
    values["%gridid"] = values["%smid"] = np.array([0])
    values["%nsmid"] = np.array([SMS])
    for name in list(values):
        if not values[name].any():
            values[name] = np.array([0])  # the same in every thread: one value serves all
    if batch.count == 1:
        for name in list(values):
            if "cta" in name or "cluster" in name:
                values[name] = values[name][:1]
    return {name: value.astype(np.uint32) for name, value in values.items()}
