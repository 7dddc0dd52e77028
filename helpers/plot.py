"""The one plot style and the one table of the series.

Colours are Okabe and Ito's, which readers with any kind of colour vision tell apart; lines are
labelled at their ends, and every figure has the table of its numbers beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .records import REFERENCE_SHAPE, SWEEP_SHAPES, UNFUSED, Case, Record, predictions
from .replay import recorded_beside

if TYPE_CHECKING:  # recording needs no matplotlib, so it is imported where a figure is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    "grid.color": "#DDDDDD",
    "font.size": 11,
    "figure.dpi": 100,
    "figure.figsize": (8.4, 4.4),
}


# ---- tables -----------------------------------------------------------------------------------


def table(current: Record, previous: Record | None = None, sweep: bool = False) -> str:
    """GB/s of a step beside the copy of the same size, one row a shape.

    "spread" is (slowest - fastest) / median of the replays. "x previous" is how many times
    faster the step is than the previous one. Raises `KeyError` if that lacks a shape.
    """
    cases = _cases(current, sweep)
    head = f"{'rows':>8} {'cols':>6} {'copy GB/s':>10} {'GB/s':>8} {'spread':>7} {'of copy':>8}"
    if previous is not None:
        head += f" {previous.step:>12} {'x previous':>11}"
    lines = [f"{current.step}, {current.origin()}", head]
    for case in cases:
        line = (
            f"{case.rows:8} {case.cols:6} {case.copy_gbps:10.0f} {case.gbps:8.0f} "
            f"{case.spread:7.1%} {case.share:8.3f}"
        )
        if previous is not None:
            before = previous.case(case.rows, case.cols)
            line += f" {before.gbps:12.0f} {before.median_us / case.median_us:11.2f}"
        lines.append(line)
    return "\n".join(lines)


def ledger(records: Sequence[Record]) -> str:
    """Predicted against measured share of a copy, where each prediction was made.

    A step is predicted at `REFERENCE_SHAPE`, a trial at the shape that its prediction names.
    """
    lines = [
        f"{'':30} {'shape':>15} {'predicted':>10} {'measured':>9} {'measured / predicted':>21}"
    ]
    for record in records:
        expected = predictions()[record.step]
        shape = expected.get("rows", REFERENCE_SHAPE[0]), expected.get("cols", REFERENCE_SHAPE[1])
        try:
            share = record.case(*shape).share
        except KeyError:
            lines.append(f"{record.step:30} {shape[0]:>8} x {shape[1]:<4} not measured here")
            continue
        lines.append(
            f"{record.step:30} {shape[0]:>8} x {shape[1]:<4} {expected['share']:10.2f} "
            f"{share:9.3f} {share / expected['share']:21.2f}"
        )
    return "\n".join(lines)


def _cases(record: Record, sweep: bool) -> list[Case]:
    """The cases of one family of shapes. A smaller GPU's grid has fewer rows, so all that is not
    of the sweep is of the grid."""
    if sweep:
        return record.select(SWEEP_SHAPES)
    return [case for case in record.cases if case.shape not in SWEEP_SHAPES]


# ---- figures ----------------------------------------------------------------------------------


def bandwidth_axes(title: str, origin: str, log: bool, sweep: bool = False) -> tuple[Figure, Axes]:
    """An empty figure of GB/s over row length with the style of the series."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(layout="constrained")
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_ylabel("GB/s (2 x rows x cols x 4 bytes / time)")
    axes.set_xlabel(f"columns (row length); {origin}")
    if not sweep:
        axes.set_xscale("log", base=2)
    if log:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    return figure, axes


def add_line(axes: Axes, cases: Sequence[Case], label: str, color: str, **style) -> None:
    """One kernel's bandwidth with min-max bars, labelled at the right end of its line."""
    cols = [case.cols for case in cases]
    middle = [case.gbps for case in cases]
    below = [case.gbps - case.bytes / max(case.samples_us) / 1e3 for case in cases]
    above = [case.bytes / min(case.samples_us) / 1e3 - case.gbps for case in cases]
    style = {"marker": "o", "markersize": 4, "linewidth": 2, **style}
    axes.errorbar(cols, middle, yerr=[below, above], color=color, capsize=2, **style)
    _label(axes, cols[-1], middle[-1], label, color)


def add_ceiling(axes: Axes, cases: Sequence[Case]) -> None:
    """The same-size copy, dashed."""
    cols, rates = [case.cols for case in cases], [case.copy_gbps for case in cases]
    axes.plot(cols, rates, color=BLACK, linestyle="--", linewidth=1.5)
    _label(axes, cols[-1], rates[-1], "copy", BLACK)


def _label(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    axes.annotate(
        text,
        (x, y),
        xytext=(8, 0),
        textcoords="offset points",
        color=color,
        va="center",
        fontweight="bold",
        annotation_clip=False,
    )


def _finish(axes: Axes) -> None:
    """Start a linear axis at zero, and move labels that would overlap apart."""
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.figure.canvas.draw()
    labels = sorted(axes.texts, key=lambda label: label.get_window_extent().y0)
    lowest = -float("inf")
    for label in labels:
        box = label.get_window_extent()
        shift = max(0.0, lowest - box.y0)
        if shift:
            points = shift * 72 / axes.figure.dpi
            label.set_position((label.get_position()[0], label.get_position()[1] + points))
        lowest = box.y0 + shift + box.height * 1.05


def plot_step(
    current: Record, previous: Record | None = None, log: bool = False, sweep: bool = False
) -> None:
    """Draw a step (blue), the previous one (grey) and the copy ceiling (dashed) over row length.

    A live measurement is drawn beside the reference GPU's record (dotted). Shows the figure and
    returns None, so that it can end a cell.
    """
    import matplotlib.pyplot as plt

    cases = _cases(current, sweep)
    title = f"{current.step} against {previous.step}" if previous else current.step
    _, axes = bandwidth_axes(title, current.label, log, sweep)
    add_ceiling(axes, cases)
    if previous is not None:
        add_line(axes, _cases(previous, sweep), previous.step, GREY)
    add_line(axes, cases, current.step, BLUE)
    for number, beside in enumerate(recorded_beside(current)):
        add_line(
            axes,
            _cases(beside, sweep),
            f"record: {beside.label}",
            SERIES[number % 5],
            linestyle=":",
            linewidth=1,
        )
    _finish(axes)
    plt.show()


def plot_series(records: Sequence[Record], log: bool = True, sweep: bool = False) -> Figure:
    """All steps in one figure, the last one in blue and the array version in grey; returns the
    figure for saving."""
    cases = _cases(records[-1], sweep)
    shape = "4096 rows" if sweep else "2^28 elements"
    _, axes = bandwidth_axes(f"Softmax step by step, {shape}", records[-1].label, log, sweep)
    add_ceiling(axes, cases)
    style = {"marker": None} if sweep else {}
    steps = [record for record in records[:-1] if record.step != UNFUSED]
    for record in records:
        number = steps.index(record) if record in steps else 0
        color = SERIES[number % 5] if record in steps else GREY
        if record is records[-1]:
            color = BLUE
        dash = "-" if number < 5 else "-."  # the colours begin again
        add_line(axes, _cases(record, sweep), record.step, color, linestyle=dash, **style)
    _finish(axes)
    return axes.figure
