"""The rules of headers as C++ functions: which problems a kernel accepts, and how it is launched.

`CppText` is the domain in which the program of a header becomes C++. A function returns a `Plan`,
whose error is cudaSuccess if the kernel accepts the matrix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import Template
from typing import NamedTuple

import numpy as np

from ..base.gpu import H200
from ..catalogue.dispatch import SOFTMAX_RANKING, Rank
from ..catalogue.expressions import Definition, ExpressionError, Names, Requirement
from ..catalogue.plan import INPUTS
from ..catalogue.registry import split_trial
from ..catalogue.tuned import Tuned
from ..run.bound import Kernel
from .cpp_text import TUNED
from .request import ExportError
from .specialisations import file_of
from .terms import AND, ATOM, COMPARE, Term, Terms, wrapped

DIVISOR = """\
bool sound = true;  // until something is divided by zero, which rejects the matrix
const auto divisor = [&sound](long long number) {
    sound = sound && number > 0;
    return sound ? number : 1;
};"""
# The names that rules may read, as members of the matrix and the GPU.
NUMBERS = {
    "rows": "matrix.rows",
    "cols": "matrix.cols",
    "size": "matrix.size",
    "row": "matrix.cols * matrix.size",
    "x_stride": "matrix.x_stride",
    "y_stride": "matrix.y_stride",
    "inner": "matrix.inner",
    "outer": "matrix.rows / matrix.inner",
    "dim": "matrix.cols",
    "sms": "gpu.sms",
    "l2": "gpu.l2",
    "capability": "gpu.capability",
    "maxShared": "gpu.max_shared",
}
TRUTHS = {
    "isContiguous": "contiguous(matrix)",
    "isAlike": "matrix.x_start == matrix.y_start",
    "alike": "matrix.x_start == matrix.y_start",
    "packs": "whole_packs(matrix)",
}
ERRORS = {  # of a requirement that is not met, by its rule; others give cudaErrorInvalidValue
    "Arch": "cudaErrorNoKernelImageForDevice",
    "Cluster": "cudaErrorNoKernelImageForDevice",
    "Align": "cudaErrorMisalignedAddress",
}


class _Statement(NamedTuple):
    lines: Sequence[str]
    defines: str = ""  # the variable that it defines
    rejects: bool = True  # whether it is needed even if that variable is not read

    @property
    def reads(self) -> set[str]:
        """The variables that it reads; members of something do not count."""
        return {*re.findall(r"(?<![.\w])[A-Za-z_]\w*", "\n".join(self.lines))}


class CppText(Terms):
    """The domain of C++: definitions and requirements become statements."""

    def __init__(self, tuned: Sequence[str] = ()) -> None:
        self.tuned = tuned  # names of the Build table that `given` may have values for
        self.statements: list[_Statement] = []

    def define(self, definition: Definition, names: Names) -> Term:
        cases: list[tuple[Term, Term | None]] = []
        if definition.name in self.tuned:
            given = Term(f"given.{definition.name}", ATOM, 0)
            cases.append((given, Term(f"{given.text} >= 0", COMPARE)))
        for value, condition in definition.cases:
            when = self.number(1) if condition is None else condition.value(names, self)
            if when.number != 0:
                cases.append((value.value(names, self), None if when.number else when))
            if when.number:
                break
        name, least = definition.name, min((value.least for value, _ in cases), default=0)
        if len(cases) == 1 and cases[0][1] is None:
            term = cases[0][0]
            if term.number is not None:
                return term
            lines = [f"const long long {name} = {term.text};"]
        else:
            lines, word = [f"long long {name} = 0;"], "if"
            for term, when in cases:
                condition = f"{word} ({when.text}) " if when else "else "
                lines.append(f"{condition}{name} = {term.text};")
                word = "else if"
            if not cases or cases[-1][1] is not None:
                lines.append("else return plan;" if cases else "return plan;")
        rejects = any("return" in line or "divisor(" in line for line in lines)
        if rejects:
            lines[0] = f"[[maybe_unused]] {lines[0]}"
        self.statements.append(_Statement(lines, name, rejects))
        return Term(name, ATOM, least)

    def require(self, requirement: Requirement, names: Names) -> None:
        if requirement.rule == "Build":  # `accepted` checks the range of macros
            return
        term = requirement.condition.value(names, self)
        if term.number:
            return
        error = ERRORS.get(requirement.rule)
        result = f"refused(plan, {error})" if error else "plan"
        line = f"if (!{term.within(ATOM)}) return {result};"
        self.statements.append(_Statement([line]))

    def needed(self, reads: set[str]) -> tuple[list[str], set[str]]:
        """Return the lines of the statements that do something or define what others or `reads`
        need, and the inputs that they read."""
        lines: list[str] = []
        live = {*reads}
        for statement in reversed(self.statements):
            if statement.rejects or statement.defines in live:
                live = (live | statement.reads) - {statement.defines}
                lines = [*statement.lines, *lines]
        return lines, live


def identifier(step: str) -> str:
    """Return an identifier for a kernel that starts with a letter: "cluster_08" for
    "08_cluster"."""
    number, _, rest = step.rpartition("/")[2].partition("_")
    return re.sub(r"\W", "_", f"{rest}_{number}")


def table_names(steps: Sequence[str]) -> list[str]:
    """Return the values of these kernels' Build tables that conditions of the ranking read."""
    known = {*INPUTS, *TRUTHS}
    ranks = [rank for rank in SOFTMAX_RANKING if file_of(rank.file) in steps]
    return sorted({name for rank in ranks for name in rank.when.names - known})


def kernel_plan(
    step: str,
    kernel: Kernel,
    dtypes: Sequence[np.dtype],
    values: Sequence[str],
    tuned: Sequence[str] = (),
) -> str:
    """Return the C++ function that plans one kernel.

    `dtypes` are those of the file, of which the kernel may support some; `values` are names of the
    Build table that the plan passes on, `tuned` those that may be given. Raises `ExportError` for a
    header that is not valid C++.
    """
    contract, domain = kernel.header, CppText(tuned)
    names = _inputs(dtypes)
    if "inner" not in contract.operation.sizes:
        names |= {"inner": domain.number(1)}
    try:
        contract.program(kernel.block, any_start=True).evaluate(names, domain)
    except ExpressionError as error:
        raise ExportError(f"{step}: its header cannot be exported to C++: {error}") from None
    results = {f"macros[{place}]": names[name] for place, name in enumerate(contract.macros)}
    results |= {"block": names["block"], "grid": names["grid"], "shared": names["shared_mem"]}
    for name in ("workspace", "CLUSTER", "PROGRAMMATIC", *values):
        if name in names:
            results[name.lower()] = names[name]
    results |= {
        name: domain.number(1) for name in ("cooperative", "strided") if getattr(contract, name)
    }
    lines, inputs = domain.needed({term.text for term in results.values() if term.number is None})
    lines += [f"plan.{name} = {term.text};" for name, term in results.items() if term.text != "0"]
    align = contract.fields["Align"].replace("size", "matrix.size")
    first = ["Plan plan;", f"plan.kernel = Kernel::{identifier(step)};"]
    own = [dtype for dtype in dtypes if dtype in contract.dtypes]
    if len(own) < len(dtypes):
        others = " && ".join(f"matrix.dtype != Dtype::{dtype.name}" for dtype in own)
        first.append(f"if ({others}) return plan;")
    divides = any("divisor(" in line for line in lines)
    first += DIVISOR.splitlines() if divides else []
    aligned = f"matrix.x_start % {align} == 0 && matrix.y_start % {align} == 0"
    first += _declarations(inputs, aligned)
    lines.append("return sound ? accepted(plan) : plan;" if divides else "return accepted(plan);")
    about = f"// kernels/{split_trial(step).file}.cu: what its header says."
    more = ", const Changes& given = {}" if tuned else ""
    return f"{about}\n{_function(f'plan_{identifier(step)}', [*first, '', *lines], more)}"


def given_values(names: Sequence[str]) -> str:
    """Return the C++ struct of values that tuned plans give."""
    members = "".join(f"    long long {name} = -1;\n" for name in names)
    about = "// Values of Build tables that replace those of the rules; -1 is none."
    return f"{about}\nstruct Changes {{\n{members}}};\n"


def tuned_function(plans: Sequence[Tuned], names: Sequence[str]) -> str:
    """Return the C++ table of tuned plans, and the function that replaces a plan by one of them."""
    kernels = dict.fromkeys(split_trial(plan.trial).file for plan in plans)
    calls = []
    for kernel in kernels:
        trials = [split_trial(plan.trial) for plan in plans]
        changed = any(trial.changes for trial in trials if trial.file == kernel)
        given = ", one.given" if changed else ""
        call = f"plan_{identifier(kernel)}(matrix, gpu{given})"
        calls.append(f"if (one.kernel == Kernel::{identifier(kernel)}) plan = {call};")
    rows = []
    for plan in plans:
        file, _, changes = split_trial(plan.trial)
        values = ", ".join(str(dict(changes).get(name, -1)) for name in names)
        ends = f"{plan.cols[0]}, {plan.cols[1]}, {plan.rows[0]}, {plan.rows[1]}"
        whole = str(plan.problem.packed).lower()
        rows.append(
            f"    {{Kernel::{identifier(plan.rule)}, {plan.problem.itemsize}, {whole}, {ends}, "
            f"Kernel::{identifier(file)}, {{{values}}}}},"
        )
    return Template(TUNED).substitute(
        rows="\n".join(rows),
        sms=H200.sms,
        l2=H200.l2,
        capability=H200.capability,
        calls="\n        ".join(calls),
    )


def planned(steps: Sequence[str], best: bool, tuned: bool = False) -> str:
    """Return the C++ function that plans a matrix: for the only kernel, or for the first one in the
    order of `choose` that accepts it, which a tuned plan may replace."""
    about = "// The plan of a matrix on a GPU"
    if not best:
        (step,) = steps
        call = f"plan_{identifier(step)}(matrix, gpu)"
        lines = [f"return checked(matrix) ? {call} : Plan{{}};"]
        return f"{about}.\n{_function('planned', lines)}"
    ranks = [(rank, file_of(rank.file)) for rank in SOFTMAX_RANKING if file_of(rank.file) in steps]
    ranked, lines, inputs = [step for _, step in ranks], [], set()
    for place, (rank, step) in enumerate(ranks):
        plan = f"plan_{identifier(step)}(matrix, gpu)"
        if ranked.count(step) > 1:  # it is computed once
            if step not in ranked[:place]:
                lines.append(f"const Plan {identifier(step)} = {plan};")
            plan = identifier(step)
        statement, reads = _rank(rank, plan, "faster(plan, matrix, gpu)" if tuned else "plan")
        lines += statement
        inputs |= reads
    first = ["Plan plan;", "if (!checked(matrix)) return plan;", *_declarations(inputs)]
    body = _function("planned", [*first, *lines, "return plan;"])
    return f"{about}: that of the first of these kernels that accepts it.\n{body}"


def _rank(rank: Rank, plan: str, result: str) -> tuple[list[str], set[str]]:
    """Return the statement for one entry of the ranking, and the inputs that it reads. Values of
    the kernel's own Build table are members of its plan."""
    own = rank.when.names - {*NUMBERS, *TRUTHS}
    names = _inputs(()) | {name: Term(f"plan.{name}") for name in own}
    condition = rank.when.value(names, CppText())
    parts = [] if condition.number else [condition.within(AND)]
    parts.insert(0 if own else len(parts), f"use(plan, {plan})")
    statement = _Statement([f"if ({' && '.join(parts)}) return {result};"])
    return [f"// {re.sub('[{}]', '', rank.reason)}", *statement.lines], statement.reads


def _inputs(dtypes: Sequence[np.dtype]) -> dict[str, Term]:
    """Return the terms of all inputs."""
    names = {name: Term(name) for name in NUMBERS}
    names |= {name: Term(name, ATOM, 0) for name in (*TRUTHS, "isAligned")}
    if len(dtypes) == 1:
        names["size"] = CppText().number(dtypes[0].itemsize)
    return names


def _declarations(inputs: set[str], aligned: str = "") -> list[str]:
    """Return the declarations of inputs as local variables."""
    truths = {**TRUTHS, "isAligned": aligned}
    return [
        *(f"const long long {name} = {text};" for name, text in NUMBERS.items() if name in inputs),
        *(f"const bool {name} = {text};" for name, text in truths.items() if name in inputs),
    ]


def _function(name: str, lines: Sequence[str], more: str = "") -> str:
    body = []
    for line in lines:
        indent = 4 + len(line) - len(line.lstrip())
        comment = line.startswith("//")
        body += [f"    {line}"] if comment else wrapped(line.strip(), indent) or [""]
    body = "\n".join(body)
    return f"constexpr Plan {name}(const Matrix& matrix, const Gpu& gpu{more})\n{{\n{body}\n}}\n"
