"""Pictures of memory traffic: what is drawn, what is said of it, and that it can be read."""

from collections import Counter

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from helpers import draw
from helpers.bound import load
from helpers.draw import memory
from helpers.draw.style import BLUE, GREEN, PALE, PINK, RED, ink
from helpers.simt import KernelText, Trace, simulate
from tests.helpers.draw.looks import Shown, complaints, texts


def traced(step: str, rows: int, cols: int, dtype: str = "float32", watch=True) -> Trace:
    x = np.random.default_rng(0).normal(size=(rows, cols)).astype(dtype)
    return load(step).bind(rows, cols, dtype).simulate(x, np.full_like(x, np.nan), watch=watch)


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
BULK = """extern "C" __global__ void bulk(float* y)
{
    __shared__ __align__(16) float s[1024];
    for (int k = threadIdx.x; k < 1024; k += 32) s[k] = k;
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned from = (unsigned)__cvta_generic_to_shared(s);
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
            :: "l"(y), "r"(from), "r"(4096) : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
"""


def others() -> Trace:
    x, y = np.zeros(128, np.float32), np.zeros(1, np.float32)
    trace = simulate(KernelText(OTHER, "other"), 2, 32, (x, y, 3), names=("x", "y"), watch=True)
    assert not trace.findings, str(trace.findings)
    return trace


@pytest.fixture(scope="module")
def naive() -> Trace:
    return traced("01_naive", 64, 256)


@pytest.fixture(scope="module")
def shared() -> Trace:
    return traced("03_shared", 64, 256)


@pytest.fixture(scope="module")
def interleaved() -> Trace:
    return traced("variants/03_shared_interleaved", 2, 1024)


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


def test_a_thread_a_row_beside_a_block_a_row(naive: Trace, shared: Trace, shown: Shown) -> None:
    lines = "fmaxf(row_max, x[col])", "merge(row_max, sum, x[col]"
    draw.sectors({"01": naive, "03": shared}, lines)
    figure, plain, sentence = shown.take()
    assert plain == "<figure: lanes on sectors, 01, line 30 and 03, line 42>"
    assert sentence == (
        "01, line 30, warp 0: one request touches 32 sectors and uses 128 of 1,024 bytes; "
        "03, line 42: 4 sectors, all 128 bytes used."
    )
    assert color_of(figure, "1 request, 32 sectors: 1 byte of 8 is used") == ink(RED)
    assert color_of(figure, "1 request, 4 sectors: every byte is used") == ink(GREEN)
    assert "1,024 bytes from one sector to the next" in [one.get_text() for one in texts(figure)]
    # A box for each word that is asked for, one below each sector, and one each in the legend.
    assert fills(figure)[BLUE] == 32 + 32 + 1 and fills(figure)[memory.WASTE] == 32 + 4 + 1
    assert complaints(figure) == []


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
    draw.sectors(traced("07_warp", 33, 40), "from[pack]")
    figure, _, sentence = shown.take()
    assert pale_lanes(figure) == [*range(10, 16), *range(26, 32)] and len(threads(figure)) == 20
    before, _, _ = load("07_warp").code.partition("from[pack]")  # the first line is a #line
    assert sentence == (
        f"Line {before.count(chr(10))}, warp 0: one request of 20 lanes touches 10 sectors and uses"
        " all 320 bytes."
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
    "step, rows, cols, dtype, line, kind, says",
    [
        ("05_float4", 4, 2048, "float32", "y4[pack]", None, "16 sectors and stores all 512 bytes"),
        ("05_float4", 5, 1001, "float32", "x[single], 1.0f", None, "1 sector and uses 4 of 32"),
        ("07_warp", 40, 37, "float16", "from[pack]", None, "2 sectors and uses all 64 bytes"),
        ("10_sixteen_bit", 32, 512, "float16", "__ldcs", None, "16 sectors and uses all 512"),
        ("08_cluster", 2, 16384, "float32", "__stcs", None, "16 sectors and stores all 512 bytes"),
        ("01_naive", 64, 3, "float32", "y[col]", "store", "12 sectors and stores 128 of 384 bytes"),
    ],
)
def test_other_kernels(step, rows, cols, dtype, line, kind, says, shown: Shown) -> None:
    draw.sectors(traced(step, rows, cols, dtype), line, kind=kind)
    figure, _, sentence = shown.take()
    assert says in sentence and complaints(figure) == []


def test_a_bulk_copy_is_one_lane_and_many_sectors(shown: Shown) -> None:
    args = (np.zeros(1024, np.float32),)
    trace = simulate(KernelText(BULK, "bulk"), 1, 32, args, names=("y",), watch=True)
    draw.sectors(trace, "cp.async.bulk.global")
    figure, _, sentence = shown.take()
    assert "one request of 1 lane touches 128 sectors and stores all 4,096 bytes" in sentence
    assert complaints(figure) == []


def test_a_reader_s_edit_changes_the_picture(shown: Shown) -> None:
    """The classic mistake against its repair, in one line of a kernel of one's own."""
    said = []
    for index in ("threadIdx.x", "threadIdx.x * 8"):
        draw.sectors(gathered_by(index), "x[")
        said.append(shown.take()[2])
    assert "touches 4 sectors" in said[0] and "touches 32 sectors" in said[1]


def gathered_by(index: str) -> Trace:
    code = GATHER.replace("index[threadIdx.x]", index)
    args = np.zeros(2048, np.float32), LANES, np.zeros(32, np.float32)
    return simulate(KernelText(code, "gather"), 1, 32, args, names=("x", "i", "y"), watch=True)


# ---- banks --------------------------------------------------------------------------------------


def test_neighbours_first_wants_few_banks(interleaved: Trace, shown: Shown) -> None:
    for nth, banks in ((0, 16), (2, 8), (4, 4)):
        draw.banks(interleaved, "maxima[mine], sums[mine]", nth=nth)
        figure, _, sentence = shown.take()
        wanted = 32 // banks
        assert sentence == (
            f"Line 50: 32 lanes want {wanted} words of each of {banks} banks: {wanted} turns, "
            "conflict-free would be 1."
        )
        assert fills(figure)[BLUE] == 32 + 1 and complaints(figure) == []
        assert color_of(figure, "1 request") == ink(RED)
        assert len({to for _, to in threads(figure)}) == banks


def test_upper_half_into_lower_half_beside_neighbours_first(
    shared: Trace, interleaved: Trace, shown: Shown
) -> None:
    draw.banks({"03": shared, "other": interleaved}, ("maxima[other]", "maxima[mine]"), nth=2)
    figure, plain, sentence = shown.take()
    assert plain == "<figure: lanes on banks, 03, line 52 and other, line 50>"
    assert sentence == (
        "03, line 52: 32 lanes want 1 word of each of 32 banks: 1 turn, and no bank conflict; "
        "other, line 50: 32 lanes want 4 words of each of 8 banks: 4 turns, conflict-free would "
        "be 1."
    )
    assert color_of(figure, "1 request, 1 turn: no bank conflict") == ink(GREEN)
    assert complaints(figure) == []


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


def test_many_turns_are_cut_short(shown: Shown) -> None:
    draw.banks(within(LANES * 32), "s[index")
    figure, _, sentence = shown.take()
    assert sentence == (
        "Line 6: 32 lanes want 32 words of one bank: 32 turns, conflict-free would be 1."
    )
    said = [one.get_text() for one in texts(figure)]
    assert "21 more turns" in said and "turn 10" in said and "turn 32" in said
    assert fills(figure)[BLUE] == 11 + 1 and "turn 11" not in said
    assert complaints(figure) == []


# ---- moves --------------------------------------------------------------------------------------


def test_what_moves_is_said_in_passes_and_bytes(naive: Trace, shared: Trace, shown: Shown) -> None:
    draw.moves({"01": naive, "03": shared})
    figure, plain, sentence = shown.take()
    assert plain == "<figure: what moves in 01 and 03>"
    assert sentence == (
        "01 reads x three times and writes y once: 65,536 sectors, 8 bytes moved for each one "
        "asked for; 03 reads x twice and writes y once: 6,144 sectors, 1 byte moved for each one "
        "asked for."
    )
    assert color_of(figure, "65,536 sectors, 8 times what is asked for") == ink(RED)
    assert color_of(figure, "6,144 sectors, no more than asked for") == ink(GREEN)
    assert complaints(figure) == []


def test_bars_are_as_long_as_the_counts(naive: Trace, shown: Shown) -> None:
    draw.moves(naive)
    figure = shown.take()[0]
    bars = [one for one in figure.findobj(Rectangle) if one.get_height() == 12]
    lengths = Counter((to_hex(bar.get_facecolor()).upper(), bar.get_width()) for bar in bars)
    # Three loads and a store: an eighth of each is what the bytes need.
    assert lengths == {(memory.WASTE, 200): 4, (BLUE, 25): 4}
    said = [one.get_text() for one in texts(figure)]
    assert said.count("16,384") == 4 and said.count("32 a request") == 4
    assert [text for text in said if text in ("30", "34", "37")] == ["30", "34", "37"]


def test_bank_conflicts_are_more_than_the_bytes_need(interleaved: Trace, shown: Shown) -> None:
    draw.moves(interleaved)
    figure = shown.take()[0]
    counts = [c for c in interleaved.own_counters().values() if c.shared_load_requests]
    said = [one for one in texts(figure) if one.get_text() == "3.92 a request"]
    assert len(said) == 5 and {one.get_color() for one in said} == {ink(RED)}
    assert sum(c.shared_load_bank_conflicts > 0 for c in counts) == 3  # and two lines store so
    assert fills(figure)[memory.WASTE] == 5 + 1 and complaints(figure) == []


def test_every_kind_of_memory_has_its_bar(shown: Shown) -> None:
    trace = others()
    bars = {(bar.kind, bar.color) for bar in memory._bars(trace)}
    assert bars == {
        ("copy", BLUE),
        ("load", RED),
        ("store", RED),
        ("remote", PINK),
        ("atomic", PINK),
    }
    draw.moves(trace)
    figure, _, sentence = shown.take()
    assert "reads x twice and writes y 0 times: 32 sectors" in sentence
    c = trace.counters
    local = f"{c.local_load_sectors + c.local_store_sectors} sectors of local memory"
    assert sentence.endswith(f", and {local}.")
    assert [one.get_color() for one in texts(figure) if "of local" in one.get_text()] == [ink(RED)]
    assert complaints(figure) == []


@pytest.mark.parametrize(
    "step, rows, cols, dtype",
    [
        ("05_float4", 4, 2048, "float32"),
        ("07_warp", 32, 40, "float32"),
        ("08_cluster", 2, 16384, "float32"),
        ("09_grid", 1, 65536, "float32"),
        ("10_sixteen_bit", 32, 512, "float16"),
    ],
)
def test_moves_of_other_kernels(step, rows, cols, dtype, shown: Shown) -> None:
    draw.moves(traced(step, rows, cols, dtype, watch=()))  # counters are enough
    figure, _, sentence = shown.take()
    assert "writes y once" in sentence and complaints(figure) == []
    assert ("(workspace counted with them)" in sentence) == (step == "09_grid")
    (verdict,) = [one for one in texts(figure) if "no more than asked for" in one.get_text()]
    assert verdict.get_color() == ink(GREEN)
    bars = [one.get_width() for one in figure.findobj(Rectangle) if one.get_height() == 12]
    assert min(bars) >= 1  # a short one is seen too


def test_a_kernel_that_moves_nothing_is_refused() -> None:
    code = 'extern "C" __global__ void idle(float* y) {}'
    trace = simulate(KernelText(code, "idle"), 1, 32, (np.zeros(1, np.float32),))
    with pytest.raises(ValueError, match="no line of its own"):
        draw.moves(trace)


# ---- words --------------------------------------------------------------------------------------


def test_long_names_and_code_are_cut_short(naive: Trace, shown: Shown) -> None:
    label = "a thread for each row, as a first attempt would have it"
    draw.sectors({label: naive}, 30)
    draw_texts = shown.take()
    assert complaints(draw_texts[0]) == [] and label in draw_texts[2]
    assert any(one.get_text().endswith("…") for one in texts(draw_texts[0]))
