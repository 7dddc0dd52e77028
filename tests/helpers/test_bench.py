"""The benchmark, with numpy in CuPy's place."""

import dataclasses
import sys
from functools import partial
from types import SimpleNamespace

import cupy
import numpy as np
import pytest

from helpers.base.gpu import H200
from helpers.measure import bench
from helpers.measure.campaign import Failure
from helpers.measure.gpu_arrays import rounded, verify
from helpers.problem.problem import Problem
from helpers.problem.shapes import GRID_SHAPES, RECORDED_SHAPES
from helpers.run.bound import BoundKernel, load
from helpers.run.check import check_copy, check_softmax
from helpers.run.references import reference
from tests.helpers.fake_cupy import fake_cupy as made

SMALL = Problem(3, 40)


@pytest.fixture
def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> list:
    """The list of calls in the capture that goes on; candidates append theirs to it."""
    calls: list = []
    fake = made(calls)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(bench.PROTOCOL, "warmup_s", 0)
    return calls


def judge_of(problem: Problem, compare):
    """What checks the arrays of softmax by comparing y with x."""

    def check(_, values, written, *__) -> None:
        compare(values["x"], written["y"])

    return partial(verify, problem, {}, check=check)


def fake_maker(calls: list, compute, compare, programmatic=None) -> bench.Maker:
    def make(problem: Problem) -> bench.Candidate:
        def run_of(compute):
            def run(x, y) -> None:
                def call() -> None:
                    values = x.view(problem.dtype).astype(np.float64)
                    y.view(problem.dtype)[...] = compute(values)

                calls.append(call)
                call()

            return run

        early = run_of(programmatic) if programmatic else None
        judge = judge_of(problem, compare)
        return bench.Candidate(run_of(compute), {"grid": 1}, {"registers": 9}, judge, early)

    return make


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_benchmark_times_and_checks_in_each_dtype(dtype: str, fake_cupy: list) -> None:
    makers = {
        bench.COPY: fake_maker(fake_cupy, lambda x: x, check_copy),
        "right": fake_maker(fake_cupy, reference, check_softmax),
    }
    problem = Problem(3, 40, dtype)
    cases = bench.measure(makers, problem)
    assert set(cases) == set(makers)
    case = cases["right"]
    assert case.launch == {"grid": 1}
    assert case.attributes == {"registers": 9}
    assert case.calls == max(3, 50 // 2) and len(case.samples_us) == 7
    assert case.samples_us == [2000 / case.calls] * 7
    for compute, text in (
        (lambda x: 0 * x, "all zero"),
        (lambda x: reference(x) * 1.02, "are wrong"),
        (lambda x: np.where(x == x.max(), np.nan, reference(x)), "left NaN in its output"),
    ):
        makers["wrong"] = fake_maker(fake_cupy, compute, check_softmax)
        with pytest.raises(Failure, match=rf"^wrong: wrong result: .*{text}"):
            bench.measure(makers, problem)


def test_programmatic_launch_is_timed_beside_the_ordinary_one(fake_cupy, monkeypatch) -> None:
    copy = fake_maker(fake_cupy, lambda x: x, check_copy, programmatic=lambda x: x)
    monkeypatch.setattr(bench, "copy_maker", {bench.PROGRAMMATIC_COPY: copy}.get)
    makers = {
        bench.COPY: fake_maker(fake_cupy, lambda x: x, check_copy),
        "early": fake_maker(fake_cupy, reference, check_softmax, programmatic=reference),
        "late": fake_maker(fake_cupy, reference, check_softmax),
    }
    made = []
    init = bench.Graph.__init__
    monkeypatch.setattr(
        bench.Graph, "__init__", lambda self, *rest: (made.append(self), init(self, *rest))[1]
    )
    monkeypatch.setattr(bench.Graph, "replay", lambda graph: 100.0 + made.index(graph))
    cases = bench.measure(makers, SMALL)
    assert set(cases) == {bench.COPY, "early", "late"}
    copied, early, late = (cases[name] for name in (bench.COPY, "early", "late"))
    # In the order they are made: copy, early and early programmatically, late, the copy.
    firsts = [early.samples_us[0], early.programmatic_us[0], late.samples_us[0]]
    assert firsts == [101.0, 102.0, 103.0] and copied.samples_us == [100.0] * 7
    assert early.copy_samples_us == [100.0] * 7 and early.programmatic_copy_us == [104.0] * 7
    assert late.programmatic_us == late.programmatic_copy_us == []


@pytest.mark.parametrize("launch", ["ordinary", "programmatic"])
def test_wrong_result_of_either_launch_is_seen(launch: str, fake_cupy, monkeypatch) -> None:
    copy = fake_maker(fake_cupy, lambda x: x, check_copy, programmatic=lambda x: x)
    monkeypatch.setattr(bench, "copy_maker", lambda name: copy)
    wrong = {"programmatic": (reference, lambda x: 0 * x), "ordinary": (lambda x: 0 * x, reference)}
    compute, early = wrong[launch]
    makers = {"wrong": fake_maker(fake_cupy, compute, check_softmax, programmatic=early)}
    with pytest.raises(Failure, match="^wrong: wrong result: .*all zero"):
        bench.measure(makers, SMALL)


def test_a_graph_that_writes_nothing_has_no_time(fake_cupy: list) -> None:
    """The output of the calls before it is poisoned."""
    makers = {bench.COPY: fake_maker(fake_cupy, lambda x: x, check_copy)}
    makers["idle"] = fake_maker([], reference, check_softmax)  # its calls are not captured
    with pytest.raises(Failure, match="^idle: wrong result: left NaN in its output"):
        bench.measure(makers, SMALL)


def test_ordinary_launch_is_of_the_same_code(monkeypatch) -> None:
    """The macro that kernels read stays as it was: the launch alone is another."""
    enqueued = []
    kernel = SimpleNamespace(num_regs=1, local_size_bytes=0, shared_size_bytes=0)
    monkeypatch.setattr(BoundKernel, "prepare", lambda bound: None)
    monkeypatch.setattr(BoundKernel, "workspace", lambda bound: ())
    monkeypatch.setattr(BoundKernel, "compiled", kernel)
    monkeypatch.setattr(BoundKernel, "enqueue", lambda bound, *_, **__: enqueued.append(bound))
    monkeypatch.setattr(bench, "active_clusters", lambda *_: None)
    candidate = bench.kernel_candidate(load("09_grid-PROGRAMMATIC1").bind(1, 32000, gpu=H200))
    candidate.run(None, None)
    candidate.run_programmatic(None, None)
    ordinary, programmatic = enqueued
    assert not ordinary.plan.programmatic and programmatic.plan.programmatic
    assert ordinary.options == programmatic.options and "-DPROGRAMMATIC=1" in ordinary.options
    assert candidate.launch == programmatic.launch
    assert bench.kernel_candidate(load("07_warp").bind(64, 128, gpu=H200)).run_programmatic is None


@pytest.mark.parametrize("when", ["made", "run"])
def test_benchmark_names_the_candidate_that_fails(when: str, fake_cupy: list) -> None:
    def broken(problem: Problem) -> bench.Candidate:
        if when == "made":
            raise MemoryError("no room")
        candidate = fake_maker(fake_cupy, reference, check_softmax)(problem)
        calls = iter(range(3))  # it runs for a while

        def run(x, y) -> None:
            if next(calls, None) is None:
                raise MemoryError("no room")
            candidate.run(x, y)

        return dataclasses.replace(candidate, run=run)

    copy = fake_maker(fake_cupy, lambda x: x, check_copy)
    right = fake_maker(fake_cupy, reference, check_softmax)
    with pytest.raises(Failure, match="^broken: MemoryError: no room$") as caught:
        bench.measure({bench.COPY: copy, "broken": broken, "right": right}, SMALL)
    assert str(caught.value.__cause__) == "no room"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_buffers_pass_three_times_the_cache_and_differ(dtype: str, fake_cupy: list) -> None:
    buffers = bench.buffers_for(Problem(1, 100, dtype))
    size = sum(array.nbytes for pair in buffers for array in pair)
    assert 12000 <= size < 12000 + 2 * buffers[0][0].nbytes
    assert len({x.tobytes() for x, _ in buffers}) == len(buffers)
    assert all(np.isnan(y.view(dtype)).all() for _, y in buffers)
    assert all(np.isfinite(x.view(dtype)).all() for x, _ in buffers)


def test_bfloat16_is_rounded_to_nearest_even(fake_cupy: list) -> None:
    x = np.random.default_rng(0).normal(0, 50, 10000).astype(np.float32)
    x[:3] = 1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8)  # halfway between two
    wanted = x.astype("bfloat16").view(np.uint16)
    assert np.array_equal(rounded(x.copy(), "bfloat16"), wanted)


@pytest.mark.parametrize(
    ("shape", "dtype", "copied"),
    [
        ((6, 10), "float32", (6, 10)),
        ((6, 10), "float16", (6, 5)),
        ((6, 11), "bfloat16", (3, 11)),
        ((7, 11), "float32", (7, 11)),
        ((7, 11), "float16", (1, 39)),
        ((8, 11), "float32", (11, 8)),
    ],
)
def test_copy_moves_as_many_bytes(shape, dtype: str, copied, monkeypatch) -> None:
    monkeypatch.setattr(bench, "gpu_in_use", lambda: H200)
    made = lambda bound: bench.Candidate(print, bound.problem.shape, {}, None)  # noqa: E731
    monkeypatch.setattr(bench, "kernel_candidate", made)
    problem = Problem(*shape, dtype)
    assert bench.copy_maker(bench.COPY)(problem).launch == copied
    if copied[1] % 4 == 0:
        assert bench.copy_maker("variants/00_copy_evict_last")(problem).launch == copied


def test_what_is_for_other_starts_gets_a_y_that_begins_an_element_later(fake_cupy) -> None:
    starts: dict[str, set] = {"late": set(), "alike": set()}

    def make(name: str) -> bench.Maker:
        softmax = fake_maker(fake_cupy, reference, check_softmax)

        def candidate(problem: Problem) -> bench.Candidate:
            made = softmax(problem)

            def run(x, y) -> None:
                first = y.__array_interface__["data"][0] - y.base.__array_interface__["data"][0]
                starts[name].add(first)
                made.run(x, y)

            return dataclasses.replace(made, run=run, late=name == "late")

        return candidate

    makers = {name: make(name) for name in starts}
    copy = {bench.COPY: fake_maker(fake_cupy, lambda x: x, check_copy)}
    bench.measure({**copy, **makers}, Problem(4, 33))
    assert starts == {"late": {4}, "alike": {0}}


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
