"""What a report says of the counters of loops that ptxas may unroll."""

from types import SimpleNamespace

import numpy as np

from helpers.simt import Trace, simulate
from helpers.simt.hardware import Standing

PARAMETERS = "const float* x, float* y, int n"


def kernel(body: str, parameters: str = PARAMETERS) -> str:
    return (
        f'extern "C" __global__ void k({parameters})\n{{\n'
        f"    const int t = threadIdx.x;\n    float sum = 0;\n    {body}\n    y[t] += sum;\n}}\n"
    )


LOOP = "for (int i = t; i < n; i += 32)"


def run(body: str, n: int) -> Trace:
    x, y = np.ones(4096, np.float32), np.zeros(4096, np.float32)
    text = SimpleNamespace(code=kernel(body), name="k", options=())
    trace = simulate(text, 1, 32, (x, y, n))
    lane = np.arange(32)
    assert (y[:32] == np.maximum(-(-(n - lane) // 32), 0)).all()
    return trace


def test_the_report_says_which_counters_are_exact() -> None:
    plain = run(f"{LOOP} sum += x[i];", 512)  # no warp leaves it in parts
    assert not plain.more and "more on the hardware" not in plain.report()
    assert "H200, exact: load requests, load sectors, store requests, store" in plain.report()
    uncertain = run(f"{LOOP}\n        if (x[i] > 0.5f) sum += x[n + i];", 500)
    ((place, more),) = uncertain.more.items()
    assert place[1] == 6 and more > 0
    report = uncertain.report()
    assert f"line 6 up to {more}" in report
    assert f"exact: store requests, store sectors; bounded: load requests (up to {more} " in report
    assert "approximate: load sectors" in report


def test_a_branch_that_is_predicated_leaves_requests_to_shared_memory_open() -> None:
    before = "__shared__ float s[64]; if (t < 7 + n % 2) s[t] = x[t]; __syncthreads();\n"
    trace = run(before + f"{LOOP} sum += 1; if (n < 0) y[t] = s[t];", 32 * 16)
    assert trace.standing()["shared_store_requests"] == Standing("at least")
    assert trace.standing()["shared_store_wavefronts"] == Standing("exact")
    assert "at least so many: shared store requests" in trace.report()
    always = run("__shared__ float s[64]; s[t] = x[t]; __syncthreads();\n"
                 f"{LOOP} sum += 1; if (n < 0) y[t] = s[t];", 32 * 16)  # fmt: skip
    assert always.standing()["shared_store_requests"] == Standing("exact")
