"""`python -m helpers.simt`: what somebody else's CI would run."""

import re

import numpy as np
import pytest

from helpers.paths import ROOT
from helpers.simt.__main__ import main

SCALE = """
extern "C" __global__ void scale(const float* x, float* y, int n, float a)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
"""


@pytest.fixture
def scale(tmp_path):
    path = tmp_path / "scale.cu"
    path.write_text(SCALE)
    return path


def launch(path, *arguments: str, args=("float32[100]", "float32[100]", "100", "0.5")) -> int:
    return main([str(path), "--grid", "1", "--block", "128", *arguments, "--args", *args])


def test_clean_kernel_gives_status_0_statistics_and_counters(scale, capsys):
    assert launch(scale) == 0
    shown = capsys.readouterr().out
    assert "y: float32[100]" in shown and "0 NaN" in shown
    assert "loads: 4 requests, 13 sectors" in shown and "no findings" in shown


def test_finding_gives_status_1_and_its_line(scale, capsys):
    scale.write_text(SCALE.replace("i < n", "i <= n"))
    assert launch(scale) == 1
    assert re.search(r"scale\.cu:5: out-of-bounds load, once", capsys.readouterr().out)


def test_input_comes_from_a_file(scale, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.arange(100, dtype=np.float32))
    args = (str(tmp_path / "x.npy"), "float32[100]", "100", "2.0")
    assert launch(scale, args=args) == 0
    assert "min 0, max 198, mean 99" in capsys.readouterr().out


def test_shape_is_enough_for_a_kernel_with_a_header(capsys):
    assert main([str(ROOT / "kernels" / "02_online.cu"), "--shape", "33x100"]) == 0
    shown = capsys.readouterr().out
    assert "softmax_online: grid 1, block 128" in shown
    assert "mean 0.01," in shown  # rows of 100 sum to 1


def test_shared_memory_is_reported_in_wavefronts(tmp_path, capsys):
    path = tmp_path / "column.cu"
    path.write_text(
        'extern "C" __global__ void column(float* y) {\n'
        "    extern __shared__ float s[];\n"
        "    s[threadIdx.x * 32] = 1.0f;\n"
        "    __syncthreads();\n"
        "    y[threadIdx.x] = s[threadIdx.x * 32];\n}\n"
    )
    command = [str(path), "--grid", "1", "--block", "32", "--shared", "4096"]
    assert main([*command, "--args", "float32[32]"]) == 0
    assert "shared loads: 1 requests, 32 wavefronts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda path: launch(path, "--kernel", "nope"), "kernels there: scale"),
        (lambda path: launch(path, args=("float32[100]",)), "takes 4 arguments: x, y, n, a"),
        (
            lambda path: launch(path, args=("float32[9]", "float32[9]", "many", "1.0")),
            "n: 'many' is no number",
        ),
        (lambda path: main([str(path)]), "--grid and --block are needed"),
        (lambda path: main([str(path), "--shape", "3x4"]), "file with a header"),
        (lambda path: main([str(path.with_name("none.cu"))]), "none.cu"),
        (
            lambda path: path.write_text(SCALE.replace("a *", "a * oops *")) and launch(path),
            'identifier "oops" is undefined',
        ),
        (
            lambda path: (
                path.write_text(SCALE + SCALE.replace("scale", "other"))
                and main([str(path), "--grid", "1", "--block", "1"])
            ),
            "has 2 kernels, pass --kernel: scale, other",
        ),
        (
            lambda path: launch(path, args=("float64[100]", "float32[100]", "100", "1.0")),
            "x is float64, the kernel takes float32",
        ),
    ],
)
def test_what_cannot_run_gives_status_2_and_one_reason(scale, change, complaint, capsys):
    assert change(scale) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err and not captured.out


def test_a_hang_follows_the_limit_of_the_command_line(scale, capsys):
    assert launch(scale, "--limit", "1000000") == 0
    scale.write_text(SCALE.replace("if (i < n)", "while (n > 0)"))
    assert launch(scale, "--limit", "1000") == 1
    assert "hang" in capsys.readouterr().out


TEMPLATE = """
template <typename T, int TIMES>
__global__ void scale(const T* x, T* y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = TIMES * x[i];
}
"""


def test_template_runs_under_its_name_expression(tmp_path, capsys):
    path = tmp_path / "template.cu"
    path.write_text(TEMPLATE)
    args = ("float32[100]", "float32[100]", "100")
    assert launch(path, "--kernel", "scale<float, 3>", args=args) == 0
    assert "y: float32[100]" in (shown := capsys.readouterr().out)
    assert "scale<float, 3>: grid (1,)" in shown and "no findings" in shown


GRID_SYNC = """
#include <cooperative_groups.h>
extern "C" __global__ void meet(int* y)
{
    cooperative_groups::this_grid().sync();
    y[threadIdx.x] = 7;
}
"""


def test_grid_synchronises_in_a_cooperative_launch_only(tmp_path, capsys):
    path = tmp_path / "meet.cu"
    path.write_text(GRID_SYNC)
    assert launch(path, "--cooperative", args=("int32[128]",)) == 0
    assert "min 7, max 7" in capsys.readouterr().out
    assert launch(path, args=("int32[128]",)) == 1
    assert "trap" in capsys.readouterr().out
