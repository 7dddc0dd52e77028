"""Pictures of memory traffic: what is drawn, what is said of it, and that it can be read."""

from collections import Counter

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from helpers.page import draw
from helpers.page.draw import memory
from helpers.page.draw.style import BLUE, GREEN, PALE, PINK, RED, ink
from helpers.run.bound import load
from helpers.simt import KernelText, Trace, lines_of, simulate
from tests.helpers.draw.looks import Shown, complaints, texts


def traced(step: str, rows: int, cols: int) -> Trace:
    x = np.random.default_rng(0).normal(size=(rows, cols)).astype(np.float32)
    return load(step).bind(rows, cols).simulate(x, np.full_like(x, np.nan), watch=True)


GATHER = """extern "C" __global__ void gather(const float* x, const int* index, float* y)
{
    y[threadIdx.x] = x[index[threadIdx.x]];
}
"""
LANES = np.arange(32, dtype=np.int32)


def gathered(index: np.ndarray, past: int = 0) -> Trace:
    """x[index[lane]], where x starts so many elements past a multiple of 256 bytes."""
    x, y = np.zeros(2048 + past, np.float32)[past:], np.zeros(32, np.float32)
    args = x, index.astype(np.int32), y
    return simulate(
        KernelText(GATHER, "gather"), 1, 32, args, names=("x", "index", "y"), watch=True
    )


SPACE = """extern "C" __global__ void space(float4* y, const int* index)
{
    __shared__ TYPE s[1024];
    for (int k = threadIdx.x; k < 1024; k += 32) s[k] = TYPE{};
    __syncthreads();
    ((TYPE*)y)[threadIdx.x] = s[index[threadIdx.x]];
}
"""


def within(index: np.ndarray, element: str = "float") -> Trace:
    """s[index[lane]] of shared memory."""
    kernel = KernelText(SPACE.replace("TYPE", element), "space")
    args = np.zeros(128, np.float32), index.astype(np.int32)
    return simulate(kernel, 1, 32, args, names=("y", "index"), watch=True)


OTHER = """#include <cooperative_groups.h>
extern "C" __global__ __cluster_dims__(2) void other(const float* x, float* y, int n)
{
    __shared__ __align__(16) float s[128];
    auto cluster = cooperative_groups::this_cluster();
    int place[40];
    for (int k = 0; k < 40; k++) place[k] = (k * n) % 40;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
        :: "r"((unsigned)__cvta_generic_to_shared(&s[4 * threadIdx.x])), "l"(x + 4 * threadIdx.x));
    asm volatile("cp.async.wait_all;" ::: "memory");
    cluster.sync();
    float far = cluster.map_shared_rank(s, blockIdx.x ^ 1)[threadIdx.x];
    atomicAdd(y, far + place[(threadIdx.x * n) % 40]);
    cluster.sync();
}
"""


def others() -> Trace:
    x, y = np.zeros(128, np.float32), np.zeros(1, np.float32)
    trace = simulate(KernelText(OTHER, "other"), 2, 32, (x, y, 3), names=("x", "y"), watch=True)
    assert not trace.findings, str(trace.findings)
    return trace


def fills(figure: Figure, kind=Rectangle) -> Counter:
    """How many rectangles there are of each fill."""
    return Counter(to_hex(one.get_facecolor()).upper() for one in figure.findobj(kind))


def pale_lanes(figure: Figure) -> list[int]:
    """Lanes whose circle is pale, that of the legend left out."""
    circles = [one for one in figure.findobj(Circle) if one.radius > 8]
    return [n for n, one in enumerate(circles) if to_hex(one.get_edgecolor()).upper() == PALE]


def threads(figure: Figure) -> list[tuple[float, float]]:
    """(where it starts, where it ends) across the page, of each line from a lane."""
    lines = [line for line in figure.axes[0].lines if line.get_alpha() == 0.7]
    return [tuple(line.get_xdata()) for line in lines]


def color_of(figure: Figure, start: str) -> str:
    (found,) = [one for one in texts(figure) if one.get_text().startswith(start)]
    return found.get_color()


# ---- sectors ------------------------------------------------------------------------------------


def test_lanes_lead_to_what_they_ask_for(shown: Shown) -> None:
    draw.sectors(gathered(31 - LANES), "x[index", nth=1)  # the first load is that of the index
    ends = [to for _, to in threads(shown.take()[0])]
    assert len(ends) == 32 and ends == sorted(ends, reverse=True)
    draw.sectors(gathered(0 * LANES + 5), "x[index", nth=1)
    figure, _, sentence = shown.take()
    assert len({to for _, to in threads(figure)}) == 1
    assert sentence == "Line 3, warp 0: one request touches 1 sector and uses 4 of 32 bytes."
    # One sector is the fewest: little of it is used, but no other access would fetch less.
    assert color_of(figure, "1 request") not in (ink(RED), ink(GREEN))


def test_lanes_that_take_no_part_are_pale_and_lead_nowhere(shown: Shown) -> None:
    draw.sectors(traced("07_warp-LANES16", 33, 40), "from[pack]")
    figure, _, sentence = shown.take()
    assert pale_lanes(figure) == [*range(10, 16), *range(26, 32)] and len(threads(figure)) == 20
    own = next(iter(lines_of(load("07_warp").code).values()))
    line = next(number for number, text in own.items() if "from[pack]" in text)
    assert sentence == (
        f"Line {line}, warp 0: one request of 20 lanes touches 10 sectors and uses all 320 bytes."
    )
    assert "takes no part" in [one.get_text() for one in texts(figure)]
    assert complaints(figure) == []


def test_an_array_that_starts_in_the_middle_of_a_sector_takes_one_more(shown: Shown) -> None:
    draw.sectors(gathered(LANES, past=3), "x[index", nth=1)
    figure, _, sentence = shown.take()
    assert "5 sectors and uses 128 of 160 bytes" in sentence
    assert color_of(figure, "1 request, 5 sectors: 128 of 160 bytes") == ink(RED)
    assert "12 bytes before x" in [one.get_text() for one in texts(figure)]
    assert complaints(figure) == []


def test_gaps_are_marked_where_memory_is_left_out(shown: Shown) -> None:
    def marks(index: np.ndarray) -> int:
        draw.sectors(gathered(index), "x[index", nth=1)
        figure = shown.take()[0]
        assert complaints(figure) == []
        return sum(line.get_linestyle() == ":" for line in figure.axes[0].lines)

    assert marks(LANES) == 0
    assert marks(np.where(LANES < 16, LANES, 400 + LANES)) == 1
    assert marks(LANES * 64) == 31
    assert marks(LANES * 7 % 200) == 0  # every sector from 0 to 24 is wanted


@pytest.mark.parametrize(
    "index, sectors",
    [(LANES, 4), (LANES * 2, 8), (LANES * 64, 32), (LANES // 16 * 400, 2)],
)
def test_a_sector_has_one_size_in_every_figure(index, sectors: int, shown: Shown) -> None:
    draw.sectors(gathered(index), "x[index", nth=1)
    boxes = [one for one in shown.take()[0].findobj(Rectangle) if one.get_height() == 28]
    outlines = [one.get_width() for one in boxes if one.get_edgecolor()[3]]
    assert outlines == [16] * sectors


# ---- banks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index, element, blue, green, says",
    [
        (LANES * 0, "float", 0, 1, "32 lanes want 1 word of one bank: 1 turn, and no bank"),
        (LANES // 16, "float", 0, 2, "want 1 word of each of 2 banks: 1 turn"),
        (LANES // 16 * 32 + LANES // 24, "float", 0, 3, "want 3 words, 2 of them of one bank: 2"),
        (LANES, "short", 0, 16, "want 1 word of each of 16 banks: 1 turn"),
        (LANES, "float4", 32, 0, "16 bytes each, and 8 lanes are served at once: 4 turns, and no"),
        (LANES * 2, "float2", 32, 0, "and 16 lanes are served at once: 4 turns, conflict-free wou"),
        (LANES // 2, "float4", 0, 16, "and 16 lanes are served at once: 2 turns, and no bank con"),
        (LANES % 4 * 8, "float4", 0, 16, "8 lanes are served at once: 16 turns, conflict-free"),
        (LANES % 2 * 31, "float", 0, 2, "want 1 word of each of 2 banks: 1 turn"),
    ],
)
def test_words_that_lanes_share(index, element, blue, green, says, shown: Shown) -> None:
    draw.banks(within(index, element), "s[index", kind="load")
    figure, _, sentence = shown.take()
    assert says in sentence and complaints(figure) == []
    drawn = fills(figure)
    cut = 5 * 1 if "16 turns" in sentence else 0  # turns that are left out serve one word each
    assert drawn[BLUE] == blue + (blue > 0) and drawn[GREEN] == green - cut + (green > 0)


# ---- moves --------------------------------------------------------------------------------------


def test_bars_are_as_long_as_the_counts(shown: Shown) -> None:
    draw.moves(traced("01_naive", 64, 256))
    figure = shown.take()[0]
    bars = [one for one in figure.findobj(Rectangle) if one.get_height() == 12]
    lengths = Counter((to_hex(bar.get_facecolor()).upper(), bar.get_width()) for bar in bars)
    # Three loads and a store: an eighth of each is what the bytes need.
    assert lengths == {(memory.WASTE, 200): 4, (BLUE, 25): 4}
    said = [one.get_text() for one in texts(figure)]
    assert said.count("16,384") == 4 and said.count("32 per request") == 4
    assert [text for text in said if text in ("30", "34", "37")] == ["30", "34", "37"]


def test_every_kind_of_memory_has_its_bar(shown: Shown) -> None:
    trace = others()
    found = {(bar.kind, bar.color) for bar in memory._bars(trace)}
    pairs = zip("copy load store remote atomic".split(), (BLUE, RED, RED, PINK, PINK), strict=True)
    assert found == {*pairs}
    draw.moves(trace)
    figure, _, sentence = shown.take()
    assert "reads x twice and writes y 0 times: 32 sectors" in sentence
    c = trace.counters
    local = f"{c.local_load_sectors + c.local_store_sectors} sectors of local memory"
    assert sentence.endswith(f", and {local}.")
    assert [one.get_color() for one in texts(figure) if "of local" in one.get_text()] == [ink(RED)]
    assert complaints(figure) == []
