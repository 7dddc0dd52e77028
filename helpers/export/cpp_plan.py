"""The rules of headers as C++ functions: which problems a kernel accepts, and how it is launched.

`CppText` is the domain in which the program of a header becomes C++ of type `long long`. A function
returns a `Plan`, whose error is cudaSuccess if the kernel accepts the matrix. A divisor that may be
0 is written `divisor(plan, ...)`, which rejects the matrix if it is; so does a definition of which
no case holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from string import Template

import numpy as np

from ..base.gpu import H200
from ..catalogue.dispatch import SOFTMAX_RANKING, Rank
from ..catalogue.expressions import (
    COMPARISONS,
    DIVISIONS,
    Definition,
    Evaluate,
    ExpressionError,
    Names,
    Requirement,
)
from ..catalogue.plan import INPUTS
from ..catalogue.registry import split_trial
from ..catalogue.tuned import Tuned
from ..run.bound import Kernel
from .cpp_text import TUNED
from .lines import wrapped
from .request import ExportError
from .specialisations import file_of

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
# Precedences of operators, lowest first; an operand of a lower one is in parentheses.
LEVELS = ("||", "&&", "== != < <= > >=", "+ -", "* / %")
FUNCTIONS = {"min": "lesser", "max": "greater"}  # std::min takes two of the same type


class Text(str):
    """An expression in C++."""

    level = len(LEVELS)

    @classmethod
    def of(cls, text: str, level: int) -> Text:
        made = cls(text)
        made.level = level
        return made

    def within(self, level: int) -> str:
        """Return the text, in parentheses if its operator binds less than a level."""
        return self if self.level >= level else f"({self})"


class CppText:
    """The domain of C++: definitions and requirements become statements."""

    def __init__(self, tuned: Sequence[str] = ()) -> None:
        self.tuned = tuned  # names of the Build table that `given` may have values for
        self.lines: list[str] = []

    def number(self, number: int) -> Text:
        return Text(number if number < 2**31 else f"{number}LL")

    def apply(self, function: str, *values: Text) -> Text:
        """Apply a function; raise `ExpressionError` if a difference is divided: it may be negative,
        and then the quotient depends on the language."""
        if function in DIVISIONS:
            left, right = values
            if re.search(r" - (?!1\b)", left):  # sizes are at least 1
                raise ExpressionError(f"divides {left}, which may be negative")
            # A plan's values are positive once a kernel accepts the matrix.
            positive = right.isdigit() or right in NUMBERS or right.startswith("plan.")
            values = left, right if positive else Text(f"divisor(plan, {right})")
        level = next((n for n, signs in enumerate(LEVELS) if function in signs.split()), None)
        if level is None:
            return Text(f"{FUNCTIONS.get(function, function)}({', '.join(values)})")
        left, right = values
        # A comparison of comparisons is in parentheses; other operators are left-associative.
        left = left.within(level + (function in COMPARISONS))
        return Text.of(f"{left} {function} {right.within(level + 1)}", level)

    def logical(self, conjunction: bool, parts: Sequence[Evaluate], names: Names) -> Text:
        # Compilers warn about && within || unless it is in parentheses.
        terms = (part(names, self).within(2) for part in parts)
        return Text.of((" && " if conjunction else " || ").join(terms), int(conjunction))

    def define(self, definition: Definition, names: Names) -> Text:
        name = definition.name
        cases = [
            (value.value(names, self), condition and condition.value(names, self))
            for value, condition in definition.cases
        ]
        if name in self.tuned:
            cases.insert(0, (Text(f"given.{name}"), Text.of(f"given.{name} >= 0", 2)))
        last = "divisor(plan, 0)" if cases[-1][1] else cases.pop()[0]
        if not cases and last.isdigit():
            return last
        lines = [f"{when.within(1)} ? {value} :" for value, when in cases]
        if lines:
            self.lines += [f"const long long {name} =", *(f"    {line}" for line in lines)]
            self.lines.append(f"    {last};")
        else:
            self.lines.append(f"const long long {name} = {last};")
        return Text(name)

    def require(self, requirement: Requirement, names: Names) -> None:
        rule, condition = requirement.rule, requirement.condition
        known = {name: int(names[name]) for name in condition.names if names[name].isdigit()}
        if known.keys() == condition.names and condition.value(known):
            return
        if rule == "Build" or rule == "Shared" and known.get("shared_mem") == 0:
            return  # `accepted` checks the range of macros
        result = f"refused(plan, {ERRORS[rule]})" if rule in ERRORS else "plan"
        condition = condition.value(names, self).within(len(LEVELS))
        self.lines.append(f"if (!{condition}) return {result};")


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
    tuned: Sequence[str] | None,
) -> str:
    """Return the C++ function that plans one kernel.

    `dtypes` are those of the file, of which the kernel may support some; `values` are names of the
    Build table that the plan passes on, `tuned` those that may be given; None if the file has no
    tuned plans.
    """
    contract, domain = kernel.header, CppText(tuned or ())
    names = _inputs()
    if "inner" not in contract.operation.sizes:
        names["inner"] = Text("1")
    try:
        contract.program(kernel.block, any_start=True).evaluate(names, domain)
    except ExpressionError as error:
        raise ExportError(f"{step}: its header cannot be exported to C++: {error}") from None
    results = {f"macros[{place}]": name for place, name in enumerate(contract.macros)}
    results |= {"block": "block", "grid": "grid", "shared": "shared_mem"}
    results |= {name.lower(): name for name in ("workspace", "CLUSTER", *values)}
    first = ["Plan plan;", f"plan.kernel = Kernel::{identifier(step)};"]
    own = [dtype for dtype in dtypes if dtype in contract.dtypes]
    if len(own) < len(dtypes):
        others = " && ".join(f"matrix.dtype != Dtype::{dtype.name}" for dtype in own)
        first.append(f"if ({others}) return plan;")
    align = contract.fields["Align"].replace("size", "matrix.size")
    aligned = f"matrix.x_start % {align} == 0 && matrix.y_start % {align} == 0"
    inputs = {**NUMBERS, **TRUTHS, "isAligned": aligned}
    defined = {entry.name for entry in contract.build}  # `packs` of a rank is another value
    first += _declarations(
        domain.lines, {n: text for n, text in inputs.items() if n not in defined}
    )
    last = []
    for member, name in results.items():
        if names.get(name, "0") != "0":
            last.append(f"plan.{member} = {names[name]};")
    flags = (name for name in ("cooperative", "strided") if getattr(contract, name))
    last += (f"plan.{name} = true;" for name in flags)
    last.append("return accepted(plan);")
    words = re.findall(r"\w+", "\n".join([*domain.lines, *last]))
    for number, line in enumerate(domain.lines):
        found = re.match(r"const long long (\w+)", line)
        if found and words.count(found[1]) == 1:
            domain.lines[number] = f"[[maybe_unused]] {line}"
    about = f"// kernels/{split_trial(step).file}.cu: what its header says."
    more = "" if tuned is None else ", [[maybe_unused]] const Changes& given = {}"
    lines = [*first, "", *domain.lines, *last]
    return f"{about}\n{_function(f'plan_{identifier(step)}', lines, more)}"


def given_values(names: Sequence[str]) -> str:
    """Return the C++ struct of values that tuned plans give."""
    members = "".join(f"    long long {name} = -1;\n" for name in names)
    about = "// Values of Build tables that replace those of the rules; -1 is none."
    return f"{about}\nstruct Changes {{\n{members}}};\n"


def tuned_function(plans: Sequence[Tuned], names: Sequence[str]) -> str:
    """Return the C++ table of tuned plans, and the function that replaces a plan by one of them."""
    rows = []
    for plan in plans:
        file, _, changes = split_trial(plan.trial)
        values = ", ".join(str(dict(changes).get(name, -1)) for name in names)
        ends = f"{plan.cols[0]}, {plan.cols[1]}, {plan.rows[0]}, {plan.rows[1]}"
        whole = str(plan.problem.packed).lower()
        rows.append(
            f"    {{Kernel::{identifier(plan.rule)}, {plan.problem.itemsize}, {whole}, {ends}, "
            f"plan_{identifier(file)}, {{{values}}}}},"
        )
    return Template(TUNED).substitute(
        rows="\n".join(rows),
        sms=H200.sms,
        l2=H200.l2,
        capability=H200.capability,
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
    lines, result = [], "faster(plan, matrix, gpu)" if tuned else "plan"
    for rank in SOFTMAX_RANKING:
        if (step := file_of(rank.file)) in steps:
            lines += _rank(rank, f"plan_{identifier(step)}(matrix, gpu)", result)
    first = [
        "Plan plan;",
        "if (!checked(matrix)) return plan;",
        *_declarations(lines, NUMBERS | TRUTHS),
    ]
    body = _function("planned", [*first, *lines, "return plan;"])
    return f"{about}: that of the first of these kernels that accepts it.\n{body}"


def _rank(rank: Rank, plan: str, result: str) -> list[str]:
    """Return the statement for one entry of the ranking. Values of the kernel's own Build table are
    members of its plan."""
    own = rank.when.names - {*NUMBERS, *TRUTHS}
    names = _inputs() | {name: Text(f"plan.{name}") for name in own}
    parts = [rank.when.value(names, CppText()).within(1)] if rank.when.names else []
    parts.insert(0 if own else len(parts), f"use(plan, {plan})")
    return [f"// {re.sub('[{}]', '', rank.reason)}", f"if ({' && '.join(parts)}) return {result};"]


def _inputs() -> dict[str, Text]:
    return {name: Text(name) for name in (*NUMBERS, *TRUTHS, "isAligned")}


def _declarations(lines: Iterable[str], inputs: Mapping[str, str]) -> list[str]:
    """Return the declarations of the inputs that statements read."""
    read = {*re.findall(r"(?<![.\w])[A-Za-z_]\w*", "\n".join(lines))}
    return [f"const long long {name} = {text};" for name, text in inputs.items() if name in read]


def _function(name: str, lines: Sequence[str], more: str = "") -> str:
    body = []
    for line in lines:
        indent = 4 + len(line) - len(line.lstrip())
        comment = line.startswith("//")
        body += [f"    {line}"] if comment else wrapped(line.strip(), indent) or [""]
    body = "\n".join(body)
    return f"constexpr Plan {name}(const Matrix& matrix, const Gpu& gpu{more})\n{{\n{body}\n}}\n"
