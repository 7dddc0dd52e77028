"""Bring a file of profiler data up to date, one run of a tool at a time."""

from __future__ import annotations

import argparse
import functools
import sys
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from ...catalogue import store
from ...catalogue.store import Observation, Protocol, Run
from ..campaign import Campaign, Task
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


@dataclass(frozen=True)
class Batch(Task):
    """One run of a tool for a file."""

    part: ProfilerFile
    run: ToolRun

    def __str__(self) -> str:
        return str(self.run)

    def measure(self) -> list[Profiled]:
        return self.part.look(self.run)


def update(make: type[ProfilerFile], options: argparse.Namespace) -> int:
    """Bring a file up to date for the steps of `options`, all of it if it has `fresh`; returns the
    exit status: 1 after a failed run or a complaint."""
    campaign = Campaign(make.kind, make.protocol, options)
    part, known = make(campaign.run), campaign.known
    wanted = part.wanted()
    campaign.order = {key: place for place, key in enumerate(wanted)}
    campaign.known = [one for one in known if one.key in wanted]
    valid = {
        one.key
        for one in campaign.known
        if one.made_of == wanted[one.key]
        and one.run.protocol == part.protocol
        and not store.changed(one.run.versions, campaign.run.versions)
    }
    missing = [key for key in wanted if options.fresh or key not in valid]
    batches = [Batch(part, one) for one in part.batches(missing, options.steps)]
    print(f"{part.title}: {len(batches) or 'no'} batches to run", flush=True)
    status = campaign.end(campaign.measure(batches))
    if not batches and 0 < len(campaign.known) < len(known):
        campaign.put(())  # without observations that are no longer wanted
    for line in part.complaints(campaign.known):
        print(line, file=sys.stderr)
        status = 1
    return status
