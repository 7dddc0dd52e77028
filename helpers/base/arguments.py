"""Check the arguments of public functions against their annotations.

    @checked
    def load(step: str) -> Kernel: ...

    load(7)      TypeError: load: step must be a str, not 7 (int)

Plain classes, unions of them, and the items of lists and tuples are checked. NumPy integers count
as int and integers as float, but a bool counts as neither. Conditions that an annotation cannot
express, such as a range or an existing name, are up to the function.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection
from numbers import Integral, Real
from typing import Any, TypeVar

MAX_SHOWN = 60  # characters of a value in a message
NUMBERS = {int: Integral, float: Real}
NAMES = {int: "an integer", float: "a number", type(None): "None"}

Function = TypeVar("Function", bound=Callable[..., Any])


def checked(function: Function) -> Function:
    """Decorate a function so that a missing or surplus argument, or one whose class does not match
    its annotation, raises a `TypeError` of one sentence."""
    signature = inspect.signature(function)
    name = function.__name__

    @functools.cache
    def hints() -> dict[str, Any]:  # lazy: an annotation may name a class defined further down
        return typing.get_type_hints(function)

    @functools.wraps(function)
    def call(*args, **named):
        try:
            given = signature.bind(*args, **named).arguments
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        for parameter, value in given.items():
            hint = hints().get(parameter, Any)
            kind = signature.parameters[parameter].kind
            variadic = kind is inspect.Parameter.VAR_POSITIONAL
            if kind is inspect.Parameter.VAR_KEYWORD:
                continue
            for one in value if variadic else (value,):
                if not matches(one, hint):
                    expected = describe_hint(hint)
                    raise TypeError(f"{name}: {parameter} must be {expected}, not {short(one)}")
        return function(*args, **named)

    return call


def matches(value: object, hint: Any) -> bool:
    """Return whether a value matches an annotation, as far as this can be checked."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(matches(value, one) for one in inner)
    if hint in NUMBERS:
        return isinstance(value, NUMBERS[hint]) and not isinstance(value, bool)
    kind = origin or hint
    if kind is Any or not isinstance(kind, type):
        return True
    if kind is not str and issubclass(kind, Collection) and isinstance(value, (str, bytes)):
        return isinstance(value, kind) and kind in (bytes, object)
    if not isinstance(value, kind):
        return False
    items = value if isinstance(value, (list, tuple)) and len(inner) == 1 else ()
    return not (items and isinstance(inner[0], type)) or all(
        matches(one, inner[0]) for one in items
    )


def describe_hint(hint: Any) -> str:
    """Return an annotation in words: "a str or None"."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(map(describe_hint, typing.get_args(hint)))
    if hint in NAMES:
        return NAMES[hint]
    inner = [one for one in typing.get_args(hint) if isinstance(one, type)]
    name = getattr(typing.get_origin(hint) or hint, "__name__", str(hint))
    of = f" of {', '.join(one.__name__ for one in inner)}" if inner else ""
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}{of}"


def short(value: object) -> str:
    """Return a value and its type on one line: "7 (int)"."""
    return f"{shown(value)} ({type(value).__name__})"


def shown(value: object) -> str:
    """Return a value on one line, cut off after `MAX_SHOWN` characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
