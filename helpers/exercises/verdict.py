"""The result of a grading, as text and as HTML."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from ..page.rich import COLUMNS, GROUND, MUTED, Line, Rich, code_html, details, escape
from ..simt.words import counted

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


def verdict(name: str, steps: Sequence[Step], file: str, code: str, line: int | None) -> Verdict:
    """The verdict on the learner's `file` with text `code`; `line` is that of the error."""
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
    page = [details(f"{file}, {counted(len(lines), 'line')}", code_html(lines))]
    for step in steps:
        said = f"<br>{_page(step.complaint)}" if step.complaint else ""
        page.append(
            f'<div style="margin:2px 0 2px 1.8em;text-indent:-1.8em">{_sign(step.kept)}'
            f"{_page(step.asked)}{said}</div>"
        )
    page.append(f"<div><b>{escape(last)}</b></div>")
    return Verdict("\n".join([*plain, *_wrapped(last, 0)]), "".join(page), passed=passed)


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
