"""The one style of figures, and the one way in which a figure reaches the page.

A figure is shown as a PNG at double resolution, and under it stands one sentence of plain text that
says what it shows, so that code hosts, screen readers and nbval have it too.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # recording needs no matplotlib, so it is imported where a figure is drawn
    from matplotlib.figure import Figure

PAGE = 700  # CSS pixels that a notebook's page shows side by side
INCHES = 7.0  # the width of a figure, so that a point of text is 1/72 of 100 such pixels
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


def finish(figure: Figure, title: str, sentence: str) -> None:
    """Show a figure and print the sentence that says what it shows; `title` is its plain form."""
    import matplotlib.pyplot as plt
    from IPython.display import display

    if not sentence.strip():
        raise ValueError(f"the figure {title!r} needs a sentence that says what it shows")
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=2 * figure.get_dpi())
    width = round(figure.get_figwidth() * figure.get_dpi())
    plt.close(figure)
    display(
        {"image/png": png.getvalue(), "text/plain": f"<figure: {title}>"},
        metadata={"image/png": {"width": min(width, PAGE), "alt": sentence}},
        raw=True,
    )
    print(sentence)
