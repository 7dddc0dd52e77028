"""All predictions in one figure. Committed outputs have ours alone."""

import importlib

import pytest

from helpers.base import gpu
from helpers.measure.records import has_record, predictions
from helpers.page import draw
from helpers.page.replay import asked, keep
from tests.helpers.draw.looks import complaints

pytest.importorskip("matplotlib")


def marks(figure) -> list[tuple[float, float]]:
    """(share, row) of the hollow marks."""
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "none"]
    return [(x, y) for line in hollow for x, y in line.get_xydata().tolist()]


def test_the_readers_are_drawn_beside_ours_except_in_a_forced_replay(
    tmp_path, monkeypatch, shown
) -> None:
    monkeypatch.setattr(importlib.import_module("helpers.page.replay"), "MINE", tmp_path)
    monkeypatch.delenv(gpu.SWITCH, raising=False)
    keep("01_naive", 0.06)
    keep("07_warp", 0.5)
    draw.ledger()
    figure, _, sentence = shown.take()
    steps = [step for step in asked() if has_record(step)]
    ours = {(predictions()[step]["share"], row) for row, step in enumerate(steps)}
    mine = {(0.06, steps.index("01_naive")), (0.5, steps.index("07_warp"))}
    assert {*marks(figure)} == ours | mine
    said = " ".join(sentence.split())
    assert said.endswith("Of your 2, 1 came within 10 percent.")
    assert complaints(figure) == []
    monkeypatch.setenv(gpu.SWITCH, "1")
    draw.ledger()
    assert {*marks(shown.take()[0])} == ours
    with pytest.raises(ValueError):
        draw.ledger("16_no_step")
