"""The profiled launches, the program that makes them, how a tool is run on it, and how a file of
its results is brought up to date."""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

from ...base.gpu import Gpu
from ...base.mode import SWITCH
from ...base.paths import ROOT
from ...catalogue import registry, store
from ...catalogue.plan import DTYPE_OPTIONS
from ...catalogue.registry import UNFUSED, known_steps
from ...catalogue.store import Observation, Protocol, Run
from ...problem.problem import Problem
from ...problem.shapes import (
    LARGE_LONG_SHAPES,
    LARGE_SHAPES,
    LARGE_UNALIGNED_SHAPES,
    REFERENCE_SHAPE,
    SMALL_16_BIT_SHAPES,
    SMALL_LONG_SHAPES,
    SMALL_SHAPES,
)
from ...run.execute import to_gpu
from ...run.references import make_input
from .. import bench
from ..campaign import Campaign, CampaignTask
from ..gpu_arrays import buffers, host_arrays, later, with_room
from ..records import families_of, launch_of, step_hash

SMALL_TRIALS = ("08_ahead-CLUSTERS1",)  # one persistent cluster takes all rows


class Launch(NamedTuple):
    """One profiled launch."""

    step: str
    at: Problem  # sizes and dtype; as an operation always softmax

    @classmethod
    def parse(cls, text: str) -> Launch:
        """The inverse of `str`."""
        step, rows, cols, dtype = text.split(":")
        return cls(step, Problem(int(rows), int(cols), dtype))

    def __str__(self) -> str:
        return f"{self.step}:{self.at.rows}:{self.at.cols}:{self.at.dtype}"


UNFUSED_LAUNCH = Launch(UNFUSED, Problem(*REFERENCE_SHAPE))


class ToolRun(NamedTuple):
    """One run of a tool: launches of one step."""

    step: str
    launches: tuple[Launch, ...] = ()
    tool: str = ""  # of compute-sanitizer

    def __str__(self) -> str:
        launches = f": {len(self.launches)} launches" if self.launches else ""
        return f"{self.tool} {self.step}{launches}".lstrip()


def examined_steps() -> list[str]:
    """All steps, variants and trials with a record, and trials that are only profiled."""
    return [*known_steps(), *SMALL_TRIALS]


def launches(which: str = "all", gpu: Gpu | None = None) -> list[Launch]:
    """The launches planned for a GPU, in the order of the files: those at small shapes first, and
    only these if `which` is "small".

    Steps that are recorded at the sweep are profiled without long rows, and their variants at the
    large shapes alone.
    """
    chosen = []
    tried = (*registry.steps(), *registry.variants(), *registry.TRIALS)
    swept = {step for step in tried if "sweep" in families_of(step)}
    small = (*registry.steps(), *(one for one in registry.variants() if one not in swept))
    for step in (*small, *SMALL_TRIALS):
        shapes = (*SMALL_SHAPES, *(() if step in swept else SMALL_LONG_SHAPES))
        chosen += [Launch(step, Problem(*shape)) for shape in shapes]
        for dtype in DTYPE_OPTIONS:
            chosen += [Launch(step, Problem(*shape, dtype)) for shape in SMALL_16_BIT_SHAPES]
    for step in tried if which == "all" else ():
        shapes = (*LARGE_SHAPES, *(() if step in swept else LARGE_LONG_SHAPES))
        if "few unaligned" in families_of(step):
            shapes = (*shapes, *LARGE_UNALIGNED_SHAPES)
        dtypes = ("float32", "bfloat16") if step in registry.steps() else ("float32",)
        chosen += [Launch(step, Problem(*shape, dtype)) for dtype in dtypes for shape in shapes]
    return [one for one in chosen if launch_of(one.step, one.at, gpu)]


# ---- the program that the tools watch -----------------------------------------------------------


def run_kernels(chosen: Sequence[Launch]) -> None:
    """Make each launch once, and expose nothing else to the profilers; every array has its own
    allocation, so that compute-sanitizer sees where it ends."""
    import cupy
    from cupyx.profiler import profile

    cupy.cuda.set_allocator(None)
    for step, at in chosen:
        problem = bench.problem_of(step, at)
        candidate = bench.maker(step)(problem)
        if problem.plain:
            x = input_on_gpu(problem)
            y = later(with_room(x)) if candidate.late else cupy.empty_like(x)
            arrays = x, y
        elif at.rows * at.cols < 2**20:
            arrays = tuple(map(to_gpu, host_arrays(problem).values()))
        else:
            arrays = buffers(problem, cupy.random.default_rng(0))
        cupy.cuda.Device().synchronize()
        with profile():
            candidate.run(*arrays)
            cupy.cuda.Device().synchronize()


def input_on_gpu(problem: Problem):
    """A CuPy array of seeded normal values in shifted rows; bfloat16 as uint16. A small one comes
    from `make_input`, which tests use on the SIMT machine; a large one is made on the GPU, because
    the host would take seconds."""
    import cupy

    (rows, cols), dtype = problem.shape, problem.dtype
    if rows * cols < 2**20:
        return to_gpu(make_input(rows, cols, dtype=dtype))
    x = cupy.random.default_rng(0).standard_normal((rows, cols), dtype=cupy.float32)
    x += cupy.linspace(-200, 200, rows, dtype=cupy.float32)[:, None]
    if dtype != "bfloat16":
        return x.astype(dtype, copy=False)
    return cupy.ascontiguousarray(x.view(cupy.uint16)[:, 1::2])  # rounded towards zero


def worker_command(chosen: Sequence[Launch]) -> list[str]:
    """The command that runs `run_kernels` in a process of its own."""
    return [
        sys.executable,
        "-m",
        "helpers.commands.measure",
        "profile",
        "--worker",
        *map(str, chosen),
    ]


def run_tool(command: list[str]) -> subprocess.CompletedProcess:
    """Run a tool on the worker, which must use the GPU even if replay is forced."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # ncu locks a file in TMPDIR, and would wait for another ncu that profiles another GPU.
        live = {**os.environ, SWITCH: "0", "TMPDIR": folder}
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=live)


# ---- a file of observations ---------------------------------------------------------------------


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
class ToolTask(CampaignTask):
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
    batches = [ToolTask(part, one) for one in part.batches(missing, options.steps)]
    print(f"{part.title}: {len(batches) or 'no'} batches to run", flush=True)
    status = campaign.end(campaign.measure(batches))
    if not batches and 0 < len(campaign.known) < len(known):
        campaign.put(())  # without observations that are no longer wanted
    for line in part.complaints(campaign.known):
        print(line, file=sys.stderr)
        status = 1
    return status
