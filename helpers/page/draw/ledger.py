"""Predictions and measurements, step by step: ours and the reader's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...measure.records import has_record, load_record, predictions
from ..predict import asked, kept
from . import labels, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEAR = 0.1  # tolerance of measured / predicted


class Entry(NamedTuple):
    """Fractions of a copy's speed at the shape of a prediction."""

    step: str
    measured: float
    ours: float
    mine: float | None = None

    def near(self, said: float) -> bool:
        return abs(self.measured / said - 1) <= NEAR

    def off(self, said: float) -> float:
        """The factor by which a prediction was too high or too low, at least 1."""
        return max(said / self.measured, self.measured / said)


def ledger(last: str | None = None) -> None:
    """Draw the measurement of every step with a question and a record, up to the step `last` if it
    is given, with our predictions and yours as hollow marks. Yours are omitted if SOFTMAX_REPLAY=1
    forces a replay.

    Raises `ValueError` if `last` is not one of these steps.
    """
    mine = kept()
    steps = [step for step in asked() if has_record(step)]
    if last:
        steps = steps[: steps.index(last) + 1]
    records = {step: load_record(step) for step in steps}
    entries = [
        Entry(step, record.headline.share, predictions()[step]["share"], mine.get(step))
        for step, record in records.items()
    ]
    title = _title(entries)
    gpu = records[entries[-1].step].device["name"]
    style.finish(_draw(entries, title, gpu), title, _says(entries))


def _title(entries: Sequence[Entry]) -> str:
    near = sum(entry.near(entry.ours) for entry in entries)
    return f"Of our {len(entries)} predictions, {near} came within 10 percent"


def _says(entries: Sequence[Entry]) -> str:
    """The sentence below the figure: what we missed, and the reader's result."""
    missed = [entry for entry in entries if not entry.near(entry.ours)]
    high = sum(entry.ours > entry.measured for entry in missed)
    worst = max(entries, key=lambda entry: entry.off(entry.ours))
    text = (
        f"{_title(entries)} of what was measured; of the others {high} were too high and "
        f"{len(missed) - high} too low; the largest error, as a ratio, is that of {worst.step}, "
        f"{worst.ours:.2f} predicted and {worst.measured:.2f} measured."
    )
    if mine := [entry for entry in entries if entry.mine is not None]:
        near = sum(entry.near(entry.mine) for entry in mine)
        closer = sum(entry.off(entry.mine) < entry.off(entry.ours) for entry in mine)
        text += f" Of your {len(mine)}, {near} came within 10 percent, "
        text += f"and {closer} closer than ours."
    return text


def _draw(entries: Sequence[Entry], title: str, gpu: str) -> Figure:
    figure, axes = style.chart(title, 1.3 + 0.3 * len(entries))
    looks = [style.look(entry.step) for entry in entries]
    inks = [look.color for look in looks]
    for row, (entry, (ink, marker, _)) in enumerate(zip(entries, looks, strict=True)):
        said = [entry.ours, *([] if entry.mine is None else [entry.mine])]
        ends = min(entry.measured, *said), max(entry.measured, *said)
        axes.plot(ends, [row, row], color=style.PALE, linewidth=2, zorder=2)
        axes.plot(entry.measured, row, marker=marker, color=ink, markersize=8, zorder=3)
        for share, edge in zip(said, (ink, style.BLACK), strict=False):
            hollow = {"markerfacecolor": "none", "markeredgecolor": edge, "markeredgewidth": 1.8}
            axes.plot(share, row, "D", markersize=10, zorder=4, **hollow)  # as in a step's plot
    axes.set_yticks(range(len(entries)), [entry.step for entry in entries])
    axes.set_ylim(len(entries) - 0.4, -1.2)  # with space for the column headings
    axes.set_xlim(0, 1.05 * max(line.get_xdata()[-1] for line in axes.lines))
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"fraction of copy bandwidth, or of the operation's baseline, {gpu}")
    right = 26
    if any(entry.mine is not None for entry in entries):
        mine = [entry.mine and f"{entry.mine:.2f}" for entry in entries]
        labels.column(axes, right, "◇ yours", mine)
        right += 54
    labels.column(axes, right, "◇ ours", [f"{entry.ours:.2f}" for entry in entries], inks)
    measured = [f"{entry.measured:.2f}" for entry in entries]
    labels.column(axes, right + 66, "● measured", measured, inks, fontweight="bold")
    return figure
