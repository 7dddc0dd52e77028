"""Plans that were tuned on the reader's own GPU: mine/plans/<gpu>.json, which git ignores.

`helpers.measure.tuning` finds them, and `choose` prefers them to the shipped plans when live on
that GPU: never in replay, and not with SOFTMAX_PLANS=0.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypedDict

from ..base.gpu import gpu_folder, gpu_name
from ..base.json_files import named, read_json, write_json
from ..base.mode import replaying
from ..base.paths import MINE
from ..base.typed_json import Count, Date, Dtype, Samples, typed
from ..problem.problem import Problem

SWITCH = "SOFTMAX_PLANS"
SCHEMA = 1


@dataclass(frozen=True)
class Tuned:
    """A trial that is faster than the shipped plan at one shape, timed in turn with it and a copy,
    in microseconds per call."""

    rows: Count
    cols: Count
    dtype: Dtype
    trial: str
    shipped: str
    kernels: dict[str, dict]  # for both: the hash of the code, the launch
    samples_us: Samples
    shipped_us: Samples
    copy_us: Samples
    calls: Count  # calls per replay
    attributes: dict[str, int]  # registers, local and shared bytes of the trial
    protocol: dict
    device: dict
    versions: dict[str, str]
    utc: Date
    operation: str = "softmax"
    features: dict[str, int] = field(default_factory=dict)  # the nonzero ones
    inner: Count = 1  # stride between columns in elements

    @property
    def problem(self) -> Problem:
        """Raises `ValueError` for an unknown operation or feature."""
        return Problem(
            *(self.rows, self.cols, self.dtype, self.inner),
            operation=self.operation,
            features=tuple(self.features.items()),
        )

    @property
    def times(self) -> float:
        """Speedup over the shipped plan."""
        return statistics.median(self.shipped_us) / statistics.median(self.samples_us)

    @property
    def share(self) -> float:
        """Its bandwidth as a fraction of the same-size copy's."""
        return statistics.median(self.copy_us) / statistics.median(self.samples_us)

    @property
    def reason(self) -> str:
        when = f"tuned here on {self.utc[:10]}"
        return f"{when}: {self.times:.3f} times as fast as the shipped plan"


class _File(TypedDict):
    plans: list[Tuned]


def plans_path(folder: str) -> Path:
    return MINE / "plans" / f"{folder}.json"


def tuned_gpus() -> list[str]:
    """The folders of the GPUs with tuned plans."""
    return sorted(path.stem for path in (MINE / "plans").glob("*.json"))


def read_plans(folder: str) -> list[Tuned]:
    """The plans tuned on a GPU; none if there is no file. Raises `ValueError` that names a file
    which is damaged or was written by another version of this program."""
    path = plans_path(folder)
    if not path.is_file():
        return []
    fields = read_json(path)
    if fields.get("schema") != SCHEMA:
        raise ValueError(f"{named(path)} has schema {fields.get('schema')}, not {SCHEMA}")
    return typed(path, fields, _File)["plans"]


def write_plans(folder: str, plans: Sequence[Tuned]) -> None:
    ordered = sorted(plans, key=lambda plan: (plan.dtype, plan.cols, plan.rows))
    write_json(plans_path(folder), {"schema": SCHEMA, "plans": [asdict(plan) for plan in ordered]})


def keep(folder: str, plan: Tuned) -> None:
    """Replace the plan for a problem."""
    others = [other for other in read_plans(folder) if other.problem != plan.problem]
    write_plans(folder, [*others, plan])


def tuned_here(problem: Problem) -> Tuned | None:
    """The plan of the GPU in use for a problem. None if there is none, in replay, with
    SOFTMAX_PLANS=0, and if the file is damaged, which `make tune ARGS=--show` reports."""
    if replaying() or os.environ.get(SWITCH) == "0":
        return None
    try:
        plans = read_plans(gpu_folder(gpu_name()))
        return next((plan for plan in plans if plan.problem == problem), None)
    except (OSError, ValueError):
        return None
