"""What findings say, and what a bug leaves in memory: kernels of tests/simt/kernels, launched in
several ways. That every planted bug is found is in tests/simt/test_planted.py.
"""

import re
from dataclasses import dataclass

import cupy
import numpy as np
import pytest

from helpers.simt import Trace, simulate
from helpers.simt.geometry import BATCH_THREADS
from tests.simt.launches import LIMIT, floats, marks, source

Place = tuple[int, int, int]


@dataclass(frozen=True)
class Bug:
    """What a finding has to say; block and thread are the first of `count` occurrences."""

    kind: str
    count: int
    block: Place = (0, 0, 0)
    thread: Place = (0, 0, 0)


FILE = "global_bounds"
OUTSIDE, BEYOND = "out-of-bounds load", "out-of-bounds store"


def run(kernel: str, grid, block, *args, options=("-DPLANTED",)) -> Trace:
    raw = cupy.RawKernel(source(FILE), kernel, options)
    return simulate(raw, grid, block, args, instruction_limit=LIMIT)


def assert_finds(trace: Trace, kernel: str, *bugs: Bug) -> None:
    expected = [
        (bug.kind, f"kernels/{FILE}.cu", line, bug.block, bug.thread, bug.count)
        for bug, (_, line) in zip(bugs, marks(FILE, kernel), strict=True)
    ]
    found = [(f.kind, f.file, f.line, f.block, f.thread, f.count) for f in trace.findings]
    assert found == expected, str(trace.findings)
    assert [bug.kind for bug in bugs] == [kind for kind, _ in marks(FILE, kernel)]


def walled(count: int) -> tuple[np.ndarray, np.ndarray]:
    """A zeroed array, and the longer one around it that must stay as it is: all sevens."""
    around = np.full(count + 128, 7, np.float32)
    inside = around[64 : 64 + count]
    inside[:] = 0
    return inside, around


def assert_wall_stands(around: np.ndarray) -> None:
    assert (around[:64] == 7).all() and (around[-64:] == 7).all()


# ---- out of bounds ------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [0, np.zeros(0, np.float32)], ids=["null", "empty"])
def test_a_null_pointer_and_an_empty_array_hold_nothing(x) -> None:
    trace = run("wild_pointer", 1, 32, x, np.zeros(32, np.float32), 0, options=())
    assert [(f.kind, f.count) for f in trace.findings] == [(OUTSIDE, 32)]
    assert isinstance(x, np.ndarray) or "address 0x0" in trace.findings[0].message


def test_a_store_past_the_end_is_dropped() -> None:
    y, around = walled(100)
    trace = run("store_past_the_end", 2, 64, floats(100), y, 100)
    bug = Bug(BEYOND, 50, (0, 0, 0), (50, 0, 0))
    assert_finds(trace, "store_past_the_end", bug, bug)
    assert y.tolist() == [1 + i // 2 for i in range(100)]
    assert_wall_stands(around)


def test_a_vector_that_hangs_over_the_end_is_out_of_bounds_as_a_whole() -> None:
    x, y = floats(6), np.zeros(8, np.float32)
    trace = run("misaligned", 1, 2, x, y, 8)
    assert [(f.kind, f.count, f.thread) for f in trace.findings] == [(OUTSIDE, 1, (1, 0, 0))]
    assert "16 bytes" in trace.findings[0].message
    assert "from byte 16 of x (24 bytes) on" in trace.findings[0].message
    assert y[:4].tolist() == [2, 4, 6, 8] and np.isnan(y[4:]).all()


# ---- misaligned ---------------------------------------------------------------------------------


@pytest.mark.parametrize("skip", [1, 2, 3, 5])
def test_vectors_in_a_view_that_starts_off_16_bytes_are_misaligned(skip: int) -> None:
    x, y = floats(100, skip), np.zeros(100 + skip, np.float32)[skip:]
    trace = run("misaligned", 1, 32, x, y, 100)
    bugs = Bug("misaligned load", 25), Bug("misaligned store", 25)
    assert_finds(trace, "misaligned", *bugs)
    message = trace.findings[0].message
    assert "an access of 16 bytes needs an address that is a multiple of 16" in message
    assert f"byte 0 of x, which starts {4 * skip} bytes past a multiple of 256" in message
    assert not y.any()


# ---- what follows from a bug --------------------------------------------------------------------


def test_one_thread_led_astray_silences_no_other() -> None:
    offsets = np.arange(100, dtype=np.int32) // 2
    offsets[50] = -5000
    trace = run("bad_index", 2, 64, offsets, floats(100), np.zeros(100, np.float32), 100)
    first = [(f.kind, f.line, f.thread, f.count) for f in trace.findings[:2]]
    ((_, line),) = marks(FILE, "bad_index")
    assert first == [(OUTSIDE, line, (35, 0, 0), 1), (OUTSIDE, line + 1, (49, 0, 0), 1)]


# ---- several bugs, many blocks ------------------------------------------------------------------


def test_a_report_has_a_line_for_each_finding() -> None:
    trace = run("several", 1, 32, floats(32), floats(40), np.zeros(32, np.float32), 32)
    lines = str(trace.findings).splitlines()
    assert len(lines) == len(trace.findings) == 4
    assert re.match(r"kernels/global_bounds\.cu:\d+: out-of-bounds load, once: 4 bytes ", lines[0])
    line = marks(FILE, "several")[2][1]
    assert lines[2].startswith(f"kernels/global_bounds.cu:{line}: misaligned load, 32 times: ")
    assert lines[0].endswith("(first in block (0, 0, 0), thread (31, 0, 0))")
    assert "ld.global" in trace.findings[0].ptx
    clean = run("several", 1, 32, floats(32), floats(40), np.zeros(32, np.float32), 32, options=())
    assert str(clean.findings) == "no findings"


def test_the_first_thread_at_fault_may_be_in_a_later_batch() -> None:
    grid, size = 300, 128 * 280 - 7
    assert BATCH_THREADS < size < 128 * grid
    trace = run("missing_guard", grid, 128, floats(size), np.zeros(size, np.float32), size)
    first = {"count": 128 * 20 + 7, "block": (279, 0, 0), "thread": (121, 0, 0)}
    assert_finds(trace, "missing_guard", Bug(OUTSIDE, **first), Bug(BEYOND, **first))
