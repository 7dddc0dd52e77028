"""What each file of evidence holds, which is asked of it when it is read."""

from __future__ import annotations

from typing import Annotated, TypedDict

from ..catalogue import UNFUSED
from ..gpu import Device
from ..records import Versions
from ..typed_json import Count, Dtype, Must, Natural

_Metric = Annotated[float, Must("0 or more", lambda number: number >= 0)]
_Names = Annotated[dict[str, str], Must("hashes by kernel file", bool)]


class _Head(TypedDict):
    device: Device
    versions: Versions


class _Stamp(TypedDict):
    kernel: str


class _Stamped(TypedDict, total=False):
    stamped: list[_Stamp]


class _Launch(TypedDict):
    kernel: str
    metrics: dict[str, _Metric]


class _OfDtype(TypedDict, total=False):
    dtype: Dtype  # float32 where there is none


class _CountedLaunch(_Launch, _OfDtype):
    step: str
    rows: Count
    cols: Count
    launch: dict[str, int]


_Unfused = TypedDict("_Unfused", {UNFUSED: list[_Launch]}, total=False)


class Counters(_Head, _Stamped, _Unfused):
    hashes: _Names
    cases: list[_CountedLaunch]


class _Verdict(TypedDict):
    command: str
    errors: Natural
    steps: dict[str, Natural]


class Sanitizer(_Head, _Stamped):
    hashes: _Names
    cases: list[tuple[str, Count, Count, Dtype]]
    launches: list[dict[str, int]]
    tools: dict[str, _Verdict]


class _Disassembly(TypedDict):
    options: list[str]
    in_order: list[str]
    counts: dict[str, Count]


class Sass(_Head, _Stamped):
    hashes: _Names
    kept: list[str]
    kernels: dict[str, _Disassembly]


class _Error(TypedDict):
    max_ulp: _Metric
    mean_ulp: _Metric


class Numerics(_Head):
    inputs: str
    errors: dict[str, dict[str, _Error]]


FORMS = {"counters": Counters, "sanitizer": Sanitizer, "sass": Sass, "numerics": Numerics}
