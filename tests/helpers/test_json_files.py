"""JSON files are written whole or not at all, and validated: one sentence for each mismatch."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypedDict

import pytest

from helpers.base.json_files import (
    Count,
    Date,
    Dtype,
    Must,
    Natural,
    Samples,
    read_json,
    typed,
    write_json,
)


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
        ("", "Expecting value: line 1 .*"),
        ("[1]", "list instead of an object"),
        ('{"a": NaN}', "NaN is not a number of JSON"),
        ('{"a": 1' + "0" * 5000 + "}", "Exceeds the limit .*"),
        ('{"a":' * 10**5, "it is nested too deeply"),
        ("{\n<<<<<<< ours\n}", "Expecting .*: line 2 .*"),
    ],
    ids=range(6),
)
def test_damage_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "gpu" / "x.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"^gpu/x\.json is damaged: {said}$"):
        read_json(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"^gpu/x\.json is damaged: 'utf-8' codec"):
        read_json(path)


# ---- values of the types that annotations give ----

FILE = Path("somewhere/nvidia-test/x.json")


class Optional(TypedDict, total=False):
    dtype: Dtype


class Head(Optional):
    name: str
    count: Natural


@dataclass(frozen=True)
class Part:
    rows: Count
    samples_us: Samples
    launch: dict[str, int] = field(default_factory=dict)
    note: str | None = None


@dataclass
class Whole:
    head: Head
    utc: Date
    parts: list[Part]
    pairs: list[tuple[float, str]] = field(default_factory=list)
    free: dict = field(default_factory=dict)
    even: Annotated[int, Must("even", lambda number: number % 2 == 0)] = 0
    yes: bool = False


HEAD = {"name": "a", "count": 0, "more": [1]}
PART = {"rows": 1, "samples_us": [1, 2.5], "launch": {"grid": 3}, "note": None}
GOOD = {
    "head": HEAD,
    "utc": "2030-01-02T03:04:05+00:00",
    "parts": [PART],
    "pairs": [[0.5, "why"]],
    "free": {"a": [{}]},
    "even": 2,
    "yes": True,
}


def test_what_is_of_its_type_is_built() -> None:
    found = typed(FILE, GOOD, Whole)
    assert found.parts == [Part(1, [1, 2.5], {"grid": 3})]
    assert (found.head, found.pairs, found.yes) == (HEAD, [[0.5, "why"]], True)
    assert typed(FILE, {**GOOD, "head": {**HEAD, "dtype": "bfloat16"}}, Whole)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head": {"name": "a"}}, "head lacks count"),
        ({"head": {**HEAD, "count": -1}}, "head.count is -1, not a non-negative integer"),
        ({"head": {**HEAD, "count": True}}, "head.count is true, not an integer"),
        ({"head": {**HEAD, "dtype": "int8"}}, 'head.dtype is "int8", not float32, float16 or'),
        ({"utc": "yesterday"}, 'utc is "yesterday", not a date such as 2030-'),
        ({"parts": {}}, "parts is {}, not a list"),
        ({"parts": [{**PART, "samples_us": []}]}, "parts[0].samples_us is [], not a non-empty"),
        ({"parts": [{**PART, "samples_us": [1, 0]}]}, "parts[0].samples_us[1] is 0, not a posit"),
        ({"parts": [{**PART, "samples_us": [float("nan")]}]}, "samples_us[0] is NaN, not a numb"),
        ({"parts": [{**PART, "note": 1}]}, "parts[0].note is 1, not a string"),
        ({"parts": [{**PART, "rwos": 1}]}, "parts[0] has a key 'rwos', which this version does"),
        ({"pairs": [[1]]}, "pairs[0] is [1], not a list of 2"),
        ({"even": 3}, "even is 3, not even"),
        ({"yes": 1}, "yes is 1, not true or false"),
        ({"utc": "x" * 999}, f'utc is "{"x" * 56}..., not a date'),
    ],
)
def test_what_is_not_is_named_with_its_key(change: dict, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        typed(FILE, {**GOOD, **change}, Whole)
    message = str(caught.value)
    assert message.startswith("nvidia-test/x.json: ") and said in message, message
    assert "\n" not in message and len(message) < 200
