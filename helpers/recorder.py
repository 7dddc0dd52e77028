"""Time every step on this machine's GPU and write the records: `make record`.

Safe to interrupt: each case is written as soon as it is measured, and a second call goes on where
the first one stopped. A record is started afresh if the kernel's code or the protocol changed.
Needs CuPy and numpy only.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import time
from collections.abc import Callable

from . import bench
from .device import has_gpu
from .kernels import (
    TRIALS,
    split_trial,
    step_kernel,
    step_launch,
    steps,
    variants,
)
from .records import (
    GRID_SHAPES,
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
    makers = {name: maker(name) for name in names}
    shapes = shapes_that_fit([*GRID_SHAPES, *SWEEP_SHAPES], options.quick)
    print(f"recording {', '.join(names)} on {device['name']} at {len(shapes)} shapes")
    if versions.get("commit") == "unknown":
        print("git does not say which commit this is; set GIT_COMMIT to have it in the record")
    began = time.perf_counter()
    for number, (rows, cols) in enumerate(shapes, 1):
        missing = {name for name, record in records.items() if needs(name, record, rows, cols)}
        if missing:
            with bench.fresh_pool():
                measured = bench.measure({name: makers[name] for name in missing}, rows, cols)
            for name in missing:
                add(records[name], *measured[name])
                save_record(records[name], gpu)
        print_progress(number, len(shapes), rows, cols, records, began)
    print(f"records are in {record_path(names[0], gpu).parent}")
    return 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m helpers.recorder", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the grid of shapes, no sweep")
    parser.add_argument("--fresh", action="store_true", help="measure recorded cases again")
    parser.add_argument(
        "--steps", nargs="+", metavar="STEP", choices=known_steps(), help="only these steps"
    )
    return parser.parse_args(arguments)


def known_steps() -> list[str]:
    """Everything that has a record: the steps, the array version, and what was tried."""
    return [UNFUSED, *steps(), *variants(), *TRIALS]


def maker(step: str) -> Callable[[int, int], bench.Candidate]:
    """What makes a step's candidate for a shape."""
    if step == UNFUSED:
        return bench.unfused_candidate
    kernel, block = step_kernel(step), split_trial(step).block
    return lambda rows, cols: bench.kernel_candidate(kernel, rows, cols, block)


def shapes_that_fit(shapes: list[tuple[int, int]], quick: bool) -> list[tuple[int, int]]:
    """Shapes whose buffers (two inputs, two outputs, scratch) fit this GPU's free memory.

    A smaller GPU records the grid with fewer rows.
    """
    import cupy

    free, _ = cupy.cuda.runtime.memGetInfo()
    kept = []
    for rows, cols in shapes if not quick else shapes[: len(GRID_SHAPES)]:
        while 24 * rows * cols > free * 0.9:
            rows //= 2
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


def needs(step: str, record: Record, rows: int, cols: int) -> bool:
    """Whether a step can run a shape, has no case of it yet, and is not a variant that is only
    tried on the grid."""
    if step not in (UNFUSED, *steps()) and (rows, cols) in SWEEP_SHAPES:
        return False
    if step != UNFUSED and not step_launch(step, rows, cols):
        return False
    return all(case.shape != (rows, cols) for case in record.cases)


def add(record: Record, case: Case, attributes: dict[str, int]) -> None:
    record.cases.append(case)
    record.attributes = attributes


def print_progress(number, total, rows, cols, records: dict[str, Record], began: float) -> None:
    rates = []
    for name, record in records.items():
        for case in record.cases:
            if case.shape == (rows, cols):
                flag = " above the copy: look!" if case.share > 1.05 else ""
                rates.append(f"{name} {case.gbps:.0f} ({case.share:.2f}){flag}")
    seconds = time.perf_counter() - began
    print(
        f"[{number}/{total}, {seconds:.0f} s] {rows} x {cols}: GB/s {', '.join(rates)}", flush=True
    )


def describe_device() -> dict:
    """The GPU as its driver describes it, with clocks and temperature at the start."""
    import cupy

    from .device import gpu_name

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
