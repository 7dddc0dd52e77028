"""`python -m helpers.commands.simulate`: what somebody else's CI would run."""

import re
from pathlib import Path

import pytest

from helpers.base.paths import ROOT
from helpers.commands.simulate import main

SCALE = """
extern "C" __global__ void scale(const float* x, float* y, int n, float a)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Files go by names that stay the same, so that the compiler's cache knows them again."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def scale():
    path = Path("scale.cu")
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


def test_shape_is_enough_for_a_kernel_with_a_header(capsys):
    assert main([str(ROOT / "kernels" / "02_online.cu"), "--shape", "33x100"]) == 0
    shown = capsys.readouterr().out
    assert "softmax_online: grid 1, block 128" in shown
    assert "mean 0.01," in shown  # rows of 100 sum to 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--shape", "3x4"), "scale has no header, so its launch"),
        (("--shape", "3"), "--shape is ROWSxCOLS, not '3'"),
        (
            "--grid 1 --block 1 --args float64[100] float32[100] 100 1.0".split(),
            "x is float64, the kernel takes float32",
        ),
    ],
)
def test_what_cannot_run_gives_status_2_and_one_reason(scale, arguments, complaint, capsys):
    assert main([str(scale), *arguments]) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err and not captured.out


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--shape", "3x4", "--grid", "1", "--block", "2"), "--shape stands for --grid, --block"),
        (("--shape", "3x4", "--args", "1"), "--shape stands for --args too"),
        (("--shape", "3x4", "--shared", "0"), "--shape stands for --shared too"),
        (("--shape", "3x4", "--cooperative"), "--shape stands for --cooperative too"),
        (("--grid", "1", "--block", "1", "--dtype", "float16"), "--dtype is that of x and y with"),
    ],
)
def test_options_that_would_be_ignored_are_refused(scale, options, complaint, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([str(scale), *options])
    assert complaint in capsys.readouterr().err


def test_shape_runs_a_cooperative_kernel_with_its_workspace(capsys):
    assert main([str(ROOT / "kernels" / "09_grid.cu"), "--shape", "1x262144"]) == 0
    assert "workspace: uint8[" in capsys.readouterr().out
