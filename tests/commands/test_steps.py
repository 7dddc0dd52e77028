"""The recorder of the steps: it can be interrupted, and says what it leaves out."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.catalogue import store
from helpers.catalogue.registry import TORCH
from helpers.commands import measure as command
from helpers.measure import baselines, bench
from helpers.measure.records import Case, Timed, load_record
from helpers.problem.problem import Problem
from helpers.problem.shapes import GRID_SHAPES, SWEEP_SHAPES
from tests import made_up


def fake_time(step: str, problem: Problem) -> Timed:
    at = Problem(*problem.shape, problem.dtype, problem.inner)
    return made_up.timed(launch=made_up.case(step, at).launch)


@pytest.fixture
def fake_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A recorder that measures nothing: `measured` lists what it was asked for."""
    fake = SimpleNamespace(measured=[], fail_after=None)

    def measure(makers: dict, problem: Problem) -> dict:
        if len(fake.measured) == fake.fail_after:
            raise KeyboardInterrupt
        fake.measured.append((frozenset(makers), problem))
        return {name: fake_time(name, problem) for name in makers}

    some = [*GRID_SHAPES[9:], *SWEEP_SHAPES[:3]]
    made_up.on_a_gpu(
        *(tmp_path, monkeypatch),
        (bench, "measure", measure),
        (bench, "maker", lambda step: None),
        (baselines, "why_not", lambda *case: "torch is not installed"),
        (bench, "shapes_that_fit", lambda shapes: [s for s in shapes if s in some]),
    )
    return fake


def test_interrupted_recorder_goes_on_where_it_stopped(fake_gpu, capsys) -> None:
    wanted = [f"^{name} at" for name in ("00_copy", "01_naive", "variants/01_naive_fast")]
    fake_gpu.fail_after = 3
    with pytest.raises(KeyboardInterrupt):
        command.main(["steps", "--only", *wanted])
    assert len(load_record("01_naive", "nvidia-test").cases) == 3
    assert len(load_record("variants/01_naive_fast", "nvidia-test").cases) == 2

    fake_gpu.fail_after, first = None, fake_gpu.measured.copy()
    assert command.main(["steps", "--only", *wanted]) == 0
    assert [problem for _, problem in fake_gpu.measured] == [
        Problem(*shape) for shape in (*GRID_SHAPES[9:], *SWEEP_SHAPES[:3])
    ]
    assert fake_gpu.measured[:3] == first
    assert fake_gpu.measured[3] == ({"00_copy", "01_naive"}, Problem(*SWEEP_SHAPES[1]))
    assert len(load_record("01_naive", "nvidia-test").cases) == 5

    assert command.main(["steps", "--only", *wanted]) == 0
    assert len(fake_gpu.measured) == 5, "nothing was left to measure"
    assert "0 of 5 tasks to measure" in capsys.readouterr().out
    fake_gpu.fail_after = 6
    with pytest.raises(KeyboardInterrupt):
        command.main(["steps", "--only", "^01_naive at", "--fresh"])
    assert len(load_record("01_naive", "nvidia-test").cases) == 5, "the others stay"


def test_without_pytorch_the_rest_is_recorded_and_a_sentence_says_so(fake_gpu, capsys) -> None:
    assert command.main(["steps", "--only", TORCH, "^01_naive at"]) == 0
    assert "00_torch is not recorded: torch is not installed\n" in capsys.readouterr().out
    assert fake_gpu.measured and not any(TORCH in names for names, _ in fake_gpu.measured)
    fake_gpu.measured.clear()
    assert command.main(["steps", "--only", TORCH]) == 1 and fake_gpu.measured == []
    assert "00_torch is not recorded: torch is not installed\n" in capsys.readouterr().out


def test_another_pytorch_is_a_reason_to_time_pytorch_alone(fake_gpu, monkeypatch) -> None:
    monkeypatch.setattr(baselines, "why_not", lambda *_: "")
    only = ["steps", "--only", f"^({TORCH}|01_naive) at .* x 32768 float32"]
    for version, wanted in (("1", {TORCH, "01_naive"}), ("2", {TORCH})):
        fake_gpu.measured.clear()
        monkeypatch.setattr(baselines, "versions", lambda version=version: {"torch": version})
        assert command.main(only) == 0
        assert [names for names, _ in fake_gpu.measured] == [wanted]


def test_rate_above_the_copy_is_flagged() -> None:
    at = Problem(64, 1024)
    assert "look!" not in command.rate(made_up.case("01_naive", at))
    assert (
        command.rate(made_up.case("01_naive", at, 4.0))
        == "01_naive 131 (1.38) above the copy: look!"
    )


OTHER_DRIVER = {"run": replace(made_up.RUN, versions={**made_up.VERSIONS, "driver": "0"})}


@pytest.mark.parametrize("change", [{"launch": {}}, OTHER_DRIVER], ids=["launch", "driver"])
def test_the_first_new_case_of_a_step_replaces_all_that_are_out_of_date(change, fake_gpu) -> None:
    """An interrupted run leaves no cases of two versions in a record."""
    at = Problem(8, 64)
    old = [replace(made_up.case(step, at), **change) for step in ("01_naive", "07_warp")]
    store.write(Case, "nvidia-test", old)
    assert command.main(["steps", "--only", "^01_naive at .* x 32768 float32"]) == 0
    found = [(case.step, case.shape) for case in store.read(Case, "nvidia-test")]
    assert found == [("01_naive", (8192, 32768)), ("07_warp", (8, 64))]


def test_a_damaged_record_is_told_in_one_sentence(fake_gpu, capsys) -> None:
    path = store.path_of(Case, "nvidia-test")
    path.parent.mkdir()
    path.write_text("{}\n")
    assert command.main(["steps", "--only", "^01_naive at"]) == 1 and not fake_gpu.measured
    said = capsys.readouterr().err
    assert said.startswith("nvidia-test/steps.jsonl") and said.count("\n") == 1
