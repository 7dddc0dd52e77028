"""Time kernels on a GPU: a CUDA graph over rotating buffers, in turn with a same-size copy.

Why a graph: launching from Python costs more than a short kernel takes. Why rotating buffers:
calls that reuse one buffer measure the L2 cache. Why in turn with a copy: clocks and temperature
drift, and only a ratio within one run survives that.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .check import WrongResult, check_copy, check_softmax
from .kernels import header, source
from .records import Case

PROTOCOL = {
    "version": 1,
    "timing": "one CUDA graph of `calls` calls over rotating buffers; time of a replay / calls",
    "buffers": "inputs and outputs together past three times the L2 cache",
    "order": "implementations and the copy kernel replayed in turn",
    "replays": 7,
    "warmup_s": 0.2,
    "calls": "at least 50 and one per buffer, fewer (never below 3) if a replay took over 50 ms",
    "input": "normal values, row shifts of 100 to 200, seeded",
    "check": "sampled rows against fp64, all elements for NaN, before and after timing",
}
COPY = "00_copy"


@dataclass
class Candidate:
    """Something to time: `run(x, y)` enqueues one call on the current stream."""

    run: Callable
    launch: dict[str, int]
    attributes: dict[str, int]
    compare: Callable[[np.ndarray, np.ndarray], None]


def kernel_candidate(kernel, rows: int, cols: int, block: int | None = None) -> Candidate:
    """A `cupy.RawKernel` whose source has a header, for one shape; `block` replaces the
    header's block size."""
    contract = header(kernel.code, kernel.options)
    grid, block, shared_mem = contract.launch(rows, cols, block)
    if shared_mem > 48 * 1024:
        kernel.max_dynamic_shared_size_bytes = shared_mem

    def run(x, y) -> None:
        kernel((grid,), (block,), (x, y, rows, cols), shared_mem=shared_mem)

    return Candidate(
        run,
        {"grid": grid, "block": block, "shared_mem": shared_mem},
        {
            "registers": kernel.num_regs,
            "local_bytes": kernel.local_size_bytes,
            "static_shared_bytes": kernel.shared_size_bytes,
        },
        check_copy if kernel.name.startswith("copy") else check_softmax,
    )


def unfused_candidate(rows: int, cols: int) -> Candidate:
    """Softmax as five CuPy array operations with preallocated results."""
    import cupy

    scratch = cupy.empty((rows, cols), cupy.float32)
    column = cupy.empty((rows, 1), cupy.float32)

    def run(x, y) -> None:
        cupy.amax(x, axis=1, keepdims=True, out=column)
        cupy.subtract(x, column, out=scratch)
        cupy.exp(scratch, out=scratch)
        cupy.sum(scratch, axis=1, keepdims=True, out=column)
        cupy.divide(scratch, column, out=y)

    return Candidate(run, {"grid": 0, "block": 0, "shared_mem": 0}, {}, check_softmax)


def measure(
    makers: dict[str, Callable[[int, int], Candidate]], rows: int, cols: int
) -> dict[str, tuple[Case, dict[str, int]]]:
    """Time candidates and a copy kernel in turn at one shape (fp32).

    Returns, per name, the case and the kernel's attributes. Raises `WrongResult` if an output is
    wrong before or after timing: a broken kernel has no time.
    """
    import cupy

    makers = {**makers, COPY: makers.get(COPY, copy_maker())}
    candidates = {name: make(rows, cols) for name, make in makers.items()}
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        buffers = _buffers(rows, cols)
        for name, candidate in candidates.items():
            x, y = buffers[0]
            y.fill(cupy.nan)
            candidate.run(x, y)
            _verify(name, candidate, x, y)
        timings = {name: _Timing(c, buffers, stream) for name, c in candidates.items()}
        # The copy is timed twice per round. The second series is the denominator of the copy's
        # own record, so that its share of itself shows the noise.
        again = _Timing(candidates[COPY], buffers, stream)
        for _ in range(PROTOCOL["replays"]):
            for timing in (*timings.values(), again):
                timing.replay()
        for name, candidate in candidates.items():
            x, y = buffers[-1]
            y.fill(cupy.nan)
            timings[name].graph.launch(stream)  # what was timed is what must have written y
            _verify(name, candidate, x, y)
    cases = {}
    for name, timing in timings.items():
        reference = again if name == COPY else timings[COPY]
        case = Case(
            "float32",
            rows,
            cols,
            candidates[name].launch,
            timing.samples_us,
            reference.samples_us,
            timing.calls,
            "right before and after timing",
        )
        cases[name] = (case, candidates[name].attributes)
    return cases


def copy_maker() -> Callable[[int, int], Candidate]:
    import cupy

    kernel = cupy.RawKernel(source(f"{COPY}.cu"), "copy")
    return lambda rows, cols: kernel_candidate(kernel, rows, cols)


class _Timing:
    """One candidate's graph and its samples."""

    def __init__(self, candidate: Candidate, buffers: Sequence, stream):
        import cupy

        self.stream = stream
        single_ms = self._warm_up(candidate, buffers)
        self.calls = max(len(buffers), 50)
        if single_ms * self.calls > 50:
            self.calls = max(3, math.ceil(50 / single_ms))
        stream.begin_capture()
        for call in range(self.calls):
            candidate.run(*buffers[call % len(buffers)])
        self.graph = stream.end_capture()
        self.graph.upload(stream)
        self.start, self.stop = cupy.cuda.Event(), cupy.cuda.Event()
        self.samples_us: list[float] = []

    def _warm_up(self, candidate: Candidate, buffers: Sequence) -> float:
        """Run for 0.2 s, so that clocks are up; returns the milliseconds of one call."""
        import cupy

        begin, calls, start, stop = time.perf_counter(), 0, cupy.cuda.Event(), cupy.cuda.Event()
        while time.perf_counter() - begin < PROTOCOL["warmup_s"] or calls < 2:
            start.record(self.stream)
            candidate.run(*buffers[calls % len(buffers)])
            stop.record(self.stream)
            stop.synchronize()
            calls += 1
        return cupy.cuda.get_elapsed_time(start, stop)

    def replay(self) -> None:
        import cupy

        self.start.record(self.stream)
        self.graph.launch(self.stream)
        self.stop.record(self.stream)
        self.stop.synchronize()
        elapsed = cupy.cuda.get_elapsed_time(self.start, self.stop)
        self.samples_us.append(round(1e3 * elapsed / self.calls, 4))


def _buffers(rows: int, cols: int) -> list[tuple]:
    """Pairs (x, y) on the GPU, together past three times its L2 cache; no two inputs alike."""
    import cupy

    l2_bytes = cupy.cuda.Device().attributes["L2CacheSize"]
    pairs = max(2, math.ceil(3 * l2_bytes / (8 * rows * cols)))
    random = cupy.random.default_rng(0)
    buffers = []
    for _ in range(pairs):
        x = random.standard_normal((rows, cols), dtype=cupy.float32)
        shifts = random.random((rows, 1), dtype=cupy.float32) * 100 + 100
        x += cupy.where(random.random((rows, 1)) < 0.5, shifts, -shifts)
        buffers.append((x, cupy.full_like(x, cupy.nan)))
    return buffers


def _verify(name: str, candidate: Candidate, x, y) -> None:
    """Check an output on the GPU: every element for NaN, sampled rows against fp64."""
    import cupy

    cupy.cuda.get_current_stream().synchronize()
    if bool(cupy.isnan(y).any()):
        raise WrongResult(f"{name} left NaN in its output at {x.shape}")
    rows = x.shape[0]
    count = max(1, min(rows, 200_000 // x.shape[1]))
    sample = np.unique(np.linspace(0, rows - 1, count).astype(np.int64))
    try:
        candidate.compare(cupy.asnumpy(x[sample]), cupy.asnumpy(y[sample]))
    except WrongResult as error:
        raise WrongResult(f"{name} at {x.shape}: {error.summary}", error.values) from None


@contextlib.contextmanager
def fresh_pool():
    """Give CuPy's memory back between shapes: 2 GiB buffers of another shape do not fit twice."""
    import cupy

    try:
        yield
    finally:
        cupy.get_default_memory_pool().free_all_blocks()


def live_shapes() -> list[tuple[int, int]]:
    """Six shapes of the recorded grid's lengths that fit a quarter of the GPU's free memory."""
    import cupy

    free, _ = cupy.cuda.runtime.memGetInfo()
    elements = min(2**28, 2 ** int(math.log2(free / 4 / 16)))
    return [(elements // cols, cols) for cols in (32, 128, 512, 1024, 4096, 32768)]
