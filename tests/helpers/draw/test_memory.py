"""Pictures of memory traffic: which access is drawn, its turns, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest

from helpers import draw
from helpers.bound import load
from helpers.draw import memory
from helpers.simt import Trace


def traced(step: str, rows: int, cols: int, dtype: str = "float32", watch=True) -> Trace:
    x = np.random.default_rng(0).normal(size=(rows, cols)).astype(dtype)
    return load(step).bind(rows, cols, dtype).simulate(x, np.full_like(x, np.nan), watch=watch)


@pytest.fixture(scope="module")
def naive() -> Trace:
    return traced("01_naive", 64, 256)


@pytest.fixture(scope="module")
def shared() -> Trace:
    return traced("03_shared", 4, 1024)


@pytest.fixture(scope="module")
def interleaved() -> Trace:
    return traced("variants/03_shared_interleaved", 2, 1024)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list]:
    """(figure, title, sentence) of each that is shown, still open."""
    shown: list = []
    monkeypatch.setattr(memory, "finish", lambda *given: shown.append(given))
    yield shown
    plt.close("all")


# ---- what is said -------------------------------------------------------------------------------


def test_a_thread_a_row_beside_a_block_a_row(naive, shared, figures) -> None:
    lines = "fmaxf(row_max, x[col])", "merge(row_max, sum, x[col]"
    draw.sectors({"01": naive, "03": shared}, lines)
    ((_, title, sentence),) = figures
    assert title == "lanes on sectors, 01, line 30 and 03, line 42"
    assert sentence == (
        "01, line 30, warp 0: one request touches 32 sectors and uses 128 of 1,024 bytes; "
        "03, line 42, warp 0: 4 sectors, all 128 bytes."
    )


def test_neighbours_first_wants_few_banks(interleaved, figures) -> None:
    for nth, banks in ((0, 16), (2, 8), (4, 4)):
        draw.banks(interleaved, "maxima[mine], sums[mine]", nth=nth)
        wanted = 32 // banks
        assert figures[-1][2] == (
            f"Line 50: 32 lanes want {wanted} words of each of {banks} banks; {wanted} turns, "
            "conflict-free would be 1."
        )


def test_what_moves_is_said_in_passes_and_bytes(naive, shared, figures) -> None:
    draw.moves({"01": naive, "03": shared})
    assert figures[0][2] == (
        "01 reads x three times and writes y once: 65,536 sectors, 8 bytes moved for each one "
        "asked for; 03 reads x twice and writes y once: 1,536 sectors, 1 byte moved for each one "
        "asked for."
    )
