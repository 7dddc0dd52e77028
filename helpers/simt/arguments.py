"""The arguments of a launch, laid out as the bytes of the kernel's parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import index

import numpy as np

from .checks import check_argument, scalar
from .cuda_text import Parameter, plain_name
from .instructions import PtxKernel, PtxParameter
from .memory.global_memory import GlobalMemory, rows_apart
from .words import counted


def parameter_bytes(
    kernel: PtxKernel, args: Sequence, names: Sequence[str], memory: GlobalMemory
) -> bytes:
    """Lay the arguments, each with its name, out as the kernel's parameter space and map the
    arrays. The rows of a matrix x may be apart where x_stride is one of the names.

    Raises `TypeError` for an argument that does not fit its parameter in PTX, `ValueError` for a
    number that is out of its range.
    """
    end = max((p.offset + p.size for p in kernel.parameters), default=0)
    space = bytearray(end)
    for parameter, name, value in zip(kernel.parameters, names, args, strict=True):
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
            check_argument(parameter, value)
        elif parameter is not None and parameter.dtype is not None:
            single = isinstance(value, np.ndarray) and not value.ndim
            value = scalar(parameter, value[()] if single else value)
        data = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
        if len(data) > size:
            raise ValueError(f"{name} has {size} bytes, too few for the {len(data)} that are given")
        held[name].data[: len(data)] = data


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
        if not _native(dtype):
            raise TypeError(f"{name} is {dtype}, the kernel takes native byte order")
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
        raise TypeError(
            f"{name} is not C-contiguous; a kernel ignores strides: pass "
            f"numpy.ascontiguousarray({name})"
        )
    return memory.allocate(value, name)


def _native(dtype: np.dtype) -> bool:
    """Whether all numbers of a struct are in this machine's byte order."""
    if dtype.subdtype:
        return _native(dtype.base)
    return dtype.isnative and all(_native(one[0]) for one in (dtype.fields or {}).values())


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
