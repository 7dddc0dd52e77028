"""Search a plan for a kernel on the GPU in use.

The headers of the kernels define the parameters (`knobs`): the names of a Build table, numbers that
the file defines behind #ifndef, and the block size if Launch leaves it open. A first look takes few
samples, always together with the rule's plan, so that drifting clocks affect both. What looks best
must then beat the rule's plan beyond run-to-run variation in runs that did not influence the
choice.

The quick search, of a second or two, tries neighbours of the rule's plan and the best of these
together: the shipped table is made by it (tuning_grid.py). The thorough one moves from the plan of
each file to its best neighbour, one name of the table after the other, and continues from there.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import re
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from ..base.gpu import Gpu, gpu_in_use
from ..catalogue.plan import Header
from ..catalogue.registry import split_trial
from ..problem.problem import Problem
from ..run.bound import load
from ..simt import CompileError
from . import bench, samples, workers
from .problem_groups import numbers
from .records import Timed
from .workers import Failure, one_line

# The values of these names; none of them changes how a kernel is called.
WARPS, SWITCHED = tuple(range(32, 1025, 32)), (0, 1)
VALUES = {
    **{"b": WARPS, "THREADS": WARPS, "CLUSTER": (1, 2, 4, 8, 16), "WIDTH": (1, 2, 4, 8)},
    **{"LANES": (1, 2, 4, 8, 16, 32), "STREAMING": SWITCHED, "EVICT_LAST": SWITCHED},
    **{"PROGRAMMATIC": (), "LATE": ()},
}
# A quick search tries these multiples, and none of the hints for the L2: what they are worth shows
# in the kernel that runs next, too.
THREADS = (0.5, 0.75, 1.5, 2)
HINTS = ("EVICT_LAST", "STREAMING", "PROGRAMMATIC")
REACH = 3  # neighbours on either side, in addition to the other values of the table
BATCH = 8  # trials that are timed together, or all values of one name
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


def values(name: str, cases: Sequence[str], own: int, thorough: bool = True) -> list[int]:
    """The alternatives to a name's current value: its neighbours and the plain numbers in its other
    cases; for a switch, whose cases are 0, 1 or a condition and not 1 alone, the other value. In a
    quick search only the nearest on either side; two below for LANES, since fewer leave fewer of
    them idle."""
    if name == "THREADS" and not thorough:
        return sorted({max(32, int(own * times) // 32 * 32) for times in THREADS} - {own})
    plain = {int(text) for text in cases if text.isdigit()}
    others = [text for text in cases if not text.isdigit()]
    conditions = all(re.search(r"[<>]|==|!=|&&|\|\|", text) for text in others)
    decided = cases and conditions and plain <= {0, 1} and (others or 0 in plain)
    step = max(1, own // 8)
    nearest = {own // 2, own - step, own + step, 2 * own} - {0, -1}
    around = VALUES.get(name, SWITCHED if decided else nearest)
    below = sorted(value for value in around if value < own)[-REACH:]
    above = sorted(value for value in around if value > own)[:REACH]
    found = sorted({*below, *above, *plain} - {own})
    if thorough:
        return found
    below = [value for value in found if value < own][-2 if name == "LANES" else -1 :]
    return below + [value for value in found if value > own][:1]


def changed(trial: str, name: str, value: int) -> str:
    """A trial with another value for one name."""
    file, block, changes = split_trial(trial)
    given = {**({"b": block} if block else {}), **dict(changes), name: value}
    return file + "".join(f"-{name}{value}" for name, value in given.items())


def worth(trial: str) -> float:
    """The factor by which the time of a trial is penalised for its changes."""
    return 1 + WORTH * len(split_trial(trial).changes)


def neighbours(problem: Problem, gpu: Gpu, trial: str) -> list[str]:
    """The trials that a quick search tries around another. Raises what `Kernel.at` raises."""
    names = [name for name in knobs(load(trial).header) if name not in HINTS]
    return [new for name in names for new in around(problem, gpu, trial, name, thorough=False)]


def around(problem: Problem, gpu: Gpu, trial: str, name: str, thorough: bool) -> list[str]:
    """The trials with another value for a name. In a thorough search, a changed number of threads
    is also tried with the same number of resident blocks per SM, which changes the registers per
    thread: the two may only help together."""
    plan, contract = load(trial).at(problem, gpu).plan, load(trial).header
    known = {"b": plan.block, **contract.numbers, **plan.macros}
    known |= {key.upper(): value for key, value in plan.values.items()} if thorough else {}
    if name not in known:
        return []
    others = values(name, knobs(contract)[name], known[name], thorough)
    trials = [changed(trial, name, value) for value in others]
    if thorough and name == "THREADS" and (resident := plan.macros.get("RESIDENT")):
        trials += [changed(other, "RESIDENT", resident) for other in trials]
    return trials


# ---- the search -------------------------------------------------------------------------------


def _build(trial: str, problem: Problem, gpu: Gpu) -> tuple:
    """What tells a program and its launch from others. Raises `ValueError` if the header does not
    accept the problem."""
    plan = load(trial).at(problem, gpu).plan
    return split_trial(trial).file, plan.options, tuple(plan.launch.items())


@dataclass
class Search:
    """The search at one problem. The first of `starts` is the rule's plan. `time(problem, trials,
    few)` returns the case of each trial or raises `Failure`; `reasons(problem, trials)` says why
    some are not worth timing; `left()` returns the remaining seconds; `say()` is called after each
    batch. A quick search tries the starts and the best of them together; a thorough one goes on."""

    problem: Problem
    gpu: Gpu
    starts: Sequence[str]
    time: Callable[[Problem, Sequence[str], int], dict[str, Timed]]
    reasons: Callable[[Problem, Sequence[str]], Mapping[str, str]]
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
        """Search until no neighbour is better or the time is over. Raises `Failure` if the rule's
        plan cannot be timed."""
        self._try(self._new(self.starts))
        if not self.thorough:
            if self.cases[self.rule].share < ENOUGH:
                self._try(self._new(self._together()))
            return
        files, before = [*dict.fromkeys(split_trial(start).file for start in self.starts)], None
        while before != (before := [*map(self._of, files)]):
            for file in sorted(files, key=lambda file: self.scores.get(self._of(file), FAR)):
                if self.scores.get(self._of(file), FAR) >= FAR * self.scores[self.best]:
                    continue
                batch, names = [], [*knobs(load(file).header)]
                for name in names:
                    batch += self._around(self._of(file), name)
                    if batch and (len(batch) >= BATCH or name == names[-1]):
                        if self.left() <= self._longest:
                            return
                        self._try(batch)
                        batch = []

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

    def _of(self, file: str) -> str:
        """The best trial of a file so far."""
        own = [trial for trial in self.scores if split_trial(trial).file == file]
        return min(own, key=self._rank, default=file)

    def _rank(self, trial: str) -> float:
        return self.scores[trial] * worth(trial)

    def _around(self, trial: str, name: str) -> list[str]:
        try:
            return self._new(around(self.problem, self.gpu, trial, name, thorough=True))
        except ValueError:  # the file does not accept the problem
            return []

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
        reasons = self.reasons(self.problem, trials)
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
            cases = self.time(self.problem, trials, few)
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


class Timer:
    """Times batches in a child process, and in a new one after an error that leaves the GPU
    unusable, because a trial may fail in any way."""

    def __init__(self):
        self._begin()

    def _begin(self) -> None:
        self._tasks: deque = deque()
        self._results = workers.deal(timed, self._tasks, apart=True)

    def __call__(self, problem: Problem, names: Sequence[str], few: int) -> dict[str, Timed]:
        self._tasks.append((problem, tuple(names), few))
        try:
            _, result = next(self._results)
        except BaseException:  # for example Ctrl-C; a generator that raised has ended
            self._begin()
            raise
        if isinstance(result, Failure):
            raise result
        return result

    def close(self) -> None:
        self._results.close()


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


class Compilers:
    """Compiles trials in several processes."""

    def __init__(self):
        self._begin()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        ignored = signal.SIGINT, signal.SIG_IGN  # Ctrl-C goes to the searching process
        self._pool = ProcessPoolExecutor(PROCESSES, context, signal.signal, ignored)
        self._looks: dict[tuple[Problem, str], Future] = {}

    def begin(self, problem: Problem, trials: Sequence[str]) -> None:
        """Begin to compile trials that are asked for later."""
        for trial in trials:
            if (problem, trial) not in self._looks:
                try:
                    look_at = self._pool.submit(look, trial, problem)
                except BrokenProcessPool:
                    self._begin()
                    look_at = self._pool.submit(look, trial, problem)
                self._looks[problem, trial] = look_at

    def __call__(self, problem: Problem, trials: Sequence[str]) -> dict[str, str]:
        """Compile trials; returns for each why it is not worth timing, or ""."""
        try:
            self.begin(problem, trials)
            return {trial: self._looks.pop((problem, trial)).result() for trial in {*trials}}
        except BrokenProcessPool:  # the culprit fails again, alone, when it is timed
            self._begin()
            return {}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
