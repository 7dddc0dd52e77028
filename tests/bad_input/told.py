"""Is an error told? Its sentence is one line, and a `raise` of this project wrote it on purpose."""

from __future__ import annotations

import ast
import functools
import traceback
from pathlib import Path

from helpers.base.paths import ROOT

TELLING = (ValueError, TypeError, LookupError, OSError, AssertionError, RuntimeError)
LONGEST = 1000  # characters of a sentence: one that lists the files there are has many


def complaint(error: BaseException) -> str:
    """What is wrong with an error as an answer to bad input; empty if nothing is."""
    said = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{type(error).__name__}: {said[:200]!r} from {frame.filename}:{frame.lineno}"
    if not isinstance(error, TELLING):
        return f"an accident: {where}"
    if not raised_on_purpose(frame.filename, frame.lineno):
        return f"nobody's sentence: {where}"
    if not 8 <= len(said) <= LONGEST or "\n" in said.strip() or " " not in said:
        return f"no sentence: {where}"
    return ""


def raised_on_purpose(file: str, line: int) -> bool:
    return Path(file).is_relative_to(ROOT / "helpers") and any(
        first <= line <= last for first, last in _raises(file)
    )


@functools.cache
def _raises(file: str) -> list[tuple[int, int]]:
    """First and last lines of the `raise` statements of a file."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    return [(node.lineno, node.end_lineno) for node in found]
