"""The rules of a kernel header as a program: definitions and requirements, in order.

The definitions are those of the Build table and the launch; the requirements are the keys Columns
and Features, and the limits of CUDA. `Program.evaluate` runs it over any domain.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ..problem.problem import MAX_INT
from .expressions import (
    Definition,
    Domain,
    Expression,
    ExpressionError,
    Rejected,
    Requirement,
    Value,
)

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


def program(
    build: Sequence[Definition],
    rules: Mapping[str, Expression],
    numbers: Mapping[str, int],
    fixed: Mapping[str, int] = MappingProxyType({}),
    *,
    arch: int,
    strided: bool,
    axis: bool,
    any_start: bool = False,
) -> Program:
    """Return the program of a header.

    `rules` are the expressions of the other keys: block, block condition, grid, Shared, Workspace,
    Features, Columns. `fixed` are names of the Build table, or "block", whose value is overridden.
    `strided` says whether row strides may be larger than cols, `axis` whether inner may be larger
    than 1. With `any_start`, LATE is 1 where x and y are aligned differently.
    """
    steps = [_required("Arch", f"capability >= {arch}")]
    steps.append(_required("Align", "isAligned"))
    steps += [] if axis else [_required("Axis", "inner == 1")]
    steps += [] if strided else [_required("Strides", "isContiguous")]
    for entry in build:
        cases = entry.cases
        if entry.name in fixed:
            cases = ((_constant(fixed[entry.name]), None),)
        elif entry.name == "LATE" and any_start:
            cases = ((Expression("1"), Expression("isAlike == 0")), *cases)
        steps.append(entry._replace(cases=cases))
        if entry.is_macro:
            text = f"{entry.name} >= 0 && {entry.name} <= {MAX_INT}"
            steps.append(_required("Build", text, entry.name))
    defined = {entry.name for entry in build}
    if any_start and "LATE" in defined:
        steps.append(_required("Align", "isAlike || LATE != 0"))
    steps += [Requirement(rule, rules[rule]) for rule in ("Features", "Columns") if rule in rules]
    for name, most in (("CLUSTER", 1), ("PROGRAMMATIC", 0)):
        if name in defined:
            text = f"capability >= {MIN_CLUSTER_CAPABILITY} || {name} <= {most}"
            steps.append(_required("Cluster", text, name))
    block = _constant(fixed["block"]) if "block" in fixed else rules["block"]
    for rule, name, value, limits in (
        ("block", "block", block, f"block >= 1 && block <= {MAX_BLOCK}"),
        ("block condition", "", rules.get("block condition"), ""),
        ("grid", "grid", rules["grid"], f"grid >= 1 && grid <= {MAX_INT}"),
        ("Shared", "shared_mem", rules["Shared"], "shared_mem >= 0 && shared_mem <= maxShared"),
        ("Workspace", "workspace", rules.get("Workspace"), "workspace >= 1"),
    ):
        if value and name:
            steps.append(Definition(name, ((value, None),), rule))
            steps.append(Requirement(rule, Expression(limits), name))
        elif value and value.text != f"block == {block.text}":
            steps.append(Requirement(rule, value))
    return Program(numbers, tuple(steps))


def _constant(number: int) -> Expression:
    return Expression(str(number) if number >= 0 else f"0 - {-number}")


def _required(rule: str, text: str, name: str = "") -> Requirement:
    return Requirement(rule, Expression(text), name)
