"""The race's figure: ours bold, each peer in its colour, and who won how often."""

import dataclasses

import pytest

from helpers import draw
from helpers.draw import style
from helpers.shapes import FEW_SHAPES
from tests.helpers.draw.looks import complaints
from tests.made_up import race_case

pytest.importorskip("matplotlib")


def test_lines_of_shares_over_columns(shown) -> None:
    cases = [race_case(2**28 // cols, cols, cudnn=12.5) for cols in (1024, 64, 256)]
    del cases[0].samples_us["cudnn"]
    draw.race(cases)
    figure, plain, sentence = shown.take()
    assert plain == "<figure: Ahead of the best peer at 3 of 3 shapes in float32>"
    assert sentence == (
        "Of 3 shapes in float32: ahead 3, level 0, lost 0; the least lead is 1.25 times the "
        "speed of cudnn at 4194304 x 64."
    )
    axes = figure.axes[0]
    lines = {line.get_color(): line for line in axes.lines}
    names = ("ours", "torch", "cudnn")
    ours, torch, cudnn = (lines[style.look(name)[0]] for name in names)
    assert [*ours.get_xdata()] == [*torch.get_xdata()] == [64, 256, 1024]
    assert [*cudnn.get_xdata()] == [64, 256]
    assert [*ours.get_ydata()] == pytest.approx([0.97] * 3)
    assert ours.get_linewidth() > torch.get_linewidth()
    assert {text.get_text() for text in axes.texts} - {""} == {"a copy", *names}
    assert complaints(figure) == []
    with pytest.raises(ValueError, match="no cases"):
        draw.race([])


def test_lost_and_level_shapes_are_counted_and_the_worst_is_named(shown) -> None:
    lost = race_case(2**18, 1024, quack=9.0)
    level = race_case(2**20, 256, cudnn=9.95, torch=10.02)
    alone = dataclasses.replace(race_case(2**22, 64), samples_us={"06_registers": [10.0]})
    draw.race([lost, level, alone])
    _, plain, sentence = shown.take()
    assert plain == "<figure: Ahead of the best peer at 1 of 3 shapes in float32>"
    assert sentence == (
        "Of 3 shapes in float32: ahead 1, level 1, lost 1; the least lead is 0.90 times the "
        "speed of quack at 262144 x 1024."
    )
    draw.race([alone])
    assert shown.take()[2] == "Of 1 shape in float32: ahead 1, level 0, lost 0."


def test_few_rows_are_bars(shown) -> None:
    cases = [race_case(*shape, dtype="bfloat16", cudnn=12.5) for shape in FEW_SHAPES[1:3]]
    del cases[0].samples_us["cudnn"]
    draw.race(cases)
    figure, plain, _ = shown.take()
    axes = figure.axes[0]
    assert plain.endswith("at 2 of 2 shapes in bfloat16>")
    shares = [round(bar.get_width(), 3) for bar in axes.patches]
    assert shares == [0.97, 0.485, 0.97, 0.776, 0.485]
    texts = [text.get_text() for text in axes.texts]
    assert texts[:3] == ["a copy", "0.97  ours", "0.48  torch"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["4 x 102400", "16 x 131072"]
    assert complaints(figure) == []
