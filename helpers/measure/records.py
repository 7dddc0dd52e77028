"""Recorded timings: one JSON file per GPU and step, written on that GPU, replayed anywhere.

    notebooks/records/<gpu>/<step>.json   timings of a kernel beside a same-size copy
    notebooks/records/predictions.json    about each step, written by hand before the measurement:
                                          where it is recorded, what it will reach, and why

What else stands in that folder: race.json (`helpers.measure.races`), chain.json
(`helpers.measure.chains`), export.json (`helpers.measure.export_times`), and
`helpers.measure.evidence`.

GB/s is 2 * rows * cols * itemsize / time: one read and one write of every element, whatever the
kernel really moved. 1 GB = 10^9 bytes.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, TypedDict

import numpy as np

from ..base.arguments import checked
from ..base.gpu import Device, Gpu, of_record
from ..base.gpu import gpu_folder as gpu_folder  # who records names the folder by it
from ..base.json_files import named, read_json, write_json
from ..base.paths import RECORDS
from ..base.typed_json import Count, Date, Dtype, Must, Natural, Samples, Share, Time, typed
from ..catalogue import registry
from ..catalogue.plan import Plan
from ..catalogue.registry import TORCH, UNFUSED, WITHOUT_FILE, split_trial, step_number
from ..problem.problem import Problem
from ..problem.shapes import (
    EVEN_SHAPE,
    FEW_SHAPES,
    FUSED_COLUMNS,
    REFERENCE_SHAPE,
    UNALIGNED_FEW,
    Shape,
    family_of,
)
from ..run.bound import Kernel, load
from ..simt.cuda_text import token_hash

PREDICTIONS = RECORDS / "predictions.json"
REFERENCE_GPU = "nvidia-h200"  # whose record the notebooks and the README show
MUST_NOT_CHANGE = ("driver", "nvrtc", "cupy")  # versions that a record is of
SCHEMA = 2  # 1 had one protocol for all cases of a file
LEFT_OUT_IF_EMPTY = (  # of a case, in its file
    *("attributes", "programmatic_us", "programmatic_copy_us", "copies_us", "draws"),
    *("moved", "yardstick"),
)


class Protocol(TypedDict):
    """How cases were timed, in words; its number is what a case names."""

    version: int


Versions = Annotated[
    dict[str, str],
    Must(
        "the versions of driver, nvrtc and cupy", lambda names: names.keys() >= {*MUST_NOT_CHANGE}
    ),
]


# Of fused and related operations, recorded in float32 and bfloat16.
FUSED_FAMILIES = frozenset(("fused", "square", "vocabularies", "axes"))
_FAMILIES = {*FUSED_FAMILIES, "grid", "long", "few", "sweep", "unaligned", "few unaligned"}
Family = Annotated[str, Must(f"one of {', '.join(sorted(_FAMILIES))}", _FAMILIES.__contains__)]


class _AskedFor(TypedDict, total=False):
    recorded: list[Family]  # where the step is recorded; "grid" if there is no such key
    rows: Count
    cols: Count
    inner: Count
    dtype: Dtype
    question: str
    choices: list[tuple[Share, str]]  # a share, and why
    sum: list[str]


class Prediction(_AskedFor):
    """What predictions.json says of a step, or predicts of a variant or a trial; with a `question`
    it has `choices` and `sum` too."""

    share: Share
    because: str


_ASKING = {"question", "choices", "sum"}
_KNOWN = Must(
    f"one with no other keys than {', '.join(Prediction.__annotations__)}",
    lambda entry: entry.keys() <= Prediction.__annotations__.keys(),
)
_WHOLE = Must(
    "one with all or none of question, choices and sum",
    lambda entry: len(_ASKING & entry.keys()) in (0, len(_ASKING)),
)


class _Before(TypedDict):
    """What is asked of a file of schema 1 before it is made one of schema 2."""

    protocol: Protocol
    cases: list[dict]


@dataclass(frozen=True)
class Case:
    """One kernel at one shape, timed in turn with a copy kernel of the same size."""

    dtype: Dtype
    rows: Count
    cols: Count
    launch: dict[str, Natural]  # grid, block, shared_mem, and the macros of a Build table
    samples_us: Samples  # time per call of each replay, microseconds
    copy_samples_us: Samples
    calls: Count  # calls per replay
    check: str  # verdict on the output, before and after timing
    # registers, local and shared bytes; of a cluster also how many of them run at once
    attributes: dict[str, int] = field(default_factory=dict)
    protocol: int = 1  # version of the protocol that it was timed by, which its file describes
    # From protocol 2 on `samples_us` are by an ordinary launch, and a kernel that is made for
    # programmatic ones is timed so too, beside a copy that is launched the same way.
    programmatic_us: list[Time] = field(default_factory=list)
    programmatic_copy_us: list[Time] = field(default_factory=list)
    inner: Count = 1  # elements from one column to the next
    # Of another operation than softmax: the bytes that it must move, and the kernel that moves as
    # many, whose samples stand for the copy's.
    moved: int = 0
    yardstick: str = ""

    @property
    def shape(self) -> Shape:
        return self.rows, self.cols

    @property
    def family(self) -> str:
        return family_of(self.at)

    @property
    def at(self) -> Problem:
        """Softmax at its sizes and dtype: what tells it from the other cases of a record."""
        return Problem(self.rows, self.cols, self.dtype, self.inner)

    @property
    def bytes(self) -> int:
        """One read and one write of every element, of another operation what it must move."""
        return self.moved or 2 * self.matrix_bytes

    @property
    def matrix_bytes(self) -> int:
        """What x takes: rows x cols elements."""
        return self.rows * self.cols * np.dtype(self.dtype).itemsize

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
    device: Device
    versions: Versions
    utc: Date
    protocols: list[Protocol]  # of its cases
    attributes: dict[str, int] = field(default_factory=dict)  # of the case measured last
    cases: list[Case] = field(default_factory=list)
    schema: int = SCHEMA

    @checked
    def case(self, rows: int, cols: int, dtype: str = "float32", inner: int = 1) -> Case:
        """The case of a shape. Raises `KeyError` that names step and shape if it is missing."""
        for case in self.cases:
            if (*case.shape, case.dtype, case.inner) == (rows, cols, dtype, inner):
                return case
        raise KeyError(f"no record of {self.step} at {rows} x {cols} {dtype}")

    def select(self, shapes: Iterable[Shape], dtype: str = "float32") -> list[Case]:
        """The recorded cases of matrices among `shapes`, in that order; others are left out."""
        known = {case.shape: case for case in self.cases if (case.dtype, case.inner) == (dtype, 1)}
        return [known[shape] for shape in shapes if shape in known]

    @checked
    def of_family(self, shapes: str = "grid", dtype: str = "float32") -> list[Case]:
        """The recorded cases of a dtype at the shapes of one of `FAMILIES`: by columns, few rows in
        the order of `FEW_SHAPES`. Raises `ValueError` that lists the names for another."""
        wanted = FAMILIES.get(shapes)
        if wanted is None:
            raise ValueError(f"shapes are one of {', '.join(FAMILIES)}, not {shapes!r}")
        found = [case for case in self.cases if case.dtype == dtype and case.family in wanted]
        if shapes == "few":
            return sorted(found, key=lambda case: FEW_SHAPES.index(case.shape))
        return sorted(found, key=lambda case: case.cols)

    @property
    def headline(self) -> Case:
        """The case that stands for a step: the one that was predicted, or if there is none, its
        longest rows in the first dtype of the record. Raises `ValueError` if it holds no case."""
        if not self.cases:
            raise ValueError(f"the record of {self.step} holds no case")
        try:
            at = predicted_at(self.step)
            return self.case(at.rows, at.cols, at.dtype, at.inner)
        except KeyError:
            dtype = self.cases[0].dtype
            families = (self.of_family(name, dtype) for name in ("long", "unaligned"))
            return next((cases for cases in families if cases), self.cases)[-1]

    @property
    def in_series(self) -> bool:
        """Whether a step belongs in one figure with all others: it takes float32, computes softmax
        alone and is not made for few rows."""
        recorded = "grid" in families_of(self.step) and bool(self.of_family())
        return recorded and self.headline.family != "few"

    @property
    def gpu(self) -> Gpu:
        """What plans depend on, of the GPU that it was measured on."""
        return of_record(self.device)

    @property
    def label(self) -> str:
        """Where and when it was measured."""
        return f"{self.device['name']}, {self.utc[:10]}"

    def origin(self) -> str:
        """One sentence on where the figures come from; says so if the kernel changed since."""
        sentence = (
            f"recorded on {self.device['name']} on {self.utc[:10]} "
            f"(driver {self.versions['driver']}, NVRTC {self.versions['nvrtc']}, "
            f"CuPy {self.versions['cupy']}"
        )
        sentence += f", PyTorch {self.versions['torch']})" if self.step == TORCH else ")"
        return (
            sentence if self.is_current() else f"{sentence}, for an earlier version of the kernel"
        )

    def is_current(self) -> bool:
        """Whether the kernel's code and its launch rule are still the recorded ones."""
        if self.kernel_hash != step_hash(self.step):
            return False
        kernel = None if self.step in WITHOUT_FILE else load(self.step)  # read once for all cases
        return all(self.launched_so(case, kernel) for case in self.cases)

    def launched_so(self, case: Case, kernel: Kernel | None = None) -> bool:
        """Whether a case's launch is what the header asks for now; `kernel` is the step's, if it is
        at hand."""
        return self.step in WITHOUT_FILE or case.launch == launch_of(
            kernel or self.step, case.at, self.gpu
        )

    def lacks(self, at: Problem) -> bool:
        """Whether the step is to be recorded at these sizes and dtype, and has no such case yet."""
        known = {case.at for case in self.cases}
        return at not in known and takes(self.step, at, self.gpu)

    def add(self, case: Case, order: Sequence[Problem] = ()) -> None:
        """Put a case in: those of `order` in that order, whichever came first, others before them
        as they come."""
        places = {at: place for place, at in enumerate(order)}
        self.cases.append(case)
        self.cases.sort(key=lambda case: places.get(case.at, -1))
        self.attributes = case.attributes


# Name -> the families of shapes that it means, in tables and figures.
FAMILIES = {
    **{name: (name,) for name in ("grid", "few", "sweep", "unaligned")},
    **{name: (name,) for name in ("square", "vocabularies", "axes")},
    "long": ("grid", "long"),
}


# ---- kernels as they are now --------------------------------------------------------------------


def step_hash(step: str) -> str:
    """Hash of what a step measures: its kernel's code, or the name of what has no kernel file."""
    if step in WITHOUT_FILE:
        return step
    return token_hash(registry.source(f"{split_trial(step).file}.cu"))


def launch_of(step: str | Kernel, at: Problem, gpu: Gpu | None = None) -> dict[str, int]:
    """The launch that a step's header requires at the sizes and dtype of a problem, whatever the
    step computes: grid, block, shared memory and macros; empty if it does not take them."""
    plan = plan_of(step, at, gpu)
    return plan.launch if plan else {}


def plan_of(step: str | Kernel, at: Problem, gpu: Gpu | None = None) -> Plan | None:
    """How a step is compiled and launched at the sizes and dtype of a problem on a GPU
    (`mode.gpu_for_plans` if none is given); None if it does not take them."""
    kernel = load(step) if isinstance(step, str) else step
    try:
        return kernel.bind(at.rows, at.cols, at.dtype, gpu, inner=at.inner).plan
    except ValueError:
        return None


def takes(step: str, at: Problem, gpu: Gpu | None = None) -> bool:
    """Whether a step is to be recorded at the sizes and dtype of a problem, whatever the step
    computes: its header accepts them, and the shape is in one of `families_of(step)`.

    Variants and trials leave out the sweep, and unaligned rows unless their step is made for those.
    float16 is for steps and variants that compute plain softmax; the sweep and the array version
    are recorded in float32 alone, and `EVEN_SHAPE` for kernels whose clusters stay resident."""
    recorded = {*families_of(step)}
    if step not in (*WITHOUT_FILE, *registry.steps()):
        recorded -= {"sweep", "unaligned"} if "grid" in recorded else {"sweep"}
    found, dtype = recorded & _families_with(at), at.dtype
    if dtype == "float16" and (step in registry.TRIALS or found <= FUSED_FAMILIES):
        return False
    if not found or (found == {"sweep"} and dtype != "float32"):
        return False
    if step in WITHOUT_FILE:
        return dtype == "float32" or (dtype == "bfloat16" and step == TORCH)
    plan = plan_of(step, at, gpu)
    return bool(plan) and (at.shape != EVEN_SHAPE or "clusters" in plan.values)


def families_of(step: str) -> Sequence[str]:
    """The families of shapes at which a step is recorded: what predictions.json names, or the grid.
    A variant or a trial has those of its step."""
    if step == TORCH:
        return "grid", "unaligned"
    number = f"{step_number(step):02}_"
    named = (entry for name, entry in predictions().items() if name.startswith(number))
    return next((entry["recorded"] for entry in named if "recorded" in entry), ["grid"])


def _families_with(at: Problem) -> set[str]:
    """The names by which predictions.json has a shape recorded."""
    family = family_of(at)
    if family == "other":
        return {"few unaligned" if at.shape in UNALIGNED_FEW else "few"}
    return (
        {family, "fused"} if family in ("grid", "long") and at.cols in FUSED_COLUMNS else {family}
    )


# ---- files --------------------------------------------------------------------------------------


def folder_of(gpu: str) -> Path:
    """Where everything that was recorded on a GPU stands."""
    return RECORDS / gpu


def record_path(step: str, gpu: str = REFERENCE_GPU) -> Path:
    return folder_of(gpu) / f"{step}.json"


@checked
def load_record(step: str, gpu: str = REFERENCE_GPU) -> Record:
    """Read a record. Raises `FileNotFoundError` that says how records are made, `ValueError` that
    names the file for one that is damaged or of another version of this program."""
    split_trial(step)  # raises for what is no name
    path = record_path(step, gpu)
    if not path.is_file():
        raise FileNotFoundError(f"no record of {step} on {gpu}: run make measure ARGS=steps there")
    record = read_record(path, Record)
    if record.step != step:
        raise ValueError(f"{named(path)} is a record of {record.step}, not of {step}")
    return record


def read_record(path: Path, whole: type):
    """The `whole` of a file, a dataclass. Raises `ValueError` that names the file for one that is
    damaged, has another schema, or does not describe a case's protocol, and what is not of the
    type that `whole` says with its key."""
    fields = read_json(path)
    fields.pop("stamped", None)  # readers' own files have it; nothing reads it any more
    if fields.get("schema") == 1:
        fields = _upgraded(path, fields)
    if fields.get("schema") != SCHEMA:
        raise ValueError(
            f"{named(path)} has schema {fields.get('schema')}, this version reads {SCHEMA}"
        )
    found = typed(path, fields, whole)
    described = {protocol["version"] for protocol in found.protocols}
    for case in found.cases:
        if case.protocol not in described:
            raise ValueError(f"{named(path)} does not describe protocol {case.protocol} of a case")
    return found


def _upgraded(path: Path, fields: dict) -> dict:
    """A file of schema 1 as schema 2 has it; readers have such of their own GPUs."""
    before = typed(path, fields, _Before)
    version = before["protocol"]["version"]
    cases = [{**case, "protocol": version} for case in before["cases"]]
    kept = {key: value for key, value in fields.items() if key != "protocol"}
    return {**kept, "protocols": [before["protocol"]], "cases": cases, "schema": 2}


def save_record(record: Record, gpu: str) -> None:
    write_json(record_path(record.step, gpu), fields_of(record))


def fields_of(whole) -> dict:
    """A record or a race as its file has it."""
    fields = asdict(whole)
    for case in fields["cases"]:
        for key in LEFT_OUT_IF_EMPTY:
            if not case.get(key, True):
                del case[key]
        if case.get("inner") == 1:
            del case["inner"]
    return fields


def open_record(
    step: str, gpu: str, device: dict, versions: dict, protocol: dict, fresh: bool = False
) -> Record:
    """The record to go on with: cases stay if their kernel, launch rule and versions are those of
    now, whatever protocol they were timed by; without any it is an empty one."""
    if not fresh and record_path(step, gpu).is_file():
        record = load_record(step, gpu)
        names = (*MUST_NOT_CHANGE, "torch")  # which the record of PyTorch alone has
        if record.kernel_hash == step_hash(step) and not changed(record.versions, versions, names):
            go_on_with(record, protocol)
            record.cases = [case for case in record.cases if record.launched_so(case)]
            return record
    return Record(step, step_hash(step), device, versions, utc_now(), [protocol])


def go_on_with(whole, protocol: dict) -> None:
    """Have a record or a race describe the protocol of the cases that will come. If it has another
    one of that number, cases timed by it are dropped: a number has one meaning."""
    version = protocol["version"]
    if protocol not in whole.protocols:
        whole.cases = [case for case in whole.cases if case.protocol != version]
    others = [other for other in whole.protocols if other["version"] != version]
    whole.protocols = [*others, protocol]


def changed(
    before: Mapping[str, str],
    now: Mapping[str, str],
    names: Sequence[str] = MUST_NOT_CHANGE,
) -> list[str]:
    """Whose version is not that of before, of driver, NVRTC and CuPy or of `names`: what stands
    under one heading must be comparable."""
    return [name for name in names if before.get(name) != now.get(name)]


def utc_now() -> str:
    """As records have it: "2030-01-02T03:04:05+00:00"."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def recorded_steps() -> list[Record]:
    """The records of the array version and of every softmax step that has one, in order."""
    names = [UNFUSED, *(step for step in registry.steps() if step != "00_copy")]
    return [load_record(name) for name in names if record_path(name).is_file()]


def series() -> list[Record]:
    """Those of them that belong in one figure."""
    return [record for record in recorded_steps() if record.in_series]


def recorded_gpus() -> list[str]:
    """Names of the folders with records, the reference GPU first."""
    found = sorted(folder.name for folder in RECORDS.iterdir() if folder.is_dir())
    return sorted(found, key=lambda name: name != REFERENCE_GPU)


# ---- predictions --------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def predictions() -> dict[str, Prediction]:
    """What predictions.json says: step, variant or trial -> its `Prediction`."""
    entry = Annotated[Prediction, _KNOWN, _WHOLE]
    return typed(PREDICTIONS, read_json(PREDICTIONS), dict[str, entry])


def predicted_at(step: str) -> Problem:
    """Where a step was predicted: at `REFERENCE_SHAPE` in float32 unless the entry names others."""
    expected = predictions().get(step, {})
    names = {"rows", "cols", "dtype", "inner"} & {*expected}
    return replace(Problem(*REFERENCE_SHAPE), **{name: expected[name] for name in names})
