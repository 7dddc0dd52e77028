"""The measurements on a GPU: a folder of JSON Lines files, one observation per line.

    notebooks/records/<gpu>/<kind of observation>.jsonl

A file begins with its runs: GPU, versions, date and protocol of a measurement. Each following line
is an observation, whose "run" is the index of its run. Each campaign of `make measure` has its kind
of observation; `profile` has four. docs/architecture.md says when a record is out of date. A
problem is stored as its sizes and dtype, with operation, features and `inner` if they differ from
softmax alone along the last axis.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, TypedDict, TypeVar

from ..base.gpu import Gpu, GpuDescription, gpu_from_record, replay_is_forced
from ..base.gpu import gpu_folder as gpu_folder  # re-exported for campaigns
from ..base.json_files import Date, Must, named, read_lines, typed, write_lines
from ..base.paths import RECORDS
from ..problem.problem import Problem
from ..problem.shapes import Shape

REFERENCE_GPU = "nvidia-h200"  # whose records the committed notebooks and the README show
SWITCH = "SOFTMAX_RECORDS"
MUST_NOT_CHANGE = ("driver", "nvrtc", "cupy")  # versions that an observation depends on


class Protocol(TypedDict):
    """How something was measured, in words; each version of a campaign's protocol has one text."""

    version: int


Versions = Annotated[
    dict[str, str],
    Must(
        "the versions of driver, nvrtc and cupy", lambda names: names.keys() >= {*MUST_NOT_CHANGE}
    ),
]


@dataclass(frozen=True)
class Run:
    """GPU, versions, date and protocol of a measurement."""

    device: GpuDescription
    versions: Versions
    utc: Date
    protocol: Protocol

    @property
    def gpu(self) -> Gpu:
        """The properties of the GPU that plans depend on."""
        return gpu_from_record(self.device)


class Observation:
    """One measurement. Its kinds are frozen dataclasses with a field `run`."""

    file: ClassVar[str]  # file name without suffix
    campaign: ClassVar[str]  # that measures it
    run: Run

    @property
    def key(self) -> Hashable:
        """Identifies an observation on a GPU; a later one with the same key replaces an earlier
        one."""
        raise NotImplementedError

    @property
    def names(self) -> Set[str]:
        """What was measured, or left out for a reason, of what may be missing."""
        return frozenset()

    def is_current(self) -> bool:
        """Whether kernels, their code and their launches are still those that were measured."""
        return True

    def is_valid_under(self, protocol: Protocol) -> bool:
        """Whether it need not be measured again because of a protocol: what another version of it
        measured stays valid; what the same version measured, only if the texts are equal too."""
        own = self.run.protocol
        return own["version"] != protocol["version"] or own == protocol


@dataclass(frozen=True)
class AtProblem(Observation):
    """A measurement at one problem; its timings were taken in turn."""

    problem: Problem
    run: Run

    @property
    def key(self) -> Hashable:
        return self.problem

    @property
    def at(self) -> Problem:
        """Softmax at its sizes and dtype, whatever the operation."""
        return Problem(self.rows, self.cols, self.dtype, self.problem.inner)

    @property
    def rows(self) -> int:
        return self.problem.rows

    @property
    def cols(self) -> int:
        return self.problem.cols

    @property
    def dtype(self) -> str:
        return self.problem.dtype

    @property
    def shape(self) -> Shape:
        return self.problem.shape


Kind = TypeVar("Kind", bound=Observation)


def folder_of(gpu: str) -> Path:
    """The folder with the records of a GPU."""
    return RECORDS / gpu


def path_of(kind: type[Observation], gpu: str | None = None) -> Path:
    return folder_of(gpu or shown_gpu()) / f"{kind.file}.jsonl"


def recorded_gpus() -> list[str]:
    """Names of the folders with records, the reference GPU first."""
    found = sorted(folder.name for folder in RECORDS.iterdir() if folder.is_dir())
    return sorted(found, key=lambda name: name != REFERENCE_GPU)


def shown_gpu() -> str:
    """The folder whose records are shown where no GPU is named: that which SOFTMAX_RECORDS names,
    otherwise the reference GPU's, and always the latter where committed outputs are made or
    compared (SOFTMAX_REPLAY=1). Raises `ValueError` for a folder that does not exist."""
    chosen = os.environ.get(SWITCH)
    if not chosen or replay_is_forced():
        return REFERENCE_GPU
    if chosen not in recorded_gpus():
        there = ", ".join(recorded_gpus())
        raise ValueError(f"{SWITCH}={chosen} is no folder of notebooks/records; there are: {there}")
    return chosen


def utc_now() -> str:
    """The current time in the format of a run: "2030-01-02T03:04:05+00:00"."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


# ---- reading ------------------------------------------------------------------------------------


def read(kind: type[Kind], gpu: str | None = None) -> list[Kind]:
    """All observations of a kind on a GPU, by default `shown_gpu`, in the order of the file.

    Raises `FileNotFoundError` that says how to make them, and `ValueError` that names file and line
    for a line that is damaged or does not match the types of the kind.
    """
    return [*_of_file(kind, gpu).values()]


def find(kind: type[Kind], key: Hashable, gpu: str | None = None) -> Kind | None:
    """The observation with a key; None if there is none. Raises as `read`."""
    return _of_file(kind, gpu).get(key)


def read_if_any(kind: type[Kind], gpu: str | None = None) -> list[Kind]:
    """The same; empty if there is no file."""
    return read(kind, gpu) if path_of(kind, gpu).is_file() else []


def _of_file(kind: type[Kind], gpu: str | None) -> Mapping[Hashable, Kind]:
    path = path_of(kind, gpu)
    if not path.is_file():
        how = f"run make measure ARGS={kind.campaign} there"
        raise FileNotFoundError(f"no {kind.file} of {path.parent.name}: {how}")
    return read_file(kind, path)


def read_file(kind: type[Kind], path: Path) -> Mapping[Hashable, Kind]:
    """The observations of a file by key, in order. Raises `ValueError` as `read`."""
    state = path.stat()
    return _read(kind, path, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=16)
def _read(kind: type[Kind], path: Path, *state: int) -> Mapping[Hashable, Kind]:
    runs: list[Run] = []
    found: dict[Hashable, Kind] = {}
    for number, fields in read_lines(path):
        where = f"{named(path)}, line {number}"
        if "device" in fields:
            runs.append(typed(where, fields, Run))
            continue
        place = fields.get("run")
        if type(place) is not int or not 0 <= place < len(runs):
            raise ValueError(f"{where} is of run {place!r}, which is not among those above it")
        one = typed(where, {**fields, "run": runs[place]}, kind)
        if one.key in found:
            raise ValueError(f"{where} is of what an earlier line is of")
        found[one.key] = one
    if not found:
        raise ValueError(f"{named(path)} holds no observation")
    return MappingProxyType(found)


# ---- writing ------------------------------------------------------------------------------------


def write(kind: type[Kind], gpu: str, observations: Iterable[Kind]) -> None:
    """Rewrite the file of a kind: the runs of these observations, then they in order."""
    write_file(path_of(kind, gpu), observations)


def write_file(path: Path, observations: Iterable[Observation]) -> None:
    """The same for the file of any path."""
    observations = [*observations]
    numbers: dict[str, int] = {}  # text of a run -> its index
    for run in {id(one.run): one.run for one in observations}.values():
        numbers.setdefault(_text(run), len(numbers))
    lines = [json.loads(text) for text in numbers]
    lines += ({"run": numbers[_text(one.run)], **_fields(one)} for one in observations)
    write_lines(path, lines)


def _text(run: Run) -> str:
    return json.dumps(dataclasses.asdict(run))


def _fields(one: Observation) -> dict[str, Any]:
    """The fields of an observation without the run and without defaults."""
    found = {}
    for field in dataclasses.fields(one):
        value = getattr(one, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.name != "run" and value != default:
            found[field.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """Problems and dataclasses, also in lists, as JSON values."""
    if isinstance(value, list):
        return [*map(_plain, value)]
    if isinstance(value, Problem):
        return value.to_json()
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value


def latest(observations: Sequence[Kind]) -> Run:
    """The latest run. Raises `ValueError` for no observations."""
    return max((one.run for one in observations), key=lambda run: run.utc)
