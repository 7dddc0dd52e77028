"""The shipped table of tuned plans: a quick search at each shape of a dense grid.

The grid has eight lengths per octave, among them 2, 3, 5, 7 and 9 times a power of two, where rows
are whole packs of 16 bytes, four where they are not, and five sizes of the matrix. What is found at
a length is chosen for those down to the next shorter one, since threads that have room for a row
have room for a shorter one, and for matrices of about its size.

A shape takes a second or two: neighbours of the rule's plan in turn with it and a copy, then those
changes together that gained something, then a confirmation of the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..base.gpu import Gpu
from ..catalogue.dispatch import ANY_LENGTH, best, candidates, current_build
from ..catalogue.registry import split_trial
from ..catalogue.store import Run
from ..catalogue.tuned import Tuned
from ..problem.problem import MAX_INT, PACK_BYTES, Problem
from ..run.bound import load
from . import bench
from .records import Timed
from .samples import Estimate, ratio
from .tuning import FEW, changed, knobs, values
from .workers import Failure

# Bytes of x: those that a size is chosen from on, and those that are timed. With y they fit in the
# L2 of an H200 up to the third size; in the largest, start and end of a launch hardly matter.
SIZES = ((0.6e6, 1.5e6), (2.5e6, 4e6), (6e6, 12e6), (24e6, 48e6), (100e6, 256e6))
FIRST = (3, 2, 4, 1, 0)  # the order in which sizes are tuned
EIGHTHS = range(8, 16)
SHORTEST, LONGEST = 32, 2**18  # columns
DTYPES = {"float32": ("float32",), "bfloat16": ("float16", "bfloat16")}  # timed -> chosen for
CONFIRM = 15  # samples
GAIN = 1.005  # of a change that is tried together with another
WORTH = 1.02  # the least speedup of a plan in the table
ENOUGH = 0.995  # of a copy: nothing is searched
THREADS = (0.5, 0.75, 1.5, 2)
# What hints for the L2 are worth shows in the kernel that runs next, too.
HINTS = ("EVICT_LAST", "STREAMING", "PROGRAMMATIC")


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
                for size, point in _of(cols, below, dtype):
                    points.append((place % 2, not whole, FIRST.index(size), place, point))
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
    row, ends = Problem(1, cols, dtype).row_bytes, [*(low for low, _ in SIZES[1:]), 0]
    for number, ((low, timed), end) in enumerate(zip(SIZES, ends, strict=True)):
        rows = max(1, -int(-low // row)), int(-(-end // row)) - 1 if end else MAX_INT
        if rows[0] <= rows[1]:
            at = Problem(max(rows[0], int(timed // row)), cols, dtype)
            yield number, GridPoint(at, rows, (below + 1, cols))


# ---- the search at a shape ----------------------------------------------------------------------


def neighbours(problem: Problem, gpu: Gpu) -> list[str]:
    """The rule's plan, that of the next kernel that would be chosen, and the rule's with another
    value of one name; each builds or launches something else."""
    first = candidates(problem, gpu, 2)
    first = [first[0], *(step for step in first[1:] if step != ANY_LENGTH)]
    bound = load(first[0]).at(problem, gpu)
    names = {"b": bound.plan.block, **bound.kernel.header.numbers, **bound.plan.macros}
    trials = [*first]
    if first[0] == "07_warp" and not problem.packed:
        return first[:1]  # its accesses depend on the divisors of each length
    for name, cases in knobs(bound.kernel.header).items():
        if name in HINTS or name not in names:
            continue
        own = names[name]
        if name == "THREADS":
            other = sorted({max(32, int(own * times) // 32 * 32) for times in THREADS} - {own})
        else:
            others = values(name, cases, own)
            below = 2 if name == "LANES" else 1  # fewer lanes leave fewer of them idle
            other = [value for value in others if value < own][-below:]
            other += [value for value in others if value > own][:1]
        trials += [changed(first[0], name, value) for value in other]
    return _distinct(trials, problem, gpu)


def _distinct(trials: Sequence[str], problem: Problem, gpu: Gpu) -> list[str]:
    found = {}
    for trial in trials:
        try:
            plan = load(trial).at(problem, gpu).plan
        except (OSError, ValueError):
            continue
        build = split_trial(trial).file, plan.options, tuple(plan.launch.items())
        found.setdefault(build, trial)
    return [*found.values()]


def tuned(
    point: GridPoint,
    trials: Sequence[str],
    run: Run,
    time: Callable[[Problem, Sequence[str], int], dict[str, Timed]],
    reasons: Callable[[Problem, Sequence[str]], Mapping[str, str]],
) -> Tuned:
    """Search among `trials`, the first of which is the rule's. `time` times some with so many
    samples, `reasons` says why some are not worth timing. Raises `Failure` if the rule's plan
    cannot be timed."""
    problem, rule = point.problem, trials[0]
    found = _timed(problem, trials, FEW, time)
    own = found[rule].median_us
    if found[rule].share < ENOUGH:
        gains = {trial: own / found[trial].median_us for trial in found}
        first = [trial for trial in sorted(gains, key=gains.get)[::-1] if gains[trial] > GAIN]
        together = _distinct(_together(rule, first[:3]), problem, run.gpu)
        together = [trial for trial in together if trial not in found]
        refused = reasons(problem, together)
        together = [trial for trial in together if not refused.get(trial)]
        if together:
            again = _timed(problem, [rule, *first[:1], *together], FEW, time)
            gains |= {t: again[rule].median_us / again[t].median_us for t in again}
        fastest = max(gains, key=gains.get)
        if gains[fastest] > WORTH and fastest != rule:
            both = _timed(problem, [rule, fastest], CONFIRM, time)
            if fastest in both and _speedup(both, rule, fastest).above(WORTH):
                return _line(point, rule, fastest, run, both)
    return _line(point, rule, rule, run, found)


def _speedup(found: Mapping[str, Timed], rule: str, trial: str) -> Estimate:
    return ratio(found[rule].samples_us, found[trial].samples_us)


def _together(rule: str, best: Sequence[str]) -> Iterator[str]:
    """The changes of two trials of the rule's file in one."""
    own = dict(split_trial(rule).changes)
    changes = [dict(split_trial(t).changes) for t in best if t.startswith(f"{rule}-")]
    for one in changes:
        for other in changes:
            new = {name: value for name, value in other.items() if name not in own | one}
            trial = "".join(f"-{name}{value}" for name, value in ({**one, **new}).items())
            if new:
                yield split_trial(rule).file + trial


def _timed(problem: Problem, trials: Sequence[str], few: int, time: Callable) -> dict[str, Timed]:
    """The times of the trials that are right. Raises `Failure` if the first is not, or if one that
    is not known ends the process."""
    try:
        found = time(problem, trials, few)
        return {trial: found[trial] for trial in trials}
    except Failure as failure:
        if failure.culprit not in trials[1:]:
            raise
        return _timed(problem, [t for t in trials if t != failure.culprit], few, time)


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


# ---- on other shapes ----------------------------------------------------------------------------


def drawn(count: int, seed: int) -> list[Problem]:
    """Problems drawn at random: three dtypes, matrices of 1 MB to 2 GB and lengths of 32 to 200000,
    both log-uniform, half of the lengths 3, 5, 7 or 9 times a power of two."""
    random, found = np.random.default_rng(seed), []
    for number in range(count):
        dtype = str(random.choice(["float32", "float16", "bfloat16"]))
        cols = int(np.exp(random.uniform(np.log(32), np.log(200_000))))
        if number % 2:
            odd = int(random.choice([3, 5, 7, 9]))
            cols = odd * 2 ** max(0, round(np.log2(cols / odd)))
        nbytes = np.exp(random.uniform(np.log(1e6), np.log(2e9)))
        found.append(Problem(max(1, int(nbytes / Problem(1, cols, dtype).row_bytes)), cols, dtype))
    return found


def with_and_without(
    problem: Problem, gpu: Gpu, time: Callable, reasons: Callable
) -> tuple[str, str, Estimate, float, float]:
    """Time the plan of the table beside the rule's: (rule, plan, speedup, fraction of a copy that
    the plan reaches, that the rule reaches)."""
    rule, trial = candidates(problem, gpu, 1)[0], best(problem, gpu)
    reasons(problem, [rule, trial])
    found = time(problem, [*dict.fromkeys([rule, trial])], CONFIRM)
    return rule, trial, _speedup(found, rule, trial), found[trial].share, found[rule].share
