"""The kernel files: their text, their header contracts, their signatures.

The header of a file in `kernels/` is the one place that says how the kernel is launched and what
it accepts. Notebooks, tests, the recorder and the launcher all read it from there:

    Launch:   block = 128, grid = (rows + block - 1) / block
    Columns:  cols >= 1

The expressions are C integer arithmetic over rows, cols, block and the integers that the file
defines (`#define PACKS 8`), none of them negative. Launch may state what another block size has to
be: `block = 256, block % 32 == 0, grid = rows`.
"""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import itertools
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .device import ROOT

FOLDER = ROOT / "kernels"
KEYS = (
    "Idea",
    "Row",
    "Launch",
    "Shared",
    "Columns",
    "Align",
    "Dtype",
    "Arch",
    "Reads",
    "Wastes",
    "Measured",
)
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
    "__half": np.dtype(np.float16),
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


# Block sizes and macros tried beside a kernel's own: "01_naive-b32", "06_registers-PACKS4".
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
)


class Trial(NamedTuple):
    """A kernel file and how it is used otherwise than its header says."""

    file: str  # path below kernels/, without .cu
    block: int | None  # None: the header's
    options: tuple[str, ...]  # for the compiler


def split_trial(step: str) -> Trial:
    """The file, block size and compiler options of a step, a variant or a trial."""
    match = re.fullmatch(r"(.+?)(?:-b(\d+)|-([A-Z]+)(\d+))?", step)
    file, block, macro, value = match.groups()
    return Trial(file, int(block) if block else None, (f"-D{macro}={value}",) if macro else ())


def step_kernel(step: str):
    """The `cupy.RawKernel` of a step, a variant or a trial."""
    import cupy

    trial = split_trial(step)
    code = source(f"{trial.file}.cu")
    return cupy.RawKernel(code, kernel_names(code)[0], options=trial.options)


def step_launch(step: str, rows: int, cols: int) -> tuple[int, int, int] | None:
    """(grid, block, bytes of dynamic shared memory); None if the kernel does not take the shape."""
    trial = split_trial(step)
    contract = header(source(f"{trial.file}.cu"), trial.options)
    return contract.launch(rows, cols, trial.block) if contract.accepts(rows, cols) else None


# ---- header -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Header:
    """The contract at the top of a kernel file."""

    fields: dict[str, str]
    macros: dict[str, int]  # integers that the source defines

    @property
    def align(self) -> int:
        """Bytes that the addresses of x and y must be a multiple of."""
        return int(self.fields["Align"])

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.fields["Dtype"])

    @property
    def arch(self) -> int:
        """The lowest compute capability that the file claims, 75 for sm_75."""
        return int(self.fields["Arch"].removeprefix("sm_"))

    def accepts(self, rows: int, cols: int) -> bool:
        """Whether the kernel takes this shape."""
        return bool(evaluate(self.fields["Columns"], rows=rows, cols=cols, **self.macros))

    def launch(self, rows: int, cols: int, block: int | None = None) -> tuple[int, int, int]:
        """(grid, block, bytes of dynamic shared memory) for a matrix of rows x cols.

        Pass `block` to try another block size than the header's; `ValueError` if the header
        rules it out.
        """
        block_rule, condition, grid_rule = re.fullmatch(
            r"block = (.+?)(?:, (block .+))?, grid = (.+)", self.fields["Launch"]
        ).groups()
        names = {"rows": rows, "cols": cols, **self.macros}
        names["block"] = block or evaluate(block_rule, **names)
        if condition and not evaluate(condition, **names):
            raise ValueError(f"block = {names['block']} is not what the header asks: {condition}")
        grid, shared = evaluate(grid_rule, **names), evaluate(self.fields["Shared"], **names)
        return grid, names["block"], shared


def header(code: str, options: Sequence[str] = ()) -> Header | None:
    """Parse the header of a kernel's source; None if the source has no header.

    `options` are those that the kernel is compiled with: a -DNAME=... replaces a number that the
    source defines.

    Raises `ValueError` naming the keys that are missing, unknown or malformed.
    """
    comment = "\n".join(
        re.findall(r"^// ?(.*)$", code.partition('extern "C"')[0], flags=re.MULTILINE)
    )
    found = dict(re.findall(r"^([A-Z][a-z]+): +((?:.|\n +)*)", comment, flags=re.MULTILINE))
    if len(set(found) & set(KEYS)) < 3:  # a header with a typo in it is not "no header"
        return None
    if tuple(found) != KEYS:
        missing = ", ".join(key for key in KEYS if key not in found) or "none"
        unknown = ", ".join(key for key in found if key not in KEYS) or "none"
        raise ValueError(
            f"a kernel header needs the keys {', '.join(KEYS)} in this order; "
            f"missing: {missing}; unknown: {unknown}"
        )
    fields = {key: re.sub(r"\s+", " ", value).strip() for key, value in found.items()}
    defined = re.findall(r"^#define (\w+) (\d+)\b", code, flags=re.MULTILINE)
    given = re.findall(r"^-D(\w+)=(\d+)$", "\n".join(options), flags=re.MULTILINE)
    parsed = Header(fields, {name: int(value) for name, value in (*defined, *given)})
    for keys, read in (
        ("Launch, Shared", lambda: parsed.launch(33, 1000)),
        ("Columns", lambda: parsed.accepts(33, 1000)),
        ("Align", lambda: 1 // parsed.align),
        ("Dtype", lambda: parsed.dtype),
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
}


def evaluate(expression: str, **names: int) -> int:
    """Value of an integer expression of a header; min and max may be called.

    Raises `ValueError` for anything else than arithmetic, comparisons, `and`, and given names.
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
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            return all(value(part) for part in node.values)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("min", "max"):
            return {"min": min, "max": max}[node.func.id](*(value(part) for part in node.args))
        raise ValueError(f"{expression!r} is not an expression over {', '.join(names)}")

    try:
        tree = ast.parse(expression.replace("&&", " and "), mode="eval")
    except SyntaxError:
        raise ValueError(f"{expression!r} is not an expression") from None
    return value(tree)


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
    return re.findall(
        r"__global__\s+(?:void\s+)?(?:__launch_bounds__\([^)]*\)\s*)?(?:void\s+)?(\w+)\s*\(", plain
    )


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
