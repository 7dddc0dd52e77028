"""`make lab`: what a reader does to their copies is kept, the rest follows the series, and git sees
none of it."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest

from helpers.base.paths import ROOT
from helpers.commands import lab

FIRST, DEEP = "00_the_limit.ipynb", "deeper/00_why.ipynb"


def write_page(path: Path, text: str, output: str = "1\n") -> None:
    """A notebook with a sentence and an executed cell."""
    cell = nbformat.v4.new_code_cell("print(1)", execution_count=1, id="b")
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=output)]
    cells = [nbformat.v4.new_markdown_cell(text, id="a"), cell]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder of a small series: two notebooks and a glossary, copied once."""
    series, mine = tmp_path / "notebooks", tmp_path / "mine"
    write_page(series / FIRST, "# The limit")
    write_page(series / DEEP, "# Why?")
    (series / "GLOSSARY.md").write_text("# Words\n")
    pages = {
        name: series / name for name in (FIRST, DEEP, "GLOSSARY.md") if (series / name).exists()
    }
    monkeypatch.setattr(
        lab, "pages", lambda: {name: path for name, path in pages.items() if path.exists()}
    )
    monkeypatch.setattr(lab, "MINE", mine)
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    assert lab.refresh() == []
    return mine


def source(path: Path) -> str:
    return nbformat.read(path, as_version=4).cells[0].source


def test_what_was_not_changed_follows_the_series(mine: Path) -> None:
    series = mine.parent / "notebooks"
    write_page(series / FIRST, "# The limit, better")
    (series / "GLOSSARY.md").write_text("# More words\n")
    assert lab.refresh() == []
    assert source(mine / FIRST) == "# The limit, better"
    assert (mine / "GLOSSARY.md").read_text() == "# More words\n"


def test_an_edited_copy_stays_and_the_newer_one_is_named(mine: Path) -> None:
    write_page(mine / FIRST, "# My limit")
    mine_now = (mine / FIRST).read_bytes()
    assert lab.refresh() == [], "nothing newer is there"
    write_page(mine.parent / "notebooks" / FIRST, "# The limit, better")
    for _ in range(2):
        (sentence,) = lab.refresh()
        assert f"the series has newer ones: {FIRST}. Your copies stay" in sentence
        assert (mine / FIRST).read_bytes() == mine_now
    (mine / FIRST).rename(mine / "old.ipynb")
    assert lab.refresh() == []
    assert source(mine / FIRST) == "# The limit, better"
    assert (mine / "old.ipynb").read_bytes() == mine_now


@pytest.mark.parametrize("output", ["1\n", "4242 GB/s\n"])
def test_only_run_and_saved_is_not_edited(mine: Path, output: str) -> None:
    """JupyterLab writes metadata and another indentation, a run outputs of the reader's GPU."""
    write_page(mine / FIRST, "# The limit", output)
    notebook = nbformat.read(mine / FIRST, as_version=4)
    notebook.metadata["language_info"] = {"name": "python", "version": "3.99"}
    (mine / FIRST).write_text(json.dumps(notebook, indent=3))
    assert lab.refresh() == []
    assert output.strip() in (mine / FIRST).read_text(), "the reader's outputs stay"
    write_page(mine.parent / "notebooks" / FIRST, "# The limit, better")
    assert lab.refresh() == []
    assert source(mine / FIRST) == "# The limit, better"


def test_a_copy_of_a_page_that_is_no_more_goes_unless_it_was_changed(mine: Path) -> None:
    series = mine.parent / "notebooks"
    write_page(mine / FIRST, "# My limit")
    (series / FIRST).unlink()
    (series / DEEP).unlink()
    (sentence,) = lab.refresh()
    assert sentence == (f"No longer in the series; your edited copies stay in mine/: {FIRST}.")
    assert (mine / FIRST).exists() and not (mine / DEEP).exists()
    assert lab.refresh() == [], "said once"


def test_a_file_of_the_readers_own_is_left_alone(mine: Path) -> None:
    (mine / "99_mine.ipynb").write_text("{}")
    assert lab.refresh() == []
    assert (mine / "99_mine.ipynb").read_text() == "{}"


@pytest.mark.parametrize("damage", ["{", '{"00_the_limit.ipynb": []}', None])
def test_a_lost_or_damaged_list_loses_no_edit(mine: Path, damage: str | None) -> None:
    write_page(mine / FIRST, "# My limit")
    if damage is None:
        (mine / lab.STATE).unlink()
    else:
        (mine / lab.STATE).write_text(damage)
    (sentence,) = lab.refresh()
    assert FIRST in sentence and DEEP not in sentence
    assert source(mine / FIRST) == "# My limit"


def test_a_damaged_copy_is_kept(mine: Path) -> None:
    (mine / FIRST).write_text("no notebook")
    write_page(mine.parent / "notebooks" / FIRST, "# The limit, better")
    assert FIRST in lab.refresh()[0]
    assert (mine / FIRST).read_text() == "no notebook"


@pytest.mark.parametrize("how", ["below a file", "a link to nowhere", "a page is a folder"])
def test_a_folder_that_cannot_be_written_is_a_sentence(how: str, mine, monkeypatch, capsys) -> None:
    if how == "below a file":
        monkeypatch.setattr(lab, "MINE", mine / FIRST / "mine")
    elif how == "a link to nowhere":
        shutil.rmtree(mine)
        mine.symlink_to(mine.parent / "gone" / "away")
    else:
        (mine / FIRST).unlink()
        (mine / FIRST).mkdir()
    assert lab.main([]) == 1
    said = capsys.readouterr().err
    assert "cannot be written" in said and said.count("\n") == 1


# ---- measurements are hidden --------------------------------------------------------------------

SECTIONS = ("# 00", "## The idea", "## How fast", "## Why: bytes", "## Exercise: ends", "## Check")


def asking(path: Path, ask: str) -> list[str]:
    """Write a notebook of `SECTIONS` with a cell each, the second being `ask`; the text of each
    cell's output in its copy."""
    notebook = nbformat.v4.new_notebook()
    for number, heading in enumerate(SECTIONS):
        code = nbformat.v4.new_code_cell(ask if number == 1 else "print(1)", execution_count=number)
        code.outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"{number}\n")]
        notebook.cells += [nbformat.v4.new_markdown_cell(f"Before.\n\n{heading}"), code]
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    copy = nbformat.reads(lab.without_measurements(path).decode(), as_version=4)
    return [cell.outputs[0].text for cell in copy.cells if cell.cell_type == "code"]


def test_a_copy_shows_no_measurement_before_the_prediction(tmp_path: Path) -> None:
    page = tmp_path / FIRST
    shown = asking(page, 'my_prediction = None\npredict("00_unfused", my_prediction)')
    assert shown == ["0\n", "1\n", lab.HIDDEN, lab.HIDDEN, "4\n", lab.HIDDEN]
    assert asking(page, "predictions()") == [f"{number}\n" for number in range(6)]


def test_run_outputs_stay_when_the_lab_opens_again(mine: Path) -> None:
    page = mine.parent / "notebooks" / FIRST
    asking(page, 'predict("00_unfused", None)')
    assert lab.refresh() == []
    assert lab.HIDDEN.strip() in (mine / FIRST).read_text()
    shutil.copy(page, mine / FIRST)  # as after a run
    assert lab.refresh() == []
    assert (mine / FIRST).read_bytes() == page.read_bytes()


def test_the_series_hides_every_plot_of_a_step() -> None:
    for name, page in lab.pages().items():
        if not name[:2].isdigit():
            continue
        copy = nbformat.reads(lab.without_measurements(page).decode(), as_version=4)
        for cell in copy.cells:
            if re.search(r"draw\.(step|series|ledger)\(", cell.source):
                shown = [output.get("text") for output in cell.outputs]
                assert shown in ([], [lab.HIDDEN]), f"{name}: {cell.source}"


# ---- the series as it is ----------------------------------------------------------------------


@pytest.mark.skipif(not (shutil.which("git") and (ROOT / ".git").exists()), reason="no git")
@pytest.mark.parametrize(
    "path",
    [f"mine/{FIRST}", f"mine/{DEEP}", f"mine/{lab.STATE}", "mine/.ipynb_checkpoints/x.ipynb"],
)
def test_git_sees_nothing_of_it(path: str) -> None:
    assert subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT).returncode == 0


# ---- the server -------------------------------------------------------------------------------


class Server:
    """JupyterLab of a copy of this repository, in a git repository of its own, where the home
    folder cannot be made."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        for name in ("helpers", f"notebooks/{FIRST}", "notebooks/GLOSSARY.md", ".gitignore"):
            copying = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            copying(ROOT / name, self.root / name)
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--quiet", "-m", "all")
        (folder / "file").write_text("")
        with socket.socket() as any_port:
            any_port.bind(("localhost", 0))
            self.port = any_port.getsockname()[1]
        command = [sys.executable, "-m", "helpers.commands.lab", "--no-browser", "--allow-root"]
        command += [f"--port={self.port}", "--IdentityProvider.token=secret"]
        self.process = subprocess.Popen(
            command,
            cwd=self.root,
            env=os.environ | {"HOME": str(folder / "file/home")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def ask(self, path: str, method: str = "GET", body: object = None) -> object:
        """An answer of its HTTP interface; raises `OSError` while there is none."""
        request = urllib.request.Request(
            f"http://localhost:{self.port}/{path}",
            headers={"Authorization": "token secret"},
            method=method,
            data=None if body is None else json.dumps(body).encode(),
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read().decode()
            return json.loads(text) if "json" in answer.headers["Content-Type"] else text

    def wait(self) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                self.ask("api/status")
                return
            except OSError:
                assert time.monotonic() < end and self.process.poll() is None, "no server"
                time.sleep(0.1)


@pytest.mark.skipif(os.name != "posix" or not shutil.which("git"), reason="no git, or no signals")
def test_saving_by_the_server_leaves_git_clean(tmp_path: Path) -> None:
    server = Server(tmp_path)
    try:
        server.wait()
        assert "JupyterLab" in server.ask(f"lab/tree/mine/{FIRST}")
        for folder in ("mine", "notebooks"):
            page = f"api/contents/{folder}/{FIRST}"
            content = server.ask(page)["content"]
            assert all(cell["metadata"].get("trusted", True) for cell in content["cells"])
            content["cells"][0]["source"] += "\nMy note."
            content["cells"][1]["outputs"] = [
                {"output_type": "stream", "name": "stdout", "text": "Live mode\n"}
            ]
            body = {"type": "notebook", "format": "json", "content": content}
            if folder == "mine":
                server.ask(page, "PUT", body)
                server.ask(f"{page}/checkpoints", "POST")
            else:
                with pytest.raises(urllib.error.HTTPError, match="403"):
                    server.ask(page, "PUT", body)
    finally:
        server.process.terminate()
        status = server.process.wait(20)
    assert status == 0 and server.git("status", "--porcelain") == ""
    assert source(server.root / "mine" / FIRST).endswith("My note.")
