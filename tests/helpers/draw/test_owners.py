"""Who loads which element, against what the source says."""

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from helpers.page import draw
from helpers.page.draw.owners import BORDER, HUES, LEFT, TOP, WIDTH
from helpers.simt import KernelText
from helpers.simt import simulate as run
from tests.helpers.draw.looks import Shown, complaints, texts

pytestmark = pytest.mark.usefixtures("replay_unless_live")


PAIRS = """extern "C" __global__ void pairs(const float* x, float* y)
{
    const int t = threadIdx.x;
    y[t] = x[t / 2] + x[t ? 0 : 1];
}
"""


def test_rows_that_are_apart_have_their_owners(shown: Shown) -> None:
    """Lane k of block r loads column k of row r, whatever lies between the rows."""
    code = """extern "C" __global__ void copy(const float* x, float* y, int x_stride)
    {
        y[blockIdx.x * 8 + threadIdx.x] = x[blockIdx.x * x_stride + threadIdx.x];
    }
    """
    x, y = np.ones((3, 13), np.float32)[:, 2:10], np.zeros((3, 8), np.float32)
    names = ("x", "y", "x_stride")
    draw.owners(run(KernelText(code, "copy"), 3, 8, (x, y, 13), names=names, watch=True), "lane")
    figure, _, sentence = shown.take()
    assert numbers(figure) == [str(lane) for lane in range(8)] * 3
    assert sentence == "Lane 0 loads column 0 of row 0; a row belongs to 8 lanes of a warp."


def test_a_run_of_rows_has_other_columns_in_each(shown: Shown) -> None:
    """Rows of five columns, moved as one piece in pairs: lane 4 has the end of one row and the
    begin of the next."""
    code = """extern "C" __global__ void copy(const float2* x, float2* y)
    {
        y[threadIdx.x] = x[threadIdx.x];
    }
    """
    x, names = np.ones((20, 5), np.float32), ("x", "y")
    trace = run(KernelText(code, "copy"), 1, 50, (x, x * 0), names=names, watch=True)
    draw.owners(trace)
    assert shown.take()[2] == (
        "Lane 0 of warp 0 loads columns 0 and 1 of row 0; a row belongs to one block of at most 2 "
        "warps."
    )
    small = run(KernelText(code, "copy"), 1, 8, (x[:4], x[:4] * 0), names=names, watch=True)
    draw.owners(small)
    assert "columns 0 and 1 of row 0; a row belongs to at most 3 lanes" in shown.take()[2]
    two = np.ones((4, 3), np.float32), np.ones((4, 3), np.float32)
    code = code.replace("threadIdx.x", "(threadIdx.x + 1)")
    draw.owners(run(KernelText(code, "copy"), 1, 4, two, names=names, watch=True))
    sentence = shown.take()[2]
    assert sentence.startswith("Lane 0 loads column 2 of row 0 and column 0 of row 1; a row")


def test_a_pack_and_a_single_column_of_a_lane_are_two_cells(shown: Shown) -> None:
    code = """extern "C" __global__ void copy(const float* x, float* y)
    {
        const float4 pack = reinterpret_cast<const float4*>(x)[threadIdx.x];
        y[threadIdx.x] = pack.x + pack.w + (threadIdx.x ? 0 : x[8]);
    }
    """
    x, names = np.ones((1, 9), np.float32), ("x", "y")
    draw.owners(run(KernelText(code, "copy"), 1, 2, (x, x * 0), names=names, watch=True))
    figure, _, sentence = shown.take()
    assert numbers(figure) == ["0", "1", "0"] and sentence.startswith("Lane 0 loads columns 0 to 3")
    code = code.replace("? 0 : x[8]", "< 1 ? 0 : x[8]")  # lane 1 has both, beside each other
    draw.owners(run(KernelText(code, "copy"), 1, 2, (x, x * 0), names=names, watch=True))
    assert numbers(shown.take()[0]) == ["0", "1", "1"]


def cells(figure, hatched: bool = False) -> list:
    """Where the owned or the hatched cells are."""
    empty, owned, several = figure.findobj(PolyCollection)
    return [path.get_extents() for path in (several if hatched else owned).get_paths()]


def numbers(figure) -> list[str]:
    """What stands in the cells, from left to right."""
    inside = []
    for text in texts(figure):
        for cell in cells(figure):
            if cell.contains(*text.get_position()):
                inside.append((cell.y0, cell.x0, text.get_text()))
    return [text for _, _, text in sorted(inside)]


def test_what_several_load_is_hatched_and_what_nobody_loads_is_empty(shown: Shown) -> None:
    x, y = np.ones((4, 16), np.float32), np.zeros((4, 16), np.float32)
    trace = run(KernelText(PAIRS, "pairs"), 1, 64, (x, y), names=("x", "y"), watch=True)
    draw.owners(trace)
    figure, _, sentence = shown.take()
    assert len(cells(figure, hatched=True)) == 32
    # Of 32 that are loaded each has a pair of lanes, and nobody loads the others.
    assert "32 of 64 elements belong to more than one lane" in sentence
    assert "no thread loads 32 elements of x" in sentence
    draw.owners(trace, "block")
    figure, _, sentence = shown.take()
    assert numbers(figure) == ["0"] and "more than one" not in sentence
    assert complaints(figure) == []


COPY = """extern "C" __global__ void copy(const float* x, float* y)
{
    y[threadIdx.x] = x[threadIdx.x];
}
"""


def drawn(shown: Shown, shape: tuple[int, ...], threads: int, code: str = COPY, **options):
    """The figure of a kernel with x and y of a shape."""
    x, names = np.ones(shape, np.float32), ("x", "y")
    trace = run(KernelText(code, "copy"), 1, threads, (x, x * 0), names=names, watch=True)
    draw.owners(trace, **options)
    figure, _, sentence = shown.take()
    assert complaints(figure) == []
    return figure, sentence


def colours(figure) -> list[str]:
    return [to_hex(one) for one in figure.findobj(PolyCollection)[1].get_facecolor()]


def test_few_lanes_have_hues_and_many_have_shades(shown: Shown) -> None:
    assert len({*colours(drawn(shown, (1, 8), 8)[0])}) == len(HUES) == 8
    shades = colours(drawn(shown, (1, 32), 32)[0])
    assert len({*shades}) == 32 and not {*shades} & {*colours(drawn(shown, (1, 8), 8)[0])}


def test_the_first_request_is_outlined(shown: Shown) -> None:
    """Of two warps, each with half of four rows."""
    figure, _ = drawn(shown, (4, 16), 64)
    look = BORDER["color"], BORDER["linewidth"]
    lines = [one for one in figure.axes[0].lines if (one.get_color(), one.get_linewidth()) == look]
    corners = np.concatenate([one.get_xydata() for one in lines if not one.get_gid()])
    assert corners.min(axis=0).tolist() == [LEFT, TOP]
    assert corners.max(axis=0).tolist() == [LEFT + WIDTH, TOP + 2 * 26]
    assert len(corners) == 2 * 2 * (16 + 2)  # the ends of each side of a cell


def test_narrow_accesses_have_their_colour_and_packs_their_ticks(shown: Shown) -> None:
    """Rows of five: the pack of each begins one element later than that of the row before."""
    code = """extern "C" __global__ void copy(const float* x, float* y)
    {
        const int t = threadIdx.x, first = 4 * (5 * t / 4 + (5 * t % 4 > 0));
        const float4 pack = *reinterpret_cast<const float4*>(x + first);
        y[t] = pack.x + pack.w + (t < 3 ? x[first == 5 * t ? first + 4 : 5 * t] : 0.0f);
    }
    """
    figure, _ = drawn(shown, (3, 5), 2, code)
    once = colours(figure)
    assert once.count(once[1]) == 2 and numbers(figure) == ["0", "0", "1", "1", "1"]
    lines = [one for one in figure.axes[0].lines if one.get_linewidth() == 1.4]
    ticks = [one.get_xdata()[0] for one in lines if not one.get_gid()]
    assert [round((x - LEFT) / 65) for x in ticks] == [0, 4, 3, 2]  # 26 pixels high, 65 wide


def test_lines_are_those_of_three_dimensions_and_columns_are_reduced(shown: Shown) -> None:
    figure, sentence = drawn(shown, (2, 4, 8), 64, along="column")
    said = [one.get_text() for one in texts(figure)]
    assert {"line", "arrow: reduced along a column"} <= {*said} and "row" not in said
    assert sentence.startswith("Lane 0 of warp 0 loads column 0 of line 0; a column belongs to one")
    with pytest.raises(ValueError, match="along is 'row', 'column', not 'line'"):
        drawn(shown, (1, 8), 8, along="line")
