"""Distribute work over the GPUs of a machine: one process per GPU, one task at a time.

Campaigns pass their tasks to `deal` and store each result as it arrives, so that an interrupted run
only loses the tasks in progress.
"""

from __future__ import annotations

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

VISIBLE = "CUDA_VISIBLE_DEVICES"


class Failure(RuntimeError):
    """The failure of a task: a reason in one line, and the culprit if it is known. A task may raise
    it; other exceptions are converted to it."""

    def __init__(self, reason: str, culprit: str = ""):
        super().__init__(reason, culprit)
        self.reason, self.culprit = reason, culprit

    def __str__(self) -> str:
        return f"{self.culprit}: {self.reason}" if self.culprit else self.reason

    def at(self, where: str) -> str:
        """ "06_registers at 64 x 128: why"; without a culprit it begins with "at"."""
        return " ".join(filter(None, (self.culprit, f"at {where}:", self.reason)))


def deal(
    work: Callable[[Any], Any], tasks: deque, jobs: int = 1, apart: bool = False
) -> Iterator[tuple[Any, Any | Failure]]:
    """Pop the tasks from `tasks` and yield each with the result of `work(task)`, as they end.

    With one GPU the work is done in this process; with more, or with `apart`, in one child process
    each, so `work`, its argument and its result must be picklable. An exception or the end of a
    child turns only its task into a `Failure`; after an error that leaves a GPU unusable for its
    process, a new process continues. The caller may append or drop tasks while it iterates.
    """
    usable = jobs == 1 and not apart
    while usable and tasks:
        task = tasks.popleft()
        result, usable = attempt(work, task)
        yield task, result
    if tasks:
        yield from _deal_to_children(work, tasks, gpu_names(jobs))


def gpu_names(jobs: int) -> list[str]:
    """The names of the first `jobs` GPUs in CUDA_VISIBLE_DEVICES; fewer if there are fewer."""
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    named = os.environ.get(VISIBLE) or ",".join(map(str, range(count)))
    return named.split(",")[: max(1, min(jobs, count))]


def attempt(work: Callable[[Any], Any], task: Any) -> tuple[Any | Failure, bool]:
    """(result of the work or a `Failure`, whether this process can still use its GPU)."""
    try:
        return work(task), True
    except Failure as failure:
        return failure, gpu_is_usable()
    except Exception as error:
        traceback.print_exc()
        return Failure(one_line(error)), gpu_is_usable()


def one_line(error: Exception) -> str:
    """The class of an exception and the start of its message, for a record: without terminal
    colours and without paths of this machine."""
    message = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().partition("\n")[0][:200]
    message = re.sub(r"(?<!\w)~?/+\w[^\s'\",:)]*", lambda path: Path(path[0]).name, message)
    return f"{type(error).__name__}: {message}"


def gpu_is_usable() -> bool:
    """Whether CUDA still works in this process: after an illegal access it never does."""
    import cupy

    try:
        cupy.cuda.runtime.deviceSynchronize()
        return True
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


class _Child:
    """A child process that sees one GPU, and the pipe to it."""

    def __init__(self, work: Callable[[Any], Any], gpu: str):
        self.gpu, self.task = gpu, None
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work))
        before = os.environ.get(VISIBLE)
        os.environ[VISIBLE] = gpu  # set before the child imports anything
        try:
            self.process.start()
        finally:
            if before is None:
                del os.environ[VISIBLE]
            else:
                os.environ[VISIBLE] = before
        theirs.close()  # only the child holds this end, so that its death is noticed

    def give(self, task: Any) -> None:
        self.task = task
        with contextlib.suppress(OSError):  # it died while idle: `result` reports it
            self.pipe.send(task)

    def result(self) -> tuple[Any | Failure, bool]:
        """The result of `attempt` in the child."""
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
    """The loop of a child: work on tasks until the parent is gone or this GPU is unusable."""
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
    children: dict[str, _Child] = {}  # one per GPU
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
