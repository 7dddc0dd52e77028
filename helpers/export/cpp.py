"""One C++ file for nvcc: a function, its kernels in all specialisations, and their plans.

It is made from the template `parts/softmax.cu`. The plans are host code that any C++ compiler
accepts; kernels and launches need nvcc.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from string import Template

import numpy as np

from ..base.gpu import H200
from ..catalogue.plan import DTYPE_OPTIONS, option_name
from ..catalogue.registry import split_trial
from ..catalogue.tuned import Tuned
from ..run.bound import load
from ..simt.cuda_text import strip_comments
from ..simt.words import counted
from .cpp_call import CppCall
from .cpp_plan import choice, identifier, kernel_plan, table_names, tuned_lines
from .lines import chosen, listed, wrapped
from .request import COPYRIGHT, LICENCE, TUNED_ON, ExportError, ExportRequest, origin
from .sources import complete_text
from .specialisations import Specialisation, specialisations, tuned_plans

INCLUDES = {"float16": "cuda_fp16.h", "bfloat16": "cuda_bf16.h"}
TEMPLATE = Path(__file__).parent / "parts" / "softmax.cu"
# The keys of a header that the file states as code or that are for the series alone.
RULES = (
    "Computes|Build|Launch|Shared|Workspace|Columns|Features|Align|Strides|Inplace|Dtype|Arch|"
    "Reads|Wastes|Measured"
)
COMPILE = "nvcc -std=c++17 -O3 -ftz=true -arch=sm_{arch} -c {file}"


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
        self.texts = {file: complete_text(file, RULES) for file in self.files}
        self.headers = {step: kernel.header for step, kernel in self.kernels.items()}
        if request.strided and not any(header.strided for header in self.headers.values()):
            raise ExportError(f"{self.steps[0]} requires rows without gaps; leave out --strides")
        self.call = CppCall(self.kernels, request.dtypes, request.strided)

    def text(self) -> str:
        template = chosen(TEMPLATE.read_text(encoding="utf-8"), self.properties)
        text = Template(template).substitute(self._words())
        head, mark, rest = text.partition("#ifndef")
        lines = [line for long in head.splitlines() for line in wrapped(long, 0, 0) or [""]]
        return "\n".join(lines).replace("\n\n*/", "\n*/") + f"\n{mark}{rest}"

    @cached_property
    def properties(self) -> set[str]:
        """What the file needs beside what every file has."""
        call, built = self.call, [dict(one.macros) for one in self.specialisations]
        has = {"axis": call.axis, "workspace": call.workspace, "inplace": bool(call.inplace)}
        has |= {"best": self.request.best, "tuned": bool(self.tuned), "values": bool(self.values)}
        has |= {"checks": bool(call.checks()), "changes": bool(self.changes)}
        has["cooperative"] = any(header.cooperative for header in self.headers.values())
        shared = any(header.rules["Shared"].text != "0" for header in self.headers.values())
        has["limits"] = shared or any(macros.get("CLUSTER", 1) > 8 for macros in built)
        return {name for name, needed in has.items() if needed}

    def _words(self) -> dict[str, object]:
        """Return the words of the template."""
        request, call, name = self.request, self.call, self.request.name
        features = [f"{name} = {value}" for name, value in call.features.items() if value]
        declared, calls = self._functions()
        taken, own = call.taken()
        types = [INCLUDES[d.name] for d in request.dtypes if d.name in INCLUDES]
        numbered = [*enumerate(self.specialisations, 1)]
        return {
            "name": name,
            "upper": name.upper(),
            "filename": self.name,
            # the head
            "licence": LICENCE,
            "copyright": COPYRIGHT,
            "parameters": ", ".join(call.names),
            "sizes": ", ".join(call.sizes),
            "operation": " with ".join(filter(None, [call.operation.name, ", ".join(features)])),
            "shapes": ", ".join(
                [" and ".join(dtype.name for dtype in request.dtypes), *map(str, request.shapes)]
            ),
            "count": counted(len(self.specialisations), "specialisation"),
            "origin": "\n".join(map(origin, self.steps)),
            "tuned_on": TUNED_ON,
            "compile": compile_line(request, self.name),
            "declared": _lines("\n".join(declared).splitlines(), 4),
            "includes": "\n".join(f"#include <{file}>" for file in (*types, "cuda_runtime_api.h")),
            # plans
            "dtypes": ", ".join(dtype.name for dtype in request.dtypes),
            "kernels": ", ".join(map(identifier, self.steps)),
            "most": max(1, *(len(header.macros) for header in self.headers.values())),
            "values": _lines((f"long long {value} = 0;" for value in self.values), 4),
            "changes": _lines((f"long long {value} = -1;" for value in self.changes), 4),
            "plans": "\n".join(self._plans()),
            "tuned": _lines(tuned_lines(self.tuned, self.changes), 4),
            **{"sms": H200.sms, "l2": H200.l2, "capability": H200.capability},
            "choice": choice(self.steps, bool(self.tuned)) if request.best else "",
            "rules": "Best" if request.best else identifier(self.steps[0]),
            "specialisations": _lines(self._table(), 4),
            # kernels
            "declarations": "\n".join(declared),
            "included": "\n".join(self._included(number, one) for number, one in numbered),
            "texts": "\n".join(self._texts()),
            # the launch
            "functions": _lines(
                (
                    f"reinterpret_cast<const void*>(&{name}_build_{number}::"
                    f"{self.kernels[one.file].name}),"
                    for number, one in numbered
                ),
                4,
            ),
            "members": _lines(call.members(), 4),
            "more": ", ".join(self._more),
            "empty": call.empty,
            "nulls": " || ".join(f"!given.{array.name}" for array in call.arrays),
            "checks": _lines(
                (f"if ({check}) return cudaErrorInvalidValue;" for check in call.checks()), 4
            ),
            "first": call.first,
            "last": call.last,
            "arrays": _wrapped(call.array_lines(), 12),
            "taken": _wrapped(taken, 4),
            "list": own,
            "calls": "\n".join(calls),
            "workspace": declared[-1].removesuffix(";"),
            "matrices": ", ".join(f"Matrix{self._matrix(dtype)}" for dtype in request.dtypes),
        }

    # ---- functions --------------------------------------------------------------------------

    @property
    def _more(self) -> list[str]:
        """The parameters that are not those of the kernel."""
        return [*["void* workspace", "size_t bytes"] * self.call.workspace, "cudaStream_t stream"]

    def _matrix(self, dtype: np.dtype) -> str:
        """Return an initialiser of `Matrix`."""
        axis = ", inner" * self.call.axis
        return f"{{Dtype::{dtype.name}, {dtype.itemsize}, {self.call.matrix}, 0, 0{axis}}}"

    def _functions(self) -> tuple[list[str], list[str]]:
        """Return the declarations of the functions, that of `NAME_workspace` last, and the
        definitions of the others."""
        name, declared, defined = self.request.name, [], []
        rest = [parameter.split()[-1] for parameter in self._more]
        given = f"{{{', '.join(argument.name for argument in self.call.arguments)}}}"
        for dtype in self.request.dtypes:
            parameters = [*self.call.parameters(dtype), *self._more]
            declared.append(_declaration("cudaError_t", name, parameters))
            call = f"return launch({', '.join([self._matrix(dtype), given, *rest])});"
            lines = [declared[-1].removesuffix(";"), "{", f"    using namespace {name}_parts;"]
            defined.append("\n".join([*lines, *wrapped(call, 4), "}", ""]))
        if self.call.workspace:
            sizes = [f"long long {size}" for size in self.call.sizes]
            declared.append(_declaration("size_t", f"{name}_workspace", sizes))
        return declared, defined

    # ---- plans ------------------------------------------------------------------------------

    @cached_property
    def tuned(self) -> list[Tuned]:
        """The tuned plans of kernels in this file."""
        return [
            plan
            for plan in tuned_plans(self.request)
            if {plan.rule, split_trial(plan.trial).file} <= {*self.steps}
        ]

    @cached_property
    def changes(self) -> list[str]:
        """The values of Build tables that tuned plans replace."""
        changes = (change for plan in self.tuned for change in split_trial(plan.trial).changes)
        return [*dict.fromkeys(name for name, _ in changes)]

    @cached_property
    def values(self) -> list[str]:
        """The values of Build tables that conditions of the ranking read."""
        return table_names(self.steps) if self.request.best else []

    def _plans(self) -> Iterable[str]:
        """Yield the structs that plan."""
        tuned = self.changes if self.tuned else None
        for step, kernel in self.kernels.items():
            yield kernel_plan(step, kernel, self.request.dtypes, self.values, tuned)

    def _table(self) -> Iterable[str]:
        """Yield the lines of the table of specialisations."""
        last = ""
        for number, one in enumerate(self.specialisations, 1):
            if one.file != last:
                macros = ", ".join(self.headers[one.file].macros) or "no macros"
                yield f"// kernels/{split_trial(one.file).file}.cu: {macros}"
                last = one.file
            values = ", ".join(str(value) for _, value in one.macros)
            where = f"Kernel::{identifier(one.file)}, Dtype::{one.dtype.name}"
            yield f"{{{where}, {{{values}}}}},  // {number}"

    # ---- kernels ----------------------------------------------------------------------------

    def _included(self, number: int, one: Specialisation) -> str:
        """Return the macros of a specialisation, and the include of its kernel in a namespace."""
        file = split_trial(one.file).file
        place = f"{self.files.index(file) + 1}  // specialisation {number}: kernels/{file}.cu"
        upper = self.request.name.upper()
        lines = [
            f"#define {upper}_TEXT {place}",
            *(f"#define {name} {value}".rstrip() for name, value in self._macros(one).items()),
            f"namespace {self.request.name}_build_{number} {{",
            f"#include {upper}_SELF",
            "}\n",
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

    def _texts(self) -> Iterable[str]:
        """Yield the texts of kernels, which the file includes from itself by their numbers; each
        undefines its macros at the end."""
        name = f"{self.request.name.upper()}_TEXT"
        for number, (file, text) in enumerate(self.texts.items(), 1):
            code = re.sub(r'\bextern "C" (?=__global__)|^#include <.*\n', "", text, flags=re.M)
            yield f"#elif defined({name}) && {name} == {number}\n#undef {name}"
            yield f"// ---- kernels/{file}.cu ".ljust(99, "-")
            yield f"{code.strip()}\n"
            own = re.findall(r"^\s*#\s*define (\w+)", strip_comments(text), flags=re.M)
            built = (one for one in self.specialisations if split_trial(one.file).file == file)
            given = [macro for one in built for macro in self._macros(one)]
            yield from (f"#undef {macro}" for macro in dict.fromkeys([*given, *own]))
            yield ""


def _declaration(result: str, name: str, parameters: list[str]) -> str:
    """Return a declaration in lines of limited width."""
    opening = f"{result} {name}("
    hanging = len(opening)
    return "\n".join(listed(opening.replace(" ", "\0"), parameters, ");", 0, hanging))


def _lines(lines: Iterable[str], indent: int) -> str:
    """Return lines for a word of the template that is indented."""
    return f"\n{' ' * indent}".join(lines).lstrip()


def _wrapped(lines: Iterable[str], indent: int) -> str:
    """Return statements in lines of limited width, aligned after their opening braces, for a word
    of the template that is indented."""
    found = (part for line in lines for part in wrapped(line, indent, line.find("{") + 1))
    return "\n".join(found).lstrip()
