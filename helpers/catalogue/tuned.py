"""Tuned plans: for ranges of shapes, the trial that was found to be faster than the header's rule.

    notebooks/records/<gpu>/tuned.jsonl   shipped: a grid of shapes, by make measure ARGS=tuned
    mine/plans/<gpu>.jsonl                the reader's own, by make tune, ignored by git

`dispatch` picks a kernel by its rules, and then replaces it by the trial of the first line for that
kernel and dtype that has the shape: first of the reader's own, each of which is for one shape,
unless SOFTMAX_PLANS=0 and only in live mode on that GPU; then of the shipped table of the GPU that
is planned for, whose lines have ranges of shapes.
"""

from __future__ import annotations

import functools
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypedDict

from ..base import paths
from ..base.gpu import Gpu, gpu_folder, gpu_for_plans, gpu_name, replaying
from ..base.json_files import Count, Dtype, Must, Natural, Samples, Time
from ..problem.problem import Problem
from . import store
from .store import Observation, Run

SWITCH = "SOFTMAX_PLANS"
Range = Annotated[
    tuple[Count, Count], Must("the lower bound and the upper one", lambda ends: ends[0] <= ends[1])
]


class Build(TypedDict):
    """What a kernel was when it was timed."""

    hash: str  # of the tokens of its file
    launch: dict[str, Natural]


@dataclass(frozen=True)
class Tuned(Observation):
    """The fastest trial found at one problem, timed in turn with what the rule gives and a copy;
    samples are in microseconds per call. `trial` is `rule` if nothing faster was found."""

    file = campaign = "tuned"

    problem: Problem  # that was timed
    run: Run
    rows: Range  # first and last of the shapes that the trial is chosen for
    cols: Range
    dtypes: list[Dtype]
    rule: str  # the kernel file, or trial of one, that is chosen without this line
    trial: str
    kernels: dict[str, Build]  # of rule and trial, at `problem`
    trial_us: Samples
    copy_us: Samples
    rule_us: list[Time] = field(default_factory=list)  # none if the trial is the rule's plan

    def __post_init__(self) -> None:
        if bool(self.rule_us) != (self.trial != self.rule):
            raise ValueError("times of the rule's plan belong to another trial, and to no other")

    @property
    def key(self) -> Problem:
        return self.problem

    @property
    def speedup(self) -> float:
        """How many times as fast as the rule's plan the trial is, by medians."""
        if not self.rule_us:
            return 1.0
        return statistics.median(self.rule_us) / statistics.median(self.trial_us)

    @property
    def share(self) -> float:
        """The fraction of a copy's speed that the trial reaches, by medians."""
        return statistics.median(self.copy_us) / statistics.median(self.trial_us)

    def covers(self, problem: Problem) -> bool:
        """Whether the ranges contain a problem's shape, without gaps between rows and aligned as
        what was timed, and its rows are whole packs exactly if those are; dtypes are not compared.
        """
        inside = self.rows[0] <= problem.rows <= self.rows[1]
        inside = inside and self.cols[0] <= problem.cols <= self.cols[1]
        alike = problem.contiguous and problem.aligned and problem.alike and problem.inner == 1
        return inside and alike and self.problem.packed == problem.packed

    def reason(self, own: bool) -> str:
        """Where and when it was tuned and its speedup, for `why`."""
        where = "here" if own else f"on {self.run.device['name']}"
        at = "" if own else f" at {self.problem.place()}"
        when = f"tuned {where} on {self.run.utc[:10]}{at}"
        return f"{when}: {self.speedup:.3f} times as fast as the rule's plan"


def load_tuned(gpu: str | None = None) -> list[Tuned]:
    """Return the shipped table of a GPU, by default `store.shown_gpu`: a line for each point of the
    grid that was timed. Raises as `store.read`."""
    return store.read(Tuned, gpu)


# ---- the reader's own ---------------------------------------------------------------------------


def plans_path(folder: str) -> Path:
    """Return the file of the reader's plans for a GPU, given by its folder name."""
    return paths.MINE / "plans" / f"{folder}.jsonl"


def tuned_gpus() -> list[str]:
    """Return the folder names of the GPUs that have a file of the reader's plans."""
    return sorted({path.stem for path in (paths.MINE / "plans").glob("*.jsonl")})


def read_plans(folder: str) -> list[Tuned]:
    """Return the reader's plans for a GPU; none if there is no file. Raises `ValueError` that names
    the file if it is damaged."""
    path = plans_path(folder)
    return [*store.read_file(Tuned, path).values()] if path.is_file() else []


def write_plans(folder: str, plans: Sequence[Tuned]) -> None:
    """Replace the reader's plans for a GPU; without any, the file goes."""
    path = plans_path(folder)
    if plans:
        ordered = sorted(plans, key=lambda one: (one.problem.dtype, *one.problem.shape[::-1]))
        store.write_file(path, ordered)
    else:
        path.unlink(missing_ok=True)


# ---- what is tuned for a problem ----------------------------------------------------------------


def own_plans(rule: str, problem: Problem) -> Iterator[Tuned]:
    """Yield the reader's plans for a problem on the GPU in use that replace `rule`. None in replay
    mode, with SOFTMAX_PLANS=0, and if the file is damaged, which `make tune ARGS=--show` reports.
    """
    if replaying() or os.environ.get(SWITCH) == "0":
        return
    try:
        plans = read_plans(gpu_folder(gpu_name()))
    except (OSError, ValueError):
        return
    for plan in plans:
        if plan.rule == rule and plan.problem == problem:
            yield plan


def shipped_plans(rule: str, problem: Problem, gpu: Gpu | None) -> Iterator[Tuned]:
    """Yield the shipped plans for a problem on a GPU, by default the one that is planned for, that
    replace `rule`."""
    table = _by_rule(paths.RECORDS).get(gpu or gpu_for_plans(), {})
    for plan in table.get((rule, problem.dtype), ()):
        if plan.covers(problem):
            yield plan


def tuned_table(gpu: Gpu) -> list[Tuned]:
    """Return the shipped plans of a GPU that are faster than the rule's."""
    plans = _by_rule(paths.RECORDS).get(gpu, {}).values()
    return [*{id(plan): plan for some in plans for plan in some}.values()]


@functools.cache
def _by_rule(folder: Path) -> Mapping[Gpu, Mapping[tuple[str, str], list[Tuned]]]:
    """The shipped plans by GPU, then by rule and dtype."""
    tables: dict[Gpu, dict[tuple[str, str], list[Tuned]]] = {}
    for path in sorted(folder.glob(f"*/{Tuned.file}.jsonl")):
        for plan in store.read_file(Tuned, path).values():
            table = tables.setdefault(plan.run.gpu, {})
            for dtype in plan.dtypes if plan.trial != plan.rule else ():
                table.setdefault((plan.rule, dtype), []).append(plan)
    return tables
