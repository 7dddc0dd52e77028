"""Pipelines as they are recorded: names of variants, verdicts, files; nothing is run."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.catalogue import registry, store
from helpers.catalogue.dispatch import step_hash
from helpers.measure import baselines
from helpers.measure.comparison import DTYPES
from helpers.measure.pipelines import (
    VERDICTS,
    Pipeline,
    load_pipelines,
    order,
    pipeline_cases,
)
from helpers.problem.problem import Problem
from helpers.problem.shapes import PIPELINE_SHAPES, name_of
from tests import made_up
from tests.earlier import LINKED_EARLIER, TUNED_SINCE
from tests.made_up import FOLDER, pipeline_case

# Where a variant is faster than what is chosen. deeper/08_next_kernel prints those of 08 and 10.
EARLY_CODE = "code for an early start, launched ordinarily, is faster by 0.2 us; why is open"
EXCEPTIONS = {
    "1 x 1048576 float32, evicted": EARLY_CODE,
    "1 x 1048576 bfloat16, fresh": EARLY_CODE,
}
EXCEPTIONS_AROUND = {
    "any axis, 512 x 512 x 64 float32, fresh": "the hint gains five times as much with x evicted",
    "scale and mask, 4096 x 4096 bfloat16, fresh": "the same, four times as much",
}
LARGE, FEW = (65536, 4096), (1, 32000)  # streams, with a hint; streams


# ---- variants ---------------------------------------------------------------------------------


def around(cases: list[Pipeline]) -> list[Pipeline]:
    return [case for case in cases if not case.problem.plain]


def asked(*what: str) -> str:
    return registry.with_hints("08_cluster", dict.fromkeys(what, 1))


# ---- verdicts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("us", "noise_us", "verdict"),
    [
        ([10.0, 10.5, 10.2, 10.3], 0.02, "best"),
        ([10.0, 10.0, 10.0, 10.05], 0.02, "best"),  # a tie
        ([10.0, 9.95, 10.2, 10.2], 0.01, "best"),  # faster, by less than a percent
        ([10.0, 9.7, 10.2, 10.3], 0.02, "BEHIND"),
        ([10.0, 10.2, 10.2, 9.8], 0.02, "BEHIND"),
        ([10.0, 9.7, 10.2, 10.3], 3.0, "unclear"),  # a verdict from noise
        ([10.0, 10.0, 10.0, 10.0], 0.5, "unclear"),
        ([-1.0, -2.0, -1.0, -1.0], 0.02, "unclear"),  # a share of less than nothing
        ([0.0, -2.0, 0.0, 0.0], 0.02, "unclear"),
    ],
)
def test_verdict(us: list[float], noise_us: float, verdict: str) -> None:
    assert pipeline_case(us, noise_us=noise_us).verdict == verdict
    assert verdict in VERDICTS


def test_what_is_chosen_by_other_rules_is_found_among_the_variants(
    tmp_path: Path, monkeypatch
) -> None:
    """A case stays good when the table's rules change: it has what they give now."""
    case = pipeline_case([10.0, 10.0, 9.0, 10.0])
    assert case.verdict == "BEHIND"
    kernels = made_up.Kernels(tmp_path, monkeypatch)
    kernels.edit("08_cluster.cu", ("3 * rows * row > 2 * l2", "3 * rows * row > 200 * l2"))
    assert case.chosen == asked("EVICT_LAST") and case.verdict == "best"
    kernels.edit("08_cluster.cu", ("PACKS      = ", "PACKS      = 1 + "))
    assert case.chosen is None


# ---- the file ---------------------------------------------------------------------------------


def test_cases_are_found_by_dtype_and_operation(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(store, "RECORDS", tmp_path)
    evicted = pipeline_case([3.0], *FEW, state="evicted")
    around = pipeline_case([10.0])
    around = replace(around, problem=Problem(4096, 4096, operation="softmax_backward"))
    found = [around, pipeline_case([10.0]), evicted, pipeline_case([2.0], *FEW)]
    store.write(Pipeline, FOLDER, sorted(found, key=lambda case: order().index(case.key)))
    assert load_pipelines(FOLDER)[:2] == found[:1:-1]
    places = [(case.shape, case.state) for case in pipeline_cases("float32", FOLDER)]
    assert places == [(FEW, "fresh"), (FEW, "evicted"), (LARGE, "fresh")]


# ---- what is recorded -------------------------------------------------------------------------

recorded = pytest.mark.skipif(not store.path_of(Pipeline).is_file(), reason="not recorded yet")


@recorded
@pytest.mark.parametrize("dtype", DTYPES)
def test_recorded_choice_is_within_a_percent_of_its_best_variant(dtype: str) -> None:
    cases = pipeline_cases(dtype)
    assert {case.shape for case in cases} == {*PIPELINE_SHAPES}
    for case in cases:
        current = (*case.shape, dtype) not in TUNED_SINCE
        assert bool(case.chosen) == current, f"{case.shape} {case.state}: measure"
        assert set(baselines.BASELINES) >= {*case.skipped}
        assert case.hashes == {file: step_hash(file) for file in case.hashes}
    behind = {
        f"{name_of(case.problem)}, {case.state}"
        for case in cases
        if case.verdict == "BEHIND" and case.chosen[:2] not in ("08", "10")
    }
    assert behind == {place for place in EXCEPTIONS if dtype in place.replace(",", "").split()}


@recorded
def test_recorded_pipelines_around_softmax_are_of_the_kernels_as_they_are_now() -> None:
    for case in around(load_pipelines()):
        current = not any(step.startswith(tuple(LINKED_EARLIER)) for step in case.launches)
        assert bool(case.chosen) == case.is_current() == current, (
            f"{name_of(case.problem)} {case.state}: its kernel was edited: measure"
        )
        assert {*case.skipped} <= {*baselines.BASELINES}


@recorded
def test_recorded_choice_around_softmax_is_within_a_percent_of_its_best_variant() -> None:
    cases = around(load_pipelines())
    of = {f"{name_of(case.problem)}, {case.state}": case for case in cases if case.is_current()}
    found = {name for name, case in of.items() if case.verdict == "BEHIND"}
    assert found == {*EXCEPTIONS_AROUND} & {*of}, "more, or an exception that is none"


@pytest.mark.parametrize(
    ("baseline_us", "word"),
    [(11.0, "ahead"), (10.05, "level"), (9.95, "level (slower)"), (9.5, "LOSS"), (None, "")],
)
def test_what_is_chosen_stands_beside_the_best_baseline(
    baseline_us: float | None, word: str
) -> None:
    case = pipeline_case([10.0], **({"liger": baseline_us, "torch": 20.0} if baseline_us else {}))
    assert case.against_best_baseline == word
    assert replace(case, hashes={}).against_best_baseline == ""
