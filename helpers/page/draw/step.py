"""The plot of a step: its fraction of copy bandwidth beside the step before, and predictions; the
ledger of the predictions of all steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ...base.arguments import checked
from ...catalogue.registry import COPY, TORCH, UNFUSED, step_number
from ...catalogue.store import REFERENCE_GPU, gpu_folder
from ...measure import records
from ...measure.comparison import best_copy, comparison_cases
from ...measure.records import (
    Case,
    Record,
    Timed,
    has_record,
    load_record,
    predictions,
    recorded_steps,
)
from ...problem.problem import Problem
from ...problem.shapes import (
    FEW_SHAPES,
    GRID_SHAPES,
    LONG_SHAPES,
    REFERENCE_SHAPE,
    UNALIGNED_SHAPES,
    Shape,
)
from ..replay import asked, kept, mine_of, outcome, recorded_beside
from . import charts, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


A_COPY = "copy bandwidth"
TOP, CLOSE = 1.05, 0.8  # of the axis; fractions from which on dots show more than lines
EARLIER = {"color": "#C4C4C4", "linewidth": 0.8}  # lines of steps before the previous one
SAID = {"marker": "D", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.8}


@checked
def step(
    after: Record,
    before: Record | None = None,
    mine: object = None,
    dtype: str = "float32",
    family: str = "grid",
) -> None:
    """Draw the fraction of copy bandwidth of a step over the row length, with the step before it in
    grey, earlier ones as hairlines, PyTorch, and predictions in a strip at the right. Where all
    fractions are near one, or the rows are few, it draws a line of dots for each shape instead. An
    operation that must move other bytes than a copy is divided by its bandwidth baseline.

    `after` and `before` come from `timings`; `mine` is your prediction, a fraction of a copy's
    speed. None means the one that `predict` stored; an invalid one is not drawn. `family` is
    "grid", "long" (with rows past 32768), "unaligned" (rows that start anywhere), "few" (few rows),
    "vocabularies" or "axes" (another axis, over its length, where its columns are as far apart as
    where the step was predicted). Records of other GPUs are dotted; so is the record of the shown
    GPU with a live measurement.

    Raises `ValueError` for another family.
    """
    if not after.of_family(family, dtype):
        if after.cases:  # else `timings` has said so
            print(f"{after.step}{in_dtype(dtype)}: not measured at these shapes")
        return
    pair = Pair(after, before if before and before.cases else None, dtype, family)
    if mine is not None or pair.at == pair.predicted_at:
        mine = mine_of(after.step, mine)
    style.finish((_dots if pair.close else _lines)(pair, mine), pair.finding, pair.sentence(mine))
    if mine is not None:
        outcome(pair.case.share, mine, pair.expected)


def series(shown: Sequence[Record] | None = None, family: str = "long") -> None:
    """Draw all records that have float32 cases of a family, each in the colour of its step, with a
    copy and PyTorch; operations that must move other bytes than a copy are omitted.

    None means the records of the whole series. Raises `ValueError` if none has such cases.
    """
    figure, pair = figure_of_series(records.series() if shown is None else shown, family)
    style.finish(figure, pair.finding, pair.sentence())


def eager(dtype: str, family: str, gpu: str) -> list[Case]:
    """PyTorch's softmax on a GPU from its record, otherwise from the comparison."""
    known: dict[Shape, Case] = {}
    with suppress(FileNotFoundError):
        for case in comparison_cases(dtype, gpu):
            if "torch" in case.samples_us:
                times = case.samples_us["torch"], case.copy_samples_us, case.calls["torch"]
                timed = Timed({}, *times)
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
    def unit(self) -> str:
        whose = "copy" if self.ceiling == A_COPY else "the baseline's"
        return f"fraction of {whose} bandwidth"

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
        if self.at != self.predicted_at:
            return None
        return records.predictions().get(self.after.step, {}).get("share")

    def said(self, mine: float | None) -> dict[str, float]:
        """Who predicted -> a fraction of a copy."""
        said = {"yours": mine, "ours": self.expected}
        return {who: share for who, share in said.items() if share is not None}

    @property
    def close(self) -> bool:
        """Whether dots show more than lines: rows are few, or all fractions are near one."""
        both = [*self.own.values(), *(self.earlier[key] for key in self.own if key in self.earlier)]
        return self.family == "few" or min(case.share for case in both) >= CLOSE

    def label(self, key: Key) -> str:
        return Problem(*key).place() if self.family == "few" else f"{key} columns"

    @property
    def where(self) -> str:
        axes = self.family == "axes"
        at = f"for columns of {self.at}" if axes else f"at {self.label(self.at)}"
        return f"{at}{in_dtype(self.dtype)}"

    @property
    def finding(self) -> str:
        """The title: what came out."""
        name, where = _name(self.after), self.where
        if self.ratio is None:
            return f"{name}: {self.case.share:.2f} of {self.ceiling} {where}"
        if abs(self.ratio - 1) < 0.01:
            return f"{name}: as fast as {_name(self.before)} {where}"
        return f"{name}: {times(self.ratio)} times as fast as {_name(self.before)} {where}"

    def sentence(self, mine: float | None = None) -> str:
        """What came out at that place, and where all of it was measured."""
        case, few = self.case, self.family == "few"
        rate = f"{charts.short(case.median_us)} us" if few else f"{case.gbps:.0f} GB/s"
        shares = [f"{self.expected:.2f} predicted"] if self.expected else []
        shares += [f"{mine:.2f} by you"] if mine else []
        shares += [f"PyTorch {self.torch[self.at].share:.2f}"] if self.at in self.torch else []
        if round(case.share, 2) > 1:
            best = best_copy(case, gpu_folder(self.after.device["name"]))
            shares += [f"best copy {best:.2f}"] if best else []
        parts = [f"{_name(self.after)} {self.where}: {rate}"]
        beside = f" ({', '.join(shares)})" if shares else ""
        parts.append(f"{case.share:.2f} of {self.ceiling}{beside}")
        if self.ratio is not None:
            parts.append(f"{times(self.ratio)} times as fast as {_name(self.before)}")
        earlier = ", an earlier version" if "earlier version" in self.after.origin() else ""
        spread = f"runs differ by at most {max(case.spread, 0.001):.1%}"
        return f"{', '.join(parts)}. Measured on {self.after.label}{earlier}; {spread}."


def times(ratio: float) -> str:
    """ "7.3", "0.87", "12": how many times as fast, in the digits that stand out of the noise."""
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}" if ratio >= 1.95 else f"{ratio:.2f}"


def in_dtype(dtype: str) -> str:
    """What a name adds for a dtype that is not the usual one."""
    return f" in {dtype}" if dtype != "float32" else ""


def _name(record: Record) -> str:
    return record.step.removeprefix("variants/")


# ---- the plot -----------------------------------------------------------------------------------


def _lines(pair: Pair, mine: float | None) -> Figure:
    said, after = pair.said(mine), pair.after
    with style.styled_figure(4.4, layout="constrained") as figure:
        ratios = {"width_ratios": [9, len(said) + 1]} if said else {}
        axes, *strip = figure.subplots(1, 1 + bool(said), sharey=True, squeeze=False, **ratios)[0]
    style.head(figure, pair.finding)
    for one in _context(pair):
        _line(axes, pair.cases(one).values(), "earlier steps", **EARLIER)
    _torch(axes, pair)
    look = style.look(after.step)._asdict()
    look |= {"marker": look["marker"] or "o", "linestyle": "-", "linewidth": 3.2, "markersize": 6.5}
    grey = {"color": style.DARK, "linewidth": 1.8, "markersize": 5}
    if pair.earlier:
        grey["marker"] = style.look(pair.before.step).marker
        _line(axes, pair.earlier.values(), _name(pair.before), **grey)
    for beside in recorded_beside(after):
        if cases := pair.cases(beside).values():
            dotted = {**look, "linestyle": ":", "linewidth": 1.2, "markersize": 3}
            _line(axes, cases, beside.label, **dotted)
    _line(axes, pair.own.values(), _name(after), zorder=4, **look)
    _scale(axes, pair)
    for panel in strip:
        _predictions(panel, pair, said, look)
    return figure


def _line(axes: Axes, cases: Iterable[Case], name: str, **look) -> None:
    """Fractions of a copy over columns."""
    cols, shares = zip(*((case.cols, case.share) for case in cases), strict=True)
    axes.plot(cols, shares, label=name, **look)


def _torch(axes: Axes, pair: Pair) -> None:
    look = {"linewidth": 1.6, "markersize": 4, **style.look("PyTorch")._asdict()}
    if pair.torch:
        _line(axes, pair.torch.values(), "PyTorch", **look)


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


def _scale(axes: Axes, pair: Pair) -> None:
    """The axes of all notebooks, the copy as a line, and the key."""
    charts.scales(axes, [col for line in axes.lines for col in line.get_xdata()])
    axes.set_ylim(0, max(TOP, 1.02 * max(max(line.get_ydata()) for line in axes.lines)))
    axes.set_ylabel(pair.unit)
    size = round(math.log2(pair.case.rows * pair.case.cols))
    axes.set_xlabel(f"columns per row, in matrices of about $2^{{{size}}}$ elements")
    name = f"{pair.ceiling}, {pair.case.copy_gbps:.0f} GB/s"
    axes.axhline(1, label=name, **charts.DASHED)
    style.key(axes, bold=[_name(pair.after)])


def _predictions(axes: Axes, pair: Pair, said: Mapping[str, float], look: Mapping) -> None:
    """What was predicted and measured at one place, side by side."""
    values = {**said, "measured": pair.case.share}
    for place, (who, share) in enumerate(values.items()):
        mark = {"marker": look["marker"], "markersize": 9} if who == "measured" else SAID
        ink = style.BLACK if who == "yours" else look["color"]
        axes.plot(place, share, color=ink, markeredgecolor=ink, linestyle="", **mark)
        up = -9 if share > 0.5 else 9
        style.beside(axes, place, share, f"{share:.2f}", (0, up), color=ink, fontweight="bold")
    axes.axhline(1, color=style.BLACK, linestyle="--", linewidth=1.4)
    axes.set_xlim(-0.6, len(values) - 0.4)
    axes.set_xticks(range(len(values)), values, rotation=90)
    axes.tick_params(length=0)
    axes.grid(visible=False, axis="x")
    axes.set_title(f"at {pair.at}", fontsize=9.5, fontweight="normal", loc="center")


# ---- dots ---------------------------------------------------------------------------------------

Dots = Mapping[str, tuple[Sequence[float | None], Mapping]]  # name -> (a share per row, look)


def _dots(pair: Pair, mine: float | None) -> Figure:
    """A line of dots for each shape, and one for each prediction."""
    said, look = pair.said(mine), style.look(pair.after.step)
    mark = {"color": look.color, "marker": look.marker}
    lines = {_name(pair.after): (pair.own, {**mark, "markersize": 9, "zorder": 4})}
    if pair.before:
        lines[_name(pair.before)] = pair.earlier, {"color": style.DARK, "marker": "o"}
    lines["PyTorch"] = pair.torch, style.look("PyTorch")._asdict()
    for beside in recorded_beside(pair.after):
        lines[beside.label] = pair.cases(beside), {**mark, "markersize": 4}
    dots = {
        name: ([cases[key].share if key in cases else None for key in pair.own], line)
        for name, (cases, line) in lines.items()
    }
    for row, (who, share) in enumerate(said.items(), len(pair.own)):
        dots[who] = [None] * row + [share], {**SAID, "color": look.color}
    texts = [f"{case.share:.2f}" for case in pair.own.values()]
    if pair.family == "few":
        times = [charts.short(case.median_us) for case in pair.own.values()]
        texts = [f"{text}, {us} us" for text, us in zip(texts, times, strict=True)]
    names = [*map(pair.label, pair.own), *(f"{who}, {pair.label(pair.at)}" for who in said)]
    texts += [f"{share:.2f}" for share in said.values()]
    figure, axes = _dot_chart(pair.finding, names, dots, texts)
    low = min(CLOSE, math.floor(10 * min(axes.dataLim.intervalx)) / 10)
    axes.set_xlim(low, max(TOP, 1.02 * axes.dataLim.x1))
    axes.axvline(1, color=style.BLACK, linestyle="--", linewidth=1.4)
    axes.set_xlabel(f"{pair.unit}{f', from {low:.1f}' if low else ''}")
    return figure


def _dot_chart(
    title: str, names: Sequence[str], dots: Dots, texts: Sequence[str]
) -> tuple[Figure, Axes]:
    """A chart with one row per name, from the top, and a text at its right end."""
    figure, axes = style.chart(title, 1.5 + 0.3 * len(names))
    for name, (shares, look) in dots.items():
        points = [(share, row) for row, share in enumerate(shares) if share is not None]
        if points:
            line = {"markersize": 6, **look, "linestyle": "", "label": name}
            axes.plot(*zip(*points, strict=True), **line)
    style.key(axes)
    right = axes.twinx()
    right.spines[:].set_visible(False)
    for side, words in ((axes, names), (right, texts)):
        side.set_yticks(range(len(words)), words)
        side.set_ylim(len(names) - 0.4, -0.6)
        side.tick_params(axis="y", length=0)
        side.grid(visible=False, axis="y")
    return figure, axes


# ---- the series ---------------------------------------------------------------------------------


def figure_of_series(shown: Sequence[Record], family: str) -> tuple[Figure, Pair]:
    """The figure of `series`, and its last step beside its first that is a kernel."""
    dtype = "float32"
    shown = [record for record in shown if record.of_family(family, dtype)]
    shown = [one for one in shown if Pair(one, None, dtype, family).ceiling == A_COPY]
    if not shown:
        raise ValueError(f"no record holds {family} cases in {dtype}")
    first = next((record for record in shown if record.step != UNFUSED), shown[0])
    pair = Pair(shown[-1], first if first is not shown[-1] else None, dtype, family, common=True)
    figure, axes = style.chart(pair.finding, 5)
    _torch(axes, pair)
    for record in shown:
        look = {"linewidth": 1.8, "markersize": 5.5, **style.look(record.step)._asdict()}
        _line(axes, pair.cases(record).values(), _name(record), **look)
    _scale(axes, pair)
    return figure, pair


# ---- predictions --------------------------------------------------------------------------------

NEAR = 0.1  # tolerance of measured / predicted


def ledger(last: str | None = None) -> None:
    """Draw the measurement of every step with a question and a record, up to the step `last` if it
    is given, with our predictions and yours as hollow marks. Yours are omitted if SOFTMAX_REPLAY=1
    forces a replay.

    Raises `ValueError` if `last` is not one of these steps.
    """
    steps = [step for step in asked() if has_record(step)]
    steps = steps[: steps.index(last) + 1] if last else steps
    ours = [predictions()[step]["share"] for step in steps]
    mine = [kept().get(step) for step in steps]
    measured = [load_record(step).headline.share for step in steps]
    title = f"Of our {len(steps)} predictions, {_near(ours, measured)} came within 10 percent"
    dots = {
        "ours": (ours, {**SAID, "color": style.BLUE}),
        "yours": (mine, {**SAID, "color": style.BLACK}),
        "measured": (measured, {"color": style.BLUE, "marker": "o", "markersize": 7}),
    }
    texts = [f"{one:.2f}, {found:.2f}" for one, found in zip(ours, measured, strict=True)]
    figure, axes = _dot_chart(title, steps, dots, texts)
    axes.hlines(range(len(steps)), ours, measured, style.PALE, linewidth=2, zorder=1)
    axes.set_xlim(left=0)
    gpu = load_record(steps[-1]).device["name"]
    axes.set_xlabel(f"fraction of copy bandwidth, or of the operation's baseline, {gpu}")
    axes.set_title("ours, measured", fontsize=9.5, fontweight="normal", loc="right")
    off = [abs(math.log(one / found)) for one, found in zip(ours, measured, strict=True)]
    worst = off.index(max(off))
    says = (
        f"{title} of what was measured; the largest error, as a ratio, is that of {steps[worst]}, "
        f"{ours[worst]:.2f} predicted and {measured[worst]:.2f} measured."
    )
    if count := len(mine) - mine.count(None):
        says += f" Of your {count}, {_near(mine, measured)} came within 10 percent."
    style.finish(figure, title, says)


def _near(said: Sequence[float | None], measured: Sequence[float]) -> int:
    """How many predictions are close to the measurement."""
    pairs = zip(said, measured, strict=True)
    return sum(abs(found / one - 1) <= NEAR for one, found in pairs if one)
