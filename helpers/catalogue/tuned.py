"""Plans tuned on the reader's own GPU: mine/plans/<gpu>.json, ignored by git.

`helpers.measure.tuning` finds them, and `choose` prefers them to the shipped plans in live mode on
that GPU, unless SOFTMAX_PLANS=0.
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
    """A trial that beats the shipped plan for one problem. It was timed in alternation with the
    shipped plan and a copy; samples are in microseconds per call."""

    rows: Count
    cols: Count
    dtype: Dtype
    trial: str
    shipped: str
    kernels: dict[str, dict]  # trial and shipped -> code hash and launch
    samples_us: Samples
    shipped_us: Samples
    copy_us: Samples
    calls: Count  # per replay of a CUDA graph
    attributes: dict[str, int]  # registers, local and shared bytes of the trial
    protocol: dict
    device: dict
    versions: dict[str, str]
    utc: Date
    operation: str = "softmax"
    features: dict[str, int] = field(default_factory=dict)  # non-zero features
    inner: Count = 1  # elements between neighbours in a row

    @property
    def problem(self) -> Problem:
        """The problem it was tuned for; raises `ValueError` for an unknown operation or feature."""
        return Problem(
            *(self.rows, self.cols, self.dtype, self.inner),
            operation=self.operation,
            features=tuple(self.features.items()),
        )

    @property
    def times(self) -> float:
        """The speedup over the shipped plan."""
        return statistics.median(self.shipped_us) / statistics.median(self.samples_us)

    @property
    def share(self) -> float:
        """The bandwidth as a fraction of that of a copy of the same size."""
        return statistics.median(self.copy_us) / statistics.median(self.samples_us)

    @property
    def reason(self) -> str:
        """When it was tuned and its speedup, for `why`."""
        when = f"tuned here on {self.utc[:10]}"
        return f"{when}: {self.times:.3f} times as fast as the shipped plan"


class _File(TypedDict):
    plans: list[Tuned]


def plans_path(folder: str) -> Path:
    """Return the file of the plans tuned on a GPU, given by its folder name."""
    return MINE / "plans" / f"{folder}.json"


def tuned_gpus() -> list[str]:
    """Return the folder names of the GPUs that have a file of tuned plans."""
    return sorted(path.stem for path in (MINE / "plans").glob("*.json"))


def read_plans(folder: str) -> list[Tuned]:
    """Return the plans tuned on a GPU; none if there is no file. Raises `ValueError` that names the
    file if it is damaged or has another schema version."""
    path = plans_path(folder)
    if not path.is_file():
        return []
    fields = read_json(path)
    if fields.get("schema") != SCHEMA:
        raise ValueError(f"{named(path)} has schema {fields.get('schema')}, not {SCHEMA}")
    return typed(path, fields, _File)["plans"]


def write_plans(folder: str, plans: Sequence[Tuned]) -> None:
    """Replace the plans tuned on a GPU."""
    ordered = sorted(plans, key=lambda plan: (plan.dtype, plan.cols, plan.rows))
    write_json(plans_path(folder), {"schema": SCHEMA, "plans": [asdict(plan) for plan in ordered]})


def keep(folder: str, plan: Tuned) -> None:
    """Save a plan, replacing an earlier one for the same problem."""
    others = [other for other in read_plans(folder) if other.problem != plan.problem]
    write_plans(folder, [*others, plan])


def tuned_here(problem: Problem) -> Tuned | None:
    """Return the plan tuned for a problem on the GPU in use. None without one, in replay mode, with
    SOFTMAX_PLANS=0, and if the file is damaged, which `make tune ARGS=--show` reports."""
    if replaying() or os.environ.get(SWITCH) == "0":
        return None
    try:
        plans = read_plans(gpu_folder(gpu_name()))
        return next((plan for plan in plans if plan.problem == problem), None)
    except (OSError, ValueError):
        return None
