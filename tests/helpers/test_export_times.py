"""What an exported softmax costs in PyTorch: the record, and the command that makes it."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from helpers.base import gpu
from helpers.base.gpu import H200
from helpers.commands import measure as command
from helpers.commands.campaigns import calls
from helpers.measure import export_times, peers, races, workers
from helpers.measure.bench import PROTOCOL as RACED
from helpers.measure.export_times import (
    LIGER,
    NOTHING,
    OURS,
    PROTOCOL,
    QUACK,
    TORCH,
    Times,
    TimesCase,
    best_peers,
    load_times,
    save_times,
    summary,
    times_path,
)
from helpers.measure.races import Race, save_race
from helpers.measure.records import REFERENCE_GPU, step_hash
from helpers.problem.problem import Problem
from tests.made_up import VERSIONS, race_case

DEVICE = {
    "name": "NVIDIA H200",
    "compute_capability": "90",
    "multiprocessors": H200.sms,
    "l2_bytes": H200.l2,
}


def case(rows: int = 64, cols: int = 4096, step: str = "08_cluster", **us: float) -> TimesCase:
    series = {OURS: [3.0, 1.0, 2.0], TORCH: [4.5, 4.25, 5.0]}
    series |= {name: [number] for name, number in us.items()}
    return TimesCase("float32", rows, cols, step, step_hash(step), 50, series, series, series)


@pytest.fixture
def record(tmp_path, monkeypatch) -> Times:
    """Of one shape, beside a race at three."""
    monkeypatch.setattr(export_times, "folder_of", lambda gpu: tmp_path / gpu)
    monkeypatch.setattr(races, "folder_of", lambda gpu: tmp_path / gpu)
    raced = [
        race_case(64, 4096, quack=15.0, liger=14.0, cudnn=12.0),
        race_case(8, 8192, quack=15.0, compile=16.0),
        race_case(4, 4096, liger=25.0),
    ]
    save_race(Race(DEVICE, VERSIONS, "2030-01-02T03:04:05+00:00", [RACED], raced), REFERENCE_GPU)
    times = Times(DEVICE, {"driver": "580", "nvrtc": "13.0", "cupy": "14.2.0"}, "", [PROTOCOL])
    times.cases = [case()]
    save_times(times, REFERENCE_GPU)
    return times


def test_what_is_written_is_read(record: Times) -> None:
    assert load_times() == record and record.utc
    assert record.is_current()


def test_a_case_of_another_kernel_or_text_is_not_current(record: Times) -> None:
    for other in (case(step="07_warp"), replace(case(), hash="0" * 16), case(64, 64)):
        record.cases = [other]
        assert not record.is_current()


def test_who_was_left_out_for_a_reason_is_held_and_who_is_new_is_not() -> None:
    left_out = replace(case(), skipped={"quack": "refuses so many columns"})
    assert case().holds([OURS, TORCH]) and left_out.holds([OURS, TORCH, "quack"])
    assert not case().holds([OURS, TORCH, "quack"])


def test_a_missing_and_a_damaged_record_are_named(record: Times, tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="no times of nvidia-other"):
        load_times("nvidia-other")
    text = times_path().read_text()
    for damaged in (text[:-20], text.replace("3.0", "-3.0"), text.replace('"rows":64', '"r":64')):
        times_path().write_text(damaged)
        with pytest.raises(ValueError, match=r"export\.json"):
            load_times()


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
        "eager: 0.50 to 3.50 times as fast as the best peer, at 2 of 3",
        "graph: 0.50 to 3.50 times as fast as the best peer, at 2 of 3",
    ]
    assert len(summary(cases, {})) == 1 and not summary([], {})


# ---- the best peer -------------------------------------------------------------------------------


def test_the_best_peer_is_that_of_the_race_which_tensors_are_given_to(record: Times) -> None:
    """cuDNN is faster in the first, and has no function of tensors."""
    wanted = {(64, 4096): LIGER, (8, 8192): QUACK, (4, 4096): TORCH}
    found = best_peers(REFERENCE_GPU)
    assert found == {Problem(*shape): peer for shape, peer in wanted.items()}
    assert best_peers("nvidia-other") == found, "the reference GPU's, where there is no race"


def test_the_recorded_race_names_a_peer_at_every_shape_that_is_timed() -> None:
    known = best_peers(REFERENCE_GPU)
    assert {case.problem for case in load_times().cases} <= {*known}
    assert {*known.values()} == {TORCH, *export_times.CALLED}


SHAPES = ((64, 4096), (8, 8192), (4, 4096), (2, 4096))


class Timed:
    """What the command asks to be timed, on a GPU that is made up."""

    def __init__(self, monkeypatch, there: set[str], shapes: tuple = SHAPES) -> None:
        self.measured, self.compiled = {}, []
        for name, value in (
            ("has_gpu", lambda: True),
            ("describe_device", lambda: DEVICE),
            ("describe_versions", lambda: VERSIONS),
            ("gpu_in_use", lambda: H200),
        ):
            monkeypatch.setattr(gpu, name, value)
        monkeypatch.setattr(calls.importlib.util, "find_spec", lambda name: name)
        monkeypatch.setattr(peers, "versions", dict)
        monkeypatch.setattr(peers, "use_cache", lambda: None)
        monkeypatch.setattr(peers, "in_processes", lambda _, jobs, n: self.compiled.extend(jobs))
        monkeypatch.setattr(calls, "installed", there.__contains__)
        monkeypatch.setattr(calls, "measure", self.measure)
        of = {"float32": shapes}
        monkeypatch.setattr(calls, "raced", lambda dtype: of.get(dtype, ()))

    def measure(self, problem: Problem, peer: str = "") -> TimesCase:
        rows, cols = problem.shape
        self.measured[rows, cols] = peer
        if cols == 3:
            raise AssertionError("wrong\nin many places")
        return case(rows, cols, **{NOTHING: 1.0}, **({peer: 6.0} if peer else {}))


def test_each_shape_is_timed_beside_its_best_peer(record: Times, monkeypatch, capsys) -> None:
    timed = Timed(monkeypatch, {QUACK, LIGER})
    assert command.main(["calls", "--warm", "2"]) == 0
    assert timed.measured == {(64, 4096): LIGER, (8, 8192): QUACK, (4, 4096): "", (2, 4096): ""}
    assert [(name, *problem.shape) for name, problem in timed.compiled] == [
        *((LIGER, 64, 4096), (OURS, 64, 4096), (QUACK, 8, 8192), (OURS, 8, 8192)),
        *((OURS, 4, 4096), (OURS, 2, 4096)),
    ]
    assert "64 x 4096 08_cluster liger 2.00 4.50 6.00" in capsys.readouterr().out
    timed.measured.clear()
    assert command.main(["calls"]) == 0 and not timed.measured, "all are there"


def test_a_peer_that_was_not_installed_is_timed_when_it_is(record: Times, monkeypatch) -> None:
    timed = Timed(monkeypatch, {LIGER})
    command.main(["calls"])
    assert timed.measured[8, 8192] == "" and timed.measured[64, 4096] == LIGER
    timed = Timed(monkeypatch, {QUACK, LIGER})
    command.main(["calls"])
    assert timed.measured == {(8, 8192): QUACK}


def test_a_peer_that_refuses_fails_or_is_wrong_is_left_out_with_the_reason(monkeypatch) -> None:
    def assert_close(found, wanted) -> None:
        if found != wanted:
            raise AssertionError("not close!\nby far")

    torch = SimpleNamespace(testing=SimpleNamespace(assert_close=assert_close))
    monkeypatch.setitem(sys.modules, "torch", torch)
    refused = {LIGER: "Liger refuses more than 65536 columns"}
    monkeypatch.setattr(peers, "why_not", lambda name, problem: refused.get(name, ""))
    x, results = SimpleNamespace(shape=(2, 8)), {QUACK: [1, 2], "compile": [1, 3]}
    monkeypatch.setattr(export_times, "implementation", lambda name: lambda x: results[name])
    joined = {}
    said = {
        name: export_times._join(joined, name, Problem(64, 4096), x, [1, 2])
        for name in (LIGER, QUACK, "compile", "flashinfer")
    }
    assert [*joined] == [QUACK] and said == {
        **refused,
        QUACK: "",
        "compile": "AssertionError: not close!",
        "flashinfer": "KeyError: 'flashinfer'",
    }


def test_a_shape_where_ours_is_wrong_is_told_and_the_others_are_timed(
    record: Times, monkeypatch, capsys
) -> None:
    Timed(monkeypatch, set(), ((5, 3), (8, 8192)))
    monkeypatch.setattr(workers, "gpu_is_usable", lambda: True)
    assert command.main(["calls"]) == 1
    assert "at 5 x 3: AssertionError: wrong\n" in capsys.readouterr().err
    assert [one.problem for one in load_times().cases] == [Problem(64, 4096), Problem(8, 8192)]


def test_the_command_shows_a_record_anywhere(record: Times, capsys) -> None:
    assert command.main(["calls", "--show"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("microseconds a call, NVIDIA H200") and "64 x 4096" in shown
    record.cases = [replace(case(), hash="0" * 16)]
    save_times(record, REFERENCE_GPU)
    command.main(["calls", "--show"])
    assert "in part of earlier kernels" in capsys.readouterr().out
    assert command.main(["calls", "--show", "nvidia-other"]) == 1


def test_what_is_recorded_is_of_the_kernels_as_they_are() -> None:
    if not times_path().is_file():
        pytest.skip("not recorded yet")
    assert load_times().is_current()


@pytest.mark.gpu
def test_a_shape_is_timed(record: Times) -> None:
    pytest.importorskip("torch")
    found = export_times.measure(Problem(64, 4096), LIGER)
    assert {OURS, TORCH} <= set(found.graph_us) and len(found.host_us[OURS]) == 21
    assert LIGER in {*found.graph_us, *found.skipped}
    assert found.is_current(H200) and min(found.eager_us[OURS]) > 0
