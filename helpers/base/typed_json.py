"""Validate JSON against type annotations; an error names the file, the key and the value.

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
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from .json_files import named

MAX_SHOWN = 60  # characters of a value in a message


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
    """A value does not match its type. `path` lists the keys that lead to it, innermost first."""

    def __init__(self, problem: str, *path: str) -> None:
        super().__init__(problem)
        self.problem, self.path = problem, [*path]


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
        key = "".join(reversed(error.path)).removeprefix(".")
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
        return _optional(_reader(next(one for one in inner if one is not type(None))))
    if origin is list:
        return _list_of(_reader(inner[0]))
    if origin is dict:
        return _dict_of(_reader(inner[1]))
    if origin is tuple:
        return _tuple_of(tuple(map(_reader, inner)))
    if of_json := getattr(kind, "of_json", None):
        fields_type = typing.get_type_hints(of_json, include_extras=True)["fields"]
        return _built(_reader(fields_type), of_json)
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
        required = {
            one.name
            for one in fields
            if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        }
        build = _built(_object(kind, required, dict, others=False), lambda made: kind(**made))
        return lambda value: value if isinstance(value, kind) else build(value)
    if typing.is_typeddict(kind):
        return _object(kind, kind.__required_keys__, dict, others=True)
    return _plain(kind)


def _built(read: Reader, build: Callable[[Any], Any]) -> Reader:
    """Read a value and pass it to `build`, whose `ValueError` becomes `Unfit`."""

    def built(value: Any) -> Any:
        value = read(value)
        try:
            return build(value)
        except ValueError as error:
            raise Unfit(f"is refused: {error}") from None

    return built


def _plain(kind: type) -> Reader:
    allowed = (int, float) if kind is float else (kind,)
    name = {
        **{float: "a number", int: "an integer", str: "a string", bool: "true or false"},
        **{dict: "an object", list: "a list"},
    }[kind]

    def read(value: Any) -> Any:
        if type(value) not in allowed:
            raise _not(value, name)
        if kind in (int, float) and not abs(value) < 2**63:
            raise _not(value, "a number below 2^63")
        return value

    return read


def _narrowed(read: Reader, musts: tuple[Must, ...]) -> Reader:
    def narrowed(value: Any) -> Any:
        value = read(value)
        for must in musts:
            if not must.holds(value):
                raise _not(value, must.be)
        return value

    return narrowed


def _optional(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _each(reads: Iterable[Reader], items: list) -> list:
    """Read each item with its reader; an error gets the index of the item."""
    values = []
    try:
        for read, item in zip(reads, items, strict=False):
            values.append(read(item))
    except Unfit as error:
        error.path.append(f"[{len(values)}]")
        raise
    return values


def _list_of(read: Reader) -> Reader:
    def items(value: Any) -> list:
        if type(value) is not list:
            raise _not(value, "a list")
        return _each(itertools.repeat(read), value)

    return items


def _tuple_of(reads: tuple[Reader, ...]) -> Reader:
    def items(value: Any) -> list:
        if type(value) is not list or len(value) != len(reads):
            raise _not(value, f"a list of {len(reads)}")
        return _each(reads, value)

    return items


def _dict_of(read: Reader) -> Reader:
    def entries(value: Any) -> dict:
        if type(value) is not dict:
            raise _not(value, "an object")
        values = {}
        for name, entry in value.items():
            try:
                values[name] = read(entry)
            except Unfit as error:
                error.path.append(_key(name))
                raise
        return values

    return entries


def _object(
    kind: Any, required: set[str] | frozenset[str], build: Callable[[dict], Any], others: bool
) -> Reader:
    """Read an object with the fields of a class, and with `others` if allowed. Field types are
    resolved on the first read, because one may name a class that is defined further down."""

    @functools.cache
    def fields() -> Mapping[str, Reader]:
        hints = typing.get_type_hints(kind, include_extras=True)
        own = {n: hint for n, hint in hints.items() if typing.get_origin(hint) is not ClassVar}
        return {name: _reader(hint) for name, hint in own.items()}

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _not(value, "an object")
        if missing := [name for name in fields() if name in required and name not in value]:
            raise Unfit(f"lacks {missing[0]}")
        values = {}
        for name, entry in value.items():
            reader = fields().get(name)
            if reader is None and not others:
                raise Unfit(f"has a key {name!r}, which this version does not know")
            try:
                values[name] = entry if reader is None else reader(entry)
            except Unfit as error:
                error.path.append(_key(name))
                raise
        return build(values)

    return read


def _key(name: str) -> str:
    return f".{name}" if name.isidentifier() else f"[{json.dumps(name, ensure_ascii=False)}]"


def _not(value: Any, expected: str) -> Unfit:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except ValueError:  # an integer with more digits than Python converts
        text = "a huge number"
    text = text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
    return Unfit(f"is {text}, not {expected}")
