"""The kernels of `tests.simt.global_races` as compute-sanitizer is given them: all in one source,
which is compiled once; each right as it stands, and its racy twin."""

from __future__ import annotations

from types import SimpleNamespace

from tests.simt.global_races import CASES, RULES, kernel_name
from tests.simt.launches import Launch


def _race(rule: str, racy: bool) -> SimpleNamespace:
    """As `Planted` of tests/simt/launches.py. Its mark has no line: a race has two."""
    one = CASES[rule]
    return SimpleNamespace(
        file=RULES.file,
        kernel=kernel_name(rule, racy),
        code=RULES.source,
        options=(),
        launch=Launch(one.grid, one.block, one.arrays()),
        marks=[("race on global memory", 0)] if racy else [],
        cooperative=one.cooperative,
    )


_ALL = [_race(rule, racy) for rule in CASES for racy in (True, False)]
RACES = {f"{one.file}/{one.kernel}": one for one in _ALL}
