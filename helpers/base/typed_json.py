"""Validate JSON against types, with errors that name the place in the file.

The annotations of a dataclass or a `TypedDict` are the only description of a file. To narrow a
type, write `Annotated[float, Must("a positive number", lambda us: us > 0)]`.

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

LONGEST = 60  # characters of a value that are shown


class Must(NamedTuple):
    """A requirement beyond the type of a value."""

    be: str
    holds: Callable[[Any], bool]


def _is_date(text: str) -> bool:
    try:
        return bool(datetime.fromisoformat(text))
    except ValueError:
        return False


Count = Annotated[int, Must("an integer from 1", lambda number: number >= 1)]
Natural = Annotated[int, Must("an integer from 0", lambda number: number >= 0)]
Time = Annotated[float, Must("a positive number of microseconds", lambda us: us > 0)]
Samples = Annotated[list[Time], Must("one sample or more", bool)]
Share = Annotated[float, Must("a share, a positive number", lambda share: share > 0)]
Date = Annotated[str, Must("a date as 2030-01-02T03:04:05+00:00", _is_date)]
Dtype = Annotated[
    str, Must("float32, float16 or bfloat16", {"float32", "float16", "bfloat16"}.__contains__)
]


class Unfit(Exception):
    """A value does not have its type; `path` leads to it, innermost key first."""

    def __init__(self, said: str, *path: str) -> None:
        super().__init__(said)
        self.said, self.path = said, [*path]


def typed(path: Path | str, value: object, kind: Any) -> Any:
    """Convert a value that was read from a file to a type. Dataclasses are constructed; all other
    values stay as they are. An integer is accepted as a float. A `TypedDict` may have further keys,
    a dataclass may not. A class with `of_json(fields)` is constructed by that method, from what
    `fields` is annotated with; an instance of a dataclass stays. `path` is the file, or a text that
    says where the value stands.

    Raises `ValueError` with file, key, value and the expected type.
    """
    try:
        return _reader(kind)(value)
    except Unfit as error:
        where = "".join(reversed(error.path)).removeprefix(".")
        place = path if isinstance(path, str) else named(path)
        raise ValueError(f"{place}: {where or 'the object'} {error.said}") from None


Reader = Callable[[Any], Any]


@functools.cache
def _reader(kind: Any) -> Reader:
    """The function that converts a JSON value to a type, or raises `Unfit`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _narrower(_reader(inner[0]), inner[1:])
    if origin in (types.UnionType, typing.Union):
        return _optional(_reader(next(one for one in inner if one is not type(None))))
    if origin is list:
        return _list_of(_reader(inner[0]))
    if origin is dict:
        return _dict_of(_reader(inner[1]))
    if origin is tuple:
        return _row_of(tuple(map(_reader, inner)))
    if made := getattr(kind, "of_json", None):
        given = typing.get_type_hints(made, include_extras=True)["fields"]
        return _built(_reader(given), made)
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
        required = {
            one.name
            for one in fields
            if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        }
        fresh = _built(_object(kind, required, dict, others=False), lambda made: kind(**made))
        return lambda value: value if isinstance(value, kind) else fresh(value)
    if typing.is_typeddict(kind):
        return _object(kind, kind.__required_keys__, dict, others=True)
    return _plain(kind)


def _built(read: Reader, build: Callable[[Any], Any]) -> Reader:
    """Apply a function to a value that was read; it raises `ValueError` for a value that it
    refuses."""

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
        **{float: "a number", int: "an integer", str: "a text", bool: "true or false"},
        **{dict: "an object", list: "a list"},
    }[kind]

    def read(value: Any) -> Any:
        if type(value) not in allowed:
            raise _not(value, name)
        if kind in (int, float) and not abs(value) < 2**63:
            raise _not(value, "a number below 2^63")
        return value

    return read


def _narrower(read: Reader, musts: tuple[Must, ...]) -> Reader:
    def narrower(value: Any) -> Any:
        value = read(value)
        for must in musts:
            if not must.holds(value):
                raise _not(value, must.be)
        return value

    return narrower


def _optional(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _each(reads: Iterable[Reader], items: list) -> list:
    """Apply each reader to its item; an error names the position of the item."""
    found = []
    try:
        for read, item in zip(reads, items, strict=False):
            found.append(read(item))
    except Unfit as error:
        error.path.append(f"[{len(found)}]")
        raise
    return found


def _list_of(read: Reader) -> Reader:
    def items(value: Any) -> list:
        if type(value) is not list:
            raise _not(value, "a list")
        return _each(itertools.repeat(read), value)

    return items


def _row_of(reads: tuple[Reader, ...]) -> Reader:
    def row(value: Any) -> list:
        if type(value) is not list or len(value) != len(reads):
            raise _not(value, f"a list of {len(reads)}")
        return _each(reads, value)

    return row


def _dict_of(read: Reader) -> Reader:
    def entries(value: Any) -> dict:
        if type(value) is not dict:
            raise _not(value, "an object")
        found = {}
        for name, entry in value.items():
            try:
                found[name] = read(entry)
            except Unfit as error:
                error.path.append(_key(name))
                raise
        return found

    return entries


def _object(
    kind: Any, required: set[str] | frozenset[str], build: Callable[[dict], Any], others: bool
) -> Reader:
    """An object with named fields, and `others` if allowed. Field types are resolved on first use,
    since an annotation may name a class that its module defines later."""

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
        found = {}
        for name, entry in value.items():
            reader = fields().get(name)
            if reader is None and not others:
                raise Unfit(f"has a key {name!r}, which this version does not know")
            try:
                found[name] = entry if reader is None else reader(entry)
            except Unfit as error:
                error.path.append(_key(name))
                raise
        return build(found)

    return read


def _key(name: str) -> str:
    return f".{name}" if name.isidentifier() else f"[{json.dumps(name, ensure_ascii=False)}]"


def _not(value: Any, wanted: str) -> Unfit:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except ValueError:  # an integer with more digits than Python prints
        text = "a huge number"
    text = text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
    return Unfit(f"is {text}, not {wanted}")
