"""Fixtures for figures."""

import pytest

from tests.helpers.draw.looks import Shown


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What calls of helpers.draw show, instead of showing it."""
    return Shown(monkeypatch)
