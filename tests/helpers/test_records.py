"""The records are complete, current and plausible; the recorder can be interrupted."""

import contextlib
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cupy
import numpy as np
import pytest

from helpers import bench, kernels, recorder, records, replay
from helpers.check import WrongResult, check_copy, check_softmax, reference
from helpers.gpu import has_gpu
from helpers.kernels import (
    TRIALS,
    header,
    source,
    split_trial,
    step_number,
    step_plan,
    steps,
    variants,
)
from helpers.paths import ROOT
from helpers.records import (
    CROSSOVER_SHAPES,
    EVEN_SHAPE,
    FEW_SHAPES,
    GRID_SHAPES,
    LONG_SHAPES,
    REFERENCE_GPU,
    REFERENCE_SHAPE,
    SWEEP_SHAPES,
    UNFUSED,
    Case,
    Record,
    load_record,
    predictions,
    record_path,
    save_record,
)

STEPS = [UNFUSED, *steps()]
TRIED = [*variants(), *TRIALS]
COPIES = [name for name in steps() if name.endswith("_copy")]
each_record = pytest.mark.parametrize("step", [*STEPS, *TRIED])


def wanted(step: str, shapes, dtype: str = "float32") -> list[tuple[int, int]]:
    """Those of the shapes at which the step is to be recorded."""
    return [shape for shape in shapes if recorder.takes(step, *shape, dtype)]


def dtypes(step: str) -> list[str]:
    if step == UNFUSED:
        return ["float32"]
    return [dtype.name for dtype in header(source(f"{split_trial(step).file}.cu")).dtypes]


# ---- what is recorded -------------------------------------------------------------------------


def test_shapes_of_the_protocol() -> None:
    assert len(GRID_SHAPES) == 11 and len(SWEEP_SHAPES) == 98
    assert all(rows * cols == 2**28 and cols & (cols - 1) == 0 for rows, cols in GRID_SHAPES)
    assert (GRID_SHAPES[0][1], GRID_SHAPES[-1][1]) == (32, 32768)
    assert {rows for rows, _ in SWEEP_SHAPES} == {4096}
    assert REFERENCE_SHAPE in GRID_SHAPES
    assert [cols for _, cols in LONG_SHAPES] == [2**k for k in range(16, 21)]
    assert {rows * cols for rows, cols in LONG_SHAPES} == {2**28}
    assert CROSSOVER_SHAPES == ((4, 2**20), (7, 2**20), (16, 2**20))
    for dtype in ("float32", "bfloat16"):
        clusters = step_plan("variants/08_ahead", *EVEN_SHAPE, dtype).macros["CLUSTERS"]
        assert EVEN_SHAPE[0] % clusters == 0
    assert FEW_SHAPES == ((1, 32000), (4, 102400), (16, 131072), (128, 65536), (1, 1048576))
    families = (GRID_SHAPES, SWEEP_SHAPES, LONG_SHAPES, FEW_SHAPES, CROSSOVER_SHAPES)
    assert len(set().union(*families)) == sum(map(len, families)), "no shape in two families"


@each_record
def test_record_is_of_the_kernel_as_it_is_now(step: str) -> None:
    record = load_record(step)
    assert record.step == step
    assert record.protocol == bench.PROTOCOL
    assert record.is_current(), f"{step} was edited since: run `make record` on a {REFERENCE_GPU}"
    assert "earlier version" not in record.origin()


@each_record
def test_grid_is_complete(step: str) -> None:
    for dtype in dtypes(step):
        cases = load_record(step).select(GRID_SHAPES, dtype)
        assert [case.shape for case in cases] == wanted(step, GRID_SHAPES, dtype)


@each_record
def test_long_and_few_rows_are_complete(step: str) -> None:
    shapes = (*LONG_SHAPES, *FEW_SHAPES, *CROSSOVER_SHAPES, EVEN_SHAPE)
    for dtype in dtypes(step):
        cases = load_record(step).select(shapes, dtype)
        assert [case.shape for case in cases] == wanted(step, shapes, dtype)


@pytest.mark.parametrize("step", STEPS)
def test_sweep_is_complete(step: str) -> None:
    cases = load_record(step).select(SWEEP_SHAPES)
    assert [case.shape for case in cases] == wanted(step, SWEEP_SHAPES)
    assert bool(cases) == (step == UNFUSED or step_number(step) < 7)


@each_record
def test_every_case_was_checked_and_timed_often_enough(step: str) -> None:
    cases = load_record(step).cases
    assert len({(case.shape, case.dtype) for case in cases}) == len(cases), "a shape twice"
    for case in cases:
        assert case.check == "right before and after timing"
        assert len(case.samples_us) >= 7 and len(case.copy_samples_us) >= 7
        assert min(case.samples_us) > 0 and min(case.copy_samples_us) > 0
        assert case.calls >= 3
        assert case.calls * case.median_us > 100, "a graph too short for the event timer"


@each_record
def test_timings_are_plausible(step: str) -> None:
    for case in load_record(step).cases:
        assert case.spread < 0.2, case.shape
        # A programmatic launch overlaps the call before it, which the copy's does not.
        most = 1.10 if case.launch.get("PROGRAMMATIC") else 1.05
        assert 0 < case.share < most, f"faster than a copy at {case.shape}"
        if case.shape in GRID_SHAPES:
            assert case.gbps < 4800, "more than the memory's bandwidth, and no cache holds 2 GiB"


@each_record
def test_launch_is_what_the_header_says(step: str) -> None:
    for case in load_record(step).cases:
        if step == UNFUSED:
            assert case.launch == {"grid": 0, "block": 0, "shared_mem": 0}
        else:
            assert case.launch == step_plan(step, *case.shape, case.dtype).launch
            assert list(case.launch)[:3] == ["grid", "block", "shared_mem"]


@pytest.mark.parametrize("step", [*steps(), *TRIED])
def test_attributes_of_the_kernel_are_recorded(step: str) -> None:
    record = load_record(step)
    of_cases = [case.attributes for case in record.cases if case.attributes]
    for case in record.cases if step_number(step) >= 8 else ():
        assert ("active_clusters" in case.attributes) == (case.launch.get("CLUSTER", 1) > 1)
    assert len(of_cases) == len(record.cases) or step_number(step) < 7
    for attributes in (record.attributes, *of_cases):
        counts = {"registers", "local_bytes", "static_shared_bytes"}
        assert counts <= set(attributes) <= counts | {"active_clusters"}
        assert 1 <= attributes["registers"] <= 255
    spills = step == "06_registers-PACKS16"  # what its notebook shows
    if step_number(step) < 7:
        assert (record.attributes["local_bytes"] > 0) == spills


@pytest.mark.parametrize("step", COPIES)
def test_copy_timed_twice_agrees_with_itself(step: str) -> None:
    for case in load_record(step).cases:
        assert abs(case.share - 1) < 0.01, case.shape


def test_there_is_a_copy_to_compare_with() -> None:
    assert COPIES == [bench.COPY]


@each_record
def test_record_says_where_it_comes_from(step: str) -> None:
    record = load_record(step)
    assert record.device["name"] == "NVIDIA H200" and REFERENCE_GPU == "nvidia-h200"
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", record.utc)
    assert {"driver", "cuda", "nvrtc", "cupy", "numpy", "python"} <= set(record.versions)
    assert record.label == f"NVIDIA H200, {record.utc[:10]}"
    assert record.versions["driver"] in record.origin()


def test_every_record_belongs_to_a_kernel() -> None:
    folder = records.FOLDER / REFERENCE_GPU
    found = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.json")}
    assert (
        found - {"counters", "numerics", "race", "sass", "sanitizer"}
        == {*STEPS, *TRIED}
        == set(recorder.known_steps())
    )


PATH = re.compile(r"""(?:^|[\s=:,'"(]|-I)(?:~|[A-Za-z]:)?[/\\]+\w""")


def strings(data) -> list[str]:
    """Every string in JSON data, keys included."""
    if isinstance(data, dict):
        return [text for item in data.items() for part in item for text in strings(part)]
    if isinstance(data, list):
        return [text for item in data for text in strings(item)]
    return [data] if isinstance(data, str) else []


def test_records_hold_no_paths_of_the_machine() -> None:
    files = list(records.FOLDER.rglob("*.json"))
    assert len(files) > 5
    for file in files:
        paths = [text for text in strings(json.loads(file.read_text())) if PATH.search(text)]
        assert not paths, f"{file.name}: {paths[:3]}"
    assert not list(records.FOLDER.rglob("*.tmp"))


@pytest.mark.parametrize(
    "text", ["/home/me/x", "run /opt/bin/python -m x", "C:\\me", "-I/usr/include", "~/x", "a:/b"]
)
def test_search_for_paths_finds_them(text: str) -> None:
    assert PATH.search(text)
    assert not PATH.search("4/3 of 2.5 TB/s, calls / replay, variants/01_naive")


# ---- predictions ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_every_step_was_predicted_with_a_reason(step: str) -> None:
    prediction = predictions()[step]
    assert 0 < prediction["share"] <= 1.05
    assert len(prediction["because"].split()) >= 8


def test_every_prediction_has_a_record_to_hold_it_against() -> None:
    for step, prediction in predictions().items():
        assert set(prediction) - {"rows", "cols", "dtype"} == {"share", "because"}
        shape = prediction.get("rows", REFERENCE_SHAPE[0]), prediction.get("cols", 4096)
        assert load_record(step).case(*shape, prediction.get("dtype", "float32")).share > 0


# ---- a record on its own ----------------------------------------------------------------------


def launch_of(step: str, rows: int, cols: int, dtype: str) -> dict[str, int]:
    if step == UNFUSED:
        return {"grid": 0, "block": 0, "shared_mem": 0}
    return step_plan(step, rows, cols, dtype).launch


def example(
    step: str = "01_naive", shapes=((1024, 512), (64, 2048)), dtype: str = "float32"
) -> Record:
    cases = [
        Case(
            dtype,
            rows,
            cols,
            launch_of(step, rows, cols, dtype),
            [10.0, 12.0, 11.0],
            [5.0, 5.5, 6.0],
            50,
            "right before and after timing",
            {"registers": 31},
        )
        for rows, cols in shapes
    ]
    device = {"name": "NVIDIA Test GPU"}
    versions = {"driver": "1.2", "nvrtc": "13.0", "cupy": "14.0"}
    return Record(
        step,
        records.step_hash(step),
        device,
        versions,
        "2030-01-02T03:04:05+00:00",
        bench.PROTOCOL,
        {"registers": 31},
        cases,
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of records."""
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    return tmp_path


def test_figures_of_a_case() -> None:
    case = example().cases[0]
    assert case.shape == (1024, 512)
    assert case.bytes == 2 * 1024 * 512 * 4
    assert case.median_us == 11.0
    assert case.gbps == pytest.approx(4194304 / 11e-6 / 1e9)
    assert case.copy_gbps == pytest.approx(4194304 / 5.5e-6 / 1e9)
    assert case.share == pytest.approx(0.5)
    assert case.spread == pytest.approx(2 / 11)
    for dtype in ("float16", "bfloat16"):
        assert dataclasses.replace(case, dtype=dtype).bytes == case.bytes // 2


def test_case_is_found_by_shape_and_dtype() -> None:
    record = example()
    assert record.case(64, 2048) is record.cases[1]
    with pytest.raises(KeyError, match="no record of 01_naive at 64 x 2049 float32"):
        record.case(64, 2049)
    with pytest.raises(KeyError, match="no record of 01_naive at 64 x 2048 float16"):
        record.case(64, 2048, "float16")
    half = dataclasses.replace(record.cases[1], dtype="float16")
    record.cases.append(half)
    assert record.case(64, 2048, "float16") is half
    assert record.select([(64, 2048), (1, 1), (1024, 512)]) == record.cases[1::-1]
    assert record.select([(64, 2048), (1024, 512)], "float16") == [half]


@pytest.mark.parametrize("step", ["01_naive", UNFUSED, "variants/01_naive_fast", "01_naive-b32"])
def test_record_survives_saving_and_loading(step: str, folder: Path) -> None:
    record = example(step)
    save_record(record, "test-gpu")
    assert load_record(step, "test-gpu") == record
    assert record_path(step, "test-gpu").is_relative_to(folder)
    assert record_path(step, "test-gpu").read_text().endswith("}\n")


def test_case_of_an_older_record_has_no_attributes(folder: Path) -> None:
    save_record(example(), "test-gpu")
    path = record_path("01_naive", "test-gpu")
    data = json.loads(path.read_text())
    for case in data["cases"]:
        assert case.pop("attributes") == {"registers": 31}
    path.write_text(json.dumps(data))
    assert [case.attributes for case in load_record("01_naive", "test-gpu").cases] == [{}, {}]


def test_missing_record_says_how_to_make_one(folder: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        load_record("01_naive", "nvidia-other")
    assert str(caught.value) == (
        "no record of 01_naive on nvidia-other: `make record` on that GPU makes it"
    )


def test_record_of_another_schema_is_refused(folder: Path) -> None:
    save_record(dataclasses.replace(example(), schema=99), "test-gpu")
    with pytest.raises(ValueError, match=r"01_naive\.json has schema 99, this version reads 1"):
        load_record("01_naive", "test-gpu")


def test_record_of_an_edited_kernel_says_so() -> None:
    record = example()
    assert record.origin() == (
        "recorded on NVIDIA Test GPU on 2030-01-02 (driver 1.2, NVRTC 13.0, CuPy 14.0)"
    )
    record.kernel_hash = "0" * 16
    assert not record.is_current()
    assert record.origin().endswith("CuPy 14.0), for an earlier version of the kernel")


def test_edit_of_code_makes_a_record_old_and_of_a_comment_not(monkeypatch) -> None:
    record, text = example(), source("01_naive.cu")

    def edit(old: str, new: str) -> None:
        for module in (records, kernels):
            monkeypatch.setattr(module, "source", lambda name: text.replace(old, new))

    edit("one thread", "a thread")
    assert record.is_current()
    edit("fmaxf", "fminf")
    assert not record.is_current()
    edit("block = 128", "block = 64")
    assert not record.is_current()
    edit("cols >= 1", "cols >= 1 && cols <= 512")
    assert not record.is_current()


def test_edit_of_a_build_line_makes_a_record_old(monkeypatch) -> None:
    text = source("01_naive.cu").replace("Dtype:    float32", "Dtype:    float32, bfloat16")
    build = "// Build:    LANES = min(32, power_of_two(cols))\n// Launch:"
    text = text.replace("// Launch:", build)

    def edit(old: str, new: str) -> None:
        for module in (records, kernels):
            monkeypatch.setattr(module, "source", lambda name: text.replace(old, new))

    edit("", "")
    record = example(dtype="bfloat16")
    assert record.cases[0].launch == {"grid": 8, "block": 128, "shared_mem": 0, "LANES": 32}
    assert record.is_current()
    edit("min(32, power", "min(16, power")
    assert not record.is_current()
    edit("float32, bfloat16", "float32, float16")
    assert not record.is_current()


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError("disk full")])
def test_interrupted_write_leaves_the_old_record(failure, folder: Path, monkeypatch) -> None:
    old = example()
    save_record(old, "test-gpu")
    write = Path.write_text

    def half(self: Path, text: str, *args, **options) -> None:
        write(self, text[: len(text) // 2])
        raise failure

    new = example(shapes=[(7, 7)])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half)
        with pytest.raises((KeyboardInterrupt, OSError)):
            save_record(new, "test-gpu")
    assert load_record("01_naive", "test-gpu") == old
    save_record(new, "test-gpu")
    assert load_record("01_naive", "test-gpu") == new
    assert [path.name for path in (folder / "test-gpu").iterdir()] == ["01_naive.json"]


def test_data_that_json_cannot_hold_leaves_the_old_record(folder: Path) -> None:
    old = example()
    save_record(old, "test-gpu")
    with pytest.raises(TypeError):
        save_record(dataclasses.replace(old, protocol={"bad": object()}), "test-gpu")
    assert load_record("01_naive", "test-gpu") == old


def test_recorded_gpus_are_the_folders_with_the_reference_first(folder: Path) -> None:
    for name in ("aaa", "zzz", REFERENCE_GPU):
        (folder / name).mkdir()
    (folder / "predictions.json").write_text("{}")
    assert records.recorded_gpus() == [REFERENCE_GPU, "aaa", "zzz"]


def test_name_of_a_gpu_becomes_a_folder() -> None:
    assert records.gpu_folder("NVIDIA H200") == REFERENCE_GPU
    assert records.gpu_folder("NVIDIA RTX 6000 Ada Generation (Laptop)") == (
        "nvidia-rtx-6000-ada-generation-laptop"
    )


# ---- going on where the recorder stopped ------------------------------------------------------


VERSIONS = {"driver": "1.2", "nvrtc": "13.0", "cupy": "14.0"}


def opened(step: str = "01_naive", fresh: bool = False, versions: dict = VERSIONS) -> Record:
    return recorder.open_record(step, "test-gpu", {"name": "new"}, versions, fresh)


def test_recorder_goes_on_with_a_record_of_the_same_kernel(folder: Path) -> None:
    save_record(example(), "test-gpu")
    assert opened() == example()


@pytest.mark.parametrize("changed", VERSIONS)
def test_recorder_mixes_no_versions_under_one_heading(changed: str, folder: Path) -> None:
    save_record(example(), "test-gpu")
    assert opened(versions={**VERSIONS, changed: "another"}).cases == []


def test_recorder_starts_afresh_without_a_record(folder: Path) -> None:
    record = opened()
    assert record.cases == [] and record.is_current() and record.protocol == bench.PROTOCOL
    assert record.device == {"name": "new"} and record.utc.startswith("20")


@pytest.mark.parametrize(
    "change", [{"kernel_hash": "0" * 16}, {"protocol": {**bench.PROTOCOL, "replays": 3}}]
)
def test_recorder_starts_afresh_if_kernel_or_protocol_changed(change: dict, folder: Path) -> None:
    save_record(dataclasses.replace(example(), **change), "test-gpu")
    record = opened()
    assert record.cases == [] and record.is_current() and record.protocol == bench.PROTOCOL


def test_recorder_starts_afresh_on_request_whatever_the_file_holds(folder: Path) -> None:
    save_record(example(), "test-gpu")
    assert opened(fresh=True).cases == []
    record_path("01_naive", "test-gpu").write_text('{"schema": 1, "ste')
    assert opened(fresh=True).cases == []
    with pytest.raises(json.JSONDecodeError):
        opened()


def test_recorder_needs_the_cases_that_are_missing() -> None:
    record = example(shapes=[GRID_SHAPES[0]])
    assert not recorder.needs("01_naive", record, *GRID_SHAPES[0])
    assert recorder.needs("01_naive", record, *GRID_SHAPES[1])
    assert recorder.needs("01_naive", record, *SWEEP_SHAPES[0])
    assert recorder.needs(UNFUSED, record, *SWEEP_SHAPES[0])


def test_recorder_sweeps_no_variants() -> None:
    for step in TRIED:
        record = example(step, shapes=[])
        dtypes = ("float32", "bfloat16")
        assert any(recorder.needs(step, record, *shape, d) for shape in GRID_SHAPES for d in dtypes)
        assert not any(
            recorder.needs(step, record, *shape, d) for shape in SWEEP_SHAPES for d in dtypes
        )


@pytest.mark.parametrize("step", ["00_copy", UNFUSED, "05_float4", "variants/00_copy_scalar"])
def test_recorder_leaves_long_and_few_rows_to_later_steps(step: str) -> None:
    assert not any(recorder.takes(step, *shape) for shape in (*LONG_SHAPES, *FEW_SHAPES))
    assert recorder.takes(step, 64, 1024), "any other shape, where memory allows fewer rows"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_chosen_is_about_the_fastest_that_is_recorded(dtype: str) -> None:
    files = ["07_warp", "08_cluster", "variants/08_ahead", "09_grid", "10_sixteen_bit"]
    shapes = (*GRID_SHAPES, *LONG_SHAPES, *FEW_SHAPES, *CROSSOVER_SHAPES)
    found = {shape: {} for shape in shapes}
    for file in files:
        for case in load_record(file).select(shapes, dtype):
            found[case.shape][file] = case.share
    for shape, shares in found.items():
        chosen = kernels.choose(*shape, dtype)
        assert shares[chosen] > 0.94 * max(shares.values()), (shape, chosen, shares)


def test_recorder_leaves_rows_for_seven_clusters_to_clusters_that_stay() -> None:
    taking = {step for step in recorder.known_steps() if recorder.takes(step, *EVEN_SHAPE)}
    assert taking == {"variants/08_ahead", "variants/08_ahead-EVICT_LAST0"}


def test_recorder_takes_what_later_kernels_take(monkeypatch) -> None:
    text = source("05_float4.cu").replace("Dtype:    float32", "Dtype:    float32, float16")
    monkeypatch.setattr(kernels, "source", lambda name: text)
    monkeypatch.setattr(recorder, "TRIALS", ("07_new-UNROLL1",))
    for shape in (GRID_SHAPES[0], LONG_SHAPES[0], FEW_SHAPES[1]):
        assert recorder.takes("07_new", *shape) and recorder.takes("07_new", *shape, "float16")
        assert not recorder.takes("07_new-UNROLL1", *shape, "float16"), "trials: two dtypes"
    assert recorder.takes("07_new-UNROLL1", *LONG_SHAPES[0])
    assert recorder.takes("07_new-UNROLL1", *FEW_SHAPES[1])
    assert not recorder.takes("07_new", *SWEEP_SHAPES[0])


def test_recorder_records_each_dtype_of_a_header_and_sweeps_float32_alone(monkeypatch) -> None:
    text = source("05_float4.cu").replace("Dtype:    float32", "Dtype:    float32, bfloat16")
    monkeypatch.setattr(kernels, "source", lambda name: text)
    expected = {"float32": True, "bfloat16": True, "float16": False}
    for shape in GRID_SHAPES[:3]:
        assert {dtype: recorder.takes("05_float4", *shape, dtype) for dtype in expected} == expected
        assert not recorder.takes(UNFUSED, *shape, "bfloat16")
    swept = [dtype for dtype in expected if recorder.takes("05_float4", *SWEEP_SHAPES[0], dtype)]
    assert swept == ["float32"]
    record = example("05_float4", [GRID_SHAPES[0]], "bfloat16")
    assert recorder.needs("05_float4", record, *GRID_SHAPES[0], "float32")
    assert not recorder.needs("05_float4", record, *GRID_SHAPES[0], "bfloat16")


def test_recorder_leaves_out_what_a_header_refuses(monkeypatch) -> None:
    text = source("01_naive.cu").replace("cols >= 1", "cols >= 1 && cols <= 1024")
    monkeypatch.setattr(kernels, "source", lambda name: text)
    record = example(shapes=[])
    assert recorder.needs("01_naive", record, 64, 1024)
    assert not recorder.needs("01_naive", record, 64, 2048)


def test_shapes_shrink_to_the_memory_of_the_gpu(monkeypatch) -> None:
    every = [*GRID_SHAPES, *LONG_SHAPES, *FEW_SHAPES, *CROSSOVER_SHAPES, EVEN_SHAPE, *SWEEP_SHAPES]

    def shapes(free: float) -> list[tuple[int, int]]:
        monkeypatch.setattr(cupy.cuda.runtime, "memGetInfo", lambda: (int(free), int(free)))
        return recorder.shapes_that_fit(every)

    assert shapes(100e9) == every
    small = shapes(2e9)
    assert len(small) == len(set(small))
    assert all(24 * rows * cols <= 1.8e9 for rows, cols in small)
    assert (126, 2**20) not in small, "half of it would not go evenly"
    assert [cols for _, cols in small[:11]] == [cols for _, cols in GRID_SHAPES]


@pytest.fixture
def fake_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A recorder that measures nothing: `measured` lists what it was asked for."""
    fake = SimpleNamespace(measured=[], dtypes=[], fail_after=None)

    def measure(makers: dict, rows: int, cols: int, dtype: str) -> dict:
        if len(fake.measured) == fake.fail_after:
            raise KeyboardInterrupt
        fake.measured.append((frozenset(makers), rows, cols))
        fake.dtypes.append(dtype)
        return {name: example(name, [(rows, cols)], dtype).cases[0] for name in makers}

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "fresh_pool", contextlib.nullcontext)
    monkeypatch.setattr(recorder, "has_gpu", lambda: True)
    monkeypatch.setattr(recorder, "describe_device", lambda: {"name": "NVIDIA Test"})
    monkeypatch.setattr(recorder, "describe_versions", lambda: {"driver": "1.2"})
    monkeypatch.setattr(recorder, "maker", lambda step: None)
    some = [*GRID_SHAPES[9:], *SWEEP_SHAPES[:3]]
    monkeypatch.setattr(
        recorder, "shapes_that_fit", lambda shapes: [s for s in shapes if s in some]
    )
    return fake


def test_interrupted_recorder_goes_on_where_it_stopped(fake_gpu, capsys) -> None:
    wanted = ["00_copy", "01_naive", "variants/01_naive_fast"]
    fake_gpu.fail_after = 3
    with pytest.raises(KeyboardInterrupt):
        recorder.main(["--steps", *wanted])
    assert len(load_record("01_naive", "nvidia-test").cases) == 3
    assert len(load_record("variants/01_naive_fast", "nvidia-test").cases) == 2

    fake_gpu.fail_after, first = None, fake_gpu.measured.copy()
    assert recorder.main(["--steps", *wanted]) == 0
    assert [shape for _, *shape in fake_gpu.measured] == [
        list(shape) for shape in (*GRID_SHAPES[9:], *SWEEP_SHAPES[:3])
    ]
    assert fake_gpu.measured[:3] == first
    assert fake_gpu.measured[3] == ({"00_copy", "01_naive"}, *SWEEP_SHAPES[1])
    assert len(load_record("01_naive", "nvidia-test").cases) == 5

    assert recorder.main(["--steps", *wanted]) == 0
    assert len(fake_gpu.measured) == 5, "nothing was left to measure"
    assert "[5/5, " in capsys.readouterr().out

    assert recorder.main(["--steps", "01_naive", "--fresh"]) == 0
    assert fake_gpu.measured[5:] == [({"01_naive"}, *shape) for _, *shape in fake_gpu.measured[:5]]


def test_recorder_measures_every_step_unless_told_otherwise(fake_gpu) -> None:
    assert recorder.main([]) == 0
    assert {*fake_gpu.dtypes} == {*recorder.DTYPES}
    for (names, *shape), dtype in zip(fake_gpu.measured, fake_gpu.dtypes, strict=True):
        assert names == {step for step in [*STEPS, *TRIED] if recorder.takes(step, *shape, dtype)}
    assert fake_gpu.measured[-1][0] == {step for step in STEPS if step_number(step) < 7}


def test_rate_above_the_copy_is_flagged(fake_gpu, capsys) -> None:
    record = example(shapes=[(64, 1024)])
    recorder.print_progress(1, 1, 64, 1024, "float32", {"01_naive": record}, 0.0)
    assert "look!" not in capsys.readouterr().out
    record.cases[0].samples_us[:] = [4.0, 4.0, 4.0]
    recorder.print_progress(1, 1, 64, 1024, "float16", {"01_naive": record}, 0.0)
    assert "01_naive" not in capsys.readouterr().out
    recorder.print_progress(1, 1, 64, 1024, "float32", {"01_naive": record}, 0.0)
    assert "01_naive 131 (1.38) above the copy: look!" in capsys.readouterr().out


def test_recorder_asks_for_the_families_and_dtypes_it_is_told(fake_gpu, monkeypatch) -> None:
    asked = []

    def keep(shapes) -> list:
        asked.append(list(shapes))
        return []

    monkeypatch.setattr(recorder, "shapes_that_fit", keep)
    assert recorder.main(["--quick"]) == recorder.main([]) == 0
    assert asked == [
        list(GRID_SHAPES),
        [*GRID_SHAPES, *LONG_SHAPES, *FEW_SHAPES, *CROSSOVER_SHAPES, EVEN_SHAPE, *SWEEP_SHAPES],
    ]
    monkeypatch.setattr(recorder, "shapes_that_fit", lambda shapes: list(shapes))
    assert recorder.main(["--quick", "--steps", "01_naive", "--dtypes", "float16"]) == 0
    assert fake_gpu.measured == [], "no header of 01 to 06 lists float16"
    assert recorder.main(["--quick", "--steps", "01_naive", "--dtypes", "float32"]) == 0
    assert len(fake_gpu.measured) == len(GRID_SHAPES)


def test_recorder_refuses_unknown_steps(capsys) -> None:
    with pytest.raises(SystemExit):
        recorder.main(["--steps", "99_missing"])
    assert "99_missing" in capsys.readouterr().err


def test_recorder_without_gpu_says_so_in_one_sentence(monkeypatch, capsys, folder: Path) -> None:
    monkeypatch.setattr(recorder, "has_gpu", lambda: False)
    assert recorder.main([]) == 1
    text = capsys.readouterr()
    assert text.err == "make record measures on a GPU, and CuPy finds none here.\n"
    assert text.out == "" and not list(folder.iterdir())


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_recorder_as_a_command_without_gpu_ends_with_status_1() -> None:
    command = [sys.executable, "-m", "helpers.recorder", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_versions_are_unknown_where_a_tool_is_missing() -> None:
    assert recorder.run_quietly(["no-such-command-anywhere"]) == "unknown"
    assert recorder.run_quietly([sys.executable, "-c", "raise SystemExit(3)"]) == "unknown"
    assert recorder.run_quietly([sys.executable, "-c", "print(' 580.1 ')"]) == "580.1"


def test_a_live_measurement_does_not_claim_to_be_recorded() -> None:
    recorded = records.load_record("01_naive")
    live = replay.LiveRecord(**vars(recorded))
    assert live.origin().startswith("measured now on") and "recorded" not in live.origin()
    assert live.label.endswith("now")
    assert recorded.origin().startswith("recorded on")


@pytest.mark.parametrize("shapes", ["grid", "long", "few"])
def test_live_timings_leave_a_kernel_out_where_it_refuses(fake_gpu, monkeypatch, shapes) -> None:
    monkeypatch.setattr(replay, "replaying", lambda: False)
    monkeypatch.setattr(cupy.cuda.runtime, "memGetInfo", lambda: (2**36, 2**37))
    texts = {name: source(f"{name}.cu") for name in ("06_registers", "08_cluster")}
    timed = replay.timings(texts, shapes=shapes)
    wanted = {
        "grid": [(2**28 // cols, cols) for cols in (32, 128, 512, 1024, 4096, 32768)],
        "long": [(2**28 // cols, cols) for cols in (1024, 4096, 32768, 131072, 2**18)],
        "few": [*FEW_SHAPES],
    }[shapes]
    for record in timed:
        found = [case.shape for case in record.cases]
        assert found == [shape for shape in wanted if step_plan(record.step, *shape)] != []
        assert record.label.endswith(", now")
    assert len(timed[0].cases) != len(timed[1].cases)


def test_an_edited_kernel_is_replayed_as_an_earlier_version(monkeypatch) -> None:
    class Kernel:
        code = "__global__ void softmax_naive(float* x) { x[0] = 1; }"

    monkeypatch.setenv("SOFTMAX_REPLAY", "1")
    (record,) = replay.timings({"01_naive": Kernel})
    assert record.origin().endswith("for an earlier version of the kernel")


# ---- the benchmark, with numpy in CuPy's place --------------------------------------------------


class FakeStream:
    """Runs at once what is enqueued; a capture runs it too, and its graph runs nothing again."""

    def __init__(self, replayed: list):
        self.replayed = replayed

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None: ...
    def synchronize(self) -> None: ...
    def begin_capture(self) -> None:
        self.replayed.clear()

    def end_capture(self) -> SimpleNamespace:
        calls = list(self.replayed)
        return SimpleNamespace(
            upload=lambda stream: None, launch=lambda stream: [call() for call in calls]
        )


@pytest.fixture
def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> list:
    """The list of calls in the capture that goes on; candidates append theirs to it."""
    calls: list = []
    stream = FakeStream(calls)
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
    device = SimpleNamespace(attributes={"L2CacheSize": 4000}, synchronize=lambda: None)
    cuda = SimpleNamespace(
        Stream=lambda non_blocking: stream,
        Event=lambda: event,
        Device=lambda: device,
        get_elapsed_time=lambda start, stop: 2.0,
        get_current_stream=lambda: stream,
    )
    numpy_names = {name: getattr(np, name) for name in ("isnan", "where", "empty_like")}
    types = {name: getattr(np, name) for name in ("float32", "uint32", "uint16")}
    fake = SimpleNamespace(cuda=cuda, random=np.random, asnumpy=np.asarray, **numpy_names, **types)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(bench.PROTOCOL, "warmup_s", 0)
    return calls


def fake_maker(calls: list, compute, compare) -> bench.Maker:
    def make(rows: int, cols: int, dtype: str) -> bench.Candidate:
        def run(x, y) -> None:
            def call() -> None:
                y.view(dtype)[...] = compute(x.view(dtype).astype(np.float64))

            calls.append(call)
            call()

        return bench.Candidate(run, {"grid": 1}, {"registers": 9}, compare)

    return make


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_benchmark_times_and_checks_in_each_dtype(dtype: str, fake_cupy: list) -> None:
    makers = {
        bench.COPY: fake_maker(fake_cupy, lambda x: x, check_copy),
        "right": fake_maker(fake_cupy, reference, check_softmax),
    }
    cases = bench.measure(makers, 3, 40, dtype)
    assert set(cases) == set(makers)
    case = cases["right"]
    assert (case.dtype, case.shape, case.launch) == (dtype, (3, 40), {"grid": 1})
    assert case.attributes == {"registers": 9} and case.check == "right before and after timing"
    assert case.calls == max(3, 50 // 2) and len(case.samples_us) == 7
    assert case.samples_us == [2000 / case.calls] * 7
    for compute, text in (
        (lambda x: 0 * x, "all zero"),
        (lambda x: reference(x) * 1.02, "are wrong"),
        (lambda x: np.where(x == x.max(), np.nan, reference(x)), "left NaN in its output"),
    ):
        makers["wrong"] = fake_maker(fake_cupy, compute, check_softmax)
        with pytest.raises(WrongResult, match=rf"^wrong .*{text}"):
            bench.measure(makers, 3, 40, dtype)


@pytest.mark.parametrize("when", ["made", "run"])
def test_benchmark_names_the_candidate_that_fails(when: str, fake_cupy: list) -> None:
    def broken(rows: int, cols: int, dtype: str) -> bench.Candidate:
        if when == "made":
            raise MemoryError("no room")
        candidate = fake_maker(fake_cupy, reference, check_softmax)(rows, cols, dtype)
        calls = iter(range(3))  # it runs for a while

        def run(x, y) -> None:
            if next(calls, None) is None:
                raise MemoryError("no room")
            candidate.run(x, y)

        return dataclasses.replace(candidate, run=run)

    copy = fake_maker(fake_cupy, lambda x: x, check_copy)
    right = fake_maker(fake_cupy, reference, check_softmax)
    with pytest.raises(bench.CandidateFailed, match="^broken$") as caught:
        bench.measure({bench.COPY: copy, "broken": broken, "right": right}, 3, 40)
    assert str(caught.value.__cause__) == "no room"


def test_benchmark_looks_at_the_last_of_a_few_long_rows(fake_cupy: list) -> None:
    def forgets_the_last_row(x: np.ndarray) -> np.ndarray:
        return np.vstack([reference(x[:-1]), 0 * x[-1:]])

    makers = {
        bench.COPY: fake_maker(fake_cupy, lambda x: x, check_copy),
        "wrong": fake_maker(fake_cupy, forgets_the_last_row, check_softmax),
    }
    with pytest.raises(WrongResult, match="^wrong .*are wrong"):
        bench.measure(makers, 4, 150_000)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_buffers_pass_three_times_the_cache_and_differ(dtype: str, fake_cupy: list) -> None:
    buffers = bench._buffers(1, 100, dtype)
    size = sum(array.nbytes for pair in buffers for array in pair)
    assert 12000 <= size < 12000 + 2 * buffers[0][0].nbytes
    assert len({x.tobytes() for x, _ in buffers}) == len(buffers)
    assert all(np.isnan(y.view(dtype)).all() for _, y in buffers)
    assert all(np.isfinite(x.view(dtype)).all() for x, _ in buffers)


def test_bfloat16_is_rounded_to_nearest_even(fake_cupy: list) -> None:
    x = np.random.default_rng(0).normal(0, 50, 10000).astype(np.float32)
    x[:3] = 1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8)  # halfway between two
    wanted = x.astype("bfloat16").view(np.uint16)
    assert np.array_equal(bench._rounded(x.copy(), "bfloat16"), wanted)


@pytest.mark.parametrize(
    ("shape", "dtype", "copied"),
    [
        ((6, 10), "float32", (6, 10)),
        ((6, 10), "float16", (6, 5)),
        ((6, 11), "bfloat16", (3, 11)),
        ((7, 11), "float32", (7, 11)),
    ],
)
def test_copy_moves_as_many_bytes(shape, dtype: str, copied, monkeypatch) -> None:
    monkeypatch.setattr(bench, "kernel_candidate", lambda code, rows, cols: (rows, cols))
    assert bench.copy_candidate(*shape, dtype) == copied
    with pytest.raises(ValueError, match="7 x 11 float16 are no whole number of floats"):
        bench.copy_candidate(7, 11, "float16")
