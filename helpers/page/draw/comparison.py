"""The comparison with other libraries: fractions of copy bandwidth, speedups over all shapes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...base.arguments import checked
from ...measure.baselines import BASELINES
from ...measure.baselines import title as title_of
from ...measure.comparison import SLOWER, Comparison, Unseen
from ...problem.shapes import FEW_SHAPES
from ...simt.words import counted
from . import charts, labels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = "ours"


@checked
def baselines(cases: Sequence[Comparison]) -> None:
    """Draw each kernel's fraction of copy bandwidth over the length of a row: ours bold, each
    baseline in its colour. A few rows are drawn as bars.

    The cases should be of one dtype and one family, such as 2^28 elements each. Raises `ValueError`
    if there are none.
    """
    if not cases:
        raise ValueError("no cases to draw")
    counts = Counter(case.verdict for case in cases)
    title = f"Ahead of the best baseline at {counts['ahead']} of {_shapes(cases)}"
    draw = _bars if all(case.shape in FEW_SHAPES for case in cases) else _lines
    style.finish(draw(cases, title), title, says(cases))


def says(cases: Sequence[Comparison]) -> str:
    """Return the counts of the verdicts and the smallest speedup in a sentence."""
    counts = Counter(case.verdict for case in cases)
    worst = min(cases, key=lambda case: case.speedup or float("inf"))
    score = f"ahead {counts['ahead']}, level {counts['level']}, "
    score += f"{SLOWER} {counts[SLOWER]}, " if counts[SLOWER] else ""
    score += f"lost {counts['LOSS']}"
    if counts["unsupported"]:
        score += f", unsupported {counts['unsupported']}"
    beside = ""
    if worst.best_baseline and worst.speedup:
        best, where = title_of(worst.best_baseline), worst.problem.place(dtype=False)
        beside = f"; the smallest speedup is {worst.speedup:.2f}, over {best} at {where}"
    return f"Of {_shapes(cases)}: {score}{beside}."


# ---- speedups over all shapes ------------------------------------------------------------------

ALL = "2^28\nin all"  # one column for matrices of 2^28 elements, whose numbers of rows differ
# Fill colours where we are not ahead; otherwise blue.
LEVEL, BEHIND, LOST, NONE = "#E4E4E4", "#FADCB8", "#F0A860", "#222222"
FILLS = {"level": LEVEL, SLOWER: BEHIND, "LOSS": LOST}
NAMES = {"ahead": "ahead", "level": "level", SLOWER: "level, slower", "LOSS": "lost"}
FAR = 2.0  # the speedup above which the blue stays the same


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
        size = case.rows * case.cols
        return math.inf if abs(size / 2**28 - 1) < 0.01 else case.rows

    rows = sorted({rows_of(case) for case in cases})
    columns = sorted({case.cols for case in cases})
    known = {(case.cols, rows_of(case)): case for case in cases}
    fields = [[_field(known.get((cols, row))) for row in rows] for cols in columns]
    names = [ALL if row == math.inf else f"{row}" for row in rows]
    title = f"Speedup over the best baseline, {cases[0].dtype}"
    x = "rows (blue: ahead, grey: level, pale orange: slower, orange: lost, black: no kernel)"
    return charts.heat_map(columns, names, fields, title, x, "columns per row", high=0.21), title


def _field(case: Comparison | None) -> charts.Field | None:
    if case is None:
        return None
    if case.verdict == "unsupported":
        return charts.Field("none", NONE, True)
    text = (
        "alone"
        if case.speedup == math.inf
        else f"{case.speedup:.{2 if case.speedup < 9.995 else 1}f}"
    )
    if case.verdict == "ahead":
        return charts.Field(text, _blue(case.speedup))
    return charts.Field(text, FILLS[case.verdict], case.verdict == "LOSS")


def _blue(speedup: float) -> tuple[float, ...]:
    import matplotlib as mpl

    dark = math.log(min(max(speedup, 1.0), FAR)) / math.log(FAR)
    return mpl.colormaps["Blues"](0.2 + 0.7 * dark)


# ---- problems drawn at random -------------------------------------------------------------------

WON = "#2A6DB0"  # dots where we are ahead


@checked
def unseen(cases: Sequence[Unseen]) -> None:
    """Draw a dot for each problem drawn at random, over the size of x: above, our speedup over the
    best baseline, blue where we are ahead, grey where level, pale orange where level but slower,
    orange where lost; below, our fraction of copy bandwidth.

    Raises `ValueError` if there are none.
    """
    figure, title = of_unseen(cases)
    counts = Counter(case.verdict for case in cases)
    said = f"Of {counted(len(cases), 'problem')} drawn at random: ahead {counts['ahead']}, level "
    said += f"{counts['level']}, {SLOWER} {counts[SLOWER]}, lost {counts['LOSS']}."
    style.finish(figure, title, said)


def of_unseen(cases: Sequence[Unseen]) -> tuple[Figure, str]:
    """Return (figure, title) of `unseen`."""
    import matplotlib as mpl

    shown = [case for case in cases if case.verdict in (*FILLS, "ahead") and case.best_baseline]
    if not shown:
        raise ValueError("no cases to draw")
    losses = sum(case.verdict == "LOSS" for case in shown)
    title = f"{counted(len(shown), 'problem')} drawn at random: ours loses at {losses}"
    with style.styled_figure(5.2, layout="constrained") as figure:
        above, below = figure.subplots(2, 1, sharex=True)
    dots = {"ahead": WON, **FILLS, "level": style.GREY}
    for verdict, color in dots.items():
        found = [case for case in shown if case.verdict == verdict]
        at = [case.rows * case.problem.row_bytes / 1e6 for case in found]
        lost = verdict == "LOSS"
        look = {"color": color, "markersize": 6 if lost else 4, "zorder": 4 if lost else 3}
        look |= {"markeredgecolor": style.BLACK if lost else color}
        for axes, values in (
            (above, [case.speedup for case in found]),
            (below, [case.share(case.step) for case in found]),
        ):
            axes.plot(at, values, "o", **look)
    above.set_xscale("log")
    above.set_yscale("log")
    ticks = [0.8, 1, 1.25, 1.5, 2, 3, 5]
    above.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    above.minorticks_off()
    above.set_ylabel("speedup over the best baseline")
    below.set_ylabel("fraction of copy bandwidth")
    below.set_xlabel("size of x, MB")
    below.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    for axes in (above, below):
        axes.axhline(1, color=style.BLACK, linestyle="--", linewidth=1.5)
    handles = [mpl.patches.Patch(color=dots[verdict], label=NAMES[verdict]) for verdict in dots]
    above.legend(handles=handles, loc="upper right", frameon=False, ncols=4)
    style.head(figure, title)
    return figure, title


# ---- where we are not ahead --------------------------------------------------------------------


@checked
def not_ahead(cases: Sequence[Comparison]) -> None:
    """Draw, as bars, the shapes at which we are level with the best baseline (grey), level but
    slower (pale orange) or lose to it (orange): how many percent faster we are, the least first;
    the baseline is named.

    Raises `ValueError` if we are ahead at all of them.
    """
    shown = [case for case in cases if case.verdict in FILLS]
    if not shown:
        raise ValueError("no case is level or lost")
    shown.sort(key=lambda case: case.speedup)
    names = {f"{_where(case)}, {title_of(case.best_baseline)}": case for case in shown}
    title = "Where ours is not ahead of the best baseline"
    figure, axes = charts.bar_chart(
        {name: _faster(case) for name, case in names.items()},
        title,
        "% faster (grey: level, pale orange: slower, orange: lost)",
        mark=[name for name, case in names.items() if case.verdict == "LOSS"],
        colors={name: {**FILLS, "level": style.GREY}[case.verdict] for name, case in names.items()},
    )
    axes.axvline(0, color=style.BLACK, linewidth=1)
    counts = Counter(case.verdict for case in shown)
    says = f"Of {counted(len(cases), 'case')}: level at {counts['level']}"
    for verdict, word in ((SLOWER, SLOWER), ("LOSS", "lost")):
        of_it = [case for case in shown if case.verdict == verdict]
        words = [f"{_where(case)} to {title_of(case.best_baseline)}" for case in of_it]
        if of_it or verdict == "LOSS":
            says += f", {word} at "
            says += f"{len(words)}: {', '.join(words)}" if words else "none"
    says += "."
    style.finish(figure, title, says)


def _where(case: Comparison) -> str:
    return case.problem.place()


def _faster(case: Comparison) -> float:
    return round(100 * (case.speedup - 1), 1) + 0  # no -0.0


def _shapes(cases: Sequence[Comparison]) -> str:
    return f"{counted(len(cases), 'shape')} in {cases[0].dtype}"


def _named(cases: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """Return the kernels to draw, ours last, each with the cases in which it was timed."""
    timed = {name: [case for case in cases if name in case.timed] for name in BASELINES}
    timed[OURS] = [case for case in cases if case.step in case.samples_us]
    return {name: cases for name, cases in timed.items() if cases}


def _share(case: Comparison, name: str) -> float:
    return case.share(case.step if name == OURS else name)


def _lines(cases: Sequence[Comparison], title: str):
    figure, axes = style.chart(title, 4.3)
    axes.axhline(1, color=style.BLACK, linestyle="--", linewidth=1.5)
    ends = []
    for name, timed in _named(cases).items():
        look = style.look(name)
        timed = sorted(timed, key=lambda case: case.cols)
        cols, shares = [case.cols for case in timed], [_share(case, name) for case in timed]
        bold = name == OURS
        wide = {"linewidth": 3.4, "markersize": 7} if bold else {"linewidth": 1.5, "markersize": 5}
        axes.plot(cols, shares, **look._asdict(), **wide)
        size = 11.5 if bold else 10
        ends.append(labels.End(cols[-1], shares[-1], title_of(name), look.color, size, bold))
    charts.scales(axes, [case.cols for case in cases])
    axes.set_xlabel("columns per row")
    axes.set_ylabel("fraction of copy bandwidth")
    axes.set_title("dashed: a copy", fontsize=9.5, fontweight="normal", loc="left")
    labels.at_ends(axes, ends)
    return figure


def _bars(cases: Sequence[Comparison], title: str):
    values = {
        case.problem.place(dtype=False): {
            title_of(name): _share(case, name)
            for name, timed in reversed(_named(cases).items())
            if case in timed
        }
        for case in cases
    }
    unit = "fraction of copy bandwidth"
    figure, _ = charts.bar_chart(
        *(values, title, unit),
        mark=OURS,
        limit=("a copy", 1.0),
        colors={title_of(name): style.look(name).color for name in _named(cases)},
    )
    return figure
