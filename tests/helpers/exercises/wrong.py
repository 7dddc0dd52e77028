"""Wrong answers, in wrong_repairs.txt and wrong_blanks.txt: a name, edits of the solution, and what
the verdict has to say.

    === 00_copy_a_row: no step
    - col += blockDim.x
    ? the loop at line 22 never ends

Lines behind `-` are a piece of the solution, lines behind `+` what stands in its place, everywhere;
further such pairs may follow. The line behind `?` is a regular expression.
"""

import re
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from helpers.exercises.answers import solution
from helpers.exercises.grading import judge


class WrongAnswer(NamedTuple):
    exercise: str
    about: str
    edits: list[tuple[str, str]]
    words: str

    def code(self) -> str:
        text = solution(self.exercise).read_text(encoding="utf-8")
        for old, new in self.edits:
            assert old in text, f"{self.exercise} has no\n{old}"
            text = text.replace(old, new)
        return text

    def check(self) -> None:
        verdict = judge(self.exercise, self.code())
        said = " ".join(str(verdict).split())  # in one line
        assert not verdict.passed and re.search(self.words, said), str(verdict)


def wrong_answers(name: str) -> list[WrongAnswer]:
    """Those of one of the files, by its name without .txt."""
    text = Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8")
    return [_parsed(part) for part in text.split("=== ")[1:]]


def _parsed(text: str) -> WrongAnswer:
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
    return WrongAnswer(exercise, about, edits, words)


def id_of(wrong: WrongAnswer) -> str:
    return f"{wrong.exercise}-{wrong.about.replace(' ', '_')}"
