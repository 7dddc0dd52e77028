"""Time kernels on a GPU: a CUDA graph over rotating buffers, in turn with a same-size copy.

Why a graph: launching from Python costs more than a short kernel takes. Why rotating buffers:
calls that reuse one buffer measure the L2 cache. Why in turn with a copy: clocks and temperature
drift, and only a ratio within one run survives that.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from ..base.gpu import gpu_in_use
from ..catalogue.registry import COPY, UNFUSED, WITHOUT_FILE
from ..problem.operations import COPY as COPIES
from ..problem.problem import Problem
from ..problem.shapes import (
    EVEN_SHAPE,
    Shape,
    name_of,
)
from ..run.bound import BoundKernel, load
from ..run.check import WrongResult
from ..run.execute import active_clusters
from . import samples
from .campaign import Failure, one_line
from .gpu_arrays import buffers, later, poison, rotations
from .gpu_arrays import verify as check_problem
from .records import Timed

PROTOCOL = {
    "version": 2,
    "timing": "one CUDA graph of `calls` calls over rotating buffers; time of a replay / calls",
    "buffers": "inputs and outputs together past three times the L2 cache",
    "order": "implementations and copies replayed in turn, each as often behind each other",
    "samples": f"{samples.MANY} of a call below {samples.SHORT_US:g} us, {samples.FEW} of a longer "
    "one; before them one that is discarded",
    "launch": "ordinary; kernels for programmatic launches so too, beside a copy launched so",
    "warmup_s": 0.2,
    "calls": "at least 50 and one per buffer, fewer (never below 3) if a replay took over 50 ms",
    "input": "normal values, row shifts of 100 to 200, seeded",
    "check": "sampled rows against fp64, all elements for NaN, before and after timing",
}
PROGRAMMATIC_COPY = "timing/copy_programmatic"
# Numbers for timed operations: none is neutral, so that no part can be skipped.
NUMBERS: Mapping[str, float] = MappingProxyType(
    {"scale": 0.37, "p": 0.1, "seed": 2**33 + 7, "offset": 5, "smoothing": 0.1, "z_loss": 1e-4}
)
# For a first look, between other timings that keep the clocks up.
FEW_WARMUP_S, FEW_REPLAY_MS = 0.03, 10


@dataclass
class Candidate:
    """Something to time: `run(x, y)` enqueues one call on the current stream by an ordinary launch.
    x and y are CuPy arrays of the dtype, uint16 for bfloat16; another operation takes its arrays in
    their order."""

    run: Callable
    launch: dict[str, int]
    attributes: dict[str, int]
    judge: Callable[[Sequence], None]  # checks the arrays; raises `WrongResult`
    run_programmatic: Callable | None = None  # the same by a programmatic launch
    late: bool = False  # run on a y that starts one element later than x


@contextlib.contextmanager
def blaming(name: str):
    """Turn an error within into a `Failure` that names this candidate, unless it names one already.
    GPU errors show at the next synchronisation, which each candidate ends with."""
    try:
        yield
    except Failure:
        raise
    except WrongResult as error:
        raise Failure(f"wrong result: {error.summary}", name) from error
    except Exception as error:
        raise Failure(one_line(error), name) from error


@contextlib.contextmanager
def fresh_pool():
    """Free CuPy's memory between shapes: there is no room for 2 GiB buffers of two shapes."""
    import cupy

    try:
        yield
    finally:
        cupy.get_default_memory_pool().free_all_blocks()


Maker = Callable[[Problem], Candidate]


def kernel_candidate(bound: BoundKernel, numbers: Mapping[str, float] | None = None) -> Candidate:
    """The candidate of a bound kernel, by default with the numbers of `numbers_of`."""
    bound.prepare()
    workspace, kernel = bound.workspace(), bound.compiled
    attributes = {
        "registers": kernel.num_regs,
        "local_bytes": kernel.local_size_bytes,
        "static_shared_bytes": kernel.shared_size_bytes,
    }
    clusters = active_clusters(kernel, bound.plan)

    problem = bound.problem
    numbers = numbers_of(bound) if numbers is None else numbers

    def enqueues(bound: BoundKernel) -> Callable:
        return lambda *arrays: bound.enqueue(*arrays, workspace=workspace, **numbers)

    run = enqueues(bound)
    candidate = Candidate(
        run,
        bound.launch,
        attributes if clusters is None else {**attributes, "active_clusters": clusters},
        partial(check_problem, problem, numbers),
        late=bound.plan.macros.get("LATE") == 1,
    )
    if not bound.plan.programmatic:
        return candidate
    macros = {**bound.plan.macros, "PROGRAMMATIC": 0}  # for the launch only: the options stay
    ordinary = replace(bound, plan=replace(bound.plan, macros=macros))
    ordinary.prepare()
    early = run if problem.plain else None  # the others have no baseline with a programmatic launch
    return replace(candidate, run=enqueues(ordinary), run_programmatic=early)


def numbers_of(bound: BoundKernel) -> dict[str, object]:
    """The numbers that a kernel is timed with; softmax alone, which is compared with others, has
    neutral ones."""
    if bound.problem.plain:
        return {}
    asked = {a.name for a in bound.problem.arguments if not a.shape}
    declared = {parameter.name for parameter in bound.kernel.parameters}
    return {name: value for name, value in NUMBERS.items() if name in asked & declared}


def copied_shape(problem: Problem) -> Shape:
    """The float matrix that a copy moves for a problem: the same number of bytes, two more for an
    odd number of 16-bit elements; with whole packs per row if possible."""
    rows, cols = problem.shape
    if problem.itemsize == 2:
        if cols % 2 == 0:
            cols //= 2
        elif rows % 2 == 0:
            rows //= 2
        else:
            rows, cols = 1, (rows * cols + 1) // 2
    return (cols, rows) if cols % 4 and rows % 4 == 0 else (rows, cols)


def copy_maker(name: str) -> Maker:
    """The maker of a copy kernel that moves the bytes of a matrix."""

    def make(problem: Problem) -> Candidate:
        made = kernel_candidate(load(name).bind(*copied_shape(problem), gpu=gpu_in_use()))
        copied = replace(problem, operation=COPIES, features=())
        return replace(made, judge=partial(check_problem, copied, {}))

    return make


def bandwidth_baseline(problem: Problem) -> Candidate:
    """The kernel that moves the same bytes as a problem, on its own arrays."""
    kernel = load(problem.operation.bandwidth_baseline)
    return kernel_candidate(kernel.at(problem.bandwidth_baseline, gpu_in_use()))


def unfused_candidate(problem: Problem) -> Candidate:
    """Softmax as five CuPy array operations with preallocated results, for float32 and float16."""
    import cupy

    scratch = cupy.empty(problem.shape, problem.dtype)
    column = cupy.empty((problem.rows, 1), problem.dtype)

    def run(x, y) -> None:
        cupy.amax(x, axis=1, keepdims=True, out=column)
        cupy.subtract(x, column, out=scratch)
        cupy.exp(scratch, out=scratch)
        cupy.sum(scratch, axis=1, keepdims=True, out=column)
        cupy.divide(scratch, column, out=y)

    judge = partial(check_problem, problem, {})
    return Candidate(run, {"grid": 0, "block": 0, "shared_mem": 0}, {}, judge)


def maker(step: str, numbers: Mapping[str, float] | None = None) -> Maker:
    """What makes the candidate of a step, a variant or a trial for a problem; `numbers` are those
    of
    `kernel_candidate`."""
    if step == UNFUSED:
        return unfused_candidate

    def make(problem: Problem) -> Candidate:
        kernel = load(step)
        if kernel.operation is COPIES:  # timed with softmax, on its arrays
            problem = replace(problem, operation=COPIES, features=())
        return kernel_candidate(kernel.at(problem, gpu_in_use()), numbers)

    return make


def measure_steps(
    at: Problem, names: Sequence[str], maker_of: Callable[..., Maker] = maker
) -> dict[str, Timed]:
    """The times of steps at the sizes and dtype of a problem, and of their bandwidth baselines;
    steps that compute the same are timed together. Raises what `measure` raises."""
    found: dict[str, Timed] = {}
    together: dict[Problem, list[str]] = {}
    for name in names:
        together.setdefault(problem_of(name, at), []).append(name)
    for problem, some in together.items():
        found |= measure({name: maker_of(name) for name in some}, problem)
    return found


def problem_of(step: str, at: Problem) -> Problem:
    """The problem that a step, a variant or a trial solves at the sizes of another one; softmax if
    there is no kernel file, and for a copy, which is timed on the arrays of softmax."""
    if step in WITHOUT_FILE or (kernel := load(step)).operation is COPIES:
        return at
    return kernel.problem(at.rows, at.cols, at.dtype, inner=at.inner)


@blaming("")
@fresh_pool()
def measure(makers: dict[str, Maker], problem: Problem, few: int = 0) -> dict[str, Timed]:
    """Time candidates and a copy kernel in turn at one problem. `few` limits the number of samples,
    after a short warm-up, for a first look that is not recorded. For other operations than softmax
    the bandwidth baseline replaces the copy.

    Returns the times by name. Raises `Failure` that names a candidate which cannot be compiled or
    run, or whose output is wrong before or after timing: a broken kernel has no time. It names no
    candidate if the buffers do not fit in memory.
    """
    import cupy

    copy = COPY if problem.plain else problem.operation.bandwidth_baseline
    make_copy = copy_maker(COPY) if problem.plain else bandwidth_baseline
    candidates, problems = {}, {copy: problem if problem.plain else problem.bandwidth_baseline}
    problems |= dict.fromkeys(makers, problem)
    for name, make in {copy: make_copy, **makers}.items():
        with blaming(name):
            candidates[name] = make(problem)
    if any(candidate.run_programmatic for candidate in candidates.values()):
        problems[PROGRAMMATIC_COPY] = problem
        with blaming(PROGRAMMATIC_COPY):
            candidates[PROGRAMMATIC_COPY] = copy_maker(PROGRAMMATIC_COPY)(problem)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()  # this stream may read what the makers wrote on others
    with stream:
        buffers = {one: buffers_for(one) for one in dict.fromkeys(problems.values())}
        calls = {}  # by name and launch
        for name, one in candidates.items():
            sets = [
                Buffers(arrays, outputs_of(problems[name]), arrays)
                for x, *others in buffers[problems[name]]
                for arrays in [(x, later(*others)) if one.late else (x, *others)]
            ]
            runs = {"ordinary": one.run, "programmatic": one.run_programmatic}
            for launch, run in runs.items():
                if run and (name, launch) != (PROGRAMMATIC_COPY, "ordinary"):
                    calls[name, launch] = TimedCall(name, one, partial(_enqueue, run, sets), sets)
        # The copy is timed twice per round. The second series is the denominator of the copy's
        # own record, so that its ratio to itself shows the noise.
        calls[copy, "again"] = calls[copy, "ordinary"]

        def is_due(taken: Taken, key: tuple[str, str]) -> bool:
            """Whether there are fewer samples than the shortest call requires."""
            (series,) = taken[key]
            kept = samples.kept(series)
            return not kept or len(kept) < (few or samples.wanted(min(series)))

        graphs = {}

        def capture(key: tuple[str, str]) -> list[Graph]:
            graphs[key] = graph_of(calls[key], stream, few)
            return [graphs[key]]

        taken = {key: us for key, (us,) in time_in_turn(calls, capture, is_due).items()}
    return {
        name: Timed(
            candidate.launch,
            taken[name, "ordinary"],
            taken[copy, "again" if name == copy else "ordinary"],
            graphs[name, "ordinary"].calls,
            candidate.attributes,
            taken.get((name, "programmatic"), []),
            taken[PROGRAMMATIC_COPY, "programmatic"] if candidate.run_programmatic else [],
        )
        for name, candidate in candidates.items()
        if name != PROGRAMMATIC_COPY
    }


def _enqueue(run: Callable, sets: Sequence[Buffers], number: int) -> None:
    run(*sets[number % len(sets)].arrays)


class Graph:
    """A CUDA graph of `calls` calls; `call(number)` enqueues one on the stream."""

    def __init__(self, call: Callable[[int], None], calls: int, stream):
        import cupy

        self.calls, self.stream = calls, stream
        stream.begin_capture()
        for number in range(calls):
            call(number)
        self.graph = stream.end_capture()
        self.graph.upload(stream)
        self.start, self.stop = cupy.cuda.Event(), cupy.cuda.Event()

    def launch(self) -> None:
        self.graph.launch(self.stream)

    def replay(self) -> float:
        """Microseconds per call, between two events around a launch."""
        import cupy

        self.start.record(self.stream)
        self.launch()
        self.stop.record(self.stream)
        self.stop.synchronize()
        elapsed = cupy.cuda.get_elapsed_time(self.start, self.stop)
        return round(1e3 * elapsed / self.calls, 4)


class Buffers(NamedTuple):
    """A set of arrays on the GPU."""

    arrays: tuple
    poisoned: Sequence[int]  # indices of what is filled with NaN before a check
    checked: tuple  # the arrays that are checked


class TimedCall(NamedTuple):
    """A candidate that is timed on sets of buffers."""

    name: str
    candidate: Candidate
    enqueue: Callable[[int], None]  # the call of a number, on the set of that number
    sets: Sequence[Buffers]

    def check(self, run: Callable[[], None], number: int) -> None:
        """Check what a run of the call of this number writes. Raises `WrongResult`."""
        import cupy

        one = self.sets[number % len(self.sets)]
        for place in one.poisoned:
            poison(one.arrays[place])
        run()
        cupy.cuda.get_current_stream().synchronize()
        self.candidate.judge(one.checked)


Taken = Mapping[Hashable, Sequence[list[float]]]  # the samples of each graph of a call


def time_in_turn(
    calls: Mapping[Hashable, TimedCall],
    capture: Callable[[Hashable], Sequence[Graph]],
    is_due: Callable[[Taken, Hashable], bool],
) -> dict[Hashable, list[list[float]]]:
    """Check all calls, capture the graphs of each, replay those of a call one right after the other
    and the calls in turn while they are due, and check what the last graph of each writes. Returns
    the samples of each graph without the discarded ones."""
    for call in calls.values():
        with blaming(call.name):
            call.check(partial(call.enqueue, 0), 0)
    graphs: dict[Hashable, Sequence[Graph]] = {}
    for key, call in calls.items():
        with blaming(call.name):
            graphs[key] = capture(key)
    taken = {key: [[] for _ in of_call] for key, of_call in graphs.items()}

    def replay(key: Hashable) -> None:
        with blaming(calls[key].name):
            for graph, series in zip(graphs[key], taken[key], strict=True):
                series.append(graph.replay())

    samples.in_turn([*calls], replay, partial(is_due, taken))
    for key, call in calls.items():
        last = graphs[key][-1]
        with blaming(call.name):  # the timed graph must have written the output
            call.check(last.launch, last.calls - 1)
    return {key: [*map(samples.kept, series)] for key, series in taken.items()}


def graph_of(call: TimedCall, stream, few: int = 0) -> Graph:
    """Run a call until the clocks have ramped up, and capture as many as fill a replay."""
    single_ms = _warm_up(call, stream, FEW_WARMUP_S if few else PROTOCOL["warmup_s"])
    count, most_ms = max(len(call.sets), 50), FEW_REPLAY_MS if few else 50
    if single_ms * count > most_ms:
        count = max(3, math.ceil(most_ms / single_ms))
    return Graph(call.enqueue, count, stream)


def _warm_up(call: TimedCall, stream, seconds: float) -> float:
    """Run for so many seconds; returns the milliseconds of one call as the mean of several
    consecutive ones, since a single short call takes less than its launch."""
    import cupy

    begin, calls, start, stop = time.perf_counter(), 0, cupy.cuda.Event(), cupy.cuda.Event()
    burst = 1
    while time.perf_counter() - begin < seconds or calls < 2:
        start.record(stream)
        for _ in range(burst):
            call.enqueue(calls)
            calls += 1
        stop.record(stream)
        stop.synchronize()
        single_ms = cupy.cuda.get_elapsed_time(start, stop) / burst
        burst = 20 if single_ms < 1 else 1
    return single_ms


def buffers_for(problem: Problem) -> list[tuple]:
    """Sets of the arrays of a problem, in total more than three times the GPU's L2 cache; all
    inputs differ."""
    import cupy

    l2_bytes = cupy.cuda.Device().attributes["L2CacheSize"]
    random = cupy.random.default_rng(0)
    return [buffers(problem, random) for _ in range(rotations(problem, l2_bytes))]


def outputs_of(problem: Problem) -> list[int]:
    """The indices of the outputs among the arrays of a problem."""
    return [number for number, one in enumerate(problem.arrays) if one.output]


# ---- shapes that a GPU has room for -------------------------------------------------------------


LIVE_BYTES = 64  # per element: two sets of three arrays and of the baseline, and scratch


def shapes_that_fit(shapes: Sequence[Shape], bytes_each: int = 24) -> list[Shape]:
    """Shapes whose buffers fit this GPU's free memory, with their inner if they have one; the
    default of the bytes per element is for two inputs, two outputs and scratch.

    A smaller GPU records the grid with fewer rows, and leaves out rows that must go evenly into
    clusters.
    """
    import cupy

    free, _ = cupy.cuda.runtime.memGetInfo()
    kept = []
    for shape in shapes:
        rows, cols, *inner = shape
        while bytes_each * rows * cols > free * 0.9:
            rows //= 2
        if inner:
            rows -= rows % inner[0]
        if rows and (shape != EVEN_SHAPE or rows == EVEN_SHAPE[0]):
            kept.append((rows, cols, *inner))
    return list(dict.fromkeys(kept))


def that_fit(problems: Sequence[Problem]) -> list[Problem]:
    """The problems that fit in this GPU's memory; the others are named."""
    fitting = {*shapes_that_fit([one.shape for one in problems])}
    for one in [one for one in problems if one.shape not in fitting]:
        print(f"{name_of(one)} does not fit this GPU's memory")
    return [one for one in problems if one.shape in fitting]
