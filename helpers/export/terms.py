"""Expressions of a header as Python text."""

from __future__ import annotations

import re

from ..catalogue.expressions import Expression

# The functions of FUNCTIONS in `helpers.catalogue.rules`, for a file of Python that brings
# its own.
PYTHON_FUNCTIONS = '''\
def ceil_div(number, by):
    return -(-number // by)


def power_of_two(number):
    """The smallest power of two that is not below the number."""
    return 1 << max(number - 1, 0).bit_length()
'''


def as_python(expression: Expression) -> str:
    """The expression in Python: `rows * row > 4 * l2 or size == 2`, `(cols + 3) // 4`.

    A comparison is a bool there; a division by zero, which refuses a shape, raises
    `ZeroDivisionError`. `min` and `max` are Python's; it needs `PYTHON_FUNCTIONS`.
    """
    words = expression.text.replace("&&", "and").replace("||", "or")
    return re.sub(r"\s*/\s*", " // ", words)
