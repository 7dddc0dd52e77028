"""Run a `cupy.RawKernel` once: on the GPU through CuPy, or on the SIMT machine.

Both take NumPy arrays and write results into them in place. Arguments are first checked against the
kernel's signature, because CUDA checks nothing: it knows no strides, converts no dtype, and reads a
Python float as eight bytes. Features that CuPy does not expose use the driver API: clusters of more
than 8 blocks, programmatic launches.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real

import numpy as np

from .. import simt
from ..base.arguments import short
from ..base.mode import replaying
from ..catalogue.plan import Plan
from ..simt import byte_offset, rows_apart, span
from ..simt.cuda_text import Parameter, signature
from ..simt.words import counted

GUARD = 256  # guard bytes around each array on a GPU; a multiple of any alignment
UNTOUCHED = 0xA5  # their content


class KernelBug(simt.ShownShort, RuntimeError):
    """A bug in the kernel: the message lists the diagnostics of the SIMT machine, or says which
    bytes outside of its arrays a kernel wrote on a GPU."""


def execute(kernel, plan: Plan, grid, block, args: Sequence) -> simt.Trace | None:
    """Launch a kernel with checked arguments, and wait for it.

    `plan` holds the shared memory and the attributes of the launch, `grid` and `block` its sizes in
    up to three dimensions. Returns the SIMT machine's trace in replay mode, None on a GPU. Raises
    `KernelBug` if the SIMT machine found a bug, and what `helpers.simt` or CuPy raise.
    """
    if not replaying():
        _execute_on_gpu(kernel, plan, grid, block, args)
        return None
    trace = execute_simulated(kernel, plan, grid, block, args)
    if trace.findings:
        raise KernelBug(f"{kernel.name} has bugs:\n{trace.findings}", kernel.code)
    return trace


def execute_simulated(kernel, plan: Plan, grid, block, args: Sequence, **options) -> simt.Trace:
    """The same on the SIMT machine, even if there is a GPU; bugs are in `trace.findings`. `options`
    go to `simt.simulate`."""
    names = [parameter.name for parameter in signature(kernel.code, kernel.name)]
    options = {"names": names, "arch": f"compute_{max(90, plan.arch)}", **options}
    return simt.simulate(kernel, grid, block, args, plan.shared_mem, **options)


def _execute_on_gpu(kernel, plan: Plan, grid, block, args: Sequence) -> None:
    import cupy

    prepare(kernel, plan)
    declared = signature(kernel.code, kernel.name)
    on_gpu = [
        as_declared(parameter, value) if not parameter.pointer else _pointer(parameter.name, value)
        for parameter, value in zip(declared, args, strict=True)
    ]
    sizes = simt.launch_shape(grid, "grid"), simt.launch_shape(block, "block")
    # Ordinary even if the plan is programmatic: a single call has no predecessor to overlap
    # with. Timing uses `enqueue`.
    kernel(*sizes, tuple(on_gpu), shared_mem=plan.shared_mem)
    cupy.cuda.get_current_stream().synchronize()
    for parameter, value, device in zip(declared, args, on_gpu, strict=True):
        if parameter.pointer and not parameter.const and value is not None:
            around = _bring_back(device, value)
            if (around != UNTOUCHED).any():
                raise KernelBug(f"{kernel.name} wrote outside of {parameter.name}")


def _pointer(name: str, value):
    """The value that CuPy takes for a pointer; None is the null pointer."""
    if value is None:
        return np.uintp(0)
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name}: arrays of pointers run on the SIMT machine alone")
    return to_gpu(value, GUARD)


def device_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype of the CuPy array: bfloat16, which CuPy may not know, is stored as uint16."""
    return np.dtype(np.uint16) if dtype.name == "bfloat16" else dtype


def as_declared(parameter: Parameter, value):
    """A number in the size that the kernel reads; CuPy would pass a numpy.int32 as 4 bytes even to
    a long long."""
    try:
        return value if parameter.dtype is None else parameter.dtype.type(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{parameter.name} is {parameter.dtype}, not {short(value)}") from None


def to_gpu(array: np.ndarray, guard: int = 0):
    """A CuPy copy of a NumPy array with the same strides, at an address with the same alignment;
    the gaps between rows are copied too. bfloat16 becomes uint16. `guard` bytes on both sides hold
    `UNTOUCHED`."""
    import cupy

    memory, first = span(array), guard + byte_offset(array)
    space = cupy.empty(first + memory.size + guard, cupy.uint8)
    space.fill(UNTOUCHED)
    space[first : first + memory.size].set(memory)
    strides = None if array.flags.c_contiguous else array.strides
    return cupy.ndarray(array.shape, device_dtype(array.dtype), space.data + first, strides)


def _bring_back(device, array: np.ndarray) -> np.ndarray:
    """Copy everything back that `to_gpu` copied, from a copy with guards; returns the guards."""
    import cupy

    memory, first = span(array), GUARD + byte_offset(array)
    size = first + memory.size + GUARD
    space = cupy.asnumpy(cupy.ndarray((size,), cupy.uint8, device.data - first))
    memory[:] = space[first : first + memory.size]
    return np.concatenate([space[:first], space[first + memory.size :]])


# ---- what CuPy cannot ask of CUDA -------------------------------------------------------------


def prepare(kernel, plan: Plan) -> None:
    """Compile a kernel and set the attributes without which CUDA refuses the plan's shared memory
    or cluster (on a GPU only).

    Raises `CompileError` with NVRTC's log, as the SIMT machine does.
    """
    from cupy.cuda.compiler import CompileException

    try:
        static = kernel.shared_size_bytes  # the first access compiles
    except CompileException as error:
        # Without #line, CuPy names the text after its hash.
        log = re.sub(r"^\S*\.cubin\.cu(?=\()", "kernel.cu", str(error), flags=re.MULTILINE)
        message = f"NVRTC could not compile the kernel\n{log}"
        raise simt.CompileError(message, kernel.code) from None
    if plan.shared_mem + static > 48 * 1024:
        kernel.max_dynamic_shared_size_bytes = plan.shared_mem
    if plan.cluster > 8:  # more than any GPU with clusters supports
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        (status,) = driver.cuFuncSetAttribute(kernel.kernel.ptr, attribute, 1)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{kernel.name}: clusters past 8 blocks are refused: {status.name}")


def enqueue(kernel, plan: Plan, arguments: Sequence) -> None:
    """Enqueue one call on CuPy's current stream; `arguments` are CuPy arrays, null pointers and
    numbers as the NumPy types of the parameters. Call `prepare` once before."""
    if plan.programmatic:
        _enqueue_programmatic(kernel, plan, arguments)
    else:
        kernel((plan.grid,), (plan.block,), tuple(arguments), shared_mem=plan.shared_mem)


def _enqueue_programmatic(kernel, plan: Plan, arguments: Sequence) -> None:
    """Launch a kernel whose blocks may start while its predecessor on the stream still runs; the
    kernel waits for it with griddepcontrol.wait. Raises `RuntimeError` with the driver's error
    name."""
    import cupy
    from cuda.bindings import driver

    kinds = [driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION]
    if plan.cooperative:
        kinds.append(driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
    attributes = []
    for kind in kinds:
        attribute = driver.CUlaunchAttribute()
        attribute.id = kind
        if kind == kinds[0]:
            attribute.value.programmaticStreamSerializationAllowed = 1
        else:
            attribute.value.cooperative = 1
        attributes.append(attribute)
    config = _driver_config(plan, attributes)
    config.hStream = cupy.cuda.get_current_stream().ptr
    values = tuple(v.item() if isinstance(v, np.generic) else v.data.ptr for v in arguments)
    types = tuple(
        np.ctypeslib.as_ctypes_type(v.dtype) if isinstance(v, np.generic) else ctypes.c_void_p
        for v in arguments
    )
    (status,) = driver.cuLaunchKernelEx(config, kernel.kernel.ptr, (values, types), 0)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{kernel.name} cannot be launched: {status.name}")


def active_clusters(kernel, plan: Plan) -> int | None:
    """How many clusters of the plan can be resident on this GPU, according to the driver
    (`cuOccupancyMaxActiveClusters`); None without clusters, or if the driver gives no answer."""
    if plan.cluster == 1:
        return None
    from cuda.bindings import driver

    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    size = attribute.value.clusterDim
    size.x, size.y, size.z = plan.cluster, 1, 1
    config = _driver_config(plan, [attribute])
    status, count = driver.cuOccupancyMaxActiveClusters(kernel.kernel.ptr, config)
    return count if status == driver.CUresult.CUDA_SUCCESS else None


def _driver_config(plan: Plan, attributes: list):
    """The driver's `CUlaunchConfig` for a plan, on the default stream."""
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = plan.grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = plan.block, 1, 1
    config.sharedMemBytes = plan.shared_mem
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


# ---- checks -----------------------------------------------------------------------------------


def check_arguments(kernel, args: Sequence) -> None:
    """Raise `TypeError` or `ValueError` naming the first argument that does not match the kernel's
    signature. A matrix x may have strided rows if the kernel takes an x_stride."""
    parameters = signature(kernel.code, kernel.name)
    if not isinstance(args, (list, tuple)):
        raise TypeError(f"args must be a tuple of all that the kernel takes, not {short(args)}")
    if len(args) != len(parameters):
        wanted = ", ".join(parameter.name for parameter in parameters)
        takes = f"takes {counted(len(parameters), 'argument')} ({wanted})"
        raise TypeError(f"{kernel.name} {takes}, not {len(args)}")
    names = {parameter.name for parameter in parameters}
    for parameter, value in zip(parameters, args, strict=True):
        if parameter.pointer and value is None:
            continue
        if parameter.table and isinstance(value, list | tuple):
            for number, one in enumerate(value):
                inner = replace(parameter, name=f"{parameter.name}[{number}]", const=False)
                if one is not None:
                    _check_array(inner, one, False)
        elif parameter.pointer:
            _check_array(parameter, value, f"{parameter.name}_stride" in names)
        else:
            _check_number(parameter, value)


def _check_array(parameter: Parameter, value, strided: bool) -> None:
    name = parameter.name
    if not isinstance(value, np.ndarray) or not value.ndim or np.ma.isMaskedArray(value):
        raise TypeError(
            f"{name} must be a numpy array of one or more dimensions, not a {_kind(value)}"
        )
    if strided and not (value.flags.c_contiguous or rows_apart(value)):
        raise TypeError(
            f"{name} has strides {value.strides}: its rows must be contiguous, each "
            f"behind the one before; pass numpy.ascontiguousarray({name})"
        )
    if not strided and not value.flags.c_contiguous:
        raise TypeError(
            f"{name} is not C-contiguous (strides {value.strides}); a kernel ignores strides: "
            f"pass numpy.ascontiguousarray({name})"
        )
    wanted = np.dtype(np.uint64) if parameter.table and "[" not in name else parameter.dtype
    if wanted not in (None, value.dtype) and name != "workspace":  # zeros, of any type
        raise TypeError(f"{name} is {value.dtype}, the kernel takes {wanted} ({parameter.type}*)")
    if not parameter.const and not value.flags.writeable:
        raise ValueError(f"{name} is read-only, the kernel writes to it")


def _check_number(parameter: Parameter, value) -> None:
    name, dtype = parameter.name, parameter.dtype
    if dtype is None:  # a struct, or a pointer type that only the compiler knows
        return
    if isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be a number ({parameter.type}), not an array")
    if dtype.kind == "b":
        if not isinstance(value, bool | np.bool_) and value not in (0, 1):
            raise TypeError(f"{name} must be a bool, not {value!r}")
    elif dtype.kind in "fV":  # NumPy does not count bfloat16 as floating
        if not isinstance(value, float if dtype == np.float64 else dtype.type):
            wide = ", which CuPy passes as 8 bytes" if type(value) in (int, float) else ""
            module = "ml_dtypes" if dtype.kind == "V" else "numpy"
            cure = f": pass {module}.{dtype}({value})" if isinstance(value, Real) else ""
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
