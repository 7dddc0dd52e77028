"""Evidence from the hardware, stored beside the records: `make evidence`.

counters.json   Nsight Compute's counters: of every step at small shapes (which the tests hold
                against the SIMT machine's), of steps, variants and block trials at large shapes
                (which the prose explains), and of each launch of the array version
sass.json       the machine instructions that matter, in order, of every kernel: loads, stores,
                special functions, branches, calls
numerics.json   the error of the arithmetic that the kernels use, in units of the last place
sanitizer.json  compute-sanitizer's verdicts on every kernel at the small shapes

Needs a GPU, `ncu`, `cuobjdump` and `compute-sanitizer` on the PATH, and the right to read
counters.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import functools
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import recorder
from .bench import unfused_candidate
from .check import make_input, poisoned
from .device import ROOT, SWITCH, has_gpu
from .kernels import (
    DTYPE_OPTIONS,
    TRIALS,
    code_hash,
    header,
    source,
    step_kernel,
    step_number,
    step_plan,
    steps,
    variants,
)
from .launch import arguments, launch, to_gpu
from .records import FOLDER, REFERENCE_SHAPE, UNFUSED, gpu_folder, sass_name, write_json
from .simt.compile import compile_cubin
from .simt.counters import NSIGHT_METRICS, SHARED_METRICS

SMALL_SHAPES = ((64, 1024), (129, 77), (1000, 100))
LARGE_SHAPES = ((8388608, 32), (262144, 1024), REFERENCE_SHAPE, (16384, 16384))  # 2^28 elements
# From step 07 on, whose kernels are made for short or long rows and for 16 bits, also these.
SMALL_LONG_SHAPES = ((3, 20000), (1, 32000))
LARGE_LONG_SHAPES = ((1024, 262144),)
SMALL_16_BIT_SHAPES = ((64, 1024), (3, 20000))
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
SASS_KEPT = frozenset("LDG STG LDL STL LDS STS SHFL BAR MUFU BRA CALL EXIT".split())
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m helpers.evidence", description=__doc__)
    parser.add_argument("--worker", choices=("small", "all"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not has_gpu():
        print("make evidence reads a GPU's counters, and CuPy finds no GPU.", file=sys.stderr)
        return 1
    if importlib.util.find_spec("cuda.bindings") is None:
        print("make evidence needs the package cuda-bindings to disassemble.", file=sys.stderr)
        return 1
    if options.worker:
        run_kernels(options.worker)
        return 0
    for tool in ("ncu", "cuobjdump", "compute-sanitizer"):
        if not shutil.which(tool):
            print(f"make evidence needs {tool} of the CUDA toolkit on the PATH.", file=sys.stderr)
            return 1
    device = recorder.describe_device()
    head = {
        "device": device,
        "versions": recorder.describe_versions(),
        "hashes": {step: code_hash(source(f"{step}.cu")) for step in (*steps(), *variants())},
        "utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    folder = FOLDER / gpu_folder(device["name"])
    print("reading counters with ncu", flush=True)
    write_json(folder / "counters.json", {**head, **collect_counters()})
    print("disassembling", flush=True)
    write_json(folder / "sass.json", {**head, **collect_sass(f"sm_{device['compute_capability']}")})
    print("measuring errors", flush=True)
    write_json(folder / "numerics.json", {**head, **collect_numerics()})
    print("running compute-sanitizer", flush=True)
    verdicts = {**head, **collect_verdicts()}
    write_json(folder / "sanitizer.json", verdicts)
    return 0 if all(tool["errors"] == 0 for tool in verdicts["tools"].values()) else 1


class EvidenceCase(NamedTuple):
    """One launch that the tools look at."""

    step: str
    rows: int
    cols: int
    dtype: str = "float32"


def cases(which: str = "all") -> list[EvidenceCase]:
    """The launches in the order in which the worker makes them."""
    chosen = []
    for step in steps():
        shapes = (*SMALL_SHAPES, *(SMALL_LONG_SHAPES if step_number(step) >= 7 else ()))
        chosen += [EvidenceCase(step, *shape) for shape in shapes]
        if step_number(step) >= 7:
            chosen += [
                EvidenceCase(step, *shape, dtype)
                for dtype in DTYPE_OPTIONS
                for shape in SMALL_16_BIT_SHAPES
            ]
    for step in (*steps(), *variants(), *TRIALS) if which == "all" else ():
        later = step_number(step) >= 7
        shapes = (*LARGE_SHAPES, *(LARGE_LONG_SHAPES if later else ()))
        dtypes = ("float32", "bfloat16") if later and step in steps() else ("float32",)
        chosen += [EvidenceCase(step, *shape, dtype) for dtype in dtypes for shape in shapes]
    return [case for case in chosen if step_plan(*case)]


def run_kernels(which: str) -> None:
    """Launch each case once and nothing else; every array in an allocation of its own, so that
    compute-sanitizer sees its end. With "all" the array version comes last."""
    import cupy

    cupy.cuda.set_allocator(None)
    inputs = functools.cache(make_input)  # a large one takes seconds
    for case in cases(which):
        plan = step_plan(*case)
        x = inputs(case.rows, case.cols).astype(case.dtype, copy=False)
        values = arguments(plan, x, poisoned(x))
        kernel = step_kernel(case.step, plan)
        launch(kernel, plan.grid, plan.block, values, shared_mem=plan.shared_mem)
    if which == "all":
        x = to_gpu(inputs(*REFERENCE_SHAPE))
        unfused_candidate(*REFERENCE_SHAPE).run(x, cupy.empty_like(x))
        cupy.cuda.Device().synchronize()


def worker_command(which: str) -> list[str]:
    return [sys.executable, "-m", "helpers.evidence", "--worker", which]


def run_worker(command: list[str]) -> subprocess.CompletedProcess:
    """Run a tool over the worker, which must use the GPU even where replay is asked for."""
    live = {**os.environ, SWITCH: "0"}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=live)


def shown(command: list[str]) -> str:
    """A command as a reader would type it."""
    return " ".join(["python" if part == sys.executable else part for part in command])


def collect_counters() -> dict:
    """Run the worker under ncu; raises `RuntimeError` with its output if that fails."""
    metrics = ",".join([*NSIGHT_METRICS.values(), *SHARED_METRICS.values(), *PROSE_METRICS])
    command = ["ncu", "--clock-control", "none", "--csv", "--print-units", "base"]
    command += ["--metrics", metrics, *worker_command("all")]
    done = run_worker(command)
    start = done.stdout.find('"ID"')
    if done.returncode or start < 0:
        raise RuntimeError(f"ncu failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    launches: dict[int, dict] = {}
    for row in csv.DictReader(io.StringIO(done.stdout[start:])):
        entry = launches.setdefault(int(row["ID"]), {"kernel": row["Kernel Name"], "metrics": {}})
        try:
            entry["metrics"][row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
        except ValueError:
            continue  # n/a: this GPU or version has no such metric
    ordered, expected = [launches[number] for number in sorted(launches)], cases()
    for entry, case in zip(ordered, expected, strict=False):
        if entry["kernel"].split("(")[0] != step_kernel(case.step).name:
            raise RuntimeError(f"ncu saw {entry['kernel']} where {case} ran")
        entry.update(case._asdict())
    if len(ordered) < len(expected):
        raise RuntimeError(f"ncu saw {len(ordered)} launches instead of {len(expected)}")
    return {
        "command": shown(command),
        "cases": ordered[: len(expected)],
        UNFUSED: ordered[len(expected) :],
    }


def collect_sass(arch: str) -> dict:
    """Compile every kernel for `arch` and list its memory, special-function and control
    instructions; a register spill would show as LDL and STL."""
    kernels = {}
    for name, code, options in compilations():
        with tempfile.TemporaryDirectory() as folder:
            cubin = Path(folder) / "kernel.cubin"
            cubin.write_bytes(compile_cubin(code, options, arch))
            done = subprocess.run(
                ["cuobjdump", "-sass", str(cubin)], capture_output=True, text=True, check=True
            )
        opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", done.stdout)
        kept = [code for code in opcodes if code.split(".")[0] in SASS_KEPT]
        kernels[name] = {"instructions": len(opcodes), "in_order": kept}
    return {"arch": arch, "command": "cuobjdump -sass kernel.cubin", "kernels": kernels}


def compilations() -> list[tuple[str, str, tuple[str, ...]]]:
    """(name in sass.json, source, options) of every step and variant; of one with a Build line for
    each dtype at each large shape."""
    found = []
    for step in (*steps(), *variants()):
        code = source(f"{step}.cu")
        contract = header(code)
        if not contract.build:
            found.append((step, code, ()))
            continue
        for dtype in contract.dtypes:
            for shape in (*LARGE_SHAPES, *LARGE_LONG_SHAPES):
                if plan := step_plan(step, *shape, dtype.name):
                    found.append((sass_name(step, shape, dtype.name), code, plan.options))
    return found


# x is the argument of an exponential, s a sum: what the kernels of 03 to 06 compute from them.
NUMERICS = {
    "expf(x)": ("expf(x)", lambda x, s: np.exp(x)),
    "__expf(x)": ("__expf(x)", lambda x, s: np.exp(x)),
    "exp2f(x * log2e)": ("exp2f(x * 1.44269504f)", lambda x, s: np.exp(x)),
    "expf(x) / s": ("expf(x) / s", lambda x, s: np.exp(x) / s),
    "expf(x) * (1 / s)": ("expf(x) * (1.0f / s)", lambda x, s: np.exp(x) / s),
}


def collect_numerics() -> dict:
    """Largest and mean error of each formula against fp64, in ulp of the fp32 result.

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
    return {"inputs": "2^20 random x and s, seed 0", "errors": found}


def collect_verdicts() -> dict:
    """Run the worker under each tool of compute-sanitizer."""
    tools = {}
    for tool in TOOLS:
        command = ["compute-sanitizer", "--tool", tool, *worker_command("small")]
        done = run_worker(command)
        summary = re.findall(r"ERROR SUMMARY: (\d+) error", done.stdout)
        hazards = re.findall(r"RACECHECK SUMMARY: (\d+) hazard", done.stdout)
        found = [int(number) for number in (*summary, *hazards)]
        if not found:
            raise RuntimeError(f"{shown(command)} gave no summary:\n{done.stdout[-2000:]}")
        tools[tool] = {"command": shown(command), "errors": max(found)}
        print(f"  {tool}: {max(found)} errors", flush=True)
    return {"cases": [list(case) for case in cases("small")], "tools": tools}


if __name__ == "__main__":
    sys.exit(main())
