"""Profiler data, stored beside the records: Nsight Compute's counters, verdicts of
compute-sanitizer, the instructions that the hardware executes, and errors of the arithmetic.

`helpers.measure.profiling` collects them, for `make measure ARGS=profile`.
"""

from __future__ import annotations

import functools
import sys
import textwrap
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Annotated, NamedTuple, TypedDict

import numpy as np

from ..base.arguments import checked
from ..base.json_files import Must, Natural
from ..catalogue import store
from ..catalogue.dispatch import is_current, plan_of, step_hash
from ..catalogue.registry import UNFUSED
from ..catalogue.store import AtProblem, Observation, Protocol, Run
from ..problem.problem import Problem
from ..problem.shapes import REFERENCE_SHAPE, Shape

NotNegative = Annotated[float, Must("0 or more", lambda number: number >= 0)]


class Profiled(Observation):
    """A result of a tool for a kernel."""

    campaign = "profile"

    def is_valid_under(self, protocol: Protocol) -> bool:
        """Whether the same was asked of the tool."""
        return self.run.protocol == protocol

    @property
    def complaint(self) -> str:
        """What is wrong with the kernel; "" if nothing is."""
        return ""


@functools.cache
def say_if_old(step: str, kernel_hash: str) -> None:
    """Show, once per step, that its profiler data are of an earlier text of the kernel: in a
    notebook as an output of its own, so that it stays above what a cell prints later."""
    if kernel_hash == step_hash(step):
        return
    text = f"Profiler data of {step}: of an earlier version of its kernel."
    if "IPython" in sys.modules:
        from IPython.display import display

        display({"text/plain": textwrap.fill(text, 80)}, raw=True)
    else:
        print(text)


# ---- counters -----------------------------------------------------------------------------------


class Launch(NamedTuple):
    """A launch of a step, or a compilation; without a problem that of a file without a Build
    table."""

    step: str
    at: Problem | None = None  # sizes and dtype; as an operation always softmax

    @classmethod
    def parse(cls, text: str) -> Launch:
        """The inverse of `str`."""
        step, _, place = text.partition(" at ")
        return cls(step, problem_at(place))

    def __str__(self) -> str:
        return f"{self.step} at {self.at.place(dtype=True)}" if self.at else self.step


UNFUSED_LAUNCH = Launch(UNFUSED, Problem(*REFERENCE_SHAPE))


class Counted(TypedDict):
    """One kernel execution."""

    kernel: str  # name of the kernel
    values: list[NotNegative | None]  # in the order of the protocol's metrics; None: not available


@dataclass(frozen=True)
class NsightCounters(AtProblem, Profiled):
    """The counters of a step: of one launch, or of several for the array version."""

    file = "counters"

    step: str
    kernel_hash: str
    launch: dict[str, Natural]
    counted: list[Counted]

    def __post_init__(self) -> None:
        names = self.run.protocol.get("metrics", ())
        if any(len(one["values"]) != len(names) for one in self.counted):
            raise ValueError(f"not {len(names)} values, one for each metric of its run")

    @property
    def key(self) -> Launch:
        return Launch(self.step, self.at)

    def is_current(self) -> bool:
        return is_current(self.step, self.kernel_hash, self.launch, self.at, self.run.gpu)

    @cached_property
    def metrics(self) -> list[tuple[str, dict[str, float]]]:
        """(kernel name, metrics by Nsight's names) for each launch."""
        names = self.run.protocol["metrics"]
        pairs = [(one["kernel"], zip(names, one["values"], strict=True)) for one in self.counted]
        return [
            (kernel, {name: value for name, value in values if value is not None})
            for kernel, values in pairs
        ]


@checked
def profiled(step: str, at: Problem, gpu: str | None = None) -> NsightCounters:
    """Nsight Compute's counters of one launch of a step, with its grid, block and macros. `gpu` is
    by default `store.shown_gpu`.

    Raises `KeyError` that names step, shape and dtype if they were not profiled.
    """
    found = store.find(NsightCounters, Launch(step, at), gpu)
    if found is None:
        name = gpu or store.shown_gpu()
        raise KeyError(f"no Nsight counters of {step} at {at.place(dtype=True)} on {name}")
    say_if_old(step, found.kernel_hash)
    return found


def nsight_unfused(gpu: str | None = None) -> list[tuple[str, dict[str, float]]]:
    """(CuPy's kernel, metrics) for each launch of the array version at `REFERENCE_SHAPE`."""
    found = store.find(NsightCounters, UNFUSED_LAUNCH, gpu)
    return found.metrics if found else []


# ---- compute-sanitizer --------------------------------------------------------------------------


def problem_at(place: str) -> Problem:
    """The problem of the text "64 x 1024 float32", `Problem.place` with its dtype."""
    rows, _, cols, dtype = place.split()
    return Problem(int(rows), int(cols), dtype)


class Examined(NamedTuple):
    """A step and a tool of compute-sanitizer."""

    step: str
    tool: str


@dataclass(frozen=True)
class SanitizerResult(Profiled):
    """The number of errors that a tool found in a step."""

    file = "sanitizer"

    run: Run
    step: str
    tool: str
    kernel_hash: str
    launches: dict[str, dict[str, Natural]]  # sizes and dtype -> launch of the step
    errors: Natural

    @property
    def key(self) -> Examined:
        return Examined(self.step, self.tool)

    def is_current(self) -> bool:
        return all(
            is_current(self.step, self.kernel_hash, launch, problem_at(place), self.run.gpu)
            for place, launch in self.launches.items()
        )

    @property
    def complaint(self) -> str:
        return f"{self.tool} found {self.errors} errors in {self.step}" if self.errors else ""


# ---- disassembly --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disassembly(Profiled):
    """The instructions of a kernel."""

    file = "sass"

    run: Run
    step: str
    kernel_hash: str
    options: list[str]  # compiler options
    in_order: list[str]  # memory, special functions and control only
    counts: dict[str, Natural]  # all instructions
    at: Problem | None = None

    @property
    def key(self) -> Launch:
        return Launch(self.step, self.at)

    def is_current(self) -> bool:
        plan = plan_of(self.step, self.at, self.run.gpu) if self.at else None
        options = [*plan.options] if plan else []
        return (step_hash(self.step), options) == (self.kernel_hash, self.options)


@checked
def sass(
    step: str, shape: Shape | None = None, dtype: str = "float32", gpu: str | None = None
) -> list[str]:
    """The kernel's machine instructions for memory, special functions and control, in order.

    `shape` and `dtype` select one of the compilations of a file with a Build table. Raises
    `KeyError` that lists them for any other.
    """
    return _disassembly(step, shape, dtype, gpu).in_order


@checked
def loads_in_a_row(step: str) -> list[int]:
    """The lengths of the sequences of consecutive loads from global memory in the order of the
    program: [4, 1] means four loads, another instruction of `sass`, and one load. Arithmetic is
    ignored.

    Raises `KeyError` as `sass` does for a kernel that is compiled for each shape.
    """
    names = (instruction.split(".")[0] for instruction in sass(step))
    return [len([*loads]) for name, loads in groupby(names) if name == "LDG"]


@checked
def opcodes(
    step: str, shape: Shape | None = None, dtype: str = "float32", gpu: str | None = None
) -> dict[str, int]:
    """How often each opcode occurs in the code of the kernel: "FMUL" -> 16. This is a static count:
    loops and branches are not followed.

    `shape` and `dtype` are as in `sass`.
    """
    return _disassembly(step, shape, dtype, gpu).counts


def _disassembly(step: str, shape: Shape | None, dtype: str, gpu: str | None) -> Disassembly:
    wanted = Launch(step, Problem(*shape, dtype) if shape else None)
    found = store.find(Disassembly, wanted, gpu)
    if found is None:
        of_step = [str(one.key) for one in store.read(Disassembly, gpu) if one.step == step]
        there = f" of {step} there are {', '.join(of_step)};" if of_step else ""
        name = gpu or store.shown_gpu()
        raise KeyError(
            f"no disassembly of {wanted} on {name};{there} run make measure ARGS=profile there"
        )
    say_if_old(step, found.kernel_hash)
    return found


# ---- errors of the arithmetic -------------------------------------------------------------------

# x is the argument of an exponential, s a sum: the arithmetic of the kernels of 03 to 06. Formula
# -> the expression in CUDA, and its value in fp64.
NUMERICS = {
    "expf(x)": ("expf(x)", lambda x, s: np.exp(x)),
    "__expf(x)": ("__expf(x)", lambda x, s: np.exp(x)),
    "exp2f(x * log2e)": ("exp2f(x * 1.44269504f)", lambda x, s: np.exp(x)),
    "expf(x) / s": ("expf(x) / s", lambda x, s: np.exp(x) / s),
    "expf(x) * (1 / s)": ("expf(x) * (1.0f / s)", lambda x, s: np.exp(x) / s),
}


class Errors(TypedDict):
    """Errors against fp64 in ulp of the fp32 result."""

    max_ulp: NotNegative
    mean_ulp: NotNegative


@dataclass(frozen=True)
class Formula(Profiled):
    """The accuracy of a formula."""

    file = "numerics"

    run: Run
    formula: str
    expression: str  # in CUDA
    errors: dict[str, Errors]  # range of x -> errors of the results

    @property
    def key(self) -> str:
        return self.formula

    def is_current(self) -> bool:
        expression, _ = NUMERICS.get(self.formula, ("", None))
        return self.expression == expression


@checked
def numerics(gpu: str | None = None) -> dict[str, dict[str, dict[str, float]]]:
    """Formula -> range of x -> its largest and mean error against fp64, in ulp of fp32."""
    return {one.formula: one.errors for one in store.read(Formula, gpu)}
