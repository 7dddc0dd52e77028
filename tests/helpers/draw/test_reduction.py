"""Who takes whose value, against what the source says."""

import cupy
import numpy as np
import pytest
from matplotlib.text import Text

from helpers import bind, simulate, source
from helpers.page import draw
from helpers.page.draw.reduction import OUTSIDE, Level, Meeting, follow
from helpers.simt import KernelText, Trace
from helpers.simt import simulate as run
from tests.helpers.draw.looks import Shown, complaints, texts

pytestmark = pytest.mark.usefixtures("replay_unless_live")


def trace_of(name: str, cols: int, block: int, shared: int = 0, code: str = "") -> Trace:
    kernel = cupy.RawKernel(code or source(f"{name}.cu"), f"softmax_{name[3:]}")
    x = np.random.default_rng(0).normal(size=(2, cols)).astype(np.float32)
    return simulate(kernel, 2, block, (x, x * 0, 2, cols), shared, watch=True)


def run_text(code: str, grid: int, block: int, size: int = 64) -> Trace:
    x = np.arange(size, dtype=np.float32)
    name = code.split("void ")[1].split("(")[0]
    return run(KernelText(code, name), grid, block, (x, x * 0), names=("x", "y"), watch=True)


@pytest.fixture(scope="module")
def tree() -> Trace:
    return trace_of("03_shared", 20, 8, 64)


def test_a_tree_halves_from_barrier_to_barrier(tree: Trace) -> None:
    found = follow(tree, 1)
    halves = [{(thread + half, thread) for thread in range(half)} for half in (4, 2, 1)]
    assert [level.edges for level in found.levels] == [*halves, {(0, n) for n in range(1, 8)}]
    assert [level.to_all for level in found.levels] == [False, False, False, True]
    assert [isinstance(part, Meeting) for part in found.parts] == [True, False] * 4


def test_boxes_hold_the_pairs_that_threads_store(tree: Trace, shown: Shown) -> None:
    x = np.random.default_rng(0).normal(size=(2, 20)).astype(np.float32)[0]
    values = follow(tree, 0).values
    for row, live in enumerate((8, 4, 2, 1)):
        assert {thread for where, thread in values if where == row} == {*range(live)}
        for thread in range(live):
            mine = np.concatenate([x[start::8] for start in range(thread, 8, live)])
            pair = mine.max(), np.exp(mine - mine.max()).sum()
            assert values[row, thread] == [f"{one:.2f}" for one in pair]
    draw.reduction(tree)
    figure = shown.take()[0]
    written = {text.get_text() for text in texts(figure)}
    assert {number for pair in values.values() for number in pair} <= written
    assert complaints(figure) == []


def test_a_tree_without_its_barrier_is_drawn_as_it_ran(shown: Shown) -> None:
    code = source("03_shared.cu").replace("__syncthreads();  // the next", "// the next")
    draw.reduction(trace_of("03_shared", 300, 64, 512, code=code))
    figure, _, sentence = shown.take()
    assert complaints(figure) == []
    assert "1 barrier" in sentence


COUNTED = """extern "C" __global__ void counted(const float* x, float* y)
{
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, x[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 5) y[0] = sum;
}
"""
THROUGH_GLOBAL = """extern "C" __global__ void through(const float* x, volatile float* y)
{
    y[blockIdx.x * 4 + threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) y[32 + blockIdx.x] = y[blockIdx.x * 4 + 3] + y[0];
}
"""


def test_who_reads_a_sum_of_atomics_takes_from_all_that_added() -> None:
    (level,) = follow(run_text(COUNTED, 1, 16), 0).levels
    assert level.edges == {(thread, 5) for thread in range(16) if thread != 5}


def test_global_memory_carries_values_within_a_block_and_from_others(shown: Shown) -> None:
    trace = run_text(THROUGH_GLOBAL, 2, 4)
    assert follow(trace, 0).levels[0].edges == {(3, 0)}
    (level,) = follow(trace, 1).levels
    assert (level.kind, level.edges) == ("global", {(3, 0), (OUTSIDE, 0)})
    draw.reduction(trace, 1)
    figure, _, sentence = shown.take()
    assert "2 values taken from other threads, 1 of them from other blocks" in sentence
    assert "other blocks" in {text.get_text() for text in figure.findobj(Text)}


def test_pairs_of_a_cluster_come_from_other_blocks(shown: Shown) -> None:
    x = np.ones((1, 8192), np.float32)
    small = {"CLUSTER": 4, "THREADS": 64, "PACKS": 8}
    trace = bind(source("08_cluster.cu"), 1, 8192, changes=small).simulate(x, x * 0, watch=True)
    level = next(one for one in follow(trace, 0).levels if one.from_outside)
    # Of 8 warps' pairs, six are of other blocks; a lane of each of two warps reads each.
    assert (level.from_outside, level.times) == (12, 2)
    draw.reduction(trace)
    assert complaints(shown.take()[0]) == []


ALONE = """extern "C" __global__ void alone(const float* x, float* y)
{
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}
"""


def test_too_many_levels_become_one() -> None:
    code = ALONE.replace("y[threadIdx.x] = s[threadIdx.x]", "if (threadIdx.x == 0) s[0] += s[k]")
    code = code.replace("    if (", "    #pragma unroll 1\n    for (int k = 1; k < 64; k++) if (")
    (level,) = follow(run_text(code, 1, 64), 0).levels
    assert level.edges == {(thread, 0) for thread in range(1, 64)} and isinstance(level, Level)
