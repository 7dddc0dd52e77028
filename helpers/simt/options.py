"""Types of command-line options."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def at_least(lowest: int) -> Callable[[str], int]:
    """The type of an option that is an integer from `lowest` up."""

    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
        if value < lowest:
            raise argparse.ArgumentTypeError(f"{value} is below {lowest}")
        return value

    return integer


def rows_x_cols(text: str) -> tuple[int, int]:
    """The type of an option ROWSxCOLS."""
    rows, cols = map(at_least(1), text.split("x"))
    return rows, cols
