"""The SIMT machine counts memory traffic exactly as an H200 does; the sanitizers found nothing."""

import itertools
from collections.abc import Iterable

import pytest

from helpers.catalogue.dispatch import ANY_LENGTH, launch_of, plan_of
from helpers.catalogue.registry import split_trial, steps
from helpers.catalogue.store import read
from helpers.measure import profiler
from helpers.measure.bench import numbers_of
from helpers.measure.gpu_arrays import host_arrays
from helpers.measure.profiler import Launch, NsightCounters, SanitizerResult
from helpers.measure.profiling import (
    FILES,
    OPTIONS,
    launches,
)
from helpers.problem.problem import Problem
from helpers.problem.shapes import (
    SMALL_SHAPES,
)
from helpers.run.bound import BoundKernel, load
from helpers.run.references import make_input, poisoned
from helpers.simt import NSIGHT_METRICS, Trace
from tests.earlier import PROFILED_EARLIER, UNPROFILED

EARLIER = UNPROFILED.union(*PROFILED_EARLIER.values())
UNFUSED_ONE, *COUNTERS = read(NsightCounters)
VERDICTS = read(SanitizerResult)
# Larger cases explain the prose; here they would take minutes.
SMALL = [one for one in COUNTERS if one.rows * one.cols < 2**18]


def bound(launch: Launch) -> BoundKernel:
    return load(launch.step).bind(*launch.at.shape, launch.at.dtype)


def seen(one: NsightCounters) -> dict[str, float]:
    ((_, metrics),) = one.metrics
    return metrics


def simulated(launch: Launch) -> Trace:
    one = bound(launch)
    if not one.problem.plain:
        return one.simulate(*host_arrays(one.problem).values(), **numbers_of(one))
    x = make_input(*launch.at.shape).astype(launch.at.dtype, copy=False)
    return one.simulate(x, poisoned(x))


def compared_cases() -> list[NsightCounters]:
    """All of a step, one of a variant or a trial, if they are launched so now."""
    same = [one for one in SMALL if one.launch == launch_of(one.step, one.at, one.run.gpu)]
    of_step = {step: [one for one in same if one.step == step] for step in steps()}
    others = {one.step for one in same} - {*of_step}
    of_other = [[one for one in same if one.step == step][:1] for step in sorted(others)]
    return [*itertools.chain(*of_step.values(), *of_other)]


def current(keys: Iterable) -> list:
    """Those of files that were not edited since; a key without a step is of none."""
    steps = [(key, getattr(key, "step", "00_copy")) for key in keys]
    return [key for key, step in steps if split_trial(step).file not in EARLIER]


@pytest.mark.parametrize("case", compared_cases(), ids=lambda case: str(case.key))
def test_global_loads_and_stores_equal_the_hardwares(case: NsightCounters) -> None:
    trace, plan = simulated(case.key), bound(case.key).plan
    # Threads that wait for another block's word read it as often as the hardware's timing has it.
    waits = plan.cooperative
    compared = {
        metric: name
        for name, metric in NSIGHT_METRICS.items()
        if name.startswith("store") or not waits
    }
    found = trace.counters
    copies = {"load_requests": found.copy_requests, "load_sectors": found.copy_sectors}
    ours = {metric: getattr(found, name) + copies.get(name, 0) for metric, name in compared.items()}
    hardware = {metric: seen(case)[metric] for metric in compared}
    if found.copy_requests and plan.macros.get("CLUSTER", 1) > 1:
        # Of a cp.async in a cluster, Nsight counts a sector more for each line of 128 bytes that
        # the 512 bytes of a warp touch: 4 or 5, or 3 and fewer where they begin within a sector.
        # Outside of clusters it does not. Requests are the same.
        sectors = NSIGHT_METRICS["load_sectors"]
        size = 4 if case.dtype == "float32" else 2
        more = (hardware.pop(sectors) - ours.pop(sectors)) / found.copy_requests
        assert (4 if case.cols * size % 32 == 0 else 2.9) <= more <= 5
    if case.step == ANY_LENGTH and plan.macros["BLOCKS"] > 1:
        # Each lane empties its slot as soon as its message has come, in a request of its own if no
        # other's came at the same time: between one for each block and one for each message.
        messages = case.rows * plan.macros["BLOCKS"] * (plan.macros["BLOCKS"] - 1)
        for metric in compared:
            assert 0 <= hardware.pop(metric) - ours.pop(metric) <= messages
    assert ours == hardware
    assert not trace.findings


@pytest.mark.parametrize("step", steps())
def test_every_step_is_compared_at_two_shapes_or_more(step: str) -> None:
    shapes = {one.shape for one in SMALL if one.step == step}
    assert len(shapes) >= 2
    if any(plan_of(step, Problem(*shape)) for shape in SMALL_SHAPES):
        assert any(cols % 32 for _, cols in shapes), "a shape with rows that share sectors"


def test_counters_are_of_every_launch_that_is_wanted() -> None:
    assert current(one.key for one in COUNTERS) == current(launches())
    small = {one for one in launches("small") if one.step not in UNPROFILED}
    assert small == {one.key for one in SMALL}
    for one in COUNTERS:
        assert one.counted[0]["kernel"] == load(one.step).name
    assert len(UNFUSED_ONE.metrics) >= 5, "five array operations, some of more than one launch"


def test_sanitizers_found_no_error_in_any_step() -> None:
    every = dict.fromkeys(one.step for one in launches("small"))
    examined = [step for step in every if step not in UNPROFILED]
    of_each = itertools.product(OPTIONS, examined)
    assert [one.key for one in VERDICTS] == [(step, tool) for tool, step in of_each]
    assert not any(one.errors for one in VERDICTS)
    for one in VERDICTS:
        assert len(one.launches) >= 2
        assert one.run.protocol["command"][one.tool].startswith("compute-sanitizer --tool ")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.kind.file)
def test_profiler_data_are_of_kernels_launches_and_protocol_as_they_are(file) -> None:
    """An edited kernel, launch rule or Build line needs `make measure ARGS=profile` again; comments
    do not count."""
    found = read(file.kind)
    assert current(one.key for one in found) == current(file.keys(found[0].run.gpu))
    edited = {split_trial(one.step).file for one in found if not one.is_current()}
    earlier = PROFILED_EARLIER.get(file.kind.file, frozenset())
    assert edited == earlier, "run make measure ARGS=profile, or correct earlier.py"
    for one in found:
        assert one.run.device["name"] == "NVIDIA H200"
        assert one.run.protocol == file.protocol


# ---- machine instructions ----


def test_loads_in_a_row_are_counted_up_to_whatever_else_stands_there(monkeypatch) -> None:
    kept = "LDG.E.CONSTANT LDG.E MUFU.EX2 LDG.E LDGSTS.E STG.E LDG.E LDG.E LDG.E EXIT".split()
    monkeypatch.setattr(profiler, "sass", lambda step: {"01_x": kept}[step])
    assert profiler.loads_in_a_row("01_x") == [2, 1, 3]


def test_loads_in_a_row_are_of_a_kernel_that_is_compiled_once() -> None:
    assert profiler.loads_in_a_row("variants/00_copy_scalar")
    with pytest.raises(KeyError, match="08_cluster"):
        profiler.loads_in_a_row("08_cluster")
