"""One of a thing is named without an s."""

from helpers.simt.words import are, counted, often


def test_one_is_singular() -> None:
    assert [counted(number, "row") for number in (0, 1, 2, 1024)] == [
        *("0 rows", "1 row", "2 rows", "1,024 rows")
    ]
    assert [often(number) for number in (1, 2)] == ["once", "2 times"]
    assert [are(number) for number in (0, 1, 2)] == ["are", "is", "are"]
