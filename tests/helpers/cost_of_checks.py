"""What the checks for races on global memory cost: every step of the series, with and without them.

    python -m tests.helpers.cost_of_checks                  of every step; writes tests/data
    python -m tests.helpers.cost_of_checks 06 --rows 64     of some cases; the others stay

Seconds are those of the processor, of a launch whose kernel is compiled already: the least of some
runs. Memory is what a process of its own needs at its highest, above what it had before the launch.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import platform
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np

from helpers import catalogue
from helpers.bound import load
from helpers.simt.memory.global_shadow import GlobalShadow
from tests.hardware.processes import write_data

DATA = Path(__file__).parent.parent / "data" / "cost_of_checks.json"
SHAPES = ((64, 1024), (4096, 4096))
TURNS, RUNS = 3, {64: 5, 4096: 1}
WITH_X_AND_Y = ("copy", "softmax")  # operations of two matrices
CHECKS = ("read", "write")  # of the shadow, which sees the races


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}.cost_of_checks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("step", nargs="?", default="", help="the beginning of a step's name")
    parser.add_argument("--rows", type=int, choices=[rows for rows, _ in SHAPES])
    options = parser.parse_args(arguments)
    stored = json.loads(DATA.read_text())["cases"] if DATA.exists() else []
    known = {(case["step"], case["rows"]): case for case in stored}
    cases = {}
    for step, rows, cols, dtype in every_case():
        case = known.get((step, rows))
        if step.startswith(options.step) and options.rows in (None, rows):
            case = {"step": step, "rows": rows, "cols": cols, "dtype": dtype}
            case |= costs(step, rows, cols, dtype)
            print(case, flush=True)
        if case:
            cases[step, rows] = case
    data = {
        "processor": processor(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cases": [*cases.values()],
    }
    write_data(DATA, data)
    DATA.with_suffix(".md").write_text(page(data))
    return 0


def every_case() -> Iterator[tuple[str, int, int, str]]:
    """(step, rows, columns, dtype) of all that the steps take, in the first dtype of each."""
    for step in catalogue.steps():
        kernel = load(step)
        for rows, cols in SHAPES:
            dtype = kernel.header.dtypes[0].name
            if kernel.operation.name in WITH_X_AND_Y and kernel.accepts(rows, cols, dtype):
                yield step, rows, cols, dtype


def processor() -> str:
    """Its name, as Linux says it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def costs(step: str, rows: int, cols: int, dtype: str) -> dict[str, float]:
    """Seconds and MB, with the checks and without."""
    run(step, rows, cols, dtype, 1)  # what is compiled and translated once
    found = {"seconds": {}, "mb": {}}
    for checks in (True, False) * TURNS:  # in turns: the machine may be busier at one time
        seconds, megabytes = apart(step, rows, cols, dtype, checks)
        found["seconds"].setdefault(checks, []).append(seconds)
        found["mb"].setdefault(checks, []).append(megabytes)
    return {
        "seconds_with": round(min(found["seconds"][True]), 4),
        "seconds_without": round(min(found["seconds"][False]), 4),
        "mb_with": round(max(found["mb"][True]), 1),
        "mb_without": round(max(found["mb"][False]), 1),
    }


def apart(step: str, rows: int, cols: int, dtype: str, checks: bool) -> tuple[float, float]:
    """(seconds, MB) of runs in a process of its own."""
    here, there = multiprocessing.Pipe()

    def measure() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        runs = RUNS[rows]
        if checks:
            seconds = run(step, rows, cols, dtype, runs)
        else:
            with mock.patch.multiple(GlobalShadow, **dict.fromkeys(CHECKS, nothing)):
                seconds = run(step, rows, cols, dtype, runs)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        there.send((seconds, (after - before) / 1024))

    process = multiprocessing.get_context("fork").Process(target=measure)
    process.start()
    found = here.recv()
    process.join()
    return found


def nothing(*arguments, **named) -> None:
    """No check."""


def run(step: str, rows: int, cols: int, dtype: str, times: int) -> float:
    """The least seconds of the processor that a launch took. Raises `AssertionError` for a wrong
    result or a finding."""
    x = np.random.default_rng(0).standard_normal((rows, cols), np.float32).astype(dtype)
    bound, least = load(step).bind(rows, cols, dtype), float("inf")
    for _ in range(times):
        y = np.zeros_like(x)
        start = time.process_time()
        trace = bound.simulate(x, y)
        least = min(least, time.process_time() - start)
        assert not trace.findings and (y != 0).mean() > 0.9
    return least


def page(data: dict) -> str:
    """Markdown: a row for each case."""
    rows = [
        "# What the checks for races on global memory cost",
        "",
        f"Python {data['python']}, NumPy {data['numpy']}, one core of {data['processor']},"
        f" {data['utc'][:10]}. A launch of a kernel that is",
        "compiled already; seconds of the processor, and MB at the highest above what was there"
        " before.",
        "",
        "| step | rows x columns | s | without | times | MB | without |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in data["cases"]:
        seconds, without = case["seconds_with"], case["seconds_without"]
        shape = f"{case['rows']} x {case['cols']} {case['dtype']}"
        rows.append(
            f"| `{case['step']}` | {shape} | {seconds:.3f} | {without:.3f} "
            f"| {seconds / without:.2f} | {case['mb_with']:.0f} | {case['mb_without']:.0f} |"
        )
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
