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


def test_the_report_says_which_lines_may_count_more() -> None:
    body = f"{LOOP}\n        if (x[i] > 0.5f) sum += x[i];"
    trace = run(body.replace("x[i];", "x[n + i];"), 500)
    (place,) = trace.more
    assert place[1] == 6 and trace.more[place] > 0
    assert f"line 6 up to {trace.more[place]}" in trace.report()
    even = run(body.replace("x[i];", "x[n + i];"), 512)
    assert not even.more and "more on the hardware" not in even.report()


def test_the_report_says_which_counters_are_exact() -> None:
    plain = run(f"{LOOP} sum += x[i];", 512)  # no warp leaves it in parts
    standing = plain.standing()
    assert standing["load_requests"] == standing["load_sectors"] == Standing("exact")
    assert standing["warp_instructions"] == Standing("of PTX")
    assert "H200, exact: load requests, load sectors, store requests, store" in plain.report()
    uncertain = run(f"{LOOP}\n        if (x[i] > 0.5f) sum += x[n + i];", 500)
    (more,) = uncertain.more.values()
    assert uncertain.standing()["load_requests"] == Standing("bounded", more)
    assert uncertain.standing()["load_sectors"] == Standing("approximate")
    assert uncertain.standing()["store_requests"] == Standing("exact")
    report = uncertain.report()
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
