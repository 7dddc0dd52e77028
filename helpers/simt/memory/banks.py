"""Shared memory's banks: how many wavefronts a request takes."""

from __future__ import annotations

import numpy as np

from ..hardware import BANKS, WARP, WORD
from ..lanes import Lanes


def wavefronts(addresses: np.ndarray, width: int, lanes: Lanes, load: bool) -> tuple[int, int]:
    """(wavefronts, what they would be without bank conflicts) of one shared-memory request of
    each active warp, summed.

    A group of lanes (32, or 16 and 8 for accesses of 8 and 16 bytes) needs as many wavefronts as
    the bank that most different words are wanted from; no wavefront for a group without lanes.
    If in a warp lanes 2k and 2k + 1 always load from one address, its groups are twice as large.
    Measured on an H200 with Nsight Compute over 123 patterns; see tests/data.
    """
    words = max(1, width // WORD)
    lanes_at_once = WARP // words
    first = addresses >> 2 & (1 << 30) - 1  # even where the address is a wild one
    if load and words > 1:
        pairs, active = addresses.reshape(-1, 16, 2), lanes.mask.reshape(-1, 16, 2)
        alike = ((pairs[:, :, 0] == pairs[:, :, 1]) | ~active.all(axis=2)).all(axis=1)
        if alike.any():
            group = np.where(alike, 2 * lanes_at_once, lanes_at_once)
            return _wavefronts_of(np.flatnonzero(lanes.mask), first, words, group)
    # Within 32 neighbouring words no bank is wanted twice: the usual case, and quick to see.
    by_group = first.reshape(-1, lanes_at_once)
    active = lanes.mask.reshape(-1, lanes_at_once).any(axis=1)
    near = by_group.max(axis=1) - by_group.min(axis=1) + words <= BANKS
    groups = int(np.count_nonzero(active))
    if (near | ~active).all():
        return groups, groups
    far = np.repeat(active & ~near, lanes_at_once)
    group = np.full(len(addresses) // WARP, lanes_at_once)
    slow, _ = _wavefronts_of(np.flatnonzero(lanes.mask & far), first, words, group)
    return int(np.count_nonzero(active & near)) + slow, groups


def _wavefronts_of(slots: np.ndarray, first: np.ndarray, words: int, group: np.ndarray):
    """(wavefronts, groups) of some slots, given each slot's first word and each warp's lanes at
    once."""
    wanted = (first[slots][:, None] + np.arange(words)).reshape(-1)
    # Number the groups apart from warp to warp: no warp has more than 32.
    groups = np.repeat(slots // WARP * WARP + slots % WARP // group[slots // WARP], words)
    keys, _ = _runs(groups * (1 << 32) + wanted)  # a word that several lanes want counts once
    banks, counts = _runs((keys >> 32) * BANKS + (keys & (BANKS - 1)))
    starts = np.flatnonzero(np.r_[True, np.diff(banks // BANKS) != 0])
    return int(np.maximum.reduceat(counts, starts).sum()), len(starts)


def _runs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(different values, how often each) of some, at least one. `np.unique` hashes, which for so
    few takes several times as long."""
    ordered = np.sort(values)
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    return ordered[starts], np.diff(np.r_[starts, len(ordered)])
