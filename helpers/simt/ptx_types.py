"""PTX types: their sizes, and the numpy types that hold them."""

from __future__ import annotations

import functools

import numpy as np

HALVES = ("f16", "bf16")
PAIRS = {"f16x2": "f16", "bf16x2": "bf16", "u16x2": "u16", "s16x2": "s16"}
EIGHTS = {"e4m3x2": "e4m3", "e5m2x2": "e5m2"}  # in registers of 16 bits
UNSIGNED = {size: np.dtype(f"uint{8 * size}") for size in (1, 2, 4, 8)}
DTYPES = {
    "pred": np.dtype(bool),
    **{f"b{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),  # its bits
    **{pair: np.dtype(np.uint32) for pair in PAIRS},  # the bits of both halves
}


def type_size(name: str) -> int:
    """Bytes of a PTX type such as f32, u64 or pred."""
    return DTYPES[name].itemsize


@functools.cache
def cleared(kind: str) -> np.ndarray:
    """What a register of this type holds before anything is written to it, in every thread. Who
    writes to a register puts another array in its place, so that one serves all."""
    value = np.zeros(1, bool if kind == "pred" else UNSIGNED[type_size(kind)])
    value.flags.writeable = False
    return value


def is_float(kind: str) -> bool:
    """Whether it is f32 or f64; the 16-bit floats are a room of their own."""
    return kind in ("f32", "f64")
