"""Read and write JSON files: errors name the damaged file, and writes are atomic."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path


def read_json(path: Path) -> dict:
    """Return the JSON object in a file. Raises `FileNotFoundError`, and a one-sentence `ValueError`
    for a file that is empty, truncated or in a merge conflict, or that contains NaN, an infinity, a
    duplicate key, or anything but an object."""
    return _object(_text(path), named(path))


def read_lines(path: Path) -> Iterator[tuple[int, dict]]:
    """Yield the line number and the object of each line of a JSON Lines file. Raises what
    `read_json` raises, with the number of the damaged line."""
    for number, line in enumerate(_text(path).splitlines(), 1):
        yield number, _object(line, f"{named(path)}, line {number}")


def _text(path: Path) -> str:
    """Return the text of a file; raise if it is missing, empty or in a merge conflict."""
    if path.is_dir():
        raise ValueError(f"{named(path)} is a folder, not a file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{named(path)} is not UTF-8 text") from None
    if not text.strip():
        raise ValueError(f"{named(path)} is empty")
    if conflict := re.search(r"^(<{7}|={7}|>{7})", text, flags=re.MULTILINE):
        line = text.count("\n", 0, conflict.start()) + 1
        raise ValueError(f"{named(path)} has an unresolved merge conflict, line {line}")
    return text


def _object(text: str, where: str) -> dict:
    """Parse a text that must be one JSON object; `where` names it in errors."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{where} contains {constant}, which is not valid JSON")

    def unique(pairs: list[tuple[str, object]]) -> dict:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            keys = [key for key, _ in pairs]
            duplicate = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"{where} contains the key {duplicate!r} twice in one object")
        return fields

    try:
        data = json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where} is not valid JSON or is truncated: {error.msg}, line {error.lineno}"
        ) from None
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply to be read") from None
    except ValueError as error:  # from `refuse` or `unique`, or a number of thousands of digits
        if str(error).startswith(where):
            raise
        raise ValueError(f"{where} contains a number with too many digits") from None
    if not isinstance(data, dict):
        raise ValueError(f"{where} contains a {type(data).__name__} instead of an object")
    return data


def write_json(path: Path, data: dict) -> None:
    """Write a file atomically: an interrupted write leaves the old file, and of two concurrent
    writes one wins entirely. Raises `ValueError` for NaN and infinities."""
    write_text(path, "".join(_lines(data)))


def write_lines(path: Path, lines: Iterable[dict]) -> None:
    """Write a JSON Lines file as atomically as `write_json`, one object per line."""
    write_text(path, "".join(f"{_dumped(line)}\n" for line in lines))


def write_text(path: Path, text: str) -> None:
    """Write a text file as atomically as `write_json`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        scratch.write_text(text, encoding="utf-8", newline="\n")
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def _lines(data: dict) -> Iterator[str]:
    """Yield JSON with one line per field, or one line per record for a field that lists records."""
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
        for index, record in enumerate(records):
            name = names[index] if names else ""
            yield f"{',' if index else ''}\n  {name}{_dumped(record)}"
        yield f"\n {ends[1]}"
    yield "\n}\n" if data else "{}\n"


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def named(path: Path) -> str:
    """Return a file's folder and name, "nvidia-h200/steps.jsonl", to identify it in a message."""
    return f"{path.parent.name}/{path.name}"
