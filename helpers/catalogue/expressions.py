"""C integer expressions in kernel headers: parsed once, evaluated for each shape.

Comparisons, `&&`, `||`, `+ - * / %`, names, and a few functions are supported. Expressions whose
values differ between C and Python are rejected: a chained comparison, which in C compares a truth
value; division of a negative number, which C rounds towards zero; a result that overflows 64 bits.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping

from ..simt.words import counted

# AST node -> (operator in C, function)
OPERATORS = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.GtE: (">=", operator.ge),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.Lt: ("<", operator.lt),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}
# name -> (number of arguments, function)
FUNCTIONS = {
    "min": (2, min),
    "max": (2, max),
    "ceil_div": (2, lambda number, by: -(-number // by)),
    # The smallest power of two that is at least the number.
    "power_of_two": (1, lambda number: 1 << max(number - 1, 0).bit_length()),
}
LIMIT = 2**63  # a C long long is below it

Evaluate = Callable[[Mapping[str, int]], int]


class ExpressionError(ValueError):
    """An expression is invalid, or has no valid value for the given names."""


class DivisionByZero(ExpressionError):
    """An expression divides by zero for the given names."""


class Expression:
    """A parsed expression. `names` are the names that it reads; `tree` is its Python syntax tree,
    with C's `&&` and `||` as `and` and `or`."""

    def __init__(self, text: str):
        """Parse a text; raise `ExpressionError` if it is not C or has another meaning in C."""
        self.text = " ".join(text.split())
        self.tree = _syntax_tree(self.text)
        self.names = frozenset(_names(self.tree))

    def value(self, names: Mapping[str, int]) -> int:
        """Return the value; that of a comparison is 0 or 1.

        Raises `ExpressionError` for an unknown name, division of a negative number and 64-bit
        overflow, and its subclass `DivisionByZero`.
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
    """Reject every syntax node that `_python` does not support."""
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
        supported = type(node.ops[0]) in OPERATORS
    elif isinstance(node, ast.BinOp):
        parts, supported = [node.left, node.right], type(node.op) in OPERATORS
    elif isinstance(node, ast.BoolOp):
        parts, supported = node.values, True
    elif isinstance(node, ast.Call):
        name = getattr(node.func, "id", "")
        if name not in FUNCTIONS:
            raise ExpressionError(
                f"`{text}` calls {name or 'something'}; there are {', '.join(FUNCTIONS)}"
            )
        arity, _ = FUNCTIONS[name]
        if node.keywords or len(node.args) != arity:
            raise ExpressionError(f"`{text}`: {name} takes {counted(arity, 'argument')}")
        parts, supported = node.args, True
    else:
        parts, supported = [], False
    if not supported:
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
    """Compile an expression to a Python function, because headers are evaluated many thousands of
    times."""

    def fit(value: int) -> int:
        if not -LIMIT <= value < LIMIT:
            raise ExpressionError(f"`{text}` does not fit 64 bits")
        return value

    def checked(left: int, right: int) -> tuple[int, int]:
        _check_division(left, right, text)
        return left, right

    functions = {name: function for name, (_, function) in FUNCTIONS.items()}
    functions |= {"fit": fit, "checked": checked}
    functions |= {function.__name__: function for _, function in OPERATORS.values()}
    evaluate = eval(f"lambda names: {_python(_syntax_tree(text))}", functions)

    def value(names: Mapping[str, int]) -> int:
        try:
            return evaluate(names)
        except KeyError as error:
            (name,) = error.args
            known = ", ".join(names)
            raise ExpressionError(f"`{text}` reads {name}; there are {known}") from None

    return value


def _python(node: ast.AST) -> str:
    """Translate an expression to Python source that checks each step for differences from C. Names
    are looked up in a mapping `names`."""
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, ast.Name):
        return f"names[{node.id!r}]"
    if isinstance(node, ast.BoolOp):
        word = " and " if isinstance(node.op, ast.And) else " or "
        return f"int(bool({word.join(map(_python, node.values))}))"
    if isinstance(node, ast.Compare):
        sign, _ = OPERATORS[type(node.ops[0])]
        return f"int({_python(node.left)} {sign} {_python(node.comparators[0])})"
    if isinstance(node, ast.Call):
        sources = ", ".join(map(_python, node.args))
        divides = node.func.id == "ceil_div"
        return f"fit({node.func.id}({f'*checked({sources})' if divides else sources}))"
    sign, function = OPERATORS[type(node.op)]
    left, right = _python(node.left), _python(node.right)
    if isinstance(node.op, ast.Div | ast.Mod):
        return f"fit({function.__name__}(*checked({left}, {right})))"
    return f"fit({left} {sign} {right})"


def _check_division(left: int, right: int, text: str) -> None:
    if right == 0:
        raise DivisionByZero(f"`{text}` divides by zero")
    if left < 0 or right < 0:
        raise ExpressionError(f"`{text}` divides {left} by {right}: C rounds that towards zero")
