"""The hardware that the machine stands for, in numbers: an H200 (compute capability 9.0).

Sources: [guide] CUDA C++ Programming Guide, "Compute Capabilities", tables of features and of
technical specifications, column 9.0; [ptx] PTX ISA manual; [sheet] NVIDIA H200 data sheet;
[measured] on an H200 with Nsight Compute, see tests/data.
"""

from __future__ import annotations

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
