"""Wavefronts and bank conflicts of shared memory are what an H200 counted (tests/data)."""

import json
import random
from pathlib import Path

import cupy
import numpy as np
import pytest

from helpers.simt import SHARED_METRICS, simulate
from tests.simt.launching import kernel

MEASURED = json.loads((Path(__file__).parents[1] / "data/shared_wavefronts_h200.json").read_text())
COUNTS = ("load_requests", "load_wavefronts", "store_requests", "store_wavefronts")
PATTERNS = json.loads((Path(__file__).parents[1] / "data/counters_h200.json").read_text())[
    "patterns"
]
CONFLICTS = [
    [row["metrics"][SHARED_METRICS[f"shared_{verb}_bank_conflicts"]] for verb in ("load", "store")]
    for row in PATTERNS
]
FLOATS = {"float": 1, "float2": 2, "float4": 4}


def counts_of(element: str, index: list[int]) -> list[int]:
    """What a warp's load of s[index[lane]] and, launched apart, its store there count: requests
    and wavefronts of both, then bank conflicts of both."""
    size = max(index) + 1
    parameters = f"{element}* y, const int* index"
    load = f"""
        int where = index[t];
        for (int j = t; j < {size}; j += 32) s[j] = y[0];
        __syncthreads();
        if (where >= 0) y[t] = s[where];"""
    store = "int where = index[t]; if (where >= 0) s[where] = y[0];"
    found, conflicts = [], []
    for body in (load, store):
        code = kernel(body, parameters, f"extern __shared__ {element} s[];")
        y = np.zeros((32, FLOATS[element]), np.float32)
        args = y, np.array(index, np.int32)
        shared = 4 * FLOATS[element] * size
        trace = simulate(cupy.RawKernel(code, "k"), 1, 32, args, shared)
        assert not trace.findings, str(trace.findings)
        c = trace.counters
        found += (
            [c.shared_load_requests, c.shared_load_wavefronts]
            if body is load
            else [c.shared_store_requests, c.shared_store_wavefronts]
        )
        conflicts.append(
            c.shared_load_bank_conflicts if body is load else c.shared_store_bank_conflicts
        )
    return found + conflicts


@pytest.mark.parametrize("element", FLOATS)
def test_requests_wavefronts_and_conflicts_are_those_of_the_hardware(element: str) -> None:
    both = zip(MEASURED["cases"], CONFLICTS, strict=True)
    cases = [(case, conflicts) for case, conflicts in both if case["type"] == element]
    assert len(cases) > 20
    for case, conflicts in cases:
        found = counts_of(element, case["index"])
        assert found == [case[name] for name in COUNTS] + conflicts, case["pattern"]


def test_all_measured_patterns_are_compared() -> None:
    assert len(MEASURED["cases"]) == 123
    assert {case["type"] for case in MEASURED["cases"]} == set(FLOATS)


def bank_conflicts(index: list[int]) -> int:
    """Wavefronts of one 4-byte request: the most different words wanted from one bank."""
    words = {number for number in index if number >= 0}
    return max(sum(word % 32 == bank for word in words) for bank in range(32))


def random_patterns() -> list[list[int]]:
    chance = random.Random(7)
    patterns = [[chance.randrange(size) for _ in range(32)] for size in (8, 33, 64, 1000)]
    return patterns + [[n if chance.random() < 0.5 else -1 for n in p] for p in patterns]


@pytest.mark.parametrize(
    "index",
    [
        list(range(32)),
        [2 * lane for lane in range(32)],
        [33 * lane for lane in range(32)],
        [32 * lane for lane in range(32)],
        [5] * 32,
        [lane // 2 * 32 for lane in range(32)],
        [-1] * 31 + [64],
        *random_patterns(),
    ],
    ids=lambda index: "-".join(map(str, index[:6])),
)
def test_wavefronts_are_the_worst_bank(index: list[int]) -> None:
    needed = bank_conflicts(index)
    assert counts_of("float", index) == [1, needed] * 2 + [needed - 1] * 2


def test_counts_belong_to_lines_and_add_up_over_warps_and_blocks() -> None:
    body = """
        __shared__ float s[1024];
        s[t] = 0;
        s[t + 512] = 0;
        __syncthreads();
        y[i] = s[2 * t] + s[t];"""
    y = np.zeros(300 * 500, np.float32)
    code = '#line 1 "kernels/x.cu"\n' + kernel(body, "float* y")
    trace = simulate(cupy.RawKernel(code, "k"), 300, 500, (y,))
    lines = {
        line: (c.shared_store_wavefronts, c.shared_load_wavefronts)
        for (_, line), c in trace.lines.items()
        if c.shared_store_requests + c.shared_load_requests
    }
    warps = 300 * 16
    # The last warp of a block has 20 lanes: words 0, 2, .. 38 share 4 banks.
    assert lines == {8: (warps, 0), 9: (warps, 0), 11: (0, 300 * (15 * 2 + 2 + 16))}
    assert trace.counters.shared_load_requests == 2 * warps
    assert trace.counters.load_requests == 0
