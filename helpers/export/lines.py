"""Code in lines of limited width, and templates of code."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection

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


def chosen(template: str, properties: Collection[str]) -> str:
    """Return a template without the lines for properties that a file does not have.

    In C++, `// [NAME]` at the end of a line, or on a line of its own before a block that ends with
    `// [end]`, marks lines for files with that property, `// [not NAME]` lines for all others.
    Python has `#` for `//`. Blocks do not contain blocks.
    """

    found, in_block = [], True
    for line in template.splitlines():
        code, mark = re.fullmatch(r"(.*?)(?: *(?://|#) \[((?:not )?\w+)\])?", line).groups()
        name = (mark or "").removeprefix("not ")
        holds = not mark or (name in properties) is not mark.startswith("not ")
        if mark and not code:
            in_block = holds or name == "end"
        elif holds and in_block:
            found.append(code)
    return "".join(f"{line}\n" for line in found)
