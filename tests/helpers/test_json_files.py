"""JSON files: written whole or not at all, by however many writers, and nothing is left lying."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from helpers.base.json_files import read_json, write_json


def test_what_is_written_is_read_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.json"
    write_json(path, {"a": [1.5, "é"]})
    assert read_json(path) == {"a": [1.5, "é"]}
    assert [*path.parent.iterdir()] == [path]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    for bad in ({"a": float("nan")}, {"a": object()}):
        with pytest.raises((ValueError, TypeError)):
            write_json(path, bad)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_json(path, {"a": 2})
    assert read_json(path) == {"a": 1} and [*tmp_path.iterdir()] == [path]


def test_writers_at_once_leave_one_of_theirs(tmp_path: Path) -> None:
    path, errors = tmp_path / "x.json", []

    def write(number: int) -> None:
        try:
            for _ in range(20):
                write_json(path, {"number": number, "filling": [number] * 500})
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_json(path)
    assert not errors and set(found["filling"]) == {found["number"]}
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ('{"a": 1', "is not valid JSON or is truncated: .*, line 1"),
        ("[1]", "contains a list instead of an object"),
        ('{"a": NaN}', "contains NaN, which is not valid JSON"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "contains the key 'c' twice in one object"),
        ('{"a": 1' + "0" * 5000 + "}", "contains a number with too many digits"),
        ('{"a":' * 10**5, "is nested too deeply to be read"),
        ("{\n<<<<<<< ours\n}", "has an unresolved merge conflict, line 2"),
    ],
    ids=range(8),
)
def test_damage_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "gpu" / "x.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"^gpu/x\.json {said}$"):
        read_json(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"^gpu/x\.json is not UTF-8 text$"):
        read_json(path)
