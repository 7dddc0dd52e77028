"""A step's plot draws the right cases and says what came out."""

import importlib

import pytest

from helpers.catalogue import store
from helpers.measure import records
from helpers.measure.records import Record
from helpers.page import draw
from helpers.page.draw import style
from tests import made_up
from tests.made_up import steady

pytest.importorskip("matplotlib")

# Functions of the packages have these names.
step, predict = map(importlib.import_module, ("helpers.page.draw.step", "helpers.page.replay"))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """No prediction, no kernel file and no record beside the ones made here."""
    monkeypatch.setattr(store, "RECORDS", tmp_path)
    monkeypatch.setattr(predict, "kept", dict)
    monkeypatch.setattr(records, "predictions", dict)
    monkeypatch.setattr(Record, "is_current", lambda record: True)
    monkeypatch.setattr(step, "recorded_beside", lambda record: [])
    monkeypatch.setattr(step, "recorded_steps", list)


def words(figure) -> list[str]:
    """Of the key."""
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def lines(figure) -> dict[str, list[float]]:
    """Colour and style -> columns of each line."""
    found = figure.axes[0].lines
    return {f"{line.get_color()} {line.get_linestyle()}": [*line.get_xdata()] for line in found}


# ---- what is drawn ------------------------------------------------------------------------------


def test_live_measurement_is_bold_and_the_record_dotted_beside_it(monkeypatch, shown) -> None:
    beside = made_up.on_gpu(steady("07_x", us=30.0), "NVIDIA H200")
    monkeypatch.setattr(step, "recorded_beside", lambda record: [beside])
    draw.step(steady("07_x"))
    figure, _, _ = shown.take()
    color = style.look("07_x").color
    assert "NVIDIA H200, 2030-01-02" in words(figure)
    assert {f"{color} :", f"{color} -"} < {*lines(figure)}
    names = figure.axes[0].get_legend().get_texts()
    assert [one.get_text() for one in names if one.get_fontweight() == "bold"] == ["07_x"]


def test_a_series_without_cases_of_a_family_is_refused() -> None:
    with pytest.raises(ValueError, match="no record holds axes cases in float32"):
        draw.series([steady("01_x")], family="axes")
