"""Search a plan for a kernel on the GPU in use.

The headers of the kernels define the parameters (`knobs`): the names of a Build table, numbers that
the file defines behind #ifndef, and the block size if Launch leaves it open. A first look takes few
samples, always together with the rule's plan, so that drifting clocks affect both. What looks best
must then beat the rule's plan beyond run-to-run variation in runs that did not influence the
choice.

The quick search, of a second or two, tries neighbours of the rule's plan and the best of these
together: the shipped table is made by it. The thorough one goes on with more neighbours of the best
trial of each file, until there are no new ones.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import NamedTuple

from ..base.gpu import Gpu, gpu_in_use
from ..catalogue.dispatch import ANY_LENGTH, candidates, current_build
from ..catalogue.plan import Header
from ..catalogue.registry import split_trial
from ..catalogue.store import Run
from ..catalogue.tuned import Tuned
from ..problem.problem import MAX_INT, PACK_BYTES, Problem
from ..problem.shapes import numbers
from ..run.bound import load
from ..simt import CompileError
from . import bench, campaign, samples
from .campaign import Failure, one_line
from .records import Timed

# The values of these names; none of them changes how a kernel is called.
SWITCHED = (0, 1)
VALUES = {
    **{"b": tuple(range(32, 1025, 32)), "CLUSTER": (1, 2, 4, 8, 16), "WIDTH": (1, 2, 4, 8)},
    **{"LANES": (1, 2, 4, 8, 16, 32), "STREAMING": SWITCHED, "EVICT_LAST": SWITCHED},
    **{"PROGRAMMATIC": (), "LATE": ()},
}
THREADS = (0.5, 0.75, 1.5, 2)  # multiples of the current value that are tried
# Hints for the L2, which a quick search does not try: what they are worth shows in the kernel that
# runs next, too.
HINTS = ("EVICT_LAST", "STREAMING", "PROGRAMMATIC")
BATCH = 8  # trials that are timed together
FEW = 5  # samples in a first look
FAR = 1.3  # a file is dropped if its best is slower than the overall best by this factor
WORTH = 0.002  # minimum gain per changed value, so that irrelevant changes are not kept
GAIN = 1.005  # of a change that is tried together with another
ENOUGH = 0.995  # of a copy: a quick search stops
SPILLED = 128  # bytes of local memory per thread above which a trial is not timed
PROCESSES = min(14, os.cpu_count() or 1)  # processes that compile


# ---- what can be tried ------------------------------------------------------------------------


def knobs(header: Header) -> dict[str, list[str]]:
    """The names that can be changed, in capitals, each with its cases in the table.

    These are all macros except for features and for values that follow from others (PACKS). A
    lower-case name is included only if some case is a plain number, that is, a choice: other names
    are properties of the matrix, on which Columns relies.
    """
    found = {name: [] for name in header.numbers if name not in header.operation.features}
    condition = header.rules.get("block condition")
    if condition and not condition.text.startswith("block =="):
        found["b"] = []
    for entry in header.build:
        cases = [value.text for value, _ in entry.cases]
        if entry.name in header.operation.features:
            continue
        chosen = entry.is_macro or any(map(str.isdigit, cases))
        if chosen and not all(re.match(r"(max\(1, )?ceil_div\(", text) for text in cases):
            found[entry.name.upper()] = cases
    return {name: cases for name, cases in found.items() if VALUES.get(name, True)}


def values(name: str, cases: Sequence[str], own: int, reach: int) -> list[int]:
    """The alternatives to a name's current value: `reach` neighbours on either side, among them the
    plain numbers in its other cases; for a switch, whose cases are 0, 1 or a condition and not 1
    alone, the other value. At least two below for LANES, since fewer leave fewer of them idle."""
    if name == "THREADS":
        return sorted({max(32, int(own * times) // 32 * 32) for times in THREADS} - {own})
    plain = {int(text) for text in cases if text.isdigit()}
    others = [text for text in cases if not text.isdigit()]
    conditions = all(re.search(r"[<>]|==|!=|&&|\|\|", text) for text in others)
    decided = cases and conditions and plain <= {0, 1} and (others or 0 in plain)
    step = max(1, own // 8)
    nearest = {own // 2, own - step, own + step, 2 * own} - {0, -1}
    found = sorted({*VALUES.get(name, SWITCHED if decided else nearest), *plain})
    below = [value for value in found if value < own][-2 if name == "LANES" else -reach :]
    return below + [value for value in found if value > own][:reach]


def changed(trial: str, name: str, value: int) -> str:
    """A trial with another value for one name."""
    file, block, changes = split_trial(trial)
    given = {**({"b": block} if block else {}), **dict(changes), name: value}
    return file + "".join(f"-{name}{value}" for name, value in given.items())


def worth(trial: str) -> float:
    """The factor by which the time of a trial is penalised for its changes."""
    return 1 + WORTH * len(split_trial(trial).changes)


def neighbours(problem: Problem, gpu: Gpu, trial: str, thorough: bool = False) -> list[str]:
    """The trials with another value for one name. A thorough search also tries the hints for the
    L2, values that are no macros, values that are further away, and a changed number of threads
    with the same number of resident blocks per SM, which changes the registers per thread: the two
    may only help together. Raises what `Kernel.at` raises."""
    kernel = load(trial)
    plan, contract = kernel.at(problem, gpu).plan, kernel.header
    known = {"b": plan.block, **contract.numbers, **plan.macros}
    known |= {key.upper(): value for key, value in plan.values.items()} if thorough else {}
    trials = []
    for name, cases in knobs(contract).items():
        if name not in known or (name in HINTS and not thorough):
            continue
        near = values(name, cases, known[name], 2 if thorough else 1)
        others = [changed(trial, name, value) for value in near]
        if thorough and name == "THREADS" and (resident := plan.macros.get("RESIDENT")):
            others += [changed(other, "RESIDENT", resident) for other in others]
        trials += others
    return trials


# ---- the search -------------------------------------------------------------------------------


def _build(trial: str, problem: Problem, gpu: Gpu) -> tuple:
    """What tells a program and its launch from others. Raises `ValueError` if the header does not
    accept the problem."""
    plan = load(trial).at(problem, gpu).plan
    return split_trial(trial).file, plan.options, tuple(plan.launch.items())


class GridPoint(NamedTuple):
    """A shape that is timed, and the shapes and dtypes that its plan is chosen for."""

    problem: Problem
    rows: tuple[int, int]  # first and last
    cols: tuple[int, int]
    dtypes: tuple[str, ...]


@dataclass
class Search:
    """The search at one problem. The first of `starts` is the rule's plan; `lab` compiles and times
    trials; `left()` returns the remaining seconds; `say()` is called after each batch. A quick
    search tries the starts and the best of them together; a thorough one goes on."""

    problem: Problem
    gpu: Gpu
    starts: Sequence[str]
    lab: Lab
    thorough: bool = False
    left: Callable[[], float] = lambda: math.inf
    say: Callable[[], None] = lambda: None
    scores: dict[str, float] = field(default_factory=dict)  # trial -> fraction of the rule's time
    cases: dict[str, Timed] = field(default_factory=dict)  # of the last batch with each trial
    passed: Counter = field(default_factory=Counter)  # reason for skipping -> number of trials
    _seen: set = field(default_factory=set)  # trials, and programs with their launch
    _longest: float = 0.0  # seconds of a batch

    @property
    def rule(self) -> str:
        return self.starts[0]

    @property
    def best(self) -> str:
        return min(self.scores, key=self._rank, default=self.rule)

    def run(self) -> None:
        """Search until no neighbour is new or the time is over. Raises `Failure` if the rule's plan
        cannot be timed."""
        self._try(self._new(self.starts))
        if self.cases[self.rule].share < ENOUGH:
            self._try(self._new(self._together()))
        while self.thorough and (trials := self._new(self._around())):
            for first in range(0, len(trials), BATCH):
                if self.left() <= self._longest:
                    return
                self._try(trials[first : first + BATCH])

    def verdict(self, rounds: Sequence[int], finalists: int, least: float) -> str | None:
        """The trial that is faster than the rule's plan by more than the factor `least` beyond
        run-to-run variation, in each of some rounds of so many samples (0: the full protocol); None
        if there is none. The first round chooses among the best `finalists`; `cases` has the last.
        """
        better = [t for t in self.scores if t != self.rule and self.scores[t] * least < 1]
        chosen = sorted(better, key=self._rank)[:finalists]
        for few in rounds:
            cases = self._cases([self.rule, *chosen], few) if chosen else {}
            chosen = [trial for trial in chosen if trial in cases]
            chosen.sort(key=lambda trial: cases[trial].median_us * worth(trial))
            chosen = chosen[:1]
            if not chosen or not speedup(cases, self.rule, chosen[0]).above(least):
                return None
        return chosen[0] if chosen else None

    def _rank(self, trial: str) -> float:
        return self.scores[trial] * worth(trial)

    def _around(self) -> Iterator[str]:
        """The neighbours of the best trial of each file that is not far behind."""
        leaders: dict[str, str] = {}
        for trial in sorted(self.scores, key=self._rank):
            leaders.setdefault(split_trial(trial).file, trial)
        for trial in leaders.values():
            if self.scores[trial] < FAR * self.scores[self.best]:
                yield from neighbours(self.problem, self.gpu, trial, thorough=True)

    def _together(self) -> list[str]:
        """The changes of two of the three best trials of the rule's file, in one."""
        file = split_trial(self.rule).file
        best = [t for t in sorted(self.scores, key=self.scores.get) if GAIN * self.scores[t] < 1]
        changes = [dict(split_trial(t).changes) for t in best[:3] if t.startswith(f"{self.rule}-")]
        found = []
        for one, other in itertools.permutations(changes, 2):
            both = {**other, **one}  # what both change is as in the first
            if len(both) > len(one):
                found.append(file + "".join(f"-{name}{value}" for name, value in both.items()))
        return found

    def _new(self, trials: Iterable[str]) -> list[str]:
        """The trials that exist, and whose program and launch were not tried before."""
        found = []
        for trial in trials:
            if trial in self._seen:
                continue
            self._seen.add(trial)
            try:
                build = _build(trial, self.problem, self.gpu)
            except (OSError, ValueError):
                self.passed["header"] += 1
                continue
            if build not in self._seen:
                self._seen.add(build)
                found.append(trial)
        return found

    def _try(self, trials: Sequence[str]) -> None:
        """Take a first look at some trials, together with the rule's plan."""
        if not trials:
            return
        began, timed_before = self.left(), bool(self.scores)
        reasons = self.lab.reasons(self.problem, trials)
        if reasons.get(self.rule):
            raise Failure(reasons[self.rule], self.rule)
        self.passed.update(reason.partition(":")[0] for reason in reasons.values() if reason)
        rest = [trial for trial in trials if not reasons.get(trial) and trial != self.rule]
        cases = self._cases([self.rule, *rest], FEW)
        own = cases[self.rule].median_us
        self.scores.update((trial, case.median_us / own) for trial, case in cases.items())
        if timed_before:  # the first batch also starts the processes
            self._longest = max(self._longest, began - self.left())
        self.say()

    def _cases(self, trials: Sequence[str], few: int) -> dict[str, Timed]:
        """The cases of the trials that can be timed and are right, the rule's plan first."""
        try:
            cases = self.lab.time(self.problem, trials, few)
            found = {trial: cases[trial] for trial in trials}
            self.cases.update(found)
            return found
        except Failure as failure:
            rule, *others = trials
            if failure.culprit in others:
                self._pass_over(failure.culprit)
                return self._cases([t for t in trials if t != failure.culprit], few)
            if failure.culprit or not others:
                raise
        # If a process ended, no trial is named: each is timed alone.
        if len(others) == 1:
            self._pass_over(others[0])
            return self._cases([rule], few)
        return {k: v for one in others for k, v in self._cases([rule, one], few).items()}

    def _pass_over(self, trial: str) -> None:
        self.passed["wrong or failed"] += 1
        self.scores.pop(trial, None)

    def line(self, point: GridPoint, trial: str, run: Run) -> Tuned:
        """What was found at a point, with the samples of the last batch."""

        def us(samples_us: Sequence[float]) -> list[float]:
            return [float(f"{one:.4g}") for one in samples_us]

        builds = {one: current_build(one, point.problem, run.gpu) for one in (self.rule, trial)}
        ranges = point.rows, point.cols, [*point.dtypes]
        found, rule = self.cases[trial], self.cases[self.rule]
        copy_us, rule_us = us(found.copy_samples_us), us(rule.samples_us)
        series = us(found.samples_us), copy_us, rule_us if trial != self.rule else []
        return Tuned(point.problem, run, *ranges, self.rule, trial, builds, *series)


def speedup(cases: Mapping[str, Timed], rule: str, trial: str) -> samples.Estimate:
    """How many times as fast as the rule's plan a trial is."""
    return samples.ratio(cases[rule].samples_us, cases[trial].samples_us)


# ---- on a GPU ---------------------------------------------------------------------------------


def timed(job: tuple[Problem, Sequence[str], int]) -> dict[str, Timed]:
    """Time a batch in a child process; Ctrl-C goes to the searching process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    problem, names, few = job
    makers = {name: bench.maker(name, numbers(problem)) for name in names}
    return bench.measure(makers, problem, few)


def look(trial: str, problem: Problem) -> str:
    """Compile a trial into CuPy's cache. Returns why it is not worth timing, or ""."""
    try:
        bound = load(trial).at(problem, gpu_in_use())
        attributes = bench.kernel_candidate(bound).attributes
    except CompileError:
        return "compiler"
    except Exception as error:
        return one_line(error)
    if attributes["local_bytes"] > SPILLED:
        return "spills"
    return "no room for a cluster" if attributes.get("active_clusters") == 0 else ""


class Lab:
    """Compiles trials in several processes, and times them in another one, because a trial may fail
    in any way. A context manager that ends these processes."""

    def __init__(self):
        self._timer = campaign.Worker(timed)
        self._begin()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._timer.end()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        ignored = signal.SIGINT, signal.SIG_IGN  # Ctrl-C goes to the searching process
        self._pool = ProcessPoolExecutor(PROCESSES, context, signal.signal, ignored)
        self._looks: dict[tuple[Problem, str], Future] = {}

    def begin(self, problem: Problem, trials: Sequence[str]) -> None:
        """Begin to compile trials whose `reasons` are asked for later."""
        for trial in trials:
            if (problem, trial) not in self._looks:
                try:
                    look_at = self._pool.submit(look, trial, problem)
                except BrokenProcessPool:
                    self._begin()
                    look_at = self._pool.submit(look, trial, problem)
                self._looks[problem, trial] = look_at

    def reasons(self, problem: Problem, trials: Sequence[str]) -> dict[str, str]:
        """Compile trials; returns for each why it is not worth timing, or ""."""
        try:
            self.begin(problem, trials)
            return {trial: self._looks.pop((problem, trial)).result() for trial in {*trials}}
        except BrokenProcessPool:  # the culprit fails again, alone, when it is timed
            self._begin()
            return {}

    def time(self, problem: Problem, names: Sequence[str], few: int) -> dict[str, Timed]:
        """Return the case of each trial; raise what `bench.measure` raises, and `Failure` without a
        culprit if the process ended."""
        self._timer.give((problem, tuple(names), few))
        try:
            result = self._timer.result()
        except BaseException:  # for example Ctrl-C: a trial may never end
            self._timer.end()
            raise
        if isinstance(result, Failure):
            raise result
        return result


# ---- the shipped table --------------------------------------------------------------------------

# A quick search at each shape of a dense grid: eight lengths per octave, among them 2, 3, 5, 7 and
# 9 times a power of two, where rows are whole packs of 16 bytes, four where they are not, and five
# sizes of the matrix, of long rows eight. What is found at a length is chosen for those down to the
# next shorter one, since threads that have room for a row have room for a shorter one, and for
# matrices of about its size.
#
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
LEAST_SPEEDUP = 1.02  # the least speedup of a plan in the table


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
            yield number, GridPoint(at, rows, (below + 1, cols), DTYPES[dtype])


def starts(problem: Problem, gpu: Gpu) -> list[str]:
    """The rule's plan, that of the next kernel that would be chosen, and neighbours of the rule's
    plan."""
    rule, *others = candidates(problem, gpu, 2)
    if rule == "07_warp" and not problem.packed:
        return [rule]  # its accesses depend on the divisors of each length
    others = [step for step in others if step != ANY_LENGTH]
    return [rule, *others, *neighbours(problem, gpu, rule)]


def tuned(point: GridPoint, run: Run, lab: Lab) -> Tuned:
    """Search at a point. Raises `Failure` if the rule's plan cannot be timed."""
    problem = point.problem
    search = Search(problem, run.gpu, starts(problem, run.gpu), lab)
    search.run()
    return search.line(point, search.verdict([CONFIRM], 1, LEAST_SPEEDUP) or search.rule, run)


PROTOCOL = {
    **bench.PROTOCOL,
    "samples": f"{CONFIRM} of a plan that is chosen, {FEW} of a rule's that stays",
    "warmup_s": bench.FEW_WARMUP_S,
    "calls": f"at least 50 and one per buffer, fewer if that took over {bench.FEW_REPLAY_MS} ms",
}
