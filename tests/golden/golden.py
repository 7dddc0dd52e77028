"""Every golden file: how it is computed, which cases a test runs, and how they are compared."""

from __future__ import annotations

from collections.abc import Sequence

from . import plans, sources, store, traces

NAMES = ("plans", *traces.SETS)
OF_A_COMPILER = (*traces.SETS,)  # counters and lines are those of one version of NVRTC


def computed(name: str) -> dict:
    """All that the file holds."""
    if name == "plans":
        return plans.computed()
    return {"nvrtc": sources.nvrtc_version(), "cases": traces.computed(name)}


def why_not(name: str) -> str:
    """Why a file cannot be compared here; "" if it can."""
    if name not in OF_A_COMPILER:
        return ""
    here, there = sources.nvrtc_version(), store.read(name)["nvrtc"]
    return "" if here == there else f"made with NVRTC {there}, here is {here}"


def differences(name: str, every: int = 1) -> list[str]:
    """A sentence for each case of a file that differs, of one case of so many."""
    stored = store.read(name)
    if name == "plans":
        return plan_differences(stored)
    there, here = list(stored["cases"]), list(sources.sets()[name])
    if sorted(there) != sorted(here):
        more, fewer = sorted({*here} - {*there}), sorted({*there} - {*here})
        word, one = ("has no case", more[0]) if more else ("alone has the case", fewer[0])
        return [f"{name}: the golden data {word} {one!r}."]
    cases = sorted(here)[::every]
    found = traces.computed(name, cases)
    return _told(name, {case: stored["cases"][case] for case in cases}, found)


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


def _told(name: str, stored: dict, found: dict) -> Sequence[str]:
    pairs = ((case, stored[case], store.as_stored(found[case])) for case in stored)
    told = (store.first_difference(one, other, f"{name}, {case}") for case, one, other in pairs)
    return [text for text in told if text]
