"""Run a kernel: on the GPU through CuPy, or on the SIMT machine.

Both take numpy arrays and write results into them in place, so a notebook cell is the same on a
machine with a GPU and on one without. Arguments are checked first, because CUDA checks nothing:
it ignores strides, converts no dtype, and reads a Python float as eight bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np

from . import simt
from .kernels import Parameter, Plan, header, signature
from .mode import replaying
from .simt.memory import byte_offset


class KernelBug(RuntimeError):
    """The SIMT machine found a bug in the kernel; the message lists every finding."""


def launch(
    kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence,
    shared_mem: int = 0,
) -> simt.Trace | None:
    """Run a `cupy.RawKernel` once and wait for it.

    `args` are numpy arrays and numbers in the order of the kernel's parameters; arrays that the
    kernel takes as non-const pointers are written in place. `shared_mem` is the dynamic shared
    memory in bytes. A kernel whose header has a Workspace takes a fifth argument, an array of as
    many bytes, all zero: `arguments` makes it.

    Returns the SIMT machine's trace in replay mode, None on a GPU.

    Raises `TypeError` or `ValueError` naming the argument that does not fit the kernel's
    signature or header, `KernelBug` if the SIMT machine found a bug, and what `helpers.simt` or
    CuPy raise for source that does not compile.
    """
    plan = check_arguments(kernel, grid, block, args, shared_mem)
    if replaying():
        trace = _simulate(kernel, grid, block, args, shared_mem)
        if trace.findings:
            raise KernelBug(f"{kernel.name} has bugs:\n{trace.findings}")
        return trace
    _launch_on_gpu(kernel, plan, grid, block, args)
    return None


def simulate(
    kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence,
    shared_mem: int = 0,
    instruction_limit: int = simt.INSTRUCTION_LIMIT,
) -> simt.Trace:
    """Run a kernel on the SIMT machine, also where a GPU is, and return its trace.

    Takes and raises what `launch` does, except that bugs are returned in `trace.findings`. A
    batch of blocks that executes more than `instruction_limit` instructions counts as hanging.
    """
    check_arguments(kernel, grid, block, args, shared_mem)
    return _simulate(kernel, grid, block, args, shared_mem, instruction_limit)


def _simulate(kernel, grid, block, args, shared_mem, limit=simt.INSTRUCTION_LIMIT) -> simt.Trace:
    names = [parameter.name for parameter in signature(kernel.code, kernel.name)]
    contract = header(kernel.code, kernel.options)
    arch = f"compute_{max(90, contract.arch if contract else 0)}"
    return simt.simulate(
        kernel, grid, block, args, shared_mem, names=names, arch=arch, instruction_limit=limit
    )


def arguments(plan: Plan, x: np.ndarray, y: np.ndarray) -> tuple:
    """What a kernel of the series takes for x and y of shape (rows, cols): the arrays, their sizes,
    and the zeroed workspace if the plan has one."""
    workspace = (np.zeros(plan.workspace, np.uint8),) if plan.workspace else ()
    return x, y, *x.shape, *workspace


def prepare(kernel, plan: Plan) -> None:
    """Set the attributes without which CUDA refuses the plan's shared memory or cluster (on a GPU
    only)."""
    if plan.shared_mem + kernel.shared_size_bytes > 48 * 1024:
        kernel.max_dynamic_shared_size_bytes = plan.shared_mem
    if plan.macros.get("CLUSTER", 1) > 8:  # more than every GPU with clusters has to offer
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        (status,) = driver.cuFuncSetAttribute(kernel.kernel.ptr, attribute, 1)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{kernel.name}: clusters past 8 blocks are refused: {status.name}")


def _launch_on_gpu(kernel, plan: Plan, grid, block, args) -> None:
    import cupy

    prepare(kernel, plan)
    declared = signature(kernel.code, kernel.name)
    on_gpu = [
        to_gpu(value) if parameter.pointer else as_declared(parameter, value)
        for parameter, value in zip(declared, args, strict=True)
    ]
    sizes = simt.launch_shape(grid, "grid"), simt.launch_shape(block, "block")
    kernel(*sizes, tuple(on_gpu), shared_mem=plan.shared_mem)
    cupy.cuda.get_current_stream().synchronize()
    for parameter, value, device in zip(declared, args, on_gpu, strict=True):
        if parameter.pointer and not parameter.const:
            value.view(device_dtype(value.dtype))[...] = cupy.asnumpy(device)


def device_dtype(dtype: np.dtype) -> np.dtype:
    """How CuPy holds a dtype: bfloat16, which it may not know, as its two bytes."""
    return np.dtype(np.uint16) if dtype.name == "bfloat16" else dtype


def as_declared(parameter: Parameter, value):
    """A number in the size that the kernel reads; CuPy would pass a numpy.int32 as 4 bytes to a
    long long."""
    return value if parameter.dtype is None else parameter.dtype.type(value)


def to_gpu(array: np.ndarray):
    """A CuPy copy of a numpy array at an address with the same alignment; bfloat16 as uint16."""
    import cupy

    offset = byte_offset(array)
    space = cupy.empty(offset + array.nbytes, cupy.uint8)
    stored = device_dtype(array.dtype)
    device = space[offset:].view(stored).reshape(array.shape)
    device.set(array.view(stored))
    return device


# ---- checks -----------------------------------------------------------------------------------


def check_arguments(kernel, grid, block, args: Sequence, shared_mem: int) -> Plan:
    """Raise `TypeError` or `ValueError` naming the first argument that the kernel cannot take;
    return the launch as the header plans it, or as it was given if there is no header."""
    parameters = signature(kernel.code, kernel.name)
    if len(args) != len(parameters):
        wanted = ", ".join(parameter.name for parameter in parameters)
        raise TypeError(
            f"{kernel.name} takes {len(parameters)} arguments ({wanted}), {len(args)} were given"
        )
    _check_sizes("grid", grid)
    _check_sizes("block", block)
    for parameter, value in zip(parameters, args, strict=True):
        if parameter.pointer:
            _check_array(parameter, value)
        else:
            _check_number(parameter, value)
    contract = header(kernel.code, kernel.options)
    if contract:
        return _check_contract(contract, kernel, grid, block, args, shared_mem)
    return Plan(_product(grid), _product(block), shared_mem)


def _product(sizes) -> int:
    return int(np.prod(sizes))


def _check_sizes(what: str, sizes) -> None:
    for size in sizes if isinstance(sizes, Sequence) else (sizes,):
        if not isinstance(size, Integral):
            raise TypeError(f"{what} must be one to three integers, not {sizes!r}; divide with //")


def _check_array(parameter: Parameter, value) -> None:
    name = parameter.name
    if not isinstance(value, np.ndarray) or not value.ndim:
        raise TypeError(
            f"{name} must be a numpy array of one or more dimensions, not a {_kind(value)}"
        )
    if not value.flags.c_contiguous:
        raise TypeError(
            f"{name} is not C-contiguous (strides {value.strides}); a kernel ignores strides: "
            f"pass numpy.ascontiguousarray({name})"
        )
    if parameter.dtype not in (None, value.dtype) and name != "workspace":  # zeros of any type
        raise TypeError(
            f"{name} is {value.dtype}, the kernel takes {parameter.dtype} ({parameter.type}*)"
        )
    if not parameter.const and not value.flags.writeable:
        raise ValueError(f"{name} is read-only, the kernel writes to it")


def _check_number(parameter: Parameter, value) -> None:
    name, dtype = parameter.name, parameter.dtype
    if isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be a number ({parameter.type}), not an array")
    if dtype is None:
        return
    if dtype.kind == "f":
        if not isinstance(value, float if dtype == np.float64 else dtype.type):
            wide = ", which CuPy passes as 8 bytes" if type(value) in (int, float) else ""
            cure = f": pass numpy.{dtype}({value})" if isinstance(value, Real) else ""
            raise TypeError(
                f"{name} is a {_kind(value)}{wide}; the kernel takes a {parameter.type}{cure}"
            )
    elif not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer ({parameter.type}), not {value!r}")
    elif not np.iinfo(dtype).min <= int(value) <= np.iinfo(dtype).max:
        raise ValueError(f"{name} = {value} does not fit the kernel's {parameter.type}")


def _kind(value) -> str:
    """ "Python float", "numpy.float64", "cupy.ndarray"."""
    module, name = type(value).__module__, type(value).__name__
    return f"Python {name}" if module == "builtins" else f"{module}.{name}"


def _check_contract(contract, kernel, grid, block, args: Sequence, shared_mem: int) -> Plan:
    """Hold the launch against the kernel file's header: (x, y, rows, cols, ...)."""
    name = kernel.name
    declared = [parameter.name for parameter in signature(kernel.code, name)]
    wanted = ["x", "y", "rows", "cols", *(["workspace"] if "Workspace" in contract.fields else [])]
    if declared[: len(wanted)] != wanted:
        raise ValueError(
            f"{name} has a header, so it must take {', '.join(wanted)} first; it takes "
            f"{', '.join(declared)}"
        )
    if missing := [f"-D{macro}" for macro in contract.build if macro not in contract.defined]:
        raise ValueError(
            f"{name} is compiled without {', '.join(missing)}: compile it for a shape, with "
            "header(code).plan(rows, cols, dtype).options"
        )
    for label, array in (("x", args[0]), ("y", args[1])):
        if array.dtype != contract.dtype:
            who = "the kernel is compiled for" if len(contract.dtypes) > 1 else "the header says"
            raise TypeError(f"{label} is {array.dtype}, {who} {contract.dtype}")
    x, y, rows, cols = *args[:2], int(args[2]), int(args[3])
    if not contract.accepts(rows, cols, contract.dtype):
        compiled = f" (compiled with {', '.join(contract.options)})" if contract.build else ""
        raise ValueError(
            f"{name} cannot take rows = {rows}, cols = {cols}; its header says "
            f"rows >= 1, {contract.fields['Columns']}{compiled}"
        )
    for label, array in (("x", x), ("y", y)):
        if array.size != rows * cols:
            raise ValueError(
                f"{label} has shape {array.shape}, which is not rows x cols = {rows} x {cols}"
            )
        if byte_offset(array) % contract.align:
            raise ValueError(
                f"{label} must start at a multiple of {contract.align} bytes; it is a view that "
                f"starts {byte_offset(array)} bytes into its base array"
            )
    if x.shape != y.shape:
        raise ValueError(f"x has shape {x.shape}, y has shape {y.shape}")
    if np.may_share_memory(x, y):
        raise ValueError("y overlaps x; these kernels do not work in place")
    plan = contract.plan(rows, cols, contract.dtype, _product(block))
    if _product(grid) != plan.grid or shared_mem != plan.shared_mem:
        raise ValueError(
            f"{name} wants grid = {plan.grid} and {plan.shared_mem} bytes of shared memory for "
            f"rows = {rows}, cols = {cols}, block = {plan.block}; got grid = {_product(grid)}, "
            f"{shared_mem} bytes"
        )
    if plan.cooperative and not kernel.enable_cooperative_groups:
        raise ValueError(
            f"{name} wants a cooperative launch: compile it with enable_cooperative_groups=True"
        )
    if plan.workspace:
        _check_workspace(args[4], plan.workspace)
    return plan


def _check_workspace(array: np.ndarray, size: int) -> None:
    if array.nbytes < size:
        raise ValueError(f"workspace has {array.nbytes} bytes, the header asks for {size}")
    if array.view(np.uint8).any():
        raise ValueError("workspace must be all zero before the launch")
