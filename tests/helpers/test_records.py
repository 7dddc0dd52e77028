"""The records are complete, current and plausible; a record on its own."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from helpers.base.gpu import H200
from helpers.base.paths import RECORDS
from helpers.catalogue import dispatch, store
from helpers.catalogue.dispatch import launch_of
from helpers.catalogue.registry import (
    TORCH,
    TRIALS,
    UNFUSED,
    known_steps,
    step_number,
    steps,
    variants,
)
from helpers.catalogue.store import REFERENCE_GPU
from helpers.measure import bench, records
from helpers.measure.comparison import Comparison
from helpers.measure.pipelines import Pipeline
from helpers.measure.profiler import Disassembly, Formula, NsightCounters, SanitizerResult
from helpers.measure.records import (
    Case,
    Prediction,
    Record,
    families_of,
    load_record,
    predictions,
    takes,
)
from helpers.page.replay import recorded_beside
from helpers.problem.problem import Problem
from helpers.problem.shapes import (
    CROSSOVER_SHAPES,
    EVEN_SHAPE,
    FEW_SHAPES,
    GRID_SHAPES,
    LONG_SHAPES,
    REFERENCE_SHAPE,
    SWEEP_SHAPES,
)
from helpers.run.bound import load
from tests import made_up
from tests.earlier import EARLIER, UNRECORDED
from tests.made_up import FOLDER

KINDS = [Case, Comparison, Pipeline, NsightCounters, Disassembly, Formula, SanitizerResult]
STEPS = [UNFUSED, *steps()]
EARLY = dataclasses.replace(made_up.RUN, protocol={"version": 1})
TRIED = [step for step in (*variants(), *TRIALS) if step not in UNRECORDED]


def wanted(step: str, shapes, dtype: str = "float32") -> list[tuple[int, int]]:
    """Those of the shapes at which the step is to be recorded."""
    return [shape for shape in shapes if takes(step, Problem(*shape, dtype))]


def dtypes(step: str) -> list[str]:
    if step == UNFUSED:
        return ["float32"]
    return [dtype.name for dtype in load(step).header.dtypes]


# ---- what is recorded -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded() -> dict[str, Record]:
    """Every record of the reference GPU by its step."""
    return {step: load_record(step) for step in (*STEPS, *TRIED)}


def test_every_record_is_of_the_kernel_as_it_is_now(recorded) -> None:
    for step, record in recorded.items():
        assert record.step == step
        protocols = [case.run.protocol for case in record.cases]
        assert all(one in (bench.PROTOCOL, {**one, "version": 1}) for one in protocols)
        assert record.is_current() == (step not in EARLIER), (
            f"{step}: run make measure on a {REFERENCE_GPU}, or correct tests/earlier.py"
        )
        assert ("earlier version" in record.origin()) == (step in EARLIER)
        for case in record.cases:
            if step not in {UNFUSED, *EARLIER}:
                plan = launch_of(step, case.at, record.gpu)
                assert case.launch == plan, (step, case.shape)
    found = {case.step for case in store.read(Case)}
    assert found - {TORCH} == {*recorded} == {*known_steps()} - UNRECORDED


def test_every_record_is_complete(recorded) -> None:
    families = (GRID_SHAPES, (*LONG_SHAPES, *FEW_SHAPES, *CROSSOVER_SHAPES, EVEN_SHAPE))
    for step, record in recorded.items():
        for dtype in dtypes(step):
            for shapes in (*families, SWEEP_SHAPES) if step in STEPS else families:
                shown = [case.shape for case in record.select(shapes, dtype)]
                assert shown == wanted(step, shapes, dtype), (step, dtype)
        if step in STEPS:
            assert bool(record.select(SWEEP_SHAPES)) == ("sweep" in families_of(step))
    grid = [case.shape for case in load_record(TORCH).of_family("grid", "bfloat16")]
    assert grid == [*GRID_SHAPES]


def test_every_timing_is_plausible(recorded) -> None:
    for step, record in {**recorded, TORCH: load_record(TORCH)}.items():
        places = {(case.shape, case.inner, case.dtype) for case in record.cases}
        assert len(places) == len(record.cases), f"{step}: a shape twice"
        for case in record.cases:
            where = step, case.shape, case.dtype
            assert len(case.samples_us) >= 7 and len(case.copy_samples_us) >= 7, where
            assert case.calls >= 3, where
            assert case.calls * case.median_us > 100, "a graph too short for the event timer"
            assert case.spread < 0.2, where
            # A programmatic launch overlaps the call before it, which the copy's does not.
            most = 1.10 if case.launch.get("PROGRAMMATIC") else 1.05
            assert 0 < case.share < most, f"faster than a copy at {where}"
            if case.shape in GRID_SHAPES:
                assert case.gbps < 4800, (
                    "more than the memory's bandwidth, and no cache holds 2 GiB"
                )
            if step == bench.COPY:
                assert abs(case.share - 1) < 0.01, "a copy timed twice agrees with itself"


def test_attributes_of_the_kernels_are_recorded(recorded) -> None:
    counts = {"registers", "local_bytes", "static_shared_bytes"}
    for step in (*steps(), *TRIED):
        record = recorded[step]
        of_cases = [case.attributes for case in record.cases if case.attributes]
        for case in record.cases:
            assert ("active_clusters" in case.attributes) == (case.launch.get("CLUSTER", 1) > 1)
        assert len(of_cases) == len(record.cases) or step_number(step) < 7
        for attributes in (record.attributes, *of_cases):
            assert counts <= set(attributes) <= counts | {"active_clusters"}, step
            assert 1 <= attributes["registers"] <= 255, step
        spills = step == "06_registers-PACKS16"  # what its notebook shows
        if step_number(step) < 7:
            assert (record.attributes["local_bytes"] > 0) == spills, step


PATH = re.compile(r"""(?:^|[\s=:,'"(]|-I)(?:~|[A-Za-z]:)?[/\\]+\w""")


def strings(data) -> list[str]:
    """Every string in JSON data, keys included."""
    if isinstance(data, dict):
        return [text for item in data.items() for part in item for text in strings(part)]
    if isinstance(data, list):
        return [text for item in data for text in strings(item)]
    return [data] if isinstance(data, str) else []


@pytest.mark.parametrize("gpu", store.recorded_gpus())
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.file)
def test_every_file_of_every_gpu_can_be_read(kind: type[store.Observation], gpu: str) -> None:
    for one in store.read_if_any(kind, gpu):
        assert store.gpu_folder(one.run.device["name"]) == gpu


def test_records_hold_no_paths_of_the_machine() -> None:
    files = [*RECORDS.rglob("*.jsonl"), *RECORDS.rglob("*.json")]
    assert len(files) > 5
    for file in files:
        lines = [file.read_text()] if file.suffix == ".json" else file.read_text().splitlines()
        paths = [text for line in lines for text in strings(json.loads(line)) if PATH.search(text)]
        assert not paths, f"{file.name}: {paths[:3]}"
    assert not list(RECORDS.rglob("*.tmp"))


# ---- predictions ------------------------------------------------------------------------------


def test_every_step_was_predicted_with_a_reason_and_a_record_to_hold_it_against() -> None:
    assert {*STEPS} <= {*predictions()}
    for step, prediction in predictions().items():
        assert 0 < prediction["share"] <= 1.05 and len(prediction["because"].split()) >= 8, step
        assert prediction.keys() <= Prediction.__annotations__.keys(), step
        assert len({"question", "choices", "sum"} & prediction.keys()) in (0, 3), step
        shape = prediction.get("rows", REFERENCE_SHAPE[0]), prediction.get("cols", 4096)
        dtype, inner = prediction.get("dtype", "float32"), prediction.get("inner", 1)
        assert load_record(step).case(*shape, dtype, inner).share > 0


# ---- a record on its own ----------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of records."""
    monkeypatch.setattr(store, "RECORDS", tmp_path)
    return tmp_path


def test_case_is_found_by_shape_and_dtype() -> None:
    record = made_up.record()
    assert record.case(64, 2048) is record.cases[1]
    with pytest.raises(KeyError, match="no record of 01_naive at 64 x 2049 float32"):
        record.case(64, 2049)
    with pytest.raises(KeyError, match="no record of 01_naive at 64 x 2048 float16"):
        record.case(64, 2048, "float16")
    half = made_up.record(dtype="float16").cases[1]
    record.cases.append(half)
    assert record.case(64, 2048, "float16") is half
    assert record.select([(64, 2048), (1, 1), (1024, 512)]) == record.cases[1::-1]
    assert record.select([(64, 2048), (1024, 512)], "float16") == [half]


CASE = made_up.record().cases[0]
COMPARED = dataclasses.replace(
    made_up.comparison_case(),
    problem=Problem(1024, 4096, operation="softmax_backward", features={"LOG": 1}),
    copies_us={"variants/00_copy_bulk": [10.0]},
    draws=[{made_up.OURS: [4.0], "torch": [2.0], bench.COPY: [3.0]}],
    less_precise={"torch": 1.5},
)
LINKED = dataclasses.replace(  # short, so that what is damaged below occurs once in its file
    made_up.pipeline_case([10.0]),
    launches={"one": {"grid": 1}, "two": {"grid": 2}},
    pipeline_us={"one": [10.5, 11.0], "two": [12.0, 12.5]},
    base_us={"one": [3.0, 3.5], "two": [4.0, 4.5]},
)
SAVED = [
    [
        *(case for step in (UNFUSED, "01_naive-b32") for case in made_up.record(step).cases),
        dataclasses.replace(CASE, programmatic_us=[1.5], programmatic_copy_us=[1.25]),
        made_up.case("13_any_axis", Problem(64, 512, inner=32)),
        made_up.case("12_fused-MASK2", Problem(64, 64, "bfloat16")),
    ],
    [dataclasses.replace(made_up.comparison_case(1, 32000), run=EARLY), COMPARED],
    [LINKED, dataclasses.replace(LINKED, state="evicted", skipped={"quack": "why"})],
]


@pytest.mark.parametrize("saved", SAVED, ids=lambda saved: saved[0].file)
def test_observations_survive_saving_and_loading(saved: list, folder: Path) -> None:
    """Planted: a field that is left out, though it is not as by default, and one that is not."""
    kind = type(saved[0])
    said = f"no {kind.file} of {FOLDER}: run make measure ARGS={kind.campaign} there"
    with pytest.raises(FileNotFoundError, match=said):
        store.read(kind, FOLDER)
    store.write(kind, FOLDER, saved)
    assert store.read(kind, FOLDER) == saved
    text = store.path_of(kind, FOLDER).read_text()
    runs = len({one.run.protocol["version"] for one in saved})
    assert len(text.splitlines()) == runs + len(saved), "a line for each run and each case"
    for part in ("programmatic_us", '"inner"', '"features":{"MASK":2}', "skipped"):
        assert text.count(part) <= 1


def test_a_reader_chooses_whose_records_are_shown(folder: Path, monkeypatch) -> None:
    mine, reference = made_up.record("01_naive"), made_up.record("01_naive", [(64, 2048)])
    store.write(Case, FOLDER, mine.cases)
    store.write(Case, REFERENCE_GPU, reference.cases)
    assert load_record("01_naive") == reference
    monkeypatch.setenv("SOFTMAX_RECORDS", FOLDER)
    assert load_record("01_naive") == mine and load_record("01_naive", REFERENCE_GPU) == reference
    assert recorded_beside(mine) == [reference], "the other one is the dotted line"
    with pytest.raises(FileNotFoundError, match=f"no comparison of {FOLDER}: run make measure"):
        store.read(Comparison)
    monkeypatch.setenv("SOFTMAX_REPLAY", "1")
    assert load_record("01_naive") == reference, "committed outputs depend on no choice"
    monkeypatch.delenv("SOFTMAX_REPLAY")
    monkeypatch.setenv("SOFTMAX_RECORDS", "nvidia-t4")
    with pytest.raises(ValueError, match="nvidia-t4 is no folder .* there are: nvidia-h200, nvid"):
        load_record("01_naive")


def test_missing_record_says_how_to_make_one(folder: Path) -> None:
    for name in ("nvidia-other", FOLDER):
        with pytest.raises(FileNotFoundError) as caught:
            load_record("01_naive", name)
        command = 'make measure ARGS="steps --only 01_naive"'
        assert str(caught.value) == f"no record of 01_naive on {name}: run {command} there"
        store.write(Case, FOLDER, made_up.record("02_online").cases)


@pytest.mark.parametrize(
    ("one", "old", "new", "said"),
    [
        (CASE, '"calls":50', '"calls":"50"', r"calls is \"50\", not an integer"),
        (CASE, '"calls":50,', "", "the object lacks calls"),
        (CASE, '"rows":1024', '"rows":0', r"problem\.rows is 0, not a positive integer"),
        (CASE, '"cols":512', '"cols":512,"odd":1', "problem is refused: .* no 'odd'"),
        (CASE, '"cols":512', '"cols":512,"inner":3', "problem is refused: .* not outer"),
        (CASE, '"step"', '"stop"', "the object lacks step"),
        (CASE, '"step"', '"odd":1,"step"', "the object has a key 'odd', which this version"),
        (COMPARED, "19.99", "-1", r"samples_us\.torch\[0\] is -1, not"),
        (COMPARED, '"00_copy":[3.0]', '"00_copy":[0]', r'draws\[0\]\["00_copy"\]\[0\] is 0, not'),
        (COMPARED, ',"00_copy":[3.0]', "", "the object is refused: a draw is without 00_copy or"),
        (COMPARED, f'"{made_up.OURS}":[4.0],', "", "the object is refused: .* without 00_copy or"),
        (COMPARED, '"LOG":1', '"BIAS":1', "problem is refused: softmax_backward has no"),
        (COMPARED, "softmax_backward", "sofmax", "problem is refused: operations are .*, not 'sof"),
        (LINKED, "4.5]", "-1]", r"base_us\.two\[1\] is -1, not"),
        (LINKED, '"two":{', '"other":{', "the object is refused: a launch of other and no time"),
        (LINKED, ",4.5]", "]", "the object is refused: other samples of pipelines with softmax"),
        (LINKED, ',"two":[4.0,4.5]', "", "the object is refused: other samples of pipelines with"),
        (LINKED, '"fresh"', '"stale"', 'state is "stale", not one of fresh, evicted'),
    ],
)
def test_a_damaged_observation_is_named(one, old: str, new: str, said: str, folder) -> None:
    made_up.refused(one, old, new, f", line 2: {said}")


@pytest.mark.parametrize(
    ("lines", "said"), [([0], " holds no obs"), ([0, 1, 1], ", line 3 is of what an earlier")]
)
def test_a_file_of_runs_alone_or_with_a_line_twice_is_refused(lines, said, folder) -> None:
    store.write(Case, FOLDER, made_up.record().cases[:1])
    path = store.path_of(Case, FOLDER)
    text = path.read_text().splitlines()
    path.write_text("\n".join(text[number] for number in lines))
    with pytest.raises(ValueError, match=rf"^nvidia-test/steps\.jsonl{said}"):
        load_record("01_naive", FOLDER)


def test_record_of_an_edited_kernel_says_so() -> None:
    record = made_up.record()
    assert record.label == "NVIDIA Test, 2030-01-02"
    assert record.origin() == (
        "recorded on NVIDIA Test on 2030-01-02 (driver 1.2, NVRTC 13.0, CuPy 14.0)"
    )
    record.cases[0] = dataclasses.replace(record.cases[0], kernel_hash="0" * 16)
    assert not record.is_current()
    assert record.origin().endswith("CuPy 14.0), for an earlier version of the kernel")


def test_name_of_a_gpu_becomes_a_folder() -> None:
    assert store.gpu_folder("NVIDIA H200") == REFERENCE_GPU
    assert store.gpu_folder("NVIDIA RTX 6000 Ada Generation (Laptop)") == (
        "nvidia-rtx-6000-ada-generation-laptop"
    )


# ---- which cases ------------------------------------------------------------------------------


def predict(monkeypatch, **steps: dict) -> None:
    monkeypatch.setattr(records, "predictions", lambda: steps)


def test_long_is_grid_and_long_rows_over_one_axis() -> None:
    cases = made_up.steady("01_naive").of_family("long")
    assert [case.cols for case in cases] == [2**k for k in range(5, 21)]
    with pytest.raises(
        ValueError,
        match="one of grid, few, sweep, unaligned, square, vocabularies, axes, long, not 'longer'",
    ):
        made_up.steady("01_naive").of_family("longer")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_the_rules_choose_is_about_the_fastest_that_is_recorded(dtype: str) -> None:
    files = {rank.file for rank in dispatch.SOFTMAX_RANKING}
    shapes = (*GRID_SHAPES, *LONG_SHAPES, *FEW_SHAPES, *CROSSOVER_SHAPES)
    found = {shape: {} for shape in shapes}
    for file in files:
        for case in load_record(file).select(shapes, dtype):
            found[case.shape][file] = case.share
    for shape, shares in found.items():
        (chosen,) = dispatch.candidates(Problem(*shape, dtype), H200, 1)
        assert shares[chosen] > 0.94 * max(shares.values()), (shape, chosen, shares)


def test_a_record_without_the_predicted_case_is_headed_by_its_longest_rows() -> None:
    first, *_, last = LONG_SHAPES
    for shapes, wanted in ((((1024, 512), (64, 2048)), (64, 2048)), ((first, last, (8, 8)), last)):
        assert made_up.record(shapes=shapes).headline.shape == wanted
