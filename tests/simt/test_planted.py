"""Planted bugs: the SIMT machine finds each, on its line, and none in the twin without the bug."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from helpers.simt import Trace
from tests.golden import golden
from tests.simt.launches import FOLDER, LIMIT, PLANTED, Found

BUGS = {name: one for name, one in PLANTED.items() if one.found}
TWINS = {name: one for name, one in PLANTED.items() if not one.found}


@cache
def ran(name: str) -> tuple[Trace, list]:
    return PLANTED[name].run()


def message(name: str) -> str:
    return ran(name)[0].findings[0].message


def place(found: Found) -> tuple:
    """Block, thread and count; a number along x stands for a place."""
    block, thread, count = found
    return (
        *((*(at if isinstance(at, tuple) else (at,)), 0, 0)[:3] for at in (block, thread)),
        count,
    )


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found_on_its_line(name: str) -> None:
    planted, (trace, _) = BUGS[name], ran(name)
    findings = trace.findings
    file = f"kernels/{planted.file}.cu"
    expected = [(kind, file, line) for kind, line in planted.marks]
    assert [(f.kind, f.file, f.line) for f in findings] == expected, str(findings)
    for finding, found in zip(findings, planted.found, strict=True):
        block, thread, count = place(found)
        assert (finding.block, finding.thread) == (block, thread)
        assert count in (None, finding.count)
    golden.hold("planted", name, trace)


@pytest.mark.parametrize("name", TWINS)
def test_the_repaired_twin_has_no_finding_and_the_right_numbers(name: str) -> None:
    planted = TWINS[name]
    assert not planted.marks
    seen, arguments = planted.run()
    assert not seen.findings, str(seen.findings)
    assert not planted.launch.wrong(arguments)
    assert all(values.any() for values in planted.launch.expected.values())
    golden.hold("planted", name, seen)


@pytest.mark.parametrize("file", sorted({one.file for one in PLANTED.values()}))
def test_every_kernel_of_a_file_is_launched(file: str) -> None:
    text = (FOLDER / f"{file}.cu").read_text()
    there = {
        line.split("void ")[1].split("(")[0] for line in text.splitlines() if "_global_" in line
    }
    assert there == {one.kernel for one in PLANTED.values() if one.file == file}


def test_launches_leave_the_table_as_it_is() -> None:
    planted = PLANTED["global_bounds/misaligned"]
    before = [np.copy(value) for value in planted.launch.values]
    planted.run()
    assert all(map(np.array_equal, before, planted.launch.values))


# ---- texts of findings, and memory after a launch ------------------------------------------------


# What the first message says, and what y holds afterwards: the rest goes on.
AFTER: dict[str, tuple[str, Callable[[np.ndarray], bool]]] = {
    "global_bounds/off_by_one": (
        "4 bytes not inside any array: 0 bytes past the end of x (4000 bytes)",
        lambda y: np.isnan(y[99]) and not np.isnan(y[:99]).any(),
    ),
    "global_bounds/before_the_array": (
        "4 bytes before x",
        lambda y: np.isnan(y[0]) and (y[1:] == 1).all(),
    ),
    "global_bounds/missing_guard": ("past the end", lambda y: (y == 2 * np.arange(1, 101)).all()),
    "global_bounds/flat_index": ("past the end", lambda y: (y == 1).all()),
    "global_bounds/wild_pointer": ("address 0x7f00deadbee0", lambda y: np.isnan(y).all()),
    "waiting/endless_loop": (
        f"stopped after {LIMIT} instructions",
        lambda y: y[0] == 0 and (y[1:] > 100).all(),  # what was stored so far is there
    ),
    "global_bounds/bad_index": ("past the end", lambda y: not np.isnan(y[:99]).any()),
    "global_bounds/bad_pointer": ("0 bytes past the end of table", lambda y: np.isnan(y).all()),
}


@pytest.mark.parametrize("name", AFTER)
def test_a_bug_is_told_and_the_rest_goes_on(name: str) -> None:
    says, holds = AFTER[name]
    assert says in message(name)
    assert holds([one for one in ran(name)[1] if isinstance(one, np.ndarray) and one.ndim][-1])


def test_messages_say_where_the_other_thread_was_and_how_much_memory_there_is() -> None:
    ((_, line),) = PLANTED["shared_races/after_fill"].marks
    race = message("shared_races/after_fill")
    assert f"accessed at line {line - 2}, with no barrier in between" in race
    assert "the same store" in message("shared_races/one_place")
    past = message("shared_bounds/read_past")
    assert "4 bytes at byte 256" in past and "(256 bytes of" not in past
    assert "256 bytes of shared memory (256 static, 0 dynamic)" in past
    small = message("shared_bounds/too_small")
    assert "4 bytes at byte 128" in small and "(0 static, 128 dynamic)" in small
    assert "multiple of 16; this one is at byte 4 " in message("shared_bounds/misaligned_load")


@pytest.mark.parametrize(
    ("name", "arrivals", "size"),
    [
        ("mbarriers/too_many_bytes", 0, 16),
        ("mbarriers/elements_for_bytes", 0, 64 - 256),
        ("mbarriers/too_few_arrivals", 62, 0),
        ("clusters/arrivals_missing", 64, 0),
    ],
)
def test_a_wait_that_never_ends_says_what_is_missing(name: str, arrivals: int, size: int) -> None:
    expected = f"still waits for {arrivals} arrivals and {size} bytes"
    assert expected in message(name)


@pytest.mark.parametrize(
    "name",
    [
        "waiting/flag_never_set",
        "waiting/lock_never_released",
        "waiting/grid_barrier_after_return",
        "clusters/barrier_and_flag",
    ],
)
def test_a_poll_that_nobody_answers_is_given_up_before_the_limit(name: str) -> None:
    assert "a store that no thread of the resident blocks will make" in message(name)


def test_messages_name_the_place_and_the_size() -> None:
    assert "252" in message("bulk_copies/bulk_odd_size")
    assert "from byte 256 of x (400 bytes) on" in message("bulk_copies/bulk_past_array")
    past = message("bulk_copies/bulk_past_shared")
    assert "1024 bytes at byte 128" in past and "384 bytes of shared memory" in past
    assert "4 bytes at byte -4 of the thread's 32 bytes" in message("local_memory/one_before")
