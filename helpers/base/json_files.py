"""Read and write JSON files: errors name a damaged file, and no file is left half written."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path


def read_json(path: Path) -> dict:
    """The object in a file. Raises `FileNotFoundError`, or `ValueError` of one sentence for a file
    that is empty, cut short, in a merge conflict, holds NaN or an infinity, a key twice, or no
    object."""

    return _object(_text(path), named(path))


def read_lines(path: Path) -> Iterator[tuple[int, dict]]:
    """(line number, object) for each line of a JSON Lines file. Raises as `read_json` and names the
    damaged line."""
    for number, line in enumerate(_text(path).splitlines(), 1):
        yield number, _object(line, f"{named(path)}, line {number}")


def _text(path: Path) -> str:
    """The text of a file that exists, is not empty and has no merge conflict."""
    if path.is_dir():
        raise ValueError(f"{named(path)} is a folder, not a file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{named(path)} is no text") from None
    if not text.strip():
        raise ValueError(f"{named(path)} is empty")
    if conflict := re.search(r"^(<{7}|={7}|>{7})", text, flags=re.MULTILINE):
        line = text.count("\n", 0, conflict.start()) + 1
        raise ValueError(f"{named(path)} is in a merge conflict, line {line}")
    return text


def _object(text: str, where: str) -> dict:
    """The object that a text describes."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{where} holds {constant}, which is no number")

    def once(pairs: list[tuple[str, object]]) -> dict:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"{where} holds the key {twice!r} twice in one object")
        return found

    try:
        data = json.loads(text, parse_constant=refuse, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where} is no JSON or cut short: {error.msg}, line {error.lineno}"
        ) from None
    except RecursionError:
        raise ValueError(f"{where} is nested too deep to be read") from None
    except ValueError as error:  # of `refuse` and `once`, or a number of thousands of digits
        if str(error).startswith(where):
            raise
        raise ValueError(f"{where} holds a number of too many digits") from None
    if not isinstance(data, dict):
        raise ValueError(f"{where} holds a {type(data).__name__} instead of an object")
    return data


def write_json(path: Path, data: dict) -> None:
    """Write atomically: an interrupted run leaves the old file, never half a file; of two
    concurrent writers, one wins. Raises `ValueError` for NaN and infinities."""
    _write(path, "".join(_lines(data)))


def write_lines(path: Path, lines: Iterable[dict]) -> None:
    """Write JSON Lines, as `write_json`."""
    _write(path, "".join(f"{_dumped(line)}\n" for line in lines))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        scratch.write_text(text, encoding="utf-8", newline="\n")
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def _lines(data: dict) -> Iterator[str]:
    """JSON with one line per field, and one line per record in a field that lists records."""
    for number, (key, value) in enumerate(data.items()):
        opening = "," if number else "{"
        records = list(value.values() if isinstance(value, dict) else [])
        records = value if isinstance(value, list) else records
        if not records or not all(isinstance(record, (dict, list)) for record in records):
            yield f"{opening}\n {_dumped(key)}: {_dumped(value)}"
            continue
        names = [f"{_dumped(name)}: " for name in value] if isinstance(value, dict) else None
        ends = "{}" if names else "[]"
        yield f"{opening}\n {_dumped(key)}: {ends[0]}"
        for place, record in enumerate(records):
            name = names[place] if names else ""
            yield f"{',' if place else ''}\n  {name}{_dumped(record)}"
        yield f"\n {ends[1]}"
    yield "\n}\n" if data else "{}\n"


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def named(path: Path) -> str:
    """ "nvidia-h200/steps.jsonl": the name of a file with its folder, which is unique."""
    return f"{path.parent.name}/{path.name}"
