"""Expressions of a header in the words of another language. They are C already."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from math import inf

from ..catalogue.expressions import Expression

# The functions of FUNCTIONS in `helpers.catalogue.expressions`, for a file of Python that brings
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


# ---- C++ ----------------------------------------------------------------------------------------

SYMBOLS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Mod: "%",
    ast.GtE: ">=",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.Lt: "<",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
OR, AND, COMPARE, SUM, PRODUCT, ATOM = range(6)  # how closely an operator binds


def as_cpp(tree: ast.AST, least: Mapping[str, int]) -> str:
    """The tree of an expression in C++, of `long long`. `least` is the least value that each name
    may have.

    What may be zero and divides stands in `divisor(...)`, for which see `helpers.export.cpp_plan`.
    Raises `ValueError` where a negative number may be divided, which a header refuses and C++ does
    not.
    """
    return _cpp(tree, least)[0]


def least_value(tree: ast.AST, least: Mapping[str, int]) -> float:
    """The least value that an expression may have; minus infinity if it is not known."""
    if isinstance(tree, ast.Constant):
        return tree.value
    if isinstance(tree, ast.Name):
        return least[tree.id]
    if isinstance(tree, ast.BoolOp | ast.Compare):
        return 0
    if isinstance(tree, ast.Call):
        parts = [least_value(part, least) for part in tree.args]
        if tree.func.id in ("min", "max"):
            return {"min": min, "max": max}[tree.func.id](parts)
        if tree.func.id == "power_of_two":
            return 1
        return min(1, max(0, parts[0])) if parts[0] >= 0 else -inf  # ceil_div
    left, right = least_value(tree.left, least), least_value(tree.right, least)
    if isinstance(tree.op, ast.Add):
        return left + right
    if isinstance(tree.op, ast.Mult):
        return left * right if min(left, right) >= 0 else -inf
    if isinstance(tree.op, ast.Div | ast.Mod):
        return 0 if left >= 0 else -inf
    return left - right if isinstance(tree.right, ast.Constant) else -inf


def _cpp(tree: ast.AST, least: Mapping[str, int]) -> tuple[str, int]:
    """(text, how closely it binds)"""
    if isinstance(tree, ast.Constant):
        return (str(tree.value) if tree.value < 2**31 else f"{tree.value}LL"), ATOM
    if isinstance(tree, ast.Name):
        return tree.id, ATOM
    if isinstance(tree, ast.BoolOp):
        binds, symbol = (AND, " && ") if isinstance(tree.op, ast.And) else (OR, " || ")
        # Compilers warn of && within || unless it has parentheses.
        return symbol.join(_within(part, least, COMPARE) for part in tree.values), binds
    if isinstance(tree, ast.Call):
        parts = [_cpp(part, least)[0] for part in tree.args]
        name = tree.func.id
        if name == "ceil_div":
            _, by = tree.args
            _check_dividend(tree.args[0], least)
            parts[1] = parts[1] if least_value(by, least) >= 1 else f"divisor({parts[1]})"
        # std::min wants both of one type.
        name = {"min": "lesser", "max": "greater"}.get(name, name)
        return f"{name}({', '.join(parts)})", ATOM
    if isinstance(tree, ast.Compare):
        symbol = SYMBOLS[type(tree.ops[0])]
        parts = [_within(part, least, SUM) for part in (tree.left, tree.comparators[0])]
        return f" {symbol} ".join(parts), COMPARE
    symbol = SYMBOLS[type(tree.op)]
    binds = SUM if isinstance(tree.op, ast.Add | ast.Sub) else PRODUCT
    left, right = _within(tree.left, least, binds), _within(tree.right, least, binds + 1)
    if isinstance(tree.op, ast.Div | ast.Mod):
        _check_dividend(tree.left, least)
        if least_value(tree.right, least) < 1:
            right = f"divisor({_cpp(tree.right, least)[0]})"
    return f"{left} {symbol} {right}", binds


def _within(tree: ast.AST, least: Mapping[str, int], binds: int) -> str:
    text, own = _cpp(tree, least)
    return text if own >= binds else f"({text})"


def _check_dividend(tree: ast.AST, least: Mapping[str, int]) -> None:
    if least_value(tree, least) < 0:
        raise ValueError(f"`{ast.unparse(tree)}` may be negative and is divided")
