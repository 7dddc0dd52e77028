"""`python -m helpers.commands.plan`: how a kernel is built and launched."""

import pytest

from helpers.base import gpu
from helpers.commands.plan import main
from helpers.run.bound import Kernel
from tests.helpers.sources import APART

DYNAMIC = "cudaFuncAttributeMaxDynamicSharedMemorySize"


@pytest.mark.parametrize(
    ("step", "rows", "cols", "asked"),
    [
        ("variants/08_shared", 4, 196608, f"{DYNAMIC}, if"),  # 48 KB, and what the code declares
        ("variants/00_copy_bulk", 1024, 4096, f"{DYNAMIC}\n"),
        ("06_registers", 1024, 4096, ""),
    ],
)
def test_shared_memory_past_48_kb_in_all_must_be_asked_for(step, rows, cols, asked, capsys) -> None:
    assert main([step, str(rows), str(cols)]) == 0
    said = capsys.readouterr().out
    assert asked in said and (DYNAMIC in said) == bool(asked)


def test_strides_reach_the_plan_and_its_arguments(monkeypatch, capsys) -> None:
    monkeypatch.setattr("helpers.commands.plan.load", lambda step: Kernel(APART))
    strides = ["--x-stride", "105", "--y-stride", "102"]
    assert main(["apart", "4", "100", *strides, "--gpu", "132,62914560,80"]) == 0
    said = capsys.readouterr().out
    assert "arguments  x, y, 4, 100, 105, 102, 16 bytes of zeros" in said
    assert "CLUSTER = 1" in said and "AHEAD   = 0" in said
    assert main(["apart", "4", "100", "--x-stride", "99"]) == 2
    assert capsys.readouterr().err == "x_stride = 99 is less than a row, which has cols = 100\n"


def test_choose_says_why(capsys) -> None:
    assert main(["choose", "64", "4096", "--x-stride", "5000"]) == 0
    why, passed, *_, arguments = capsys.readouterr().out.splitlines()
    assert why.startswith("11_any_row: ") and passed.startswith("not 08_cluster (")
    assert arguments == "arguments  x, y, 64, 4096, 5000, 4096"
    assert main(["choose", "4096", "4096"]) == 0
    assert capsys.readouterr().out.startswith("08_cluster: a row that ")
    assert main(["choose", "64", "4096", "--y-stride", "64"]) == 2
    assert capsys.readouterr().err.startswith("y_stride = 64 is less than a row")


@pytest.mark.parametrize("wish", ["0", "2"])
def test_a_gpu_that_is_not_there_gives_status_2_and_one_sentence(monkeypatch, wish, capsys) -> None:
    monkeypatch.setattr(gpu, "has_gpu", lambda: False)
    monkeypatch.setenv(gpu.SWITCH, wish)
    assert main(["01_naive", "64", "1024"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(gpu.SWITCH) and said.err.count("\n") == 1 and not said.out
