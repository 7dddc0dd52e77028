"""The SIMT machine: runs a CUDA kernel on numpy, counts its memory traffic, finds its bugs.

    kernel = cupy.RawKernel(source, "softmax_naive")
    trace = simulate(kernel, grid, block, (x, y, rows, cols))
    print(trace.counters.sectors_per_load, trace.findings)

machine: compile -> parse -> translate (operations, memory, collectives) -> scheduler (barriers,
polling), which yields counters and findings. Requests, sectors, wavefronts and bank conflicts of
global and shared memory are those of an H200, but where ptxas unrolls a loop with a ragged end:
then the hardware makes more requests of as many sectors. Results agree to a few ulp.

Not modelled: registers, caches, DRAM, time. Not seen: races in global memory, and by a lane that
`__syncwarp` with part of a mask leaves out; a store between arriving at and waiting for a barrier
of the cluster; an mbarrier that other data overwrite. Blocks of one batch run in lock-step, and
among the orders that a GPU may choose this is one.
"""

from .arguments import launch_shape
from .compile import (
    CUPY_OPTIONS,
    DEFAULT_ARCH,
    CompileError,
    compile_cubin,
    compile_ptx,
    include_folders,
)
from .counters import NSIGHT_METRICS, SHARED_METRICS, Counters
from .findings import Finding, Findings
from .instructions import UnsupportedPTX
from .machine import INSTRUCTION_LIMIT, KernelText, simulate
from .memory.global_memory import byte_offset
from .trace import Trace
from .watch import Event, WatchedAccess

__all__ = [
    "CUPY_OPTIONS",
    "DEFAULT_ARCH",
    "INSTRUCTION_LIMIT",
    "NSIGHT_METRICS",
    "SHARED_METRICS",
    "CompileError",
    "Counters",
    "Event",
    "Finding",
    "Findings",
    "KernelText",
    "Trace",
    "UnsupportedPTX",
    "WatchedAccess",
    "byte_offset",
    "compile_cubin",
    "compile_ptx",
    "include_folders",
    "launch_shape",
    "simulate",
]
