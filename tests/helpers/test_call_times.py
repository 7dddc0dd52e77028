"""What an exported softmax costs in PyTorch: the record, and the command that makes it."""

import importlib.util
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from helpers.base import gpu
from helpers.catalogue import store
from helpers.catalogue.registry import split_trial
from helpers.catalogue.store import REFERENCE_GPU, Run
from helpers.commands import measure as command
from helpers.measure import baselines, call_times, campaign
from helpers.measure.call_times import (
    LIGER,
    NOTHING,
    OURS,
    PROTOCOL,
    QUACK,
    TORCH,
    CallTimes,
    best_baselines,
)
from helpers.measure.comparison import Comparison
from helpers.problem.problem import Problem
from tests import made_up
from tests.earlier import COMPARED_EARLIER
from tests.made_up import call_case as case
from tests.made_up import comparison_case

DEVICE = case().run.device


@pytest.fixture
def record(tmp_path, monkeypatch) -> None:
    """Of one shape, beside a comparison at three."""
    monkeypatch.setattr(store, "RECORDS", tmp_path)
    compared = [
        comparison_case(32, 4096, quack=15.0, liger=14.0, cudnn=12.0),
        comparison_case(8, 8192, quack=15.0, compile=16.0),
        comparison_case(4, 4096, liger=25.0),
    ]
    store.write(Comparison, REFERENCE_GPU, compared)
    store.write(CallTimes, REFERENCE_GPU, [case()])


def test_a_case_of_another_kernel_or_text_is_not_current() -> None:
    assert case().is_current()
    for other in (
        case(step="07_warp"),
        replace(case(), hash="0" * 16),
        case(64, 64),
    ):
        assert not other.is_current()


def test_who_was_left_out_for_a_reason_is_held_and_who_is_new_is_not() -> None:
    left_out = replace(case(), skipped={"quack": "refuses so many columns"})
    assert case().names == {OURS, TORCH} and left_out.names == {OURS, TORCH, "quack"}
    assert (case().baseline, left_out.baseline, case(quack=2.0).baseline) == (
        TORCH,
        "",
        QUACK,
    )


# ---- the best baseline ---------------------------------------------------------------------------


def test_the_best_baseline_is_that_of_the_comparison_which_tensors_are_given_to(record) -> None:
    """cuDNN is faster in the first, and has no function of tensors."""
    wanted = {(32, 4096): LIGER, (8, 8192): QUACK, (4, 4096): TORCH}
    found = best_baselines(REFERENCE_GPU)
    assert found == {Problem(*shape): baseline for shape, baseline in wanted.items()}
    assert best_baselines("nvidia-other") == found, (
        "the reference GPU's, where there is no comparison"
    )


def test_the_recorded_comparison_names_a_baseline_at_every_shape_that_is_timed() -> None:
    known = best_baselines(REFERENCE_GPU)
    assert {case.problem for case in store.read(CallTimes)} <= {*known}
    assert {*known.values()} == {TORCH, *call_times.CALLED}


SHAPES = {"float32": ((32, 4096), (8, 8192), (4, 4096), (2, 4096))}


def test_each_shape_is_timed_beside_its_best_baseline(record, monkeypatch, capsys) -> None:
    """On a GPU that is made up."""
    measured, compiled = {}, []

    def compile_ahead(tasks, workers: int, seconds: float) -> None:
        compiled.extend(job[1:] for task in tasks for job in task.to_compile())

    def measure(problem: Problem, run: Run, baseline: str) -> CallTimes:
        measured[problem.shape] = baseline
        found = case(*problem.shape, **{NOTHING: 1.0}, **({baseline: 6.0} if baseline else {}))
        return replace(found, run=run)

    made_up.on_a_gpu(
        *(store.RECORDS, monkeypatch),
        (gpu, "describe_device", lambda: DEVICE),
        (importlib.util, "find_spec", lambda name: name),
        (baselines, "versions", dict),
        (command, "use_cache", lambda: None),
        (campaign, "compile_ahead", compile_ahead),
        (call_times, "installed", {QUACK, LIGER}.__contains__),
        (call_times, "measure", measure),
        (command, "compared_shapes", lambda dtype: SHAPES.get(dtype, ())),
    )
    assert command.main(["calls", "--warm", "2"]) == 0
    assert measured == {(32, 4096): LIGER, (8, 8192): QUACK, (4, 4096): "", (2, 4096): ""}
    assert [(name, *problem.shape) for name, problem in compiled] == [
        *((QUACK, 8, 8192), (OURS, 8, 8192), (OURS, 4, 4096), (OURS, 2, 4096)),
        *((LIGER, 32, 4096), (OURS, 32, 4096)),  # recorded, without a baseline
    ]
    assert "32 x 4096 08_cluster liger 2.00 4.50 6.00" in capsys.readouterr().out
    measured.clear()
    assert command.main(["calls"]) == 0 and not measured, "all are there"
    assert command.main(["calls", "--fresh"]) == 0 and len(measured) == 4


def test_a_baseline_that_refuses_fails_or_is_wrong_is_left_out_with_the_reason(monkeypatch) -> None:
    def assert_close(found, wanted) -> None:
        if found != wanted:
            raise AssertionError("not close!\nby far")

    torch = SimpleNamespace(testing=SimpleNamespace(assert_close=assert_close))
    monkeypatch.setitem(sys.modules, "torch", torch)
    refused = {LIGER: "Liger refuses more than 65536 columns"}
    monkeypatch.setattr(baselines, "why_not", lambda name, problem: refused.get(name, ""))
    x, results = SimpleNamespace(shape=(2, 8)), {QUACK: [1, 2], "compile": [1, 3]}
    monkeypatch.setattr(call_times, "implementation", lambda name: lambda x: results[name])
    joined = {}
    said = {
        name: call_times._join(joined, name, Problem(32, 4096), x, [1, 2])
        for name in (LIGER, QUACK, "compile", "flashinfer")
    }
    assert [*joined] == [QUACK] and said == {
        **refused,
        QUACK: "",
        "compile": "AssertionError: not close!",
        "flashinfer": "KeyError: 'flashinfer'",
    }


def test_the_command_shows_a_record_anywhere(record, capsys) -> None:
    assert command.main(["calls", "--show"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("microseconds a call, NVIDIA H200") and "32 x 4096" in shown
    store.write(CallTimes, REFERENCE_GPU, [replace(case(), hash="0" * 16)])
    command.main(["calls", "--show"])
    assert "in part of earlier kernels" in capsys.readouterr().out
    store.path_of(CallTimes).unlink()
    assert command.main(["calls", "--show"]) == 1
    assert "no calls of nvidia-h200: run make measure ARGS=calls" in capsys.readouterr().err


def test_what_is_recorded_is_of_the_kernels_as_they_are() -> None:
    if not store.path_of(CallTimes).is_file():
        pytest.skip("not recorded yet")
    edited = {split_trial(one.step).file for one in store.read(CallTimes) if not one.is_current()}
    assert edited <= COMPARED_EARLIER, "run make measure ARGS=calls, or correct earlier.py"


@pytest.mark.gpu
def test_a_shape_is_timed() -> None:
    pytest.importorskip("torch")
    run = Run(gpu.describe_device(), gpu.describe_versions(), store.utc_now(), PROTOCOL)
    found = call_times.measure(Problem(32, 4096), run, LIGER)
    assert {OURS, TORCH} <= set(found.graph_us) and len(found.host_us[OURS]) == 21
    assert LIGER in {*found.graph_us, *found.skipped}
    assert found.is_current() and min(found.eager_us[OURS]) > 0
