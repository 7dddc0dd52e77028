"""Names of lines hide neither lines nor each other."""

import pytest

from helpers.draw import labels, style

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


def test_ends_near_the_axis_are_named_above_it() -> None:
    figure, axes = style.chart("Lines")
    ends = [labels.End(8, height, f"line {height}", style.BLUE) for height in (0, 0.1, 5)]
    for end in ends:
        axes.plot([1, 8], [0.5, end.y])
    axes.set_ylim(bottom=0)
    labels.at_ends(axes, ends)
    figure.draw_without_rendering()
    named = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert min(box.y0 for box in named) > axes.get_window_extent().y0
    assert not named[0].overlaps(named[1]) and not named[1].overlaps(named[2])
    boxes = [text.get_bbox_patch() for text in axes.texts if text.get_text()]
    assert all(boxes), "a level line runs behind the names"


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


def test_a_mark_is_kept_in_sight_though_its_line_is_thin() -> None:
    """Of a thick line without marks and a thin one with them a text hides the thick one."""

    def side(marker: str) -> tuple[float, float]:
        _, axes = style.chart("Lines")
        axes.set(xlim=(0, 10), ylim=(0, 10))
        axes.plot([5.6, 5.6], [5, 5.01], marker=marker, linewidth=0.3)
        axes.plot([4.5, 4.5], [0, 10], linewidth=1.2)
        return labels.beside(axes, [(5, 5)], "here", (labels.RIGHT, labels.LEFT)).get_position()

    assert side("o") == labels.LEFT and side("") == labels.RIGHT


def test_a_name_above_or_left_of_an_end_has_a_thread() -> None:
    """Else it might be that of a line beside it."""
    _, axes = style.chart("Lines")
    axes.plot([1, 5], [5, 5])
    for height in (4.4, 4.7, 5, 5.3, 5.6):
        axes.plot([5.2, 10], [height, height], linewidth=3)
    axes.set_ylim(0, 10)
    labels.at_ends(axes, [labels.End(5, 5, "short", "b"), labels.End(10, 5, "long", "k")])
    (name,) = (text for text in axes.texts if text.get_text() == "short")
    assert name.get_position() in labels.FAR
    assert any(text.xy == (5, 5) for text in axes.texts if not text.get_text())


def test_names_take_a_tone_that_can_be_read() -> None:
    _, axes = style.chart("Lines")
    label = labels.add(axes, 1, 1, "here", labels.RIGHT, color=style.ORANGE)
    assert style.contrast(label.get_color(), "white") >= style.READABLE


def test_text_goes_far_away_with_a_thread_where_all_is_full() -> None:
    _, axes = style.chart("Lines")
    for height in range(40, 60):
        axes.plot([0, 10], [height, height], linewidth=3)
    axes.set_ylim(0, 100)
    label = labels.beside(axes, [(5, 52)], "here")
    box = label.get_window_extent()
    assert box.y0 > axes.transData.transform((5, 59))[1]
    threads = [text for text in axes.texts if not text.get_text()]
    assert len(threads) == 1 and threads[0].xy == (5, 52)
