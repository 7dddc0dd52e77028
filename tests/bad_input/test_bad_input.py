"""Bad input of every kind gets one sentence and the right exit status, and writes nothing.

BAD_INPUTS=2000 tries as many as that instead of the few that CI has time for.
"""

from __future__ import annotations

import copy
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.base import gpu, paths
from helpers.base.paths import RECORDS
from helpers.catalogue import store
from helpers.measure import records
from helpers.measure.records import load_record, predictions
from helpers.run.bound import load

pytest.importorskip("nbformat")  # which some commands want; not where kernels are only recorded

from tests.bad_input import told  # noqa: E402
from tests.bad_input.inputs import (  # noqa: E402
    READERS,
    Input,
    a_header,
    a_line,
    a_record,
    an_argument,
    few_lines,
    files_of_lines,
)
from tests.bad_input.told import complaint  # noqa: E402

COUNT = int(os.environ.get("BAD_INPUTS", "160")) // 4


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, replay, and nothing of a reader's."""
    monkeypatch.setenv(gpu.SWITCH, "1")
    monkeypatch.chdir(tmp_path)
    warnings.simplefilter("ignore")
    return tmp_path


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
    whole = {file: few_lines(RECORDS / file) for file in READERS}
    (elsewhere / "nvidia-h200").mkdir()
    for module in (store, paths):
        monkeypatch.setattr(module, "RECORDS", elsewhere)
    monkeypatch.setattr(records, "PREDICTIONS", elsewhere / "predictions.json")

    def made(number: int) -> Input:
        what, call = a_record(number, elsewhere, lambda file: copy.deepcopy(whole[file]))

        def read() -> object:
            predictions.cache_clear()
            return call()

        return Input(what, read)

    try:
        found = untold(made)
    finally:
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
    return badly_answered(status, out, err, contents() != before)


def badly_answered(status: int, out: str, err: str, written: bool) -> str:
    """What is wrong with how a command line ended."""
    if status not in (0, 1, 2):
        return f"status {status}"
    if "Traceback" in err or "Error:" in err.replace("error:", ""):
        return f"status {status}: {err[-300:]}"
    if status and written:
        return f"status {status}, and something is written"
    said = [line for line in err.splitlines() if line]
    if status and not (said or out):
        return f"status {status} without a word"
    if status == 2 and len(said) > 1 and not said[0].startswith("usage: "):
        return f"{len(said)} lines: {err[:300]}"
    return ""


def listing(folder: Path) -> dict[str, int]:
    return {path.as_posix(): path.stat().st_size for path in folder.rglob("*")}


def test_the_judges_see_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(call: Callable[[], object]) -> str:
        try:
            call()
        except Exception as error:
            return complaint(error)
        return "nothing was raised"

    def in_two_lines() -> None:
        raise ValueError("one line\nand another")

    def unhelpful() -> None:
        raise ValueError("a sentence, but none of this project")

    assert wrong(lambda: 1 // 0).startswith("an accident: ZeroDivisionError")
    assert wrong(lambda: {}["key"]).startswith("nobody's sentence: KeyError")
    assert wrong(unhelpful).startswith("nobody's sentence: ValueError")
    for name in ("a\nb", "\0"):
        assert not wrong(lambda name=name: load(name))
        assert not wrong(lambda name=name: load_record(name))
    assert not wrong(lambda: load("nope")) and not wrong(lambda: load(7))
    with monkeypatch.context() as patch:
        patch.setattr(told, "raised_on_purpose", lambda *_: True)
        assert not wrong(unhelpful) and wrong(in_two_lines).startswith("no sentence: ValueError")
    assert not badly_answered(0, "fine", "", written=True)
    assert not badly_answered(2, "", "usage: x\nx: error: one word", written=False)
    for status, err, written in (
        (3, "a sentence", False),
        (1, "Traceback (most recent call last):", False),
        (2, "ValueError: a sentence", False),
        (2, "", False),
        (2, "a sentence", True),
        (2, "a\nb", False),
    ):
        assert badly_answered(status, "", err, written), (status, err, written)
