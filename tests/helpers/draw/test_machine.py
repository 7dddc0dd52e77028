"""The strip of the machine: what is lit, which numbers it has, words that can be read."""

import sys

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyBboxPatch

from helpers.page import draw, profile
from helpers.page.draw.machine import LEVELS
from helpers.page.draw.style import LIT
from helpers.problem.shapes import REFERENCE_SHAPE
from tests.helpers.draw.looks import Shown, complaints, texts


@pytest.mark.parametrize(
    ("lit", "bold"),
    [(("block", "SM"), {"block", "shared, L1"}), (("grid", "DRAM", "L2"), {"grid", "DRAM", "L2"})],
)
def test_lit_parts_have_their_colour(lit: tuple[str, ...], bold: set[str], shown: Shown) -> None:
    draw.machine(*lit)
    figure = shown.take()[0]
    boxes = figure.findobj(FancyBboxPatch)
    assert sum(to_hex(box.get_facecolor()).upper() == LIT for box in boxes) == len(bold)
    assert {text.get_text() for text in texts(figure) if text.get_fontweight() == "bold"} == bold
    assert complaints(figure) == []


def test_every_memory_has_its_size_bandwidth_and_latency(shown: Shown) -> None:
    draw.machine()
    said = [text.get_text() for text in texts(shown.take()[0])]
    latency = profile.of(profile.FAR_COPY, *REFERENCE_SHAPE).latency_ns()
    assert {"141 GB", f"4.8 TB/s, {latency:.0f} ns", "60 MB", "33 TB/s, ~15 ns"} <= {*said}


def test_an_unknown_part_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(ValueError, match="no part 'thread'; its parts: grid, .*, registers$"):
        draw.machine("block", "thread")


def test_complaints_can_be_made(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LEVELS, "grid", ("all blocks " * 12, "a grid"))
    monkeypatch.setattr(sys.modules["helpers.page.draw.machine"], "NAME", 8)
    monkeypatch.setattr(sys.modules["helpers.page.draw.machine"], "DARK", "#999999")
    draw.machine("grid")
    found = complaints(shown.take()[0])
    for piece in ("has 8 points", "lies on 'cluster", "is cut off", "has a contrast of 2."):
        assert any(piece in one for one in found), piece
