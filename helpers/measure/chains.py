"""Softmax in pipelines: what `choose` picks beside its variants, and what is said of the result.

`helpers.measure.chain` times them. A variant asks caches and launch for something else than the
kernel's Build table does (`registry.ASKED_FOR`) and is named by what it asks for, all of it spelled
out. So a case stays good where the rules of a table change: what is chosen then goes by another
name of those that were timed. What is around softmax is timed too (`contests.linked`), beside the
two peers that are best in the race. The result is `notebooks/records/<gpu>/chain.json`.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from ..base.gpu import H200, Gpu, gpu_in_use, of_record
from ..base.json_files import named
from ..base.mode import gpu_for_plans
from ..base.typed_json import Count, Dtype, Must, Natural, Samples
from ..catalogue import registry
from ..catalogue.registry import ASKED_FOR, asking, split_trial
from ..problem.operations import SOFTMAX
from ..problem.problem import Problem
from ..problem.shapes import CHAIN_SHAPES
from . import bench, chain, peers, samples
from .chain import ORDINARY, STATES
from .contested import CaseOfContest, Computed, Contested, Task, read_contested, write_contested
from .contests import chosen, group_of, linked, name_of, numbers
from .races import DTYPES, SLOWER, TOLERANCE, Race, maker_of
from .records import REFERENCE_GPU, folder_of, launch_of, step_hash, utc_now

FEW_ROWS = 16  # so few that a launch is much of a call
VERDICTS = {
    "best": f"no variant is faster by more than {TOLERANCE:.0%}, for all that the samples say",
    "unclear": f"the samples do not say whether one is faster by more than {TOLERANCE:.0%}",
    "BEHIND": f"a variant is faster by more than {TOLERANCE:.0%}, beyond the spread",
    "not timed": "what would be chosen now was not timed",
}


TIES = ("ahead", "level", SLOWER, "LOSS")  # of what is chosen beside the best peer


@dataclass(frozen=True)
class ChainCase(CaseOfContest):
    """One shape in one state: ours by the names of `variants`, peers and the copy, timed in turn.

    `chain_us` are samples of the chain with it, `base_us` those of the chain without softmax that
    was replayed right before: microseconds a call.
    """

    dtype: Dtype
    rows: Count
    cols: Count
    state: Annotated[str, Must(f"one of {', '.join(STATES)}", STATES.__contains__)]
    launches: dict[str, dict[str, Natural]]  # of ours
    hashes: dict[str, str]  # of the kernel files of ours
    calls: Count  # per replay
    chain_us: dict[str, Samples]
    base_us: dict[str, Samples]
    skipped: dict[str, str] = field(default_factory=dict)  # peer -> why it was not timed
    protocol: int = chain.PROTOCOL["version"]
    versions: dict[str, str] = field(default_factory=dict)  # that it was timed with
    gpu: Gpu = H200  # the file's, which names it once
    # Of what is around softmax, as a `RaceCase` has them.
    operation: Computed = SOFTMAX.name
    features: dict[str, Count] = field(default_factory=dict)
    inner: Count = 1

    @property
    def megabytes(self) -> float:
        """Of x, 10^6 bytes."""
        return self.rows * self.cols * np.dtype(self.dtype).itemsize / 1e6

    def is_current(self) -> bool:
        """Whether all of ours were timed as they are now, code and launch."""
        return all(step_hash(file) == known for file, known in self.hashes.items()) and all(
            self.launch_now(trial_of(name)) == launch for name, launch in self.launches.items()
        )

    def us(self, name: str) -> samples.Estimate:
        """What softmax adds to the chain, microseconds a call."""
        return samples.difference(self.chain_us[name], self.base_us[name])

    def lead(self, name: str, other: str) -> samples.Estimate:
        """How much less the chain takes with `name` than with `other`, as a share of what `other`
        adds to it; NaN, which is above and below nothing, where that is not more than 0."""
        whole = self.us(other).value
        less = samples.difference(self.chain_us[other], self.chain_us[name])
        return samples.Estimate(*(part / whole if whole > 0 else np.nan for part in less))

    @property
    def chosen(self) -> str | None:
        """By which name it has what `choose` picks now; None if that was not timed as it is."""
        step = self.chosen_now
        if not step:
            return None
        launch = self.launch_now(step)
        name = asking(step, launch)
        file = file_of(step)
        same = self.launches.get(name) == launch and self.hashes.get(file) == step_hash(file)
        return name if same else None

    @property
    def plain(self) -> str | None:
        """The variant of `chosen` that asks for nothing."""
        name = registry.plain(self.chosen) if self.chosen else None
        return name if name in self.launches else None

    @property
    def best(self) -> str:
        """Of ours the one that adds least."""
        return min(self.launches, key=lambda name: statistics.median(self.chain_us[name]))

    @property
    def best_peer(self) -> str | None:
        """The peer that adds least; None if none was timed."""
        others = self.chain_us.keys() - self.launches.keys() - {chain.COPY}
        return min(others, key=lambda name: self.us(name).value, default=None)

    @property
    def against_best_peer(self) -> str:
        """One of `TIES`, beyond the spread; "" where either was not timed."""
        if not self.chosen or not self.best_peer:
            return ""
        lead = self.lead(self.chosen, self.best_peer)
        if lead.above(TOLERANCE):
            return "ahead"
        if lead.below(-TOLERANCE):
            return "LOSS"
        return SLOWER if lead.below(0) else "level"

    def faster(self, name: str) -> dict[str, samples.Estimate]:
        """Those of ours that lead `name` by more than the tolerance, beyond the spread; the best
        first."""
        leads = {other: self.lead(other, name) for other in self.launches if other != name}
        found = {other: lead for other, lead in leads.items() if lead.above(TOLERANCE)}
        return dict(sorted(found.items(), key=lambda entry: -entry[1].value))

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`, on what `choose` picks."""
        name = self.chosen
        if name is None:
            return "not timed"
        if self.us(name).low <= 0:
            return "unclear"  # a share of nothing
        if self.faster(name):
            return "BEHIND"
        rivals = (other for other in self.launches if other != name)
        sure = all(self.lead(other, name).high <= TOLERANCE for other in rivals)
        return "best" if sure else "unclear"


@dataclass
class Chains(Contested):
    """All that is timed in pipelines on one GPU."""

    cases: list[ChainCase] = field(default_factory=list)

    def has(self, task: ChainTask) -> bool:
        """Whether it holds all that a task times, as it is now; a peer timed or left out."""
        gpu = of_record(self.device)
        names, problem = task.ours(gpu), task.problem
        launches = {name: launch_of(name, problem, gpu) for name in names}
        hashes = {file: step_hash(file) for file in map(file_of, names)}
        now = self.compared_versions()
        known = {
            case.state
            for case in self.cases
            if case.problem == problem
            and all(case.launches.get(name) == launch for name, launch in launches.items())
            and hashes.items() <= case.hashes.items()
            and set(task.peers) <= {*case.chain_us, *case.skipped}
            and now.items() <= case.versions.items()
        }
        return known >= {*chain.states_of(problem, gpu.l2)}

    def add(self, case: ChainCase) -> None:
        """Put a case in the place of the one that it had of that shape and state; cases are in the
        order of dtypes, shapes and states, then of `contests.linked`, whichever came first."""
        case = replace(case, versions=self.compared_versions())
        others = [other for other in self.cases if _key(other) != _key(case)]
        alone = itertools.product(DTYPES, CHAIN_SHAPES)
        runs = [*(Problem(*shape, dtype) for dtype, shape in alone), *linked()]
        order = {key: number for number, key in enumerate(itertools.product(runs, STATES))}
        self.cases = sorted([*others, case], key=lambda case: order.get(_key(case), len(order)))


def _key(case: ChainCase) -> tuple[Problem, str]:
    return case.problem, case.state


# ---- the file -----------------------------------------------------------------------------------


def chains_path(gpu: str) -> Path:
    return folder_of(gpu) / "chain.json"


def load_chains(gpu: str = REFERENCE_GPU) -> Chains:
    """Read what is recorded of pipelines. Raises `FileNotFoundError` that says how it is made,
    `ValueError` that names the file for one that is damaged or of another version of this
    program."""
    path = chains_path(gpu)
    if not path.is_file():
        raise FileNotFoundError(f"no pipelines of {gpu}: run make measure ARGS=pipelines there")
    chains = read_contested(path, Chains)
    for number, case in enumerate(chains.cases):
        pairs = [
            {name: len(series) for name, series in one.items()}
            for one in (case.chain_us, case.base_us)
        ]
        if pairs[0] != pairs[1]:
            raise ValueError(
                f"{named(path)}: cases[{number}] has other samples of chains with softmax than of "
                "those without"
            )
        if untimed := case.launches.keys() - case.chain_us.keys():
            raise ValueError(
                f"{named(path)}: cases[{number}] has a launch of {min(untimed)[:60]} and no time"
            )
    return chains


def save_chains(chains: Chains, gpu: str) -> None:
    write_contested(chains_path(gpu), chains)


def open_chains(gpu: str, device: dict, versions: dict, fresh: bool = False) -> Chains:
    """What is recorded, to go on with, or nothing yet; `Chains.has` tells what is to be timed."""
    now = Chains(device, versions, utc_now(), [chain.PROTOCOL])
    if not fresh and chains_path(gpu).is_file():
        now.go_on_from(load_chains(gpu))
    return now


# ---- one shape ----------------------------------------------------------------------------------


def variants(step: str, problem: Problem, gpu: Gpu | None = None) -> list[str]:
    """A step as its table has it for a problem, and with all else that a table may ask for: trials
    that spell it out, the step's own first. The hint is asked for where x and y together do not fit
    the L2, the programmatic launch where rows are few."""
    gpu = gpu or gpu_for_plans()
    own = launch_of(step, problem, gpu)
    size = 2 * problem.rows * problem.row_bytes
    sensible = {
        "STREAMING": (1, 0),
        "EVICT_LAST": (1, 0) if size > gpu.l2 else (0,),
        "PROGRAMMATIC": (1, 0) if problem.rows <= FEW_ROWS else (0,),
    }
    names = [name for name in ASKED_FOR if name in own]
    combined = itertools.product(*(sensible[name] for name in names))
    changes = [{}, *(dict(zip(names, values, strict=True)) for values in combined)]
    return list(dict.fromkeys(asking(step, {**own, **change}) for change in changes))


def trial_of(name: str) -> str:
    """The trial that one of ours is, however it is launched."""
    return name.removesuffix(ORDINARY)


def file_of(name: str) -> str:
    """The kernel file of one of ours."""
    return split_trial(trial_of(name)).file


@dataclass(frozen=True)
class ChainTask(Task):
    """One shape to be timed at."""

    steps: tuple[str, ...] = ()  # beside what `choose` picks

    def ours(self, gpu: Gpu) -> list[str]:
        """The trials of ours to be timed: what `choose` picks and the other steps that take the
        shape, with their variants."""
        steps = [chosen(self.problem, gpu), *self.steps]
        taking = [step for step in steps if step and launch_of(step, self.problem, gpu)]
        names = (name for step in taking for name in variants(step, self.problem, gpu))
        return list(dict.fromkeys(names))


def run_task(task: ChainTask) -> list[ChainCase]:
    """Time ours, the peers that can run the shape, and the copy, in each state. Raises `Failure`,
    which names our kernel or the peer that is wrong or fails."""
    gpu, problem = gpu_in_use(), task.problem
    skipped, ours = task.skipped(), task.ours(gpu)
    peers.free_memory()
    given = None if problem.plain else numbers(problem)
    makers = {name: bench.maker(name, given) for name in ours}
    makers |= {name: maker_of(name) for name in task.peers if name not in skipped}
    cases = []
    for state, series in chain.measure(makers, problem).items():
        timed = [name for name in series.chain_us if trial_of(name) in ours]
        launches = {name: launch_of(trial_of(name), problem, gpu) for name in timed}
        cases.append(
            ChainCase(
                problem.dtype,
                problem.rows,
                problem.cols,
                state,
                launches,
                {file: step_hash(file) for file in map(file_of, timed)},
                series.calls,
                series.chain_us,
                series.base_us,
                skipped,
                gpu=gpu,
                operation=problem.operation.name,
                features=dict(problem.features),
                inner=problem.inner,
            )
        )
    return cases


def best_peers(race: Race, problem: Problem) -> list[str]:
    """The two peers that are best in the race at an operation and dtype, those of a problem, by the
    median of their
    shares of what moves as many bytes; none where it was not raced."""
    shares: dict[str, list[float]] = {}
    for case in race.cases:
        if case.dtype == problem.dtype and group_of(case.problem) == group_of(problem):
            for name in {*case.timed} - {case.step}:
                shares.setdefault(name, []).append(case.share(name))
    return sorted(shares, key=lambda name: -statistics.median(shares[name]))[:2]


# ---- what is said of it -------------------------------------------------------------------------


def around_cases(recorded: Chains) -> list[ChainCase]:
    """Its cases around softmax."""
    return [case for case in recorded.cases if not case.problem.plain]


def chain_cases(dtype: str, gpu: str = REFERENCE_GPU) -> list[ChainCase]:
    """The recorded cases of a dtype in the order of `CHAIN_SHAPES` and `STATES`; raises as
    `load_chains`."""
    cases = load_chains(gpu).cases
    return [case for case in cases if case.dtype == dtype and case.problem.plain]


def behind(cases: Sequence[ChainCase]) -> list[str]:
    """A line for each case where a variant is faster than what `choose` picks: which, by how
    much."""
    lines = []
    for case in cases:
        if case.verdict == "BEHIND":
            (other, lead), *_ = case.faster(case.chosen).items()
            where = name_of(case.problem)
            lines.append(f"{where}, {case.state}: {other} is faster by {lead.value:.1%}")
    return lines


TITLES = ("rows x columns", "MB", "x", "copy", "ours", "plain", "best", "best peer", "verdict")


def table(cases: Sequence[ChainCase]) -> Iterator[list[str]]:
    """Cells under `TITLES`: the microseconds that each adds to the chain, what `choose` picks
    first, then its plain variant and the best of ours by name."""
    for case in cases:
        best, peer = case.best, case.best_peer
        problem = case.problem
        cells = [
            problem.place() if problem.plain else name_of(problem),
            f"{case.megabytes:.4g}",
            case.state,
        ]
        for name in (chain.COPY, case.chosen, case.plain):
            cells.append(f"{case.us(name).value:.2f}" if name else "-")
        cells.append(f"{case.us(best).value:.2f} {shown(best)}")
        cells.append(f"{case.us(peer).value:.2f} {peer}" if peer else "-")
        yield [*cells, case.verdict]


def shown(name: str) -> str:
    """One of ours in a table: its file, and what it asks for."""
    trial = split_trial(trial_of(name))
    asked = [what for what, value in trial.changes if value and what in ASKED_FOR]
    words = " ".join([trial.file, *asked])
    return words + ORDINARY if name.endswith(ORDINARY) else words
