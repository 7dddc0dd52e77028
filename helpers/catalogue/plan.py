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
from ..simt import ShownShort
from .expressions import DivisionByZero, Expression, ExpressionError

# A file is compiled for the first dtype of its header unless one of these is defined.
DTYPE_OPTIONS = {"float16": "-DFLOAT16", "bfloat16": "-DBFLOAT16"}
INPUTS = ("rows", "cols", "size", "row", "sms", "l2", "capability", "x_stride", "y_stride")
AXIS_INPUTS = ("outer", "dim", "inner")  # additional inputs if the operation has these sizes
MIN_CLUSTER_CAPABILITY = 90  # first compute capability with clusters and programmatic launches

# CUDA's limits (programming guide, technical specifications per compute capability).
MAX_GRID = 2**31 - 1
MAX_BLOCK = 1024


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

    grid: int  # blocks
    block: int  # threads per block
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
class BuildValue:
    """One name of the Build table, whose value is given by the first case whose condition holds."""

    name: str
    cases: tuple[tuple[Expression, Expression | None], ...]  # (value, when)
    where: str  # file, line and key

    @property
    def is_macro(self) -> bool:
        return self.name.isupper()

    def value(self, names: Mapping[str, int]) -> int | None:
        """Evaluate the first case that holds; None if none does."""
        for value, when in self.cases:
            if when is None or when.value(names):
                return value.value(names)
        return None


@dataclass(frozen=True)
class Header:
    """The contract at the top of a kernel file, as parsed by `header`."""

    file: str  # the name in the source's #line directive
    fields: Mapping[str, str]
    build: tuple[BuildValue, ...]
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
    def built_features(self) -> tuple[BuildValue, ...]:
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
        result = self._plan_or_reason(problem, gpu)
        return result if isinstance(result, str) else ""

    def accepts(self, problem: Problem, gpu: Gpu = H200) -> bool:
        """Return whether the kernel accepts a problem on a GPU."""
        return not self.why_not(problem, gpu)

    def _plan_or_reason(self, problem: Problem, gpu: Gpu) -> tuple[Plan, Mapping[str, int]] | str:
        """Return the plan for the header's block size and the names used, or why there is none."""
        rows, cols, inner = problem.rows, problem.cols, problem.inner
        if np.dtype(problem.dtype) not in self.dtypes:
            return f"the kernel takes {self.fields['Dtype']}, not {problem.dtype}"
        if gpu.capability < self.arch:
            return f"{self.file} needs {self.fields['Arch']}, the GPU is sm_{gpu.capability}"
        refused = (
            f"the kernel cannot take rows = {rows}, cols = {cols}; its header says "
            f"rows >= 1, {self.fields['Columns']}"
        )
        if inner != 1 and "inner" not in self.operation.sizes:
            return f"{self.file} takes rows whose columns follow each other: inner = 1, not {inner}"
        if not (self.strided or problem.contiguous):
            return (
                f"{self.file} takes rows that follow each other: x_stride = y_stride = cols = "
                f"{cols}, not {problem.strides[0]} and {problem.strides[1]}"
            )
        try:
            names = self.names(problem, gpu)
            if names and "Features" in self.rules and not self._value("Features", names, None):
                return self._not_built()
            if names is None:
                return f"{refused}; no case of its Build table holds"
            if not self._value("Columns", names, None):
                return refused
            return self._plan(names, problem.dtype, None, gpu), names
        except HeaderError as error:
            return str(error)
        except DivisionByZero:  # the Build table may be meaningless for short rows
            return refused

    def _not_built(self) -> str:
        features = ", ".join(f"{name} = {value}" for name, value in self.features.items())
        return f"{self.file} does not build {features}; its header says {self.fields['Features']}"

    def plan(self, problem: Problem, gpu: Gpu = H200, block: int | None = None) -> Plan:
        """Return how to compile and launch the kernel for a problem on a GPU.

        `block` overrides the header's block size. Raises `ValueError` if the file does not accept
        the problem or the block size, or exceeds a limit of the GPU, and `TypeError` for a block
        size that is not an integer.
        """
        block = None if block is None else integer("block", block)
        result = self._plan_or_reason(problem, gpu)
        if isinstance(result, str):
            raise ValueError(result)
        plan, names = result
        return plan if block is None else self._plan(names, problem.dtype, block, gpu)

    def _plan(
        self, names: Mapping[str, int], dtype: str | np.dtype, block: int | None, gpu: Gpu
    ) -> Plan:
        names = dict(names)
        macros = {name: names[name] for name in self.macros}
        if gpu.capability < MIN_CLUSTER_CAPABILITY:
            for name, most in (("CLUSTER", 1), ("PROGRAMMATIC", 0)):
                if macros.get(name, 0) > most:
                    raise HeaderError(
                        f"{self.file}: {name} = {macros[name]} needs "
                        f"sm_{MIN_CLUSTER_CAPABILITY}, the GPU is sm_{gpu.capability}"
                    )
        names["block"] = block if block is not None else self._value("block", names, MAX_BLOCK, 1)
        if not 1 <= names["block"] <= MAX_BLOCK:
            raise ValueError(f"block = {names['block']} is not 1 to {MAX_BLOCK}")
        condition = self.rules.get("block condition")
        if condition and not self._value("block condition", names, None):
            raise ValueError(
                f"block = {names['block']} is not what the header asks: {condition.text}"
            )
        build_options = [f"-D{name}={value}" for name, value in macros.items()]
        if np.dtype(dtype) != self.dtypes[0]:
            build_options.append(DTYPE_OPTIONS[np.dtype(dtype).name])
        other_options = [
            option
            for option in self.options
            if option_name(option) not in macros and option not in DTYPE_OPTIONS.values()
        ]
        return Plan(
            self._value("grid", names, MAX_GRID, 1),
            names["block"],
            self._value("Shared", names, gpu.max_shared),
            self._value("Workspace", names, None, 1) if "Workspace" in self.rules else 0,
            self.cooperative,
            (*build_options, *other_options),
            macros,
            {entry.name: names[entry.name] for entry in self.build if not entry.is_macro},
            self.arch,
        )

    def _value(self, rule: str, names: Mapping[str, int], most: int | None, least: int = 0) -> int:
        """Evaluate a rule; raise `HeaderError` if it has no value or exceeds CUDA's limits."""
        expression = self.rules[rule]
        where = f"{self.file}:{self.lines[rule if rule in self.lines else 'Launch']}: {rule}"
        shape = f"rows = {names['rows']}, cols = {names['cols']}"
        try:
            value = expression.value(names)
        except DivisionByZero:
            if rule in ("Columns", "Features"):
                raise
            raise HeaderError(f"{where}: `{expression.text}` divides by zero at {shape}") from None
        except ExpressionError as error:
            raise HeaderError(f"{where}: {error} at {shape}") from None
        if value < least or most is not None and value > most:
            limits = f"{least} to {most}" if most is not None else f"at least {least}"
            raise HeaderError(
                f"{where}: `{expression.text}` is {value} at {shape}; CUDA allows {limits}"
            )
        return value

    def names(self, problem: Problem, gpu: Gpu = H200) -> dict[str, int] | None:
        """Return all names that the header's expressions may read for a problem, including values
        of the Build table; None if no case of an entry holds. Raises `HeaderError` for an invalid
        expression or a macro value out of range, and `DivisionByZero`."""
        names = {**inputs(problem, gpu), **self.numbers}
        for entry in self.build:
            value = self.fixed.get(entry.name)
            if value is None:
                try:
                    value = entry.value(names)
                except DivisionByZero:
                    raise
                except ExpressionError as error:
                    shape = f"rows = {problem.rows}, cols = {problem.cols}"
                    raise HeaderError(f"{entry.where}: {entry.name}: {error} at {shape}") from None
                if value is None:
                    return None
            if entry.is_macro and not 0 <= value <= MAX_INT:
                raise HeaderError(f"{entry.where}: {entry.name} = {value} is no macro")
            names[entry.name] = value
        return names


def option_name(option: str) -> str:
    """Return the macro that a compiler option defines: "PACKS" for "-DPACKS=4"."""
    return option.removeprefix("-D").partition("=")[0]
