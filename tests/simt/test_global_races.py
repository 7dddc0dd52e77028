"""Races in global memory are found from who comes before whom, whatever the values are."""

import pytest

from tests.simt.global_races import CASES

RACE = "race on global memory"


@pytest.mark.parametrize("name", CASES)
def test_the_racy_twin_is_found(name: str) -> None:
    case = CASES[name]
    findings = [one for one in case.run(racy=True).findings if one.kind == RACE]
    assert findings, "no race found"
    text = "\n".join(one.message for one in findings)
    assert case.says in text, text


@pytest.mark.parametrize("name", CASES)
def test_the_right_twin_has_no_finding(name: str) -> None:
    findings = CASES[name].run(racy=False).findings
    assert not findings, str(findings)
