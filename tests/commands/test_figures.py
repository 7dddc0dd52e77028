"""What pages and kernel headers show of records that are made up here."""

import copy

import pytest

from helpers.catalogue.store import Run
from helpers.commands import figures
from helpers.measure import bench, records
from helpers.measure.records import Case, Record
from helpers.page import tables
from helpers.page.draw import style
from helpers.page.draw.digest import digest_of
from helpers.page.draw.step import series_figure
from helpers.problem.problem import Problem
from tests import made_up
from tests.made_up import DEVICE

TIMES = {"01_naive": 100.0, "05_float4": 25.0, "07_warp": 10.0, "09_grid": 20.0, "11_any_row": 12.5}
VERSIONS = {"driver": "1", "nvrtc": "13.0", "cupy": "14.0", "torch": "2.11.0"}


def rows_of(block: str) -> dict[str, list[str]]:
    """First cell -> the others, for each line of a Markdown table."""
    lines = [line.strip("| ").split(" | ") for line in block.splitlines() if line[:1] == "|"]
    return {first: cells for first, *cells in lines}


# ---- the comparison ------------------------------------------------------------------------------


def test_pictures_are_drawn_anew_when_what_they_show_changes(monkeypatch, tmp_path) -> None:
    path, height = tmp_path / "lead.png", 1.0

    def plots() -> dict:
        figure, axes = style.chart("Height")
        axes.plot([0, 1], [0, height])
        return {path: figure}

    monkeypatch.setattr(figures, "plots", plots)
    monkeypatch.setattr(figures, "wanted_texts", dict)
    monkeypatch.setattr(figures, "out_of_date", list)
    assert figures.main([]) == 0 and [*tmp_path.iterdir()] == [path]
    assert figures.drawn_digest(path) == digest_of(plots()[path])
    before = path.read_bytes()
    assert before[1:4] == b"PNG"
    path.write_bytes(before + b" ")
    assert figures.main([]) == 0 and path.read_bytes() == before + b" ", "it is left alone"
    height = 2.0
    assert figures.main([]) == 0 and figures.drawn_digest(path) == digest_of(plots()[path])


# ---- steps that are predicted elsewhere ---------------------------------------------------------


def case(step: str, problem: Problem, us: float = 12.5) -> Case:
    run = Run(DEVICE, VERSIONS, "2030-01-02", bench.PROTOCOL)
    timed = made_up.timed(us, 10.0)
    return Case(problem, run, **vars(timed), step=step, kernel_hash="x")


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
        where = Problem(4, 64, dtype), Problem(rows, cols, dtype)
        made[step] = Record(step, [case(step, problem) for problem in where])
    predicted = {
        step: {"share": 0.75, "rows": rows, "cols": cols, "dtype": dtype}
        for step, (rows, cols, dtype) in places.items()
    }
    monkeypatch.setattr(Record, "is_current", lambda record: True)
    for module in (figures, tables, records):
        monkeypatch.setattr(module, "predictions", lambda: predicted)
    monkeypatch.setattr(figures, "load_record", made.__getitem__)
    monkeypatch.setattr(figures, "best_copies", lambda: {(1, 1048576, "float32"): 1.1})
    for module in (figures, records):
        monkeypatch.setattr(module, "recorded_steps", lambda: [*made.values()][1:])


def test_each_step_is_shown_where_it_was_predicted(steps_elsewhere) -> None:
    rows = rows_of(figures.steps_block())
    cells = {first: cells[1:] for first, cells in rows.items()}
    gbps = f"{8 * 1048576 / 12.5 / 1e3:.0f}"
    assert cells["[`09_grid`](kernels/09_grid.cu)"] == [
        *("1 x 1048576", gbps, "0.80", "1.10", "0.75")
    ]
    shown = cells["[`10_sixteen_bit`](kernels/10_sixteen_bit.cu)"]
    assert shown[0] == "8388608 x 32 bfloat16" and shown[2:] == ["0.80", "-", "0.75"]
    assert figures.measured_line("09_grid") == (
        "12.50 us, 0.80 of copy bandwidth at 1 x 1048576 (Test, 2030-01-02)"
    )
    gbps = f"{4 * 8388608 * 32 / 12.5 / 1e3:.0f}"
    assert figures.measured_line("10_sixteen_bit") == (
        f"{gbps} GB/s, 0.80 of copy bandwidth at 8388608 x 32 bfloat16 (Test, 2030-01-02)"
    )


def test_header_names_the_bandwidth_baseline_and_the_whole_array(monkeypatch) -> None:
    monkeypatch.setattr(Record, "is_current", lambda record: True)

    def line(step: str, us: float = 12.5, **what) -> str:
        one = Record(step, [case(step, Problem(2**19, 512, **what), us)])
        monkeypatch.setattr(figures, "load_record", lambda _: one)
        return figures.measured_line(step).split(" GB/s")[1].split(" (Test")[0]

    assert line("14_x", inner=64) == ", 0.80 of copy bandwidth at 8192 x 512 x 64"
    read = "variants/00_read"
    assert line("14_x", operation="cross_entropy") == ", 0.80 of 00_read at 524288 x 512"
    assert line(read, operation="read") == " at 524288 x 512"
    monkeypatch.setattr(figures, "best_copies", dict)
    assert line("12_x", 9.0) == ", 1.11 of copy bandwidth at 524288 x 512"
    monkeypatch.setattr(figures, "best_copies", lambda: {(2**19, 512, "float32"): 1.02})
    assert line("12_x", 9.0) == ", 1.11 of copy bandwidth (best copy 1.02) at 524288 x 512"
    assert line("12_x") == ", 0.80 of copy bandwidth at 524288 x 512"


def test_kernel_measured_before_its_notebook_is_written_has_no_link(tmp_path, monkeypatch) -> None:
    assert figures.notebook_link("06_registers-PACKS2") == "[06](notebooks/06_registers.ipynb)"
    monkeypatch.setattr(figures, "NOTEBOOKS", tmp_path)
    assert figures.notebook_link("06_registers") == "-"


def test_deeper_notebooks_are_listed_after_the_number_of_their_core_notebook() -> None:
    listed = figures.questions_block().splitlines()
    assert "- 00 [Does arithmetic matter?](notebooks/deeper/00_roofline.ipynb)" in listed
    assert listed == sorted(listed, key=lambda line: line[:4])


def test_what_is_out_of_date_is_named_and_rewritten(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("old")
    (tmp_path / "b.md").write_text("as it should be")
    texts = {"a.md": "new", "b.md": "as it should be", "c.md": "not there yet"}
    monkeypatch.setattr(figures, "wanted_texts", lambda: texts)
    monkeypatch.setattr(figures, "plots", dict)
    assert figures.main(["--check"]) == 1
    assert capsys.readouterr().out == "a.md is out of date\nc.md is out of date\n"
    assert (tmp_path / "a.md").read_text() == "old"
    assert figures.main([]) == 0 == figures.main(["--check"])
    assert (tmp_path / "c.md").read_text() == "not there yet"


@pytest.mark.parametrize(("name", "up"), [("README.md", ""), ("docs/a.md", "../")])
def test_a_page_has_its_parts_and_the_address_of_the_repository(
    name: str, up: str, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    page = tmp_path / name
    page.parent.mkdir(exist_ok=True)
    marked = "[a](b)\n<!-- begin one: made by make notebooks -->\n{}<!-- end -->\n{}\n"
    page.write_text(marked.format("old\n", figures.NO_URL))
    shown = marked.format(f"![c]({up}d.png)\n", "{}")
    parts = {"one": "![c](d.png)", "two": ""}
    assert figures.with_blocks(page, parts) == shown.format(figures.NO_URL)
    monkeypatch.setattr(figures, "REPO_URL", "https://example.org/softmax-worklog")
    assert figures.with_blocks(page, parts) == shown.format(figures.REPO_URL)


def test_every_generated_part_stands_on_one_page() -> None:
    found = [
        name
        for page in figures.PAGES
        for _, name, _ in figures.GENERATED.findall(page.read_text("utf-8"))
    ]
    blocks = ["around", "comparison", "questions", "steps", "summary", "unseen", "unseen_groups"]
    assert sorted(found) == blocks


def test_summary_names_the_step_farthest_from_a_copy(steps_elsewhere, monkeypatch) -> None:
    made = [Record(step, [case(step, Problem(64, 4096), us)]) for step, us in TIMES.items()]
    monkeypatch.setattr(figures, "recorded_steps", lambda: made)
    monkeypatch.setattr(figures, "load_comparisons", lambda: [])
    (line, *_) = figures.summary_block().splitlines()
    assert line.startswith(
        "- **Copy bandwidth.** `01_naive` reaches 0.10 of it, the kernels from 06"
    )
    assert " on 0.80 to 1.00, each " in line and "The exception is `09_grid`, 0.50 at " in line


def test_plot_has_the_steps_of_the_series_and_depends_on_nothing_else(
    steps_elsewhere, monkeypatch
) -> None:
    assert records.series() == []
    naive = copy.deepcopy(records.load_record("01_naive"))  # other tests read the samples too
    monkeypatch.setattr(records, "recorded_steps", lambda: [naive])
    digest = digest_of(series_figure())
    naive.cases[:] = [case for case in naive.cases if case.rows != 4096]
    assert digest_of(series_figure()) == digest, "the sweep is not in the plot"
    naive.of_family()[0].samples_us[:] = [1.0]
    assert digest_of(series_figure()) != digest
