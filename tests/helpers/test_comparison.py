"""The comparison: verdicts, files, and what is said of them; nothing is run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.base.gpu import H200
from helpers.catalogue import dispatch, store
from helpers.catalogue.dispatch import best
from helpers.catalogue.registry import split_trial
from helpers.measure import baselines, bench, comparison
from helpers.measure.comparison import (
    DTYPES,
    Added,
    Comparison,
    Unseen,
    around_cases,
    comparison_cases,
    comparison_origin,
    explained_marks,
    load_comparisons,
    why_again,
)
from helpers.measure.problem_groups import entries, name_of
from helpers.measure.records import launch_of, step_hash
from helpers.page.comparison_text import unseen_lines
from helpers.problem.operations import BACKWARD
from helpers.problem.problem import Problem
from tests.earlier import COMPARED_EARLIER
from tests.made_up import DEVICE, FOLDER, OURS, RUN, VERSIONS, comparison_case, refused

EARLY = replace(RUN, protocol={"version": 1})


def of_step(step: str, problem: Problem) -> Comparison:
    """A case of a step as it is now."""
    launch = launch_of(step, problem, H200)
    case = replace(comparison_case(), problem=problem, step=step, launch=launch)
    return replace(case, kernel_hash=step_hash(step))


def test_shares_best_baseline_and_speedup() -> None:
    case = comparison_case(cudnn=12.5, liger=16.0)
    assert case.copy_us == 9.7 and case.share(OURS) == pytest.approx(0.97)
    assert case.copy_gbps == pytest.approx(2 * 4 * 1024 * 4096 / 9.7e-6 / 1e9)
    assert comparison_case(dtype="bfloat16").copy_gbps == case.copy_gbps / 2
    gradient = replace(case, problem=replace(case.problem, operation=BACKWARD))
    assert gradient.copy_gbps == pytest.approx(1.5 * case.copy_gbps), "of what it must move"
    assert case.best_baseline == "cudnn" and case.speedup == pytest.approx(1.25)


def test_marks_say_what_is_older_than_the_kernel(monkeypatch) -> None:
    monkeypatch.setattr(Comparison, "is_current", lambda case: case.rows == 1)
    new, old = comparison_case(1, 8192), comparison_case(2, 8192)
    assert [case.marks for case in (new, old)] == ["", "#"]
    assert explained_marks([new]) == []
    (older,) = explained_marks([new, old])
    assert older.startswith("#: ours was")


@pytest.mark.parametrize(
    ("ours_us", "baseline_us", "verdict"),
    [
        (10.0, 10.2, "ahead"),
        (10.0, 10.05, "level"),  # the baseline is at 0.965 of a copy, and we are a little faster
        (
            10.05,
            10.05,
            "level",
        ),  # the baseline leaves room; whether we beat it the samples do not say
        (10.1, 10.05, "LOSS"),  # it leaves room, and we do not beat it, beyond the spread
        (10.0, 9.995, "level"),  # slower, but not beyond the spread
        (
            10.0,
            9.95,
            "level (slower)",
        ),  # the baseline is at 0.975; within the tolerance, yet slower
        (10.0, 9.85, "LOSS"),
    ],
)
def test_verdict(ours_us: float, baseline_us: float, verdict: str) -> None:
    assert comparison_case(quack=baseline_us, **{OURS: ours_us}).verdict == verdict


def test_losses_at_problems_drawn_at_random_are_said_first() -> None:
    """Planted: a loss that is hidden, a failed baseline taken for one that does not support it."""

    def unseen(rows: int, skipped=(), rule_us=(), **times: float) -> Unseen:
        fields = vars(comparison_case(rows, 4096, **times)) | {"skipped": dict(skipped)}
        rule = "07_warp" if rule_us else ""
        return Unseen(**fields, seed="abc", rule=rule, rule_us=[*rule_us])

    cases = [
        unseen(1024),
        unseen(20_000, quack=9.0, skipped={"cudnn": "RuntimeError: no", "jax": "is not installed"}),
        unseen(30_000, rule_us=[12.0] * 3, skipped={"liger": "wrong result: NaN"}),
        unseen(40_000, quack=9.5, rule_us=[9.8] * 3),
    ]
    lines = unseen_lines(cases)
    assert lines[0].startswith("lost: 20000 x 4096 float32: 0.900 (0.8")
    assert lines[1].startswith("lost: 40000 x 4096 float32: 0.950")
    assert "times as fast as QuACK, with 06_registers; 0.97 and 1.08 of a copy" in lines[0]
    assert lines[2] == (
        "of 4 problems drawn at random (seed abc): ahead 2, level 0, level (slower) 0, LOSS 2, "
        "unsupported 0"
    )
    assert lines[3] == "a baseline failed or was wrong at 2: cuDNN at 1, Liger at 1"
    assert "x of 16 to 250 MB: 1, median 0.970 of a copy, worst 0.970 at 1024 x 4096" in lines[4]
    assert lines[4].endswith("0.95 reached at 1 of 1 with 1000 rows or more")
    assert lines[5].endswith("0.97 reached at 3 of 3 with 1000 rows or more")
    assert "plan at 2: it is over 1% faster at 1, slower at 1; the rule alone would" in lines[6]
    assert lines[6].endswith("over 10% slower at 1")
    assert lines[7] == "it gains most at 30000 x 4096 float32: 1.200"


def noisy(us: float, seed: int, count: int = 7) -> list[float]:
    """Samples of 3% noise."""
    return list(us * (1 + 0.03 * np.random.default_rng(seed).gamma(2, 0.5, count)))


def test_no_verdict_comes_from_noise() -> None:
    """Planted: medians alone would call some of these ahead and some lost."""
    cases = []
    for seed in range(40):
        case = comparison_case()
        case.samples_us.update({OURS: noisy(9.5, seed), "torch": noisy(9.5, seed + 100)})
        cases.append(case)
    medians = [case.speedup for case in cases]
    assert min(medians) < 0.99 and max(medians) > 1.01
    assert sum(case.verdict.startswith("level") for case in cases) >= 39
    faster = comparison_case()
    faster.samples_us.update({OURS: noisy(9.5, 1), "torch": noisy(10.5, 2)})
    assert faster.verdict == "ahead"


# ---- unsupported, copies, launches, draws --------------------------------------------------------


def test_shape_without_a_kernel_of_ours_is_a_unsupported() -> None:
    case = replace(comparison_case(), step="")
    del case.samples_us[OURS]
    assert (case.verdict, case.speedup, case.best_baseline) == ("unsupported", 0.0, "torch")
    assert case.share("torch") == pytest.approx(0.485) and case.to_draw() == ()


def test_baseline_that_cannot_run_unsupported_and_one_that_is_not_installed_does_not() -> None:
    skipped = {"quack": "QuACK needs cols % 4 == 0", "liger": "liger_kernel is not installed"}
    skipped["cudnn"] = "wrong result: at (1, 2): 9 of 10 elements are wrong, by up to 1.2 ulp"
    case = replace(comparison_case(), skipped=skipped)
    assert {*case.unsupported} == {"quack", "cudnn"}


def test_share_over_the_best_copy_known() -> None:
    case = comparison_case()
    assert case.best_copy == bench.COPY and case.share_of_best_copy(OURS) == case.share(OURS)
    copies = {"variants/00_copy_bulk": [11.0], "variants/00_copy_evict_last": [9.5, 9.5]}
    case = replace(case, copies_us=copies)
    assert case.best_copy == "variants/00_copy_evict_last"
    assert case.share_of_best_copy(OURS) == pytest.approx(0.95)
    assert case.share_of_best_copy("torch") == pytest.approx(0.475)
    assert case.share(OURS) == pytest.approx(0.97) and case.best_baseline == "torch"


def test_programmatic_launch_has_a_share_of_its_own_and_no_part_in_the_verdict() -> None:
    case = comparison_case(quack=9.0)
    assert case.programmatic_share is None
    early = replace(case, programmatic_us=[2.0], programmatic_copy_us=[1.5])
    assert early.programmatic_share == 0.75
    assert early.verdict == case.verdict == "LOSS" and early.share(OURS) == case.share(OURS)


def test_best_of_several_processes_counts_beside_what_was_timed_in_its_own() -> None:
    """The machine was half as fast in the second: over its own copy the draw is the best."""
    case = comparison_case(compile=14.0)
    slower = {OURS: [20.0], "compile": [19.0], bench.COPY: [19.4]}
    worse = {OURS: [10.0], "compile": [30.0], bench.COPY: [9.7]}
    case = replace(case, draws=[worse, slower])
    assert case.share("compile") == pytest.approx(19.4 / 19) and case.median_us("compile") == 19.0
    assert case.best_baseline == "compile" and case.speedup == pytest.approx(0.95)
    assert case.verdict == "LOSS"
    assert case.share(OURS) == pytest.approx(0.97), "ours is of the first"


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
    assert replace(case, run=EARLY).to_draw() == ()


def test_copies_beside_the_plain_one_are_those_that_may_be_faster(monkeypatch) -> None:
    monkeypatch.setattr(comparison, "gpu_in_use", lambda: H200)
    short = [f"variants/00_copy_{name}" for name in ("bulk", "evict_last", "persistent")]
    assert comparison.other_copies(Problem(4096, 1024)) == short
    assert comparison.other_copies(Problem(65536, 4096)) == short[1:2], "as recorded"
    assert comparison.other_copies(Problem(65536, 4096, "bfloat16")) == short[1:2]
    assert comparison.other_copies(Problem(1, 50257)) == [], "no whole number of packs"


# ---- the file -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of records."""
    monkeypatch.setattr(store, "RECORDS", tmp_path)
    return tmp_path


FULL = replace(
    comparison_case(),
    problem=Problem(1024, 4096, operation="softmax_backward", features={"LOG": 1}),
    programmatic_us=[2.0],
    programmatic_copy_us=[1.0],
    copies_us={"variants/00_copy_bulk": [10.0]},
    draws=[{OURS: [1.0], "torch": [2.0], bench.COPY: [3.0]}],
    less_precise={"torch": 1.5},
    added=[Added({OURS: [4.0], bench.COPY: [6.0]}, VERSIONS, "2030-02-03", {"cudnn": 1.2})],
)


def test_all_that_was_measured_survives(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no comparison of nvidia-test: run make measure"):
        comparison_cases("float32", FOLDER)
    cases = [
        comparison_case(1, 32000),
        comparison_case(4096, 4096, "bfloat16"),
        comparison_case(8192, 8192),
        FULL,
    ]
    cases[1] = replace(cases[1], run=EARLY)
    store.write(Comparison, FOLDER, cases)
    assert load_comparisons(FOLDER) == cases
    assert comparison_cases("float32", FOLDER) == [cases[2], cases[0]], "softmax by shape"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("19.99", "-1", r"samples_us\.torch\[0\] is -1, not"),
        ('"00_copy":[3.0]', '"00_copy":[0]', r'draws\[0\]\["00_copy"\]\[0\] is 0, not'),
        (',"00_copy":[3.0]', "", "the object is refused: a draw is without 00_copy"),
        (',"00_copy":[6.0]', "", "the object is refused: what was added is without 00_copy or"),
        (f'"{OURS}":[4.0],', "", f"the object is refused: .* without 00_copy or {OURS}"),
        ('"LOG":1', '"BIAS":1', "problem is refused: softmax_backward has no"),
        ("softmax_backward", "sofmax", "problem is refused: operations are .*, not 'sofmax'"),
    ],
)
def test_a_damaged_case_is_named(folder: Path, old: str, new: str, said: str) -> None:
    refused(FULL, old, new, f", line 2: {said}")


# ---- what is current, and what is compared again -------------------------------------------------


@pytest.mark.parametrize(
    ("change", "versions", "why"),
    [
        ({}, {}, ""),
        ({"kernel_hash": "another"}, {}, "ours"),
        ({"launch": {"grid": 1}}, {}, "ours"),
        ({"run": EARLY}, {}, ""),  # what is still valid is not timed again
        ({}, {"torch": "2"}, "baselines"),
        ({"run": replace(RUN, versions={**VERSIONS, "torch": "1"})}, {"torch": "2"}, "baselines"),
        ({"run": replace(RUN, versions={**VERSIONS, "torch": "1"})}, {"torch": "1"}, ""),
        ({"run": replace(RUN, versions={**VERSIONS, "triton": "3"})}, {}, ""),  # not here now
        ({"samples_us": {OURS: [1.0]}}, {}, "baselines"),
        ({"samples_us": {OURS: [1.0]}, "skipped": {"torch": "why"}}, {}, ""),
    ],
)
def test_why_a_case_is_compared_again(change: dict, versions: dict, why: str, monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "best", lambda *_: OURS)
    case = replace(of_step(OURS, Problem(1024, 4096)), **change)
    assert why_again(case, ["torch"], {**VERSIONS, **versions}) == why
    assert why_again(None, ["torch"], VERSIONS) == "new"


def test_case_is_planned_for_the_gpu_of_its_run() -> None:
    case = of_step("09_grid", Problem(1, 1048576))
    smaller = replace(RUN, device={**DEVICE, "multiprocessors": 114})
    assert case.is_current() and not replace(case, run=smaller).is_current()


@pytest.mark.parametrize("dtype", DTYPES)
def test_recorded_comparison_is_complete(dtype: str) -> None:
    if not store.path_of(Comparison).is_file():
        pytest.skip("no comparison is recorded yet")
    versions = store.latest(load_comparisons()).versions
    for case in comparison_cases(dtype):
        names = {*case.samples_us, *case.skipped} - {case.step}
        assert names <= set(baselines.BASELINES), case.shape
        assert not case.unsupported.keys() - baselines.BASELINES.keys()
        if case.is_current() and case.protocol == bench.PROTOCOL["version"]:
            assert why_again(case, [*baselines.BASELINES], versions) == ""


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


def test_versions_that_are_said_are_softmaxs_where_a_baseline_was_away(folder: Path) -> None:
    """Planted: what is compared later without a baseline takes it out of the sentence."""
    torch = {**VERSIONS, "torch": "2"}
    before = replace(RUN, versions={**torch, "flashinfer-python": "3"})
    later = replace(RUN, versions={**torch, "driver": "1.3"}, utc="2030-02-03T04:05:06+00:00")
    cases = [replace(comparison_case(), run=before), replace(FULL, run=later)]
    store.write(Comparison, FOLDER, cases)
    said = "last updated on 2030-02-03 (driver 1.3, torch 2, flashinfer-python 3)"
    assert said in comparison_origin(FOLDER)
