"""What the library plans, counts and reports is what the golden data says; README.md tells how the
data is made anew. The tests of the other sets hold each launch that they make against it."""

import pytest

from tests.golden import golden


@pytest.mark.parametrize("name", ["plans", "series"])
def test_nothing_has_changed(name: str) -> None:
    if reason := golden.why_not(name):
        pytest.skip(reason)
    told = golden.differences(name, every=4)
    assert not told, f"{told[0]} ({len(told)} cases differ.)"


def test_no_case_is_new_or_gone() -> None:
    assert [told for name in golden.HELD for told in golden.other_cases(name)] == []
