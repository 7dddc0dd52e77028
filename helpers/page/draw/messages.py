"""Messages between blocks: through shared memory within a cluster, otherwise through global memory.

A message is one store of a lane to memory that another block reads, or a load from there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ...base.arguments import checked
from ...simt import Trace, WatchedAccess
from ...simt.words import counted
from .accesses import block_number, check_followed, in_order, pieces_of, shared_arrays
from .style import BLUE, DARK, GREY, PAGE, Box, canvas, finish, rounded, words

TOP, DEPTH = 74, 190  # pixels: the row of senders, and the distance to that of receivers
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
    _draw(mail, trace.shape.blocks)


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


def _draw(mail: Mail, blocks: int) -> None:
    groups = mail.groups()
    shown = groups[0] if groups else list(range(min(blocks, 16)))
    title = "what blocks send each other"
    axes = canvas(TOP + (DEPTH + 62 if groups else 62), title)
    pitch = min(110, (PAGE - 90) / len(shown))
    first = 80 + (PAGE - 90 - pitch * len(shown)) / 2
    spots = {block: first + (place + 0.5) * pitch for place, block in enumerate(shown)}
    lit = shown[0] if groups else None
    sends = Counter(sender for sender, _ in mail.counts.elements())
    gets = Counter(receiver for _, receiver in mail.counts.elements())
    _row(axes, spots, TOP, pitch, "sends" if groups else "", sends, lit)
    if groups:
        _row(axes, spots, TOP + DEPTH, pitch, "receives", gets, None)
        _arrows(axes, mail, spots, lit, pitch)
    else:
        words(axes, 80, TOP + 38, "no block reads what another one wrote", color=DARK)
    finish(axes.figure, title, _sentence(mail, groups))


def _row(axes, spots: dict[int, float], y: float, pitch: float, verb: str, totals, lit) -> None:
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


def _arrows(axes, mail: Mail, spots: dict[int, float], lit: int, pitch: float) -> None:
    """Messages as arrows; those of one block are coloured and counted."""
    from matplotlib.patches import FancyArrowPatch

    ours = {pair: count for pair, count in mail.counts.items() if pair[0] in spots}
    many = len(ours) > 150
    for (sender, receiver), count in sorted(ours.items()):
        mine = sender == lit
        start, end = (spots[sender], TOP + 16), (spots[receiver], TOP + DEPTH - 15)
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


def _sentence(mail: Mail, groups: list[list[int]]) -> str:
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
