"""Code in lines of limited width."""

from __future__ import annotations

import textwrap

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
