"""What a kernel asks of memory: lanes on sectors, lanes on banks, traffic beside the source.

All is drawn from a trace, so that an edited kernel changes its picture. `sectors` and `banks` need
the addresses that `simulate(..., watch=True)` keeps, `moves` only counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..simt import Counters, Trace, WatchedAccess
from .style import BLUE, DARK, GREEN, GREY, INCHES, LIT, ORANGE, PALE, PINK, RED, STYLE, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Traces = Trace | Mapping[str, Trace]
Line = int | str | Sequence[int | str]

SECTOR, LINE, WARP, BANKS, WORD = 32, 128, 32, 32, 4  # bytes; lanes; of shared memory
WIDTH = 72 * INCHES  # a figure in points, in which all of this module is laid out
PITCH = 14.4  # from lane to lane, and from bank to bank
LEFT = WIDTH - 2 - WARP * PITCH  # of the first bank: row labels stand before it
WIDE = (WIDTH - 4) / WARP  # from lane to lane where nothing stands before them
WASTE = "#F6D9C3"  # a pale vermilion: moved and not used
CODE = {"family": "monospace", "color": DARK}


# ---- lanes on sectors ---------------------------------------------------------------------------


def sectors(
    trace: Traces,
    line: Line,
    warp: int = 0,
    block: int | tuple[int, int, int] = 0,
    nth: int = 0,
    kind: str | None = None,
) -> None:
    """Draw one access of a warp to global memory: its lanes, and the 32-byte sectors they touch.

    `trace` is of `simulate(..., watch=True)`; of `{label: trace}` several stand below each other on
    one scale. `line` is a number, or a piece of the source line's text; a tuple holds one for each
    trace. `nth` chooses among the accesses of this warp in this line, counted from 0; where a line
    loads and stores, `kind` does ("load", "store", "atomic"), else the first counts.

    Raises `ValueError`, with what there is, for a trace that kept no accesses and for a line, warp,
    block or access that is not there or is not one.
    """
    shown = _chosen(trace, line, warp, block, nth, kind, "global")
    scale = min(_Strip(one.access).scale for one in shown)
    panel, legend = 140.0, 20.0
    axes = _canvas(panel * len(shown) + legend)
    for number, one in enumerate(shown):
        _draw_sectors(axes, one, panel * number, scale)
    writes = all(one.access.kind == "store" for one in shown)
    keys = [(BLUE, "stored" if writes else "asked for")]
    if any(one.waste for one in shown):
        keys.append((WASTE, "in the same sectors, left alone" if writes else "fetched along"))
    if any(not one.access.mask.all() for one in shown):
        keys.append(("circle", "takes no part"))
    text = "box: a sector of 32 bytes; bracket: within a line of 128 bytes"
    _legend(axes, panel * len(shown) + legend - 9, keys, text)
    finish(axes.figure, f"lanes on sectors, {_titles(shown)}", _say_sectors(shown))


class _Strip:
    """The touched sectors side by side, with a gap where memory is left out."""

    def __init__(self, access: WatchedAccess):
        first = access.offsets[access.mask] + access.start
        self.piece = min(access.width, 16)  # bytes that are drawn as one box
        pieces = first[:, None] + np.arange(0, access.width, self.piece)
        self.asked = {int(one) for one in pieces.reshape(-1)}
        touched = np.r_[pieces.reshape(-1), first + access.width - 1] // SECTOR
        self.sectors = np.unique(touched)
        jumps = np.diff(self.sectors)
        wide = 8.0 if len(self.sectors) <= 16 else 3.4
        new_line = self.sectors[1:] * SECTOR % LINE == 0
        self.gaps = np.where(jumps > 1, wide, np.where(new_line, 7.0, 3.0))
        self.gaps = np.minimum(self.gaps, 100 / max(1, len(self.gaps)))
        self.jumps = jumps

    @property
    def scale(self) -> float:
        """Points a byte, at most: all sectors fit, and no box is wider than a lane."""
        room = WARP * WIDE - self.gaps.sum()
        return min(room / (SECTOR * len(self.sectors)), WIDE / self.piece)

    def left(self, scale: float) -> np.ndarray:
        """Where each sector begins, in points; the strip stands in the middle of the lanes."""
        sizes = np.r_[0, np.cumsum(SECTOR * scale + self.gaps)]
        whole = sizes[-1] + SECTOR * scale
        return (WIDTH - whole) / 2 + sizes


def _draw_sectors(axes: Axes, one: _Shown, top: float, scale: float) -> None:
    access, strip = one.access, _Strip(one.access)
    _heading(axes, top, one, one.traffic, _verdict_color(one))
    lanes, boxes, height = top + 42, top + 88, 24
    lane_x = _lanes(axes, lanes, access.mask, 2, WIDE)
    left = strip.left(scale)
    hair = min(0.6, strip.piece * scale / 6)  # between the pieces
    place = dict(zip(strip.sectors.tolist(), left.tolist(), strict=True))
    for sector, x in place.items():
        _box(axes, x, boxes, SECTOR * scale, height, WASTE, "none", 0)
        for byte in range(0, SECTOR, strip.piece):
            piece = x + byte * scale, boxes, strip.piece * scale, height
            if sector * SECTOR + byte in strip.asked:
                _box(axes, *piece, BLUE, "none", 0)
            if byte:
                axes.plot([piece[0]] * 2, [boxes, boxes + height], color="white", linewidth=hair)
        _box(axes, x, boxes, SECTOR * scale, height, "none", DARK, 0.5)
    for gap in np.flatnonzero(strip.jumps > 1):
        middle = left[gap + 1] - strip.gaps[gap] / 2
        axes.plot([middle] * 2, [boxes - 2, boxes + height + 2], ":", color=DARK, linewidth=0.8)
    for lane in np.flatnonzero(access.mask).tolist():
        byte = int(access.offsets[lane]) + access.start
        x = place[byte // SECTOR] + (byte % SECTOR + strip.piece / 2) * scale
        ends = [lane_x[lane], x], [lanes + 6.8, boxes]
        axes.plot(*ends, color=BLUE, linewidth=0.8, alpha=0.7)
    _name_bytes(axes, boxes + height, one, strip, left, scale)


def _name_bytes(
    axes: Axes, top: float, one: _Shown, strip: _Strip, left: np.ndarray, scale: float
) -> None:
    """Brackets below the sectors of each 128-byte line, and from which byte of the array on."""
    lines = strip.sectors * SECTOR // LINE
    starts = np.flatnonzero(np.r_[True, np.diff(lines) != 0])
    ends = np.r_[starts[1:], len(lines)] - 1
    whole_right = left[-1] + SECTOR * scale
    apart = np.unique(strip.jumps) * SECTOR
    stride = int(apart[0]) if len(apart) == 1 and apart[0] > LINE else 0
    if stride and len(starts) > 2:
        text = f"{stride:,} bytes from one sector to the next"
        axes.text((left[0] + whole_right) / 2, top + 13, text, **_small(), ha="center", va="center")
        starts, ends = starts[[0, -1]], ends[[0, -1]]
    free = -np.inf
    for number, (first, last) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        x, right = float(left[first]), float(left[last] + SECTOR * scale)
        axes.plot([x, x, right, right], [top + 2, top + 5, top + 5, top + 2], color=GREY, lw=0.8)
        byte = int(strip.sectors[first]) * SECTOR - one.access.start
        named = f"byte {byte:,} of {one.access.array}" if one.access.array else f"byte {byte:,}"
        text = named if number == 0 else f"{byte:,}"
        at_end = stride and number == len(starts) - 1 and number
        width = _text_width(text)
        x = whole_right - width - 2 if at_end else x
        if x > free and x + width <= WIDTH:
            axes.text(x, top + 13, text, **_small(), va="center")
            free = x + width + 6


def _say_sectors(shown: Sequence[_Shown]) -> str:
    """The sentence below: how many sectors, how much of them is used."""
    parts = []
    for number, one in enumerate(shown):
        access, fetched = one.access, one.access.sectors * SECTOR
        use = "writes" if access.kind == "store" else "uses"
        used = f"{one.used:,} of {fetched:,}" if one.used < fetched else f"all {fetched:,}"
        who = f"line {access.line}, warp {access.warp}"
        if one.label:
            who = f"{one.label}, {who}"
        if number:
            parts.append(f"{who}: {_count(access.sectors, 'sector')}, {used} bytes")
            continue
        active = int(access.mask.sum())
        of_lanes = "" if active == WARP else f" of {_count(active, 'lane')}"
        parts.append(
            f"{who[0].upper()}{who[1:]}: one request{of_lanes} touches "
            f"{_count(access.sectors, 'sector')} and {use} {used} bytes"
        )
    return "; ".join(parts) + "."


# ---- lanes on banks -----------------------------------------------------------------------------


def banks(
    trace: Traces,
    line: Line,
    warp: int = 0,
    block: int | tuple[int, int, int] = 0,
    nth: int = 0,
    kind: str | None = None,
) -> None:
    """Draw one access of a warp to shared memory: its lanes, the 32 banks, and the turns it takes.

    In a turn (a wavefront) each bank serves one 4-byte word, to all lanes that want it. Parameters
    and errors are those of `sectors`.
    """
    shown = _chosen(trace, line, warp, block, nth, kind, "shared")
    tops = [0.0]
    for one in shown:
        tops.append(tops[-1] + 112 + 14 * len(_rows_of(one.turns)) + 12)
    axes = _canvas(tops[-1] + 12)
    for one, top in zip(shown, tops, strict=False):
        _draw_banks(axes, one, top)
    keys = [(BLUE, "served: the lane's number")]
    if any(len(lanes) > 1 for one in shown for turn in one.turns for lanes in turn.values()):
        keys.append((GREEN, "one word for several lanes"))
    keys.append(("box", "idle bank"))
    if any(not one.access.mask.all() for one in shown):
        keys.append(("circle", "takes no part"))
    _legend(axes, tops[-1] + 2, keys, "turn: a wavefront")
    finish(axes.figure, f"lanes on banks, {_titles(shown)}", _say_banks(shown))


Turn = dict[int, list[int]]  # the first of the banks that serve a word or several: the lanes


def turns_of(access: WatchedAccess) -> list[list[Turn]]:
    """The turns of each group of lanes that is served together: 32 lanes, or 16 and 8 of them for
    accesses of 8 and 16 bytes; twice as many where pairs of lanes load from one address."""
    words = max(1, access.width // WORD)
    together = WARP // words
    pairs, active = access.offsets.reshape(-1, 2), access.mask.reshape(-1, 2)
    alike = (pairs[:, 0] == pairs[:, 1]) | ~active.all(axis=1)
    if access.kind == "load" and words > 1 and alike.all():
        together *= 2
    groups = []
    for start in range(0, WARP, together):
        turns: list[Turn] = []
        places: dict[int, list[int]] = {}  # a bank's words, in the order of the lanes
        for lane in range(start, min(start + together, WARP)):
            if not access.mask[lane]:
                continue
            word = int(access.offsets[lane]) // WORD
            known = places.setdefault(word % BANKS, [])
            if word not in known:
                known.append(word)
            turn = known.index(word)
            while len(turns) <= turn:
                turns.append({})
            turns[turn].setdefault(word % BANKS, []).append(lane)
        if turns:
            groups.append(turns)
    return groups


ROWS = 12  # more turns than that are cut short


def _rows_of(turns: Sequence[Turn]) -> list[int | None]:
    """The turns that are drawn; None stands for those left out."""
    numbers: list[int | None] = list(range(len(turns)))
    return numbers if len(turns) <= ROWS else [*numbers[: ROWS - 3], None, numbers[-1]]


def _draw_banks(axes: Axes, one: _Shown, top: float) -> None:
    access, turns, words = one.access, one.turns, max(1, one.access.width // WORD)
    least = len(one.groups)
    verdict = f"1 request, {_count(len(turns), 'turn')}: "
    verdict += "no bank conflict" if len(turns) == least else f"conflict-free would be {least}"
    _heading(axes, top, one, verdict, GREEN if len(turns) == least else RED)
    lanes, header, height = top + 42, top + 96, 14.0
    lane_x = _lanes(axes, lanes, access.mask, LEFT, PITCH)
    axes.text(LEFT - 5, lanes, "lane", **_small(), ha="right", va="center")
    axes.text(LEFT - 5, header, "bank", **_small(), ha="right", va="center")
    for bank in range(BANKS):
        axes.text(lane_x[bank], header, str(bank), **_small(), ha="center", va="center")
    for lane in np.flatnonzero(access.mask).tolist():
        bank = int(access.offsets[lane]) // WORD % BANKS
        x = LEFT + (bank + words / 2) * PITCH
        ends = [lane_x[lane], x], [lanes + 6.8, header - 7]
        axes.plot(*ends, color=BLUE, linewidth=0.8, alpha=0.7)
    last_of_group = np.cumsum([len(group) for group in one.groups]).tolist()
    for row, number in enumerate(_rows_of(turns)):
        y = header + 8 + row * height
        if number is None:
            left_out = f"{len(turns) - ROWS + 2} more turns"
            axes.text(
                LEFT + WARP * PITCH / 2, y + 7, left_out, **_small(), ha="center", va="center"
            )
            continue
        axes.text(LEFT - 5, y + 7, f"turn {number + 1}", **_small(), ha="right", va="center")
        for bank in range(BANKS):
            _box(axes, LEFT + bank * PITCH, y, PITCH, height, "white", PALE, 0.5)
        for bank, served in turns[number].items():
            _served(axes, y, height, bank, words, served, turns[number])
        if number + 1 in last_of_group[:-1]:
            axes.plot([LEFT - 36, WIDTH - 2], [y + height] * 2, color=DARK, linewidth=1)


def _served(
    axes: Axes, y: float, height: float, bank: int, words: int, lanes: list[int], turn: Turn
) -> None:
    """A word, or several in neighbouring banks, and who gets it."""
    x, width = LEFT + bank * PITCH, words * PITCH
    _box(axes, x, y, width, height, BLUE if len(lanes) == 1 else GREEN, "white", 0.8)
    text, color = str(lanes[0]), "white"
    if len(lanes) > 1:
        text = f"×{len(lanes)}"
        if words == 1 and len(lanes) > 9 and {bank - 1, bank + 1} & {*turn}:
            text = str(len(lanes))  # no room beside it
    if _text_width(text, 9) > width:  # the banks beside it are idle
        axes.text(x + width + 2, y + height / 2, text, fontsize=9, color=GREEN, va="center")
        return
    style = {"fontsize": 9, "color": color, "ha": "center", "va": "center"}
    axes.text(x + width / 2, y + height / 2, text, **style)


def _say_banks(shown: Sequence[_Shown]) -> str:
    parts = []
    for one in shown:
        access, least, needed = one.access, len(one.groups), len(one.turns)
        active = int(access.mask.sum())
        who = f"{one.label}, line {access.line}" if one.label else f"Line {access.line}"
        if access.width > WORD:
            lanes = WARP * WORD // access.width * (1 if least * access.width >= active * 4 else 2)
            want = f"{_count(active, 'lane')} want {access.width} bytes each, {lanes} lanes at once"
        else:
            counts: dict[int, int] = {}
            for turn in one.turns:
                for bank in turn:
                    counts[bank] = counts.get(bank, 0) + 1
            most, alike = max(counts.values()), len({*counts.values()}) == 1
            verb = "wants" if active == 1 else "want"
            if alike:
                of = f"each of {len(counts)} banks" if len(counts) > 1 else "one bank"
                want = f"{_count(active, 'lane')} {verb} {_count(most, 'word')} of {of}"
            else:
                words = sum(counts.values())
                want = f"{_count(active, 'lane')} want {words} words, {most} of them of one bank"
        turns = f"{_count(needed, 'turn')}, "
        turns += "the fewest possible" if needed == least else f"conflict-free would be {least}"
        parts.append(f"{who}: {want}; {turns}")
    return ". ".join(parts) + "."


# ---- traffic beside the source ------------------------------------------------------------------


class _Bar(NamedTuple):
    """What one source line asks of one memory."""

    line: int
    kind: str  # "load", "store", ...
    color: str
    requests: int
    pieces: int  # sectors or wavefronts; 0 where they are not counted
    ideal: float  # as many as the bytes need

    @property
    def wasted(self) -> bool:
        return self.pieces > 1.001 * self.ideal


def moves(trace: Traces) -> None:
    """Draw requests, sectors of global memory and wavefronts of shared memory as bars beside the
    source lines that ask for them, and pale what is more than the bytes need.

    Of `{label: trace}` several stand below each other on one scale. Raises `ValueError` for a trace
    without an access in the kernel's own lines.
    """
    labelled = _labelled(trace)
    panels = [(label, one, _bars(one)) for label, one in labelled]
    for label, one, bars in panels:
        if not bars:
            raise ValueError(f"{label or one.file} has no line of its own that loads or stores")
    row, head = 20.0, 26.0
    height = sum(head + row * len(bars) for _, _, bars in panels)
    kinds = {bar.color for *_, bars in panels for bar in bars}
    keys = [(color, text) for color, text in MEMORIES if color in kinds]
    axes = _canvas(height + 30)
    most = max(max(bar.pieces, bar.requests, bar.ideal) for *_, bars in panels for bar in bars)
    top = 0.0
    for label, one, bars in panels:
        bold = {"fontsize": 10, "fontweight": "bold", "va": "center"}
        axes.text(2, top + 10, label or one.file, **bold)
        verdict, color = _total(one.counters)
        axes.text(WIDTH - 2, top + 10, verdict, color=color, ha="right", **bold)
        for number, bar in enumerate(bars):
            first = number == 0 or bars[number - 1].line != bar.line
            code = one.own_lines()[bar.line].strip() if first else ""
            _draw_bar(axes, top + head + row * number, bar, code, most)
        top += head + row * len(bars)
    _legend(axes, top + 6, [*keys, ("thin", "requests")])
    if any(bar.wasted for *_, bars in panels for bar in bars):
        _legend(axes, top + 20, [(WASTE, "more than the bytes need")])
    names = " and ".join(label or one.file for label, one in labelled)
    finish(axes.figure, f"what moves in {names}", _say_moves(labelled))


MEMORIES = (
    (BLUE, "global memory: sectors"),
    (ORANGE, "shared memory: wavefronts"),
    (RED, "local memory: sectors"),
    (PINK, "atomics, other blocks"),
)


def _bars(trace: Trace) -> list[_Bar]:
    bars = []
    for line, counted in trace.own_counters().items():
        c = counted
        for kind, requests, pieces, asked in (
            ("load", c.load_requests, c.load_sectors, c.load_bytes),
            ("copy", c.copy_requests, c.copy_sectors, c.copied_in_bytes + c.copied_out_bytes),
            ("store", c.store_requests, c.store_sectors, c.store_bytes),
        ):
            bars.append(_Bar(line, kind, BLUE, requests, pieces, min(pieces, asked / SECTOR)))
        for kind in ("load", "store"):
            of = {name: getattr(c, f"shared_{kind}_{name}") for name in SHARED}
            ideal = of["wavefronts"] - of["bank_conflicts"]
            bars.append(_Bar(line, kind, ORANGE, of["requests"], of["wavefronts"], ideal))
            spilled = getattr(c, f"local_{kind}_requests"), getattr(c, f"local_{kind}_sectors")
            bars.append(_Bar(line, kind, RED, *spilled, spilled[1]))
        bars.append(_Bar(line, "remote", PINK, c.remote_requests, 0, 0))
        bars.append(_Bar(line, "atomic", PINK, c.atomic_requests, 0, 0))
    return [bar for bar in bars if bar.requests]


SHARED = ("requests", "wavefronts", "bank_conflicts")


def _draw_bar(axes: Axes, y: float, bar: _Bar, code: str, most: float) -> None:
    number, text, kind, start, full = 24, 30, 236, 240, 140
    if code:
        axes.text(number, y, str(bar.line), fontsize=9, ha="right", va="center", **CODE)
        axes.text(text, y, _shortened(code, 32), fontsize=9, va="center", **CODE)
    axes.text(kind, y, bar.kind, **_small(), ha="right", va="center")
    size = full / most
    if bar.pieces:
        if bar.wasted:
            _box(axes, start, y - 6, bar.pieces * size, 9, WASTE, RED, 0.5)
        _box(axes, start, y - 6, bar.ideal * size, 9, bar.color, "none", 0)
        _box(axes, start, y + 4, bar.requests * size, 2.5, DARK, "none", 0)
        what = f"{bar.pieces:,}", f"{_short(bar.pieces / bar.requests)} a request"
    else:
        _box(axes, start, y - 6, bar.requests * size, 9, bar.color, "none", 0)
        what = f"{bar.requests:,}", "requests"
    x = start + max(bar.pieces, bar.requests) * size + 4
    axes.text(x, y, what[0], fontsize=9, va="center")
    color = RED if bar.pieces and bar.wasted else DARK
    axes.text(x + _text_width(what[0]) + 5, y, what[1], fontsize=9, color=color, va="center")


def _total(counters: Counters) -> tuple[str, str]:
    """All sectors of global memory beside the bytes that were asked for, and a colour."""
    ratio, moved = counters.fetch_ratio, _sectors_of(counters)
    if ratio <= 1.001:
        return f"{_count(moved, 'sector')}, no more than asked for", GREEN
    return f"{_count(moved, 'sector')}, {_short(ratio)} times what is asked for", RED


def _sectors_of(counters: Counters) -> int:
    return counters.load_sectors + counters.store_sectors + counters.copy_sectors


def _say_moves(labelled: Sequence[tuple[str, Trace]]) -> str:
    parts = []
    for label, trace in labelled:
        c, said = trace.counters, label or trace.file
        if {"x", "y"} <= {*trace.arrays}:
            matrix = trace.arrays["x"]
            read, written = c.passes(matrix.elements, matrix.dtype.itemsize)
            said += f" reads x {_times(read)} and writes y {_times(written)}"
        said += f": {_count(_sectors_of(c), 'sector')}"
        if c.fetch_ratio:
            ratio = _short(c.fetch_ratio)
            said += f", {ratio} byte{'' if ratio == '1' else 's'} moved for each one asked for"
        parts.append(said)
    return "; ".join(parts) + "."


def _times(number: float) -> str:
    text = _short(number)
    return {"1": "once", "2": "twice", "3": "three times"}.get(text, f"{text} times")


# ---- which access -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shown:
    """An access that was chosen, and where it comes from."""

    label: str  # "" if it is the only one
    trace: Trace
    access: WatchedAccess

    @property
    def name(self) -> str:
        return f"{self.label or self.trace.file}, line {self.access.line}"

    @property
    def code(self) -> str:
        return self.trace.own_lines()[self.access.line].strip()

    @cached_property
    def used(self) -> int:
        """Bytes that the lanes want, each counted once."""
        first = self.access.offsets[self.access.mask]
        return len(np.unique(first[:, None] + np.arange(self.access.width)))

    @property
    def waste(self) -> int:
        """Bytes of the sectors that no lane wants."""
        return self.access.sectors * SECTOR - self.used

    @property
    def traffic(self) -> str:
        fetched, used = self.access.sectors * SECTOR, self.used
        verb = "written" if self.access.kind == "store" else "used"
        if used == fetched:
            share = "every byte"
        elif fetched % used:
            share = f"{used:,} of {fetched:,} bytes"
        else:
            share = f"1 byte of {fetched // used}"
        be = "are" if share.endswith("bytes") else "is"
        return f"1 request, {_count(self.access.sectors, 'sector')}: {share} {be} {verb}"

    @cached_property
    def groups(self) -> list[list[Turn]]:
        return turns_of(self.access)

    @property
    def turns(self) -> list[Turn]:
        return [turn for group in self.groups for turn in group]


def _verdict_color(one: _Shown) -> str:
    """Green if all is used, vermilion if fewer sectors would hold what the lanes ask for."""
    if not one.waste:
        return GREEN
    asked = int(one.access.mask.sum()) * one.access.width
    return RED if one.access.sectors > -(-asked // SECTOR) else DARK


def _labelled(trace: Traces) -> list[tuple[str, Trace]]:
    if isinstance(trace, Trace):
        return [("", trace)]
    if not isinstance(trace, Mapping) or not trace:
        raise TypeError(
            "draw a trace, simulate(..., watch=True), or {label: trace}; not "
            f"{type(trace).__name__}{'' if trace else ' of none'}"
        )
    for label, one in trace.items():
        if not isinstance(one, Trace):
            raise TypeError(f"{label!r} is no trace but a {type(one).__name__}")
    return [*trace.items()]


def _chosen(
    trace: Traces, line: Line, warp: int, block, nth: int, kind: str | None, memory: str
) -> list[_Shown]:
    labelled = _labelled(trace)
    lines = [line] * len(labelled) if isinstance(line, int | str) else [*line]
    if len(lines) != len(labelled):
        raise ValueError(f"{len(lines)} lines for {len(labelled)} traces: one for each, or one")
    return [
        _Shown(label, one, _access(one, wanted, warp, block, nth, kind, memory))
        for (label, one), wanted in zip(labelled, lines, strict=True)
    ]


def _access(
    trace: Trace, line: int | str, warp: int, block, nth: int, kind: str | None, memory: str
) -> WatchedAccess:
    """The access that is asked for. Raises `ValueError` that says what there is."""
    if not trace.accesses:
        raise ValueError(f"the trace of {trace.file} kept no accesses: simulate(..., watch=True)")
    reached = [one for one in trace.accesses if one.memory == memory]
    number = _line_number(trace, line, sorted({one.line for one in reached}), memory)
    here = [one for one in reached if one.line == number]
    ours = [one for one in here if one.warp == warp and block in (one.block, _number(trace, one))]
    if not ours:
        there = sorted({(_number(trace, one), one.warp) for one in here})
        some = ", ".join(f"warp {w} of block {b}" for b, w in there[:4])
        more = f" and {len(there) - 4} more" if len(there) > 4 else ""
        raise ValueError(
            f"warp {warp} of block {block} does not reach line {number} of {trace.file}; "
            f"those that do: {some}{more}"
        )
    kinds = [*dict.fromkeys(one.kind for one in ours)]
    if kind is not None and kind not in kinds:
        raise ValueError(
            f"line {number} of {trace.file} has no {kind} in {memory} memory: kind is "
            f"{' or '.join(map(repr, kinds))}"
        )
    ours = [one for one in ours if one.kind == (kind or kinds[0])]
    if not -len(ours) <= nth < len(ours):
        raise ValueError(
            f"warp {warp} of block {block} has {_count(len(ours), ours[0].kind)} in line {number} "
            f"of {trace.file}: nth goes from 0 to {len(ours) - 1}"
        )
    return ours[nth]


def _number(trace: Trace, access: WatchedAccess) -> int:
    """The linear number of an access's block."""
    (x, y, z), (wide, high, _) = access.block, trace.shape.grid
    return x + wide * (y + high * z)


def _line_number(trace: Trace, line: int | str, there: Sequence[int], memory: str) -> int:
    """The line meant by a number or a piece of text, among those that reach this memory."""
    text = trace.own_lines()

    def listed(numbers: Sequence[int]) -> str:
        return "".join(f"\n{number:5}: {text[number].strip()}" for number in numbers)

    if not there:
        raise ValueError(f"no line of {trace.file} was seen to reach {memory} memory")
    if not isinstance(line, str):
        if line in there:
            return line
        raise ValueError(
            f"line {line} of {trace.file} does not reach {memory} memory; these do:{listed(there)}"
        )
    piece = "".join(line.split())
    found = [number for number in there if piece and piece in "".join(text[number].split())]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"{line!r} stands in {len(found)} lines of {trace.file} that reach {memory} memory; "
            f"give more of its text, or the number:{listed(found)}"
        )
    raise ValueError(
        f"{line!r} stands in no line of {trace.file} that reaches {memory} memory; "
        f"these do:{listed(there)}"
    )


# ---- drawing in points --------------------------------------------------------------------------


def _canvas(height: float) -> Axes:
    """A figure of so many points in height, whose units are points from its top left corner."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure: Figure = plt.figure(figsize=(INCHES, height / 72))
        axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    return axes


def _box(axes: Axes, x, y, width, height, fill: str, edge: str, line: float) -> None:
    from matplotlib.patches import Rectangle

    style = {"facecolor": fill, "edgecolor": edge, "linewidth": line}
    axes.add_patch(Rectangle((x, y), width, height, **style))


def _lanes(axes: Axes, y: float, mask: np.ndarray, left: float, pitch: float) -> np.ndarray:
    """The lanes of a warp as numbered circles, pale those that take no part; where they stand."""
    from matplotlib.patches import Circle

    middle = left + (np.arange(WARP) + 0.5) * pitch
    for lane, active in enumerate(mask.tolist()):
        style = {"facecolor": LIT, "edgecolor": BLUE} if active else {"fill": False, "ec": PALE}
        axes.add_patch(Circle((middle[lane], y), 6.8, linewidth=1, **style))
        color = "black" if active else GREY
        style = {"fontsize": 9, "color": color, "ha": "center", "va": "center_baseline"}
        axes.text(middle[lane], y, str(lane), **style)
    return middle


def _heading(axes: Axes, top: float, one: _Shown, verdict: str, color: str) -> None:
    """Title and verdict, and below them the source line and the warp."""
    bold = {"fontsize": 10, "fontweight": "bold", "va": "center"}
    axes.text(WIDTH - 2, top + 10, verdict, color=color, ha="right", **bold)
    axes.text(2, top + 10, one.name, **bold)
    axes.text(2, top + 24, _shortened(one.code, 68), fontsize=9, va="center", **CODE)
    warp, block = one.access.warp, _number(one.trace, one.access)
    who = f"warp {warp}, block {block}"
    axes.text(WIDTH - 2, top + 24, who, **_small(), ha="right", va="center")


def _legend(axes: Axes, y: float, keys: Sequence[tuple[str, str]], text: str = "") -> None:
    from matplotlib.patches import Circle

    x = 4.0
    for fill, label in keys:
        if fill == "circle":
            axes.add_patch(Circle((x + 5, y), 4.5, fill=False, edgecolor=PALE, linewidth=1))
        elif fill == "thin":
            _box(axes, x, y - 1.25, 10, 2.5, DARK, "none", 0)
        elif fill in ("box", "hollow"):
            _box(axes, x, y - 4, 10, 8, "white", PALE if fill == "box" else DARK, 0.8)
        else:
            _box(axes, x, y - 4, 10, 8, fill, "none", 0)
        axes.text(x + 14, y, label, **_small(), va="center")
        x += 14 + _text_width(label) + 14
    axes.text(x, y, text, **_small(), va="center")


def _small() -> dict:
    return {"fontsize": 9, "color": DARK}


def _text_width(text: str, size: float = 9) -> float:
    """In points."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text, size=size).get_extents().width) if text.strip() else 0.0


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def _titles(shown: Sequence[_Shown]) -> str:
    return " and ".join(one.name for one in shown)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _short(number: float) -> str:
    """With as many digits as tell something: 4, 3.9, 32."""
    return f"{number:.0f}" if abs(number - round(number)) < 0.005 else f"{number:.3g}"
