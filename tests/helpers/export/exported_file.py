"""What the tests of exported Python files share: inputs, and changed files that a test has to
notice."""

import inspect
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from helpers.gpu import Gpu

OLD = Gpu(80, 8, 2**20)
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
ERRORS = AssertionError, ValueError, RuntimeError, TypeError, LookupError, ArithmeticError
ERRORS += (pytest.fail.Exception,)  # where the test waits for an error that does not come


def values(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 3, shape).astype(dtype)


def check_noticed(noticed: Callable, text: str, here: Callable, line: str, changed: str) -> None:
    """A test fails where a line of the file is changed; it takes the `text`, or what `here` makes
    of it."""
    assert line in text
    text = text.replace(line, changed)
    takes_text = "text" in inspect.signature(noticed).parameters
    with pytest.raises(ERRORS):
        noticed(**{"text": text} if takes_text else {"here": here(text)})
