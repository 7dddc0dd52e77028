"""The shipped table of tuned plans: a quick search at each shape of a dense grid.

The grid has eight lengths per octave, among them 2, 3, 5, 7 and 9 times a power of two, where rows
are whole packs of 16 bytes, four where they are not, and five sizes of the matrix, of long rows
eight. What is found at a length is chosen for those down to the next shorter one, since threads
that have room for a row have room for a shorter one, and for matrices of about its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..base.gpu import Gpu
from ..catalogue.dispatch import ANY_LENGTH, candidates, current_build
from ..catalogue.store import Run
from ..catalogue.tuned import Tuned
from ..problem.problem import MAX_INT, PACK_BYTES, Problem
from . import bench
from .records import Timed
from .tuning import FEW, Search, neighbours

# Bytes of x: those that are timed, in the order in which they are tuned, and those that their plan
# is chosen from on. With y 24 MB fit in the L2 of an H200; at 256 MB, start and end of a launch
# hardly matter. Of rows of 16 KB and more, few fill the GPU, so that their number matters more.
SIZES = {48e6: 24e6, 12e6: 6e6, 256e6: 100e6, 4e6: 2.5e6, 1.5e6: 0.6e6}
LONG = 2**14  # bytes of a row
SIZES_OF_LONG = {
    **{48e6: 34e6, 12e6: 9e6, 256e6: 100e6, 4e6: 3.2e6, 1.5e6: 0.6e6},
    **{24e6: 17e6, 7e6: 5.3e6, 2.5e6: 1.9e6},
}
EIGHTHS = range(8, 16)
SHORTEST, LONGEST = 32, 2**18  # columns
DTYPES = {"float32": ("float32",), "bfloat16": ("float16", "bfloat16")}  # timed -> chosen for
CONFIRM = 15  # samples
WORTH = 1.02  # the least speedup of a plan in the table


class GridPoint(NamedTuple):
    """A shape that is timed, and the ranges of shapes that its plan is chosen for."""

    problem: Problem
    rows: tuple[int, int]
    cols: tuple[int, int]


def grid() -> list[GridPoint]:
    """The points in the order in which they are tuned: every second length first."""
    points = []
    for dtype in DTYPES:
        for whole in (True, False):
            below = SHORTEST // 2
            for place, cols in enumerate(_lengths(dtype, whole)):
                for number, point in _of(cols, below, dtype):
                    points.append((place % 2, not whole, number, place, point))
                below = cols
    return [point for *_, point in sorted(points, key=lambda each: each[:-1])]


def _lengths(dtype: str, whole: bool) -> list[int]:
    """The columns of rows that are whole packs, or just not."""
    pack = PACK_BYTES // Problem(1, 1, dtype).itemsize
    eighths = EIGHTHS if whole else EIGHTHS[::2]
    lengths = (eighth * 2**power // 8 for power in range(5, 19) for eighth in eighths)
    found = dict.fromkeys(length for length in lengths if SHORTEST <= length <= LONGEST)
    return [cols if whole else cols - 1 for cols in found if cols % pack == 0]


def _of(cols: int, below: int, dtype: str) -> Iterator[tuple[int, GridPoint]]:
    """The points of a length, each with the number of its size."""
    row = Problem(1, cols, dtype).row_bytes
    sizes = SIZES if row < LONG else SIZES_OF_LONG
    for number, (timed, low) in enumerate(sizes.items()):
        end = min((other for other in sizes.values() if other > low), default=0)
        rows = max(1, -int(-low // row)), int(-(-end // row)) - 1 if end else MAX_INT
        if rows[0] <= rows[1]:
            at = Problem(max(rows[0], int(timed // row)), cols, dtype)
            yield number, GridPoint(at, rows, (below + 1, cols))


# ---- the search at a shape ----------------------------------------------------------------------


def starts(problem: Problem, gpu: Gpu) -> list[str]:
    """The rule's plan, that of the next kernel that would be chosen, and neighbours of the rule's
    plan."""
    rule, *others = candidates(problem, gpu, 2)
    if rule == "07_warp" and not problem.packed:
        return [rule]  # its accesses depend on the divisors of each length
    others = [step for step in others if step != ANY_LENGTH]
    return [rule, *others, *neighbours(problem, gpu, rule)]


def tuned(point: GridPoint, run: Run, time: Callable, reasons: Callable) -> Tuned:
    """Search at a point; `time` and `reasons` are those of `Search`. Raises `Failure` if the rule's
    plan cannot be timed."""
    problem = point.problem
    search = Search(problem, run.gpu, starts(problem, run.gpu), time, reasons)
    search.run()
    trial = search.verdict([CONFIRM], 1, WORTH) or search.rule
    return _line(point, search.rule, trial, run, search.cases)


def _line(point: GridPoint, rule: str, trial: str, run: Run, found: Mapping[str, Timed]) -> Tuned:
    kernels = {step: current_build(step, point.problem, run.gpu) for step in (rule, trial)}
    return Tuned(
        point.problem,
        run,
        point.rows,
        point.cols,
        [*DTYPES[point.problem.dtype]],
        rule,
        trial,
        kernels,
        _rounded(found[trial].samples_us),
        _rounded(found[trial].copy_samples_us),
        _rounded(found[rule].samples_us) if trial != rule else [],
    )


def _rounded(samples_us: Sequence[float]) -> list[float]:
    return [float(f"{us:.4g}") for us in samples_us]


PROTOCOL = {
    **bench.PROTOCOL,
    "samples": f"{CONFIRM} of a plan that is chosen, {FEW} of a rule's that stays",
    "warmup_s": bench.FEW_WARMUP_S,
    "calls": f"at least 50 and one per buffer, fewer if that took over {bench.FEW_REPLAY_MS} ms",
}
