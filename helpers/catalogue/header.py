"""Parse the header of a kernel file: how the kernel is built and launched, and what it accepts.

    // Row:      LANES lanes of a warp
    // Build:    LANES = 8 when cols < 32
    //                 | 32
    //           packs = ceil_div(cols, LANES)
    //           PACKS = packs
    // Launch:   block = 128, grid = rows
    // Columns:  cols >= 1 && packs <= 16

CONTRIBUTING.md, "Header keys", says what each key means and which names its expressions
(`helpers.catalogue.expressions`) may read; Launch, Shared and Workspace may also read block. A
shape for which no case of a name in `Build` holds is rejected.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..base.arguments import checked
from ..problem.operations import Operation, parse_computes
from ..simt.cuda_text import strip_comments
from ..simt.places import citing
from .expressions import Definition, Expression, ExpressionError
from .plan import AXIS_INPUTS, DTYPE_OPTIONS, INPUTS, Header, HeaderError, option_name

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
FORMS = {  # key -> the pattern of its text, and what that means
    "Align": (r"size|1|2|4|8|16", "size, 1, 2, 4, 8 or 16"),
    "Arch": (r"sm_\d{2,3}", "an architecture such as sm_90"),
    "Strides": (r"x_stride, y_stride", "`x_stride, y_stride`"),
}


@dataclass(frozen=True)
class _Field:
    text: str  # on one line
    lines: tuple[tuple[int, str], ...]  # (number, text) of each line, the key blanked out


@checked
@functools.lru_cache(maxsize=1024)
def header(
    code: str, options: tuple[str, ...] = (), changes: tuple[tuple[str, int], ...] = ()
) -> Header | None:
    """Parse the header of a kernel's source; return None if the source has no header.

    `options` are the compiler options: -DNAME=... overrides a number that the source defines under
    #ifndef or that the Build table computes; -DFLOAT16 and -DBFLOAT16 choose the dtype. `changes`
    are (name, value) overrides of the same numbers, including lower-case names of the table.

    Raises `HeaderError` with file, line, key and reason, and `ValueError` for a change of a name
    that is unknown or cannot be overridden and for an option that sets such a name to anything but
    a plain decimal number.
    """
    with citing(code):
        return _header(code, options, changes)


def _header(
    code: str, options: tuple[str, ...], changes: tuple[tuple[str, int], ...]
) -> Header | None:
    file, fields = _fields(code)
    if len(set(fields) & set(KEYS)) < 3:  # three fields make it a header, perhaps with a typo
        return None
    if tuple(fields) != tuple(key for key in KEYS if key in fields or key not in OPTIONAL_KEYS):
        missing = ", ".join(key for key in KEYS if key not in {*fields, *OPTIONAL_KEYS}) or "none"
        unknown = ", ".join(key for key in fields if key not in KEYS) or "none"
        raise HeaderError(
            f"{file}: a kernel header must have the keys {', '.join(KEYS)} in this order, of which "
            f"{', '.join(sorted(OPTIONAL_KEYS))} are optional; "
            f"missing: {missing}; unknown: {unknown}"
        )
    plain = strip_comments(code)
    numbers = {
        name: int(value)
        for name, value in re.findall(r"^\s*#define (\w+) (\d+)[ \t]*$", plain, flags=re.MULTILINE)
    }
    operation, made_for = _operation(file, fields)
    given = {*INPUTS, *(AXIS_INPUTS if "inner" in operation.sizes else ()), *numbers}
    build = _build_table(file, fields["Build"].lines, plain, given) if "Build" in fields else ()
    for entry in build:
        if entry.name in operation.features and (len(entry.cases) > 1 or entry.cases[0][0].names):
            raise HeaderError(
                f"{entry.where}: {entry.name} is a feature, which must be a plain number"
            )
    named = [value.name for value in build]
    if unknown := [name for name, _ in changes if name not in (*named, *numbers)]:
        raise ValueError(f"{file} has no macro {', '.join(unknown)}")
    defined = _defined(file, options, {*named, *numbers})
    fixed = {**defined, **dict(changes)}
    guarded = set(re.findall(r"^\s*#ifndef (\w+)", plain, flags=re.MULTILINE))
    if constants := [name for name in fixed if name in numbers and name not in guarded]:
        raise ValueError(
            f"{file} defines {', '.join(constants)} without #ifndef, so it cannot be changed"
        )
    for name, value in changes:
        if name.isupper():
            options = (*(o for o in options if option_name(o) != name), f"-D{name}={value}")
    known = {*given, *named, *defined}
    return Header(
        file,
        {key: entry.text for key, entry in fields.items()},
        build,
        {**numbers, **{name: value for name, value in fixed.items() if name not in named}},
        options,
        {name: value for name, value in fixed.items() if name in named},
        {key: entry.lines[0][0] for key, entry in fields.items()},
        tuple(text for _, text in fields["Build"].lines) if build else (),
        _rules(file, fields, known, operation),
        operation,
        made_for,
    )


def _operation(file: str, fields: Mapping[str, _Field]) -> tuple[Operation, dict[str, int]]:
    """Return the operation of a header and the features whose value is fixed in the file."""
    text = fields["Computes"].text if "Computes" in fields else "softmax"
    try:
        return parse_computes(text)
    except ValueError as error:
        raise HeaderError(f"{file}:{fields['Computes'].lines[0][0]}: Computes: {error}") from None


def _defined(file: str, options: Sequence[str], known: set[str]) -> dict[str, int]:
    """Return the macros that options define as plain numbers. Raises `ValueError` if one of `known`
    is defined in another form, which the compiler would accept but the plan would ignore."""
    defined = {}
    dtypes = {option_name(option): option for option in DTYPE_OPTIONS.values()}
    text = "\n".join(options)  # -D and its definition may be two options
    for option, name, _, value in re.findall(
        r"^((?:-D|--define-macro)[=\s]*(\w+)(=(.*))?)$", text, flags=re.MULTILINE
    ):
        if option != dtypes.get(name, option):
            written = " ".join(option.split())
            raise ValueError(f"{file}: the option {written} must be written as {dtypes[name]}")
        if re.fullmatch(rf"-D{name}=(0|[1-9]\d*)", option):
            defined[name] = int(value)
        elif name in known:
            raise ValueError(
                f"{file}: the option {' '.join(option.split())} must be written as -D{name}= and a "
                "plain decimal number"
            )
    return defined


def _fields(code: str) -> tuple[str, dict[str, _Field]]:
    """Return the file name of a source and the fields of its first comment."""
    file, number = "the source", 0
    lines_of: dict[str, list[tuple[int, str]]] = {}
    key = ""
    for line in code.splitlines():
        number += 1
        if named := re.match(r'#line (\d+) "(.*)"', line):
            number, file = int(named[1]) - 1, named[2]
        elif line.startswith("//"):
            text = re.sub("^// ?", "", line)
            if begins := re.match(r"([A-Z][a-z]+): +(.*)", text):
                key = begins[1]
                if key in lines_of:
                    raise HeaderError(f"{file}:{number}: duplicate key {key}")
                lines_of[key] = [(number, " " * begins.start(2) + begins[2])]
            elif key and text.startswith(" "):
                lines_of[key].append((number, text))
            else:
                key = ""
        elif line.strip():
            break
    fields = {}
    for key, lines in lines_of.items():
        text = " ".join(" ".join(text for _, text in lines).split())
        if not text:
            raise HeaderError(f"{file}:{lines[0][0]}: {key} is empty")
        fields[key] = _Field(text, tuple(lines))
    return file, fields


def _build_table(file: str, lines, plain: str, given: set[str]) -> tuple:
    """Parse the Build table and check what can be checked without a shape. `given` are the names
    that its expressions may read besides those defined above them in the table."""
    entries: list[tuple[str, int, list[list]]] = []  # (name, line, [[line, text of a case]])
    for number, raw in lines:
        text = raw.strip()
        if begins := re.match(r"(\w+) *= *(?!=)(.*)", text):
            entries.append((begins[1], number, [[number, begins[2]]]))
        elif not entries:
            raise HeaderError(f"{file}:{number}: Build: `{text}` is not NAME = value")
        elif text.startswith("|") and not text.startswith("||"):
            entries[-1][2].append([number, text[1:]])
        else:  # a continuation of the line above
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
            raise HeaderError(f"{where} is already defined")
        if name.isupper() and name not in used:
            raise HeaderError(f"{where}: the code does not use it; write it in lower case")
        where = f"{file}:{line}: Build"
        build.append(Definition(name, tuple(_cases(file, name, cases, known)), where=where))
        known.add(name)
    return tuple(build)


def _cases(file: str, name: str, cases, known: set[str]):
    for position, (number, text) in enumerate(cases, 1):
        value, when, condition = re.sub(r"\s+", " ", text).strip().partition(" when ")
        if position < len(cases) and not when:
            raise HeaderError(f"{file}:{number}: Build: {name}: only the last case has no `when`")
        where = f"{file}:{number}: Build: {name}"
        yield (
            _expression(where, value, known),
            _expression(where, condition, known) if when else None,
        )


def _rules(
    file: str, fields: Mapping[str, _Field], known: set[str], operation: Operation
) -> dict[str, Expression]:
    """Parse the expressions of the other keys, and check the form of every key."""

    def where(key: str) -> str:
        return f"{file}:{fields[key].lines[0][0]}: {key}"

    launch = re.fullmatch(
        r"block = (.+?)(?:, (block .+))?, grid = (.+?)(, cooperative)?", fields["Launch"].text
    )
    if not launch:
        raise HeaderError(
            f"{where('Launch')}: must be `block = ..., grid = ...`, optionally with a condition on "
            "other block sizes between the two, and with `, cooperative` at the end"
        )
    with_block = {*known, "block"}
    rules = {
        "block": _expression(where("Launch"), launch[1], known),
        "grid": _expression(where("Launch"), launch[3], with_block),
    }
    if launch[2]:
        rules["block condition"] = _expression(where("Launch"), launch[2], with_block)
    of_keys = {"Shared": with_block, "Workspace": with_block, "Columns": known, "Features": known}
    for key, names in of_keys.items():
        if key in fields:
            rules[key] = _expression(where(key), fields[key].text, names)
    if "Workspace" in rules and rules["Workspace"].text == "0":
        raise HeaderError(
            f"{where('Workspace')}: the size must be positive; omit the key if there is none"
        )
    for key, (form, meaning) in FORMS.items():
        if key in fields and not re.fullmatch(form, fields[key].text):
            raise HeaderError(f"{where(key)}: `{fields[key].text}` is not {meaning}")
    if "Strides" in fields and not operation.strided:
        raise HeaderError(f"{where('Strides')}: {operation.name} has none")
    if "Inplace" in fields:
        arrays = {argument.name: argument.output for argument in operation.arrays({})}
        pair = re.fullmatch(r"(\w+) = (\w+)", fields["Inplace"].text)
        if not pair or not arrays.get(pair[1]) or arrays.get(pair[2]) is not False:
            raise HeaderError(
                f"{where('Inplace')}: `{fields['Inplace'].text}` is not an output = an input of "
                f"{operation.name}"
            )
    first, *others = fields["Dtype"].text.split(", ")
    try:
        np.dtype(first)
    except (TypeError, ValueError):
        raise HeaderError(f"{where('Dtype')}: {first} is not a numpy dtype") from None
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
