"""`simt --self-test`: planted bugs that the machine has to find, and twins without them."""

from __future__ import annotations

import numpy as np

from .findings import Findings
from .machine import KernelText, simulate

# Each kernel reverses the 64 numbers of a block, and has a bug if PLANTED is defined. The line that
# the arrow marks has to be reported.
BUGS = {
    "race on shared memory": (
        "a missing __syncthreads()",
        """
__global__ void reverse(const float* x, float* y)
{
    __shared__ float row[64];
    row[threadIdx.x] = x[64 * blockIdx.x + threadIdx.x];
#ifndef PLANTED
    __syncthreads();
#endif
    y[64 * blockIdx.x + threadIdx.x] = row[63 - threadIdx.x];  // <-
}
""",
    ),
    "out-of-bounds store": (
        "an index that passes the end of an array",
        """
#ifdef PLANTED
#define LAST 64
#else
#define LAST 63
#endif
__global__ void reverse(const float* x, float* y)
{
    const int first = 64 * blockIdx.x;
    y[first + LAST - threadIdx.x] = x[first + threadIdx.x];  // <-
}
""",
    ),
    "race on global memory": (
        "a store to the elements of another block",
        """
__global__ void reverse(const float* x, float* y)
{
#ifdef PLANTED
    const int first = 0;
#else
    const int first = 64 * blockIdx.x;
#endif
    y[first + 63 - threadIdx.x] = x[64 * blockIdx.x + threadIdx.x];  // <-
}
""",
    ),
}
BLOCKS = 2


def self_test() -> tuple[bool, str]:
    """Run each kernel with its bug and without: (whether all is as it must be, a line for each).

    Raises what `simulate` raises where kernels cannot be compiled.
    """
    passed, lines = True, []
    for kind, (bug, code) in BUGS.items():
        code = code.lstrip()
        (line,) = (n for n, text in enumerate(code.splitlines(), 1) if text.endswith("// <-"))
        findings, _ = _run(code, ("-DPLANTED",))
        found = [(one.kind, one.line) for one in findings] == [(kind, line)]
        lines.append(f"{_verdict(found)}: {bug} is reported as '{kind}' in line {line}")
        findings, correct = _run(code, ())
        clean = correct and not findings
        lines.append(
            f"{_verdict(clean)}: the kernel without that bug has no finding and is correct"
        )
        passed &= found and clean
    return passed, "\n".join(lines)


def _verdict(passed: bool) -> str:
    return "passed" if passed else "FAILED"


def _run(code: str, options: tuple[str, ...]) -> tuple[Findings, bool]:
    """What is found in a kernel, and whether each block has reversed its numbers."""
    x = np.arange(64 * BLOCKS, dtype=np.float32)
    y = np.full_like(x, np.nan)
    trace = simulate(KernelText(code, "reverse", options), BLOCKS, 64, (x, y))
    return trace.findings, np.array_equal(y.reshape(-1, 64), x.reshape(-1, 64)[:, ::-1])
