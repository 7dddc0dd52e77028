"""Recorded timings: one JSON file per GPU and step, written by the recorder, replayed anywhere.

    notebooks/records/<gpu>/<step>.json    timings of a kernel beside a same-size copy
    notebooks/records/<gpu>/counters.json  Nsight Compute's counters
    notebooks/records/<gpu>/sanitizer.json compute-sanitizer's verdicts
    notebooks/records/predictions.json     written by hand, before the measurement

GB/s is 2 * rows * cols * itemsize / time: one read and one write of every element, whatever the
kernel really moved. 1 GB = 10^9 bytes.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from .kernels import code_hash, source, split_trial, step_plan
from .paths import ROOT

FOLDER = ROOT / "notebooks" / "records"
REFERENCE_GPU = "nvidia-h200"  # whose record the notebooks and the README show
REFERENCE_SHAPE = (65536, 4096)  # where predictions are made and steps are compared
SCHEMA = 1

# Five families of shapes. The grid: powers of two, 2^28 elements (1 GiB of fp32) each; the long
# rows go on from there. The few rows: less work than a GPU has room for. The crossover: so many
# rows of a million columns that a grid and clusters that stay take about as long. The sweep: 4096
# rows, the shape that the field's tutorials plot.
GRID_SHAPES = tuple((2**28 // cols, cols) for cols in (2**k for k in range(5, 16)))
LONG_SHAPES = tuple((2**28 // cols, cols) for cols in (2**k for k in range(16, 21)))
FEW_SHAPES = ((1, 32000), (4, 102400), (16, 131072), (128, 65536), (1, 1048576))
CROSSOVER_SHAPES = ((4, 2**20), (7, 2**20), (16, 2**20))
EVEN_SHAPE = (252, 2**20)  # rows that go evenly into seven clusters, for kernels that have such
SWEEP_SHAPES = tuple((4096, cols) for cols in range(256, 12673, 128))


@dataclass(frozen=True)
class Case:
    """One kernel at one shape, timed in turn with a copy kernel of the same size."""

    dtype: str
    rows: int
    cols: int
    launch: dict[str, int]  # grid, block, shared_mem, and the macros of a Build line
    samples_us: list[float]  # time per call of each replay, microseconds
    copy_samples_us: list[float]
    calls: int  # calls per replay
    check: str  # verdict on the output, before and after timing
    # registers, local and shared bytes; of a cluster also how many of them run at once
    attributes: dict[str, int] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols

    @property
    def bytes(self) -> int:
        """One read and one write of every element."""
        return 2 * self.rows * self.cols * np.dtype(self.dtype).itemsize

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples_us)

    @property
    def gbps(self) -> float:
        return self.bytes / self.median_us / 1e3

    @property
    def copy_us(self) -> float:
        """Microseconds of the same-size copy."""
        return statistics.median(self.copy_samples_us)

    @property
    def copy_gbps(self) -> float:
        return self.bytes / self.copy_us / 1e3

    @property
    def share(self) -> float:
        """Bandwidth as a share of the same-size copy's."""
        return self.gbps / self.copy_gbps

    @property
    def spread(self) -> float:
        """(slowest - fastest) / median of the samples."""
        return (max(self.samples_us) - min(self.samples_us)) / self.median_us


@dataclass
class Record:
    """All cases of one step on one GPU."""

    step: str
    kernel_hash: str
    device: dict
    versions: dict[str, str]
    utc: str
    protocol: dict
    attributes: dict[str, int] = field(default_factory=dict)  # of the case measured last
    cases: list[Case] = field(default_factory=list)
    schema: int = SCHEMA

    def case(self, rows: int, cols: int, dtype: str = "float32") -> Case:
        """The case of a shape. Raises `KeyError` that names step and shape if it is missing."""
        for case in self.cases:
            if (case.rows, case.cols, case.dtype) == (rows, cols, dtype):
                return case
        raise KeyError(f"no record of {self.step} at {rows} x {cols} {dtype}")

    def select(self, shapes: Iterable[tuple[int, int]], dtype: str = "float32") -> list[Case]:
        """The recorded cases among `shapes`, in that order; others are left out."""
        known = {case.shape: case for case in self.cases if case.dtype == dtype}
        return [known[shape] for shape in shapes if shape in known]

    @property
    def label(self) -> str:
        """Where and when it was measured."""
        return f"{self.device['name']}, {self.utc[:10]}"

    def origin(self) -> str:
        """One sentence on where the figures come from; says so if the kernel changed since."""
        sentence = (
            f"recorded on {self.device['name']} on {self.utc[:10]} "
            f"(driver {self.versions['driver']}, NVRTC {self.versions['nvrtc']}, "
            f"CuPy {self.versions['cupy']})"
        )
        return (
            sentence if self.is_current() else f"{sentence}, for an earlier version of the kernel"
        )

    def is_current(self) -> bool:
        """Whether the kernel's code and its launch rule are still the recorded ones."""
        return self.kernel_hash == step_hash(self.step) and all(
            case.launch == case_launch(self.step, case) for case in self.cases
        )


def step_hash(step: str) -> str:
    """Hash of what a step measures: its kernel's code, or for the array version its name."""
    return code_hash(source(f"{split_trial(step).file}.cu")) if step != UNFUSED else UNFUSED


def case_launch(step: str, case: Case) -> dict[str, int]:
    """The launch that a step's header asks for in a case; empty if it refuses it."""
    if step == UNFUSED:
        return case.launch
    plan = step_plan(step, case.rows, case.cols, case.dtype)
    return plan.launch if plan else {}


UNFUSED = "00_unfused"  # softmax as five CuPy array operations: a record without a kernel file


def record_path(step: str, gpu: str = REFERENCE_GPU) -> Path:
    return FOLDER / gpu / f"{step}.json"


def load_record(step: str, gpu: str = REFERENCE_GPU) -> Record:
    """Read a record. Raises `FileNotFoundError` that says how records are made."""
    path = record_path(step, gpu)
    if not path.is_file():
        raise FileNotFoundError(f"no record of {step} on {gpu}: `make record` on that GPU makes it")
    data = json.loads(path.read_text())
    if data["schema"] != SCHEMA:
        raise ValueError(f"{path.name} has schema {data['schema']}, this version reads {SCHEMA}")
    data["cases"] = [Case(**case) for case in data["cases"]]
    return Record(**data)


def nsight(
    step: str, rows: int, cols: int, dtype: str = "float32", gpu: str = REFERENCE_GPU
) -> dict[str, float]:
    """Nsight Compute's metrics of one launch, by Nsight's names.

    Raises `KeyError` that names step, shape and dtype if they were not profiled.
    """
    for case in _counters(gpu)["cases"]:
        if (case["step"], case["rows"], case["cols"]) == (step, rows, cols):
            if case.get("dtype", "float32") == dtype:
                return case["metrics"]
    raise KeyError(f"no Nsight counters of {step} at {rows} x {cols} {dtype} on {gpu}")


def nsight_unfused(gpu: str = REFERENCE_GPU) -> list[tuple[str, dict[str, float]]]:
    """(CuPy's kernel, metrics) of each launch of the array version at `REFERENCE_SHAPE`."""
    return [(entry["kernel"], entry["metrics"]) for entry in _counters(gpu)[UNFUSED]]


def sass(
    step: str,
    shape: tuple[int, int] | None = None,
    dtype: str = "float32",
    gpu: str = REFERENCE_GPU,
) -> list[str]:
    """The kernel's machine instructions for memory, special functions and control, in order.

    `shape` and `dtype` choose among those that a file with a Build line was compiled for.
    """
    return _disassembly(step, shape, dtype, gpu)["in_order"]


def opcodes(
    step: str,
    shape: tuple[int, int] | None = None,
    dtype: str = "float32",
    gpu: str = REFERENCE_GPU,
) -> dict[str, int]:
    """How often each machine instruction stands in the kernel: "FMUL" -> 16. Loops and branches are
    not followed.

    `shape` and `dtype` choose as in `sass`.
    """
    return _disassembly(step, shape, dtype, gpu)["counts"]


def _disassembly(step: str, shape: tuple[int, int] | None, dtype: str, gpu: str) -> dict:
    kernels = json.loads((FOLDER / gpu / "sass.json").read_text())["kernels"]
    name = sass_name(step, shape, dtype)
    if name not in kernels:
        raise KeyError(f"no disassembly of {name}; there are: {', '.join(kernels)}")
    return kernels[name]


def sass_name(step: str, shape: tuple[int, int] | None, dtype: str = "float32") -> str:
    """What a disassembly is filed under: "07_warp at 65536 x 4096 float32"."""
    return f"{step} at {shape[0]} x {shape[1]} {dtype}" if shape else step


def numerics(gpu: str = REFERENCE_GPU) -> dict[str, dict[str, dict[str, float]]]:
    """Formula -> range of x -> its largest and mean error against fp64, in ulp of fp32."""
    return json.loads((FOLDER / gpu / "numerics.json").read_text())["errors"]


@functools.lru_cache
def _counters(gpu: str) -> dict:
    return json.loads((FOLDER / gpu / "counters.json").read_text())


def recorded_gpus() -> list[str]:
    """Names of the folders with records, the reference GPU first."""
    found = sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir())
    return sorted(found, key=lambda name: name != REFERENCE_GPU)


def gpu_folder(name: str) -> str:
    """ "NVIDIA H200" -> "nvidia-h200"."""
    return "-".join(name.lower().replace("(", " ").replace(")", " ").split())


def write_json(path: Path, data: dict) -> None:
    """Write atomically: an interrupted run leaves the old file, never half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = json.dumps(data, indent=1)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(lines + "\n")
    os.replace(scratch, path)


def save_record(record: Record, gpu: str) -> None:
    write_json(record_path(record.step, gpu), asdict(record))


@functools.lru_cache(maxsize=1)
def predictions() -> dict[str, dict]:
    """The prediction ledger: step -> {"share": of a copy at `REFERENCE_SHAPE`, "because": ...}."""
    return json.loads((FOLDER / "predictions.json").read_text())
