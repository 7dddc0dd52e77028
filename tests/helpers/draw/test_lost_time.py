"""The first picture: times to scale beside a copy's, sectors of a load, and a title from both."""

import importlib

import pytest

from helpers.catalogue.registry import TORCH
from helpers.page import draw
from helpers.page.draw import style
from tests.helpers.draw.looks import complaints
from tests.made_up import steady

pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex  # noqa: E402

picture = importlib.import_module("helpers.page.draw.lost_time")


def widths(figure, color: str) -> list[float]:
    """Of rectangles of a colour, without the key."""
    found = [one for one in figure.axes[0].patches if to_hex(one.get_facecolor()) == color.lower()]
    return [one.get_width() for one in found if one.get_height() != one.get_width()]


def test_a_bar_is_dark_up_to_a_copy_and_sectors_are_as_many_as_fetched(monkeypatch, shown) -> None:
    times = {"01_x": 80e3, "03_x": 20e3, TORCH: 40e3}
    cases = [steady(step, us=us).case(65536, 4096) for step, us in times.items()]
    for case in cases:
        case.copy_samples_us[:] = [10e3] * 3
    loads = (32, 0.125), (4, 1.0), (0, 0)
    bars = [picture.Bar(case, "x", "why", *load) for case, load in zip(cases, loads, strict=True)]
    monkeypatch.setattr(picture, "lost_time_bars", lambda: bars)
    draw.lost_time()
    figure, plain, sentence = shown.take()
    assert plain == "<figure: The same softmax, 4 times as fast>", "a copy takes half of the best"
    assert sentence == (
        "Softmax of 65536 x 4096 takes 80.00 ms in step 01, 20.00 in step 03, 40.00 in x; a copy "
        "10.00. A load of 32 lanes: 32 sectors in step 01, 12.5% of them used; 4 sectors in step "
        "03, 100% of them used."
    )
    dark, pale = widths(figure, style.BLUE), widths(figure, picture.PALE)
    assert (len(dark), len(pale)) == (32 + 4 + 2, 32 + 4 + 2)
    assert pale[32] == pytest.approx(7 * dark[32]) and pale[-1] == pytest.approx(dark[-1])
    assert dark[:32] == pytest.approx([pale[0] / 8] * 32) and dark[33:37] == pale[33:37]
    cases[1].samples_us[:] = [10e3] * 3
    draw.lost_time()
    assert shown.take()[1].endswith("8 times as fast: it now takes as long as a copy>")


def test_the_records_are_drawn_up_to_the_first_step_that_is_a_copy(shown) -> None:
    draw.lost_time()
    assert complaints(shown.take()[0]) == []
    *steps, torch = picture.lost_time_bars()
    assert [bar.number for bar in steps] == ["", "01", "02", "03", "04", "05", "06", "08"]
    assert torch.name == "PyTorch" and all(bar.wastes for bar in steps[:-1])
    assert [bar.sectors for bar in steps] == [0, 32, 32, 4, 4, 16, 16, 16]
    assert [bar.used for bar in steps[1:]] == pytest.approx([1 / 8] * 2 + [1] * 5)
