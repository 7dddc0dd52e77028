"""Answers in three files: wrong_repairs.txt, wrong_blanks.txt, right_answers.txt. Each has a name,
edits of the solution, and if it is wrong what the verdict has to say.

    === 00_copy_a_row: no step
    - col += blockDim.x
    ? line 22: this loop never ends

Lines after `-` are a piece of the solution, which the lines after `+` replace everywhere; more such
pairs may follow. The line after `?` is a regular expression.
"""

import re
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from helpers.base.paths import KERNELS
from helpers.exercises.grading import judge


def solution(name: str) -> str:
    """The text of the solution that the repository has."""
    return (KERNELS / "exercises" / "solutions" / f"{name}.cu").read_text(encoding="utf-8")


class Answer(NamedTuple):
    exercise: str
    about: str
    edits: list[tuple[str, str]]
    words: str  # "" if it is right

    def code(self) -> str:
        text = solution(self.exercise)
        for old, new in self.edits:
            assert old in text, f"{self.exercise} has no\n{old}"
            text = text.replace(old, new)
        return text

    def check(self) -> None:
        verdict = judge(self.exercise, self.code())
        said = " ".join(str(verdict).split())  # in one line
        assert verdict.passed == (not self.words) and re.search(self.words, said), str(verdict)


def answers(name: str) -> list[Answer]:
    """Those of one of the files, by its name without .txt."""
    text = Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8")
    return [_parsed(part) for part in text.split("=== ")[1:]]


def _parsed(text: str) -> Answer:
    head, *lines = text.strip().split("\n")
    exercise, _, about = head.partition(": ")
    edits, words = [], ""
    for sign, group in groupby(lines, lambda line: line[:1]):
        piece = "\n".join(line[2:] for line in group)
        if sign == "-":
            edits.append((piece, ""))
        elif sign == "+":
            edits[-1] = edits[-1][0], piece
        else:
            words = piece
    return Answer(exercise, about, edits, words)


def id_of(one: Answer) -> str:
    return f"{one.exercise}-{one.about.replace(' ', '_')}"
