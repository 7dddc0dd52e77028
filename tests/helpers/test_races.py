"""Races: verdicts, files, and what is said of them; nothing is run."""

import dataclasses
import json
from pathlib import Path

import pytest

from helpers import bench, peers, records
from helpers.races import (
    DTYPES,
    Race,
    RaceCase,
    explained_marks,
    load_race,
    race_cases,
    race_path,
    save_race,
)
from helpers.records import REFERENCE_GPU
from helpers.shapes import ALIGNED_RACE_SHAPES, RACE_SHAPES, UNALIGNED_RACE_SHAPES
from tests import made_up
from tests.made_up import OURS, race_case


def test_shares_best_peer_and_lead() -> None:
    case = race_case(cudnn=12.5, liger=16.0)
    assert case.copy_us == 9.7 and case.share(OURS) == pytest.approx(0.97)
    assert case.copy_gbps == pytest.approx(2 * 4 * 1024 * 4096 / 9.7e-6 / 1e9)
    assert dataclasses.replace(case, dtype="bfloat16").copy_gbps == case.copy_gbps / 2
    assert case.best_peer == "cudnn" and case.lead == pytest.approx(1.25)


def test_without_peers_there_is_no_loss() -> None:
    case = race_case()
    del case.samples_us["torch"]
    assert (case.best_peer, case.lead, case.verdict) == (None, float("inf"), "ahead")


def test_marks_say_where_our_calls_overlap_and_what_is_older_than_the_kernel(monkeypatch) -> None:
    monkeypatch.setattr(RaceCase, "is_current", lambda case: case.rows == 1)
    new, old = race_case(1, 8192), race_case(2, 8192)
    early = dataclasses.replace(new, launch={"PROGRAMMATIC": 1}, protocol=1)
    assert [case.marks for case in (new, old, early)] == ["", "#", "+"]
    assert explained_marks([new]) == []
    overlaps, older = explained_marks([new, old, early])
    assert overlaps.startswith("+: our kernel starts before") and older.startswith("#: ours was")


@pytest.mark.parametrize(
    ("ours_us", "peer_us", "verdict"),
    [
        (10.0, 10.2, "ahead"),
        (10.0, 10.05, "level"),  # the peer is at 0.965 of a copy, and we are a little faster
        (10.05, 10.05, "LOSS"),  # the peer leaves room, and we do not beat it
        (10.0, 9.95, "level"),  # the peer is at 0.975: within the tolerance is enough
        (10.0, 9.85, "LOSS"),
    ],
)
def test_verdict(ours_us: float, peer_us: float, verdict: str) -> None:
    assert race_case(quack=peer_us, **{OURS: ours_us}).verdict == verdict


def test_shapes_of_the_race() -> None:
    assert len(set(RACE_SHAPES)) == 28
    for rows, cols in ALIGNED_RACE_SHAPES:
        assert cols % 8 == 0, (rows, cols)
    for rows, cols in UNALIGNED_RACE_SHAPES:
        assert cols % 2, (rows, cols)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of records."""
    monkeypatch.setattr(records, "RECORDS", tmp_path)
    return tmp_path


def saved(*cases: RaceCase) -> Race:
    race = Race(made_up.DEVICE, made_up.VERSIONS, made_up.UTC, [bench.PROTOCOL])
    for case in cases:
        race.add(case)
    save_race(race, made_up.FOLDER)
    return race


def test_race_survives_saving_and_loading(folder: Path) -> None:
    race = saved(race_case(), race_case(64, 2048, quack=12.5))
    assert load_race(made_up.FOLDER) == race
    assert "gpu" not in race_path(made_up.FOLDER).read_text()


def test_race_that_is_missing_or_damaged(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no race of nvidia-test: `make race` on that GPU"):
        race_cases("float32", made_up.FOLDER)
    saved(race_case())
    path = race_path(made_up.FOLDER)
    text = path.read_text()
    path.write_text(json.dumps({**json.loads(text), "schema": 99}))
    with pytest.raises(ValueError, match=r"test/race\.json has schema 99, this version reads 2"):
        load_race(made_up.FOLDER)
    path.write_text(text.replace("19.9", "-1"))
    with pytest.raises(ValueError, match=r"test/race\.json at 1024 x 4096 float32 holds -1, which"):
        load_race(made_up.FOLDER)


def test_case_is_planned_for_the_gpu_of_its_race(folder: Path) -> None:
    step, (rows, cols) = "09_grid", (1, 1048576)
    launch = records.launch_of(step, rows, cols)
    current = dataclasses.replace(
        race_case(rows, cols), step=step, kernel_hash=records.step_hash(step), launch=launch
    )
    race = saved(current)
    assert load_race(made_up.FOLDER).cases[0].is_current()
    race.device = {**made_up.DEVICE, "multiprocessors": 114}
    save_race(race, made_up.FOLDER)
    assert not load_race(made_up.FOLDER).cases[0].is_current()


@pytest.mark.parametrize("dtype", DTYPES)
def test_recorded_race_is_of_the_kernels_as_they_are_now(dtype: str) -> None:
    if not race_path(REFERENCE_GPU).is_file():
        pytest.skip("no race is recorded yet")
    recorded = load_race()
    for case in race_cases(dtype):
        names = {*case.samples_us, *case.skipped} - {case.step}
        assert names <= set(peers.PEERS), case.shape
        assert case.is_current(), (
            f"{case.step} at {case.shape} was edited or is not chosen any more: run the race"
        )
        if case.protocol == bench.PROTOCOL["version"]:
            assert recorded.why_again(*case.shape, dtype, [*peers.PEERS]) == ""


def test_described_protocols_are_those_of_the_cases_and_mean_the_same_as_now() -> None:
    if not race_path(REFERENCE_GPU).is_file():
        pytest.skip("no race is recorded yet")
    recorded = load_race()
    version = bench.PROTOCOL["version"]
    assert all(one == bench.PROTOCOL for one in recorded.protocols if one["version"] == version)
