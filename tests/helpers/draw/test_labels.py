"""Names of lines hide neither lines nor each other."""

import pytest

from helpers.page.draw import labels, style

pytest.importorskip("matplotlib")


def gaps(middles: list[float], heights: list[float]) -> list[float]:
    lines = zip(middles, middles[1:], heights, heights[1:], strict=False)
    return [upper - lower - (low + high) / 2 for lower, upper, low, high in lines]


def test_labels_are_spread_as_little_as_can_be() -> None:
    assert labels.spread([0, 100], [10, 10]) == [0, 100]
    middles = labels.spread([50, 50, 50, 200], [10, 10, 10, 10])
    assert middles == pytest.approx([50 - 10 - labels.GAP, 50, 50 + 10 + labels.GAP, 200])
    middles = labels.spread([0, 1, 2, 30, 31], [10, 20, 10, 10, 12])
    assert min(gaps(middles, [10, 20, 10, 10, 12])) >= labels.GAP - 1e-9
    assert sum(middles) == pytest.approx(sum([0, 1, 2, 30, 31]), abs=1e-6)


@pytest.mark.parametrize("heights", [[1, 1.01, 1.02, 5], [1, 1, 1, 1]])
def test_ends_are_named_in_a_column_without_overlap(heights: list[float]) -> None:
    _, axes = style.chart("Lines")
    ends = []
    for number, height in enumerate(heights):
        axes.plot([1, 8], [0.5, height])
        ends.append(labels.End(8, height, f"line {number}", style.BLUE))
    labels.at_ends(axes, ends)
    named = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert len(named) == 4
    for number, box in enumerate(named):
        assert box.x0 > axes.get_window_extent().x1 - 30
        assert not any(box.overlaps(other) for other in named[number + 1 :])


def test_name_of_a_short_line_keeps_clear_of_the_others() -> None:
    figure, axes = style.chart("Lines")
    axes.plot([1, 2, 8], [1, 1, 1])
    axes.plot([1, 2], [1, 1])
    axes.set_ylim(0, 2)
    labels.at_ends(axes, [labels.End(8, 1, "long", "k"), labels.End(2, 1, "short", "b")])
    box = next(text for text in axes.texts if text.get_text() == "short").get_window_extent()
    for line in axes.lines:
        path = line.get_path().transformed(line.get_transform())
        assert not path.intersects_bbox(box, filled=False)
