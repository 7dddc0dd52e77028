"""Softmax in pipelines: the kernel that `choose` returns, compared with variants of its hints.

A variant has other cache hints or another launch than the kernel's Build table
(`registry.HINT_MACROS`), and its name spells all of them out. So a case remains valid when the
rules of a table change: the chosen kernel then has the name of another timed variant. Fused and
related operations are timed too (`shapes.linked`), with the two best baselines of the comparison.
The result is `pipelines.jsonl`.

With consecutive calls of one kernel (`helpers.measure.bench`), x comes from DRAM and nothing reads
y. Here a CUDA graph contains, over rotating buffers, a kernel that writes x, softmax, and a kernel
that reads y; another graph contains only the first and the last. They are replayed in turn, and the
cost of softmax is the difference of a pair. It includes data that the reader must fetch from DRAM,
and the benefit of data that softmax leaves in the L2: the difference may be less than its own bytes
take, even negative. Other operations are timed in the same way: the writer writes the incoming
gradient, or x, and the reader reads the first output.

    fresh      x has just been written: the L2 holds as much of it as it can
    evicted    between writer and softmax, twice the size of the L2 is read, in both graphs
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np

from ..base.gpu import Gpu, gpu_for_plans, gpu_in_use
from ..base.json_files import Count, Must, Natural, Samples
from ..catalogue import store
from ..catalogue.dispatch import chosen, is_current, launch_of
from ..catalogue.registry import COPY, HINT_MACROS, split_trial, with_hints
from ..catalogue.store import AtProblem
from ..problem.problem import Problem
from ..problem.shapes import PIPELINE_SHAPES, group_of, linked, name_of
from ..run.bound import load
from . import baselines, bench, samples
from .bench import (
    Buffers,
    Candidate,
    Graph,
    Maker,
    Taken,
    TimedCall,
    blaming,
    fresh_pool,
    outputs_of,
    time_in_turn,
)
from .comparison import DTYPES, TOLERANCE, Comparison, verdict

MOST_EVICTED = 4  # multiple of the L2: a larger x is evicted before its writer ends
ORDINARY = ", ordinary launch"  # of a kernel that supports programmatic launches
STATES = ("fresh", "evicted")  # of x
FEW_ROWS = 16  # few rows, so that the launch is a large part of a call
VERDICTS = ("best", "unclear", "BEHIND", "not timed")  # on the kernel that `choose` returns


@dataclass(frozen=True)
class Pipeline(AtProblem):
    """One problem in one state: our kernels by the names of `variants`, baselines and the copy,
    timed in turn.

    `pipeline_us` are samples of the pipeline with a kernel, `base_us` those of the pipeline without
    it, replayed right before, in microseconds per call.
    """

    file = campaign = "pipelines"

    state: Annotated[str, Must(f"one of {', '.join(STATES)}", STATES.__contains__)]
    launches: dict[str, dict[str, Natural]]  # of our kernels
    hashes: dict[str, str]  # of our kernel files
    calls: Count  # calls per replay
    pipeline_us: dict[str, Samples]
    base_us: dict[str, Samples]
    skipped: dict[str, str] = field(default_factory=dict)  # baseline -> why it was not timed

    def __post_init__(self) -> None:
        with_it, without = (
            {name: len(series) for name, series in one.items()}
            for one in (self.pipeline_us, self.base_us)
        )
        if with_it != without:
            raise ValueError("other samples of pipelines with softmax than of those without")
        if untimed := self.launches.keys() - self.pipeline_us.keys():
            raise ValueError(f"a launch of {min(untimed)[:60]} and no time")

    @property
    def key(self) -> tuple[Problem, str]:
        return self.problem, self.state

    @property
    def names(self) -> Set[str]:
        return {*self.pipeline_us, *self.skipped}

    @property
    def megabytes(self) -> float:
        """Size of x in 10^6 bytes."""
        return self.rows * self.problem.row_bytes / 1e6

    def is_current(self) -> bool:
        """Whether all of our kernels have the code and launch that were timed."""
        return all(map(self.has_current, self.launches))

    def has_current(self, name: str) -> bool:
        """Whether one of our kernels was timed with its code and launch as they are."""
        step, known = trial_of(name), self.hashes.get(file_of(name))
        launch = self.launches.get(name, {})
        return is_current(step, known, launch, self.problem, self.run.gpu)

    def us(self, name: str) -> samples.Estimate:
        """The time that a kernel adds to the pipeline, in microseconds per call."""
        return samples.difference(self.pipeline_us[name], self.base_us[name])

    def gain(self, name: str, other: str) -> samples.Estimate:
        """How much less time the pipeline takes with `name` than with `other`, as a fraction of
        what `other` adds; NaN, which is neither above nor below a limit, if that is not
        positive."""
        whole = self.us(other).value
        less = samples.difference(self.pipeline_us[other], self.pipeline_us[name])
        return samples.Estimate(*(part / whole if whole > 0 else np.nan for part in less))

    @property
    def chosen(self) -> str | None:
        """The name of the kernel that `choose` returns now; None if it was not timed in this
        form."""
        step = chosen(self.problem, self.run.gpu)
        if not step:
            return None
        name = with_hints(step, launch_of(step, self.problem, self.run.gpu))
        return name if self.has_current(name) else None

    @property
    def plain(self) -> str | None:
        """The variant of `chosen` without hints."""
        name = with_hints(self.chosen) if self.chosen else None
        return name if name in self.launches else None

    @property
    def best_baseline(self) -> str | None:
        """The baseline that adds the least time; None if none was timed."""
        others = self.pipeline_us.keys() - self.launches.keys() - {COPY}
        return min(others, key=lambda name: self.us(name).value, default=None)

    @property
    def against_best_baseline(self) -> str:
        """The `verdict` on the kernel that `choose` returns; "" if either was not timed."""
        if not self.chosen or not self.best_baseline:
            return ""
        return verdict(self.gain(self.chosen, self.best_baseline), 0)

    def faster(self, name: str) -> dict[str, samples.Estimate]:
        """Our kernels that gain more than the tolerance over `name`, beyond run-to-run variation;
        the best first."""
        gains = {other: self.gain(other, name) for other in self.launches if other != name}
        found = {other: gain for other, gain in gains.items() if gain.above(TOLERANCE)}
        return dict(sorted(found.items(), key=lambda entry: -entry[1].value))

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`: whether a variant is faster by more than the tolerance, beyond
        run-to-run variation ("BEHIND"), or surely none is ("best")."""
        name = self.chosen
        if name is None:
            return "not timed"
        if self.us(name).low <= 0:
            return "unclear"  # a fraction of nothing
        if self.faster(name):
            return "BEHIND"
        rivals = (other for other in self.launches if other != name)
        sure = all(self.gain(other, name).high <= TOLERANCE for other in rivals)
        return "best" if sure else "unclear"


def states_of(problem: Problem, l2: int) -> tuple[str, ...]:
    """The states in which a problem is timed on a GPU with `l2` bytes of L2."""
    size = problem.rows * problem.row_bytes
    return STATES if size <= MOST_EVICTED * l2 else STATES[:1]


def order() -> list[tuple[Problem, str]]:
    """Problems and states in the order of the file: softmax by dtype, shape and state, then
    `shapes.linked`."""
    alone = itertools.product(DTYPES, PIPELINE_SHAPES)
    problems = [*(Problem(*shape, dtype) for dtype, shape in alone), *linked()]
    return [*itertools.product(problems, STATES)]


# ---- variants ----------------------------------------------------------------------------------


def variants(step: str, problem: Problem, gpu: Gpu | None = None) -> list[str]:
    """A step with the hints of its table for a problem, and with the other combinations: trials
    that spell them out, the step's own first. The cache hint is included if x and y together exceed
    the L2, the programmatic launch if there are few rows."""
    gpu = gpu or gpu_for_plans()
    own = launch_of(step, problem, gpu)
    size = 2 * problem.rows * problem.row_bytes
    sensible = {
        "STREAMING": (1, 0),
        "EVICT_LAST": (1, 0) if size > gpu.l2 else (0,),
        "PROGRAMMATIC": (1, 0) if problem.rows <= FEW_ROWS else (0,),
    }
    names = [name for name in HINT_MACROS if name in own]
    combined = itertools.product(*(sensible[name] for name in names))
    changes = [{}, *(dict(zip(names, values, strict=True)) for values in combined)]
    return list(dict.fromkeys(with_hints(step, {**own, **change}) for change in changes))


def trial_of(name: str) -> str:
    """The trial of one of our kernels, without its kind of launch."""
    return name.removesuffix(ORDINARY)


def file_of(name: str) -> str:
    """The kernel file of one of our kernels."""
    return split_trial(trial_of(name)).file


def best_baselines(comparison: Sequence[Comparison], problem: Problem) -> list[str]:
    """The two best baselines of the comparison for the operation and dtype of a problem, by the
    median of their fractions of the bandwidth baseline; empty if there is no comparison."""
    shares: dict[str, list[float]] = {}
    for case in comparison:
        if case.dtype == problem.dtype and group_of(case.problem) == group_of(problem):
            for name in {*case.timed} - {case.step}:
                shares.setdefault(name, []).append(case.share(name))
    return sorted(shares, key=lambda name: -statistics.median(shares[name]))[:2]


# ---- what is said of it -------------------------------------------------------------------------


def load_pipelines(gpu: str | None = None) -> list[Pipeline]:
    """The recorded pipelines; raises as `store.read`."""
    return store.read(Pipeline, gpu)


def pipeline_cases(dtype: str, gpu: str | None = None) -> list[Pipeline]:
    """The recorded cases of a dtype in the order of `PIPELINE_SHAPES` and `STATES`; raises as
    `load_pipelines`."""
    return [case for case in load_pipelines(gpu) if case.dtype == dtype and case.problem.plain]


def summary(case: Pipeline) -> str:
    """One line of progress for a case, with the baselines that were left out and why."""
    times = []
    for name in case.pipeline_us:
        us = case.us(name)
        label = shown(name) if name in case.launches else name
        times.append(f"{label} {us.value:.2f} ({us.low:.2f} to {us.high:.2f})")
    least = min(case.us(name).value for name in case.launches)
    odd = " below a copy: look!" if least < 0.95 * case.us(COPY).value else ""
    said = f"{', '.join(times)}; {case.verdict}{odd}{baselines.left_out(case.skipped)}"
    return f"{name_of(case.problem)}, {case.state}: us {said}"


def shown(name: str) -> str:
    """One of our kernels in a table: its file and its hints."""
    trial = split_trial(trial_of(name))
    asked = [what for what, value in trial.changes if value and what in HINT_MACROS]
    words = " ".join([trial.file, *asked])
    return words + ORDINARY if name.endswith(ORDINARY) else words


# ---- timing ---------------------------------------------------------------------------------

READER = "timing/sums"
SWEPT = 2  # multiples of the L2 that are read to evict x
LEAST_CALLS, LONGEST_MS = 50, 20  # of a replay
PROTOCOL = {
    "version": 1,
    "timing": "a CUDA graph of `calls` calls of writer, softmax and reader over rotating buffers, "
    "and one of writer and reader; softmax takes the difference of two replays / calls",
    "buffers": "sources and outputs together past three times the L2 cache, x beside them",
    "states": f"fresh: softmax right behind the writer; evicted: {SWEPT} times the L2 are read "
    f"between them, in both graphs, where x is no larger than {MOST_EVICTED} times the L2",
    "order": "each graph right behind that without softmax; candidates in turn, each as often "
    "behind each other",
    "samples": f"{samples.MANY} where a copy in softmax's place takes less than "
    f"{samples.SHORT_US:g} us, else {samples.FEW}; before them one that is discarded",
    "launch": "as planned; kernels for programmatic launches also by an ordinary one",
    "warmup_s": 0.2,
    "calls": f"at least {LEAST_CALLS} and, fresh, one per buffer; fewer (never below 3) if a "
    f"replay took over {LONGEST_MS} ms",
    "input": "normal values, row shifts of 100 to 200, seeded",
    "check": "sampled rows against fp64, all elements for NaN, before and after timing",
}


class Ends(NamedTuple):
    """The kernels before and after softmax; each enqueues on the current stream."""

    write: Callable  # (source, x)
    sweep: Callable  # ()
    read: Callable  # (y)


class Series(NamedTuple):
    """The samples of one state in microseconds per call; those at the same position of a name's two
    lists were taken one right after the other."""

    calls: int  # of a replay
    pipeline_us: dict[str, list[float]]
    base_us: dict[str, list[float]]  # without softmax


@blaming("")
@fresh_pool()
def measure(makers: Mapping[str, Maker], problem: Problem) -> dict[str, Series]:
    """Time candidates and a copy between producer and consumer, in each state of a problem.

    A candidate with a programmatic launch is timed with that under its name, and with an ordinary
    launch under its name and `ORDINARY`. Raises `Failure` that names the candidate which cannot be
    made or run, or whose output is wrong before or after timing.
    """
    import cupy

    links: dict[str, Candidate] = {}
    around = ends(problem)
    for name, make in {COPY: partial(stand_in, around), **makers}.items():
        with blaming(name):
            links.update(launches(name, make(problem)))
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()  # this stream may read what the makers wrote on others
    with stream:
        buffers = [with_source(problem, arrays) for arrays in bench.buffers_for(problem)]
        l2 = cupy.cuda.Device().attributes["L2CacheSize"]
        found = {}
        for state in states_of(problem, l2):
            pipelines = _State(around, state == "evicted", buffers, stream, fed_of(problem))
            found[state] = pipelines.time(links)
    return found


def fed_of(problem: Problem) -> int:
    """The index of the array that the writer writes."""
    names = [argument.name for argument in problem.arrays]
    return names.index("dy" if "dy" in names else "x")


def with_source(problem: Problem, arrays: tuple) -> Buffers:
    """The arrays of a problem in a pipeline. The writer's source is checked instead of what it
    writes, which is poisoned like the outputs."""
    import cupy

    fed, into = fed_of(problem), list(arrays)
    into[fed] = cupy.empty_like(arrays[fed])
    return Buffers(tuple(into), (fed, *outputs_of(problem)), arrays)


def stand_in(around: Ends, problem: Problem) -> Candidate:
    """The bandwidth baseline in a pipeline: a copy of what the writer wrote, or if the outputs are
    smaller, a kernel that only reads it."""
    fed, (first, *_) = fed_of(problem), outputs_of(problem)

    def run(*arrays) -> None:
        if arrays[first].nbytes == arrays[fed].nbytes:
            around.write(arrays[fed], arrays[first])
        else:
            around.read(arrays[fed])

    return Candidate(run, {}, {}, lambda arrays: None)


def launches(name: str, candidate: Candidate) -> dict[str, Candidate]:
    """A candidate by the names of its launches, the planned one first."""
    if candidate.run_programmatic is None:
        return {name: candidate}
    planned = replace(candidate, run=candidate.run_programmatic)
    return {name: planned, name + ORDINARY: candidate}


def reader() -> Callable:
    """`READER` for arrays of any size; each size is bound once, before a graph is captured."""
    import cupy

    bound: dict[int, Callable] = {}

    def read(array) -> None:
        words = array.nbytes // 4
        if words not in bound:
            kernel = load(READER).bind(1, words, gpu=gpu_in_use())
            result = cupy.empty(kernel.plan.grid * kernel.plan.block // 32, cupy.float32)
            run = bench.kernel_candidate(kernel).run
            bound[words] = lambda array: run(array, result)
        bound[words](array)

    return read


def ends(problem: Problem) -> Ends:
    """Writer, sweep and reader: the copy, which preserves the values, and `READER` twice."""
    import cupy

    swept, read = cupy.zeros(SWEPT * gpu_in_use().l2 // 4, cupy.float32), reader()
    return Ends(bench.copy_maker(COPY)(problem).run, lambda: read(swept), read)


class _State:
    """The pipelines over the buffers of a shape, with or without a sweep."""

    def __init__(self, around: Ends, swept: bool, sets: Sequence[Buffers], stream, fed: int):
        self.around, self.swept, self.sets = around, swept, sets
        self.stream, self.fed = stream, fed

    def time(self, links: Mapping[str, Candidate]) -> Series:
        calls = {
            name: TimedCall(name, link, partial(self._enqueue, link), self.sets)
            for name, link in links.items()
        }

        @functools.cache
        def base() -> Graph:
            return self._graph(partial(self._enqueue, None), self._count(calls[COPY]))

        def capture(name: str) -> list[Graph]:
            return [base(), self._graph(calls[name].enqueue, base().calls)]

        def is_due(taken: Taken, name: str) -> bool:
            """The copy decides for all."""
            without, with_copy = map(samples.kept, taken[COPY])
            return not with_copy or len(with_copy) < samples.wanted(with_copy[0] - without[0])

        taken = time_in_turn(calls, capture, is_due)
        base_us, pipeline_us = ({name: us[n] for name, us in taken.items()} for n in range(2))
        return Series(base().calls, pipeline_us, base_us)

    def _enqueue(self, link: Candidate | None, number: int) -> None:
        """One call of the pipeline on one set of buffers; without a link, only of both ends."""
        arrays, (_, first, *_), checked = self.sets[number % len(self.sets)]
        self.around.write(checked[self.fed], arrays[self.fed])
        if self.swept:
            self.around.sweep()
        if link is not None:
            link.run(*arrays)
        self.around.read(arrays[first])

    def _count(self, copy: TimedCall) -> int:
        """The number of calls per replay; the copy's pipeline is replayed until the GPU is warm."""
        count = LEAST_CALLS if self.swept else max(LEAST_CALLS, len(copy.sets))
        graph, begin, us = self._graph(copy.enqueue, count), time.perf_counter(), 0.0
        while not us or time.perf_counter() - begin < PROTOCOL["warmup_s"]:
            us = graph.replay()
        return count if us * count <= 1e3 * LONGEST_MS else max(3, math.ceil(1e3 * LONGEST_MS / us))

    def _graph(self, enqueue: Callable[[int], None], calls: int) -> Graph:
        for number in range(min(calls, len(self.sets))):
            enqueue(number)  # the first call on a buffer may allocate: not captured
        return Graph(enqueue, calls, self.stream)
