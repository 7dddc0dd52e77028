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
TITLES["dots"] = TITLES["bars"]
TITLES["heat"] = ("Pieces", "bytes", "blocks")


@pytest.mark.parametrize(
    ("chart", "values", "options"),
    [
        ("bars", [{"16 loads": 12.34, "one": 0.92}], {"mark": "one", "limit": ("11 KB", 11)}),
        ("bars", [PARTS], {"stacked": True}),
        ("dots", [PARTS], {"log": True, "limit": ("half", 30)}),
        ("dots", [{"one": 0.9312, "two": 1.0}], {"mark": "one", "limit": ("a copy", 1.0)}),
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
    assert numbers(shown.take()[0]) == ["51.2", "20.0", "71.2", "50.0", "50.1"], "not 0.1"


def numbers(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_numbers_of_a_chart_have_as_many_decimals_as_one_another(shown) -> None:
    for values, said in (
        ([12.345, 0.92], ["12.3", "0.9"]),
        ([1000.4, 20.0], ["1000", "20"]),
        ([3, 1.0], ["3", "1"]),
        ([5.0, 0.013], ["5.00", "0.01"]),
        ([5.5, 0.001], ["5.50", "0.00"]),
        ([0.5, -0.25], ["0.500", "-0.250"]),
    ):
        draw.bars(dict(zip("ab", values, strict=True)), "Loads", "KB", "So.")
        assert numbers(shown.take()[0]) == said


def test_dots_begin_where_the_values_do_and_bars_at_zero(shown) -> None:
    draw.dots({"one": 97.1, "two": 100.3}, "Share", "%", "So.", limit=("a copy", 100))
    figure, _, _ = shown.take()
    low, high = figure.axes[0].get_xlim()
    assert 96 < low < 97.1 < 100.3 < high < 101 and not figure.axes[0].patches
    assert numbers(figure) == ["a copy", "97.10", "100.30"]
    draw.bars({"one": 97.1, "two": 100.3}, "Share", "%", "So.")
    assert shown.take()[0].axes[0].get_xlim()[0] == 0


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
