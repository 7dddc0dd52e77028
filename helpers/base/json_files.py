"""Read, write and validate JSON files: errors name the damaged file, and writes are atomic.

The annotations of a dataclass or a `TypedDict` are the only description of a file's schema. A type
is narrowed by a condition: `Annotated[float, Must("a positive number", lambda us: us > 0)]`.

    typed("nvidia-h200/steps.jsonl, line 7", fields, Case)
    ValueError: nvidia-h200/steps.jsonl, line 7: calls is "50", not an integer
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

MAX_SHOWN = 60  # characters of a value in a message


def read_json(path: Path) -> dict:
    """Return the JSON object in a file. Raises `FileNotFoundError`, and a `ValueError` that names
    the file if it contains anything else, or NaN or an infinity."""
    return _parsed(_content(path), named(path))


def read_lines(path: Path) -> Iterator[tuple[int, dict]]:
    """Yield the line number and the object of each line of a JSON Lines file. Raises what
    `read_json` raises, with the number of the damaged line."""
    for number, line in enumerate(_content(path).splitlines(), 1):
        yield number, _parsed(line, f"{named(path)}, line {number}")


def _content(path: Path) -> bytes:
    if path.is_dir():
        raise ValueError(f"{named(path)} is damaged: a folder instead of a file")
    return path.read_bytes()


def _parsed(text: bytes, where: str) -> dict:
    """Parse a text that must be one JSON object; `where` names it in errors."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a number of JSON")

    try:
        data = json.loads(text.decode(), parse_constant=refuse)
    except RecursionError:
        raise ValueError(f"{where} is damaged: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{where} is damaged: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{where} is damaged: {type(data).__name__} instead of an object")
    return data


def write_json(path: Path, data: dict) -> None:
    """Write a file atomically: an interrupted write leaves the old file, and of two concurrent
    writes one wins entirely. Raises `ValueError` for NaN and infinities."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def write_lines(path: Path, lines: Iterable[dict]) -> None:
    """Write a JSON Lines file as atomically as `write_json`, one object per line."""
    dense = functools.partial(json.dumps, separators=(",", ":"), allow_nan=False)
    write_text(path, "".join(f"{dense(line)}\n" for line in lines))


def write_text(path: Path, text: str) -> None:
    """Write a text file as atomically as `write_json`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        scratch.write_text(text, encoding="utf-8", newline="\n")
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def named(path: Path) -> str:
    """Return a file's folder and name, "nvidia-h200/steps.jsonl", to identify it in a message."""
    return f"{path.parent.name}/{path.name}"


# ---- values of the types that annotations give ----


class Must(NamedTuple):
    """A condition on a value beyond its type."""

    be: str  # a noun phrase for messages: "a positive number"
    holds: Callable[[Any], bool]


def _is_date(text: str) -> bool:
    try:
        return bool(datetime.fromisoformat(text))
    except ValueError:
        return False


Count = Annotated[int, Must("a positive integer", lambda number: number >= 1)]
Natural = Annotated[int, Must("a non-negative integer", lambda number: number >= 0)]
Time = Annotated[float, Must("a positive number of microseconds", lambda us: us > 0)]
Samples = Annotated[list[Time], Must("a non-empty list of samples", bool)]
Share = Annotated[float, Must("a positive number", lambda share: share > 0)]
Date = Annotated[str, Must("a date such as 2030-01-02T03:04:05+00:00", _is_date)]
Dtype = Annotated[
    str, Must("float32, float16 or bfloat16", {"float32", "float16", "bfloat16"}.__contains__)
]


class Unfit(Exception):
    """A value does not match its type. `path` lists the keys and indices that lead to it, innermost
    first."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem, self.path = problem, []


def typed(path: Path | str, value: object, kind: Any) -> Any:
    """Validate a JSON value against a type and return it, with dataclasses built.

    An integer is accepted as a float. A `TypedDict` may have additional keys, a dataclass may not.
    A class with `of_json(fields)` is built by that method, from a value of the type that `fields`
    is annotated with. A value that is already an instance of its dataclass is returned unchanged.
    `path` is the file, or a text that names the value's location.

    Raises `ValueError` with location, key, value and the expected type.
    """
    try:
        return _read(kind, value)
    except Unfit as error:
        key = "".join(map(_key, reversed(error.path))).removeprefix(".")
        where = path if isinstance(path, str) else named(path)
        raise ValueError(f"{where}: {key or 'the object'} {error.problem}") from None


def _read(kind: Any, value: Any) -> Any:
    """Return what `typed` returns; raise `Unfit`."""
    if type(kind) is type and kind in NAMES:
        return _of(kind, value)
    if musts := getattr(kind, "__metadata__", None):  # of `Annotated`
        value = _read(kind.__origin__, value)
        for must in musts:
            if not must.holds(value):
                raise _not(value, must.be)
        return value
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _read(inner[0], value)
    if origin is list:
        return [_part(inner[0], one, number) for number, one in enumerate(_of(list, value))]
    if origin is dict:
        return {name: _part(inner[1], one, name) for name, one in _of(dict, value).items()}
    if origin is tuple:
        if len(_of(list, value)) != len(inner):
            raise _not(value, f"a list of {len(inner)}")
        return [_part(inner[number], one, number) for number, one in enumerate(value)]
    if of_json := getattr(kind, "of_json", None):
        value, build = _read(_hints(of_json)["fields"], value), of_json
    elif typing.is_typeddict(kind):
        return _object(kind, value)
    elif isinstance(value, kind):
        return value
    else:
        value, build = _object(kind, value), lambda fields: kind(**fields)
    try:
        return build(value)
    except ValueError as error:
        raise Unfit(f"is refused: {error}") from None


NAMES = {float: "a number", int: "an integer", str: "a string", bool: "true or false"}
NAMES |= {dict: "an object", list: "a list"}


def _of(kind: type, value: Any) -> Any:
    """Return a value of a type; an integer is a float too."""
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise _not(value, NAMES[kind])
    if kind in (int, float) and not abs(value) < 2**63:
        raise _not(value, "a number below 2^63")
    return value


def _part(kind: Any, value: Any, key: str | int) -> Any:
    """Read a part of a value; an error gets its key or index."""
    try:
        return _read(kind, value)
    except Unfit as error:
        error.path.append(key)
        raise


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in hints.items() if typing.get_origin(hint) is not ClassVar}


def _object(kind: Any, value: Any) -> dict:
    """Read an object with the fields of a class; only a `TypedDict` may have others."""
    hints, value = _hints(kind), _of(dict, value)
    required, unknown = getattr(kind, "__required_keys__", None), []
    if required is None:
        every, missing = dataclasses.fields(kind), dataclasses.MISSING
        required = [one.name for one in every if one.default is one.default_factory is missing]
        unknown = [name for name in value if name not in hints]
    if missing := [name for name in hints if name in required and name not in value]:
        raise Unfit(f"lacks {missing[0]}")
    if unknown:
        raise Unfit(f"has a key {unknown[0][:40]!r}, which this version does not know")
    return {
        name: _part(hints[name], one, name) if name in hints else one for name, one in value.items()
    }


def _key(name: str | int) -> str:
    """A key or an index as a message writes it: `.name`, `["a b"]`, `[3]`."""
    if isinstance(name, int):
        return f"[{name}]"
    return f".{name}" if name.isidentifier() else f"[{json.dumps(name, ensure_ascii=False)}]"


def _not(value: Any, expected: str) -> Unfit:
    text = json.dumps(value, ensure_ascii=False)
    text = text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
    return Unfit(f"is {text}, not {expected}")
