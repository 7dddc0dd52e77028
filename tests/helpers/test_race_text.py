"""What the README says of a race that is made up here."""

import dataclasses

import pytest

from helpers import bench, catalogue, race_text, races, records
from helpers.paths import ROOT
from helpers.races import DTYPES, Race, RaceCase, save_race
from helpers.records import REFERENCE_GPU
from helpers.shapes import RACE_TABLE, raced
from tests.made_up import DEVICE, OURS, race_case

VERSIONS = {"driver": "1", "nvrtc": "13.0", "cupy": "14.0", "torch": "2.11.0"}
PICTURES = {dtype: ROOT / f"{dtype}.png" for dtype in DTYPES}


@pytest.fixture
def record_race(tmp_path, monkeypatch):
    """Write a race of the cases given where the README looks for it, and say what it says."""
    monkeypatch.setattr(races, "folder_of", lambda gpu: tmp_path / gpu)
    monkeypatch.setattr(RaceCase, "is_current", lambda case: True)

    def write(*cases: RaceCase) -> str:
        race = Race(DEVICE, VERSIONS, "2030-01-02", [{"version": 1}, bench.PROTOCOL])
        for case in cases:
            race.add(case)
        save_race(race, REFERENCE_GPU)
        return race_text.race_block(PICTURES)

    return write


def rows_of(block: str) -> dict[str, list[str]]:
    """First cell -> the others, for each line of the Markdown tables; of equal ones the last."""
    lines = [line.strip("| ").split(" | ") for line in block.splitlines() if line[:1] == "|"]
    return {first: cells for first, *cells in lines}


def test_without_a_race_the_block_says_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(races, "folder_of", lambda gpu: tmp_path / gpu)
    assert race_text.race_block(PICTURES) == "No race against them is recorded yet."


def test_each_case_has_its_shares_its_lead_and_its_verdict(record_race) -> None:
    block = record_race(
        race_case(65536, 4096, quack=9.5),
        race_case(65536, 4096, "bfloat16"),
        race_case(1, 32000, liger=12.5),
        race_case(64, 640),  # asked for by hand: not in the table
    )
    rows = rows_of(block)
    assert rows["1 x 32000"] == [
        *(f"`{OURS}`", "0.97 (10.00 us)", "-", "Liger", "0.78 (12.50 us)"),
        *("1.250 (1.248&nbsp;to&nbsp;1.252)", "ahead"),
    ]
    lost = block[: block.index("bfloat16</summary>")]
    assert rows_of(lost)["65536 x 4096"][-2:] == ["0.950 (0.948&nbsp;to&nbsp;0.952)", "**lost**"]
    assert "64 x 640" not in rows
    said = "Of 3 cases: 2 ahead, 1 lost (65536 x 4096 float32 to QuACK by 5.0%)."
    assert f"\n{said}\n" in block
    assert "The race was recorded on NVIDIA Test on 2030-01-02 (driver 1, torch 2.11.0)" in block
    assert "float32.png" in block and "bfloat16.png" in block


def test_families_are_counted_with_their_least_lead(record_race) -> None:
    block = record_race(
        race_case(65536, 4096, quack=9.5),
        race_case(32768, 8192),
        race_case(1, 32000, liger=12.5),
    )
    rows = rows_of(block)
    large = len([s for s in raced("float32") if s[0] * s[1] == 2**28])
    assert rows["2^28 elements"][:2] == [
        f"1 ahead, 1 lost, {large - 2} not raced",
        "0.95, QuACK at 65536 x 4096",
    ]
    assert rows["few rows"][:2] == ["1 ahead, 4 not raced", "1.25, Liger at 1 x 32000"]
    assert rows["few rows"][2:] == ["5 not raced", "-"]
    assert {*RACE_TABLE, "all"} <= set(rows)


def test_no_forfeit_vanishes(record_race, monkeypatch) -> None:
    """Ours: raced without a kernel, or not raced for want of one. A peer's: refused or wrong."""
    monkeypatch.setattr(race_text, "choose", lambda rows, cols, *_: None if cols == 50257 else OURS)
    skipped = {
        "quack": "QuACK needs cols % 4 == 0",
        "liger": "liger_kernel is not installed",
        "cudnn": "wrong result: at (1, 2): 9 of 10 elements are wrong, by up to 1.2 ulp",
    }
    ours = dataclasses.replace(race_case(65536, 77), step="", skipped=skipped)
    del ours.samples_us[OURS]
    skipped = {"triton": "wrong result: left NaN in its output at (8, 16)"}
    other = dataclasses.replace(race_case(1, 32000), skipped=skipped)
    block = record_race(ours, other)
    rows = rows_of(block)
    unraced = sum(cols == 50257 for dtype in DTYPES for _, cols in raced(dtype))
    assert rows["ours"] == [
        "1",
        "ahead of all in 1",
        f"{1 + unraced}: none of our kernels takes the shape",
    ]
    assert rows["QuACK"] == ["0", "0", "1: QuACK needs cols % 4 == 0"]
    assert rows["cuDNN"] == ["0", "0", "1: wrong result; wrong by up to 1.2 ulp"]
    assert rows["Triton tutorial"][2] == "1: wrong result: left NaN in its output"
    assert "Liger" not in rows, "not in the race"
    assert rows["65536 x 77"] == [
        *("-", "-", "-", "PyTorch", "0.48 (20.00 us)", "-", "**forfeit**"),
    ]
    assert rows["vocabularies"][0] == "4 forfeit, 15 not raced"
    assert rows["rows that start anywhere"][0] == "3 forfeit, 7 not raced"


def test_programmatic_launch_and_best_copy_have_columns_of_their_own(record_race) -> None:
    case = dataclasses.replace(
        race_case(1, 32000),
        programmatic_us=[2.0],
        programmatic_copy_us=[1.5],
        copies_us={"variants/00_copy_bulk": [9.0]},
    )
    block = record_race(case)
    cells = rows_of(block)["1 x 32000"]
    assert cells[1:3] == ["0.97 (10.00 us)", "0.90"] and cells[-1] == "0.75 of a copy launched so"
    assert block.count("programmatic launch |") == 1, "in the table of the dtype that has it"
    assert "\nOf 1 cases: 1 ahead.\n" in block


def test_marks_say_what_is_older(record_race, monkeypatch) -> None:
    step, shape = "08_cluster-PROGRAMMATIC1", (1, 32000)
    launch = records.launch_of(step, *shape)
    assert launch["PROGRAMMATIC"]
    early = dataclasses.replace(race_case(*shape), launch=launch, protocol=1)
    block = record_race(early)
    assert rows_of(block)["1 x 32000"][1] == "0.97 (10.00 us)+" and " +: ours starts" in block
    monkeypatch.setattr(RaceCase, "is_current", lambda case: False)
    block = record_race(race_case(*shape))
    assert rows_of(block)["1 x 32000"][1] == "0.97 (10.00 us)#" and " #: ours was" in block
    older = dataclasses.replace(race_case(*shape), versions={**VERSIONS, "torch": "2.10.0"})
    assert "; 1 of 1 cases with other versions." in record_race(older)


def test_shape_without_a_peer_has_no_best_one(record_race) -> None:
    case = race_case(65536, 4096)
    del case.samples_us["torch"]
    rows = rows_of(record_race(case))
    assert rows["65536 x 4096"][3:7] == ["-", "-", "-", "ahead"]
    assert rows["2^28 elements"][1] == "-"


def test_what_is_chosen_is_asked_of_the_gpu_of_the_race(record_race, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(race_text, "choose", lambda *what: asked.append(what) or OURS)
    record_race(race_case(65536, 4096))
    assert {gpu for *_, gpu in asked} == {races.of_record(DEVICE)}
    assert catalogue.choose(65536, 4096) is not None
