"""Warps that wait: the timeline of a block in steps, and that of a warp in time.

A step is an instruction of a warp, without branches, as recorded in a trace. It is not a time: a
load from DRAM is one step, and so is an addition. Times are those of profiler data.

Also the messages between blocks: through shared memory within a cluster, otherwise through global
memory. A message is one store of a lane to memory that another block reads, or a load from there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from ...base.arguments import checked
from ...simt import Event, Trace, WatchedAccess
from ...simt.words import counted
from . import charts, style
from .accesses import (
    block_number,
    check_followed,
    find_block,
    in_order,
    pieces_of,
    shared_arrays,
)

MARKS = {  # kinds of marks in the order of the legend
    "global load": style.BLUE,
    "global store": style.RED,
    "shared memory": style.ORANGE,
    "other block's": style.PINK,
    "shuffle": style.GREEN,
}
BAND = {"facecolor": "#EEEEEE"}  # a warp executes something without a mark
WAITS = {"facecolor": "white", "edgecolor": style.GREY, "hatch": "/////"}
WORK = {"facecolor": "#8CD3BF"}  # a tint of green


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
def life(trace: Trace, block: int = 0) -> None:
    """Show the timeline of a block: one band per warp, in steps, with marks for loads, stores and
    shuffles; waiting at a barrier is hatched, and barriers are lines across the bands.

    The trace is one of `simulate(..., watch=True)`, `block` a number. A step is an instruction, not
    a time. Raises `ValueError` for a block that the trace does not follow.
    """
    found = lived(trace, block)
    title = f"The life of block {block}, in steps: instructions, not time"
    figure, axes = style.chart(title, 1.4 + 0.26 * len(found.warps))
    keys, steps = {}, max(1, *(warp.end for warp in found.warps.values()))
    for row, warp in enumerate(found.warps.values()):
        axes.broken_barh([(0, warp.end)], (row - 0.4, 0.8), **BAND)
        if spans := [(start, stop - start) for start, stop in warp.waits]:
            keys["waits"] = axes.broken_barh(spans, (row - 0.4, 0.8), **WAITS)
        for what, color in MARKS.items():
            if places := [when for when, mark in warp.marks if mark == what]:
                wide = max(0.9, min(2.2, 430 / steps))
                keys[what] = axes.vlines(places, row - 0.4, row + 0.4, color, linewidth=wide)
    for when in found.barriers:
        keys["barrier"] = axes.axvline(when, color=style.BLACK, linewidth=1.3)
    order = [*MARKS, "waits", "barrier"]
    style.key(axes, {name: keys[name] for name in sorted(keys, key=order.index)})
    axes.set_yticks(range(len(found.warps)), [f"warp {number}" for number in found.warps])
    axes.set(ylim=(len(found.warps) - 0.5, -0.5), xlim=(0, steps))
    axes.set_xlabel("steps of the block: instructions, and waiting")
    axes.grid(visible=False)
    # Steps depend on the compiler; the order of marks and the number of waits do not.
    drawn = [
        [number, [what for _, what in warp.marks], len(warp.waits)]
        for number, warp in found.warps.items()
    ]
    style.finish(figure, title, _sentence(found), [title, len(found.barriers), drawn])


def lived(trace: Trace, block: int) -> Life:
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


def _sentence(found: Life) -> str:
    """The numbers of barriers, not of steps, which depend on the compiler."""
    count, barriers = len(found.warps), len(found.barriers)
    who = f"{counted(count, 'warp')} meet{'s' * (count == 1)}"
    if not barriers:
        return f"{who} at no barrier: no warp waits for another."
    waits = ", ".join(str(len(warp.waits)) for warp in found.warps.values())
    said = "warp by warp, the number of those at which it waits"
    return f"{who} at {counted(barriers, 'barrier')}; {said}: {waits}."


# ---- time ---------------------------------------------------------------------------------------


@checked
def waiting(latency: float, work: float) -> None:
    """Show the timeline of a warp that waits `latency` ns for a load and then spends `work` ns on
    all else, such as using the data; below it, that of a warp with four loads in flight, if the
    latency is the same.

    Raises `ValueError` unless both are positive.
    """
    if min(latency, work) <= 0:
        raise ValueError("latency and work must be positive")
    loads = 4
    title = "A warp waits for each load, or for several at once"
    figure, axes = style.chart(title, 2.6)
    end = 3.2 * (latency + work)
    for row, many in enumerate((1, loads)):
        start = 0.0
        while start < end:
            data, until = start + latency, start + latency + many * work
            waits = axes.broken_barh([(start, latency)], (row - 0.3, 0.4), **WAITS)
            works = axes.broken_barh([(data, until - data)], (row - 0.3, 0.4), **WORK)
            lines = [row + 0.18 + 0.08 * load for load in range(many)]
            flight = axes.hlines(lines, start, data, style.BLUE, linewidth=2)
            start = until
    keys = {"waits": waits, "has its data: everything else": works, "a load in flight": flight}
    style.key(axes, keys)
    axes.set_yticks([0, 1], ["1 load in flight", counted(loads, "load") + " in flight"])
    axes.set(ylim=(1.6, -0.5), xlim=(0, end), xlabel="nanoseconds")
    axes.grid(visible=False)
    one, several = latency + work, latency + loads * work
    style.finish(
        figure,
        title,
        f"For each load, a warp stalls for about {latency:.0f} ns and spends about "
        f"{work:.0f} ns on everything else: "
        f"one load per {one:.0f} ns. With {loads} loads in flight, as much latency and as much "
        f"other work per load, it would complete {loads} per {several:.0f} ns.",
    )


# ---- messages between blocks --------------------------------------------------------------------

MOST_BLOCKS = 20  # that are drawn


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
        own = access.memory == "global"
        self.ways.add(f"the {access.array} array" if own else "distributed shared memory")


@checked
def messages(trace: Trace) -> None:
    """Show how many values each block sends to each other one: directly into its shared memory
    within a cluster, or through an array in global memory.

    The trace is one of `simulate(..., watch=True)`; raises `ValueError` for another.
    """
    mail, title = sent(trace), "Messages from block to block"
    blocks = range(min(trace.shape.blocks, MOST_BLOCKS))
    fields = [
        [
            charts.Field(str(count), style.SKY)
            if (count := mail.counts[sender, receiver])
            else None
            for receiver in blocks
        ]
        for sender in blocks
    ]
    figure = charts.heat_map(blocks, blocks, fields, title, "to block", "from block", high=0.3)
    style.finish(figure, title, _say_mail(mail))


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


def _say_mail(mail: Mail) -> str:
    if not mail.counts:
        return "No block reads what another one wrote: each works alone."
    low, high = min(mail.counts.values()), max(mail.counts.values())
    size = f" of {min(mail.sizes)} bytes" if len(mail.sizes) == 1 else ""
    number = counted(high, "message") if low == high else f"{low} to {high} messages"
    pairs, ways = counted(len(mail.counts), "pair"), " and ".join(sorted(mail.ways))
    verb = "goes" if low == high == 1 else "go"
    each = "each of " * (len(mail.counts) > 1)
    return f"For {each}{pairs} of sender and receiver, {number}{size} {verb} through {ways}."
