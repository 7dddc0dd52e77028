"""Rich output with a plain form: HTML or Markdown on a page, text within 80 columns elsewhere.

Colours are inline styles with JupyterLab's theme variables, so that they are those of a light or a
dark theme; where there is no theme, as on a web page, the second value counts. A mark is also a
character, which remains if a page removes styles.

The reader's own files, kernels that replace those of the series and links to files, exist only in a
notebook that runs in mine/. Committed outputs, tests, records, measurements and exports use
`catalogue.registry`, which never looks there.
"""

from __future__ import annotations

import functools
import html
import os
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ..base.arguments import checked
from ..base.gpu import replay_is_forced
from ..base.paths import KERNELS, MINE, ROOT
from ..catalogue import registry
from ..simt.words import counted

COLUMNS = 80  # width of the plain form
FIGURE = "application/vnd.softmax-worklog.figure"  # of `draw.style.digest_of`


def _theme(name: str, otherwise: str) -> str:
    return f"var(--jp-{name},{otherwise})"


GROUND = _theme("cell-editor-background", "#fafafa")
INK = _theme("content-font-color1", "#1f2328")
MUTED = _theme("content-font-color2", "#656d76")
COLOURS = {  # kind of token -> colour; other tokens use the ink colour
    "comment": _theme("content-font-color2", "#57606a"),
    "keyword": _theme("mirror-editor-keyword-color", "#8b1a86"),
    "cuda": _theme("mirror-editor-def-color", "#0550ae"),
    "number": _theme("mirror-editor-number-color", "#953800"),
    "string": _theme("mirror-editor-string-color", "#0a5536"),
    "preprocessor": _theme("mirror-editor-atom-color", "#6639ba"),
}
MARKS = {  # character -> (colour of the bar at the left, background of the line), on any ground
    "+": ("#2da44e", "rgba(46,164,79,0.15)"),
    "-": ("#d4762c", "rgba(212,118,44,0.15)"),
    ">": ("#e5534b", "rgba(229,83,75,0.18)"),
}
FONT = "font-family:monospace;font-size:12px;line-height:1.45"
# A long line scrolls; the grounds of lines are as wide as the longest one.
BOX = f"overflow-x:auto;padding:6px 0;background-color:{GROUND};color:{INK};{FONT}"
INSIDE = "display:inline-block;min-width:100%"
BLOCK = "margin:0;padding:0;background-color:transparent;color:inherit;white-space:pre;font:inherit"
LINK = _theme("content-link-color", "#0550ae")
SUMMARY = f"cursor:pointer;padding:0 11px;white-space:nowrap;color:{LINK}"
CAPTION = f"padding:4px 11px;color:{INK};font-size:13px"
PADDING = 12  # pixels around a figure
# The caption begins where the figure above it does.
UNDER = f"max-width:700px;padding:6px {PADDING}px {PADDING}px;color:{INK};font-size:14px"


@dataclass(frozen=True)
class Rich:
    """The output of a cell: `html` or `markdown` on a page, `plain` everywhere else."""

    plain: str
    html: str = ""
    markdown: str = ""

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        forms = {"text/html": self.html, "text/markdown": self.markdown, "text/plain": self.plain}
        return {kind: text for kind, text in forms.items() if text}

    def display(self) -> None:
        """Display it under the running cell."""
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)


@dataclass(frozen=True)
class Line:
    """A line of code in a listing."""

    number: int | None  # None: without one
    text: str
    mark: str = " "  # one of MARKS


def escape(text: str) -> str:
    """Text as HTML."""
    return html.escape(text, quote=False)


def caption(text: str) -> str:
    """A line of text above or below code; `text` is HTML."""
    return f'<div style="{CAPTION}">{text}</div>'


@dataclass(frozen=True)
class Fold:
    """Lines of a listing that a click opens; in the plain form, the number of them."""

    title: str
    lines: Sequence[Line]

    @property
    def summary(self) -> str:
        new = sum(line.mark == "+" for line in self.lines)
        return f"{self.title}, {counted(len(self.lines), 'line')}{f', {new} new' if new else ''}"


Piece = Line | Fold


def marked(mark: str) -> str:
    """A mark as it appears beside lines, for a caption."""
    bar, ground = MARKS[mark]
    style = f"padding:0 5px;border-left:3px solid {bar};background-color:{ground}"
    return f'<span style="{style}">{escape(mark)}</span>'


def details(summary: str, content: str, style: str = "") -> str:
    """Folded HTML; `summary` is text, `style` that of its line."""
    look = f' style="{style}"' if style else ""
    summary = f"<summary{look}>{escape(summary)}</summary>"
    return f'<details style="margin:2px 0">{summary}{content}</details>'


def wrapped(text: str, indent: int = 0) -> list[str]:
    """Lines of at most 80 columns; all but the first are indented."""
    indented = {"subsequent_indent": " " * indent}
    return textwrap.wrap(text, COLUMNS, break_on_hyphens=False, **indented)


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    head, *lines = (f"| {' | '.join(cells)} |" for cells in (titles, *rows))
    return [head.replace("|  |", "| |"), "|---" * len(titles) + "|", *lines]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table of plain text: the first column left-aligned, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{'>' if at else '<'}{widths[at]}}" for at, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


class Page:
    """An output that is built piece by piece in both forms."""

    def __init__(self) -> None:
        self.plain: list[str] = []
        self.html: list[str] = []

    def say(self, text: str, in_html: str = "", indent: int = 4) -> None:
        self.plain += wrapped(text, indent)
        self.html.append(caption(in_html or escape(text)))

    def code(self, pieces: Sequence[Piece]) -> None:
        self.plain += code_plain(pieces)
        self.html.append(code_html(pieces))

    def display(self) -> None:
        Rich("\n".join(self.plain), "".join(self.html)).display()


# ---- code -------------------------------------------------------------------------------------


def code_html(pieces: Sequence[Piece]) -> str:
    """Coloured lines of CUDA C++ with numbers and marks, and folds between them."""
    wide, content = _width(pieces), ""
    for fold, run in groupby(pieces, key=lambda piece: piece if isinstance(piece, Fold) else None):
        if fold:
            content += details(f"⋯ {fold.summary}", _block(fold.lines, wide), SUMMARY)
        else:
            content += _block([*run], wide)
    return f'<div style="{BOX}"><div style="{INSIDE}">{content}</div></div>'


def _block(lines: Sequence[Line], wide: int) -> str:
    rows = []
    texts = [_text(line, COLUMNS) for line in lines]
    for line, tokens in zip(lines, tokens_of("\n".join(texts)), strict=True):
        code = "".join(_coloured(COLOURS.get(kind), text) for kind, text in tokens)
        bar, ground = MARKS.get(line.mark, ("transparent", "transparent"))
        style = f"padding:0 8px;border-left:3px solid {bar};background-color:{ground}"
        rows.append(f'<div style="{style}">{_coloured(MUTED, _number(line, wide))}{code}</div>')
    return f'<pre style="{BLOCK}">{"".join(rows)}</pre>'


def code_plain(pieces: Sequence[Piece]) -> list[str]:
    """The same as lines of text within 80 columns."""
    found, wide = [], _width(pieces)
    for piece in pieces:
        if isinstance(piece, Fold):
            found += wrapped(f"{' ' * (wide + 5)}... {piece.summary}", wide + 9)
            continue
        number = f"  {_number(piece, wide)}"
        found += wrapped_code(number + _text(piece, COLUMNS - len(number)), len(number))
    return found


def wrapped_code(line: str, prefix: int) -> list[str]:
    """A line of code after a prefix of so many columns, within 80 columns; what it goes on with is
    indented further."""
    indent = len(line) - len(line[prefix:].lstrip()) + 4
    return textwrap.wrap(
        line,
        COLUMNS,
        subsequent_indent=" " * min(indent, COLUMNS // 2),
        break_on_hyphens=False,
        replace_whitespace=False,
    ) or [line.rstrip()]


def _width(pieces: Sequence[Piece]) -> int:
    """The number of digits of the largest line number."""
    lines = (
        line
        for piece in pieces
        for line in (piece.lines if isinstance(piece, Fold) else (piece,))
        if line.number is not None
    )
    return max((len(str(line.number)) for line in lines), default=0)


def _number(line: Line, wide: int) -> str:
    """The prefix of a line: its number, padded to the widest, and its mark."""
    return f"{'' if line.number is None else line.number:>{wide}} {line.mark} "


def _text(line: Line, columns: int) -> str:
    """The text of a line; a rule is at most as long as the page is wide."""
    return line.text[:columns] if line.text.endswith("---") else line.text.rstrip()


def _coloured(colour: str | None, text: str) -> str:
    return f'<span style="color:{colour}">{escape(text)}</span>' if colour else escape(text)


@functools.lru_cache(maxsize=64)
def tokens_of(code: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """(kind, text) pairs for each line of CUDA C++; a kind is one of COLOURS or ""."""
    from pygments.lexers import CppLexer  # where nothing is shown it need not be there

    lines: list[list[tuple[str, str]]] = [[]]
    for token, text in CppLexer(stripnl=False).get_tokens(f"{code}\n"):
        kind = _kind(token, text)
        for at, part in enumerate(text.split("\n")):
            if at:
                lines.append([])
            if lines[-1] and (lines[-1][-1][0] == kind or part.isspace()):
                kind_before, before = lines[-1].pop()
                lines[-1].append((kind_before, before + part))
            elif part:
                lines[-1].append((kind, part))
    return tuple(map(tuple, lines[:-1]))


def _kind(token, text: str) -> str:
    from pygments.lexers import CudaLexer
    from pygments.token import Comment, Keyword, Name, Number, Operator, String

    if token in Name:
        return "cuda" if text in CudaLexer.variables or text.startswith("__") else ""
    kinds = {
        "preprocessor": (Comment.Preproc, Comment.PreprocFile),
        "comment": (Comment,),
        "number": (Number,),
        "string": (String,),
        "keyword": (Keyword, Operator.Word),
    }
    return next((kind for kind, of in kinds.items() if any(token in one for one in of)), "")


# ---- the reader's own files ---------------------------------------------------------------------


@checked
def source(name: str) -> str:
    """Return the source of a kernel file for `cupy.RawKernel`, with the files of `kernels/include/`
    that it includes.

    `name` is a path below `kernels/`, such as "01_naive.cu". In a notebook of mine/, the file of
    that name in `mine/kernels/` takes its place, if there is one. `#line` directives precede the
    text of each file, so that a compiler error names the file and its line.

    Raises `FileNotFoundError`, which lists the kernel files in that folder.
    """
    text, own = registry.source(name), own_kernel(name)
    if not own.is_file() or not in_own_notebook():
        return text
    text = registry.resolved(
        name, lambda file: (own if file == name else KERNELS / file).read_text(encoding="utf-8")
    )
    return text.replace(f'"kernels/{name}"', f'"{named(own)}"')  # in its #line directives


def in_own_notebook() -> bool:
    """Whether this process runs a notebook of mine/, and no forced replay."""
    return not replay_is_forced() and Path.cwd().is_relative_to(MINE.resolve())


def own_kernel(name: str) -> Path:
    """The file that replaces kernels/<name>, whether or not it exists."""
    return MINE / "kernels" / name


def note(file: str) -> tuple[str, str]:
    """What a listing of `file`, "kernels/01_naive.cu", says in a notebook of mine/, as text and as
    HTML: that the kernel is the reader's, or how to change it. Empty elsewhere."""
    name = file.removeprefix("kernels/")
    if name == file or not in_own_notebook():
        return "", ""
    own = own_kernel(name)
    if own.is_file():
        before, behind = "yours: ", "; delete it to return"
    else:
        before, behind = f"to change this kernel, copy {file} to ", ""
    return f"{before}{named(own)}{behind}", f"{before}{anchor(own)}{behind}"


def named(path: Path) -> str:
    """A file of this repository as text: its path from the root."""
    return path.relative_to(ROOT).as_posix()


def anchor(path: Path, line: int | None = None, text: str = "") -> str:
    """HTML that opens an existing file, at a line from 1 on, when it is clicked in JupyterLab;
    `text` is by default the file's name. It is plain text if the file does not exist, and in a
    forced replay, since committed outputs are read from more than one folder."""
    text = escape(text or named(path))
    if replay_is_forced() or not path.is_file():
        return text
    try:
        address = Path(os.path.relpath(path, Path.cwd())).as_posix()
    except ValueError:  # on another drive of Windows
        return text
    at = f"#line={line - 1}" if line else ""  # JupyterLab counts from zero
    return f'<a href="{address}{at}">{text}</a>'
