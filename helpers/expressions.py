"""C integer expressions, as kernel headers write them: parsed once, evaluated for each shape.

Comparisons, `&&`, `||`, `+ - * / %`, names, and a few functions. C and Python would disagree on
some: those are refused instead of guessed at. A chained comparison compares a truth value in C;
the quotient of a negative number is rounded towards zero in C; what does not fit 64 bits overflows.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
    ast.GtE: operator.ge,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.Lt: operator.lt,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
# name -> (how many arguments, function)
FUNCTIONS = {
    "min": (2, min),
    "max": (2, max),
    "ceil_div": (2, lambda number, by: -(-number // by)),
    # The smallest power of two that is not below the number.
    "power_of_two": (1, lambda number: 1 << max(number - 1, 0).bit_length()),
}
LIMIT = 2**63  # of a C long long

Evaluate = Callable[[Mapping[str, int]], int]


class ExpressionError(ValueError):
    """What is wrong with an expression, or with its value for these names, in a few words."""


class DivisionByZero(ExpressionError):
    """An expression has no value for these names."""


class Expression:
    """One expression. `names` are those that it reads, `tree` is its syntax, of which C's `&&` and
    `||` are Python's `and` and `or`."""

    def __init__(self, text: str):
        """Parse; raises `ExpressionError` for what is not C, or what C would read otherwise."""
        self.text = " ".join(text.split())
        self.tree = _syntax_tree(self.text)
        self.names = frozenset(_names(self.tree))

    def value(self, names: Mapping[str, int]) -> int:
        """The value, 0 or 1 of a comparison.

        Raises `ExpressionError` for a name that is not given, the quotient of a negative number,
        and what does not fit 64 bits; `DivisionByZero`.
        """
        return _function(self.text)(names)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


@functools.lru_cache(maxsize=4096)
def _syntax_tree(text: str) -> ast.AST:
    if "?" in text:
        raise ExpressionError(f"`{text}` has a `?`; write its cases as lines with `when`")
    if re.search(r"\b(if|else|and|or|not|in|is|lambda|True|False)\b|//|\*\*|#|\d_|\b0[oO]", text):
        raise ExpressionError(f"`{text}` is not written in C")
    words = re.sub(r"&&", " and ", text)
    words = re.sub(r"\|\|", " or ", words)
    try:
        tree = ast.parse(words.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise ExpressionError(f"`{text}` is not an expression") from None
    _check(tree, text)
    return tree


def _check(node: ast.AST, text: str) -> None:
    """Refuse everything but what `_evaluator` knows."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        if node.value >= LIMIT:
            raise ExpressionError(f"`{text}` does not fit 64 bits")
        return
    if isinstance(node, ast.Name):
        return
    if isinstance(node, ast.Compare):
        if len(node.ops) > 1:
            raise ExpressionError(f"`{text}` has a chained comparison: write a < b && b < c")
        parts = [node.left, *node.comparators]
        known = type(node.ops[0]) in OPERATORS
    elif isinstance(node, ast.BinOp):
        parts, known = [node.left, node.right], type(node.op) in OPERATORS
    elif isinstance(node, ast.BoolOp):
        parts, known = node.values, True
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "id", "")
        if name not in FUNCTIONS:
            raise ExpressionError(
                f"`{text}` calls {name or 'something'}; there are {', '.join(FUNCTIONS)}"
            )
        wanted, _ = FUNCTIONS[name]
        if node.keywords or len(node.args) != wanted:
            plural = "s" if wanted > 1 else ""
            raise ExpressionError(f"`{text}`: {name} takes {wanted} argument{plural}")
        parts, known = node.args, True
    else:
        parts, known = [], False
    if not known:
        raise ExpressionError(f"`{text}` is not an expression over integers")
    for part in parts:
        _check(part, text)


def _names(tree: ast.AST) -> set[str]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called
    }


@functools.lru_cache(maxsize=4096)
def _function(text: str) -> Evaluate:
    """What computes the value of an expression: headers are evaluated many thousand times."""
    return _evaluator(_syntax_tree(text), text)


def _evaluator(node: ast.AST, text: str) -> Evaluate:
    if isinstance(node, ast.Constant):
        return lambda names: node.value
    if isinstance(node, ast.Name):
        return _read(node.id, text)
    if isinstance(node, ast.BoolOp):
        every_or_any = all if isinstance(node.op, ast.And) else any
        parts = [_evaluator(part, text) for part in node.values]
        return lambda names: int(every_or_any(part(names) for part in parts))
    if isinstance(node, ast.Compare):
        left, right = (_evaluator(part, text) for part in (node.left, node.comparators[0]))
        compare = OPERATORS[type(node.ops[0])]
        return lambda names: int(compare(left(names), right(names)))
    if isinstance(node, ast.Call):
        arguments, name = node.args, node.func.id
        apply, divides = FUNCTIONS[name][1], name == "ceil_div"
    else:
        arguments, apply = (node.left, node.right), OPERATORS[type(node.op)]
        divides = isinstance(node.op, ast.Div | ast.Mod)
    sources = [_evaluator(argument, text) for argument in arguments]

    def number(names: Mapping[str, int]) -> int:
        values = [source(names) for source in sources]
        if divides:
            _check_division(*values, text)
        value = apply(*values)
        if not -LIMIT <= value < LIMIT:
            raise ExpressionError(f"`{text}` does not fit 64 bits")
        return value

    return number


def _read(name: str, text: str) -> Evaluate:
    def read(names: Mapping[str, int]) -> int:
        if name not in names:
            raise ExpressionError(f"`{text}` reads {name}; there are {', '.join(names)}")
        return names[name]

    return read


def _check_division(left: int, right: int, text: str) -> None:
    if right == 0:
        raise DivisionByZero(f"`{text}` divides by zero")
    if left < 0 or right < 0:
        raise ExpressionError(f"`{text}` divides {left} by {right}: C rounds that towards zero")
