"""The one style of figures in the series.

Colours are Okabe and Ito's, which readers with any kind of colour vision tell apart; lines are
labelled at their ends, and every figure has the table of its numbers beside it.

Figures show one dtype and the shapes of one name, as tables do (`helpers.tables`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from . import peers
from .catalogue import UNFUSED
from .races import RaceCase
from .records import Case, Record
from .replay import recorded_beside
from .shapes import FEW_SHAPES, Shape, place
from .tables import in_dtype

if TYPE_CHECKING:  # recording needs no matplotlib, so it is imported where a figure is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

BLUE, GREY, BLACK = "#0072B2", "#999999", "#000000"
SERIES = ("#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#0072B2", "#F0E442")
STYLE = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "text.color": "black",
    "axes.labelcolor": "black",
    "xtick.color": "black",
    "ytick.color": "black",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "font.size": 11,
    "figure.dpi": 100,
    "figure.figsize": (8.4, 4.4),
}


# ---- steps --------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A record in a figure."""

    record: Record
    label: str
    color: str
    style: dict = {}


def plot_step(
    current: Record,
    previous: Record | None = None,
    log: bool = False,
    dtype: str = "float32",
    shapes: str = "grid",
) -> None:
    """Draw a step (blue), the previous one (grey) and the copy ceiling (dashed) over row length;
    for few rows bars of microseconds.

    A live measurement is drawn beside the reference GPU's record (dotted). Shows the figure and
    returns None, so that it can end a cell.
    """
    import matplotlib.pyplot as plt

    if not current.of_family(shapes, dtype):
        print(f"{current.step}{in_dtype(dtype)}: not measured at these shapes")
        return
    lines = [Line(previous, previous.step, GREY)] if previous else []
    lines.append(Line(current, current.step, BLUE))
    for number, beside in enumerate(recorded_beside(current)):
        style = {"linestyle": ":", "linewidth": 1}
        lines.append(Line(beside, f"record: {beside.label}", SERIES[number % 5], style))
    title = f"{current.step} against {previous.step}" if previous else current.step
    _draw(title + in_dtype(dtype), current, lines, log, dtype, shapes)
    plt.show()


def plot_series(
    records: Sequence[Record],
    log: bool = True,
    dtype: str = "float32",
    shapes: str = "grid",
) -> Figure:
    """All steps that have such cases in one figure; returns the figure for saving.

    The last one is blue, the five before it have a colour each; what came earlier, and the array
    version, is grey. Raises `ValueError` if none has such cases.
    """
    shown = [record for record in records if record.of_family(shapes, dtype)]
    if not shown:
        raise ValueError(f"no record holds {shapes} cases in {dtype}")
    colored = [record.step for record in shown if record.step != UNFUSED][-6:-1]
    colors = {**dict(zip(colored, SERIES, strict=False)), shown[-1].step: BLUE}
    style = {"marker": None} if shapes == "sweep" else {}
    lines = [Line(record, record.step, colors.get(record.step, GREY), style) for record in shown]
    what = {"sweep": "4096 rows", "few": "few rows"}.get(shapes, "2^28 elements")
    title = f"Softmax step by step, {what}{in_dtype(dtype)}"
    return _draw(title, shown[-1], lines, log, dtype, shapes).figure


def _draw(
    title: str, current: Record, lines: Sequence[Line], log: bool, dtype: str, shapes: str
) -> Axes:
    """Every line's cases, and the copy as it was timed with those of the current record's GPU."""
    gpu = current.device["name"]
    timed = [line.record for line in lines if line.record.device["name"] == gpu]
    known = {
        case.shape: case for record in (*timed, current) for case in record.of_family(shapes, dtype)
    }
    order = FEW_SHAPES.index if shapes == "few" else itemgetter(1)  # columns
    copies = [known[shape] for shape in sorted(known, key=order)]
    if shapes == "few":
        return _draw_few(title, current, lines, dtype, copies)
    axes = bandwidth_axes(title, current.label, log, dtype, linear=shapes == "sweep")
    add_ceiling(axes, copies)
    for record, label, color, style in lines:
        if cases := record.of_family(shapes, dtype):
            add_line(axes, cases, label, color, **style)
    finish(axes)
    return axes


def _draw_few(
    title: str, current: Record, lines: Sequence[Line], dtype: str, copies: Sequence[Case]
) -> Axes:
    """Bars of microseconds at each of the few-row shapes, the copy first."""
    axes = empty_axes(title)
    axes.set_ylabel("microseconds a call")
    axes.set_xlabel(f"rows x columns; {current.label}")
    bars = [("copy", BLACK, {case.shape: case.copy_us for case in copies})]
    for record, label, color, _ in lines:
        times = {case.shape: case.median_us for case in record.of_family("few", dtype)}
        bars.append((label, color, times))
    add_bars(axes, [case.shape for case in copies], bars)
    return axes


# ---- the race -----------------------------------------------------------------------------------


def plot_race(cases: Sequence[RaceCase], title: str = "Share of a copy") -> None:
    """Draw share of the same-size copy over columns: ours bold and blue, each peer in a colour; for
    few rows as bars, ours first.

    The cases should be of one dtype and one family, such as 2^28 elements each. Shows the figure
    and returns None, so that it can end a cell. Raises `ValueError` if there are none.
    """
    import matplotlib.pyplot as plt

    if not cases:
        raise ValueError("no cases to plot")
    axes = empty_axes(title)
    axes.set_ylabel("bandwidth / bandwidth of a same-size copy")
    axes.axhline(1, color=BLACK, linestyle="--", linewidth=1.5)
    shares = {
        name: {case.shape: case.share(name) for case in cases if name in case.samples_us}
        for name in peers.PEERS
    }
    colors = dict(zip(shares, (*SERIES[:5], GREY), strict=True))
    timed = [(name, colors[name], values) for name, values in shares.items() if values]
    ours = ("ours", BLUE, {case.shape: case.share(case.step) for case in cases})
    if all(case.shape in FEW_SHAPES for case in cases):
        axes.set_xlabel(f"rows x columns, {cases[0].dtype}")
        add_bars(axes, [case.shape for case in cases], [ours, *timed])
    else:
        axes.set_xlabel(f"columns (row length), {cases[0].dtype}")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
        for name, color, values in (*timed, ours):
            cols, heights = zip(*sorted((cols, y) for (_, cols), y in values.items()), strict=True)
            width = 3.5 if name == "ours" else 1.5
            axes.plot(cols, heights, color=color, marker="o", markersize=4, linewidth=width)
            add_label(axes, cols[-1], heights[-1], name, color)
        finish(axes)
    plt.show()


# ---- drawing ------------------------------------------------------------------------------------


def tile(
    axes: Axes,
    left: float,
    top: float,
    width: float,
    height: float,
    fill: str,
    text: str = "",
    edge: str = "white",
    **style,
) -> None:
    """A rectangle with a text in its middle, in units of the axes; `style` is that of the text."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((left, top), width, height, facecolor=fill, edgecolor=edge))
    style = {"ha": "center", "va": "center", "fontsize": 9, **style}
    axes.text(left + width / 2, top + height / 2, text, **style)


def empty_axes(title: str) -> Axes:
    """A new figure in the style of the series."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        _, axes = plt.subplots(layout="constrained")
    axes.set_title(title, loc="left", fontweight="bold")
    return axes


def bandwidth_axes(title: str, origin: str, log: bool, dtype: str, linear: bool) -> Axes:
    """An empty figure of GB/s over row length; `linear` says that of the columns' axis."""
    axes = empty_axes(title)
    size = np.dtype(dtype).itemsize
    axes.set_ylabel(f"GB/s (2 x rows x cols x {size} bytes / time)")
    axes.set_xlabel(f"columns (row length); {origin}")
    if not linear:
        axes.set_xscale("log", base=2)
    if log:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    return axes


def add_line(axes: Axes, cases: Sequence[Case], label: str, color: str, **style) -> None:
    """One kernel's bandwidth with min-max bars, labelled at the right end of its line."""
    cols = [case.cols for case in cases]
    middle = [case.gbps for case in cases]
    below = [case.gbps - case.bytes / max(case.samples_us) / 1e3 for case in cases]
    above = [case.bytes / min(case.samples_us) / 1e3 - case.gbps for case in cases]
    style = {"marker": "o", "markersize": 4, "linewidth": 2, **style}
    axes.errorbar(cols, middle, yerr=[below, above], color=color, capsize=2, **style)
    add_label(axes, cols[-1], middle[-1], label, color)


def add_ceiling(axes: Axes, cases: Sequence[Case]) -> None:
    """The same-size copy, dashed."""
    cols, rates = [case.cols for case in cases], [case.copy_gbps for case in cases]
    axes.plot(cols, rates, color=BLACK, linestyle="--", linewidth=1.5)
    add_label(axes, cols[-1], rates[-1], "copy", BLACK)


def add_bars(
    axes: Axes,
    shapes: Sequence[Shape],
    bars: Sequence[tuple[str, str, dict[Shape, float]]],
) -> None:
    """A group of bars for each shape, with their values above them.

    `bars` are (label, color, shape -> value); what has no value at a shape has no bar there.
    """
    width = 0.8 / len(bars)
    for number, (label, color, values) in enumerate(bars):
        known = [shape for shape in shapes if shape in values]
        if not known:
            continue
        left = [shapes.index(shape) - 0.4 + (number + 0.5) * width for shape in known]
        drawn = axes.bar(left, [values[shape] for shape in known], width, color=color, label=label)
        digits = 1 if max(values.values()) >= 2 else 2
        turned = 90 if len(bars) > 4 else 0  # else the values of narrow bars would overlap
        clear = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        texts = axes.bar_label(drawn, fmt=f"%.{digits}f", fontsize=8, padding=2, rotation=turned)
        for text in texts:
            text.set_bbox(clear)
    axes.set_xticks(range(len(shapes)), [place(*shape) for shape in shapes])
    axes.grid(visible=False, axis="x")
    axes.margins(y=0.12)  # room for the values of the highest bars
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def add_label(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    axes.annotate(
        text,
        (x, y),
        xytext=(8, 0),
        textcoords="offset points",
        color=color,
        va="center",
        fontweight="bold",
        annotation_clip=False,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
    )


def _is_crossed(axes: Axes, label: Annotation) -> bool:
    """Whether a line goes through a label."""
    box = label.get_window_extent()
    paths = (line.get_path().transformed(line.get_transform()) for line in axes.lines)
    return any(path.intersects_bbox(box, filled=False) for path in paths)


def finish(axes: Axes) -> None:
    """Start a linear axis at zero, and put labels where they hide neither lines nor each other."""
    axes.figure.canvas.draw()
    right = max(label.xy[0] for label in axes.texts)
    early = [label for label in axes.texts if label.xy[0] < right and _is_crossed(axes, label)]
    for label in early:  # other lines go on behind this one's end
        label.set(position=(0, 8), ha="right", va="bottom")
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.06)
    elif early:
        axes.set_ylim(top=axes.get_ylim()[1] * 1.3)
    axes.figure.canvas.draw()
    placed = []
    for label in sorted(axes.texts, key=lambda label: label.get_window_extent().y0):
        box = label.get_window_extent()
        below = [other.y1 for other in placed if other.x0 < box.x1 and box.x0 < other.x1]
        shift = max([0.0, *(top + 0.05 * box.height - box.y0 for top in below)])
        x, y = label.get_position()
        label.set_position((x, y + shift * 72 / axes.figure.dpi))
        placed.append(box.translated(0, shift))
