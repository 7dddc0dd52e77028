"""Rich output with a plain form: HTML or Markdown on a page, text within 80 columns elsewhere.

Colours are inline styles on their own light background: JupyterLab keeps those of an untrusted
notebook, and they are legible in a dark theme too. A mark is also a character, which remains if a
page removes styles.
"""

from __future__ import annotations

import functools
import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

COLUMNS = 80  # width of the plain form
FIGURE = "application/vnd.softmax-worklog.figure"  # of the digests of helpers.page.draw.digest
GROUND = "#fafafa"
INK = "#1f2328"
MUTED = "#656d76"
COLOURS = {  # kind of token -> colour; other tokens use the ink colour
    "comment": "#57606a",
    "keyword": "#8b1a86",
    "cuda": "#0550ae",
    "number": "#953800",
    "string": "#0a5536",
    "preprocessor": "#6639ba",
}
MARKS = {  # character -> (colour of the bar at the left, background of the line)
    "+": ("#1a7f37", "#e3f5e6"),
    "-": ("#b35900", "#fdf0e1"),
    ">": ("#cf222e", "#ffebe9"),
}
FONT = "font-family:monospace;font-size:12px;line-height:1.45"
BLOCK = f"margin:0;padding:6px 0;background-color:{GROUND};color:{INK};{FONT};white-space:pre-wrap"
CHARACTER = 0.602  # width of one in em
CAPTION = f"padding:4px 8px;background-color:{GROUND};color:{INK};font-size:13px"


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


def marked(mark: str) -> str:
    """A mark as it appears beside lines, for a caption."""
    bar, ground = MARKS[mark]
    style = f"padding:0 5px;border-left:3px solid {bar};background-color:{ground};color:{INK}"
    return f'<span style="{style}">{escape(mark)}</span>'


def details(summary: str, content: str) -> str:
    """Folded HTML; `summary` is text."""
    return f'<details style="margin:2px 0"><summary>{escape(summary)}</summary>{content}</details>'


def wrapped(text: str, indent: int = 0) -> list[str]:
    """Lines of at most 80 columns; all but the first are indented."""
    return textwrap.wrap(text, COLUMNS, subsequent_indent=" " * indent)


class Page:
    """An output that is built piece by piece in both forms."""

    def __init__(self) -> None:
        self.plain: list[str] = []
        self.html: list[str] = []

    def say(self, text: str, in_html: str = "", indent: int = 4) -> None:
        self.plain += wrapped(text, indent)
        self.html.append(caption(in_html or escape(text)))

    def code(self, lines: Sequence[Line]) -> None:
        self.plain += code_plain(lines)
        self.html.append(code_html(lines))

    def fold(self, summary: str, lines: Sequence[Line], plain: Sequence[str] = ()) -> None:
        """Folded code; `plain` takes its place in the plain form."""
        self.plain += plain or code_plain(lines)
        self.html.append(details(summary, code_html(lines)))

    def display(self) -> None:
        Rich("\n".join(self.plain), "".join(self.html)).display()


# ---- code -------------------------------------------------------------------------------------


def code_html(lines: Sequence[Line]) -> str:
    """Coloured lines of CUDA C++ with numbers and marks."""
    numbers = _numbers(lines)
    texts = [_text(line, COLUMNS) for line in lines]
    rows = []
    for line, number, tokens in zip(lines, numbers, tokens_of("\n".join(texts)), strict=True):
        code = "".join(_coloured(COLOURS.get(kind), text) for kind, text in tokens)
        bar, ground = MARKS.get(line.mark, (GROUND, GROUND))
        # What does not fit goes on below, further to the right than the line begins; not much
        # further, so that a narrow page has room for it.
        hanging = CHARACTER * (len(number) + min(_indent(line) + 4, 16))
        style = (
            f"padding-left:{hanging + 0.5:.1f}em;text-indent:-{hanging:.1f}em;"
            f"border-left:3px solid {bar};background-color:{ground}"
        )
        rows.append(f'<div style="{style}">{_coloured(MUTED, number)}{code}</div>')
    return f'<pre style="{BLOCK}">{"".join(rows)}</pre>'


def code_plain(lines: Sequence[Line]) -> list[str]:
    """The same as lines of text within 80 columns."""
    found = []
    for line, number in zip(lines, _numbers(lines), strict=True):
        number = f"  {number}"
        found += textwrap.wrap(
            number + _text(line, COLUMNS - len(number)),
            COLUMNS,
            subsequent_indent=" " * min(len(number) + _indent(line) + 4, COLUMNS // 2),
            break_on_hyphens=False,
            replace_whitespace=False,
        ) or [number.rstrip()]
    return found


def _numbers(lines: Sequence[Line]) -> list[str]:
    """The prefix of each line: its number, padded to the widest, and its mark."""
    numbers = ["" if line.number is None else str(line.number) for line in lines]
    wide = max(map(len, numbers), default=0)
    return [f"{number:>{wide}} {line.mark} " for number, line in zip(numbers, lines, strict=True)]


def _text(line: Line, columns: int) -> str:
    """The text of a line; a rule is at most as long as the page is wide."""
    return line.text[:columns] if line.text.endswith("---") else line.text.rstrip()


def _indent(line: Line) -> int:
    return len(line.text) - len(line.text.lstrip())


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

    if token in Comment:
        directive = token in Comment.Preproc or token in Comment.PreprocFile
        return "preprocessor" if directive else "comment"
    if token in Number:
        return "number"
    if token in String:
        return "string"
    if token in Name:
        return "cuda" if text in CudaLexer.variables or text.startswith("__") else ""
    return "keyword" if token in Keyword or token in Operator.Word else ""
