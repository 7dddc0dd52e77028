"""Every golden file: how it is computed, which cases a test runs, and how they are compared."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from helpers.simt import Trace

from . import plans, sources, store

# Their own tests run every case of these, and hold it against the golden data by `hold`.
HELD = ("hardware", "global_races", "order_races", "planted", "strangers", "pairs")
NAMES = ("plans", *HELD, "series")
read = cache(store.read)


def computed(name: str) -> dict:
    """All that the file holds."""
    if name == "plans":
        return plans.computed()
    return {"nvrtc": sources.nvrtc_version(), "cases": traces(name, sources.sets()[name])}


def traces(name: str, cases: Iterable[str]) -> dict[str, list[dict]]:
    """The launches of each of these cases of a set."""
    known = sources.sets()[name]
    return {case: [described(trace) for trace in known[case]()] for case in cases}


def described(trace: Trace) -> dict:
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


def why_not(name: str) -> str:
    """Why a file cannot be compared here; "" if it can. Counters and lines are those of one version
    of NVRTC."""
    if name == "plans":
        return ""
    here, there = sources.nvrtc_version(), read(name)["nvrtc"]
    return "" if here == there else f"made with NVRTC {there}, here is {here}"


def differences(name: str, every: int = 1) -> list[str]:
    """A sentence for each case of a file that differs, of one case of so many."""
    if name == "plans":
        return plan_differences(read(name))
    there = read(name)["cases"]
    cases = [case for case in sorted(sources.sets()[name])[::every] if case in there]
    return other_cases(name) + _told(name, there, traces(name, cases))


def hold(name: str, case: str, *launches: Trace) -> None:
    """Hold the launches of one case, which a test has made, against the golden data of a set."""
    if not why_not(name):
        found = {case: [described(one) for one in launches]}
        told = _told(name, read(name)["cases"], found)
        assert not told, told[0]


def other_cases(name: str) -> list[str]:
    """A sentence for each case of a set that is new or gone."""
    stored, known = read(name)["cases"], sources.sets()[name]
    return [
        *(f"{name}: the golden data has no case {case!r}." for case in known if case not in stored),
        *(f"{name}: only the golden data has {case!r}." for case in stored if case not in known),
    ]


def plan_differences(stored: dict) -> list[str]:
    """Of the sample of problems that is stored with its answers."""
    problems = dict(plans.sampled(stored["subjects"]))
    return [
        told
        for number, problem in problems.items()
        if (
            told := store.first_difference(
                stored["sample"][str(number)],
                store.as_stored(plans.answer(problem)),
                f"Problem {number} ({plans.text_of(problem)})",
            )
        )
    ]


def _told(name: str, stored: dict, found: dict) -> list[str]:
    """A sentence for each case of both that differs."""
    told = (
        store.first_difference(stored[case], store.as_stored(found[case]), f"{name}, {case}")
        for case in found
        if case in stored
    )
    return [text for text in told if text]
