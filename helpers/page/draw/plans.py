"""Maps of tuned plans: what the table of a GPU has for each row length and size of the matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...base.arguments import checked
from ...catalogue.registry import PRODUCTION, split_trial
from ...catalogue.tuned import Tuned
from . import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGEST = 512  # MB of x up to which the largest matrices are drawn
PANELS = {True: "rows of whole packs of 16 bytes", False: "other rows"}


@checked
def plans(
    points: Sequence[Tuned],
    title: str,
    says: str,
    value: Callable[[Tuned], float] | None = None,
    unit: str = "",
) -> None:
    """Draw a field for each point: the columns it is chosen for across, the size of x upwards; rows
    of whole packs above, others below. Colours are those of the kernels, and a dot marks a plan
    that replaces the rule's; with `value` they say how much, in `unit`.

    `points` are of one dtype. Raises `ValueError` if there are none.
    """
    import matplotlib as mpl

    if len({point.problem.dtype for point in points}) != 1:
        raise ValueError("points of one dtype are needed")
    known = [value(point) for point in points] if value else [0]
    low, high = min(known), max(known) + 1e-30
    blues = mpl.cm.ScalarMappable(mpl.colors.Normalize(low - 0.1 * (high - low), high), "Blues")
    with style.styled_figure(4.6, layout="constrained") as figure:
        panels = figure.subplots(2, 1, sharex=True)
    for axes, (packed, name) in zip(panels, PANELS.items(), strict=True):
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_ylabel("size of x, MB")
        _frame(axes, points)
        for point in points:
            if point.problem.packed == packed:
                _field(axes, point, blues.to_rgba(value(point)) if value else None)
    panels[-1].set_xlabel("columns")
    if value:
        bar = figure.colorbar(blues, ax=panels, label=unit)
        bar.ax.set_ylim(low, high)
    else:
        files = sorted({split_trial(point.trial).file for point in points})
        handles = [mpl.patches.Patch(label=file, **_paint(file)) for file in files]
        dot = mpl.lines.Line2D([], [], color=style.BLACK, marker=".", linestyle="", label="tuned")
        figure.legend(handles=[*handles, dot], loc="outside lower center", ncols=4, frameon=False)
    style.head(figure, title)
    style.finish(figure, title, says)


def _paint(file: str) -> dict[str, object]:
    """The colour of a kernel's step; a kernel without a notebook is hatched."""
    hatch = {"hatch": "////"} if file in PRODUCTION else {}
    return {"facecolor": style.look(file).color, "edgecolor": "white", "linewidth": 0.3, **hatch}


def _field(axes: Axes, point: Tuned, color: tuple[float, ...] | None) -> None:
    import matplotlib as mpl

    left, right = math.log2(point.cols[0]), math.log2(point.cols[1] + 1)
    bottom, top = (
        math.log2(min(rows * point.problem.row_bytes / 1e6, LARGEST))
        for rows in (point.rows[0], point.rows[1] + 1)
    )
    paint = {"facecolor": color, "edgecolor": "white", "linewidth": 0.3} if color else None
    paint = paint or _paint(split_trial(point.trial).file)
    corner, width, height = (left, bottom), right - left, top - bottom
    axes.add_patch(mpl.patches.Rectangle(corner, width, height, zorder=2, **paint))
    if not color and point.trial != point.rule:
        middle, ink = (left + width / 2, bottom + height / 2), style.ink_on(paint["facecolor"])
        axes.plot(*middle, ".", color=ink, markersize=4, zorder=3)


def _frame(axes: Axes, points: Sequence[Tuned]) -> None:
    ends = [math.log2(end) for point in points for end in point.cols]
    axes.set_xlim(min(ends), max(ends))
    sizes = [0.5, 2, 8, 32, 128, LARGEST]  # MB
    axes.set_ylim(math.log2(sizes[0]), math.log2(LARGEST))
    ticks = range(math.floor(max(ends)), math.ceil(min(ends)) - 1, -2)
    axes.set_xticks(ticks, [str(2**tick) for tick in ticks])
    axes.set_yticks([*map(math.log2, sizes)], [*map("{:g}".format, sizes)])
    axes.tick_params(length=0)
    axes.grid(visible=False)
