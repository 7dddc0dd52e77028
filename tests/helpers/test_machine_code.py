"""Comparing machine code: names, comments and folded constants do not count, all else does."""

import pytest

from helpers.measure.machine_code import Build, differences, machine_code
from helpers.run.bound import load

KERNEL = """
__constant__ float table[2] = {1.0f, 2.0f};
extern "C" __global__ void __cluster_dims__(2) __launch_bounds__(256)
scale(const float* x, float* y, int n)
{
    __shared__ float tile[256];
    const int i = blockIdx.x * 256 + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (i < n) y[i] = tile[255 - threadIdx.x] * table[n & 1];
}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("scale(", "another_name("),
        ("tile", "shared_part"),
        ("    __syncthreads();", "\n    // All have written.\n    __syncthreads();"),
        ("blockIdx.x * 256", "blockIdx.x * width"),
        ("const int i =", "const int i = 0 +"),
        ("float* y, int n)", "float* y, int n, int unused, long long another)"),
    ],
)
def test_what_the_hardware_does_not_see_does_not_count(old: str, new: str) -> None:
    assert old in KERNEL
    changed = f"constexpr int width = 256;\n{KERNEL.replace(old, new)}"
    assert differences(Build(KERNEL), Build(changed)) == []


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("x[i] : 0.0f", "x[i] : 1.0f", "bytes of instructions"),
        ("2.0f}", "3.0f}", "bytes of constants"),
        ("float tile[256]", "float tile[512]", "2048 and 3072 static shared bytes"),
        ("__cluster_dims__(2)", "__cluster_dims__(4)", "bytes of attributes"),
        ("__launch_bounds__(256)", "__launch_bounds__(512)", "bytes of attributes"),
        ("float* y, int n)", "float* y, int unused, int n)", "bytes of instructions"),
        ("float* y, int n)", "float* y, long long n)", "bytes of parameters"),
    ],
)
def test_a_difference_is_named(old: str, new: str, what: str) -> None:
    assert old in KERNEL
    found = differences(Build(KERNEL), Build(KERNEL.replace(old, new)))
    assert found and any(what in line for line in found), found
    assert all(line.startswith("scale: ") for line in found)


def test_options_are_part_of_a_build() -> None:
    code = KERNEL.replace("* table", "* FACTOR * table")
    two = Build(code, ("-DFACTOR=2.0f",))
    assert differences(two, Build(code.replace("FACTOR", "2.0f"))) == []
    assert "instructions" in differences(two, Build(code, ("-DFACTOR=3.0f",)))[0]


def test_registers_and_stack_are_read() -> None:
    code = 'extern "C" __global__ void spill(float* y, int n) { volatile float a[64]; BODY }'
    body = "for (int i = 0; i < 64; ++i) a[i] = y[i]; y[0] = a[n & 63];"
    found = machine_code(Build(code.replace("BODY", body)))["spill"]
    assert found.frame_bytes == 256 and found.stack_bytes == 256 and found.registers > 0
    assert machine_code(Build(KERNEL))["scale"].frame_bytes == 0


def test_a_build_of_the_series_is_the_same_under_another_name() -> None:
    bound = load("08_cluster").bind(17, 16384)
    renamed = bound.kernel.code.replace("softmax_cluster", "softmax").replace("warp_shift", "w")
    assert differences(Build(bound.kernel.code, bound.options), Build(renamed, bound.options)) == []


def test_number_of_kernels_is_compared() -> None:
    assert differences(Build(KERNEL), Build("")) == ["1 and 0 kernels"]
    second = 'extern "C" __global__ void second(float* y) { y[0] = 0.0f; }'
    assert sorted(machine_code(Build(KERNEL + second))) == ["scale", "second"]
