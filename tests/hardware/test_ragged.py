"""Ragged loops on the machine and on an H200."""

from types import SimpleNamespace

import pytest

from helpers.simt import Trace, simulate
from tests.hardware.cases import Case, source
from tests.hardware.ragged import RAGGED, ragged


def run(case: Case) -> tuple[Trace, list[int]]:
    """(the machine's trace of a case, its arguments with wrong results)"""
    launch = case.launch()
    kernel = SimpleNamespace(code=source(case.kernel.file), name=case.kernel.name, options=())
    arguments = launch.arguments()
    trace = simulate(kernel, launch.grid, launch.block, arguments, launch.shared_mem)
    return trace, launch.wrong(arguments)


@pytest.mark.parametrize("case", ragged(), ids=lambda case: case.name)
def test_a_ragged_loop_does_its_work_on_the_machine(case: Case) -> None:
    trace, wrong = run(case)
    assert not wrong
    assert not trace.findings, str(trace.findings)


def test_there_are_many_loops_at_three_lengths() -> None:
    assert len(RAGGED) >= 12
    assert all(len(set(kernel.shapes)) == 3 for kernel in RAGGED)
