"""The digest of a figure changes with what the figure draws, and with nothing else."""

import copy
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from helpers.catalogue.tuned import load_tuned
from helpers.measure.records import load_record
from helpers.page import draw
from helpers.page.draw import labels, memory, style
from helpers.page.draw.digest import digest_of
from helpers.page.draw.style import FIGURE, PICTURES
from helpers.simt import KernelText, Trace, simulate

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.collections import LineCollection  # noqa: E402
from matplotlib.patches import FancyArrowPatch, Rectangle  # noqa: E402

pytestmark = pytest.mark.usefixtures("replay_unless_live")

SUM = """extern "C" __global__ void sum(const float* x, float* y)
{
    int i = threadIdx.x;
    __shared__ float s[64];
    s[i] = x[2 * i];
    __syncthreads();
    float v = s[i ^ 32];
    v += __shfl_xor_sync(~0, v, 1);
    y[i] = v;
}
"""
ONE_LINE_MORE = SUM.replace("{\n", "{\n    // A comment is enough.\n")
ANOTHER_STRIDE = SUM.replace("2 *", "1 *")
ANOTHER_ORDER = SUM.replace("^ 32", "^ 33")
ANOTHER_BARRIER = SUM.replace("    float", "    __syncthreads();\n    float")
MAIL = """extern "C" __global__ void mail(float* x, float* y)
{
    x[blockIdx.x] = 1.0f;
    __threadfence();
    if (blockIdx.x == 2) y[0] = x[0];
}
"""


POINTS = [point for point in load_tuned("nvidia-h200") if point.problem.dtype == "bfloat16"]
ANOTHER_BLOCK = MAIL.replace("= x[0]", "= x[1]")


@cache
def traced(text: str) -> Trace:
    x, y = np.zeros(128, np.float32), np.zeros(64, np.float32)
    name = "mail" if text in (MAIL, ANOTHER_BLOCK) else "sum"
    return simulate(KernelText(text, name), 3, 64, (x, y), names=("x", "y"), watch=True)


def step(after: str, before: str, family: str) -> Callable:
    """The plot of a record, or of the same with samples of one case changed by hand."""

    def draw_it(changed: bool) -> None:
        record = copy.deepcopy(load_record(after))
        case = record.of_family(family)[0]
        case.samples_us[:] = [(1 + 0.01 * changed) * us for us in case.samples_us]
        draw.step(record, load_record(before), mine=0.5, family=family)

    return draw_it


def of_trace(draw_it: Callable, changed_text: str, *arguments) -> Callable:
    return lambda changed: draw_it(traced(changed_text if changed else SUM), *arguments)


def bars(stacked: bool) -> Callable:
    """Bars; stacked, a value is too wide for its bar in some fonts."""
    return lambda changed: draw.bars(
        {"one": {"a": 9.0 + changed, "b": 0.51}, "two": {"a": 3.0}},
        *("A title that takes two lines in some fonts, since it has so many words in it", "us"),
        "So it is.",
        stacked=stacked,
        limit=("so far", 8),
    )


def curves(changed: bool) -> None:
    lines = {"05_float4": ([1, 2, 4], [3, 4, 5 + changed]), "copy": ([1, 2, 4], [6, 6, 6])}
    draw.curves(lines, "Rates", "columns", "GB/s", "So.", limit=("a limit", 5.5))


def heat(changed: bool) -> None:
    draw.heat([1, 2], [1, 2], [[0.5, 1], [2, 3 + changed]], "Times", "x", "y", "So it is.")


FIGURES = {  # name -> what draws it, from true data or from changed data
    "step": step("06_registers", "05_float4", "grid"),
    "few rows": step("09_grid", "08_cluster", "few"),
    "bars": bars(False),
    "stacked bars": bars(True),
    "curves": curves,
    "heat": heat,
    "machine": lambda changed: draw.machine("warp", "L1" if changed else "L2"),
    "sectors": of_trace(draw.sectors, ONE_LINE_MORE, "x[2 * i]"),
    "sectors touched": lambda changed: draw.sectors(traced(ANOTHER_STRIDE if changed else SUM), 5),
    "banks": of_trace(draw.banks, ONE_LINE_MORE, "s[i ^ 32]"),
    "moves": of_trace(draw.moves, ONE_LINE_MORE),
    "reduction": of_trace(draw.reduction, ONE_LINE_MORE),
    "reduction's order": of_trace(draw.reduction, ANOTHER_ORDER),
    "life": of_trace(draw.life, ANOTHER_BARRIER),
    "owners": of_trace(draw.owners, ANOTHER_STRIDE),
    "plans": lambda changed: draw.plans(POINTS[changed:], "Plans", "So it is."),
    "messages": lambda changed: draw.messages(traced(ANOTHER_BLOCK if changed else MAIL)),
}

# Those whose text is laid out by its width.
DEPEND_ON_FONTS = ("step", "few rows", "stacked bars", "heat", "sectors", "owners", "life")


@pytest.fixture
def digest(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The digest of the figure that a call shows."""
    shown: list[str] = []
    monkeypatch.setattr("IPython.display.display", lambda data, **_: shown.append(data.get(FIGURE)))
    monkeypatch.setenv(PICTURES, "0")

    def of(draw_it: Callable, *arguments) -> str:
        draw_it(*arguments)
        return shown[-2]  # before its caption

    return of


@pytest.mark.parametrize("name", FIGURES)
def test_digest_changes_with_the_data_and_not_with_fonts(name: str, digest) -> None:
    """Versions of Matplotlib measure words differently; another font does so even more."""
    once = digest(FIGURES[name], False)
    if name in DEPEND_ON_FONTS:
        memory._width.cache_clear()
        with matplotlib.rc_context({"font.sans-serif": ["DejaVu Sans Mono"]}):
            assert digest(FIGURES[name], False) == once
        memory._width.cache_clear()
    assert digest(FIGURES[name], True) != once


def drawn(
    order: int = 1,
    last: float = 0.0,
    start: float = 2,
    left: float = 0,
    bent: float = 1,
    edge: float = 1,
    color: str = style.RED,
):
    """A figure with one artist of each kind, without a word that says their places."""
    figure, axes = style.chart("Lines")
    for one in (style.BLUE, color)[::order]:
        axes.plot([1, 2], [0.3, last], color=one)
    axes.annotate("", (1, 0), (start, 0), arrowprops={"arrowstyle": "-|>"})
    axes.add_patch(Rectangle((left, 0), 1, 1))
    axes.add_patch(FancyArrowPatch((0, 0), (1, bent)))
    axes.add_collection(LineCollection([[(0, 0), (1, edge)]]))
    axes.set(xlim=(-1, 4), ylim=(-1, 4))
    ends = [labels.End(3, 1, "long", style.BLUE), labels.End(1, 2, "short", style.BLUE)]
    labels.at_ends(axes, ends[::order])
    return figure


def test_digest_does_not_depend_on_pixels_and_order(digest, monkeypatch) -> None:
    figure = style.chart("Title")[0]
    once = digest_of(figure)
    figure.draw_without_rendering()
    assert digest_of(figure) == once, "the layout moves the title"
    figure = drawn()
    once = digest_of(figure)
    with matplotlib.rc_context({"savefig.dpi": 300}):
        monkeypatch.setenv(PICTURES, "1")
        assert digest(style.finish, figure, "Lines", "So.") == once
    assert digest_of(figure) == digest_of(drawn(order=-1)) == once
    assert digest_of(drawn(last=-0.0)) == once


@pytest.mark.parametrize(
    "change",
    [{"last": 1e-5}, {"start": 3}, {"left": -0.1}, {"bent": 2}, {"edge": 2}, {"color": "#D55E01"}],
)
def test_digest_depends_on_what_no_word_says(change: dict) -> None:
    assert digest_of(drawn(**change)) != digest_of(drawn())


def test_unknown_kind_of_artist_is_refused() -> None:
    figure, axes = style.chart("Pixels")
    axes.imshow([[0, 1]])
    with pytest.raises(TypeError, match="describes no AxesImage"):
        digest_of(figure)
