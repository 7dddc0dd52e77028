"""Search a plan for a kernel on the GPU in use.

The headers of the kernels define the parameters (`knobs`): the names of a Build table, numbers that
the file defines behind #ifndef, and the block size if Launch leaves it open. The search moves from
the plan of each file to its best neighbour, one name of the table after the other, and continues
from there. A first look takes few samples, always together with the rule's plan, so that drifting
clocks affect both. The best trials are then timed by the full protocol, and the winner must beat
the rule's plan beyond run-to-run variation in `CONFIRMED` further runs that did not influence the
choice. The samples of the last of these are stored.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from collections import Counter, deque
from collections.abc import Callable, Sequence
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
REACH = 3  # neighbours on either side, in addition to the other values of the table
BATCH = 8  # trials that are timed together, or all values of one name
FEW = 5  # samples in a first look
FAR = 1.3  # a file is dropped if its best is slower than the overall best by this factor
FINALISTS = 4
WORTH = 0.002  # minimum gain per changed value, so that irrelevant changes are not kept
CONFIRMED = 2
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


def values(name: str, cases: Sequence[str], own: int) -> list[int]:
    """The alternatives to a name's current value: its neighbours and the plain numbers in its other
    cases; for a switch, whose cases are 0, 1 or a condition and not 1 alone, the other value."""
    plain = {int(text) for text in cases if text.isdigit()}
    others = [text for text in cases if not text.isdigit()]
    conditions = all(re.search(r"[<>]|==|!=|&&|\|\|", text) for text in others)
    decided = cases and conditions and plain <= {0, 1} and (others or 0 in plain)
    step = max(1, own // 8)
    nearest = {own // 2, own - step, own + step, 2 * own} - {0, -1}
    around = VALUES.get(name, SWITCHED if decided else nearest)
    below = sorted(value for value in around if value < own)[-REACH:]
    above = sorted(value for value in around if value > own)[:REACH]
    return sorted({*below, *above, *plain} - {own})


def changed(trial: str, name: str, value: int) -> str:
    """A trial with another value for one name."""
    file, block, changes = split_trial(trial)
    given = {**({"b": block} if block else {}), **dict(changes), name: value}
    return file + "".join(f"-{name}{value}" for name, value in given.items())


def worth(trial: str) -> float:
    """The factor by which the time of a trial is penalised for its changes."""
    return 1 + WORTH * len(split_trial(trial).changes)


# ---- the search -------------------------------------------------------------------------------


@dataclass
class Search:
    """The search at one problem. `time(names, few)` returns the case of each name or raises
    `Failure`; `reasons(trials)` says why some are not worth timing; `left()` returns the remaining
    seconds; `say()` is called after each batch."""

    problem: Problem
    gpu: Gpu
    rule: str
    starts: Sequence[str]  # files or trials to start from
    time: Callable[[Sequence[str], int], dict[str, Timed]]
    reasons: Callable[[Sequence[str]], dict[str, str]]
    left: Callable[[], float]
    say: Callable[[], None] = lambda: None
    scores: dict[str, float] = field(default_factory=dict)  # trial -> fraction of the rule's time
    passed: Counter = field(default_factory=Counter)  # reason for skipping -> number of trials
    _seen: set = field(default_factory=set)  # trials that were seen, and programs with their launch
    _longest: float = 0.0  # seconds of a batch

    @property
    def best(self) -> str:
        return min(self.scores, key=self._rank, default=self.rule)

    def run(self) -> None:
        """Search until no neighbour is better or the time is over. Raises `Failure` if the rule's
        plan cannot be timed."""
        files = [*dict.fromkeys(split_trial(start).file for start in self.starts)]
        self._try([start for start in (self.rule, *self.starts) if self._is_new(start)])
        before = None
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

    def verdict(self) -> tuple[str, dict[str, Timed]] | None:
        """The trial that beats the rule's plan beyond run-to-run variation, with the cases of both
        and of the copy; None if there is none."""
        better = [name for name in self.scores if name != self.rule and self.scores[name] < 1]
        finalists = sorted(better, key=self._rank)[:FINALISTS]
        cases = self._cases([self.rule, *finalists], 0) if finalists else {}
        finalists = [name for name in finalists if name in cases]
        if not finalists:
            return None
        best = min(finalists, key=lambda name: cases[name].median_us * worth(name))
        for _ in range(CONFIRMED):
            cases = self._cases([self.rule, best], 0)
            if best not in cases or not samples.ratio(
                cases[self.rule].samples_us, cases[best].samples_us
            ).above(1):
                return None
        return best, cases

    def _of(self, file: str) -> str:
        """The best trial of a file so far."""
        own = [name for name in self.scores if split_trial(name).file == file]
        return min(own, key=self._rank, default=file)

    def _rank(self, name: str) -> float:
        return self.scores[name] * worth(name)

    def _around(self, trial: str, name: str) -> list[str]:
        """The trials with another value for one name that the header accepts. A changed number of
        threads is also tried with the same number of resident blocks per SM, which changes the
        registers per thread: the two may only help together."""
        try:
            plan = load(trial).at(self.problem, self.gpu).plan
        except ValueError:
            return []
        contract = load(trial).header
        known = {"b": plan.block, **contract.numbers, **plan.macros, **plan.values}
        own = {name.upper() if name != "b" else name: value for name, value in known.items()}[name]
        trials = [changed(trial, name, value) for value in values(name, knobs(contract)[name], own)]
        if name == "THREADS" and (resident := plan.macros.get("RESIDENT")):
            trials += [changed(other, "RESIDENT", resident) for other in trials]
        return [new for new in trials if self._is_new(new)]

    def _is_new(self, trial: str) -> bool:
        """Whether a trial exists, and its program and launch were not tried before."""
        if trial in self._seen:
            return False
        self._seen.add(trial)
        try:
            plan = load(trial).at(self.problem, self.gpu).plan
        except (OSError, ValueError):
            self.passed["header"] += 1
            return False
        program = split_trial(trial).file, plan.options, tuple(plan.launch.items())
        new = program not in self._seen
        self._seen.add(program)
        return new

    def _try(self, trials: Sequence[str]) -> None:
        """Take a first look at some trials, together with the rule's plan."""
        began, timed_before = self.left(), bool(self.scores)
        reasons = self.reasons(trials)
        if reasons.get(self.rule):
            raise Failure(reasons[self.rule], self.rule)
        self.passed.update(reason.partition(":")[0] for reason in reasons.values() if reason)
        rest = [trial for trial in trials if not reasons.get(trial) and trial != self.rule]
        cases = self._cases([self.rule, *rest], FEW)
        own = cases[self.rule].median_us
        timed = {name: cases[name].median_us / own for name in cases if name != bench.COPY}
        self.scores.update(timed)
        if timed_before:  # the first batch also starts the processes
            self._longest = max(self._longest, began - self.left())
        self.say()

    def _cases(self, names: Sequence[str], few: int) -> dict[str, Timed]:
        """The cases of the trials that can be timed and are right, the rule's plan first."""
        try:
            cases = self.time(names, few)
            return {name: cases[name] for name in (*names, bench.COPY) if name in cases}
        except Failure as failure:
            rule, *trials = names
            if failure.culprit in trials:
                self.passed["wrong or failed"] += 1
                self.scores.pop(failure.culprit, None)
                return self._cases([name for name in names if name != failure.culprit], few)
            if failure.culprit or not trials:
                raise
        # If a process ended, no trial is named: each is timed alone.
        if len(trials) == 1:
            self.passed["wrong or failed"] += 1
            self.scores.pop(trials[0], None)
            return self._cases([rule], few)
        return {k: v for one in trials for k, v in self._cases([rule, one], few).items()}


# ---- on a GPU ---------------------------------------------------------------------------------


def timed(job: tuple[Problem, Sequence[str], int]) -> dict[str, Timed]:
    """Time a batch in a child process; Ctrl-C goes to the searching process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    problem, names, few = job
    given = None if problem.plain else numbers(problem)
    return bench.measure({name: bench.maker(name, given) for name in names}, problem, few)


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
