"""Warps that wait: the timeline of a block in steps, that of a warp in time, the slots of an SM.

A step is an instruction of a warp, without branches, as recorded in a trace. It is not a time: a
load from DRAM is one step, and so is an addition. Times and slots are those of profiler data.

Also the messages between blocks: through shared memory within a cluster, otherwise through global
memory. A message is one store of a lane to memory that another block reads, or a load from there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...base.arguments import checked
from ...simt import Event, Trace, WatchedAccess
from ...simt.geometry import Place
from ...simt.hardware import SM_THREADS, WARP
from ...simt.words import counted
from .accesses import (
    block_number,
    check_followed,
    find_block,
    in_order,
    in_words,
    pieces_of,
    shared_arrays,
)
from .style import (
    BLACK,
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PAGE,
    PINK,
    RED,
    Box,
    Key,
    canvas,
    finish,
    ink,
    legend,
    rectangle,
    rounded,
    words,
)

MARKS = {  # kinds of marks in the order of the legend
    "global load": BLUE,
    "global store": RED,
    "shared memory": ORANGE,
    "other block's": PINK,
    "shuffle": GREEN,
}
WAITS = Key("waits", "white", GREY, width=18, hatch="/////")
BAND = "#EEEEEE"  # a warp executes something without a mark
LEFT, RIGHT, TOP = 72, PAGE - 16, 70  # pixels


@dataclass
class Warp:
    """The activity of a warp over the steps of its block."""

    marks: list[tuple[int, str]] = field(default_factory=list)  # (step, one of MARKS)
    waits: list[tuple[int, int]] = field(default_factory=list)  # (from, to)
    end: int = 0


@dataclass
class Life:
    warps: dict[int, Warp]
    barriers: list[int]  # steps at which they opened


@checked
def life(trace: Trace, block: int | Place = 0) -> None:
    """Show the timeline of a block: one band per warp, in steps, with marks for loads, stores and
    shuffles; waiting at a barrier is hatched, and barriers are lines across the bands.

    The trace is one of `simulate(..., watch=True)`, `block` a number or (x, y, z). A step is an
    instruction, not a time. Raises `ValueError` for a block that the trace does not follow.
    """
    _draw(lived(trace, block), block)


def lived(trace: Trace, block: int | Place) -> Life:
    """Collect the timeline. Raises what `life` raises."""
    place = find_block(trace, block)
    warps: dict[int, Warp] = defaultdict(Warp)
    behind: dict[int, int] = defaultdict(int)  # total waiting time of a warp
    arrived: dict[int, int] = {}
    barriers: list[int] = []
    leaving: list[Event] = []

    def open_barrier() -> None:
        """A barrier opens when the last warp arrives; then all continue."""
        ours = {event.warp: event.step for event in leaving}
        came = {warp: arrived.pop(warp, step + behind[warp]) for warp, step in ours.items()}
        if came:
            barriers.append(max(came.values()))
        for warp, when in came.items():
            if when < barriers[-1]:
                warps[warp].waits.append((when, barriers[-1]))
            behind[warp] = barriers[-1] - ours[warp]
        leaving.clear()

    for event, accesses in in_order(trace):
        if event.block != place:
            continue
        if event.kind in ("barrier leave", "cluster leave"):
            leaving.append(event)
            continue
        open_barrier()
        warp, now = warps[event.warp], event.step + behind[event.warp]
        if event.kind in ("barrier arrive", "cluster wait"):
            arrived[event.warp] = now
        if what := _mark(event, accesses):
            warp.marks.append((now, what))
        warp.end = max(warp.end, now)
    open_barrier()
    return Life(dict(sorted(warps.items())), barriers)


def _mark(event: Event, accesses: list[WatchedAccess]) -> str:
    """The mark of an event, if any."""
    if event.kind == "shuffle":
        return "shuffle"
    verb, _, memory = event.kind.partition(" ")
    reached = {one.memory for one in accesses} or {memory}
    if "remote" in reached:
        return "other block's"
    if verb == "copy" or "global" in reached:
        return "global load" if verb in ("load", "copy") else "global store"
    return "shared memory" if "shared" in reached else ""


# ---- drawing ------------------------------------------------------------------------------------


def _draw(found: Life, block: int | Place) -> None:
    from matplotlib.collections import LineCollection

    pitch = max(13, min(34, 380 // len(found.warps)))
    bottom = TOP + pitch * len(found.warps)
    title = f"the life of block {block}, in steps: instructions, not time"
    axes = canvas(bottom + 46, title)
    end = max(1, *(warp.end for warp in found.warps.values()))

    def at(step: int) -> float:
        return LEFT + (RIGHT - LEFT) * step / end

    kinds = {what for warp in found.warps.values() for _, what in warp.marks}
    waited = any(warp.waits for warp in found.warps.values())
    keys = [
        Key(what, color, width=2.6, height=13) for what, color in MARKS.items() if what in kinds
    ]
    keys += [WAITS] * waited + [Key("barrier", BLACK, width=1.3, height=16)] * bool(found.barriers)
    legend(axes, 10, 46, keys)
    every = -(-14 // pitch)
    for place, (number, warp) in enumerate(found.warps.items()):
        y, high = TOP + place * pitch, pitch - max(3, pitch // 5)
        if place % every == 0:
            words(axes, LEFT - 10, y + high / 2, f"warp {number}", color=DARK, ha="right")
        rectangle(axes, Box(LEFT, y, at(warp.end) - LEFT, high), BAND)
        for start, stop in warp.waits:
            _waiting(axes, Box(at(start), y, at(stop) - at(start), high))
        for what in MARKS:
            xs = [at(when) for when, mark in warp.marks if mark == what]
            lines = [[(x, y), (x, y + high)] for x in xs]
            width = max(0.9, min(2.2, (RIGHT - LEFT) / end * 0.72))
            axes.add_collection(LineCollection(lines, colors=MARKS[what], linewidths=width))
    for when in found.barriers:
        x = at(when)
        axes.plot([x, x], [TOP - 5, bottom], color=BLACK, linewidth=1.3, zorder=4)
    _scale(axes, end, at, bottom, "steps of the block: instructions, and waiting")
    # Steps depend on the compiler; the order of marks and the number of waits do not.
    order = [
        [number, [what for _, what in warp.marks], len(warp.waits)]
        for number, warp in found.warps.items()
    ]
    finish(axes.figure, title, _sentence(found), [title, len(found.barriers), order])


def _waiting(axes, box: Box) -> None:
    rectangle(axes, box, "white", GREY, hatch="/////")


def _scale(axes, end: float, at, bottom: float, unit: str) -> None:
    """The scale below."""
    sizes = (size * 10**power for power in range(9) for size in (1, 2, 5))
    every = next(size for size in sizes if end / size <= 9)
    for number in range(0, int(end) + 1, every):
        axes.plot([at(number)] * 2, [bottom + 2, bottom + 6], color=DARK, linewidth=0.8)
        words(axes, at(number), bottom + 16, str(number), color=DARK, ha="center")
    words(axes, at(0), bottom + 35, unit, color=DARK)


def _sentence(found: Life) -> str:
    """The numbers of barriers, not of steps, which depend on the compiler."""
    count, barriers = len(found.warps), len(found.barriers)
    who = f"{counted(count, 'warp')} meet{'s' * (count == 1)}"
    if not barriers:
        return f"{who} at no barrier: no warp waits for another."
    met = f"{who} at {counted(barriers, 'barrier')}"
    waits: dict[int, list[int]] = defaultdict(list)
    for number, warp in found.warps.items():
        waits[len(warp.waits)].append(number)
    if not any(waits):
        return f"{met}, and no warp waits there."
    parts = [
        f"warp{'s' * (len(warps) > 1)} {in_words(warps)} at {times or 'none'}"
        for times, warps in sorted(waits.items())
    ]
    parts[0] = parts[0].replace(" at ", f" wait{'s' * (len(waits[min(waits)]) == 1)} at ", 1)
    return f"{met}: {', '.join(parts)}."


# ---- time and slots -----------------------------------------------------------------------------

SLOTS, SCHEDULERS = SM_THREADS // WARP, 4  # of an SM
WORK = "#8CD3BF"  # a tint of green
STATES = BLUE, ORANGE, GREEN  # colours of warps, in the order of the legend


@checked
def waiting(latency: float, work: float, loads: int = 4) -> None:
    """Show the timeline of a warp that waits `latency` ns for a load and then spends `work` ns on
    all else, such as using the data; below it, that of a warp with several `loads` in flight, if
    the latency is the same.

    Raises `ValueError` unless all three are positive.
    """
    if min(latency, work, loads) <= 0:
        raise ValueError("latency, work and loads must be positive")
    end = 3.2 * (latency + work)
    title = "a warp waits for each load, or for several at once"
    axes, pitch = canvas(232, title), 56.0

    def at(time: float) -> float:
        return 120 + (RIGHT - 120) * time / end

    for row, many in enumerate((1, loads)):
        y, start = TOP + row * pitch, 0.0
        words(axes, 10, y + 10, counted(many, "load") + " in flight", color=DARK)
        while start < end:
            data, until = min(start + latency, end), min(start + latency + many * work, end)
            _waiting(axes, Box(at(start), y, at(data) - at(start), 20))
            rectangle(axes, Box(at(data), y, at(until) - at(data), 20), WORK)
            for load in range(many):
                lower = y + 24 + 4 * load
                axes.plot([at(start), at(data)], [lower] * 2, color=BLUE, linewidth=2)
            axes.plot([at(start)] * 2, [y - 3, y + 23], color=BLUE, linewidth=2.6)
            start += latency + many * work
    issues = Key("issues; below: bytes in flight", BLUE, width=2.6, height=13)
    legend(axes, 10, 46, [issues, WAITS, Key("has its data: everything else", WORK)])
    _scale(axes, end, at, TOP + 2 * pitch, "nanoseconds")
    one, several = latency + work, latency + loads * work
    finish(
        axes.figure,
        title,
        f"For each load, a warp stalls for about {latency:.0f} ns and spends about "
        f"{work:.0f} ns on everything else: "
        f"one load per {one:.0f} ns. With {loads} loads in flight and the same latency, it would "
        f"complete {loads} per {several:.0f} ns.",
    )


@checked
def slots(warps: Mapping[str, float], needed: float) -> None:
    """Show the warp slots of an SM in the states `warps`, at most three with their numbers of
    warps. The first is that of which `needed` are necessary; those for which there is no slot stand
    outside the SM.

    Raises `ValueError` for more warps than slots.
    """
    counts = {what: round(number) for what, number in warps.items()}
    if (used := sum(counts.values())) > SLOTS or len(counts) > len(STATES):
        raise ValueError(f"{used} warps in {len(counts)} states, an SM has {SLOTS} slots; 3 states")
    title = f"the {SLOTS} warp slots of an SM"
    size, left, top = 27, 20.0, 82.0
    axes = canvas(top + SCHEDULERS * size + 16, title)
    states = [*zip(STATES, counts.items(), strict=False)]
    legend(axes, 10, 46, [Key(f"{number} {what}", color) for color, (what, number) in states])
    colors = [color for color, (_, number) in states for _ in range(number)]
    colors += ["white"] * (SLOTS - used)
    missing = max(0, round(needed) - SLOTS)
    across = size * SLOTS // SCHEDULERS
    rectangle(axes, Box(left - 8, top - 8, across + 13, SCHEDULERS * size + 13), "none", GREY, 1.4)
    for slot in range(SLOTS + missing):
        column, row = divmod(slot, SCHEDULERS)
        there = slot < SLOTS
        x, y = left + column * size + 22 * (not there), top + row * size
        fill = colors[slot] if there else "white"
        edge = "none" if fill != "white" else GREY if there else BLUE
        style = "-" if there else "--"
        rectangle(axes, Box(x, y, size - 4, size - 4), fill, edge, 1.2, linestyle=style)
    need, bold = next(iter(counts)), {"color": ink(BLUE), "fontweight": "bold"}
    for line, said in enumerate((f"{needed:.0f} would have to", need)):
        words(axes, x + size + 10, top + 44 + 16 * line, said, **bold)
    does = ", ".join(f"{number} {what}" for what, number in counts.items())
    finish(
        axes.figure,
        title,
        f"To keep up with a copy, {needed:.0f} warps would have to {need} at all times, "
        f"{missing} more than there are slots. On average, of the warps in its {SLOTS} slots, "
        f"{does}; {SLOTS - used} slots are empty.",
    )


# ---- messages between blocks --------------------------------------------------------------------

SENDERS, DEPTH = 74, 190  # pixels: the row of senders, and the distance to that of receivers
SHARED = "distributed shared memory"


@dataclass
class Mail:
    """The number of messages between each pair of blocks."""

    counts: Counter[tuple[int, int]] = field(default_factory=Counter)  # by (from, to)
    sizes: set[int] = field(default_factory=set)  # bytes
    ways: set[str] = field(default_factory=set)  # kind of memory

    def post(self, sender: int, receiver: int, access: WatchedAccess, messages: int) -> None:
        if sender == receiver or not messages:
            return
        self.counts[sender, receiver] += messages
        self.sizes.add(access.width)
        one = f"the {access.array} array" if access.memory == "global" else SHARED
        self.ways.add(one)

    def groups(self) -> list[list[int]]:
        """Blocks that exchange messages, in order; without blocks that receive none."""
        group = {block: {block} for pair in self.counts for block in pair}
        for sender, receiver in self.counts:
            both = group[sender] | group[receiver]
            group |= dict.fromkeys(both, both)
        return sorted(map(list, {tuple(sorted(one)) for one in group.values()}))


@checked
def messages(trace: Trace) -> None:
    """Show how many values each block sends to each other one: directly into its shared memory
    within a cluster, or through an array in global memory. If there are several independent groups
    of blocks, the first is drawn.

    The trace is one of `simulate(..., watch=True)`; raises `ValueError` for another.
    """
    mail = sent(trace)
    _draw_mail(mail, trace.shape.blocks)


def sent(trace: Trace) -> Mail:
    """Collect the messages of a run. Raises what `messages` raises."""
    check_followed(trace)
    talked, mail = shared_arrays(trace), Mail()
    stored: dict[tuple[str, int], tuple[int, int]] = {}  # piece of memory -> (block, message)
    seen: set[tuple[int, int]] = set()  # (block, message)
    number = 0
    for event, accesses in in_order(trace):
        block = block_number(trace, event.block)
        for one in accesses:
            if one.memory == "remote":
                other = block_number(trace, one.owner)
                pair = (other, block) if one.kind == "load" else (block, other)
                mail.post(*pair, one, int(one.mask.sum()))
            elif one.memory == "global" and one.array in talked:
                for _, pieces in pieces_of(one):
                    if one.kind != "store":
                        found = {stored[piece] for piece in pieces if piece in stored}
                        for sender, message in sorted(found):
                            mail.post(sender, block, one, (block, message) not in seen)
                            seen.add((block, message))
                    if one.kind != "load":
                        number += 1
                        stored |= dict.fromkeys(pieces, (block, number))
    return mail


# ---- drawing ------------------------------------------------------------------------------------


def _draw_mail(mail: Mail, blocks: int) -> None:
    groups = mail.groups()
    shown = groups[0] if groups else list(range(min(blocks, 16)))
    title = "what blocks send each other"
    axes = canvas(SENDERS + (DEPTH + 62 if groups else 62), title)
    pitch = min(110, (PAGE - 90) / len(shown))
    first = 80 + (PAGE - 90 - pitch * len(shown)) / 2
    spots = {block: first + (place + 0.5) * pitch for place, block in enumerate(shown)}
    lit = shown[0] if groups else None
    sends = Counter(sender for sender, _ in mail.counts.elements())
    gets = Counter(receiver for _, receiver in mail.counts.elements())
    _mail_row(axes, spots, SENDERS, pitch, "sends" if groups else "", sends, lit)
    if groups:
        _mail_row(axes, spots, SENDERS + DEPTH, pitch, "receives", gets, None)
        _mail_arrows(axes, mail, spots, lit, pitch)
    else:
        words(axes, 80, SENDERS + 38, "no block reads what another one wrote", color=DARK)
    finish(axes.figure, title, _say_mail(mail, groups))


def _mail_row(
    axes, spots: dict[int, float], y: float, pitch: float, verb: str, totals, lit
) -> None:
    """The blocks as boxes, each with the number of messages that it sends or receives."""
    words(axes, 10, y, "block", color=DARK)
    aside = -27 if verb == "sends" else 27
    words(axes, 10, y + aside, verb, color=DARK)
    wide = min(52, pitch - 4)
    labels = [len(str(block)) for block in spots] + [len(str(totals[block])) for block in spots]
    every = int(-(-(8 * max(labels) + 4) // pitch))
    for place, (block, x) in enumerate(spots.items()):
        rounded(axes, Box(x - wide / 2, y - 14, wide, 28), block == lit, min(5, wide / 3))
        if place % every == 0:
            words(axes, x, y, str(block), ha="center")
            if verb:
                words(axes, x, y + aside, str(totals[block]), color=DARK, ha="center")


def _mail_arrows(axes, mail: Mail, spots: dict[int, float], lit: int, pitch: float) -> None:
    """Messages as arrows; those of one block are coloured and counted."""
    from matplotlib.patches import FancyArrowPatch

    ours = {pair: count for pair, count in mail.counts.items() if pair[0] in spots}
    many = len(ours) > 150
    for (sender, receiver), count in sorted(ours.items()):
        mine = sender == lit
        start, end = (spots[sender], SENDERS + 16), (spots[receiver], SENDERS + DEPTH - 15)
        style = {
            "color": BLUE if mine else GREY,
            "linewidth": 1.8 if mine else 0.4 if many else 0.8,
            "alpha": 1 if mine else 0.6,
            "mutation_scale": 11 if mine else 5 if many else 8,
            "zorder": 3 if mine else 2,
        }
        arrow = FancyArrowPatch(start, end, arrowstyle="-|>", shrinkA=0, shrinkB=0, **style)
        axes.add_patch(arrow)
        if mine and pitch > 26:
            part = 0.74
            x, y = (a + (b - a) * part for a, b in zip(start, end, strict=True))
            patch = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
            words(axes, x, y, str(count), ha="center", color=BLUE, bbox=patch, zorder=4)


def _say_mail(mail: Mail, groups: list[list[int]]) -> str:
    if not groups:
        return "No block reads what another one wrote: each works alone."
    ours = {pair: count for pair, count in mail.counts.items() if pair[0] in groups[0]}
    low, high = min(ours.values()), max(ours.values())
    size = f" of {min(mail.sizes)} bytes" if len(mail.sizes) == 1 else ""
    number = counted(high, "message") if low == high else f"{low} to {high} messages"
    count = len(groups[0])
    senders, receivers = ({pair[end] for pair in ours} for end in (0, 1))
    if len(ours) == count * (count - 1):
        who = f"Each of the {count} blocks sends {number}{size} to each of the others"
    else:
        whom = f"{_blocks(receivers, False)}, in {counted(len(ours), 'pair')}"
        who = f"{_blocks(senders)} {number}{size} to {whom}"
    total = sum(ours.values())
    said = f"{who}, {total} in all, through {' and '.join(sorted(mail.ways))}"
    if len(groups) > 1:
        more = "group of blocks does" if len(groups) == 2 else "groups of blocks do"
        said += f"; {len(groups) - 1} more {more} the same"
    return said + "."


def _blocks(some: set[int], sends: bool = True) -> str:
    one = len(some) == 1
    name = f"block {min(some)}" if one else f"{len(some)} blocks"
    return (name.capitalize() + (" sends" if one else " send")) if sends else name
