"""A campaign: the records of one kind on this machine's GPU, and the loop that measures what they
lack. Each result is stored at once, so that the next run resumes an interrupted one."""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence

from ..base import gpu
from ..catalogue import store
from ..catalogue.store import Observation, Protocol, Run
from ..simt.words import at_least, counted
from . import workers
from .workers import Failure


class CampaignTask:
    """A part of a campaign. Its text names it in messages; it can be sent to another process."""

    def measure(self) -> Sequence[Observation]:
        """Measure it. Raises `Failure` that names the culprit."""
        raise NotImplementedError

    def without(self, failure: Failure) -> tuple[CampaignTask | None, bool]:
        """(the task without the part that failed, or None; whether to report the failure)."""
        return None, True

    def lines(self, found: Sequence[Observation]) -> Iterable[str]:
        """Progress to be printed."""
        return [str(self)]


def measure(task: CampaignTask) -> Sequence[Observation]:
    return task.measure()


class Clock:
    """How long a campaign has taken, and how long it may take."""

    def __init__(self, minutes: float | None = None):
        self.began = time.perf_counter()
        self.limit_s = 60.0 * minutes if minutes else float("inf")

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    @property
    def left_s(self) -> float:
        return self.limit_s - self.seconds

    def progress(self, done: int, total: int, since: float) -> str:
        """ "3/12, 40 s, 2 min to go", estimated from the tasks since `since`."""
        rest = (self.seconds - since) / done * (total - done) / 60
        return f"{done}/{total}, {self.seconds:.0f} s, {rest:.0f} min to go"


class Campaign:
    """The records of a kind on the GPU in use, to be continued in one run. `options` may have
    minutes and jobs."""

    def __init__(
        self,
        kind: type[Observation],
        protocol: Protocol,
        options: argparse.Namespace,
        versions: Mapping[str, str] | None = None,
    ):
        self.clock = Clock(getattr(options, "minutes", None))
        self.jobs = getattr(options, "jobs", 1)
        device, versions = gpu.describe_device(), versions or {}
        self.kind, self.folder = kind, store.gpu_folder(device["name"])
        self.run = Run(device, {**gpu.describe_versions(), **versions}, store.utc_now(), protocol)
        self.known = store.read_if_any(kind, self.folder)
        self.order: Mapping[Hashable, int] = {}  # of the keys in the file

    def put(self, found: Iterable[Observation]) -> None:
        """Insert observations, and write the file."""
        for one in found:
            self.known = store.put(self.known, one, self.order)
        store.write(self.kind, self.folder, self.known)

    def measure(self, tasks: Sequence[CampaignTask], apart: bool = False) -> list[str]:
        """Measure tasks in order, on several GPUs or `apart` in other processes, and store the
        results; print a sentence for each failure that is to be reported, and return these."""
        left = deque(tasks if self.clock.left_s >= 0 else ())
        done, total, failed, since = 0, len(left), [], self.clock.seconds
        for task, result in workers.deal(measure, left, self.jobs, apart):
            lines: Iterable[str] = ()
            if isinstance(result, Failure):
                rest, reported = task.without(result)
                if reported:
                    failed.append(result.at(str(task)))
                    print(failed[-1], file=sys.stderr, flush=True)
                if rest is not None:
                    left.appendleft(rest)
                    continue
            else:
                self.put(result)
                lines = task.lines(result)
            done += 1
            for line in lines:
                print(f"[{self.clock.progress(done, total, since)}] {line}", flush=True)
            if self.clock.left_s < 0 and left:
                print(f"time is up: {counted(len(left), 'task')} left for another run", flush=True)
                left.clear()
        return failed

    def end(self, failed: Sequence[str]) -> int:
        """Say where the records are and what failed; return the exit status."""
        print(f"records are in {store.path_of(self.kind, self.folder)}")
        for line in failed:
            print(f"not recorded: {line}", file=sys.stderr)
        return 1 if failed else 0


def add_shared_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add some of the options that campaigns share: minutes, warm, jobs, fresh."""
    shared = {
        "minutes": ("begin nothing after so many minutes", at_least(1), None),
        "warm": ("compile other libraries' kernels in N processes first", at_least(0), 0),
        "jobs": ("deal the work out to so many GPUs (1)", at_least(1), 1),
    }
    for name, (help, type, default) in shared.items():
        if name in names:
            parser.add_argument(f"--{name}", type=type, default=default, metavar="N", help=help)
    if "fresh" in names:
        parser.add_argument("--fresh", action="store_true", help="measure again what is recorded")
