"""Tables show the right cases of records that hold several dtypes and shapes."""

import dataclasses

import pytest

from helpers import peers, records, tables
from helpers.races import RaceCase
from helpers.records import Record
from helpers.shapes import FEW_SHAPES, GRID_SHAPES, SWEEP_SHAPES, UNALIGNED_RACE_SHAPES
from helpers.tables import ledger, race_table, summary_table, table
from tests.made_up import race_case, steady


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No prediction and no kernel file beside the records made here."""
    monkeypatch.setattr(records, "predictions", dict)
    monkeypatch.setattr(Record, "is_current", lambda record: True)


def lines_of(text: str) -> list[list[str]]:
    """The words of a table's lines behind its title."""
    return [line.split() for line in text.splitlines()[1:]]


def predict(monkeypatch, **steps: dict) -> None:
    for module in (records, tables):
        monkeypatch.setattr(module, "predictions", lambda: steps)


# ---- steps ------------------------------------------------------------------------------------


def test_table_of_the_grid_beside_the_previous_step() -> None:
    head, *lines = lines_of(table(steady("07_x"), steady("06_x", us=30.0)))
    assert head == "rows cols copy GB/s GB/s spread of copy 06_x x previous".split()
    assert [line[:2] for line in lines] == [[str(r), str(c)] for r, c in GRID_SHAPES]
    gbps = 2 * 2**28 * 4 / 1e3
    expected = [f"{gbps / us:.0f}" for us in (10, 20)]
    assert lines[0][2:] == [*expected, "10.0%", "0.500", f"{gbps / 30:.0f}", "1.50"]


def test_table_in_another_dtype_says_so_and_marks_what_the_previous_step_lacks() -> None:
    previous = steady("07_x", GRID_SHAPES[:2], ("float32", "float16"), 40.0)
    previous.cases[2:] = [dataclasses.replace(c, samples_us=[80.0] * 3) for c in previous.cases[2:]]
    text = table(steady("10_x", dtypes=("float16",)), previous, dtype="float16")
    assert text.startswith("10_x in float16, recorded on NVIDIA Test on 2030-01-02")
    _, *lines = lines_of(text)
    assert [line[-1] for line in lines] == ["4.00", "4.00", *["-"] * 9]
    assert lines[0][3] == f"{2 * 2**28 * 2 / 20 / 1e3:.0f}"
    text = table(steady("10_x", dtypes=("float16",)))
    assert text.endswith(": not measured at these shapes") and text.startswith("10_x, recorded")


def test_another_family_or_unit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="shapes are one of grid, long, few, sweep, not 'zz'"):
        table(steady("09_x"), shapes="zz")
    with pytest.raises(ValueError, match="the unit is one of share, us, not 'ms'"):
        race_table([race_case()], unit="ms")


def test_table_of_few_rows_has_microseconds() -> None:
    text = table(steady("09_x", us=12.5), steady("08_x", FEW_SHAPES[:1]), shapes="few")
    head, *lines = lines_of(text)
    assert head == "rows cols us copy us us more spread of copy 08_x, us x previous".split()
    assert lines[0] == "1 32000 12.50 10.00 2.50 16.0% 0.800 20.00 1.60".split()
    assert lines[4] == "1 1048576 12.50 10.00 2.50 16.0% 0.800 - -".split()
    (width,) = {len(line) for line in text.splitlines()[1:]}
    assert width <= 88


def test_columns_of_long_rows_stay_aligned() -> None:
    text = table(steady("08_cluster"), steady("06_x"), shapes="long").splitlines()[1:]
    assert len({len(line) for line in text}) == 1 and len(text) == 17


def test_table_of_the_sweep_has_its_shapes() -> None:
    text = table(steady("01_naive"), shapes="sweep")
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
    both = steady("10_x", dtypes=("float32", "bfloat16"))
    half = len(both.cases) // 2
    both.cases[:half] = [dataclasses.replace(c, samples_us=[99.0]) for c in both.cases[:half]]
    text = ledger([steady("01_naive"), steady("09_x", us=20), both, steady("11_x")])
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1:] == [
        "01_naive 65536 x 4096 0.25 0.500 2.00",
        "09_x 1 x 1048576 0.40 0.500 1.25",
        "10_x 2097152 x 128 bfloat16 1.00 0.500 0.50",
        "11_x 3 x 128 not measured here",
    ]
    assert len({len(line) for line in text.splitlines()[:4]}) == 1


def test_summary_says_what_is_not_recorded_or_not_current(monkeypatch) -> None:
    predict(monkeypatch, **{"01_naive": {"share": 0.25}})

    def load(step: str) -> Record:
        if step == "99_x":
            raise FileNotFoundError
        return steady(step)

    monkeypatch.setattr(tables, "load_record", load)
    monkeypatch.setattr(Record, "is_current", lambda record: record.step == "01_naive")
    verdicts = {"01_naive": "right", "02_online": "zero at (1, 2)\nmore", "99_x": "right"}
    empty, units, head, *lines = summary_table(verdicts, "here").splitlines()
    assert empty == "" and units.startswith("GB/s = 2 x rows x columns")
    assert head.split()[-2:] == ["kernel", "here"]
    gbps = f"{2 * 2**28 * 4 / 20 / 1e3:.0f}"
    cells = [" ".join(line.split()) for line in lines]
    assert cells == [
        f"01_naive 65536 x 4096 {gbps} 0.500 0.25 NVIDIA Test, 2030-01-02 right",
        f"02_online 65536 x 4096 {gbps} 0.500 none NVIDIA Test, 2030-01-02 (earlier version) "
        "zero at (1, 2)",
        "99_x not recorded yet right",
    ]
    assert lines[2].index("right") == head.index("kernel")


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
    _, _, head, *lines, note = text.splitlines()
    assert " ".join(head.split()).startswith(
        "step rows x columns GB/s here of copy recorded of copy predicted recorded on kernel"
    )
    gbps, mine = (f"{2 * 4 * n / us / 1e3:.0f}" for n, us in ((2**28, 20), (2**27, 40)))
    cells = [" ".join(line.split()) for line in lines]
    assert cells == [
        f"01_naive 32768 x 4096 {mine} 0.250 {gbps} 0.500 0.25 NVIDIA Test, 2030-01-02 right",
        f"02_online 65536 x 4096 - - {gbps} 0.500 none NVIDIA Test, 2030-01-02 right, not timed: x",
        f"99_x 32768 x 4096 {mine} 0.250 not recorded yet right",
    ]
    assert lines[0].index("right") == head.index("kernel") == lines[2].index("right")
    assert note == "Where memory is short here, the record is of more rows."
    same = summary_table({"01_naive": "right"}, "", {"01_naive": steady("01_naive").headline})
    assert "memory" not in same


# ---- the race ---------------------------------------------------------------------------------


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case was raced with the kernel as it is."""
    monkeypatch.setattr(RaceCase, "is_current", lambda case: True)


def words_of(*cases: RaceCase, unit: str = "share") -> list[list[str]]:
    """The words of the table's head and of each case."""
    _, head, *lines = race_table(cases, unit).splitlines()
    return [head.split(), *(line.split() for line in lines[: len(cases)])]


def test_table_says_which_cases_are_older_than_the_kernel(monkeypatch) -> None:
    monkeypatch.setattr(RaceCase, "is_current", lambda case: case.rows == 1)
    cases = [race_case(1, 8192), race_case(2, 8192)]
    _, new, old = words_of(*cases)
    assert new[-1] == "ahead" and old[-2:] == ["ahead", "#"]
    text = race_table(cases).splitlines()
    assert text[-1] == "#: ours was another kernel or launch than would be chosen now"
    assert "#" not in race_table(cases[:1])


@pytest.mark.usefixtures("current")
def test_table_says_where_our_calls_overlap() -> None:
    plain, early = race_case(torch=20.0), race_case(torch=20.0)
    early = dataclasses.replace(early, launch={"PROGRAMMATIC": 1})
    assert "+" not in race_table([plain])
    lines = race_table([plain, early]).splitlines()
    assert [line.endswith(" +") for line in lines[2:4]] == [False, True]
    assert lines[-1].startswith("+: our kernel starts before")


@pytest.mark.usefixtures("current")
def test_without_peers_there_is_no_loss() -> None:
    case = race_case()
    del case.samples_us["torch"]
    assert (case.best_peer, case.verdict) == (None, "ahead")
    assert words_of(case)[1][4:] == ["-", "inf", "ahead"]


@pytest.mark.usefixtures("current")
def test_table_of_shares() -> None:
    cases = [race_case(cudnn=12.5, quack=9.0), race_case(8192, 8192, triton=19.4)]
    head, first, second = words_of(*cases)
    assert head == "rows cols copy GB/s ours torch triton quack cudnn best peer lead".split()
    assert first == "1024 4096 3459 0.970 0.485 - 1.078 0.776 quack 0.900 LOSS".split()
    assert second[4:] == "0.485 0.500 - - triton 1.940 ahead".split()
    text = race_table(cases).splitlines()
    assert text[0] == "float32, share of a copy's bandwidth"
    assert len({line.rfind(".") for line in text[2:4]}) == 1
    assert " ".join(text[4:]) == (
        "lead: time of the best peer / ours; ahead: above 1.01; level: 0.99 to 1.01; "
        "LOSS: below 0.99, or not above 1 although the best peer is below 0.97 of a copy"
    )


@pytest.mark.usefixtures("current")
def test_table_of_microseconds_and_unaligned_rows() -> None:
    case = race_case(*UNALIGNED_RACE_SHAPES[1], quack=9.9)
    head, first = words_of(case, unit="us")
    assert head[2:4] == ["copy", "us"]
    assert first[1:6] == ["77*", "9.70", "10.00", "20.00", "9.90"]
    assert first[-1] == "level"
    text = race_table([case], "us").splitlines()
    assert text[0] == "float32, microseconds a call"
    assert text[-1] == "*: rows that do not start at multiples of 16 bytes"


def test_table_of_every_peer_fits_a_notebook() -> None:
    times = dict.fromkeys(peers.PEERS, 123.45)
    case = race_case(*UNALIGNED_RACE_SHAPES[1], **times)
    wide = dataclasses.replace(case, rows=8388608, cols=1048576)
    for unit in ("share", "us"):
        assert max(map(len, race_table([case, wide], unit).splitlines())) < 110
