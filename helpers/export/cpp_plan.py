"""The rules of headers as C++: which problems a kernel accepts, and how it is launched.

An expression of a header is C and stands in the file as it is. The names that it reads are members
of the struct `Problem` or values defined above it, of type `Number`: with a divisor of 0 they are
not defined, and the kernel rejects the matrix. A plan whose error is cudaSuccess accepts it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ..catalogue.dispatch import SOFTMAX_RANKING, Rank
from ..catalogue.expressions import Definition
from ..catalogue.plan import INPUTS
from ..catalogue.registry import split_trial
from ..catalogue.tuned import Tuned
from ..run.bound import Kernel
from .lines import wrapped
from .specialisations import file_of

ERRORS = {  # of a requirement that is not met, by its rule; others give cudaErrorInvalidValue
    "Arch": "cudaErrorNoKernelImageForDevice",
    "Cluster": "cudaErrorNoKernelImageForDevice",
    "Align": "cudaErrorMisalignedAddress",
}

CHECKED = ("Build", "Axis")  # requirements that no plan states: of macros, and of inner


def identifier(step: str) -> str:
    """Return an identifier for a kernel that starts with a letter: "cluster_08" for
    "08_cluster"."""
    number, _, rest = step.rpartition("/")[2].partition("_")
    return re.sub(r"\W", "_", f"{rest}_{number}")


def table_names(steps: Sequence[str]) -> list[str]:
    """Return the values of these kernels' Build tables that conditions of the ranking read."""
    ranks = [rank for rank in SOFTMAX_RANKING if file_of(rank.file) in steps]
    return sorted({name for rank in ranks for name in _own_names(rank)})


def _own_names(rank: Rank) -> frozenset[str]:
    """Return the values of the kernel's own Build table that the condition of its rank reads."""
    return rank.when.names - {*INPUTS, "packs", "alike"}


def kernel_plan(
    step: str,
    kernel: Kernel,
    dtypes: Sequence[np.dtype],
    values: Sequence[str],
    tuned: Sequence[str] | None,
) -> str:
    """Return the C++ struct that plans one kernel.

    `dtypes` are those of the file, of which the kernel may support some; `values` are names of the
    Build table that the plan passes on, `tuned` those that may be given; None if the file has no
    tuned plans.
    """
    contract = kernel.header
    lines = ["Plan plan;", f"plan.kernel = Kernel::{identifier(step)};"]
    own = [dtype for dtype in dtypes if dtype in contract.dtypes]
    if len(own) < len(dtypes):
        others = " && ".join(f"matrix.dtype != Dtype::{dtype.name}" for dtype in own)
        lines.append(f"if ({others}) return plan;")
    align = contract.fields["Align"]
    lines += [f"const Number isAligned = x_start % {align} == 0 && y_start % {align} == 0;"]
    program = contract.program(kernel.block, any_start=True)
    lines += (f"const Number {name} = {number};" for name, number in program.numbers.items())
    names = ["isAligned", *program.numbers]
    for one in program.steps:
        if isinstance(one, Definition):
            names.append(one.name)
            lines += _definition(one, tuned or ())
        elif one.rule not in CHECKED:
            result = f"refused(plan, {ERRORS[one.rule]})" if one.rule in ERRORS else "plan"
            lines.append(f"if (!({one.condition.text})) return {result};")
    lines.append(f"if (!defined({', '.join(names)})) return plan;")
    results = {f"macros[{place}]": name for place, name in enumerate(contract.macros)}
    results |= {"block": "block", "grid": "grid", "shared": "shared_mem"}
    results |= {name.lower(): name for name in ("workspace", "CLUSTER", *values)}
    lines += (f"plan.{to} = {name}.value;" for to, name in results.items() if name in names)
    flags = (name for name in ("cooperative", "strided") if getattr(contract, name))
    lines += [*(f"plan.{name} = true;" for name in flags), "return accepted(plan);"]
    about = f"// kernels/{split_trial(step).file}.cu: what its header says."
    more = "" if tuned is None else "[[maybe_unused]] const Changes& given = {}"
    return f"{about}\n{_rules(identifier(step), lines, more)}"


def _definition(definition: Definition, tuned: Sequence[str]) -> list[str]:
    """Return the statement that defines a name, which may be one of those that are given."""
    name = definition.name
    cases = [f"given.{name} >= 0, given.{name}"] * (name in tuned)
    for value, condition in definition.cases:
        cases.append(f"{condition.text}, {value.text}" if condition else value.text)
    if len(cases) == 1 and not definition.cases[0][1]:
        return [f"const Number {name} = {cases[0]};"]
    return [f"const Number {name} = pick(", *(f"    {case}," for case in cases[:-1])] + [
        f"    {cases[-1]});"
    ]


def tuned_lines(plans: Sequence[Tuned], names: Sequence[str]) -> list[str]:
    """Return the lines of the C++ table of tuned plans."""
    lines = []
    for plan in plans:
        file, _, changes = split_trial(plan.trial)
        values = ", ".join(str(dict(changes).get(name, -1)) for name in names)
        ends = f"{plan.cols[0]}, {plan.cols[1]}, {plan.rows[0]}, {plan.rows[1]}"
        whole = str(plan.problem.packed).lower()
        lines.append(
            f"{{Kernel::{identifier(plan.rule)}, {plan.problem.itemsize}, {whole}, {ends}, "
            f"plan_by<{identifier(file)}>, {{{values}}}}},"
        )
    return lines


def choice(steps: Sequence[str], tuned: bool) -> str:
    """Return the C++ struct that plans a matrix for the first kernel in the order of `choose` that
    accepts it; a tuned plan may replace that."""
    lines, result = ["Plan plan;"], "faster(plan, *this)" if tuned else "plan"
    for rank in SOFTMAX_RANKING:
        if (step := file_of(rank.file)) in steps:
            lines += _rank(rank, identifier(step), result)
    about = "// The plan of the first of these kernels that accepts the matrix."
    return f"{about}\n{_rules('Best', [*lines, 'return plan;'])}"


def _rank(rank: Rank, rules: str, result: str) -> list[str]:
    """Return the statement for one entry of the ranking."""
    own, condition = _own_names(rank), rank.when.text
    for name in own:
        condition = re.sub(rf"\b{name}\b", f"plan.{name}", condition)
    parts = [f"bool({condition})", f"use(plan, {rules}{{*this}}.plan())"]
    joined = " && ".join(parts[::-1] if own else parts)
    return [f"// {re.sub('[{}]', '', rank.reason)}", f"if ({joined}) return {result};"]


def _rules(name: str, lines: Sequence[str], more: str = "") -> str:
    """Return a struct that makes a plan of a problem by statements."""
    body = []
    for line in lines:
        indent = 8 + len(line) - len(line.lstrip())
        comment = line.startswith("//")
        body += [f"        {line}"] if comment else wrapped(line.strip(), indent) or [""]
    body = "\n".join(body)
    opening = f"    constexpr Plan plan({more}) const\n    {{"
    return f"struct {name} : Problem {{\n{opening}\n{body}\n    }}\n}};\n"
