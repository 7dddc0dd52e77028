"""What a grading says, as text and as a page."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from ..rich import COLUMNS, Line, Rich, code_html, details, escape

MARKS = {  # kept -> as text, as a sign, its colour
    True: ("yes", "\u2713", "#1a7f37"),
    False: ("NO", "\u2717", "#cf222e"),
    None: (" -", "\u00b7", "#656d76"),
}


@dataclass(frozen=True)
class Step:
    """One condition: what is asked, whether it is kept (None: not looked at), and what is wrong."""

    asked: str
    kept: bool | None
    complaint: str = ""  # in sentences


@dataclass(frozen=True)
class Verdict(Rich):
    """What `grade` returns: a cell shows it folded and in colour, `print` as text."""

    passed: bool = False

    def __str__(self) -> str:
        return self.plain


def verdict(name: str, steps: Sequence[Step], file: str, code: str, line: int | None) -> Verdict:
    """The verdict on the learner's `file`, whose text is `code`; `line` is where it is wrong."""
    passed = all(step.kept for step in steps)
    last = (
        f"passed: {name}"
        if passed
        else f"Edit {file}{f', line {line},' if line else ''} and run this cell again."
    )
    plain = []
    for step in steps:
        mark = MARKS[step.kept][0]
        plain += _wrapped(f"{mark:4} {step.asked}", 5)
        if step.complaint:
            plain += _wrapped(step.complaint, 5, first=5)
    lines = [
        Line(number, text, ">" if number == line else " ")
        for number, text in enumerate(code.rstrip("\n").split("\n"), 1)
    ]
    page = [details(f"{file}, {len(lines)} lines", code_html(lines))]
    for step in steps:
        _, sign, colour = MARKS[step.kept]
        said = f"<br>{escape(step.complaint)}" if step.complaint else ""
        page.append(
            f'<div style="margin-left:1.4em;text-indent:-1.4em"><b style="color:{colour}">{sign}'
            f"</b> {escape(step.asked)}{said}</div>"
        )
    page.append(f"<div><b>{escape(last)}</b></div>")
    return Verdict("\n".join([*plain, *_wrapped(last, 0)]), "".join(page), passed=passed)


def _wrapped(text: str, indent: int, first: int = 0) -> list[str]:
    """Lines of at most 80 columns, the first indented by `first`, the others by `indent`."""
    spaces = {"initial_indent": " " * first, "subsequent_indent": " " * indent}
    return textwrap.wrap(text, COLUMNS, **spaces, break_on_hyphens=False, break_long_words=False)
