"""What the files of evidence have in common: they are opened, filled a batch at a time and read."""

from __future__ import annotations

import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...base import gpu
from ...base.json_files import read_json, write_json
from ...base.typed_json import typed
from ...catalogue.registry import UNFUSED, split_trial
from .. import campaign, records, store
from ..store import REFERENCE_GPU
from .cases import Batch, examined_steps
from .forms import FORMS


class Part(ABC):
    """One file of evidence: what stands in it already, what is missing and how that is found.

    `stored` is the file as it is, empty if there is none or if it is of another driver; of it a
    part keeps what is of the kernels as they are now. `device` is the GPU as a record has it.
    """

    name: str  # of the file, without .json
    title: str  # of the progress
    entries: str  # the key under which most of the file stands

    def __init__(self, stored: dict, device: dict):
        self.stored, self.device, self.gpu = stored, device, gpu.of_record(device)

    @abstractmethod
    def batches(self, steps: Sequence[str], fresh: bool) -> list[Batch]:
        """What is to be looked at: what is missing of these steps, or all of it."""

    @abstractmethod
    def look(self, batch: Batch) -> Any:
        """What is found in a batch, in this process or in one that has a copy of this object.
        Raises `Failure` if nothing is."""

    @abstractmethod
    def keep(self, batch: Batch, found: Any) -> None:
        """Take in what was found."""

    @abstractmethod
    def content(self) -> dict:
        """The file, without its head."""

    def complaints(self) -> list[str]:
        """What is wrong with the kernels, a line each."""
        return []

    def is_current(self, step: str) -> bool:
        """Whether the file was written for a step's code as it is now."""
        file = split_trial(step).file
        return self.stored.get("hashes", {}).get(file) == records.step_hash(step)


def update(
    make: type[Part], head: dict, steps: Sequence[str], fresh: bool = False, jobs: int = 1
) -> int:
    """Bring a file up to date, writing it after each batch; returns how many batches failed and
    complaints there are. `head` is the device, versions and date to put first; a file that goes on
    keeps its own until all of it is made anew."""
    path = part_path(make.name, store.gpu_folder(head["device"]["name"]))
    stored = open_part(path, head["versions"])
    begun = {key: stored[key] for key in head if key in stored}
    part = make(stored, head["device"])
    unmade = set(part.batches(examined_steps(), fresh=True))

    def save() -> None:
        write_json(path, {**head, **(begun if unmade else {}), **part.content()})
        read_part.cache_clear()

    def keep(batch: Batch, found: Any) -> Iterator[str]:
        part.keep(batch, found)
        unmade.discard(batch)
        save()
        yield str(batch)

    batches = part.batches(steps, fresh)
    print(f"{part.title}: {len(batches) or 'no'} batches to run", flush=True)
    failed = len(campaign.run(batches, part.look, keep, str, jobs=jobs))
    if stored and not batches and part.content()[part.entries] != stored.get(part.entries):
        save()  # without what is not asked for any more
    for line in part.complaints():
        print(line, file=sys.stderr)
        failed += 1
    return failed


def open_part(path: Path, versions: dict[str, str]) -> dict:
    """A file to go on with; empty if there is none, or if it is of another driver, NVRTC or
    CuPy."""
    if not path.is_file():
        return {}
    stored = read_file(path)
    if others := store.changed(stored["versions"], versions):
        print(f"{path.name} is of another {', '.join(others)}: all of it is made again")
        return {}
    return stored


@functools.lru_cache
def read_part(name: str, gpu: str = REFERENCE_GPU) -> dict:
    """A file of evidence. Raises `FileNotFoundError` that says how it is made, `ValueError` that
    names a file which is damaged, and what of it is not as `FORMS` has it."""
    path = part_path(name, gpu)
    if not path.is_file():
        raise FileNotFoundError(f"no {path.name} of {gpu}: run make measure ARGS=profile there")
    return read_file(path)


def read_file(path: Path) -> dict:
    """A file; counters with the name beside each value of a metric, which the file names once."""
    fields = typed(path, read_json(path), FORMS[path.stem])
    if "metrics" in fields:
        names = fields.pop("metrics")
        for entry in (*fields["cases"], *fields.get(UNFUSED, ())):
            pairs = zip(names, entry.pop("values"), strict=True)
            entry["metrics"] = {name: value for name, value in pairs if value is not None}
    return fields


def part_path(name: str, gpu: str) -> Path:
    return store.folder_of(gpu) / f"{name}.json"


def hashes_of(names: Iterable[str]) -> dict[str, str]:
    """Kernel file -> hash of its code, for the files of steps, variants and trials."""
    files = sorted({split_trial(name).file for name in names})
    return {file: records.step_hash(file) for file in files}
