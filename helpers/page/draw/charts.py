"""Bars, dots, curves and heat maps with direct labels, and maps of tuned plans."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...base.arguments import checked
from ...catalogue.registry import PRODUCTION, split_trial
from ...catalogue.tuned import Tuned
from . import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Limit = tuple[str, float]  # its name and value
# For parts and for lines other than steps. Unmarked ones are paler.
PARTS = (style.BLUE, "#C86400", "#00806A", "#A03C78", "#777777", "#1E4B0F")
QUIET = "#8396A6"
PLAIN = "{x:.10g}"  # the text of a tick: "0.5", "1048576"
DASHED = {"color": style.BLACK, "linestyle": "--", "linewidth": 1.3, "zorder": 4}  # a limit


@checked
def bars(
    values: Mapping[str, float] | Mapping[str, Mapping[str, float]],
    title: str,
    unit: str,
    says: str,
    stacked: bool = False,
    mark: str | Collection[str] | None = None,
    limit: Limit | None = None,
) -> None:
    """Draw horizontal bars from zero with their values, the first on top.

    `values` are label -> number, or label -> {part: number}: adjacent bars, or one bar of all parts
    if `stacked`. `unit` names the axis. `mark` highlights one or more labels (or parts). `limit`
    draws a line at a value, as in ("256 KB of L1", 256). `says` is the sentence below the figure.

    Raises `ValueError` for no values, or for a `mark` that is not a label.
    """
    _bar_chart(values, title, unit, says, stacked, mark, limit)


@checked
def dots(
    values: Mapping[str, float] | Mapping[str, Mapping[str, float]],
    title: str,
    unit: str,
    says: str,
    log: bool = False,
    mark: str | Collection[str] | None = None,
    limit: Limit | None = None,
) -> None:
    """As `bars`, for values that a bar from zero would not tell apart, or on an axis whose value
    doubles at each tick (`log`)."""
    _bar_chart(values, title, unit, says, False, mark, limit, dots=True, log=log)


def _bar_chart(
    values: Mapping,
    title: str,
    unit: str,
    says: str,
    stacked: bool,
    mark: str | Collection[str] | None,
    limit: Limit | None,
    dots: bool = False,
    log: bool = False,
) -> None:
    """Show the figure of `bars` or `dots`. A value None has no bar."""
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    if not values:
        raise ValueError("no values to draw")
    grouped = isinstance(next(iter(values.values())), Mapping)
    table = values if grouped else {label: {label: value} for label, value in values.items()}
    table = {
        label: {part: value for part, value in numbers.items() if value is not None}
        for label, numbers in table.items()
    }
    parts = list(dict.fromkeys(part for numbers in table.values() for part in numbers))
    marked = _marked(mark, parts)
    colors = {part: _color(part, place * grouped, marked) for place, part in enumerate(parts)}
    beside = grouped and not stacked
    thick, gap = (0.2, 0.14) if beside else (0.26, 0.14)  # inches
    places, middles, top = {}, [], 0.0
    for label, numbers in table.items():
        count = len(numbers) if beside else 1
        middles.append(top + count * thick / 2)
        for number, part in enumerate(numbers):
            places[label, part] = top + (number * beside + 0.5) * thick
        top += count * thick + gap
    figure, axes = style.chart(title, 1.0 + 0.3 * bool(limit) + 0.3 * stacked + top)
    shown = [value for numbers in table.values() for value in numbers.values()]
    span = max(shown) - min(shown) if dots else max(map(abs, shown))
    longest = max(sum(numbers.values()) for numbers in table.values())
    form = short if log else f"{{:.{_decimals(shown, span)}f}}".format
    if log:
        axes.set_xscale("log", base=2)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(PLAIN)
    if dots and not log:
        ends = [*shown, *([limit[1]] if limit else [])]
        room = 0.1 * (max(ends) - min(ends)) or 1
        axes.set_xlim(min(ends) - room, max(ends) + room)
    axes.set_ylim(top - gap / 2, -gap / 2)
    if limit:
        line = axes.axvline(limit[1], **DASHED)
        if not stacked:
            style.beside(axes, limit[1], axes.get_ylim()[1], limit[0], (0, 3), fontsize=9.5)
    clear = {"bbox": {"color": "white", "pad": 0.5}} if limit else {}  # for the line of the limit
    for (label, numbers), middle in zip(table.items(), middles, strict=True):
        begin = 0.0
        for part, value in numbers.items():
            y, look = places[label, part], {"color": colors[part]}
            if dots:
                axes.axhline(y, color="#EEEEEE", linewidth=1, zorder=1)
                axes.plot(value, y, "o", markersize=8, zorder=5, **look)
            else:
                axes.barh(y, value, 0.9 * thick, left=begin, **look)
            if stacked and value > 0.016 * len(form(value)) * longest:  # it fits
                inside = {"ha": "center", "va": "center", "fontsize": 9}
                inside["color"] = style.ink_on(colors[part])
                axes.text(begin + value / 2, y, form(value), **inside)
            begin += value * stacked
            if not stacked:
                text = form(value) + (f"  {part}" if beside and label == next(iter(table)) else "")
                look = {"fontsize": 9.5, "fontweight": "bold" if part in marked else "normal"}
                x = value if dots else max(value, 0)  # distance from a bar to the left of 0
                style.beside(axes, x, y, text, (8 if dots else 4, 0), **look, **clear)
        if stacked:
            style.beside(axes, begin, middle, form(begin), (4, 0), fontsize=9.5, **clear)
    axes.set_yticks(middles, [textwrap.fill(label, 26) for label in table])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(unit)
    if stacked:
        keys = {part: Patch(color=colors[part]) for part in parts}
        style.key(axes, {**keys, limit[0]: line} if limit else keys)
    style.finish(figure, title, says)


def _decimals(values: Sequence[float], span: float) -> int:
    """Digits after the point of all numbers of a chart: three of what they span, one of the
    smallest that is not negligible, and none if all are whole."""
    if all(value == round(value) for value in values):
        return 0
    least = min(abs(value) for value in values if abs(value) > 0.002 * max(map(abs, values)))
    coarse, fine = 2 - math.floor(math.log10(span or least)), -math.floor(math.log10(least))
    return max(0, min(max(coarse, fine), 3))


@checked
def curves(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    title: str,
    x: str,
    y: str,
    says: str,
    logx: bool = True,
    logy: bool = False,
    mark: str | Collection[str] | None = None,
    limit: Limit | None = None,
) -> None:
    """Draw lines; every step has its own colour and marker.

    `lines` are label -> (xs, ys); `x` and `y` name the axes with their units, which double at each
    tick with `logx` and `logy`. `mark` highlights one or more labels; `limit` draws a horizontal
    line, as in ("256 KB of L1", 256). `says` is the sentence below the figure.

    Raises `ValueError` for no lines, or for a `mark` that is not a label.
    """
    if not lines:
        raise ValueError("no lines to draw")
    figure, axes = style.chart(title)
    marked = _marked(mark, [*lines])
    taken = {known.marker for label in lines if (known := _look(label))}
    markers = itertools.cycle([marker for marker in style.MARKERS if marker not in taken])
    for number, (label, (xs, ys)) in enumerate(lines.items()):
        known = _look(label)
        look = known._asdict() if known else {"color": _color(label, number, marked)}
        look |= {"marker": (known.marker or None) if known else next(markers), "markersize": 5.5}
        if len(xs):  # a kernel that is to be measured has no points
            axes.plot(xs, ys, label=label, linewidth=3 if label in marked else 2, **look)
    scales(axes, [x for xs, _ in lines.values() for x in xs], logx, logy)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if limit:
        axes.axhline(limit[1], label=limit[0], **DASHED)
    style.key(axes, bold=marked)
    style.finish(figure, title, says)


@checked
def heat(
    rows: Sequence[object],
    cols: Sequence[object],
    values: Sequence[Sequence[float | None]],
    title: str,
    x: str,
    y: str,
    says: str,
    mark: Collection[tuple[object, object]] = (),
) -> None:
    """Draw a table of numbers in which larger numbers are darker.

    `values[i][j]` belongs to `rows[i]` (named by `y`) and `cols[j]` (named by `x`); None or NaN
    leaves a field empty. `mark` frames one or more (row, col). `says` is the sentence below the
    figure. Raises `ValueError` for values of another shape, or a `mark` that does not exist.
    """
    import matplotlib as mpl

    if len(values) != len(rows) or any(len(line) != len(cols) for line in values):
        raise ValueError(f"values of {len(rows)} rows and {len(cols)} columns are needed")
    if unknown := [field for field in mark if field not in itertools.product(rows, cols)]:
        raise ValueError(f"{unknown[0]!r} is no (row, column) of the values")
    known = [value for line in values for value in line if _is_number(value)]
    if not known:
        raise ValueError("no values to draw")
    norm = mpl.colors.Normalize(min(known), max(known) + 1e-30)
    map_of = mpl.colormaps["Blues"]
    fields = [
        [
            Field(short(value), map_of(0.08 + 0.84 * norm(value)), (rows[i], cols[j]) in mark)
            if _is_number(value)
            else None
            for j, value in enumerate(line)
        ]
        for i, line in enumerate(values)
    ]
    style.finish(heat_map(rows, cols, fields, title, x, y), title, says)


class Field(NamedTuple):
    """A field of a heat map."""

    text: str
    fill: str | tuple[float, ...]  # its colour
    framed: bool = False


def heat_map(
    rows: Sequence[object],
    cols: Sequence[object],
    fields: Sequence[Sequence[Field | None]],
    title: str,
    x: str,
    y: str,
    high: float = 0.42,
) -> Figure:
    """The figure of fields, None for empty ones; each is `high` inches high."""
    import matplotlib as mpl

    figure, axes = style.chart(title, 1.2 + high * len(rows))
    for i, line in enumerate(fields):
        for j, field in enumerate(line):
            if field is None:
                continue
            edge = {"edgecolor": style.BLACK, "linewidth": 2.5} if field.framed else {}
            patch = {"facecolor": field.fill, "edgecolor": "white", "linewidth": 1.5, **edge}
            above = {"zorder": 3 if field.framed else 2, "clip_on": False}
            axes.add_patch(mpl.patches.Rectangle((j - 0.5, i - 0.5), 1, 1, **above, **patch))
            cell = {
                "ha": "center",
                "va": "center",
                "color": style.ink_on(field.fill),
                "fontweight": "bold" if field.framed else "normal",
                "zorder": 4,
            }
            axes.text(j, i, field.text, fontsize=10, **cell)
    axes.set_xlim(-0.5, len(cols) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(cols)), [str(name) for name in cols])
    axes.set_yticks(range(len(rows)), [str(name) for name in rows])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure


# ---- what they share ----------------------------------------------------------------------------


def short(value: float) -> str:
    """Three digits without exponent or trailing zeros: "0.536", "12.5", "7.1", "2281". Numbers
    below 0.001 are "0"."""
    if abs(value) < 0.001:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def times(number: float) -> str:
    """ "once", "twice", "2.5 times"."""
    text = short(number)
    return {"1": "once", "2": "twice", "3": "three times"}.get(text, f"{text} times")


def scales(axes: Axes, xs: Sequence[float], logx: bool = True, logy: bool = False) -> None:
    """Logarithmic axes with plain numbers, x with at most eight powers of two, or linear ones; y
    starts at zero then."""
    if logx:
        low, high = math.ceil(math.log2(min(xs))), math.floor(math.log2(max(xs)))
        ticks = [2.0**power for power in range(low, high + 1, max(1, math.ceil((high - low) / 7)))]
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks or [*xs], [f"{tick:.10g}" for tick in ticks or xs])
    if logy:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(PLAIN)
    else:
        axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.05)
    axes.minorticks_off()


def _marked(mark: str | Collection[str] | None, known: Sequence[str]) -> set[str]:
    marked = {mark} if isinstance(mark, str) else {*(mark or ())}
    if unknown := marked - {*known}:
        raise ValueError(f"{min(unknown)!r} is none of {', '.join(known)}")
    return marked


def _look(label: str) -> style.Look | None:
    """The style of a step, a copy or a baseline in all figures; None for another label."""
    try:
        return style.look(label)
    except ValueError:
        return None


def _color(label: str, number: int, marked: Collection[str]) -> str:
    if marked and label not in marked:
        return QUIET
    known = _look(label)
    return known.color if known else PARTS[number % len(PARTS)]


def _is_number(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


# ---- tuned plans --------------------------------------------------------------------------------

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
    paint = _paint(split_trial(point.trial).file)
    paint |= {"facecolor": color, "hatch": None} if color else {}
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
