"""Recorded timings of kernels, each with that of a same-size copy, and the predictions.

    notebooks/records/<gpu>/steps.jsonl   written on that GPU, replayed anywhere
    notebooks/records/predictions.json    one entry per step, written by hand before the
                                          measurement: where it is recorded, what it will
                                          reach, and why

GB/s is 2 * rows * cols * itemsize / time: one read and one write of every element, whatever the
kernel really moved. 1 GB = 10^9 bytes.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, TypedDict

from ..base.arguments import checked
from ..base.gpu import Gpu, GpuDescription
from ..base.json_files import Count, Dtype, Must, Natural, Samples, Share, Time, read_json, typed
from ..base.paths import RECORDS
from ..catalogue import registry, store
from ..catalogue.dispatch import is_current, plan_of, step_hash
from ..catalogue.registry import TORCH, UNFUSED, WITHOUT_FILE, split_trial, step_number
from ..catalogue.store import AtProblem, Run
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

PREDICTIONS = RECORDS / "predictions.json"
# For fused and related operations, recorded in float32 and bfloat16.
FUSED_FAMILIES = frozenset(("fused", "square", "vocabularies", "axes"))
_FAMILIES = {*FUSED_FAMILIES, "grid", "long", "few", "sweep", "unaligned", "few unaligned"}
Family = Annotated[str, Must(f"one of {', '.join(sorted(_FAMILIES))}", _FAMILIES.__contains__)]


class _AskedFor(TypedDict, total=False):
    recorded: list[Family]  # where the step is recorded; by default the grid
    rows: Count
    cols: Count
    inner: Count
    dtype: Dtype
    question: str
    choices: list[tuple[Share, str]]  # a fraction of a copy, and the reason
    sum: list[str]
    wastes: str  # why the step takes longer than a copy; written after the measurement


class Prediction(_AskedFor):
    """An entry of predictions.json: for a step, or a prediction for a variant or a trial. With a
    `question` it also has `choices` and `sum`. (Tests refuse other keys.)"""

    share: Share
    because: str


@dataclass(frozen=True)
class Timed:
    """A kernel, timed in turn with a copy kernel that moves the same number of bytes."""

    launch: dict[str, Natural]  # grid, block, shared_mem, and the macros of a Build table
    samples_us: Samples  # microseconds per call, for each replay
    copy_samples_us: Samples  # for other operations than softmax, of the bandwidth baseline
    calls: Count  # calls per replay
    # registers, local and shared bytes; for clusters also how many are resident
    attributes: dict[str, int] = field(default_factory=dict)
    # From protocol 2 on `samples_us` use an ordinary launch, and a kernel that supports
    # programmatic launches is also timed with one, together with a copy that is launched in the
    # same way.
    programmatic_us: list[Time] = field(default_factory=list)
    programmatic_copy_us: list[Time] = field(default_factory=list)

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples_us)

    @property
    def copy_us(self) -> float:
        """Microseconds of the same-size copy."""
        return statistics.median(self.copy_samples_us)

    @property
    def share(self) -> float:
        """Bandwidth as a fraction of the same-size copy's."""
        return self.copy_us / self.median_us

    @property
    def spread(self) -> float:
        """(slowest - fastest) / median of the samples."""
        return (max(self.samples_us) - min(self.samples_us)) / self.median_us


@dataclass(frozen=True)
class Case(Timed, AtProblem):
    """A step, a variant or a trial at one problem."""

    file = campaign = "steps"

    step: str = field(kw_only=True)
    kernel_hash: str = field(kw_only=True)

    @classmethod
    def of(cls, timed: Timed, step: str, problem: Problem, run: Run) -> Case:
        """The times of a step in its current form."""
        return cls(problem, run, **vars(timed), step=step, kernel_hash=step_hash(step))

    @property
    def key(self) -> tuple[str, Problem]:
        return self.step, self.at

    @property
    def family(self) -> str:
        return family_of(self.at)

    @property
    def inner(self) -> int:
        """Stride between columns in elements."""
        return self.problem.inner

    @property
    def bandwidth_baseline(self) -> str:
        """The kernel whose samples stand for the copy's."""
        return self.problem.operation.bandwidth_baseline

    @property
    def bytes(self) -> int:
        """One read and one write of every element; for another operation the bytes that it must
        move."""
        return self.problem.compulsory_bytes

    @property
    def gbps(self) -> float:
        return self.bytes / self.median_us / 1e3

    @property
    def copy_gbps(self) -> float:
        return self.bytes / self.copy_us / 1e3

    def is_current(self) -> bool:
        """Whether the code and the launch of the kernel are still the recorded ones."""
        return is_current(self.step, self.kernel_hash, self.launch, self.at, self.run.gpu)


@dataclass
class Record:
    """All cases of one step on one GPU."""

    step: str
    cases: list[Case]

    @property
    def run(self) -> Run:
        """The latest run."""
        return store.latest(self.cases)

    @property
    def device(self) -> GpuDescription:
        return self.run.device

    @property
    def attributes(self) -> dict[str, int]:
        """The attributes of the last case that has any."""
        found = (case.attributes for case in reversed(self.cases) if case.attributes)
        return next(found, {})

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
        """The case that represents a step: the predicted one, or without a prediction the longest
        rows in the first dtype of the record. Raises `ValueError` if there is no case."""
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
        """Whether a step belongs in the figure of the series: it supports float32, computes softmax
        alone and is not made for few rows."""
        recorded = "grid" in families_of(self.step) and bool(self.of_family())
        return recorded and self.headline.family != "few"

    @property
    def gpu(self) -> Gpu:
        """The properties of the measured GPU that plans depend on."""
        return self.run.gpu

    @property
    def label(self) -> str:
        """Where and when it was measured."""
        return f"{self.device['name']}, {self.run.utc[:10]}"

    def origin(self) -> str:
        """One sentence on the origin of the figures; says if the kernel has changed since."""
        versions = self.run.versions
        sentence = (
            f"recorded on {self.device['name']} on {self.run.utc[:10]} "
            f"(driver {versions['driver']}, NVRTC {versions['nvrtc']}, CuPy {versions['cupy']}"
        )
        sentence += f", PyTorch {versions['torch']})" if self.step == TORCH else ")"
        return (
            sentence if self.is_current() else f"{sentence}, for an earlier version of the kernel"
        )

    def is_current(self) -> bool:
        """Whether the kernel's code and its launch rule are still the recorded ones."""
        return all(case.is_current() for case in self.cases)


# Name in tables and figures -> families of shapes.
FAMILIES = {
    **{name: (name,) for name in ("grid", "few", "sweep", "unaligned")},
    **{name: (name,) for name in ("square", "vocabularies", "axes")},
    "long": ("grid", "long"),
}


def takes(step: str, at: Problem, gpu: Gpu | None = None) -> bool:
    """Whether a step is to be recorded at the sizes and dtype of a problem, whatever the step
    computes: its header accepts them, and the shape is in one of `families_of(step)`.

    Variants and trials leave out the sweep, and unaligned rows unless their step is made for those.
    float16 is for steps and variants that compute plain softmax; the sweep and the array version
    are recorded in float32 alone, and `EVEN_SHAPE` for kernels whose clusters stay resident.
    """
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
    """The families of shapes at which a step is recorded: those in predictions.json, or the grid. A
    variant or a trial has those of its step."""
    if step == TORCH:
        return "grid", "unaligned"
    number = f"{step_number(step):02}_"
    named = (entry for name, entry in predictions().items() if name.startswith(number))
    return next((entry["recorded"] for entry in named if "recorded" in entry), ["grid"])


def _families_with(at: Problem) -> set[str]:
    """The names under which predictions.json lists the family of a shape."""
    family = family_of(at)
    if family == "other":
        return {"few unaligned" if at.shape in UNALIGNED_FEW else "few"}
    return (
        {family, "fused"} if family in ("grid", "long") and at.cols in FUSED_COLUMNS else {family}
    )


# ---- files --------------------------------------------------------------------------------------


@checked
def load_record(step: str, gpu: str | None = None) -> Record:
    """The cases of a step on a GPU, by default `store.shown_gpu`. Raises `FileNotFoundError` that
    says how records are made, `ValueError` that names the file for one that is damaged or of
    another version of this program."""
    split_trial(step)  # raises for what is no name
    cases = _cases_of(gpu).get(step)
    if not cases:
        name = gpu or store.shown_gpu()
        command = f'make measure ARGS="steps --only {step}"'
        raise FileNotFoundError(f"no record of {step} on {name}: run {command} there")
    return Record(step, [*cases])


def has_record(step: str, gpu: str | None = None) -> bool:
    return step in _cases_of(gpu)


def _cases_of(gpu: str | None) -> dict[str, list[Case]]:
    """Step -> its cases on a GPU."""
    found: dict[str, list[Case]] = {}
    for case in store.read_if_any(Case, gpu):
        found.setdefault(case.step, []).append(case)
    return found


def recorded_steps() -> list[Record]:
    """The records of the array version and of every softmax step that has one, in order."""
    names = [UNFUSED, *(step for step in registry.steps() if step != "00_copy")]
    return [load_record(name) for name in names if has_record(name)]


def series() -> list[Record]:
    """The records that belong in the figure of the series."""
    return [record for record in recorded_steps() if record.in_series]


# ---- predictions --------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def predictions() -> dict[str, Prediction]:
    """The content of predictions.json: step, variant or trial -> its `Prediction`."""
    return typed(PREDICTIONS, read_json(PREDICTIONS), dict[str, Prediction])


def predicted_at(step: str) -> Problem:
    """The shape and dtype of a prediction: `REFERENCE_SHAPE` in float32 unless the entry names
    others."""
    expected = predictions().get(step, {})
    names = {"rows", "cols", "dtype", "inner"} & {*expected}
    return replace(Problem(*REFERENCE_SHAPE), **{name: expected[name] for name in names})
