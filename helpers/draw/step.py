"""A step's plot: how fast it is, against the step before it, a copy, PyTorch, and what was said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import records
from ..catalogue import TORCH, UNFUSED, step_number
from ..predict import mine_of
from ..races import race_cases
from ..records import Case, Record, gpu_folder, load_record, record_path, recorded_steps
from ..replay import recorded_beside
from ..shapes import FEW_SHAPES, GRID_SHAPES, LONG_SHAPES, REFERENCE_SHAPE, Shape, place
from ..tables import in_dtype
from . import charts, labels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COPY = "00_copy"
MARKS = "predictions"  # the room of their hollow marks between bars
CONTEXT = "#B4B4B4"  # steps before the one before
FAINT = "#707070"  # and their names


def step(
    after: Record,
    before: Record | None = None,
    mine: float | None = None,
    dtype: str = "float32",
    family: str = "grid",
    logy: bool = True,
) -> None:
    """Draw how fast a step is over the length of its rows: beside the step before it, earlier ones
    in pale, a copy, PyTorch, and what was predicted as hollow marks.

    `after` and `before` come from `timings`; `mine` is your prediction, a share of a copy's speed.
    None stands for the one that `predict` keeps; what is no such share is not drawn.
    `family` is "grid", "long" (with rows past 32768) or "few" (few rows, as bars of microseconds).
    A live measurement has its GPU's or the reference GPU's record beside it, dotted.

    Raises `ValueError` for another family.
    """
    if not after.of_family(family, dtype):
        print(f"{after.step}{in_dtype(dtype)}: not measured at these shapes")
        return
    at = _place(after, before, dtype, family)
    if mine is not None or at == _predicted_key(after, dtype, family):
        mine = mine_of(after.step, mine)
    title = _finding(after, before, at, dtype, family)
    draw = _draw_bars if family == "few" else _draw_lines
    figure = draw(title, after, before, mine, at, dtype, family, logy)
    style.finish(figure, title, _sentence(after, before, mine, at, dtype, family))


def series(records: Sequence[Record], dtype: str = "float32", family: str = "long") -> None:
    """Draw all steps that have such cases, each in its colour, with the copy and PyTorch.

    Raises `ValueError` if none has.
    """
    figure, title, sentence = _series(records, dtype, family)
    style.finish(figure, title, sentence)


def save_series(path: Path, **options) -> None:
    """Draw the records of the series into a file, without a screen; `options` are those of
    matplotlib's `savefig`."""
    import matplotlib

    matplotlib.use("agg")
    figure, _, _ = _series(records.series(), "float32", "long")
    figure.savefig(path, **options)


# ---- what is known ------------------------------------------------------------------------------


def eager(dtype: str, family: str, gpu: str) -> list[Case]:
    """PyTorch's own softmax on a GPU: of its record, where that has no such case of the race."""
    known: dict[Shape, Case] = {}
    try:
        for case in race_cases(dtype, gpu):
            if "torch" in case.samples_us:
                times = case.samples_us["torch"], case.copy_samples_us, case.calls["torch"]
                known[case.shape] = Case(dtype, *case.shape, {}, *times, "")
    except FileNotFoundError:
        pass
    if record_path(TORCH, gpu).is_file():
        cases = load_record(TORCH, gpu).of_family("long", dtype)
        known |= {case.shape: case for case in cases}
    wanted = {"grid": GRID_SHAPES, "long": (*GRID_SHAPES, *LONG_SHAPES), "few": FEW_SHAPES}
    return [known[shape] for shape in wanted.get(family, ()) if shape in known]


def _earlier(after: Record, before: Record | None, dtype: str, family: str) -> list[Record]:
    """The steps before, recorded on the same GPU in this dtype and family."""
    if gpu_folder(after.device["name"]) != records.REFERENCE_GPU:
        return []
    names = {after.step, before.step if before else ""}
    return [
        record
        for record in recorded_steps()
        if step_number(record.step) < step_number(after.step)
        and record.step not in names
        and record.of_family(family, dtype)
    ]


def _key(case: Case, family: str) -> Shape | int:
    """What tells cases of a family apart: on a smaller GPU long rows are fewer."""
    return case.shape if family == "few" else case.cols


def _by_key(record: Record | None, dtype: str, family: str) -> dict[Shape | int, Case]:
    cases = record.of_family(family, dtype) if record else []
    return {_key(case, family): case for case in cases}


def _place(after: Record, before: Record | None, dtype: str, family: str) -> Shape | int:
    """Where two steps are compared: where the later one was predicted, else at the reference shape,
    else at the longest rows that both have."""
    own = _by_key(after, dtype, family)
    both = [key for key in own if key in _by_key(before, dtype, family)]
    predicted = _predicted_key(after, dtype, family)
    if predicted in own:
        return predicted
    reference = REFERENCE_SHAPE if family == "few" else REFERENCE_SHAPE[1]
    return reference if reference in (both or own) else (both or [*own])[-1]


def _predicted_key(after: Record, dtype: str, family: str) -> Shape | int | None:
    rows, cols, of_dtype = records.predicted_at(after.step)
    if of_dtype != dtype:
        return None
    return (rows, cols) if family == "few" else cols


def _expected(after: Record, at: Shape | int, dtype: str, family: str) -> float | None:
    """The share of a copy that was predicted for a place."""
    said = records.predictions().get(after.step, {}).get("share")
    return said if after.step != COPY and at == _predicted_key(after, dtype, family) else None


# ---- what is said -------------------------------------------------------------------------------


def times(ratio: float) -> str:
    """ "7.3", "0.87", "12": how many times as fast, with what can be told from noise."""
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}" if ratio >= 1.95 else f"{ratio:.2f}"


def _ratio(after: Record, before: Record | None, at, dtype: str, family: str) -> float | None:
    earlier = _by_key(before, dtype, family).get(at)
    return earlier.median_us / _by_key(after, dtype, family)[at].median_us if earlier else None


def _where(at: Shape | int) -> str:
    return f"{at} columns" if isinstance(at, int) else place(*at)


def _finding(after: Record, before: Record | None, at, dtype: str, family: str) -> str:
    """The title: what came out."""
    case = _by_key(after, dtype, family)[at]
    ratio = _ratio(after, before, at, dtype, family)
    where = f"at {_where(at)}{in_dtype(dtype)}"
    if ratio is None and after.step == COPY:
        return f"{after.step}: {case.gbps:.0f} GB/s {where}"
    if ratio is None:
        return f"{after.step}: {case.share:.2f} of a copy's speed {where}"
    if abs(ratio - 1) < 0.01:
        return f"{after.step}: as fast as {before.step} {where}"
    return f"{after.step}: {times(ratio)} times as fast as {before.step} {where}"


def _sentence(
    after: Record, before: Record | None, mine: float | None, at, dtype: str, family: str
) -> str:
    case = _by_key(after, dtype, family)[at]
    ratio = _ratio(after, before, at, dtype, family)
    rate = f"{case.median_us:.2f} us" if family == "few" else f"{case.gbps:.0f} GB/s"
    parts = [f"{after.step} at {_where(at)}{in_dtype(dtype)}: {rate}"]
    if after.step != COPY:
        parts.append(f"{case.share:.2f} of a copy")
    expected = _expected(after, at, dtype, family)
    said = [f"{expected:.2f} predicted"] if expected else []
    said += [f"{mine:.2f} by you"] if mine else []
    if said:
        parts[-1] += f" ({', '.join(said)})"
    if ratio is not None:
        parts.append(f"{times(ratio)} times as fast as {before.step}")
    origin = after.origin()
    spread = f"replays within {case.spread:.1%}"
    return f"{', '.join(parts)}. {origin[0].upper()}{origin[1:]}, {spread}."


# ---- lines over the length of a row -------------------------------------------------------------


def _draw_lines(title, after, before, mine, at, dtype, family, logy) -> Figure:
    figure, axes = style.chart(title, 4.3)
    own = _by_key(after, dtype, family)
    shown = [record for record in (before, after) if record]
    earlier = _earlier(after, before, dtype, family)
    ends = []
    for record in earlier:
        cases = record.of_family(family, dtype)
        _line(axes, cases, CONTEXT, style.look(record.step)[1], linewidth=1.1, markersize=3)
        ends.append(_end(cases, record.step, FAINT, 9))
    if torch := eager(dtype, family, gpu_folder(after.device["name"])):
        ends.append(_torch(axes, torch))
    if before and before.of_family(family, dtype):
        cases = before.of_family(family, dtype)
        _line(axes, cases, style.DARK, style.look(before.step)[1], linewidth=1.8, markersize=5)
        ends.append(_end(cases, before.step, style.DARK, 10))
    color, marker = style.look(after.step)
    measured = (*earlier, *shown)  # the step's own last: what is last stays
    copies = [*torch, *(case for record in measured for case in _on(record, after, family, dtype))]
    if after.step == COPY:
        color = style.BLUE
    else:
        ends.append(_copy(axes, copies))
    for beside in recorded_beside(after):
        if cases := beside.of_family(family, dtype):
            _line(axes, cases, color, marker, linestyle=":", linewidth=1.2, markersize=3)
            ends.append(_end(cases, beside.label, color, 9))
    cases = [*own.values()]
    _spread(axes, cases, color)
    _line(axes, cases, color, marker or "o", linewidth=3.2, markersize=6.5, zorder=4)
    ends.append(_end(cases, after.step, color, 11.5, bold=True))
    _axes_of(axes, copies, logy)
    labels.at_ends(axes, ends)
    _compare(axes, after, before, mine, at, dtype, family, color)
    return figure


def _on(record: Record, after: Record, family: str, dtype: str) -> list[Case]:
    """Its cases if it was measured on the same GPU: a copy of another one is no ceiling."""
    same = record.device["name"] == after.device["name"]
    return record.of_family(family, dtype) if same else []


def _line(axes: Axes, cases: Sequence[Case], color: str, marker, **options) -> None:
    axes.plot(
        [case.cols for case in cases],
        [case.gbps for case in cases],
        color=color,
        marker=marker,
        **options,
    )


def _end(cases: Sequence[Case], text: str, color: str, size: float, bold=False) -> labels.End:
    return labels.End(cases[-1].cols, cases[-1].gbps, text, color, size, bold)


def _copy(axes: Axes, cases: Sequence[Case]) -> labels.End:
    """The same-size copy; of two at a length the last."""
    rates = {case.cols: case.copy_gbps for case in cases}
    cols = sorted(rates)
    axes.plot(cols, [rates[col] for col in cols], color=style.BLACK, linestyle="--", linewidth=1.5)
    return labels.End(cols[-1], rates[cols[-1]], "a copy", style.BLACK, 10, bold=True)


def _torch(axes: Axes, cases: Sequence[Case]) -> labels.End:
    known = style.look_of("torch")
    _line(axes, cases, known.color, known.marker, linestyle=known.line, linewidth=1.6, markersize=4)
    return _end(cases, "PyTorch", known.color, 10)


def _spread(axes: Axes, cases: Sequence[Case], color: str) -> None:
    """Slowest and fastest replay."""
    low = [case.gbps - case.bytes / max(case.samples_us) / 1e3 for case in cases]
    high = [case.bytes / min(case.samples_us) / 1e3 - case.gbps for case in cases]
    cols, rates = [case.cols for case in cases], [case.gbps for case in cases]
    axes.errorbar(cols, rates, yerr=[low, high], color=color, fmt="none", capsize=2, linewidth=1)


def _axes_of(axes: Axes, cases: Sequence[Case], logy: bool) -> None:
    columns = sorted({case.cols for case in cases})
    charts.scales(axes, columns, True, logy)
    axes.set_xticks(columns[:: 1 if len(columns) < 8 else 2])
    elements = {case.rows * case.cols for case in cases}
    size = f"$2^{{{max(elements).bit_length() - 1}}}$"
    always = f"always has {size}" if len(elements) == 1 else "has up to " + size
    axes.set_xlabel(f"columns of a row (the matrix {always} elements: longer rows, fewer of them)")
    axes.set_ylabel("GB/s, each step of the scale doubles" if logy else "GB/s")


def _compare(axes, after, before, mine, at, dtype, family, color) -> None:
    """At one place: an arrow from the step before, and hollow marks where it was expected."""
    own = _by_key(after, dtype, family)
    case, earlier = own[at], _by_key(before, dtype, family).get(at)
    ratio = _ratio(after, before, at, dtype, family)
    if ratio is not None and max(ratio, 1 / ratio) > 1.35:  # else there is no room for an arrow
        arrow = {"arrowstyle": "-|>", "color": color, "linewidth": 2, "mutation_scale": 14}
        axes.annotate(
            "",
            (at, case.gbps),
            xytext=(at, earlier.gbps),
            arrowprops={**arrow, "shrinkA": 6, "shrinkB": 7},
            zorder=5,
        )
        heights = [earlier.gbps ** (1 - part) * case.gbps**part for part in (0.5, 0.35, 0.65, 0.2)]
        big = {"color": color, "fontsize": 13, "fontweight": "bold"}
        sides = (labels.RIGHT, labels.LEFT)
        labels.beside(axes, [(at, y) for y in heights], f"× {times(ratio)}", sides, **big)
    for share, who, ink in _said(after, mine, at, dtype, family):
        _diamond(axes, at, share * case.copy_gbps, f"{who} {share:.2f}", ink)


def _said(after, mine, at, dtype, family) -> list[tuple[float, str, str]]:
    """(share of a copy, who said it, colour) of the predictions."""
    ours = _expected(after, at, dtype, family), "predicted", style.look(after.step)[0]
    return [said for said in (ours, (mine, "yours", style.BLACK)) if said[0] is not None]


def _diamond(axes: Axes, x: float, y: float, text: str, ink: str) -> None:
    hollow = {"markerfacecolor": "none", "markeredgecolor": ink, "markeredgewidth": 1.8}
    axes.plot([x], [y], "D", markersize=10, zorder=7, **hollow)
    labels.beside(axes, [(x, y)], text, labels.AROUND, color=ink, fontsize=10)


# ---- few rows -----------------------------------------------------------------------------------


def _draw_bars(title, after, before, mine, at, dtype, family, logy) -> Figure:
    """Bars of microseconds at each of the few-row shapes; PyTorch's may leave the figure."""
    own = _by_key(after, dtype, family)
    earlier = _by_key(before, dtype, family)
    torch = {case.shape: case for case in eager(dtype, family, gpu_folder(after.device["name"]))}
    colors = {"a copy": style.BLACK, "PyTorch": style.look("torch")[0]}
    colors[after.step] = style.look(after.step)[0]
    said = _said(after, mine, at, dtype, family)
    values: dict[str, dict[str, float]] = {}
    for shape, case in own.items():
        parts = values[place(*shape)] = {after.step: case.median_us}
        if shape == at and said:
            parts[MARKS] = math.nan
        if shape in earlier:
            parts[before.step] = earlier[shape].median_us
            colors[before.step] = style.GREY
        parts["a copy"] = case.copy_us
        if shape in torch:
            parts["PyTorch"] = torch[shape].median_us
    ours = [case.median_us for case in (*own.values(), *earlier.values())]
    unit = "microseconds a call"
    chart = charts.bar_chart(values, title, unit, mark=after.step, colors=colors, most=max(ours))
    for share, who, ink in said:
        where = own[at].copy_us / share, chart.places[place(*at), MARKS]
        _diamond(chart.axes, *where, f"{who} {share:.2f}", ink)
    return chart.figure


# ---- the series ---------------------------------------------------------------------------------


def _series(shown: Sequence[Record], dtype: str, family: str) -> tuple[Figure, str, str]:
    shown = [record for record in shown if record.of_family(family, dtype)]
    if not shown:
        raise ValueError(f"no record holds {family} cases in {dtype}")
    first = next((record for record in shown if record.step != UNFUSED), shown[0])
    last = shown[-1]
    at = _common(first, last, dtype, family)
    title = _finding(last, first if last is not first else None, at, dtype, family)
    figure, axes = style.chart(title, 4.6)
    ends = []
    for record in shown:
        cases = record.of_family(family, dtype)
        color, marker = style.look(record.step)
        _line(axes, cases, color, marker, linewidth=1.8, markersize=5.5)
        ends.append(_end(cases, record.step, color, 10))
    if torch := eager(dtype, family, gpu_folder(last.device["name"])):
        ends.append(_torch(axes, torch))
    copies = [*torch, *(case for record in shown for case in _on(record, last, family, dtype))]
    ends.append(_copy(axes, copies))
    _axes_of(axes, copies, True)
    labels.at_ends(axes, ends)
    return figure, title, _sentence(last, first, None, at, dtype, family)


def _common(first: Record, last: Record, dtype: str, family: str) -> int:
    """The columns where first and last step are compared."""
    both = [key for key in _by_key(last, dtype, family) if key in _by_key(first, dtype, family)]
    known = both or [*_by_key(last, dtype, family)]
    return REFERENCE_SHAPE[1] if REFERENCE_SHAPE[1] in known else known[-1]
