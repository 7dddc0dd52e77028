"""Plans that were found on the reader's own GPU: mine/plans/<gpu>.json, which git does not see.

`helpers.measure.tuning` finds them and `catalogue.choose` prefers them to what is shipped, live and
on that GPU: never in replay, and not with SOFTMAX_PLANS=0.
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
    """A trial that is faster than the shipped plan at one shape, timed in turn with it and a copy:
    microseconds a call."""

    rows: Count
    cols: Count
    dtype: Dtype
    trial: str
    shipped: str
    kernels: dict[str, dict]  # of both: the hash of the code, the launch
    samples_us: Samples
    shipped_us: Samples
    copy_us: Samples
    calls: Count  # per replay
    attributes: dict[str, int]  # registers, local and shared bytes of the trial
    protocol: dict
    device: dict
    versions: dict[str, str]
    utc: Date
    operation: str = "softmax"
    features: dict[str, int] = field(default_factory=dict)  # those that are not 0
    inner: Count = 1  # elements from one column to the next

    @property
    def problem(self) -> Problem:
        """Raises `ValueError` for an operation or a feature that is not known."""
        return Problem(
            *(self.rows, self.cols, self.dtype, self.inner),
            operation=self.operation,
            features=tuple(self.features.items()),
        )

    @property
    def times(self) -> float:
        """How many times as fast as the shipped plan."""
        return statistics.median(self.shipped_us) / statistics.median(self.samples_us)

    @property
    def share(self) -> float:
        """Its bandwidth as a share of the same-size copy's."""
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
    """The folders of the GPUs that have a file."""
    return sorted(path.stem for path in (MINE / "plans").glob("*.json"))


def read_plans(folder: str) -> list[Tuned]:
    """What was tuned on a GPU; nothing if there is no file. Raises `ValueError` that names the file
    for one that is damaged or of another version of this program."""
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
    """Put a plan in the place of another one for its problem."""
    others = [other for other in read_plans(folder) if other.problem != plan.problem]
    write_plans(folder, [*others, plan])


def tuned_here(problem: Problem) -> Tuned | None:
    """The plan of the GPU in use for a problem. None without one, in replay, with SOFTMAX_PLANS=0,
    and where the file is damaged, of which `make tune ARGS=--show` says so."""
    if replaying() or os.environ.get(SWITCH) == "0":
        return None
    try:
        plans = read_plans(gpu_folder(gpu_name()))
        return next((plan for plan in plans if plan.problem == problem), None)
    except (OSError, ValueError):
        return None
