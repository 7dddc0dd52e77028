"""Figures draw the right cases of records that hold several dtypes and shapes."""

import dataclasses

import pytest

from helpers import figures, records
from helpers.catalogue import UNFUSED
from helpers.figures import plot_race, plot_series, plot_step
from helpers.records import Record
from helpers.shapes import FEW_SHAPES, GRID_SHAPES
from tests.made_up import race_case, steady

plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch):
    """No window, no prediction, no kernel file and no record beside the ones made here."""
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    monkeypatch.setattr(records, "predictions", dict)
    monkeypatch.setattr(Record, "is_current", lambda record: True)
    monkeypatch.setattr(figures, "recorded_beside", lambda record: [])
    yield
    plt.close("all")


def drawn() -> dict[str, list[float]]:
    """Label -> columns of each line in the figure, by the colour that they share."""
    axes = plt.gcf().axes[0]
    texts = {label.get_color(): label.get_text() for label in axes.texts}
    lines = [line for line in axes.lines if len(line.get_xdata()) and line.get_marker() != "_"]
    return {texts[line.get_color()]: list(line.get_xdata()) for line in lines}


def test_step_is_drawn_with_the_previous_one_and_the_copy_over_both() -> None:
    plot_step(steady("08_x"), steady("07_x", GRID_SHAPES[:6]), shapes="long")
    columns = [2**k for k in range(5, 21)]
    assert drawn() == {"copy": columns, "07_x": columns[:6], "08_x": columns}
    plot_step(steady("07_x", GRID_SHAPES[:6]), steady("06_x"))
    assert drawn() == {"copy": columns[:11], "07_x": columns[:6], "06_x": columns[:11]}
    other = dataclasses.replace(steady("06_x"), device={"name": "another"})
    plot_step(steady("07_x", GRID_SHAPES[:6]), other)
    assert drawn()["copy"] == columns[:6], "a copy of another GPU is no ceiling here"


def test_axis_says_the_bytes_of_the_dtype(capsys) -> None:
    plot_step(steady("10_x", dtypes=("float16",)), dtype="float16")
    axes = plt.gcf().axes[0]
    assert axes.get_ylabel() == "GB/s (2 x rows x cols x 2 bytes / time)"
    assert axes.get_title(loc="left") == "10_x in float16"
    assert axes.get_ylim()[0] == 0
    figures = len(plt.get_fignums())
    plot_step(steady("10_x", dtypes=("float16",)))
    assert capsys.readouterr().out == "10_x: not measured at these shapes\n"
    assert len(plt.get_fignums()) == figures


def test_few_rows_are_bars_of_microseconds() -> None:
    plot_step(steady("09_x", us=12.5), steady("08_x", FEW_SHAPES[:4]), shapes="few")
    axes = plt.gcf().axes[0]
    heights = {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}
    assert heights == {
        "copy": pytest.approx([10.0] * 5),
        "08_x": [20.0] * 4,
        "09_x": [12.5] * 5,
    }
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == [f"{rows} x {cols}" for rows, cols in FEW_SHAPES]
    assert axes.get_ylabel() == "microseconds a call"


def test_series_colours_the_last_six_and_leaves_out_what_has_no_such_case() -> None:
    steps = [steady(f"0{number}_x") for number in range(1, 9)]
    halves = steady("10_x", dtypes=("float16",))
    figure = plot_series([steady(UNFUSED), *steps, halves])
    colors = {label.get_text(): label.get_color() for label in figure.axes[0].texts}
    assert list(colors) == ["copy", UNFUSED, *(step.step for step in steps)]
    assert [name for name, color in colors.items() if color == figures.GREY] == [
        UNFUSED,
        "01_x",
        "02_x",
    ]
    assert colors["08_x"] == figures.BLUE
    assert len({colors[f"0{number}_x"] for number in range(3, 9)}) == 6
    with pytest.raises(ValueError, match="no record holds grid cases in bfloat16"):
        plot_series(steps, dtype="bfloat16")


@pytest.mark.parametrize("log", [True, False])
def test_labels_hide_neither_each_other_nor_the_lines_behind_short_ones(log: bool) -> None:
    short = steady("07_x", GRID_SHAPES[:6], us=10.1)
    shown = [steady("05_x", us=10.2), steady("06_x"), short, steady("08_x")]
    for case in (case for record in shown for case in record.cases):
        case.samples_us[1:] = case.samples_us[:1] * 2  # no bars of the spread above the copy
    figure = plot_series(shown, log)
    figure.canvas.draw()
    labels = {label.get_text(): label for label in figure.axes[0].texts}
    boxes = [label.get_window_extent() for label in labels.values()]
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[number + 1 :])
    axes = figure.axes[0]
    end = axes.transData.transform((1024, short.cases[0].gbps))
    box = labels["07_x"].get_window_extent()
    assert box.x1 <= end[0] + 2 and box.y0 > end[1], "above the end of its line, to the left"
    assert box.y1 <= axes.get_window_extent().y1, "inside the axes"
    assert labels["08_x"].get_window_extent().x0 > axes.transData.transform((32768, 1))[0]


def test_live_measurement_is_drawn_beside_the_record(monkeypatch) -> None:
    beside = dataclasses.replace(steady("07_x", us=30.0), device={"name": "NVIDIA H200"})
    monkeypatch.setattr(figures, "recorded_beside", lambda record: [beside])
    plot_step(steady("07_x"))
    assert set(drawn()) == {"copy", "07_x", "record: NVIDIA H200, 2030-01-02"}
    dotted = [line for line in plt.gcf().axes[0].lines if line.get_linestyle() == ":"]
    assert [line.get_color() for line in dotted] == [figures.SERIES[0]]


def test_label_stays_at_the_end_of_a_short_line_unless_another_goes_on_there() -> None:
    places = {}
    for height in (1.0, 5.0):  # of the short line; the long one is at 1
        axes = figures.empty_axes("lines")
        for name, cols, y in (("short", [1, 2], height), ("long", [1, 8], 1.0)):
            axes.plot(cols, [y, y])
            figures.add_label(axes, cols[-1], y, name, figures.BLUE)
        figures.finish(axes)
        places[height] = next(label for label in axes.texts if label.get_text() == "short")
    assert places[1.0].get_ha() == "right" and places[5.0].get_ha() == "left"


# ---- the race ---------------------------------------------------------------------------------


def test_plot_draws_ours_in_blue_and_breaks_no_axis() -> None:
    cases = [race_case(cols=cols, cudnn=12.5) for cols in (1024, 64, 256)]
    del cases[0].samples_us["cudnn"]
    assert plot_race(cases) is None
    axes = plt.gcf().axes[0]
    lines = {line.get_color(): line for line in axes.lines}
    assert list(lines["#0072B2"].get_xdata()) == [64, 256, 1024]
    assert len({line.get_color() for line in axes.lines}) == 4  # the copy, torch, cudnn, ours
    assert sorted(label.get_text() for label in axes.texts) == ["cudnn", "ours", "torch"]
    assert sorted(len(line.get_xdata()) for line in axes.lines) == [2, 2, 3, 3]


def test_plot_of_few_rows_has_bars() -> None:
    cases = [race_case(*shape, cudnn=12.5) for shape in FEW_SHAPES[1:3]]
    del cases[0].samples_us["cudnn"]
    plot_race(cases)
    axes = plt.gcf().axes[0]
    heights = {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}
    assert heights == {
        "ours": pytest.approx([0.97, 0.97]),
        "torch": pytest.approx([0.485, 0.485]),
        "cudnn": pytest.approx([0.776]),
    }
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4 x 102400", "16 x 131072"]
    (bar,) = axes.containers[2]
    assert 1 < bar.get_x() < 1.4, "above the second shape"
    with pytest.raises(ValueError, match="no cases"):
        plot_race([])
