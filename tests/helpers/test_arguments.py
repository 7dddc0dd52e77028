"""Arguments held against annotations: what fits passes, what does not is one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from helpers.base.arguments import checked


@checked
def f(
    name: str,
    rows: int = 1,
    share: float | None = None,
    names: Sequence[str] = (),
    numbers: Mapping[str, int] = {},  # noqa: B006
    anything: object = None,
    array: np.ndarray | None = None,
    more=None,
) -> str:
    """Its docstring."""
    return name


@checked
def several(*names: str) -> int:
    return len(names)


def test_what_fits_passes() -> None:
    assert f("a") == f("a", np.int64(3), 1, ["a"], {"b": 1}, 3j, np.zeros(3), len) == "a"
    assert f.__doc__ == "Its docstring." and several("a", "b") == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": 3}, "f: name must be a str, not 3 (int)"),
        ({"rows": True}, "f: rows must be an integer, not True (bool)"),
        ({"rows": 1.0}, "f: rows must be an integer, not 1.0 (float)"),
        ({"share": "0.3"}, "f: share must be a number or None, not '0.3' (str)"),
        ({"names": "abc"}, "f: names must be a Sequence of str, not 'abc' (str)"),
        ({"names": ["a", 1]}, "f: names must be a Sequence of str, not ['a', 1] (list)"),
        ({"numbers": [1]}, "f: numbers must be a Mapping of str, int, not [1] (list)"),
        ({"array": [1]}, "f: array must be a ndarray or None, not [1] (list)"),
        ({"nmae": 1}, "f: got an unexpected keyword argument 'nmae'"),
    ],
)
def test_what_does_not_is_named(given: dict, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        f(**{"name": "a", **given})
    assert str(caught.value) == said
