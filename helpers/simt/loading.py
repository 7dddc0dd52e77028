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
from .cuda_text import is_template, kernel_names, signature, template_of
from .instances import launched
from .instructions import UnsupportedPTX
from .machine import KernelText, compiled
from .parse import entry_named, parse
from .places import citing, short_name
from .refusals import of_message, refused
from .sources import Source
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
    whole = "\n".join(source.texts.values())
    known = kernel_names(text) or kernel_names(whole)
    if name is None and len(known) != 1:
        raise ValueError(
            f"{path} has {len(known)} kernels, pass --kernel: {', '.join(known)}"
            if known
            else f"{path} has no kernel: nothing in it is __global__"
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
    kernel = _kernel(source, name, cooperative)
    try:
        compiled(kernel)
        return kernel, tuple(missing)
    except CompileError as error:
        first = error
    except KeyError as error:
        there = kernel_names("\n".join(source.texts.values()))
        if "no kernel named" not in str(error) or name not in there:
            raise
        raise ValueError(
            f"{name} is in {short_name(source.path)}, but an #if leaves it out; define the macro "
            "that it needs, as in --option=-DNAME"
        ) from None
    short, left_out = name.partition("<")[0].strip().rpartition("::")[2], []
    texts = {one: sources.without_other_kernels(text, short) for one, text in source.texts.items()}
    for _ in range(MOST_ROUNDS):
        kernel = _kernel(replace(source, texts=texts), name, cooperative)
        try:
            with citing(kernel.code):
                compiled(kernel)
        except CompileError as error:
            found: dict[tuple[str, int], _Error] = {}
            for one in _errors(str(error), texts):
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
                    left_out.append(f"line {one.line} of {short_name(one.file)}: {one.said}")
            if changed == texts:
                raise _explained(source, error, own, [*missing, *left_out]) from None
            texts = changed
            continue
        return kernel, (*missing, *left_out)
    raise first


def _kernel(source: Source, name: str, cooperative: bool) -> KernelText:
    return KernelText(source.code, name, source.options, cooperative, source.headers)


class _Error(NamedTuple):
    """An error of the compiler, at the place in the project's own files that it is about."""

    file: str
    line: int
    said: str
    column: int = -1  # from 0; -1 if the compiler does not show it


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
    whole = "\n".join(source.texts.values())
    names = kernel_names(whole)
    if not names:
        raise ValueError(f"{path} has no kernel: nothing in it is __global__")
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


def instances(path: Path) -> dict[str, list[str]]:
    """By template among the kernels of a file, the instances that its host code names."""
    source = sources.prepare(path)
    whole = "\n".join(source.texts.values())
    names = [name for name in kernel_names(whole) if is_template(whole, name)]
    return {name: launched(source.original, name) for name in names}


def _reasons(source: Source, wanted: dict[str, list[str]]) -> dict[str, list[str]]:
    """By kernel, why it does not run."""
    every = [one for instances in wanted.values() for one in instances]
    reasons: dict[str, list[str]] = {name: [] for name in wanted}
    try:
        kernel = _kernel(source, "", False)
        ptx, mangled = compile_kernels(kernel.code, every, source.options, headers=kernel.headers)
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
