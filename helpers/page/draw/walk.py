"""Walking through a trace: what warps did and the accesses that they made, in the order of the run.

The figures of a block's life, of its reduction and of what blocks send each other begin here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from ...simt import Event, Trace, WatchedAccess
from ...simt.geometry import Place, unravel
from ...simt.hardware import WARP

PIECE = 2  # bytes of memory that are followed as one


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


def pieces_of(access: WatchedAccess) -> Iterator[tuple[int, list[tuple[str, int]]]]:
    """(thread, the pieces of memory that it reaches, of two bytes each)."""
    space = f"global {access.array}" if access.memory == "global" else "shared"
    for lane in np.flatnonzero(access.mask).tolist():
        first = int(access.offsets[lane])
        pieces = range(first // PIECE, (first + max(access.width, PIECE)) // PIECE)
        yield access.warp * WARP + lane, [(space, piece) for piece in pieces]


def check_followed(trace: Trace) -> None:
    """Raise `ValueError` for a trace that follows no block."""
    if not trace.events:
        raise ValueError("the trace follows no block: simulate(..., watch=True) keeps what they do")


def find_block(trace: Trace, block: int | Place) -> Place:
    """(x, y, z) of a block, by that or by its number.

    Raises `ValueError` for a trace that follows no block, or not this one."""
    check_followed(trace)
    place = unravel(block, trace.shape.grid) if isinstance(block, int) else tuple(block)
    if all(event.block != place for event in trace.events):
        raise ValueError(f"the trace does not follow a block {block!r}")
    return place


def in_words(numbers: np.ndarray | list[int]) -> str:
    """Rising numbers as "0, 32, 64, ...", "2 and 3" or "0 to 3, 128 to 131"."""
    starts = np.flatnonzero(np.r_[True, np.diff(numbers) != 1])
    ends = np.r_[starts[1:], len(numbers)] - 1
    runs = [
        str(numbers[a]) if a == b else f"{numbers[a]} {'to' if b - a > 1 else 'and'} {numbers[b]}"
        for a, b in zip(starts[:3], ends[:3], strict=True)
    ]
    return ", ".join([*runs, "..."] if len(starts) > 3 else runs)
