"""What shared and local memory have in common: each block, or each thread, has a copy of its own,
in which addresses start at 0.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..findings import Suspicion
from ..geometry import Lanes
from ..instructions import UNSIGNED, Variable
from .access import Access, all_ones, stores_same


class OwnMemory:
    """The copies of all blocks or threads of a batch, and which of their bits are undefined.

    Those are the bits of bytes that were not written, and bits that were stored so. Where the
    latter come from stands beside every byte until it is written again, which costs nothing before
    the first of them. Of each kind of memory there is

    name  what findings call it
    where(slots, wanted, access)  of each thread's address (the copy that it is in, the address
        within it, whether it is outside)
    explain(kind, address, access)  the message of a finding, for the first address at fault
    count(verb, addresses, access, lanes)  counts an access
    """

    name: str
    races = None  # checks the accesses, where other threads have some to the same copy
    changes = 0  # counts stores, so that a wait for one can be given up

    def __init__(self, variables: Iterable[Variable], suspicion: Suspicion, *about: str):
        """`about` are kind and message of a finding about what was not written."""
        self.suspicion, self.reporter, self.unwritten = suspicion, suspicion.reporter, about
        self.offsets: dict[str, int] = {}
        end = 0
        for variable in variables:
            align = max(variable.align, 1 if variable.size else 16)
            self.offsets[variable.name] = end = -(-end // align) * align
            end += variable.size
        self.static_bytes = self.bytes = end

    def fill(self, copies: int, align: int) -> None:
        """Fresh, unwritten memory for so many blocks or threads."""
        self.stride = max(align, -(-self.bytes // align) * align)  # bytes from copy to copy
        data = np.zeros(copies * self.stride if self.bytes else 0, np.uint8)
        self.views = {size: data.view(kind) for size, kind in UNSIGNED.items()}
        undefined = np.full(len(data), 255, np.uint8)  # by byte, seen as 1, 2, 4 or 8 at once
        self.bits = {size: undefined.view(kind) for size, kind in UNSIGNED.items()}
        self.origins: np.ndarray | None = None  # of each byte; -1: it was not written

    def load(self, addresses: np.ndarray, access: Access, lanes: Lanes) -> list[np.ndarray]:
        """Return one array of unsigned values per element; all ones where a lane may not read."""
        values = all_ones(len(addresses), access)
        slots, places = self.valid(addresses, access, lanes, "load")
        self.count("load", addresses, access, lanes)
        if len(slots):
            if self.races:
                self.races.load(places, slots, access)
            index = places // access.size
            for element, value in enumerate(values):
                value[slots] = self.views[access.size][index + element]
            self.look_for_undefined(slots, places, access)
        return values

    def store(
        self, addresses: np.ndarray, values: list[np.ndarray], access: Access, lanes: Lanes
    ) -> None:
        """Store one array of unsigned values per element; lanes that may not write are dropped."""
        slots, places = self.valid(addresses, access, lanes, "store")
        self.count("store", addresses, access, lanes)
        if not len(slots):
            return
        index, view = places // access.size, self.views[access.size]
        kept = [np.broadcast_to(value, addresses.shape)[slots] for value in values]

        def same(after: bool) -> np.ndarray:
            result = np.zeros(len(addresses), bool)
            result[slots] = stores_same(view, index, kept, after)
            return result

        if self.races:
            self.races.store(places, slots, access, same)
        self._note_undefined(slots, places, access)
        self.changes += 1
        for element, one in enumerate(kept):
            view[index + element] = one

    def valid(
        self, addresses: np.ndarray, access: Access, lanes: Lanes, verb: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """(slots that may access, their places in the batch's bytes); reports the others."""
        slots = lanes.slots
        copies, wanted, outside = self.where(slots, addresses[slots], access)
        misaligned = wanted & (access.width - 1) != 0
        for kind, faulty in (("misaligned", misaligned & ~outside), ("out-of-bounds", outside)):
            if faulty.any():
                message = self.explain(kind, int(wanted[faulty.argmax()]), access)
                about = f"{kind} {self.name} {verb}", access.instruction, message
                self.reporter.report(*about, slots[faulty])
        good = ~(misaligned | outside)
        return slots[good], copies[good] * self.stride + wanted[good]

    # ---- undefined bits ----

    def overwrite(self, places: np.ndarray, width: int, written: bool = True) -> None:
        """Bytes that are all defined, or not yet `written`, have come to these places."""
        at = places[:, None] + np.arange(width)
        self.bits[1][at] = 0 if written else 255
        if self.origins is not None:
            self.origins[at] = -1

    def _note_undefined(self, slots: np.ndarray, places: np.ndarray, access: Access) -> None:
        """These threads have stored at these places."""
        size, index = access.size, places // access.size
        for element in range(access.elements):
            self.bits[size][index + element] = 0
        shadows = self.suspicion.storing
        if shadows is None:
            return
        if self.origins is None:
            self.origins = np.full(len(self.bits[1]), -1)
        for element, shadow in enumerate(shadows):
            if shadow is not None:
                self.bits[size][index + element] = shadow.bits[slots].astype(UNSIGNED[size])
                at = (index + element)[:, None] * size + np.arange(size)
                self.origins[at] = np.max([one[slots] for one in shadow.origins], axis=0)[:, None]

    def look_for_undefined(self, slots: np.ndarray, places: np.ndarray, access: Access) -> None:
        """These threads load from these places."""
        index = places // access.size
        if not any(self.bits[access.size][index + k].any() for k in range(access.elements)):
            return
        at = places[:, None] + np.arange(access.width)
        bits, origins = self.bits[1][at], -1 if self.origins is None else self.origins[at]
        unwritten = (bits != 0) & (origins < 0)
        chosen = unwritten.any(axis=1)
        kind, message = self.unwritten
        about = kind, access.instruction, message, slots[chosen]
        if chosen.any() and access.atomic:
            self.suspicion.reporter.report(*about)
        elif chosen.any():
            self.suspicion.doubt(*about, unwritten[chosen], stays=True)
        stored = np.where(unwritten, np.uint8(0), bits)
        if stored.any():
            self.suspicion.found(slots, stored, origins)
