"""Flags in shared memory, volatile values and halves of barriers order what they can, no more."""

import pytest

from tests.simt.order_races import CASES, run


@pytest.mark.parametrize("name", CASES)
def test_the_racy_twin_is_found(name: str) -> None:
    findings = run(name, racy=True).findings
    assert findings, "nothing found"
    assert CASES[name].says in str(findings), str(findings)


@pytest.mark.parametrize("name", CASES)
def test_the_right_twin_has_no_finding(name: str) -> None:
    findings = run(name, racy=False).findings
    assert not findings, str(findings)
