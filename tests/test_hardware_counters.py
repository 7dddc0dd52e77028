"""The SIMT machine counts memory traffic exactly as an H200 does; the sanitizers found nothing."""

import json

import pytest

from helpers import evidence
from helpers.check import make_input, poisoned
from helpers.kernels import (
    code_hash,
    header,
    kernel_names,
    source,
    split_trial,
    step_kernel,
    step_number,
    step_plan,
    steps,
    variants,
)
from helpers.launch import arguments, simulate
from helpers.records import FOLDER, REFERENCE_GPU, UNFUSED
from helpers.simt import Trace
from helpers.simt.counters import NSIGHT_METRICS

COUNTERS = json.loads((FOLDER / REFERENCE_GPU / "counters.json").read_text())
SASS = json.loads((FOLDER / REFERENCE_GPU / "sass.json").read_text())
SANITIZER = json.loads((FOLDER / REFERENCE_GPU / "sanitizer.json").read_text())
# Larger cases explain the prose; here they would take minutes.
SMALL = [case for case in COUNTERS["cases"] if case["rows"] * case["cols"] < 2**18]


def simulated(case: evidence.EvidenceCase) -> Trace:
    plan = step_plan(*case)
    x = make_input(case.rows, case.cols).astype(case.dtype, copy=False)
    values = arguments(plan, x, poisoned(x))
    kernel = step_kernel(case.step, plan)
    return simulate(kernel, plan.grid, plan.block, values, plan.shared_mem)


def identity(case: dict) -> str:
    return f"{case['step']}-{case['rows']}x{case['cols']}-{case.get('dtype', 'float32')}"


@pytest.mark.parametrize("case", SMALL, ids=identity)
def test_global_loads_and_stores_equal_the_hardwares(case: dict) -> None:
    trace = simulated(evidence.case_of(case))
    plan = step_plan(*evidence.case_of(case))
    # Threads that wait for another block's word read it as often as the hardware's timing has it.
    waits = plan.cooperative
    compared = {
        metric: name
        for name, metric in NSIGHT_METRICS.items()
        if name.startswith("store") or not waits
    }
    found = trace.counters
    copies = {"load_requests": found.copy_requests, "load_sectors": found.copy_sectors}
    ours = {metric: getattr(found, name) + copies.get(name, 0) for metric, name in compared.items()}
    hardware = {metric: case["metrics"][metric] for metric in compared}
    if found.copy_requests and plan.macros.get("CLUSTER", 1) > 1:
        # Of a cp.async in a cluster, Nsight counts a sector more for each line of 128 bytes that
        # the 512 bytes of a warp touch: 4 or 5, or 3 and fewer where they begin within a sector.
        # Outside of clusters it does not. Requests are the same.
        sectors = NSIGHT_METRICS["load_sectors"]
        size = 4 if case["dtype"] == "float32" else 2
        more = (hardware.pop(sectors) - ours.pop(sectors)) / found.copy_requests
        assert (4 if case["cols"] * size % 32 == 0 else 2.9) <= more <= 5
    assert ours == hardware
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
    if any(step_plan(step, *shape) for shape in evidence.SMALL_SHAPES):
        assert any(cols % 32 for _, cols in shapes), "a shape with rows that share sectors"


@pytest.mark.parametrize("step", [step for step in steps() if step_number(step) >= 7])
def test_every_step_is_compared_in_each_dtype(step: str) -> None:
    compared = {evidence.case_of(case) for case in SMALL if case["step"] == step}
    assert compared == {case for case in evidence.cases("small") if case.step == step}


def test_counters_are_of_the_cases_that_the_evidence_asks_for() -> None:
    assert list(map(evidence.case_of, COUNTERS["cases"])) == evidence.cases()
    for case in COUNTERS["cases"]:
        assert case["kernel"] in kernel_names(source(f"{split_trial(case['step']).file}.cu"))
    assert len(COUNTERS[UNFUSED]) >= 5, "five array operations, some of more than one launch"


@pytest.mark.parametrize("tool", evidence.TOOLS)
def test_sanitizer_found_no_error(tool: str) -> None:
    verdict = SANITIZER["tools"][tool]
    assert verdict["errors"] == 0
    seen = dict.fromkeys({case.step for case in evidence.cases("small")}, 0)
    assert verdict["steps"] == seen
    assert verdict["command"].startswith(f"compute-sanitizer --tool {tool} ")


def test_sanitizer_saw_every_step() -> None:
    seen = {evidence.EvidenceCase(*case) for case in SANITIZER["cases"]}
    assert seen == set(evidence.cases("small"))
    for step in steps():
        assert len([case for case in seen if case.step == step]) >= 2


@pytest.mark.parametrize("file", [COUNTERS, SASS, SANITIZER], ids=["counters", "sass", "sanitizer"])
def test_evidence_says_where_it_comes_from(file: dict) -> None:
    assert file["device"]["name"] == "NVIDIA H200"
    assert {"driver", "nvrtc", "cupy"} <= set(file["versions"])
    assert file["utc"].endswith("+00:00")


@pytest.mark.parametrize(
    ("file", "names"),
    [
        (COUNTERS, [*steps(), *variants()]),
        (SASS, [*steps(), *variants()]),
        (SANITIZER, sorted({split_trial(case.step).file for case in evidence.cases("small")})),
    ],
    ids=["counters", "sass", "sanitizer"],
)
def test_evidence_is_of_the_kernels_as_they_are(file: dict, names: list[str]) -> None:
    """An edited kernel needs `make evidence` again; comments do not count."""
    assert set(file["hashes"]) <= {*steps(), *variants()}
    now = {name: code_hash(source(f"{name}.cu")) for name in names}
    assert now == {name: file["hashes"].get(name) for name in names}, "run `make evidence`"


def test_evidence_is_of_the_launches_as_they_are() -> None:
    """An edited launch rule or Build line needs `make evidence` again."""
    entries = [(evidence.case_of(entry), entry) for entry in COUNTERS["cases"]]
    recorded = {case: entry["launch"] for case, entry in entries if "launch" in entry}
    seen = [evidence.EvidenceCase(*case) for case in SANITIZER["cases"]]
    recorded.update(zip(seen, SANITIZER["launches"], strict=True))
    assert recorded == {case: evidence.launch_of(case) for case in recorded}
    assert list(SASS["kernels"]) == [name for name, _, _ in evidence.compilations()]
    for name, _, options in evidence.compilations():
        assert SASS["kernels"][name]["options"] == list(options)


def test_evidence_asks_for_long_rows_and_16_bits_from_07_on(monkeypatch) -> None:
    old = evidence.cases()
    assert {case.dtype for case in old if step_number(case.step) < 7} == {"float32"}
    text = source("05_float4.cu").replace("Dtype:    float32", "Dtype:    float32, bfloat16")
    monkeypatch.setattr("helpers.kernels.source", lambda name: text)
    monkeypatch.setattr(evidence, "source", lambda name: text)
    monkeypatch.setattr(evidence, "steps", lambda: ["07_some", "10_other"])
    monkeypatch.setattr(evidence, "variants", lambda: ["variants/07_tried"])
    monkeypatch.setattr(evidence, "TRIALS", ())
    monkeypatch.setattr(evidence, "SMALL_TRIALS", ())
    small = evidence.cases("small")
    of_step = [case[1:] for case in small if case.step == "07_some"]
    assert of_step == [
        *((*shape, "float32") for shape in evidence.SMALL_SHAPES),
        *((*shape, "float32") for shape in evidence.SMALL_LONG_SHAPES),
        *((*shape, "bfloat16") for shape in evidence.SMALL_16_BIT_SHAPES),
    ]
    large = [case for case in evidence.cases() if case not in small]
    shapes = (*evidence.LARGE_SHAPES, *evidence.LARGE_LONG_SHAPES)
    for step, dtypes in {
        "07_some": ("float32", "bfloat16"),
        "10_other": ("float32", "bfloat16"),
        "variants/07_tried": ("float32",),
    }.items():
        wanted = [(step, *shape, dtype) for dtype in dtypes for shape in shapes]
        assert [tuple(case) for case in large if case.step == step] == wanted


def test_disassembly_is_of_each_shape_that_is_compiled(monkeypatch) -> None:
    assert {name for name, _, options in evidence.compilations() if not options} == {
        step for step in (*steps(), *variants()) if not header(source(f"{step}.cu")).build
    }
    text = source("05_float4.cu").replace("Dtype:    float32", "Dtype:    float32, bfloat16")
    text = text.replace(
        "// Launch:", "// Build:    LANES = min(32, power_of_two(cols / 64))\n// Launch:"
    )
    monkeypatch.setattr("helpers.kernels.source", lambda name: text)
    monkeypatch.setattr(evidence, "source", lambda name: text)
    monkeypatch.setattr(evidence, "steps", lambda: ["07_some"])
    monkeypatch.setattr(evidence, "variants", lambda: [])
    found = {name: options for name, _, options in evidence.compilations()}
    assert found["07_some at 262144 x 1024 float32"] == ("-DLANES=16",)
    assert found["07_some at 65536 x 4096 bfloat16"] == ("-DLANES=32", "-DBFLOAT16")
    assert len(found) == 2 * len((*evidence.LARGE_SHAPES, *evidence.LARGE_LONG_SHAPES))
