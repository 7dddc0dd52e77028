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
    def code(self) -> str:
        return RULES.source

    @property
    def marks(self) -> list[tuple[str, int]]:
        return [] if self.twin is None else [(KIND, 0)]


def _races():
    for rule, one in CASES.items():
        launch = Launch(one.grid, one.block, one.arrays())
        twin = kernel_name(rule, racy=False)
        racy = kernel_name(rule, racy=True)
        yield Race(RULES.file, racy, launch, twin=twin, cooperative=one.cooperative)
        yield Race(RULES.file, twin, launch, cooperative=one.cooperative)


RACES = {race.name: race for race in _races()}
