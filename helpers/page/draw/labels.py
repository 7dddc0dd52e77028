"""Place labels so that they hide neither lines nor each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from . import style as looks
from .digest import FONT_PLACED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

GAP = 3  # pixels between two labels
MARK = 4.0  # cost of hiding a mark; hiding a line costs its width in points
NO_MARKER = ("", " ", "None", "none", None)
# (right, up) offsets in points from a place to its text.
RIGHT, LEFT, ABOVE, BELOW = (9, 0), (-9, 0), (0, 9), (0, -9)
CORNERS = ((8, 8), (-8, 8), (8, -8), (-8, -8))
AROUND = (RIGHT, LEFT, ABOVE, BELOW, *CORNERS)
# For a line only the right: elsewhere the label might belong to another line.
NEAR_END = (RIGHT, (8, 3), (8, -3), (8, 8), (8, -8))
# Farther away where the lines are dense, with a connecting line.
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
            _beside(axes, [(end.x, end.y)], end.text, NEAR_END, **_style(end))


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


def beside(
    axes: Axes,
    places: Sequence[tuple[float, float]],
    text: str,
    sides: Sequence[tuple[float, float]] = AROUND,
    **style,
) -> Annotation:
    """Place a text at the place and side where it hides least, earlier ones first; farther away
    with a connecting line if it would hide something everywhere."""
    axes.figure.draw_without_rendering()  # now all positions are known
    return _beside(axes, places, text, sides, **style)


def _beside(
    axes: Axes,
    places: Sequence[tuple[float, float]],
    text: str,
    sides: Sequence[tuple[float, float]],
    **style,
) -> Annotation:
    label = add(axes, *places[0], text, (1, 1), **style)
    size, drawn = label.get_window_extent(), _Drawn(axes, label)
    label.remove()
    tried = []
    for side in (*sides, *FAR):
        for place in places:
            start = axes.transData.transform(place)
            cost = drawn.hidden(_box(start, side, size, axes.figure.dpi), start, side in FAR)
            tried.append((cost, len(tried), place, side))
        if side == sides[-1] and min(tried)[0] == 0:
            break
    _, _, (x, y), side = min(tried)
    label = add(axes, x, y, text, side, **style, **FONT_PLACED)
    if side in FAR:
        _thread(label, side)
    return label


def _box(start: Sequence[float], side: tuple[float, float], size: Bbox, dpi: float) -> Bbox:
    """The position in pixels at which `add` puts a text of a given size on a side of a place."""
    from matplotlib.transforms import Bbox

    right, up = side
    x, y = start[0] + right * dpi / 72, start[1] + up * dpi / 72
    x -= size.width * (0 if right > 0 else 1 if right < 0 else 0.5)
    y -= size.height * (0.5 if not up else 0 if up > 0 else 1)
    return Bbox.from_bounds(x, y, size.width, size.height)


class _Drawn:
    """Everything that a new label may hide, in pixels."""

    def __init__(self, axes: Axes, label: Annotation):
        self.area = axes.get_window_extent()
        self.lines = [
            (
                line.get_linewidth(),
                line.get_marker() not in NO_MARKER,
                line.get_path().transformed(line.get_transform()),
            )
            for line in axes.lines
        ]
        arrows = [text.arrow_patch for text in axes.texts if text.arrow_patch]
        self.lines += [
            (arrow.get_linewidth(), False, arrow.get_path().transformed(arrow.get_transform()))
            for arrow in arrows
        ]
        self.point = axes.figure.dpi / 72  # pixels
        others = (text for text in axes.texts if text is not label and text.get_text())
        self.texts = [text.get_window_extent().padded(2) for text in others]
        self.right = max(self.area.x1, *(text.x1 for text in self.texts), 0)  # names of lines

    def hidden(self, box: Bbox, start: Sequence[float], far: bool) -> float:
        """The cost of what a text, and its connecting line if it is far, would hide: thick lines
        cost more than thin ones, data marks more than any line, and other texts and the edge of the
        axes most."""
        from matplotlib.path import Path

        area, near = self.area, box.expanded(1 + 22 / box.width, 1 + 8 / box.height)
        out = box.x0 < area.x0 or box.x1 > self.right or box.y0 < area.y0 or box.y1 > area.y1
        cost = 10.0 * out + 1.5 * far
        for width, marked, path in self.lines:
            thick = box.padded(width / 2 * self.point)
            cost += width * path.intersects_bbox(thick, filled=False)
            if any(near.contains(*point) for point in path.vertices):
                cost += MARK if marked else width
        thread = Path([start, ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)])
        for other in self.texts:
            cost += 10 * box.overlaps(other)
            cost += 10 * (far and thread.intersects_bbox(other, filled=False))
        return cost
