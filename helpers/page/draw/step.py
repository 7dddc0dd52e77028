"""The plot of a step: its speed, with that of the step before, a copy, PyTorch, and the
prediction."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.arguments import checked
from ...catalogue.registry import TORCH, UNFUSED, step_number
from ...catalogue.store import REFERENCE_GPU, gpu_folder
from ...measure import records
from ...measure.comparison import best_copies, best_copy, comparison_cases
from ...measure.records import Case, Record, Timed, has_record, load_record, recorded_steps
from ...problem.problem import Problem
from ...problem.shapes import (
    FEW_SHAPES,
    GRID_SHAPES,
    LONG_SHAPES,
    REFERENCE_SHAPE,
    UNALIGNED_SHAPES,
    Shape,
)
from ..predict import mine_of
from ..replay import recorded_beside
from . import charts, labels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COPY, A_COPY = "00_copy", "a copy"
CONTEXT, FAINT = "#B4B4B4", "#707070"  # lines of earlier steps, and their names
ARROW_FROM = 1.35  # speedup below which there is no space for an arrow
MARKS = "predictions"  # space for hollow marks between bars


@checked
def step(
    after: Record,
    before: Record | None = None,
    mine: object = None,
    dtype: str = "float32",
    family: str = "grid",
    logy: bool = True,
) -> None:
    """Draw the speed of a step over the row length, with the step before it, earlier ones in pale
    colours, a copy, PyTorch, and predictions as hollow marks. An operation that must move other
    bytes than a copy is only drawn with its bandwidth baseline.

    `after` and `before` come from `timings`; `mine` is your prediction, a fraction of a copy's
    speed. None means the one that `predict` stored; an invalid one is not drawn. `family` is
    "grid", "long" (with rows past 32768), "unaligned" (rows that start anywhere), "few" (few rows,
    as bars of microseconds) or "axes" (another axis, over its length, where its columns are as far
    apart as where the step was predicted). Records of other GPUs are dotted; so is the record of
    the shown GPU with a live measurement.

    Raises `ValueError` for another family.
    """
    if not after.of_family(family, dtype):
        print(f"{after.step}{in_dtype(dtype)}: not measured at these shapes")
        return
    pair = Pair(after, before, dtype, family)
    if mine is not None or pair.at == pair.predicted_at:
        mine = mine_of(after.step, mine)
    figure = _bars(pair, mine) if family == "few" else _lines(pair, mine, logy)
    style.finish(figure, pair.finding, pair.sentence(mine))


def series(
    shown: Sequence[Record] | None = None, dtype: str = "float32", family: str = "long"
) -> None:
    """Draw all records that have cases of a family, each in the colour of its step, with a copy and
    PyTorch; operations that must move other bytes than a copy are omitted.

    None means the records of the whole series. Raises `ValueError` if none has such cases.
    """
    figure, pair = _series(records.series() if shown is None else shown, dtype, family)
    style.finish(figure, pair.finding, pair.sentence())


def save_series(path: Path, here: Mapping[str, Case] | None = None, **options) -> None:
    """Draw the records of the series into a file, without a screen; live cases (`here`, step ->
    case) are drawn over them with rings. `options` are those of matplotlib's `savefig`."""
    import matplotlib

    matplotlib.use("agg")
    figure, _ = _series(records.series(), "float32", "long")
    axes, shown = figure.axes[0], 0
    for step, case in (here or {}).items():
        if case.dtype == "float32" and case.family != "few":
            look = {**style.look(step)._asdict(), "linestyle": ""}
            axes.plot(case.cols, case.gbps, markersize=10, markeredgecolor="black", **look)
            shown += 1
    if shown:
        says = "ringed: measured here, now; lines: recorded"
        axes.text(0.99, 0.02, says, transform=axes.transAxes, ha="right", fontsize=style.SMALL)
    figure.savefig(path, **options)


def eager(dtype: str, family: str, gpu: str) -> list[Case]:
    """PyTorch's softmax on a GPU from its record, otherwise from the comparison."""
    known: dict[Shape, Case] = {}
    with suppress(FileNotFoundError):
        for case in comparison_cases(dtype, gpu):
            if "torch" in case.samples_us:
                times = case.samples_us["torch"], case.copy_samples_us, case.calls["torch"]
                timed = Timed({}, *times, "")
                known[case.shape] = Case.of(timed, TORCH, case.problem, case.run)
    if has_record(TORCH, gpu):
        record = load_record(TORCH, gpu)
        cases = [*record.of_family("long", dtype), *record.of_family("unaligned", dtype)]
        known |= {case.shape: case for case in cases}
    wanted = {
        "grid": GRID_SHAPES,
        "long": (*GRID_SHAPES, *LONG_SHAPES),
        "few": FEW_SHAPES,
        "unaligned": UNALIGNED_SHAPES,
    }
    return [known[shape] for shape in wanted.get(family, ()) if shape in known]


# ---- two steps beside each other ----------------------------------------------------------------

Key = object  # a shape of few rows, of others the columns alone


@dataclass(frozen=True)
class Pair:
    """A step and the one before it, in one dtype and at the shapes of one family."""

    after: Record
    before: Record | None
    dtype: str
    family: str
    common: bool = False  # compared where both are, rather than where the step was predicted

    def cases(self, record: Record | None) -> dict[Key, Case]:
        """A record's cases by what tells them apart: long rows are fewer on a smaller GPU, so their
        columns; of few rows the shape."""
        found = record.of_family(self.family, self.dtype) if record else []
        if self.family == "axes":
            inner = records.predicted_at(self.after.step).inner
            found = [case for case in found if case.inner == inner]
        return {case.shape if self.family == "few" else case.cols: case for case in found}

    @cached_property
    def own(self) -> dict[Key, Case]:
        return self.cases(self.after)

    @cached_property
    def earlier(self) -> dict[Key, Case]:
        return self.cases(self.before)

    @cached_property
    def torch(self) -> dict[Key, Case]:
        """PyTorch's softmax on the same GPU; none beside another operation."""
        if self.ceiling != A_COPY:
            return {}
        found = eager(self.dtype, self.family, gpu_folder(self.after.device["name"]))
        return {case.shape if self.family == "few" else case.cols: case for case in found}

    @property
    def ceiling(self) -> str:
        """What moves as many bytes as the step must: a copy, or another kernel."""
        asked = {case.bandwidth_baseline or COPY for case in self.own.values()}
        return A_COPY if asked == {COPY} else "its bandwidth baseline"

    @property
    def predicted_at(self) -> Key | None:
        """Where the step was predicted; None in another dtype."""
        predicted = records.predicted_at(self.after.step)
        if predicted.dtype != self.dtype:
            return None
        return predicted.shape if self.family == "few" else predicted.cols

    @cached_property
    def at(self) -> Key:
        """Where they are compared: where the later one was predicted, else at the reference shape,
        else at the longest rows that both have."""
        if self.predicted_at in self.own and not self.common:
            return self.predicted_at
        both = [key for key in self.own if key in self.earlier] or [*self.own]
        return REFERENCE_SHAPE[1] if REFERENCE_SHAPE[1] in both else both[-1]

    @property
    def case(self) -> Case:
        return self.own[self.at]

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the step before; None if that has no such case."""
        if self.at not in self.earlier:
            return None
        return self.earlier[self.at].median_us / self.case.median_us

    @property
    def expected(self) -> float | None:
        """The share of a copy that we predicted there."""
        if self.after.step == COPY or self.at != self.predicted_at:
            return None
        return records.predictions().get(self.after.step, {}).get("share")

    def said(self, mine: float | None) -> list[tuple[float, str, str]]:
        """(share of a copy, who said it, colour) of the predictions."""
        ours = self.expected, "predicted", style.look(self.after.step).color
        return [said for said in (ours, (mine, "yours", style.BLACK)) if said[0] is not None]

    @property
    def where(self) -> str:
        at = Problem(*self.at).place() if self.family == "few" else f"{self.at} columns"
        if self.family == "axes":
            at = f"columns of {self.at}"
        return f"{at}{in_dtype(self.dtype)}"

    @property
    def finding(self) -> str:
        """The title: what came out."""
        name, where = _name(self.after), f"at {self.where}"
        if self.ratio is None and self.after.step == COPY:
            return f"{name}: {self.case.gbps:.0f} GB/s {where}"
        if self.ratio is None:
            return f"{name}: {self.case.share:.2f} of {self.ceiling}'s speed {where}"
        if abs(self.ratio - 1) < 0.01:
            return f"{name}: as fast as {_name(self.before)} {where}"
        return f"{name}: {times(self.ratio)} times as fast as {_name(self.before)} {where}"

    def sentence(self, mine: float | None = None) -> str:
        """What came out at that place, and where all of it was measured."""
        case, few = self.case, self.family == "few"
        rate = f"{microseconds(case.median_us)} us" if few else f"{case.gbps:.0f} GB/s"
        shares = [f"{self.expected:.2f} predicted"] if self.expected else []
        shares += [f"{mine:.2f} by you"] if mine else []
        shares += [f"PyTorch {self.torch[self.at].share:.2f}"] if self.at in self.torch else []
        if self.after.step != COPY and round(case.share, 2) > 1:
            best = best_copy(best_copies(gpu_folder(self.after.device["name"])), case)
            shares += [f"best copy {best:.2f}"] if best else []
        parts = [f"{_name(self.after)} at {self.where}: {rate}"]
        if self.after.step != COPY:
            parts.append(f"{case.share:.2f} of {self.ceiling}")
        if shares:
            parts[-1] += f" ({', '.join(shares)})"
        if self.ratio is not None:
            parts.append(f"{times(self.ratio)} times as fast as {_name(self.before)}")
        earlier = ", an earlier version" if "earlier version" in self.after.origin() else ""
        spread = f"runs differ by at most {case.spread:.1%}"
        return f"{', '.join(parts)}. Measured on {self.after.label}{earlier}; {spread}."


def times(ratio: float) -> str:
    """ "7.3", "0.87", "12": how many times as fast, in the digits that stand out of the noise."""
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}" if ratio >= 1.95 else f"{ratio:.2f}"


def microseconds(us: float) -> str:
    """Three digits, so that columns of them can be compared."""
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:.0f}"


def in_dtype(dtype: str) -> str:
    """What a name adds for a dtype that is not the usual one."""
    return f" in {dtype}" if dtype != "float32" else ""


def _name(record: Record) -> str:
    return record.step.removeprefix("variants/")


# ---- lines over the length of a row -------------------------------------------------------------


def _lines(pair: Pair, mine: float | None, logy: bool) -> Figure:
    figure, axes = style.chart(pair.finding, 4.3)
    after, before, ends = pair.after, pair.before, []
    color, marker, _ = style.look(after.step)
    context = _context(pair)
    for record in context:
        look = {"color": CONTEXT, "marker": style.look(record.step).marker, "linewidth": 1.1}
        cases = [*pair.cases(record).values()]
        ends.append(_line(axes, cases, record.step, FAINT, style.SMALL, markersize=3, **look))
    ends += _torch(axes, pair)
    if pair.earlier:
        look = {
            "color": style.DARK,
            "marker": style.look(before.step).marker or "o",
            "linewidth": 1.8,
        }
        ends.append(_line(axes, [*pair.earlier.values()], _name(before), markersize=5, **look))
    copies = _copies(pair, [record for record in (before, after) if record])
    if after.step == COPY:
        color = style.BLUE
    else:
        ends.append(_copy(axes, copies, pair.ceiling))
    for beside in recorded_beside(after):
        if cases := [*pair.cases(beside).values()]:
            look = {"color": color, "marker": marker, "linestyle": ":", "linewidth": 1.2}
            ends.append(_line(axes, cases, beside.label, size=style.SMALL, markersize=3, **look))
    cases = [*pair.own.values()]
    _spread(axes, cases, color)
    look = {"color": color, "marker": marker or "o", "linewidth": 3.2, "markersize": 6.5}
    end = _line(axes, cases, _name(after), size=11.5, zorder=4, **look)
    ends.append(end._replace(bold=True))
    _scale(axes, copies, logy, pair.at)
    name = _compare(axes, pair, mine, color)
    labels.at_ends(axes, ends)
    name()
    return figure


def _context(pair: Pair) -> list[Record]:
    """Earlier steps that were recorded on the same GPU, if that is the reference GPU."""
    if pair.ceiling != A_COPY or gpu_folder(pair.after.device["name"]) != REFERENCE_GPU:
        return []
    number, drawn = step_number(pair.after.step), [pair.before.step] if pair.before else []
    return [
        record
        for record in recorded_steps()
        if step_number(record.step) < number and record.step not in drawn and pair.cases(record)
    ]


def _copies(pair: Pair, measured: Sequence[Record]) -> list[Case]:
    """Cases whose copies are a ceiling, the step's own last: measured on the same GPU, and those
    of PyTorch for rows that are longer or shorter."""
    gpu = pair.after.device["name"]
    same = [record for record in measured if record.device["name"] == gpu]
    known = [case for record in same for case in pair.cases(record).values()]
    columns = [case.cols for case in known]
    beyond = [case for cols, case in pair.torch.items() if not min(columns) <= cols <= max(columns)]
    return [*beyond, *known]


def _line(
    axes: Axes, cases: Sequence[Case], text: str, ink: str = "", size: float = 10, **look
) -> labels.End:
    """GB/s over columns; returns the name at its end."""
    cols, rates = [case.cols for case in cases], [case.gbps for case in cases]
    axes.plot(cols, rates, **look)
    return labels.End(cols[-1], rates[-1], text, ink or look["color"], size)


def _torch(axes: Axes, pair: Pair) -> list[labels.End]:
    cases = [*pair.torch.values()]
    look = {"linewidth": 1.6, "markersize": 4, **style.look("torch")._asdict()}
    return [_line(axes, cases, "PyTorch", **look)] if cases else []


def _copy(axes: Axes, cases: Sequence[Case], name: str = A_COPY) -> labels.End:
    """The same-size copy; of two at a length the last."""
    rates = {case.cols: case.copy_gbps for case in cases}
    cols = sorted(rates)
    axes.plot(cols, [rates[col] for col in cols], color=style.BLACK, linestyle="--", linewidth=1.5)
    return labels.End(cols[-1], rates[cols[-1]], name, style.BLACK, bold=True)


def _spread(axes: Axes, cases: Sequence[Case], color: str) -> None:
    """Slowest and fastest replay."""
    low = [case.gbps - case.bytes / max(case.samples_us) / 1e3 for case in cases]
    high = [case.bytes / min(case.samples_us) / 1e3 - case.gbps for case in cases]
    cols, rates = [case.cols for case in cases], [case.gbps for case in cases]
    axes.errorbar(cols, rates, yerr=[low, high], color=color, fmt="none", capsize=2, linewidth=1)


def _scale(axes: Axes, cases: Sequence[Case], logy: bool, at: int) -> None:
    columns = sorted({case.cols for case in cases})
    charts.scales(axes, columns, True, logy)
    apart = all(longer > 1.25 * shorter for shorter, longer in itertools.pairwise(columns))
    axes.set_xticks(columns if len(columns) < 8 and apart else _ticks(columns, at))
    elements = {case.rows * case.cols for case in cases}
    always = _elements(min(elements), max(elements))
    what = f"columns per row (the matrix {always} elements: longer rows, fewer of them)"
    if len(columns) > 1 and len(rows := {case.rows for case in cases}) == 1:
        what = f"columns per row ({rows.pop()} rows)"
    if cases[0].inner > 1:
        what = f"elements of a column, {cases[0].inner} apart (the array {always} elements)"
    axes.set_xlabel(what)
    axes.set_ylabel("GB/s, each step of the scale doubles" if logy else "GB/s")


def _ticks(columns: Sequence[int], at: int) -> list[int]:
    """Of many lengths every second where they double; else the one that matters, and those that
    are far enough from it, and from one another, for a label."""
    if all(longer == 2 * shorter for shorter, longer in itertools.pairwise(columns)):
        return [*columns[::2]]
    kept = [at]
    apart = min(1.9, (max(columns) / min(columns)) ** 0.12)  # a label is 0.1 of the axis wide
    for column in columns:
        if all(max(column, other) > apart * min(column, other) for other in kept):
            kept.append(column)
    return sorted(kept)


def _elements(fewest: int, most: int) -> str:
    """What a matrix has, in powers of two: rows of an odd length come to nearly one."""
    power = (most - 1).bit_length()
    size = f"$2^{{{power}}}$"
    if fewest == most == 2**power:
        return f"always has {size}"
    return f"has nearly {size}" if fewest > 0.99 * 2**power else f"has up to {size}"


def _compare(axes: Axes, pair: Pair, mine: float | None, color: str) -> Callable[[], None]:
    """At one place: an arrow from the step before, and hollow marks where it was expected. Returns
    what names them: the names of lines, which have fewer places, come first."""
    top, ratio = pair.case.gbps, pair.ratio
    low, big = top, {"color": color, "fontsize": 13, "fontweight": "bold"}
    if ratio is not None and max(ratio, 1 / ratio) > ARROW_FROM:
        low = pair.earlier[pair.at].gbps
        arrow = {"arrowstyle": "-|>", "color": color, "linewidth": 2, "mutation_scale": 14}
        ends = {"xy": (pair.at, top), "xytext": (pair.at, low)}
        axes.annotate("", **ends, arrowprops={**arrow, "shrinkA": 6, "shrinkB": 7}, zorder=5)
    name_marks = _diamonds(
        axes, pair.said(mine), lambda share: (pair.at, share * pair.case.copy_gbps)
    )

    def name() -> None:
        if low != top:
            places = [(pair.at, low ** (1 - part) * top**part) for part in (0.5, 0.35, 0.65, 0.2)]
            labels.beside(axes, places, f"× {times(ratio)}", (labels.RIGHT, labels.LEFT), **big)
        name_marks()

    return name


def _diamonds(
    axes: Axes,
    said: Sequence[tuple[float, str, str]],
    place_of: Callable[[float], tuple[float, float]],
) -> Callable[[], None]:
    """Hollow marks of predictions, where `place_of` puts a share of a copy; returns what names
    them."""
    for share, _, ink in said:
        hollow = {"markerfacecolor": "none", "markeredgecolor": ink, "markeredgewidth": 1.8}
        axes.plot(*([at] for at in place_of(share)), "D", markersize=10, zorder=7, **hollow)
    sides = [(1.3 * right, 1.3 * up) for right, up in labels.AROUND]

    def name() -> None:
        for share, who, ink in said:
            text, look = f"{who} {share:.2f}", {"color": ink, "fontsize": 10}
            labels.beside(axes, [place_of(share)], text, sides, **look)

    return name


# ---- few rows -----------------------------------------------------------------------------------


def _bars(pair: Pair, mine: float | None) -> Figure:
    """Bars of microseconds at each of the few-row shapes; PyTorch's may leave the figure."""
    name, said = _name(pair.after), pair.said(mine)
    colors = {name: style.look(pair.after.step).color, "a copy": style.BLACK}
    colors["PyTorch"] = style.look("torch").color
    values: dict[str, dict[str, float]] = {}
    for shape, case in pair.own.items():
        parts = values[Problem(*shape).place()] = {name: case.median_us}
        if shape == pair.at and said:
            parts[MARKS] = math.nan
        if shape in pair.earlier:
            parts[_name(pair.before)] = pair.earlier[shape].median_us
            colors[_name(pair.before)] = style.GREY
        parts["a copy"] = case.copy_us
        if shape in pair.torch:
            parts["PyTorch"] = pair.torch[shape].median_us
    chart = charts.bar_chart(
        values,
        pair.finding,
        f"microseconds a call{in_dtype(pair.dtype)}",
        mark=name,
        colors=colors,
        most=max(case.median_us for case in (*pair.own.values(), *pair.earlier.values())),
        form=microseconds,
    )
    if said:
        y = chart.places[Problem(*pair.at).place(), MARKS]
        _diamonds(chart.axes, said, lambda share: (pair.case.copy_us / share, y))()
    return chart.figure


# ---- the series ---------------------------------------------------------------------------------


def _series(shown: Sequence[Record], dtype: str, family: str) -> tuple[Figure, Pair]:
    """The figure, and its last step beside its first that is a kernel."""
    shown = [record for record in shown if record.of_family(family, dtype)]
    shown = [one for one in shown if Pair(one, None, dtype, family).ceiling == A_COPY]
    if not shown:
        raise ValueError(f"no record holds {family} cases in {dtype}")
    first = next((record for record in shown if record.step != UNFUSED), shown[0])
    pair = Pair(shown[-1], first if first is not shown[-1] else None, dtype, family, common=True)
    figure, axes = style.chart(pair.finding, 4.6)
    ends = []
    for record in shown:
        look = {"linewidth": 1.8, "markersize": 5.5, **style.look(record.step)._asdict()}
        ends.append(_line(axes, [*pair.cases(record).values()], _name(record), **look))
    copies = _copies(pair, shown)
    ends += [*_torch(axes, pair), _copy(axes, copies)]
    _scale(axes, copies, True, pair.at)
    labels.at_ends(axes, ends)
    return figure, pair
