"""The SIMT machine counts memory traffic exactly as an H200 does; the sanitizers found nothing."""

import json

import pytest

from helpers import evidence
from helpers.check import make_input, poisoned
from helpers.kernels import (
    code_hash,
    kernel_names,
    source,
    split_trial,
    step_kernel,
    step_launch,
    steps,
    variants,
)
from helpers.launch import simulate
from helpers.records import FOLDER, REFERENCE_GPU, UNFUSED
from helpers.simt import Trace
from helpers.simt.counters import NSIGHT_METRICS

COUNTERS = json.loads((FOLDER / REFERENCE_GPU / "counters.json").read_text())
SANITIZER = json.loads((FOLDER / REFERENCE_GPU / "sanitizer.json").read_text())
# Larger cases explain the prose; here they would take minutes.
SMALL = [case for case in COUNTERS["cases"] if case["rows"] * case["cols"] < 2**18]


def simulated(step: str, rows: int, cols: int) -> Trace:
    kernel = step_kernel(step)
    grid, block, shared_mem = step_launch(step, rows, cols)
    x = make_input(rows, cols)
    return simulate(kernel, grid, block, (x, poisoned(x), rows, cols), shared_mem)


def identity(case: dict) -> str:
    return f"{case['step']}-{case['rows']}x{case['cols']}"


@pytest.mark.parametrize("case", SMALL, ids=identity)
def test_global_loads_and_stores_equal_the_hardwares(case: dict) -> None:
    trace = simulated(case["step"], case["rows"], case["cols"])
    ours = {metric: getattr(trace.counters, name) for name, metric in NSIGHT_METRICS.items()}
    assert ours == {metric: case["metrics"][metric] for metric in NSIGHT_METRICS.values()}
    assert not trace.findings


def test_all_four_counters_are_compared() -> None:
    assert set(NSIGHT_METRICS) == {
        "load_requests",
        "load_sectors",
        "store_requests",
        "store_sectors",
    }
    assert all(case["metrics"][metric] > 0 for case in SMALL for metric in NSIGHT_METRICS.values())


@pytest.mark.parametrize("step", steps())
def test_every_step_is_compared_at_two_shapes_or_more(step: str) -> None:
    shapes = {(case["rows"], case["cols"]) for case in SMALL if case["step"] == step}
    assert len(shapes) >= 2
    assert any(cols % 32 for _, cols in shapes), "a shape with rows that share sectors"


def test_counters_are_of_the_cases_that_the_evidence_asks_for() -> None:
    recorded = [(case["step"], case["rows"], case["cols"]) for case in COUNTERS["cases"]]
    assert recorded == evidence.cases()
    for case in COUNTERS["cases"]:
        assert case["kernel"] in kernel_names(source(f"{split_trial(case['step']).file}.cu"))
    assert len(COUNTERS[UNFUSED]) >= 5, "five array operations, some of more than one launch"


@pytest.mark.parametrize("tool", evidence.TOOLS)
def test_sanitizer_found_no_error(tool: str) -> None:
    verdict = SANITIZER["tools"][tool]
    assert verdict["errors"] == 0
    assert verdict["command"].startswith(f"compute-sanitizer --tool {tool} python ")


def test_sanitizer_saw_every_step() -> None:
    seen = {(step, rows, cols) for step, rows, cols in SANITIZER["cases"]}
    assert seen == set(evidence.cases("small"))
    for step in steps():
        assert len([case for case in seen if case[0] == step]) >= 2


@pytest.mark.parametrize("file", [COUNTERS, SANITIZER], ids=["counters", "sanitizer"])
def test_evidence_says_where_it_comes_from(file: dict) -> None:
    assert file["device"]["name"] == "NVIDIA H200"
    assert {"driver", "nvrtc", "cupy"} <= set(file["versions"])
    assert file["utc"].endswith("+00:00")


@pytest.mark.parametrize("file", ["counters", "sass", "sanitizer"])
def test_evidence_is_of_the_kernels_as_they_are(file: str) -> None:
    """An edited kernel needs `make evidence` again; comments do not count."""
    hashes = json.loads((FOLDER / REFERENCE_GPU / f"{file}.json").read_text())["hashes"]
    assert hashes == {step: code_hash(source(f"{step}.cu")) for step in (*steps(), *variants())}, (
        "run `make evidence` on the reference GPU"
    )
