"""Collect profiler data.

counters.jsonl   Nsight Compute's counters: for every step at small shapes (which the tests
                 compare with the SIMT machine's), for steps, variants and block trials at large
                 shapes (which the prose explains), and for each launch of the array version
sass.jsonl       the machine instructions of every kernel: those that matter in order (loads,
                 stores, special functions, barriers, branches, calls), all of them counted
numerics.jsonl   the error of the arithmetic that the kernels use, in units of the last place
sanitizer.jsonl  compute-sanitizer's verdicts on every kernel at the small shapes

Safe to interrupt: the tools run on one step at a time, and results are written after each. A second
call resumes the first one, and only repeats kernels whose code or launch changed since, and results
with another driver, NVRTC or CuPy.

Needs a GPU, `ncu`, `cuobjdump` and `compute-sanitizer` on the PATH, and the right to read
counters.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys

from ...base import gpu
from ...catalogue.store import folder_of, gpu_folder
from ...measure.campaign import add_shared_options
from ...measure.profiler.counters import CountersFile
from ...measure.profiler.launches import Launch, examined_steps, run_kernels
from ...measure.profiler.numerics import NumericsFile
from ...measure.profiler.sanitizer import SanitizerFile
from ...measure.profiler.sass import SassFile
from ...measure.profiler.update import update

FILES = {part.kind.file: part for part in (CountersFile, SassFile, NumericsFile, SanitizerFile)}
TOOLS = {"counters": "ncu", "sass": "cuobjdump", "sanitizer": "compute-sanitizer"}


def add_options(parser: argparse.ArgumentParser) -> None:
    known = examined_steps()
    parser.add_argument(
        "--only", nargs="+", choices=[*FILES], default=[*FILES], help="only these files"
    )
    parser.add_argument(
        "--steps", nargs="+", metavar="STEP", choices=known, default=known, help="only these steps"
    )
    add_shared_options(parser, "jobs", "fresh")
    parser.add_argument("--worker", nargs="+", metavar="LAUNCH", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Measure; return the exit status."""
    if options.worker:
        run_kernels([Launch.parse(text) for text in options.worker])
        return 0
    if "sass" in options.only and importlib.util.find_spec("cuda.bindings") is None:
        print("disassembling needs the package cuda-bindings", file=sys.stderr)
        return 1
    for tool in (TOOLS[part] for part in options.only if part in TOOLS):
        if not shutil.which(tool):
            print(f"profiling needs {tool} of the CUDA toolkit on the PATH", file=sys.stderr)
            return 1
    device = gpu.describe_device()
    versions, failed = gpu.describe_versions(), 0
    for name in options.only:
        try:
            failed += update(
                FILES[name], device, versions, options.steps, options.fresh, options.jobs
            )
        except ValueError as error:  # a file that is damaged
            print(error, file=sys.stderr)
            failed += 1
    print(f"profiler data are in {folder_of(gpu_folder(device['name']))}")
    return 1 if failed else 0
