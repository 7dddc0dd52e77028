"""Kernels of other kinds, as textbooks write them, run on the SIMT machine and on a GPU and are
right. Then one line is spoilt, and the machine must find it."""

import pytest

from tests.golden import golden
from tests.simt.strangers import (
    RUNS,
    SPOILT,
    Gpu,
    Launch,
    Simt,
    name_of,
    numbers,
    poisoned,
    sum_blocks,
    wrong,
)


@pytest.mark.parametrize("launch", [Simt, pytest.param(Gpu, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("case", RUNS, ids=name_of)
def test_the_kernel_is_right_and_clean(launch: type[Launch], case: tuple) -> None:
    compute, *arguments = case
    machine = launch()
    comparisons = compute(machine, *arguments)
    assert not machine.findings, "\n".join(map(str, machine.findings))
    assert not wrong(comparisons)
    if launch is Simt:
        golden.hold("strangers", name_of(case), *machine.traces)


@pytest.mark.parametrize(
    "number", range(len(SPOILT)), ids=[f"{name_of(one[0])}-{n}" for n, one in enumerate(SPOILT)]
)
def test_a_spoilt_line_shows(number: int) -> None:
    (compute, *arguments), old, new, symptoms = SPOILT[number]
    machine = Simt(old, new, limit=50_000)
    compute(machine, *arguments)
    seen = {finding.kind for finding in machine.findings}
    assert seen == symptoms, "\n".join(map(str, machine.findings))
    name = f"{name_of((compute, *arguments))}, line {number} spoilt"
    golden.hold("strangers", name, *machine.traces)


def test_tiles_of_32_do_not_divide_a_block_of_50() -> None:
    machine = Simt()
    sum_blocks(machine, 40, 50)
    assert {f.kind for f in machine.findings} == {"shuffle from a lane that takes no part"}


def test_a_grid_can_meet_only_in_a_cooperative_launch() -> None:
    machine, x = Simt(), numbers(100, 1)
    machine("reduce_groups", "sum_grid", 2, 64, (x, poisoned(2), poisoned(1), 100))
    assert {f.kind for f in machine.findings} == {"trap"}
