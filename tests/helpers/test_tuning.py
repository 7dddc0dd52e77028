"""The search for a plan, with times made up: a planted optimum, noise, wrong and broken trials."""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.base.gpu import H200
from helpers.catalogue.plan import Plan
from helpers.commands.tune import FINALISTS, ROUNDS
from helpers.measure import tuning
from helpers.measure.bench import COPY
from helpers.measure.campaign import Failure
from helpers.measure.records import Timed
from helpers.measure.tuning import Lab, Search, knobs, look
from helpers.problem.problem import Problem
from helpers.run.bound import load

WHERE = Problem(65536, 4096)
SHORT = Problem(65536, 512, "bfloat16")


class MadeUp(Lab):
    """Times of kernels that nobody ran: `us` of a plan, with noise; `wrong` trials, and `deadly`
    ones that end their process and name nobody."""

    def __init__(self, us: Callable[[Plan], float], where=WHERE, noise=0.002, seed=0):
        self.us, self.where, self.noise = us, where, noise
        self.random, self.asked, self.seconds = np.random.default_rng(seed), [], 0.0
        self.first = 2.0  # seconds of the first batch
        self.wrong: set[str] = set()
        self.deadly: set[str] = set()
        self.reasons = lambda problem, trials: {}

    def begin(self, *_) -> None: ...

    def __exit__(self, *_) -> None: ...

    def time(self, problem: Problem, names: Sequence[str], few: int) -> dict[str, Timed]:
        self.seconds += 2 if self.asked else self.first
        self.asked.append((tuple(names), few))
        if self.deadly & {*names}:
            raise Failure("its process ended with status -11")
        for name in names:
            if name in self.wrong:
                raise Failure("wrong result: at (65536, 4096)", name)
        took = {COPY: 90.0}
        took |= {name: self.us(load(name).at(problem, H200).plan) for name in names}

        def series(us: float) -> list[float]:
            return [*(us * (1 + self.noise * self.random.normal(size=few or 21)))]

        copy = series(took[COPY])
        return {name: Timed({}, series(us), copy, 50) for name, us in took.items()}

    @property
    def trials(self) -> set[str]:
        return {name for names, _ in self.asked for name in names[1:]}


def search(time: MadeUp, *starts: str, seconds: float = 1e6) -> Search:
    left = lambda: seconds - time.seconds  # noqa: E731
    return Search(time.where, H200, starts, time, True, left)


def verdict(found: Search, rounds: Sequence[int] = ROUNDS) -> str | None:
    return found.verdict(rounds, FINALISTS, 1)


def planted(plan: Plan) -> float:
    """Fastest with clusters of 8 blocks of 96 threads that do not stream, 100 us."""
    off = abs(math.log2(plan.cluster / 8)) + abs(math.log2(plan.block / 96))
    return 100 * (1 + 0.05 * off + 0.02 * plan.macros.get("STREAMING", 1))


def test_a_planted_optimum_is_found_within_so_many_trials() -> None:
    time = MadeUp(planted)
    found = search(time, "08_cluster", "11_any_row")
    found.run()
    best = verdict(found)
    plan = load(best).at(WHERE, H200).plan
    assert (plan.cluster, plan.block, plan.macros["STREAMING"]) == (8, 96, 0), best
    assert len(time.trials) <= 120 and len(found.cases[best].samples_us) == 21
    looks = [names for names, few in time.asked if few]
    assert all(names[0] == "08_cluster" for names in looks), "each beside the rule's plan"
    assert [few for _, few in time.asked[-3:]] == [0, 0, 0], "in runs that did not choose it too"


@pytest.mark.parametrize("rounds", [ROUNDS, (2,)])
def test_noise_alone_finds_nothing(rounds: Sequence[int]) -> None:
    """Unless one round of two samples is believed."""
    verdicts = []
    for seed in range(30):
        found = search(MadeUp(lambda plan: 20.0, SHORT, 0.01, seed), "10_sixteen_bit")
        found.run()
        verdicts.append(verdict(found, rounds))
    assert any(verdicts) == (rounds != ROUNDS)


def test_a_wrong_kernel_that_is_fast_is_passed_over() -> None:
    time = MadeUp(lambda plan: 5.0 if plan.macros["LANES"] == 16 else 20.0, SHORT)
    time.wrong = {"10_sixteen_bit-LANES16", "10_sixteen_bit-LANES16-EVICT_LAST1"}
    found = search(time, "10_sixteen_bit")
    found.run()
    assert verdict(found) is None and found.passed["wrong or failed"] == 1
    late = MadeUp(lambda plan: 20.0 - (plan.macros["LANES"] == 16), SHORT)
    found = search(late, "10_sixteen_bit")
    found.run()
    late.wrong = {name for name in late.trials if "LANES16" in name}  # as a race shows itself late
    assert found.best in late.wrong and verdict(found) is None
    assert found.best not in late.wrong


def test_a_trial_that_ends_its_process_costs_no_other() -> None:
    time = MadeUp(planted)
    time.deadly = {"08_cluster-STREAMING0"}
    found = search(time, "08_cluster")
    found.run()
    assert found.passed["wrong or failed"] == 1 and time.deadly.isdisjoint(found.scores)
    assert load(verdict(found)).at(WHERE, H200).plan.block == 96


def test_refused_trials_are_counted_and_not_timed() -> None:
    def reasons(problem, trials):
        return {trial: "spills" for trial in trials if "THREADS" in trial}

    time = MadeUp(planted)
    time.reasons = reasons
    found = search(time, "08_cluster")
    found.run()
    assert found.passed["spills"] > 5 and not any("THREADS" in name for name in time.trials)
    assert load(found.best).at(WHERE, H200).plan.cluster == 8
    single = search(MadeUp(lambda plan: 20.0, Problem(1, 2**20)), "09_grid")
    single.run()
    assert single.passed["header"] == 2 and not any("BLOCKS256" in name for name in single.scores)


# ---- what can be tried ------------------------------------------------------------------------


def test_what_is_tried_comes_from_the_header() -> None:
    names = {step: {*knobs(load(step).header)} for step in ("08_cluster", "09_grid", "07_warp")}
    assert names["08_cluster"] == {
        *("CLUSTER", "THREADS", "MOST", "MOST_BYTES", "SM_THREADS", "RESIDENT", "EVICT_LAST"),
        "STREAMING",
    }, "share is a fact of the matrix, PACKS follows"
    assert names["09_grid"] == {"FEW_PACKS", "THREADS", "BLOCKS", "STREAMING"}
    assert names["07_warp"] == {"WIDTH", "LANES", "ROWS"}
    assert {*knobs(load("06_registers").header)} == {"PACKS", "b"}, "no table, a block that is free"
    assert "LATE" not in knobs(load("11_any_row").header)


# ---- processes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"local_bytes": 0}, ""),
        ({"local_bytes": 400}, "spills"),
        ({"local_bytes": 0, "active_clusters": 0}, "no room for a cluster"),
    ],
)
def test_a_look_says_what_is_not_worth_timing(attributes, reason, monkeypatch) -> None:
    monkeypatch.setattr(tuning, "gpu_in_use", lambda: H200)
    candidate = SimpleNamespace(attributes=attributes)
    monkeypatch.setattr(tuning.bench, "kernel_candidate", lambda bound: candidate)
    assert look("08_cluster", WHERE) == reason
    assert look("08_cluster-CLUSTER3-THREADS32", Problem(1, 8)).startswith("ValueError: ")
