"""Timings for a notebook: measured on a GPU, or replayed from the records without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

from ..base.arguments import short
from ..base.gpu import describe_device, describe_versions, replaying
from ..catalogue.dispatch import changes_of
from ..catalogue.registry import UNFUSED, split_trial
from ..catalogue.store import Run, recorded_gpus, shown_gpu, utc_now
from ..measure import bench
from ..measure.records import Case, Record, has_record, load_record, step_hash
from ..problem.problem import Problem
from ..run.bound import BoundKernel, Kernel, kernel_of
from ..simt.cuda_text import token_hash
from .rich import wrapped


@dataclass
class LiveRecord(Record):
    """Timings of a kernel object of the notebook, measured live at the shapes of one family, with
    as many rows as fit on this GPU."""

    now: Run
    shapes: str  # the name of that family

    @property
    def run(self) -> Run:
        return self.now

    def of_family(self, shapes: str = "grid", dtype: str = "float32") -> list[Case]:
        """As `Record.of_family`; the measured family includes all cases, whatever their rows."""
        if shapes != self.shapes or shapes == "few":
            return super().of_family(shapes, dtype)
        return sorted((case for case in self.cases if case.dtype == dtype), key=attrgetter("cols"))

    @property
    def label(self) -> str:
        return f"{self.device['name']}, now"

    def origin(self) -> str:
        versions = self.run.versions
        return (
            f"measured now on {self.device['name']} (driver {versions['driver']}, "
            f"NVRTC {versions['nvrtc']}, CuPy {versions['cupy']})"
        )


def timings(
    kernels: Mapping[str, object], dtype: str = "float32", shapes: str = "grid"
) -> list[Record]:
    """Timings of several steps with those of a same-size copy kernel, in the given order.

    `kernels` maps the name of a step to its `cupy.RawKernel`, to the text of its file if it is
    compiled for each shape, or to None for the array version "00_unfused"; the name of a trial has
    the features of its record, "12_fused-MASK2". In replay mode the records of `store.shown_gpu`
    are returned. Live, the given kernels are timed in turn in `dtype` at five or six shapes of a
    family of `bench.LIVE_FAMILIES`, which takes some seconds, each with its bandwidth baseline.
    Shapes that a kernel refuses are skipped for it.

    Raises `FileNotFoundError` if a step has no record, `Failure` that names a kernel which is wrong
    or cannot be launched, `TypeError` or `ValueError` for other arguments.
    """
    if not isinstance(kernels, Mapping):
        kind = type(kernels).__name__
        raise TypeError(
            f"timings takes a dict of name -> kernel, as {{'01_naive': kernel}}; not a {kind}"
        )
    if not isinstance(shapes, str) or shapes not in bench.LIVE_FAMILIES:
        raise ValueError(f"shapes are one of {', '.join(bench.LIVE_FAMILIES)}, not {short(shapes)}")
    if replaying():
        return [_recorded(name, kernel) for name, kernel in kernels.items()]
    return _measure_now(kernels, dtype, shapes)


def _recorded(name: str, kernel: object | None) -> Record:
    """The record of a step. If the kernel is neither the series' nor a recorded one, a sentence
    says so, and the record has no cases: no time of another kernel stands for it."""
    record = load_record(name)
    text = kernel if kernel is None else token_hash(text_of(kernel))
    if text in (None, step_hash(name)):
        return record
    cases = [case for case in record.cases if case.kernel_hash == text]
    if not cases:
        says = (
            f"{name}: to be measured. Your kernel is not the recorded one, so it has no recorded "
        )
        print(*wrapped(f"{says}time; on a GPU, this cell times it."), sep="\n")
    return replace(record, cases=cases)


def text_of(kernel) -> str:
    return kernel if isinstance(kernel, str) else kernel.code


def as_named(name: str, kernel) -> Kernel:
    """A kernel with the changes in the name of a trial: "12_fused-MASK2" from the text of
    12_fused."""
    unbound = kernel_of(kernel)
    if unbound.raw is not None:
        return unbound
    trial = split_trial(name)
    return kernel_of(unbound, trial.block, dict(changes_of(trial, unbound.header)))


def _measure_now(kernels: Mapping[str, object], dtype: str, shapes: str) -> list[Record]:
    named = {name: as_named(name, kernel) for name, kernel in kernels.items() if kernel is not None}

    now = Run(describe_device(), describe_versions(), utc_now(), bench.PROTOCOL)
    records = {name: LiveRecord(name, [], now, shapes) for name in kernels}
    for rows, cols, *inner in bench.live_shapes(shapes):
        at = Problem(rows, cols, dtype, *inner)
        bound = {
            name: kernel.bind(rows, cols, dtype, inner=at.inner)
            for name, kernel in named.items()
            if kernel.accepts(rows, cols, dtype, inner=at.inner)
        }
        makers = {name: partial(_candidate, one) for name, one in bound.items()}
        if UNFUSED in kernels and at.inner == 1:
            makers[UNFUSED] = bench.unfused_candidate
        together: dict[Problem, dict[str, bench.Maker]] = {}  # kernels of the same problem
        for name in filter(makers.__contains__, kernels):
            problem = bound[name].problem if name in bound else at
            problem = at if problem.plain else problem  # for example a copy
            together.setdefault(problem, {})[name] = makers[name]
        for problem, some in together.items():
            measured = bench.measure(some, problem)
            for name in some:
                text = UNFUSED if kernels[name] is None else token_hash(text_of(kernels[name]))
                case = Case(problem, now, **vars(measured[name]), step=name, kernel_hash=text)
                records[name].cases.append(case)
    return list(records.values())


def _candidate(bound: BoundKernel, *_) -> bench.Candidate:
    return bench.kernel_candidate(bound)


def recorded_beside(record: Record) -> list[Record]:
    """Records of the same step to draw as dotted lines: those of the other GPUs, and for a live
    measurement also that of `shown_gpu`; none beside a live kernel that is not the series'."""
    live = isinstance(record, LiveRecord)
    if live and any(case.kernel_hash != step_hash(record.step) for case in record.cases):
        return []
    return [
        load_record(record.step, gpu)
        for gpu in recorded_gpus()
        if has_record(record.step, gpu) and (live or gpu != shown_gpu())
    ]
