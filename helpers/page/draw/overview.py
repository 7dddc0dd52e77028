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
from ...simt.words import counted
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
    """What the picture shows: times and loads."""
    steps = [bar for bar in bars if bar.number]
    first, last = steps[0], steps[-1]
    text = f"Softmax of {first.case.at.place()} takes {first.ms:.2f} ms in step {first.number}, "
    text += f"{last.ms:.2f} in step {last.number}, {bars[-1].ms:.2f} in {bars[-1].name}; "
    text += f"a copy {last.copy:.2f}."
    if not all(bar.sectors for bar in steps):
        return text
    loads = [
        f"{counted(bar.sectors, 'sector')} in step {bar.number}, {100 * bar.used:.3g}% of them used"
        for bar in (first, last)
    ]
    return f"{text} A load of 32 lanes: {'; '.join(loads)}."


# ---- the picture, in pixels ---------------------------------------------------------------------

TOP, ROW, THICK = 98, 39, 26  # of the first bar, from bar to bar, of a bar
LEFT, RIGHT, DIGITS = 236, 690, 76  # of the bars, and for the time in digits
ACROSS, WIDE, HIGH, GAP = 8, 8.5, 6, 1.5  # sectors of a line; the size of one


def figure_of_lost_time() -> tuple[Figure, list[Bar]]:
    """Return (figure, its bars)."""
    from matplotlib.ticker import MaxNLocator

    bars = lost_time_bars()
    bottom, longest = TOP + ROW * len(bars), max(bar.ms for bar in bars)
    axes, scale = canvas(bottom + 42), (RIGHT - LEFT - DIGITS) / longest
    style.head(axes.figure, _title(bars))
    words(axes, 10, TOP - 29, "what 32 lanes", 10)
    words(axes, 10, TOP - 12, "load at once", 10)
    for x, fill, text in ((LEFT, style.BLUE, "needed, as in a copy"), (LEFT + 184, PALE, "lost")):
        rectangle(axes, Box(x, TOP - 48, 13, 13), fill)
        words(axes, x + 20, TOP - 41, text, 10)
    for place, bar in enumerate(bars):
        middle = TOP + ROW * (place + 0.5)
        _draw_sectors(axes, middle, bar)
        letters = len(bar.name)  # of a long name, on two lines of about the same length
        name = textwrap.fill(bar.name, letters if letters < 19 else letters // 2 + 3)
        words(axes, LEFT - 12, middle, name, 10.5, ha="right", va="center", linespacing=1.1)
        _draw_time(axes, middle, bar, scale)
    copy = statistics.median(bar.copy for bar in bars)
    at = LEFT + scale * copy
    axes.plot([at, at], [TOP - 16, bottom], color=style.BLACK, linestyle="--", linewidth=1.3)
    words(axes, at + 6, TOP - 12, f"a copy: {copy:.2f} ms", 10.5, fontweight="bold")
    axes.plot([LEFT, RIGHT], [bottom, bottom], color=style.BLACK, linewidth=0.9)
    for tick in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, longest):
        at = LEFT + scale * tick
        axes.plot([at, at], [bottom, bottom + 4], color=style.BLACK, linewidth=0.9)
        words(axes, at, bottom + 13, f"{tick:g}", 10, ha="center")
    case = bars[0].case
    unit = f"milliseconds ({case.at.place()} {case.dtype}, {case.run.device['name']})"
    words(axes, LEFT, bottom + 31, unit, 10)
    return axes.figure, bars


def _draw_sectors(axes: Axes, middle: float, bar: Bar) -> None:
    """The sectors of one load, each with the part of it that the lanes use."""
    lines = math.ceil(bar.sectors / ACROSS)
    for sector in range(bar.sectors):
        x = 10 + sector % ACROSS * (WIDE + GAP)
        y = middle + (sector // ACROSS - lines / 2) * (HIGH + GAP)
        rectangle(axes, Box(x, y, WIDE, HIGH), PALE)
        rectangle(axes, Box(x, y, WIDE * bar.used, HIGH), style.BLUE)


def _draw_time(axes: Axes, middle: float, bar: Bar, scale: float) -> None:
    dark, pale = (style.BLUE, PALE) if bar.case.step != TORCH else (style.GREY, PALE_GREY)
    copy, end = (LEFT + scale * ms for ms in (min(bar.copy, bar.ms), bar.ms))
    rectangle(axes, Box(LEFT, middle - THICK / 2, copy - LEFT, THICK), dark)
    rectangle(axes, Box(copy, middle - THICK / 2, end - copy, THICK), pale)
    time = words(axes, max(copy, end) + 7, middle, f"{bar.ms:.2f} ms", 11.5, fontweight="bold")
    ink, text = style.ink(style.RED, PALE), bar.wastes
    if bar.case.share >= LIKE_A_COPY:
        ink, text = style.BLUE, "as long as a copy"
    cause = words(axes, copy + 9, middle, text, 10, color=ink, **FONT_PLACED)
    if end_of(cause) > end - 4:  # it does not fit into the bar
        cause.set_x(end_of(time) + 10)


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

LEVELS = {  # name: (note in the picture, what the sentence says)
    "grid": ("all blocks", "a grid, all blocks of one launch"),
    "cluster": (
        f"≤ {MAX_CLUSTER} blocks",
        f"a cluster, up to {MAX_CLUSTER} blocks that reach one another's shared memory",
    ),
    "block": (f"≤ {MAX_THREADS} threads", f"a block, up to {MAX_THREADS} threads on one SM"),
    "warp": (
        f"{WARP} threads",
        f"a warp, {WARP} threads that execute one instruction together",
    ),
    "lane": ("a thread", f"a lane, one of the {WARP} threads of a warp"),
}
MEMORIES = {  # name: what the sentence says
    "DRAM": f"DRAM, {DRAM_GB} GB, with the matrices",
    "L2": f"the L2 cache, {H200.l2 >> 20} MB for all SMs",
    "shared": "the shared memory that the threads of a block share",
    "L1": "the L1 cache, which keeps what an SM has loaded",
    "SM": f"an SM, one of {SMS}, where a block stays from start to end",
    "registers": "the registers, which hold each thread's own values",
}
HEIGHT, BESIDE, BETWEEN = 90, 10, 5  # pixels
WIDTHS = (112, 150, 162, 127, 109), (133, 150, 198, 184)  # of levels and of memories
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
        ("registers",): ("registers", f"{REGISTER_KB} KB per SM", "each thread's own"),
    }


@checked
def machine(*lit: str) -> None:
    """Show the launch levels and the memories of an H200 with size, bandwidth and latency, with
    these parts highlighted.

    Levels are "grid", "cluster", "block", "warp" and "lane"; memories "DRAM", "L2", "shared", "L1",
    "SM" (in one box) and "registers". The latency of DRAM is that of the record.

    Raises `ValueError` for another name, listing these.
    """
    lit = tuple(dict.fromkeys(lit))
    for name in lit:
        if name not in LEVELS and name not in MEMORIES:
            known = ", ".join([*LEVELS, *MEMORIES])
            raise ValueError(f"the machine has no part {name!r}; its parts: {known}")
    axes = canvas(HEIGHT)
    levels, memories = (_row(*row) for row in zip((7, 39), (26, 44), WIDTHS, strict=True))
    for box, (name, (note, _)) in zip(levels, LEVELS.items(), strict=True):
        _part(axes, box, name in lit, name, note)
    for box, (parts, said) in zip(memories, _boxes().items(), strict=True):
        _part(axes, box, not {*parts}.isdisjoint(lit), *said)
    finish(axes.figure, "where we are: " + (", ".join(lit) or "the machine"), _sentence(lit))


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


def _sentence(lit: tuple[str, ...]) -> str:
    if not lit:
        return "What you launch, from the grid down to a lane, and where it lives."
    said = [LEVELS[name][1] if name in LEVELS else MEMORIES[name] for name in lit]
    return f"Highlighted: {'; '.join(said)}."
