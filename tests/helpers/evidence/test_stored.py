"""The SIMT machine counts memory traffic exactly as an H200 does; the sanitizers found nothing."""

import itertools

import pytest

from helpers.catalogue import registry
from helpers.catalogue.dispatch import ANY_LENGTH
from helpers.catalogue.registry import UNFUSED, source, split_trial, step_number, steps, variants
from helpers.measure.evidence import cases as launches
from helpers.measure.evidence.cases import EvidenceCase, cases
from helpers.measure.evidence.counters import case_of
from helpers.measure.evidence.part import read_part
from helpers.measure.evidence.sanitizer import TOOLS
from helpers.measure.evidence.sass import compilations
from helpers.measure.gpu_arrays import host_arrays, numbers_of
from helpers.measure.records import launch_of, plan_of
from helpers.problem.problem import Problem
from helpers.problem.shapes import (
    LARGE_LONG_SHAPES,
    LARGE_SHAPES,
    SMALL_16_BIT_SHAPES,
    SMALL_LONG_SHAPES,
    SMALL_SHAPES,
)
from helpers.run.bound import BoundKernel, load
from helpers.run.references import make_input, poisoned
from helpers.simt import NSIGHT_METRICS, Trace
from helpers.simt.cuda_text import token_hash
from tests import made_up
from tests.earlier import EARLIER

COUNTERS, SASS, SANITIZER = map(read_part, ("counters", "sass", "sanitizer"))
# Larger cases explain the prose; here they would take minutes.
SMALL = [case for case in COUNTERS["cases"] if case["rows"] * case["cols"] < 2**18]


def bound(case: EvidenceCase) -> BoundKernel:
    return load(case.step).bind(case.rows, case.cols, case.dtype)


def simulated(case: EvidenceCase) -> Trace:
    one = bound(case)
    if not one.problem.plain:
        return one.simulate(*host_arrays(one.problem).values(), **numbers_of(one))
    x = make_input(case.rows, case.cols).astype(case.dtype, copy=False)
    return one.simulate(x, poisoned(x))


def identity(case: dict) -> str:
    return f"{case['step']}-{case['rows']}x{case['cols']}-{case.get('dtype', 'float32')}"


def compared_cases() -> list[dict]:
    """All of a step, two of a variant or a trial."""
    of_step = {step: [case for case in SMALL if case["step"] == step] for step in steps()}
    others = {case["step"] for case in SMALL} - {*of_step}
    of_other = [[case for case in SMALL if case["step"] == step][:2] for step in sorted(others)]
    every = itertools.chain(*of_step.values(), *of_other)
    return [case for case in every if case["step"] not in EARLIER]


@pytest.mark.parametrize("case", compared_cases(), ids=identity)
def test_global_loads_and_stores_equal_the_hardwares(case: dict) -> None:
    trace = simulated(case_of(case))
    plan = bound(case_of(case)).plan
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
    if case["step"] == ANY_LENGTH and plan.macros["BLOCKS"] > 1:
        # Each lane empties its letter as soon as that has come, in a request of its own if no
        # other's came at the same time: between one for each block and one for each letter.
        letters = case["rows"] * plan.macros["BLOCKS"] * (plan.macros["BLOCKS"] - 1)
        for metric in compared:
            assert 0 <= hardware.pop(metric) - ours.pop(metric) <= letters
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
    if any(plan_of(step, Problem(*shape)) for shape in SMALL_SHAPES):
        assert any(cols % 32 for _, cols in shapes), "a shape with rows that share sectors"


@pytest.mark.parametrize("step", steps())
def test_every_step_is_compared_in_each_dtype(step: str) -> None:
    compared = {case_of(case) for case in SMALL if case["step"] == step}
    assert compared == {case for case in cases("small") if case.step == step}


def test_counters_are_of_the_cases_that_the_evidence_asks_for() -> None:
    assert list(map(case_of, COUNTERS["cases"])) == cases()
    for case in COUNTERS["cases"]:
        assert case["kernel"] == load(case["step"]).name
    assert len(COUNTERS[UNFUSED]) >= 5, "five array operations, some of more than one launch"


@pytest.mark.parametrize("tool", TOOLS)
def test_sanitizer_found_no_error(tool: str) -> None:
    verdict = SANITIZER["tools"][tool]
    assert verdict["errors"] == 0
    seen = dict.fromkeys({case.step for case in cases("small")}, 0)
    assert verdict["steps"] == seen
    assert verdict["command"].startswith(f"compute-sanitizer --tool {tool} ")


def test_sanitizer_saw_every_step() -> None:
    seen = {EvidenceCase(*case) for case in SANITIZER["cases"]}
    assert seen == set(cases("small"))
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
        (SANITIZER, sorted({split_trial(case.step).file for case in cases("small")})),
    ],
    ids=["counters", "sass", "sanitizer"],
)
def test_evidence_is_of_the_kernels_as_they_are(file: dict, names: list[str]) -> None:
    """An edited kernel needs `make measure ARGS=profile` again; comments do not count."""
    assert set(file["hashes"]) <= {*steps(), *variants()}
    now = {name: token_hash(source(f"{name}.cu")) for name in names}
    edited = {name for name in names if now[name] != file["hashes"].get(name)}
    assert edited == EARLIER & {*names}, "run make measure ARGS=profile, or correct earlier.py"


def test_evidence_is_of_the_launches_as_they_are() -> None:
    """An edited launch rule or Build line needs `make measure ARGS=profile` again."""
    entries = [(case_of(entry), entry) for entry in COUNTERS["cases"]]
    recorded = {case: entry["launch"] for case, entry in entries if "launch" in entry}
    seen = [EvidenceCase(*case) for case in SANITIZER["cases"]]
    recorded.update(zip(seen, SANITIZER["launches"], strict=True))
    assert recorded == {case: launch_of(case.step, case.at) for case in recorded}
    assert list(SASS["kernels"]) == [name for name, _, _ in compilations()]
    for name, _, options in compilations():
        assert SASS["kernels"][name]["options"] == list(options)


def test_evidence_asks_for_long_rows_and_16_bits_from_07_on(tmp_path, monkeypatch) -> None:
    old = cases()
    assert {case.dtype for case in old if step_number(case.step) < 7} == {"float32"}
    kernels = made_up.Kernels(tmp_path, monkeypatch)
    for name in ("07_some", "10_other", "variants/07_tried"):
        dtypes = ("Dtype:    float32", "Dtype:    float32, bfloat16")
        kernels.edit("05_float4.cu", dtypes, as_file=f"{name}.cu")
    monkeypatch.setattr(registry, "steps", lambda: ["07_some", "10_other"])
    monkeypatch.setattr(registry, "variants", lambda: ["variants/07_tried"])
    monkeypatch.setattr(registry, "TRIALS", ())
    monkeypatch.setattr(launches, "SMALL_TRIALS", ())
    small = cases("small")
    of_step = [case[1:] for case in small if case.step == "07_some"]
    assert of_step == [
        *((*shape, "float32") for shape in SMALL_SHAPES),
        *((*shape, "float32") for shape in SMALL_LONG_SHAPES),
        *((*shape, "bfloat16") for shape in SMALL_16_BIT_SHAPES),
    ]
    large = [case for case in cases() if case not in small]
    shapes = (*LARGE_SHAPES, *LARGE_LONG_SHAPES)
    for step, dtypes in {
        "07_some": ("float32", "bfloat16"),
        "10_other": ("float32", "bfloat16"),
        "variants/07_tried": ("float32",),
    }.items():
        wanted = [(step, *shape, dtype) for dtype in dtypes for shape in shapes]
        assert [tuple(case) for case in large if case.step == step] == wanted


def test_disassembly_is_of_each_shape_that_is_compiled(tmp_path, monkeypatch) -> None:
    assert {name for name, _, options in compilations() if not options} == {
        step for step in (*steps(), *variants()) if not load(step).header.build
    }
    table = "// Build:    LANES = min(32, power_of_two(cols / 64))\n// Launch:"
    made_up.Kernels(tmp_path, monkeypatch).edit(
        "05_float4.cu",
        ("Dtype:    float32", "Dtype:    float32, bfloat16"),
        ("// Launch:", table),
        ('extern "C"', 'const int lanes = LANES;\nextern "C"'),
        as_file="07_some.cu",
    )
    monkeypatch.setattr(registry, "steps", lambda: ["07_some"])
    monkeypatch.setattr(registry, "variants", lambda: [])
    found = {name: options for name, _, options in compilations()}
    assert found["07_some at 262144 x 1024 float32"] == ("-DLANES=16",)
    assert found["07_some at 65536 x 4096 bfloat16"] == ("-DLANES=32", "-DBFLOAT16")
    assert len(found) == 2 * len((*LARGE_SHAPES, *LARGE_LONG_SHAPES))
