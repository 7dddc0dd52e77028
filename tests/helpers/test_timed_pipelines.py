"""How softmax is timed in a pipeline, with numpy in CuPy's place and a clock that tests wind."""

import itertools
import sys
from functools import partial

import numpy as np
import pytest

from helpers.measure import bench, pipelines, samples
from helpers.measure.bench import Candidate
from helpers.measure.campaign import Failure
from helpers.measure.gpu_arrays import verify
from helpers.measure.pipelines import COPY, ORDINARY
from helpers.problem.problem import Problem
from helpers.run.bound import load
from helpers.run.references import reference
from tests.helpers.fake_cupy import Machine, fake_cupy

WRITE, SWEEP, READ = 2.0, 30.0, 1.0  # microseconds
LARGE = 101, 40  # no room in the L2: timed fresh alone


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(made))
    monkeypatch.setitem(pipelines.PROTOCOL, "warmup_s", 0)

    def write(source, x) -> None:
        made.enqueue("write", WRITE, lambda: np.copyto(x, source))

    around = pipelines.Ends(
        write,
        lambda: made.enqueue("sweep", SWEEP, lambda: None),
        lambda y: made.enqueue("read", READ, lambda: None),
    )
    monkeypatch.setattr(pipelines, "ends", lambda problem: around)
    return made


def added(series: pipelines.Series, name: str) -> samples.Estimate:
    return samples.difference(series.pipeline_us[name], series.base_us[name])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_softmax_takes_what_it_adds_to_the_pipeline_in_both_states(dtype: str, machine) -> None:
    makers = {"fast": machine.maker("fast", 5.0), "slow": machine.maker("slow", 7.0)}
    found = pipelines.measure(makers, Problem(3, 40, dtype))
    assert list(found) == ["fresh", "evicted"]
    for state, series in found.items():
        for name, us in ((COPY, WRITE), ("fast", 5.0), ("slow", 7.0)):
            assert added(series, name) == pytest.approx((us, us, us), abs=1e-3), state
            without = WRITE + READ + (SWEEP if state == "evicted" else 0)
            assert series.base_us[name] == pytest.approx([without] * 21, abs=1e-3)
            assert len(series.pipeline_us[name]) == 21
    assert found["evicted"].calls == 50


def backward(machine, us: float, wrong: float = 1.0):
    """Softmax's gradient, whose y, dy and dx are a pipeline's."""

    def make(problem: Problem) -> Candidate:
        def run(y, dy, dx) -> None:
            def work() -> None:
                dx[...] = y * (dy - (y * dy).sum(axis=1, keepdims=True)) * wrong

            machine.enqueue("ours", us, work)

        return Candidate(run, {}, {}, partial(verify, problem, {}))

    return make


def test_what_is_around_softmax_gets_what_the_writer_wrote(machine, monkeypatch) -> None:
    """Its gradient is written anew; y, which it keeps, is not; what it gives is read."""
    read = []
    ends = pipelines.ends(None)._replace(read=lambda array: read.append(array.shape))
    monkeypatch.setattr(pipelines, "ends", lambda problem: ends)
    problem = Problem(3, 40, operation="softmax_backward")
    found = pipelines.measure({"ours": backward(machine, 5.0)}, problem)
    assert list(found) == ["fresh", "evicted"] and {*read} == {(3, 40)}
    assert added(found["fresh"], "ours").value == pytest.approx(5.0, abs=1e-3)
    assert added(found["fresh"], COPY).value == pytest.approx(WRITE, abs=1e-3), "a copy of dy"
    with pytest.raises(Failure, match="^ours: wrong result: "):
        pipelines.measure({"ours": backward(machine, 5.0, wrong=1.01)}, problem)
    ends = pipelines.ends(problem)._replace(write=lambda source, x: None)
    monkeypatch.setattr(pipelines, "ends", lambda *shape: ends)
    with pytest.raises(Failure, match="^ours: wrong result: "):  # dy was poisoned
        pipelines.measure({"ours": backward(machine, 5.0)}, problem)


def test_each_pipeline_is_replayed_right_behind_the_one_without_softmax(
    machine, monkeypatch
) -> None:
    replayed, replay = [], bench.Graph.replay

    def noted(graph) -> float:
        machine.order.clear()
        us = replay(graph)
        copied = machine.order.count("write") > machine.order.count("read")  # by the writer
        replayed.append("".join({*machine.order} - {"write", "read"}) or COPY * copied)
        return us

    monkeypatch.setattr(bench.Graph, "replay", noted)
    makers = {name: machine.maker(name, 5.0) for name in ("a", "b", "c")}
    pipelines.measure(makers, Problem(*LARGE))
    without, with_softmax = replayed[1::2], replayed[2::2]  # after the one that warms up
    names = {COPY, "a", "b", "c"}
    assert {*without} == {""} and {*with_softmax} == names
    assert {*itertools.pairwise(with_softmax)} >= {*itertools.permutations(names, 2)}


def test_buffers_are_gone_round_so_that_x_is_fresh_from_its_writer_alone(machine) -> None:
    series = pipelines.measure({"ours": machine.maker("ours", 5.0)}, Problem(1, 10))["fresh"]
    assert series.calls == 3 * 4000 // 80, "one for each buffer"
    large = pipelines.measure({"ours": machine.maker("ours", 5.0)}, Problem(*LARGE))
    assert list(large) == ["fresh"] and large["fresh"].calls == 50


def test_programmatic_kernels_are_launched_as_planned_and_ordinarily(machine) -> None:
    makers = {"ours": machine.maker("ours", 5.0, early=(6.0, reference))}
    series = pipelines.measure(makers, Problem(3, 40))["fresh"]
    assert added(series, "ours").value == pytest.approx(6.0, abs=1e-3)
    assert added(series, "ours" + ORDINARY).value == pytest.approx(5.0, abs=1e-3)
    assert len(series.pipeline_us) == 3


def test_what_goes_wrong_in_the_graph_alone_is_found(machine) -> None:
    """By launching it once more over a poisoned x and y."""
    calls = itertools.count()

    def tires(x):
        return reference(x) * (1 if next(calls) < 100 else 1.1)

    with pytest.raises(Failure, match=r"^tires: wrong result: .*are wrong"):
        pipelines.measure({"tires": machine.maker("tires", 5.0, tires)}, Problem(*LARGE))


# ---- the reader -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 4), (3, 20), (5, 1000), (7, 4096)])
def test_reader_reads_all_and_writes_little(shape: tuple[int, int]) -> None:
    kernel = load(pipelines.READER)
    bound = kernel.bind(*shape)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    y = np.full(bound.plan.grid * bound.plan.block // 32, np.nan, np.float32)
    trace = bound.simulate_arguments((x, y, *shape))
    assert not trace.findings
    assert y.sum() == pytest.approx(x.sum(), abs=1e-3)
    read, written = trace.counters.passes(x.size)
    assert read == 1 and round(written * x.size) == y.size
