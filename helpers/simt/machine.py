"""One launch from the source text to its trace."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from .analysis import skipped_shared, without_volatile, written
from .arguments import (
    check_argument,
    check_count,
    check_grid,
    check_integer,
    check_kernel,
    check_options,
    check_shared,
    check_threads,
    fill_variables,
    launch_shape,
    parameter_bytes,
    pointers,
)
from .compile import DEFAULT_ARCH, compile_kernels
from .context import Context
from .cuda_text import Parameter, parameter_types, signatures, variables
from .findings import Findings
from .geometry import Place, Shape
from .hardware import Counters
from .instructions import PtxKernel
from .parse import entry_named, parse
from .places import around, citing, own_file
from .recording import watchable_lines
from .scheduler import Hang, Scheduler
from .sources import implicit
from .trace import Array, Trace, Watch

STRUCTS = re.compile(r"\b(struct|class|union)\b|^\s*#\s*include\b", re.MULTILINE)
DEFINED = re.compile(r"^(?:-D|--define-macro=?)\s*(\w+)=(.*)$", re.MULTILINE)
INSTRUCTION_LIMIT = 100_000_000  # per batch of blocks; some minutes


class RawKernel(Protocol):
    """What `simulate` reads of a kernel, as `cupy.RawKernel` has it."""

    code: str
    name: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class KernelText:
    """What `simulate` needs of a kernel, for those who have no `cupy.RawKernel`. The name may be
    that of a kernel without `extern "C"`, or a template's name expression: "scale<float, 4>".
    `headers` are (name, text) of headers that are not read from disk. What nvcc has without an
    include is there: INFINITY and the other macros of math.h and limits.h, printf, and assert."""

    code: str
    name: str
    options: tuple[str, ...] = ()
    enable_cooperative_groups: bool = False
    headers: tuple[tuple[str, str], ...] = ()


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for cycles of objects: a launch makes very many objects and no cycle, and the
    search would take as long as the launch."""
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            gc.enable()


@uncollected()
def simulate(
    kernel: RawKernel,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence,
    shared_mem: int = 0,
    *,
    symbols: Mapping[str, object] | None = None,
    arch: str = DEFAULT_ARCH,
    instruction_limit: int = INSTRUCTION_LIMIT,
    orders: int = 1,
    volatile: str = "relaxed",
    watch: Collection[int] | bool = (),
    follow: bool = False,
    only_blocks: Collection[int | Place] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Execute a kernel on the SIMT machine; outputs are written into the arrays in place.

    `kernel` is a `cupy.RawKernel`, or a `KernelText`. `args` are C-contiguous numpy arrays
    (pointers) and numbers, as many as the kernel takes; a Python int or a numpy scalar is converted
    to the parameter's type, and a scalar of a structured dtype is a struct by value: its pointers
    are object fields ("O") that hold arrays, lists of arrays or None. The rows of a matrix may be
    apart where the kernel takes its `..._stride`. `symbols` are values of `__constant__` and
    `__device__` variables by name, which a program would copy there with `cudaMemcpyToSymbol`: an
    array for an array, a number for a number. `shared_mem` is the dynamic shared memory in bytes.
    Once a batch of blocks has executed more than `instruction_limit` instructions, its next
    backward branch or function call counts as a hang; a kernel without either stops at the limit.

    With `orders=2` the launch is executed once more from the same inputs, with the blocks in
    reverse order, and so with warps that took different paths. A finding of the second execution is
    added unless the first has one of its kind on the same lines; outputs and all else in the trace
    are of the first. CUDA promises no order of blocks: a kernel whose blocks wait for blocks of
    lower numbers may hang in the second.

    `volatile="plain"` judges volatile accesses as ordinary ones: two threads race on a volatile
    variable unless a barrier, or an atomic with fences, orders them. PTX says, and the default
    "relaxed" means, that volatile accesses do not race with each other.

    For pictures, `Trace.accesses` keeps the addresses of the source lines in `watch`, and with
    `follow` `Trace.events` keeps what each warp did, step by step; of `only_blocks` if there are
    any, by number or (x, y, z). `watch=True` keeps all of it: of every line of the kernel's own
    file, and of every block.

    `progress` is called after each batch of blocks with how many have run and how many there are,
    those of all orders together.

    Raises `CompileError` with NVRTC's log, `UnsupportedPTX` naming an opcode the machine does not
    run, `ImportError` if NVRTC is missing, `ValueError` for a launch shape outside CUDA's limits, a
    number out of its parameter's range, or too much to watch, and `TypeError` for an argument that
    does not fit its parameter, such as an array of another dtype than the source declares, or
    another number of arguments. Bugs of the kernel do not raise: see `Trace.findings`.
    """
    check_kernel(kernel, arch)
    grid, block = launch_shape(grid, "grid"), launch_shape(block, "block")
    check_threads(Shape(grid, block))
    check_integer("shared_mem", shared_mem, 0)
    check_integer("instruction_limit", instruction_limit, 1)
    check_options(orders, volatile, symbols, watch, only_blocks, progress)
    with citing(kernel.code):
        ptx, parsed = compiled(kernel, arch)
    if volatile == "plain":
        parsed = without_volatile(parsed)
    declared = _declared(kernel, parsed)
    check_count(kernel.name, declared, args, len(parsed.parameters))
    names = [one.name for one in declared] or [f"argument {k}" for k in range(len(args))]
    for parameter, value in zip(declared, args, strict=False):
        check_argument(parameter, value)
    shape = Shape(grid, block, parsed.cluster)
    cooperative = bool(getattr(kernel, "enable_cooperative_groups", False))

    def executed(backwards: bool = False, *watching) -> Context:
        """Run the launch without a change to the caller's arrays."""
        run = replace(shape, backwards=backwards)

        def told(done: int, blocks: int) -> None:
            progress(blocks * backwards + done, blocks * orders)

        watched = Watch(run, own_file(kernel.code), *watching)
        with citing(kernel.code), np.errstate(all="ignore"):
            context = Context(parsed, run, shared_mem, Findings(), watched)
            _prepare(context, kernel, args, names, declared, symbols or {}, cooperative)
            _run(context, instruction_limit, cooperative, progress and told)
        if not cooperative:
            _explain_grid_barriers(context, kernel)
        return context

    context = executed(False, watch, follow or watch is True, only_blocks)
    if orders > 1:
        context.reporter.add_new(executed(backwards=True).reporter)
    context.global_memory.write_back()
    total = sum(context.lines.values(), Counters())
    arrays = {
        name: Array(value.shape, value.dtype, 0 if value.flags.c_contiguous else value.strides[0])
        for name, value in zip(names, args, strict=True)
        if isinstance(value, np.ndarray) and value.ndim
    }
    about = context.reporter.findings, ptx, kernel.code, shape, arrays
    printed = "".join(text for _, text in sorted(context.printed, key=lambda one: one[0]))
    more = {place: count for place, count in context.more.items() if count}
    watched_ones = context.watch.accesses, context.watch.events
    predicated = skipped_shared(parsed)
    return Trace(total, context.lines, *about, *watched_ones, printed, more, predicated)


def compiled(kernel: RawKernel, arch: str = DEFAULT_ARCH) -> tuple[str, PtxKernel]:
    """Compile a kernel: (PTX, the kernel parsed from it). Raises `CompileError` and
    `UnsupportedPTX` as `simulate` does."""
    options, name = tuple(kernel.options), kernel.name
    is_text = isinstance(kernel, KernelText)  # others go by their name in the machine code
    if is_text:
        options += tuple(one for one in implicit(kernel.code) if one not in options)
    headers = getattr(kernel, "headers", ())
    ptx, mangled = compile_kernels(kernel.code, (name,), options, arch, headers)
    return ptx, parse(ptx, entry_named(ptx, mangled[name]) if is_text else mangled[name])


def _prepare(
    context: Context,
    kernel: RawKernel,
    args: Sequence,
    names: Sequence[str],
    declared: Sequence[Parameter],
    symbols: Mapping[str, object],
    cooperative: bool,
) -> None:
    """Lay out the memories and check what the launch asks for."""
    context.suspicion.padding = bool(STRUCTS.search(declarations(kernel)))
    memory, watched = context.global_memory, context.watch
    context.parameters = parameter_bytes(context.kernel, args, names, memory)
    _mark_constant(context, declared)
    for variable in context.kernel.module:
        memory.allocate_variable(variable)
    grid_barrier = memory.allocate(np.zeros(2, np.uint32), "the grid's barrier")
    memory.initialise_variables(context.functions())
    if symbols:
        fill_variables(context.kernel, symbols, memory, variables(declarations(kernel)))
    targets = written(context.kernel)
    held = pointers(context.kernel, context.parameters, targets)
    memory.watch_writes(targets, [*held, grid_barrier])
    check_threads(context.shape, context.kernel.most_threads)
    context.place_variables()
    check_shared(kernel.name, context.shared)
    check_grid(kernel.name, context.shape, cooperative, context.shared.bytes)
    # Where the cooperative groups look for the barrier of a grid that was launched as one.
    halves = (grid_barrier >> 32, grid_barrier & 0xFFFFFFFF) if cooperative else (0, 0)
    for name, half in zip(("%envreg1", "%envreg2"), halves, strict=True):
        context.specials.same[name] = half
    if watched.lines and (missing := watched.lines - watchable_lines(context)):
        raise ValueError(
            f"no load or store in line {min(missing)} of {kernel.name}; "
            f"lines that have some: {', '.join(map(str, sorted(watchable_lines(context))))}"
        )


def _explain_grid_barriers(context: Context, kernel: RawKernel) -> None:
    """Say of traps that are barriers of the grid in an ordinary launch that they are."""
    if not any("%envreg" in one.text for one in context.kernel.instructions):
        return
    for one in context.reporter.findings:
        near = around(kernel.code, one.file, one.line, 0)
        if one.kind == "trap" and near and re.search(r"\bsync\w*\s*\(", near[0][1]):
            one.message = (
                "a barrier of the grid needs a cooperative launch: pass --cooperative, or "
                "enable_cooperative_groups=True"
            )


def declarations(kernel: RawKernel) -> str:
    """The kernel's text, with its headers that are not read from disk."""
    return "\n".join((kernel.code, *(text for _, text in getattr(kernel, "headers", ()))))


def _declared(kernel: RawKernel, parsed: PtxKernel) -> tuple[Parameter, ...]:
    """The kernel's parameters as its source declares them, and as the compiler has named their
    types where the text alone does not say, with an unknown type if neither does; none for a kernel
    that is declared elsewhere."""
    defined = DEFINED.findall("\n".join(kernel.options))
    text = "".join(f"#define {name} {value}\n" for name, value in defined) + declarations(kernel)
    try:
        found = signatures(text, kernel.name)
    except ValueError:  # declared in a header, or by a macro
        return ()
    found = [each for each in found if len(each) == len(parsed.parameters)]
    types = {tuple((one.type, one.pointer, one.table) for one in each) for each in found}
    named = parameter_types(parsed.name)
    if found and len(named) == len(found[0]):
        return tuple(
            one if one.dtype and len(types) == 1 else replace(kind, name=one.name)
            for one, kind in zip(found[0], named, strict=True)
        )
    if len(types) == 1:
        return found[0]
    return tuple(Parameter(one.name, "", False, False) for each in found[:1] for one in each)


def _mark_constant(context: Context, declared: Sequence[Parameter]) -> None:
    """Note the arrays that come in by pointers to const alone, as far as the source says."""
    if not declared or any(one.table or one.dtype is None for one in declared):
        return  # there may be other ways to an array
    space, constant = context.parameters, {}
    for one, parameter in zip(declared, context.kernel.parameters, strict=True):
        if one.pointer:
            start = int.from_bytes(space[parameter.offset : parameter.offset + 8], "little")
            constant[start] = constant.get(start, True) and one.const
    for allocation in context.global_memory.allocations:
        allocation.constant = constant.get(allocation.start, False)


def _run(
    context: Context,
    instruction_limit: int,
    cooperative: bool,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Run all batches."""
    scheduler = Scheduler(context, instruction_limit)
    context.suspicion.begin = scheduler.follow_values
    shape, shared_bytes, calls = context.shape, context.shared.bytes, scheduler.calls
    resident = shape.resident(shared_bytes) if cooperative or scheduler.waits else 0
    per_thread = context.local.bytes + context.arguments.bytes + (calls.bytes if calls else 0)
    for batch in shape.batches(shared_bytes + shape.threads * per_thread, resident):
        try:
            scheduler.run_batch(batch)
        except Hang as hang:
            context.report("hang", hang.instruction, hang.reason, hang.slots)
            break
        if progress:
            progress(batch.first + batch.count, shape.blocks)
    context.suspicion.begin = None  # no cycle of objects is left
    scheduler.count_instructions()
