"""Figures of the comparison: ours bold, each baseline in its colour, and the verdicts."""

import dataclasses

import pytest

from helpers.page import draw
from helpers.page.draw import comparison, style
from tests.helpers.draw.looks import complaints
from tests.made_up import comparison_case

pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex, to_rgb  # noqa: E402


def test_verdicts_are_counted_and_the_smallest_speedup_is_named(shown) -> None:
    won, slower = comparison_case(2**20, 256), comparison_case(2**20, 256, cudnn=9.95, torch=10.02)
    lost, none = (
        comparison_case(2**18, 1024, quack=9.0),
        dataclasses.replace(comparison_case(2**20, 256), step=""),
    )
    alone = dataclasses.replace(comparison_case(2**22, 64), samples_us={"06_registers": [10.0]})
    del none.samples_us["06_registers"]
    of_three = "ahead 1, level 0, level (slower) 1, lost 1; the smallest speedup is 0.90"
    of_two = "ahead 1, level 0, lost 0, unsupported 1; the smallest speedup is 2.00"
    for cases, said in (
        ([lost, slower, alone], f"3 shapes in float32: {of_three}, over QuACK at 262144 x 1024."),
        ([alone], "1 shape in float32: ahead 1, level 0, lost 0."),
        ([won, none], f"2 shapes in float32: {of_two}, over PyTorch at 1048576 x 256."),
        ([none], "1 shape in float32: ahead 0, level 0, lost 0, unsupported 1."),
    ):
        assert comparison.says(cases) == f"Of {said}"
    draw.baselines([lost, slower, alone])
    assert complaints(shown.take()[0]) == []
    for figure in (draw.baselines, draw.speedups):
        with pytest.raises(ValueError, match="no cases"):
            figure([])


def fields(figure) -> dict[tuple[str, str], tuple[str, str]]:
    """(columns, rows) -> (number, fill)."""
    axes = figure.axes[0]
    xs = [tick.get_text().replace("\n", " ") for tick in axes.get_xticklabels()]
    ys = [tick.get_text() for tick in axes.get_yticklabels()]
    fills = {
        (round(p.get_x() + 0.5), round(p.get_y() + 0.5)): to_hex(p.get_facecolor())
        for p in axes.patches
    }
    texts = {tuple(map(round, text.get_position())): text.get_text() for text in axes.texts}
    return {(ys[j], xs[i]): (texts[i, j], fill) for (i, j), fill in fills.items()}


def test_speedup_over_rows_and_columns(shown) -> None:
    none = dataclasses.replace(comparison_case(8192, 50257), step="")
    del none.samples_us["06_registers"]
    alone = dataclasses.replace(comparison_case(4, 512), samples_us={"06_registers": [10.0]})
    early = comparison_case(1, 512)
    cases = [
        comparison_case(65536, 4096, quack=12.0),
        comparison_case(2**27 // 77 * 2, 77, quack=9.0),
        comparison_case(8192, 4096, quack=10.02),
        comparison_case(8192, 77, quack=200.0, torch=201.0),
        comparison_case(4, 77, quack=9.95),
        *(none, alone, early),
    ]
    draw.speedups(cases)
    figure, plain, sentence = shown.take()
    assert plain == "<figure: Speedup over the best baseline, float32>"
    assert sentence == (
        "Of 8 shapes in float32: ahead 4, level 1, level (slower) 1, lost 1, unsupported 1; "
        "the smallest speedup is 0.90, over QuACK at 3486174 x 77."
    )
    found = fields(figure)
    numbers = {place: number for place, (number, _) in found.items()}
    assert numbers == {
        ("4096", "2^28 in all"): "1.20",
        ("77", "2^28 in all"): "0.90",
        ("4096", "8192"): "1.00",
        ("77", "8192"): "20.0",
        ("50257", "8192"): "none",
        ("77", "4"): "0.99",
        ("512", "4"): "alone",
        ("512", "1"): "2.00",
    }
    fills = {place: fill for place, (_, fill) in found.items()}
    assert fills["77", "2^28 in all"] == to_hex(comparison.LOST)
    assert fills["4096", "8192"] == to_hex(comparison.LEVEL)
    assert fills["77", "4"] == to_hex(comparison.BEHIND)
    assert fills["50257", "8192"] == to_hex(comparison.NONE)
    red, _, blue = to_rgb(fills["4096", "2^28 in all"])
    assert blue > red and fills["77", "8192"] == fills["512", "1"] != fills["4096", "2^28 in all"]
    assert complaints(figure) == []


def test_what_is_level_or_lost_is_named_the_least_first(shown) -> None:
    cases = [
        comparison_case(65536, 4096, quack=12.0),
        comparison_case(8192, 4096, quack=10.02),
        comparison_case(8, 4096, cudnn=9.0),
        comparison_case(4, 4096, quack=9.95),
    ]
    draw.not_ahead(cases)
    figure, plain, sentence = shown.take()
    axes = figure.axes[0]
    assert plain == "<figure: Where ours is not ahead of the best baseline>"
    assert sentence == (
        "Of 4 cases: level at 1, level (slower) at 1: 4 x 4096 to QuACK, lost at 1: "
        "8 x 4096 to cuDNN."
    )
    ticks = [tick.get_text() for tick in axes.get_yticklabels()]
    assert ticks == ["8 x 4096, cuDNN", "4 x 4096, QuACK", "8192 x 4096, QuACK"]
    bars = [(round(bar.get_width(), 1), to_hex(bar.get_facecolor())) for bar in axes.patches]
    assert bars == [
        *(
            (-10.0, to_hex(comparison.LOST)),
            (-0.5, to_hex(comparison.BEHIND)),
            (0.2, to_hex(style.GREY)),
        )
    ]
    assert complaints(figure) == []
    draw.not_ahead(cases[:2])
    assert shown.take()[2] == "Of 2 cases: level at 1, lost at none."
    with pytest.raises(ValueError, match="no case is level"):
        draw.not_ahead(cases[:1])
