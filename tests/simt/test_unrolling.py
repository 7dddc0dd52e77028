"""Which loops ptxas unrolls, in which order their rounds run, and what that is counted as."""

from types import SimpleNamespace

import numpy as np
import pytest

from helpers.simt import Trace, compile_ptx, simulate
from helpers.simt.counters import Standing
from helpers.simt.instructions import Immediate
from helpers.simt.parse import parse
from helpers.simt.unrolling import Loop, order, uncertain_loops, unrolled_loops

PARAMETERS = "const float* x, float* y, int n"


def kernel(body: str, parameters: str = PARAMETERS) -> str:
    return (
        f'extern "C" __global__ void k({parameters})\n{{\n'
        f"    const int t = threadIdx.x;\n    float sum = 0;\n    {body}\n    y[t] += sum;\n}}\n"
    )


def found(code: str) -> tuple[int, int]:
    """(loops that are surely unrolled, loops that may be)"""
    parsed = parse(compile_ptx(code), "k")
    return len(unrolled_loops(parsed)), len(uncertain_loops(parsed))


LOOP = "for (int i = t; i < n; i += 32)"
STEPS = "".join(f"v = v * {k}.5f + 1.25f; " for k in range(20))
CASES = {
    "sum": (f"{LOOP} sum += x[i];", (1, 0)),
    "counted down": ("for (int i = n - t; i > 0; i -= 32) sum += x[i];", (1, 0)),
    "stores alone": (f"{LOOP} y[i + 64] = i;", (1, 0)),
    "not to be unrolled": (f"\n#pragma unroll 1\n{LOOP} sum += x[i];", (0, 0)),
    "unrolled as it says": (f"\n#pragma unroll 4\n{LOOP} sum += x[i];", (0, 0)),
    "any step": ("for (int i = t; i < n; i += blockDim.x) sum += x[i];", (0, 0)),
    "the end is in the data": ("for (int i = t; x[i] != 0; i += 32) sum += x[i];", (0, 0)),
    "long": (f"{LOOP} {{ float v = x[i]; {STEPS} sum += v; }}", (0, 0)),
    "a copy": (f"{LOOP} y[i + 64] = x[i];", (1, 0)),
    "a copy from a row to a row": (f"{LOOP} y[64 + b + i] = x[b + i];", (0, 0)),
    "an atomic": (f"{LOOP} atomicAdd(y + i, x[i]);", (0, 0)),
    "a division": (f"{LOOP} sum += 1.0f / x[i];", (0, 0)),
    "a branch": (f"{LOOP} if (x[i] > 50.0f) sum += x[i + n];", (0, 1)),
    "a second way out": (f"{LOOP} {{ if (x[i] > 50.0f) break; sum += x[i + n]; }}", (0, 0)),
    "a loop around another": (
        f"{LOOP}\n#pragma unroll 1\nfor (int j = 0; j < n; j += 3) sum += x[i + j];",
        (0, 0),
    ),
    "up to and with the end": ("for (int i = t; i <= n; i += 32) sum += x[i];", (0, 1)),
    "unsigned": ("for (unsigned i = t; i < n; i += 32) sum += x[i];", (1, 0)),
    "unsigned, of 64 bits": ("for (unsigned long long i = t; i < n; i += 32) sum += x[i];", (0, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_which_loops_are_unrolled(name: str) -> None:
    body, expected = CASES[name]
    row = "const long long b = (long long)blockIdx.x * n; " if "[b + i]" in body else ""
    assert found(kernel(row + body)) == expected


def rounds_of(rounds: list[int], past: tuple[int, ...] = ()) -> list[list[int]]:
    """The lanes that run, round by round."""
    counts = np.array(rounds + [0] * (32 - len(rounds)))
    lanes = np.arange(32)
    masks = order(lanes < len(rounds), counts, np.isin(lanes, past))
    return [np.flatnonzero(one).tolist() for one in masks]


def test_a_lane_with_fewer_rounds_than_four_runs_them_apart() -> None:
    assert rounds_of([4, 3]) == [[0]] * 4 + [[1]] * 2 + [[1]]
    assert rounds_of([7, 8]) == [[0, 1]] * 4 + [[1]] * 4 + [[0]] * 2 + [[0]]
    assert rounds_of([2, 3]) == [[0, 1]] * 2 + [[1]]


def test_a_lane_that_is_past_its_bound_comes_first() -> None:
    assert rounds_of([1, 5], past=(0,)) == [[0]] + [[1]] * 5
    assert rounds_of([1, 1], past=(0, 1)) == [[0, 1]]
    past = Loop("%r1", "u32", 1, "le", Immediate(0)).past(np.array([3, 4, 5]), np.array([4, 4, 4]))
    assert past.tolist() == [False, True, True]
    signed = Loop("%r1", "s32", 1, "le", Immediate(0))
    assert not signed.past(np.array([9]), np.array([4])).any()


def test_each_lane_makes_its_rounds() -> None:
    wanted = [1 + 7 * k % 19 for k in range(32)]
    ran = rounds_of(wanted, past=tuple(k for k in range(32) if wanted[k] == 1))
    assert [sum(lane in lanes for lanes in ran) for lane in range(32)] == wanted


@pytest.mark.parametrize(
    ("kind", "compare", "step", "start", "bound", "rounds"),
    [
        ("s32", "lt", 32, 5, 100, 3),
        ("s32", "lt", 32, 4, 100, 3),
        ("s32", "lt", 32, 200, 100, 1),
        ("s32", "le", 32, 4, 100, 4),
        ("s32", "gt", -4, 9, 0, 3),
        ("s32", "ge", -4, 8, 0, 3),
        ("s32", "ne", 4, -12, 0, 3),
        ("s32", "ne", 5, -12, 0, None),  # it would run over
        ("s32", "lt", 2**29, 0, 2**30 + 1, 3),
        ("s32", "lt", 2**30, 2**30, 2**31 - 1, None),
        ("u32", "lt", 1, 0, 2**32 - 1, 2**32 - 1),
        ("s64", "lt", 1, 0, 2**62, None),
    ],
)
def test_rounds_are_counted(kind, compare, step, start, bound, rounds) -> None:
    loop = Loop("%r1", kind, step, compare, Immediate(bound))
    counted = loop.rounds(np.array([start]), np.array([bound]))
    assert (None if counted is None else counted.tolist()) == (rounds and [rounds])


def run(body: str, n: int) -> Trace:
    x, y = np.ones(4096, np.float32), np.zeros(4096, np.float32)
    text = SimpleNamespace(code=kernel(body), name="k", options=())
    trace = simulate(text, 1, 32, (x, y, n))
    lane = np.arange(32)
    assert (y[:32] == np.maximum(-(-(n - lane) // 32), 0)).all()
    return trace


def test_ragged_loops_make_more_requests_and_even_ones_do_not() -> None:
    unrolled, plain = f"{LOOP} sum += x[i];", f"\n#pragma unroll 1\n{LOOP} sum += x[i];"
    # 20 lanes have 16 rounds, in four groups of four loads, the others 15: three first, which the
    # PTX has apart, and three groups, as two and one. The load of y is a request too.
    assert run(unrolled, 500).counters.load_requests == 3 + 4 * (4 + 2 + 1) + 1
    assert run(plain, 500).counters.load_requests == 16 + 1
    assert run(unrolled, 512).counters.load_requests == 16 + 1


def test_the_report_says_which_lines_may_count_more() -> None:
    body = f"{LOOP}\n        if (x[i] > 0.5f) sum += x[i];"
    trace = run(body.replace("x[i];", "x[n + i];"), 500)
    (place,) = trace.more
    assert place[1] == 6 and trace.more[place] > 0
    assert f"line 6 up to {trace.more[place]}" in trace.report()
    even = run(body.replace("x[i];", "x[n + i];"), 512)
    assert not even.more and "more on the hardware" not in even.report()


def test_the_report_says_which_counters_are_exact() -> None:
    plain = run(f"{LOOP} sum += x[i];", 500)
    standing = plain.standing()
    assert standing["load_requests"] == standing["load_sectors"] == Standing("exact")
    assert standing["warp_instructions"] == Standing("of PTX")
    assert "H200, exact: load requests, load sectors, store requests, store" in plain.report()
    uncertain = run(f"{LOOP}\n        if (x[i] > 0.5f) sum += x[n + i];", 500)
    (more,) = uncertain.more.values()
    assert uncertain.standing()["load_requests"] == Standing("bounded", more)
    assert uncertain.standing()["load_sectors"] == Standing("at least")
    assert uncertain.standing()["store_requests"] == Standing("exact")
    report = uncertain.report()
    assert f"exact: store requests, store sectors; bounded: load requests (up to {more} " in report
    assert "at least so many: load sectors" in report


def test_a_branch_that_is_predicated_leaves_requests_to_shared_memory_open() -> None:
    before = "__shared__ float s[64]; if (t < 7 + n % 2) s[t] = x[t]; __syncthreads();\n"
    trace = run(before + f"{LOOP} sum += 1; if (n < 0) y[t] = s[t];", 32 * 16)
    assert trace.standing()["shared_store_requests"] == Standing("at least")
    assert trace.standing()["shared_store_wavefronts"] == Standing("exact")
    assert "at least so many: shared store requests" in trace.report()
    always = run("__shared__ float s[64]; s[t] = x[t]; __syncthreads();\n"
                 f"{LOOP} sum += 1; if (n < 0) y[t] = s[t];", 32 * 16)  # fmt: skip
    assert always.standing()["shared_store_requests"] == Standing("exact")
