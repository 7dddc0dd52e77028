"""The last lines of `make run`: what was recorded, what was timed here, and the verdicts."""

import pytest

from helpers.measure import records
from helpers.measure.records import Record
from helpers.page import tables
from helpers.page.tables import summary_table
from tests.made_up import steady


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No prediction and no kernel file beside the records made here."""
    monkeypatch.setattr(records, "predictions", dict)
    monkeypatch.setattr(tables, "best_copies", lambda: {(65536, 4096, "float32"): 1.25})
    monkeypatch.setattr(Record, "is_current", lambda record: True)


def predict(monkeypatch, **steps: dict) -> None:
    for module in (records, tables):
        monkeypatch.setattr(module, "predictions", lambda: steps)


def test_summary_has_what_was_timed_here_first_and_the_record_beside_it(monkeypatch) -> None:
    predict(monkeypatch, **{"01_naive": {"share": 0.25}})

    def load(step: str) -> Record:
        if step == "99_x":
            raise FileNotFoundError
        return steady(step)

    monkeypatch.setattr(tables, "load_record", load)
    here = steady("x", [(32768, 4096)], us=40.0).cases[0]
    verdicts = {"01_naive": "right", "02_online": "right, not timed: x", "99_x": "right"}
    text = summary_table(verdicts, "on this GPU", {"01_naive": here, "99_x": here})
    _, _, _, head, *lines, note = text.splitlines()
    assert " ".join(head.split()).startswith(
        "step rows x columns GB/s here of copy recorded of copy best copy predicted recorded on"
    )
    gbps, mine = (f"{2 * 4 * n / us / 1e3:.0f}" for n, us in ((2**28, 20), (2**27, 40)))
    cells = [" ".join(line.split()) for line in lines]
    assert cells == [
        f"01_naive 32768 x 4096 {mine} 0.250 {gbps} 0.500 1.250 0.25 NVIDIA Test, 2030-01-02 right",
        f"02_online 65536 x 4096 - - {gbps} 0.500 1.250 none NVIDIA Test, 2030-01-02 right, "
        "not timed: x",
        f"99_x 32768 x 4096 {mine} 0.250 not recorded yet right",
    ]
    assert lines[0].index("right") == head.index("kernel") == lines[2].index("right")
    assert note == "Where memory is short here, the record is of more rows."
    same = summary_table({"01_naive": "right"}, "", {"01_naive": steady("01_naive").headline})
    assert "memory" not in same
