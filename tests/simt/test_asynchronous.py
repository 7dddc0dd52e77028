"""Clusters and what is sent within them, beside the planted bugs of tests/simt/launches.py."""

import cupy
import numpy as np

from helpers.simt import simulate
from tests.simt.launching import MBARRIERS

X = np.arange(1, 1025, dtype=np.float32)

SENT = (
    MBARRIERS
    + """
extern "C" __global__ __cluster_dims__(2) void sent(const float* x, float* y)
{
    __shared__ float s[64];
    __shared__ Barrier full;
    const int t = threadIdx.x, i = blockIdx.x * 64 + t;
    if (t == 0) {
        init(&full, 1);
        EXPECT(&full, 256);
    }
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    if (blockIdx.x & 1) {
        unsigned to, bar;
        asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(to) : "r"(place(&s[t])));
        asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(bar) : "r"(place(&full)));
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::
                         "r"(to), "f"(x[i]), "r"(bar) : "memory");
    } else if (WAITS) {
        WAIT(&full, 0);
        y[i] = s[t];
    }
}
"""
)


def test_who_waits_for_what_it_is_sent_needs_no_barrier_at_its_end() -> None:
    """A receiver that waits cannot have ended before it got what it waited for."""
    x, y = X[:256].astype(np.float32), np.zeros(256, np.float32)
    waiting = cupy.RawKernel(SENT, "sent", options=("-DWAITS=1",))
    trace = simulate(waiting, 4, 64, (x, y))
    assert not trace.findings, str(trace.findings)
    received = y.reshape(2, 2, 64)[:, 0]
    assert np.array_equal(received, x.reshape(2, 2, 64)[:, 1])
    careless = cupy.RawKernel(SENT, "sent", options=("-DWAITS=0",))
    kinds = {finding.kind for finding in simulate(careless, 4, 64, (x, y)).findings}
    assert "shared memory of a block that may have ended" in kinds
