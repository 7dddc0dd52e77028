"""Grade an answer, from the learner's file to the verdict as text and as HTML. The file is
mine/answers/<exercise>.cu, made from the stub when it is first graded.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from ..base.arguments import checked
from ..base.gpu import replay_is_forced
from ..base.paths import KERNELS, MINE
from ..page.rich import (
    GROUND,
    MUTED,
    Line,
    Page,
    Rich,
    anchor,
    code_html,
    details,
    escape,
    named,
    wrapped,
)
from ..simt import CompileError, UnsupportedPTX
from ..simt.words import counted
from .attempt import (
    Attempt,
    Goal,
    Shape,
    backward,
    copy,
    log_softmax,
    minus_target,
    softmax,
    softmax_of_columns,
    softmax_of_seen,
)
from .conditions import (
    Condition,
    Shapes,
    a_tree,
    by_shuffles,
    coalesced,
    compiles,
    empties_slots,
    in_registers,
    loads_seen_packs,
    moves,
    named_lanes,
    no_bank_conflicts,
    no_bug,
    no_idle_blocks,
    of_compiler,
    right,
    right_on_special,
    sent_after_start,
    two_at_a_time,
    waits_for_messages,
    wide,
)


@dataclass(frozen=True)
class Exercise:
    goal: Goal
    asked: str  # expected y
    shapes: tuple[Shape, ...]  # shapes of the check; the last two are those of the conditions
    conditions: tuple[Condition, ...]  # further conditions
    special: int = 64  # columns of rows with large differences, -inf and NaN; 0: none
    columns: bool = False  # whether softmax is along the columns
    dtype: str = "float32"


SOFTMAX = softmax, "y is the softmax of each row"
SOFTMAX_OF_COLUMNS = softmax_of_columns, "y is the softmax of each column"
MINUS_TARGET = minus_target, "y is softmax, minus 1 in the target's column"
SEEN = "y is the softmax of the columns that each row sees"

LONG = (64, 512), (3, 300)  # rows longer than a block, aligned to sectors or not
USUAL = (3, 5), (40, 64), *LONG  # also rows shorter than a warp
SERIAL = (3, 5), (40, 64), (64, 128), (3, 300)  # for one thread per row, which is slow to simulate
PACKS = (3, 4), (40, 64), *LONG  # rows of whole float4s
TALL = (3, 5), (64, 96), (128, 40), (100, 33)  # rows that fit into the registers of eight warps
ENDS = (3, 5), (40, 64), (64, 509), (5, 301)  # rows of up to 512 columns, most of them unaligned
MESSAGES = *USUAL[:3], (8, 2048), (3, 2047)  # the last two so long that messages are negligible


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def any_columns(rows: int, cols: int) -> tuple[int, int]:
    """Loads and stores of a warp that processes each row in two passes: whole packs, with up to
    three single columns before and after them."""
    once = rows * (ceil_div(cols // 4, 32) + (6 if cols % 4 else 0))
    return 2 * once, once


EXERCISES: dict[str, Exercise] = {
    "00_copy_a_row": Exercise(copy, "y equals x", USUAL, (moves(1), coalesced), special=0),
    "00_flat_copy": Exercise(copy, "y equals x", USUAL, (moves(1), coalesced), special=0),
    "01_columns": Exercise(
        *SOFTMAX_OF_COLUMNS,
        ((3, 5), (64, 40), (64, 128), (8, 300)),
        (moves(3), coalesced),
        columns=True,
    ),
    "01_log_softmax": Exercise(
        log_softmax, "y is the logarithm of softmax of each row", SERIAL, (moves(3),)
    ),
    "02_two_pairs": Exercise(*SOFTMAX, SERIAL, (moves(2),)),
    "02_one_pass": Exercise(*SOFTMAX, SERIAL, (moves(2),)),
    "03_one_array": Exercise(*SOFTMAX, USUAL, (moves(3), coalesced)),
    "03_tree": Exercise(*SOFTMAX, USUAL, (a_tree, moves(2), coalesced)),
    "04_eight_lanes": Exercise(
        *SOFTMAX,
        ((3, 5), (40, 64), (64, 512), (13, 300)),
        (moves(2), by_shuffles, named_lanes),
    ),
    "04_butterfly": Exercise(*SOFTMAX, USUAL, (moves(2), by_shuffles, named_lanes)),
    "05_any_columns": Exercise(
        *SOFTMAX,
        ((3, 5), (40, 64), (5, 1), (64, 512), (5, 515)),
        (
            moves(2),
            wide(any_columns, "whole packs move as float4s, in every row"),
            in_registers,
        ),
    ),
    "05_vector_loop": Exercise(
        *SOFTMAX,
        PACKS,
        (
            moves(2),
            wide(
                lambda rows, cols: (2 * rows * ceil_div(cols, 128), rows * ceil_div(cols, 128)),
                "each access of a lane moves 16 bytes",
            ),
            in_registers,
        ),
    ),
    "06_read_once": Exercise(
        *SOFTMAX,
        ((3, 5), (40, 64), (5, 77), (64, 128), (3, 100)),
        (moves(1), in_registers, coalesced),
    ),
    "06_keep": Exercise(
        *SOFTMAX,
        PACKS,
        (
            moves(1),
            in_registers,
            wide(
                lambda rows, cols: (rows * ceil_div(cols, 128), rows * 4),
                "each load of a lane moves 16 bytes",
            ),
        ),
    ),
    "07_half_warps": Exercise(
        *SOFTMAX,
        ((3, 4), (40, 64), (64, 64), (65, 36)),
        (
            moves(1),
            wide(
                lambda rows, cols: 2 * (ceil_div(rows, 2),), "one access of a warp moves two rows"
            ),
            no_idle_blocks,
            named_lanes,
        ),
    ),
    "07_lanes": Exercise(
        *SOFTMAX,
        ((3, 5), (64, 8), (7, 1), (33, 2), (65, 9), (64, 32)),
        (moves(1), by_shuffles, named_lanes),
        special=32,
    ),
    "08_two_blocks": Exercise(*SOFTMAX, USUAL, (moves(2),)),
    "08_send": Exercise(*SOFTMAX, USUAL, (moves(2), sent_after_start)),
    "09_messages": Exercise(
        *SOFTMAX,
        MESSAGES,
        (waits_for_messages, empties_slots(received=[0], sent=[1]), moves(2, beside=0.5)),
    ),
    "09_publish": Exercise(
        *SOFTMAX,
        MESSAGES,
        (
            waits_for_messages,
            empties_slots(received=[1, 2, 3], sent=[4, 8, 12]),
            moves(2, beside=0.5),
        ),
    ),
    "10_eight_at_once": Exercise(
        *SOFTMAX,
        ((3, 8), (40, 64), (2, 2048), (64, 256), (3, 264)),
        (
            moves(3),
            wide(
                lambda rows, cols: (3 * rows * ceil_div(cols, 256), rows * ceil_div(cols, 256)),
                "each access of a lane moves eight columns",
            ),
            in_registers,
        ),
        dtype="float16",
    ),
    "10_widen": Exercise(
        *SOFTMAX,
        ((3, 8), (40, 64), (64, 256), (3, 200)),
        (two_at_a_time, moves(1), in_registers),
        dtype="float16",
    ),
    "11_ends": Exercise(
        *SOFTMAX,
        ENDS,
        (
            moves(1),
            wide(
                lambda rows, cols: 2 * (rows * (ceil_div(cols // 4, 32) + 2),),
                "the columns between boundaries are moved in packs",
            ),
            in_registers,
        ),
    ),
    "11_run": Exercise(
        *SOFTMAX,
        ((3, 5), (40, 64), (6, 301), (64, 77), (40, 301)),
        (
            moves(1),
            wide(
                lambda rows, cols: 2 * (rows // 4 * ceil_div(cols, 32),),
                "four rows are moved as one run of packs",
            ),
        ),
    ),
    "12_causal": Exercise(
        softmax_of_seen,
        SEEN,
        ((3, 8), (40, 64), (64, 512), (70, 36)),
        (loads_seen_packs(None), in_registers),
    ),
    "12_window": Exercise(
        partial(softmax_of_seen, window=64),
        SEEN,
        ((3, 8), (40, 64), (200, 512), (70, 36)),
        (loads_seen_packs(64), in_registers),
    ),
    "13_banks": Exercise(
        *SOFTMAX_OF_COLUMNS, TALL, (moves(1), coalesced, no_bank_conflicts), columns=True
    ),
    "13_pairs": Exercise(
        *SOFTMAX_OF_COLUMNS, TALL, (moves(1), coalesced, in_registers), columns=True
    ),
    "14_log": Exercise(
        partial(backward, log=1),
        "y is dx of log-softmax where dy is x, for each row",
        ENDS,
        (moves(1), in_registers),
        special=0,
    ),
    "14_merge": Exercise(
        backward,
        "y is dx of softmax where dy is x, for each row",
        USUAL,
        (moves(2), coalesced),
        special=0,
    ),
    "15_target": Exercise(*MINUS_TARGET, ENDS, (moves(1), in_registers)),
    "15_lse": Exercise(*MINUS_TARGET, USUAL, (moves(2), coalesced)),
}


EXERCISE_FILES = KERNELS / "exercises"
ANSWERS = MINE / "answers"
REFUSED = (CompileError, UnsupportedPTX, ValueError, TypeError, KeyError)


@checked
def grade(name: str) -> Verdict:
    """Grade the learner's answer to an exercise, mine/answers/<name>.cu, which is copied from the
    stub if it does not exist yet.

    A cell that ends with it shows the folded file and the verdict; `print` shows the verdict. The
    verdict lists the conditions up to the first that does not hold, and says where and why. If all
    hold, `passed` of the result is true, and the verdict shows what was wrong with the stub. If
    SOFTMAX_REPLAY=1 forces a replay, the stub is graded and nothing is written.

    Raises `ValueError` that lists the exercises for an unknown one, and `OSError` if the file
    cannot be made.
    """
    if name not in EXERCISES:
        raise ValueError(f"no exercise {name!r}; there are: {', '.join(EXERCISES)}")
    answer, stub = ANSWERS / f"{name}.cu", EXERCISE_FILES / f"{name}.cu"
    if replay_is_forced():  # committed outputs do not depend on mine/
        answer = stub
    elif not answer.exists():
        answer.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(stub, answer)
    return judge(name, answer.read_text(encoding="utf-8"))


def judge(name: str, code: str) -> Verdict:
    """The verdict on the text of a kernel file as an answer to an exercise."""
    steps = checked_steps(name, code)
    return verdict(name, steps, code, violated(name) if all(step.kept for step in steps) else None)


@cache
def violated(name: str) -> Step:
    """The condition that the stub of an exercise violates."""
    stub = (EXERCISE_FILES / f"{name}.cu").read_text(encoding="utf-8")
    return next(step for step in checked_steps(name, stub) if not step.kept)


def checked_steps(name: str, code: str) -> list[Step]:
    """The conditions of an exercise with what the text of a kernel file does to them, up to the
    first that does not hold."""
    exercise = EXERCISES[name]
    attempt = Attempt(f'#line 1 "{shown_name(name)}"\n{code}', shown_name(name), exercise.dtype)
    steps: list[Step] = []
    for condition, shapes in conditions(exercise):
        if steps and not steps[-1].kept:
            steps.append(Step(condition.asked, None))
            continue
        try:
            complaint = condition.complaint(attempt, shapes)
        except CompileError as error:
            complaint = f"It does not compile: {of_compiler(str(error))}"
        except REFUSED as error:
            complaint = str(error.args[0]) if isinstance(error, KeyError) else str(error)
        if complaint and complaint[-1] not in ".?!)":
            complaint += "."
        steps.append(Step(condition.asked, not complaint, complaint))
    return steps


def shown_name(name: str) -> str:
    """The path of the learner's file in messages, relative to the root of the repository."""
    return f"{MINE.name}/{ANSWERS.name}/{name}.cu"


def conditions(exercise: Exercise) -> Iterator[tuple[Condition, Shapes]]:
    """All conditions with the shapes at which they are checked, in that order."""
    shapes = exercise.shapes
    yield compiles, shapes[:1]
    yield no_bug, shapes
    yield right(exercise.asked, exercise.goal), shapes
    special = exercise.special
    more = right_on_special(exercise.goal, special, exercise.columns) if special else []
    for condition in (*more, *exercise.conditions):
        yield condition, shapes[-2:]


# ---- the verdict ------------------------------------------------------------------------------

MARKS = {  # kept -> as text, as a sign, its colour, and its background in any theme
    True: ("yes", "\u2713", "#116329", "#e3f5e6"),
    False: ("NO", "\u2717", "#cf222e", "#ffebe9"),
    None: (" -", "\u2013", MUTED, GROUND),
}


@dataclass(frozen=True)
class Step:
    """One condition: its text, whether it holds (None: not checked), and what is wrong."""

    asked: str
    kept: bool | None
    complaint: str = ""  # in sentences


@dataclass(frozen=True)
class Verdict(Rich):
    """The result of `grade`: a cell shows it folded and in colour, `print` as text."""

    passed: bool = False

    def __str__(self) -> str:
        return self.plain


def verdict(name: str, steps: Sequence[Step], code: str, stub: Step | None = None) -> Verdict:
    """The verdict on an answer with text `code`; `stub` is given if it passed: the condition that
    the stub violates."""
    file = shown_name(name)
    complaint = next((step.complaint for step in steps if step.complaint), "")
    found = re.search(r"\b[Ll]ines? \d+(?:(?:, | and )\d+)*", complaint)
    marked = [int(number) for number in re.findall(r"\d+", found[0])] if found else []
    lines = [
        Line(number, text, ">" if number in marked else " ")
        for number, text in enumerate(code.rstrip("\n").split("\n"), 1)
    ]
    page = Page()
    page.html.append(details(f"{file}, {counted(len(lines), 'line')}", code_html(lines)))
    for step in steps:
        said = f"<br>{_page(step.complaint)}" if step.complaint else ""
        sign = _sign(step.kept)
        page.say(f"{MARKS[step.kept][0]:4} {step.asked}", f"{sign}{_page(step.asked)}{said}", 5)
        page.plain += wrapped(f"     {step.complaint}", 5) if step.complaint else []
    if stub:
        solution = EXERCISE_FILES / "solutions" / f"{name}.cu"
        before, *_ = re.split(r"(?<=[.?!]) (?=[A-Z])", stub.complaint)  # its first sentence
        page.say(f"passed: {name}", f"<b>passed: {name}</b>")
        for said in (f"before: {before}", f"now: {stub.asked}"):
            page.say(said, _page(said))
        page.say(f"Our solution: {named(solution)}", f"Our solution: {anchor(solution)}")
    else:
        here = [line.number for line in lines if "write here" in line.text]
        link = anchor(ANSWERS / f"{name}.cu", next(iter(here + marked), None), file)
        again = "and run this cell again."
        page.say(f"Edit {file} {again}", f"<b>Edit {link} {again}</b>")
    return Verdict("\n".join(page.plain), "".join(page.html), passed=stub is not None)


def _sign(kept: bool | None) -> str:
    """The mark of a condition, padded to the same width."""
    _, sign, colour, ground = MARKS[kept]
    style = (
        "display:inline-block;width:1.4em;margin-right:0.1em;text-indent:0;text-align:center;"
        f"color:{colour};background-color:{ground}"
    )
    return f'<b style="{style}">{sign}</b> '


def _page(text: str) -> str:
    """Text as HTML; text in backticks is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
