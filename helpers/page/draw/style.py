"""The one style of figures, and the one way in which a figure reaches the page.

A figure is shown as a PNG at double resolution, and under it stands one sentence that says what it
shows, with a plain form, so that code hosts, screen readers and nbval have it too.

A step has one colour and one marker in every figure. No two of its markers are alike, and colours
that share a figure are apart with any kind of colour vision; tests/helpers/draw/test_style.py
computes both.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...catalogue.registry import TORCH, UNFUSED, step_number
from ..rich import FIGURE, PADDING, UNDER, Rich, escape

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Text


PICTURES = "SOFTMAX_PICTURES"  # 0: no pixels; nbval compares words and digests
PAGE = 700  # CSS pixels that a notebook's page shows side by side
INCHES = 7.0  # the width of a figure, so that a point of text is 1/72 of 100 such pixels
TITLE_LETTERS = 66  # of a line of a title
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


OTHERS = {  # by the titles of `measure.baselines`
    "copy": Look(BLACK, "", "--"),
    "00_copy": Look(BLACK, "", "--"),
    UNFUSED: Look("#777777", "H"),
    "ours": Look(BLUE, "o"),
    **dict.fromkeys(("PyTorch", TORCH), Look("#A06A00", "8", ":")),
    "torch.compile": Look("#C33C3C", "s"),
    "Triton tutorial": Look("#4B1EB4", "^"),
    "Liger": Look("#00A064", "v"),
    "QuACK": Look("#D21EB4", "D"),
    "FlashInfer": Look("#00005A", "P"),
    "cuDNN": Look(DARK, "X"),
}


def look(step: str) -> Look:
    """How a step of the catalogue looks, a variant or a trial of it (as its step), "copy", a
    baseline of the comparison, such as "PyTorch", or "ours" in it.

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
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ink(color: Color, fill: Color = "white") -> str:
    """A colour for words on a light one: that of a mark, or a darker tone of it that is readable
    there."""
    from matplotlib.colors import to_hex, to_rgb

    tone = np.array(to_rgb(color))
    while contrast(tuple(tone), fill) < READABLE + 0.05:  # rounding may take a little
        tone *= 0.98
    return to_hex(tone)


def ink_on(fill: Color) -> str:
    """Black or white, whichever is read better on a colour."""
    return max((BLACK, "#ffffff"), key=lambda words: contrast(words, fill))


def _luminance(color: Color) -> float:
    from matplotlib.colors import to_rgb

    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(color)]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


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
    title = textwrap.fill(title, TITLE_LETTERS, break_on_hyphens=False)
    figure.suptitle(title, x=0.008, ha="left", fontsize=12, fontweight="bold")


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
    page = f'<div style="{UNDER}">{escape(sentence)}</div>'
    Rich(_wrapped(sentence), page).display()


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 80, break_on_hyphens=False, break_long_words=False)


def _png(figure: Figure) -> bytes:
    """A figure at double resolution in its 256 most common colours: a third of the bytes, and
    nobody sees it. Where nobody looks at all, it is laid out and no more."""
    from PIL import Image, ImageOps

    figure.draw_without_rendering()  # the layout nears its end with each drawing
    if os.environ.get(PICTURES) == "0":
        return b""
    rgba, png = io.BytesIO(), io.BytesIO()
    figure.savefig(rgba, format="rgba", dpi=2 * figure.get_dpi())
    size = [int(2 * length) for length in figure.bbox.size]
    pixels = Image.frombuffer("RGBA", size, rgba.getbuffer()).convert("RGB")
    pixels = ImageOps.expand(pixels, 2 * PADDING, "white")
    pixels.quantize(256, dither=Image.Dither.NONE).save(png, format="png", optimize=True)
    return png.getvalue()


# ---- the digest ---------------------------------------------------------------------------------

FONT_PLACED = {"gid": "placed by font metrics"}  # keyword of an artist
DIGITS = 6  # significant digits of a number: equal on all platforms
LETTERS = 16  # length of a digest


def digest_of(drawn: object) -> str:
    """Return the digest of a figure, or of lists, tuples, numbers and strings. The order in which
    artists were added does not count."""
    if not isinstance(drawn, (list, tuple)):
        drawn = sorted(json.dumps(part) for part in _parts(drawn))
    return hashlib.sha256(json.dumps(drawn).encode()).hexdigest()[:LETTERS]


def _parts(figure: Figure) -> Iterator[list]:
    """Describe the content of a figure as JSON values."""
    yield ["figure", _numbers(figure.get_size_inches())]
    yield from (["title", *text.get_text().split()] for text in figure.texts)
    for axes in figure.axes:
        yield ["axes", axes.get_xscale(), _numbers(axes.get_xlim())]
        yield ["axes", axes.get_yscale(), _numbers(axes.get_ylim())]
        if axes.axison:
            yield from map(_axis, (axes.xaxis, axes.yaxis))
        yield from filter(None, map(_artist, _artists(axes)))
        if legend := axes.get_legend():
            for word, key in zip(legend.get_texts(), legend.legend_handles, strict=True):
                look = _look(key) if hasattr(key, "get_hatch") else [str(key.get_marker())]
                yield ["key", *_words(word), *look]


def _artists(axes: Axes) -> Iterator[Artist]:
    """The content of axes with titles, without frame, axis objects, background and legend."""
    own = {*axes.spines.values(), axes.xaxis, axes.yaxis, axes.patch, axes.get_legend()}
    return (artist for artist in axes.get_children() if artist not in own)


def _axis(axis: Axis) -> list:
    """The name of an axis, and its ticks unless they depend on the available space."""
    from matplotlib.ticker import FixedLocator

    locator = axis.get_major_locator()
    places = locator.locs if isinstance(locator, FixedLocator) else []
    labels = axis.get_major_formatter().format_ticks(places)
    return ["axis", axis.get_label_text(), _numbers(places), labels]


def _artist(artist: Artist) -> list | None:
    """Describe an artist: kind, style and positions.

    Raises `TypeError` for an unknown kind of artist.
    """
    from matplotlib.collections import Collection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.text import Text

    if isinstance(artist, Text):
        return _words(artist)
    if isinstance(artist, Line2D):
        marker = artist.get_marker()
        edge = _colors([artist.get_markerfacecolor(), artist.get_markeredgecolor()])
        look = [*_colors([artist.get_color()]), artist.get_linestyle(), str(marker), *edge]
        sizes = _numbers([artist.get_linewidth(), artist.get_markersize()])
        return ["line", *look, *sizes, _numbers(artist.get_xydata())]
    if isinstance(artist, Patch):
        return ["patch", *_look(artist), _places_of(artist)]
    if isinstance(artist, Collection):
        paths = [_numbers(path.vertices) for path in artist.get_paths()]
        faces, edges = _colors(artist.get_facecolor()), _colors(artist.get_edgecolor())
        looks = faces, edges, _numbers(artist.get_linewidth()), artist.get_hatch()
        return ["collection", *looks, paths, _numbers(artist.get_offsets())]
    raise TypeError(f"_artist describes no {type(artist).__name__}: add it, with a test")


def _look(patch) -> list:
    colors = _colors([patch.get_facecolor(), patch.get_edgecolor()])
    return [*colors, *_numbers([patch.get_linewidth()]), patch.get_hatch()]


def _places_of(patch) -> list[str]:
    """The position of a patch in data coordinates: the ends of an arrow, otherwise the bounding
    box."""
    from matplotlib.patches import FancyArrowPatch

    if FONT_PLACED["gid"] == patch.get_gid():
        return []
    if isinstance(patch, FancyArrowPatch):  # its path depends on the resolution
        return _numbers(patch._posA_posB or patch._path_original.vertices)
    corners = patch.get_patch_transform().transform(patch.get_path().vertices)
    return _numbers([corners.min(axis=0), corners.max(axis=0)])


def _words(text) -> list | None:
    """Describe a text, regardless of line breaks. For an annotation the annotated point counts, not
    the offset of the text."""
    words = " ".join(text.get_text().split())
    arrow = getattr(text, "arrow_patch", None)
    in_data = text.get_gid() != FONT_PLACED["gid"]
    if not words and not (arrow and in_data):
        return None
    places = [getattr(text, "xy", text.get_position())] if in_data else []
    if in_data and arrow:
        places.append(text.xyann)
    look = [*_colors([text.get_color()]), *_numbers([text.get_fontsize()]), text.get_fontweight()]
    return ["text", words, *look, *(_look(arrow) if arrow else []), _numbers(places)]


def _numbers(values: object) -> list[str]:
    """Rounded numbers as text; 0 has no sign."""
    return [f"{value + 0.0:.{DIGITS}g}" for value in np.asarray(values, float).ravel().tolist()]


def _colors(colors: Iterable) -> list[str]:
    from matplotlib.colors import to_hex

    return [to_hex(color, keep_alpha=True) for color in colors]


# ---- labels and keys ----------------------------------------------------------------------------


def beside(axes: Axes, x: float, y: float, text: str, side: tuple[float, float], **look) -> None:
    """A text next to a place; `side` is the offset in points to the right and up. Its colour is
    that of a mark, darkened to be legible."""
    from matplotlib.patheffects import withStroke

    right, up = side
    look = {
        "ha": "left" if right > 0 else "right" if right < 0 else "center",
        "va": "center" if not up else "bottom" if up > 0 else "top",
        "annotation_clip": False,
        "zorder": 6,
        **look,
        "color": ink(look.get("color", BLACK)),
    }
    label = axes.annotate(text, (x, y), xytext=side, textcoords="offset points", **look)
    label.set_path_effects([withStroke(linewidth=2.5, foreground="white")])


def key(
    axes: Axes, handles: Mapping[str, Artist] | None = None, bold: Collection[str] = ()
) -> None:
    """The key above the axes: of `handles`, or of all artists with a label, in as many columns as
    fit."""
    if handles is None:
        handles = {name: one for one, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    columns = max(1, min(5, 100 // (6 + max(map(len, handles), default=0))))
    look = {"frameon": False, "fontsize": 9.5, "columnspacing": 1.2, "borderaxespad": 0.2}
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": columns}
    legend = axes.legend(handles.values(), handles, **place, **look)
    for text in legend.get_texts():
        text.set_fontweight("bold" if text.get_text() in bold else "normal")


# ---- boxes, words and arrows --------------------------------------------------------------------

NAME, NOTE = 11, 9.2  # points: of names and of notes


@dataclass(frozen=True)
class Box:
    """A rectangle; y grows downward."""

    x: float
    y: float
    width: float
    height: float

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


def legend(axes: Axes, x: float, y: float, keys: Mapping[str, Mapping]) -> None:
    """Keys beside each other, from x on: what each means -> the properties of its patch, or none
    for words alone."""
    from matplotlib.patches import Patch

    handles = [Patch(**{"facecolor": "none", **look}) for look in keys.values()]
    place = {"loc": "center left", "bbox_to_anchor": (x, y), "bbox_transform": axes.transData}
    style = {"frameon": False, "fontsize": NOTE, "handlelength": 1.2, "columnspacing": 1.2}
    axes.legend(handles, [*keys], ncols=len(keys), borderpad=0, **place, **style)
