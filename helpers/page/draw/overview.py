"""Overviews: where the time of each kernel goes, which is the first picture of the README and of
notebook 00, and the locator strip of a notebook, with the launch levels and the memories."""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...base.arguments import checked
from ...base.gpu import H200
from ...base.paths import NOTEBOOKS
from ...catalogue.registry import TORCH, UNFUSED, WITHOUT_FILE
from ...measure.records import Case, load_record, predictions, recorded_steps
from ...problem.shapes import REFERENCE_SHAPE
from ...run.bound import load
from ...simt.hardware import BANKS, MAX_CLUSTER, MAX_THREADS, SMS, WARP, WORD
from .. import profile
from ..profile import FAR_COPY, clock_hz, of
from . import style
from .style import (
    BLACK,
    BLUE,
    DARK,
    FONT_PLACED,
    LIT,
    Box,
    canvas,
    end_of,
    finish,
    ink,
    rectangle,
    rounded,
    words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


NAMES = {UNFUSED: "five array operations", TORCH: "PyTorch"}
PALE, PALE_GREY = "#F6CFAE", "#DDDDDD"  # of time beyond a copy, and of bytes that no lane uses
LOADS = "l1tex__t_{}_pipe_lsu_mem_global_op_ld.sum"  # requests or sectors
LIKE_A_COPY = 0.99  # of its speed


class Bar(NamedTuple):
    """A kernel at `REFERENCE_SHAPE` in float32."""

    case: Case
    name: str
    wastes: str  # why it takes longer than a copy; "" if that is not said
    sectors: int = 0  # that a load of a warp fetches; 0 without counters
    used: float = 0  # the fraction of their bytes that the lanes ask for

    @property
    def ms(self) -> float:
        return self.case.median_us / 1e3

    @property
    def copy(self) -> float:
        """Milliseconds of a copy."""
        return self.case.copy_us / 1e3

    @property
    def number(self) -> str:
        """That of a step with a kernel."""
        return "" if self.case.step in WITHOUT_FILE else self.case.step[:2]


def lost_time() -> None:
    """Draw, for each step up to the first that is as fast as a copy, and for PyTorch, the recorded
    time at `REFERENCE_SHAPE` in float32: dark up to the time of a copy, pale beyond it, with the
    cause. At the left are the sectors that a load of a warp fetches, with the bytes that its lanes
    use, from Nsight Compute's counters. On a GPU, too, it shows the record.
    """
    figure, bars = figure_of_lost_time()
    style.finish(figure, _title(bars), _says(bars))


def title_of(notebook: Path) -> str:
    """The heading of a notebook, as in "03 Shared memory"."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "".join(cells[0]["source"]).splitlines()[0].removeprefix("# ")


# ---- what is drawn ------------------------------------------------------------------------------


def lost_time_bars() -> list[Bar]:
    """The bars, the slowest step first in the order of the notebooks, PyTorch last."""
    bars: list[Bar] = []
    for record in recorded_steps():
        if record.select([REFERENCE_SHAPE]) and record.headline.problem.plain:
            bars.append(_bar(record.step))
            if bars[-1].case.share >= LIKE_A_COPY:
                break
    return [*bars, _bar(TORCH)]


def _bar(step: str) -> Bar:
    case = load_record(step).case(*REFERENCE_SHAPE)
    wastes = predictions().get(step, {}).get("wastes", "")
    if step in WITHOUT_FILE:
        return Bar(case, NAMES[step], wastes)
    name = title_of(NOTEBOOKS / f"{step}.ipynb")
    try:
        seen = profile.of(step, *REFERENCE_SHAPE)
        requests, sectors = (seen.counters[LOADS.format(what)] for what in ("requests", "sectors"))
    except KeyError:
        return Bar(case, name, wastes)
    reads = int(load(step).header.fields["Reads"].split()[0])
    return Bar(case, name, wastes, round(sectors / requests), reads / seen.loaded_passes)


def _title(bars: Sequence[Bar]) -> str:
    steps = [bar for bar in bars if bar.number]
    best = min(steps, key=lambda bar: bar.ms)
    times = max(bar.ms for bar in steps) / best.ms
    end = ": it now takes as long as a copy" if best.case.share >= LIKE_A_COPY else ""
    return f"The same softmax, {times:.0f} times as fast{end}"


def _says(bars: Sequence[Bar]) -> str:
    """What the picture shows."""
    steps = [bar for bar in bars if bar.number]
    times = ", ".join(
        f"{bar.ms:.2f} in {f'step {bar.number}' if bar.number else bar.name}"
        for bar in (steps[0], steps[-1], bars[-1])
    )
    text = f"Milliseconds of softmax of {steps[0].case.at.place()}: {times}, {steps[-1].copy:.2f} "
    text += "in a copy."
    loads = [
        f"{bar.sectors} in step {bar.number}, {100 * bar.used:.3g}% of them used"
        for bar in (steps[0], steps[-1])
        if bar.sectors
    ]
    return f"{text} Sectors of a load of 32 lanes: {'; '.join(loads)}." if loads else text


# ---- the picture --------------------------------------------------------------------------------

ACROSS = 8  # sectors of a line


def figure_of_lost_time() -> tuple[Figure, list[Bar]]:
    """Return (figure, its bars)."""
    bars = lost_time_bars()
    with style.styled_figure(1.5 + 0.4 * len(bars), layout="constrained") as figure:
        loads, axes = figure.subplots(1, 2, width_ratios=(1, 6))
    style.head(figure, _title(bars))
    longest = max(bar.ms for bar in bars)
    names = []
    for row, bar in enumerate(bars):
        names.append(textwrap.fill(bar.name, 18))
        _draw_sectors(loads, row, bar)
        torch = bar.case.step == TORCH
        needed = min(bar.copy, bar.ms)
        axes.barh(row, needed, 0.66, color=style.GREY if torch else style.BLUE)
        fill = PALE_GREY if torch else PALE
        axes.barh(row, bar.ms - needed, 0.66, left=needed, color=fill)
        style.beside(axes, bar.ms, row, f"{bar.ms:.2f} ms", (6, 0), fontweight="bold")
        color, text = ink(style.RED, PALE), bar.wastes
        if bar.case.share >= LIKE_A_COPY:
            color, text = style.BLUE, "as long as a copy"
        inside = {"ha": "left", "va": "center", "xycoords": "data", "textcoords": "offset points"}
        at, aside = (needed, 6) if bar.ms > longest / 2 else (bar.ms, 66)
        axes.annotate(text, (at, row), (aside, 0), color=color, fontsize=9.5, **inside)
    copy = statistics.median(bar.copy for bar in bars)
    axes.axvline(copy, color=style.BLACK, linestyle="--", linewidth=1.3)
    style.beside(axes, copy, -0.6, f"a copy: {copy:.2f} ms", (2, 2), fontweight="bold")
    axes.set_yticks(range(len(bars)), names)
    axes.set(ylim=(len(bars) - 0.5, -0.6), xlim=(0, 1.12 * longest))
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    case = bars[0].case
    machine = f"{case.at.place()} {case.dtype}, {case.run.device['name']}"
    axes.set_xlabel(f"milliseconds ({machine})")
    note = {"fontsize": 9.5, "fontweight": "normal"}
    axes.set_title("blue: needed, as in a copy; pale: lost", loc="right", **note)
    loads.set_title("what 32 threads\nload at once", loc="left", **note)
    loads.set(xlim=(0, ACROSS), ylim=axes.get_ylim())
    loads.axis("off")
    return figure, bars


def _draw_sectors(axes: Axes, row: int, bar: Bar) -> None:
    """The sectors of one load, each with the part of it that the lanes use."""
    lines = math.ceil(bar.sectors / ACROSS)
    for sector in range(bar.sectors):
        x, y = sector % ACROSS, row + 0.2 * (sector // ACROSS - lines / 2)
        rectangle(axes, Box(x, y, 0.85, 0.16), PALE)
        rectangle(axes, Box(x, y, 0.85 * bar.used, 0.16), style.BLUE)


# ---- the locator strip --------------------------------------------------------------------------

# CUDA C++ Programming Guide, "Compute Capabilities", technical specifications, column 9.0: 32-bit
# registers per SM; L1 and shared memory per SM, divided by a launch.
REGISTER_KB, L1_AND_SHARED_KB = 65536 * 4 // 1024, 256
# NVIDIA H200 data sheet, SXM.
DRAM_GB, DRAM_TB_PER_SECOND = 141, 4.8
# Published for an H100, rounded. Latencies in clocks: W. Luo et al., "Benchmarking and Dissecting
# the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024. L2 bandwidth: Chips and Cheese,
# "Nvidia's H100: Funny L2, and Tons of Bandwidth", 2023.
SHARED_CLOCKS, L2_CLOCKS, L2_TB_PER_SECOND = 30, 260, "5 to 7"

LEVELS = {
    "grid": "all blocks",
    "cluster": f"≤ {MAX_CLUSTER} blocks",
    "block": f"≤ {MAX_THREADS} threads",
    "warp": f"{WARP} threads",
    "lane": "a thread",
}
HEIGHT, BESIDE, BETWEEN = 90, 10, 5  # pixels
WIDTHS = (112, 150, 162, 127, 109), (130, 148, 196, 191)  # of levels and of memories
NAME = 10  # points


def _boxes() -> dict[tuple[str, ...], tuple[str, str, str]]:
    """Parts of a box -> its name, its size, and its bandwidth and latency."""
    far = of(FAR_COPY, *REFERENCE_SHAPE)
    clock = clock_hz(far.record) / 1e9  # GHz
    shared = SMS * BANKS * WORD * clock / 1e3  # TB/s: a word of each bank per clock
    l2, near = (5 * round(clocks / clock / 5) for clocks in (L2_CLOCKS, SHARED_CLOCKS))
    return {
        ("DRAM",): (
            "DRAM",
            f"{DRAM_GB} GB",
            f"{DRAM_TB_PER_SECOND} TB/s, {far.latency_ns():.0f} ns",
        ),
        ("L2",): ("L2", f"{H200.l2 >> 20} MB", f"{L2_TB_PER_SECOND} TB/s, ~{l2} ns"),
        ("shared", "L1", "SM"): (
            "shared, L1",
            f"{L1_AND_SHARED_KB} KB per SM",
            f"{shared:.0f} TB/s, ~{near} ns",
        ),
        ("registers",): ("registers", f"{REGISTER_KB} KB per SM", "private to each thread"),
    }


@checked
def machine(*lit: str) -> None:
    """Show the launch levels and the memories of an H200 with size, bandwidth and latency, with
    these parts highlighted.

    Levels are "grid", "cluster", "block", "warp" and "lane"; memories "DRAM", "L2", "shared", "L1",
    "SM" (in one box) and "registers". The latency of DRAM is that of the record.

    Raises `ValueError` for another name, listing these.
    """
    memories = _boxes()
    known = [*LEVELS, *(name for names in memories for name in names)]
    if unknown := [name for name in lit if name not in known]:
        raise ValueError(f"the machine has no part {unknown[0]!r}; its parts: {', '.join(known)}")
    axes, said = canvas(HEIGHT), []
    parts = [((name,), (name, note, "")) for name, note in LEVELS.items()], [*memories.items()]
    for row, place in zip(parts, zip((7, 39), (26, 44), WIDTHS, strict=True), strict=True):
        for box, (names, (title, note, below)) in zip(_row(*place), row, strict=True):
            is_lit = not {*names}.isdisjoint(lit)
            _part(axes, box, is_lit, title, note, below)
            said += [f"{title} ({note}{f', {below}' if below else ''})"] * is_lit
    sentence = f"Highlighted: {'; '.join(said) or 'nothing'}."
    finish(axes.figure, f"where we are: {', '.join(lit) or 'the machine'}", sentence)


def _row(y: float, height: float, widths: tuple[int, ...]) -> list[Box]:
    left = accumulate(widths, lambda x, width: x + width + BETWEEN, initial=BESIDE)
    return [Box(x, y, width, height) for x, width in zip(left, widths, strict=False)]


def _part(axes, box: Box, lit: bool, name: str, note: str, below: str = "") -> None:
    rounded(axes, box, lit)
    style = {"color": ink(BLUE, LIT), "fontweight": "bold"} if lit else {"color": BLACK}
    y = box.y + 14 if below else box.middle
    name = words(axes, box.x + 8, y, name, NAME, **style)
    words(axes, end_of(name) + 5, y, note, color=DARK, **FONT_PLACED)
    words(axes, box.x + 8, box.y + 32, below, color=DARK)
