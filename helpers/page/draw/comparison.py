"""The comparison with other libraries: fractions of copy bandwidth, speedups over all shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...base.arguments import checked
from ...measure.baselines import BASELINES
from ...measure.baselines import title as title_of
from ...measure.comparison import SLOWER, Comparison, Unseen
from ...problem.shapes import FEW_SHAPES
from ...simt.words import counted
from ..comparison_text import score, speedup_of
from . import charts, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARE = "fraction of copy bandwidth"
# Fill colours of fields, by verdict; where we are ahead, the darker a blue the larger the speedup,
# up to FAR.
FILLS = {"level": "#E4E4E4", SLOWER: "#FADCB8", "LOSS": "#F0A860", "unsupported": "#222222"}
COLORS = "blue: ahead, grey: level, pale orange: slower, orange: lost"
FAR = 2.0
DOTS = {"ahead": "#2A6DB0", **FILLS, "level": style.GREY}  # colours of dots
ALL = "2^28\nin all"  # one column for matrices of 2^28 elements, whose numbers of rows differ


@checked
def baselines(cases: Sequence[Comparison]) -> None:
    """Draw the fraction of copy bandwidth of ours and of each baseline over the length of a row. A
    few rows are drawn as bars.

    The cases should be of one dtype and one family, such as 2^28 elements each. Raises `ValueError`
    if there are none.
    """
    if not cases:
        raise ValueError("no cases to draw")
    title = f"{cases[0].dtype}: {score(cases)}"
    titles = {**{name: title_of(name) for name in BASELINES}, "": "ours"}

    def share(case: Comparison, name: str) -> float | None:
        name = name or case.step
        return case.share(name) if name in case.timed else None

    if all(case.shape in FEW_SHAPES for case in cases):
        shares = {
            case.problem.place(dtype=False): {
                titles[name]: share(case, name) for name in reversed(titles)
            }
            for case in cases
        }
        charts.bars(shares, title, SHARE, says(cases), limit=("a copy", 1.0))
        return
    lines = {}
    for name, label in titles.items():
        points = [(case.cols, share(case, name)) for case in cases]
        if known := sorted(point for point in points if point[1] is not None):
            lines[label] = tuple(zip(*known, strict=True))
    limit = ("a copy", 1.0)
    charts.curves(lines, title, "columns per row", SHARE, says(cases), mark="ours", limit=limit)


def says(cases: Sequence[Comparison]) -> str:
    """Return the counts of the verdicts and the smallest speedup in a sentence."""
    compared = [case for case in cases if case.step and case.best_baseline]
    if not compared:
        return f"{score(cases)}."
    least = min(compared, key=speedup_of)
    best, place = title_of(least.best_baseline), least.problem.place()
    return f"{score(cases)}; the smallest speedup is {least.speedup:.2f}, over {best} at {place}."


# ---- speedups over all shapes ------------------------------------------------------------------


@checked
def speedups(cases: Sequence[Comparison]) -> None:
    """Draw the speedup over the best baseline, over rows and columns: blue where we are ahead, grey
    where level, pale orange where level but slower, orange where lost, black where none of our
    kernels supports the shape.

    The cases should be of one dtype. Raises `ValueError` if there are none.
    """
    figure, title = of_speedups(cases)
    style.finish(figure, title, says(cases))


def of_speedups(cases: Sequence[Comparison]) -> tuple[Figure, str]:
    """Return (figure, title), with one line per number of columns."""
    if not cases:
        raise ValueError("no cases to draw")

    def rows_of(case: Comparison) -> float:
        return math.inf if abs(case.rows * case.cols / 2**28 - 1) < 0.01 else case.rows

    rows = sorted({rows_of(case) for case in cases})
    columns = sorted({case.cols for case in cases})
    known = {(case.cols, rows_of(case)): _field(case) for case in cases}
    fields = [[known.get((cols, row)) for row in rows] for cols in columns]
    names = [ALL if row == math.inf else f"{row}" for row in rows]
    title = f"Speedup over the best baseline, {cases[0].dtype}"
    x = f"rows ({COLORS}, black: no kernel)"
    return charts.heat_map(columns, names, fields, title, x, "columns per row", high=0.21), title


def _field(case: Comparison) -> charts.Field:
    import matplotlib as mpl

    if case.verdict == "unsupported" or case.speedup == math.inf:
        text = "none" if case.verdict == "unsupported" else "alone"
    else:
        text = f"{case.speedup:.{2 if case.speedup < 9.995 else 1}f}"
    dark = math.log(min(max(case.speedup, 1.0), FAR)) / math.log(FAR)
    fill = FILLS.get(case.verdict) or mpl.colormaps["Blues"](0.2 + 0.7 * dark)
    return charts.Field(text, fill, case.verdict in ("LOSS", "unsupported"))


# ---- problems drawn at random -------------------------------------------------------------------


@checked
def unseen(cases: Sequence[Unseen]) -> None:
    """Draw a dot for each problem drawn at random, over the size of x: above, our speedup over the
    best baseline, blue where we are ahead, grey where level, pale orange where level but slower,
    orange where lost; below, our fraction of copy bandwidth.

    Raises `ValueError` if there are none.
    """
    figure, title = of_unseen(cases)
    style.finish(figure, title, f"{score(cases)}.")


def of_unseen(cases: Sequence[Unseen]) -> tuple[Figure, str]:
    """Return (figure, title) of `unseen`."""
    shown = [case for case in cases if case.step and case.best_baseline]
    if not shown:
        raise ValueError("no cases to draw")
    losses = sum(case.verdict == "LOSS" for case in shown)
    title = f"{counted(len(shown), 'problem')} drawn at random: ours loses at {losses}"
    with style.styled_figure(5.2, layout="constrained") as figure:
        above, below = figure.subplots(2, 1, sharex=True)
    ticks = [0.8, 1, 1.25, 1.5, 2, 3, 5]
    above.set(xscale="log", yscale="log", ylabel="speedup over the best baseline")
    above.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    below.set(ylabel=SHARE, xlabel=f"size of x, MB ({COLORS})")
    below.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    for axes, value in ((above, speedup_of), (below, lambda case: case.share(case.step))):
        axes.minorticks_off()
        axes.axhline(1, **charts.DASHED)
        for case in sorted(shown, key=lambda case: case.verdict == "LOSS"):  # above the others
            look = {"color": DOTS[case.verdict], "markersize": 4, "zorder": 3}
            if case.verdict == "LOSS":
                look |= {"markersize": 6, "markeredgecolor": style.BLACK}
            axes.plot(case.rows * case.problem.row_bytes / 1e6, value(case), "o", **look)
    style.head(figure, title)
    return figure, title
