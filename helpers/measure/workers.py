"""Work dealt out to the GPUs of a machine: one process for each, one task at a time.

Campaigns hand their tasks to `deal` and write each result as it comes, so that an interrupted run
loses only what it was at.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import re
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ..simt.options import at_least

VISIBLE = "CUDA_VISIBLE_DEVICES"


class Failure(RuntimeError):
    """What a task came to instead of a result: a reason of one line, and whose fault it is where
    that is known. A task may raise it; other exceptions become one."""

    def __init__(self, reason: str, culprit: str = ""):
        super().__init__(reason, culprit)
        self.reason, self.culprit = reason, culprit

    def __str__(self) -> str:
        return f"{self.culprit}: {self.reason}" if self.culprit else self.reason

    def at(self, where: str) -> str:
        """ "06_registers at 64 x 128: why"; without a culprit it begins with "at"."""
        return " ".join(filter(None, (self.culprit, f"at {where}:", self.reason)))


def add_jobs_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs",
        type=at_least(1),
        default=1,
        metavar="N",
        help="deal the work out to so many GPUs (1)",
    )


def deal(
    work: Callable[[Any], Any], tasks: deque, jobs: int = 1, apart: bool = False
) -> Iterator[tuple[Any, Any | Failure]]:
    """Take the tasks off `tasks` and yield each with what `work(task)` returned, as they end.

    On one GPU the work is done in this process; on more, or `apart`, in a new child process for
    each, so that `work` and what it takes and returns must be picklable. An exception, or the end
    of a child, makes that one task a `Failure`; after an error that leaves a GPU unusable for its
    process, the rest is done in a new one. The caller may append or drop tasks while it iterates.
    """
    usable = jobs == 1 and not apart
    while usable and tasks:
        task = tasks.popleft()
        result, usable = attempt(work, task)
        yield task, result
    if tasks:
        yield from _deal_to_children(work, tasks, gpu_names(jobs))


def gpu_names(jobs: int) -> list[str]:
    """What the first `jobs` GPUs are called in CUDA_VISIBLE_DEVICES; fewer if there are fewer."""
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    named = os.environ.get(VISIBLE) or ",".join(map(str, range(count)))
    return named.split(",")[: max(1, min(jobs, count))]


def attempt(work: Callable[[Any], Any], task: Any) -> tuple[Any | Failure, bool]:
    """(what the work returned or a `Failure`, whether this process can use its GPU further)."""
    try:
        return work(task), True
    except Failure as failure:
        return failure, gpu_is_usable()
    except Exception as error:
        traceback.print_exc()
        return Failure(one_line(error)), gpu_is_usable()


def one_line(error: Exception) -> str:
    """An exception's class and the start of its message, fit for a record: without the colours of a
    terminal, and a record names no folder of the machine it was made on."""
    message = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().partition("\n")[0][:200]
    message = re.sub(r"(?<!\w)~?/+\w[^\s'\",:)]*", lambda path: Path(path[0]).name, message)
    return f"{type(error).__name__}: {message}"


def gpu_is_usable() -> bool:
    """Whether CUDA still works in this process: an illegal access leaves it broken for good."""
    import cupy

    try:
        cupy.cuda.runtime.deviceSynchronize()
        return True
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


class _Child:
    """A process that sees one GPU, and the pipe to it."""

    def __init__(self, work: Callable[[Any], Any], gpu: str):
        self.gpu, self.task = gpu, None
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work))
        before = os.environ.get(VISIBLE)
        os.environ[VISIBLE] = gpu  # there before the child imports anything
        try:
            self.process.start()
        finally:
            if before is None:
                del os.environ[VISIBLE]
            else:
                os.environ[VISIBLE] = before
        theirs.close()  # so that the child's end is the only one, and its death is seen

    def give(self, task: Any) -> None:
        self.task = task
        with contextlib.suppress(OSError):  # it died idle: `result` will say so
            self.pipe.send(task)

    def result(self) -> tuple[Any | Failure, bool]:
        """What `attempt` returned there."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            return Failure(f"its process ended with status {self.process.exitcode}"), False

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join()


def _serve(pipe: Connection, work: Callable[[Any], Any]) -> None:
    """A child's life: work at what comes until the parent is gone or this GPU is unusable."""
    usable = True
    while usable:
        try:
            task = pipe.recv()
        except EOFError:
            return
        result, usable = attempt(work, task)
        pipe.send((result, usable))


def _deal_to_children(
    work: Callable[[Any], Any], tasks: deque, names: list[str]
) -> Iterator[tuple[Any, Any | Failure]]:
    idle, busy = list(names), {}
    children: dict[str, _Child] = {}  # of each GPU
    try:
        while tasks or busy:
            while tasks and idle:
                gpu = idle.pop(0)
                child = children.get(gpu) or children.setdefault(gpu, _Child(work, gpu))
                child.give(tasks.popleft())
                busy[child.pipe] = child
            for pipe in wait(list(busy)):
                child = busy.pop(pipe)
                result, usable = child.result()
                if not usable:
                    children.pop(child.gpu).end()
                idle.append(child.gpu)
                yield child.task, result
    finally:
        for child in children.values():
            child.end()
