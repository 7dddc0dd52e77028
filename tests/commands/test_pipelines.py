"""The bookkeeping of pipelines with candidates and times made up: no GPU, no baseline."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.base import gpu
from helpers.catalogue import dispatch, store
from helpers.catalogue.registry import with_hints
from helpers.commands import measure as command
from helpers.measure import bench, pipelines
from helpers.measure.campaign import Failure
from helpers.measure.comparison import Comparison
from helpers.measure.pipelines import COPY, ORDINARY, Pipeline, Series, load_pipelines, variants
from helpers.problem.problem import Problem
from helpers.problem.shapes import linked
from tests.made_up import FOLDER, beside_libraries, comparison_case

FEW, LARGE = ["--shapes", "1x32000"], ["--shapes", "65536x4096"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """A computer with a GPU on which every baseline but QuACK is installed; returns what it timed:
    (rows, cols, dtype, names)."""
    timed = []

    def measure(makers, problem):
        names = [COPY, *makers]
        for name, make in makers.items():
            with bench.blaming(name):
                make(problem).run(None, None)
            if "PROGRAMMATIC1" in name:
                names.append(name + ORDINARY)
        timed.append((problem, list(makers)))
        return {
            state: Series(
                50,
                {name: [14.0 + 0.01 * n for n in range(21)] for name in names},
                {name: [3.0] * 21 for name in names},
            )
            for state in pipelines.states_of(problem, gpu.H200.l2)
        }

    beside_libraries(tmp_path, monkeypatch, (pipelines, "measure", measure))
    return timed


def run(*options: str) -> int:
    return command.main(
        ["pipelines", "--only", "float32", "--baselines", "torch", "quack", *FEW, *options]
    )


def recorded() -> list[Pipeline]:
    return load_pipelines(FOLDER)


def test_pipelines_are_written_with_variants_launches_and_reasons(
    machine, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(dispatch, "best", lambda *_: "09_grid")
    assert run() == 0
    fresh, evicted = recorded()
    assert (fresh.state, evicted.state) == ("fresh", "evicted")
    ours = variants("09_grid", Problem(1, 32000))
    early = [name for name in ours if "PROGRAMMATIC1" in name]
    names = {*ours, *(name + ORDINARY for name in early)}
    assert {*fresh.launches} == names and len(early) == 2
    assert {*fresh.pipeline_us} == {COPY, "torch", *fresh.launches}
    assert fresh.skipped == {"quack": "not here"} and fresh.calls == 50
    assert fresh.chosen == ours[0] and fresh.plain == with_hints("09_grid")
    assert fresh.launches[early[0]] == fresh.launches[early[0] + ORDINARY]
    printed = capsys.readouterr().out
    assert "[1/1, " in printed and "1 x 32000 float32, evicted: us 00_copy 11.10" in printed
    assert "quack: not here" in printed
    assert command.main(["pipelines", *LARGE, "--only", "bfloat16", "--baselines"]) == 0
    assert [case.state for case in recorded() if case.rows > 1] == ["fresh"]
    large = Problem(65536, 4096, "bfloat16")
    assert machine[-1] == (large, variants("09_grid", large))


def test_a_failing_baseline_is_left_out_and_a_failing_kernel_is_reported(
    machine, monkeypatch, capsys
) -> None:
    measure, wrong = pipelines.measure, "torch"

    def failing(makers, problem):
        if wrong in makers and problem.rows == 1:
            raise Failure("wrong result: at (1, 2)", wrong)
        return measure(makers, problem)

    monkeypatch.setattr(pipelines, "measure", failing)
    assert run() == 0
    assert recorded()[0].skipped == {"quack": "not here", "torch": "wrong result: at (1, 2)"}
    wrong = variants("08_cluster", Problem(1, 32000))[1]
    capsys.readouterr()
    before = recorded()[0]
    assert run("--fresh", *("--shapes", "1x32000", "128x65536")) == 1
    assert {case.rows for case in recorded()} == {1, 128}
    assert recorded()[0] == before, "a failure replaces nothing"
    printed = capsys.readouterr().err.splitlines()
    assert printed[-1] == f"not recorded: {wrong} at 1 x 32000 float32: wrong result: at (1, 2)"


def test_what_is_around_softmax_is_timed_beside_the_best_two_baselines(machine) -> None:
    """Of the comparison, at the same operation and dtype."""
    times = {"torch": 30.0, "compile": 12.0, "liger": 11.0, "quack": 14.0}
    problem = Problem(1024, 4096, operation="softmax_backward")
    compared = replace(comparison_case(**times), problem=problem)
    faster = replace(comparison_case(quack=1.0), problem=replace(problem, rows=64))
    assert pipelines.best_baselines([compared, faster], problem) == ["quack", "liger"], (
        "by the median"
    )
    assert pipelines.best_baselines([compared], replace(problem, dtype="bfloat16")) == []
    store.write(Comparison, FOLDER, [compared])
    assert command.main(["pipelines", "--only", "^gradient of softmax"]) == 0
    wanted = linked(["gradient of softmax"])
    assert [problem for problem, _ in machine] == wanted
    timed = {problem.dtype: {*names} for problem, names in machine}
    assert timed["float32"] >= {"compile", "liger"} and "torch" not in timed["float32"]
    assert timed["bfloat16"] >= {"torch", "compile", "liger", "cudnn"}, "not compared: all of them"
    found = recorded()
    assert {case.problem for case in found} == {*wanted}
    assert all(case.chosen.startswith("14_backward") and case.plain for case in found)
    count = len(machine)
    assert command.main(["pipelines", "--only", "^gradient of softmax"]) == 0
    assert len(machine) == count, "nothing was left to time"


def test_what_is_recorded_is_not_timed_again_unless_a_state_or_a_variant_is_missing(
    machine,
) -> None:
    run()
    assert run() == 0 and len(machine) == 1
    fresh, evicted = recorded()
    store.write(Pipeline, FOLDER, [fresh])
    assert run() == 0 and len(machine) == 2 and len(recorded()) == 2
    name = next(name for name in fresh.launches if name != fresh.chosen)
    others = {key: us for key, us in fresh.pipeline_us.items() if key != name}
    launches = {key: launch for key, launch in fresh.launches.items() if key != name}
    series = {"pipeline_us": others, "base_us": {key: fresh.base_us[key] for key in others}}
    store.write(Pipeline, FOLDER, [replace(fresh, launches=launches, **series), evicted])
    assert run() == 0 and len(machine) == 3 and recorded()[0].launches == fresh.launches
