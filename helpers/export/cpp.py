"""One C++ file, which nvcc compiles: builds of kernels, the plans of their headers, a function.

What the plan says is host code alone, so that any C++ compiler reads it: kernels and launch are
left to nvcc.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable
from functools import cached_property

from ..catalogue.plan import DTYPE_OPTIONS, option_name
from ..catalogue.registry import self_contained, source, split_trial
from ..problem.problem import MAX_BYTES, MAX_INT
from ..run.bound import load
from ..simt.cuda_text import strip_comments
from ..simt.words import counted
from .asked import LICENCE, Asked, NoSuchExport
from .builds import Build, builds
from .cpp_call import CppCall
from .cpp_plan import identifier, kernel_plan, planned, table_names
from .cpp_text import (
    AXIS,
    BOXES,
    BUILDS,
    CALL,
    ERRORS,
    HEAD,
    INPLACE,
    LAUNCH,
    LENDER,
    LENT,
    LOOK,
    PLAN,
    TAKE,
    WORKSPACE,
    ZEROS,
)

INCLUDES = {"float16": "#include <cuda_fp16.h>\n", "bfloat16": "#include <cuda_bf16.h>\n"}
COMPILE = "nvcc -std=c++17 -O3 -ftz=true -arch=sm_{arch} -c {file}"
WIDTH = 95  # of lines of the head, without comment marks; of declarations, which are indented,
DECLARED_WIDTH = 91


def write(asked: Asked, file: str = "") -> str:
    """The text of a file of that name, NAME.cu if not given. Raises `NoSuchExport` with a
    sentence."""
    arches = sorted({gpu.capability for gpu in asked.gpus})
    if len(arches) > 1:
        raise NoSuchExport(
            f"one file is for GPUs of one compute capability, not {' and '.join(map(str, arches))}"
        )
    return _CppFile(asked, file or f"{asked.name}.cu", builds(asked)).text()


def compile_line(asked: Asked, file: str) -> str:
    """What makes an object of a file of that name."""
    return COMPILE.format(arch=asked.gpus[0].capability, file=shlex.quote(file))


class _CppFile:
    """The parts of a file."""

    def __init__(self, asked: Asked, name: str, found: list[Build]) -> None:
        self.asked, self.name, self.builds = asked, name, found
        self.steps = list(dict.fromkeys(build.file for build in found))
        self.kernels = {step: load(step) for step in self.steps}
        self.files = list(dict.fromkeys(split_trial(step).file for step in self.steps))
        self.headers = {step: kernel.header for step, kernel in self.kernels.items()}
        if asked.strides and not any(header.strided for header in self.headers.values()):
            raise NoSuchExport(
                f"{self.steps[0]} takes rows that follow each other; leave out --strides"
            )
        self.call = CppCall(self.kernels, asked.dtypes, asked.strides)

    def text(self) -> str:
        parts = [
            self._head(),
            "#ifndef SOFTMAX_WORKLOG_TEXT  // else this file, or one like it, includes itself",
            "#ifndef UPPER_FILE\n#define UPPER_FILE\n",
            self._includes(),
            "namespace NAME_parts {\n",
            self._plans(),
            "}  // namespace NAME_parts\n",
            (ZEROS if self.call.workspace else "") + "\n".join(self.declared) + "\n",
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
        zeros = ["NAME_zeros& zeros"] if self.call.workspace else []
        found = []
        for dtype in self.asked.dtypes:
            parameters = [*self.call.parameters(dtype), *zeros, "cudaStream_t stream"]
            found.append(self._declaration("cudaError_t NAME(", parameters))
        if self.call.workspace:
            sizes = [f"long long {name}" for name in self.call.sizes]
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
        call = self.call
        declared = ["class NAME_zeros;  // as below"] * call.workspace + self.declared
        errors = ERRORS | (LENT if call.workspace else {})
        of_errors = {
            "overlap": call.overlap(),
            "numbers": "sizes or numbers" if call.checks() else "sizes",
            "misaligned": call.misaligned(),
        }
        words = {
            "LICENCE": licence,
            "COPYRIGHT": copyright,
            "ORIGIN": "\n".join(origins),
            "PARAMETERS": ", ".join(call.names),
            "RESULT": call.result(),
            "SHAPES": ", ".join([names, *map(str, self.asked.shapes)]),
            "BUILDS": counted(len(self.builds), "build"),
            "COMPILE": compile_line(self.asked, self.name),
            "^DECLARATIONS$": textwrap.indent("\n".join(declared), "    "),
            "^ABOUT\n\n": _listed(call.about()),
            "NAMES": ", ".join(call.names),
            "GIVEN": ", ".join(call.sizes),
        }
        listed = _listed((name, text.format(**of_errors)) for name, text in errors.items())
        text = HEAD + listed
        text += BOXES if call.workspace else ""
        for word, instead in words.items():
            text = re.sub(word if "^" in word else rf"\b{word}\b", instead, text, flags=re.M)
        lines = []
        for line in self._named(text).strip().splitlines():
            listed = line.startswith("    ")
            lines += [line] if listed else textwrap.wrap(line, WIDTH) or [""]
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
        for place, part in AXIS.items():
            text = text.replace(place, part * self.call.axis)
        for word, instead in words.items():
            text = re.sub(word if "\n" in word else rf"\b{word}\b", instead, text)
        plans = [kernel_plan(step, self.kernels[step], dtypes, values) for step in self.steps]
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
        head, body = _split(self_contained(source(f"{file}.cu")))
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
        call = self.call
        functions = [
            f"    reinterpret_cast<const void*>(&build_{number}::{kernel.name}),"
            for number, kernel in enumerate((self.kernels[b.file] for b in self.builds), 1)
        ]
        taken, own = call.taken()
        refused = (f"    if ({check}) return cudaErrorInvalidValue;\n" for check in call.checks())
        words = {
            "FUNCTIONS": "\n".join(functions),
            "MEMBERS": textwrap.indent("\n".join(call.members()), "    "),
            "TOGETHER": "\n    bool together;  // one of two that may be the same"
            * bool(call.inplace),
            "ALLOWED": INPLACE * bool(call.inplace),
            "EMPTY": call.empty,
            "NULLS": " || ".join(f"!given.{array.name}" for array in call.arrays),
            "CHECKS": "".join(refused),
            "FIRST": call.first,
            "LAST": call.last,
            "NONE": "    void* workspace = nullptr;\n" * call.workspace,
            "ARRAYS": "\n".join(_wrapped(line, 12) for line in call.array_lines()),
            "TAKEN": "\n".join(_wrapped(line, 4) for line in taken),
            "LIST": own,
            "LENDER": LENDER * call.workspace,
            "ZEROS": "NAME_zeros& zeros, " * call.workspace,
            "TAKE": TAKE * call.workspace,
        }
        text = re.sub("|".join(sorted(words, key=len, reverse=True)), lambda m: words[m[0]], LAUNCH)
        axis = ", inner" * call.axis
        calls = [
            CALL.replace("OPENING", declared.removesuffix(";"))
            .replace("DTYPE", dtype.name)
            .replace("MATRIX", call.matrix)
            .replace("AXIS", axis)
            .replace("VALUES", ", ".join(argument.name for argument in call.arguments))
            .replace("REST", "zeros, stream" if call.workspace else "stream")
            for dtype, declared in zip(self.asked.dtypes, self.declared, strict=False)
        ]
        if call.workspace:
            listed = ", ".join(f"Dtype::{dtype.name}" for dtype in self.asked.dtypes)
            text_of_it = WORKSPACE.replace("OPENING", self.declared[-1].removesuffix(";"))
            text_of_it = text_of_it.replace("MATRIX", call.matrix).replace("AXIS", axis)
            calls.append(text_of_it.replace("LISTED", listed))
        return "\n".join([text, *calls])


def _wrapped(line: str, indent: int) -> str:
    """A statement in lines that are not too long, where a bracket was opened."""
    hanging = " " * (indent + line.find("{") + 1)
    return textwrap.fill(line, 100, initial_indent=" " * indent, subsequent_indent=hanging)


def _listed(entries: Iterable[tuple[str, str]]) -> str:
    """Names and what is said of them, in two columns and lines that are not too long."""
    entries = list(entries)
    indent = 6 + max((len(name) for name, _ in entries), default=0)
    lines = []
    for name, text in entries:
        first = f"    {name}".ljust(indent)
        lines += textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * indent)
    return "\n".join([*lines, "", ""]) if lines else ""


def _split(code: str) -> tuple[str, str]:
    """(the comment that a kernel file begins with, the rest)"""
    lines = code.splitlines()
    count = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    return "\n".join(lines[:count]), "\n".join(lines[count:])
