"""A temporary folder replaces a missing or read-only home folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import commands as home
from helpers.base.paths import ROOT

pytestmark = pytest.mark.skipif(os.name != "posix", reason="HOME is no matter there")


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder that nobody can make, root included: what it would be in is a file."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file/home"))
    monkeypatch.setattr(home.atexit, "register", lambda function: None)
    return tmp_path / "file/home"


def test_a_home_that_can_be_written_is_left_alone(tmp_path, monkeypatch) -> None:
    (tmp_path / ".cache").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home.ensure_writable_home() == ""
    assert os.environ["HOME"] == str(tmp_path)


def test_the_stand_in_can_be_written_and_packages_stay_where_they_are(
    nowhere: Path, monkeypatch
) -> None:
    monkeypatch.delenv("PYTHONUSERBASE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(nowhere / ".cache"))
    before = home.site.getuserbase()
    sentence = home.ensure_writable_home()
    assert sentence.startswith(f"{nowhere} is missing or not writable")
    monkeypatch.setenv("PYTHONUSERBASE", os.environ["PYTHONUSERBASE"])  # gone after the test
    assert os.environ["PYTHONUSERBASE"] == before
    assert "XDG_CACHE_HOME" not in os.environ
    assert not os.listdir(os.environ["HOME"])
    assert home.ensure_writable_home() == "", "once is enough"
    os.rmdir(os.environ["HOME"])


def test_a_command_that_imports_cupy_runs_and_leaves_nothing(nowhere: Path, tmp_path) -> None:
    """CuPy makes its cache folder when it is imported, and fails if it cannot."""
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "helpers.commands.plan", "06_registers", "64", "4096"],
        env={k: v for k, v in os.environ.items() if k != "SOFTMAX_REPLAY"}
        | {"TMPDIR": str(tmp_path / "tmp")},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "06_registers" in done.stdout
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"{nowhere} is missing") and "set HOME" in sentence
    assert list((tmp_path / "tmp").iterdir()) == []
