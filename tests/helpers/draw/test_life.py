"""A block's life, against what the trace says step by step."""

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from helpers import bind, source
from helpers.page import draw
from helpers.page.draw.life import MARKS, SLOTS, lived
from helpers.simt import KernelText
from helpers.simt import simulate as run
from tests.helpers.draw.looks import Shown, complaints, texts

pytestmark = pytest.mark.usefixtures("replay_unless_live")

WAITS = """extern "C" __global__ void waits(const float* x, float* y)
{
    float v = x[threadIdx.x];
    if (threadIdx.x < 32) {
#pragma unroll 1
        for (int k = 0; k < 20; k++) v = __shfl_xor_sync(0xffffffff, v, 1) * 0.5f;
    }
    __syncthreads();
    y[threadIdx.x] = v;
    __syncthreads();
}
"""


@pytest.fixture(scope="module")
def waiting():
    """Warp 0 does something before a barrier, warps 1 and 2 nothing."""
    x = np.ones(96, np.float32)
    return run(KernelText(WAITS, "waits"), 2, 96, (x, x * 0), names=("x", "y"), watch=True)


def test_who_comes_early_waits_until_the_last_has_come(waiting) -> None:
    found = lived(waiting, 1)
    busy, *idle = found.warps.values()
    first, second = found.barriers
    arrival = {
        event.warp: event.step
        for event in reversed(waiting.events)
        if event.kind == "barrier arrive" and event.block[0] == 1
    }
    assert not busy.waits and first == arrival[0] > arrival[1]
    for number, warp in enumerate(idle, 1):
        assert warp.waits == [(arrival[number], first)]
        assert warp.end == busy.end
    assert second > first


def test_marks_stand_in_order_and_after_a_barrier_at_the_same_place(waiting) -> None:
    found = lived(waiting, 0)
    for number, warp in found.warps.items():
        kinds = [what for _, what in warp.marks]
        assert kinds == ["global load", *["shuffle"] * (20 if number == 0 else 0), "global store"]
        assert [when for when, _ in warp.marks] == sorted(when for when, _ in warp.marks)
    assert len({warp.marks[-1] for warp in found.warps.values()}) == 1
    assert found.warps[0].marks[-1][0] > found.barriers[0]


def test_a_cluster_waits_and_writes_elsewhere(shown: Shown) -> None:
    x = np.ones((1, 8192), np.float32)
    small = {"CLUSTER": 4, "THREADS": 64, "PACKS": 8}
    trace = bind(source("08_cluster.cu"), 1, 8192, changes=small).simulate(x, x * 0, watch=True)
    found = lived(trace, 0)
    kinds = {what for warp in found.warps.values() for _, what in warp.marks}
    assert kinds == {*MARKS} and len(found.barriers) == 1
    draw.life(trace)
    assert complaints(shown.take()[0]) == []


def test_a_warp_with_more_loads_in_flight_stalls_as_long_for_each_of_them(shown: Shown) -> None:
    draw.waiting(300, 100)
    figure, _, sentence = shown.take()
    assert complaints(figure) == []
    assert sentence == (
        "For each load, a warp stalls for 300 ns and spends 100 ns on the rest: one load per 400 "
        "ns. With 4 loads in flight and the same latency, it would complete 4 per 700 ns."
    )
    bands = [one for one in figure.findobj(Rectangle) if one.get_height() == 20]
    one, several = bands[0].get_y(), bands[-1].get_y()
    stalls = [(band.get_y(), band.get_width()) for band in bands if band.get_hatch()]
    assert {round(width) for _, width in stalls[:3]} == {round(300 / 1280 * 564)}
    assert [y for y, _ in stalls] == [one] * 4 + [several] * 2
    with pytest.raises(ValueError, match="must be positive"):
        draw.waiting(0, 100)


def test_slots_that_are_not_there_stand_outside(shown: Shown) -> None:
    draw.slots({"wait for a load": 40.2, "wait at a barrier": 5, "do neither": 16.8}, 75.7)
    figure, _, sentence = shown.take()
    assert complaints(figure) == []
    assert sentence.startswith("To keep up with a copy, 76 warps would have to wait for a load at")
    assert sentence.endswith("5 wait at a barrier, 17 do neither; 2 slots are empty.")
    squares = [one for one in figure.findobj(Rectangle) if one.get_height() == 23]
    outside = [one for one in squares if one.get_linestyle() == "--"]
    assert (len(squares), len(outside)) == (SLOTS + 12, 12)
    (sm,) = [one for one in figure.findobj(Rectangle) if one.get_height() > 100]
    for one in squares:
        assert (one.get_x() > sm.get_x() + sm.get_width()) == (one in outside)
    assert "76 would have to" in [one.get_text() for one in texts(figure)]
    draw.slots({"wait for a load": 64}, 64)
    figure = shown.take()[0]
    assert not [one for one in figure.findobj(Rectangle) if one.get_linestyle() == "--"]
    with pytest.raises(ValueError, match="65 warps in 1 states, an SM has 64 slots"):
        draw.slots({"wait for a load": 65}, 64)
