"""Evidence from the hardware, stored beside the records: `make evidence`.

counters.json   Nsight Compute's counters: of every step at small shapes (which the tests hold
                against the SIMT machine's), of steps, variants and block trials at large shapes
                (which the prose explains), and of each launch of the array version
sass.json       the machine instructions of every kernel: those that matter in order (loads, stores,
                special functions, barriers, branches, calls), all of them counted
numerics.json   the error of the arithmetic that the kernels use, in units of the last place
sanitizer.json  compute-sanitizer's verdicts on every kernel at the small shapes

Safe to interrupt: the tools run over one step at a time, and what they found is written after each.
A second call goes on where the first one stopped, and looks again only at kernels whose code or
launch changed since; after a change of driver, NVRTC or CuPy at all of them.

Needs a GPU, `ncu`, `cuobjdump` and `compute-sanitizer` on the PATH, and the right to read
counters.
"""

from __future__ import annotations

import argparse
import collections
import csv
import datetime
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import gpus, recorder
from .check import make_input
from .execute import to_gpu
from .gpu import has_gpu
from .kernels import (
    DTYPE_OPTIONS,
    TRIALS,
    header,
    source,
    split_trial,
    step_kernel,
    step_number,
    step_plan,
    steps,
    variants,
)
from .launch import launch
from .mode import SWITCH
from .paths import ROOT
from .records import (
    FOLDER,
    REFERENCE_SHAPE,
    UNFUSED,
    gpu_folder,
    sass_name,
    step_hash,
    write_json,
)
from .simt.compile import compile_cubin
from .simt.counters import NSIGHT_METRICS, SHARED_METRICS

SMALL_SHAPES = ((64, 1024), (129, 77), (1000, 100))
LARGE_SHAPES = ((8388608, 32), (262144, 1024), REFERENCE_SHAPE, (16384, 16384))  # 2^28 elements
# From step 07 on, whose kernels are made for short or long rows and for 16 bits, also these.
SMALL_LONG_SHAPES = ((3, 20004), (1, 32000))
LARGE_LONG_SHAPES = ((1024, 262144), (256, 1048576))
SMALL_16_BIT_SHAPES = ((64, 1024), (129, 72), (3, 20000))
SMALL_TRIALS = ("variants/08_ahead-CLUSTERS1",)  # one cluster takes row after row
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
SASS_KEPT = frozenset(
    "LDG STG LDL STL LDS STS LDGSTS LDGDEPBAR DEPBAR ST LD STAS SYNCS UCGABAR_ARV UCGABAR_WAIT "
    "UBLKCP ACQBULK PREEXIT SHFL BAR MUFU BRA CALL EXIT".split()
)
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PARTS = ("counters", "sass", "numerics", "sanitizer")


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = parse_arguments(arguments)
    if not has_gpu():
        print("make evidence reads a GPU's counters, and CuPy finds no GPU.", file=sys.stderr)
        return 1
    if options.worker:
        run_kernels([EvidenceCase.parse(text) for text in options.worker])
        return 0
    if "sass" in options.only and importlib.util.find_spec("cuda.bindings") is None:
        print("make evidence needs the package cuda-bindings to disassemble.", file=sys.stderr)
        return 1
    tools = {"counters": "ncu", "sass": "cuobjdump", "sanitizer": "compute-sanitizer"}
    for tool in (tools[part] for part in options.only if part in tools):
        if not shutil.which(tool):
            print(f"make evidence needs {tool} of the CUDA toolkit on the PATH.", file=sys.stderr)
            return 1
    device = recorder.describe_device()
    head = {
        "device": device,
        "versions": recorder.describe_versions(),
        "utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    update = {
        "counters": update_counters,
        "sass": update_sass,
        "numerics": update_numerics,
        "sanitizer": update_sanitizer,
    }
    folder = FOLDER / gpu_folder(device["name"])
    failed = 0
    for part in options.only:
        path = folder / f"{part}.json"
        stored = open_evidence(path, head["versions"])
        begun = {} if options.fresh else {key: stored[key] for key in head if key in stored}
        failed += update[part](path, {**head, **begun}, stored, options)
    print(f"evidence is in {folder}")
    return 1 if failed else 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m helpers.evidence", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="only these files")
    parser.add_argument(
        "--steps",
        nargs="+",
        metavar="STEP",
        choices=known_steps(),
        default=known_steps(),
        help="only these steps",
    )
    parser.add_argument("--fresh", action="store_true", help="look again at what is recorded")
    gpus.add_jobs_option(parser)
    parser.add_argument("--worker", nargs="+", metavar="CASE", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


# ---- what is launched ---------------------------------------------------------------------------


class EvidenceCase(NamedTuple):
    """One launch that the tools look at."""

    step: str
    rows: int
    cols: int
    dtype: str = "float32"

    @classmethod
    def parse(cls, text: str) -> EvidenceCase:
        """The reverse of `str`."""
        step, rows, cols, dtype = text.split(":")
        return cls(step, int(rows), int(cols), dtype)

    def __str__(self) -> str:
        return ":".join(map(str, self))


def known_steps() -> list[str]:
    """What the recorder knows, and trials that are not recorded."""
    return [*recorder.known_steps(), *SMALL_TRIALS]


def cases(which: str = "all") -> list[EvidenceCase]:
    """The launches of kernels in the order in which the files list them."""
    chosen = []
    later_variants = (name for name in variants() if step_number(name) >= 7)
    for step in (*steps(), *later_variants, *SMALL_TRIALS):
        later = step_number(step) >= 7
        shapes = (*SMALL_SHAPES, *(SMALL_LONG_SHAPES if later else ()))
        chosen += [EvidenceCase(step, *shape) for shape in shapes]
        for dtype in DTYPE_OPTIONS if later else ():
            chosen += [EvidenceCase(step, *shape, dtype) for shape in SMALL_16_BIT_SHAPES]
    for step in (*steps(), *variants(), *TRIALS) if which == "all" else ():
        later = step_number(step) >= 7
        shapes = (*LARGE_SHAPES, *(LARGE_LONG_SHAPES if later else ()))
        dtypes = ("float32", "bfloat16") if later and step in steps() else ("float32",)
        chosen += [EvidenceCase(step, *shape, dtype) for dtype in dtypes for shape in shapes]
    return [case for case in chosen if step_plan(*case)]


UNFUSED_CASE = EvidenceCase(UNFUSED, *REFERENCE_SHAPE)


class Batch(NamedTuple):
    """What a tool looks at in one go: launches of one step."""

    step: str
    cases: tuple[EvidenceCase, ...]
    tool: str = ""  # of compute-sanitizer

    def __str__(self) -> str:
        launches = f": {len(self.cases)} launches" if self.cases else ""
        return f"{self.tool} {self.step}{launches}".lstrip()


def run_kernels(chosen: Sequence[EvidenceCase]) -> None:
    """Launch each case once and show the profilers nothing else; every array in an allocation of
    its own, so that compute-sanitizer sees its end."""
    import cupy
    from cupyx.profiler import profile

    cupy.cuda.set_allocator(None)
    for case in chosen:
        candidate = recorder.maker(case.step)(case.rows, case.cols, case.dtype)
        x = input_on_gpu(case.rows, case.cols, case.dtype)
        y = cupy.empty_like(x)
        cupy.cuda.Device().synchronize()
        with profile():
            candidate.run(x, y)
            cupy.cuda.Device().synchronize()


def input_on_gpu(rows: int, cols: int, dtype: str):
    """A CuPy array of seeded normal values in shifted rows; bfloat16 as uint16. A small one is that
    of `make_input`, which a test gives to the SIMT machine; a large one is made on the GPU, since
    the host takes seconds for it."""
    import cupy

    if rows * cols < 2**20:
        return to_gpu(make_input(rows, cols, dtype=dtype))
    x = cupy.random.default_rng(0).standard_normal((rows, cols), dtype=cupy.float32)
    x += cupy.linspace(-200, 200, rows, dtype=cupy.float32)[:, None]
    if dtype != "bfloat16":
        return x.astype(dtype, copy=False)
    return cupy.ascontiguousarray(x.view(cupy.uint16)[:, 1::2])  # rounded towards zero


def worker_command(chosen: Sequence[EvidenceCase | str]) -> list[str]:
    return [sys.executable, "-m", "helpers.evidence", "--worker", *map(str, chosen)]


def run_tool(command: list[str]) -> subprocess.CompletedProcess:
    """Run a tool over the worker, which must use the GPU even where replay is asked for."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # Each ncu locks a file in TMPDIR, and would wait for the one that profiles another GPU.
        live = {**os.environ, SWITCH: "0", "TMPDIR": folder}
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=live)


def shown(command: list[str]) -> str:
    """A command as a reader would type it."""
    return " ".join(["python" if part == sys.executable else part for part in command])


# ---- what is recorded already -------------------------------------------------------------------


def open_evidence(path: Path, versions: dict[str, str]) -> dict:
    """A file to go on with; empty if there is none, or if it is of another driver, NVRTC or CuPy:
    what stands under one heading must be comparable."""
    if not path.is_file():
        return {}
    stored = json.loads(path.read_text())
    for name in recorder.MUST_NOT_CHANGE:
        if stored["versions"].get(name) != versions.get(name):
            print(f"{path.name} is of another {name}: all of it is made again")
            return {}
    return stored


def hashes_of(names: Iterable[str]) -> dict[str, str]:
    """Kernel file -> hash of its code, for the files of steps, variants and trials."""
    return {file: step_hash(file) for file in sorted({split_trial(name).file for name in names})}


def is_current(stored: dict, step: str) -> bool:
    """Whether a file was written for a step's code as it is now."""
    return stored.get("hashes", {}).get(split_trial(step).file) == step_hash(step)


def launch_of(case: EvidenceCase) -> dict[str, int]:
    """Grid, block, shared memory and macros; empty if the kernel does not take the case."""
    plan = step_plan(*case)
    return plan.launch if plan else {}


def run_batches(
    title: str,
    work: Callable[[Batch], Any],
    batches: Sequence[Batch],
    jobs: int,
    keep: Callable[[Batch, Any], None],
) -> int:
    """Give each batch's result to `keep` as soon as it is there; returns how many failed."""
    print(f"{title}: {len(batches) or 'no'} batches to run", flush=True)
    began, failed = time.perf_counter(), 0
    for number, (batch, result) in enumerate(gpus.deal(work, collections.deque(batches), jobs), 1):
        said = ""
        if isinstance(result, gpus.Failure):
            failed += 1
            said = f", FAILED: {result.reason}"
        else:
            keep(batch, result)
        seconds = time.perf_counter() - began
        print(f"[{number}/{len(batches)}, {seconds:.0f} s] {batch}{said}", flush=True)
    return failed


# ---- counters -----------------------------------------------------------------------------------

METRICS = (*NSIGHT_METRICS.values(), *SHARED_METRICS.values(), *PROSE_METRICS)
# The worker makes its inputs unwatched: only what it launches between start and stop is profiled.
NCU = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--csv"]
NCU += ["--print-units", "base", "--metrics", ",".join(METRICS)]


def update_counters(path: Path, head: dict, stored: dict, options: argparse.Namespace) -> int:
    """Profile what is not in counters.json yet; returns how many batches failed."""
    wanted = cases()
    entries = {case_of(entry): entry for entry in stored.get("cases", [])}
    entries = {
        case: entries[case]
        for case in wanted
        if case in entries
        and is_current(stored, case.step)
        and entries[case]["launch"] == launch_of(case)
    }
    unfused = stored.get(UNFUSED, [])
    every = {step: [case for case in wanted if case.step == step] for step in options.steps}
    if UNFUSED in every and (options.fresh or not unfused):
        every[UNFUSED] = [UNFUSED_CASE]
    missing = {
        step: tuple(case for case in chosen if options.fresh or case not in entries)
        for step, chosen in every.items()
    }

    def save() -> None:
        ordered = [case for case in wanted if case in entries]
        write_json(
            path,
            {
                **head,
                "hashes": hashes_of(case.step for case in ordered),
                "command": shown([*NCU, *worker_command(["CASE ..."])]),
                "cases": [entries[case] for case in ordered],
                UNFUSED: unfused,
            },
        )

    def keep(batch: Batch, found: list[dict]) -> None:
        if batch.step == UNFUSED:
            unfused[:] = found
        else:
            entries.update(zip(batch.cases, found, strict=True))
        save()

    batches = [Batch(step, chosen) for step, chosen in missing.items() if chosen]
    failed = run_batches("counters", profile_batch, batches, options.jobs, keep)
    if not batches and list(entries.values()) != stored.get("cases"):
        save()  # without what is not asked for any more
    return failed


def case_of(entry: dict) -> EvidenceCase:
    """The case of an entry of counters.json; float32 where it names no dtype."""
    return EvidenceCase(*(entry[name] for name in EvidenceCase._fields if name in entry))


def profile_batch(batch: Batch) -> list[dict]:
    """Run the worker under ncu: an entry of counters.json for each case, for the array version one
    for each of its launches. Raises `gpus.Failure` if ncu fails or saw other launches."""
    done = run_tool([*NCU, *worker_command(batch.cases)])
    start = done.stdout.find('"ID"')
    if done.returncode or start < 0:
        print(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}", file=sys.stderr)
        raise gpus.Failure(f"ncu ended with status {done.returncode}")
    launches: dict[int, dict] = {}
    for row in csv.DictReader(io.StringIO(done.stdout[start:])):
        entry = launches.setdefault(int(row["ID"]), {"kernel": row["Kernel Name"], "metrics": {}})
        try:
            entry["metrics"][row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
        except ValueError:
            continue  # n/a: this GPU or version has no such metric
    found = [launches[number] for number in sorted(launches)]
    if batch.step == UNFUSED:
        if len(found) < 5:
            raise gpus.Failure(f"ncu saw {len(found)} launches of five array operations")
        return found
    if len(found) != len(batch.cases):
        raise gpus.Failure(f"ncu saw {len(found)} launches instead of {len(batch.cases)}")
    for entry, case in zip(found, batch.cases, strict=True):
        if entry["kernel"].split("(")[0] != step_kernel(case.step).name:
            raise gpus.Failure(f"ncu saw {entry['kernel']} where {case} ran")
        entry.update(case._asdict(), launch=launch_of(case))
    return found


# ---- machine code -------------------------------------------------------------------------------


def update_sass(path: Path, head: dict, stored: dict, options: argparse.Namespace) -> int:
    """Disassemble what is not in sass.json yet; returns how many files failed."""
    arch = f"sm_{head['device']['compute_capability']}"
    flags = {name: list(flags) for name, _, flags in compilations()}
    kernels = {
        name: entry
        for name, entry in stored.get("kernels", {}).items()
        if name in flags
        and stored.get("kept") == sorted(SASS_KEPT)
        and entry["options"] == flags[name]
        and is_current(stored, step_of(name))
    }
    missing = {step_of(name) for name in flags if options.fresh or name not in kernels}

    def save() -> None:
        ordered = {name: kernels[name] for name in flags if name in kernels}
        hashes = hashes_of(map(step_of, ordered))
        command = "cuobjdump -sass kernel.cubin"
        write_json(
            path,
            {
                **head,
                "hashes": hashes,
                "arch": arch,
                "command": command,
                "kept": sorted(SASS_KEPT),  # in "in_order"
                "kernels": ordered,
            },
        )

    def keep(_: Batch, found: dict[str, dict]) -> None:
        kernels.update(found)
        save()

    batches = [Batch(step, ()) for step in options.steps if step in missing]
    failed = run_batches("sass", partial(disassemble, arch), batches, options.jobs, keep)
    if not batches and kernels != stored.get("kernels"):
        save()
    return failed


def step_of(name: str) -> str:
    """The step of a name in sass.json."""
    return name.partition(" at ")[0]


def disassemble(arch: str, batch: Batch) -> dict[str, dict]:
    """Compile a step for `arch` as `compilations` says, list its memory, special-function and
    control instructions, and count all; a register spill would show as LDL and STL."""
    found = {}
    for name, code, options in compilations():
        if step_of(name) != batch.step:
            continue
        with tempfile.TemporaryDirectory() as folder:
            cubin = Path(folder) / "kernel.cubin"
            cubin.write_bytes(compile_cubin(code, options, arch))
            done = subprocess.run(
                ["cuobjdump", "-sass", str(cubin)], capture_output=True, text=True, check=True
            )
        opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", done.stdout)
        kept = [code for code in opcodes if code.split(".")[0] in SASS_KEPT]
        counts = collections.Counter(code.split(".")[0] for code in opcodes)
        found[name] = {"options": list(options), "in_order": kept, "counts": dict(counts)}
    return found


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


# ---- arithmetic ---------------------------------------------------------------------------------

# x is the argument of an exponential, s a sum: what the kernels of 03 to 06 compute from them.
NUMERICS = {
    "expf(x)": ("expf(x)", lambda x, s: np.exp(x)),
    "__expf(x)": ("__expf(x)", lambda x, s: np.exp(x)),
    "exp2f(x * log2e)": ("exp2f(x * 1.44269504f)", lambda x, s: np.exp(x)),
    "expf(x) / s": ("expf(x) / s", lambda x, s: np.exp(x) / s),
    "expf(x) * (1 / s)": ("expf(x) * (1.0f / s)", lambda x, s: np.exp(x) / s),
}


def update_numerics(path: Path, head: dict, stored: dict, options: argparse.Namespace) -> int:
    """Measure the errors if numerics.json has not those of `NUMERICS`."""
    if options.fresh or list(stored.get("errors", ())) != list(NUMERICS):
        print("measuring errors of the arithmetic", flush=True)
        write_json(path, {**head, **collect_numerics()})
    return 0


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


# ---- compute-sanitizer --------------------------------------------------------------------------


def update_sanitizer(path: Path, head: dict, stored: dict, options: argparse.Namespace) -> int:
    """Run each tool over the steps of which sanitizer.json has no verdict yet; returns how many
    batches failed or found errors."""
    small: dict[str, tuple[EvidenceCase, ...]] = {}
    for case in cases("small"):
        small[case.step] = (*small.get(case.step, ()), case)
    known = [EvidenceCase(*case) for case in stored.get("cases", [])]
    launches = dict(zip(known, stored.get("launches", []), strict=True))
    current = [
        step
        for step, chosen in small.items()
        if is_current(stored, step)
        and {case: launches[case] for case in known if case.step == step}
        == {case: launch_of(case) for case in chosen}
    ]
    verdicts: dict[str, dict[str, int]] = {tool: {} for tool in TOOLS}
    commands = {tool: shown([*sanitizer(tool), *worker_command(["CASE ..."])]) for tool in TOOLS}
    for tool, verdict in stored.get("tools", {}).items():
        if verdict["command"] == commands[tool]:
            found = verdict["steps"]
            verdicts[tool] = {step: found[step] for step in current if step in found}

    def save() -> None:
        seen = [step for step in small if any(step in found for found in verdicts.values())]
        chosen = [case for step in seen for case in small[step]]
        tools = {
            tool: {
                "command": commands[tool],
                "errors": max(found.values()),
                "steps": {step: found[step] for step in small if step in found},
            }
            for tool, found in verdicts.items()
            if found
        }
        found = {"cases": list(map(list, chosen)), "launches": list(map(launch_of, chosen))}
        write_json(path, {**head, "hashes": hashes_of(seen), **found, "tools": tools})

    def keep(batch: Batch, errors: int) -> None:
        verdicts[batch.tool][batch.step] = errors
        save()

    batches = [
        Batch(step, small[step], tool)
        for tool in TOOLS
        for step in options.steps
        if step in small and (options.fresh or step not in verdicts[tool])
    ]
    failed = run_batches("compute-sanitizer", sanitize_batch, batches, options.jobs, keep)
    if not batches and {case.step for case in known} != set(current):
        save()
    for tool, found in verdicts.items():
        for step, errors in found.items():
            if errors:
                print(f"{tool} found {errors} errors in {step}", file=sys.stderr)
                failed += 1
    return failed


def sanitizer(tool: str) -> list[str]:
    command = ["compute-sanitizer", "--tool", tool]
    # What memcheck says of the driver's functions is not about a kernel: cuda.bindings asks the
    # driver for functions that an older one does not have. A call that fails raises in any case.
    return [*command, "--report-api-errors", "no"] if tool == "memcheck" else command


def sanitize_batch(batch: Batch) -> int:
    """Run the worker under a tool; returns how many errors it reports. Raises `gpus.Failure` if it
    gives no summary, or if the worker failed although the tool found nothing."""
    done = run_tool([*sanitizer(batch.tool), *worker_command(batch.cases)])
    summaries = re.findall(r"ERROR SUMMARY: (\d+) error", done.stdout)
    hazards = re.findall(r"RACECHECK SUMMARY: (\d+) hazard", done.stdout)
    errors = max(map(int, (*summaries, *hazards)), default=None)
    if errors is None or (done.returncode and not errors):
        print(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}", file=sys.stderr)
        raise gpus.Failure(f"{batch.tool} ended with status {done.returncode} and no error found")
    if errors:
        print("\n".join(done.stdout.splitlines()[:20]), file=sys.stderr)
    return errors


if __name__ == "__main__":
    sys.exit(main())
