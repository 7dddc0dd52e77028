"""Charts say their numbers, and everything on them can be read."""

import math

import pytest

from helpers.catalogue.tuned import load_tuned
from helpers.page import draw
from helpers.page.draw import charts, style
from tests.helpers.draw.looks import complaints

matplotlib = pytest.importorskip("matplotlib")


def words(figure) -> list[str]:
    shown = [text for text in figure.axes[0].texts if text.get_visible()]
    return [text.get_text() for text in shown if text.get_text()]


def widths(figure) -> list[float]:
    return [patch.get_width() for patch in figure.axes[0].patches]


def test_bars_have_their_values_and_what_is_marked_stands_out(shown) -> None:
    values = {"16 loads at once": 12.34, "one load": 0.92}
    limit = ("11 KB: Little's law", 11)
    draw.bars(values, "Loads", "KB in flight", "So it is.", mark="one load", limit=limit)
    figure, plain, sentence = shown.take()
    assert (plain, sentence) == ("<figure: Loads>", "So it is.")
    assert widths(figure) == [12.34, 0.92]
    assert words(figure) == ["11 KB: Little's law", "12.3", "0.92"]
    axes = figure.axes[0]
    assert axes.get_xlabel() == "KB in flight"
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [*values]
    faces = [face_of(patch) for patch in axes.patches]
    assert faces[0] == charts.QUIET.lower() and faces[1] != faces[0]
    assert axes.texts[2].get_fontweight() == "bold"
    clear = [text.get_bbox_patch() for text in axes.texts[1:]]
    assert all(face_of(box) == "#ffffff" for box in clear), "the limit runs behind the values"
    assert complaints(figure) == []
    with pytest.raises(ValueError, match="'two' is none of 16 loads at once, one load"):
        draw.bars(values, "Loads", "KB", "So.", mark="two")
    with pytest.raises(ValueError, match="no values"):
        draw.bars({}, "Loads", "KB", "So.")


def face_of(patch) -> str:
    from matplotlib.colors import to_hex

    return to_hex(patch.get_facecolor())


def test_stacked_bars_say_parts_and_sum(shown) -> None:
    values = {
        "03_shared": {"loads": 51.2, "tree": 20.0},
        "04_shuffle": {"loads": 50.0, "tree": 0.1},
    }
    draw.bars(values, "Where time goes", "us", "In loads.", stacked=True)
    figure, _, _ = shown.take()
    axes = figure.axes[0]
    assert [patch.get_x() for patch in axes.patches] == [0, 51.2, 0, 50.0]
    assert words(figure) == ["71.2", "50.1", "51.2", "20", "50"], "0.1 is too narrow for its value"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["loads", "tree"]
    assert complaints(figure) == []


def test_curves_are_named_at_their_ends(shown) -> None:
    lines = {"hits": ([32, 64, 128], [90, 50, 50]), "misses": ([32, 64, 128], [10, 50, 50.5])}
    limit = ("half", 70)
    draw.curves(lines, "Cache", "columns", "percent", "Half.", mark="hits", limit=limit)
    figure, _, _ = shown.take()
    axes = figure.axes[0]
    assert {"half", "hits", "misses"} == {*words(figure)}
    assert axes.get_xscale() == "log" and axes.get_yscale() == "linear"
    assert axes.get_ylim()[0] == 0
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["32", "64", "128"]
    hits, misses = axes.lines[:2]
    assert hits.get_linewidth() > misses.get_linewidth() and misses.get_color() == charts.QUIET
    assert complaints(figure) == []
    draw.curves(lines, "Cache", "columns", "percent", "Half.", logx=False, logy=True)
    axes = shown.take()[0].axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "log")
    with pytest.raises(ValueError, match="no lines"):
        draw.curves({}, "Cache", "columns", "percent", "Half.")


def test_heat_map_has_a_number_in_each_field_and_frames_the_marked(shown) -> None:
    values = [[0.1, 0.5], [None, 0.931], [0.2, math.nan]]
    arguments = (values, "Pieces", "bytes", "blocks", "The best.")
    draw.heat([1, 2, 4], ["4 KB", "8 KB"], *arguments, mark=(2, "8 KB"))
    figure, _, _ = shown.take()
    axes = figure.axes[0]
    assert words(figure) == ["0.1", "0.5", "0.931", "0.2"]
    inks = [text.get_color() for text in axes.texts]
    assert inks == [style.BLACK, style.BLACK, "#ffffff", style.BLACK]
    framed = [patch.get_linewidth() > 2 for patch in axes.patches]
    assert framed == [False, False, True, False]
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "the first row on top"
    assert complaints(figure) == []
    with pytest.raises(ValueError, match=r"\(3, '8 KB'\) is no \(row, column\)"):
        draw.heat([1, 2, 4], ["4 KB", "8 KB"], *arguments, mark=[(3, "8 KB")])
    with pytest.raises(ValueError, match="no values"):
        draw.heat([1], [2], [[None]], "Pieces", "bytes", "blocks", "None.")
    with pytest.raises(ValueError, match="values of 2 rows and 2 columns"):
        draw.heat([1, 2], ["4 KB", "8 KB"], *arguments)


def test_a_map_of_plans_has_a_field_for_each_point_in_its_kernels_colour(shown) -> None:
    points = [point for point in load_tuned("nvidia-h200") if point.problem.dtype == "float32"]
    draw.plans(points, "Plans", "So it is.")
    figure, _, _ = shown.take()
    whole, other = figure.axes
    packed = [point for point in points if point.problem.packed]
    assert (len(whole.patches), len(other.patches)) == (len(packed), len(points) - len(packed))
    for point, field in zip(packed, whole.patches, strict=True):
        colour = matplotlib.colors.to_rgba(style.look(point.trial)[0])
        assert field.get_facecolor() == colour and field.get_x() == math.log2(point.cols[0])
    lengths = {tuple(point.cols): [] for point in packed}
    for point, field in zip(packed, whole.patches, strict=True):
        lengths[tuple(point.cols)].append((field.get_y(), point.problem.rows))
    assert all(sorted(each) == sorted(each, key=lambda one: one[1]) for each in lengths.values())
    assert len(whole.lines) == sum(point.trial != point.rule for point in packed)
    assert complaints(figure) == []
    draw.plans(points, "Gains", "So it is.", lambda point: point.speedup, "times")
    colours = {field.get_facecolor() for field in shown.take()[0].axes[0].patches}
    assert len(colours) > 10
    with pytest.raises(ValueError, match="points of one dtype are needed"):
        draw.plans([], "Plans", "None.")
