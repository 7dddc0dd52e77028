"""Memory requests of a kernel: lanes and sectors, lanes and banks, traffic per source line.

The figures are drawn from a trace, so editing a kernel changes them. `sectors` and `banks` need the
addresses that `simulate(..., watch=True)` records; `moves` only needs counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...base.arguments import checked
from ...simt import Counters, Trace, WatchedAccess
from ...simt.hardware import BANKS, SECTOR, WARP, WORD
from ...simt.words import counted
from .accesses import Line, Shown, Traces, chosen, labelled
from .charts import short, times
from .style import (
    BLUE,
    DARK,
    FONT_PLACED,
    GREEN,
    GREY,
    LIT,
    ORANGE,
    PAGE,
    PALE,
    PINK,
    RED,
    Box,
    beside,
    canvas,
    finish,
    ink,
    ink_on,
    legend,
    rectangle,
    styled_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE = 128  # bytes of a cache line: four sectors
BYTE = 0.5  # pixels: 32 sectors fit, which is the most that a request touches
SECTOR_WIDE, SECTOR_HIGH = SECTOR * BYTE, 28.0
EDGE = 3  # margin in pixels on either side
WIDE = (PAGE - 2 * EDGE) / WARP  # from lane to lane
PITCH = 20.0  # the same with words before the lanes
LEFT = PAGE - EDGE - WARP * PITCH
WASTE = "#F6D9C3"  # a pale vermilion: moved but not requested
TITLE = {"fontsize": 10, "fontweight": "bold", "va": "center"}
NOTE = {"fontsize": 9, "color": DARK, "va": "center"}
CODE = {**NOTE, "family": "monospace"}
VERBS = {"store": "stores"}


# ---- lanes on sectors ---------------------------------------------------------------------------


@checked
def sectors(
    trace: Traces, line: Line, block: int = 0, nth: int = 0, kind: str | None = None
) -> None:
    """Draw one access to global memory by the first warp of a block that makes it: its lanes, and
    the 32-byte sectors they touch. A sector has the same size in every figure.

    `trace` comes from `simulate(..., watch=True)`; several in `{label: trace}` are drawn below each
    other. `line` is a number, or part of the text of the source line, ignoring spaces;
    a tuple has one for each trace. `nth` selects among the accesses of the warp in this line,
    counted from 0; `kind` ("load", "store", "atomic") selects if a line has several kinds, by
    default the first.

    Raises `TypeError` for anything but a trace; and `ValueError` that lists the alternatives for a
    trace without recorded accesses, and for a line, block or access that is not there or ambiguous.
    """
    shown = chosen(trace, "global", line, block, nth, kind)
    panel = 184.0
    bottom = panel * len(shown)
    axes = canvas(bottom + 12)
    for number, one in enumerate(shown):
        _draw_sectors(axes, one, panel * number)
    stores = all(one.access.kind == "store" for one in shown)
    keys = {"stored" if stores else "requested": {"facecolor": BLUE}}
    if any(one.used < one.moved for one in shown):
        keys["not stored" if stores else "fetched along"] = {"facecolor": WASTE}
    keys |= {**_inactive(shown), "box: a 32-byte sector; bracket: in one 128-byte line": {}}
    legend(axes, EDGE, bottom, keys)
    finish(axes.figure, f"lanes on sectors, {_names(shown)}", _say_sectors(shown))


class _Strip:
    """The touched sectors side by side, with a gap where a line ends or memory is omitted."""

    def __init__(self, access: WatchedAccess):
        self.access = access
        first = access.offsets[access.mask] + access.start
        self.piece = min(access.width, 16)  # bytes drawn as one box
        pieces = (first[:, None] + np.arange(0, access.width, self.piece)).reshape(-1)
        self.asked = {int(byte) for byte in pieces}
        self.sectors = np.unique(np.r_[pieces, first + access.width - 1] // SECTOR)
        self.jumps = np.diff(self.sectors)
        apart = (self.jumps > 1) | (self.sectors[1:] * SECTOR % LINE == 0)
        left = np.r_[0, np.cumsum(SECTOR_WIDE + np.where(apart, 5.5, 2.0))]
        self.left = (PAGE - left[-1] - SECTOR_WIDE) / 2 + left  # centred below the lanes


def _draw_sectors(axes: Axes, one: Shown, top: float) -> None:
    access, strip = one.access, _Strip(one.access)
    color = GREEN if one.used == one.moved else RED if one.wasteful else DARK
    _heading(axes, top, one, _traffic(one), color)
    lanes, boxes = top + 58, top + 116
    lane_x = _lanes(axes, lanes, access.mask, EDGE, WIDE)
    place = dict(zip(strip.sectors.tolist(), strip.left.tolist(), strict=True))
    for lane in np.flatnonzero(access.mask).tolist():
        byte = int(access.offsets[lane]) + access.start
        at = place[byte // SECTOR] + (byte % SECTOR + strip.piece / 2) * BYTE
        _thread(axes, (lane_x[lane], lanes), (at, boxes))
    for sector, x in place.items():
        rectangle(axes, Box(x, boxes, SECTOR_WIDE, SECTOR_HIGH), WASTE)
        for byte in range(0, SECTOR, strip.piece):
            at, wide = x + byte * BYTE, strip.piece * BYTE
            if sector * SECTOR + byte in strip.asked:
                rectangle(axes, Box(at, boxes, wide, SECTOR_HIGH), BLUE)
            if byte:
                axes.vlines(at, boxes, boxes + SECTOR_HIGH, color="white", linewidth=wide / 8)
        rectangle(axes, Box(x, boxes, SECTOR_WIDE, SECTOR_HIGH), "none", DARK, 0.5)
    for gap in np.flatnonzero(strip.jumps > 1).tolist():
        at = (strip.left[gap] + SECTOR_WIDE + strip.left[gap + 1]) / 2
        ends = [boxes - 3, boxes + SECTOR_HIGH + 3]
        axes.plot([at, at], ends, ":", color=DARK, linewidth=0.8)
    _name_bytes(axes, boxes + SECTOR_HIGH, strip)


def _name_bytes(axes: Axes, top: float, strip: _Strip) -> None:
    """Brackets below the sectors of each 128-byte line, with the offset in the array."""
    left = strip.left
    lines = strip.sectors * SECTOR // LINE
    starts = np.flatnonzero(np.r_[True, np.diff(lines) != 0])
    ends = np.r_[starts[1:], len(lines)] - 1
    regular = len(lines) > 2 and strip.jumps[0] * SECTOR > LINE and np.ptp(strip.jumps) == 0
    if regular:  # numbers for the first and the last suffice
        text = f"{int(strip.jumps[0]) * SECTOR:,} bytes from one sector to the next"
        axes.text((left[0] + left[-1] + SECTOR_WIDE) / 2, top + 18, text, ha="center", **NOTE)
        starts, ends = starts[[0, -1]], ends[[0, -1]]
    free = 0.0
    for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
        x, right = float(left[first]), float(left[last] + SECTOR_WIDE)
        axes.plot([x, x, right, right], [top + 3, top + 7, top + 7, top + 3], color=GREY, lw=0.8)
        byte = int(strip.sectors[first]) * SECTOR - strip.access.start
        text = f"{byte:,}" if first else _place_of(byte, strip.access.array or "memory")
        wide = 6.5 * len(text)  # in any font
        x = right - wide if regular and first else x
        if free <= x <= PAGE - wide:
            axes.text(x, top + 18, text, **NOTE, **FONT_PLACED)
            free = x + wide


def _place_of(byte: int, array: str) -> str:
    return f"byte {byte:,} of {array}" if byte >= 0 else f"{-byte} bytes before {array}"


def _traffic(one: Shown) -> str:
    verb = "stored" if one.access.kind == "store" else "used"
    share = f"{one.used:,} of {one.moved:,} bytes are {verb}"
    share = share if one.used < one.moved else f"every byte is {verb}"
    return f"1 request, {counted(one.sectors, 'sector')}: {share}"


def _say_sectors(shown: Sequence[Shown]) -> str:
    parts = [
        f"{one.name}, warp {one.access.warp}: one request of {counted(one.lanes, 'lane')} touches "
        f"{counted(one.sectors, 'sector')} and {VERBS.get(one.access.kind, 'uses')} {one.used:,} "
        f"of {one.moved:,} bytes"
        for one in shown
    ]
    return "; ".join(parts) + "."


# ---- lanes on banks -----------------------------------------------------------------------------


@checked
def banks(trace: Traces, line: Line, block: int = 0, nth: int = 0, kind: str | None = None) -> None:
    """Draw one access to shared memory: the lanes of a warp, the 32 banks, and the wavefronts.

    In a wavefront each bank serves one 4-byte word to all lanes that request it. Parameters and
    errors are those of `sectors`.
    """
    shown = chosen(trace, "shared", line, block, nth, kind)
    tops = [0.0]
    for one in shown:
        tops.append(tops[-1] + 172 + PITCH * len(one.turns))
    axes = canvas(tops[-1] + 12)
    for one, top in zip(shown, tops, strict=False):
        _draw_banks(axes, one, top)
    served = [lanes for one in shown for turn in one.turns for lanes in turn.values()]
    keys = {"serves this lane": {"facecolor": BLUE}} if min(map(len, served)) == 1 else {}
    if max(map(len, served)) > 1:
        keys["serves so many lanes with one word"] = {"facecolor": GREEN}
    keys |= {"idle": {"edgecolor": PALE}, **_inactive(shown), "turn: a wavefront": {}}
    legend(axes, EDGE, tops[-1], keys)
    finish(axes.figure, f"lanes on banks, {_names(shown)}", _say_banks(shown))


def _draw_banks(axes: Axes, one: Shown, top: float) -> None:
    access, turns = one.access, one.turns
    color = GREEN if len(turns) == len(one.groups) else RED
    _heading(axes, top, one, f"1 request, {_turns(one)}", color)
    lanes, header, words = top + 58, top + 132, max(1, access.width // WORD)
    lane_x = _lanes(axes, lanes, access.mask, LEFT, PITCH)
    for y, text in ((lanes, "lane"), (header, "bank")):
        axes.text(LEFT - 7, y, text, ha="right", **NOTE)
    for bank in range(BANKS):
        axes.text(lane_x[bank], header, str(bank), ha="center", **NOTE)
    for lane in np.flatnonzero(access.mask).tolist():
        bank = int(access.offsets[lane]) // WORD % BANKS
        _thread(axes, (lane_x[lane], lanes), (LEFT + (bank + words / 2) * PITCH, header - 10))
    behind_groups = np.cumsum([len(group) for group in one.groups]).tolist()
    for number, turn in enumerate(turns):
        y = header + 12 + number * PITCH
        axes.text(LEFT - 7, y + PITCH / 2, f"turn {number + 1}", ha="right", **NOTE)
        rectangle(axes, Box(LEFT, y, BANKS * PITCH, PITCH), "white", PALE, 0.5)
        between = LEFT + np.arange(1, BANKS) * PITCH
        axes.vlines(between, y, y + PITCH, color=PALE, linewidth=0.5, zorder=1)
        for bank, served in turn.items():
            _served(axes, Box(LEFT + bank * PITCH, y, words * PITCH, PITCH), served)
        if number + 1 in behind_groups[:-1]:
            axes.plot([LEFT - 50, PAGE - EDGE], [y + PITCH] * 2, color=DARK, linewidth=1)


def _served(axes: Axes, box: Box, lanes: list[int]) -> None:
    """A word, or several in neighbouring banks, and the lane or the number of lanes that receive
    it."""
    text, fill = (str(lanes[0]), BLUE) if len(lanes) == 1 else (str(len(lanes)), GREEN)
    rectangle(axes, box, fill, "white", 0.8)
    style = {**NOTE, "color": ink_on(fill), "ha": "center"}
    axes.text(box.x + box.width / 2, box.middle, text, **style)


def _say_banks(shown: Sequence[Shown]) -> str:
    parts = []
    for one in shown:
        most = max(Counter(bank for turn in one.turns for bank in turn).values())
        served = f", served {one.lanes_at_once} at a time" if one.lanes_at_once < WARP else ""
        parts.append(
            f"{one.name}: {counted(one.lanes, 'lane')} with {one.access.width} bytes each{served}, "
            f"and at most {counted(most, 'word')} of one bank: {_turns(one)}"
        )
    return "; ".join(parts) + "."


def _turns(one: Shown) -> str:
    needed, least = len(one.turns), len(one.groups)
    free = ", no bank conflict" if needed == least else f"; without conflicts, {least}"
    return f"{counted(needed, 'turn')}{free}"


# ---- traffic beside the source ------------------------------------------------------------------


@checked
def moves(trace: Traces) -> None:
    """Draw requests, sectors of global memory and wavefronts of shared memory as bars next to the
    source lines; the part beyond what the bytes need is pale.

    Several traces in `{label: trace}` are drawn below each other on one scale. Raises `TypeError`
    for anything but a trace, `ValueError` for a trace without an access in the kernel's own lines.
    """
    from matplotlib.patches import Patch
    from matplotlib.transforms import blended_transform_factory

    panels = [(label or one.file, one, _bars(one)) for label, one in labelled(trace)]
    for name, _, bars in panels:
        if not bars:
            raise ValueError(f"{name} has no line of its own that loads or stores")
    every = [bar for *_, bars in panels for bar in bars]
    rows = [len(bars) + 1 for *_, bars in panels]
    with styled_figure(0.45 + 0.27 * sum(rows), layout="constrained") as figure:
        grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=rows)
    for axes, (name, one, bars) in zip(grid[:, 0], panels, strict=True):
        verdict, color = _total(one.counters)
        left = blended_transform_factory(figure.transFigure, axes.transAxes)
        style = {**TITLE, "va": "bottom", "xytext": (0, 3), "textcoords": "offset points"}
        axes.annotate(name, (0.01, 1), xycoords=left, in_layout=False, **style)
        axes.set_title(verdict, fontsize=10, loc="right", color=ink(color), pad=3)
        code = one.own_lines()
        texts = [code[bar.line].strip() for bar in bars]
        for row, bar in enumerate(bars):
            _draw_bar(axes, row, bar)
            if row and bars[row - 1].line == bar.line:
                texts[row] = ""
        axes.set_yticks(
            range(len(bars)),
            [
                f"{bar.line if text else '':>3} {text:<34.34} {bar.kind:>6}"
                for bar, text in zip(bars, texts, strict=True)
            ],
            family="monospace",
            size=9,
        )
        axes.set(ylim=(len(bars) - 0.4, -0.6), xticks=[])
        axes.set_xlim(0, 1.6 * max(max(bar.pieces, bar.requests) for bar in every))
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
    colors = {bar.color for bar in every}
    keys = [Patch(color=color, label=text) for color, text in MEMORIES if color in colors]
    keys.append(Patch(color=DARK, label="requests"))
    if any(bar.wasted for bar in every):
        keys.append(Patch(facecolor=WASTE, edgecolor=RED, label="more than the bytes need"))
    look = {"frameon": False, "fontsize": 9, "handlelength": 1, "columnspacing": 1.2}
    figure.legend(handles=keys, loc="outside lower left", ncols=4, **look)
    names = " and ".join(name for name, *_ in panels)
    finish(figure, f"what moves in {names[:1].lower()}{names[1:]}", _say_moves(panels))


MEMORIES = (
    (BLUE, "global memory: sectors"),
    (ORANGE, "shared memory: wavefronts"),
    (RED, "local memory: sectors"),
    (PINK, "atomics, other blocks"),
)


class _Bar(NamedTuple):
    """The accesses of one source line to one memory."""

    line: int
    kind: str  # "load", "store", ...
    color: str
    requests: int
    pieces: int  # sectors or wavefronts; 0 if not counted
    ideal: float  # minimum for the bytes

    @property
    def wasted(self) -> bool:
        return self.pieces > 1.001 * self.ideal


def _bars(trace: Trace) -> list[_Bar]:
    bars = []
    for line, c in trace.own_counters().items():
        copied = c.copied_in_bytes + c.copied_out_bytes
        for kind, requests, pieces, asked in (
            ("load", c.load_requests, c.load_sectors, c.load_bytes),
            ("copy", c.copy_requests, c.copy_sectors, copied),
            ("store", c.store_requests, c.store_sectors, c.store_bytes),
        ):
            bars.append(_Bar(line, kind, BLUE, requests, pieces, min(pieces, asked / SECTOR)))
        seen = vars(c)
        for kind in ("load", "store"):
            requests, pieces = (seen[f"shared_{kind}_{x}"] for x in ("requests", "wavefronts"))
            ideal = pieces - seen[f"shared_{kind}_bank_conflicts"]
            bars.append(_Bar(line, kind, ORANGE, requests, pieces, ideal))
            requests, pieces = (seen[f"local_{kind}_{x}"] for x in ("requests", "sectors"))
            bars.append(_Bar(line, kind, RED, requests, pieces, pieces))
        bars.append(_Bar(line, "remote", PINK, c.remote_requests, 0, 0))
        bars.append(_Bar(line, "atomic", PINK, c.atomic_requests, 0, 0))
    return [bar for bar in bars if bar.requests]


def _draw_bar(axes: Axes, row: int, bar: _Bar) -> None:
    size = bar.pieces or bar.requests
    says = f"{size:,} request{'s' * (size > 1)}"
    if bar.wasted:
        axes.barh(row - 0.1, size, 0.45, color=WASTE, edgecolor=RED, linewidth=0.5)
    axes.barh(row - 0.1, bar.ideal if bar.pieces else size, 0.45, color=bar.color)
    if bar.pieces:
        axes.barh(row + 0.22, bar.requests, 0.13, color=DARK)
        says = f"{size:,}, {short(size / bar.requests)} per request"
    color = ink(RED) if bar.wasted else "black"
    beside(axes, max(size, bar.requests), row, says, (5, 0), fontsize=9, color=color)


def _total(counters: Counters) -> tuple[str, str]:
    """All sectors of global memory and the requested bytes, with a colour; and those of local
    memory, which the source does not request."""
    moved = counted(_sectors_of(counters), "sector")
    if local := _local_sectors_of(counters):
        return f"{moved}, and {local:,} of local memory", RED
    ratio = short(counters.fetch_ratio)
    if float(ratio) <= 1:
        return f"{moved}, no more than requested", GREEN
    return f"{moved}, {ratio} times what is requested", RED


def _sectors_of(counters: Counters) -> int:
    return counters.load_sectors + counters.store_sectors + counters.copy_sectors


def _local_sectors_of(counters: Counters) -> int:
    return counters.local_load_sectors + counters.local_store_sectors


def _say_moves(panels: Sequence[tuple[str, Trace, list[_Bar]]]) -> str:
    parts = []
    for name, trace, _ in panels:
        c, said = trace.counters, name
        if {"x", "y"} <= {*trace.arrays}:
            matrix = trace.arrays["x"]
            read, written = c.passes(matrix.elements, matrix.dtype.itemsize)
            said += f" reads x {times(read)} and writes y {times(written)}"
            if others := [name for name in trace.arrays if name not in ("x", "y")]:
                said += f" ({' and '.join(others)} included)"
        said += f": {counted(_sectors_of(c), 'sector')}"
        if c.fetch_ratio:
            ratio = short(c.fetch_ratio)
            said += f", {ratio} byte{'' if ratio == '1' else 's'} touched per byte requested"
        if local := _local_sectors_of(c):
            said += f", and {counted(local, 'sector')} of local memory"
        parts.append(said)
    return "; ".join(parts) + "."


# ---- drawing ------------------------------------------------------------------------------------


def _lanes(axes: Axes, y: float, mask: np.ndarray, left: float, pitch: float) -> list[float]:
    """Draw the lanes of a warp as numbered circles, inactive ones pale; returns their positions."""
    from matplotlib.patches import Circle

    middle = (left + (np.arange(WARP) + 0.5) * pitch).tolist()
    for lane, active in enumerate(mask.tolist()):
        style = {"facecolor": LIT, "edgecolor": BLUE} if active else {"fill": False, "ec": PALE}
        axes.add_patch(Circle((middle[lane], y), 9.4, linewidth=1, **style))
        style = {"color": "black" if active else ink(GREY), "va": "center_baseline", "ha": "center"}
        axes.text(middle[lane], y, str(lane), fontsize=9, **style)
    return middle


def _thread(axes: Axes, lane: tuple[float, float], end: tuple[float, float]) -> None:
    """A line from a lane's circle to its request."""
    (x, y), (to_x, to_y) = lane, end
    axes.plot([x, to_x], [y + 9.4, to_y], color=BLUE, linewidth=0.8, alpha=0.7)


def _heading(axes: Axes, top: float, one: Shown, verdict: str, color: str) -> None:
    """Title and verdict, with the source line and the warp below."""
    axes.text(EDGE, top + 14, one.name, **TITLE)
    axes.text(PAGE - EDGE, top + 14, verdict, color=ink(color), ha="right", **TITLE)
    axes.text(EDGE, top + 34, one.code[:72], **CODE)
    who = f"warp {one.access.warp}, block {one.block}"
    axes.text(PAGE - EDGE, top + 34, who, ha="right", **NOTE)


def _inactive(shown: Sequence[Shown]) -> dict[str, dict]:
    """The key of inactive lanes, if there are some."""
    every = all(one.access.mask.all() for one in shown)
    return {} if every else {"pale circle: takes no part": {}}


def _names(shown: Sequence[Shown]) -> str:
    return " and ".join(one.name for one in shown)
