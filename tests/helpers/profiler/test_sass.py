"""What is read out of a kernel's machine instructions."""

import pytest

from helpers.measure import profiler


def test_loads_in_a_row_are_counted_up_to_whatever_else_stands_there(monkeypatch) -> None:
    kept = "LDG.E.CONSTANT LDG.E MUFU.EX2 LDG.E LDGSTS.E STG.E LDG.E LDG.E LDG.E EXIT".split()
    monkeypatch.setattr(profiler, "sass", lambda step: {"01_x": kept}[step])
    assert profiler.loads_in_a_row("01_x") == [2, 1, 3]


def test_loads_in_a_row_are_of_a_kernel_that_is_compiled_once() -> None:
    assert profiler.loads_in_a_row("variants/00_copy_scalar")
    with pytest.raises(KeyError, match="08_cluster"):
        profiler.loads_in_a_row("08_cluster")
