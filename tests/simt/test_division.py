"""An integer division by zero is a diagnostic for the threads that execute it, and for no other."""

import numpy as np
import pytest

from helpers.simt import Findings, KernelText, simulate
from tests.simt.launching import FILE, kernel

KIND = "integer division by zero"
# Thread n divides by zero in each; in the twin, the text after the arrow replaces that before it.
PLANTED = {
    "a quotient": ("y[i] = 100 / (n - i);", "(n - i)", "(n - i + 64)"),
    "a remainder": ("y[i] = i % (i - n);", "(i - n)", "(i - n - 64)"),
    "unsigned": ("y[i] = 100u / unsigned(n - i);", "(n - i)", "(n - i + 64)"),
    "64 bits": ("y[i] = (1LL << 40) / (n - i);", "/ (n - i)", "/ (n - i + 64)"),
    "16 bits": ("y[i] = (unsigned short)n / (unsigned short)(n - i);", "(n - i)", "(n - i + 64)"),
    "in a branch": ("if (i < 9) y[i] = 100 / (n - i);", "i < 9", "i < n"),
    "under a condition": ("y[i] = i < 9 ? 100 / (n - i) : 0;", "i < 9", "i != n"),
    "in a round of a loop": (
        "for (int k = 0; k < n; ++k) if (i <= n && k == i % 3) y[i] += 100 / (n - i);",
        "i <= n",
        "i < n",
    ),
}


def findings(body: str) -> Findings:
    code = FILE + kernel(body, "int* y, int n")
    return simulate(KernelText(code, "k"), 2, 32, (np.zeros(64, np.int32), 5)).findings


@pytest.mark.parametrize("name", PLANTED)
def test_the_thread_that_divides_by_zero_is_named(name: str) -> None:
    body, wrong, right = PLANTED[name]
    (found,) = findings(body)
    assert (found.kind, found.line, found.thread, found.count) == (KIND, 5, (5, 0, 0), 1)
    assert found.message == "the divisor is 0, and the result is unspecified"
    assert not findings(body.replace(wrong, right))


def test_a_shared_divisor_counts_once_per_thread_and_a_float_may_be_zero() -> None:
    (found,) = findings("y[i] = i / (n - 5);")
    assert (found.kind, found.count) == (KIND, 64)
    quotients = "i / float(n - i) + float(i / double(n - i)) + __fdividef(i, n - i)"
    assert not findings(f"y[i] = isinf({quotients});")


def test_an_undefined_divisor_is_reported_as_what_it_is() -> None:
    body = "__shared__ int s[64]; if (n > 9) s[i] = 1; __syncthreads(); y[i] = 100 / s[i % 32];"
    (found,) = findings(body)
    assert found.kind == "read of unwritten shared memory"
