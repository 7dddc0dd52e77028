"""Bring a file of profiler data up to date, one run of a tool at a time."""

from __future__ import annotations

import functools
import sys
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from ...base.gpu import GpuDescription
from ...catalogue import store
from ...catalogue.store import Observation, Protocol, Run
from .. import campaign
from ..records import step_hash
from .launches import ToolRun


class Profiled(Observation):
    """A result of a tool for a kernel."""

    campaign = "profile"

    @property
    def made_of(self) -> object:
        """What it depends on besides versions and protocol, such as code and launch."""
        raise NotImplementedError


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


Kind = TypeVar("Kind", bound=Profiled)


class ProfilerFile(ABC, Generic[Kind]):
    """One file: the observations that it should contain, and how they are made."""

    kind: ClassVar[type[Profiled]]
    title: ClassVar[str]  # in lines of progress
    protocol: ClassVar[Protocol]

    def __init__(self, run: Run):
        self.run = run

    @abstractmethod
    def wanted(self) -> Mapping[Hashable, object]:
        """The key of each observation that the file should hold -> what it is `made_of` now."""

    @abstractmethod
    def batches(self, missing: Sequence[Hashable], steps: Sequence[str]) -> list[ToolRun]:
        """The runs that make the missing observations of these steps."""

    @abstractmethod
    def look(self, batch: ToolRun) -> list[Kind]:
        """The observations of a run, made in this process or in a child with a copy of this object.
        Raises `Failure` if there are none."""

    def complaints(self, found: Sequence[Kind]) -> list[str]:
        """Errors found in the kernels, one line each."""
        return []


def update(
    make: type[ProfilerFile],
    device: GpuDescription,
    versions: Mapping[str, str],
    steps: Sequence[str],
    fresh: bool = False,
    jobs: int = 1,
) -> int:
    """Bring a file up to date, writing it after each run; returns the number of failed runs and
    complaints. `fresh` repeats everything for the steps."""
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
        store.write(kind, folder, kept)  # without observations that are no longer wanted
    for line in part.complaints(kept):
        print(line, file=sys.stderr)
        failed += 1
    return failed
