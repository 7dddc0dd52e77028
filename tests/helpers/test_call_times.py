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
from helpers.measure import baselines, call_times, workers
from helpers.measure.call_times import (
    LIGER,
    NOTHING,
    OURS,
    PROTOCOL,
    QUACK,
    TORCH,
    CallTimes,
    best_baselines,
    summary,
)
from helpers.measure.comparison import Comparison
from helpers.measure.records import step_hash
from helpers.problem.problem import Problem
from tests import made_up
from tests.earlier import COMPARED_EARLIER
from tests.made_up import UTC, VERSIONS, comparison_case

DEVICE = {**made_up.DEVICE, "name": "NVIDIA H200"}
RUN = Run(DEVICE, VERSIONS, UTC, PROTOCOL)


def case(rows: int = 32, cols: int = 4096, step: str = "08_cluster", **us: float) -> CallTimes:
    series = {OURS: [3.0, 1.0, 2.0], TORCH: [4.5, 4.25, 5.0]}
    series |= {name: [number] for name, number in us.items()}
    problem = Problem(rows, cols)
    return CallTimes(problem, RUN, step, step_hash(step), 50, series, series, series)


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


def test_what_is_written_is_read(record) -> None:
    cases = [case(), replace(case(8, 8192), skipped={QUACK: "why"})]
    store.write(CallTimes, REFERENCE_GPU, cases)
    assert store.read(CallTimes) == cases


def test_a_case_of_another_kernel_or_text_is_not_current() -> None:
    assert case().is_current()
    for other in (case(step="07_warp"), replace(case(), hash="0" * 16), case(64, 64)):
        assert not other.is_current()


def test_who_was_left_out_for_a_reason_is_held_and_who_is_new_is_not() -> None:
    left_out = replace(case(), skipped={"quack": "refuses so many columns"})
    assert case().holds([OURS, TORCH]) and left_out.holds([OURS, TORCH, "quack"])
    assert not case().holds([OURS, TORCH, "quack"])


def test_a_case_without_ours_is_refused(record) -> None:
    said = ", line 2: the object is refused: host_us lacks ours"
    made_up.refused(case(), '"host_us":{"ours"', '"host_us":{"mine"', said)


def test_all_cases_together_say_how_far_ahead_and_behind() -> None:
    cases = [
        case(quack=7.0),
        case(8, 8192, quack=1.0),
        replace(case(4, 4096), host_us={OURS: [8.0], TORCH: [4.5]}),
    ]
    said = summary(
        cases, {cases[0].problem: QUACK, cases[1].problem: QUACK, cases[2].problem: LIGER}
    )
    assert said == [
        "host: -2.50 us beside torch in the median, +3.50 at most, more than +3 at 1 of 3",
        "eager: 0.50 to 3.50 times as fast as the best baseline, at 2 of 3",
        "graph: 0.50 to 3.50 times as fast as the best baseline, at 2 of 3",
    ]
    assert len(summary(cases, {})) == 1 and not summary([], {})


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


SHAPES = ((32, 4096), (8, 8192), (4, 4096), (2, 4096))


class Timed:
    """What the command asks to be timed, on a GPU that is made up."""

    def __init__(self, monkeypatch, there: set[str], shapes: tuple = SHAPES) -> None:
        self.measured, self.compiled = {}, []
        of = {"float32": shapes}
        made_up.on_a_gpu(
            *(store.RECORDS, monkeypatch),
            (gpu, "describe_device", lambda: DEVICE),
            (importlib.util, "find_spec", lambda name: name),
            (baselines, "versions", dict),
            (baselines, "use_cache", lambda: None),
            (baselines, "in_processes", lambda _, jobs, n: self.compiled.extend(jobs)),
            (call_times, "installed", there.__contains__),
            (call_times, "measure", self.measure),
            (command, "compared_shapes", lambda dtype: of.get(dtype, ())),
        )

    def measure(self, problem: Problem, run: Run, baseline: str) -> CallTimes:
        rows, cols = problem.shape
        self.measured[rows, cols] = baseline
        if cols == 3:
            raise AssertionError("wrong\nin many places")
        found = case(rows, cols, **{NOTHING: 1.0}, **({baseline: 6.0} if baseline else {}))
        return replace(found, run=run)


def test_each_shape_is_timed_beside_its_best_baseline(record, monkeypatch, capsys) -> None:
    timed = Timed(monkeypatch, {QUACK, LIGER})
    assert command.main(["calls", "--warm", "2"]) == 0
    assert timed.measured == {(32, 4096): LIGER, (8, 8192): QUACK, (4, 4096): "", (2, 4096): ""}
    assert [(name, *problem.shape) for name, problem in timed.compiled] == [
        *((LIGER, 32, 4096), (OURS, 32, 4096), (QUACK, 8, 8192), (OURS, 8, 8192)),
        *((OURS, 4, 4096), (OURS, 2, 4096)),
    ]
    assert "32 x 4096 08_cluster liger 2.00 4.50 6.00" in capsys.readouterr().out
    timed.measured.clear()
    assert command.main(["calls"]) == 0 and not timed.measured, "all are there"
    assert command.main(["calls", "--fresh"]) == 0 and len(timed.measured) == 4


def test_a_baseline_that_was_not_installed_is_timed_when_it_is(record, monkeypatch) -> None:
    timed = Timed(monkeypatch, {LIGER})
    command.main(["calls"])
    assert timed.measured[8, 8192] == "" and timed.measured[32, 4096] == LIGER
    timed = Timed(monkeypatch, {QUACK, LIGER})
    command.main(["calls"])
    assert timed.measured == {(8, 8192): QUACK}


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


def test_a_shape_where_ours_is_wrong_is_told_and_the_others_are_timed(
    record, monkeypatch, capsys
) -> None:
    Timed(monkeypatch, set(), ((5, 3), (8, 8192)))
    monkeypatch.setattr(workers, "gpu_is_usable", lambda: True)
    assert command.main(["calls"]) == 1
    assert "at 5 x 3: AssertionError: wrong\n" in capsys.readouterr().err
    found = [(one.problem, one.run == RUN) for one in store.read(CallTimes)]
    assert found == [(Problem(8, 8192), False), (Problem(32, 4096), True)]


def test_the_command_shows_a_record_anywhere(record, capsys) -> None:
    assert command.main(["calls", "--show"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("microseconds a call, NVIDIA H200") and "32 x 4096" in shown
    store.write(CallTimes, REFERENCE_GPU, [replace(case(), hash="0" * 16)])
    command.main(["calls", "--show"])
    assert "in part of earlier kernels" in capsys.readouterr().out
    assert command.main(["calls", "--show", "nvidia-other"]) == 1
    assert "no calls of nvidia-other: run make measure ARGS=calls" in capsys.readouterr().err


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
