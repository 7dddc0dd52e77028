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

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..base.gpu import gpu_in_use
from ..problem.problem import Problem
from ..run.bound import load
from . import bench, samples
from .bench import COPY, Candidate, Graph, Maker, blaming, fresh_pool
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


class Buffers(NamedTuple):
    """A set of arrays on the GPU."""

    source: object  # read by the writer
    arrays: tuple  # of softmax, or of its replacement
    fed: int  # indices written by the writer
    outputs: tuple[int, ...]  # indices of the outputs; the reader reads the first

    @property
    def checked(self) -> tuple:
        """The arrays with the source instead of what the writer makes from it."""
        return (*self.arrays[: self.fed], self.source, *self.arrays[self.fed + 1 :])


class Series(NamedTuple):
    """The samples of one state in microseconds per call; those at the same position of a name's two
    lists were taken one right after the other."""

    calls: int  # of a replay
    pipeline_us: dict[str, list[float]]
    base_us: dict[str, list[float]]  # without softmax


def measure(makers: Mapping[str, Maker], problem: Problem) -> dict[str, Series]:
    """Time candidates and a copy between producer and consumer, in each state of a problem.

    A candidate with a programmatic launch is timed with that under its name, and with an ordinary
    launch under its name and `ORDINARY`. Raises `Failure` that names the candidate which cannot be
    made or run, or whose output is wrong before or after timing.
    """
    with blaming(""), fresh_pool():
        return _measure(makers, problem)


def _measure(makers: Mapping[str, Maker], problem: Problem) -> dict[str, Series]:
    import cupy

    links: dict[str, Candidate] = {}
    around, copy = ends(problem), bench.copy_maker(COPY)
    if not problem.plain:
        around = around._replace(read=reader_of_all())

        def copy(*_) -> Candidate:
            return stand_in(problem, around)

    for name, make in {COPY: copy, **makers}.items():
        with blaming(name):
            links.update(launches(name, make(problem)))
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()  # this stream may read what the makers wrote on others
    with stream:
        buffers = [with_source(problem, arrays) for arrays in bench.buffers_for(problem)]
        l2 = cupy.cuda.Device().attributes["L2CacheSize"]
        found = {}
        for state in states_of(problem, l2):
            pipelines = _State(around, state == "evicted", buffers, stream)
            found[state] = pipelines.time(links, problem)
    return found


def places(problem: Problem) -> tuple[int, tuple[int, ...]]:
    """The indices of the array that the writer writes, and of the outputs."""
    names = [argument.name for argument in problem.arrays]
    outputs = tuple(number for number, one in enumerate(problem.arrays) if one.output)
    return names.index("dy" if "dy" in names else "x"), outputs


def with_source(problem: Problem, arrays: Sequence) -> Buffers:
    """The arrays of a problem in a pipeline."""
    import cupy

    fed, outputs = places(problem)
    into = list(arrays)
    into[fed] = cupy.empty_like(arrays[fed])
    return Buffers(arrays[fed], tuple(into), fed, outputs)


def stand_in(problem: Problem, around: Ends) -> Candidate:
    """The bandwidth baseline in a pipeline: a copy of what the writer wrote, or if the outputs are
    smaller, a kernel that only reads it."""
    fed, (first, *_) = places(problem)

    def run(*arrays) -> None:
        if arrays[first].nbytes == arrays[fed].nbytes:
            around.write(arrays[fed], arrays[first])
        else:
            around.read(arrays[fed])

    return Candidate(run, {}, {}, None, judge=lambda arrays: None)


def launches(name: str, candidate: Candidate) -> dict[str, Candidate]:
    """A candidate by the names of its launches, the planned one first."""
    if candidate.run_programmatic is None:
        return {name: candidate}
    planned = Candidate(
        candidate.run_programmatic, candidate.launch, candidate.attributes, candidate.compare
    )
    return {name: planned, name + ORDINARY: candidate}


def reader(rows: int, cols: int) -> Callable:
    """`READER` for a matrix of floats."""
    import cupy

    bound = load(READER).bind(rows, cols, gpu=gpu_in_use())
    result = cupy.empty(bound.plan.grid * bound.plan.block // 32, cupy.float32)
    run = bench.kernel_candidate(bound).run
    return lambda x: run(x, result)


def reader_of_all() -> Callable:
    """`READER` for arrays of any size; each size is bound once, before a graph is captured."""
    bound: dict[int, Callable] = {}

    def read(array) -> None:
        words = array.nbytes // 4
        if words not in bound:
            bound[words] = reader(1, words)
        bound[words](array)

    return read


def ends(problem: Problem) -> Ends:
    """Writer, sweep and reader: the copy, which preserves the values, and `READER` twice."""
    import cupy

    swept = cupy.zeros(SWEPT * gpu_in_use().l2 // 4, cupy.float32)
    sweep = reader(1, swept.size)
    return Ends(
        bench.copy_maker(COPY)(problem).run,
        lambda: sweep(swept),
        reader(problem.rows, problem.row_bytes // 4),
    )


class _State:
    """The pipelines over the buffers of a shape, with or without a sweep."""

    def __init__(self, around: Ends, swept: bool, buffers: Sequence[tuple], stream):
        self.around, self.swept, self.buffers, self.stream = around, swept, buffers, stream

    def time(self, links: Mapping[str, Candidate], problem: Problem) -> Series:
        for name, link in links.items():
            with blaming(name):
                self._check(link, problem, 0, lambda link=link: self._call(link, 0))
        calls = self._calls(links[COPY])
        base = self._graph(None, calls)
        graphs = {}
        for name, link in links.items():
            with blaming(name):
                graphs[name] = self._graph(link, calls)
        pipeline_us, base_us = ({name: [] for name in links} for _ in range(2))

        def replay(name: str) -> None:
            with blaming(name):
                base_us[name].append(base.replay())
                pipeline_us[name].append(graphs[name].replay())

        def is_due(name: str) -> bool:
            """The copy decides for all."""
            taken, without = samples.kept(pipeline_us[COPY]), samples.kept(base_us[COPY])
            return not taken or len(taken) < samples.wanted(taken[0] - without[0])

        samples.in_turn([*links], replay, is_due)
        for name, link in links.items():
            last = (calls - 1) % len(self.buffers)
            with blaming(name):  # the timed graph must have written y
                self._check(link, problem, last, graphs[name].launch)
        return Series(
            calls,
            {name: samples.kept(series) for name, series in pipeline_us.items()},
            {name: samples.kept(series) for name, series in base_us.items()},
        )

    def _call(self, link: Candidate | None, number: int) -> None:
        """One call of the pipeline on one set of buffers; without a link, only of both ends."""
        one = self.buffers[number % len(self.buffers)]
        self.around.write(one.source, one.arrays[one.fed])
        if self.swept:
            self.around.sweep()
        if link is not None:
            link.run(*one.arrays)
        self.around.read(one.arrays[one.outputs[0]])

    def _check(self, link: Candidate, problem: Problem, place: int, run: Callable) -> None:
        """Check the outputs in a set of buffers against its source; x was poisoned too."""
        one = self.buffers[place]
        for number in (one.fed, *one.outputs):
            bench.poison(one.arrays[number])
        run()
        bench.verify(link, one.checked, problem)

    def _calls(self, copy: Candidate) -> int:
        """The number of calls per replay; the copy's pipeline is replayed until the GPU is warm."""
        calls = LEAST_CALLS if self.swept else max(LEAST_CALLS, len(self.buffers))
        graph, begin, us = self._graph(copy, calls), time.perf_counter(), 0.0
        while not us or time.perf_counter() - begin < PROTOCOL["warmup_s"]:
            us = graph.replay()
        return calls if us * calls <= 1e3 * LONGEST_MS else max(3, math.ceil(1e3 * LONGEST_MS / us))

    def _graph(self, link: Candidate | None, calls: int) -> Graph:
        for number in range(min(calls, len(self.buffers))):
            self._call(link, number)  # the first call on a buffer may allocate: not captured
        return Graph(lambda number: self._call(link, number), calls, self.stream)
