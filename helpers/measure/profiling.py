"""Collect profiler data on a GPU: what is profiled, the program that makes the launches, how a tool
is run on it, and how a file of its results is brought up to date."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import itertools
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..base.gpu import SWITCH, Gpu
from ..base.paths import ROOT
from ..catalogue import registry
from ..catalogue.dispatch import launch_of, plan_of, step_hash
from ..catalogue.plan import DTYPE_OPTIONS
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
    NUMERICS,
    UNFUSED_LAUNCH,
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


def count(run: Run, chosen: Sequence[Launch]) -> list[NsightCounters]:
    """Nsight Compute's counters of launches of one step."""
    found = profile_launches(chosen)
    each = [found] if chosen[0] == UNFUSED_LAUNCH else [[one] for one in found]
    return [
        NsightCounters(
            bench.problem_of(one.step, one.at),
            run,
            one.step,
            step_hash(one.step),
            {} if one == UNFUSED_LAUNCH else launch_of(one.step, one.at, run.gpu),
            counted,
        )
        for one, counted in zip(chosen, each, strict=True)
    ]


def profile_launches(chosen: Sequence[Launch]) -> list[Counted]:
    """Run the worker under ncu and return the counters of each kernel in order. Raises `Failure` if
    ncu fails or saw other launches."""
    done = run_tool([*NCU, "--metrics", ",".join(METRICS), *worker_command(chosen)])
    launched = parse_ncu(done.stdout)
    if done.returncode or not launched:
        print(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}", file=sys.stderr)
        raise Failure(f"ncu ended with status {done.returncode}")
    found: list[Counted] = [
        {"kernel": kernel, "values": [metrics.get(name) for name in METRICS]}
        for kernel, metrics in launched
    ]
    if chosen[0] == UNFUSED_LAUNCH:
        if len(found) < 5:
            raise Failure(f"ncu saw {len(found)} launches of five array operations")
        return found
    if len(found) != len(chosen):
        raise Failure(f"ncu saw {len(found)} launches instead of {len(chosen)}")
    for one, asked in zip(found, chosen, strict=True):
        if one["kernel"].split("(")[0] != load(asked.step).name:
            raise Failure(f"ncu saw {one['kernel']} where {asked} ran")
    return found


def parse_ncu(text: str) -> list[tuple[str, dict[str, float]]]:
    """The kernel and the metrics of each launch in the CSV that ncu prints. A metric that this GPU
    or version does not have (n/a) is left out."""
    found: dict[int, tuple[str, dict[str, float]]] = {}
    start = text.find('"ID"')
    for row in csv.DictReader(io.StringIO(text[start:])) if start >= 0 else ():
        if (row["ID"] or "").isdigit() and row[
            "Metric Name"
        ]:  # otherwise a line of the program itself
            _, metrics = found.setdefault(int(row["ID"]), (row["Kernel Name"], {}))
            with contextlib.suppress(ValueError):
                value = float((row["Metric Value"] or "").replace(",", ""))
                metrics |= {row["Metric Name"]: value} if math.isfinite(value) else {}
    return [found[number] for number in sorted(found)]


# ---- disassembly --------------------------------------------------------------------------------

KEPT = frozenset(
    "LDG STG LDL STL LDS STS LDGSTS LDGDEPBAR DEPBAR ST LD STAS SYNCS UCGABAR_ARV UCGABAR_WAIT "
    "UBLKCP ACQBULK PREEXIT SHFL BAR MUFU BRA CALL EXIT".split()
)


def disassembled(run: Run, keys: Sequence[Launch]) -> list[Disassembly]:
    """The instructions of compilations of one step, as planned for the GPU of the run."""
    found = []
    for key in keys:
        options = plan_of(key.step, key.at, run.gpu).options if key.at else ()
        arch = f"sm_{run.device['compute_capability']}"
        read = disassemble(load(key.step).code, options, arch)
        in_order = [name for name in read if name.split(".")[0] in KEPT]
        counts = dict(Counter(name.split(".")[0] for name in read))
        hash_ = step_hash(key.step)
        found.append(Disassembly(run, key.step, hash_, [*options], in_order, counts, key.at))
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


def compilations(gpu: Gpu) -> list[Launch]:
    """Every step and variant; with a Build table, for each dtype at each large shape that a plan
    for a GPU accepts."""
    found = []
    for step in (*registry.steps(), *registry.variants()):
        contract = load(step).header
        dtypes = [dtype.name for dtype in contract.dtypes]
        shapes = itertools.product(dtypes, (*LARGE_SHAPES, *LARGE_LONG_SHAPES))
        at = [Problem(*shape, dtype) for dtype, shape in shapes] if contract.build else [None]
        found += [Launch(step, one) for one in at if one is None or launch_of(step, one, gpu)]
    return found


# ---- errors of the arithmetic -------------------------------------------------------------------


def formulas(run: Run, keys: Sequence[str]) -> list[Formula]:
    """The errors of `NUMERICS`, all measured in one go."""
    errors = measure_errors()
    return [Formula(run, key, NUMERICS[key][0], errors[key]) for key in NUMERICS]


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


SANITIZER = {
    tool: " ".join(["compute-sanitizer", "--tool", tool, *options])
    for tool, options in OPTIONS.items()
}


def examined(run: Run, keys: Sequence[Examined]) -> list[SanitizerResult]:
    """The verdicts of tools on steps."""
    found = []
    for step, tool in keys:
        chosen = [one for one in launches("small", run.gpu) if one.step == step]
        launched = {at.place(dtype=True): launch_of(step, at, run.gpu) for _, at in chosen}
        errors = errors_in(tool, chosen)
        found.append(SanitizerResult(run, step, tool, step_hash(step), launched, errors))
    return found


def errors_in(tool: str, chosen: Sequence[Launch]) -> int:
    """Run the worker under a tool and return the number of reported errors. Raises `Failure` if
    there is no summary, or if the worker failed although the tool found nothing."""
    done = run_tool([*SANITIZER[tool].split(), *worker_command(chosen)])
    summaries = re.findall(r"ERROR SUMMARY: (\d+) error", done.stdout)
    hazards = re.findall(r"RACECHECK SUMMARY: (\d+) hazard", done.stdout)
    errors = max(map(int, (*summaries, *hazards)), default=None)
    if errors is None or (done.returncode and not errors):
        print(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}", file=sys.stderr)
        raise Failure(f"{tool} ended with status {done.returncode} and no error found")
    if errors:
        print("\n".join(done.stdout.splitlines()[:20]), file=sys.stderr)
    return errors


# ---- the files of profiler data -----------------------------------------------------------------


class ProfilerFile(NamedTuple):
    """How the observations of a kind are made."""

    kind: type[Profiled]
    protocol: Protocol
    keys: Callable[[Gpu], Sequence[Hashable]]  # of all observations, in the order of the file
    look: Callable[[Run, Sequence], list[Profiled]]  # at some of them
    tool: str = ""  # that must be on the PATH


FILES = (
    ProfilerFile(
        NsightCounters,
        {"version": 1, "command": " ".join(NCU), "metrics": [*METRICS]},
        lambda gpu: [UNFUSED_LAUNCH, *launches(gpu=gpu)],
        count,
        "ncu",
    ),
    ProfilerFile(
        Disassembly,
        {"version": 1, "command": "cuobjdump -sass kernel.cubin", "kept": sorted(KEPT)},
        compilations,
        disassembled,
        "cuobjdump",
    ),
    ProfilerFile(
        Formula,
        {"version": 1, "inputs": "2^20 random x and s, seed 0"},
        lambda gpu: [*NUMERICS],
        formulas,
    ),
    ProfilerFile(
        SanitizerResult,
        {"version": 1, "command": SANITIZER},
        lambda gpu: [
            Examined(step, tool)
            for tool in OPTIONS
            for step in dict.fromkeys(one.step for one in launches("small", gpu))
        ],
        examined,
        "compute-sanitizer",
    ),
)


@dataclass(frozen=True)
class ProfilerTask(CampaignTask):
    """One run of a tool."""

    name: str  # as `title_of` has it
    run: Run
    keys: tuple[Hashable, ...]
    look: Callable[[Run, Sequence], list[Profiled]]

    def __str__(self) -> str:
        return self.name

    def wanted_keys(self) -> tuple[Hashable, ...]:
        return self.keys

    def of(self, keys: Sequence[Hashable]) -> ProfilerTask:
        return replace(self, keys=tuple(keys))

    def measure(self) -> list[Profiled]:
        """Raises `Failure` if there are no observations."""
        return self.look(self.run, self.keys)


def title_of(file: ProfilerFile, key: Hashable) -> str:
    """The run of a tool that makes an observation: one for each step, and for each of the tools of
    compute-sanitizer; one for all formulas."""
    words = file.kind.file, getattr(key, "tool", ""), getattr(key, "step", "")
    return " ".join(filter(None, words))


def update(file: ProfilerFile, options: argparse.Namespace) -> int | None:
    """Bring a file up to date; returns the exit status: 1 after a failed run or a complaint, None
    if --only finds no run for it."""
    campaign = Campaign(file.kind, file.protocol, options)
    campaign.order = file.keys(campaign.run.gpu)
    recorded, keys = len(campaign.known), {*campaign.order}
    campaign.known = {key: one for key, one in campaign.known.items() if key in keys}
    runs: dict[str, list[Hashable]] = {}
    for key in campaign.order:
        runs.setdefault(title_of(file, key), []).append(key)
    tasks = campaign.due(
        ProfilerTask(title, campaign.run, tuple(keys), file.look) for title, keys in runs.items()
    )
    if not campaign.wanted:
        return None
    if tasks and file.tool and not shutil.which(file.tool):
        print(f"profiling needs {file.tool} of the CUDA toolkit on the PATH", file=sys.stderr)
        return 1
    status = campaign.complete(tasks)
    if not tasks and 0 < len(campaign.known) < recorded:
        campaign.put(())  # without observations that are no longer wanted
    for complaint in filter(None, (one.complaint for one in campaign.known.values())):
        print(complaint, file=sys.stderr)
        status = 1
    return status
