"""The benchmark, with numpy in CuPy's place."""

import dataclasses
import pickle
import sys
from types import SimpleNamespace

import cupy
import numpy as np
import pytest

from helpers import bench
from helpers.check import check_copy, check_softmax, reference
from helpers.gpu import H200
from helpers.shapes import GRID_SHAPES, RECORDED_SHAPES
from helpers.workers import Failure


class FakeStream:
    """Runs at once what is enqueued; a capture runs it too, and its graph runs nothing again."""

    def __init__(self, replayed: list):
        self.replayed = replayed

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None: ...
    def synchronize(self) -> None: ...
    def begin_capture(self) -> None:
        self.replayed.clear()

    def end_capture(self) -> SimpleNamespace:
        calls = list(self.replayed)
        return SimpleNamespace(
            upload=lambda stream: None, launch=lambda stream: [call() for call in calls]
        )


@pytest.fixture
def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> list:
    """The list of calls in the capture that goes on; candidates append theirs to it."""
    calls: list = []
    stream = FakeStream(calls)
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
    device = SimpleNamespace(attributes={"L2CacheSize": 4000}, synchronize=lambda: None)
    cuda = SimpleNamespace(
        Stream=lambda non_blocking: stream,
        Event=lambda: event,
        Device=lambda: device,
        get_elapsed_time=lambda start, stop: 2.0,
        get_current_stream=lambda: stream,
    )
    numpy_names = {name: getattr(np, name) for name in ("isnan", "where", "empty_like")}
    types = {name: getattr(np, name) for name in ("float32", "uint32", "uint16")}
    fake = SimpleNamespace(cuda=cuda, random=np.random, asnumpy=np.asarray, **numpy_names, **types)
    fake.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(bench.PROTOCOL, "warmup_s", 0)
    return calls


def fake_maker(calls: list, compute, compare) -> bench.Maker:
    def make(rows: int, cols: int, dtype: str) -> bench.Candidate:
        def run(x, y) -> None:
            def call() -> None:
                y.view(dtype)[...] = compute(x.view(dtype).astype(np.float64))

            calls.append(call)
            call()

        return bench.Candidate(run, {"grid": 1}, {"registers": 9}, compare)

    return make


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_benchmark_times_and_checks_in_each_dtype(dtype: str, fake_cupy: list) -> None:
    makers = {
        bench.COPY: fake_maker(fake_cupy, lambda x: x, check_copy),
        "right": fake_maker(fake_cupy, reference, check_softmax),
    }
    cases = bench.measure(makers, 3, 40, dtype)
    assert set(cases) == set(makers)
    case = cases["right"]
    assert (case.dtype, case.shape, case.launch) == (dtype, (3, 40), {"grid": 1})
    assert case.attributes == {"registers": 9} and case.check == "right before and after timing"
    assert case.calls == max(3, 50 // 2) and len(case.samples_us) == 7
    assert case.samples_us == [2000 / case.calls] * 7
    for compute, text in (
        (lambda x: 0 * x, "all zero"),
        (lambda x: reference(x) * 1.02, "are wrong"),
        (lambda x: np.where(x == x.max(), np.nan, reference(x)), "left NaN in its output"),
    ):
        makers["wrong"] = fake_maker(fake_cupy, compute, check_softmax)
        with pytest.raises(Failure, match=rf"^wrong: wrong result: .*{text}"):
            bench.measure(makers, 3, 40, dtype)


@pytest.mark.parametrize("when", ["made", "run"])
def test_benchmark_names_the_candidate_that_fails(when: str, fake_cupy: list) -> None:
    def broken(rows: int, cols: int, dtype: str) -> bench.Candidate:
        if when == "made":
            raise MemoryError("no room")
        candidate = fake_maker(fake_cupy, reference, check_softmax)(rows, cols, dtype)
        calls = iter(range(3))  # it runs for a while

        def run(x, y) -> None:
            if next(calls, None) is None:
                raise MemoryError("no room")
            candidate.run(x, y)

        return dataclasses.replace(candidate, run=run)

    copy = fake_maker(fake_cupy, lambda x: x, check_copy)
    right = fake_maker(fake_cupy, reference, check_softmax)
    with pytest.raises(Failure, match="^broken: MemoryError: no room$") as caught:
        bench.measure({bench.COPY: copy, "broken": broken, "right": right}, 3, 40)
    assert str(caught.value.__cause__) == "no room"


def test_benchmark_looks_at_the_last_of_a_few_long_rows(fake_cupy: list) -> None:
    def forgets_the_last_row(x: np.ndarray) -> np.ndarray:
        return np.vstack([reference(x[:-1]), 0 * x[-1:]])

    makers = {
        bench.COPY: fake_maker(fake_cupy, lambda x: x, check_copy),
        "wrong": fake_maker(fake_cupy, forgets_the_last_row, check_softmax),
    }
    with pytest.raises(Failure, match="^wrong: wrong result: .*are wrong"):
        bench.measure(makers, 4, 150_000)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_buffers_pass_three_times_the_cache_and_differ(dtype: str, fake_cupy: list) -> None:
    buffers = bench._buffers(1, 100, dtype)
    size = sum(array.nbytes for pair in buffers for array in pair)
    assert 12000 <= size < 12000 + 2 * buffers[0][0].nbytes
    assert len({x.tobytes() for x, _ in buffers}) == len(buffers)
    assert all(np.isnan(y.view(dtype)).all() for _, y in buffers)
    assert all(np.isfinite(x.view(dtype)).all() for x, _ in buffers)


def test_bfloat16_is_rounded_to_nearest_even(fake_cupy: list) -> None:
    x = np.random.default_rng(0).normal(0, 50, 10000).astype(np.float32)
    x[:3] = 1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8)  # halfway between two
    wanted = x.astype("bfloat16").view(np.uint16)
    assert np.array_equal(bench._rounded(x.copy(), "bfloat16"), wanted)


@pytest.mark.parametrize(
    ("shape", "dtype", "copied"),
    [
        ((6, 10), "float32", (6, 10)),
        ((6, 10), "float16", (6, 5)),
        ((6, 11), "bfloat16", (3, 11)),
        ((7, 11), "float32", (7, 11)),
    ],
)
def test_copy_moves_as_many_bytes(shape, dtype: str, copied, monkeypatch) -> None:
    monkeypatch.setattr(bench, "gpu_in_use", lambda: H200)
    monkeypatch.setattr(bench, "kernel_candidate", lambda bound: (bound.rows, bound.cols))
    assert bench.copy_candidate(*shape, dtype) == copied
    with pytest.raises(ValueError, match="7 x 11 float16 are no whole number of floats"):
        bench.copy_candidate(7, 11, "float16")


def test_tasks_can_be_handed_to_another_process() -> None:
    task = (bench.measure_steps, bench.Task(64, 128, "float32", ("00_copy", "01_naive")))
    assert pickle.loads(pickle.dumps(task)) == task


def test_shapes_shrink_to_the_memory_of_the_gpu(monkeypatch) -> None:
    every = [*RECORDED_SHAPES]

    def shapes(free: float) -> list[tuple[int, int]]:
        monkeypatch.setattr(cupy.cuda.runtime, "memGetInfo", lambda: (int(free), int(free)))
        return bench.shapes_that_fit(every)

    assert shapes(100e9) == every
    small = shapes(2e9)
    assert len(small) == len(set(small))
    assert all(24 * rows * cols <= 1.8e9 for rows, cols in small)
    assert (126, 2**20) not in small, "half of it would not go evenly"
    assert [cols for _, cols in small[:11]] == [cols for _, cols in GRID_SHAPES]
