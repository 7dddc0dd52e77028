"""One C++ file for nvcc: a function, its kernels in all specialisations, and their plans.

The plans are host code that any C++ compiler accepts; kernels and launches need nvcc.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable
from functools import cached_property
from string import Template

from ..catalogue.plan import DTYPE_OPTIONS, option_name
from ..catalogue.registry import split_trial
from ..problem.problem import MAX_BYTES, MAX_INT
from ..run.bound import load
from ..simt.cuda_text import strip_comments
from ..simt.words import counted
from .cpp_call import CppCall
from .cpp_plan import (
    given_values,
    identifier,
    kernel_plan,
    planned,
    table_names,
    tuned_function,
)
from .cpp_text import (
    CALL,
    HEAD,
    LAUNCH,
    LOOK,
    PLAN,
    SPECIALISATIONS,
    WORKSPACE,
)
from .lines import chosen, wrapped
from .request import COPYRIGHT, LICENCE, TUNED_ON, ExportError, ExportRequest, origin
from .sources import complete_text
from .specialisations import Specialisation, specialisations, tuned_plans

INCLUDES = {"float16": "#include <cuda_fp16.h>\n", "bfloat16": "#include <cuda_bf16.h>\n"}
# The keys of a header that the file states as code or that are for the series alone.
RULES = (
    "Computes|Build|Launch|Shared|Workspace|Columns|Features|Align|Strides|Inplace|Dtype|Arch|"
    "Reads|Wastes|Measured"
)
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
        self.texts = {file: complete_text(file, RULES) for file in self.files}
        self.headers = {step: kernel.header for step, kernel in self.kernels.items()}
        if request.strided and not any(header.strided for header in self.headers.values()):
            raise ExportError(f"{self.steps[0]} requires rows without gaps; leave out --strides")
        self.call = CppCall(self.kernels, request.dtypes, request.strided)

    def text(self) -> str:
        parts = [
            self._head(),
            "#ifndef SOFTMAX_WORKLOG_TEXT  // else this file, or one like it, includes itself",
            "#ifndef ${upper}_FILE\n#define ${upper}_FILE\n",
            self._includes(),
            "namespace ${name}_parts {\n",
            self._plans(),
            "}  // namespace ${name}_parts\n",
            "\n".join([*self.declared, ""]),
            "#if defined(__CUDACC__) && !defined(${upper}_DECLARATIONS)\n",
            SPECIALISATIONS,
            *(self._included(number, one) for number, one in enumerate(self.specialisations, 1)),
            "#pragma nv_diagnostic pop\n#undef SOFTMAX_WORKLOG_TEXT\n",
            self._launch(),
            "#endif  // what nvcc compiles, once\n#endif  // ${upper}_FILE\n",
        ]
        text = self._filled("\n".join(parts), filename=self.name)
        return "\n".join([text, *self._texts(), "#endif\n"])

    def _filled(self, template: str, **words: object) -> str:
        """Return a template with its placeholders replaced, and the function's name for ${name}."""
        names = {"name": self.request.name, "upper": self.request.name.upper()}
        return Template(chosen(template, self.properties)).substitute(names, **words)

    @cached_property
    def properties(self) -> set[str]:
        """What the file needs beside what every file has."""
        call, built = self.call, [dict(one.macros) for one in self.specialisations]
        has = {
            "best": self.request.best,
            "axis": call.axis,
            "workspace": call.workspace,
            "inplace": bool(call.inplace),
        }
        has["cooperative"] = any(header.cooperative for header in self.headers.values())
        shared = any(header.rules["Shared"].text != "0" for header in self.headers.values())
        has["limits"] = shared or any(macros.get("CLUSTER", 1) > 8 for macros in built)
        return {name for name, needed in has.items() if needed}

    @cached_property
    def declared(self) -> list[str]:
        """The declarations of the functions; that of `NAME_workspace` is the last."""
        name, found = self.request.name, []
        more = [*["void* workspace", "size_t bytes"] * self.call.workspace, "cudaStream_t stream"]
        for dtype in self.request.dtypes:
            parameters = [*self.call.parameters(dtype), *more]
            found.append(_declaration(f"cudaError_t {name}(", parameters))
        if self.call.workspace:
            sizes = [f"long long {size}" for size in self.call.sizes]
            found.append(_declaration(f"size_t {name}_workspace(", sizes))
        return found

    # ---- head -------------------------------------------------------------------------------

    def _head(self) -> str:
        dtypes = " and ".join(dtype.name for dtype in self.request.dtypes)
        call = self.call
        features = [f"{name} = {value}" for name, value in call.features.items() if value]
        operation = " with ".join(filter(None, [call.operation.name, ", ".join(features)]))
        text = self._filled(
            HEAD,
            licence=LICENCE,
            copyright=COPYRIGHT,
            origin="\n".join([*map(origin, self.steps), f"The plan was tuned on an {TUNED_ON}."]),
            parameters=", ".join(call.names),
            operation=operation,
            shapes=", ".join([dtypes, *map(str, self.request.shapes)]),
            count=counted(len(self.specialisations), "specialisation"),
            compile=compile_line(self.request, self.name),
            declarations=textwrap.indent("\n".join(self.declared), "    "),
            names=", ".join(call.names),
            sizes=", ".join(call.sizes),
        )
        lines = []
        for line in text.strip().splitlines():
            wrap = textwrap.wrap(line, WIDTH, break_on_hyphens=False) or [""]
            lines += [line] if line.startswith("    ") else wrap
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
        most = max(1, *(len(header.macros) for header in self.headers.values()))
        tuned = [
            plan
            for plan in tuned_plans(self.request)
            if {plan.rule, split_trial(plan.trial).file} <= {*self.steps}
        ]
        changes = (change for plan in tuned for change in split_trial(plan.trial).changes)
        names = [*dict.fromkeys(name for name, _ in changes)] if tuned else None
        plans = [
            kernel_plan(step, self.kernels[step], dtypes, values, names) for step in self.steps
        ]
        parts = [given_values(names), *plans, tuned_function(tuned, names)] if tuned else plans
        parts.append(planned(self.steps, self.request.best, bool(tuned)))
        text = self._filled(
            PLAN,
            dtypes=", ".join(dtype.name for dtype in dtypes),
            kernels=", ".join(map(identifier, self.steps)),
            bytes=" : ".join([sizes] * bool(sizes) + [str(dtypes[-1].itemsize)]),
            most=most,
            values="".join(f"    long long {name} = 0;\n" for name in values),
            max_bytes=MAX_BYTES,
            max_int=MAX_INT,
        )
        return "\n".join([text, *parts, self._table(), LOOK])

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
        place = f"{self.files.index(file) + 1}  // specialisation {number}: kernels/{file}.cu"
        lines = [
            f"#define ${{upper}}_TEXT {place}",
            *(f"#define {name} {value}".rstrip() for name, value in self._macros(one).items()),
            f"namespace ${{name}}_build_{number} {{",
            "#include ${upper}_SELF",
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

    # ---- functions --------------------------------------------------------------------------

    def _launch(self) -> str:
        """Return the launch, and the declared functions."""
        call = self.call
        functions = [
            f"    reinterpret_cast<const void*>(&${{name}}_build_{number}::{kernel.name}),"
            for number, kernel in enumerate(
                (self.kernels[one.file] for one in self.specialisations), 1
            )
        ]
        taken, own = call.taken()
        refused = (f"    if ({check}) return cudaErrorInvalidValue;\n" for check in call.checks())
        workspace, axis = call.workspace, ", inner" * call.axis
        text = self._filled(
            LAUNCH,
            functions="\n".join(functions),
            members=textwrap.indent("\n".join(call.members()), "    "),
            empty=call.empty,
            nulls=" || ".join(f"!given.{array.name}" for array in call.arrays),
            checks="".join(refused),
            first=call.first,
            last=call.last,
            arrays="\n".join(_wrapped(line, 12) for line in call.array_lines()),
            taken="\n".join(_wrapped(line, 4) for line in taken),
            list=own,
            workspace="void* workspace, size_t bytes, " * workspace,
        )
        calls = [
            self._filled(
                CALL,
                opening=declared.removesuffix(";"),
                dtype=dtype.name,
                matrix=call.matrix,
                axis=axis,
                values=", ".join(argument.name for argument in call.arguments),
                rest="workspace, bytes, stream" if workspace else "stream",
            )
            for dtype, declared in zip(self.request.dtypes, self.declared, strict=False)
        ]
        if workspace:
            opening = self.declared[-1].removesuffix(";")
            listed = ", ".join(f"Dtype::{dtype.name}" for dtype in self.request.dtypes)
            words = {"opening": opening, "matrix": call.matrix, "axis": axis, "listed": listed}
            calls.append(self._filled(WORKSPACE, **words))
        return "\n".join([text, *calls])


def _declaration(opening: str, parameters: list[str]) -> str:
    """Return a declaration in lines of limited width."""
    room = DECLARED_WIDTH - len(opening)
    # Lines break between parameters only: their own spaces are replaced for a moment.
    joined = ", ".join(parameter.replace(" ", "\0") for parameter in parameters)
    lines = textwrap.wrap(f"{joined});", room, break_long_words=False, break_on_hyphens=False)
    return opening + ("\n" + " " * len(opening)).join(lines).replace("\0", " ")


def _wrapped(line: str, indent: int) -> str:
    """Return a statement in lines of limited width, aligned after its opening brace."""
    return "\n".join(wrapped(line, indent, line.find("{") + 1))
