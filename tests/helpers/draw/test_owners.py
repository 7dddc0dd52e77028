"""Who loads which element, against what the source says."""

import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from helpers.page import draw
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
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    trace = run(KernelText(PAIRS, "pairs"), 1, 64, (x, y), names=("x", "y"), watch=True)
    draw.owners(trace, rows=4, cols=16)
    figure, _, sentence = shown.take()
    assert len(cells(figure, hatched=True)) == 32
    # Of 32 that are loaded each has a pair of lanes, and nobody loads the others.
    assert "32 of 64 elements belong to more than one lane" in sentence
    assert "no thread loads 32 elements of x" in sentence
    draw.owners(trace, "block", rows=4, cols=16)
    figure, _, sentence = shown.take()
    assert numbers(figure) == ["0"] and "more than one" not in sentence
    assert complaints(figure) == []
