"""What each file of evidence holds, which is asked of it when it is read."""

from __future__ import annotations

from typing import Annotated, TypedDict

from ...base.gpu import Device
from ...base.typed_json import Count, Date, Dtype, Must, Natural
from ...catalogue.registry import UNFUSED
from ..store import Versions

_Metric = Annotated[float, Must("0 or more", lambda number: number >= 0)]
_Names = dict[str, str]  # kernel file -> hash of its text


class _Head(TypedDict):
    device: Device
    versions: Versions
    utc: Date


class _Counted(TypedDict):
    values: list[_Metric | None]  # in the order of the file's metrics


class _Launch(_Counted):
    kernel: str


class _OfDtype(TypedDict, total=False):
    dtype: Dtype  # float32 where there is none


class _CountedLaunch(_Counted, _OfDtype):
    step: str
    rows: Count
    cols: Count
    launch: dict[str, Natural]


_Unfused = TypedDict("_Unfused", {UNFUSED: list[_Launch]}, total=False)


class Counters(_Head, _Unfused):
    hashes: _Names
    metrics: list[str]
    cases: list[_CountedLaunch]


class _Verdict(TypedDict):
    steps: dict[str, Natural]


class Sanitizer(_Head):
    hashes: _Names
    cases: list[tuple[str, Count, Count, Dtype]]
    launches: list[dict[str, Natural]]
    tools: dict[str, _Verdict]


class _Disassembly(TypedDict):
    options: list[str]
    in_order: list[str]
    counts: dict[str, Count]


class Sass(_Head):
    hashes: _Names
    kernels: dict[str, _Disassembly]


class _Error(TypedDict):
    max_ulp: _Metric
    mean_ulp: _Metric


class Numerics(_Head):
    errors: dict[str, dict[str, _Error]]


_PAIRED = Must(
    "one with a launch for each case", lambda file: len(file["cases"]) == len(file["launches"])
)
_MEASURED = Must(
    "one with a value for each metric",
    lambda file: all(
        len(entry["values"]) == len(file["metrics"])
        for entry in (*file["cases"], *file.get(UNFUSED, ()))
    ),
)
FORMS = {
    "counters": Annotated[Counters, _MEASURED],
    "sanitizer": Annotated[Sanitizer, _PAIRED],
    "sass": Sass,
    "numerics": Numerics,
}
