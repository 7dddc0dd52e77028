"""One C++ file, which nvcc compiles: builds of kernels, the plans of their headers, a function.

What the plan says is host code alone, so that any C++ compiler reads it: kernels and launch are
left to nvcc.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from functools import cached_property

from ..bound import load
from ..catalogue import source, split_trial
from ..plan import DTYPE_OPTIONS, MAX_BYTES, MAX_INT, option_name
from ..simt.cuda_text import strip_comments
from .asked import LICENCE, Asked, Refused
from .builds import Build, builds
from .cpp_plan import KernelPlan, identifier, planned, table_names
from .cpp_text import (
    BOXES,
    BUILDS,
    CALL,
    HEAD,
    LAUNCH,
    LENDER,
    LOOK,
    PLAN,
    TAKE,
    WORKSPACE,
    ZEROS,
)

TYPES = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}
INCLUDES = {"float16": "#include <cuda_fp16.h>\n", "bfloat16": "#include <cuda_bf16.h>\n"}
COMPILE = "nvcc -std=c++17 -O3 -ftz=true -arch=sm_{arch} -c {file}"
WIDTH = 95  # of lines of the head, without comment marks; of declarations, which are indented,
DECLARED_WIDTH = 91


def write(asked: Asked, file: str = "") -> str:
    """The text of a file of that name, NAME.cu if not given. Raises `Refused` with a sentence."""
    arches = sorted({gpu.capability for gpu in asked.gpus})
    if len(arches) > 1:
        raise Refused(
            f"one file is for GPUs of one compute capability, not {' and '.join(map(str, arches))}"
        )
    return _File(asked, file or f"{asked.name}.cu", builds(asked)).text()


def compile_line(asked: Asked, file: str) -> str:
    """What makes an object of a file of that name."""
    return COMPILE.format(arch=asked.gpus[0].capability, file=shlex.quote(file))


class _File:
    """The parts of a file."""

    def __init__(self, asked: Asked, name: str, found: list[Build]) -> None:
        self.asked, self.name, self.builds = asked, name, found
        self.steps = list(dict.fromkeys(build.file for build in found))
        self.kernels = {step: load(step) for step in self.steps}
        self.files = list(dict.fromkeys(split_trial(step).file for step in self.steps))
        self.headers = {step: kernel.header for step, kernel in self.kernels.items()}
        if asked.strides and not any(header.strided for header in self.headers.values()):
            raise Refused(f"{self.steps[0]} takes rows that follow each other; leave out --strides")
        self.workspace = any("Workspace" in header.fields for header in self.headers.values())

    def text(self) -> str:
        parts = [
            self._head(),
            "#ifndef SOFTMAX_WORKLOG_TEXT  // else this file, or one like it, includes itself",
            "#ifndef UPPER_FILE\n#define UPPER_FILE\n",
            self._includes(),
            "namespace NAME_parts {\n",
            self._plans(),
            "}  // namespace NAME_parts\n",
            (ZEROS if self.workspace else "") + "\n".join(self.declared) + "\n",
            "#if defined(__CUDACC__) && !defined(UPPER_DECLARATIONS)\n",
            BUILDS.replace("FILENAME", self.name),
            *(self._build(number, build) for number, build in enumerate(self.builds, 1)),
            "#undef SOFTMAX_WORKLOG_TEXT\n",
            self._launch(),
            "#endif  // what nvcc compiles, once\n#endif  // UPPER_FILE\n",
        ]
        texts = (self._text(number, file) for number, file in enumerate(self.files, 1))
        # No word of a kernel is replaced.
        return "\n".join([self._named("\n".join(parts)), *texts, "#endif\n"])

    def _named(self, text: str) -> str:
        """The text with the function's name in place of NAME, or UPPER for a macro."""
        text = re.sub(r"\bUPPER(?=_)", self.asked.name.upper(), text)
        return re.sub(r"\bNAME(?=\b|_)", self.asked.name, text)

    @cached_property
    def declared(self) -> list[str]:
        """The functions' declarations, of which that of `NAME_workspace` is the last."""
        strides = ["long long x_stride", "long long y_stride"] if self.asked.strides else []
        zeros = ["NAME_zeros& zeros"] if self.workspace else []
        sizes = ["long long rows", "long long cols", *strides]
        found = []
        for dtype in self.asked.dtypes:
            kind = TYPES[dtype.name]
            matrices = [f"const {kind}* x", f"{kind}* y"]
            rest = [*sizes, *zeros, "cudaStream_t stream"]
            found.append(self._declaration("cudaError_t NAME(", [*matrices, *rest]))
        if self.workspace:
            found.append(self._declaration("size_t NAME_workspace(", sizes))
        return found

    def _declaration(self, opening: str, parameters: list[str]) -> str:
        """A declaration in lines that are not too long."""
        opening = self._named(opening)
        room = DECLARED_WIDTH - len(opening)
        # A parameter is not broken: its spaces are no spaces meanwhile.
        joined = ", ".join(self._named(p).replace(" ", "\0") for p in parameters)
        lines = textwrap.wrap(f"{joined});", room, break_long_words=False, break_on_hyphens=False)
        return opening + ("\n" + " " * len(opening)).join(lines).replace("\0", " ")

    # ---- head -------------------------------------------------------------------------------

    def _head(self) -> str:
        licence, copyright, *_ = self.asked.origin(self.steps[0])
        origins = dict.fromkeys(o for step in self.steps for o in self.asked.origin(step)[2:])
        names = " and ".join(dtype.name for dtype in self.asked.dtypes)
        copies = all(step.rpartition("/")[2].startswith("00_copy") for step in self.steps)
        declared = ["class NAME_zeros;  // as below"] * self.workspace + self.declared
        aligns = {self.headers[build.file].align(build.dtype) for build in self.builds}
        words = {
            "LICENCE": licence,
            "COPYRIGHT": copyright,
            "ORIGIN": "\n".join(origins),
            "RESULT": "y = x" if copies else "y[row] = softmax(x[row])",
            "SHAPES": ", ".join([names, *map(str, self.asked.shapes)]),
            "BUILDS": f"{len(self.builds)} build{'s' * (len(self.builds) > 1)}",
            "COMPILE": compile_line(self.asked, self.name),
            "^DECLARATIONS$": textwrap.indent("\n".join(declared), "    "),
            "WHERE": "where the kernel wants it"
            if len(aligns) > 1
            else f"at a multiple of {min(aligns)} bytes",
        }
        text = HEAD + (BOXES if self.workspace else "")
        for word, instead in words.items():
            text = re.sub(word if "^" in word else rf"\b{word}\b", instead, text, flags=re.M)
        text = text.replace("GIVEN", ", x_stride, y_stride" if self.asked.strides else "")
        lines = []
        for line in self._named(text).strip().splitlines():
            lines += [line] if line.startswith("    ") else textwrap.wrap(line, WIDTH) or [""]
        return "".join(f"// {line}".rstrip() + "\n" for line in lines)

    def _includes(self) -> str:
        types = "".join(INCLUDES.get(dtype.name, "") for dtype in self.asked.dtypes)
        runtime = "#include <cuda_runtime_api.h>\n"
        standard = "".join(f"#include <{n}>\n" for n in ("cstddef", "cstdint", "map", "mutex"))
        return f"{types}{runtime}\n{standard}"

    # ---- plan -------------------------------------------------------------------------------

    def _plans(self) -> str:
        """Plans and the table of builds."""
        dtypes = self.asked.dtypes
        values = table_names(self.steps) if self.asked.best else []
        sizes = " : ".join(f"dtype == Dtype::{d.name} ? {d.itemsize}" for d in dtypes[:-1])
        words = {
            "DTYPES": ", ".join(dtype.name for dtype in dtypes),
            "KERNELS": ", ".join(map(identifier, self.steps)),
            "BYTES": " : ".join([sizes] * bool(sizes) + [str(dtypes[-1].itemsize)]),
            "MOST": str(max(1, *(len(header.macros) for header in self.headers.values()))),
            "MAX_BYTES": str(MAX_BYTES),
            "MAX_INT": str(MAX_INT),
            " *VALUES\n": "".join(f"    long long {name} = 0;\n" for name in values),
        }
        text = PLAN
        for word, instead in words.items():
            text = re.sub(word if "\n" in word else rf"\b{word}\b", instead, text)
        plans = [KernelPlan(step, self.kernels[step], dtypes).text(values) for step in self.steps]
        return "\n".join([text, *plans, planned(self.steps, self.asked.best), self._table(), LOOK])

    def _table(self) -> str:
        """The builds, a line each."""
        lines, last = [], ""
        for number, build in enumerate(self.builds, 1):
            if build.file != last:
                macros = ", ".join(self.headers[build.file].macros) or "no macros"
                lines.append(f"// kernels/{split_trial(build.file).file}.cu: {macros}")
                last = build.file
            values = ", ".join(str(value) for _, value in build.macros)
            where = f"Kernel::{identifier(build.file)}, Dtype::{build.dtype.name}"
            lines.append(f"{{{where}, {{{values}}}}},  // {number}")
        about = "// The builds of this file, by the macros of their headers' tables."
        body = textwrap.indent("\n".join(lines), "    ")
        return f"{about}\nconstexpr Build builds[] = {{\n{body}\n}};\n"

    # ---- kernels ----------------------------------------------------------------------------

    def _build(self, number: int, build: Build) -> str:
        """The macros of a build, and the text of its kernel in a namespace."""
        file = split_trial(build.file).file
        place = self.files.index(file) + 1
        lines = [
            f"#define UPPER_TEXT {place}  // build {number}: kernels/{file}.cu",
            *(f"#define {name} {value}".rstrip() for name, value in self._macros(build).items()),
            f"namespace NAME_parts {{ namespace build_{number} {{",
            "#include UPPER_SELF",
            "} }\n",
        ]
        return "\n".join(lines)

    def _macros(self, build: Build) -> dict[str, object]:
        """What a kernel's text is compiled with."""
        contract = self.headers[build.file]
        macros = dict(build.macros)
        for option in contract.options:
            name, _, value = option.removeprefix("-D").partition("=")
            if option not in DTYPE_OPTIONS.values():
                macros.setdefault(name, value)
        if build.dtype != contract.dtypes[0]:
            macros[option_name(DTYPE_OPTIONS[build.dtype.name])] = ""
        return macros

    def _text(self, number: int, file: str) -> str:
        """The text of a kernel file; behind it nothing is left of any macro."""
        head, body = _split(source(f"{file}.cu").partition("\n")[2])  # without its #line
        steps = [step for step in self.steps if split_trial(step).file == file]
        origin = dict.fromkeys(line for step in steps for line in self.asked.origin(step))
        head = head.replace(f"// {LICENCE}\n", "")
        body = re.sub(r"^[ \t]*#[ \t]*include .*\n", "", body, flags=re.M)
        body = re.sub(r'\bextern "C" (?=__global__)', "", body)
        own = re.findall(r"^\s*#\s*define (\w+)", strip_comments(body), flags=re.M)
        builds = [build for build in self.builds if build.file in steps]
        given = [name for build in builds for name in self._macros(build)]
        upper = f"{self.asked.name.upper()}_TEXT"
        lines = [
            f"#elif defined({upper}) && {upper} == {number}",
            f"// ---- kernels/{file}.cu ".ljust(99, "-"),
            *(f"// {line}" for line in origin),
            f"//\n{head}\n\n{body.strip()}\n",
            *(f"#undef {name}" for name in dict.fromkeys([upper, *given, *own])),
            "",
        ]
        return "\n".join(lines)

    # ---- functions --------------------------------------------------------------------------

    def _launch(self) -> str:
        """The launch, and the functions that are declared."""
        strides = "x_stride, y_stride" if self.asked.strides else "cols, cols"
        functions = [
            f"    reinterpret_cast<const void*>(&build_{number}::{kernel.name}),"
            for number, kernel in enumerate((self.kernels[b.file] for b in self.builds), 1)
        ]
        text = LAUNCH.replace("FUNCTIONS", "\n".join(functions))
        zeros = (LENDER, "NAME_zeros& zeros, ", TAKE) if self.workspace else ("", "", "")
        for place, part in zip(("LENDER", "ZEROS", "TAKE"), zeros, strict=True):
            text = text.replace(place, part)
        calls = [
            CALL.replace("OPENING", declared.removesuffix(";"))
            .replace("DTYPE", dtype.name)
            .replace("STRIDES", strides)
            .replace("REST", "zeros, stream" if self.workspace else "stream")
            for dtype, declared in zip(self.asked.dtypes, self.declared, strict=False)
        ]
        if self.workspace:
            listed = ", ".join(f"Dtype::{dtype.name}" for dtype in self.asked.dtypes)
            text_of_it = WORKSPACE.replace("OPENING", self.declared[-1].removesuffix(";"))
            calls.append(text_of_it.replace("STRIDES", strides).replace("LISTED", listed))
        return "\n".join([text, *calls])


def _split(code: str) -> tuple[str, str]:
    """(the comment that a kernel file begins with, the rest)"""
    lines = code.splitlines()
    count = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    return "\n".join(lines[:count]), "\n".join(lines[count:])
