"""What an exported softmax costs in PyTorch: the record, and the command that makes it."""

import statistics
from dataclasses import replace

import pytest

from helpers import export_times
from helpers.commands import time_export
from helpers.export_times import (
    OURS,
    PROTOCOL,
    TORCH,
    Times,
    TimesCase,
    load_times,
    save_times,
    table,
    times_path,
)
from helpers.gpu import H200, has_gpu
from helpers.records import REFERENCE_GPU, step_hash

DEVICE = {
    "name": "NVIDIA H200",
    "compute_capability": "90",
    "multiprocessors": H200.sms,
    "l2_bytes": H200.l2,
}


def case(rows: int = 64, cols: int = 4096, step: str = "08_cluster") -> TimesCase:
    series = {OURS: [3.0, 1.0, 2.0], TORCH: [4.5, 4.25, 5.0]}
    return TimesCase("float32", rows, cols, step, step_hash(step), 50, series, series, series)


@pytest.fixture
def record(tmp_path, monkeypatch) -> Times:
    monkeypatch.setattr(export_times, "folder_of", lambda gpu: tmp_path / gpu)
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
    for damaged in (text[:-20], text.replace("3.0", "-3.0"), text.replace('"rows": 64', '"r": 64')):
        times_path().write_text(damaged)
        with pytest.raises(ValueError, match=r"export\.json"):
            load_times()


def test_a_line_has_the_medians(record: Times) -> None:
    (cells,) = table(record.cases)
    assert cells == ["64 x 4096", "08_cluster", *["2.00", "4.50", "-"] * 3]
    assert statistics.median(record.cases[0].host_us[OURS]) == 2


def test_the_command_shows_a_record_anywhere(record: Times, capsys) -> None:
    assert time_export.main(["--show"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("microseconds a call, NVIDIA H200") and "64 x 4096" in shown
    record.cases = [replace(case(), hash="0" * 16)]
    save_times(record, REFERENCE_GPU)
    time_export.main(["--show"])
    assert "in part of earlier kernels" in capsys.readouterr().out
    assert time_export.main(["--show", "nvidia-other"]) == 1


def test_what_is_recorded_is_of_the_kernels_as_they_are() -> None:
    if not times_path().is_file():
        pytest.skip("not recorded yet")
    assert load_times().is_current()


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys) -> None:
    assert time_export.main([]) == 1
    assert "on a GPU with CuPy and PyTorch" in capsys.readouterr().err


@pytest.mark.gpu
def test_a_shape_is_timed(record: Times) -> None:
    pytest.importorskip("torch")
    calls = export_times.implementations(export_times.exported())
    found = export_times.measure(calls, 64, 4096, "float32")
    assert {OURS, TORCH} <= set(found.graph_us) and len(found.host_us[OURS]) == 21
    assert found.is_current(H200) and min(found.eager_us[OURS]) > 0
