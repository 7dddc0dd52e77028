"""counters.json: what Nsight Compute counts of each launch."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Sequence

from ...base.arguments import checked
from ...base.gpu import Gpu
from ...catalogue.registry import UNFUSED
from ...run.bound import load
from ...simt import NSIGHT_METRICS, SHARED_METRICS
from ..records import launch_of
from ..store import REFERENCE_GPU
from ..workers import Failure
from .cases import UNFUSED_CASE, Batch, EvidenceCase, cases, run_tool, shown, worker_command
from .part import Part, hashes_of, read_part

# What the prose names. DRAM bytes come from nowhere else: the SIMT machine has no caches.
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
# The worker makes its inputs unwatched: only what it launches between start and stop is profiled.
NCU = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--csv"]
NCU += ["--print-units", "base", "--metrics", ",".join(METRICS)]


# ---- reading ------------------------------------------------------------------------------------


@checked
def nsight(
    step: str, rows: int, cols: int, dtype: str = "float32", gpu: str = REFERENCE_GPU
) -> dict[str, float]:
    """Nsight Compute's metrics of one launch, by Nsight's names.

    Raises `KeyError` that names step, shape and dtype if they were not profiled.
    """
    wanted = EvidenceCase(step, rows, cols, dtype)
    for entry in read_part("counters", gpu)["cases"]:
        if entry["step"] == step and case_of(entry) == wanted:
            return entry["metrics"]
    raise KeyError(f"no Nsight counters of {step} at {rows} x {cols} {dtype} on {gpu}")


def nsight_unfused(gpu: str = REFERENCE_GPU) -> list[tuple[str, dict[str, float]]]:
    """(CuPy's kernel, metrics) of each launch of the array version at `REFERENCE_SHAPE`."""
    return [(entry["kernel"], entry["metrics"]) for entry in read_part("counters", gpu)[UNFUSED]]


def case_of(entry: dict) -> EvidenceCase:
    """The case of an entry of the file; float32 where it names no dtype."""
    return EvidenceCase(*(entry[name] for name in EvidenceCase._fields if name in entry))


# ---- writing ------------------------------------------------------------------------------------


class CountersPart(Part):
    name = title = "counters"
    entries = "cases"

    def __init__(self, stored: dict, device: dict):
        super().__init__(stored, device)
        self.wanted = cases(gpu=self.gpu)
        known = {case_of(entry): entry for entry in stored.get("cases", [])}
        self.found = {
            case: known[case]
            for case in self.wanted
            if case in known
            and self.is_current(case.step)
            and known[case]["launch"] == launch_of(case.step, case.at, self.gpu)
        }
        self.unfused = stored.get(UNFUSED, [])

    def batches(self, steps: Sequence[str], fresh: bool) -> list[Batch]:
        chosen = []
        for step in steps:
            missing = [case for case in self.wanted if case.step == step]
            missing = [case for case in missing if fresh or case not in self.found]
            if step == UNFUSED and (fresh or not self.unfused):
                missing = [UNFUSED_CASE]
            if missing:
                chosen.append(Batch(step, tuple(missing)))
        return chosen

    def look(self, batch: Batch) -> list[dict]:
        return profile_batch(batch, self.gpu)

    def keep(self, batch: Batch, found: list[dict]) -> None:
        if batch.step == UNFUSED:
            self.unfused = found
        else:
            self.found.update(zip(batch.cases, found, strict=True))

    def content(self) -> dict:
        ordered = [case for case in self.wanted if case in self.found]
        entries = [self.found[case] for case in ordered]
        names = sorted({name for entry in (*entries, *self.unfused) for name in entry["metrics"]})
        return {
            "hashes": hashes_of(case.step for case in ordered),
            "command": shown([*NCU, *worker_command(["CASE ..."])]),
            "metrics": names,
            "cases": [with_values(entry, names) for entry in entries],
            UNFUSED: [with_values(entry, names) for entry in self.unfused],
        }


def with_values(entry: dict, names: Sequence[str]) -> dict:
    """An entry as the file has it: values in the order of the file's metrics."""
    rest = {key: value for key, value in entry.items() if key != "metrics"}
    return {**rest, "values": [entry["metrics"].get(name) for name in names]}


def profile_batch(batch: Batch, gpu: Gpu | None = None) -> list[dict]:
    """Run the worker under ncu: an entry of the file for each case, for the array version one for
    each of its launches. Raises `Failure` if ncu fails or saw other launches."""
    done = run_tool([*NCU, *worker_command(batch.cases)])
    start = done.stdout.find('"ID"')
    if done.returncode or start < 0:
        print(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}", file=sys.stderr)
        raise Failure(f"ncu ended with status {done.returncode}")
    launches: dict[int, dict] = {}
    for row in csv.DictReader(io.StringIO(done.stdout[start:])):
        entry = launches.setdefault(int(row["ID"]), {"kernel": row["Kernel Name"], "metrics": {}})
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except ValueError:
            continue  # n/a: this GPU or version has no such metric
        if math.isfinite(value):
            entry["metrics"][row["Metric Name"]] = value
    found = [launches[number] for number in sorted(launches)]
    if batch.step == UNFUSED:
        if len(found) < 5:
            raise Failure(f"ncu saw {len(found)} launches of five array operations")
        return found
    if len(found) != len(batch.cases):
        raise Failure(f"ncu saw {len(found)} launches instead of {len(batch.cases)}")
    for entry, case in zip(found, batch.cases, strict=True):
        if entry["kernel"].split("(")[0] != load(case.step).name:
            raise Failure(f"ncu saw {entry['kernel']} where {case} ran")
        entry.update(case._asdict(), launch=launch_of(case.step, case.at, gpu))
    return found
