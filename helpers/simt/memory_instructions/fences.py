"""Fences: fence, membar."""

from __future__ import annotations

from ..context import Context
from ..instructions import Instruction
from ..lanes import Lanes, Step
from ..memory.causality import GPU, scope_of


def translate_fence(context: Context, instruction: Instruction) -> Step:
    """Other threads see every store at once, so that a fence only counts for what is ordered: for
    flags, or for the asynchronous proxy."""
    kinds = instruction.modifiers
    if any(kind.startswith("async") for kind in kinds):

        def fence_proxy(lanes: Lanes) -> None:
            context.copies.fence(lanes.mask, kinds)

        return fence_proxy
    if "proxy" in kinds:
        return lambda lanes: None
    # Those that are for shared memory or an mbarrier's init alone count for everything.
    scope, causality = scope_of(kinds, GPU), context.causality
    releases, acquires = "acquire" not in kinds, "release" not in kinds
    return lambda lanes: causality.fence(lanes.mask, scope, releases, acquires)
