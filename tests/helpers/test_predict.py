"""A prediction is asked for, kept where that is right, and shown beside ours with a sum that adds
up."""

import html
import importlib
import json
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from helpers.base import gpu
from helpers.catalogue.registry import UNFUSED, steps
from helpers.measure.records import REFERENCE_SHAPE, load_record, predicted_at, predictions
from helpers.page import profile
from helpers.page.replay import ASK, keep, kept, mine_of, outcome, predict

MODULE = importlib.import_module("helpers.page.replay")  # helpers.predict is the function
STEPS = [UNFUSED, *(step for step in steps() if step != "00_copy")]
STEP = "03_shared"


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    """An empty folder for what a reader keeps, in a replay that is not forced."""
    monkeypatch.setattr(MODULE, "MINE", tmp_path / "mine")
    monkeypatch.delenv(gpu.SWITCH, raising=False)
    return tmp_path / "mine" / "predictions.json"


@pytest.fixture
def shown(monkeypatch):
    """What `predict` displays: a list of {type: text}."""
    found = []
    monkeypatch.setattr("IPython.display.display", lambda texts, raw: found.append(texts))
    return found


# ---- the questions ----------------------------------------------------------------------------


def complaints(step: str, entry: dict) -> list[str]:
    """Everything that is wrong with the question of a step, its choices and its sum."""
    found = []
    where = predicted_at(step).place()
    if not entry["question"].endswith(f"at {where}?"):
        found.append(f"the question does not end at {where}")
    shares = sorted(share for share, _ in entry["choices"])
    if len(shares) != 3 or not all(0 < share <= 1.3 for share in shares):
        found.append("there are not three choices of a possible share")
    if any(high < 1.1 * low for low, high in zip(shares, shares[1:], strict=False)):
        found.append("two choices are next to the same")
    if min(abs(share - entry["share"]) for share in shares) > 0.1:
        found.append("no choice is near ours")
    reasons = [why for _, why in entry["choices"]]
    if len(set(reasons)) != 3 or any(len(why.split()) < 8 for why in reasons):
        found.append("a choice has no reason of its own")
    if not 2 <= len(entry["sum"]) <= 5:
        found.append("the sum has not two to five lines")
    if re.search(r"[*_`<>#|~]", "".join([entry["question"], *reasons])):
        found.append("a sign that means something in Markdown")
    sums = []
    for line in entry["sum"]:
        try:
            sums += equations(line)
        except (SyntaxError, TypeError, ArithmeticError):
            found.append(
                f"cannot compute {line!r}: a comma, colon or semicolon ends an equation, and words "
                "other than units are dropped"
            )
    found += [f"{left} is not {right:g}" for left, value, right in sums if off(value, right)]
    if not sums or abs(sums[-1][1] - entry["share"]) > 0.015:
        found.append("the sum does not come to our prediction")
    return found


# What a unit multiplies by; "1.5 a ns" is 1.5e9 a second.
UNITS = {"TB/s": "e12", "GB/s": "e9", "GHz": "e9", "ms": "e-3", "us": "e-6", "per ns": "e9"}
UNITS |= {"KB": "e3", "million": "e6"}


def equations(line: str) -> list[tuple[str, float, float]]:
    """(left side, its value, the right side) of each equation in a line of a sum: words that are
    no unit count for nothing, and a side ends at punctuation."""
    for unit, power in UNITS.items():
        line = re.sub(rf"(\d)((?: [a-z]+)*?) {unit}\b", rf"\1{power}\2", line)
    found = []
    for part in re.split(r"[;:,]", line):
        sides = [
            re.sub(r"(?<![\d.])[A-Za-z][\w']*", " ", side.replace(" x ", " * "))
            for side in part.split("=")
        ]
        if len(sides) == 2:
            right = re.search(r"[\d.]+(e-?\d+)?", sides[1])[0]
            found.append((sides[0].strip(), eval(sides[0].strip()), float(right)))
    return found


def off(value: float, right: float) -> bool:
    """Whether a right side is not its value to two digits or so."""
    return abs(value / right - 1) > 0.025


@pytest.mark.parametrize("step", STEPS)
def test_question_choices_and_sum_are_sound(step: str) -> None:
    assert complaints(step, predictions()[step]) == []


def test_what_the_sums_take_from_a_measurement_is_in_the_records() -> None:
    copy, tree = load_record("00_copy"), load_record("03_shared")
    assert f"{copy.case(*REFERENCE_SHAPE).gbps / 1e3:.1f} TB/s" == "4.3 TB/s"
    assert f"{copy.case(*REFERENCE_SHAPE).median_us / 1e3:.2f} ms" == "0.50 ms"
    assert copy.gpu.sms == 132 and copy.device["at_start"].startswith("1980 MHz")
    assert f"step 03 reached {tree.case(*REFERENCE_SHAPE).share:.2f}" in all_sums()
    barrier = profile.of("03_shared", *REFERENCE_SHAPE).waiting_share(why="barrier")
    assert f"step 03 waits {barrier:.0%} of" in all_sums()
    assert 1 - load_record("06_registers").headline.share == pytest.approx(0.03, abs=0.005)


def all_sums() -> str:
    return "\n".join(line for step in STEPS for line in predictions()[step]["sum"])


# ---- the page ---------------------------------------------------------------------------------


NO_FRACTION = "is no fraction of copy bandwidth: enter a number above 0, where 1 is a copy's speed."
QUOTED = "Enter a number without quotation marks, such as my_prediction = 0.3."
PERCENT = "If 40 means percent, enter the fraction: my_prediction = 0.4."
WRONG = [("0.3", QUOTED), ("a third", QUOTED), (40, PERCENT)]
WRONG += [(one, NO_FRACTION) for one in (1.6, 3000, 0, -1, float("nan"), True, [0.3], 1j, {})]
WRONG += [(one, NO_FRACTION) for one in (Decimal("0.3"), np.zeros(2))]


@pytest.mark.parametrize(("answer", "hint"), WRONG, ids=repr)
def test_what_is_no_share_is_answered_by_a_sentence(answer, hint, shown, mine) -> None:
    predict(STEP, answer)
    assert hint in " ".join(shown[0]["text/plain"].split())
    assert hint in re.sub("</?code>", "", html.unescape(shown[0]["text/html"]))
    assert mine_of(STEP, answer) is None and not mine.exists()


@pytest.mark.parametrize(
    ("mine", "ours", "says"),
    [
        (0.9, 0.57, "Your prediction was 0.28 too high; ours was 0.05 too low."),
        (0.3, 0.62, "Your prediction was 0.32 too low; ours was right."),
        (0.618, None, "Your prediction was right."),
    ],
)
def test_predictions_stand_beside_the_measurement(capsys, mine, ours, says) -> None:
    outcome(0.6213, mine, ours)
    assert capsys.readouterr().out == f"{says}\n"


def test_a_step_without_a_question_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="questions for 00_unfused, 01_naive.*not for '99_x'"):
        predict("99_x", 0.3)


# ---- the reader's file ------------------------------------------------------------------------


def test_a_prediction_is_kept_and_remembered(shown, mine) -> None:
    predict(STEP, 0.3)
    predict("04_shuffle", Fraction(1, 2))
    entries = json.loads(mine.read_text())
    assert set(entries) == {STEP, "04_shuffle"} and set(entries[STEP]) == {"share", "utc"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", entries[STEP]["utc"])
    assert kept() == {STEP: 0.3, "04_shuffle": 0.5}
    predict(STEP)
    assert "Yours, from before: 0.30." in shown[-1]["text/plain"].splitlines()
    assert mine_of(STEP) == 0.3 and mine_of("05_float4") is None


def test_a_forced_replay_neither_reads_nor_writes(shown, mine, monkeypatch) -> None:
    keep(STEP, 0.3)
    before = mine.read_bytes()
    monkeypatch.setenv(gpu.SWITCH, "1")
    predict(STEP)
    assert ASK in shown[0]["text/plain"].splitlines()
    predict(STEP, 0.7)
    assert "Yours: 0.70." in shown[1]["text/plain"].splitlines()
    assert mine.read_bytes() == before
    assert (kept(), mine_of(STEP), mine_of(STEP, 0.7)) == ({}, None, 0.7)


def test_a_damaged_file_is_named_and_left_alone(shown, mine) -> None:
    mine.parent.mkdir()
    mine.write_text('{"03_shared": ')
    predict(STEP, 0.3)
    said = " ".join(shown[0]["text/plain"].split())
    assert "Yours: 0.30. It is not kept: mine/predictions.json is damaged: Expecting" in said
    assert mine.read_text() == '{"03_shared": ' and kept() == {}
