"""What the library plans, exports, counts and reports is what the golden data says; README.md tells
how the data is made anew."""

import pytest

from tests.golden import golden, traces


@pytest.mark.parametrize("name", [name for name in golden.NAMES if name not in traces.HELD])
def test_nothing_has_changed(name: str) -> None:
    if reason := golden.why_not(name):
        pytest.skip(reason)
    told = golden.differences(name, traces.EVERY.get(name, 1))
    assert not told, f"{told[0]} ({len(told)} cases differ.)"


def test_no_case_is_new_or_gone() -> None:
    assert [told for name in traces.HELD for told in golden.other_cases(name)] == []
