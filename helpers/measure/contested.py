"""What race and pipelines have alike: cases of contests, the task that makes one, and the file that
holds all of one GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, TypeVar

from ..base.gpu import Device, Gpu, of_record
from ..base.json_files import named, write_json
from ..base.typed_json import Count, Date, Dtype, Must
from ..catalogue.dispatch import AROUND
from ..problem.operations import OPERATIONS, SOFTMAX
from ..problem.problem import Problem
from ..problem.shapes import Shape
from . import peers
from .contests import chosen
from .records import (
    MUST_NOT_CHANGE,
    SCHEMA,
    Protocol,
    Versions,
    fields_of,
    go_on_with,
    launch_of,
    read_record,
)
from .workers import Failure

Computed = Annotated[str, Must(f"one of {', '.join(AROUND)}", AROUND.__contains__)]


class CaseOfContest:
    """A case that names its contest: the fields are those of the dataclass that inherits it."""

    rows: Count
    cols: Count
    dtype: Dtype
    operation: Computed
    features: dict[str, Count]
    inner: Count
    gpu: Gpu

    @cached_property
    def problem(self) -> Problem:
        features = tuple(self.features.items())
        return Problem(*self.shape, self.dtype, self.inner, self.operation, features)

    @property
    def shape(self) -> Shape:
        return self.rows, self.cols

    @property
    def chosen_now(self) -> str:
        """What `choose` picks on its GPU; "" if none of our kernels takes it."""
        return chosen(self.problem, self.gpu)

    def launch_now(self, step: str) -> dict[str, int]:
        """The launch that the header of one of our kernels asks for."""
        return launch_of(step, self.problem, self.gpu)


@dataclass
class Contested:
    """All cases of one GPU. Device, versions and date are those of the run that added last."""

    device: Device
    versions: Versions
    utc: Date
    protocols: list[Protocol]  # of its cases
    cases: list = field(default_factory=list)
    schema: int = SCHEMA

    def compared_versions(self) -> dict[str, str]:
        """Those of its versions that a case must have been timed with."""
        names = (*MUST_NOT_CHANGE, *peers.PACKAGES)
        return {name: self.versions[name] for name in names if name in self.versions}

    def go_on_from(self, before: Contested) -> None:
        """Take over the cases of a file, to add some by its own protocol."""
        (protocol,) = self.protocols
        self.cases, self.protocols = before.cases, before.protocols
        go_on_with(self, protocol)


AllCases = TypeVar("AllCases", bound=Contested)


def read_contested(path: Path, whole: type[AllCases]) -> AllCases:
    """A file; its GPU is that of each case. Raises `ValueError` that names the file for one that is
    damaged or of another version of this program."""
    found = read_record(path, whole)
    for number, case in enumerate(found.cases):
        for name, value in case.features.items():
            try:
                OPERATIONS[case.operation].value(name, value)
            except ValueError as error:
                raise ValueError(f"{named(path)}: cases[{number}].features: {error}") from None
    gpu = of_record(found.device)
    found.cases = [replace(case, gpu=gpu) for case in found.cases]
    return found


def write_contested(path: Path, whole: Contested) -> None:
    """Cases without what the file says once, and without what softmax alone has by default."""
    fields = fields_of(whole)
    for case in fields["cases"]:
        del case["gpu"]
        for key in ("less_precise", "added"):
            if not case.get(key, True):
                del case[key]
        if case["operation"] == SOFTMAX.name and not case["features"]:
            del case["operation"], case["features"]
    write_json(path, fields)


@dataclass(frozen=True)
class Task:
    """A contest to be timed at."""

    problem: Problem
    peers: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)  # peer that was tried -> why not again

    def without(self, failure: Failure) -> Task:
        """The same without the peer that is to blame."""
        return replace(self, failed={**self.failed, failure.culprit: failure.reason})

    def skipped(self) -> dict[str, str]:
        """Its peers that failed, or that cannot run the contest -> why."""
        reasons = {
            name: self.failed.get(name) or peers.why_not(name, self.problem) for name in self.peers
        }
        return {name: reason for name, reason in reasons.items() if reason}
