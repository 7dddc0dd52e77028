"""Run a `cupy.RawKernel` once: on the GPU through CuPy, or on the SIMT machine.

Both take numpy arrays and write results into them in place. Arguments are first checked against the
kernel's signature, because CUDA checks nothing: it ignores strides and converts no dtype. Clusters
of more than 8 blocks and programmatic launches, which CuPy does not support, use the CUDA driver
API.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral

import numpy as np

from .. import simt
from ..base.gpu import replaying
from ..catalogue.plan import Plan
from ..simt import byte_offset, rows_apart, span
from ..simt.arguments import check_argument, check_count, scalar, unboxed
from ..simt.cuda_text import Parameter, signature

GUARD = 256  # bytes before and after each array on a GPU; a multiple of any alignment
GUARD_BYTE = 0xA5  # fills the guard bytes


class KernelBug(simt.ShownShort, RuntimeError):
    """A bug in the kernel: the message lists the findings of the SIMT machine, or names the array
    beyond whose bounds the kernel wrote on a GPU."""


def execute(kernel, plan: Plan, args: Sequence) -> simt.Trace | None:
    """Launch a kernel with checked arguments, and wait for it to finish.

    Grid and block of the plan may have up to three dimensions. Return the SIMT machine's trace in
    replay mode, None on a GPU. Raises `KernelBug` if a bug is found, and what `helpers.simt` or
    CuPy raise.
    """
    if not replaying():
        _execute_on_gpu(kernel, plan, args)
        return None
    trace = execute_simulated(kernel, plan, args)
    if trace.findings:
        raise KernelBug(f"{kernel.name} has bugs:\n{trace.findings}", kernel.code)
    return trace


def execute_simulated(kernel, plan: Plan, args: Sequence, **options) -> simt.Trace:
    """Launch the kernel on the SIMT machine, even if there is a GPU; bugs are in `trace.findings`.
    `options` are passed to `simt.simulate`."""
    options = {"arch": f"compute_{max(90, plan.arch)}", **options}
    return simt.simulate(kernel, plan.grid, plan.block, args, plan.shared_mem, **options)


def _execute_on_gpu(kernel, plan: Plan, args: Sequence) -> None:
    import cupy

    prepare(kernel, plan)
    declared = signature(kernel.code, kernel.name)
    on_gpu = [
        as_declared(parameter, value) if not parameter.pointer else _pointer(parameter.name, value)
        for parameter, value in zip(declared, args, strict=True)
    ]
    sizes = simt.launch_shape(plan.grid, "grid"), simt.launch_shape(plan.block, "block")
    # An ordinary launch even if the plan is programmatic: a single call has no predecessor to
    # overlap with. Timings use `enqueue`.
    kernel(*sizes, tuple(on_gpu), shared_mem=plan.shared_mem)
    cupy.cuda.get_current_stream().synchronize()
    for parameter, value, device in zip(declared, args, on_gpu, strict=True):
        if parameter.pointer and not parameter.const and not isinstance(device, np.uintp):
            guards = _copy_back(device, value)
            if (guards != GUARD_BYTE).any():
                raise KernelBug(f"{kernel.name} wrote outside of {parameter.name}")


def _pointer(name: str, value):
    """Return the argument that CuPy gets for a pointer; None and 0 are the null pointer."""
    if value is None or isinstance(unboxed(value), Integral):
        return np.uintp(0)
    if not isinstance(value, np.ndarray) or value.dtype == object:
        raise TypeError(f"{name}: arrays of pointers are supported only on the SIMT machine")
    return to_gpu(value, GUARD)


def device_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype that CuPy uses: uint16 for bfloat16, which CuPy may not support."""
    return np.dtype(np.uint16) if dtype.name == "bfloat16" else dtype


def as_declared(parameter: Parameter, value):
    """Convert a number to the declared type of a parameter: CuPy would pass a numpy.int32 as 4
    bytes even to a long long. Raises what `check_arguments` raises."""
    if parameter.dtype is None:
        return value
    return scalar(parameter.name, parameter.type, parameter.dtype, unboxed(value))


def to_gpu(array: np.ndarray, guard: int = 0):
    """Copy a numpy array to a CuPy array with the same alignment and strides, including the gaps
    between strided rows; bfloat16 becomes uint16. `guard` bytes of `GUARD_BYTE` surround it."""
    import cupy

    memory, first = span(array), guard + byte_offset(array)
    buffer = cupy.empty(first + memory.size + guard, cupy.uint8)
    buffer.fill(GUARD_BYTE)
    buffer[first : first + memory.size].set(memory)
    strides = None if array.flags.c_contiguous else array.strides
    return cupy.ndarray(array.shape, device_dtype(array.dtype), buffer.data + first, strides)


def _copy_back(device, array: np.ndarray) -> np.ndarray:
    """Copy a guarded copy made by `to_gpu` back to its numpy array; return the guard bytes."""
    import cupy

    memory, first = span(array), GUARD + byte_offset(array)
    size = first + memory.size + GUARD
    buffer = cupy.asnumpy(cupy.ndarray((size,), cupy.uint8, device.data - first))
    memory[:] = buffer[first : first + memory.size]
    return np.concatenate([buffer[:first], buffer[first + memory.size :]])


# ---- launches ---------------------------------------------------------------------------------


def prepare(kernel, plan: Plan) -> None:
    """Compile a kernel and set the function attributes that the plan's shared memory and cluster
    size require (on a GPU only).

    Raises `CompileError` with NVRTC's log, as the SIMT machine does.
    """
    from cupy.cuda.compiler import CompileException

    try:
        static = kernel.shared_size_bytes  # reading the first attribute compiles
    except CompileException as error:
        # CuPy names a source without #line after its hash.
        log = re.sub(r"^\S*\.cubin\.cu(?=\()", "kernel.cu", str(error), flags=re.MULTILINE)
        message = f"NVRTC could not compile the kernel\n{log}"
        raise simt.CompileError(message, kernel.code) from None
    if plan.shared_mem + static > 48 * 1024:
        kernel.max_dynamic_shared_size_bytes = plan.shared_mem
    if plan.cluster > 8:  # larger than the portable cluster size
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        (status,) = driver.cuFuncSetAttribute(kernel.kernel.ptr, attribute, 1)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(
                f"{kernel.name}: clusters of more than 8 blocks are refused: {status.name}"
            )


def enqueue(kernel, plan: Plan, arguments: Sequence) -> None:
    """Enqueue one call on CuPy's current stream. `arguments` are CuPy arrays, null pointers and
    NumPy scalars of the kernel's parameter types. Call `prepare` once before."""
    if plan.programmatic:
        _enqueue_programmatic(kernel, plan, arguments)
    else:
        kernel((plan.grid,), (plan.block,), tuple(arguments), shared_mem=plan.shared_mem)


def _enqueue_programmatic(kernel, plan: Plan, arguments: Sequence) -> None:
    """Enqueue a programmatic dependent launch: blocks may start while the predecessor on the stream
    still runs, and the kernel waits for it with griddepcontrol.wait. Raises `RuntimeError` with the
    driver's status."""
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
    """Return how many clusters of the plan are concurrently resident on this GPU, according to
    `cuOccupancyMaxActiveClusters`; None without clusters or if the driver reports an error."""
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
    """Return the driver's `CUlaunchConfig` for a plan, on the default stream."""
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
    signature, as the SIMT machine does, that is not contiguous, or that is read-only but written.
    A matrix x may have strided rows if the kernel takes an x_stride."""
    parameters = signature(kernel.code, kernel.name)
    check_count(kernel.name, parameters, args, len(parameters))
    names = {parameter.name for parameter in parameters}
    for parameter, value in zip(parameters, args, strict=True):
        check_argument(parameter, value)
        if parameter.pointer and isinstance(value, np.ndarray):
            _check_layout(parameter, value, f"{parameter.name}_stride" in names)
        for number, entry in enumerate(value if isinstance(value, list | tuple) else ()):
            if isinstance(entry, np.ndarray):  # the kernel may write to it
                inner = replace(parameter, name=f"{parameter.name}[{number}]", const=False)
                _check_layout(inner, entry, False)


def _check_layout(parameter: Parameter, value: np.ndarray, strided: bool) -> None:
    name = parameter.name
    if strided and not (value.flags.c_contiguous or rows_apart(value)):
        raise TypeError(
            f"{name} has strides {value.strides}, but each row must be contiguous and start after "
            f"the previous row: pass numpy.ascontiguousarray({name})"
        )
    if not strided and not value.flags.c_contiguous:
        raise TypeError(
            f"{name} is not C-contiguous (strides {value.strides}); a kernel ignores strides: "
            f"pass numpy.ascontiguousarray({name})"
        )
    if not parameter.const and not value.flags.writeable:
        raise ValueError(f"{name} is read-only, but the kernel takes a non-const pointer")
