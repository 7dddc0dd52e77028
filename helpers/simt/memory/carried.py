"""Undefined bits that were stored: they stand beside the bytes of a memory until these are written
again. Nothing is kept, and nothing costs, before the first of them."""

from __future__ import annotations

import numpy as np

from ..ptx_types import UNSIGNED
from ..suspicion import Suspicion


class Carried:
    """Beside every byte of a batch's shared or local memory: undefined bits, and their origin."""

    def __init__(self, suspicion: Suspicion):
        self.suspicion = suspicion

    def start_batch(self, size: int) -> None:
        self.size = size
        self.bits: np.ndarray | None = None
        self.origins = np.zeros(0, np.int64)

    def overwrite(self, places: np.ndarray, width: int) -> None:
        """Bytes that are all defined have come to these places."""
        if self.bits is not None:
            self.bits[places[:, None] + np.arange(width)] = 0

    def store(self, slots: np.ndarray, places: np.ndarray, width: int) -> None:
        """These threads have stored `width` bytes at these places."""
        shadows = self.suspicion.storing
        self.overwrite(places, width)
        if shadows is None:
            return
        if self.bits is None:
            self.bits = np.zeros(self.size, np.uint8)
            self.origins = np.full(self.size, -1)
        size = width // len(shadows)
        for element, shadow in enumerate(shadows):
            if shadow is not None:
                at = places[:, None] + np.arange(element * size, (element + 1) * size)
                bits = shadow.bits[slots].astype(UNSIGNED[size])
                self.bits[at] = bits.view(np.uint8).reshape(-1, size)
                self.origins[at] = np.max([one[slots] for one in shadow.origins], axis=0)[:, None]

    def load(self, slots: np.ndarray, places: np.ndarray, width: int) -> None:
        """These threads load `width` bytes from these places."""
        if self.bits is not None:
            at = places[:, None] + np.arange(width)
            bits = self.bits[at]
            if bits.any():
                self.suspicion.found(slots, bits, self.origins[at])
