"""A kernel that takes a pointer to const and writes through it is told so."""

import numpy as np
import pytest

from helpers.simt import Findings, KernelText, simulate
from tests.simt.launching import FILE, kernel

KIND = "store through a pointer to const"


def findings(parameters: str, body: str, *args) -> Findings:
    code = FILE + kernel(body, parameters)
    return simulate(KernelText(code, "k"), 1, 32, args).findings


def arrays() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(32, np.float32), np.arange(33, dtype=np.float32)


@pytest.mark.parametrize("restrict", ["", "__restrict__ "])
@pytest.mark.parametrize(
    "write",
    [
        "const_cast<float*>(x)[t] = 1;",
        "if (t < 5) ((float*)x)[t] = 1;",
        "atomicAdd((float*)x + t, 1.0f);",
    ],
)
def test_a_store_to_a_const_argument_is_found(restrict: str, write: str) -> None:
    body = f"y[t] = x[t];\n{write}"
    (found,) = findings(f"float* y, const float* {restrict}x", body, *arrays())
    assert (found.kind, found.line) == (KIND, 6)
    assert found.count == (5 if "t < 5" in write else 32)
    assert found.message.startswith("x comes in by a pointer to const")


Y, X = arrays()
RIGHT = {
    "another pointer": ("float* y, float* x", "y[t] = x[t]; x[t] = 1;", (Y, X)),
    "a constant pointer": ("float* y, float* const x", "y[t] = x[t]; x[t] = 1;", (Y, X)),
    "an array that comes in twice": ("float* y, const float* x", "y[t] = x[t] + 1;", (Y, Y)),
    "a table": ("float** y, const float* x", "y[0][t] = x[t] + 1;", ([X, Y], X)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_store_through_another_pointer_is_none(name: str) -> None:
    parameters, body, args = RIGHT[name]
    assert not findings(parameters, body, *args)
