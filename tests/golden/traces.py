"""What the SIMT machine counts and reports for every kernel of the tests' sets."""

from __future__ import annotations

import re

from . import sources

# Their own tests run every case of these, and hold it against the golden data by `golden.hold`.
HELD = ("hardware", "global_races", "order_races", "planted", "strangers", "pairs")
SETS = (*HELD, "series")
EVERY = 4  # of the others a test runs one case of so many


def described(trace) -> dict:
    """A trace as it is stored. Of a message only the numbers count, in order of size, so that
    another wording is no difference, but another line is one."""
    return {
        "counters": {name: count for name, count in sources.counters(trace).items() if count},
        "lines": {
            str(line): {name: count for name, count in counts.items() if count}
            for line, counts in sources.lines(trace).items()
        },
        "standing": sources.standing(trace),
        "diagnostics": [
            {
                "kind": one.kind,
                "file": one.file.rpartition("/")[2],
                "line": one.line,
                "block": list(one.block),
                "thread": list(one.thread),
                "count": one.count,
                "used at line": one.used[1] if one.used else None,
                "numbers of the message": sorted(map(int, re.findall(r"\d+", one.message))),
            }
            for one in trace.findings
        ],
        "printed": trace.printed,
    }


def computed(name: str, cases: list[str] | None = None) -> dict[str, list[dict]]:
    """The launches of each case of a set, or of some of its cases."""
    known = sources.sets()[name]
    return {
        case: [described(trace) for trace in known[case]()]
        for case in (known if cases is None else cases)
    }
