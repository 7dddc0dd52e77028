"""The header of a kernel file: the one place that says how it is built, launched and what it takes.

    // Row:      LANES lanes of a warp
    // Build:    LANES = 8 when cols < 32
    //                 | 32
    //           packs = ceil_div(cols, LANES)
    //           PACKS = packs
    // Launch:   block = 128, grid = rows
    // Columns:  cols >= 1 && packs <= 16

`Build` is a table with one case per line: a value, `when`, a condition, which the last case may
omit. A name in capitals is a macro of the code and becomes a compiler option; a name in lower case
is only available to later lines. A shape for which no case holds is refused.

Expressions (`helpers.catalogue.expressions`) read rows, cols, size (bytes per element), row (bytes
per row), x_stride and y_stride (row strides in elements), sms, l2 and capability (of the GPU:
multiprocessors, bytes of L2 cache, 90 for 9.0), the names of the table above them, and integers
that the file defines; Launch, Shared and Workspace also read block. Three macros affect the launch:
CLUSTER, blocks per cluster; PROGRAMMATIC, 1 if the kernel may be launched before its predecessor on
the stream has ended, because it waits for it (neither exists below 9.0); LATE, 0 if x and y must
start at the same offset from a multiple of 16 bytes.

`Shared` is the dynamic shared memory of a launch in bytes, without static arrays.

`Computes` names the operation of `helpers.problem.operations` whose arguments the kernel takes;
`Features` says which of its macros may be combined; `Inplace: dx = x` allows one array for both. If
the operation has them, expressions also read outer, dim and inner.

`Strides: x_stride, y_stride` allows a row stride above cols: the kernel then takes both strides
after cols, as long long. `Align: size` allows x and y to start at any element.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..base.arguments import checked
from ..problem.operations import Operation, computed
from ..simt import citing
from ..simt.cuda_text import strip_comments
from .expressions import Expression, ExpressionError
from .plan import DTYPE_OPTIONS, INPUTS, OF_AN_AXIS, BuildValue, Header, HeaderError, option_name

KEYS = (
    "Idea",
    "Computes",
    "Row",
    "Build",
    "Launch",
    "Shared",
    "Workspace",
    "Columns",
    "Features",
    "Align",
    "Strides",
    "Inplace",
    "Dtype",
    "Arch",
    "Reads",
    "Wastes",
    "Measured",
)
OPTIONAL_KEYS = {"Computes", "Build", "Workspace", "Features", "Strides", "Inplace"}
STRIDES = "x_stride, y_stride"


@dataclass(frozen=True)
class _Field:
    text: str  # in one line
    lines: tuple[tuple[int, str], ...]  # (number, text) of each line, without the key


@checked
@functools.lru_cache(maxsize=1024)
def header(
    code: str, options: tuple[str, ...] = (), changes: tuple[tuple[str, int], ...] = ()
) -> Header | None:
    """Parse the header of a kernel's source; None if the source has no header.

    `options` are compiler options: -DNAME=... replaces a number that the source defines behind
    #ifndef or that the Build table computes; -DFLOAT16 and -DBFLOAT16 select the dtype. `changes`
    are (name, value) pairs that override such numbers, and lower-case names of the table.

    Raises `HeaderError` with file, line, key and reason, and `ValueError` for a change of a name
    that does not exist or cannot change, and for an option whose value is not a plain decimal
    number.
    """
    with citing(code):
        return _header(code, options, changes)


def _header(
    code: str, options: tuple[str, ...], changes: tuple[tuple[str, int], ...]
) -> Header | None:
    file, found = _fields(code)
    if len(set(found) & set(KEYS)) < 3:  # a header with a typo is an error, not "no header"
        return None
    if tuple(found) != tuple(key for key in KEYS if key in found or key not in OPTIONAL_KEYS):
        missing = ", ".join(key for key in KEYS if key not in {*found, *OPTIONAL_KEYS}) or "none"
        unknown = ", ".join(key for key in found if key not in KEYS) or "none"
        raise HeaderError(
            f"{file}: a kernel header needs the keys {', '.join(KEYS)} in this order, "
            f"{', '.join(sorted(OPTIONAL_KEYS))} if it uses them; "
            f"missing: {missing}; unknown: {unknown}"
        )
    plain = strip_comments(code)
    numbers = {
        name: int(value)
        for name, value in re.findall(r"^\s*#define (\w+) (\d+)[ \t]*$", plain, flags=re.MULTILINE)
    }
    operation, made_for = _operation(file, found)
    given = {*INPUTS, *(OF_AN_AXIS if "inner" in operation.sizes else ()), *numbers}
    build = _build_table(file, found["Build"].lines, plain, given) if "Build" in found else ()
    for entry in build:
        if entry.name in operation.features and (len(entry.cases) > 1 or entry.cases[0][0].names):
            raise HeaderError(f"{entry.where}: {entry.name} is a feature: it is a plain number")
    named = [value.name for value in build]
    if unknown := [name for name, _ in changes if name not in (*named, *numbers)]:
        raise ValueError(f"{file} has no macro {', '.join(unknown)}")
    defined = _defined(file, options, {*named, *numbers})
    fixed = {**defined, **dict(changes)}
    guarded = set(re.findall(r"^\s*#ifndef (\w+)", plain, flags=re.MULTILINE))
    if constants := [name for name in fixed if name in numbers and name not in guarded]:
        raise ValueError(
            f"{file} defines {', '.join(constants)} without #ifndef, so that no other value counts"
        )
    for name, value in changes:
        if name.isupper():
            options = (*(o for o in options if option_name(o) != name), f"-D{name}={value}")
    known = {*given, *named, *defined}
    return Header(
        file,
        {key: entry.text for key, entry in found.items()},
        build,
        {**numbers, **{name: value for name, value in fixed.items() if name not in named}},
        options,
        {name: value for name, value in fixed.items() if name in named},
        {key: entry.lines[0][0] for key, entry in found.items()},
        tuple(text for _, text in found["Build"].lines) if build else (),
        _rules(file, found, known, operation),
        operation,
        made_for,
    )


def _operation(file: str, found: Mapping[str, _Field]) -> tuple[Operation, dict[str, int]]:
    """The operation of the kernel, and the features that are fixed in the file."""
    text = found["Computes"].text if "Computes" in found else "softmax"
    try:
        return computed(text)
    except ValueError as error:
        raise HeaderError(f"{file}:{found['Computes'].lines[0][0]}: Computes: {error}") from None


def _defined(file: str, options: Sequence[str], known: set[str]) -> dict[str, int]:
    """The macros that the options define as plain numbers. Raises `ValueError` if one of `known` is
    defined in another way: the compiler would accept it and the plan would ignore it."""
    found = {}
    dtypes = {option_name(option): option for option in DTYPE_OPTIONS.values()}
    text = "\n".join(options)  # the compiler takes -D and what it defines as two options too
    for option, name, _, value in re.findall(
        r"^((?:-D|--define-macro)[=\s]*(\w+)(=(.*))?)$", text, flags=re.MULTILINE
    ):
        if option != dtypes.get(name, option):
            written = " ".join(option.split())
            raise ValueError(f"{file}: the option {written} is not {dtypes[name]}, as it is read")
        if re.fullmatch(rf"-D{name}=(0|[1-9]\d*)", option):
            found[name] = int(value)
        elif name in known:
            raise ValueError(
                f"{file}: the option {' '.join(option.split())} is not -D{name}= and a plain "
                "decimal number, as its header reads it"
            )
    return found


def _fields(code: str) -> tuple[str, dict[str, _Field]]:
    """(file name, fields) of the comment at the top of a source."""
    file, number = "the source", 0
    fields: dict[str, list[tuple[int, str]]] = {}
    key = ""
    for line in code.splitlines():
        number += 1
        if named := re.match(r'#line (\d+) "(.*)"', line):
            number, file = int(named[1]) - 1, named[2]
        elif line.startswith("//"):
            text = re.sub("^// ?", "", line)
            if begins := re.match(r"([A-Z][a-z]+): +(.*)", text):
                key = begins[1]
                if key in fields:
                    raise HeaderError(f"{file}:{number}: a second {key}")
                fields[key] = [(number, " " * begins.start(2) + begins[2])]
            elif key and text.startswith(" "):
                fields[key].append((number, text))
            else:
                key = ""
        elif line.strip():
            break
    found = {}
    for key, lines in fields.items():
        text = " ".join(" ".join(text for _, text in lines).split())
        if not text:
            raise HeaderError(f"{file}:{lines[0][0]}: {key} is empty")
        found[key] = _Field(text, tuple(lines))
    return file, found


def _build_table(file: str, lines, plain: str, given: set[str]) -> tuple:
    """The Build table, checked as far as possible without a shape; `given` are the names that its
    expressions may read besides its own."""
    entries: list[tuple[str, int, list[list]]] = []  # (name, line, [[line, text of a case]])
    for number, raw in lines:
        text = raw.strip()
        if begins := re.match(r"(\w+) *= *(?!=)(.*)", text):
            entries.append((begins[1], number, [[number, begins[2]]]))
        elif not entries:
            raise HeaderError(f"{file}:{number}: Build: `{text}` is not NAME = value")
        elif text.startswith("|") and not text.startswith("||"):
            entries[-1][2].append([number, text[1:]])
        else:  # continuation of the line above
            entries[-1][2][-1][1] += f" {text}"
    code = "\n".join(
        line for line in plain.splitlines() if not re.match(r"\s*#\s*(error|ifndef)\b", line)
    )
    code = re.sub(r"\bdefined\s*\(\s*\w+\s*\)", "", code)
    used = {*re.findall(r"\w+", code)}
    known = {*given}
    build = []
    for name, line, cases in entries:
        where = f"{file}:{line}: Build: {name}"
        if not (name.isupper() or name.islower()):
            raise HeaderError(f"{where} is neither a macro in capitals nor a value in lower case")
        if name in known or name == "block":
            raise HeaderError(f"{where} has its value already")
        if name.isupper() and name not in used:
            raise HeaderError(f"{where}: the code does not use it; write it in lower case")
        where = f"{file}:{line}: Build"
        build.append(BuildValue(name, tuple(_cases(file, name, cases, known)), where))
        known.add(name)
    return tuple(build)


def _cases(file: str, name: str, cases, known: set[str]):
    for place, (number, text) in enumerate(cases, 1):
        value, when, condition = re.sub(r"\s+", " ", text).strip().partition(" when ")
        if place < len(cases) and not when:
            raise HeaderError(f"{file}:{number}: Build: {name}: only the last case has no `when`")
        where = f"{file}:{number}: Build: {name}"
        yield (
            _expression(where, value, known),
            _expression(where, condition, known) if when else None,
        )


def _rules(
    file: str, found: Mapping[str, _Field], known: set[str], operation: Operation
) -> dict[str, Expression]:
    """The expressions of the other keys, each checked for what its key allows."""

    def where(key: str) -> str:
        return f"{file}:{found[key].lines[0][0]}: {key}"

    launch = re.fullmatch(
        r"block = (.+?)(?:, (block .+))?, grid = (.+?)(, cooperative)?", found["Launch"].text
    )
    if not launch:
        raise HeaderError(
            f"{where('Launch')}: wants `block = ..., grid = ...`, with what another block size "
            "must be between them and `, cooperative` at the end where that is so"
        )
    with_block = {*known, "block"}
    rules = {
        "block": _expression(where("Launch"), launch[1], known),
        "grid": _expression(where("Launch"), launch[3], with_block),
        "Shared": _expression(where("Shared"), found["Shared"].text, with_block),
        "Columns": _expression(where("Columns"), found["Columns"].text, known),
    }
    if launch[2]:
        rules["block condition"] = _expression(where("Launch"), launch[2], with_block)
    if "Workspace" in found:
        rules["Workspace"] = _expression(where("Workspace"), found["Workspace"].text, with_block)
        if rules["Workspace"].text == "0":
            raise HeaderError(f"{where('Workspace')}: 0 bytes are no workspace")
    if "Features" in found:
        rules["Features"] = _expression(where("Features"), found["Features"].text, known)
    align = found["Align"].text
    if not re.fullmatch("size|1|2|4|8|16", align):
        raise HeaderError(f"{where('Align')}: `{align}` is not size, 1, 2, 4, 8 or 16")
    if "Strides" in found and found["Strides"].text != STRIDES:
        raise HeaderError(f"{where('Strides')}: `{found['Strides'].text}` is not `{STRIDES}`")
    if "Strides" in found and not operation.strided:
        raise HeaderError(f"{where('Strides')}: {operation.name} has none")
    if "Inplace" in found:
        arrays = {argument.name: argument.output for argument in operation.arrays({})}
        pair = re.fullmatch(r"(\w+) = (\w+)", found["Inplace"].text)
        if not pair or not arrays.get(pair[1]) or arrays.get(pair[2]) is not False:
            raise HeaderError(
                f"{where('Inplace')}: `{found['Inplace'].text}` is not an output = an input of "
                f"{operation.name}"
            )
    if not re.fullmatch(r"sm_\d{2,3}", found["Arch"].text):
        raise HeaderError(f"{where('Arch')}: `{found['Arch'].text}` is not like sm_90")
    first, *others = found["Dtype"].text.split(", ")
    try:
        np.dtype(first)
    except (TypeError, ValueError):
        raise HeaderError(f"{where('Dtype')}: numpy knows no {first}") from None
    if set(others) - set(DTYPE_OPTIONS):
        raise HeaderError(
            f"{where('Dtype')}: only {' and '.join(DTYPE_OPTIONS)} may follow the first dtype"
        )
    return rules


def _expression(where: str, text: str, known: set[str]) -> Expression:
    try:
        expression = Expression(text)
    except ExpressionError as error:
        raise HeaderError(f"{where}: {error}") from None
    if unknown := sorted(expression.names - known):
        raise HeaderError(f"{where}: `{expression.text}` reads {', '.join(unknown)}, unknown here")
    return expression
