"""The hardware that the machine stands for, an H200 (compute capability 9.0): its numbers, and its
counters.

Sources: [guide] CUDA C++ Programming Guide, "Compute Capabilities", tables of features and of
technical specifications, column 9.0; [ptx] PTX ISA manual; [sheet] NVIDIA H200 data sheet;
[measured] on an H200 with Nsight Compute, see tests/data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

WARP = 32  # threads [guide]
SMS = 132  # multiprocessors [sheet]

# What CUDA allows in a launch [guide].
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_THREADS = 1024  # of a block
MAX_CLUSTER = 16  # blocks; past 8 the launch must ask for it
STATIC_SHARED_BYTES = 48 * 1024  # of a block; more must be dynamic
BLOCK_SHARED_BYTES = 227 * 1024  # of a block, static and dynamic together

# What one SM runs at once [guide].
SM_THREADS = 2048
SM_BLOCKS = 32
SM_SHARED_BYTES = 228 * 1024
SYSTEM_SHARED_BYTES = 1024  # that each block takes of these for the system

SECTOR = 32  # bytes: an L1 cache asks the L2 for sectors [measured]
BANKS = 32  # of shared memory, each one word wide [guide]
WORD = 4  # bytes
ALLOCATION_ALIGN = 256  # bytes: where CUDA starts what it allocates [guide]
BULK_ALIGN = 16  # bytes: addresses and size of cp.async.bulk [ptx]

# ---- counters ------------------------------------------------------------------------------------

# What a launch asks of the memory system, counted as Nsight Compute counts it (but see __init__
# and analysis.py: where ptxas unrolls a loop, there may be more requests).
#
# A *request* is one memory instruction of one warp with at least one active lane. A *sector* is an
# aligned piece of 32 bytes, the unit in which the L1 cache asks the L2 for data; a request costs as
# many sectors as its active lanes touch. Bytes are those that active lanes ask for.
#
# Shared memory has 32 banks of 4-byte words. A *wavefront* serves one word of each bank; a request
# whose lanes want different words of one bank needs more wavefronts, and each one more is a bank
# conflict. Accesses of 8 and 16 bytes are served for half and quarter warps.

# The same counters in Nsight Compute, which counts the threads' asynchronous copies (cp.async)
# among the loads; here they are counted apart, as copy_requests and copy_sectors.
NSIGHT_METRICS = {
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
}
SHARED_METRICS = {
    "shared_load_requests": "smsp__inst_executed_op_shared_ld.sum",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_load_bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared_store_requests": "smsp__inst_executed_op_shared_st.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared_store_bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
}

OF_PTX = ("warp_instructions", "branches", "divergent_branches")


@dataclass(frozen=True)
class Standing:
    """How a count stands to that of the hardware: "exact"; "bounded", with how many `more` there
    may be there; "at least"; "approximate"; "of PTX", which the hardware does not execute; or "not
    compared"."""

    word: str
    more: int = 0


@dataclass
class Counters:
    """Counts of one source line, or of a whole launch."""

    load_requests: int = 0
    load_sectors: int = 0
    load_bytes: int = 0
    store_requests: int = 0
    store_sectors: int = 0
    store_bytes: int = 0
    shared_load_requests: int = 0
    shared_load_wavefronts: int = 0
    shared_load_bank_conflicts: int = 0
    shared_store_requests: int = 0
    shared_store_wavefronts: int = 0
    shared_store_bank_conflicts: int = 0
    local_load_requests: int = 0
    local_load_sectors: int = 0
    local_store_requests: int = 0
    local_store_sectors: int = 0
    remote_requests: int = 0  # loads and stores in the shared memory of another block
    atomic_requests: int = 0  # on global and shared memory
    copy_requests: int = 0  # asynchronous copies between global and shared memory
    copy_sectors: int = 0
    copied_in_bytes: int = 0  # from global memory
    copied_out_bytes: int = 0
    warp_instructions: int = 0  # of PTX, not of SASS: they differ by up to a third
    branches: int = 0  # conditional ones, per warp
    divergent_branches: int = 0  # of those, the ones where lanes of a warp part ways

    def __add__(self, other: Counters) -> Counters:
        total = replace(self)
        total += other
        return total

    def __iadd__(self, other: Counters) -> Counters:
        own = vars(self)
        for name, count in vars(other).items():
            if count:
                own[name] += count
        return self

    @property
    def sectors_per_load(self) -> float:
        """Sectors a global load request costs: 4 when 32 lanes read 32 neighbouring floats,
        32 when every lane reads another sector. 0.0 if nothing was loaded."""
        return self.load_sectors / self.load_requests if self.load_requests else 0.0

    def passes(self, elements: int, itemsize: int = 4) -> tuple[float, float]:
        """How often the kernel asked for each element: (loads, stores)."""
        size = elements * itemsize
        loaded = self.load_bytes + self.copied_in_bytes
        return loaded / size, (self.store_bytes + self.copied_out_bytes) / size

    @property
    def fetch_ratio(self) -> float:
        """Bytes of the sectors touched, request by request, over the bytes asked for."""
        asked = self.load_bytes + self.store_bytes
        return (self.load_sectors + self.store_sectors) * SECTOR / asked if asked else 0.0
