"""Show kernels, their differences, diagnostics and tables in a notebook.

Every function displays its output, in colour on a page and as text within 80 columns everywhere
else, and returns None.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from ..base.arguments import checked
from ..simt import Trace, around, lines_of
from ..simt.words import counted, often
from .rich import (
    COLUMNS,
    Fold,
    Line,
    Page,
    Piece,
    Rich,
    aligned,
    escape,
    markdown_table,
    marked,
    note,
    source,
    tokens_of,
    wrapped_code,
)


@checked
def kernel(
    name_or_code: str,
    since: str | Sequence[str] | None = None,
    also: Collection[str] = (),
    fold: Collection[str] = (),
) -> None:
    """Show a kernel, its lines numbered as findings and `Trace.report` cite them.

    `name_or_code` is a file in kernels/ ("03_shared.cu") or the text of a source. Lines of code
    that occur in none of the files (or texts) `since` are marked; white space and comments are
    ignored. The contract comment is omitted.

    Some parts are folded in their place. Of a kernel with includes that is everything but its
    `__global__` function and the functions and structs `also`; of a text without one, everything
    but `also`, if given. `fold` adds sections of the body, from a comment `// ---- name ----` to
    the next, and conditions, such as a macro or "CLUSTER > 1": statements that begin with `if` or
    `for` on one of them do nothing if it is false.

    Raises `FileNotFoundError` for an unknown file, and `ValueError` for a function, section or
    condition that is not there.
    """
    text = _read(name_or_code)
    earlier = [since] if isinstance(since, str) else list(since or ())
    known = [_read(one) for one in earlier]
    new = _new_lines(text, known) if earlier else set()
    folds = {**_other_parts(text, {*also}), **_folded_statements(text, fold)}
    pieces: list[Piece] = [Fold(title, lines) for title, lines in _included(text, known)]
    start, shown = _after_header(text), 0
    for title, run in groupby(range(start, len(text.lines)), key=lambda at: folds.get(at, "")):
        lines = [
            Line(text.first + at, text.lines[at], "+" if at in new else " ")
            for at in _without_blank_ends(text, [*run])
        ]
        shown += 0 if title else len(lines)
        pieces += [Fold(title, lines)] * bool(lines) if title else lines
    page = Page()
    title = f"{text.title}, {counted(shown, 'line')} shown"
    legend = f" marks lines that are new since {', '.join(map(_name, known))}"
    if earlier:
        page.say(f"{title}; +{legend}", f"{escape(title)}; {marked('+')}{escape(legend)}", 0)
    else:
        page.say(title)
    if any(whose := note(text.file)):
        page.say(*whose)
    page.code(pieces)
    page.display()


def diff(old: str, new: str) -> None:
    """Show the difference between two kernels: files or texts, as in `kernel`."""
    both = [_read(old), _read(new)]
    kept = [  # a variant includes a file by another path than a step does
        [line.rstrip().replace('"../', '"') for line in text.lines[_after_header(text) :]]
        for text in both
    ]
    lines = [*difflib.unified_diff(*kept, *map(_name, both), n=1, lineterm="")]
    plain = [part for line in lines for part in wrapped_code(line, 1)]
    Rich("\n".join(plain), markdown="\n".join(["```diff", *lines, "```"])).display()


def findings(trace: Trace, most: int = 2) -> None:
    """Show the bugs that a run found, each with the surrounding lines; "no findings" if there are
    none.

    Beyond `most` it only says how many more there are.
    """
    page = Page()
    for finding in trace.findings[:most]:
        place = f"{finding.file}, line {finding.line}"
        who = f"block {_place(finding.block)}, thread {_place(finding.thread)}"
        says = f", {often(finding.count)}: {finding.message} (first: {who})"
        kind = f"<strong>{escape(finding.kind)}</strong>"
        page.say(f"{place}: {finding.kind}{says}", f"{escape(place)}: {kind}{escape(says)}")
        lines = [
            Line(number, text, ">" if number == finding.line else " ")
            for number, text in around(trace.code, finding.file, finding.line)
        ]
        if lines:
            page.code(lines)
    if more := len(trace.findings[most:]):
        page.say(f"and {counted(more, 'more diagnostic')}")
    page.plain = page.plain or ["no findings"]
    page.display()


def table(head: Sequence[str], rows: Sequence[Sequence], formats: Sequence[str] = ()) -> None:
    """Show a table; `head` names the columns, with units. All but the first are right-aligned.

    `formats` are format specifications, one per column ("" for text), for cells that are not text.
    Raises `ValueError` for a table wider than 80 columns, and for a row whose length differs from
    `head`.
    """
    formats = formats or [""] * len(head)
    cells = [
        [cell if isinstance(cell, str) else format(cell, form) for cell, form in pairs]
        for pairs in (zip(row, formats, strict=True) for row in rows)
    ]
    plain = aligned([head, *cells])
    if (widest := max(map(len, plain))) > COLUMNS:
        raise ValueError(f"the table is {widest} columns wide, more than {COLUMNS}")
    page = markdown_table([*map(_markdown, head)], [[*map(_markdown, row)] for row in cells])
    page[1] = "|:---" + "|---:" * (len(head) - 1) + "|"
    Rich("\n".join(plain), markdown="\n".join(page)).display()


def _markdown(text: str) -> str:
    """Text whose characters mean nothing to Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>|~$#&])", r"\\\1", text)


# ---- the text of a kernel -----------------------------------------------------------------------


class _Text(NamedTuple):
    file: str  # as diagnostics name it
    title: str
    first: int  # number of the first line
    lines: list[str]
    code: list[str]  # the text without comments
    bare: list[str]  # and without what is in quotes, and directives
    includes: dict[str, dict[int, str]]  # file -> its lines by number


def _read(name_or_code: str) -> _Text:
    """The file or text of a kernel, with the line numbers of its diagnostics."""
    is_code = "\n" in name_or_code or "{" in name_or_code
    whole = name_or_code if is_code else source(name_or_code)
    (file, own), *includes = lines_of(whole.rstrip()).items()
    lines = "\n".join(own.values()).rstrip().split("\n")
    code = [
        "".join(part for kind, part in tokens if kind != "comment")
        for tokens in tokens_of("\n".join(lines))
    ]
    bare = [STRINGS.sub('""', re.sub(r"^\s*#.*", ";", line)) for line in code]
    title = file
    if is_code and whole.startswith("#line"):
        with suppress(FileNotFoundError):
            title += " as edited" * (whole != source(file.removeprefix("kernels/")))
    return _Text(file, title, min(own), lines, code, bare, dict(includes))


def _name(text: _Text) -> str:
    """The name of a kernel in a sentence."""
    return text.title.removeprefix("kernels/") if text.file != "kernel.cu" else "the other text"


def _included(text: _Text, earlier: Sequence[_Text]) -> Iterator[tuple[str, list[Line]]]:
    """(title, lines) of each included file; a line that is in none of the earlier texts, and in no
    file that these include, is marked."""
    known = {line for one in earlier for line in _lines_of_includes(one)}
    known |= {line.strip() for one in earlier for line in one.lines}

    def is_new(code: str) -> bool:
        return bool(earlier and code) and not code.startswith("//") and code not in known

    for file, lines in text.includes.items():
        subject = re.match(r"// ([^:.]*)", lines[min(lines)])
        title = file.removeprefix("kernels/")
        title += f": {subject[1][:1].lower()}{subject[1][1:]}" if subject else ""
        yield title, [Line(at, line, " +"[is_new(line.strip())]) for at, line in lines.items()]


def _lines_of_includes(text: _Text) -> set[str]:
    return {line.strip() for lines in text.includes.values() for line in lines.values()}


def _after_header(text: _Text) -> int:
    """The number of lines of the contract, the comment with keys at the top."""
    end = next((at for at, line in enumerate(text.lines) if not line.startswith("//")), 0)
    keys = any(re.match(r"// [A-Z][a-z]+: +\S", line) for line in text.lines[:end])
    return end if keys else 0


def _without_blank_ends(text: _Text, places: Sequence[int]) -> list[int]:
    """Remove blank lines at both ends, and collapse consecutive ones."""
    kept: list[int] = []
    for at in places:
        if text.lines[at].strip() or (kept and text.lines[kept[-1]].strip()):
            kept.append(at)
    return kept[:-1] if kept and not text.lines[kept[-1]].strip() else kept


def _new_lines(text: _Text, earlier: Sequence[_Text]) -> set[int]:
    """The lines with code that occurs in none of the earlier texts and of the files that these
    include."""
    known = {line.strip() for one in earlier for line in one.code}
    known |= {line for one in earlier for line in _lines_of_includes(one)}
    return {at for at, line in enumerate(text.code) if line.strip() and line.strip() not in known}


# ---- its parts --------------------------------------------------------------------------------


STRINGS = re.compile(r""""(\\.|[^"\\\n])*"|'(\\.|[^'\\\n])'""")
HEADING = re.compile(r"// -{2,} (.*?) -{2,}$")
# A function or a struct, which begins at the margin: its name, and its brace.
DEFINED = re.compile(
    r"^(?:template <[^\n]*> )?struct (?:alignas\(.*\) )?(\w+)\b[^;\n]*\{"
    r"|^[^\s#;{}][^;{}]*?\b(\w+)\s*\((?:[^()]|\([^()]*\))*\)\s*\{",
    re.MULTILINE,
)


def _other_parts(text: _Text, also: set[str]) -> dict[int, str]:
    """Place -> title of its fold, for the lines beside the kernel and the functions `also`."""
    parts = [(places, [*_defined(text, places)]) for places in _paragraphs(text)]
    there = [name for _, names in parts for name in names]
    if unknown := also - {*there}:
        raise ValueError(_no(text, "function", unknown, there))
    kernels = [places for places, _ in parts if any("__global__" in text.bare[at] for at in places)]
    if not also and not (text.includes and kernels):
        return {}
    found: dict[int, str] = {}
    for shown, run in groupby(parts, key=lambda part: part[0] in kernels or also & {*part[1]}):
        other = [] if shown else [*run]
        names = [*dict.fromkeys(name for _, defined in other for name in defined)]
        names = names or ["macros and constants"]
        title = ", ".join([*names[:4], *(["..."] if len(names) > 4 else [])])
        for places, _ in other:
            found |= dict.fromkeys(range(other[0][0][0], places[-1] + 1), title)
    return found


def _defined(text: _Text, places: Sequence[int]) -> Iterator[str]:
    """The functions and structs that some lines define."""
    for struct, function in DEFINED.findall("\n".join(text.bare[at] for at in places)):
        yield struct or function


def _no(text: _Text, what: str, unknown: Collection[str], there: Collection[str]) -> str:
    names = ", ".join(dict.fromkeys(there)) or "none"
    return f"{text.file} has no {what} {', '.join(sorted(unknown))}, but {names}"


def _paragraphs(text: _Text) -> Iterator[list[int]]:
    """Indices of lines that belong together: up to a blank line outside all braces that follows
    code; a heading belongs to what it heads."""
    depth, places = 0, []
    for at, (line, bare) in enumerate(zip(text.lines, text.bare, strict=True)):
        if line.strip() or depth:
            places.append(at)
        elif any(text.code[before].strip() for before in places):
            yield places
            places = []
        depth += bare.count("{") - bare.count("}")
    if places:
        yield places


def _sections(text: _Text) -> dict[str, list[int]]:
    """Section name -> indices of its lines in a body, including the heading."""
    found: dict[str, list[int]] = {}
    name = ""
    for at, line in enumerate(text.lines):
        if heading := HEADING.match(line.lstrip()):
            name = heading[1] if line[0].isspace() else ""
        elif re.match(r"[^\s#]", line):  # the function ends
            name = ""
        if name:
            found.setdefault(name, []).append(at)
    return found


def _folded_statements(text: _Text, fold: Collection[str]) -> dict[int, str]:
    """Place -> title of its fold, for the sections and conditions `fold`."""
    sections, found = _sections(text), {}
    for name in fold:
        places = sections.get(name) or [*_statements_on(name, text)]
        if not places:
            raise ValueError(_no(text, "section or condition", {name}, sections))
        title = name if name in sections else f"if ({name})"
        found |= {at: title for at in places if at not in found}
    return found


def _statements_on(condition: str, text: _Text) -> Iterator[int]:
    """Places of statements that do nothing where C, the `condition`, is false, with the comment
    and the pragma above them: `if (C)`, `if (C && ...)`, `for (...; C && ...; ...)`.

    They end where the indentation does; one that has an `else` does something.
    """
    begins = re.compile(rf"( +)(?:if \(|for \([^;()]*; )(?:{re.escape(condition)})(?: &&|\))")
    for at, line in enumerate(text.code):
        if not (begin := begins.match(line)):
            continue
        inside = re.compile(rf"{begin[1]}( +\S|\}}$)|#|$")
        until = next(n for n in range(at + 1, len(text.lines)) if not inside.match(text.lines[n]))
        if re.match(r"\s*(\} )?else\b", text.code[until]):
            continue
        while re.match(r"\s*(//|#pragma)", text.lines[at - 1]):
            at -= 1
        while re.match("#|$", text.lines[until - 1]):  # those of the next statement
            until -= 1
        yield from range(at, until)


# ---- text -------------------------------------------------------------------------------------


def _place(place: tuple[int, int, int]) -> str:
    """7 of (7, 0, 0)."""
    return str(place if any(place[1:]) else place[0])
