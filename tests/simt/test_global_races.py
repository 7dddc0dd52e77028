"""Races in global memory are found from who comes before whom, whatever the values are."""

import pytest

from tests.simt.global_races import CASES, RULES

RACE = "race on global memory"


@pytest.mark.parametrize("name", CASES)
def test_the_racy_twin_is_found(name: str) -> None:
    findings = [one for one in RULES.run(name, racy=True).findings if one.kind == RACE]
    assert findings, "no race found"
    text = "\n".join(one.message for one in findings)
    assert CASES[name].says in text, text


@pytest.mark.parametrize("name", CASES)
def test_the_right_twin_has_no_finding(name: str) -> None:
    findings = RULES.run(name, racy=False).findings
    assert not findings, str(findings)
