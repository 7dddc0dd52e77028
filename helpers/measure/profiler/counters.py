"""counters.jsonl: Nsight Compute's counters for each launch."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, TypedDict

from ...base.arguments import checked
from ...base.json_files import Must, Natural
from ...catalogue import store
from ...catalogue.registry import UNFUSED
from ...catalogue.store import AtProblem
from ...problem.problem import Problem
from ...run.bound import load
from ...simt import NSIGHT_METRICS, SHARED_METRICS
from .. import bench
from ..records import launch_of, step_hash
from ..workers import Failure
from .launches import (
    UNFUSED_LAUNCH,
    Launch,
    Profiled,
    ProfilerFile,
    ToolRun,
    launches,
    run_tool,
    say_if_old,
    worker_command,
)

# Metrics that the prose uses. Only Nsight has DRAM bytes: the SIMT machine has no caches.
PROSE_METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__t_sector_hit_rate.pct",
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__lsu_requests_throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum",
    "l1tex__data_pipe_lsu_wavefronts.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__inst_executed.sum",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio",
    "launch__registers_per_thread",
)
METRICS = (*NSIGHT_METRICS.values(), *SHARED_METRICS.values(), *PROSE_METRICS)
# Only launches between profiler start and stop are profiled, not the preparation of inputs.
NCU = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--csv"]
NCU += ["--print-units", "base"]


Metric = Annotated[float, Must("0 or more", lambda number: number >= 0)]


class Counted(TypedDict):
    """One kernel execution."""

    kernel: str  # name of the kernel
    values: list[Metric | None]  # in the order of the protocol's metrics; None: not available


@dataclass(frozen=True)
class NsightCounters(AtProblem, Profiled):
    """The counters of a step: of one launch, or of several for the array version."""

    file = "counters"

    step: str
    kernel_hash: str
    launch: dict[str, Natural]
    counted: list[Counted]

    def __post_init__(self) -> None:
        names = self.run.protocol.get("metrics", ())
        if any(len(one["values"]) != len(names) for one in self.counted):
            raise ValueError(f"not {len(names)} values, one for each metric of its run")

    @property
    def key(self) -> Launch:
        return Launch(self.step, self.at)

    @property
    def made_of(self) -> tuple:
        return self.kernel_hash, self.launch

    @cached_property
    def metrics(self) -> list[tuple[str, dict[str, float]]]:
        """(kernel name, metrics by Nsight's names) for each launch."""
        names = self.run.protocol["metrics"]
        pairs = [(one["kernel"], zip(names, one["values"], strict=True)) for one in self.counted]
        return [
            (kernel, {name: value for name, value in values if value is not None})
            for kernel, values in pairs
        ]


# ---- reading ------------------------------------------------------------------------------------


@checked
def nsight(
    step: str, rows: int, cols: int, dtype: str = "float32", gpu: str | None = None
) -> dict[str, float]:
    """Nsight Compute's metrics of one launch, by Nsight's names. `gpu` is by default
    `store.shown_gpu`.

    Raises `KeyError` that names step, shape and dtype if they were not profiled.
    """
    ((_, metrics),) = profiled(step, rows, cols, dtype, gpu).metrics
    return metrics


def profiled(
    step: str, rows: int, cols: int, dtype: str = "float32", gpu: str | None = None
) -> NsightCounters:
    """The counters of one launch with grid, block and macros of that launch, as `nsight`."""
    found = store.find(NsightCounters, Launch(step, Problem(rows, cols, dtype)), gpu)
    if found is None:
        name = gpu or store.shown_gpu()
        raise KeyError(f"no Nsight counters of {step} at {rows} x {cols} {dtype} on {name}")
    say_if_old(step, found.kernel_hash)
    return found


def nsight_unfused(gpu: str | None = None) -> list[tuple[str, dict[str, float]]]:
    """(CuPy's kernel, metrics) for each launch of the array version at `REFERENCE_SHAPE`."""
    found = store.find(NsightCounters, UNFUSED_LAUNCH, gpu)
    return found.metrics if found else []


# ---- writing ------------------------------------------------------------------------------------


class CountersFile(ProfilerFile):
    kind, title = NsightCounters, "counters"
    protocol = {"version": 1, "command": " ".join(NCU), "metrics": [*METRICS]}

    def wanted(self) -> dict[Launch, tuple]:
        chosen = [UNFUSED_LAUNCH, *launches(gpu=self.run.gpu)]
        return {one: (step_hash(one.step), self.launch(one)) for one in chosen}

    def launch(self, one: Launch) -> dict[str, int]:
        return {} if one.step == UNFUSED else launch_of(one.step, one.at, self.run.gpu)

    def batches(self, missing: Sequence[Launch], steps: Sequence[str]) -> list[ToolRun]:
        of_step = {step: tuple(one for one in missing if one.step == step) for step in steps}
        return [ToolRun(step, chosen) for step, chosen in of_step.items() if chosen]

    def look(self, batch: ToolRun) -> list[NsightCounters]:
        found = profile_batch(batch)
        each = [found] if batch.step == UNFUSED else [[one] for one in found]
        return [
            NsightCounters(
                bench.problem_of(one.step, one.at),
                self.run,
                one.step,
                step_hash(one.step),
                self.launch(one),
                counted,
            )
            for one, counted in zip(batch.launches, each, strict=True)
        ]


def profile_batch(batch: ToolRun) -> list[Counted]:
    """Run the worker under ncu and return the counters of each kernel in order. Raises `Failure` if
    ncu fails or saw other launches."""
    done = run_tool([*NCU, "--metrics", ",".join(METRICS), *worker_command(batch.launches)])
    start = done.stdout.find('"ID"')
    if done.returncode or start < 0:
        print(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}", file=sys.stderr)
        raise Failure(f"ncu ended with status {done.returncode}")
    rows: dict[int, list[dict[str, str]]] = {}
    for row in csv.DictReader(io.StringIO(done.stdout[start:])):
        rows.setdefault(int(row["ID"]), []).append(row)
    found: list[Counted] = []
    for number in sorted(rows):
        values = {row["Metric Name"]: value_of(row["Metric Value"]) for row in rows[number]}
        kernel = rows[number][0]["Kernel Name"]
        found.append({"kernel": kernel, "values": [values.get(name) for name in METRICS]})
    if batch.step == UNFUSED:
        if len(found) < 5:
            raise Failure(f"ncu saw {len(found)} launches of five array operations")
        return found
    if len(found) != len(batch.launches):
        raise Failure(f"ncu saw {len(found)} launches instead of {len(batch.launches)}")
    for one, launch in zip(found, batch.launches, strict=True):
        if one["kernel"].split("(")[0] != load(launch.step).name:
            raise Failure(f"ncu saw {one['kernel']} where {launch} ran")
    return found


def value_of(text: str) -> float | None:
    """The value of a metric; None for n/a, if this GPU or version does not have the metric."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
