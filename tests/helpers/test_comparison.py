"""The comparison: verdicts, files, and what is said of them; nothing is run."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.base.gpu import H200
from helpers.base.paths import ROOT
from helpers.catalogue import store
from helpers.catalogue.dispatch import best, launch_of, step_hash
from helpers.catalogue.registry import split_trial
from helpers.catalogue.store import REFERENCE_GPU
from helpers.measure import baselines, bench
from helpers.measure.comparison import (
    DTYPES,
    Comparison,
    around_cases,
    compared,
    comparison_cases,
    load_comparisons,
)
from helpers.page import comparison_text
from helpers.problem.problem import Problem
from helpers.problem.shapes import entries, name_of
from tests.earlier import COMPARED_EARLIER
from tests.made_up import OURS, RUN, VERSIONS, comparison_case


def of_step(step: str, problem: Problem) -> Comparison:
    """A case of a step as it is now."""
    launch = launch_of(step, problem, H200)
    case = replace(comparison_case(), problem=problem, step=step, launch=launch)
    return replace(case, kernel_hash=step_hash(step))


@pytest.mark.parametrize(
    ("ours_us", "baseline_us", "verdict"),
    [
        (10.0, 10.2, "ahead"),
        (10.0, 10.05, "level"),  # the baseline is at 0.965 of a copy, and we are a little faster
        (10.05, 10.05, "level"),  # it leaves room; whether we beat it the samples do not say
        (10.1, 10.05, "LOSS"),  # it leaves room, and we do not beat it, beyond the spread
        (10.0, 9.995, "level"),  # slower, but not beyond the spread
        (10.0, 9.95, "level (slower)"),  # it is at 0.975; within the tolerance, yet slower
        (10.0, 9.85, "LOSS"),
    ],
)
def test_verdict(ours_us: float, baseline_us: float, verdict: str) -> None:
    assert comparison_case(quack=baseline_us, **{OURS: ours_us}).verdict == verdict


# ---- unsupported, copies, launches, draws --------------------------------------------------------


def test_shape_without_a_kernel_of_ours_is_a_unsupported() -> None:
    case = replace(comparison_case(), step="")
    del case.samples_us[OURS]
    assert (case.verdict, case.speedup, case.best_baseline) == ("unsupported", 0.0, "torch")
    assert case.share("torch") == pytest.approx(0.485) and case.to_draw() == ()


def test_share_over_the_best_copy_known() -> None:
    case = comparison_case()
    assert case.best_copy == 1
    copies = {"variants/00_copy_bulk": [11.0], "variants/00_copy_evict_last": [9.5, 9.5]}
    case = replace(case, copies_us=copies)
    assert case.best_copy == pytest.approx(9.7 / 9.5)
    assert case.share(OURS) == pytest.approx(0.97) and case.best_baseline == "torch"


@pytest.mark.parametrize(
    ("first", "then", "wanted"),
    [
        (10.5, (), True),  # near
        (15.0, (), True),  # the first draw may be a bad one
        (21.0, (), False),  # without hope
        (15.0, (16.0,), False),  # two bad ones
        (15.0, (10.5,), True),
        (10.5, (10.5, 10.5), False),  # three are enough
    ],
)
def test_who_is_near_is_timed_in_three_processes(first, then, wanted: bool) -> None:
    draws = [{OURS: [10.0], "compile": [us], bench.COPY: [9.7]} for us in then]
    case = replace(comparison_case(compile=first, liger=10.1), draws=draws)
    assert case.to_draw() == (("compile",) if wanted else ())


# ---- what is current ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_recorded_comparison_is_complete(dtype: str) -> None:
    if not store.path_of(Comparison).is_file():
        pytest.skip("no comparison is recorded yet")
    versions = store.latest(load_comparisons()).versions
    for case in comparison_cases(dtype):
        names = {*case.samples_us, *case.skipped} - {case.step}
        assert names <= set(baselines.BASELINES), case.shape
        assert not case.unsupported.keys() - baselines.BASELINES.keys()
        if case.is_current() and case.run.protocol["version"] == bench.PROTOCOL["version"]:
            assert {*baselines.BASELINES} <= case.names
            assert compared(versions).items() <= case.run.versions.items()


def test_recorded_comparison_is_of_the_kernels_as_they_are_now() -> None:
    for case in around_cases(load_comparisons()):
        names = {*case.samples_us, *case.skipped} - {case.step}
        assert names <= {*baselines.BASELINES, baselines.TWO_KERNELS}, name_of(case.problem)
    edited = {split_trial(one.step).file for one in load_comparisons() if not one.is_current()}
    assert edited == COMPARED_EARLIER, "run make measure ARGS=comparison, or correct earlier.py"


def test_case_around_softmax_is_current_by_its_own_choice_and_launch() -> None:
    """Of its operation, features and inner; planted: those of softmax."""
    for problem in entries():
        case = of_step(best(problem, H200), problem)
        assert case.is_current() and not case.marks
        assert not replace(case, launch={**case.launch, "grid": 1}).is_current()
        softmax = Problem(*problem.shape, problem.dtype)
        assert not replace(case, problem=softmax).is_current()


# ---- what the README says of it ------------------------------------------------------------------


def rows_of(block: str) -> dict[str, list[str]]:
    """First cell -> the others, for each line of the Markdown tables; of equal ones the last."""
    lines = [line.strip("| ").split(" | ") for line in block.splitlines() if line[:1] == "|"]
    return {first: cells for first, *cells in lines}


def test_no_unsupported_vanishes(tmp_path: Path, monkeypatch) -> None:
    """Ours: compared without a kernel. A baseline's: refused or wrong. One that is not installed is
    not in the comparison."""
    monkeypatch.setattr(store, "folder_of", lambda gpu: tmp_path / gpu)
    skipped = {
        "quack": "QuACK needs cols % 4 == 0",
        "liger": "liger_kernel is not installed",
        "cudnn": "wrong result: at (1, 2): 9 of 10 elements are wrong, by up to 1.2 ulp",
    }
    ours = replace(comparison_case(65536, 77), step="", skipped=skipped)
    del ours.samples_us[OURS]
    skipped = {"triton": "wrong result: left NaN in its output at (8, 16)"}
    older = replace(RUN, versions={**VERSIONS, "driver": "1.1"}, utc="2029-01-02T03:04:05+00:00")
    other = replace(comparison_case(1, 32000), skipped=skipped, run=older)
    store.write(Comparison, REFERENCE_GPU, [ours, other])
    monkeypatch.setattr(comparison_text, "pipeline_cases", lambda dtype: [])
    pictures = {dtype: ROOT / f"{dtype}.png" for dtype in DTYPES}
    block = comparison_text.comparison_block(pictures)
    assert "; 1 of 2 cases with other versions." in block
    rows = rows_of(block)
    assert rows["rows that start anywhere, float32"][4] == "1", "not supported by us"
    assert rows["QuACK"] == ["0", "0", "0", "1: QuACK needs cols % 4 == 0"]
    assert rows["cuDNN"] == ["0", "0", "0", "1: wrong result"]
    assert rows["Triton tutorial"][3] == "1: wrong result: left NaN in its output"
    assert "Liger" not in rows
    assert rows_of(comparison_text.every_case())["65536 x 77"][-1] == "not supported by us"


def test_losses_are_said_by_name() -> None:
    lost = comparison_case(32768, 4096, "bfloat16", quack=9.5)
    said = "2 cases: 1 ahead, 1 lost, the worst by 5.0%."
    assert comparison_text.verdicts([lost, comparison_case()]).startswith(said)
    (line,) = comparison_text.unseen_lines([])
    assert line.startswith("No problem of a draw is recorded: run make measure")
    (line,) = comparison_text.loss_lines([comparison_case(), lost])
    assert line.startswith("Lost: 32768 x 4096 bfloat16: 0.950 (") and "fast as QuACK" in line
