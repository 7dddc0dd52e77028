"""The SIMT machine: runs a CUDA kernel on numpy, counts its memory traffic, finds its bugs.

    kernel = cupy.RawKernel(source, "softmax_naive")
    trace = simulate(kernel, grid, block, (x, y, rows, cols))
    print(trace.counters.sectors_per_load, trace.findings)

The modules, lowest first. Each imports from those above it in this list alone, and so do those of
the folders, whose lists are in their __init__; tests/helpers/test_layers.py holds them to it.

    interrupts        Ctrl-C while the command is imported
    hardware          an H200 in numbers, and its counters
    words             a number and what it counts; numbers of a command line
    places            places in a source, and errors shown with the lines around them
    instructions      what a kernel in PTX is made of; types of PTX in numpy
    geometry          which threads run together, and where each stands
    findings          bugs that a run showed; undefined values, and their uses
    trace             what a launch leaves behind, also for pictures
    cuda_text         reading C: comments, kernels, signatures, a hash of code
    cache             compiled kernels on disk, and which files the compiler could read
    compile           CUDA to PTX
    sources           a file for nvcc and its headers made ready: host code set aside
    refusals          features that are not run, and what to do instead
    parse             PTX to instructions
    operations        a folder: what each arithmetic opcode computes
    analysis          what is known of a kernel before a run
    memory            a folder: global, shared and local memory, copies in flight, mbarriers
    context           a kernel with its registers and memories; how operands are read and written
    loads_and_stores  loads, stores, atomics and fences as functions
    asynchronous      asynchronous copies and mbarriers as functions
    recording         functions that also record, for pictures
    spreading         how undefined bits pass through an instruction
    barriers          where threads wait for one another; shuffles, votes, matches
    translate         each instruction to its function
    scheduler         which threads run next; calls of functions that stay functions
    arguments         what a launch may be given, and its arguments laid out as bytes
    machine           one launch from its source to its trace
    loading           a kernel from a file; the list of a file's kernels
    reports           a run as text, JSON, JUnit's XML and SARIF
    command           the command `simt`
    __main__          the same as `python -m simt`

A load, from text to numpy: machine.simulate has compile and parse read `ld.global.f32 %f1, [%rd4]`;
machine._run has a Scheduler make a function `load` of it, by translate.translate and
loads_and_stores, and calls its run_batch for each batch of blocks; that calls
`load` with the lanes that run, and `load` GlobalMemory.load, which counts, checks, indexes.
What it indexes is a copy: arguments.parameter_bytes has GlobalMemory.allocate make one of each
array, and write_back brings back what was stored.

Requests, sectors, wavefronts and bank conflicts of global and shared memory are those of an H200.
Of a loop that lanes of a warp leave one after another, a report says how many requests more there
may be if ptxas unrolls it (Trace.more), and of each counter whether it is exact (Trace.standing).
Results agree to a few ulp.

An undefined value that a load gives (unwritten or racing bytes, a shuffle from a lane that is
not there) is a finding when it is used: stored where others see it, as an address, or to decide a
branch. findings.py and spreading.py follow it there, bit by bit, from the first such load on; a
launch without one pays nothing.

Equal values: unordered threads that store equal bits by one instruction, or the same constant by
several, do not race, in shared and global memory, within a block and across blocks. An integer
division by zero is a finding where a thread executes it.

Not modelled: registers, caches, DRAM, time. Not seen: a volatile value that is stored only after
its flag, or that is read behind a barrier which a flag without a fence let go; one in shared memory
that is declared relaxed; .relaxed at an mbarrier, which counts as release and acquire, and an
mbarrier that asks for one arrival too few; a counter in shared memory that the last thread to count
reads without a barrier; stores that pass a later load (store buffering); a variable without a value
that the compiler has given one; bytes behind a defined one in the copy of a struct, which may be
its padding; what leaves an array for another that PTX holds in the same variable, and the local
array of one call for that of another. Blocks of one batch run in lock-step, and among the orders
that a GPU may choose this is one: a race on a way that nobody goes in it is not seen, nor one
behind a wait that would have let a thread go before the store that it saw.
"""

from . import interrupts as interrupts  # first of all
from .arguments import launch_shape
from .compile import (
    CUPY_OPTIONS,
    DEFAULT_ARCH,
    CompileError,
    compile_cubin,
    compile_ptx,
    include_folders,
)
from .findings import Finding, Findings
from .hardware import NSIGHT_METRICS, SHARED_METRICS, Counters
from .instructions import UnsupportedPTX
from .machine import INSTRUCTION_LIMIT, KernelText, simulate
from .memory.global_memory import byte_offset, rows_apart, span
from .places import ShownShort, around, citing, lines_of
from .trace import Event, Trace, WatchedAccess
