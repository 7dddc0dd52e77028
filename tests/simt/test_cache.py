"""The folder of compiled kernels: what lies in it is trusted only as far as it can be."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.base.paths import ROOT
from helpers.simt import cache

NAME = "0" * 64 + ".ptx"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOFTMAX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_written", 0)
    return tmp_path / "cache"


def entry(number: int) -> str:
    return f"{number:064x}.ptx"


@pytest.mark.skipif(os.name != "posix", reason="FIFOs and owners are POSIX's")
def test_nothing_but_a_file_of_this_users_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write(NAME, b"a kernel")
    assert cache.read(NAME) == b"a kernel"
    (folder / entry(1)).symlink_to(folder / NAME)
    os.mkfifo(folder / entry(2))
    (folder / entry(3)).mkdir()
    (folder / entry(4)).write_bytes((folder / NAME).read_bytes())
    (folder / entry(4)).chmod(0o666)
    for number in range(1, 5):
        assert cache.read(entry(number)) is None, number  # a FIFO would wait for ever
    cache.write(entry(2), b"instead of the FIFO")
    assert cache.read(entry(2)) == b"instead of the FIFO"
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert cache.read(NAME) is None


def test_the_entries_unused_for_longest_go_first(folder: Path) -> None:
    for number in range(10):
        cache.write(entry(number), b"x" * 68)  # 100 bytes with the checksum
        os.utime(folder / entry(number), (number, number))
    cache.read(entry(0))
    cache.trim(folder, 1000)
    assert len(list(folder.iterdir())) == 10
    cache.trim(folder, 800)
    left = {path.name for path in folder.iterdir()}
    assert left == {entry(number) for number in (0, 5, 6, 7, 8, 9)}


def test_temporaries_of_the_killed_go_and_other_files_stay(folder: Path) -> None:
    cache.write(NAME, b"a kernel")
    for name in (".keep", "notes.txt", "writing-old", "writing-now"):
        (folder / name).write_text("something")
    old = time.time() - 2 * cache.ABANDONED
    os.utime(folder / "writing-old", (old, old))
    cache.trim(folder, 0)
    assert {path.name for path in folder.iterdir()} == {".keep", "notes.txt", "writing-now"}


def test_a_failed_write_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", refuse)
    cache.write(NAME, b"a kernel")
    assert list(folder.iterdir()) == []


def test_the_folder_is_the_users_alone(folder: Path) -> None:
    cache.write(NAME, b"a kernel")
    assert os.name != "posix" or folder.stat().st_mode & 0o077 == 0


def test_make_clean_empties_it_with_any_python(folder: Path) -> None:
    """Without the packages of .venv, which is gone by then."""
    cache.write(NAME, b"a kernel")
    (folder / "writing-now").write_text("half")
    (line,) = [one for one in (ROOT / "Makefile").read_text().splitlines() if "cache.py" in one]
    code = line.split("-c ", 1)[1].strip().strip("'")
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not folder.exists()
