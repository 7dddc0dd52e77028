"""How a file of profiler data is brought up to date, a batch at a time."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from ...base.gpu import GpuDescription
from .. import campaign, store
from ..store import Observation, Protocol, Run
from .launches import ToolRun


class Profiled(Observation):
    """What a tool found of a kernel."""

    campaign = "profile"

    @property
    def made_of(self) -> object:
        """What it depends on beside versions and protocol, such as code and launch."""
        raise NotImplementedError


Kind = TypeVar("Kind", bound=Profiled)


class ProfilerFile(ABC, Generic[Kind]):
    """One file: what it should hold, and how that is found."""

    kind: ClassVar[type[Profiled]]
    title: ClassVar[str]  # of the progress
    protocol: ClassVar[Protocol]

    def __init__(self, run: Run):
        self.run = run

    @abstractmethod
    def wanted(self) -> Mapping[Hashable, object]:
        """The key of each observation that the file should hold -> what it is `made_of` now."""

    @abstractmethod
    def batches(self, missing: Sequence[Hashable], steps: Sequence[str]) -> list[ToolRun]:
        """What is to be looked at: what is missing of these steps."""

    @abstractmethod
    def look(self, batch: ToolRun) -> list[Kind]:
        """What is found in a batch, in this process or in one that has a copy of this object.
        Raises `Failure` if nothing is."""

    def complaints(self, found: Sequence[Kind]) -> list[str]:
        """What is wrong with the kernels, a line each."""
        return []


def update(
    make: type[ProfilerFile],
    device: GpuDescription,
    versions: Mapping[str, str],
    steps: Sequence[str],
    fresh: bool = False,
    jobs: int = 1,
) -> int:
    """Bring a file up to date, writing it after each batch; returns how many batches failed and
    complaints there are. With `fresh` all of the steps is looked at again."""
    folder, kind = store.gpu_folder(device["name"]), make.kind
    part = make(Run(device, dict(versions), store.utc_now(), make.protocol))
    wanted, known = part.wanted(), store.read_if_any(kind, folder)
    kept = [one for one in known if one.key in wanted]
    valid = {
        one.key
        for one in kept
        if one.made_of == wanted[one.key]
        and one.run.protocol == part.protocol
        and not store.changed(one.run.versions, versions)
    }
    order = {key: place for place, key in enumerate(wanted)}

    def keep(batch: ToolRun, found: Sequence[Profiled]) -> Iterator[str]:
        nonlocal kept
        for one in found:
            kept = store.put(kept, one, order)
        store.write(kind, folder, kept)
        yield str(batch)

    batches = part.batches([key for key in wanted if fresh or key not in valid], steps)
    print(f"{part.title}: {len(batches) or 'no'} batches to run", flush=True)
    failed = len(campaign.run(batches, part.look, keep, str, jobs=jobs))
    if not batches and 0 < len(kept) < len(known):
        store.write(kind, folder, kept)  # without what is not asked for any more
    for line in part.complaints(kept):
        print(line, file=sys.stderr)
        failed += 1
    return failed
