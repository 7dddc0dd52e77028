"""Functions of the CUDA headers, in 16 bits, fp32 and fp64, for several architectures."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from helpers import simt
from tests.simt.forms_of_floats import fused, narrowed
from tests.simt.ptx_forms import SIXTEEN, decode, encode

ARCHITECTURES = ("compute_75", "compute_80", "compute_90")  # each has other code for bf16
INCLUDES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"


def run_cuda(code: str, count: int, *args, arch: str = "compute_90") -> None:
    """Run the kernel `k` with at least `count` threads."""
    kernel = SimpleNamespace(code=INCLUDES + code, name="k", options=("--device-int128",))
    trace = simt.simulate(kernel, -(-count // 96), 96, args, arch=arch)
    assert not trace.findings, str(trace.findings)


def sixteen(values: np.ndarray, base: str) -> np.ndarray:
    bits = [encode(narrowed(float(value), "rn", base), base) for value in values]
    return np.array(bits, np.uint16)


CPP = {"f16": ("__half", "__half2"), "bf16": ("__nv_bfloat16", "__nv_bfloat162")}


# CUDA has no fused multiply-add of bf16 before compute capability 8.0.
@pytest.mark.parametrize(
    ("base", "arch"),
    [(b, a) for b in SIXTEEN for a in ARCHITECTURES if (b, a) != ("bf16", "compute_75")],
)
def test_pairs_and_an_odd_last_value_are_rounded_once(base: str, arch: str) -> None:
    count = 777
    one, two = CPP[base]
    code = f"""extern "C" __global__ void k({one}* y, const {one}* x, float a, int n)
    {{
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        const {one} factor = {"__float2half" if base == "f16" else "__float2bfloat16"}(a);
        if (2 * i + 1 < n) {{
            {two}* pairs = reinterpret_cast<{two}*>(y);
            const {two} given = reinterpret_cast<const {two}*>(x)[i];
            pairs[i] = __hfma2({two}(factor, factor), given, pairs[i]);
        }} else if (2 * i < n) {{
            y[2 * i] = __hfma(factor, x[2 * i], y[2 * i]);
        }}
    }}"""
    x, y = (sixteen(np.random.default_rng(s).normal(size=count), base) for s in (1, 2))
    factor = narrowed(1 / 3, "rn", base)
    given = [[decode(bits, base) for bits in one.tolist()] for one in (x, y)]
    expected = [encode(fused(factor, *pair, base)[0], base) for pair in zip(*given, strict=True)]
    run_cuda(code, -(-count // 2), y, x, np.float32(1 / 3), count, arch=arch)
    assert y.tolist() == expected


# ---- functions of the CUDA headers in fp32 and fp64 ---------------------------------------------


# Largest error in ulp that the CUDA programming guide gives, for fp32 and fp64.
FUNCTIONS = {
    "exp": (1, 1),
    "exp2": (2, 1),
    "log": (1, 1),
    "log2": (1, 1),
    "sin": (2, 2),
    "cos": (2, 2),
    "tanh": (2, 1),
    "erf": (2, 2),
    "sqrt": (0.5, 0.5),
    "round": (0, 0),
    "cbrt": (1, 1),
}
FAR = ("sin", "cos")


@pytest.mark.parametrize("type_name", ["float", "double"])
def test_mathematical_functions(type_name: str) -> None:
    end = "f" if type_name == "float" else ""
    calls = [f"y[{k} * n + i] = {name}{end}(x[i]);" for k, name in enumerate(FUNCTIONS)]
    # Far arguments of sine and cosine: the remainder needs many digits of pi.
    calls += [f"y[{len(FUNCTIONS) + k} * n + i] = {f}{end}(z[i]);" for k, f in enumerate(FAR)]
    code = f"""extern "C" __global__ void k({type_name}* y, const {type_name}* x,
                                            const {type_name}* z, int n)
    {{
        const int i = threadIdx.x;
        if (i < n) {{ {" ".join(calls)} }}
    }}"""
    dtype = np.dtype(np.float32 if type_name == "float" else np.float64)
    x = np.random.default_rng(5).uniform(0.01, 40, 93).astype(dtype)
    z = np.resize((1e6, 123456.789, 1e7, 3e5, 2.0**31, 1e12, 1e15), len(x)).astype(dtype)
    y = np.zeros((len(FUNCTIONS) + len(FAR), len(x)), dtype)
    run_cuda(code, len(x), y, x, z, len(x))
    exact = {"exp2": lambda a: 2.0**a, "cbrt": lambda a: a ** (1 / 3), "round": rounded_half_up}
    rows = [(name, x) for name in FUNCTIONS] + [(name, z) for name in FAR]
    for (name, given), found in zip(rows, y, strict=True):
        expected = np.array([exact.get(name, getattr(math, name, None))(float(a)) for a in given])
        limit = FUNCTIONS[name][type_name == "double"]
        reference = 1.0 if type_name == "double" and name != "sqrt" else 0.01  # of math itself
        ulp = np.spacing(np.abs(expected).astype(dtype)).astype(np.float64)
        error = np.abs(found.astype(np.float64) - expected) / ulp
        assert error.max() <= limit + (reference if limit else 0), (name, given[error.argmax()])


def rounded_half_up(a: float) -> float:
    return math.copysign(math.floor(abs(a) + 0.5), a)
