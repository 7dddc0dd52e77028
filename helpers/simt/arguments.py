"""The arguments of a launch, laid out as the bytes of the kernel's parameters, and arguments from
text, as a command line gives them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from numbers import Integral
from tokenize import TokenError

import ml_dtypes
import numpy as np

from .checks import check_argument, scalar, unboxed
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
        if not _native(dtype):
            raise TypeError(f"{name} is {dtype}, the kernel takes native byte order")
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


# ---- arguments from text ------------------------------------------------------------------------


ARRAY = re.compile(r"(\w+)\[([\d, ]+)\]")
NULLS = ("null", "NULL", "nullptr")
C_TYPES = {"float": "float32", "int": "int32", "unsigned": "uint32", "half": "float16"}
KINDS = "biufcV"  # of numpy dtypes that a kernel can take; ml_dtypes' are "V"


def argument(text: str, parameter: Parameter, random: np.random.Generator):
    """One argument: a number, true, false or null, a .npy file, an array such as float32[64,32], or
    several of these with semicolons between them, for a pointer to pointers.

    Raises `ValueError` with one sentence that names the parameter.
    """
    try:
        value = _argument(text, parameter, random) if ";" not in text else None
        if ";" in text:
            if not parameter.table and (parameter.pointer or parameter.dtype is not None):
                kind = parameter.type + "*" * parameter.pointer
                raise ValueError(f"the kernel takes {kind}, not the list of arrays {text}")
            value = [_argument(part, parameter, random) for part in text.split(";") if part]
    except (ValueError, TypeError, OverflowError, MemoryError, OSError, EOFError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{parameter.name}: {said}") from None
    if isinstance(value, int | float) and parameter.dtype is not None:
        return scalar(parameter.name, parameter.type, parameter.dtype, value)
    return value


def _argument(text: str, parameter: Parameter, random: np.random.Generator):
    if text in NULLS:
        if parameter.dtype is not None and not parameter.pointer:
            raise ValueError(f"the kernel takes {parameter.type}, not {text}")
        return None
    if text.endswith(".npy"):
        return _loaded(text)
    if match := ARRAY.fullmatch(text):
        return _array(text, match[1], match[2], parameter, random)
    if text in ("true", "false"):
        text = str(int(text == "true"))
    try:
        number = float(text) if re.search(r"[.eEn]", text) and "0x" not in text else int(text, 0)
    except ValueError:
        if re.fullmatch(r"-?0[\d_]+", text):
            raise ValueError(f"{text} may be read as octal: write {int(text)}") from None
        raise ValueError(
            f"{text!r} is not a number, an array such as float32[64,1024], a .npy file or null"
        ) from None
    if parameter.pointer:
        raise ValueError(
            f"the kernel takes {parameter.type}*, not {text}: pass an array such as float32[1024], "
            "a .npy file, or null"
        )
    if isinstance(number, float) and np.isinf(number) and "inf" not in text:
        raise ValueError(f"{text} is too large for a number")
    return number


def _loaded(path: str) -> np.ndarray:
    try:
        with open(path, "rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, EOFError, TokenError):  # NumPy reads the header as Python
        raise ValueError(f"{path} is not a .npy file of numbers") from None


def _array(
    text: str, dtype: str, sizes: str, parameter: Parameter, random: np.random.Generator
) -> np.ndarray:
    """Random if the kernel only reads it, else NaN or -1."""
    try:
        kind = np.dtype(C_TYPES.get(dtype, dtype))
    except TypeError:
        raise ValueError(f"{dtype!r} is not a dtype such as float32, int32 or bfloat16") from None
    if kind.kind not in KINDS or kind.hasobject or not kind.itemsize:
        raise ValueError(f"{dtype!r} is not a dtype of numbers")
    if not parameter.pointer and parameter.dtype is not None:
        raise ValueError(f"the kernel takes {parameter.type}, not the array {text}")
    shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    if not shape:
        raise ValueError(f"{text} has no size")
    count = prod(shape)
    if count * kind.itemsize > memory() // 4:  # the machine keeps copies
        raise ValueError(
            f"{text} has {count * kind.itemsize / 2**30:.3g} GB, too much to allocate here"
        )
    if not parameter.const:
        return np.full(shape, np.nan if is_float(kind) else -1).astype(kind)
    if is_float(kind):
        return random.standard_normal(shape).astype(kind)
    return random.integers(0, 2 if kind.kind == "b" else 100, shape).astype(kind)


def memory() -> int:
    """Bytes of this machine's memory; where it does not say, 16 GB."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 16 << 30


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind in "fc" or dtype == np.dtype(ml_dtypes.bfloat16)


def statistics(array: np.ndarray) -> dict[str, float | int | None]:
    """Least, largest and mean value of an output, and how many are NaN; nothing for structs and
    raw bytes."""
    if array.dtype.type is np.void or not array.size:
        return {}
    missing = np.isnan(array) if is_float(array.dtype) else np.zeros(array.shape, bool)
    kept = array[~missing]
    numbers = {"nan": int(missing.sum())}
    if kept.size and array.dtype.kind != "c":
        wide = kept.astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinities of both signs
            mean = float(wide.mean())
        numbers |= {"min": float(wide.min()), "max": float(wide.max()), "mean": mean}
    return numbers


def described(name: str, array: np.ndarray) -> str:
    """An output in one line, to see at a glance whether it is what was meant."""
    about, head = statistics(array), f"{name}: {array.dtype}{list(array.shape)}"
    if "min" not in about:
        return f"{head}, all NaN" if about.get("nan") else head
    return (
        f"{head}, min {about['min']:.6g}, max {about['max']:.6g}, mean {about['mean']:.6g}, "
        f"{about['nan']} NaN"
    )
