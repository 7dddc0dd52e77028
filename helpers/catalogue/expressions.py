"""C integer expressions in kernel headers, checked to mean the same in C and in Python.

Comparisons, `&&`, `||`, `+ - * / %`, names, and a few functions are supported. Expressions that C
and Python read differently are rejected, such as a chained comparison, which in C compares a truth
value. `helpers.catalogue.rules` evaluates them, and rejects division of a negative number, which C
rounds towards zero, and results that overflow 64 bits.
"""

from __future__ import annotations

import ast
import functools
import re

from ..simt.words import counted
from .rules import LIMIT, OPERATORS, ExpressionError, Formula, parsed

ARITIES = {"min": 2, "max": 2, "ceil_div": 2, "power_of_two": 1}  # of the functions that exist


class Expression(Formula):
    """A checked expression. `names` are the names that it reads."""

    def __init__(self, text: str):
        """Parse a text; raise `ExpressionError` if it is not C or has another meaning in C."""
        super().__init__(text)
        self.names = _checked_names(self.text)


@functools.lru_cache(maxsize=4096)
def _checked_names(text: str) -> frozenset[str]:
    if "?" in text:
        raise ExpressionError(f"`{text}` has a `?`; write its cases as lines with `when`")
    if re.search(r"\b(if|else|and|or|not|in|is|lambda|True|False)\b|//|\*\*|#|\d_|\b0[oO]", text):
        raise ExpressionError(f"`{text}` is not written in C")
    try:
        tree = parsed(text)
    except (SyntaxError, ValueError):
        raise ExpressionError(f"`{text}` is not an expression") from None
    return frozenset(_check(tree, text))


def _check(node: ast.AST, text: str) -> set[str]:
    """Return the names that a syntax tree reads; reject every node that has no meaning in C."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        if node.value >= LIMIT:
            raise ExpressionError(f"`{text}` does not fit 64 bits")
        return set()
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Compare):
        if len(node.ops) > 1:
            raise ExpressionError(f"`{text}` has a chained comparison: write a < b && b < c")
        parts = [node.left, *node.comparators]
        supported = type(node.ops[0]) in OPERATORS
    elif isinstance(node, ast.BinOp):
        parts, supported = [node.left, node.right], type(node.op) in OPERATORS
    elif isinstance(node, ast.BoolOp):
        parts, supported = node.values, True
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "id", "")
        if name not in ARITIES:
            raise ExpressionError(
                f"`{text}` calls {name or 'something'}; there are {', '.join(ARITIES)}"
            )
        if node.keywords or len(node.args) != ARITIES[name]:
            raise ExpressionError(f"`{text}`: {name} takes {counted(ARITIES[name], 'argument')}")
        parts, supported = node.args, True
    else:
        parts, supported = [], False
    if not supported:
        raise ExpressionError(f"`{text}` is not an expression over integers")
    return {name for part in parts for name in _check(part, text)}
