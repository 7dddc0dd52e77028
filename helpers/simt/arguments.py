"""What a launch may be given: the kernel, sizes, limits, names and arguments, checked beforehand;
and the arguments laid out as the bytes of the kernel's parameters.

The command line and `simulate` both come here, so that both refuse the same things in the same
words. An error is one sentence: what is expected, what was given, and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from operator import index

import ml_dtypes
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

ARCH = re.compile(r"(compute|sm)_\d+[af]?")
LONGEST = 60  # characters of a value in a message


def expect(holds: object, what: str, wanted: str, value, error: type = TypeError) -> None:
    """Raise an error with one sentence unless it holds that `what` is as it must be."""
    if not holds:
        raise error(f"{what} must be {wanted}, not {_short(value)}")


def check_kernel(kernel, arch: str) -> None:
    """Raise `TypeError` or `ValueError` for anything but a kernel: neither a `cupy.RawKernel` nor a
    `KernelText`, or without source, name or options that are text."""
    is_kernel = all(hasattr(kernel, part) for part in ("code", "name", "options"))
    expect(is_kernel, "kernel", "a cupy.RawKernel or KernelText(source, name)", kernel)
    for part, what in (("code", "the CUDA source"), ("name", "the kernel's name")):
        value = getattr(kernel, part)
        expect(isinstance(value, str), f"the {part} of a kernel", f"{what} as a string", value)
    if re.fullmatch(r".*\.cuh?", kernel.code):
        raise ValueError(
            f"the code of a kernel is its source, not the path {kernel.code!r}: read the file first"
        )
    if not kernel.name.strip():
        raise ValueError("the name of the kernel is empty: pass the name of a __global__ function")
    options, headers = kernel.options, getattr(kernel, "headers", ())
    tuple_ = "a tuple of strings such as ('-DTILE=32',)"
    expect(_several(options, Sequence, str), "options", tuple_, options)
    pairs = _several(headers, Sequence, Sequence)
    pairs = pairs and all(len(one) == 2 and _several(one, Sequence, str) for one in headers)
    expect(pairs, "headers", "pairs (name, text)", headers)
    known = isinstance(arch, str) and ARCH.fullmatch(arch)
    expect(known, "arch", "an architecture such as 'compute_90'", arch, ValueError)


def check_options(orders, volatile, symbols, watch, only_blocks, progress) -> None:
    """Raise `TypeError` or `ValueError` for an option of `simulate` that is none of its values."""
    for what, value, choices in (
        ("orders", orders, (1, 2)),
        ("volatile", volatile, ("relaxed", "plain")),
    ):
        known = type(value) is type(choices[0]) and value in choices
        expect(known, what, " or ".join(map(repr, choices)), value, ValueError)
    by_name = symbols is None or isinstance(symbols, Mapping)
    by_name = by_name and all(isinstance(name, str) for name in symbols or ())
    values = "a dict of values by the names of __constant__ or __device__ variables"
    expect(by_name, "symbols", values, symbols)
    watches = isinstance(watch, bool) or _several(watch, Collection, Integral)
    expect(watches, "watch", "True or lines such as (30, 31)", watch)
    blocks = _several(only_blocks, Collection, Integral, tuple, list)
    expect(blocks, "only_blocks", "blocks such as (0, 1)", only_blocks)
    calls = progress is None or callable(progress)
    expect(calls, "progress", "a function of two integers", progress)


def _several(values, collection: type, *kinds: type) -> bool:
    """Whether this is such a collection of elements of these kinds, and not a text."""
    several = isinstance(values, collection) and not isinstance(values, str | bytes)
    return several and all(isinstance(one, kinds or object) for one in values)


def launch_shape(shape: int | Sequence[int], what: str) -> tuple[int, int, int]:
    """A grid or block as three sizes. Raises `TypeError` if one is not an integer, `ValueError` if
    one is outside CUDA's limits."""
    several = isinstance(shape, Sequence | np.ndarray) and not isinstance(shape, str | bytes)
    try:
        sizes = tuple(map(index, shape if several else (shape,)))
    except TypeError:
        raise TypeError(f"{what} must be one to three integers, not {_short(shape)}") from None
    limits = MAX_GRID if what == "grid" else MAX_BLOCK
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"{what} {shape!r} must have one to three sizes")
    sizes += (1,) * (3 - len(sizes))
    for size, limit in zip(sizes, limits, strict=True):
        if not 1 <= size <= limit:
            raise ValueError(f"{what} {shape!r} is outside CUDA's limits of 1 to {limits}")
    return sizes


def check_threads(shape: Shape, most: int = MAX_THREADS) -> None:
    """Raise `ValueError` if a block has more threads than CUDA, or the kernel, allows."""
    if shape.threads > most:
        allows = "CUDA allows" if most == MAX_THREADS else "the kernel's __launch_bounds__ allow"
        raise ValueError(f"block {shape.block} has {shape.threads} threads; {allows} {most}")


def check_integer(what: str, value, lowest: int) -> None:
    """Raise `TypeError` if a value is not an integer, `ValueError` if it is below the lowest."""
    try:
        number = index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, not {_short(value)}") from None
    expect(number >= lowest, what, f"at least {lowest}", number, ValueError)


def check_shared(name: str, shared: SharedMemory) -> None:
    """Raise `ValueError` for more shared memory than a block can have."""
    if shared.static_bytes > STATIC_SHARED_BYTES or shared.bytes > BLOCK_SHARED_BYTES:
        dynamic = shared.bytes - shared.static_bytes
        raise ValueError(
            f"{name} requests {shared.static_bytes} bytes of static, {dynamic} of dynamic shared "
            f"memory; CUDA allows {STATIC_SHARED_BYTES >> 10} KB static, and "
            f"{BLOCK_SHARED_BYTES >> 10} KB in all on an H200"
        )


def check_grid(name: str, shape: Shape, cooperative: bool, shared_bytes: int) -> None:
    """Raise `ValueError` for a cluster larger than any GPU runs, for a grid that is not whole
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


def check_count(name: str, declared: Sequence[Parameter], args: Sequence, count: int) -> None:
    """Raise `TypeError` unless `args` are as many arguments as the kernel takes."""
    if not _several(args, Sequence):
        raise TypeError(
            f"args must be a tuple with all arguments, such as (x, y, n), not {_said(args)}"
        )
    if len(args) != count:
        listed = f" ({', '.join(one.name for one in declared)})" if declared else ""
        raise TypeError(f"{name} takes {counted(count, 'argument')}{listed}, not {len(args)}")


def check_argument(parameter: Parameter, value) -> None:
    """Raise `TypeError` or `ValueError` for a value of another type than the source declares, or
    out of its range. What only the compiler knows, such as a struct, is not judged."""
    value = unboxed(value)
    if parameter.pointer:
        _check_pointer(parameter, value)
    elif parameter.dtype is not None:
        scalar(parameter.name, parameter.type, parameter.dtype, value)


def unboxed(value):
    """The element of an array without dimensions; anything else as it is."""
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value


def _check_pointer(parameter: Parameter, value) -> None:
    name, dtype = parameter.name, np.dtype(np.uint64) if parameter.table else parameter.dtype
    kind = parameter.type + "*" * (parameter.pointer + parameter.table)
    is_array = isinstance(value, np.ndarray)
    is_list = isinstance(value, list | tuple) or (is_array and value.dtype == object)
    if value is None or isinstance(value, Integral) and value == 0:
        return
    if hasattr(value, "filled"):  # numpy.ma takes a while to import
        raise TypeError(f"{name} is a masked array: pass {name}.filled() or {name}.data")
    if is_list and parameter.table:
        for number, one in enumerate(value):
            check_argument(replace(parameter, name=f"{name}[{number}]", table=False), one)
    elif is_list and dtype is not None:
        what = "an array of objects" if is_array else "a list"
        raise TypeError(f"{name} is {what}, the kernel takes {kind}: pass a numpy array")
    elif is_array and not is_list and not _holds(value, parameter):
        wanted = "native byte order" if dtype is None else dtype
        raise TypeError(f"{name} is {value.dtype}, the kernel takes {wanted} ({kind})")
    elif not is_array and not is_list:
        raise TypeError(f"{name} is {_said(value)}, the kernel takes {kind}: pass an array or None")


def scalar(name: str, kind: str, dtype: np.dtype, value) -> np.generic:
    """A number as the dtype of a parameter that is one, `kind` in words.

    Raises `TypeError` for anything but a number of that kind, `ValueError` for one out of its
    range.
    """
    number = value
    if isinstance(value, np.generic) and not value.dtype.names:
        bits = dtype.kind not in "iu" and value.dtype.kind in "iuV"
        if bits and dtype.itemsize == 2 == value.dtype.itemsize:
            return value  # those of a 16-bit float
        number = value.item()
    whole = dtype.kind in "iub"
    if not isinstance(number, Integral if whole else Real):
        raise TypeError(f"{name} is {_said(value)}, the kernel takes {kind}")
    if whole:
        limits = None if dtype.kind == "b" else np.iinfo(dtype)
        low, high = (limits.min, limits.max) if limits else (0, 1)
        if not low <= number <= high:
            raise ValueError(f"{name} is {_said(value)}, the kernel takes {kind} ({low} to {high})")
        return dtype.type(number)
    try:
        with np.errstate(over="ignore"):
            result = dtype.type(float(number))
    except OverflowError:
        result = dtype.type(np.inf)
    if np.isinf(result) and not (isinstance(number, float) and np.isinf(number)):
        most = float(ml_dtypes.finfo(dtype).max)
        raise ValueError(f"{name} is {_said(value)}, the kernel takes {kind} (at most {most:.6g})")
    return result


def _said(value) -> str:
    """What a value is, in a few words."""
    if isinstance(value, list | tuple):
        return "a list"
    if getattr(value, "ndim", 0):
        return "an array" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    if getattr(getattr(value, "dtype", None), "names", None):
        return f"a struct of {value.dtype.itemsize} bytes"
    return str(value) if isinstance(value, Real) and len(str(value)) < LONGEST else _short(value)


def _short(value) -> str:
    """A value as Python writes it, or its beginning, in one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


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


# ---- layout --------------------------------------------------------------------------------------


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
        encoded = _encoded(parameter, unboxed(value), name, names, memory)
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
                raise TypeError(f"{name} is an array of {parameter.type}: pass an array")
            check_argument(parameter, value)
        elif parameter is not None and parameter.dtype is not None:
            value = scalar(name, parameter.type, parameter.dtype, unboxed(value))
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
        if dtype != dtype.newbyteorder("="):
            raise TypeError(f"{name} has numbers in a byte order that is not this machine's")
        if not dtype.hasobject:
            return value.tobytes()
        struct = np.zeros((), _plain(dtype))
        _fill(struct, np.asarray(value), name, names, memory)
        return struct.tobytes()
    # PTX does not say whether an integer has a sign.
    number = value.item() if isinstance(value, np.generic) else value
    letter = "i" if isinstance(number, Integral) and number < 0 else "u"
    kind = np.dtype(f"{'f' if parameter.type[0] == 'f' else letter}{parameter.size}")
    return scalar(name, _described(parameter), kind, value).tobytes()


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
