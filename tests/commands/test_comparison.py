"""The comparison's bookkeeping with candidates and times made up: no GPU, no baseline."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.catalogue import dispatch, store
from helpers.catalogue.dispatch import launch_of
from helpers.commands import measure as command
from helpers.commands.measure import StepsTask
from helpers.measure import baselines, bench, campaign, comparison, side_by_side
from helpers.measure.campaign import Failure
from helpers.measure.comparison import (
    Comparison,
    Unseen,
    comparison_cases,
    comparison_origin,
    load_comparisons,
)
from helpers.measure.profiler import UNFUSED_LAUNCH
from helpers.measure.profiling import FILES, ProfilerTask
from helpers.measure.records import Timed
from helpers.measure.side_by_side import ComparisonTask, PipelineTask
from helpers.problem.problem import Problem
from helpers.problem.shapes import drawn, entries
from tests.made_up import FOLDER, OURS, RUN, VERSIONS, beside_libraries, comparison_case

COPIED = "variants/00_copy_bulk"
OTHER = replace(RUN, versions={**VERSIONS, "driver": "another"})
# torch.compile is so far behind that it is not timed in other processes.
TIMES = {OURS: 10.0, "torch": 40.0, "compile": 24.0, "triton": 12.5, bench.COPY: 9.5}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """A computer with a GPU on which every baseline but QuACK is installed; returns what it
    measured: (dtype, rows, cols, names)."""
    measured = []

    def measure(makers, problem):
        for name, make in makers.items():
            with bench.blaming(name):
                make(problem).run(None, None)
        measured.append((problem.dtype, *problem.shape, list(makers)))
        copy, step = [TIMES[bench.COPY]] * 7, dispatch.best(problem)
        launch = launch_of(step, Problem(*problem.shape)) if step else {}
        return {
            name: Timed(launch, [TIMES.get(name, 30.0)] * 7, copy, 50)
            for name in (bench.COPY, *makers)
        }

    def deal(work, tasks, jobs=1, apart=False):
        """Everything in this process; what was to be done apart is noted."""
        while tasks:
            task = tasks.popleft()
            if apart:
                measured.append("apart")
            yield task, campaign.attempt(work, task)[0]

    def current_on_softmax(step: str, known: str, launch: dict, at: Problem, gpu) -> bool:
        return dispatch.is_current(step, known, launch, Problem(*at.shape), gpu)

    beside_libraries(
        *(tmp_path, monkeypatch),
        (dispatch, "best", lambda problem, *_: OURS),
        (comparison, "is_current", current_on_softmax),
        (side_by_side, "other_copies", lambda *_: [COPIED]),
        (campaign, "deal", deal),
        (bench, "measure", measure),
    )
    return measured


def run(*options: str) -> int:
    return command.main(["comparison", "--shapes", "1024x4096", "64x2048", *options])


def recorded() -> dict[tuple[str, int, int], Comparison]:
    return {(c.dtype, c.rows, c.cols): c for c in load_comparisons(FOLDER)}


def test_comparison_is_written_with_reasons(machine, capsys) -> None:
    assert run("--only", "float32") == 0
    case = recorded()["float32", 1024, 4096]
    assert case.skipped == {"quack": "not here"}
    assert set(case.samples_us) == {OURS, *baselines.BASELINES} - {"quack"}
    assert set(case.calls) == set(case.samples_us)
    assert case.copy_samples_us == [9.5] * 7 and case.best_baseline == "triton"
    assert comparison_cases("bfloat16", FOLDER) == []
    origin = comparison_origin(FOLDER)
    assert origin.startswith("recorded on NVIDIA Test, last updated on 20")
    assert "torch 2.11.0)" in origin
    printed = capsys.readouterr().out
    assert "[2/2" in printed and "quack: not here" in printed and "triton 0.760" in printed
    assert "ahead of triton: 1.250 (1.250 to 1.250)" in printed
    assert case.copies_us == {COPIED: [30.0] * 7} and case.draws == []
    assert case.run.versions == {**VERSIONS, "torch": "2.11.0"}


@pytest.mark.parametrize("message", ["left NaN in its output at (64, 2048)", "at (64, 2048): zero"])
def test_a_wrong_baseline_is_left_out_and_a_wrong_kernel_is_reported(
    machine, monkeypatch, capsys, message
) -> None:
    measure, wrong = bench.measure, "liger"

    def checked(makers, problem):
        if wrong in makers and problem.rows == 64:
            raise Failure(f"wrong result: {message}", wrong)
        return measure(makers, problem)

    monkeypatch.setattr(bench, "measure", checked)
    assert run("--only", "float32") == 0
    case = recorded()["float32", 64, 2048]
    assert case.skipped["liger"] == f"wrong result: {message}"
    assert "liger" not in case.samples_us and "torch" in case.samples_us
    wrong = OURS
    assert run("--only", "float32", "--fresh") == 1
    assert recorded()["float32", 64, 2048] == case, "a failure replaces nothing"
    printed = capsys.readouterr().err.splitlines()
    assert printed[-1] == f"not recorded: {OURS} at 64 x 2048 float32: wrong result: {message}"


@pytest.mark.parametrize("culprit", [OURS, bench.COPY, ""])
def test_a_failure_of_our_kernel_or_the_copy_is_no_reason_to_skip_a_baseline(
    machine, monkeypatch, culprit
) -> None:
    def failing(makers, problem):
        if culprit == OURS:
            makers["torch"](problem)
            makers[OURS](problem).run(None, None)
        raise Failure("wrong result: at (1, 2)" if culprit else "MemoryError: buffers", culprit)

    monkeypatch.setattr(bench, "measure", failing)
    with pytest.raises(Failure) as caught:
        ComparisonTask(Problem(64, 2048), RUN, ("torch",)).measure()
    assert caught.value.culprit == culprit
    assert run("--only", "float32") == 1
    assert not store.path_of(Comparison, FOLDER).exists()


def test_what_is_tuned_anew_is_timed_in_two_more_processes(machine, monkeypatch) -> None:
    monkeypatch.setitem(TIMES, "compile", 10.5)
    folders = []
    draw = side_by_side.Draw.measure

    def noted(task):
        folders.append(side_by_side.os.environ["TORCHINDUCTOR_CACHE_DIR"])
        return draw(task)

    monkeypatch.setattr(side_by_side.Draw, "measure", noted)
    run("--only", "float32")
    assert [one if one == "apart" else one[3] for one in machine[2:]] == [
        "apart",
        [OURS, "compile"],
    ] * 4
    assert [Path(folder).name for folder in folders] == ["inductor-2"] * 2 + ["inductor-3"] * 2
    assert side_by_side.os.environ["TORCHINDUCTOR_CACHE_DIR"].endswith("inductor")
    for case in recorded().values():
        assert case.draws == [{OURS: [10.0] * 7, "compile": [10.5] * 7, bench.COPY: [9.5] * 7}] * 2
    count = len(machine)
    run("--only", "float32")
    assert len(machine) == count, "they are kept"


def test_problems_drawn_at_random_are_compared_with_the_rule_too(
    machine, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(dispatch, "best", lambda problem, *_: f"{OURS}-THREADS64")
    monkeypatch.setattr(side_by_side, "step_hash", lambda step: "hash")
    monkeypatch.setattr(comparison, "is_current", lambda *_: True)
    monkeypatch.setattr(dispatch, "candidates", lambda *_: [OURS])
    monkeypatch.setitem(TIMES, "compile", 90.0)
    drawing = ["comparison", "--drawn", "3", "--seed", "06bc5b0"]
    assert command.main(drawing) == 0
    problems = drawn(3, "06bc5b0")
    assert [one[:3] for one in machine] == [(p.dtype, *p.shape) for p in problems]
    assert all(one[3][:2] == [f"{OURS}-THREADS64", OURS] for one in machine)
    cases = store.read(Unseen, FOLDER)
    assert [case.problem for case in cases] == problems and not store.path_of(
        Comparison, FOLDER
    ).exists()
    assert {(case.seed, case.rule) for case in cases} == {("06bc5b0", OURS)}
    assert cases[0].gain.value == pytest.approx(10 / 30) and cases[0].verdict == "LOSS"
    assert cases[0].best_baseline == "triton"
    printed = capsys.readouterr().out
    assert "Lost: " in printed and "Drawn with the seed 06bc5b0: 3 cases: " in printed
    assert command.main(drawing) == 0 and len(machine) == 3, "it is resumed"
    store.write(Unseen, FOLDER, [replace(cases[0], run=OTHER), *cases[2:]])
    assert command.main(drawing) == 0
    assert [one[:3] for one in machine[3:]] == [(p.dtype, *p.shape) for p in problems[:2]], (
        "in order"
    )
    with pytest.raises(SystemExit):
        command.main(["comparison", "--drawn", "3", "--seed", "tuesday"])
    assert command.main([*drawing[:2], "1", "--seed", "06bc5b1", "--only", "^any axis"]) == 0
    assert {*problems} < {one.problem for one in store.read(Unseen, FOLDER)}, "another operation"
    assert command.main([*drawing[:2], "1", "--seed", "06bc5b1"]) == 0
    assert not {*problems} & {one.problem for one in store.read(Unseen, FOLDER)}
    around = drawn(9, "06bc5b0", AXIS)
    assert all(p.inner > 1 and p.rows % p.inner == 0 and not p.plain for p in around)


GRADIENT, AXIS = "gradient of softmax", "any axis"


def test_groups_comparison_what_is_around_softmax(machine, capsys, monkeypatch) -> None:
    """At the shapes of their comparisons, in their order, beside their own yardstick; kept, and not
    timed again, and softmax's cases stay."""
    run("--only", "float32")
    measured, asked = bench.measure, []

    def measure(makers, problem):
        asked.append(problem)
        cases = measured(makers, problem)
        return {**cases, problem.operation.bandwidth_baseline: cases[bench.COPY]}

    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(baselines, "why_not", baselines.refusal)
    assert command.main(["comparison", "--only", f"^({GRADIENT}|{AXIS}), .* bfloat16"]) == 0
    wanted = [one for one in entries([GRADIENT, AXIS]) if one.dtype == "bfloat16"]
    assert asked == wanted
    loaded = load_comparisons(FOLDER)
    around = [case.problem for case in loaded if not case.problem.plain]
    assert around == wanted == [case.problem for case in comparison.around_cases(loaded)]
    assert sum(case.problem.plain for case in loaded) == 2
    assert "gradient of softmax, 32768 x 4096 bfloat16: 06_registers" in capsys.readouterr().out
    count = len(machine)
    assert command.main(["comparison", "--only", f"^({GRADIENT}|{AXIS}), .* bfloat16"]) == 0
    assert len(machine) == count
    assert command.main(["comparison", "--only", "no such thing"]) == 1
    (case,) = (case for case in loaded if case.problem.inner == 7)
    assert case.rows % 7 == 0 and case.step == OURS


def test_tasks_can_be_handed_to_another_process() -> None:
    problem = Problem(1024, 4096, operation="softmax_backward", features={"LOG": 1})
    case = replace(comparison_case(), problem=problem)
    for task in (
        ComparisonTask(problem, RUN, ("torch",), failed={"liger": "why"}),
        side_by_side.Draw(case, ("compile",)),
        PipelineTask(problem, RUN, ("torch",)),
        StepsTask(problem, ("07_warp",), RUN),
        *(ProfilerTask("counters", RUN, (UNFUSED_LAUNCH,), file.look) for file in FILES),
    ):
        assert pickle.loads(pickle.dumps((campaign.measure, task))) == (campaign.measure, task)
