"""Reading CUDA C++ as text: comments, the kernels of a source and what they take, a hash of code.

No compiler is asked, so that a source can be looked at before it compiles, and on any machine.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass

import ml_dtypes  # numpy knows bfloat16 after this
import numpy as np

C_DTYPES = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "int": np.dtype(np.int32),
    "unsigned": np.dtype(np.uint32),
    "unsigned int": np.dtype(np.uint32),
    "long long": np.dtype(np.int64),
    "unsigned long long": np.dtype(np.uint64),
    "char": np.dtype(np.int8),
    "unsigned char": np.dtype(np.uint8),
    "half": np.dtype(np.float16),
    "__half": np.dtype(np.float16),
    "__nv_bfloat16": np.dtype(ml_dtypes.bfloat16),
    "bool": np.dtype(np.bool_),
    "short": np.dtype(np.int16),
    "unsigned short": np.dtype(np.uint16),
    "long": np.dtype(np.int64),
    "size_t": np.dtype(np.uint64),
}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel as its source declares it."""

    name: str
    type: str  # "float", "long long"; of the element for a pointer
    pointer: bool
    const: bool

    @property
    def dtype(self) -> np.dtype | None:
        """None for a type that only the compiler knows, such as a typedef or macro."""
        return C_DTYPES.get(self.type)


@functools.lru_cache(maxsize=256)
def signature(code: str, kernel_name: str) -> tuple[Parameter, ...]:
    """The parameters that `kernel_name` declares.

    Raises `ValueError` naming the kernels there are if it is not declared `__global__`.
    """
    plain = strip_comments(code)
    kernel_name = kernel_name.partition("<")[0].rpartition("::")[2]  # of a template's expression
    match = re.search(rf"__global__[^;{{]*?\b{re.escape(kernel_name)}\s*\(([^)]*)\)", plain)
    if not match:
        known = ", ".join(kernel_names(code)) or "none"
        raise ValueError(f"no kernel named {kernel_name!r} in this source; kernels there: {known}")
    parameters = []
    for text in filter(None, (part.strip() for part in match[1].split(","))):
        words = re.findall(r"\w+|\*", text.replace("__restrict__", " "))
        kind = [word for word in words[:-1] if word not in ("const", "*", "volatile")]
        # What the pointer points to is const; in `float* const y` the pointer alone is.
        const = "const" in " ".join(words).partition("*")[0].split()
        parameters.append(Parameter(words[-1], " ".join(kind), "*" in words, const))
    return tuple(parameters)


def kernel_names(code: str) -> list[str]:
    """Names of the `__global__` functions of a source, in order."""
    plain = strip_comments(code)
    return re.findall(r"__global__\s+(?:void\s+|[A-Z_]+\s+|__\w+__\([^)]*\)\s*)*(\w+)\s*\(", plain)


def strip_comments(code: str) -> str:
    """The source without comments and `#line` directives."""
    pattern = r"//[^\n]*|/\*.*?\*/|^#line[^\n]*$"  # in one go: // may hold /* and the reverse
    return re.sub(pattern, " ", code, flags=re.MULTILINE | re.DOTALL)


def code_hash(code: str) -> str:
    """Hash of what the compiler sees: comments and white space do not count."""
    return hashlib.sha256(" ".join(strip_comments(code).split()).encode()).hexdigest()[:16]
