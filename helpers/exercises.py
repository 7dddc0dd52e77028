"""The exercises: grade a learner's kernel file step by step on the SIMT machine.

A stub is in `kernels/exercises/`, its solution in `kernels/exercises/solutions/` under the same
name. Grading stops at the first step that fails and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .check import WrongResult, check_copy, check_softmax, make_input, poisoned, special_rows
from .kernels import compiled_for, header, kernel_names, source
from .launch import arguments, simulate
from .simt import CompileError, Counters, UnsupportedPTX


@dataclass(frozen=True)
class Exercise:
    compare: Callable[[np.ndarray, np.ndarray], None]
    special: bool  # whether rows with -inf, NaN and +inf count
    claim: str  # what the kernel may move, in words
    keeps_claim: Callable[[Counters, int], bool]  # counters, elements -> does it?


def _check_columns(x: np.ndarray, y: np.ndarray) -> None:
    try:
        check_softmax(np.ascontiguousarray(x.T), np.ascontiguousarray(y.T))
    except WrongResult as error:
        raise WrongResult(f"with columns taken as rows, {error.summary}") from None


EXERCISES = {
    "00_copy_a_row": Exercise(
        check_copy,
        False,
        "one read pass, one write pass, and no byte fetched in vain, at 128 columns",
        lambda counters, elements: (
            counters.passes(elements) == (1.0, 1.0) and counters.fetch_ratio == 1.0
        ),
    ),
    "01_columns": Exercise(
        _check_columns,
        False,
        "a warp's load costs 4 sectors, in at most 3 read passes",
        lambda counters, elements: (
            counters.sectors_per_load <= 4
            and counters.passes(elements)[0] <= 3
            and counters.passes(elements)[1] == 1
        ),
    ),
    "02_two_pairs": Exercise(
        check_softmax,
        True,
        "two read passes and one write pass",
        lambda counters, elements: counters.passes(elements) == (2.0, 1.0),
    ),
    "03_one_array": Exercise(
        check_softmax,
        True,
        "three read passes and one write pass, 4 sectors a load",
        lambda counters, elements: (
            counters.passes(elements) == (3.0, 1.0) and counters.sectors_per_load <= 4
        ),
    ),
    "04_eight_lanes": Exercise(
        check_softmax,
        True,
        "two read passes and one write pass, no shared memory",
        lambda counters, elements: (
            counters.passes(elements) == (2.0, 1.0) and not counters.shared_store_requests
        ),
    ),
    "05_any_columns": Exercise(
        check_softmax,
        True,
        "two read passes and one write pass, 16 sectors a load",
        lambda counters, elements: (
            counters.passes(elements) == (2.0, 1.0) and counters.sectors_per_load == 16
        ),
    ),
    "06_read_once": Exercise(
        check_softmax,
        True,
        "one read pass and one write pass, nothing in local memory",
        lambda counters, elements: (
            counters.passes(elements) == (1.0, 1.0) and not counters.local_load_requests
        ),
    ),
}
SHAPES = ((3, 5), (40, 64), (64, 96))
CLAIM_SHAPE = (64, 128)  # whole warps either way, so that a claim about full warps holds


def grade(name: str, solution: bool = False) -> str:
    """Grade `kernels/exercises/<name>.cu`, or its solution; returns the verdict as text.

    The last line is "passed" or says which step to work on. Raises `KeyError` for an unknown
    exercise.
    """
    exercise = EXERCISES[name]
    folder = "exercises/solutions" if solution else "exercises"
    lines = []
    for number, (task, attempt) in enumerate(_tasks(exercise, f"{folder}/{name}.cu"), 1):
        try:
            passed, detail = attempt()
        except WrongResult as error:
            passed, detail = False, error.summary
        except (CompileError, UnsupportedPTX, ValueError, TypeError) as error:
            passed, detail = False, str(error)
        except KeyError as error:  # a kernel that its own source does not have
            passed, detail = False, error.args[0]
        verdict = f"{'yes' if passed else 'no'}{f' - {detail}' if detail else ''}"
        lines.append(f"{number}. {task}: {verdict}")
        if not passed:
            return "\n".join([*lines, f"Work on step {number} in kernels/{folder}/{name}.cu."])
    return "\n".join([*lines, "passed"])


def _tasks(exercise: Exercise, file: str) -> list[tuple[str, Callable[[], tuple[bool, str]]]]:
    """(what is asked, a function that returns whether it is so, and what was seen)."""

    def run(x: np.ndarray):
        code = source(file)
        if not kernel_names(code) or header(code) is None:
            raise ValueError("the file needs its header and one __global__ function")
        kernel, plan = compiled_for(code, *x.shape, x.dtype)
        y = poisoned(x)
        return simulate(kernel, plan.grid, plan.block, arguments(plan, x, y), plan.shared_mem), y

    def has_no_bugs() -> tuple[bool, str]:
        findings = [finding for shape in SHAPES for finding in run(make_input(*shape))[0].findings]
        return not findings, str(findings[0]) if findings else ""

    def is_right() -> tuple[bool, str]:
        for shape in SHAPES:
            x = make_input(*shape)
            exercise.compare(x, run(x)[1])
        return True, ""

    def handles_special_rows() -> tuple[bool, str]:
        x = special_rows(64)
        exercise.compare(x, run(x)[1])
        return True, ""

    def keeps_claim() -> tuple[bool, str]:
        counters = run(make_input(*CLAIM_SHAPE))[0].counters
        elements = CLAIM_SHAPE[0] * CLAIM_SHAPE[1]
        reads, writes = counters.passes(elements)
        return exercise.keeps_claim(counters, elements), (
            f"{reads:.0f} read and {writes:.0f} write passes, "
            f"{counters.sectors_per_load:.0f} sectors a load, "
            f"{counters.fetch_ratio:.2g} bytes fetched for each byte asked for"
        )

    tasks = [("runs without a finding", has_no_bugs), ("is right", is_right)]
    if exercise.special:
        tasks.append(("is right for rows with -inf, NaN and +inf", handles_special_rows))
    return [*tasks, (exercise.claim, keeps_claim)]
