"""Everything on a chart can be read, and values that cannot be drawn are refused."""

import math

import pytest

from helpers.catalogue.tuned import load_tuned
from helpers.page import draw
from helpers.page.draw import style
from tests.helpers.draw.looks import complaints

matplotlib = pytest.importorskip("matplotlib")

LINES = {"hits": ([32, 64, 128], [90, 50, 50]), "misses": ([32, 64, 128], [10, 50, 50.5])}
FIELDS = [0.1, 0.5], [None, 0.931], [0.2, math.nan]
PARTS = {"03_shared": {"loads": 51.2, "tree": 20.0}, "04_shuffle": {"loads": 50.0, "tree": 0.1}}
TITLES = {"bars": ("Loads", "KB"), "curves": ("Cache", "columns", "percent")}
TITLES["heat"] = ("Pieces", "bytes", "blocks")


@pytest.mark.parametrize(
    ("chart", "values", "options"),
    [
        ("bars", [{"16 loads": 12.34, "one": 0.92}], {"mark": "one", "limit": ("11 KB", 11)}),
        ("bars", [PARTS], {"stacked": True}),
        ("curves", [LINES], {"mark": "hits", "limit": ("half", 70)}),
        ("curves", [LINES], {"logx": False, "logy": True}),
        ("heat", [[1, 2, 4], ["4 KB", "8 KB"], FIELDS], {"mark": (2, "8 KB")}),
    ],
)
def test_words_of_charts_can_be_read(chart: str, values, options, shown) -> None:
    getattr(draw, chart)(*values, *TITLES[chart], "So it is.", **options)
    figure, plain, sentence = shown.take()
    assert (plain, sentence) == (f"<figure: {TITLES[chart][0]}>", "So it is.")
    assert complaints(figure) == []


def test_a_limit_runs_behind_values_and_a_value_wider_than_its_part_is_left_out(shown) -> None:
    draw.bars({"one": 12.3}, "Loads", "KB", "So.", limit=("11 KB", 11))
    name, value = shown.take()[0].axes[0].texts
    assert name.get_text() == "11 KB" and value.get_text() == "12.3"
    assert matplotlib.colors.to_hex(value.get_bbox_patch().get_facecolor()) == "#ffffff"
    draw.bars(PARTS, "Where time goes", "us", "In loads.", stacked=True)
    seen = [text.get_text() for text in shown.take()[0].axes[0].texts if text.get_visible()]
    assert seen == ["71.2", "50.1", "51.2", "20", "50"], "not 0.1"


@pytest.mark.parametrize(
    ("chart", "values", "mark", "message"),
    [
        ("bars", [{"1": 1, "one": 2}], "two", "'two' is none of 1, one"),
        ("bars", [{}], None, "no values"),
        ("curves", [{}], None, "no lines"),
        ("heat", [[1], [2], [[None]]], None, "no values"),
        ("heat", [[1, 2], [2], [[1]]], None, "values of 2 rows and 1 columns"),
        ("heat", [[1], [2], [[1]]], [(3, 2)], r"\(3, 2\) is no \(row, column\)"),
    ],
)
def test_what_cannot_be_drawn_is_refused(chart: str, values, mark, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(draw, chart)(*values, *TITLES[chart], "So.", mark=mark)


def test_a_map_of_plans_has_a_field_for_each_point_in_its_kernels_colour(shown) -> None:
    points = [point for point in load_tuned("nvidia-h200") if point.problem.dtype == "float32"]
    draw.plans(points, "Plans", "So it is.")
    figure, _, _ = shown.take()
    for packed, axes in zip((True, False), figure.axes, strict=True):
        here = [point for point in points if point.problem.packed == packed]
        for point, field in zip(here, axes.patches, strict=True):
            colour = matplotlib.colors.to_rgba(style.look(point.trial).color)
            assert field.get_facecolor() == colour and field.get_x() == math.log2(point.cols[0])
        lengths = {tuple(point.cols): [] for point in here}
        for point, field in zip(here, axes.patches, strict=True):
            lengths[tuple(point.cols)].append((field.get_y(), point.problem.rows))
        assert all(sorted(one) == sorted(one, key=lambda at: at[1]) for one in lengths.values())
        assert len(axes.lines) == sum(point.trial != point.rule for point in here)
    assert complaints(figure) == []
    with pytest.raises(ValueError, match="points of one dtype are needed"):
        draw.plans([], "Plans", "None.")
