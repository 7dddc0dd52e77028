"""A kernel loaded from a CUDA file, and the list of the kernels that a file has.

A declaration that does not compile does not stop the kernels that do not need it: it is left out,
and so are the kernels beside the one that is wanted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from . import sources
from .compile import CompileError, compile_kernels, package
from .cuda_text import (
    closing,
    is_template,
    kernel_names,
    plain_name,
    signature,
    split_items,
    template_of,
)
from .instructions import UnsupportedPTX
from .machine import KernelText, compiled
from .parse import entry_named, parse
from .places import citing, short_name
from .refusals import of_message, refused
from .sources import Declaration, Source, declarations, plain_text
from .words import counted

ERROR = re.compile(r"^(?P<file>.*)\((?P<line>\d+)\): (?:catastrophic )?error: (?P<said>.*)$")
INSTANTIATED = re.compile(r"\bat line (?P<line>\d+)(?: of (?P<file>\S+))?")
MOST_ROUNDS = 40  # of leaving out what does not compile


def load_kernel(
    path: Path,
    name: str | None,
    options: Sequence[str] = (),
    cooperative: bool = False,
    complete: bool = True,
) -> tuple[KernelText, tuple[str, ...]]:
    """Read a kernel from a file and compile it: (the kernel, what of its file was left out).

    `name` may be None if there is one kernel. `options` are compiler options; if they are not
    `complete`, the kernel is not compiled yet.

    Raises `ValueError` that lists the kernels if `name` does not pick one, `CompileError` with the
    compiler's messages, and `UnsupportedPTX` for a kernel that the machine does not run.
    """
    source = sources.prepare(path, options)
    name = _picked(source, name)
    if not complete:
        return _kernel(source, name, cooperative), tuple(map(_missing, source.missing))
    return _load(source, name, cooperative)


def _picked(source: Source, name: str | None) -> str:
    text, path = source.texts[source.path], source.path
    whole = source.whole
    known = kernel_names(text) or kernel_names(whole)
    if name is None and len(known) != 1:
        raise ValueError(
            f"{path} has {len(known)} kernels, pass --kernel: {', '.join(known)}"
            if known
            else f"{path} has no kernel: nothing in it, outside of macros, is __global__"
        )
    if name is not None and not name.strip():
        raise ValueError(
            f"the name of the kernel is empty; {path} has: {', '.join(known) or 'none'}"
        )
    name = name or known[0]
    if is_template(whole, name):
        found = launched(source.original, name)
        example = found[0] if found else f"{name}<float>"
        raise ValueError(f"{name} is a template: name its arguments too, as in '{example}'")
    return name


def _load(
    source: Source, name: str, cooperative: bool = False
) -> tuple[KernelText, tuple[str, ...]]:
    """The kernel, compiled without what does not compile and it does not need; what that is."""
    missing = [_missing(header) for header in source.missing]
    short = plain_name(name.partition("<")[0].strip().rpartition("::")[2])
    texts, gone = source.texts, []
    for _ in range(MOST_ROUNDS):
        kernel = _kernel(replace(source, texts=texts), name, cooperative)
        try:
            with citing(kernel.code):
                compiled(kernel)
            return kernel, (*missing, *map(str, gone))
        except CompileError as error:
            last = error
        except UnsupportedPTX as error:
            raise _for_want_of(source, gone, error) from None
        except KeyError as error:
            if "no kernel named" not in str(error):
                raise
            signature(source.whole, name)  # raises where there is none
            raise ValueError(
                f"{name} is in {short_name(source.path)}, but an #if leaves it out; define the "
                "macro that it needs, as in --option=-DNAME"
            ) from None
        if texts is source.texts:
            texts = {one: sources.without_other_kernels(texts[one], short) for one in texts}
            continue
        found: dict[tuple[str, int], _Error] = {}
        for one in _errors(str(last), texts):
            found.setdefault((one.file, one.line), one)
        changed, own = dict(texts), None
        for one in sorted(found.values(), key=lambda one: -one.line):
            if not changed[one.file].splitlines()[one.line - 1].strip():
                continue  # it went with another
            shorter = sources.without(changed[one.file], one.line, one.column, short)
            if shorter is None:
                own = one
            elif shorter != changed[one.file]:
                changed[one.file] = shorter
                gone.append(one)
        if changed == texts:
            raise _explained(source, last, own, [*missing, *map(str, gone)]) from None
        texts = changed
    raise last


def _kernel(source: Source, name: str, cooperative: bool) -> KernelText:
    name = _qualified(source.whole, name)
    return KernelText(source.code, name, source.options, cooperative, source.headers)


def _qualified(text: str, name: str) -> str:
    """The instance of a template with the namespaces around it, which the compiler needs."""
    kernel, bracket, _ = name.partition("<")
    if bracket and "::" not in kernel:
        plain = plain_text(text)
        for one in declarations(plain):
            if sources.is_kernel(one.head(plain), kernel.strip()):
                return "::".join([*one.around, name])
    return name


class _Error(NamedTuple):
    """An error of the compiler, at the place in the project's own files that it is about."""

    file: str
    line: int
    said: str
    column: int = -1  # from 0; -1 if the compiler does not show it

    def __str__(self) -> str:
        return f"line {self.line} of {short_name(self.file)}: {self.said}"


def _errors(log: str, texts: dict[str, str]) -> Iterator[_Error]:
    """The errors in the compiler's messages. One in a header that is not the project's counts for
    the line that a template was instantiated at."""
    said, file, waiting, lines = "", "", False, log.splitlines()
    for number, line in enumerate(lines):
        if match := ERROR.match(line):
            said, file = match["said"], match["file"]
            waiting = file not in texts
            caret = re.fullmatch(r"  ( *)\^ *", "".join(lines[number + 2 : number + 3]))
            if not waiting:
                yield _Error(file, int(match["line"]), said, len(caret[1]) if caret else -1)
        elif waiting and (match := INSTANTIATED.search(line)):
            place = (match["file"] or file).strip('"')
            if place in texts:
                yield _Error(place, int(match["line"]), said)
                waiting = False


def _explained(
    source: Source, error: CompileError, about: _Error | None, left_out: list[str]
) -> Exception:
    """The error to show: a refusal by name if the kernel uses what the machine does not run."""
    where = f"{short_name(about.file)}:{about.line}" if about else short_name(source.path)
    said = about.said if about else str(error)
    if not about and (named := re.search(r'function "(\w+)', said)):
        lines = enumerate(source.texts[source.path].splitlines(), 1)
        found = [number for number, line in lines if re.search(rf"\b{named[1]}\b", line)]
        where += f":{found[0]}" if found else ""
    if name := re.search(r'identifier "(\w+)" is undefined', said):
        held = re.search(rf"\b(texture|surface)\s*<[^;]*\b{name[1]}\b[^;]*;", source.original)
        said = held[0] if held else said
    if feature := of_message(said):
        return refused(feature, where)
    lines = [str(error)]
    packages = [(one, package(one)) for one in source.missing if package(one)]
    if about and packages:
        needs = " and ".join(f"{one} (pip install {pip})" for one, pip in packages)
        lines.insert(0, f"{about.said}, at {where}; this file needs {needs}, not installed here")
    lines += [f"left out: {'; '.join(left_out)}"] if left_out else []
    return CompileError("\n".join(lines), error.code)


def _for_want_of(source: Source, gone: list[_Error], error: UnsupportedPTX) -> Exception:
    """The error to show: a refusal by name if a function that the kernel calls was left out because
    it uses what the machine does not run."""
    called = re.search(r"cannot call (\w+), which this source does not define", str(error))
    for one in gone if called else ():
        plain = plain_text(source.texts[one.file])
        for start, stop, body, *_ in declarations(plain):
            first, last = (plain.count("\n", 0, place) + 1 for place in (start, stop))
            here = body >= 0 and first <= one.line <= last and of_message(one.said)
            if here and re.search(rf"\b{called[1]}\s*\(", plain[start:body]):
                return refused(here, f"{short_name(one.file)}:{one.line}")
    return error


def _missing(header: str) -> str:
    """What to say of a header that was left out."""
    if sources.HOST_HEADER.match(header):
        return f"{header} (only the host can use it)"
    pip = package(header)
    return f"{header} (not found{f'; pip install {pip}' if pip else ''})"


# ---- the list of a file's kernels ----


def listing(path: Path, options: Sequence[str] = ()) -> str:
    """The kernels of a file with their parameters; of a template the instances that the file
    launches, and of a kernel that cannot run the reason."""
    source = sources.prepare(path, options)
    whole = source.whole
    names = kernel_names(whole)
    if not names:
        raise ValueError(f"{path} has no kernel: nothing in it, outside of macros, is __global__")
    wanted = {
        name: launched(source.original, name) if is_template(whole, name) else [name]
        for name in names
    }
    reasons = _reasons(source, wanted)
    lines = [f"{path}: {counted(len(names), 'kernel')}"]
    for name in names:
        template = is_template(whole, name)
        parameters = ", ".join(map(str, signature(whole, name)))
        lines.append(f"  {name}{'<...>' if template else ''}({parameters})")
        lines += [f'      --kernel "{one}"' for one in wanted[name] if template]
        if not wanted[name]:
            declared = template_of(whole, name)
            names_of = " ".join(declared.template.split()) if declared else ""
            lines.append(f"      template arguments: {names_of}")
        lines += [f"      {reason}" for reason in reasons[name]]
    lines += [f"left out: {', '.join(map(_missing, source.missing))}"] if source.missing else []
    usable = [name for name in names if not reasons[name] and wanted[name]]
    name = next(iter(usable), names[0])
    count = len(signature(whole, name))
    shown = f'"{wanted[name][0] if wanted[name] else name + "<...>"}"'
    shown = name if wanted[name] == [name] else shown
    given = f" --args ({count}, in order)" if count else ""
    lines.append(f"to run one: --kernel {shown} --grid BLOCKS --block THREADS{given}")
    return "\n".join(lines)


def _reasons(source: Source, wanted: dict[str, list[str]]) -> dict[str, list[str]]:
    """By kernel, why it does not run."""
    every = [one for instances in wanted.values() for one in instances]
    reasons: dict[str, list[str]] = {name: [] for name in wanted}
    try:
        kernels = [_kernel(source, one, False) for one in every]
        named = [one.name for one in kernels]
        ptx, mangled = compile_kernels(source.code, named, source.options, headers=source.headers)
        mangled = dict(zip(every, mangled.values(), strict=True))
    except CompileError:
        ptx = ""
    for name, instances in wanted.items():
        for one in instances:
            try:
                if ptx:
                    parse(ptx, entry_named(ptx, mangled[one]))
                else:
                    _load(source, one)
            except (CompileError, UnsupportedPTX, KeyError) as error:
                reasons[name].append(_short(error, source.texts))
                break
    return reasons


def _short(error: Exception, texts: dict[str, str]) -> str:
    """Why a kernel does not run, in one line."""
    if isinstance(error, CompileError):
        found = next(_errors(str(error), texts), None)
        if found:
            return f"does not compile: {found.said}, at {short_name(found.file)}:{found.line}"
    return " ".join(str(error.args[0] if error.args else error).split())


# ---- the instances of kernel templates that host code launches ----

MOST = 64  # instances of a template
MOST_DEPTH = 3  # host templates that call one another
IGNORED = re.compile(r"\b(const|volatile|__restrict__|__restrict|typename)\b")
CALL = re.compile(r"\s*(?:<<<.*?>>>)?\s*\(", re.DOTALL)
CAST = re.compile(r"\((?:const\s+)?([\w:\s]+?)\s*\*\s*\)|\w+_cast<(?:const\s+)?([\w:\s]+?)\s*\*")
TYPE = r"([A-Za-z_][\w:]*(?:\s+(?:int|long|char|short))*)"
NO_TYPE = {"return", "new", "delete", "else", "case", "const"}


class Template(NamedTuple):
    """A function template, a kernel or one of the host."""

    name: str
    names: list[str]  # of the template's parameters
    required: int  # parameters without a default
    parameters: list[str]  # of the function


def launched(text: str, name: str) -> list[str]:
    """The instances of a kernel template that a text launches or names otherwise, as name
    expressions: "scale<float, 4>".

    Constants of the function around a launch are replaced by their values, and its own template
    parameters by the arguments that it is called with. Arguments that a launch leaves out are
    deduced from the types of the pointers that it passes.
    """
    kernel = template_of(text, name)
    if kernel is None:
        return []
    plain = plain_text(text)
    template = _template(name, kernel.template, kernel.parameters)
    found = _arguments(plain, list(declarations(plain)), template, 0)
    return list(dict.fromkeys(f"{name}<{', '.join(given)}>" for given in found))[:MOST]


def _template(name: str, template: str, parameters: str) -> Template:
    items = split_items(template)
    words = [re.findall(r"\w+", one.partition("=")[0]) for one in items]
    required = sum("=" not in one and "..." not in one for one in items)
    return Template(name, [one[-1] for one in words if one], required, split_items(parameters))


def _arguments(
    plain: str, declared: Sequence[Declaration], template: Template, depth: int
) -> Iterator[list[str]]:
    """The template arguments of each mention of a template, if all of them are known."""
    for match in re.finditer(rf"(?<![\w.>])(?:\w+::)*{template.name}\s*(<<<|<|\()", plain):
        given, place = [], match.start(1)
        if match[1] == "<":
            place = _closing_angle(plain, place) + 1
            given = split_items(plain[match.end() : place - 1])
        around = [one for one in declared if one.start <= match.start() < one.stop]
        if not place or not around:
            continue
        start, stop, body, *_ = around[-1]
        before = plain[start : match.start()]
        if body < 0 or match.start() < body:  # a declaration, of an instance or a specialisation
            if match[1] == "<":
                yield given
            continue
        given = [_with_values(one, plain[body : match.start()]) for one in given]
        call = CALL.match(plain, place)
        passed = split_items(plain[call.end() : closing(plain, call.end() - 1)]) if call else []
        for name in template.names[len(given) :]:
            if deduced := _deduced(name, template.parameters, passed, before):
                given.append(deduced)
        if len(given) < template.required or "." in "".join(given):
            continue
        head = plain[start:body]
        outer = re.match(r"\s*template\s*<(.*?)>\s*(?=[\w\[])", head, re.DOTALL)
        function = re.search(r"(\w+)\s*\((.*)\)", head[outer.end() :], re.DOTALL) if outer else None
        if not function or not {*re.findall(r"\w+", " ".join(given))} & {
            *_template("", outer[1], "").names
        }:
            yield given
        elif depth < MOST_DEPTH and function[1] != template.name:
            caller = _template(function[1], outer[1], function[2])
            for arguments in _arguments(plain, declared, caller, depth + 1):
                values = dict(zip(caller.names, arguments, strict=False))
                yield [_with(values, one) for one in given]


def _with(values: dict[str, str], argument: str) -> str:
    return re.sub(r"\w+", lambda word: values.get(word[0], word[0]), argument)


def _deduced(name: str, parameters: list[str], passed: list[str], before: str) -> str | None:
    """The type for a template parameter, of a variable that a call passes for `T* x`; `before` is
    the function's text before the call."""
    for parameter, argument in zip(parameters, passed, strict=False):
        kind = IGNORED.sub(" ", parameter.partition("=")[0])
        if not re.fullmatch(rf"\s*{name}\b\s*[*&]?\s*\w*\s*(\[\s*\])?\s*", kind):
            continue
        if cast := CAST.match(argument):
            return (cast[1] or cast[2]).strip()
        if not re.fullmatch(r"&?\w+", argument):
            continue
        end = rf"\b{argument.lstrip('&')}\s*(?=[=;,)\[])"
        text = IGNORED.sub(" ", before)
        found = re.findall(rf"{TYPE}\s*[*&]?\s*{end}", text)
        found = found or re.findall(rf"{TYPE}\s*\*[^;(){{}}]*,\s*\*\s*{end}", text)
        found = [one for one in found if one not in NO_TYPE]
        if found:
            return found[-1]
    return None


def _with_values(argument: str, inside: str, depth: int = 0) -> str:
    """A template argument with the values of constants that the text before it defines."""

    def value(word: re.Match) -> str:
        pattern = rf"\bconst(?:expr)?\b[^;(){{}}]*?\b{word[0]}\s*[={{]\s*([^;,{{}}]+)}}?[;,]"
        defined = re.findall(pattern, inside)
        if not defined or depth == MOST_DEPTH:
            return word[0]
        inner = _with_values(" ".join(defined[-1].split()), inside, depth + 1)
        return inner if re.fullmatch(r"\w+", inner) else f"({inner})"

    return re.sub(r"\b[A-Za-z_]\w*", value, argument) if "::" not in argument else argument


def _closing_angle(plain: str, place: int) -> int:
    """Where the angle bracket at `place` closes; -1 if it does not."""
    depth = parentheses = 0
    for number in range(place, min(len(plain), place + 2000)):
        character = plain[number]
        parentheses += {"(": 1, ")": -1}.get(character, 0)
        if character in ";{" or parentheses < 0:
            return -1
        depth += {"<": 1, ">": -1}.get(character, 0) if not parentheses else 0
        if depth == 0:
            return number
    return -1
