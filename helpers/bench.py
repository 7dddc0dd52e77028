"""Time kernels on a GPU: a CUDA graph over rotating buffers, in turn with a same-size copy.

Why a graph: launching from Python costs more than a short kernel takes. Why rotating buffers:
calls that reuse one buffer measure the L2 cache. Why in turn with a copy: clocks and temperature
drift, and only a ratio within one run survives that.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .check import WrongResult, check_copy, check_softmax
from .execute import prepare
from .kernels import Plan, compiled_for, source
from .records import FEW_SHAPES, Case

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
    """Something to time: `run(x, y)` enqueues one call on the current stream. x and y are CuPy
    arrays of the dtype, for bfloat16 of uint16."""

    run: Callable
    launch: dict[str, int]
    attributes: dict[str, int]
    compare: Callable[[np.ndarray, np.ndarray], None]
    note: str = ""


class CandidateFailed(RuntimeError):
    """What went wrong, apart from a wrong result, while a candidate was made or ran; see
    `__cause__`. An error on the GPU shows at the next wait, and each candidate is waited for."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


@contextlib.contextmanager
def working_on(name: str):
    """What fails within raises `CandidateFailed` with this name; a `WrongResult` has its own."""
    try:
        yield
    except WrongResult:
        raise
    except Exception as error:
        raise CandidateFailed(name) from error


Maker = Callable[[int, int, str], Candidate]  # for rows, cols and dtype


def kernel_candidate(
    kernel, rows: int, cols: int, dtype: str = "float32", block: int | None = None
) -> Candidate:
    """A kernel of the series at one shape: the text of its file, which is compiled for the shape,
    or a `cupy.RawKernel` as it is; `block` replaces the header's block size."""
    import cupy

    kernel, plan = compiled_for(kernel, rows, cols, dtype, block)
    prepare(kernel, plan)
    # One is enough: calls follow each other on one stream, and each leaves zeros behind.
    workspace = (cupy.zeros(plan.workspace, cupy.uint8),) if plan.workspace else ()

    def run(x, y) -> None:
        arguments = (x, y, rows, cols, *workspace)
        kernel((plan.grid,), (plan.block,), arguments, shared_mem=plan.shared_mem)

    def run_programmatic(x, y) -> None:
        pointers = (array.data.ptr for array in (x, y, *workspace))
        launch_programmatic(kernel, plan, (next(pointers), next(pointers), rows, cols, *pointers))

    return Candidate(
        run_programmatic if plan.programmatic else run,
        plan.launch,
        {
            "registers": kernel.num_regs,
            "local_bytes": kernel.local_size_bytes,
            "static_shared_bytes": kernel.shared_size_bytes,
            **active_clusters(kernel, plan),
        },
        check_copy if kernel.name.startswith("copy") else check_softmax,
    )


def active_clusters(kernel, plan: Plan) -> dict[str, int]:
    """How many clusters of the plan this GPU runs at once, says the driver
    (`cuOccupancyMaxActiveClusters`); empty without clusters, or if it does not say."""
    if plan.macros.get("CLUSTER", 1) == 1:
        return {}
    from cuda.bindings import driver

    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    size = attribute.value.clusterDim
    size.x, size.y, size.z = plan.macros["CLUSTER"], 1, 1
    config = _driver_config(plan, [attribute])
    status, count = driver.cuOccupancyMaxActiveClusters(kernel.kernel.ptr, config)
    return {"active_clusters": count} if status == driver.CUresult.CUDA_SUCCESS else {}


def _driver_config(plan: Plan, attributes: list):
    """The driver's `CUlaunchConfig` of a plan, on its default stream."""
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = plan.grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = plan.block, 1, 1
    config.sharedMemBytes = plan.shared_mem
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def launch_programmatic(kernel, plan: Plan, arguments: Sequence[int]) -> None:
    """Enqueue a kernel whose blocks may start while its predecessor on the stream still runs; it
    waits for that one with griddepcontrol.wait. `arguments` are addresses and, in the third and
    fourth place, 32-bit integers. CuPy has no launch attributes, so this goes to the driver.

    Raises `RuntimeError` with the driver's name for what it refuses.
    """
    import cupy
    from cuda.bindings import driver

    kinds = [driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION]
    if plan.cooperative:
        kinds.append(driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
    attributes = []
    for kind in kinds:
        attribute = driver.CUlaunchAttribute()
        attribute.id = kind
        if kind == kinds[0]:
            attribute.value.programmaticStreamSerializationAllowed = 1
        else:
            attribute.value.cooperative = 1
        attributes.append(attribute)
    config = _driver_config(plan, attributes)
    config.hStream = cupy.cuda.get_current_stream().ptr
    types = [ctypes.c_void_p] * len(arguments)
    types[2:4] = ctypes.c_int, ctypes.c_int
    packed = (tuple(arguments), tuple(types))
    (status,) = driver.cuLaunchKernelEx(config, kernel.kernel.ptr, packed, 0)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{kernel.name} cannot be launched: {status.name}")


def copy_candidate(rows: int, cols: int, dtype: str = "float32") -> Candidate:
    """The copy kernel over as many bytes: two 16-bit elements are one of its floats."""
    if np.dtype(dtype).itemsize == 2:
        if cols % 2 == 0:
            cols //= 2
        elif rows % 2 == 0:
            rows //= 2
        else:
            raise ValueError(f"{rows} x {cols} {dtype} are no whole number of floats to copy")
    return kernel_candidate(source(f"{COPY}.cu"), rows, cols)


def unfused_candidate(rows: int, cols: int, dtype: str = "float32") -> Candidate:
    """Softmax as five CuPy array operations with preallocated results, for float32 and float16."""
    import cupy

    scratch = cupy.empty((rows, cols), dtype)
    column = cupy.empty((rows, 1), dtype)

    def run(x, y) -> None:
        cupy.amax(x, axis=1, keepdims=True, out=column)
        cupy.subtract(x, column, out=scratch)
        cupy.exp(scratch, out=scratch)
        cupy.sum(scratch, axis=1, keepdims=True, out=column)
        cupy.divide(scratch, column, out=y)

    return Candidate(run, {"grid": 0, "block": 0, "shared_mem": 0}, {}, check_softmax)


def measure(
    makers: dict[str, Maker], rows: int, cols: int, dtype: str = "float32"
) -> dict[str, Case]:
    """Time candidates and a copy kernel in turn at one shape.

    Returns each name's case. Raises `WrongResult` if an output is wrong before or after timing: a
    broken kernel has no time; `CandidateFailed` if one cannot be made or run.
    """
    import cupy

    makers = {COPY: copy_candidate, **makers}
    candidates = {}
    for name, make in makers.items():
        with working_on(name):
            candidates[name] = make(rows, cols, dtype)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()  # what the makers wrote elsewhere, this stream may read
    with stream:
        buffers = _buffers(rows, cols, dtype)
        for name, candidate in candidates.items():
            x, y = buffers[0]
            _poison(y)
            with working_on(name):
                candidate.run(x, y)
                _verify(name, candidate, x, y, dtype)
        timings = {}
        for name, candidate in candidates.items():
            with working_on(name):
                timings[name] = _Timing(candidate, buffers, stream)
        # The copy is timed twice per round. The second series is the denominator of the copy's
        # own record, so that its share of itself shows the noise.
        again = _Timing(candidates[COPY], buffers, stream)
        for _ in range(PROTOCOL["replays"]):
            for name, timing in (*timings.items(), (COPY, again)):
                with working_on(name):
                    timing.replay()
        for name, candidate in candidates.items():
            timing = timings[name]
            x, y = buffers[min(timing.calls, len(buffers)) - 1]
            _poison(y)
            with working_on(name):
                timing.graph.launch(stream)  # what was timed is what must have written y
                _verify(name, candidate, x, y, dtype)
    return {
        name: Case(
            dtype,
            rows,
            cols,
            candidates[name].launch,
            timing.samples_us,
            (again if name == COPY else timings[COPY]).samples_us,
            timing.calls,
            "right before and after timing",
            candidates[name].attributes,
        )
        for name, timing in timings.items()
    }


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
        """Run for 0.2 s, so that clocks are up; returns the milliseconds of one call, the mean of
        several that follow each other: a short one alone takes less than its launch."""
        import cupy

        begin, calls, start, stop = time.perf_counter(), 0, cupy.cuda.Event(), cupy.cuda.Event()
        burst = 1
        while time.perf_counter() - begin < PROTOCOL["warmup_s"] or calls < 2:
            start.record(self.stream)
            for _ in range(burst):
                candidate.run(*buffers[calls % len(buffers)])
                calls += 1
            stop.record(self.stream)
            stop.synchronize()
            single_ms = cupy.cuda.get_elapsed_time(start, stop) / burst
            burst = 20 if single_ms < 1 else 1
        return single_ms

    def replay(self) -> None:
        import cupy

        self.start.record(self.stream)
        self.graph.launch(self.stream)
        self.stop.record(self.stream)
        self.stop.synchronize()
        elapsed = cupy.cuda.get_elapsed_time(self.start, self.stop)
        self.samples_us.append(round(1e3 * elapsed / self.calls, 4))


def _buffers(rows: int, cols: int, dtype: str) -> list[tuple]:
    """Pairs (x, y) on the GPU, together past three times its L2 cache; no two inputs alike."""
    import cupy

    l2_bytes = cupy.cuda.Device().attributes["L2CacheSize"]
    pair_bytes = 2 * np.dtype(dtype).itemsize * rows * cols
    pairs = max(2, math.ceil(3 * l2_bytes / pair_bytes))
    random = cupy.random.default_rng(0)
    buffers = []
    for _ in range(pairs):
        x = random.standard_normal((rows, cols), dtype=cupy.float32)
        shifts = random.random((rows, 1), dtype=cupy.float32) * 100 + 100
        x += cupy.where(random.random((rows, 1)) < 0.5, shifts, -shifts)
        x = _rounded(x, dtype)
        y = cupy.empty_like(x)
        _poison(y)
        buffers.append((x, y))
    return buffers


def _rounded(x, dtype: str):
    """A float32 array on the GPU in another dtype, to nearest even; bfloat16 as its bits."""
    import cupy

    if dtype != "bfloat16":
        return x.astype(dtype, copy=False)
    bits = x.view(cupy.uint32)
    bits += ((bits >> 16) & 1) + 0x7FFF
    bits >>= 16
    return bits.astype(cupy.uint16)


def _poison(y) -> None:
    """Fill an output with NaN: what is not written stays visible."""
    y.fill(0x7FFF if y.dtype.kind == "u" else np.nan)


def _verify(name: str, candidate: Candidate, x, y, dtype: str) -> None:
    """Check an output on the GPU: every element for NaN, sampled rows against fp64."""
    import cupy

    cupy.cuda.get_current_stream().synchronize()
    has_nan = (y & 0x7FFF) > 0x7F80 if y.dtype.kind == "u" else cupy.isnan(y)
    if bool(has_nan.any()):
        raise WrongResult(f"{name} left NaN in its output at {x.shape}")
    rows = x.shape[0]
    count = min(rows, max(3, 200_000 // x.shape[1]))  # of a few long rows the last one too
    sample = np.unique(np.linspace(0, rows - 1, count).astype(np.int64))
    try:
        candidate.compare(*(cupy.asnumpy(array[sample]).view(dtype) for array in (x, y)))
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


# By the names that helpers/plot.py has for families of shapes.
TIMED_LIVE = {"grid": (32, 128, 512, 1024, 4096, 32768), "long": (1024, 4096, 32768, 131072, 2**18)}


def live_shapes(shapes: str = "grid") -> list[tuple[int, int]]:
    """Five or six shapes of a family: "few" as they are recorded, "grid" and "long" with as many
    rows as fit a quarter of the GPU's free memory."""
    import cupy

    if shapes == "few":
        return [*FEW_SHAPES]
    free, _ = cupy.cuda.runtime.memGetInfo()
    elements = min(2**28, 2 ** int(math.log2(free / 4 / 16)))
    return [(elements // cols, cols) for cols in TIMED_LIVE[shapes]]
