"""Code in lines of limited width, and templates of code."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Sequence

WIDTH = 100  # columns of a line of code


def wrapped(text: str, indent: int, hanging: int = 4) -> list[str]:
    """Return code in lines of up to `WIDTH` columns. The first is indented by `indent` columns, the
    others by `hanging` more."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )


def listed(
    opening: str, parts: Sequence[str], closing: str, indent: int, hanging: int
) -> list[str]:
    """Return a list in such lines, which break between its parts only."""
    text = opening + ", ".join(part.replace(" ", "\0") for part in parts) + closing
    return [line.replace("\0", " ") for line in wrapped(text, indent, hanging)]


def chosen(template: str, properties: Collection[str]) -> str:
    """Return a template without the statements for properties that a file does not have.

    In C++, `// [NAME]` at the end of a statement's first line marks it for files with that
    property, `// [not NAME]` for all others; Python has `#` for `//`. A mark includes the indented
    lines and the closing brackets that follow; that of a comment, the statement below it.
    """
    found, lines = [], template.splitlines()
    hidden, in_comment = -1, False  # hidden: the indentation of lines to omit
    for number, line in enumerate(lines):
        code, mark = re.fullmatch(r"(.*?)(?: *(?://|#) \[((?:not )?\w+)\])?", line).groups()
        below = next(filter(str.strip, lines[number:]), "")  # the line, unless it is blank
        indent, text = len(below) - len(below.lstrip()), code.lstrip()
        goes_on = in_comment or text == "{" or text[:1] in (")", "}", "]")
        if hidden >= 0 and (indent > hidden or indent == hidden and text and goes_on):
            in_comment = indent == hidden and text.startswith(("//", "#"))
            while found and not found[-1]:  # the blank lines that follow are kept
                found.pop()
            continue
        name = (mark or "").removeprefix("not ")
        holds = not mark or (name in properties) is not mark.startswith("not ")
        hidden, in_comment = -1 if holds else indent, text.startswith(("//", "#"))
        if holds:
            found.append(code)
    return "".join(f"{line}\n" for line in found)
