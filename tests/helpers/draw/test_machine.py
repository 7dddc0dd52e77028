"""The picture of the machine: what is lit, what arrows lead where, words that can be read."""

import sys

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from helpers import draw
from helpers.draw.machine import LEVELS, MEMORIES
from helpers.draw.style import LIT
from tests.helpers.draw.looks import Shown, complaints, texts

PARTS = [*LEVELS, *MEMORIES]
CASES = [(), *((part,) for part in PARTS), ("warp", "lane", "registers")]


@pytest.mark.parametrize("lit", CASES)
def test_words_can_be_read_whatever_is_lit(lit: tuple[str, ...], shown: Shown) -> None:
    draw.machine(*lit)
    assert complaints(shown.take()[0]) == []


@pytest.mark.parametrize("lit", [("block", "shared"), ("grid", "DRAM"), ("cluster", "shared")])
def test_lit_parts_have_their_colour_and_one_arrow(lit: tuple[str, ...], shown: Shown) -> None:
    draw.machine(*lit)
    figure, plain, _ = shown.take()
    boxes = figure.findobj(FancyBboxPatch)
    assert sum(to_hex(box.get_facecolor()).upper() == LIT for box in boxes) == 2
    assert len(figure.findobj(FancyArrowPatch)) == 1
    bold = {text.get_text() for text in texts(figure) if text.get_fontweight() == "bold"}
    assert bold == set(lit)
    assert plain == f"<figure: where we are: {', '.join(lit)}>"


def test_the_sentence_says_what_is_lit(shown: Shown) -> None:
    draw.machine("block", "shared")
    assert shown.take()[2] == (
        "Lit: a block, up to 1024 threads on one SM, and the shared memory that the threads of a "
        "block share."
    )
    said = []
    for part in PARTS:
        draw.machine(part)
        said.append(shown.take()[2])
    assert len(set(said)) == len(PARTS)


def test_a_cluster_is_drawn_only_if_it_is_lit(shown: Shown) -> None:
    for lit, there in ((("block",), False), (("cluster",), True)):
        draw.machine(*lit)
        assert ("cluster" in {text.get_text() for text in texts(shown.take()[0])}) is there


def test_sizes_are_those_of_an_h200(shown: Shown) -> None:
    draw.machine()
    written = [text.get_text() for text in texts(shown.take()[0])]
    assert written.count("256 KB") == 2  # registers; shared memory and L1 together
    assert {"× 132", "up to 228 KB", "60 MB", "141 GB"} <= {*written}


def test_an_unknown_part_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(ValueError, match="no part 'thread'; its parts: grid, .*, DRAM$"):
        draw.machine("block", "thread")


def test_complaints_can_be_made(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LEVELS, "grid", ("all blocks " * 12, "a grid"))
    monkeypatch.setattr(sys.modules["helpers.draw.machine"], "NAME", 8)
    monkeypatch.setattr(sys.modules["helpers.draw.machine"], "DARK", "#999999")
    draw.machine("grid")
    found = complaints(shown.take()[0])
    for piece in ("has 8 points", "lies on 'a block stays", "is cut off", "has a contrast of 2.8"):
        assert any(piece in one for one in found), piece
