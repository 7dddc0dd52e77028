"""Place labels so that they hide neither lines nor each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from . import style as looks
from .style import FONT_PLACED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

GAP = 3  # pixels between two labels
# (right, up) offsets in points from the end of a line to its name, then farther away where lines
# are dense, with a connecting line.
RIGHT = (9, 0)
NEAR = (RIGHT, (8, 3), (8, -3), (8, 8), (8, -8))
FAR = tuple((right, up) for up in (24, -24, 42, -42, 60, -60) for right in (24, -24, 48, -48))


class End(NamedTuple):
    """The name of a line at its last point, in units of the axes."""

    x: float
    y: float
    text: str
    color: str
    size: float = 10
    bold: bool = False


def add(axes: Axes, x: float, y: float, text: str, side: tuple[float, float], **style):
    """A text next to a place; `side` is the offset in points to the right and up. Its colour is
    that of a mark, darkened to be legible."""
    right, up = side
    from matplotlib.patheffects import withStroke

    if "color" in style:
        style["color"] = looks.ink(style["color"])
    style = {
        "ha": "left" if right > 0 else "right" if right < 0 else "center",
        "va": "center" if not up else "bottom" if up > 0 else "top",
        "annotation_clip": False,
        "zorder": 6,
        **style,
    }
    label = axes.annotate(text, (x, y), xytext=side, textcoords="offset points", **style)
    label.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
    return label


def column(
    axes: Axes,
    right: float,
    head: str,
    texts: Sequence[str | None],
    inks: Sequence[str] | None = None,
    **style,
) -> None:
    """Texts at rows 0, 1, ... of the y axis and a heading above them, `right` points to the right
    of the axes, in the colours of their marks."""
    colors = [looks.BLACK, *(inks or [looks.BLACK] * len(texts))]
    place = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
    style = {"ha": "center", "va": "center", "fontsize": 10, "annotation_clip": False, **style}
    for row, (text, color) in enumerate(zip([head, *texts], colors, strict=True)):
        axes.annotate(
            text or "", (1, row - 1), (right, 0), color=looks.ink(color), **place, **style
        )


def at_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Name lines at their right ends: those that end furthest right in a column, moved apart and
    with a connecting line if they moved far; the others where they hide least."""
    last, clear = max(end.x for end in ends), {"color": "white", "pad": 0.5}  # of horizontal lines
    column = [
        add(axes, end.x, end.y, end.text, RIGHT, bbox=clear, **_style(end))
        for end in ends
        if end.x == last
    ]
    axes.figure.draw_without_rendering()  # the layout reserves space for them, which moves the axes
    push_apart(column)
    for end in sorted(ends, key=lambda end: -end.y):
        if end.x < last:
            _beside(axes, end)


def _style(end: End) -> dict:
    weight = "bold" if end.bold else "normal"
    return {"color": end.color, "fontsize": end.size, "fontweight": weight}


def push_apart(labels: Sequence[Annotation]) -> None:
    """Move labels vertically, as little as possible, until none overlaps the next or the x axis."""
    boxes = {label: label.get_window_extent() for label in labels}
    ordered = sorted(labels, key=lambda label: label.axes.transData.transform(label.xy)[1])
    middles = [(boxes[label].y0 + boxes[label].y1) / 2 for label in ordered]
    heights = [boxes[label].height for label in ordered]
    lowest = labels[0].axes.get_window_extent().y0 + GAP
    for label, old, height, new in zip(
        ordered, middles, heights, spread(middles, heights), strict=True
    ):
        new = max(new, lowest + height / 2)
        lowest = new + height / 2 + GAP
        points = (new - old) * 72 / label.figure.dpi
        right, up = label.get_position()
        label.set_position((right, up + points))
        if abs(points) > 6:
            label.set_position((right + 8, up + points))
            _thread(label, (right + 7, up + points))


def _thread(label: Annotation, side: tuple[float, float]) -> None:
    """A thin line from a place to its label."""
    line = {"color": label.get_color(), "linewidth": 0.6, "shrinkA": 0, "shrinkB": 5}
    label.axes.annotate(
        "",
        label.xy,
        xytext=side,
        textcoords="offset points",
        arrowprops={"arrowstyle": "-", **line},
        annotation_clip=False,
        **FONT_PLACED,
    )


def spread(middles: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Centres of labels that do not overlap, in the same order and closest to the old ones in least
    squares. `middles` are increasing."""
    starts = [0.0]
    for lower, upper in zip(heights, heights[1:], strict=False):
        starts.append(starts[-1] + (lower + upper) / 2 + GAP)
    blocks: list[list[float]] = []  # [mean of middle - start, how many]
    for middle, start in zip(middles, starts, strict=True):
        blocks.append([middle - start, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, count = blocks.pop()
            before, many = blocks[-1]
            blocks[-1] = [(before * many + mean * count) / (many + count), many + count]
    means = [mean for mean, count in blocks for _ in range(int(count))]
    return [mean + start for mean, start in zip(means, starts, strict=True)]


def _beside(axes: Axes, end: End) -> None:
    """Name a line where the name hides least, and nearest where that does not matter."""
    trial = add(axes, end.x, end.y, end.text, RIGHT, **_style(end))
    size = trial.get_window_extent()
    trial.remove()
    place = axes.transData.transform((end.x, end.y))
    sides = [(_hidden(axes, place, side, size), number) for number, side in enumerate(NEAR + FAR)]
    side = (NEAR + FAR)[min(sides)[1]]
    label = add(axes, end.x, end.y, end.text, side, **_style(end), **FONT_PLACED)
    if side in FAR:
        _thread(label, side)


def _hidden(axes: Axes, place: Sequence[float], side: tuple[float, float], size: Bbox) -> int:
    """The lines, and ten times the words and edges, that a text beside a place would hide."""
    from matplotlib.transforms import Bbox

    (right, up), point = side, axes.figure.dpi / 72
    x, y = place[0] + right * point, place[1] + up * point
    x -= size.width * (right < 0)
    y -= size.height * (0.5 if not up else up < 0)
    box, area = Bbox.from_bounds(x, y, size.width, size.height), axes.get_window_extent()
    paths = [line.get_path().transformed(line.get_transform()) for line in axes.lines]
    lines = sum(path.intersects_bbox(box.padded(1.5 * point), filled=False) for path in paths)
    words = [text.get_window_extent().padded(2) for text in axes.texts if text.get_text()]
    out = box.x0 < area.x0 or box.y0 < area.y0 or box.y1 > area.y1
    return lines + 10 * (out + sum(box.overlaps(other) for other in words))
