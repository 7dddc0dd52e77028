"""What pages and kernel headers show of records that are made up here."""

from functools import partial

import pytest

from helpers.catalogue import store
from helpers.commands import figures
from helpers.measure.records import Case
from helpers.page.draw import style
from helpers.page.draw.style import digest_of


def test_pictures_are_drawn_anew_when_what_they_show_changes(monkeypatch, tmp_path) -> None:
    path, height = tmp_path / "lead.png", 1.0

    def plots() -> dict:
        figure, axes = style.chart("Height")
        axes.plot([0, 1], [0, height])
        return {path: figure}

    monkeypatch.setattr(figures, "plots", plots)
    monkeypatch.setattr(figures, "wanted_texts", dict)
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    assert figures.main([]) == 0 and [*tmp_path.iterdir()] == [path]
    assert figures.drawn_digest(path) == digest_of(plots()[path])
    before = path.read_bytes()
    assert before[1:4] == b"PNG"
    path.write_bytes(before + b" ")
    assert figures.main([]) == 0 and path.read_bytes() == before + b" ", "it is left alone"
    height = 2.0
    assert figures.main([]) == 0 and figures.drawn_digest(path) == digest_of(plots()[path])


# ---- steps that are predicted elsewhere ---------------------------------------------------------


def test_kernel_measured_before_its_notebook_is_written_has_no_link(tmp_path, monkeypatch) -> None:
    assert figures.notebook_link("06_registers-PACKS2") == "[06](notebooks/06_registers.ipynb)"
    monkeypatch.setattr(figures, "NOTEBOOKS", tmp_path)
    assert figures.notebook_link("06_registers") == "-"


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


def test_a_damaged_record_is_told_and_nothing_is_written(monkeypatch, tmp_path, capsys) -> None:
    line = partial(figures.measured_line, "01_naive")
    monkeypatch.setattr(store, "RECORDS", tmp_path)
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "wanted_texts", lambda: {"a.md": line()})
    assert line() == "not yet"
    path = store.path_of(Case, figures.REFERENCE_GPU)
    path.parent.mkdir()
    path.write_text("{}\n")
    assert figures.main([]) == 2 and not (tmp_path / "a.md").exists()
    said = capsys.readouterr().err
    assert said.startswith("nvidia-h200/steps.jsonl") and said.count("\n") == 1


def test_without_records_the_summary_says_how_they_are_made(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(store, "RECORDS", tmp_path)
    with pytest.raises(FileNotFoundError, match="no record of 01_naive on nvidia-h200: run make"):
        figures.summary_block()


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
