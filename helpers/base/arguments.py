"""Arguments of public functions held against their annotations: what does not fit is told.

    @checked
    def load(step: str) -> Kernel: ...

    load(7)      TypeError: load: step must be a str, not 7 (int)

Checked are plain classes, unions of them, items of lists and tuples. An integer may be of NumPy,
a float may be an integer, and True is neither. What an annotation cannot say (a range, a name that
there is) is for the function to say.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection
from numbers import Integral, Real
from typing import Any, TypeVar

LONGEST = 60  # characters of a value that are shown
NUMBERS = {int: Integral, float: Real}
NAMES = {int: "an integer", float: "a number", type(None): "None"}

Function = TypeVar("Function", bound=Callable[..., Any])


def checked(function: Function) -> Function:
    """The function, which raises `TypeError` of one sentence for an argument that is missing, too
    many, or not of the class that its annotation names."""
    signature = inspect.signature(function)
    name = function.__name__
    parameters = signature.parameters.values()
    names = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    needed = {one.name for one in parameters if one.default is one.empty}
    known: set[tuple] = set()  # parameters, each with a class whose objects fit

    @functools.cache
    def hints() -> dict[str, Any]:  # not at once: an annotation may name what follows
        return typing.get_type_hints(function)

    def seen(args: tuple, named: dict[str, Any]) -> bool:
        """Whether every argument was given once, by objects of a class that is known to fit."""
        if len(args) > len(names):
            return False
        given = dict(zip(names, args, strict=False)) | named
        return (
            len(given) == len(args) + len(named)
            and needed <= given.keys()
            and all((key, *_classes(value)) in known for key, value in given.items())
        )

    @functools.wraps(function)
    def call(*args, **named):
        if seen(args, named):
            return function(*args, **named)
        try:
            given = signature.bind(*args, **named).arguments
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        for parameter, value in given.items():
            wanted = hints().get(parameter, Any)
            kind = signature.parameters[parameter].kind
            several = kind is inspect.Parameter.VAR_POSITIONAL
            if kind is inspect.Parameter.VAR_KEYWORD:
                continue
            for one in value if several else (value,):
                if not fits(one, wanted):
                    raise TypeError(f"{name}: {parameter} must be {said(wanted)}, not {short(one)}")
            if not several:
                known.add((parameter, *_classes(value)))
        return function(*args, **named)

    return call


def _classes(value: object) -> tuple[type, ...]:
    """All that `fits` asks of a value: its class, and those of its items."""
    items = value if isinstance(value, (list, tuple)) else ()
    return (type(value), *map(type, items))


def fits(value: object, wanted: Any) -> bool:
    """Whether a value is of what an annotation names, as far as this can be told."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, one) for one in inner)
    if wanted in NUMBERS:
        return isinstance(value, NUMBERS[wanted]) and not isinstance(value, bool)
    kind = origin or wanted
    if kind is Any or not isinstance(kind, type):
        return True
    if kind is not str and issubclass(kind, Collection) and isinstance(value, (str, bytes)):
        return isinstance(value, kind) and kind in (bytes, object)
    if not isinstance(value, kind):
        return False
    items = value if isinstance(value, (list, tuple)) and len(inner) == 1 else ()
    return not (items and isinstance(inner[0], type)) or all(fits(one, inner[0]) for one in items)


def said(wanted: Any) -> str:
    """An annotation in words: "a str or None"."""
    if typing.get_origin(wanted) in (types.UnionType, typing.Union):
        return " or ".join(map(said, typing.get_args(wanted)))
    if wanted in NAMES:
        return NAMES[wanted]
    inner = [one for one in typing.get_args(wanted) if isinstance(one, type)]
    name = getattr(typing.get_origin(wanted) or wanted, "__name__", str(wanted))
    of = f" of {', '.join(one.__name__ for one in inner)}" if inner else ""
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}{of}"


def short(value: object) -> str:
    """A value in one line, with its type."""
    return f"{shown(value)} ({type(value).__name__})"


def shown(value: object) -> str:
    """A value in one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
