"""Arguments of a kernel from text, as a command line gives them, and what is said of outputs."""

from __future__ import annotations

import os
import re
from math import prod
from tokenize import TokenError

import ml_dtypes
import numpy as np

from .checks import scalar
from .cuda_text import Parameter

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
                raise ValueError(f"the kernel takes no pointer to pointers, which {text} is")
            value = [_argument(part, parameter, random) for part in text.split(";") if part]
    except (ValueError, TypeError, OverflowError, MemoryError, OSError, EOFError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{parameter.name}: {said}") from None
    if isinstance(value, int | float) and parameter.dtype is not None:
        return scalar(parameter, value)
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
