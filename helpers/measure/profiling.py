"""Collect profiler data on a GPU: what is profiled, the program that makes the launches, how a tool
is run on it, and how a file of its results is brought up to date."""

from __future__ import annotations

import argparse
import csv
import io
import math
import os
import re
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from ..base.gpu import SWITCH, Gpu
from ..base.paths import ROOT
from ..catalogue import registry, store
from ..catalogue.dispatch import launch_of, step_hash
from ..catalogue.plan import DTYPE_OPTIONS
from ..catalogue.registry import UNFUSED, known_steps
from ..catalogue.store import Protocol, Run
from ..problem.problem import Problem
from ..problem.shapes import (
    LARGE_LONG_SHAPES,
    LARGE_SHAPES,
    LARGE_UNALIGNED_SHAPES,
    SMALL_16_BIT_SHAPES,
    SMALL_LONG_SHAPES,
    SMALL_SHAPES,
)
from ..run.bound import load
from ..run.execute import to_gpu
from ..run.launch import launch
from ..simt import NSIGHT_METRICS, SHARED_METRICS, compile_cubin
from . import bench
from .campaign import Campaign, CampaignTask, Failure
from .gpu_arrays import buffers, host_arrays, later, with_room
from .profiler import (
    UNFUSED_LAUNCH,
    Compiled,
    Counted,
    Disassembly,
    Errors,
    Examined,
    Formula,
    Launch,
    NsightCounters,
    Profiled,
    SanitizerResult,
)
from .records import families_of

SMALL_TRIALS = ("08_ahead-CLUSTERS1",)  # one persistent cluster takes all rows


class ToolRun(NamedTuple):
    """One run of a tool: launches of one step."""

    step: str
    launches: tuple[Launch, ...] = ()
    tool: str = ""  # of compute-sanitizer

    def __str__(self) -> str:
        launches = f": {len(self.launches)} launches" if self.launches else ""
        return f"{self.tool} {self.step}{launches}".lstrip()


def examined_steps() -> list[str]:
    """All steps, variants and trials with a record, and trials that are only profiled."""
    return [*known_steps(), *SMALL_TRIALS]


def launches(which: str = "all", gpu: Gpu | None = None) -> list[Launch]:
    """The launches planned for a GPU, in the order of the files: those at small shapes first, and
    only these if `which` is "small".

    Steps that are recorded at the sweep are profiled without long rows, and their variants at the
    large shapes alone.
    """
    chosen = []
    tried = (*registry.steps(), *registry.variants(), *registry.TRIALS)
    swept = {step for step in tried if "sweep" in families_of(step)}
    small = (*registry.steps(), *(one for one in registry.variants() if one not in swept))
    for step in (*small, *SMALL_TRIALS):
        shapes = (*SMALL_SHAPES, *(() if step in swept else SMALL_LONG_SHAPES))
        chosen += [Launch(step, Problem(*shape)) for shape in shapes]
        for dtype in DTYPE_OPTIONS:
            chosen += [Launch(step, Problem(*shape, dtype)) for shape in SMALL_16_BIT_SHAPES]
    for step in tried if which == "all" else ():
        shapes = (*LARGE_SHAPES, *(() if step in swept else LARGE_LONG_SHAPES))
        if "few unaligned" in families_of(step):
            shapes = (*shapes, *LARGE_UNALIGNED_SHAPES)
        dtypes = ("float32", "bfloat16") if step in registry.steps() else ("float32",)
        chosen += [Launch(step, Problem(*shape, dtype)) for dtype in dtypes for shape in shapes]
    return [one for one in chosen if launch_of(one.step, one.at, gpu)]


# ---- the program that the tools watch -----------------------------------------------------------


def run_kernels(chosen: Sequence[Launch]) -> None:
    """Make each launch once, and expose nothing else to the profilers; every array of a small shape
    has its own allocation, so that compute-sanitizer sees where it ends."""
    import cupy
    from cupyx.profiler import profile

    cupy.cuda.set_allocator(None)
    for step, at in chosen:
        problem = bench.problem_of(step, at)
        candidate = bench.maker(step)(problem)
        if at.rows * at.cols < 2**20:
            arrays = tuple(map(to_gpu, host_arrays(problem).values()))
        else:
            arrays = buffers(problem, cupy.random.default_rng(0))
        if candidate.late:
            *inputs, y = arrays
            arrays = (*inputs, later(with_room(y)))
        cupy.cuda.Device().synchronize()
        with profile():
            candidate.run(*arrays)
            cupy.cuda.Device().synchronize()


def worker_command(chosen: Sequence[Launch]) -> list[str]:
    """The command that runs `run_kernels` in a process of its own."""
    return [
        sys.executable,
        "-m",
        "helpers.commands.measure",
        "profile",
        "--worker",
        *map(str, chosen),
    ]


def run_tool(command: list[str]) -> subprocess.CompletedProcess:
    """Run a tool on the worker, which must use the GPU even if replay is forced."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # ncu locks a file in TMPDIR, and would wait for another ncu that profiles another GPU.
        live = {**os.environ, SWITCH: "0", "TMPDIR": folder}
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=live)


# ---- a file of observations ---------------------------------------------------------------------


class ProfilerFile(ABC):
    """One file: the observations that it should contain, and how they are made."""

    kind: ClassVar[type[Profiled]]
    title: ClassVar[str]  # in lines of progress
    protocol: ClassVar[Protocol]

    def __init__(self, run: Run):
        self.run = run

    @abstractmethod
    def wanted(self) -> Mapping[Hashable, object]:
        """The key of each observation that the file should hold -> what it is `made_of` now."""

    @abstractmethod
    def batches(self, missing: Sequence[Hashable], steps: Sequence[str]) -> list[ToolRun]:
        """The runs that make the missing observations of these steps."""

    @abstractmethod
    def look(self, batch: ToolRun) -> list[Profiled]:
        """The observations of a run, made in this process or in a child with a copy of this object.
        Raises `Failure` if there are none."""

    def complaints(self, found: Sequence[Profiled]) -> list[str]:
        """Errors found in the kernels, one line each."""
        return []


@dataclass(frozen=True)
class ToolTask(CampaignTask):
    """One run of a tool for a file."""

    part: ProfilerFile
    run: ToolRun

    def __str__(self) -> str:
        return str(self.run)

    def measure(self) -> list[Profiled]:
        return self.part.look(self.run)


def update(make: type[ProfilerFile], options: argparse.Namespace) -> int:
    """Bring a file up to date for the steps of `options`, all of it if it has `fresh`; returns the
    exit status: 1 after a failed run or a complaint."""
    campaign = Campaign(make.kind, make.protocol, options)
    part, known = make(campaign.run), campaign.known
    wanted = part.wanted()
    campaign.order = {key: place for place, key in enumerate(wanted)}
    campaign.known = [one for one in known if one.key in wanted]
    valid = {
        one.key
        for one in campaign.known
        if one.made_of == wanted[one.key]
        and one.run.protocol == part.protocol
        and not store.changed(one.run.versions, campaign.run.versions)
    }
    missing = [key for key in wanted if options.fresh or key not in valid]
    batches = [ToolTask(part, one) for one in part.batches(missing, options.steps)]
    print(f"{part.title}: {len(batches) or 'no'} batches to run", flush=True)
    status = campaign.end(campaign.measure(batches))
    if not batches and 0 < len(campaign.known) < len(known):
        campaign.put(())  # without observations that are no longer wanted
    for line in part.complaints(campaign.known):
        print(line, file=sys.stderr)
        status = 1
    return status


# ---- counters -----------------------------------------------------------------------------------

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
    for one, asked in zip(found, batch.launches, strict=True):
        if one["kernel"].split("(")[0] != load(asked.step).name:
            raise Failure(f"ncu saw {one['kernel']} where {asked} ran")
    return found


def value_of(text: str) -> float | None:
    """The value of a metric; None for n/a, if this GPU or version does not have the metric."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# ---- disassembly --------------------------------------------------------------------------------

KEPT = frozenset(
    "LDG STG LDL STL LDS STS LDGSTS LDGDEPBAR DEPBAR ST LD STAS SYNCS UCGABAR_ARV UCGABAR_WAIT "
    "UBLKCP ACQBULK PREEXIT SHFL BAR MUFU BRA CALL EXIT".split()
)


class SassFile(ProfilerFile):
    kind, title = Disassembly, "sass"
    protocol = {"version": 1, "command": "cuobjdump -sass kernel.cubin", "kept": sorted(KEPT)}

    def wanted(self) -> dict[Compiled, tuple]:
        return {
            one: (step_hash(one.step), [*options]) for one, _, options in compilations(self.run.gpu)
        }

    def batches(self, missing: Sequence[Compiled], steps: Sequence[str]) -> list[ToolRun]:
        of_missing = {one.step for one in missing}
        return [ToolRun(step) for step in steps if step in of_missing]

    def look(self, batch: ToolRun) -> list[Disassembly]:
        found = []
        for (step, at), code, options in compilations(self.run.gpu):
            if step == batch.step:
                read = disassemble(code, options, f"sm_{self.run.device['compute_capability']}")
                in_order = [name for name in read if name.split(".")[0] in KEPT]
                counts = Counter(name.split(".")[0] for name in read)
                hash_ = step_hash(step)
                found.append(
                    Disassembly(self.run, step, hash_, [*options], in_order, dict(counts), at)
                )
        return found


def disassemble(code: str, options: Sequence[str], arch: str) -> list[str]:
    """Compile a source and return all its instructions; a register spill shows as LDL and STL."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compile_cubin(code, options, arch))
        done = subprocess.run(
            ["cuobjdump", "-sass", str(cubin)], capture_output=True, text=True, check=True
        )
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", done.stdout)


def compilations(gpu: Gpu | None = None) -> Iterator[tuple[Compiled, str, tuple[str, ...]]]:
    """(what is compiled, source, options) for every step and variant; with a Build table, for each
    dtype at each large shape, as planned for a GPU."""
    for step in (*registry.steps(), *registry.variants()):
        kernel = load(step)
        if not kernel.header.build:
            yield Compiled(step), kernel.code, ()
            continue
        for dtype in (dtype.name for dtype in kernel.header.dtypes):
            for shape in (*LARGE_SHAPES, *LARGE_LONG_SHAPES):
                if kernel.accepts(*shape, dtype, gpu):
                    options = kernel.bind(*shape, dtype, gpu).options
                    yield Compiled(step, Problem(*shape, dtype)), kernel.code, options


# ---- errors of the arithmetic -------------------------------------------------------------------

# x is the argument of an exponential, s a sum: the arithmetic of the kernels of 03 to 06.
NUMERICS = {
    "expf(x)": ("expf(x)", lambda x, s: np.exp(x)),
    "__expf(x)": ("__expf(x)", lambda x, s: np.exp(x)),
    "exp2f(x * log2e)": ("exp2f(x * 1.44269504f)", lambda x, s: np.exp(x)),
    "expf(x) / s": ("expf(x) / s", lambda x, s: np.exp(x) / s),
    "expf(x) * (1 / s)": ("expf(x) * (1.0f / s)", lambda x, s: np.exp(x) / s),
}


class NumericsFile(ProfilerFile):
    """Measured in one go, if an error of any of `NUMERICS` is missing."""

    kind, title = Formula, "numerics"
    protocol = {"version": 1, "inputs": "2^20 random x and s, seed 0"}

    def wanted(self) -> dict[str, str]:
        return {formula: expression for formula, (expression, _) in NUMERICS.items()}

    def batches(self, missing: Sequence[str], steps: Sequence[str]) -> list[ToolRun]:
        return [ToolRun("errors of the arithmetic")] if missing else []

    def look(self, batch: ToolRun) -> list[Formula]:
        errors = measure_errors()
        return [
            Formula(self.run, formula, expression, errors[formula])
            for formula, expression in self.wanted().items()
        ]


def measure_errors() -> dict[str, dict[str, Errors]]:
    """Formula -> range of x -> largest and mean error against fp64, in ulp of the fp32 result.

    Over 2^20 arguments from [-20, 0], and from [-80, 0] for the tails, with sums in [1, 4096].
    """
    import cupy

    random = np.random.default_rng(0)
    s = np.exp(random.uniform(0, np.log(4096), 2**20)).astype(np.float32)
    found = {}
    for lowest in (-20, -80):
        x = random.uniform(lowest, 0, 2**20).astype(np.float32)
        for name, (formula, exact) in NUMERICS.items():
            code = (
                'extern "C" __global__ void probe(const float* xs, const float* ss, float* y) {'
                " const int i = blockIdx.x * blockDim.x + threadIdx.x;"
                f" const float x = xs[i], s = ss[i]; y[i] = {formula}; }}"
            )
            y = np.empty_like(x)
            launch(cupy.RawKernel(code, "probe"), 2**12, 2**8, (x, s, y))
            wanted = exact(x.astype(np.float64), s.astype(np.float64))
            normal = wanted >= np.finfo(np.float32).smallest_normal
            ulp = np.spacing(wanted[normal].astype(np.float32)).astype(np.float64)
            error = np.abs(y[normal] - wanted[normal]) / ulp
            found.setdefault(name, {})[f"x in [{lowest}, 0]"] = {
                "max_ulp": round(float(error.max()), 2),
                "mean_ulp": round(float(error.mean()), 3),
            }
    return found


# ---- compute-sanitizer --------------------------------------------------------------------------

# API errors do not concern kernels: cuda.bindings looks up functions that an older driver lacks. A
# failing call raises anyway.
OPTIONS = {
    "memcheck": ["--report-api-errors", "no"],
    "racecheck": [],
    "initcheck": [],
    "synccheck": [],
}


class SanitizerFile(ProfilerFile):
    kind, title = SanitizerResult, "compute-sanitizer"
    protocol = {
        "version": 1,
        "command": {
            tool: " ".join(["compute-sanitizer", "--tool", tool, *options])
            for tool, options in OPTIONS.items()
        },
    }

    def __init__(self, run: Run):
        super().__init__(run)
        self.small: dict[str, tuple[Launch, ...]] = {}
        for one in launches("small", run.gpu):
            self.small[one.step] = (*self.small.get(one.step, ()), one)

    def wanted(self) -> dict[Examined, tuple]:
        made_of = {step: (step_hash(step), self.launches(step)) for step in self.small}
        return {Examined(step, tool): made_of[step] for tool in OPTIONS for step in self.small}

    def launches(self, step: str) -> dict[str, dict[str, int]]:
        return {
            at.place(dtype=True): launch_of(step, at, self.run.gpu) for _, at in self.small[step]
        }

    def batches(self, missing: Sequence[Examined], steps: Sequence[str]) -> list[ToolRun]:
        return [ToolRun(step, self.small[step], tool) for step, tool in missing if step in steps]

    def look(self, batch: ToolRun) -> list[SanitizerResult]:
        step, errors = batch.step, errors_in(batch)
        launched = self.launches(step)
        return [SanitizerResult(self.run, step, batch.tool, step_hash(step), launched, errors)]

    def complaints(self, found: Sequence[SanitizerResult]) -> list[str]:
        bad = [one for one in found if one.errors]
        return [f"{one.tool} found {one.errors} errors in {one.step}" for one in bad]


def errors_in(batch: ToolRun) -> int:
    """Run the worker under a tool and return the number of reported errors. Raises `Failure` if
    there is no summary, or if the worker failed although the tool found nothing."""
    command = SanitizerFile.protocol["command"][batch.tool].split()
    done = run_tool([*command, *worker_command(batch.launches)])
    summaries = re.findall(r"ERROR SUMMARY: (\d+) error", done.stdout)
    hazards = re.findall(r"RACECHECK SUMMARY: (\d+) hazard", done.stdout)
    errors = max(map(int, (*summaries, *hazards)), default=None)
    if errors is None or (done.returncode and not errors):
        print(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}", file=sys.stderr)
        raise Failure(f"{batch.tool} ended with status {done.returncode} and no error found")
    if errors:
        print("\n".join(done.stdout.splitlines()[:20]), file=sys.stderr)
    return errors
