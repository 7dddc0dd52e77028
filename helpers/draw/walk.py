"""Walking through a trace: what warps did and the accesses that they made, in the order of the run.

The figures of a block's life, of its reduction and of what blocks send each other begin here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..simt import Event, Trace, WatchedAccess
from ..simt.geometry import Place, unravel


def in_order(trace: Trace) -> Iterator[tuple[Event, list[WatchedAccess]]]:
    """Each event with its accesses; a barrier is no step, so others may stand at the same one."""
    accesses: dict[tuple[Place, int, int], list[WatchedAccess]] = defaultdict(list)
    for one in trace.accesses:
        accesses[one.block, one.warp, one.step].append(one)
    for event in trace.events:
        touches = event.kind.partition(" ")[0] in ("load", "store", "atomic", "copy")
        key = event.block, event.warp, event.step
        yield event, accesses.get(key, []) if touches else []


def shared_arrays(trace: Trace) -> set[str]:
    """The arrays in global memory that are written and read: what blocks may talk through."""
    seen = {(one.kind, one.array) for one in trace.accesses if one.memory == "global"}
    loaded, stored = ({array for kind, array in seen if kind == what} for what in ("load", "store"))
    return (loaded & stored) | {array for kind, array in seen if kind == "atomic"}


def find_block(trace: Trace, block: int | Place) -> Place:
    """(x, y, z) of a block, by that or by its number.

    Raises `ValueError` for a trace that follows no block, or not this one."""
    if not trace.events:
        raise ValueError("the trace follows no block: simulate(..., watch=True) keeps what they do")
    place = unravel(block, trace.shape.grid) if isinstance(block, int) else tuple(block)
    if all(event.block != place for event in trace.events):
        raise ValueError(f"the trace does not follow a block {block}")
    return place
