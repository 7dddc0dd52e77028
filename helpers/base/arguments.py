"""Check the arguments of public functions against their annotations.

    @checked
    def load(step: str) -> Kernel: ...

    load(7)      TypeError: load: step must be a str, not 7 (int)

Plain classes, unions of them, and items of lists and tuples are checked. NumPy integers count as
integers, integers are accepted as floats, and True is neither. What an annotation cannot express (a
range, an existing name) is checked by the function itself.
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
    """Make a function raise `TypeError`, in one sentence, for a missing or surplus argument and for
    one that is not an instance of its annotation."""
    signature = inspect.signature(function)
    name = function.__name__
    parameters = signature.parameters.values()
    names = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    needed = {one.name for one in parameters if one.default is one.empty}
    known: set[tuple] = set()  # (parameter, accepted class) for each argument of an earlier call

    @functools.cache
    def hints() -> dict[str, Any]:  # lazily: an annotation may name a later definition
        return typing.get_type_hints(function)

    def seen(args: tuple, named: dict[str, Any]) -> bool:
        """Fast path: whether every argument is given once, and of a class already accepted."""
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
    """What `fits` looks at: the class of a value and the classes of its items."""
    items = value if isinstance(value, (list, tuple)) else ()
    return (type(value), *map(type, items))


def fits(value: object, wanted: Any) -> bool:
    """Whether a value matches an annotation, as far as this can be checked."""
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
