"""One C++ file, which nvcc compiles: builds of kernels, the plans of their headers, a function.

What the plan says is host code alone, so that any C++ compiler reads it: kernels and launch are
left to nvcc.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping

from ..bound import Kernel, load
from ..catalogue import RANKING, source, split_trial
from ..cuda_text import kernel_names, strip_comments
from ..expressions import Expression
from ..plan import (
    CLUSTERS_SINCE,
    DTYPE_OPTIONS,
    INPUTS,
    MAX_BLOCK,
    MAX_BYTES,
    MAX_GRID,
    MAX_INT,
    option_name,
)
from .asked import LICENCE, Asked, Refused
from .builds import Build, builds, file_of
from .cpp_text import BOXES, CALL, HEAD, LAUNCH, LENT, LOOK, PLAN, TAKE, WORKSPACE, ZEROS
from .terms import as_cpp, least_value

TYPES = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}
INCLUDES = {"float16": "#include <cuda_fp16.h>", "bfloat16": "#include <cuda_bf16.h>"}
OF_MATRIX = ("rows", "cols", "size", "x_stride", "y_stride")
OF_GPU = ("sms", "l2", "capability")
# The standard that the compile line and the tests name.
COMPILE = "nvcc -std=c++17 -O3 -ftz=true -arch=sm_{arch} -c {name}.cu"


def write(asked: Asked) -> str:
    """The file. Raises `Refused` with a sentence."""
    arches = sorted({gpu.capability for gpu in asked.gpus})
    if len(arches) > 1:
        raise Refused(
            f"one file is for GPUs of one compute capability, not {' and '.join(map(str, arches))}"
        )
    found = builds(asked)
    export = _Export(asked, found, arches[0])
    return export.named(export.text())


class _Export:
    """The parts of a file. NAME in them is the function's name."""

    def __init__(self, asked: Asked, found: list[Build], arch: int) -> None:
        self.asked, self.builds, self.arch = asked, found, arch
        self.steps = list(dict.fromkeys(build.file for build in found))
        self.kernels = {step: load(step) for step in self.steps}
        headers = [kernel.header for kernel in self.kernels.values()]
        self.strided = asked.strides
        if self.strided and not any(header.strided for header in headers):
            raise Refused(f"{self.steps[0]} takes rows that follow each other; leave out --strides")
        self.workspace = any("Workspace" in header.fields for header in headers)
        self.values = sorted({*self._table_names()})
        self.most = max(1, *(len(header.macros) for header in headers))

    def text(self) -> str:
        parts = [
            self.head(),
            "#ifndef UPPER_FILE\n#define UPPER_FILE\n",
            self.includes(),
            "namespace NAME_parts {\n",
            self.plan_part(),
            "}  // namespace NAME_parts\n",
            self.declarations(),
            "#if defined(__CUDACC__) && !defined(UPPER_DECLARATIONS)\n",
            *self.build_parts(),
            self.launch_part(),
            "#endif  // what nvcc compiles, once",
            "#endif  // UPPER_FILE\n",
        ]
        return "\n".join(parts)

    # ---- head -------------------------------------------------------------------------------

    def head(self) -> str:
        shapes = ", ".join(map(str, self.asked.shapes))
        names = " and ".join(dtype.name for dtype in self.asked.dtypes)
        origins = [line for step in self.steps for line in self.asked.origin(step)]
        origins = [line for line in dict.fromkeys(origins) if not line.startswith(LICENCE)]
        copyright = next(line for line in origins if line.startswith("Copyright"))
        text = HEAD.replace("COPYRIGHT", copyright)
        text = text.replace("LICENCE", LICENCE)
        text = text.replace("ORIGIN", "\n".join(o for o in origins if o != copyright))
        text = text.replace("SHAPES", f"{names}, {shapes}")
        text = text.replace("COMPILE", COMPILE.format(arch=self.arch, name="NAME"))
        copies = all(name.rpartition("/")[2].startswith("00_copy") for name in self.steps)
        text = text.replace("RESULT", "y = x" if copies else "y[row] = softmax(x[row])")
        declared = "\n".join(_wrapped_code(self.named(line)) for line in self._declared())
        declared = "class NAME_zeros;  // as below\n" * self.workspace + declared
        text = re.sub("^DECLARATIONS$", textwrap.indent(declared, "    "), text, flags=re.M)
        text = text.replace("BUILDS", f"{len(self.builds)} build{'s' * (len(self.builds) > 1)}")
        text = text.replace("WHERE", self._where())
        if self.workspace:
            text += BOXES
        text = self.named(text)
        lines = (line for paragraph in text.strip().splitlines() for line in _wrapped(paragraph))
        return "".join(f"// {line}".rstrip() + "\n" for line in lines)

    def _where(self) -> str:
        """Where x and y must start."""
        aligns = {header.align(dtype) for dtype, header in self._of_dtypes()}
        where = f"at a multiple of {min(aligns)} bytes"
        return where if len(aligns) == 1 else "where the kernel wants it"

    def named(self, text: str) -> str:
        """The text with the function's name in place of NAME."""
        text = re.sub(r"\bUPPER(?=_)", self.asked.name.upper(), text)
        return re.sub(r"\bNAME(?=\b|_)", self.asked.name, text)

    def _of_dtypes(self):
        for build in self.builds:
            yield build.dtype, self.kernels[build.file].header

    def includes(self) -> str:
        found = [INCLUDES[d.name] for d in self.asked.dtypes if d.name in INCLUDES]
        standard = ["<cuda_runtime_api.h>", "", "<cstddef>", "<cstdint>"]
        standard += ["<map>", "<mutex>"]
        lines = [f"#include {name}" if name else "" for name in standard]
        return "\n".join([*found, *lines, ""])

    # ---- plan -------------------------------------------------------------------------------

    def plan_part(self) -> str:
        dtypes = ", ".join(d.name for d in self.asked.dtypes)
        values = "".join(f"    long long {name} = 0;\n" for name in self.values)
        listed = ", ".join(f"Dtype::{d.name}" for d in self.asked.dtypes)
        text = (
            PLAN.replace("DTYPES", dtypes).replace("LISTED", listed).replace("MOST", str(self.most))
        )
        text = text.replace("MAX_BYTES", f"{MAX_BYTES}").replace("MAX_INT", f"{MAX_INT}")
        text = text.replace("    VALUES\n", values)
        kernels = ", ".join(map(identifier, self.steps))
        text = text.replace("KERNELS", kernels).replace("BYTES", self._bytes())
        plans = [self.kernel_plan(step) for step in self.steps]
        return "\n".join([text, *plans, self.planned(), self.table()])

    def _bytes(self) -> str:
        """Bytes of an element, from `dtype`."""
        sizes = {d.name: d.itemsize for d in self.asked.dtypes}
        if len({*sizes.values()}) == 1:
            return str(*{*sizes.values()})
        return " : ".join(
            [*(f"dtype == Dtype::{n} ? {s}" for n, s in sizes.items() if s == 4), "2"]
        )

    def kernel_plan(self, step: str) -> str:
        """A function that says what the header says."""
        kernel = self.kernels[step]
        contract = kernel.header
        least = dict.fromkeys(INPUTS, 1) | contract.numbers
        lines = self._contract_checks(kernel)
        for entry in contract.build:
            lines += self._entry(entry, contract, least)
        lines += self._limits(kernel, least)
        used = {*re.findall(r"(?<![.\w])\w+", "\n".join(lines))}
        first = [f"const long long {n} = matrix.{n};" for n in OF_MATRIX if n in used]
        if "row" in used:
            if "cols" not in used:
                first.append("const long long cols = matrix.cols;")
            if "size" not in used:
                first.append("const long long size = matrix.size;")
            first.append("const long long row = cols * size;  // bytes")
        first += [f"const long long {n} = gpu.{n};" for n in OF_GPU if n in used]
        first += [
            f"const long long {name} = {number};"
            for name, number in contract.numbers.items()
            if name in used and name not in contract.macros
        ]
        first += ["Plan plan;", f"plan.kernel = Kernel::{identifier(step)};"]
        if "over" in used:
            first += [
                "bool sound = true;  // until something is divided by zero",
                "const auto over = [&sound](long long divisor) {",
                "    sound = sound && divisor > 0;",
                "    return sound ? divisor : 1;",
                "};",
            ]
        about = f"// kernels/{split_trial(step).file}.cu: what its header says."
        body = "".join(f"    {line}\n" if line else "\n" for line in [*first, "", *lines])
        unused = "" if "gpu" in {*re.findall(r"\w+", body)} else "[[maybe_unused]] "
        opening = (
            f"constexpr Plan plan_{identifier(step)}(const Matrix& matrix, {unused}const Gpu& gpu)"
        )
        return f"{about}\n{opening}\n{{\n{body}}}\n"

    def _contract_checks(self, kernel: Kernel) -> list[str]:
        contract = kernel.header
        lines = []
        own = [d for d in self.asked.dtypes if d in contract.dtypes]
        if len(own) < len(self.asked.dtypes):
            wrong = " && ".join(f"matrix.dtype != Dtype::{d.name}" for d in own)
            lines.append(f"if ({wrong}) return plan;")
        lines.append(f"if (gpu.capability < {contract.arch})")
        lines.append("    return refused(plan, cudaErrorNoKernelImageForDevice);")
        aligns = {contract.align(d) for d in own}
        align = "matrix.size" if contract.fields["Align"] == "size" else str(*aligns)
        lines.append(f"if (matrix.x_start % {align} != 0 || matrix.y_start % {align} != 0)")
        lines.append("    return refused(plan, cudaErrorMisalignedAddress);")
        if not contract.strided:
            lines.append("if (apart(matrix)) return plan;")
        return [*lines, ""]

    def _entry(self, entry, contract, least: dict[str, int]) -> list[str]:
        """Lines that give a name of the Build table its value, a case each."""
        name = entry.name
        if name in contract.fixed:
            least[name] = contract.fixed[name]
            return [f"const long long {name} = {contract.fixed[name]};"]
        cases = [
            (_cpp(value, least), _cpp(when, least) if when else None) for value, when in entry.cases
        ]
        bound = min(least_value(value.tree, least) for value, _ in entry.cases)
        late = name == "LATE"
        least[name] = bound
        if len(cases) == 1 and cases[0][1] is None and not late:
            return [f"const long long {name} = {cases[0][0]};"]
        lines = [f"long long {name} = 0;"]
        if late:
            lines.append(f"if (matrix.x_start != matrix.y_start) {name} = 1;")
        for value, when in cases:
            word = "if" if len(lines) == 1 else "else if"
            if when is None:
                lines.append(f"else {name} = {value};")
            else:
                lines.append(f"{word} ({when}) {name} = {value};")
        if cases[-1][1] is not None:
            lines.append("else return plan;")
        return lines

    def _limits(self, kernel: Kernel, least: dict[str, int]) -> list[str]:
        contract, rules = kernel.header, kernel.header.rules
        lines = [""]
        for place, name in enumerate(contract.macros):
            lines.append(f"plan.macros[{place}] = {name};")
        lines.append(f"const bool columns = {self._columns(rules['Columns'], least)};")
        lines.append("if (!columns) return plan;")
        early = [n for n in ("CLUSTER", "PROGRAMMATIC") if n in contract.macros]
        for name in early:
            most = {"CLUSTER": 1, "PROGRAMMATIC": 0}[name]
            lines.append(f"if (gpu.capability < {CLUSTERS_SINCE} && {name} > {most})")
            lines.append("    return refused(plan, cudaErrorNoKernelImageForDevice);")
            lines.append(f"plan.{name.lower()} = {name};")
        if contract.cooperative:
            lines.append("plan.cooperative = true;")
        if contract.strided:
            lines.append("plan.strided = true;")
        block = str(kernel.block) if kernel.block else _cpp(rules["block"], least)
        lines += [f"const long long block = {block};", "plan.block = block;"]
        if not block.isdigit():
            lines.append(f"if (block < 1 || block > {MAX_BLOCK}) return plan;")
        least["block"] = 1
        condition = rules.get("block condition")
        if condition and (kernel.block or condition.text != f"block == {rules['block'].text}"):
            lines.append(f"if (!({_cpp(condition, least)})) return plan;")
        lines.append(f"plan.grid = {_cpp(rules['grid'], least)};")
        lines.append(f"if (plan.grid < 1 || plan.grid > {MAX_GRID}) return plan;")
        if rules["Shared"].text != "0":
            lines.append(f"plan.shared = {_cpp(rules['Shared'], least)};")
            lines.append("if (plan.shared < 0 || plan.shared > gpu.max_shared) return plan;")
        if "Workspace" in rules:
            lines.append(f"plan.workspace = {_cpp(rules['Workspace'], least)};")
            lines.append("if (plan.workspace < 1) return plan;")
        lines += [f"plan.{n} = {n};" for n in self.values if n in {e.name for e in contract.build}]
        text = "\n".join(lines)
        sound = "over(" in text or any(
            "over(" in _cpp(part, least)
            for entry in contract.build
            for case in entry.cases
            for part in case
            if part is not None and entry.name not in contract.fixed
        )
        lines.append(
            f"return {'sound ? ' if sound else ''}taken(plan){' : plan' if sound else ''};"
        )
        return lines

    def _columns(self, rule, least: Mapping[str, int]) -> str:
        """What the header says under Columns, a condition a line."""
        tree = rule.tree
        every = isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And)
        parts = tree.values if every else [tree]
        texts = [_cpp(part, least).replace(") || (", ")\n            || (") for part in parts]
        return "\n        && ".join(f"({text})" if " || " in text else text for text in texts)

    def _table_names(self) -> Iterator[str]:
        """What the ranking reads of a kernel's own table."""
        known = {*INPUTS, "packs", "alike"}
        for rank in RANKING if self.asked.best else ():
            if file_of(rank.file) in self.steps:
                yield from rank.when.names - known

    def planned(self) -> str:
        """The function that says which plan is taken."""
        if not self.asked.best:
            (step,) = self.steps
            call = f"plan_{identifier(step)}(matrix, gpu)"
            return (
                "// The plan of a matrix on a GPU.\n"
                "constexpr Plan planned(const Matrix& matrix, const Gpu& gpu)\n{\n"
                f"    return checked(matrix) ? {call} : Plan{{}};\n}}\n"
            )
        least = dict.fromkeys([*INPUTS, *self.values], 1) | {"packs": 0, "alike": 0}
        lines = []
        for rank in RANKING:
            step = file_of(rank.file)
            if step not in self.steps:
                continue
            call = f"take(plan, plan_{identifier(step)}(matrix, gpu))"
            condition = _cpp(rank.when, least)
            own = [name for name in rank.when.names if name in self.values]
            for name in own:
                condition = re.sub(rf"\b{name}\b", f"plan.{name}", condition)
            both = (call, condition) if own else (condition, call)
            if condition == "1":
                both = (call,)
            both = [f"({part})" if "||" in part else part for part in both]
            lines.append(f"// {rank.reason.format_map(_Braces())}")
            lines.append(f"if ({' && '.join(both)}) return plan;")
        used = {*re.findall(r"(?<![.\w])\w+", " ".join(line for line in lines if line[:2] != "//"))}
        first = [
            f"const long long {n} = matrix.{n};" for n in OF_MATRIX if n in used and n != "size"
        ]
        first += (
            ["const long long row = matrix.cols * matrix.size;  // bytes"] if "row" in used else []
        )
        first += [f"const long long {n} = gpu.{n};" for n in OF_GPU if n in used]
        if "alike" in used:
            first.append("const bool alike = matrix.x_start == matrix.y_start;")
        if "packs" in used:
            first.append("const bool packs = whole_packs(matrix);")
        body = "".join(f"    {line}\n" for line in [*first, *lines, "return plan;"])
        return (
            "// The plan of a matrix on a GPU: the first of these kernels that takes it.\n"
            "constexpr Plan planned(const Matrix& matrix, const Gpu& gpu)\n{\n"
            "    Plan plan;\n    if (!checked(matrix)) return plan;\n"
            f"{body}}}\n"
        )

    def table(self) -> str:
        """The builds, a line each."""
        lines, last = [], None
        for number, build in enumerate(self.builds, 1):
            if build.file != last:
                names = ", ".join(self.kernels[build.file].header.macros) or "no macros"
                lines.append(f"// kernels/{split_trial(build.file).file}.cu: {names}")
                last = build.file
            values = ", ".join(str(value) for _, value in build.macros)
            where = f"Kernel::{identifier(build.file)}, Dtype::{build.dtype.name}"
            lines.append(f"{{{where}, {{{values}}}}},  // {number}")
        body = "".join(f"    {line}\n" for line in lines)
        about = "// The builds of this file, by the macros of their headers' tables."
        return f"{about}\nconstexpr Build builds[] = {{\n{body}}};\n\n{LOOK}"

    # ---- builds -----------------------------------------------------------------------------

    def build_parts(self) -> Iterator[str]:
        last = None
        for number, build in enumerate(self.builds, 1):
            kernel = self.kernels[build.file]
            code = source(f"{split_trial(build.file).file}.cu").partition("\n")[2]
            head, body = _split(code)
            if build.file != last:
                yield self._about(build.file, head)
                last = build.file
            yield self._build(number, build, kernel, body)

    def _about(self, step: str, head: str) -> str:
        rule = f"// ---- kernels/{split_trial(step).file}.cu "
        text = "\n".join(line for line in head.splitlines() if LICENCE not in line)
        origin = "".join(f"// {line}\n" for line in self.asked.origin(step))
        return f"{rule:-<99}\n{origin}//\n{text}\n"

    def _build(self, number: int, build: Build, kernel: Kernel, body: str) -> str:
        contract = kernel.header
        defines = [f"{name} {value}" for name, value in build.macros]
        given = {name for name, _ in build.macros}
        for option in contract.options:
            name, _, value = option.removeprefix("-D").partition("=")
            if name not in given and option not in DTYPE_OPTIONS.values():
                defines.append(f"{name} {value}".rstrip())
        if build.dtype != contract.dtypes[0]:
            defines.append(option_name(DTYPE_OPTIONS[build.dtype.name]))
        body = re.sub(r"^[ \t]*#[ \t]*include .*\n", "", body, flags=re.MULTILINE)
        body = re.sub(r'\bextern "C" (?=__global__)', "", body)
        own = re.findall(r"^\s*#\s*define (\w+)", strip_comments(body), flags=re.MULTILINE)
        undone = dict.fromkeys([*(define.split()[0] for define in defines), *own])
        lines = [f"// ---- build {number} ----", *(f"#define {define}" for define in defines)]
        lines += [f"namespace NAME_parts {{ namespace build_{number} {{", "", body.strip(), ""]
        lines += [f"}} }}  // namespace NAME_parts::build_{number}"]
        lines += [f"#undef {name}" for name in undone]
        return "\n".join([*lines, ""])

    # ---- functions --------------------------------------------------------------------------

    def _parameters(self, types: bool = True) -> list[str]:
        """After x, y, rows and cols."""
        strides = ["long long x_stride", "long long y_stride"] if self.strided else []
        boxes = ["NAME_zeros& zeros"] if self.workspace else []
        found = [*strides, *boxes, "cudaStream_t stream"]
        return found if types else [part.split()[-1].lstrip("&") for part in found]

    def _declared(self) -> Iterator[str]:
        rest = ", ".join(["long long rows", "long long cols", *self._parameters()])
        for dtype in self.asked.dtypes:
            kind = TYPES[dtype.name]
            yield f"cudaError_t NAME(const {kind}* x, {kind}* y, {rest});"
        if self.workspace:
            strides = ", long long x_stride, long long y_stride" if self.strided else ""
            yield f"size_t NAME_workspace(long long rows, long long cols{strides});"

    def declarations(self) -> str:
        functions = "\n".join(_wrapped_code(self.named(line)) for line in self._declared())
        zeros = ZEROS if self.workspace else ""
        return f"{zeros}{functions}\n"

    def launch_part(self) -> str:
        functions = ",\n".join(
            f"    reinterpret_cast<const void*>(&build_{number}::"
            f"{kernel_names(self.kernels[build.file].code)[0]})"
            for number, build in enumerate(self.builds, 1)
        )
        text = LAUNCH.replace("FUNCTIONS", functions)
        with_zeros = (LENT, "NAME_zeros& zeros, ", TAKE) if self.workspace else ("", "", "")
        for place, part in zip(("LENT", "ZEROS", "TAKE"), with_zeros, strict=True):
            text = text.replace(place, part)
        calls = []
        strides = "x_stride, y_stride" if self.strided else "cols, cols"
        passed = "zeros, stream" if self.workspace else "stream"
        for dtype in self.asked.dtypes:
            kind = TYPES[dtype.name]
            rest = ", ".join(["long long rows", "long long cols", *self._parameters()])
            opening = f"cudaError_t NAME(const {kind}* x, {kind}* y, {rest})"
            calls.append(
                CALL.replace("OPENING", _wrapped_code(self.named(opening)))
                .replace("DTYPE", dtype.name)
                .replace("STRIDES", strides)
                .replace("REST", passed)
            )
        if self.workspace:
            *_, opening = self._declared()
            opening = _wrapped_code(self.named(opening)).removesuffix(";")
            listed = ", ".join(f"Dtype::{d.name}" for d in self.asked.dtypes)
            text_of_it = WORKSPACE.replace("OPENING", opening).replace("STRIDES", strides)
            calls.append(text_of_it.replace("LISTED", listed))
        return text + "\n" + "\n".join(calls)


class _Braces(dict):
    """The words of a reason, whose numbers are known at run time alone."""

    def __missing__(self, name: str) -> str:
        return name


def _cpp(expression: Expression | ast.AST, least: Mapping[str, int]) -> str:
    try:
        return as_cpp(getattr(expression, "tree", expression), least)
    except ValueError as error:
        raise Refused(f"a header's expression cannot be C++: {error}") from None


def identifier(step: str) -> str:
    """ "cluster_08" of "08_cluster": a name that starts with a letter."""
    file = step.rpartition("/")[2]
    number, _, rest = file.partition("_")
    return re.sub(r"\W", "_", f"{rest}_{number}")


def _split(code: str) -> tuple[str, str]:
    """(the comment that a kernel file begins with, the rest)"""
    lines = code.splitlines()
    count = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    return "\n".join(lines[:count]), "\n".join(lines[count:])


def _wrapped(paragraph: str) -> Iterable[str]:
    """Lines of at most 95 columns; what is indented stays as it is."""
    if paragraph.startswith("    ") or len(paragraph) <= 95:
        return [paragraph]
    return textwrap.wrap(paragraph, 95)


def _wrapped_code(line: str) -> str:
    """A declaration with its parameters in lines of at most 95 columns."""
    opening, _, rest = line.partition("(")
    lines = [opening + "("]
    for parameter in re.split(r"(?<=,) ", rest):
        if len(lines[-1]) + len(parameter) > 94 and not lines[-1].endswith("("):
            lines[-1] = lines[-1].rstrip()
            lines.append(" " * (len(opening) + 1))
        lines[-1] += parameter + " " * parameter.endswith(",")
    return "\n".join(lines)
