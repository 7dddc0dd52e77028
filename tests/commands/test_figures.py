"""What the README and the kernel headers show of records that are made up here."""

import dataclasses

import pytest

from helpers import bench, catalogue, races, records, tables
from helpers.commands import figures
from helpers.paths import ROOT
from helpers.races import Race, RaceCase, save_race
from helpers.records import REFERENCE_GPU, Case, Record
from helpers.shapes import RACE_SHAPES
from tests.made_up import DEVICE

VERSIONS = {"driver": "1", "nvrtc": "13.0", "cupy": "14.0", "torch": "2.11.0"}


def made_up(shape: tuple[int, int], peer_us: float = 20.0, dtype: str = "float32") -> RaceCase:
    times = {"08_cluster": [10.0] * 7, "torch": [50.0] * 7, "quack": [peer_us] * 7}
    calls = dict.fromkeys(times, 50)
    return RaceCase(dtype, *shape, "08_cluster", "x", {}, times, [9.0] * 7, calls, protocol=2)


@pytest.fixture
def record_race(tmp_path, monkeypatch):
    """Write a race of the cases given where the README looks for it."""
    monkeypatch.setattr(races, "folder_of", lambda gpu: tmp_path / gpu)

    def write(*cases: RaceCase) -> None:
        save_race(
            Race(DEVICE, VERSIONS, "2030-01-02", [{"version": 1}, bench.PROTOCOL], list(cases)),
            REFERENCE_GPU,
        )

    return write


def rows_of(block: str) -> dict[str, list[str]]:
    """First cell -> the others, for each line of a Markdown table."""
    lines = [line.strip("| ").split(" | ") for line in block.splitlines() if line[:1] == "|"]
    return {first: cells for first, *cells in lines}


# ---- the race -----------------------------------------------------------------------------------


def test_without_a_race_the_block_says_so(record_race) -> None:
    assert figures.race_block() == "No race against them is recorded yet."


def test_race_block_has_ours_and_the_best_peer_at_each_shape(record_race) -> None:
    record_race(
        made_up((65536, 4096), 9.5),
        made_up((65536, 4096), dtype="bfloat16"),
        made_up((1, 32000), 12.5),
        made_up((65536, 77), 10.05),
        made_up((64, 640)),  # asked for by hand: not in the table
    )
    block = figures.race_block()
    rows = rows_of(block)
    head = ["float32: ours", "best peer", "bfloat16: ours", "best peer"]
    assert rows["rows x columns"] == head
    assert rows["65536 x 4096"] == ["0.90# **LOSS**", "0.95 quack", "0.90#", "0.45 quack"]
    assert rows["1 x 32000"] == ["0.90 (10.00 us)#", "0.72 (12.50 us) quack", "-", "-"]
    assert rows["65536 x 77, unaligned"] == ["0.90#", "0.90 quack", "-", "-"]
    assert rows["8192 x 1024"] == ["-"] * 4
    assert len(rows) == 2 + len(RACE_SHAPES)
    assert "Of 4 cases we are ahead by more than 1% in 2, level in 1, and lose 1:" in block
    assert "recorded on NVIDIA Test on 2030-01-02 (driver 1, torch 2.11.0)" in block


def test_race_block_marks_calls_that_overlap_and_kernels_edited_since(record_race) -> None:
    case = made_up((1, 32000), 12.5)
    step = catalogue.choose(*case.shape)
    now = records.launch_of(step, *case.shape)
    hash_now = records.step_hash(step)
    times = {step: case.samples_us["08_cluster"], "quack": [12.5]}
    current = dataclasses.replace(
        case, step=step, samples_us=times, kernel_hash=hash_now, launch=now, protocol=1
    )
    record_race(current)
    block = figures.race_block()
    assert now["PROGRAMMATIC"] and rows_of(block)["1 x 32000"][0] == "0.90 (10.00 us)+"
    assert " +: our kernel starts before the call ahead" in block and "#:" not in block
    record_race(dataclasses.replace(current, kernel_hash="another"))
    block = figures.race_block()
    assert rows_of(block)["1 x 32000"][0] == "0.90 (10.00 us)+#"
    assert " #: ours was another kernel or launch than would be chosen now." in block


def test_shape_without_a_peer_has_no_best_one(record_race) -> None:
    case = made_up((65536, 4096))
    record_race(dataclasses.replace(case, samples_us={"08_cluster": [10.0]}))
    assert rows_of(figures.race_block())["65536 x 4096"] == ["0.90#", "-", "-", "-"]


def test_readme_shows_the_race(record_race) -> None:
    """It equals the recorded one by tests/test_notebooks.py; here another one makes it stale."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    record_race(made_up((65536, 4096), 9.5))
    wanted = figures.wanted_texts()["README.md"]
    assert wanted != readme and "README.md" in figures.out_of_date()
    assert figures.race_block() in wanted
    for name in ("result", "race", "run"):
        assert wanted.count(figures.BEGIN.format(name)) == 1


# ---- steps that are predicted elsewhere ---------------------------------------------------------


@pytest.fixture
def steps_elsewhere(monkeypatch) -> None:
    """Records of the copy, of a step for few rows and of one in bfloat16."""
    places = {
        "00_copy": (65536, 4096, "float32"),
        "09_grid": (1, 1048576, "float32"),
        "10_sixteen_bit": (8388608, 32, "bfloat16"),
    }
    made = {}
    for step, (rows, cols, dtype) in places.items():
        case = Case(dtype, rows, cols, {}, [12.5] * 7, [10.0] * 7, 50, "right")
        other = dataclasses.replace(case, rows=4, cols=64)
        made[step] = Record(
            step, "x", DEVICE, VERSIONS, "2030-01-02", [bench.PROTOCOL], {}, [other, case]
        )
    predicted = {
        step: {"share": 0.75, "rows": rows, "cols": cols, "dtype": dtype}
        for step, (rows, cols, dtype) in places.items()
    }
    monkeypatch.setattr(Record, "is_current", lambda record: True)
    for module in (figures, tables, records):
        monkeypatch.setattr(module, "predictions", lambda: predicted)
    monkeypatch.setattr(figures, "load_record", made.__getitem__)
    for module in (figures, records):
        monkeypatch.setattr(module, "recorded_steps", lambda: [*made.values()][1:])


def test_each_step_is_shown_where_it_was_predicted(steps_elsewhere) -> None:
    rows = rows_of(figures.result_block())
    cells = {first: cells[1:] for first, cells in rows.items()}
    gbps = f"{8 * 1048576 / 12.5 / 1e3:.0f}"
    assert cells["[`09_grid`](kernels/09_grid.cu)"] == ["1 x 1048576", gbps, "0.80", "0.75"]
    shown = cells["[`10_sixteen_bit`](kernels/10_sixteen_bit.cu)"]
    assert shown[0] == "8388608 x 32 bfloat16" and shown[2:] == ["0.80", "0.75"]
    assert figures.measured_line("09_grid") == (
        "12.50 us, 0.80 of a copy, at 1 x 1048576 (NVIDIA Test, 2030-01-02)"
    )
    gbps = f"{4 * 8388608 * 32 / 12.5 / 1e3:.0f}"
    assert figures.measured_line("10_sixteen_bit") == (
        f"{gbps} GB/s, 0.80 of a copy, at 8388608 x 32 bfloat16 (NVIDIA Test, 2030-01-02)"
    )


def test_kernel_measured_before_its_notebook_is_written_has_no_link(tmp_path, monkeypatch) -> None:
    assert figures.notebook_link("06_registers-PACKS2") == (
        "[06 The row stays in registers](notebooks/06_registers.ipynb)"
    )
    monkeypatch.setattr(figures, "NOTEBOOKS", tmp_path)
    assert figures.notebook_link("06_registers") == "-"


def test_address_of_the_repository_goes_into_the_readme_once_there_is_one(monkeypatch) -> None:
    assert figures.NO_URL in figures.wanted_texts()["README.md"]
    monkeypatch.setattr(figures, "REPO_URL", "https://example.org/softmax-worklog")
    readme = figures.wanted_texts()["README.md"]
    assert "!git clone https://example.org/softmax-worklog\n" in readme
    assert figures.NO_URL not in readme


def test_plot_has_the_steps_of_the_series_and_depends_on_nothing_else(
    steps_elsewhere, monkeypatch
) -> None:
    assert records.series() == []
    naive = records.load_record("01_naive")
    monkeypatch.setattr(records, "recorded_steps", lambda: [naive])
    digest = figures.plot_digest()
    naive.cases[:] = [case for case in naive.cases if case.rows != 4096]
    assert figures.plot_digest() == digest, "the sweep is not in the plot"
    naive.cases[0].samples_us[0] += 1
    assert figures.plot_digest() != digest


def test_a_deeper_notebook_that_the_readme_does_not_list_makes_it_stale(monkeypatch) -> None:
    listed = figures.questions_block()
    assert "  - [Does arithmetic matter?](notebooks/deeper/00_roofline.ipynb)" in listed
    assert listed.splitlines()[0] == "- [00 The limit](notebooks/00_the_limit.ipynb)"
    monkeypatch.setattr(figures, "deeper_notebooks", lambda: [])
    assert "roofline" not in figures.questions_block()
    assert "README.md" in figures.out_of_date()
