"""The SIMT machine: runs a CUDA kernel on numpy, counts its memory traffic, finds its bugs.

    kernel = cupy.RawKernel(source, "softmax_naive")
    trace = simulate(kernel, grid, block, (x, y, rows, cols))
    print(trace.counters.sectors_per_load, trace.findings)

compile -> parse -> translate (operations, half, memory, shared, local, atomics, collectives,
asynchronous) -> scheduler (barriers, polling), which yields counters and findings. Requests,
sectors, wavefronts and bank conflicts are those of the hardware; results agree to a few ulp.

Not modelled: registers, caches, DRAM, time. Not seen: races in global memory, and by a lane that
`__syncwarp` with part of a mask leaves out; a store between arriving at and waiting for a barrier
of the cluster; an mbarrier that other data overwrite. Blocks of one batch run in lock-step, and
among the orders that a GPU may choose this is one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import index

import numpy as np

from .asynchronous import Copies
from .compile import DEFAULT_ARCH, CompileError, compile_template
from .counters import Counters
from .findings import Finding, Findings
from .local import LocalMemory
from .memory import UNSIGNED, GlobalMemory
from .parse import Kernel, UnsupportedPTX, parse, short_name, type_size
from .scheduler import (
    Hang,
    basic_blocks,
    batches,
    block_place,
    resident_blocks,
    run_batch,
    special_registers,
    summed_counters,
    unravel,
)
from .shared import SharedMemory
from .translate import Context

__all__ = [
    "CompileError",
    "Counters",
    "Finding",
    "Findings",
    "KernelText",
    "Trace",
    "UnsupportedPTX",
    "simulate",
]

INSTRUCTION_LIMIT = 100_000_000  # per batch of blocks; some minutes
MAX_THREADS, MAX_GRID = 1024, (2**31 - 1, 65535, 65535)


@dataclass(frozen=True)
class KernelText:
    """What `simulate` needs of a kernel, for those who have no `cupy.RawKernel`. The name may be a
    template's name expression, such as "scale<float, 4>"."""

    code: str
    name: str
    options: tuple[str, ...] = ()
    enable_cooperative_groups: bool = False


@dataclass
class Trace:
    """What one launch did."""

    counters: Counters  # of the whole launch
    lines: dict[tuple[str, int], Counters]  # the same per (file, source line)
    findings: Findings
    sectors_read: int  # distinct 32-byte sectors of global memory that were read
    sectors_written: int
    ptx: str
    code: str

    def report(self) -> str:
        """The source lines that access memory with their counters, and a total.

        Global memory in sectors, shared memory in wavefronts. Lines of a header that the kernel
        includes are left out.
        """
        rows = self._table("sectors", "load", "store")
        if self.counters.shared_load_requests or self.counters.shared_store_requests:
            rows += self._table("wavefronts", "shared_load", "shared_store")
        count = len(self.findings)
        rows[-1] += f"; {count or 'no'} finding{'' if count == 1 else 's'}"
        return "\n".join(rows)

    def _table(self, unit: str, load: str, store: str) -> list[str]:
        text = self.code.splitlines()
        named = re.match(r'#line 1 "(.*)"', self.code)
        own, first = (short_name(named[1]), 0) if named else ("kernel.cu", 1)
        rows = [f"{'line':>4} {'requests':>9} {unit:>10} {'per request':>11}  source"]
        for (file, number), counters in sorted(self.lines.items(), key=lambda item: item[0][1]):
            counted = vars(counters)
            requests = counted[f"{load}_requests"] + counted[f"{store}_requests"]
            if requests and file == own and number - first < len(text):
                pieces = counted[f"{load}_{unit}"] + counted[f"{store}_{unit}"]
                rows.append(
                    f"{number:4} {requests:9} {pieces:10} {pieces / requests:11.2f}  "
                    f"{text[number - first].strip()}"
                )
        total = vars(self.counters)
        rows.append(
            "; ".join(
                f"{name.replace('_', ' ')}s: {total[f'{name}_requests']} requests, "
                f"{total[f'{name}_{unit}']} {unit}"
                for name in (load, store)
            )
        )
        return rows


def simulate(
    kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence,
    shared_mem: int = 0,
    *,
    names: Sequence[str] = (),
    arch: str = DEFAULT_ARCH,
    instruction_limit: int = INSTRUCTION_LIMIT,
) -> Trace:
    """Execute a kernel on the SIMT machine; outputs are written into the arrays in place.

    `kernel` is a `cupy.RawKernel`, or a `KernelText`. `args`
    are C-contiguous numpy arrays (pointers) and numbers, as many as the kernel takes; a Python
    int or a numpy scalar is converted to the parameter's size, and a scalar of a structured dtype
    is a struct by value. `names` are used for the arrays in findings. `shared_mem` is the dynamic
    shared memory in bytes.

    Raises `CompileError` with NVRTC's log, `UnsupportedPTX` naming an opcode the machine does not
    run, `ValueError` for a launch shape outside CUDA's limits, and `TypeError` for an argument
    that does not fit its parameter. Bugs of the kernel do not raise: see `Trace.findings`.
    """
    grid, block = launch_shape(grid, "grid"), launch_shape(block, "block")
    if prod(block) > MAX_THREADS:
        raise ValueError(f"block {block} has {prod(block)} threads; CUDA allows {MAX_THREADS}")
    ptx, mangled = compile_template(kernel.code, kernel.name, tuple(kernel.options), arch)
    parsed = parse(ptx, mangled)
    findings = Findings()
    memory = GlobalMemory(findings)
    parameters = _parameter_bytes(parsed, args, names, memory)
    for variable in parsed.module:
        memory.allocate_variable(variable)
    workspace = memory.allocate(np.zeros(2, np.uint32), "the grid's barrier")
    memory.initialise_variables()
    shared = SharedMemory(parsed, shared_mem, findings)
    if shared.static_bytes > 48 * 1024 or shared.bytes > 227 * 1024:
        raise ValueError(
            f"{kernel.name} wants {shared.static_bytes} bytes of static, {shared_mem} of dynamic "
            "shared memory; CUDA allows 48 KB static, and 227 KB in all on an H200"
        )
    cooperative = bool(getattr(kernel, "enable_cooperative_groups", False))
    _check_grid(kernel.name, grid, block, parsed.cluster, cooperative, shared.bytes)
    context = Context(
        parsed,
        memory,
        parameters,
        [Counters() for _ in parsed.instructions],
        [np.zeros(0)] * len(parsed.registers),
        special_registers(grid, (32, 1, 1), 0, 1, 32, shared_mem)[1],
        shared,
        LocalMemory(parsed.local, findings),
        LocalMemory(parsed.arguments, findings),
    )
    # Where the cooperative groups look for the barrier of a grid that was launched as one.
    context.specials["%envreg1"] = np.array([workspace >> 32 if cooperative else 0], np.uint32)
    context.specials["%envreg2"] = np.array(
        [workspace & 0xFFFFFFFF if cooperative else 0], np.uint32
    )
    context.specials["%total_smem_size"] = np.array([shared.bytes], np.uint32)
    context.copies = Copies(shared)
    with np.errstate(all="ignore"):
        executed = _run(context, grid, block, shared_mem, findings, instruction_limit, cooperative)
    memory.write_back()
    lines: dict[tuple[str, int], Counters] = {}
    for instruction, tally in zip(parsed.instructions, executed, strict=True):
        key = (instruction.file, instruction.line)
        lines[key] = lines.get(key, Counters()) + tally
    total = sum(lines.values(), Counters())
    return Trace(total, lines, findings, *memory.unique_sectors(), ptx, kernel.code)


def launch_shape(shape: int | Sequence[int], what: str) -> tuple[int, int, int]:
    """A grid or block as three sizes. Raises `ValueError` if one is outside CUDA's limits."""
    sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    limits = MAX_GRID if what == "grid" else (1024, 1024, 64)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{what} {shape!r} must have one to three sizes")
    sizes = tuple(int(size) for size in sizes) + (1,) * (3 - len(sizes))
    for size, limit in zip(sizes, limits, strict=True):
        if not 1 <= size <= limit:
            raise ValueError(f"{what} {shape!r} is outside CUDA's limits of 1 to {limits}")
    return sizes


def _check_grid(name: str, grid, block, cluster, cooperative: bool, shared_bytes: int) -> None:
    if any(blocks % size for blocks, size in zip(grid, cluster, strict=True)):
        raise ValueError(f"{name}: grid {grid} is not a multiple of the cluster {cluster}")
    resident = resident_blocks(block, shared_bytes)
    if cooperative and prod(grid) > resident:
        raise ValueError(
            f"a cooperative launch of {prod(grid)} blocks of {prod(block)} threads and "
            f"{shared_bytes} bytes of shared memory does not fit on an H200 at once: {resident} do"
        )


def _run(context, grid, block, shared_mem, findings, instruction_limit, cooperative) -> list:
    blocks = basic_blocks(context)
    executed = [0] * len(blocks)
    zeros = [
        np.zeros(1, bool if kind == "pred" else f"uint{8 * type_size(kind)}")
        for kind in context.kernel.registers.values()
    ]
    shared, local, cluster = context.shared, context.local, context.kernel.cluster
    waits = cooperative or any(one.poll for one in blocks)
    resident = resident_blocks(block, shared.bytes) if waits else 0
    per_block = shared.bytes + prod(block) * (local.bytes + context.arguments.bytes)
    for first, count, padded in batches(grid, block, per_block, prod(cluster), resident):
        alive, specials = special_registers(grid, block, first, count, padded, shared_mem, cluster)
        context.specials.update(specials)
        context.specials["%total_smem_size"] = np.array([shared.bytes], np.uint32)
        context.registers[:] = zeros
        context.slots = count * padded
        context.memory.tainted = None
        shared.start_batch(count, padded)
        local.start_batch(context.slots)
        context.arguments.start_batch(context.slots)
        context.copies.start_batch(context.slots)

        def locate(slot: int, first=first, padded=padded):
            place = block_place(first + slot // padded, grid, cluster)
            return place, unravel(slot % padded, block)

        context.memory.locate_thread = shared.locate_thread = local.locate_thread = locate
        context.arguments.locate_thread = locate
        try:
            run_batch(context, blocks, alive, executed, instruction_limit)
        except Hang as hang:
            context.report("hang", hang.instruction, hang.reason, hang.slots)
            break
    return summed_counters(context, blocks, executed)


def _parameter_bytes(
    kernel: Kernel, args: Sequence, names: Sequence[str], memory: GlobalMemory
) -> bytes:
    """Lay the arguments out as the kernel's parameter space and map the arrays."""
    if len(args) != len(kernel.parameters):
        raise TypeError(
            f"{kernel.name} takes {len(kernel.parameters)} arguments, {len(args)} were given"
        )
    end = max((p.offset + p.size for p in kernel.parameters), default=0)
    space = bytearray(end)
    for number, (parameter, value) in enumerate(zip(kernel.parameters, args, strict=True)):
        name = names[number] if number < len(names) else f"argument {number}"
        if isinstance(value, np.ndarray) and value.ndim:
            if not value.flags.c_contiguous:
                raise TypeError(f"{name} is not C-contiguous; a kernel ignores strides")
            encoded = np.array([memory.allocate(value, name)], np.int64)
        elif getattr(value, "dtype", np.dtype(int)).kind == "V":  # a struct by value
            encoded = np.frombuffer(value.tobytes(), np.uint8)
        elif isinstance(value, np.float16) and parameter.size == 2:  # __half, a struct in PTX
            encoded = np.array([value])
        elif parameter.size not in UNSIGNED:
            raise TypeError(f"{name} is a struct of {parameter.size} bytes, not {value!r}")
        elif parameter.type[0] == "f":
            encoded = np.array([value], f"float{8 * parameter.size}")
        else:
            number = value.item() if isinstance(value, np.generic) else value
            encoded = np.array([index(number)]).astype(f"int{8 * parameter.size}")
        if encoded.nbytes != parameter.size:
            raise TypeError(f"{name} has {encoded.nbytes} bytes, the kernel takes {parameter.size}")
        space[parameter.offset : parameter.offset + parameter.size] = encoded.tobytes()
    return bytes(space)
