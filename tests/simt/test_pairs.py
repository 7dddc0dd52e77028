"""Idioms of CUDA, each in one file right and, with -DPLANTED, wrong by a line."""

import pytest

from tests.golden import golden
from tests.simt.pairs import FILES, run


@pytest.mark.parametrize("file", FILES)
def test_the_wrong_one_is_found_and_the_right_one_is_not(file: str) -> None:
    racy, right = run(file, racy=True), run(file, racy=False)
    assert racy.findings
    assert not right.findings, str(right.findings)
    golden.hold("pairs", f"{file}, racy", racy)
    golden.hold("pairs", f"{file}, right", right)
