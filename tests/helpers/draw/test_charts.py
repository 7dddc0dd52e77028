"""Charts of evidence say their numbers, and everything on them can be read."""

import io
import math

import pytest
from PIL import Image

from helpers import draw
from helpers.draw import charts, style
from tests.helpers.draw.looks import complaints

pytest.importorskip("matplotlib")


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


def test_values_below_zero_stand_off_their_bars(shown) -> None:
    draw.bars({"short": -1.5, "long": 0.3}, "Gain", "%", "Short rows lose.")
    figure, _, _ = shown.take()
    assert words(figure) == ["-1.5", "0.3"] and widths(figure) == [-1.5, 0.3]
    assert complaints(figure) == []


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


def test_many_parts_and_a_limit_keep_clear_of_each_other(shown) -> None:
    parts = ("load the row", "exchange with others", "store", "wait for the last", "launch")
    values = {str(blocks): dict.fromkeys(parts, 2) for blocks in (1, 2)}
    draw.bars(values, "Blocks", "us", "So.", stacked=True, limit=("a copy", 3))
    figure, _, _ = shown.take()
    (named,) = [text for text in figure.axes[0].texts if text.get_text() == "a copy"]
    legend = figure.axes[0].get_legend()
    assert named.get_window_extent().y1 <= legend.get_window_extent().y0 + 1
    first, second = (text.get_window_extent() for text in legend.get_texts()[:2])
    assert first.y0 > second.y0 and complaints(figure) == []


def test_groups_have_a_bar_a_part_named_once(shown) -> None:
    values = {"one": {"requests": 4, "sectors": 32}, "other": {"sectors": 4}}
    draw.bars(values, "Traffic", "a load", "Eight times.", log=True)
    figure, _, _ = shown.take()
    assert words(figure) == ["4  requests", "32  sectors", "4"]
    places = charts.bar_chart(values, "Traffic", "").places
    assert sorted(places, key=places.get) == [
        ("one", "requests"),
        ("one", "sectors"),
        ("other", "sectors"),
    ]
    assert figure.axes[0].get_xscale() == "log" and complaints(figure) == []


def test_long_names_of_parts_are_not_cut() -> None:
    loaded = {"filled by the rows, twice": 4096, "04_shuffle": 4096, "05_float4": 4096}
    values = {"16 rows of 1024": loaded, "16 rows of 1001": dict.fromkeys(loaded, 4900)}
    figure = charts.bar_chart(values, "Sectors that loads touch", "sectors").figure
    picture = Image.open(io.BytesIO(style._png(figure))).convert("L")
    width, height = picture.size
    edge = picture.crop((width - 1, 0, width, height))
    assert edge.getextrema()[0] > 250, "no letter is cut"


def test_a_step_has_its_colour_in_any_chart(shown) -> None:
    draw.bars({"03_shared": 1, "torch": 2}, "Steps", "us", "So.")
    figure, _, _ = shown.take()
    colors = [style.look(name)[0].lower() for name in ("03_shared", "torch")]
    assert [face_of(patch) for patch in figure.axes[0].patches] == colors
    draw.curves({"03_shared": ([1, 2], [3, 4]), "L1": ([1, 2], [1, 9])}, "T", "x", "y", "So.")
    figure, _, _ = shown.take()
    assert figure.axes[0].lines[0].get_color().lower() == colors[0]
    assert figure.axes[0].lines[0].get_marker() == style.look("03_shared")[1]
    names = ("one", "two", "03_shared", "three")
    draw.curves({name: ([1, 2], [3, 4]) for name in names}, "T", "x", "y", "So.", mark="one")
    drawn = [line.get_marker() for line in shown.take()[0].axes[0].lines]
    assert len({*drawn}) == 4, "what is no step takes no step's marker"


def test_a_label_that_begins_with_a_number_is_no_step(shown) -> None:
    draw.bars({"16 bytes a thread": 1, "4 bytes a thread": 2}, "Copies", "us", "So.")
    figure, _, _ = shown.take()
    assert {face_of(patch) for patch in figure.axes[0].patches} == {style.BLUE.lower()}


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


@pytest.mark.parametrize(
    "value, text",
    [
        *((0, "0"), (-0.0000915, "0"), (0.00099, "0"), (0.001, "0.001"), (-0.0123, "-0.0123")),
        *((0.5362, "0.536"), (7.1, "7.1"), (12.345, "12.3"), (2281.4, "2281"), (20, "20")),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert charts.short(value) == text
    assert charts.plain(1048576.0) == "1048576" and charts.plain(0.5) == "0.5"
