"""What headers say, as functions of C++ that plan a matrix: a line for each case of a table.

Everything is `long long`. A function returns a `Plan`, whose error is cudaSuccess if the kernel
takes the matrix; `divisor(...)` stands around what divides and might be 0, which refuses it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import numpy as np

from ..catalogue.dispatch import SOFTMAX_RANKING, Rank
from ..catalogue.expressions import Expression
from ..catalogue.plan import (
    AXIS_INPUTS,
    INPUTS,
    MAX_BLOCK,
    MAX_GRID,
    MIN_CLUSTER_CAPABILITY,
    BuildValue,
)
from ..catalogue.registry import split_trial
from ..run.bound import Kernel
from .asked import NoSuchExport
from .builds import file_of
from .terms import as_cpp, least_value

OF_MATRIX = ("rows", "cols", "size", "x_stride", "y_stride")
OF_GPU = ("sms", "l2", "capability")
OF_RANKING = ("packs", "alike")
DIVISOR = """\
bool sound = true;  // until something is divided by zero: the plan is refused in the end
const auto divisor = [&sound](long long number) {
    sound = sound && number > 0;
    return sound ? number : 1;
};"""


def identifier(step: str) -> str:
    """ "cluster_08" of "08_cluster": a name that starts with a letter."""
    number, _, rest = step.rpartition("/")[2].partition("_")
    return re.sub(r"\W", "_", f"{rest}_{number}")


def table_names(steps: Sequence[str]) -> list[str]:
    """What the ranking reads of these kernels' own tables."""
    known = {*INPUTS, *OF_RANKING}
    ranks = [rank for rank in SOFTMAX_RANKING if file_of(rank.file) in steps]
    return sorted({name for rank in ranks for name in rank.when.names - known})


# ---- a kernel -----------------------------------------------------------------------------------


class KernelPlan:
    """The function for one kernel."""

    def __init__(self, step: str, kernel: Kernel, dtypes: Sequence[np.dtype]) -> None:
        """`dtypes` are those of the file, of which the kernel may take some."""
        self.step, self.kernel, self.contract = step, kernel, kernel.header
        self.dtypes = dtypes
        self.least = dict.fromkeys((*INPUTS, *AXIS_INPUTS), 1) | self.contract.numbers

    def text(self, values: Sequence[str]) -> str:
        """`values` are names of tables that the plan hands on. Raises `NoSuchExport`."""
        lines = [*self._contract(), ""]
        for entry in self.contract.build:
            lines += self._entry(entry)
        lines += ["", *self._limits(), *self._launch()]
        named = {entry.name for entry in self.contract.build}
        lines += [f"plan.{name} = {name};" for name in values if name in named]
        sound = any("divisor(" in line for line in lines)
        lines.append("return sound ? accepted(plan) : plan;" if sound else "return accepted(plan);")
        first = [*_inputs(lines), *self._numbers(lines)]
        first += ["Plan plan;", f"plan.kernel = Kernel::{identifier(self.step)};"]
        first += DIVISOR.splitlines() if sound else []
        about = f"// kernels/{split_trial(self.step).file}.cu: what its header says."
        name = f"plan_{identifier(self.step)}"
        return f"{about}\n{_function(name, [*first, '', *lines])}"

    def _numbers(self, lines: Sequence[str]) -> Iterator[str]:
        """Integers that the file defines."""
        for name, number in self.contract.numbers.items():
            if name in _words(lines) and name not in self.contract.macros:
                yield f"const long long {name} = {number};"

    def _contract(self) -> Iterator[str]:
        contract = self.contract
        own = [dtype for dtype in self.dtypes if dtype in contract.dtypes]
        if len(own) < len(self.dtypes):
            others = " && ".join(f"matrix.dtype != Dtype::{dtype.name}" for dtype in own)
            yield f"if ({others}) return plan;"
        yield f"if (gpu.capability < {contract.arch})"
        yield "    return refused(plan, cudaErrorNoKernelImageForDevice);"
        align = contract.fields["Align"].replace("size", "matrix.size")
        yield f"if (matrix.x_start % {align} != 0 || matrix.y_start % {align} != 0)"
        yield "    return refused(plan, cudaErrorMisalignedAddress);"
        if not contract.strided:
            yield "if (apart(matrix)) return plan;"

    def _entry(self, entry: BuildValue) -> Iterator[str]:
        """A name of the Build table, a case a line. Where x and y start differently, LATE is 1."""
        name, cases = entry.name, entry.cases
        if name in self.contract.fixed:
            self.least[name] = self.contract.fixed[name]
            yield f"const long long {name} = {self.contract.fixed[name]};"
            return
        least = min(least_value(value.tree, self.least) for value, _ in cases)
        if len(cases) == 1 and cases[0][1] is None and name != "LATE":
            yield f"const long long {name} = {self._cpp(cases[0][0])};"
        else:
            yield f"long long {name} = 0;"
            word = "if"
            if name == "LATE":
                yield "if (matrix.x_start != matrix.y_start) LATE = 1;"
                word = "else if"
            for value, when in cases:
                condition = f"{word} ({self._cpp(when)})" if when else "else"
                yield f"{condition} {name} = {self._cpp(value)};"
                word = "else if"
            if cases[-1][1] is not None:
                yield "else return plan;"
        self.least[name] = least

    def _limits(self) -> Iterator[str]:
        contract = self.contract
        for place, name in enumerate(contract.macros):
            yield f"plan.macros[{place}] = {name};"
        tree = contract.rules["Columns"].tree
        every = isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And)
        parts = [self._cpp(part) for part in (tree.values if every else [tree])]
        if every:
            parts = [f"({part})" if " || " in part else part for part in parts]
            parts = [_shorter(part) for part in parts]
        yield "const bool columns = " + "\n        && ".join(parts) + ";"
        yield "if (!columns) return plan;"
        for name, most in (("CLUSTER", 1), ("PROGRAMMATIC", 0)):
            if name in contract.macros:
                yield f"if (gpu.capability < {MIN_CLUSTER_CAPABILITY} && {name} > {most})"
                yield "    return refused(plan, cudaErrorNoKernelImageForDevice);"
                yield f"plan.{name.lower()} = {name};"

    def _launch(self) -> Iterator[str]:
        contract, rules = self.contract, self.contract.rules
        if contract.cooperative:
            yield "plan.cooperative = true;"
        if contract.strided:
            yield "plan.strided = true;"
        block = str(self.kernel.block or self._cpp(rules["block"]))
        yield f"const long long block = {block};"
        yield "plan.block = block;"
        if not block.isdigit():
            yield f"if (block < 1 || block > {MAX_BLOCK}) return plan;"
        self.least["block"] = 1
        condition = rules.get("block condition")
        if condition and (self.kernel.block or condition.text != f"block == {rules['block'].text}"):
            yield f"if (!({self._cpp(condition)})) return plan;"
        yield f"plan.grid = {self._cpp(rules['grid'])};"
        yield f"if (plan.grid < 1 || plan.grid > {MAX_GRID}) return plan;"
        if rules["Shared"].text != "0":
            yield f"plan.shared = {self._cpp(rules['Shared'])};"
            yield "if (plan.shared < 0 || plan.shared > gpu.max_shared) return plan;"
        if "Workspace" in rules:
            yield f"plan.workspace = {self._cpp(rules['Workspace'])};"
            yield "if (plan.workspace < 1) return plan;"

    def _cpp(self, expression: Expression | ast.AST) -> str:
        try:
            return as_cpp(getattr(expression, "tree", expression), self.least)
        except ValueError as error:
            raise NoSuchExport(f"{self.step}: its header cannot be C++: {error}") from None


# ---- all of a file ------------------------------------------------------------------------------


def planned(steps: Sequence[str], best: bool) -> str:
    """The function that says which kernel's plan is taken: the only one's, or the first in the
    order of `choose`."""
    about = "// The plan of a matrix on a GPU"
    if not best:
        (step,) = steps
        call = f"plan_{identifier(step)}(matrix, gpu)"
        lines = [f"return checked(matrix) ? {call} : Plan{{}};"]
        return f"{about}.\n{_function('planned', lines)}"
    ranks = [(rank, file_of(rank.file)) for rank in SOFTMAX_RANKING if file_of(rank.file) in steps]
    asked, lines = [step for _, step in ranks], []
    for place, (rank, step) in enumerate(ranks):
        plan = f"plan_{identifier(step)}(matrix, gpu)"
        if asked.count(step) > 1:  # it is computed once
            if step not in asked[:place]:
                lines.append(f"const Plan {identifier(step)} = {plan};")
            plan = identifier(step)
        lines += _rank(rank, plan)
    words = _words(line for line in lines if not line.startswith("//"))
    first = ["Plan plan;", "if (!checked(matrix)) return plan;", *_inputs(lines)]
    if "alike" in words:
        first.append("const bool alike = matrix.x_start == matrix.y_start;")
    if "packs" in words:
        first.append("const bool packs = whole_packs(matrix);")
    body = _function("planned", [*first, *lines, "return plan;"])
    return f"{about}: the first of these kernels that takes it.\n{body}"


def _rank(rank: Rank, plan: str) -> Iterator[str]:
    """A place in that order; what its condition reads of the kernel's own table comes with the
    plan."""
    own = rank.when.names - {*INPUTS, *OF_RANKING}
    condition = as_cpp(rank.when.tree, dict.fromkeys(rank.when.names, 1))
    for name in own:
        condition = re.sub(rf"\b{name}\b", f"plan.{name}", condition)
    condition = f"({condition})" if "||" in condition else condition
    call = f"use(plan, {plan})"
    both = [call, condition] if own else [condition, call]
    yield f"// {re.sub('[{}]', '', rank.reason)}"
    yield f"if ({' && '.join(part for part in both if part != '1')}) return plan;"


def _inputs(lines: Sequence[str]) -> Iterator[str]:
    """What these lines read of the matrix and the GPU, under the names of a header."""
    words = _words(line for line in lines if not line.startswith("//"))
    if "row" in words:
        words |= {"cols", "size"}
    if "outer" in words:
        words |= {"rows", "inner"}
    for name in OF_MATRIX:
        if name in words:
            yield f"const long long {name} = matrix.{name};"
    if "row" in words:
        yield "const long long row = cols * size;  // bytes"
    if "inner" in words:
        yield "const long long inner = matrix.inner;"
    if "outer" in words:
        yield "const long long outer = rows / inner;"
    if "dim" in words:
        yield "const long long dim = matrix.cols;"
    for name in OF_GPU:
        if name in words:
            yield f"const long long {name} = gpu.{name};"


def _shorter(part: str) -> str:
    """A part of a condition; where it has cases, a line each, or several."""
    cases = part.split(" || (")
    shorter = [c if len(c) < 85 else c.replace(" && ", "\n                && ") for c in cases]
    return "\n            || (".join(shorter)


def _words(lines) -> set[str]:
    """Names that are read, members of something left out."""
    return {*re.findall(r"(?<![.\w])[a-zA-Z_]\w*", "\n".join(lines))}


def _function(name: str, lines: Sequence[str]) -> str:
    body = "".join(f"    {line}\n" if line else "\n" for line in lines)
    return f"constexpr Plan {name}(const Matrix& matrix, const Gpu& gpu)\n{{\n{body}}}\n"
