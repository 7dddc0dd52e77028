"""C integer expressions in kernel headers, the one walk that evaluates them over any domain, and
the rules of a header as a program of them.

Comparisons, `&&`, `||`, `+ - * / %`, names, and a few functions are supported. Expressions that C
and Python read differently are rejected, such as a chained comparison, which in C compares a truth
value. A domain says what a value is: an integer (`Integers`), or an array with a number for each of
many problems (in `helpers.export.specialisations`).
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from ..simt.words import counted

Value = Any  # what a domain computes with
Domain = Any  # has the methods of `Integers`
Names = Mapping[str, Value]
Evaluate = Callable[[Names, Domain], Value]

ARITIES = {"min": 2, "max": 2, "ceil_div": 2, "power_of_two": 1}
LIMIT = 2**63  # a C long long is below it
COMPARISONS = frozenset({">=", "<=", ">", "<", "==", "!="})
DIVISIONS = frozenset({"/", "%", "ceil_div"})
# The functions of expressions by their names in C; comparisons give 0 or 1.
FUNCTIONS: dict[str, Callable[..., int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
    "min": min,
    "max": max,
    "ceil_div": lambda number, by: -(-number // by),
    # The smallest power of two that is at least the number.
    "power_of_two": lambda number: 1 << max(number - 1, 0).bit_length(),
}
OPERATORS = {
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Mod: "%"},
    **{ast.GtE: ">=", ast.LtE: "<=", ast.Gt: ">", ast.Lt: "<", ast.Eq: "==", ast.NotEq: "!="},
}


class ExpressionError(ValueError):
    """An expression is invalid, or has no valid value for the given names."""


class DivisionByZero(ExpressionError):
    """An expression divides by zero for the given names."""


class Rejected(ValueError):
    """A problem does not meet a requirement of a header, or no case of a definition holds."""


class Expression:
    """A checked expression. `names` are the names that it reads; `tree` is its Python syntax tree,
    with C's `&&` and `||` as `and` and `or`."""

    def __init__(self, text: str):
        """Parse a text; raise `ExpressionError` if it is not C or has another meaning in C."""
        self.text = " ".join(text.split())
        self.tree, self.names, self._evaluate = _parsed(self.text)

    def value(self, names: Names, domain: Domain | None = None) -> Value:
        """Return the value over a domain, by default that of integers.

        Raises `ExpressionError` for an unknown name, division of a negative number and 64-bit
        overflow, and its subclass `DivisionByZero`.
        """
        try:
            return self._evaluate(names, domain or INTEGERS)
        except ExpressionError as error:
            raise type(error)(f"`{self.text}` {error}") from None
        except KeyError as error:
            (name,) = error.args
            raise ExpressionError(
                f"`{self.text}` reads {name}; there are {', '.join(names)}"
            ) from None

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[ast.expr, frozenset[str], Evaluate]:
    """Return the syntax tree of an expression, its names, and the function that evaluates it."""
    if "?" in text:
        raise ExpressionError(f"`{text}` has a `?`; write its cases as lines with `when`")
    if re.search(r"\b(if|else|and|or|not|in|is|lambda|True|False)\b|//|\*\*|#|\d_|\b0[oO]", text):
        raise ExpressionError(f"`{text}` is not written in C")
    words = text.replace("&&", " and ").replace("||", " or ")
    try:
        tree = ast.parse(words.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise ExpressionError(f"`{text}` is not an expression") from None
    read: set[str] = set()
    evaluate = _translated(tree, text, read)
    return tree, frozenset(read), evaluate


def _translated(node: ast.expr, text: str, read: set[str]) -> Evaluate:
    """Translate a syntax tree to a function, because headers are evaluated thousands of times, and
    add the names that it reads to `read`; reject every node that has no meaning in C."""

    def inner(part: ast.expr) -> Evaluate:
        return _translated(part, text, read)

    if isinstance(node, ast.Constant) and type(node.value) is int:
        constant = node.value
        if constant >= LIMIT:
            raise ExpressionError(f"`{text}` does not fit 64 bits")
        return lambda names, domain: domain.number(constant)
    if isinstance(node, ast.Name):
        name = node.id
        read.add(name)
        return lambda names, domain: names[name]
    if isinstance(node, ast.BoolOp):
        conjunction, parts = isinstance(node.op, ast.And), tuple(map(inner, node.values))
        return lambda names, domain: domain.logical(conjunction, parts, names)
    function, operands = None, []
    if isinstance(node, ast.Compare):
        if len(node.ops) > 1:
            raise ExpressionError(f"`{text}` has a chained comparison: write a < b && b < c")
        function, operands = OPERATORS.get(type(node.ops[0])), [node.left, *node.comparators]
    elif isinstance(node, ast.BinOp):
        function, operands = OPERATORS.get(type(node.op)), [node.left, node.right]
    elif isinstance(node, ast.Call):
        function, operands = getattr(node.func, "id", ""), node.args
        if function not in ARITIES:
            known = ", ".join(ARITIES)
            raise ExpressionError(f"`{text}` calls {function or 'something'}; there are {known}")
        if node.keywords or len(operands) != ARITIES[function]:
            takes = counted(ARITIES[function], "argument")
            raise ExpressionError(f"`{text}`: {function} takes {takes}")
    if function is None:
        raise ExpressionError(f"`{text}` is not an expression over integers")
    if len(operands) == 1:
        only = inner(operands[0])
        return lambda names, domain: domain.apply(function, only(names, domain))
    left, right = map(inner, operands)
    return lambda names, domain: domain.apply(function, left(names, domain), right(names, domain))


class Definition(NamedTuple):
    """A name of the Build table or of the launch, with the value of the first case that holds."""

    name: str
    cases: tuple[tuple[Expression, Expression | None], ...]  # (value, condition)
    rule: str = "Build"  # the key of the header, or "block" or "grid"
    where: str = ""  # file, line and key

    @property
    def is_macro(self) -> bool:
        return self.name.isupper()


class Requirement(NamedTuple):
    """A condition that every accepted problem satisfies."""

    rule: str  # the key of the header that states it, or "block", "block condition", "grid"
    condition: Expression
    name: str = ""  # the defined name that it limits


class Integers:
    """The domain of one problem; every domain has its methods. Results that C and Python compute
    differently are rejected: division of a negative number, which C rounds towards zero, and
    overflow of 64 bits."""

    def number(self, number: int) -> int:
        """Return an integer as a value."""
        return number

    def apply(self, function: str, *values: int) -> int:
        """Apply one of `FUNCTIONS`."""
        if function in COMPARISONS:
            return int(FUNCTIONS[function](*values))
        if function in DIVISIONS:
            left, right = values
            if right == 0:
                raise DivisionByZero("divides by zero")
            if left < 0 or right < 0:
                raise ExpressionError(f"divides {left} by {right}: C rounds that towards zero")
        value = FUNCTIONS[function](*values)
        if not -LIMIT <= value < LIMIT:
            raise ExpressionError("does not fit 64 bits")
        return value

    def logical(self, conjunction: bool, parts: Sequence[Evaluate], names: Names) -> int:
        """Evaluate `&&` if `conjunction`, else `||`: each part if those before do not decide."""
        for part in parts:
            if (part(names, self) != 0) is not conjunction:
                return int(not conjunction)
        return int(conjunction)

    def define(self, definition: Definition, names: Names) -> int:
        """Return the value of the first case whose condition holds or is None."""
        for value, condition in definition.cases:
            if condition is None or condition.value(names):
                return value.value(names)
        raise Rejected(f"no case of {definition.name} holds")

    def require(self, requirement: Requirement, names: Names) -> None:
        """Reject the problem, or part of the problems, if a requirement is not met."""
        if not requirement.condition.value(names):
            given = ", ".join(f"{name} = {names[name]}" for name in ("rows", "cols"))
            raise Rejected(f"requires {requirement.condition.text}, got {given}")


INTEGERS = Integers()


# ---- the rules of a header ----------------------------------------------------------------------

MAX_BLOCK = 1024  # threads, in every compute capability
MIN_CLUSTER_CAPABILITY = 90  # first compute capability with clusters and programmatic launches


class Program(NamedTuple):
    """The rules of a header, in the order of their evaluation."""

    numbers: Mapping[str, int]  # integer macros of the source
    steps: tuple[Definition | Requirement, ...]

    def evaluate(self, names: MutableMapping[str, Value], domain: Domain) -> None:
        """Add the values of all definitions to the names of a problem: rows, cols, size, row,
        x_stride, y_stride, outer, dim, inner, sms, l2, capability, and four in mixed case, which no
        header defines: maxShared, and whether x and y are isContiguous, isAligned as the header
        requires, and isAlike.

        Raises what the domain raises; `step` of the exception is the definition or requirement.
        Over integers these are `Rejected` if a requirement is not met or no case of a definition
        holds, and `ExpressionError` for an invalid expression.
        """
        for name, number in self.numbers.items():
            names[name] = domain.number(number)
        for step in self.steps:
            try:
                if isinstance(step, Requirement):
                    domain.require(step, names)
                else:
                    names[step.name] = domain.define(step, names)
            except (Rejected, ExpressionError) as error:
                error.step = step
                raise
