"""Read, write and validate JSON files: errors name the damaged file, and writes are atomic.

The annotations of a dataclass or a `TypedDict` are the only description of a file's schema. A type
is narrowed by a condition: `Annotated[float, Must("a positive number", lambda us: us > 0)]`.

    typed("nvidia-h200/steps.jsonl, line 7", fields, Case)
    ValueError: nvidia-h200/steps.jsonl, line 7: calls is "50", not an integer
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import types
import typing
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
    write_text(path, "".join(map(_line, lines)))


def write_text(path: Path, text: str) -> None:
    """Write a text file as atomically as `write_json`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        scratch.write_text(text, encoding="utf-8", newline="\n")
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def _line(value: dict) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n"


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
        return _reader(kind)(value)
    except Unfit as error:
        key = "".join(map(_key, reversed(error.path))).removeprefix(".")
        where = path if isinstance(path, str) else named(path)
        raise ValueError(f"{where}: {key or 'the object'} {error.problem}") from None


Reader = Callable[[Any], Any]


@functools.cache
def _reader(kind: Any) -> Reader:
    """Return the function that validates a JSON value against a type; it raises `Unfit`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _narrowed(_reader(inner[0]), inner[1:])
    if origin in (types.UnionType, typing.Union):
        other = _reader(next(one for one in inner if one is not type(None)))
        return lambda value: None if value is None else other(value)
    if origin is list:
        item = _reader(inner[0])
        return lambda value: _each(itertools.repeat(item), _of(list, value))
    if origin is dict:
        item = _reader(inner[1])
        return lambda value: {n: _inner(item, one, n) for n, one in _of(dict, value).items()}
    if origin is tuple:
        long = Must(f"a list of {len(inner)}", lambda value: len(value) == len(inner))
        items, whole = tuple(map(_reader, inner)), _narrowed(_reader(list), (long,))
        return lambda value: _each(items, whole(value))
    if of_json := getattr(kind, "of_json", None):
        fields_type = typing.get_type_hints(of_json, include_extras=True)["fields"]
        return _built(_reader(fields_type), of_json)
    if dataclasses.is_dataclass(kind):
        build = _built(_object(kind, others=False), lambda made: kind(**made))
        return lambda value: value if isinstance(value, kind) else build(value)
    if typing.is_typeddict(kind):
        return _object(kind, others=True)
    return functools.partial(_of, kind)


NAMES = {float: "a number", int: "an integer", str: "a string", bool: "true or false"}
NAMES |= {dict: "an object", list: "a list"}


def _of(kind: type, value: Any) -> Any:
    """Return a value of a type; an integer is a float too."""
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise _not(value, NAMES[kind])
    if kind in (int, float) and not abs(value) < 2**63:
        raise _not(value, "a number below 2^63")
    return value


def _built(read: Reader, build: Callable[[Any], Any]) -> Reader:
    """Read a value and pass it to `build`, whose `ValueError` becomes `Unfit`."""

    def built(value: Any) -> Any:
        value = read(value)
        try:
            return build(value)
        except ValueError as error:
            raise Unfit(f"is refused: {error}") from None

    return built


def _narrowed(read: Reader, musts: tuple[Must, ...]) -> Reader:
    def narrowed(value: Any) -> Any:
        value = read(value)
        for must in musts:
            if not must.holds(value):
                raise _not(value, must.be)
        return value

    return narrowed


def _inner(read: Reader, value: Any, key: str | int) -> Any:
    """Read a part of a value; an error gets its key or index."""
    try:
        return read(value)
    except Unfit as error:
        error.path.append(key)
        raise


def _each(reads: Iterable[Reader], items: Sequence) -> list:
    """Read each item of a list with its reader."""
    pairs = zip(reads, enumerate(items), strict=False)
    return [_inner(read, item, number) for read, (number, item) in pairs]


def _object(kind: Any, others: bool) -> Reader:
    """Read an object with the fields of a class, and with `others` if allowed. Field types are
    resolved on the first read, because one may name a class that is defined further down."""

    @functools.cache
    def fields() -> tuple[Mapping[str, Reader], Collection[str]]:
        hints = typing.get_type_hints(kind, include_extras=True)
        own = {n: hint for n, hint in hints.items() if typing.get_origin(hint) is not ClassVar}
        required = getattr(kind, "__required_keys__", None)
        if required is None:
            every, missing = dataclasses.fields(kind), dataclasses.MISSING
            required = [f.name for f in every if f.default is f.default_factory is missing]
        return {name: _reader(hint) for name, hint in own.items()}, required

    def read(value: Any) -> dict:
        readers, required = fields()
        given = _of(dict, value)
        if missing := [name for name in readers if name in required and name not in given]:
            raise Unfit(f"lacks {missing[0]}")
        if not others and (unknown := [name for name in given if name not in readers]):
            raise Unfit(f"has a key {unknown[0][:40]!r}, which this version does not know")
        return {
            name: _inner(readers[name], one, name) if name in readers else one
            for name, one in given.items()
        }

    return read


def _key(name: str | int) -> str:
    """A key or an index as a message writes it: `.name`, `["a b"]`, `[3]`."""
    if isinstance(name, int):
        return f"[{name}]"
    return f".{name}" if name.isidentifier() else f"[{json.dumps(name, ensure_ascii=False)}]"


def _not(value: Any, expected: str) -> Unfit:
    text = json.dumps(value, ensure_ascii=False)
    text = text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
    return Unfit(f"is {text}, not {expected}")
