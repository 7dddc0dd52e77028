"""The one plot style and the one table of the series.

Colours are Okabe and Ito's, which readers with any kind of colour vision tell apart; lines are
labelled at their ends, and every figure has the table of its numbers beside it.

Tables and figures show one dtype and the shapes of one name:

    "grid"   2^28 elements, rows of 32 to 32768 columns
    "long"   the grid and, on the same axis, the long rows of up to 1048576 columns
    "few"    few rows: in microseconds, because what a launch costs is the question there
    "sweep"  4096 rows of 256 to 12672 columns
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .records import (
    CROSSOVER_SHAPES,
    EVEN_SHAPE,
    FEW_SHAPES,
    GRID_SHAPES,
    REFERENCE_SHAPE,
    SWEEP_SHAPES,
    UNFUSED,
    Case,
    Record,
    predictions,
)
from .replay import recorded_beside

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


# ---- cases ------------------------------------------------------------------------------------

# Name -> the families of shapes that it means.
SHAPES = {"grid": ("grid",), "long": ("grid", "long"), "few": ("few",), "sweep": ("sweep",)}


def cases_of(record: Record, shapes: str = "grid", dtype: str = "float32") -> list[Case]:
    """The recorded cases of a dtype at the shapes of that name: by columns, few rows in the order
    of `FEW_SHAPES`. Raises `KeyError` for a name that there is not."""
    wanted = SHAPES[shapes]
    found = [case for case in record.cases if case.dtype == dtype and family(case) in wanted]
    if shapes == "few":
        return sorted(found, key=lambda case: FEW_SHAPES.index(case.shape))
    return sorted(found, key=lambda case: case.cols)


def family(case: Case) -> str:
    """The family of a case's shape; "other" if no figure shows it. A smaller GPU records the grid
    and the long rows with fewer rows, so these two are told apart by their columns."""
    if case.shape in FEW_SHAPES:
        return "few"
    if case.shape in (*CROSSOVER_SHAPES, EVEN_SHAPE):
        return "other"
    if case.shape in SWEEP_SHAPES:
        return "sweep"
    return "grid" if case.cols <= GRID_SHAPES[-1][1] else "long"


def predicted_at(step: str) -> tuple[int, int, str]:
    """(rows, cols, dtype) of a step's prediction: `REFERENCE_SHAPE` and float32 unless it names
    others."""
    expected, (rows, cols) = predictions().get(step, {}), REFERENCE_SHAPE
    return expected.get("rows", rows), expected.get("cols", cols), expected.get("dtype", "float32")


def headline(record: Record) -> Case:
    """The case that stands for a step: the one that was predicted, or if there is none, its longest
    rows in the first dtype of the record."""
    try:
        return record.case(*predicted_at(record.step))
    except KeyError:
        return cases_of(record, "long", record.cases[0].dtype)[-1]


def in_series(record: Record) -> bool:
    """Whether a step belongs in one figure with all others: it takes float32 and is not made for
    few rows."""
    return bool(cases_of(record)) and family(headline(record)) != "few"


# ---- tables -----------------------------------------------------------------------------------


def table(
    current: Record,
    previous: Record | None = None,
    dtype: str = "float32",
    shapes: str = "grid",
) -> str:
    """GB/s of a step beside the copy of the same size, one row a shape; for few rows microseconds
    of both, and how many more the step takes.

    "spread" is (slowest - fastest) / median of the replays. "x previous" is how many times
    faster the step is than the previous one, "-" where that has no such case.
    """
    cases = cases_of(current, shapes, dtype)
    title = f"{current.step}{_in(dtype)}, {current.origin()}"
    if not cases:
        return f"{title}: not measured at these shapes"
    few = shapes == "few"
    wide = max(6, *(len(str(case.cols)) for case in cases))
    units = f"{'us':>8} {'copy us':>8} {'us more':>8}" if few else f"{'copy GB/s':>10} {'GB/s':>8}"
    head = f"{'rows':>8} {'cols':>{wide}} {units} {'spread':>7} {'of copy':>8}"
    if previous is not None:
        name = f"{previous.step}, us" if few else previous.step
        last = max(12, len(name))
        head += f" {name:>{last}} {'x previous':>11}"
    lines = [title, head]
    for case in cases:
        line = f"{case.rows:8} {case.cols:{wide}} "
        if few:
            more = case.median_us - case.copy_us
            line += f"{case.median_us:8.2f} {case.copy_us:8.2f} {more:8.2f} "
        else:
            line += f"{case.copy_gbps:10.0f} {case.gbps:8.0f} "
        line += f"{case.spread:7.1%} {case.share:8.3f}"
        if previous is not None:
            try:
                before = previous.case(*case.shape, dtype)
            except KeyError:
                line += f" {'-':>{last}} {'-':>11}"
            else:
                rate = f"{before.median_us:.2f}" if few else f"{before.gbps:.0f}"
                line += f" {rate:>{last}} {before.median_us / case.median_us:11.2f}"
        lines.append(line)
    return "\n".join(lines)


def ledger(records: Sequence[Record]) -> str:
    """Predicted against measured share of a copy, where each prediction was made: at
    `REFERENCE_SHAPE` in float32, or at the shape and in the dtype that the prediction names."""
    where = [predicted_at(record.step) for record in records]
    places = [
        f"{rows:>8} x {cols:<4}" + (f" {dtype}" if dtype != "float32" else "")
        for rows, cols, dtype in where
    ]
    wide = max(map(len, places), default=0)
    lines = [
        f"{'':30} {'shape':>{wide}} {'predicted':>10} {'measured':>9} {'measured / predicted':>21}"
    ]
    for record, case_of, place in zip(records, where, places, strict=True):
        try:
            share = record.case(*case_of).share
        except KeyError:
            lines.append(f"{record.step:30} {place} not measured here")
            continue
        expected = predictions()[record.step]["share"]
        lines.append(
            f"{record.step:30} {place:{wide}} {expected:10.2f} {share:9.3f} "
            f"{share / expected:21.2f}"
        )
    return "\n".join(lines)


def _in(dtype: str) -> str:
    """What a title adds for a dtype that is not the usual one."""
    return f" in {dtype}" if dtype != "float32" else ""


# ---- figures ----------------------------------------------------------------------------------


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

    if not cases_of(current, shapes, dtype):
        print(f"{current.step}{_in(dtype)}: not measured at these shapes")
        return
    lines = [Line(previous, previous.step, GREY)] if previous else []
    lines.append(Line(current, current.step, BLUE))
    for number, beside in enumerate(recorded_beside(current)):
        style = {"linestyle": ":", "linewidth": 1}
        lines.append(Line(beside, f"record: {beside.label}", SERIES[number % 5], style))
    title = f"{current.step} against {previous.step}" if previous else current.step
    _draw(title + _in(dtype), current, lines, log, dtype, shapes)
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
    shown = [record for record in records if cases_of(record, shapes, dtype)]
    if not shown:
        raise ValueError(f"no record holds {shapes} cases in {dtype}")
    colored = [record.step for record in shown if record.step != UNFUSED][-6:-1]
    colors = {**dict(zip(colored, SERIES, strict=False)), shown[-1].step: BLUE}
    style = {"marker": None} if shapes == "sweep" else {}
    lines = [Line(record, record.step, colors.get(record.step, GREY), style) for record in shown]
    what = {"sweep": "4096 rows", "few": "few rows"}.get(shapes, "2^28 elements")
    title = f"Softmax step by step, {what}{_in(dtype)}"
    return _draw(title, shown[-1], lines, log, dtype, shapes).figure


def _draw(
    title: str, current: Record, lines: Sequence[Line], log: bool, dtype: str, shapes: str
) -> Axes:
    """Every line's cases, and the copy as it was timed with those of the current record's GPU."""
    gpu = current.device["name"]
    timed = [line.record for line in lines if line.record.device["name"] == gpu]
    known = {
        case.shape: case for record in (*timed, current) for case in cases_of(record, shapes, dtype)
    }
    order = FEW_SHAPES.index if shapes == "few" else itemgetter(1)  # columns
    copies = [known[shape] for shape in sorted(known, key=order)]
    if shapes == "few":
        return _draw_few(title, current, lines, dtype, copies)
    axes = bandwidth_axes(title, current.label, log, dtype, linear=shapes == "sweep")
    add_ceiling(axes, copies)
    for record, label, color, style in lines:
        if cases := cases_of(record, shapes, dtype):
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
        times = {case.shape: case.median_us for case in cases_of(record, "few", dtype)}
        bars.append((label, color, times))
    add_bars(axes, [case.shape for case in copies], bars)
    return axes


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
    shapes: Sequence[tuple[int, int]],
    bars: Sequence[tuple[str, str, dict[tuple[int, int], float]]],
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
    axes.set_xticks(range(len(shapes)), [f"{rows} x {cols}" for rows, cols in shapes])
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
