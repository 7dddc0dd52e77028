"""The loop of every campaign: measure one task after the other, store each result at once, show
progress, and stop in time. The next run resumes an interrupted one, because each campaign measures
only what its file lacks."""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ..simt.checks import at_least
from ..simt.words import counted
from . import workers
from .workers import Failure

Task = TypeVar("Task")
Result = TypeVar("Result")


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


def run(
    tasks: Sequence[Task],
    work: Callable[[Task], Result],
    keep: Callable[[Task, Result], Iterable[str]],
    name: Callable[[Task], str],
    again: Callable[[Task, Failure], tuple[Task | None, bool]] = lambda task, failure: (None, True),
    jobs: int = 1,
    apart: bool = False,
    clock: Clock | None = None,
) -> list[str]:
    """Measure tasks in order; print a sentence for each failure, and return these.

    `work` measures one task, on several GPUs or `apart` in other processes; `keep` stores its
    result and yields lines of progress; `name` describes the task. After a failure `again` returns
    (the task without the part that failed, or None; whether to report the failure).
    """
    clock, left = clock or Clock(), deque(tasks)
    done, total, failed, since = 0, len(left), [], clock.seconds
    if clock.left_s < 0:
        left.clear()
    for task, result in workers.deal(work, left, jobs, apart):
        lines: Iterable[str] = ()
        if isinstance(result, Failure):
            rest, reported = again(task, result)
            if reported:
                failed.append(result.at(name(task)))
                print(failed[-1], file=sys.stderr, flush=True)
            if rest is not None:
                left.appendleft(rest)
                continue
        else:
            lines = keep(task, result)
        done += 1
        for line in lines:
            print(f"[{clock.progress(done, total, since)}] {line}", flush=True)
        if clock.left_s < 0 and left:
            print(f"time is up: {counted(len(left), 'task')} left for another run", flush=True)
            left.clear()
    return failed


def add_shared_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add some of the options that campaigns share: minutes, warm, jobs, fresh."""
    if "minutes" in names:
        help = "begin nothing after so many minutes"
        parser.add_argument("--minutes", type=at_least(1), metavar="N", help=help)
    if "warm" in names:
        help = "compile other libraries' kernels in N processes first"
        parser.add_argument("--warm", type=at_least(0), default=0, metavar="N", help=help)
    if "jobs" in names:
        workers.add_jobs_option(parser)
    if "fresh" in names:
        parser.add_argument("--fresh", action="store_true", help="measure again what is recorded")
