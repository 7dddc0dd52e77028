"""What a call showed: its figure, its plain form, its sentence; and what is wrong with its looks.

`complaints` knows nothing of what a figure is about: words that are cut off, that lie on one
another, that are too small or too pale.
"""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from helpers.page.draw import style

POINTS = 9  # of text, at least
TOUCH = 1.0  # pixels by which two words may overlap: extents are of whole letters


class Shown:
    """Takes the figures of helpers.draw and their captions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self._figures: list[Figure] = []
        self._plain: list[str] = []
        self._really_png = style._png
        monkeypatch.setattr(style, "_png", self._png)
        # What takes longer than all else, and test_style.py makes.
        monkeypatch.setenv(style.PICTURES, "0")
        monkeypatch.setattr("IPython.display.display", self._display)

    def _png(self, figure: Figure) -> bytes:
        self._figures.append(figure)
        return self._really_png(figure)

    def _display(self, data: dict, **_) -> None:
        self._plain.append(data["text/plain"])

    def take(self) -> tuple[Figure, str, str]:
        """(figure, plain form, sentence) of the one call since the last time."""
        ((figure,), (plain, caption)) = self._figures, self._plain
        self._figures.clear(), self._plain.clear()
        return figure, plain, " ".join(caption.split())


def texts(figure: Figure) -> list[Text]:
    """Every word that can be seen; numbers of ticks beyond the ends of their axis cannot."""
    beyond = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        ticks = (*axis.get_major_ticks(), *axis.get_minor_ticks())
        beyond |= {tick.label1 for tick in ticks if not low <= tick.get_loc() <= high}
    found = figure.findobj(Text)
    return [
        one for one in found if one.get_text().strip() and one.get_visible() and one not in beyond
    ]


def complaints(figure: Figure) -> list[str]:
    """What is wrong with the words of a figure."""
    figure.set_dpi(100)
    figure.draw_without_rendering()  # the layout nears its end with each drawing
    page, found, extents = figure.bbox, [], []
    for text in texts(figure):
        name, box = repr(text.get_text()), text.get_window_extent()
        if text.get_fontsize() < POINTS:
            found.append(f"{name} has {text.get_fontsize():g} points")
        if box.x0 < 0 or box.y0 < 0 or box.x1 > page.x1 or box.y1 > page.y1:
            found.append(f"{name} is cut off")
        extents.append((name, box))
    for (name, one), (other, two) in combinations(extents, 2):
        wide = min(one.x1, two.x1) - max(one.x0, two.x0)
        high = min(one.y1, two.y1) - max(one.y0, two.y0)
        if wide > TOUCH and high > 3 * TOUCH:
            found.append(f"{name} lies on {other}")
    return [*found, *pale_words(figure)]


def pale_words(figure: Figure) -> list[str]:
    """Words that do not stand out from what is behind them, the most common colour there."""
    words, found = texts(figure), []
    alphas = [one.get_alpha() for one in words]
    for one in words:
        one.set_alpha(0)
    figure.set_layout_engine("none")  # the layout stays as it is
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for one, alpha in zip(words, alphas, strict=True):
        one.set_alpha(alpha)
    rgb = np.asarray(canvas.buffer_rgba())[::-1, :, :3]  # the first row is the lowest
    pixels = rgb.astype(int) @ (0x10000, 0x100, 1)
    for one in words:
        (left, low), (right, high) = one.get_window_extent().get_points().round().astype(int)
        behind = pixels[max(low, 0) : high, max(left, 0) : right]
        if behind.size:
            colors, counts = np.unique(behind, return_counts=True)
            fill = f"#{colors[counts.argmax()]:06x}"
            if (seen := style.contrast(one.get_color(), fill)) < style.READABLE - 0.1:
                found.append(f"{one.get_text()!r} has a contrast of {seen:.1f}")
    return found
