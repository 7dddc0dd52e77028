"""The race: our kernels beside other people's, as shares of a copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .. import peers
from ..races import RaceCase
from ..shapes import FEW_SHAPES, place
from . import charts, labels, style

OURS = "ours"


def race(cases: Sequence[RaceCase]) -> None:
    """Draw the share of a same-size copy over the length of a row: ours bold, each peer in its
    colour; few rows as bars.

    The cases should be of one dtype and one family, such as 2^28 elements each. Raises `ValueError`
    if there are none.
    """
    if not cases:
        raise ValueError("no cases to draw")
    counts = Counter(case.verdict for case in cases)
    title = f"Ahead of the best peer at {counts['ahead']} of {_shapes(cases)}"
    draw = _bars if all(case.shape in FEW_SHAPES for case in cases) else _lines
    style.finish(draw(cases, title), title, says(cases))


def says(cases: Sequence[RaceCase]) -> str:
    """How many shapes are won and lost, and where we are weakest against whom."""
    counts = Counter(case.verdict for case in cases)
    worst = min(cases, key=lambda case: case.lead)
    score = f"ahead {counts['ahead']}, level {counts['level']}, lost {counts['LOSS']}"
    beside = ""
    if worst.best_peer:
        beside = (
            f"; the least lead is {worst.lead:.2f} times the speed of {worst.best_peer} "
            f"at {place(*worst.shape)}"
        )
    return f"Of {_shapes(cases)}: {score}{beside}."


def _shapes(cases: Sequence[RaceCase]) -> str:
    return f"{len(cases)} shape{'s' if len(cases) > 1 else ''} in {cases[0].dtype}"


def _named(cases: Sequence[RaceCase]) -> dict[str, list[RaceCase]]:
    """Whom to draw, ours last -> the cases it was timed in."""
    timed = {name: [case for case in cases if name in case.samples_us] for name in peers.PEERS}
    return {**{name: cases for name, cases in timed.items() if cases}, OURS: [*cases]}


def _share(case: RaceCase, name: str) -> float:
    return case.share(case.step if name == OURS else name)


def _lines(cases: Sequence[RaceCase], title: str):
    figure, axes = style.chart(title, 4.3)
    axes.axhline(1, color=style.BLACK, linestyle="--", linewidth=1.5)
    ends = []
    for name, timed in _named(cases).items():
        known = style.look_of(name)
        timed = sorted(timed, key=lambda case: case.cols)
        cols, shares = [case.cols for case in timed], [_share(case, name) for case in timed]
        bold = name == OURS
        wide = {"linewidth": 3.4, "markersize": 7} if bold else {"linewidth": 1.5, "markersize": 5}
        line = {"color": known.color, "marker": known.marker, "linestyle": known.line}
        axes.plot(cols, shares, **line, **wide)
        ends.append(labels.End(cols[-1], shares[-1], name, known.color, 11.5 if bold else 10, bold))
    charts.scales(axes, [case.cols for case in cases], True, False)
    columns = sorted({case.cols for case in cases})
    axes.set_xticks(columns[:: 1 if len(columns) < 8 else 2])
    axes.set_xlabel("columns of a row")
    axes.set_ylabel("share of a copy's speed")
    labels.add(axes, columns[0], 1, "a copy", (0, 4), color=style.BLACK, fontweight="bold")
    labels.at_ends(axes, ends)
    return figure


def _bars(cases: Sequence[RaceCase], title: str):
    values = {
        place(*case.shape): {
            name: _share(case, name)
            for name, timed in reversed(_named(cases).items())
            if case in timed
        }
        for case in cases
    }
    unit = "share of a copy's speed"
    limit, colors = ("a copy", 1.0), {name: style.look(name)[0] for name in _named(cases)}
    chart = charts.bar_chart(
        *(values, title, unit),
        mark=OURS,
        limit=limit,
        colors=colors,
        form=lambda share: f"{share:.2f}" if share >= 0.005 else "<0.01",
    )
    return chart.figure
