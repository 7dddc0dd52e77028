"""The kernels of `tests.simt.global_races` as compute-sanitizer is given them: all in one source,
which is compiled once; each right as it stands, and its racy twin."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simt.global_races import CASES, RULES, kernel_name
from tests.simt.launches import Launch, Planted

KIND = "race on global memory"


@dataclass(frozen=True)
class Race(Planted):
    """A kernel, or its racy twin. Its mark has no line: a race has two."""

    cooperative: bool = False

    @property
    def name(self) -> str:
        return f"{self.file}/{self.kernel}"

    @property
    def code(self) -> str:
        return RULES.source

    @property
    def marks(self) -> list[tuple[str, int]]:
        return [(KIND, 0)] if self.bug else []


def _races():
    for rule, one in CASES.items():
        launch = Launch(one.grid, one.block, one.arrays())
        for racy in (True, False):
            name, together = kernel_name(rule, racy), one.cooperative
            yield Race(RULES.file, name, launch, bug=racy, cooperative=together)


RACES = {race.name: race for race in _races()}
