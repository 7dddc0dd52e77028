"""The picture of the machine: what is lit, what arrows lead where, words that can be read."""

import sys

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from helpers.page import draw
from helpers.page.draw.machine import LEVELS
from helpers.page.draw.style import LIT
from tests.helpers.draw.looks import Shown, complaints, texts


@pytest.mark.parametrize("lit", [("block", "shared"), ("grid", "DRAM"), ("cluster", "shared")])
def test_lit_parts_have_their_colour_and_one_arrow(lit: tuple[str, ...], shown: Shown) -> None:
    draw.machine(*lit)
    figure = shown.take()[0]
    boxes = figure.findobj(FancyBboxPatch)
    assert sum(to_hex(box.get_facecolor()).upper() == LIT for box in boxes) == 2
    assert len(figure.findobj(FancyArrowPatch)) == 1
    bold = {text.get_text() for text in texts(figure) if text.get_fontweight() == "bold"}
    assert bold == set(lit)
    assert complaints(figure) == []


def test_an_unknown_part_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(ValueError, match="no part 'thread'; its parts: grid, .*, DRAM$"):
        draw.machine("block", "thread")


def test_complaints_can_be_made(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LEVELS, "grid", ("all blocks " * 12, "a grid"))
    monkeypatch.setattr(sys.modules["helpers.page.draw.machine"], "NAME", 8)
    monkeypatch.setattr(sys.modules["helpers.page.draw.machine"], "DARK", "#999999")
    draw.machine("grid")
    found = complaints(shown.take()[0])
    for piece in ("has 8 points", "lies on 'a block stays", "is cut off", "has a contrast of 2.8"):
        assert any(piece in one for one in found), piece
