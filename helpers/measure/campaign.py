"""Campaigns: the records of one kind on this machine's GPU, the loop that measures what they lack,
and the distribution of its tasks over GPUs, one process per GPU and one task at a time.

Each result is stored at once, so that the next run resumes an interrupted one.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import re
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor, TimeoutError, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..base import gpu
from ..catalogue import store
from ..catalogue.store import Observation, Protocol, Run
from ..problem.problem import Problem
from ..simt.words import counted

VISIBLE = "CUDA_VISIBLE_DEVICES"
Job = tuple[Callable[[str, Problem], None], str, Problem]  # compiles what is named for a problem


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

    With one GPU the work is done in this process; with more, or with `apart`, in a `Worker` for
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
        yield from _deal_to_workers(work, tasks, gpu_names(jobs))


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


class Worker:
    """A process that does tasks one at a time, on one GPU if it is named. It is started for the
    first task, and again after one that ended it or left its GPU unusable."""

    def __init__(self, work: Callable[[Any], Any], gpu: str = ""):
        self.work, self.gpu, self.task = work, gpu, None
        self.process: BaseProcess | None = None

    def give(self, task: Any) -> None:
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=_serve, args=(theirs, self.work, self.gpu))
            self.process.start()
            theirs.close()  # only the process holds this end, so that its death is noticed
        self.task = task
        with contextlib.suppress(OSError):  # it died while idle: `result` reports it
            self.pipe.send(task)

    def result(self) -> Any | Failure:
        """The result of the work, or a `Failure`."""
        try:
            result, usable = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            status = self.process.exitcode
            result, usable = Failure(f"its process ended with status {status}"), False
        if not usable:
            self.end()
        return result

    def end(self) -> None:
        if self.process is not None:
            self.pipe.close()
            self.process.terminate()
            self.process.join()
            self.process = None


def _serve(pipe: Connection, work: Callable[[Any], Any], gpu: str) -> None:
    """The loop of a worker's process: it works on tasks until the parent is gone."""
    if gpu:
        os.environ[VISIBLE] = gpu  # nothing has used CUDA yet
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(attempt(work, pipe.recv()))


def _deal_to_workers(
    work: Callable[[Any], Any], tasks: deque, names: list[str]
) -> Iterator[tuple[Any, Any | Failure]]:
    workers = [Worker(work, gpu) for gpu in names]
    idle, busy = [*workers], {}
    try:
        while tasks or busy:
            while tasks and idle:
                worker = idle.pop(0)
                worker.give(tasks.popleft())
                busy[worker.pipe] = worker
            for pipe in wait([*busy]):
                worker = busy.pop(pipe)
                result = worker.result()
                idle.append(worker)
                yield worker.task, result
    finally:
        for worker in workers:
            worker.end()


class CampaignTask:
    """A part of a campaign. Its text names it in messages; it can be sent to another process."""

    def wanted_keys(self) -> Sequence[Hashable]:
        """The keys of the observations that it makes: by default its problem."""
        return [self.problem]

    def wanted_names(self) -> Set[str]:
        """What each of these must have, measured or left out for a reason."""
        return frozenset()

    def title(self, key: Hashable) -> str:
        """What --only searches for an observation."""
        return str(self)

    def of(self, keys: Sequence[Hashable]) -> CampaignTask:
        """The task for some of its keys alone, if it can be divided."""
        return self

    def measure(self) -> Sequence[Observation]:
        """Measure it. Raises `Failure` that names the culprit."""
        raise NotImplementedError

    def without(self, failure: Failure) -> tuple[CampaignTask | None, bool]:
        """(the task without the part that failed, or None; whether to report the failure)."""
        return None, True

    def lines(self, found: Sequence[Observation]) -> Iterable[str]:
        """Progress to be printed."""
        return [str(self)]

    def to_compile(self) -> Iterable[Job]:
        """What it would compile, to be compiled in other processes before."""
        return ()


def measure(task: CampaignTask) -> Sequence[Observation]:
    return task.measure()


def minutes(text: str) -> float:
    """The type of an option --minutes. Raises `ValueError`, as `argparse` expects."""
    if not 0 < float(text) < math.inf:
        raise ValueError(text)
    return float(text)


REASONS = ("new", "kernels changed", "versions changed")  # most valuable first


class Campaign:
    """The records of a kind on the GPU in use, to be continued in one run. `versions` are those
    that a record depends on, beside `MUST_NOT_CHANGE`; `options` are minutes, warm, jobs, fresh and
    only, as `make measure` has them."""

    def __init__(
        self,
        kind: type[Observation],
        protocol: Protocol,
        options: argparse.Namespace,
        versions: Mapping[str, str] = MappingProxyType({}),
    ):
        self.began, self.options = time.perf_counter(), options
        device, now = gpu.describe_device(), {**gpu.describe_versions(), **versions}
        self.kind, self.folder = kind, store.gpu_folder(device["name"])
        self.run = Run(device, now, store.utc_now(), protocol)
        self.versions = {name: now[name] for name in (*store.MUST_NOT_CHANGE, *versions)}
        known = store.read_if_any(kind, self.folder)
        self.known: dict[Hashable, Observation] = {one.key: one for one in known}
        self.order: Iterable[Hashable] = ()  # of the keys in the file; others go last
        self.wanted = 0  # tasks that --only finds

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.perf_counter() - self.began

    @property
    def left_s(self) -> float:
        """How many seconds are left of --minutes."""
        minutes = self.options.minutes
        return (60.0 * minutes if minutes else math.inf) - self.seconds

    def asked(self, title: str) -> bool:
        """Whether --only, if it is given, finds a text."""
        return not self.options.only or any(re.search(one, title) for one in self.options.only)

    def versions_of(self, key: Hashable) -> Mapping[str, str]:
        """The versions that an observation depends on."""
        return self.versions

    def why(self, key: Hashable, names: Iterable[str] = ()) -> str:
        """Why an observation is to be measured (again), one of `REASONS`; "" if the recorded one
        need not be."""
        fresh = key not in self.known or self.options.fresh
        return REASONS[0] if fresh else self.change(key, names)

    def change(self, key: Hashable, names: Iterable[str] = ()) -> str:
        """What makes a recorded observation out of date, one of `REASONS`; "" if it is of kernels,
        launches, versions and protocol as they are, and has all of these `names`. Results of
        libraries that are not installed now stay."""
        one = self.known[key]
        if not one.is_current():
            return REASONS[1]
        same = self.versions_of(key).items() <= one.run.versions.items()
        same = same and one.is_valid_under(self.run.protocol) and {*names} <= one.names
        return "" if same else REASONS[2]

    def due(self, tasks: Iterable[CampaignTask]) -> list[CampaignTask]:
        """The tasks that --only finds with observations that are missing or out of date, for these
        alone: the most valuable first, otherwise in their order."""
        found = []
        for task in tasks:
            keys = [key for key in task.wanted_keys() if self.asked(task.title(key))]
            whys = {key: why for key in keys if (why := self.why(key, task.wanted_names()))}
            self.wanted += bool(keys)
            if whys:
                found.append((min(map(REASONS.index, whys.values())), task.of([*whys])))
        return [task for _, task in sorted(found, key=lambda one: one[0])]

    def put(self, found: Iterable[Observation]) -> None:
        """Insert observations, and write the file."""
        self.known |= {one.key: one for one in found}
        places = {key: place for place, key in enumerate(self.order)}
        ordered = sorted(self.known, key=lambda key: places.get(key, len(places)))
        store.write(self.kind, self.folder, [self.known[key] for key in ordered])

    def carry_out(self, tasks: Sequence[CampaignTask]) -> list[str]:
        """Say how many of the wanted tasks are due, and `measure` these."""
        total, device = counted(self.wanted, "task"), self.run.device["name"]
        print(f"{len(tasks)} of {total} to measure on {device}", flush=True)
        if self.options.warm:
            compile_ahead(tasks, self.options.warm, self.left_s / 3)
        nothing = self.options.only and not self.wanted
        return ["--only finds no task"] if nothing else self.measure(tasks)

    def measure(self, tasks: Sequence[CampaignTask], apart: bool = False) -> list[str]:
        """Measure tasks in order, on several GPUs or `apart` in other processes, and store the
        results; print a sentence for each failure that is to be reported, and return these."""
        left = deque(tasks if self.left_s >= 0 else ())
        done, total, failed, since = 0, len(left), [], self.seconds
        for task, result in deal(measure, left, self.options.jobs, apart):
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
            rest_min = (self.seconds - since) / done * (total - done) / 60
            for line in lines:
                at = f"{done}/{total}, {self.seconds:.0f} s, {rest_min:.0f} min to go"
                print(f"[{at}] {line}", flush=True)
            if self.left_s < 0 and left:
                print(f"time is up: {counted(len(left), 'task')} left for another run", flush=True)
                left.clear()
        return failed

    def complete(self, tasks: Sequence[CampaignTask]) -> int:
        """Carry out the tasks that are due; return the exit status."""
        return self.end(self.carry_out(tasks))

    def end(self, failed: Sequence[str]) -> int:
        """Say where the records are and what failed; return the exit status."""
        print(f"records are in {store.path_of(self.kind, self.folder)}")
        for line in failed:
            print(f"not recorded: {line}", file=sys.stderr)
        return 1 if failed else 0


# ---- compiling ahead ----------------------------------------------------------------------------

# Compile caches of the libraries; separate, because `compile_ahead` deletes from them.
CACHE = Path(tempfile.gettempdir()) / "softmax-worklog-comparison"


def use_cache() -> None:
    """Direct the compile caches of the libraries to `CACHE`; call it before they are imported."""
    for variable, folder in (
        ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
        ("TRITON_CACHE_DIR", "triton"),
        ("QUACK_CACHE_DIR", "quack"),
    ):
        os.environ[variable] = str(CACHE / folder)


def compile_ahead(tasks: Iterable[CampaignTask], workers: int, seconds: float) -> None:
    """Fill the libraries' caches on disk, and CuPy's with our kernels, from several processes,
    since compiling takes most of a comparison, in the order of the tasks and for so many seconds
    at most.

    torch.compile also tunes while it compiles. The results found while processes shared the GPU are
    deleted; the comparison tunes again with the compiled code.
    """
    began, done = time.perf_counter(), 0
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        jobs = dict.fromkeys(job for task in tasks for job in task.to_compile())
        compiled = [pool.submit(_compiled, job) for job in jobs]
        try:
            for one in as_completed(compiled, None if seconds == math.inf else max(0.0, seconds)):
                done += 1
                if failure := one.result():
                    print(f"warm-up: {failure}", flush=True)
        except BrokenProcessPool:
            print("warm-up: a process ended; what is missing is compiled later", flush=True)
        except TimeoutError:
            print("warm-up: out of time; what is missing is compiled later", flush=True)
        for one in compiled:
            one.cancel()
    for tuned in CACHE.rglob("*.best_config"):
        tuned.unlink()
    print(f"warm-up of {done} kernels: {time.perf_counter() - began:.0f} s", flush=True)


def _compiled(job: Job) -> str:
    """Do a job; returns what went wrong, or ""."""
    function, name, problem = job
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    try:
        function(name, problem)
        return ""
    except Exception as error:  # the campaign meets the error again and records it
        return f"{name} at {problem.place(dtype=True)}: {type(error).__name__}"
