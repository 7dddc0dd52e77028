"""The exercises: grade a learner's kernel file step by step on the SIMT machine.

A stub is in `kernels/exercises/`, its solution in `kernels/exercises/solutions/` under the same
name. Grading stops at the first step that fails and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .bound import BoundKernel, bind
from .catalogue import source
from .check import WrongResult, check_copy, check_softmax, make_input, poisoned, special_rows
from .cuda_text import kernel_names
from .header import header
from .simt import CompileError, Counters, UnsupportedPTX


@dataclass(frozen=True)
class Exercise:
    compare: Callable[[np.ndarray, np.ndarray], None]
    special: bool  # whether rows with -inf, NaN and +inf count
    claim: str  # what the kernel may move, in words
    # Counters, (read passes, write passes) -> does it?
    keeps_claim: Callable[[Counters, tuple[float, float]], bool]
    shapes: tuple[tuple[int, int], ...] = ((3, 5), (40, 64), (64, 96))
    claim_shape: tuple[int, int] = (64, 128)  # whole warps either way: it can be about full warps
    dtype: str = "float32"
    letters: bool = False  # whether blocks wait for each other's letters in the workspace


def _check_columns(x: np.ndarray, y: np.ndarray) -> None:
    try:
        check_softmax(np.ascontiguousarray(x.T), np.ascontiguousarray(y.T))
    except WrongResult as error:
        raise WrongResult(f"with columns taken as rows, {error.summary}") from None


def _full_requests(counters: Counters) -> bool:
    """Whether all lanes of every global load and store move 16 bytes side by side."""
    return (
        counters.sectors_per_load == counters.sectors_per_store == 16
        and counters.fetch_ratio == 1.0
    )


EXERCISES = {
    "00_copy_a_row": Exercise(
        check_copy,
        False,
        "one read pass, one write pass, and no byte fetched in vain, at 128 columns",
        lambda counters, passes: passes == (1.0, 1.0) and counters.fetch_ratio == 1.0,
    ),
    "01_columns": Exercise(
        _check_columns,
        False,
        "a warp's load costs 4 sectors, in at most 3 read passes",
        lambda counters, passes: (
            counters.sectors_per_load <= 4 and passes[0] <= 3 and passes[1] == 1
        ),
    ),
    "02_two_pairs": Exercise(
        check_softmax,
        True,
        "two read passes and one write pass",
        lambda counters, passes: passes == (2.0, 1.0),
    ),
    "03_one_array": Exercise(
        check_softmax,
        True,
        "three read passes and one write pass, 4 sectors a load",
        lambda counters, passes: passes == (3.0, 1.0) and counters.sectors_per_load <= 4,
    ),
    "04_eight_lanes": Exercise(
        check_softmax,
        True,
        "two read passes and one write pass, no shared memory",
        lambda counters, passes: passes == (2.0, 1.0) and not counters.shared_store_requests,
    ),
    "05_any_columns": Exercise(
        check_softmax,
        True,
        "two read passes and one write pass, 16 sectors a load",
        lambda counters, passes: passes == (2.0, 1.0) and counters.sectors_per_load == 16,
    ),
    "06_read_once": Exercise(
        check_softmax,
        True,
        "one read pass and one write pass, nothing in local memory",
        lambda counters, passes: passes == (1.0, 1.0) and not counters.local_load_requests,
    ),
    "07_half_warps": Exercise(
        check_softmax,
        True,
        "one read pass, one write pass, each of 16 full sectors a load and a store, at 64 columns",
        lambda counters, passes: passes == (1.0, 1.0) and _full_requests(counters),
        shapes=((3, 4), (40, 64), (65, 36)),
        claim_shape=(64, 64),
    ),
    "08_two_blocks": Exercise(
        check_softmax,
        True,
        "two read passes and one write pass",
        lambda counters, passes: passes == (2.0, 1.0),
    ),
    "09_letters": Exercise(
        check_softmax,
        True,
        "two read passes and one write pass, beside the letters",
        # Long rows: however many lanes look for a letter, they read little beside the row.
        lambda counters, passes: (round(passes[0]), round(passes[1])) == (2, 1),
        claim_shape=(8, 2048),
        letters=True,
    ),
    "10_eight_at_once": Exercise(
        check_softmax,
        True,
        "three read passes, one write pass, each of 16 full sectors a load and a store",
        lambda counters, passes: passes == (3.0, 1.0) and _full_requests(counters),
        shapes=((3, 8), (40, 64), (2, 2048)),
        claim_shape=(64, 256),
        dtype="float16",
    ),
}


def grade(name: str, solution: bool = False) -> str:
    """Grade `kernels/exercises/<name>.cu`, or its solution; returns the verdict as text.

    The last line is "passed" or says which step to work on. Raises `ValueError` that lists the
    exercises for an unknown one.
    """
    if name not in EXERCISES:
        raise ValueError(f"no exercise {name!r}; there are: {', '.join(EXERCISES)}")
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

    def bound(rows: int, cols: int) -> BoundKernel:
        code = source(file)
        if not kernel_names(code) or header(code) is None:
            raise ValueError("the file needs its header and one __global__ function")
        return bind(code, rows, cols, exercise.dtype)

    def run(x: np.ndarray):
        """(trace, output) of one launch."""
        y = poisoned(x)
        return bound(*x.shape).simulate(x, y), y

    def inputs() -> list[np.ndarray]:
        return [make_input(*shape, dtype=exercise.dtype) for shape in exercise.shapes]

    def has_no_bugs() -> tuple[bool, str]:
        findings = [finding for x in inputs() for finding in run(x)[0].findings]
        return not findings, str(findings[0]) if findings else ""

    def is_right() -> tuple[bool, str]:
        for x in inputs():
            exercise.compare(x, run(x)[1])
        return True, ""

    def handles_special_rows() -> tuple[bool, str]:
        x = special_rows(64, exercise.dtype)
        exercise.compare(x, run(x)[1])
        return True, ""

    def waits_for_the_letter() -> tuple[bool, str]:
        # Blocks of the SIMT machine keep step, so that a letter is there when it is looked for. A
        # block whose neighbour never starts must wait for ever, and look again and again.
        x = make_input(1, 64, dtype=exercise.dtype)
        one = bound(*x.shape)
        values = one.arguments(x, poisoned(x))
        alone = one.simulate_arguments(values, grid=1, instruction_limit=100_000)
        if not alone.findings:
            return False, "a block went on although the other one had not started"
        looks = "it waits for a store" in alone.findings[0].message
        return looks, "" if looks else str(alone.findings[0])

    def empties_the_boxes() -> tuple[bool, str]:
        for x in inputs():
            one = bound(*x.shape)
            values = one.arguments(x, poisoned(x))
            one.simulate_arguments(values)
            if values[-1].any():
                return False, "letters are left, and the next launch would take them"
        # A block that finds its letter at once must leave its own where the late neighbour looks.
        x = make_input(1, 64, dtype=exercise.dtype)
        one = bound(*x.shape)
        *others, boxes = one.arguments(x, poisoned(x))
        boxes.view(np.float32)[:2] = 0, 1  # (row_max, sum) in the box of block 0
        one.simulate_arguments((*others, boxes), grid=1)
        found = boxes.view(np.uint64)[1] != 0
        return found, "" if found else "it empties a box that its owner may not have read yet"

    def keeps_claim() -> tuple[bool, str]:
        x = make_input(*exercise.claim_shape, dtype=exercise.dtype)
        counters = run(x)[0].counters
        reads, writes = passes = counters.passes(x.size, x.itemsize)
        a_store = f" and {counters.sectors_per_store:.0f} a store"
        return exercise.keeps_claim(counters, passes), (
            f"{reads:.0f} read and {writes:.0f} write passes, "
            f"{counters.sectors_per_load:.0f} sectors a load"
            f"{a_store if 'a store' in exercise.claim else ''}, "
            f"{counters.fetch_ratio:.2g} bytes fetched for each byte asked for"
        )

    tasks = [("runs without a finding", has_no_bugs), ("is right", is_right)]
    if exercise.special:
        tasks.append(("is right for rows with -inf, NaN and +inf", handles_special_rows))
    if exercise.letters:
        tasks.append(("waits for the other block's letter", waits_for_the_letter))
        tasks.append(("empties its own box, and that alone", empties_the_boxes))
    return [*tasks, (exercise.claim, keeps_claim)]
