"""The cost of a call of the exported PyTorch softmax, compared with PyTorch's own and with the best
baseline of the comparison at a problem.

Three times, in turn: the host time until a call returns, the time per call of consecutive calls
(the slower of host and GPU), and the time per call in a CUDA graph, without the host. The graphs
are PyTorch's, not `bench.Graph`, because the calls allocate their results. The result is
`calls.jsonl`.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from ..base.gpu import gpu_in_use
from ..base.json_files import Count, Samples
from ..catalogue import dispatch, store
from ..catalogue.dispatch import step_hash
from ..catalogue.store import REFERENCE_GPU, AtProblem, Run
from ..export.python import write
from ..export.request import export_request
from ..problem.problem import Problem
from . import baselines
from .campaign import CampaignTask, Job
from .comparison import Comparison
from .interop import compiled
from .samples import in_turn, kept
from .side_by_side import free_memory

PROTOCOL = {
    "version": 1,
    "host_us": "time until a call returns: `burst` calls behind an idle GPU, none waited for",
    "eager_us": "the same calls between two CUDA events",
    "graph_us": "a CUDA graph of `calls` calls between two events; every result in memory of its "
    "own, inputs together past three times the L2 cache",
    "order": "implementations in turn, each as often behind each other; the first round discarded",
}
BURST, ROUNDS = 50, 22
MOST_BYTES = 8 << 30  # limit for the results of a graph
# An operator that only allocates: the cost of any custom operator.
NOTHING = "nothing"
OURS, TORCH = "ours", "torch"
# Baselines of the comparison that take a tensor and return another.
QUACK, LIGER, COMPILE = CALLED = "quack", "liger", "compile"


@dataclass(frozen=True)
class CallTimes(AtProblem):
    """Softmax of one shape: microseconds per call of each implementation."""

    file = campaign = "calls"

    step: str  # chosen by `choose`
    hash: str  # of its code
    calls: Count  # in a graph
    host_us: dict[str, Samples]
    eager_us: dict[str, Samples]
    graph_us: dict[str, Samples]
    skipped: dict[str, str] = field(default_factory=dict)  # implementation that was left out -> why

    def __post_init__(self) -> None:
        for part in ("host_us", "eager_us", "graph_us"):
            if missing := {OURS, TORCH} - {*getattr(self, part)}:
                raise ValueError(f"{part} lacks {min(missing)}")

    def is_current(self) -> bool:
        """Whether `choose` would return the same kernel now, with the same code."""
        step = dispatch.best(self.problem, self.run.gpu)
        return (step, step_hash(step)) == (self.step, self.hash)

    @property
    def names(self) -> Set[str]:
        return {*self.host_us, *self.skipped}

    @property
    def baseline(self) -> str:
        """The best baseline that was timed; "" if it was left out."""
        others = self.host_us.keys() - {OURS, TORCH, NOTHING}
        return next(iter(others), "" if self.skipped else TORCH)


COLUMNS = itertools.product(("host", "eager", "graph"), ("ours", "torch", "baseline"))
TITLES = ("rows x columns", "kernel", "best baseline", *map(" ".join, COLUMNS))


def table_row(case: CallTimes) -> list[str]:
    """Cells under `TITLES`: medians in microseconds, a dash for what was not timed."""
    cells = [case.problem.place(), case.step, case.baseline or "-"]
    for part in (case.host_us, case.eager_us, case.graph_us):
        medians = {name: f"{statistics.median(us):.2f}" for name, us in part.items()}
        cells += [medians.get(name, "-") for name in (OURS, TORCH, case.baseline)]
    return cells


def summary(cases: Sequence[CallTimes]) -> list[str]:
    """A summary of the medians of all cases, in lines."""
    host = sorted(_median(case.host_us, OURS) - _median(case.host_us, TORCH) for case in cases)
    said = [
        f"host: {statistics.median(host):+.2f} us beside torch in the median, {host[-1]:+.2f} at "
        f"most, more than +3 at {sum(us > 3 for us in host)} of {len(host)}"
    ]
    beside = [case for case in cases if case.baseline in case.graph_us]
    for what in ("eager", "graph") if beside else ():
        parts = [(getattr(case, f"{what}_us"), case.baseline) for case in beside]
        leads = [_median(part, baseline) / _median(part, OURS) for part, baseline in parts]
        said.append(
            f"{what}: {min(leads):.2f} to {max(leads):.2f} times as fast as the best baseline, at "
            f"{len(leads)} of {len(cases)}"
        )
    return said


def _median(part: Mapping[str, list[float]], name: str) -> float:
    return statistics.median(part[name])


# ---- who is timed beside it ---------------------------------------------------------------------


def best_baselines(gpu: str) -> dict[Problem, str]:
    """The best of `CALLED` and `TORCH` for each case of softmax in the comparison of a GPU, or of
    the reference GPU if it has none. Raises as `store.read`."""
    found = {}
    for case in store.read_if_any(Comparison, gpu) or store.read(Comparison, REFERENCE_GPU):
        if case.problem.plain and (names := {TORCH, *CALLED} & {*case.samples_us}):
            found[case.problem] = max(sorted(names), key=case.share)
    return found


def installed(name: str) -> bool:
    """Whether a baseline is installed."""
    return not baselines.why_not(name, Problem(8, 1024)).endswith(baselines.ABSENT)


@dataclass(frozen=True)
class CallTask(CampaignTask):
    """A problem to be timed, with a baseline if one is named."""

    problem: Problem
    run: Run
    baseline: str = ""

    def __str__(self) -> str:
        return self.problem.place(dtype=True)

    def wanted_names(self) -> Set[str]:
        return {OURS, TORCH, NOTHING, self.baseline} - {""}

    def measure(self) -> list[CallTimes]:
        return [measure(self.problem, self.run, self.baseline)]

    def lines(self, found: Sequence[CallTimes]) -> list[str]:
        return [" ".join(table_row(case)) for case in found]

    def to_compile(self) -> list[Job]:
        names = filter(None, (self.baseline, OURS))
        return [(compile_for, name, self.problem) for name in names]


# ---- timing, on a GPU with PyTorch --------------------------------------------------------------


@functools.cache
def exported() -> ModuleType:
    """The file for PyTorch, written and imported."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "softmax_timed.py"
        file.write_text(
            write(export_request("best", [], "softmax_timed"), "torch"), encoding="utf-8"
        )
        sys.path.insert(0, folder)
        try:
            return importlib.import_module("softmax_timed")
        finally:
            sys.path.remove(folder)


def implementation(name: str) -> Callable:
    """The function from tensor to tensor of `OURS`, `TORCH`, `NOTHING` or one of `CALLED`; each is
    a Python function, so that the cost of the call itself is the same."""
    import torch

    if name == OURS:
        ours = exported()
        return lambda x: ours.softmax(x)
    if name == TORCH:
        return lambda x: torch.softmax(x, -1)
    if name == NOTHING:
        _library_of_nothing()
        return lambda x: torch.ops.softmax_worklog_nothing.nothing(x)
    if name == QUACK:
        quack = importlib.import_module("quack.softmax")
        return lambda x: quack.softmax(x)
    if name == LIGER:
        liger = importlib.import_module("liger_kernel.ops.softmax").LigerSoftmaxFunction
        return lambda x: liger.apply(x)
    torch.compiler.reset()  # otherwise each call searches the code compiled for other shapes
    return compiled(lambda x: torch.softmax(x, -1))


@functools.cache  # an operator exists as long as its library
def _library_of_nothing():
    import torch

    library = torch.library.Library("softmax_worklog_nothing", "FRAGMENT")
    library.define("nothing(Tensor x) -> Tensor")
    library.impl("nothing", torch.empty_like, "CUDA")
    return library


def compile_for(name: str, problem: Problem) -> None:
    """Call an implementation once to fill its cache on disk."""
    import torch

    dtype = getattr(torch, problem.dtype)
    implementation(name)(torch.zeros(problem.shape, dtype=dtype, device="cuda"))
    torch.cuda.synchronize()
    free_memory()


def measure(problem: Problem, run: Run, baseline: str = "") -> CallTimes:
    """Time a problem, with a baseline if one is named. A baseline that refuses it, fails or is
    wrong is left out with the reason. Raises `AssertionError` if our result is wrong."""
    import torch

    free_memory()
    size, dtype = problem.rows * problem.row_bytes, getattr(torch, problem.dtype)
    l2 = gpu_in_use().l2
    inputs = [
        torch.randn(problem.shape, device="cuda").to(dtype)
        for _ in range(max(2, math.ceil(3 * l2 / (2 * size))))
    ]
    wanted = torch.softmax(inputs[0][:64].double(), -1).to(inputs[0].dtype)
    calls = {name: implementation(name) for name in (OURS, TORCH, NOTHING)}
    torch.testing.assert_close(calls[OURS](inputs[0])[:64], wanted)
    skipped = {}
    if baseline in CALLED and (reason := _join(calls, baseline, problem, inputs[0], wanted)):
        skipped[baseline] = reason
    count = max(3, min(max(len(inputs), BURST), MOST_BYTES // size))
    host: dict[str, list[float]] = {name: [] for name in calls}
    eager: dict[str, list[float]] = {name: [] for name in calls}
    in_graph: dict[str, list[float]] = {name: [] for name in calls if name != NOTHING}
    graphs = {name: _graph(calls[name], inputs, count) for name in in_graph}

    def take(name: str) -> None:
        us = _burst(calls[name], inputs)
        host[name].append(us[0])
        eager[name].append(us[1])
        if name in graphs:
            in_graph[name].append(round(_between_events(graphs[name][0].replay) / count, 4))

    in_turn([*calls], take, lambda name: len(host[name]) < ROUNDS)
    step = dispatch.best(problem, gpu_in_use())  # as exported: without locally tuned plans
    series = ({n: kept(us) for n, us in part.items()} for part in (host, eager, in_graph))
    return CallTimes(problem, run, step, step_hash(step), count, *series, skipped)


def _join(calls: dict[str, Callable], baseline: str, problem: Problem, x, wanted) -> str:
    """Add a baseline to the timed calls; returns why it is left out, or ""."""
    import torch

    if reason := baselines.why_not(baseline, problem):
        return reason
    try:
        call = implementation(baseline)
        torch.testing.assert_close(call(x)[:64], wanted)
    except Exception as error:  # the others are timed anyway
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    calls[baseline] = call
    return ""


def _burst(call: Callable, inputs: list) -> tuple[float, float]:
    """Microseconds per call: host time, and time between events."""
    import torch

    def run() -> None:
        nonlocal host
        begin = time.perf_counter()
        for number in range(BURST):
            call(inputs[number % len(inputs)])
        host = time.perf_counter() - begin

    host = 0.0
    torch.cuda.synchronize()
    between = _between_events(run)
    return round(1e6 * host / BURST, 4), round(between / BURST, 4)


def _between_events(run: Callable[[], None]) -> float:
    """Microseconds between two events around the enqueued work."""
    import torch

    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return 1e3 * start.elapsed_time(stop)


def _graph(call: Callable, inputs: list, count: int) -> tuple:
    """A graph of `count` calls, and the results that it writes."""
    import torch

    for x in inputs[:2]:
        call(x)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Other threads of this process may make calls that a global capture forbids.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = [call(inputs[number % len(inputs)]) for number in range(count)]
    graph.replay()
    torch.cuda.synchronize()
    return graph, results
