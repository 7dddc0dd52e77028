"""A digest of the content of a figure: points, shapes, colours and words, not pixels.

Notebooks store it with the picture, so that `make test` compares figures without rendering them.
Label positions that depend on the size of rendered words differ between versions of Matplotlib;
such artists are marked with `FONT_PLACED`, and their positions are ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

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
