"""`make run`: what its command line refuses, and what it runs."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from functools import partial
from pathlib import Path

import nbformat
import pytest

from helpers.base import paths
from helpers.commands import run
from helpers.measure import bench
from helpers.measure.campaign import Failure
from helpers.measure.records import load_record
from helpers.page import notebooks
from helpers.page.rich import FIGURE
from helpers.problem.problem import Problem
from tests import made_up


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


def write_notebook(path: Path, *cells: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    code = [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=code), path)
    return path


@pytest.fixture
def series(monkeypatch, tmp_path) -> Path:
    """An empty folder of notebooks, with a build folder beside it."""
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(notebooks, "BUILD", tmp_path / "build")
    return tmp_path / "notebooks"


def test_one_that_fails_or_dies_is_named_and_the_others_run(series: Path, capsys) -> None:
    wrong = write_notebook(series / "00_wrong.ipynb", "1 / 0")
    dead = write_notebook(series / "01_dead.ipynb", "import os; os._exit(1)")
    right = write_notebook(series / "02_right.ipynb", "print(1)", "print(2)")
    assert run.run_notebooks([wrong, dead, right], False, False, 2) == ["00_wrong", "01_dead"]
    lines = sorted(capsys.readouterr().out.splitlines())
    assert [line.split(", ")[-1] for line in lines] == [
        "FAILED: ZeroDivisionError: division by zero",
        "FAILED: Kernel died",
        "ok",
    ]
    assert lines[2].startswith("02_right  2 cells, ")


# ---- figures ----------------------------------------------------------------------------------


def with_figure(digest: str, picture: str, words: str = "same") -> nbformat.NotebookNode:
    """A notebook as it was executed, with one figure."""
    data = {"image/png": picture, "text/plain": "<figure: It>", FIGURE: digest}
    outputs = [
        nbformat.v4.new_output("display_data", data, metadata={"image/png": {"alt": "It."}}),
        nbformat.v4.new_output("stream", text=words),
    ]
    cell = nbformat.v4.new_code_cell("draw()", execution_count=1, outputs=outputs)
    return nbformat.v4.new_notebook(cells=[cell])


@pytest.mark.parametrize(
    ("executed", "force", "picture"),
    [
        (("drawn", "pixels of another machine"), False, None),
        (("drawn", "pixels of another machine", "other words"), False, "committed"),
        (("drawn anew", "new"), False, "new"),
        (("drawn", "of a new look"), True, "of a new look"),
    ],
)
def test_a_picture_is_saved_again_only_if_it_draws_something_else(
    tmp_path: Path, executed, force: bool, picture: str | None
) -> None:
    path = tmp_path / "00_a.ipynb"
    nbformat.write(with_figure("drawn", "committed"), path)
    before = path.read_bytes()
    assert notebooks.save_if_changed(with_figure(*executed), path, force) == (picture is not None)
    if picture is None:
        assert path.read_bytes() == before
    else:
        data = nbformat.read(path, as_version=4).cells[0].outputs[0].data
        assert (data["image/png"], data[FIGURE]) == (picture, executed[0])


# ---- the closing table ------------------------------------------------------------------------


def test_every_right_step_is_timed_where_it_was_predicted(monkeypatch) -> None:
    """On a GPU with room for a quarter of the rows, where one step fails."""
    asked = []

    def measure(at: Problem, names: list[str]) -> dict:
        (name,) = names
        asked.append((at, name))
        if name == "02_online":
            raise Failure("out of memory")
        return {name: made_up.timed()}

    monkeypatch.setattr(run, "describe_device", lambda: made_up.DEVICE)
    monkeypatch.setattr(run, "describe_versions", lambda: made_up.VERSIONS)
    monkeypatch.setattr(bench, "measure_steps", measure)
    monkeypatch.setattr(
        bench,
        "shapes_that_fit",
        lambda shapes: [(max(1, rows // 4), cols) for rows, cols in shapes],
    )
    names = ["01_naive", "02_online", "03_shared", "09_grid", "10_sixteen_bit"]
    verdicts = dict.fromkeys(names, "right") | {"03_shared": "zero at (1, 2)"}
    timed = run.time_steps(verdicts)
    assert asked == [
        (Problem(16384, 4096), "01_naive"),
        (Problem(16384, 4096), "02_online"),
        (Problem(1, 1048576), "09_grid"),
        (Problem(2097152, 32, "bfloat16"), "10_sixteen_bit"),
    ]
    assert list(timed) == ["01_naive", "09_grid", "10_sixteen_bit"]
    assert verdicts["02_online"] == "right, not timed: out of memory"
    assert verdicts["03_shared"] == "zero at (1, 2)"


@pytest.mark.parametrize("live", [False, True])
def test_the_table_shows_what_is_timed_here_only_where_a_gpu_is(
    monkeypatch, tmp_path, capsys, live: bool
) -> None:
    for name, replacement in (
        ("BUILD", tmp_path),
        ("describe_mode", lambda: "mode"),
        ("replaying", lambda: not live),
        ("run_notebooks", lambda *_: []),
        ("check_steps", lambda jobs: {"01_naive": "right"}),
        ("time_steps", lambda verdicts: {"01_naive": made_up.steady("01_naive").headline}),
    ):
        monkeypatch.setattr(run, name, replacement)
    assert run.main(["--jobs", "1"]) == 0
    text = capsys.readouterr().out
    assert ("GB/s" in text) == ("on this GPU" in text) == live
    assert ("on the SIMT machine" in text) != live
    row = next(line for line in text.splitlines() if line.startswith("01_naive"))
    recorded = f"{load_record('01_naive').headline.share:.3f}"
    here = ["0.500", "107374"] if live else []  # half as fast as a copy
    assert row.split() == ["01_naive", "65536", "x", "4096", recorded, *here, "right"]


# ---- Ctrl-C -----------------------------------------------------------------------------------


def running(mark: str) -> list[str]:
    """Command lines of processes that have `mark` in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_text(errors="replace"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # gone meanwhile, or another user's
            continue
    return found


def until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)


@pytest.mark.skipif(
    not (Path("/proc/self/environ").exists() and shutil.which("make")), reason="no /proc or make"
)
def test_ctrl_c_has_no_traceback_and_leaves_no_kernel(tmp_path: Path) -> None:
    """Sent as a terminal sends it: to make and all that it started."""
    mark = str(uuid.uuid4())
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL")}
    environment |= {"SOFTMAX_REPLAY": "1", "TEST_MARK": mark}
    command = ["make", "--no-print-directory", "-C", str(paths.ROOT), "run"]
    command += [f"PYTHON={sys.executable}", "ARGS=00 01"]
    with open(tmp_path / "output", "w+") as output:
        make = subprocess.Popen(
            command,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
            # A shell that runs the tests in the background has them ignore it.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        try:
            until(lambda: sum("ipykernel" in line for line in running(mark)) == 2)
            os.killpg(make.pid, signal.SIGINT)
            assert make.wait(60) == -signal.SIGINT  # 130 in a shell
            assert running(mark) == []
        finally:
            if make.poll() is None:
                os.killpg(make.pid, signal.SIGKILL)
    lines = (tmp_path / "output").read_text().splitlines()
    assert "interrupted" in lines and not any("Traceback" in line for line in lines), lines
