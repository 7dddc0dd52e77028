"""Bad input to the commands that read and write the repository itself, as in test_bad_input.py."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.base import gpu
from tests.bad_input import repository
from tests.bad_input.inputs import Input, a_line
from tests.bad_input.test_bad_input import ending

COUNT = int(os.environ.get("BAD_INPUTS", "160")) // 4


def answers(
    made: Callable[[int, Path, pytest.MonkeyPatch], Input],
    folder: Path,
    capsys: pytest.CaptureFixture,
) -> str:
    """What is wrong with how commands end that are given the inputs of a family."""
    found = []
    warnings.simplefilter("ignore")
    for number in range(COUNT):
        shutil.rmtree(folder, ignore_errors=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(gpu.SWITCH, "1")
            repository.small(folder, patch)
            patch.chdir(folder)
            what, call = made(number, folder, patch)
            repository.forget()
            told = ending(call, capsys, lambda: contents(folder))
            repository.forget()
        found += [f"{number}: {what}\n    {told}"] if told else []
    return f"{len(found)}\n" + "\n".join(found) if found else ""


def contents(folder: Path) -> dict[str, int]:
    """Sizes by name."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def test_lines_of_commands_of_the_repository(tmp_path: Path, capsys) -> None:
    lines, more = repository.LINES, repository.OTHERS
    wrong = answers(lambda n, *_: a_line(n, lines, more), tmp_path / "small", capsys)
    assert not wrong, wrong


def test_damaged_files_of_the_repository(tmp_path: Path, capsys) -> None:
    wrong = answers(repository.damaged, tmp_path / "small", capsys)
    assert not wrong, wrong
