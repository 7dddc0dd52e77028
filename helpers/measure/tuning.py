"""A kernel's plan, searched on the GPU at hand.

What can be tried stands in the kernels' headers (`knobs`): the names of a Build table, numbers that
the file defines behind #ifndef, the block size where Launch leaves it open. The search goes from
the plan of each file to the best of its neighbours, one name of the table after the other, and so
on from there. A first look takes few samples, always beside the shipped plan, so that clocks that
drift slow both; the best trials are then timed by the whole protocol, and what wins there has to
beat the shipped plan beyond the spread in `CONFIRMED` further runs, which had no part in choosing
it. Of the last of these are the samples that are kept.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
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

# What these names may be; none of what changes how a kernel is called.
WARPS, SWITCHED = tuple(range(32, 1025, 32)), (0, 1)
VALUES = {
    **{"b": WARPS, "THREADS": WARPS, "CLUSTER": (1, 2, 4, 8, 16), "WIDTH": (1, 2, 4, 8)},
    **{"LANES": (1, 2, 4, 8, 16, 32), "STREAMING": SWITCHED, "EVICT_LAST": SWITCHED},
    **{"PROGRAMMATIC": (), "LATE": ()},
}
REACH = 3  # values on either side of the own one, beside those that the table has elsewhere
BATCH = 8  # so many trials are timed together, or as many as one name has
FEW = 5  # samples of a first look
FAR = 1.3  # a file is left alone whose best takes so many times as long as the best of all
FINALISTS = 4
WORTH = 0.002  # what each changed value must gain, so that those that do nothing stay away
CONFIRMED = 2
SPILLED = 128  # bytes of local memory a thread, past which a trial is not timed
PROCESSES = min(8, os.cpu_count() or 1)  # that compile


# ---- what can be tried ------------------------------------------------------------------------


def knobs(header: Header) -> dict[str, list[str]]:
    """The names that may be given another value, in capitals, each with its cases in the table.

    Any macro, but one that says what is computed, and one that is rounded up to what a thread must
    hold (PACKS), which follows from others. A name in lower case only if some case is a plain
    number, which somebody has chosen: the others are facts of the matrix, which Columns relies on.
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
    """What to try instead of a name's own value: the nearest around it, and the plain numbers that
    the table has for it elsewhere; the other one of a yes or no, where all cases are 0, 1 or a
    condition, and not 1 alone."""
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
    """A trial with another value of one name."""
    file, block, changes = split_trial(trial)
    given = {**({"b": block} if block else {}), **dict(changes), name: value}
    return file + "".join(f"-{name}{value}" for name, value in given.items())


def worth(trial: str) -> float:
    """By how much the time of a trial counts as longer, for what it changes."""
    return 1 + WORTH * len(split_trial(trial).changes)


# ---- the search -------------------------------------------------------------------------------


@dataclass
class Search:
    """The search at one problem. `time(names, few)` returns the case of each or raises a
    `Failure`, `reasons(trials)` why some are not worth timing; `left()` are the seconds it may go
    on, `say()` is called after each batch."""

    problem: Problem
    gpu: Gpu
    shipped: str
    starts: Sequence[str]  # files, or trials of them, to start from
    time: Callable[[Sequence[str], int], dict[str, Timed]]
    reasons: Callable[[Sequence[str]], dict[str, str]]
    left: Callable[[], float]
    say: Callable[[], None] = lambda: None
    scores: dict[str, float] = field(default_factory=dict)  # trial -> share of the shipped time
    passed: Counter = field(default_factory=Counter)  # why a trial was passed over -> how often
    _seen: set = field(default_factory=set)  # trials, and programs with their launch
    _longest: float = 0.0  # seconds of a batch

    @property
    def best(self) -> str:
        return min(self.scores, key=self._rank, default=self.shipped)

    def run(self) -> None:
        """Search until nothing near is better or time is up. Raises `Failure` if the shipped plan
        cannot be timed."""
        files = [*dict.fromkeys(split_trial(start).file for start in self.starts)]
        self._try([start for start in (self.shipped, *self.starts) if self._is_new(start)])
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
        """The trial that beats the shipped plan beyond the spread, and the cases of both and of the
        copy; None if none does."""
        better = [name for name in self.scores if name != self.shipped and self.scores[name] < 1]
        finalists = sorted(better, key=self._rank)[:FINALISTS]
        cases = self._cases([self.shipped, *finalists], 0) if finalists else {}
        finalists = [name for name in finalists if name in cases]
        if not finalists:
            return None
        best = min(finalists, key=lambda name: cases[name].median_us * worth(name))
        for _ in range(CONFIRMED):
            cases = self._cases([self.shipped, best], 0)
            if best not in cases or not samples.ratio(
                cases[self.shipped].samples_us, cases[best].samples_us
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
        """The trials that give one name another value, those that the header takes; of another
        number of threads also with as many blocks of an SM as before, which have other registers
        each and may be the better only together."""
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
        """Whether a trial can be had and is no program and launch that was tried."""
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
        """A first look at some trials, beside the shipped plan."""
        began, timed_before = self.left(), bool(self.scores)
        reasons = self.reasons(trials)
        if reasons.get(self.shipped):
            raise Failure(reasons[self.shipped], self.shipped)
        self.passed.update(reason.partition(":")[0] for reason in reasons.values() if reason)
        rest = [trial for trial in trials if not reasons.get(trial) and trial != self.shipped]
        cases = self._cases([self.shipped, *rest], FEW)
        own = cases[self.shipped].median_us
        timed = {name: cases[name].median_us / own for name in cases if name != bench.COPY}
        self.scores.update(timed)
        if timed_before:  # the first batch also starts the processes
            self._longest = max(self._longest, began - self.left())
        self.say()

    def _cases(self, names: Sequence[str], few: int) -> dict[str, Timed]:
        """The case of each that can be timed and is right, the shipped plan first among them."""
        try:
            cases = self.time(names, few)
            return {name: cases[name] for name in (*names, bench.COPY) if name in cases}
        except Failure as failure:
            shipped, *trials = names
            if failure.culprit in trials:
                self.passed["wrong or failed"] += 1
                self.scores.pop(failure.culprit, None)
                return self._cases([name for name in names if name != failure.culprit], few)
            if failure.culprit or not trials:
                raise
        # Nobody is named where a process ended: each is timed alone.
        if len(trials) == 1:
            self.passed["wrong or failed"] += 1
            self.scores.pop(trials[0], None)
            return self._cases([shipped], few)
        return {k: v for one in trials for k, v in self._cases([shipped, one], few).items()}


# ---- on a GPU ---------------------------------------------------------------------------------


def timed(job: tuple[Problem, Sequence[str], int]) -> dict[str, Timed]:
    """Time a batch, in a process of its own; Ctrl-C is for the one that searches."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    problem, names, few = job
    given = None if problem.plain else numbers(problem)
    return bench.measure({name: bench.maker(name, given) for name in names}, problem, few)


class Timer:
    """Times batches in a child process, in a new one after an error that leaves the GPU unusable:
    a trial may be wrong in any way."""

    def __init__(self):
        self._begin()

    def _begin(self) -> None:
        self._tasks: deque = deque()
        self._results = workers.deal(timed, self._tasks, apart=True)

    def __call__(self, problem: Problem, names: Sequence[str], few: int) -> dict[str, Timed]:
        self._tasks.append((problem, tuple(names), few))
        try:
            _, result = next(self._results)
        except BaseException:  # Ctrl-C, say; a generator that raised is over
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
    """Looks at trials in several processes."""

    def __init__(self):
        self._begin()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        ignored = signal.SIGINT, signal.SIG_IGN  # Ctrl-C is for the process that searches
        self._pool = ProcessPoolExecutor(PROCESSES, context, signal.signal, ignored)

    def __call__(self, problem: Problem, trials: Sequence[str]) -> dict[str, str]:
        looks = {trial: self._pool.submit(look, trial, problem) for trial in trials}
        try:
            return {trial: one.result() for trial, one in looks.items()}
        except BrokenProcessPool:  # one that ends the compiler is met again, alone, as it is timed
            self._begin()
            return {}

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
