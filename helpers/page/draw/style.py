"""The one style of figures, and the one way in which a figure reaches the page.

A figure is shown as a PNG at double resolution, and under it stands one sentence that says what it
shows, with a plain form, so that code hosts, screen readers and nbval have it too.

A step has one colour and one marker in every figure. No two of its markers are alike, and colours
that share a figure are apart with any kind of colour vision; tests/helpers/draw/test_style.py
computes both.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...catalogue.registry import TORCH, UNFUSED, step_number
from ..rich import FIGURE, PADDING, figure_caption
from .digest import digest_of

if TYPE_CHECKING:  # recording needs no matplotlib, so it is imported where a figure is drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL import Image

PICTURES = "SOFTMAX_PICTURES"  # 0: no pixels; nbval compares words and digests
PAGE = 700  # CSS pixels that a notebook's page shows side by side
INCHES = 7.0  # the width of a figure, so that a point of text is 1/72 of 100 such pixels
SMALL = 9  # points: the smallest text of a figure
READABLE = 4.5  # contrast of words with what is behind them, at least (WCAG 2.2, level AA)
BLUE, ORANGE, GREEN, RED, PINK, SKY, YELLOW = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#F0E442",
)  # Okabe and Ito's, which readers with any kind of colour vision tell apart
BLACK, DARK, GREY, PALE = "#000000", "#555555", "#999999", "#CCCCCC"
LIT = "#DCE9F6"  # the fill of what a figure is about
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
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 11,
    "grid.color": "#DDDDDD",
    "font.size": 10,
    "figure.dpi": 100,
    "figure.figsize": (INCHES, 3.7),
}

# ---- colours and markers ------------------------------------------------------------------------

# Of the steps from 01 on, then again from the first. A search found them: steps that share a figure
# are as far apart as can be in three kinds of colour vision, and neighbours differ in lightness.
COLORS = (
    "#C105B8",
    "#224389",
    "#23AE44",
    "#790157",
    "#0FA0F6",
    "#025C35",
    "#3C6EFF",
    "#9E0004",
    "#A1549A",
    "#481F8F",
    "#6207FF",
    "#C95157",
    "#FF54CC",
    "#205400",
    "#31A477",
)
# Of the same steps; those past the last are stars of six points and more.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "d", "h", (4, 1, 0), (3, 1, 0))


class Look(NamedTuple):
    """How a line is drawn wherever it appears."""

    color: str
    marker: str | tuple[int, int, int]
    linestyle: str = "-"


OTHERS = {
    "copy": Look(BLACK, "", "--"),
    "00_copy": Look(BLACK, "", "--"),
    UNFUSED: Look("#777777", "H"),
    "ours": Look(BLUE, "o"),
    **dict.fromkeys(("torch", TORCH), Look("#A06A00", "8", ":")),
    "compile": Look("#C33C3C", "s"),
    "triton": Look("#4B1EB4", "^"),
    "liger": Look("#00A064", "v"),
    "quack": Look("#D21EB4", "D"),
    "flashinfer": Look("#00005A", "P"),
    "cudnn": Look(DARK, "X"),
}


def look(step: str) -> Look:
    """How a step of the catalogue looks, a variant or a trial of it (as its step), "copy", "torch"
    (eager PyTorch), another baseline of the comparison, or "ours" in it.

    The marker of a copy is "": it has none. Raises `ValueError` that says which names there are.
    """
    if step in OTHERS:
        return OTHERS[step]
    if not re.match(r"(variants/)?\d\d_", step):
        names = ", ".join(OTHERS)
        raise ValueError(f"{step!r} is not a step, such as 01_naive, and none of {names}")
    number = step_number(step)
    if number == 0:
        return OTHERS["copy"]
    past = number - len(MARKERS)
    marker = MARKERS[number - 1] if past <= 0 else (5 + past, 1, 0)
    return Look(COLORS[(number - 1) % len(COLORS)], marker)


# ---- words --------------------------------------------------------------------------------------

Color = str | tuple[float, ...]


def contrast(one: Color, other: Color) -> float:
    """How well two colours stand out from each other: 1 (not at all) to 21, as WCAG defines it."""
    low, high = sorted(_luminance(_linear(color)) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


def ink(color: Color, fill: Color = "white") -> str:
    """A colour for words on a light one: that of a mark, or a darker tone of it that is readable
    there."""
    from matplotlib.colors import to_hex

    linear = _linear(color)
    # Luminance, with a little to spare for rounding.
    most = (_luminance(_linear(fill)) + 0.05) / (READABLE + 0.05) - 0.05
    darker = min(1.0, most / max(_luminance(linear), 1e-9))
    return to_hex([_encoded(part * darker) for part in linear])


def ink_on(fill: Color) -> str:
    """Black or white, whichever is read better on a colour."""
    return max((BLACK, "#ffffff"), key=lambda words: contrast(words, fill))


def _linear(color: Color) -> list[float]:
    """Red, green and blue as amounts of light."""
    from matplotlib.colors import to_rgb

    return [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(color)]


def _encoded(light: float) -> float:
    return 12.92 * light if light <= 0.0031308 else 1.055 * light ** (1 / 2.4) - 0.055


def _luminance(linear: Sequence[float]) -> float:
    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


# ---- the page -----------------------------------------------------------------------------------


def chart(title: str, height: float = 3.7) -> tuple[Figure, Axes]:
    """A figure as wide as the page and `height` inches high with its title, and its empty axes."""
    with styled_figure(height, layout="constrained") as figure:
        axes = figure.subplots()
    head(figure, title)
    return figure, axes


@contextlib.contextmanager
def styled_figure(height: float, **layout) -> Iterator[Figure]:
    """An empty figure, and the style for the axes that are added to it. pyplot knows nothing of it,
    and so keeps none that an error left behind."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(INCHES, height), **layout)
        FigureCanvasAgg(figure)  # measures words
        yield figure


def head(figure: Figure, title: str) -> None:
    """The title of a figure at its left edge, in as many lines as it takes."""
    text = figure.suptitle(title, x=0.008, ha="left", fontsize=12, fontweight="bold")
    room = 0.97 * figure.get_figwidth() * figure.get_dpi()
    lines = math.ceil(text.get_window_extent().width / room)
    for letters in range(len(title) // lines, len(title) + 1):  # lines of about the same length
        wrapped = textwrap.wrap(title, letters, break_on_hyphens=False)
        if len(wrapped) <= lines:
            break
    text.set_text("\n".join(wrapped))


def finish(figure: Figure, title: str, sentence: str, drawn: object = None) -> None:
    """Show a figure and under it the sentence that says what it shows; `title` is its plain form.

    The output has a digest of what the figure draws, which `make test` compares: of its artists,
    or of `drawn` where their places vary from compiler to compiler.
    """
    from IPython.display import display

    if not sentence.strip():
        raise ValueError(f"the figure {title!r} needs a sentence that says what it shows")
    digest = digest_of(figure if drawn is None else drawn)
    png, plain = _png(figure), _wrapped(f"<figure: {title}>")
    width = round(figure.get_figwidth() * figure.get_dpi())
    display(
        {"image/png": png, "text/plain": plain, FIGURE: digest},
        metadata={"image/png": {"width": min(width, PAGE) + 2 * PADDING, "alt": sentence}},
        raw=True,
    )
    figure_caption(_wrapped(sentence)).display()


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 80, break_on_hyphens=False, break_long_words=False)


def _png(figure: Figure) -> bytes:
    """A figure at double resolution in its 256 most common colours: a third of the bytes, and
    nobody sees it. Where nobody looks at all, it is laid out and no more."""
    if os.environ.get(PICTURES) == "0":
        figure.draw_without_rendering()
        return b""
    return _in_few_colors(_pixels(figure))


def _pixels(figure: Figure) -> Image.Image:
    from PIL import Image, ImageOps

    rgba = io.BytesIO()
    figure.draw_without_rendering()  # the layout nears its end with each drawing
    figure.savefig(rgba, format="rgba", dpi=2 * figure.get_dpi())
    size = [int(2 * length) for length in figure.bbox.size]
    pixels = Image.frombuffer("RGBA", size, rgba.getbuffer()).convert("RGB")
    return ImageOps.expand(pixels, 2 * PADDING, "white")


def _in_few_colors(pixels: Image.Image) -> bytes:
    from PIL import Image

    png = io.BytesIO()
    pixels.quantize(256, dither=Image.Dither.NONE).save(png, format="png", optimize=True)
    return png.getvalue()
