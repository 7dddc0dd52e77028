"""A number and what it counts, in words; numbers from the words of a command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def counted(number: int, what: str) -> str:
    """ "1 row", "0 rows", "1,024 rows"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def often(number: int) -> str:
    """ "once", "2 times"."""
    return "once" if number == 1 else f"{number} times"


def are(number: int) -> str:
    """ "is", "are"."""
    return "is" if number == 1 else "are"


def duration(seconds: float) -> str:
    """ "40 s", "3 min", "5 h", "12 days"."""
    for most, size, unit in ((100, 1, "s"), (6000, 60, "min"), (100 * 3600, 3600, "h")):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return counted(round(seconds / 86400), "day")


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
