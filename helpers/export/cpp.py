"""One C++ file for nvcc: a function, its kernels in all specialisations, and their plans.

The plans are host code that any C++ compiler accepts; kernels and launches need nvcc.
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
from .cpp_call import CppCall
from .cpp_plan import identifier, kernel_plan, planned, table_names
from .cpp_text import (
    ABOUT_WORKSPACE,
    AXIS,
    CALL,
    ERRORS,
    HEAD,
    INPLACE,
    LAUNCH,
    LENDER,
    LOOK,
    PLAN,
    SPECIALISATIONS,
    TAKE,
    WORKSPACE,
    WORKSPACE_ERRORS,
    ZEROS,
)
from .request import LICENCE, ExportError, ExportRequest
from .specialisations import Specialisation, specialisations

INCLUDES = {"float16": "#include <cuda_fp16.h>\n", "bfloat16": "#include <cuda_bf16.h>\n"}
COMPILE = "nvcc -std=c++17 -O3 -ftz=true -arch=sm_{arch} -c {file}"
WIDTH = 95  # of lines in the head, without comment marks
DECLARED_WIDTH = 91  # of declarations, which are indented


def write(request: ExportRequest, file: str = "") -> str:
    """Return the text of a file with this name, by default NAME.cu. Raises `ExportError`."""
    arches = sorted({gpu.capability for gpu in request.gpus})
    if len(arches) > 1:
        raise ExportError(
            f"one file supports one compute capability, got {' and '.join(map(str, arches))}"
        )
    return _CppFile(request, file or f"{request.name}.cu", specialisations(request)).text()


def compile_line(request: ExportRequest, file: str) -> str:
    """Return the command that compiles a file with this name."""
    return COMPILE.format(arch=request.gpus[0].capability, file=shlex.quote(file))


class _CppFile:
    """A file and its parts."""

    def __init__(self, request: ExportRequest, name: str, found: list[Specialisation]) -> None:
        self.request, self.name, self.specialisations = request, name, found
        self.steps = list(dict.fromkeys(one.file for one in found))
        self.kernels = {step: load(step) for step in self.steps}
        self.files = list(dict.fromkeys(split_trial(step).file for step in self.steps))
        self.headers = {step: kernel.header for step, kernel in self.kernels.items()}
        if request.strided and not any(header.strided for header in self.headers.values()):
            raise ExportError(f"{self.steps[0]} requires rows without gaps; leave out --strides")
        self.call = CppCall(self.kernels, request.dtypes, request.strided)

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
            SPECIALISATIONS.replace("FILENAME", self.name),
            *(self._included(number, one) for number, one in enumerate(self.specialisations, 1)),
            "#undef SOFTMAX_WORKLOG_TEXT\n",
            self._launch(),
            "#endif  // what nvcc compiles, once\n#endif  // UPPER_FILE\n",
        ]
        texts = (self._text(number, file) for number, file in enumerate(self.files, 1))
        # Words in kernels are not replaced.
        return "\n".join([self._named("\n".join(parts)), *texts, "#endif\n"])

    def _named(self, text: str) -> str:
        """Return a text with the function's name for NAME, and in capitals for UPPER."""
        text = re.sub(r"\bUPPER(?=_)", self.request.name.upper(), text)
        return re.sub(r"\bNAME(?=\b|_)", self.request.name, text)

    @cached_property
    def declared(self) -> list[str]:
        """The declarations of the functions; that of `NAME_workspace` is the last."""
        zeros = ["NAME_zeros& zeros"] if self.call.workspace else []
        found = []
        for dtype in self.request.dtypes:
            parameters = [*self.call.parameters(dtype), *zeros, "cudaStream_t stream"]
            found.append(self._declaration("cudaError_t NAME(", parameters))
        if self.call.workspace:
            sizes = [f"long long {name}" for name in self.call.sizes]
            found.append(self._declaration("size_t NAME_workspace(", sizes))
        return found

    def _declaration(self, opening: str, parameters: list[str]) -> str:
        """Return a declaration in lines of limited width."""
        opening = self._named(opening)
        room = DECLARED_WIDTH - len(opening)
        # Lines break between parameters only: their own spaces are replaced for a moment.
        joined = ", ".join(self._named(p).replace(" ", "\0") for p in parameters)
        lines = textwrap.wrap(f"{joined});", room, break_long_words=False, break_on_hyphens=False)
        return opening + ("\n" + " " * len(opening)).join(lines).replace("\0", " ")

    # ---- head -------------------------------------------------------------------------------

    def _head(self) -> str:
        licence, copyright, *_ = self.request.origin(self.steps[0])
        origins = dict.fromkeys(o for step in self.steps for o in self.request.origin(step)[2:])
        names = " and ".join(dtype.name for dtype in self.request.dtypes)
        call = self.call
        declared = ["class NAME_zeros;  // as below"] * call.workspace + self.declared
        errors = ERRORS | (WORKSPACE_ERRORS if call.workspace else {})
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
            "SHAPES": ", ".join([names, *map(str, self.request.shapes)]),
            "SPECIALISATIONS": counted(len(self.specialisations), "specialisation"),
            "COMPILE": compile_line(self.request, self.name),
            "^DECLARATIONS$": textwrap.indent("\n".join(declared), "    "),
            "^ABOUT\n\n": _listed(call.about()),
            "NAMES": ", ".join(call.names),
            "GIVEN": ", ".join(call.sizes),
        }
        listed = _listed((name, text.format(**of_errors)) for name, text in errors.items())
        text = HEAD + listed
        text += ABOUT_WORKSPACE if call.workspace else ""
        for word, instead in words.items():
            text = re.sub(word if "^" in word else rf"\b{word}\b", instead, text, flags=re.M)
        lines = []
        for line in self._named(text).strip().splitlines():
            listed = line.startswith("    ")
            lines += [line] if listed else textwrap.wrap(line, WIDTH) or [""]
        return "".join(f"// {line}".rstrip() + "\n" for line in lines)

    def _includes(self) -> str:
        types = "".join(INCLUDES.get(dtype.name, "") for dtype in self.request.dtypes)
        runtime = "#include <cuda_runtime_api.h>\n"
        standard = "".join(f"#include <{n}>\n" for n in ("cstddef", "cstdint", "map", "mutex"))
        return f"{types}{runtime}\n{standard}"

    # ---- plan -------------------------------------------------------------------------------

    def _plans(self) -> str:
        """Return the plans and the table of specialisations."""
        dtypes = self.request.dtypes
        values = table_names(self.steps) if self.request.best else []
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
        return "\n".join(
            [text, *plans, planned(self.steps, self.request.best), self._table(), LOOK]
        )

    def _table(self) -> str:
        """Return the table of specialisations, one per line."""
        lines, last = [], ""
        for number, one in enumerate(self.specialisations, 1):
            if one.file != last:
                macros = ", ".join(self.headers[one.file].macros) or "no macros"
                lines.append(f"// kernels/{split_trial(one.file).file}.cu: {macros}")
                last = one.file
            values = ", ".join(str(value) for _, value in one.macros)
            where = f"Kernel::{identifier(one.file)}, Dtype::{one.dtype.name}"
            lines.append(f"{{{where}, {{{values}}}}},  // {number}")
        about = "// The specialisations in this file, by the macros of their Build tables."
        body = textwrap.indent("\n".join(lines), "    ")
        return f"{about}\nconstexpr Specialisation specialisations[] = {{\n{body}\n}};\n"

    # ---- kernels ----------------------------------------------------------------------------

    def _included(self, number: int, one: Specialisation) -> str:
        """Return the macros of a specialisation, and the include of its kernel in a namespace."""
        file = split_trial(one.file).file
        place = self.files.index(file) + 1
        lines = [
            f"#define UPPER_TEXT {place}  // specialisation {number}: kernels/{file}.cu",
            *(f"#define {name} {value}".rstrip() for name, value in self._macros(one).items()),
            f"namespace NAME_parts {{ namespace build_{number} {{",
            "#include UPPER_SELF",
            "} }\n",
        ]
        return "\n".join(lines)

    def _macros(self, one: Specialisation) -> dict[str, object]:
        """Return the macros that a kernel's text is compiled with."""
        contract = self.headers[one.file]
        macros = dict(one.macros)
        for option in contract.options:
            name, _, value = option.removeprefix("-D").partition("=")
            if option not in DTYPE_OPTIONS.values():
                macros.setdefault(name, value)
        if one.dtype != contract.dtypes[0]:
            macros[option_name(DTYPE_OPTIONS[one.dtype.name])] = ""
        return macros

    def _text(self, number: int, file: str) -> str:
        """Return the text of a kernel file, which undefines its macros at the end."""
        head, body = _split(self_contained(source(f"{file}.cu")))
        steps = [step for step in self.steps if split_trial(step).file == file]
        origin = dict.fromkeys(line for step in steps for line in self.request.origin(step))
        head = head.replace(f"// {LICENCE}\n", "")
        body = re.sub(r"^[ \t]*#[ \t]*include .*\n", "", body, flags=re.M)
        body = re.sub(r'\bextern "C" (?=__global__)', "", body)
        own = re.findall(r"^\s*#\s*define (\w+)", strip_comments(body), flags=re.M)
        compiled = [one for one in self.specialisations if one.file in steps]
        given = [name for one in compiled for name in self._macros(one)]
        upper = f"{self.request.name.upper()}_TEXT"
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
        """Return the launch, and the declared functions."""
        call = self.call
        functions = [
            f"    reinterpret_cast<const void*>(&build_{number}::{kernel.name}),"
            for number, kernel in enumerate(
                (self.kernels[one.file] for one in self.specialisations), 1
            )
        ]
        taken, own = call.taken()
        refused = (f"    if ({check}) return cudaErrorInvalidValue;\n" for check in call.checks())
        words = {
            "FUNCTIONS": "\n".join(functions),
            "MEMBERS": textwrap.indent("\n".join(call.members()), "    "),
            "TOGETHER": "\n    bool together;  // one of the two that may be the same array"
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
            for dtype, declared in zip(self.request.dtypes, self.declared, strict=False)
        ]
        if call.workspace:
            listed = ", ".join(f"Dtype::{dtype.name}" for dtype in self.request.dtypes)
            text_of_it = WORKSPACE.replace("OPENING", self.declared[-1].removesuffix(";"))
            text_of_it = text_of_it.replace("MATRIX", call.matrix).replace("AXIS", axis)
            calls.append(text_of_it.replace("LISTED", listed))
        return "\n".join([text, *calls])


def _wrapped(line: str, indent: int) -> str:
    """Return a statement in lines of limited width, indented below its opening brace."""
    hanging = " " * (indent + line.find("{") + 1)
    return textwrap.fill(line, 100, initial_indent=" " * indent, subsequent_indent=hanging)


def _listed(entries: Iterable[tuple[str, str]]) -> str:
    """Return names and their descriptions in two columns, in lines of limited width."""
    entries = list(entries)
    indent = 6 + max((len(name) for name, _ in entries), default=0)
    lines = []
    for name, text in entries:
        first = f"    {name}".ljust(indent)
        lines += textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * indent)
    return "\n".join([*lines, "", ""]) if lines else ""


def _split(code: str) -> tuple[str, str]:
    """Return the comment at the beginning of a kernel file, and the rest."""
    lines = code.splitlines()
    count = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    return "\n".join(lines[:count]), "\n".join(lines[count:])
