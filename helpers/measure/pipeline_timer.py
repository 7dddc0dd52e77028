"""Time softmax between a producer and a consumer: a kernel that writes x and one that reads y.

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
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ..base.gpu import gpu_in_use
from ..problem.problem import Problem
from ..run.bound import load
from . import bench, samples
from .bench import (
    COPY,
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
from .pipelines import MOST_EVICTED, ORDINARY, states_of

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
