"""Conversions of 8-bit floats, bit by bit against ml_dtypes: of every half, and of every code."""

import ml_dtypes
import numpy as np
import pytest

from helpers.simt import KernelText, simulate

TYPES = {"E4M3": ml_dtypes.float8_e4m3fn, "E5M2": ml_dtypes.float8_e5m2}
LARGEST = {"E4M3": 448, "E5M2": 57344}
CODE = r"""#include <cuda_fp8.h>
#define KIND __NV_KIND
extern "C" __global__ void from_float(const float2* x, __nv_fp8x2_storage_t* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __nv_cvt_float2_to_fp8x2(x[i], __NV_SATFINITE, KIND);
}
extern "C" __global__ void from_half(const __half2* x, __nv_fp8x2_storage_t* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __nv_cvt_halfraw2_to_fp8x2(x[i], __NV_SATFINITE, KIND);
}
extern "C" __global__ void to_half(const __nv_fp8x2_storage_t* x, __half2* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __half2(__nv_cvt_fp8x2_to_halfraw2(x[i], KIND));
}
"""


def run(name: str, kind: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """y, after a kernel has run on pairs of x."""
    kernel = KernelText(CODE.replace("__NV_KIND", f"__NV_{kind}"), name)
    trace = simulate(kernel, -(-len(x) // 512), 256, (x, y, len(x) // 2))
    assert not trace.findings
    return y


def saturated(numbers: np.ndarray, kind: str) -> np.ndarray:
    """The codes of numbers; NaN is 0x7f, as the hardware makes it."""
    finite = np.clip(np.nan_to_num(numbers, nan=0), -LARGEST[kind], LARGEST[kind])
    nearest = finite.astype(TYPES[kind]).view(np.uint8)
    return np.where(np.isnan(numbers), np.uint8(0x7F), nearest)


@pytest.mark.parametrize("kind", TYPES)
def test_every_half(kind: str) -> None:
    x = np.arange(2**16).astype(np.uint16).view(np.float16)
    y = run("from_half", kind, x, np.zeros(len(x), np.uint8))
    assert np.array_equal(y, saturated(x.astype(np.float32), kind))


@pytest.mark.parametrize("kind", TYPES)
def test_floats_between_and_beyond_the_codes(kind: str) -> None:
    codes = np.arange(256, dtype=np.uint8).view(TYPES[kind]).astype(np.float32)
    finite = np.sort(codes[np.isfinite(codes)])
    ties = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(ties, np.float32(far)) for far in (np.inf, -np.inf)]
    ends = [0, -0.0, 1e-45, 1e38, np.inf, -np.inf, np.nan, -np.nan, 464, 480, 61440, 65536]
    x = np.concatenate([codes, ties, *near, ends]).astype(np.float32)
    x = np.append(x, x[: len(x) % 2])
    y = run("from_float", kind, x, np.zeros(len(x), np.uint8))
    assert np.array_equal(y, saturated(x, kind))


@pytest.mark.parametrize("kind", TYPES)
def test_every_code(kind: str) -> None:
    x = np.arange(256, dtype=np.uint8)
    y = run("to_half", kind, x, np.zeros(256, np.float16))
    expected = x.view(TYPES[kind]).astype(np.float16)
    assert np.array_equal(y, expected, equal_nan=True)
    zero = y == 0
    assert np.array_equal(np.signbit(y[zero]), np.signbit(expected[zero]))
