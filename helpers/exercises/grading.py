"""Grade an answer, from the learner's file to the verdict as text and as HTML. The file is
mine/answers/<exercise>.cu, made from the stub when it is first graded.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from ..base.arguments import checked
from ..base.mode import replay_is_forced
from ..base.paths import KERNELS, MINE
from ..page.own import anchor, named
from ..page.rich import COLUMNS, GROUND, MUTED, Line, Rich, code_html, details, escape
from ..simt import CompileError, UnsupportedPTX
from ..simt.words import counted
from .attempt import Attempt
from .conditions import Condition, Shapes, compiles, no_bug, of_compiler, right, right_on_special
from .table import EXERCISES, Exercise

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
    found = re.search(r"\b[Ll]ines? (\d+)", complaint)
    line = int(found[1]) if found else None
    plain: list[str] = []
    lines = [
        Line(number, text, ">" if number == line else " ")
        for number, text in enumerate(code.rstrip("\n").split("\n"), 1)
    ]
    page = [details(f"{file}, {counted(len(lines), 'line')}", code_html(lines))]
    for step in steps:
        mark = MARKS[step.kept][0]
        plain += _wrapped(f"{mark:4} {step.asked}", 5)
        plain += _wrapped(step.complaint, 5, first=5)
        said = f"<br>{_page(step.complaint)}" if step.complaint else ""
        page.append(
            f'<div style="margin:2px 0 2px 1.8em;text-indent:-1.8em">{_sign(step.kept)}'
            f"{_page(step.asked)}{said}</div>"
        )
    if stub:
        solution = EXERCISE_FILES / "solutions" / f"{name}.cu"
        before, *_ = re.split(r"(?<=[.?!]) (?=[A-Z])", stub.complaint)  # its first sentence
        last = [f"passed: {name}", f"before: {before}", f"now: {stub.asked}"]
        page += [
            f"<div><b>{last[0]}</b></div>",
            *(f"<div>{_page(said)}</div>" for said in last[1:]),
        ]
        last.append(f"Our solution: {named(solution)}")
        page.append(f"<div>Our solution: {anchor(solution)}</div>")
    else:
        place = f"{file}, line {line}," if line else file
        last = [f"Edit {place} and run this cell again."]
        link = anchor(ANSWERS / f"{name}.cu", line, place)
        page.append(f"<div><b>Edit {link} and run this cell again.</b></div>")
    plain += [part for said in last for part in _wrapped(said, 4)]
    return Verdict("\n".join(plain), "".join(page), passed=stub is not None)


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


def _wrapped(text: str, indent: int, first: int = 0) -> list[str]:
    """Lines of at most 80 columns, the first indented by `first`, the others by `indent`."""
    spaces = {"initial_indent": " " * first, "subsequent_indent": " " * indent}
    return textwrap.wrap(text, COLUMNS, **spaces, break_on_hyphens=False, break_long_words=False)
