"""Who sends what to whom, against what the source says."""

import numpy as np
import pytest
from matplotlib.patches import FancyArrowPatch

from helpers import bind, source
from helpers.page import draw
from helpers.page.draw.messages import sent
from helpers.simt import KernelText, Trace
from helpers.simt import simulate as run
from tests.helpers.draw.looks import Shown, complaints, texts

pytestmark = pytest.mark.usefixtures("replay_unless_live")

REACHING = """#include <cooperative_groups.h>
extern "C" __global__ __cluster_dims__(2) void reaching(const float* x, float* y)
{
    __shared__ float s[32];
    auto cluster = cooperative_groups::this_cluster();
    s[threadIdx.x] = x[threadIdx.x];
    cluster.sync();
    float v = 0;
    if (cluster.block_rank() == 1 && threadIdx.x < 5)
        v = cluster.map_shared_rank(s, 0)[threadIdx.x];
    y[blockIdx.x * 32 + threadIdx.x] = v;
    cluster.sync();
}
"""
CHAIN = """extern "C" __global__ void chain(volatile float* x, volatile float* y)
{
    if (threadIdx.x == 0) {
        if (blockIdx.x) while (x[blockIdx.x - 1] == 0) {}
        y[blockIdx.x] = x[blockIdx.x];
        x[blockIdx.x] = 1;
    }
}
"""


def cluster(rows: int = 2) -> Trace:
    x = np.ones((rows, 8192), np.float32)
    small = {"CLUSTER": 4, "THREADS": 64, "PACKS": 8}
    bound = bind(source("08_cluster.cu"), rows, 8192, changes=small)
    return bound.simulate(x, x * 0, watch=True)


def test_every_warp_of_a_cluster_writes_to_every_other_block(shown: Shown) -> None:
    trace = cluster()
    mail = sent(trace)
    pairs = {(a, b) for a in range(8) for b in range(8) if a != b and a // 4 == b // 4}
    assert mail.counts == dict.fromkeys(pairs, 2)
    assert mail.groups() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    draw.messages(trace)
    figure, plain, sentence = shown.take()
    assert complaints(figure) == []
    assert plain == "<figure: what blocks send each other>"
    assert " ".join(sentence.split()) == (
        "Each of the 4 blocks sends 2 messages of 8 bytes to each of the others, 24 in all, "
        "through distributed shared memory; 1 more group of blocks does the same."
    )
    assert len(figure.findobj(FancyArrowPatch)) == 12
    assert [text.get_text() for text in texts(figure)].count("2") == 2 + 3  # blocks; counts


def test_a_load_from_another_block_is_a_letter_of_the_one_that_has_it(shown: Shown) -> None:
    x = np.ones(32, np.float32)
    trace = run(KernelText(REACHING, "reaching"), 2, 32, (x, np.zeros(64, np.float32)), watch=True)
    assert not trace.findings and sent(trace).counts == {(0, 1): 5}
    draw.messages(trace)
    figure, _, sentence = shown.take()
    assert sentence.startswith("Block 0 sends 5 messages of 4 bytes to block 1")
    assert complaints(figure) == []


def test_a_chain_is_one_group(shown: Shown) -> None:
    x, y = np.zeros(20, np.float32), np.zeros(20, np.float32)
    trace = run(KernelText(CHAIN, "chain"), 20, 32, (x, y), names=("x", "y"), watch=True)
    assert not trace.findings
    assert sent(trace).counts == {(block, block + 1): 1 for block in range(19)}
    draw.messages(trace)
    figure, _, sentence = shown.take()
    assert complaints(figure) == []
    assert sentence.startswith("19 blocks send 1 message of 4 bytes to 19 blocks, in 19 pairs")
