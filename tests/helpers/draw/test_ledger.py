"""All predictions in one figure: it says how near they came; committed outputs have only ours."""

import dataclasses
import importlib

import pytest

from helpers.base import mode
from helpers.measure.records import has_record, load_record, predictions
from helpers.page import draw
from helpers.page.predict import asked, keep
from tests.helpers.draw.looks import complaints

pytest.importorskip("matplotlib")

LEDGER = importlib.import_module("helpers.page.draw.ledger")  # helpers.draw.ledger is the function
PREDICT = importlib.import_module("helpers.page.predict")


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch) -> None:
    """An empty folder for what a reader keeps, in a replay that nobody asked for."""
    monkeypatch.setattr(PREDICT, "MINE", tmp_path)
    monkeypatch.delenv(mode.SWITCH, raising=False)


def drawn() -> list[str]:
    """The steps that are predicted and recorded."""
    return [step for step in asked() if has_record(step)]


def columns(figure) -> list[list[str]]:
    """The columns of numbers at the right, each with its head."""
    texts = [text.get_text() for text in figure.axes[0].texts]
    high = 1 + len(drawn())
    return [texts[first : first + high] for first in range(0, len(texts), high)]


def marks(figure) -> list[tuple[float, float]]:
    """(share, row) of the hollow marks."""
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "none"]
    return [(line.get_xdata()[0], line.get_ydata()[0]) for line in hollow]


def test_every_step_stands_with_its_prediction_and_its_measurement(shown) -> None:
    assert draw.ledger() is None
    figure, plain, sentence = shown.take()
    ours = [predictions()[step]["share"] for step in drawn()]
    measured = [load_record(step).headline.share for step in drawn()]
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == drawn()
    assert marks(figure) == [(share, row) for row, share in enumerate(ours)]
    assert columns(figure) == [
        ["◇ ours", *(f"{share:.2f}" for share in ours)],
        ["● measured", *(f"{share:.2f}" for share in measured)],
    ]
    near = sum(0.9 <= m / o <= 1.1 for m, o in zip(measured, ours, strict=True))
    assert plain == f"<figure: Of our {len(ours)} predictions, {near} came within 10 percent>"
    assert "02_online, 0.16 predicted" in " ".join(sentence.split())
    assert complaints(figure) == []


def test_what_comes_after_the_last_step_is_left_out(shown) -> None:
    draw.ledger("11_any_row")
    figure, plain, _ = shown.take()
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert labels == [step for step in drawn() if step < "12"] != drawn()
    assert f"Of our {len(labels)} predictions" in plain
    with pytest.raises(ValueError):
        draw.ledger("16_no_step")


def test_the_readers_are_drawn_beside_ours(shown) -> None:
    keep("01_naive", 0.06)
    keep("07_warp", 0.5)
    draw.ledger()
    figure, _, sentence = shown.take()
    ours = predictions()["01_naive"]["share"]
    first, last = (drawn().index(step) for step in ("01_naive", "07_warp"))
    assert {(0.06, first), (ours, first), (0.5, last)} < {*marks(figure)}
    (yours, *_) = columns(figure)
    assert yours[0] == "◇ yours" and (yours[1 + first], yours[1 + last]) == ("0.06", "0.50")
    assert yours.count("") == len(drawn()) - 2
    said = " ".join(sentence.split())
    assert said.endswith("Of your 2, 1 came within 10 percent, and 1 closer than ours.")
    assert complaints(figure) == []


def test_a_forced_replay_shows_the_same_whatever_is_kept(shown, monkeypatch) -> None:
    monkeypatch.setenv(mode.SWITCH, "1")
    draw.ledger()
    figure, *before = shown.take()
    monkeypatch.delenv(mode.SWITCH)
    keep("01_naive", 0.06)
    monkeypatch.setenv(mode.SWITCH, "1")
    draw.ledger()
    again, *after = shown.take()
    assert before == after and marks(figure) == marks(again)


def test_the_sentence_follows_the_records(shown, monkeypatch) -> None:
    def twice_as_slow(step: str):
        record = load_record(step)
        cases = [
            dataclasses.replace(case, samples_us=[2 * us for us in case.samples_us])
            for case in record.cases
        ]
        return dataclasses.replace(record, cases=cases)

    monkeypatch.setattr(LEDGER, "load_record", twice_as_slow)
    draw.ledger()
    _, plain, sentence = shown.take()
    count = len(drawn())
    assert plain == f"<figure: Of our {count} predictions, 0 came within 10 percent>"
    assert f"of the others {count} were too high and 0 too low" in " ".join(sentence.split())
