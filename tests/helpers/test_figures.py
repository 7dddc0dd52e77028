"""Tables and figures show the right cases of records that hold several dtypes and shapes."""

import dataclasses

import pytest
from helpers.plot import cases_of, headline, ledger, plot_series, plot_step, table

from helpers import bench, plot, records
from helpers.records import (
    FEW_SHAPES,
    GRID_SHAPES,
    LONG_SHAPES,
    SWEEP_SHAPES,
    UNFUSED,
    Case,
    Record,
)

plt = pytest.importorskip("matplotlib.pyplot")

FAMILIES = {"grid": GRID_SHAPES, "long": LONG_SHAPES, "few": FEW_SHAPES, "sweep": SWEEP_SHAPES}
EVERY = [*SWEEP_SHAPES, *FEW_SHAPES[::-1], *LONG_SHAPES, *GRID_SHAPES]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch):
    """No window, no prediction, no kernel file and no record beside the ones made here."""
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    monkeypatch.setattr(plot, "predictions", dict)
    monkeypatch.setattr(Record, "is_current", lambda record: True)
    monkeypatch.setattr(plot, "recorded_beside", lambda record: [])
    yield
    plt.close("all")


def made_up(step: str, shapes=EVERY, dtypes=("float32",), us: float = 20.0) -> Record:
    cases = [
        Case(dtype, *shape, {}, [us, us + 1, us - 1], [10.0] * 7, 50, "right")
        for dtype in dtypes
        for shape in shapes
    ]
    versions = {"driver": "1", "nvrtc": "13.0", "cupy": "14.0"}
    device = {"name": "NVIDIA Test"}
    return Record(step, "x", device, versions, "2030-01-02", bench.PROTOCOL, {}, cases)


def lines_of(text: str) -> list[list[str]]:
    """The words of a table's lines behind its title."""
    return [line.split() for line in text.splitlines()[1:]]


def predict(monkeypatch, **steps: dict) -> None:
    monkeypatch.setattr(plot, "predictions", lambda: steps)


# ---- which cases --------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", ["grid", "few", "sweep"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_cases_are_of_the_shapes_and_the_dtype_asked_for(shapes: str, dtype: str) -> None:
    record = made_up("01_naive", dtypes=("float32", "float16"))
    cases = cases_of(record, shapes, dtype)
    assert [case.shape for case in cases] == list(FAMILIES[shapes])
    assert {case.dtype for case in cases} == {dtype}
    assert cases_of(record, shapes, "bfloat16") == []


def test_long_is_grid_and_long_rows_over_one_axis() -> None:
    cases = cases_of(made_up("01_naive"), "long")
    assert [case.cols for case in cases] == [2**k for k in range(5, 21)]
    with pytest.raises(KeyError):
        cases_of(made_up("01_naive"), "longer")


def test_a_smaller_gpu_has_grid_and_long_rows_too() -> None:
    record = made_up("01_naive", [(64, 65536), (1024, 32), (128, 32768)])
    assert [case.shape for case in cases_of(record)] == [(1024, 32), (128, 32768)]
    assert [case.shape for case in cases_of(record, "long")][-1] == (64, 65536)


def test_headline_is_the_predicted_case_or_the_longest_rows(monkeypatch) -> None:
    record = made_up("10_x", [*GRID_SHAPES[:4], (4096, 2048)], ("float16", "bfloat16"))
    assert (headline(record).shape, headline(record).dtype) == (GRID_SHAPES[3], "float16")
    predict(monkeypatch, **{"10_x": {"rows": 4096, "cols": 2048, "dtype": "bfloat16"}})
    assert (headline(record).shape, headline(record).dtype) == ((4096, 2048), "bfloat16")
    assert headline(made_up("09_x")).shape == records.REFERENCE_SHAPE
    some = [*records.CROSSOVER_SHAPES, records.EVEN_SHAPE]
    record = made_up("08_x", [records.LONG_SHAPES[-1], *some])
    assert headline(record).shape == records.LONG_SHAPES[-1], "not at the shape that suits it best"


def test_series_has_no_step_for_few_rows_and_none_without_float32(monkeypatch) -> None:
    predict(monkeypatch, **{"09_x": {"rows": 1, "cols": 1048576}})
    assert [step for step in ("08_x", "09_x") if plot.in_series(made_up(step))] == ["08_x"]
    assert not plot.in_series(made_up("10_x", dtypes=("float16",)))


# ---- tables -------------------------------------------------------------------------------------


def test_table_of_the_grid_beside_the_previous_step() -> None:
    head, *lines = lines_of(table(made_up("07_x"), made_up("06_x", us=30.0)))
    assert head == "rows cols copy GB/s GB/s spread of copy 06_x x previous".split()
    assert [line[:2] for line in lines] == [[str(r), str(c)] for r, c in GRID_SHAPES]
    gbps = 2 * 2**28 * 4 / 1e3
    expected = [f"{gbps / us:.0f}" for us in (10, 20)]
    assert lines[0][2:] == [*expected, "10.0%", "0.500", f"{gbps / 30:.0f}", "1.50"]


def test_table_in_another_dtype_says_so_and_marks_what_the_previous_step_lacks() -> None:
    previous = made_up("07_x", GRID_SHAPES[:2], ("float32", "float16"), 40.0)
    previous.cases[2:] = [dataclasses.replace(c, samples_us=[80.0] * 3) for c in previous.cases[2:]]
    text = table(made_up("10_x", dtypes=("float16",)), previous, dtype="float16")
    assert text.startswith("10_x in float16, recorded on NVIDIA Test on 2030-01-02")
    _, *lines = lines_of(text)
    assert [line[-1] for line in lines] == ["4.00", "4.00", *["-"] * 9]
    assert lines[0][3] == f"{2 * 2**28 * 2 / 20 / 1e3:.0f}"
    text = table(made_up("10_x", dtypes=("float16",)))
    assert text.endswith(": not measured at these shapes") and text.startswith("10_x, recorded")


def test_table_of_few_rows_has_microseconds() -> None:
    text = table(made_up("09_x", us=12.5), made_up("08_x", FEW_SHAPES[:1]), shapes="few")
    head, *lines = lines_of(text)
    assert head == "rows cols us copy us us more spread of copy 08_x, us x previous".split()
    assert lines[0] == "1 32000 12.50 10.00 2.50 16.0% 0.800 20.00 1.60".split()
    assert lines[4] == "1 1048576 12.50 10.00 2.50 16.0% 0.800 - -".split()
    (width,) = {len(line) for line in text.splitlines()[1:]}
    assert width <= 88


def test_columns_of_long_rows_stay_aligned() -> None:
    text = table(made_up("08_cluster"), made_up("06_x"), shapes="long").splitlines()[1:]
    assert len({len(line) for line in text}) == 1 and len(text) == 17


def test_table_of_the_sweep_has_its_shapes() -> None:
    text = table(made_up("01_naive"), shapes="sweep")
    assert len(text.splitlines()) == 2 + len(SWEEP_SHAPES)


def test_ledger_looks_where_the_prediction_was_made(monkeypatch) -> None:
    predict(
        monkeypatch,
        **{
            "01_naive": {"share": 0.25},
            "09_x": {"share": 0.4, "rows": 1, "cols": 1048576},
            "10_x": {"share": 1.0, "rows": 2097152, "cols": 128, "dtype": "bfloat16"},
            "11_x": {"share": 1.0, "rows": 3, "cols": 128},
        },
    )
    both = made_up("10_x", dtypes=("float32", "bfloat16"))
    half = len(both.cases) // 2
    both.cases[:half] = [dataclasses.replace(c, samples_us=[99.0]) for c in both.cases[:half]]
    text = ledger([made_up("01_naive"), made_up("09_x", us=20), both, made_up("11_x")])
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1:] == [
        "01_naive 65536 x 4096 0.25 0.500 2.00",
        "09_x 1 x 1048576 0.40 0.500 1.25",
        "10_x 2097152 x 128 bfloat16 1.00 0.500 0.50",
        "11_x 3 x 128 not measured here",
    ]
    assert len({len(line) for line in text.splitlines()[:4]}) == 1


# ---- figures ------------------------------------------------------------------------------------


def drawn() -> dict[str, list[float]]:
    """Label -> columns of each line in the figure, by the colour that they share."""
    axes = plt.gcf().axes[0]
    texts = {label.get_color(): label.get_text() for label in axes.texts}
    lines = [line for line in axes.lines if len(line.get_xdata()) and line.get_marker() != "_"]
    return {texts[line.get_color()]: list(line.get_xdata()) for line in lines}


def test_step_is_drawn_with_the_previous_one_and_the_copy_over_both() -> None:
    plot_step(made_up("08_x"), made_up("07_x", GRID_SHAPES[:6]), shapes="long")
    columns = [2**k for k in range(5, 21)]
    assert drawn() == {"copy": columns, "07_x": columns[:6], "08_x": columns}
    plot_step(made_up("07_x", GRID_SHAPES[:6]), made_up("06_x"))
    assert drawn() == {"copy": columns[:11], "07_x": columns[:6], "06_x": columns[:11]}
    other = dataclasses.replace(made_up("06_x"), device={"name": "another"})
    plot_step(made_up("07_x", GRID_SHAPES[:6]), other)
    assert drawn()["copy"] == columns[:6], "a copy of another GPU is no ceiling here"


def test_axis_says_the_bytes_of_the_dtype(capsys) -> None:
    plot_step(made_up("10_x", dtypes=("float16",)), dtype="float16")
    axes = plt.gcf().axes[0]
    assert axes.get_ylabel() == "GB/s (2 x rows x cols x 2 bytes / time)"
    assert axes.get_title(loc="left") == "10_x in float16"
    assert axes.get_ylim()[0] == 0
    figures = len(plt.get_fignums())
    plot_step(made_up("10_x", dtypes=("float16",)))
    assert capsys.readouterr().out == "10_x: not measured at these shapes\n"
    assert len(plt.get_fignums()) == figures


def test_few_rows_are_bars_of_microseconds() -> None:
    plot_step(made_up("09_x", us=12.5), made_up("08_x", FEW_SHAPES[:4]), shapes="few")
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
    steps = [made_up(f"0{number}_x") for number in range(1, 9)]
    halves = made_up("10_x", dtypes=("float16",))
    figure = plot_series([made_up(UNFUSED), *steps, halves])
    colors = {label.get_text(): label.get_color() for label in figure.axes[0].texts}
    assert list(colors) == ["copy", UNFUSED, *(step.step for step in steps)]
    assert [name for name, color in colors.items() if color == plot.GREY] == [
        UNFUSED,
        "01_x",
        "02_x",
    ]
    assert colors["08_x"] == plot.BLUE
    assert len({colors[f"0{number}_x"] for number in range(3, 9)}) == 6
    with pytest.raises(ValueError, match="no record holds grid cases in bfloat16"):
        plot_series(steps, dtype="bfloat16")


@pytest.mark.parametrize("log", [True, False])
def test_labels_hide_neither_each_other_nor_the_lines_behind_short_ones(log: bool) -> None:
    short = made_up("07_x", GRID_SHAPES[:6], us=10.1)
    shown = [made_up("05_x", us=10.2), made_up("06_x"), short, made_up("08_x")]
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
    beside = dataclasses.replace(made_up("07_x", us=30.0), device={"name": "NVIDIA H200"})
    monkeypatch.setattr(plot, "recorded_beside", lambda record: [beside])
    plot_step(made_up("07_x"))
    assert set(drawn()) == {"copy", "07_x", "record: NVIDIA H200, 2030-01-02"}
    dotted = [line for line in plt.gcf().axes[0].lines if line.get_linestyle() == ":"]
    assert [line.get_color() for line in dotted] == [plot.SERIES[0]]


def test_label_stays_at_the_end_of_a_short_line_unless_another_goes_on_there() -> None:
    places = {}
    for height in (1.0, 5.0):  # of the short line; the long one is at 1
        axes = plot.empty_axes("lines")
        for name, cols, y in (("short", [1, 2], height), ("long", [1, 8], 1.0)):
            axes.plot(cols, [y, y])
            plot.add_label(axes, cols[-1], y, name, plot.BLUE)
        plot.finish(axes)
        places[height] = next(label for label in axes.texts if label.get_text() == "short")
    assert places[1.0].get_ha() == "right" and places[5.0].get_ha() == "left"
