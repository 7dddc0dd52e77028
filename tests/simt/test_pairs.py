"""Idioms of CUDA, each in one file right and, with -DPLANTED, wrong by a line."""

import pytest

from tests.golden import golden
from tests.simt.pairs import FILES, FOLDER, run


@pytest.mark.parametrize("file", FILES)
def test_the_wrong_one_is_found_and_the_right_one_is_not(file: str) -> None:
    racy, right = run(file, racy=True), run(file, racy=False)
    assert racy.findings
    assert not right.findings, str(right.findings)
    golden.hold("pairs", f"{file}, racy", racy)
    golden.hold("pairs", f"{file}, right", right)


def test_lines_of_a_pair_fit_a_screen() -> None:
    for file in FILES:
        lines = (FOLDER / f"{file}.cu").read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 45 and max(map(len, lines)) <= 100, file
