"""A parsed header: the problems a kernel accepts, and how it is compiled and launched for each.

`helpers.catalogue.header` parses it from the source of a kernel file.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..base.gpu import H200, Gpu
from ..problem.operations import SOFTMAX, Operation
from ..problem.problem import MAX_INT, Problem, integer
from ..simt.places import ShownShort
from .expressions import (
    INTEGERS,
    MAX_BLOCK,
    MIN_CLUSTER_CAPABILITY,
    Definition,
    DivisionByZero,
    Expression,
    ExpressionError,
    Program,
    Rejected,
    Requirement,
)

# A file is compiled for the first dtype of its header unless one of these is defined.
DTYPE_OPTIONS = {"float16": "-DFLOAT16", "bfloat16": "-DBFLOAT16"}
INPUTS = ("rows", "cols", "size", "row", "sms", "l2", "capability", "x_stride", "y_stride")
AXIS_INPUTS = ("outer", "dim", "inner")  # additional inputs if the operation has these sizes
LIMITS = {  # of CUDA, by rule
    "block": f"1 to {MAX_BLOCK}",
    "grid": f"1 to {MAX_INT}",
    "Shared": "0 to {maxShared}",
    "Workspace": "at least 1",
}


REFUSED = {  # why a problem is rejected, by rule
    "Arch": "{file} needs {arch}, the GPU is sm_{capability}",
    "Axis": "{file} takes rows whose columns follow each other: inner = 1, not {inner}",
    "Strides": "{file} takes rows that follow each other: x_stride = y_stride = cols = {cols}, not "
    "{x_stride} and {y_stride}",
    "Features": "{file} does not build {built}; its header says {features}",
    "block condition": "block = {block} is not what the header asks: {condition}",
    "Build": "{where}: {name} = {value} is not a macro",
    "Cluster": f"{{file}}: {{name}} = {{value}} needs sm_{MIN_CLUSTER_CAPABILITY}, the GPU is "
    "sm_{capability}",
}


class HeaderError(ShownShort, ValueError):
    """An invalid header; the message contains file, line, key and reason."""


def inputs(problem: Problem, gpu: Gpu) -> dict[str, int]:
    """Return the names that a header's expressions may read: `INPUTS` and `AXIS_INPUTS`."""
    sizes = problem.sizes
    return {
        **{name: sizes[name] for name in ("rows", "cols", *AXIS_INPUTS)},
        **{"size": problem.itemsize, "row": problem.row_bytes},
        **{"sms": gpu.sms, "l2": gpu.l2, "capability": gpu.capability},
        **dict(zip(("x_stride", "y_stride"), problem.strides, strict=True)),
    }


@dataclass(frozen=True)
class Plan:
    """How a kernel is compiled and launched for one shape and dtype."""

    grid: int | tuple[int, ...]  # blocks; without a header up to three dimensions
    block: int | tuple[int, ...]  # threads per block
    shared_mem: int  # dynamic shared memory per block, in bytes
    workspace: int = 0  # bytes of zeroed global memory, the last argument; 0: no such argument
    cooperative: bool = False  # whether all blocks must be co-resident
    options: tuple[str, ...] = ()  # for the compiler
    macros: Mapping[str, int] = field(default_factory=dict)  # of the Build table
    values: Mapping[str, int] = field(default_factory=dict)  # lower-case names of the Build table
    arch: int = 0  # lowest compute capability that the file supports, 75 for sm_75

    @property
    def programmatic(self) -> bool:
        """Whether the kernel may be launched before its predecessor on the stream has finished."""
        return bool(self.macros.get("PROGRAMMATIC"))

    @property
    def alike(self) -> bool:
        """Whether the addresses of x and y must be equal modulo 16 bytes."""
        return self.macros.get("LATE") == 0

    @property
    def cluster(self) -> int:
        """Blocks per cluster."""
        return self.macros.get("CLUSTER", 1)

    @property
    def launch(self) -> dict[str, int]:
        """Grid, block, shared_mem and the macros of the Build table, as stored in records."""
        sizes = {"grid": self.grid, "block": self.block, "shared_mem": self.shared_mem}
        return {**sizes, **self.macros}


@dataclass(frozen=True)
class Header:
    """The contract at the top of a kernel file, as parsed by `header`."""

    file: str  # the name in the source's #line directive
    fields: Mapping[str, str]
    build: tuple[Definition, ...]
    numbers: Mapping[str, int]  # integer macros of the source, with overrides applied
    options: tuple[str, ...]  # compiler options
    fixed: Mapping[str, int]  # names of the Build table whose value is overridden
    lines: Mapping[str, int]  # key -> line number
    table_lines: tuple[str, ...]  # the Build table, its key blanked out
    # by name: block, block condition, grid, Shared, Workspace, Columns, Features
    rules: Mapping[str, Expression]
    operation: Operation = SOFTMAX
    made_for: Mapping[str, int] = field(default_factory=dict)  # features with a fixed value

    def align(self, dtype: str | np.dtype) -> int:
        """Return the required alignment of x and y in bytes."""
        align = self.fields["Align"]
        return np.dtype(dtype).itemsize if align == "size" else int(align)

    @property
    def features(self) -> dict[str, int]:
        """The value of each feature that the file supports; 0 is disabled."""
        table = {entry.name: entry.cases[0][0].value({}) for entry in self.built_features}
        known = {**self.numbers, **table, **self.fixed, **self.made_for}
        return {name: known[name] for name in self.operation.features if name in known}

    @cached_property
    def built_features(self) -> tuple[Definition, ...]:
        """The features in the Build table, whose values are plain numbers."""
        return tuple(entry for entry in self.build if entry.name in self.operation.features)

    def changes_for(self, features: Mapping[str, int | str]) -> dict[str, int]:
        """Return the overrides that enable features, given as numbers or words. Raises `ValueError`
        naming a feature that the operation does not have or the file does not support."""
        changes = {}
        for name, wanted in features.items():
            value = self.operation.value(name, wanted)
            if value == self.features.get(name, 0):
                continue
            if name not in self.features or name in self.made_for:
                built = ", ".join(name for name in self.features if name not in self.made_for)
                raise ValueError(
                    f"{self.file} does not build {name} = {value}; it builds {built or 'none'}"
                )
            changes[name] = value
        return changes

    @cached_property
    def strided(self) -> bool:
        """Whether row strides may be larger than cols; the kernel then takes both strides."""
        return "Strides" in self.fields

    @cached_property
    def dtypes(self) -> tuple[np.dtype, ...]:
        """The dtypes that the file can be compiled for; the first needs no option."""
        return tuple(np.dtype(name) for name in self.fields["Dtype"].split(", "))

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the kernel when compiled with `options`."""
        chosen = [name for name, option in DTYPE_OPTIONS.items() if option in self.options]
        return np.dtype(chosen[0]) if chosen else self.dtypes[0]

    @property
    def arch(self) -> int:
        """The lowest compute capability that the file supports, 75 for sm_75."""
        return int(self.fields["Arch"].removeprefix("sm_"))

    @property
    def cooperative(self) -> bool:
        """Whether all blocks must be co-resident."""
        return self.fields["Launch"].endswith(", cooperative")

    @cached_property
    def macros(self) -> tuple[str, ...]:
        """The names of the macros that the code must be compiled with."""
        return tuple(value.name for value in self.build if value.is_macro)

    def table(self) -> str:
        """Return the Build table as in the file, without comment marks; "" if there is none."""
        return textwrap.dedent("\n".join(self.table_lines))

    def why_not(self, problem: Problem, gpu: Gpu = H200) -> str:
        """Return why the kernel does not accept a problem on a GPU; "" if it does."""
        try:
            self.plan(problem, gpu)
            return ""
        except ValueError as error:
            return str(error)

    def accepts(self, problem: Problem, gpu: Gpu = H200) -> bool:
        """Return whether the kernel accepts a problem on a GPU."""
        return not self.why_not(problem, gpu)

    def plan(self, problem: Problem, gpu: Gpu = H200, block: int | None = None) -> Plan:
        """Return how to compile and launch the kernel for a problem on a GPU.

        `block` overrides the header's block size. Raises `ValueError` if the file does not accept
        the problem or the block size, or exceeds a limit of the GPU, and `TypeError` for a block
        size that is not an integer.
        """
        if block is not None:
            block = integer("block", block)
            self.plan(problem, gpu)  # what is wrong without it is said first
        if np.dtype(problem.dtype) not in self.dtypes:
            raise ValueError(f"the kernel takes {self.fields['Dtype']}, not {problem.dtype}")
        names = inputs(problem, gpu)
        names |= {
            "isContiguous": int(problem.contiguous),
            "isAligned": 1,
            "maxShared": gpu.max_shared,
        }
        rules = self._program if block is None else self.program(block)
        try:
            rules.evaluate(names, INTEGERS)
        except Rejected as error:
            raise self._rejected(error.step, names, problem, block) from None
        except ExpressionError as error:
            raise self._invalid(error, names, problem) from None
        macros = {name: names[name] for name in self.macros}
        build_options = [f"-D{name}={value}" for name, value in macros.items()]
        if np.dtype(problem.dtype) != self.dtypes[0]:
            build_options.append(DTYPE_OPTIONS[np.dtype(problem.dtype).name])
        other_options = [
            option
            for option in self.options
            if option_name(option) not in macros and option not in DTYPE_OPTIONS.values()
        ]
        return Plan(
            names["grid"],
            names["block"],
            names["shared_mem"],
            names.get("workspace", 0),
            self.cooperative,
            (*build_options, *other_options),
            macros,
            {entry.name: names[entry.name] for entry in self.build if not entry.is_macro},
            self.arch,
        )

    def program(self, block: int | None = None, any_start: bool = False) -> Program:
        """Return the rules of the header as a program, whose block size may be overridden. With
        `any_start`, LATE is 1 where x and y are aligned differently."""
        steps = [_required("Arch", f"capability >= {self.arch}")]
        steps.append(_required("Align", "isAligned"))
        steps += [] if "inner" in self.operation.sizes else [_required("Axis", "inner == 1")]
        steps += [] if self.strided else [_required("Strides", "isContiguous")]
        for entry in self.build:
            cases = entry.cases
            if entry.name in self.fixed:
                cases = ((_constant(self.fixed[entry.name]), None),)
            elif entry.name == "LATE" and any_start:
                cases = ((Expression("1"), Expression("isAlike == 0")), *cases)
            steps.append(entry._replace(cases=cases))
            if entry.is_macro:
                text = f"{entry.name} >= 0 && {entry.name} <= {MAX_INT}"
                steps.append(_required("Build", text, entry.name))
        defined = {entry.name for entry in self.build}
        if any_start and "LATE" in defined:
            steps.append(_required("Align", "isAlike || LATE != 0"))
        rules = self.rules
        steps += [Requirement(one, rules[one]) for one in ("Features", "Columns") if one in rules]
        for name, most in (("CLUSTER", 1), ("PROGRAMMATIC", 0)):
            if name in defined:
                text = f"capability >= {MIN_CLUSTER_CAPABILITY} || {name} <= {most}"
                steps.append(_required("Cluster", text, name))
        size = rules["block"] if block is None else _constant(block)
        for rule, name, value, limits in (
            ("block", "block", size, f"block >= 1 && block <= {MAX_BLOCK}"),
            ("block condition", "", rules.get("block condition"), ""),
            ("grid", "grid", rules["grid"], f"grid >= 1 && grid <= {MAX_INT}"),
            ("Shared", "shared_mem", rules["Shared"], "shared_mem >= 0 && shared_mem <= maxShared"),
            ("Workspace", "workspace", rules.get("Workspace"), "workspace >= 1"),
        ):
            if value and name:
                steps.append(Definition(name, ((value, None),), rule))
                steps.append(Requirement(rule, Expression(limits), name))
            elif value and value.text != f"block == {size.text}":
                steps.append(Requirement(rule, value))
        return Program(self.numbers, tuple(steps))

    @cached_property
    def _program(self) -> Program:
        return self.program()

    def _rejected(
        self,
        step: Definition | Requirement,
        names: Mapping[str, int],
        problem: Problem,
        block: int | None,
    ) -> ValueError:
        """Return why a problem is rejected by a step of the program."""
        if isinstance(step, Definition):
            return self._not_accepted(problem, "; no case of its Build table holds")
        if step.rule == "Columns":
            return self._not_accepted(problem)
        value = names.get(step.name)
        known = {
            **names,
            **{"file": self.file, "arch": self.fields["Arch"], "name": step.name, "value": value},
            "where": next((entry.where for entry in self.build if entry.name == step.name), ""),
            "built": ", ".join(f"{name} = {value}" for name, value in self.features.items()),
            "features": self.fields.get("Features", ""),
            "condition": step.condition.text,
        }
        if step.rule in REFUSED:
            return ValueError(REFUSED[step.rule].format(**known))
        limits = LIMITS[step.rule].format(**names)
        if step.rule == "block" and block is not None:
            return ValueError(f"block = {block} is not {limits}")
        shape = f"rows = {problem.rows}, cols = {problem.cols}"
        return ValueError(
            f"{self._where(step.rule)}: `{self.rules[step.rule].text}` is {value} at {shape}; "
            f"CUDA allows {limits}"
        )

    def _invalid(
        self, error: ExpressionError, names: Mapping[str, int], problem: Problem
    ) -> ValueError:
        """Return why an expression has no valid value for a problem."""
        step = error.step
        if isinstance(error, DivisionByZero) and step.rule in ("Build", "Columns", "Features"):
            return self._not_accepted(problem)  # the table may be meaningless for short rows
        where = f"{step.where}: {step.name}" if step.rule == "Build" else self._where(step.rule)
        return ValueError(f"{where}: {error} at rows = {problem.rows}, cols = {problem.cols}")

    def _not_accepted(self, problem: Problem, more: str = "") -> ValueError:
        return ValueError(
            f"the kernel cannot take rows = {problem.rows}, cols = {problem.cols}; its header says "
            f"rows >= 1, {self.fields['Columns']}{more}"
        )

    def _where(self, rule: str) -> str:
        return f"{self.file}:{self.lines[rule if rule in self.lines else 'Launch']}: {rule}"


def option_name(option: str) -> str:
    """Return the macro that a compiler option defines: "PACKS" for "-DPACKS=4"."""
    return option.removeprefix("-D").partition("=")[0]


def _constant(number: int) -> Expression:
    return Expression(str(number) if number >= 0 else f"0 - {-number}")


def _required(rule: str, text: str, name: str = "") -> Requirement:
    return Requirement(rule, Expression(text), name)
