"""Ragged loops on the machine and on an H200.

Where ptxas may unroll a loop, no more requests are missing than the report says; elsewhere the
counts are equal.
"""

import json
from functools import cache
from types import SimpleNamespace

import pytest

from helpers.simt import Trace, simulate
from helpers.simt.cuda_text import token_hash
from tests.hardware import counters
from tests.hardware.cases import DATA, Case, source
from tests.hardware.ragged import FILE, RAGGED, ragged

PATH = DATA / "ragged_h200.json"
COUNTED = json.loads(PATH.read_text()) if PATH.exists() else {}
measured = pytest.mark.skipif(
    not COUNTED, reason="no tests/data/ragged_h200.json: run tests.hardware.counters ragged"
)
# Written as not to be unrolled, with a step that is no constant, long, or with a second way out.
NEVER = {"block_sum", "as_written", "by_two", "by_eight", "find_first", "long_body"}


@cache
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


@measured
def test_the_counters_are_those_of_the_loops_as_they_are() -> None:
    assert COUNTED["device"]["name"] == "NVIDIA H200"
    assert COUNTED["hashes"] == {FILE: token_hash(source(FILE))}
    assert COUNTED["wrong_results"] == [] and COUNTED["failures"] == {}
    launches = [(row["kernel"], *row["shape"]) for row in COUNTED["ragged"]]
    assert launches == [(case.kernel.name, *case.shape) for case in ragged()]


@measured
@pytest.mark.parametrize("number", range(len(ragged())), ids=lambda n: ragged()[n].name)
def test_a_ragged_loop_counts_as_on_the_hardware(number: int) -> None:
    case, seen = ragged()[number], COUNTED["ragged"][number]["metrics"]
    trace, _ = run(case)
    more = sum(trace.more.values())
    assert not (more and case.kernel.name in NEVER)
    for name, metric in counters.COMPARED_METRICS.items():
        counted = getattr(trace.counters, name)
        if more:
            if "requests" in name:  # of sectors no more is known
                assert counted <= seen[metric] <= counted + more, name
        else:
            assert counted == seen[metric], name
