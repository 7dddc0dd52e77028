"""Bad input of every kind gets one sentence, which a `raise` of this project wrote on purpose, and
the right exit status; it writes nothing.

BAD_INPUTS=2000 tries as many as that instead of the few that CI has time for.
"""

from __future__ import annotations

import ast
import os
import shutil
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.base import gpu, paths
from helpers.base.paths import RECORDS, ROOT
from helpers.catalogue import store
from helpers.measure import records
from helpers.measure.records import predictions

pytest.importorskip("nbformat")  # which some commands want; not where kernels are only recorded

from tests.bad_input.inputs import (  # noqa: E402
    DAMAGED_TEXTS,
    READERS,
    Input,
    a_header,
    a_line,
    an_argument,
    damaged,
    files_of_lines,
)

TELLING = (ValueError, TypeError, LookupError, OSError, AssertionError, RuntimeError)
LONGEST = 1000  # characters of a sentence: one that lists the files there are has many
COUNT = int(os.environ.get("BAD_INPUTS", "160")) // 4


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, replay, and nothing of a reader's."""
    monkeypatch.setenv(gpu.SWITCH, "1")
    monkeypatch.chdir(tmp_path)
    warnings.simplefilter("ignore")
    return tmp_path


def complaint(error: BaseException) -> str:
    """What is wrong with an error as an answer to bad input; empty if nothing is."""
    said = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{type(error).__name__}: {said[:200]!r} from {frame.filename}:{frame.lineno}"
    if not isinstance(error, TELLING):
        return f"an accident: {where}"
    if not raised_on_purpose(frame.filename, frame.lineno):
        return f"unexpected: {where}"
    if not 8 <= len(said) <= LONGEST or "\n" in said.strip() or " " not in said:
        return f"no sentence: {where}"
    return ""


def raised_on_purpose(file: str, line: int) -> bool:
    """Whether the line is in a `raise` statement of this project."""
    if not Path(file).is_relative_to(ROOT / "helpers"):
        return False
    nodes = ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
    return any(isinstance(one, ast.Raise) and one.lineno <= line <= one.end_lineno for one in nodes)


def untold(made: Callable[[int], Input]) -> list[str]:
    """What is wrong with the answers to the inputs of a family."""
    found = []
    for number in range(COUNT):
        what, call = made(number)
        try:
            call()
        except Exception as error:
            if wrong := complaint(error):
                found.append(f"{number}: {what}\n    {wrong}")
    return found


def test_headers() -> None:
    assert not (found := untold(a_header)), f"{len(found)}\n" + "\n".join(found)


def test_arguments(elsewhere: Path) -> None:
    assert not (found := untold(an_argument)), f"{len(found)}\n" + "\n".join(found)
    assert not [*elsewhere.iterdir()]


def test_records(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "nvidia-h200").mkdir()
    for module in (store, paths):
        monkeypatch.setattr(module, "RECORDS", elsewhere)
    monkeypatch.setattr(records, "PREDICTIONS", elsewhere / "predictions.json")
    found = []
    for file, read in READERS.items():
        texts = damaged(RECORDS / file)
        for number, text in enumerate(texts):
            if number >= DAMAGED_TEXTS and number % max(1, 6 * len(texts) // COUNT):
                continue
            (elsewhere / file).write_bytes(text.encode("utf-8", "surrogateescape"))
            predictions.cache_clear()
            try:
                read()
            except Exception as error:
                if wrong := complaint(error):
                    found.append(f"{number} of {file}\n    {wrong}")
    predictions.cache_clear()
    assert not found, f"{len(found)}\n" + "\n".join(found)


def test_command_lines(elsewhere: Path, capsys: pytest.CaptureFixture) -> None:
    found = []
    for number in range(COUNT):
        files_of_lines(elsewhere)
        what, call = a_line(number)
        if wrong := ending(call, capsys, lambda: listing(elsewhere)):
            found.append(f"{number}: {what}\n    {wrong}")
        shutil.rmtree(elsewhere)
        elsewhere.mkdir()
    assert not found, f"{len(found)}\n" + "\n".join(found)


def ending(
    call: Callable[[], object], capsys: pytest.CaptureFixture, contents: Callable[[], dict]
) -> str:
    """What is wrong with how a command line ends; `contents` gives the files that there are."""
    before = contents()
    try:
        status = call()
    except SystemExit as ended:
        status = ended.code
    except BaseException as error:
        capsys.readouterr()
        return f"{type(error).__name__}: {str(error)[:300]}"
    out, err = capsys.readouterr()
    if status not in (0, 1, 2):
        return f"status {status}"
    if "Traceback" in err or "Error:" in err.replace("error:", ""):
        return f"status {status}: {err[-300:]}"
    if status and contents() != before:
        return f"status {status}, and something is written"
    said = [line for line in err.splitlines() if line]
    if status and not (said or out):
        return f"status {status} without a word"
    if status == 2 and len(said) > 1 and not said[0].startswith("usage: "):
        return f"{len(said)} lines: {err[:300]}"
    return ""


def listing(folder: Path) -> dict[str, int]:
    return {path.as_posix(): path.stat().st_size for path in folder.rglob("*")}
