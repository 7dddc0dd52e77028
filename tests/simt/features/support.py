"""The texts of tests/simt/kernels/features_*.cu, and what their kernels are given."""

from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[1] / "kernels"


def text(file: str) -> str:
    name = f"features_{file}.cu"
    return f'#line 1 "kernels/{name}"\n' + (FOLDER / name).read_text(encoding="utf-8")


def whole(*shape: int, low: int = -50, high: int = 50, dtype=np.int32) -> np.ndarray:
    """Small whole numbers, whose sums are exact also in fp32."""
    return np.random.default_rng(sum(shape)).integers(low, high, shape).astype(dtype)


def normal(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def wrapped(numbers) -> np.ndarray:
    """Python integers as an int32 holds them."""
    array = np.array(numbers, object) & 0xFFFFFFFF
    return array.astype(np.uint32).view(np.int32)
