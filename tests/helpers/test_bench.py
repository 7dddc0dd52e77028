"""The benchmark, with numpy in CuPy's place."""

import dataclasses
import sys
from types import SimpleNamespace

import cupy
import numpy as np
import pytest

from helpers.base.gpu import H200
from helpers.measure import bench
from helpers.measure.campaign import Failure
from helpers.measure.gpu_arrays import rounded
from helpers.problem.problem import Problem
from helpers.problem.shapes import GRID_SHAPES, RECORDED_SHAPES
from helpers.run.bound import BoundKernel, load
from helpers.run.check import check_copy
from helpers.run.references import reference
from tests.helpers.fake_cupy import Machine, fake_cupy

SMALL = Problem(3, 40)


LONG = 2000.0  # microseconds: 25 calls fill a replay


def bits(x: np.ndarray) -> np.ndarray:
    return x


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(made))
    monkeypatch.setitem(bench.PROTOCOL, "warmup_s", 0)
    copies = {
        bench.COPY: made.maker("copy", LONG, bits, check_copy),
        bench.PROGRAMMATIC_COPY: made.maker("early copy", 9.0, bits, check_copy, (LONG + 4, bits)),
    }
    monkeypatch.setattr(bench, "copy_maker", copies.get)
    return made


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_benchmark_times_and_checks_in_each_dtype(dtype: str, machine: Machine) -> None:
    makers = {"right": machine.maker("right", LONG + 1)}
    problem = Problem(3, 40, dtype)
    cases = bench.measure(makers, problem)
    assert set(cases) == {bench.COPY, "right"}
    case = cases["right"]
    assert case.launch == {"grid": 1} and case.attributes == {"registers": 9}
    assert case.calls == 25 and case.samples_us == pytest.approx([LONG + 1] * 7)
    assert case.copy_samples_us == cases[bench.COPY].samples_us == pytest.approx([LONG] * 7)
    for compute, text in (
        (lambda x: 0 * x, "all zero"),
        (lambda x: reference(x) * 1.02, "are wrong"),
        (lambda x: np.where(x == x.max(), np.nan, reference(x)), "left NaN in its output"),
    ):
        makers["wrong"] = machine.maker("wrong", LONG, compute)
        with pytest.raises(Failure, match=rf"^wrong: wrong result: .*{text}"):
            bench.measure(makers, problem)


def test_a_graph_that_writes_nothing_has_no_time(machine: Machine) -> None:
    """The output of the calls before it is poisoned."""
    idle = Machine().maker("idle", LONG)  # its calls are not captured: they run at once
    with pytest.raises(Failure, match="^idle: wrong result: left NaN in its output"):
        bench.measure({"idle": idle}, SMALL)


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


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_buffers_pass_three_times_the_cache_and_differ(dtype: str, machine: Machine) -> None:
    buffers = bench.buffers_for(Problem(1, 100, dtype))
    size = sum(array.nbytes for pair in buffers for array in pair)
    assert 12000 <= size < 12000 + 2 * buffers[0][0].nbytes
    assert len({x.tobytes() for x, _ in buffers}) == len(buffers)
    assert all(np.isnan(y.view(dtype)).all() for _, y in buffers)
    assert all(np.isfinite(x.view(dtype)).all() for x, _ in buffers)


def test_bfloat16_is_rounded_to_nearest_even(machine: Machine) -> None:
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


def test_what_is_for_other_starts_gets_a_y_that_begins_an_element_later(machine: Machine) -> None:
    starts: dict[str, set] = {"late": set(), "alike": set()}

    def make(name: str) -> bench.Maker:
        softmax = machine.maker(name, LONG)

        def candidate(problem: Problem) -> bench.Candidate:
            made = softmax(problem)

            def run(x, y) -> None:
                first = y.__array_interface__["data"][0] - y.base.__array_interface__["data"][0]
                starts[name].add(first)
                made.run(x, y)

            return dataclasses.replace(made, run=run, late=name == "late")

        return candidate

    bench.measure({name: make(name) for name in starts}, Problem(4, 33))
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
