"""The kernel files: their text, their header contracts, their signatures.

The header of a file in `kernels/` is the one place that says how the kernel is launched and what
it accepts. Notebooks, tests, the recorder and the launcher all read it from there:

    Launch:   block = 128, grid = (rows + block - 1) / block
    Columns:  cols >= 1

The expressions are C integer arithmetic over rows, cols, size (bytes of an element), block and the
integers that the file defines (`#define PACKS 8`), none of them negative. Launch may state what
another block size has to be: `block = 256, block % 32 == 0, grid = rows`, and ends in
", cooperative" where all blocks must run at once.

A file that is compiled for each shape lists the macros that it needs, in order; each may use those
before it. Two names have a meaning for the launch: CLUSTER, the blocks of a cluster, and
PROGRAMMATIC, 1 where the kernel may be launched before its predecessor on the stream has ended,
because it waits for that one itself. `Header.plan` gives the values as compiler options, together
with the launch:

    Build:    WIDTH = cols % 4 == 0 ? 4 : 1, LANES = min(32, power_of_two(cols / WIDTH))
"""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import itertools
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from types import MappingProxyType
from typing import NamedTuple

import ml_dtypes  # numpy knows bfloat16 after this
import numpy as np

from .paths import ROOT

FOLDER = ROOT / "kernels"
KEYS = (
    "Idea",
    "Row",
    "Build",
    "Launch",
    "Shared",
    "Workspace",
    "Columns",
    "Align",
    "Dtype",
    "Arch",
    "Reads",
    "Wastes",
    "Measured",
)
OPTIONAL_KEYS = {"Build", "Workspace"}
# A file takes the first dtype of its header unless one of these is defined.
DTYPE_OPTIONS = {"float16": "-DFLOAT16", "bfloat16": "-DBFLOAT16"}
C_DTYPES = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "int": np.dtype(np.int32),
    "unsigned": np.dtype(np.uint32),
    "unsigned int": np.dtype(np.uint32),
    "long long": np.dtype(np.int64),
    "unsigned long long": np.dtype(np.uint64),
    "char": np.dtype(np.int8),
    "unsigned char": np.dtype(np.uint8),
    "half": np.dtype(np.float16),
    "__half": np.dtype(np.float16),
    "__nv_bfloat16": np.dtype(ml_dtypes.bfloat16),
    "bool": np.dtype(np.bool_),
    "short": np.dtype(np.int16),
    "unsigned short": np.dtype(np.uint16),
    "long": np.dtype(np.int64),
    "size_t": np.dtype(np.uint64),
}


def source(name: str) -> str:
    """Return the text of a kernel file for `cupy.RawKernel`.

    `name` is a path below `kernels/`, such as "01_naive.cu". A `#line` directive goes first, so
    that a compiler error names the kernel file and its line.

    Raises `FileNotFoundError` that lists the files there are in that folder.
    """
    path = FOLDER / name
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else FOLDER
        known = ", ".join(
            sorted(file.relative_to(FOLDER).as_posix() for file in folder.glob("*.cu"))
        )
        raise FileNotFoundError(f"no kernel file kernels/{name}; there are: {known}")
    return f'#line 1 "kernels/{name}"\n{path.read_text(encoding="utf-8")}'


def steps() -> list[str]:
    """The steps of the series in order: the names of the kernel files without `.cu`."""
    return sorted(file.stem for file in FOLDER.glob("[0-9][0-9]_*.cu"))


def variants() -> list[str]:
    """What was tried beside the steps: "variants/01_naive_fast" and so on."""
    return sorted(f"variants/{file.stem}" for file in (FOLDER / "variants").glob("*.cu"))


def step_number(step: str) -> int:
    """7 for the step, a variant or a trial of 07."""
    return int(PurePath(step).name[:2])


# Block sizes and macros tried beside a kernel's own: "01_naive-b32", "06_registers-PACKS4"; any
# number of them may follow each other.
TRIALS = (
    "variants/00_copy_scalar-b1024",
    "01_naive-b32",
    "03_shared-b64",
    "03_shared-b128",
    "03_shared-b512",
    "03_shared-b1024",
    "05_float4-UNROLL1",
    "06_registers-PACKS2",
    "06_registers-PACKS4",
    "06_registers-PACKS16",
    "07_warp-WIDTH1",
    "07_warp-WIDTH1-ROWS2",
    "07_warp-WIDTH2-ROWS2",
    "07_warp-ROWS2",
    "07_warp-ROWS4",
    "07_warp-LANES32",
    "08_cluster-CLUSTER1",
    "08_cluster-CLUSTER2",
    "08_cluster-CLUSTER4",
    "08_cluster-CLUSTER8",
    "08_cluster-CLUSTER16",
    "08_cluster-RESIDENT1",
    "08_cluster-EVICT_LAST0",
    "08_cluster-PROGRAMMATIC0",
    "08_cluster-PROGRAMMATIC1",
    "variants/08_ahead-EVICT_LAST0",
    "variants/08_shared-CLUSTER1",
    "09_grid-FEW_PACKS4",
    "09_grid-FEW_PACKS8",
    "09_grid-FEW_PACKS16",
    "09_grid-PROGRAMMATIC0",
    "10_sixteen_bit-EVICT_LAST0",
)


class Trial(NamedTuple):
    """A kernel file and how it is used otherwise than its header says."""

    file: str  # path below kernels/, without .cu
    block: int | None  # None: the header's
    options: tuple[str, ...]  # for the compiler


def split_trial(step: str) -> Trial:
    """The file, block size and compiler options of a step, a variant or a trial."""
    file, changes = re.fullmatch(r"(.+?)((?:-b\d+|-[A-Z_]+\d+)*)", step).groups()
    blocks = re.findall(r"-b(\d+)", changes)
    macros = re.findall(r"-([A-Z_]+)(\d+)", changes)
    options = tuple(f"-D{macro}={value}" for macro, value in macros)
    return Trial(file, int(blocks[-1]) if blocks else None, options)


def step_plan(step: str, rows: int, cols: int, dtype: str = "float32") -> Plan | None:
    """How a step, a variant or a trial is compiled and launched for a matrix of rows x cols; None
    if its kernel does not take the shape or the dtype."""
    trial = split_trial(step)
    contract = header(source(f"{trial.file}.cu"), trial.options)
    if not contract.accepts(rows, cols, dtype):
        return None
    return contract.plan(rows, cols, dtype, trial.block)


def step_kernel(step: str, plan: Plan | None = None):
    """The `cupy.RawKernel` of a step, a variant or a trial, compiled as `plan` says; without a plan
    as for every shape, which a file with a Build line cannot do."""
    import cupy

    trial = split_trial(step)
    code = source(f"{trial.file}.cu")
    if plan is None:
        return cupy.RawKernel(code, kernel_names(code)[0], options=trial.options)
    return compiled(code, plan)


def compiled(code: str, plan: Plan):
    """The `cupy.RawKernel` of a kernel file's text, compiled as `plan` says."""
    import cupy

    return cupy.RawKernel(
        code,
        kernel_names(code)[0],
        options=plan.options,
        enable_cooperative_groups=plan.cooperative,
    )


def compiled_for(kernel, rows: int, cols: int, dtype: str = "float32", block: int | None = None):
    """(`cupy.RawKernel`, plan) for a matrix of rows x cols.

    `kernel` is the text of a kernel file, or a `cupy.RawKernel`, which is taken as it was compiled.
    Raises `ValueError` if it does not take the shape or the dtype, or has no header.
    """
    plan = contract_of(kernel).plan(rows, cols, dtype, block)
    return (compiled(kernel, plan) if isinstance(kernel, str) else kernel), plan


def contract_of(kernel) -> Header:
    """The header of a kernel file's text or of a `cupy.RawKernel`; `ValueError` without one."""
    if isinstance(kernel, str):
        name, contract = "the source", header(kernel)
    else:
        name, contract = kernel.name, header(kernel.code, kernel.options)
    if contract is None:
        raise ValueError(f"{name} has no header to take its launch shape from")
    return contract


def choose(rows: int, cols: int, dtype: str = "float32") -> str | None:
    """The kernel file from 07 on that ought to be fastest for a matrix of rows x cols on an H200;
    None if none takes it."""
    row_bytes = cols * np.dtype(dtype).itemsize
    ranked = ["08_cluster", "09_grid"]
    if row_bytes <= 1024:  # a block for each row would be too many blocks
        ranked = ["10_sixteen_bit"]
    elif row_bytes <= 2048 and rows <= 4096:  # in so small a matrix a warp for each is faster
        ranked = ["10_sixteen_bit", *ranked]
    elif row_bytes > 2**20 and rows > 16:  # a block of a cluster that holds it fills an SM
        ranked = ["variants/08_ahead", *ranked]
    elif rows % 7 == 0:  # so many clusters of 16 run at once
        ranked.insert(1, "variants/08_ahead")
    ranked.append("07_warp")
    return next((file for file in ranked if step_plan(file, rows, cols, dtype)), None)


# ---- header -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How a kernel is compiled and launched for one shape and dtype."""

    grid: int  # blocks
    block: int  # threads
    shared_mem: int  # bytes of dynamic shared memory
    workspace: int = 0  # bytes of zeros in global memory, the fifth argument; 0: no such argument
    cooperative: bool = False  # whether all blocks must run at once
    options: tuple[str, ...] = ()  # for the compiler
    macros: Mapping[str, int] = field(default_factory=dict)  # the values of the Build line

    @property
    def programmatic(self) -> bool:
        """Whether it may be launched before its predecessor on the stream has ended."""
        return bool(self.macros.get("PROGRAMMATIC"))

    @property
    def launch(self) -> dict[str, int]:
        """Grid, block, shared_mem and the Build line's values, as a record holds them."""
        sizes = {"grid": self.grid, "block": self.block, "shared_mem": self.shared_mem}
        return {**sizes, **self.macros}


@dataclass(frozen=True)
class Header:
    """The contract at the top of a kernel file."""

    fields: dict[str, str]
    macros: dict[str, int]  # integers that the source or the options define
    options: tuple[str, ...] = ()  # that the kernel is compiled with

    @property
    def align(self) -> int:
        """Bytes that the addresses of x and y must be a multiple of."""
        return int(self.fields["Align"])

    @property
    def dtypes(self) -> tuple[np.dtype, ...]:
        """What the file can be compiled for; the first needs no option."""
        first, *others = self.fields["Dtype"].split(", ")
        if set(others) - set(DTYPE_OPTIONS):
            raise ValueError(f"only {' and '.join(DTYPE_OPTIONS)} may follow the first dtype")
        return tuple(np.dtype(name) for name in (first, *others))

    @property
    def dtype(self) -> np.dtype:
        """What the kernel takes if it is compiled with `options`."""
        chosen = [name for name, option in DTYPE_OPTIONS.items() if option in self.options]
        return np.dtype(chosen[0]) if chosen else self.dtypes[0]

    @property
    def arch(self) -> int:
        """The lowest compute capability that the file claims, 75 for sm_75."""
        return int(self.fields["Arch"].removeprefix("sm_"))

    @property
    def build(self) -> dict[str, str]:
        """Macro -> expression of the Build line, in order; empty if there is none."""
        if "Build" not in self.fields:
            return {}
        parts = re.split(r",\s*(?=\w+ = )", self.fields["Build"])
        return dict(re.fullmatch(r"([A-Z_]+) = (.+)", part).groups() for part in parts)

    @property
    def defined(self) -> dict[str, int]:
        """The integers among the options: {"PACKS": 4} for -DPACKS=4."""
        found = re.findall(r"^-D(\w+)=(\d+)$", "\n".join(self.options), flags=re.MULTILINE)
        return {name: int(value) for name, value in found}

    def accepts(self, rows: int, cols: int, dtype: str | np.dtype = "float32") -> bool:
        """Whether the kernel takes this shape and dtype."""
        if rows < 1 or cols < 1 or np.dtype(dtype) not in self.dtypes:
            return False
        try:
            return bool(evaluate(self.fields["Columns"], **self._names(rows, cols, dtype)))
        except ZeroDivisionError:  # the Build line of a long row may have no sense for a short one
            return False

    def plan(
        self,
        rows: int,
        cols: int,
        dtype: str | np.dtype = "float32",
        block: int | None = None,
        macros: Mapping[str, int] = MappingProxyType({}),
    ) -> Plan:
        """How to compile and launch the kernel for a matrix of rows x cols.

        `block` and `macros` replace the header's block size and values of its Build line, or of
        numbers that the file defines, to try others. Raises `ValueError` if the file does not take
        the shape or the dtype, or rules the block size out.
        """
        if unknown := set(macros) - {*self.build, *self.macros}:
            raise ValueError(f"the kernel has no macro {', '.join(sorted(unknown))}")
        if macros:
            kept = [option for option in self.options if macro_name(option) not in macros]
            options = (*kept, *(f"-D{name}={value}" for name, value in macros.items()))
            changed = replace(self, macros={**self.macros, **macros}, options=options)
            return changed.plan(rows, cols, dtype, block)
        if np.dtype(dtype) not in self.dtypes:
            raise ValueError(f"the kernel takes {self.fields['Dtype']}, not {np.dtype(dtype)}")
        if not self.accepts(rows, cols, dtype):
            raise ValueError(
                f"the kernel cannot take rows = {rows}, cols = {cols}; its header says "
                f"rows >= 1, {self.fields['Columns']}"
            )
        return self._plan(rows, cols, dtype, block)

    def _plan(self, rows: int, cols: int, dtype: str | np.dtype, block: int | None = None) -> Plan:
        block_rule, condition, grid_rule, cooperative = re.fullmatch(
            r"block = (.+?)(?:, (block .+))?, grid = (.+?)(, cooperative)?", self.fields["Launch"]
        ).groups()
        names = self._names(rows, cols, dtype)
        values = {name: names[name] for name in self.build}
        names["block"] = block or evaluate(block_rule, **names)
        if condition and not evaluate(condition, **names):
            raise ValueError(f"block = {names['block']} is not what the header asks: {condition}")
        workspace = 0
        if "Workspace" in self.fields:
            workspace = evaluate(self.fields["Workspace"], **names)
            if workspace < 1:
                raise ValueError(f"{workspace} bytes are no workspace")
        options = [f"-D{name}={value}" for name, value in values.items()]
        if np.dtype(dtype) != self.dtypes[0]:
            options.append(DTYPE_OPTIONS[np.dtype(dtype).name])
        kept = [
            option
            for option in self.options
            if macro_name(option) not in values and option not in DTYPE_OPTIONS.values()
        ]
        return Plan(
            evaluate(grid_rule, **names),
            names["block"],
            evaluate(self.fields["Shared"], **names),
            workspace,
            bool(cooperative),
            (*options, *kept),
            values,
        )

    def _names(self, rows: int, cols: int, dtype: str | np.dtype) -> dict[str, int]:
        """What the header's expressions may use, the values of the Build line included."""
        names = {"rows": rows, "cols": cols, "size": np.dtype(dtype).itemsize, **self.macros}
        fixed = self.defined
        for name, expression in self.build.items():
            names[name] = fixed[name] if name in fixed else int(evaluate(expression, **names))
        return names


def macro_name(option: str) -> str:
    """What a compiler option defines: "PACKS" of "-DPACKS=4"."""
    return option.removeprefix("-D").partition("=")[0]


@functools.lru_cache(maxsize=512)
def header(code: str, options: tuple[str, ...] = ()) -> Header | None:
    """Parse the header of a kernel's source; None if the source has no header.

    `options` are those that the kernel is compiled with: a -DNAME=... replaces a number that the
    source defines or that the Build line computes, -DFLOAT16 and -DBFLOAT16 choose the dtype.

    Raises `ValueError` naming the keys that are missing, unknown or malformed.
    """
    comment = "\n".join(
        re.findall(r"^// ?(.*)$", code.partition('extern "C"')[0], flags=re.MULTILINE)
    )
    found = dict(re.findall(r"^([A-Z][a-z]+): +((?:.|\n +)*)", comment, flags=re.MULTILINE))
    if len(set(found) & set(KEYS)) < 3:  # a header with a typo in it is not "no header"
        return None
    if tuple(found) != tuple(key for key in KEYS if key in found or key not in OPTIONAL_KEYS):
        missing = ", ".join(key for key in KEYS if key not in {*found, *OPTIONAL_KEYS}) or "none"
        unknown = ", ".join(key for key in found if key not in KEYS) or "none"
        raise ValueError(
            f"a kernel header needs the keys {', '.join(KEYS)} in this order, "
            f"{' and '.join(sorted(OPTIONAL_KEYS))} if it uses them; "
            f"missing: {missing}; unknown: {unknown}"
        )
    fields = {key: re.sub(r"\s+", " ", value).strip() for key, value in found.items()}
    numbers = re.findall(r"^#define (\w+) (\d+)\b", code, flags=re.MULTILINE)
    parsed = Header(fields, {name: int(value) for name, value in numbers}, options)
    parsed.macros.update(parsed.defined)

    def a_plan() -> Plan:
        shapes = ((33, 1000), (33, 1024), (3, 20000), (4, 131072))
        taken = [shape for shape in shapes if parsed.accepts(*shape, parsed.dtype)]
        return parsed._plan(*(taken or shapes)[0], parsed.dtype)

    for keys, read in (
        ("Dtype", lambda: parsed.dtype),
        ("Build or Columns", lambda: parsed.accepts(33, 1000, parsed.dtype)),
        ("Launch, Shared or Workspace", a_plan),
        ("Align", lambda: 1 // parsed.align),
        ("Arch", lambda: parsed.arch),
    ):
        try:
            read()
        except Exception as error:
            raise ValueError(f"a kernel header is malformed at {keys}: {error}") from error
    return parsed


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
FUNCTIONS = {
    "min": min,
    "max": max,
    "power_of_two": lambda number: 1 << max(number - 1, 0).bit_length(),  # the smallest >= number
}


def evaluate(expression: str, **names: int) -> int:
    """Value of an integer expression of a header; min, max and power_of_two may be called.

    Raises `ValueError` for anything else than arithmetic, comparisons, `and`, `or`, a choice
    `condition ? value : value`, and given names.
    """

    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Expression):
            return value(node.body)
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Compare) and all(type(op) in OPERATORS for op in node.ops):
            sides = [value(side) for side in (node.left, *node.comparators)]
            pairs = zip(node.ops, sides, sides[1:], strict=False)
            return all(OPERATORS[type(op)](left, right) for op, left, right in pairs)
        if isinstance(node, ast.BoolOp):
            every_or_any = all if isinstance(node.op, ast.And) else any
            return every_or_any(value(part) for part in node.values)
        if isinstance(node, ast.IfExp):
            return value(node.body) if value(node.test) else value(node.orelse)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in FUNCTIONS:
            return FUNCTIONS[node.func.id](*(value(part) for part in node.args))
        raise ValueError(f"{expression!r} is not an expression over {', '.join(names)}")

    return value(_syntax_tree(expression))


@functools.lru_cache(maxsize=1024)
def _syntax_tree(expression: str) -> ast.Expression:
    words = expression.replace("&&", " and ").replace("||", " or ")
    try:
        if re.search(r"\b(if|else)\b|\0", words):  # Python's choice; a header is written in C
            raise SyntaxError
        return ast.parse(_python_choices(words), mode="eval")
    except (SyntaxError, ValueError):
        raise ValueError(f"{expression!r} is not an expression") from None


def _python_choices(expression: str) -> str:
    """C's `a ? b : c` as Python's `b if a else c`; a choice inside b needs brackets."""
    brackets: list[str] = []

    def translated(part: str) -> str:
        condition, question, rest = part.partition("?")
        if not question:
            return part
        value, colon, otherwise = rest.partition(":")
        if not colon:
            raise SyntaxError
        return f"({value}) if ({condition}) else ({translated(otherwise)})"

    def put_aside(match: re.Match) -> str:
        brackets.append(f"({', '.join(map(translated, match[1].split(',')))})")
        return f"\0{len(brackets) - 1}\0"

    while "(" in expression:
        shorter = re.sub(r"\(([^()]*)\)", put_aside, expression)
        if shorter == expression:
            raise SyntaxError
        expression = shorter
    expression = translated(expression)
    while "\0" in expression:
        expression = re.sub(r"\0(\d+)\0", lambda match: brackets[int(match[1])], expression)
    return expression


# ---- code -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel as its source declares it."""

    name: str
    type: str  # "float", "long long"; of the element for a pointer
    pointer: bool
    const: bool

    @property
    def dtype(self) -> np.dtype | None:
        """None for a type that only the compiler knows, such as a typedef or macro."""
        return C_DTYPES.get(self.type)


@functools.lru_cache(maxsize=256)
def signature(code: str, kernel_name: str) -> tuple[Parameter, ...]:
    """The parameters that `kernel_name` declares.

    Raises `ValueError` naming the kernels there are if it is not declared `__global__`.
    """
    plain = strip_comments(code)
    kernel_name = kernel_name.partition("<")[0].rpartition("::")[2]  # of a template's expression
    match = re.search(rf"__global__[^;{{]*?\b{re.escape(kernel_name)}\s*\(([^)]*)\)", plain)
    if not match:
        known = ", ".join(kernel_names(code)) or "none"
        raise ValueError(f"no kernel named {kernel_name!r} in this source; kernels there: {known}")
    parameters = []
    for text in filter(None, (part.strip() for part in match[1].split(","))):
        words = re.findall(r"\w+|\*", text.replace("__restrict__", " "))
        kind = [word for word in words[:-1] if word not in ("const", "*", "volatile")]
        # What the pointer points to is const; in `float* const y` the pointer alone is.
        const = "const" in " ".join(words).partition("*")[0].split()
        parameters.append(Parameter(words[-1], " ".join(kind), "*" in words, const))
    return tuple(parameters)


def kernel_names(code: str) -> list[str]:
    """Names of the `__global__` functions of a source, in order."""
    plain = strip_comments(code)
    return re.findall(r"__global__\s+(?:void\s+|[A-Z_]+\s+|__\w+__\([^)]*\)\s*)*(\w+)\s*\(", plain)


def strip_comments(code: str) -> str:
    """The source without comments and `#line` directives."""
    pattern = r"//[^\n]*|/\*.*?\*/|^#line[^\n]*$"  # in one go: // may hold /* and the reverse
    return re.sub(pattern, " ", code, flags=re.MULTILINE | re.DOTALL)


def code_hash(code: str) -> str:
    """Hash of what the compiler sees: comments and white space do not count."""
    return hashlib.sha256(" ".join(strip_comments(code).split()).encode()).hexdigest()[:16]


def diff(old: str, new: str) -> str:
    """Unified diff of the code of two kernel files, without their headers."""

    def body(name: str) -> list[str]:
        lines = source(name).splitlines()[1:]
        return [*itertools.dropwhile(lambda line: line.startswith("//") or not line, lines)]

    lines = difflib.unified_diff(body(old), body(new), old, new, lineterm="", n=1)
    return "\n".join(lines)
