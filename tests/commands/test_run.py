"""`make run`: what its command line refuses, and what it runs."""

import nbformat
import pytest

from helpers import notebooks, paths
from helpers.commands import run


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--force"], "--force rewrites what --save saves: give both"),
        (["--jobs", "0"], "0 is below 1"),
        (["--jobs", "-1"], "-1 is below 1"),
    ],
)
def test_options_that_would_be_ignored_are_refused(options, complaint, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        run.main(options)
    assert complaint in capsys.readouterr().err


def chosen(monkeypatch, tmp_path, *arguments: str) -> list[str]:
    """The notebooks that a command line runs, of a series of three."""
    for name in ("00_a", "01_b", "deeper/01_why", "deeper/no_number"):
        path = tmp_path / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path)
    found = run.chosen_notebooks(run.parse_arguments([*arguments]))
    return [path.relative_to(tmp_path).with_suffix("").as_posix() for path in found]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["00_a", "01_b"]),
        (["--all"], ["00_a", "01_b", "deeper/01_why"]),
        (["--save"], ["00_a", "01_b", "deeper/01_why"]),
        (["01"], ["01_b", "deeper/01_why"]),
        (["01_w", "00"], ["00_a", "deeper/01_why"]),
        (["--save", "01_b"], ["01_b"]),
        (["02"], []),
    ],
)
def test_which_notebooks_are_run(monkeypatch, tmp_path, arguments, expected) -> None:
    assert chosen(monkeypatch, tmp_path, *arguments) == expected


def test_a_deeper_notebook_runs_in_its_folder_and_is_kept_apart(monkeypatch, tmp_path) -> None:
    series, build = tmp_path / "notebooks", tmp_path / "build"
    cell = nbformat.v4.new_code_cell("from pathlib import Path\nprint(Path.cwd().name)")
    path = series / "deeper/01_why.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    monkeypatch.setattr(notebooks, "NOTEBOOKS", series)
    monkeypatch.setattr(notebooks, "BUILD", build)
    assert run.run_notebook(path, save=False, force=False).failure == ""
    executed = nbformat.read(build / "deeper/01_why.ipynb", as_version=4)
    assert executed.cells[0].outputs[0].text == "deeper\n"
