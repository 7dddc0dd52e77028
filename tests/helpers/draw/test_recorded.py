"""The figures of the records as they are: nothing is cut off, and no word lies on another."""

import pytest

from helpers.catalogue.registry import UNFUSED
from helpers.measure.comparison import comparison_cases
from helpers.measure.records import load_record
from helpers.page import draw
from helpers.problem.shapes import FEW_SHAPES
from tests.helpers.draw.looks import complaints

pytest.importorskip("matplotlib")

PAIRS = [
    ("01_naive", UNFUSED, {}),
    ("06_registers", "05_float4", {"mine": 0.9}),
    ("09_grid", "08_cluster", {"family": "few", "mine": 0.5}),
    ("10_sixteen_bit", "07_warp", {"dtype": "bfloat16"}),
    ("11_any_row", "04_shuffle", {"family": "unaligned"}),
]


@pytest.mark.parametrize("after, before, options", PAIRS)
def test_words_of_a_step_can_be_read(after, before, options, monkeypatch, shown) -> None:
    monkeypatch.setenv("SOFTMAX_REPLAY", "1")  # without what a reader predicted
    draw.step(load_record(after), before and load_record(before), **options)
    figure, _, sentence = shown.take()
    sentences = 1 + ("mine" in options)  # one more compares the predictions
    assert complaints(figure) == [] and sentence.count(". ") <= sentences


def test_words_of_the_series_can_be_read(shown) -> None:
    draw.series()
    assert complaints(shown.take()[0]) == []


@pytest.mark.parametrize(("dtype", "few"), [("float32", True), ("bfloat16", False)])
def test_words_of_the_comparison_can_be_read(dtype: str, few: bool, shown) -> None:
    cases = comparison_cases(dtype)
    wanted = (lambda shape: shape in FEW_SHAPES) if few else (lambda s: s[0] * s[1] == 2**28)
    draw.baselines([case for case in cases if wanted(case.shape)])
    assert complaints(shown.take()[0]) == []


def test_words_of_the_speedups_can_be_read(shown) -> None:
    draw.speedups(comparison_cases("bfloat16"))
    assert complaints(shown.take()[0]) == []
