"""Planted bugs: the SIMT machine finds each, on its line, and none in the twin without the bug."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from helpers.simt import Trace
from tests.golden import golden
from tests.simt.launches import FOLDER, LIMIT, PLANTED, Launch, floats, kernels, zeros

BUGS = {name: one for name, one in PLANTED.items() if one.bug}
TWINS = {name: one for name, one in PLANTED.items() if not one.bug}


@cache
def ran(name: str) -> tuple[Trace, list]:
    return PLANTED[name].run()


def message(name: str) -> str:
    return ran(name)[0].findings[0].message


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found_on_its_line(name: str) -> None:
    planted, (trace, _) = BUGS[name], ran(name)
    findings = trace.findings
    file = f"kernels/{planted.file}.cu"
    expected = [(kind, file, line) for kind, line in planted.marks]
    assert [(f.kind, f.file, f.line) for f in findings] == expected, str(findings)
    assert findings
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


def test_every_kernel_is_launched() -> None:
    launched = {(one.file, one.kernel) for one in PLANTED.values()}
    planted = {path.stem for path in FOLDER.glob("*.cu") if "// <- " in path.read_text()}
    assert launched == {(file, name) for file in planted for name in kernels(file)}


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
    "global_bounds/store_past_the_end": (
        "past the end of y (400 bytes)",
        lambda y: (y == 1 + np.arange(100) // 2).all(),
    ),
    "global_bounds/misaligned": (
        "an access of 16 bytes needs an address that is a multiple of 16; byte 0 of x, "
        "which starts 4 bytes past a multiple of 256",
        lambda y: not y.any(),
    ),
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


# ---- kernels of global_bounds.cu launched in other ways ------------------------------------------

PAST, BEYOND = "out-of-bounds load", "out-of-bounds store"
LATE = {"count": 128 * 20 + 7, "block": (279, 0, 0), "thread": (121, 0, 0)}
ASTRAY = np.arange(100, dtype=np.int32) // 2
ASTRAY[50] = -5000
# The kernel, its launch, the first findings, what their messages say.
OTHERS = {
    "a null pointer": (
        "wild_pointer_clean",
        Launch(1, 32, (0, zeros(32), 0)),
        [{"kind": PAST, "count": 32}],
        "address 0x0",
    ),
    "an empty array": (
        "wild_pointer_clean",
        Launch(1, 32, (zeros(0), zeros(32), 0)),
        [{"kind": PAST, "count": 32}],
        "past the end of x (0 bytes)",
    ),
    "a vector that hangs over the end is outside as a whole": (
        "misaligned",
        Launch(1, 2, (floats(6), zeros(8), 8)),
        [{"kind": PAST, "count": 1, "thread": (1, 0, 0)}],
        "16 bytes not inside any array: from byte 16 of x (24 bytes) on",
    ),
    "one thread led astray silences no other": (
        "bad_index",
        Launch(2, 64, (ASTRAY, floats(100), zeros(100), 100)),
        [{"thread": (35, 0, 0), "count": 1}, {"thread": (49, 0, 0), "count": 1}],
        "past the end",
    ),
    "the first thread at fault is in a later batch": (
        "missing_guard",
        Launch(300, 128, (floats(128 * 280 - 7), zeros(128 * 280 - 7), 128 * 280 - 7)),
        [{"kind": PAST, **LATE}, {"kind": BEYOND, **LATE}],
        "past the end",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_found_in_another_launch(name: str) -> None:
    kernel, launch, expected, says = OTHERS[name]
    trace, _ = replace(PLANTED[f"global_bounds/{kernel}"], launch=launch).run()
    assert says in trace.findings[0].message
    for finding, wanted in zip(trace.findings, expected, strict=False):
        assert wanted.items() <= vars(finding).items()
    assert len(trace.findings) >= len(expected)


def test_a_report_has_a_line_for_each_finding() -> None:
    findings = ran("global_bounds/several")[0].findings
    lines = str(findings).splitlines()
    assert len(lines) == len(findings) == 4
    assert re.match(r"kernels/global_bounds\.cu:\d+: out-of-bounds load, once: 4 bytes ", lines[0])
    assert f":{findings[2].line}: misaligned load, 32 times: " in lines[2]
    assert lines[0].endswith("(first in block (0, 0, 0), thread (31, 0, 0))")
    assert "ld.global" in findings[0].ptx
    assert str(PLANTED["global_bounds/several_clean"].run()[0].findings) == "no findings"
