"""What a launch on the machine leaves behind."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import numpy as np

from .counters import NSIGHT_METRICS, OF_PTX, SHARED_METRICS, Counters, Standing
from .findings import Findings
from .geometry import Shape
from .places import lines_of, own_file
from .watch import Event, WatchedAccess

# Of an instruction and of the call that it was inlined at: number of the file, line.
INLINED = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s[^\n]*inlined_at\s+(\d+)\s+(\d+)")
FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')


class Array(NamedTuple):
    """Of an argument, what a picture needs to know."""

    shape: tuple[int, ...]
    dtype: np.dtype
    apart: int = 0  # bytes from one row to the next, where these do not follow each other

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def numbers(self, offsets: np.ndarray) -> np.ndarray:
        """Which elements, counted row by row, stand so many bytes behind the first."""
        if not self.apart:
            return offsets // self.dtype.itemsize
        row, byte = np.divmod(offsets, self.apart)
        return row * self.shape[1] + byte // self.dtype.itemsize


@dataclass(repr=False)
class Trace:
    """What one launch did; printed, it is its report and findings."""

    counters: Counters  # of the whole launch
    lines: dict[tuple[str, int], Counters]  # the same per (file, source line)
    findings: Findings
    ptx: str
    code: str
    shape: Shape  # of the launch: grid, block, cluster
    arrays: dict[str, Array]  # the arguments that are some, by name
    accesses: list[WatchedAccess] = field(default_factory=list)  # of the watched lines, as they ran
    events: list[Event] = field(default_factory=list)  # of the followed blocks, as they ran
    printed: str = ""  # by printf, block after block
    # How many requests more the hardware may make, per (file, source line), of the lines whose
    # loops ptxas may unroll: see unrolling.py.
    more: dict[tuple[str, int], int] = field(default_factory=dict)
    # Lines of shared memory that the assembler may predicate: there may be more requests too.
    predicated: frozenset[tuple[str, int]] = frozenset()

    def __repr__(self) -> str:
        printed = ["printed:\n" + self.printed.rstrip("\n")] if self.printed else []
        found = [str(self.findings)] if self.findings else []
        return "\n".join([self.report(), *printed, *found])

    @property
    def file(self) -> str:
        """The name of the kernel's file, or "kernel.cu" for a text without one."""
        return own_file(self.code).rpartition("/")[2]

    def own_lines(self) -> dict[int, str]:
        """The lines of the kernel's own text by number, as findings cite them."""
        return lines_of(self.code)[own_file(self.code)]

    def callers(self, number: int) -> set[int]:
        """The lines of the kernel's own text that a line of an inlined function was called from.

        Which of the two an instruction counts for is up to the compiler: NVRTC 13.5 gives a load
        that returns a struct to the line of the call, 13.0 to the line of the load.
        """
        found, wanted = set(), {str(number)}
        own = {one for one, name in FILE.findall(self.ptx) if name.endswith(self.file)}
        places = set(INLINED.findall(self.ptx))
        inlined = {(line, at) for one, line, there, at in places if {one, there} <= own}
        while wanted := {at for line, at in inlined if line in wanted} - found:
            found |= wanted
        return {int(at) for at in found}

    def own_counters(self) -> dict[int, Counters]:
        """Counters of the lines of the kernel's own text, in order."""
        own = own_file(self.code)
        return {
            number: self.lines[name, number]
            for name, number in sorted(self.lines)
            if name == own and number
        }

    def standing(self) -> dict[str, Standing]:
        """Of each counter that is not 0, how it stands to the hardware's."""
        return {name: self._standing(name) for name, count in vars(self.counters).items() if count}

    def _standing(self, name: str) -> Standing:
        if name in OF_PTX:
            return Standing("of PTX")
        if name.endswith("_bytes"):  # what lanes ask for
            return Standing("exact")
        if name not in NSIGHT_METRICS and name not in SHARED_METRICS:
            return Standing("not compared")
        counted = {place for place, one in self.lines.items() if vars(one)[name]}
        requests = name.endswith("_requests")
        if requests and name in SHARED_METRICS and counted & self.predicated:
            return Standing("at least")
        if more := sum(self.more.get(place, 0) for place in counted):
            return Standing("bounded", more) if requests else Standing("approximate")
        return Standing("exact")

    def _stands(self) -> list[str]:
        """`standing` in sentences, of what the report shows."""
        standing = {
            name.replace("_", " "): one
            for name, one in self.standing().items()
            if not name.endswith("_bytes")
        }
        exact = [name for name, one in standing.items() if one.word == "exact"]
        bounded = [
            f"{name} (up to {one.more} more)"
            for name, one in standing.items()
            if one.word == "bounded"
        ]
        least = [name for name, one in standing.items() if one.word == "at least"]
        about = [name for name, one in standing.items() if one.word == "approximate"]
        said = (("exact", exact), ("bounded", bounded), ("at least so many", least))
        said += (("approximate", about),)
        parts = "; ".join(f"{word}: {', '.join(names)}" for word, names in said if names)
        return [f"beside Nsight Compute on an H200, {parts}"] if parts else []

    def report(self) -> str:
        """The source lines that access memory with their counters, and a total.

        Global memory in sectors, shared memory in wavefronts. Lines of a header that the kernel
        includes are left out.
        """
        rows = self._table("sectors", "load", "store")
        if self.counters.shared_load_requests or self.counters.shared_store_requests:
            rows += self._table("wavefronts", "shared_load", "shared_store")
        count = len(self.findings)
        rows[-1] += f"; {count or 'no'} finding{'' if count == 1 else 's'}"
        own = own_file(self.code)
        more = [(line, most) for (file, line), most in sorted(self.more.items()) if file == own]
        if more:
            listed = ", ".join(f"line {line} up to {most}" for line, most in more)
            rows.append(
                "requests more on the hardware, if ptxas unrolls a loop that lanes of a warp leave "
                f"one after another: {listed}"
            )
        rows += self._stands()
        return "\n".join(rows)

    def _table(self, unit: str, load: str, store: str) -> list[str]:
        own, text = own_file(self.code), self.own_lines()
        rows = [f"{'line':>4} {'requests':>9} {unit:>10} {'per request':>11}  source"]
        for (file, number), counters in sorted(self.lines.items(), key=lambda item: item[0][1]):
            counted = vars(counters)
            requests = counted[f"{load}_requests"] + counted[f"{store}_requests"]
            if requests and file == own and number in text:
                pieces = counted[f"{load}_{unit}"] + counted[f"{store}_{unit}"]
                rows.append(
                    f"{number:4} {requests:9} {pieces:10} {pieces / requests:11.2f}  "
                    f"{text[number].strip()}"
                )
        total = vars(self.counters)
        rows.append(
            "; ".join(
                f"{name.replace('_', ' ')}s: {total[f'{name}_requests']} requests, "
                f"{total[f'{name}_{unit}']} {unit}"
                for name in (load, store)
            )
        )
        return rows
