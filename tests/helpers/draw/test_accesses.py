"""Which access a figure is of: found by line, text, block and number; and its turns, which
are the wavefronts that an H200 counted."""

import json
import re

import numpy as np
import pytest

from helpers.base.paths import ROOT
from helpers.catalogue.registry import source
from helpers.page.draw.accesses import Shown, chosen
from helpers.run.bound import bind
from helpers.simt import Trace, WatchedAccess

MEASURED = json.loads((ROOT / "tests/data/shared_wavefronts_h200.json").read_text())["cases"]
BYTES = {"short": 2, "float": 4, "float2": 8, "float4": 16}


def traced(name: str, rows: int, cols: int) -> Trace:
    x = np.random.default_rng(0).normal(size=(rows, cols)).astype(np.float32)
    return bind(source(name), rows, cols).simulate(x, np.full_like(x, np.nan), watch=True)


@pytest.fixture(scope="module")
def naive() -> Trace:
    return traced("01_naive.cu", 64, 8)


def the(trace: Trace, line: int | str, memory: str = "global", **which) -> WatchedAccess:
    (one,) = chosen(trace, memory, line, **which)
    return one.access


def refusal(*args, **options) -> str:
    with pytest.raises(ValueError) as caught:
        the(*args, **options)
    return str(caught.value)


# ---- choosing -----------------------------------------------------------------------------------


def test_nth_counts_the_accesses_of_one_warp(naive: Trace) -> None:
    for nth in (0, 3, 7, -1):
        assert the(naive, 34, nth=nth).offsets[0] == 4 * (nth % 8)
    assert "warp 0 of block 0 has 8 loads in line 34 of 01_naive.cu" in refusal(naive, 34, nth=8)


def test_what_is_not_there_or_not_the_only_one_is_listed(naive: Trace) -> None:
    text = refusal(naive, "x[col]")
    assert text.startswith("'x[col]' is in 3 lines of 01_naive.cu that reach global memory;")
    assert re.findall(r"^ +(\d+): (\S+)", text, re.MULTILINE) == [
        ("30", "row_max"),
        ("34", "sum"),
        ("37", "y[col]"),
    ]
    for line in ("x[row]", "rows) return", "", 24, 0):
        text = refusal(naive, line)
        assert "these do:\n   30: row_max = fmaxf" in text and text.count("\n") == 3
    assert refusal(naive, 30, memory="shared").endswith("reach shared memory; these do: none")
    assert "block 5 does not reach line 30 of 01_naive.cu; 1 do: 0" in refusal(naive, 30, block=5)


# ---- turns --------------------------------------------------------------------------------------


def access(index: list[int], size: int, kind: str) -> Shown:
    """A warp's access of s[index[lane]]; lanes with -1 take no part."""
    offsets = np.array(index) * size
    mask = offsets >= 0
    args = 0, 1, kind, "shared", (0, 0, 0), 0, mask, "", np.where(mask, offsets, 0), size
    return Shown("", None, WatchedAccess(*args))


@pytest.mark.parametrize("kind", ["load", "store"])
def test_turns_are_the_wavefronts_of_the_hardware(kind: str) -> None:
    assert len(MEASURED) == 123
    for case in MEASURED:
        one = access(case["index"], BYTES[case["type"]], kind)
        assert len(one.turns) == case[f"{kind}_wavefronts"], (case["type"], case["pattern"])
