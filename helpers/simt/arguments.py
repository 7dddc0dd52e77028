"""What a launch is given: sizes, checked as CUDA would, and arguments, laid out as bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from operator import index

import numpy as np

from .cuda_text import Parameter, plain_name
from .geometry import Shape
from .hardware import (
    BLOCK_SHARED_BYTES,
    MAX_BLOCK,
    MAX_CLUSTER,
    MAX_GRID,
    MAX_THREADS,
    STATIC_SHARED_BYTES,
)
from .instructions import PtxKernel, PtxParameter
from .memory.global_memory import GlobalMemory, rows_apart
from .memory.shared import SharedMemory
from .words import counted


def launch_shape(shape: int | Sequence[int], what: str) -> tuple[int, int, int]:
    """A grid or block as three sizes. Raises `TypeError` if one is no integer, `ValueError` if one
    is outside CUDA's limits."""
    several = isinstance(shape, Sequence | np.ndarray) and not isinstance(shape, str | bytes)
    try:
        sizes = tuple(map(index, shape if several else (shape,)))
    except TypeError:
        raise TypeError(f"{what} must be one to three integers, not {shape!r}") from None
    limits = MAX_GRID if what == "grid" else MAX_BLOCK
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{what} {shape!r} must have one to three sizes")
    sizes += (1,) * (3 - len(sizes))
    for size, limit in zip(sizes, limits, strict=True):
        if not 1 <= size <= limit:
            raise ValueError(f"{what} {shape!r} is outside CUDA's limits of 1 to {limits}")
    return sizes


def check_threads(block: tuple[int, int, int], threads: int) -> None:
    """Raises `ValueError` if a block has more threads than CUDA allows."""
    if threads > MAX_THREADS:
        raise ValueError(f"block {block} has {threads} threads; CUDA allows {MAX_THREADS}")


def check_integer(what: str, value, lowest: int) -> None:
    """Raises `TypeError` if a value is no integer, `ValueError` if it is below the lowest."""
    try:
        number = index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, not {value!r}") from None
    if number < lowest:
        raise ValueError(f"{what} must be at least {lowest}, not {number}")


def check_names(names: Sequence[str], count: int) -> None:
    """Raises `TypeError` or `ValueError` for what cannot name this number of arguments."""
    several = isinstance(names, Sequence) and not isinstance(names, str)
    if not several or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names must be a sequence of strings, one per argument, not {names!r}")
    if len(names) > count:
        raise ValueError(f"{counted(count, 'argument')} cannot have {len(names)} names: {names!r}")
    if twice := [name for name in names if list(names).count(name) > 1]:
        raise ValueError(f"two arguments are named {twice[0]!r}: names must differ")


def check_shared(name: str, shared: SharedMemory) -> None:
    """Raises `ValueError` for more shared memory than a block can have."""
    if shared.static_bytes > STATIC_SHARED_BYTES or shared.bytes > BLOCK_SHARED_BYTES:
        dynamic = shared.bytes - shared.static_bytes
        raise ValueError(
            f"{name} wants {shared.static_bytes} bytes of static, {dynamic} of dynamic shared "
            f"memory; CUDA allows {STATIC_SHARED_BYTES >> 10} KB static, and "
            f"{BLOCK_SHARED_BYTES >> 10} KB in all on an H200"
        )


def check_grid(name: str, shape: Shape, cooperative: bool, shared_bytes: int) -> None:
    """Raises `ValueError` for a cluster larger than any GPU runs, for a grid that is not whole
    clusters, or that cannot run at once although it must."""
    if shape.cluster_blocks > MAX_CLUSTER:
        raise ValueError(
            f"{name}: cluster {shape.cluster} has {shape.cluster_blocks} blocks; an H200 "
            f"allows at most {MAX_CLUSTER}"
        )
    if any(blocks % size for blocks, size in zip(shape.grid, shape.cluster, strict=True)):
        raise ValueError(
            f"{name}: grid {shape.grid} is not a multiple of the cluster {shape.cluster}"
        )
    resident = shape.resident(shared_bytes)
    if cooperative and shape.blocks > resident:
        raise ValueError(
            f"a cooperative launch of {shape.blocks} blocks of {shape.threads} threads and "
            f"{shared_bytes} bytes of shared memory does not fit on an H200 at once: {resident} do"
        )


def parameter_bytes(
    kernel: PtxKernel,
    args: Sequence,
    names: Sequence[str],
    memory: GlobalMemory,
    declared: Sequence[Parameter] = (),
) -> bytes:
    """Lay the arguments out as the kernel's parameter space and map the arrays. The rows of a
    matrix x may be apart where x_stride is one of the names. `declared` are the parameters in the
    source, if they are known.

    Raises `TypeError` for an argument that does not fit its parameter, `ValueError` for a number
    that is out of its range.
    """
    if len(args) != len(kernel.parameters):
        raise TypeError(
            f"{kernel.name} takes {counted(len(kernel.parameters), 'argument')}, not {len(args)}"
        )
    if len(declared) == len(args):
        for parameter, value in zip(declared, args, strict=True):
            _check_declared(parameter, value)
    end = max((p.offset + p.size for p in kernel.parameters), default=0)
    space = bytearray(end)
    for number, (parameter, value) in enumerate(zip(kernel.parameters, args, strict=True)):
        name = names[number] if number < len(names) else f"argument {number}"
        encoded = _encoded(parameter, value, name, names, memory)
        space[parameter.offset : parameter.offset + parameter.size] = encoded
    return bytes(space)


def fill_variables(
    kernel: PtxKernel,
    values: Mapping[str, object],
    memory: GlobalMemory,
    declared: Mapping[str, Parameter],
) -> None:
    """Copy values into `__constant__` and `__device__` variables, given by name, as
    `cudaMemcpyToSymbol` does: an array for an array, a number or a struct for another.

    Raises `ValueError` for a name that the kernel does not use or a value that is too large, and
    `TypeError` for a value of another type.
    """
    held = {plain_name(one.variable.name): one for one in memory.allocations if one.variable}
    for name, value in values.items():
        if name not in held:
            used = ", ".join(sorted(one for one in held if one in declared)) or "none"
            raise ValueError(
                f"{plain_name(kernel.name)} uses no variable {name!r}; __constant__ and __device__ "
                f"variables that it uses: {used}"
            )
        parameter, size = declared.get(name), held[name].variable.size
        if parameter is not None and parameter.pointer:
            if not isinstance(value, np.ndarray) or not value.ndim:
                raise TypeError(f"{name} is an array of {parameter.type}: pass a numpy array")
            _check_declared(parameter, value)
        elif parameter is not None and parameter.dtype is not None:
            if getattr(value, "ndim", 0) or not isinstance(value, Real | np.generic):
                raise TypeError(f"{name} is one {parameter.type}: pass a number, not {value!r}")
            value = np.array(value, parameter.dtype)
        data = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
        if len(data) > size:
            raise ValueError(f"{name} has {size} bytes, too few for the {len(data)} that are given")
        held[name].data[: len(data)] = data


def _check_declared(parameter: Parameter, value) -> None:
    """Raise `TypeError` for a value of another type than the source declares, where PTX shows no
    difference: in PTX every pointer is an integer of 8 bytes."""
    name, dtype = parameter.name, np.dtype(np.uint64) if parameter.table else parameter.dtype
    kind = parameter.type + "*" * (parameter.pointer + parameter.table)
    value = value[()] if isinstance(value, np.ndarray) and not value.ndim else value
    is_array = isinstance(value, np.ndarray)
    is_list = isinstance(value, list | tuple) or (is_array and value.dtype == object)
    if is_list and parameter.table:
        for number, one in enumerate(value):
            inner = replace(parameter, name=f"{name}[{number}]", table=False)
            _check_declared(inner, one)
    elif parameter.pointer and isinstance(value, Integral) and value:
        raise TypeError(f"{name} is {value}, the kernel takes {kind}: pass an array or None")
    elif parameter.pointer and is_list and dtype is not None:
        raise TypeError(f"{name} is a list, the kernel takes {kind}: pass a numpy array")
    elif parameter.pointer and is_array and not is_list and not _holds(value, parameter):
        wanted = "native byte order" if dtype is None else dtype
        raise TypeError(f"{name} is {value.dtype}, the kernel takes {wanted} ({kind})")
    elif not parameter.pointer and (value is None or is_list or is_array):
        if dtype is not None and dtype.itemsize == 8:
            what = "None" if value is None else "an array"
            raise TypeError(f"{name} is {what}, the kernel takes {kind}")


def _holds(array: np.ndarray, pointer: Parameter) -> bool:
    """Whether an array has elements of a pointer's dtype or their bits: integers of either sign,
    integers for 16-bit floats, `np.void` (what numpy loads where it does not know the dtype).
    Memory of any type are a type that only the compiler knows, `char`, and a workspace."""
    given, wanted = array.dtype, np.dtype(np.uint64) if pointer.table else pointer.dtype
    any_type = (pointer.type == "char" or pointer.name == "workspace") and not pointer.table
    if wanted is None or given == wanted or any_type:
        return given.isnative
    if given.itemsize != wanted.itemsize or not given.isnative:
        return False
    whole = given.kind in "iub" and (wanted.kind in "iub" or wanted.itemsize == 2)
    return whole or given.type is np.void


def _encoded(
    parameter: PtxParameter, value, name: str, names: Sequence[str], memory: GlobalMemory
) -> bytes:
    """The bytes of one argument."""
    if value is None or isinstance(value, list | tuple) or getattr(value, "ndim", 0):
        if parameter.struct or parameter.size != 8:
            what = "None" if value is None else "an array"
            raise TypeError(f"{name} is {what}, the kernel takes {_described(parameter)}")
        return _address(value, name, names, memory).to_bytes(8, "little")
    dtype = getattr(value, "dtype", None)
    if parameter.struct:
        wide = 2 if parameter.size == 2 else None  # __half and __nv_bfloat16 are structs
        if dtype is None or not (dtype.kind == "V" or dtype.itemsize == wide):
            example = "numpy.float16(...)" if wide else "a numpy.void of a structured dtype"
            raise TypeError(f"{name} is {_described(parameter)}, not {value!r}: pass {example}")
        if dtype.itemsize != parameter.size:
            raise TypeError(
                f"{name} has {dtype.itemsize} bytes, the kernel takes {_described(parameter)}: "
                "a dtype with align=True has a C struct's padding"
            )
        if not dtype.hasobject:
            return value.tobytes()
        struct = np.zeros((), _plain(dtype))
        _fill(struct, np.asarray(value), name, names, memory)
        return struct.tobytes()
    if dtype is not None and dtype.kind == "V" and dtype.names:
        raise TypeError(
            f"{name} is a struct of {dtype.itemsize} bytes, the kernel takes "
            f"{_described(parameter)}"
        )
    if parameter.type[0] == "f":
        try:
            return np.array([value], f"float{8 * parameter.size}").tobytes()
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"{name} is {_described(parameter)}, not {value!r}") from None
    number = value.item() if isinstance(value, np.generic) else value
    try:
        number = index(number)
    except TypeError:
        kind = f"the {type(number).__name__} {number!r}"
        raise TypeError(f"{name} is {_described(parameter)}, not {kind}") from None
    bits = 8 * parameter.size
    if not -(1 << bits - 1) <= number < 1 << bits:
        raise ValueError(f"{name} = {number} does not fit {_described(parameter)}")
    return (number & (1 << bits) - 1).to_bytes(parameter.size, "little")


def _address(value, name: str, names: Sequence[str], memory: GlobalMemory) -> int:
    """Where an array is mapped, a sequence of arrays as the array of their addresses; 0 for
    None."""
    if value is None:
        return 0
    if isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        raise TypeError(f"{name} is no array: {value!r}")
    if not isinstance(value, np.ndarray) or value.dtype == object:
        inner = enumerate(list(value))
        addresses = [_address(one, f"{name}[{number}]", names, memory) for number, one in inner]
        return memory.allocate(np.array(addresses, np.uint64), name)
    if not value.flags.c_contiguous and not (f"{name}_stride" in names and rows_apart(value)):
        raise TypeError(f"{name} is not C-contiguous; a kernel ignores strides")
    return memory.allocate(value, name)


def _plain(dtype: np.dtype) -> np.dtype:
    """A struct's dtype with addresses in place of objects."""
    if dtype.subdtype:
        return np.dtype((_plain(dtype.base), dtype.shape))
    if dtype.fields is None:
        return np.dtype(np.uint64) if dtype.hasobject else dtype
    fields = [dtype.fields[name] for name in dtype.names]
    formats, offsets = [_plain(one[0]) for one in fields], [one[1] for one in fields]
    sizes = {"offsets": offsets, "itemsize": dtype.itemsize}
    return np.dtype({"names": dtype.names, "formats": formats, **sizes})


def _fill(
    struct: np.ndarray, value: np.ndarray, name: str, names: Sequence[str], memory: GlobalMemory
) -> None:
    """Copy a struct; arrays in its object fields are mapped, and their addresses stand there."""
    if value.dtype == object:
        for place in np.ndindex(value.shape):
            part = name + "".join(f"[{number}]" for number in place)
            struct[place] = _address(value[place], part, names, memory)
    elif value.dtype.names:
        for field in value.dtype.names:
            _fill(struct[field], value[field], f"{name}.{field}", names, memory)
    else:
        struct[...] = value


def _described(parameter: PtxParameter) -> str:
    """ "an integer of 4 bytes": what PTX knows of a parameter."""
    if parameter.struct:
        kind = "a struct"
    elif parameter.type[0] == "f":
        kind = "a floating-point number"
    else:
        kind = "an integer or a pointer" if parameter.size == 8 else "an integer"
    return f"{kind} of {counted(parameter.size, 'byte')}"


def pointers(kernel: PtxKernel, space: bytes, names: Collection[str]) -> Iterator[int]:
    """What may be addresses in the parameters of these names, structs among them."""
    for parameter in kernel.parameters:
        if parameter.name in names:
            end = parameter.offset + parameter.size
            for start in range(parameter.offset, end - 7, 8):
                yield int.from_bytes(space[start : start + 8], "little")
