"""Flags in shared memory, volatile values and halves of barriers order what they can, no more."""

import numpy as np
import pytest

from helpers.simt import KernelText, simulate
from tests.simt.order_races import CASES, RULES


@pytest.mark.parametrize("name", CASES)
def test_the_racy_twin_is_found(name: str) -> None:
    findings = RULES.run(name, racy=True).findings
    assert findings, "nothing found"
    assert CASES[name].says in str(findings), str(findings)


@pytest.mark.parametrize("name", CASES)
def test_the_right_twin_has_no_finding(name: str) -> None:
    findings = RULES.run(name, racy=False).findings
    assert not findings, str(findings)


COUNTED = {  # of a flag itself every thread reads the latest that it has seen, or a later one
    "by all": "{}",
    "by some": "if (i % 32 == 0) for (int r = 0; r < 3; r++) {}",
    "behind a barrier": "if (i % 32 == 0) {}\n__syncthreads();\n{}",
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_counter_that_is_read_again_needs_no_fence(name: str) -> None:
    once = "{ x[i] = atomicAdd(y, 1) + atomicAdd(y, 1); x[i] += *(volatile int*)y; }"
    text = (
        'extern "C" __global__ void k(int* x, int* y)\n{\n'
        f"const int i = blockIdx.x * 64 + threadIdx.x;\n{COUNTED[name].format(*[once] * 2)}\n}}"
    )
    arrays = np.zeros(128, np.int32), np.zeros(4, np.int32)
    findings = simulate(KernelText(text, "k"), 2, 64, arrays).findings
    assert not findings, str(findings)
