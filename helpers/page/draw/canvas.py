"""A figure with boxes, words and arrows, measured in the pixels of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .digest import FONT_PLACED
from .style import BLACK, BLUE, DARK, GREY, INCHES, LIT, PAGE, styled_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

NAME, NOTE = 11, 9.2  # points: of names and of notes


@dataclass(frozen=True)
class Box:
    """A rectangle; y grows downward."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def canvas(height: float, title: str = "") -> Axes:
    """The axes of an empty figure as wide as the page; their unit is a CSS pixel, y grows downward.
    A title stands at the top left."""
    with styled_figure(INCHES * height / PAGE) as figure:
        axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, PAGE), ylim=(height, 0))
    axes.axis("off")
    if title:
        words(axes, 10, 18, title[0].upper() + title[1:], NAME, fontweight="bold")
    return axes


def rectangle(
    axes: Axes, box: Box, fill: str, edge: str = "none", line: float = 0, **style
) -> None:
    from matplotlib.patches import Rectangle

    style |= {"facecolor": fill, "edgecolor": edge, "linewidth": line}
    axes.add_patch(Rectangle((box.x, box.y), box.width, box.height, **style))


def rounded(axes: Axes, box: Box, lit: bool = False, radius: float = 5, **style) -> None:
    """A box with round corners, blue if it is the subject of the figure."""
    from matplotlib.patches import FancyBboxPatch

    look = {"facecolor": LIT if lit else "white", "edgecolor": BLUE if lit else GREY}
    look |= {"linewidth": 2.2 if lit else 0.9, **style}
    outline = f"round,pad=0,rounding_size={radius}"
    corner = box.x, box.y
    axes.add_patch(FancyBboxPatch(corner, box.width, box.height, boxstyle=outline, **look))


def words(axes: Axes, x: float, y: float, text: str, size: float = NOTE, **style) -> Text:
    """Text with its left end and vertical centre at (x, y)."""
    look = {"color": BLACK, "va": "center_baseline", "fontsize": size, **style}
    return axes.text(x, y, text, **look)


def end_of(text: Text) -> float:
    """The right end of a text."""
    return text.axes.transData.inverted().transform((text.get_window_extent().x1, 0))[0]


class Key(NamedTuple):
    """A mark of a figure, as its legend shows it, and what it means."""

    text: str
    fill: str | tuple[float, ...] = "none"
    edge: str = "none"
    width: float = 14
    height: float = 11
    hatch: str | None = None
    round: bool = False


def legend(axes: Axes, x: float, y: float, keys: Sequence[Key]) -> None:
    """Keys beside each other, from x on; a Key of width 0 is words alone."""
    for key in keys:
        box = Box(x, y - key.height / 2, key.width, key.height)
        if key.round:
            rounded(axes, box, radius=key.height / 2, edgecolor=key.edge, **FONT_PLACED)
        elif key.width:
            look = {"hatch": key.hatch, **FONT_PLACED}
            rectangle(axes, box, key.fill, key.edge, 0.8, **look)
        text = words(axes, box.right + 6 * (key.width > 0), y, key.text, color=DARK, **FONT_PLACED)
        x = end_of(text) + 18
