"""Time every step on this machine's GPU and write the records: `make record`.

Safe to interrupt: each case is written as soon as it is measured, and a second call goes on where
the first one stopped. A record is started afresh if the kernel's code or the protocol changed. A
kernel that is wrong or fails at a shape is left out there, named at the end, and makes the exit
status 1. Needs CuPy, numpy and ml_dtypes only.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from . import bench, gpus
from .check import WrongResult
from .gpu import has_gpu
from .kernels import (
    DTYPE_OPTIONS,
    TRIALS,
    split_trial,
    step_kernel,
    step_number,
    step_plan,
    steps,
    variants,
)
from .records import (
    CROSSOVER_SHAPES,
    EVEN_SHAPE,
    FEW_SHAPES,
    GRID_SHAPES,
    LONG_SHAPES,
    SWEEP_SHAPES,
    UNFUSED,
    Case,
    Record,
    gpu_folder,
    load_record,
    record_path,
    save_record,
    step_hash,
)

DTYPES = ("float32", *DTYPE_OPTIONS)
MUST_NOT_CHANGE = ("driver", "nvrtc", "cupy")


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    options = parse_arguments(arguments)
    if not has_gpu():
        print("make record measures on a GPU, and CuPy finds none here.", file=sys.stderr)
        return 1
    device, versions = describe_device(), describe_versions()
    gpu = gpu_folder(device["name"])
    names = options.steps or known_steps()
    records = {name: open_record(name, gpu, device, versions, options.fresh) for name in names}
    every = [*GRID_SHAPES, *LONG_SHAPES, *FEW_SHAPES, *CROSSOVER_SHAPES, EVEN_SHAPE, *SWEEP_SHAPES]
    runs = [
        (*shape, dtype)
        for shape in shapes_that_fit(GRID_SHAPES if options.quick else every)
        for dtype in options.dtypes
        if any(takes(name, *shape, dtype) for name in names)
    ]
    print(f"recording {', '.join(names)} on {device['name']} at {len(runs)} shapes and dtypes")
    if versions.get("commit") == "unknown":
        print("git does not say which commit this is; set GIT_COMMIT to have it in the record")
    missing = [
        Task(*run, tuple(name for name, record in records.items() if needs(name, record, *run)))
        for run in runs
    ]
    tasks = deque(task for task in missing if task.names)
    done, failed, began = len(runs) - len(tasks), [], time.perf_counter()
    for task, measured in gpus.deal(measure_task, tasks, options.jobs):
        run = task[:3]
        if isinstance(measured, gpus.Failure):
            guilty = {measured.culprit} & {*task.names} or {*task.names}
            failed.append(f"{', '.join(sorted(guilty))} at {describe(*run)}: {measured.reason}")
            print(failed[-1], file=sys.stderr, flush=True)
            if others := tuple(name for name in task.names if name not in guilty):
                tasks.append(task._replace(names=others))
                continue
        else:
            for name in task.names:  # the copy is measured in any case
                add(records[name], measured[name], runs)
                save_record(records[name], gpu)
        done += 1
        print_progress(done, len(runs), *run, records, began)
    print(f"records are in {record_path(names[0], gpu).parent}")
    for line in failed:
        print(f"not recorded: {line}", file=sys.stderr)
    return 1 if failed else 0


class Task(NamedTuple):
    """Steps to be timed together at one shape and dtype, against the same copy."""

    rows: int
    cols: int
    dtype: str
    names: tuple[str, ...]


def measure_task(task: Task) -> dict[str, Case]:
    """The case of each step; raises what `measure` raises."""
    return measure({name: maker(name) for name in task.names}, *task[:3])


def measure(makers: Mapping[str, bench.Maker], rows: int, cols: int, dtype: str) -> dict[str, Case]:
    """`bench.measure`, except that what goes wrong is a `Failure` that names the candidate."""
    try:
        with bench.fresh_pool():
            return bench.measure(makers, rows, cols, dtype)
    except WrongResult as error:
        name, _, summary = error.summary.partition(" ")
        raise gpus.Failure(f"wrong result: {summary}", name) from error
    except bench.CandidateFailed as error:
        raise gpus.Failure(gpus.one_line(error.__cause__), error.name) from error
    except Exception as error:
        raise gpus.Failure(gpus.one_line(error)) from error


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m helpers.recorder", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the grid of shapes alone")
    parser.add_argument("--fresh", action="store_true", help="measure recorded cases again")
    parser.add_argument(
        "--steps", nargs="+", metavar="STEP", choices=known_steps(), help="only these steps"
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="only these dtypes"
    )
    gpus.add_jobs_option(parser)
    return parser.parse_args(arguments)


def known_steps() -> list[str]:
    """Everything that has a record: the steps, the array version, and what was tried."""
    return [UNFUSED, *steps(), *variants(), *TRIALS]


def maker(step: str) -> bench.Maker:
    """What makes a step's candidate for a shape and dtype."""
    if step == UNFUSED:
        return bench.unfused_candidate

    def make(rows: int, cols: int, dtype: str) -> bench.Candidate:
        kernel = step_kernel(step, step_plan(step, rows, cols, dtype))
        return bench.kernel_candidate(kernel, rows, cols, dtype, split_trial(step).block)

    return make


def shapes_that_fit(shapes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Shapes whose buffers (two inputs, two outputs, scratch) fit this GPU's free memory.

    A smaller GPU records the grid with fewer rows, and leaves out rows that must go evenly into
    clusters.
    """
    import cupy

    free, _ = cupy.cuda.runtime.memGetInfo()
    kept = []
    for shape in shapes:
        rows, cols = shape
        while 24 * rows * cols > free * 0.9:
            rows //= 2
        if shape != EVEN_SHAPE or rows == EVEN_SHAPE[0]:
            kept.append((rows, cols))
    return list(dict.fromkeys(kept))


def open_record(step: str, gpu: str, device: dict, versions: dict, fresh: bool) -> Record:
    """The record to go on with, or an empty one if kernel, launch rule, protocol, driver,
    compiler or CuPy are not the recorded: cases under one heading must be comparable."""
    if not fresh and record_path(step, gpu).is_file():
        record = load_record(step, gpu)
        same = all(record.versions.get(key) == versions.get(key) for key in MUST_NOT_CHANGE)
        if record.is_current() and record.protocol == bench.PROTOCOL and same:
            return record
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return Record(step, step_hash(step), device, versions, now, bench.PROTOCOL)


def takes(step: str, rows: int, cols: int, dtype: str = "float32") -> bool:
    """Whether a step is recorded at a shape and dtype: its header accepts them; the sweep is for
    the steps before 07 in float32, long and few rows for what comes after, rows that go evenly into
    seven clusters for kernels whose clusters stay; a trial is recorded in float32 and bfloat16.
    """
    later = step != UNFUSED and step_number(step) >= 7
    sweep, few = (rows, cols) in SWEEP_SHAPES, (rows, cols) in FEW_SHAPES
    if sweep and (later or dtype != "float32" or step not in (UNFUSED, *steps())):
        return False
    if not later and (few or cols > GRID_SHAPES[-1][1]):
        return False
    if step in TRIALS and dtype == "float16":
        return False
    if step == UNFUSED:
        return dtype == "float32"
    plan = step_plan(step, rows, cols, dtype)
    return bool(plan) and ((rows, cols) != EVEN_SHAPE or "clusters" in plan.values)


def needs(step: str, record: Record, rows: int, cols: int, dtype: str = "float32") -> bool:
    """Whether a step is recorded at a shape and dtype, and has no such case yet."""
    known = {(case.rows, case.cols, case.dtype) for case in record.cases}
    return (rows, cols, dtype) not in known and takes(step, rows, cols, dtype)


def add(record: Record, case: Case, order: Sequence[tuple[int, int, str]] = ()) -> None:
    """Put a case into a record: those of `order` in that order, whichever came first, others
    before them as they come."""
    places = {run: place for place, run in enumerate(order)}
    record.cases.append(case)
    record.cases.sort(key=lambda case: places.get((*case.shape, case.dtype), -1))
    record.attributes = case.attributes


def describe(rows: int, cols: int, dtype: str) -> str:
    return f"{rows} x {cols} {dtype}"


def print_progress(
    number: int,
    total: int,
    rows: int,
    cols: int,
    dtype: str,
    records: Mapping[str, Record],
    began: float,
) -> None:
    rates = []
    for name, record in records.items():
        for case in record.cases:
            if (*case.shape, case.dtype) == (rows, cols, dtype):
                flag = " above the copy: look!" if case.share > 1.05 else ""
                rates.append(f"{name} {case.gbps:.0f} ({case.share:.2f}){flag}")
    where = f"[{number}/{total}, {time.perf_counter() - began:.0f} s] {describe(rows, cols, dtype)}"
    print(f"{where}: GB/s {', '.join(rates)}", flush=True)


def describe_device() -> dict:
    """The GPU as its driver describes it, with clocks and temperature at the start."""
    import cupy

    from .gpu import gpu_name

    attributes = cupy.cuda.Device().attributes
    return {
        "name": gpu_name(),
        "compute_capability": cupy.cuda.Device().compute_capability,
        "multiprocessors": attributes["MultiProcessorCount"],
        "l2_bytes": attributes["L2CacheSize"],
        "memory_bytes": cupy.cuda.runtime.memGetInfo()[1],
        "at_start": query_driver("clocks.sm,clocks.mem,temperature.gpu,power.draw"),
    }


def describe_versions() -> dict[str, str]:
    import cupy
    import numpy

    runtime = cupy.cuda.runtime.runtimeGetVersion()
    return {
        "driver": query_driver("driver_version"),
        "cuda": f"{runtime // 1000}.{runtime % 1000 // 10}",
        "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "cupy": cupy.__version__,
        "numpy": numpy.__version__,
        "python": sys.version.split()[0],
        "commit": os.environ.get("GIT_COMMIT") or run_quietly(["git", "rev-parse", "HEAD"])[:12],
    }


def query_driver(fields: str) -> str:
    """nvidia-smi's answer for the first GPU; "unknown" where there is no nvidia-smi."""
    answer = run_quietly(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"])
    return answer.splitlines()[0] if answer else "unknown"


def run_quietly(command: list[str]) -> str:
    """A command's output, or "unknown" if it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
