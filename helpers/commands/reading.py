"""How long the notebooks take to read: `python -m helpers.commands.reading [NAME ...]`.

One line a notebook, core and deeper: the estimated minutes, what the notebook states, and what is
read in it. The exit status is 1 if one takes over 20 minutes or states other minutes.

Time = prose words / (130 per minute) + 4 s per line of code + 3 s per line of text output; the
lines of a kernel in an output count 4 s if they are new and 1 s otherwise, unless folded.

- Prose is Markdown, headings and tables too, without `<details>` blocks (hints and answers),
  without lines that only contain links and bold labels (navigation, questions for deeper
  notebooks), addresses and pictures. A formula counts one word per token: numbers, names, relations
  and operators, but not braces, index signs and layout commands.
- Code is every line that is not blank in code cells and in code fences of Markdown; a CUDA fence is
  a kernel whose lines are all new.
- Output is every line of text that is not blank: streams, errors, the plain form of rich output. A
  line beyond 80 columns counts as the lines that it fills. The plain form of a figure,
  `<figure: ...>`, does not count.
- A kernel in an output is a listing of `show.kernel` (a heading, then numbered lines; where it says
  since which step, `+` marks the new ones), a unified diff (`+` again), or any text from a line
  with `#line` or `__global__` on, all new.

Exercises, from a heading that begins with "Exercise" to the next heading, are not counted: they
state their own minutes. Our prediction in the output of `predict` is not counted either, because it
is folded like a hint.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from ..base.paths import NOTEBOOKS, core_notebooks, deeper_notebooks
from ..page.rich import lines_of

WORDS_A_MINUTE = 130
SECONDS = {"code": 4, "output": 3, "kernel_new": 4, "kernel_known": 1}  # a line
COLUMNS = 80  # width of a text page

DETAILS = re.compile(r"<details\b.*?</details>", re.DOTALL | re.IGNORECASE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(\S|\S[^$\n]*?\S)\$(?!\d)", re.DOTALL)
TOKEN = re.compile(r"\\?[A-Za-z]+|\d+(?:\.\d+)?|[=<>+/*-]")
LAYOUT = re.compile(
    r"\\(begin|end)\s*\{\w+\*?\}"
    r"|\\(frac|dfrac|tfrac|left|right|big|Big|text|mathrm|mathbf|operatorname|quad|qquad)\b"
    r"|\\[,;:!\\ ]"
)
PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
LABEL = re.compile(r"\*\*[^*]+\*\*:?|__[^_]+__:?")
TAG = re.compile(r"</?[a-zA-Z][^>\n]*>")
ANSI = re.compile(r"\x1b\[[0-9;]*m")

SECTION = re.compile(r"^(?=## )", re.MULTILINE)
EXERCISE = re.compile(r"## Exercise")
FOLDED = re.compile(r"^Our prediction, with its calculation\b.*", re.DOTALL | re.MULTILINE)
FIGURE = re.compile(r"<figure: .*>|<Figure size .*>", re.IGNORECASE)
HEADING = re.compile(r"kernel(s/|\.cu\b).*\blines?\b")  # first line of a listing
NUMBERED = re.compile(r" *\d+ ([+ ])(.*)")  # the other lines
BARE = re.compile(r"#line \d|.*\b__global__\b")  # a kernel printed without line numbers
KERNEL_FENCES = ("cuda", "cu", "cpp", "c++", "c")

MOST_MINUTES = 20  # of a notebook
STATED = re.compile(r"\*\*Time\*\*:? *(\d+) minutes")


@dataclass
class Reading:
    """The content of a notebook: words of prose, and lines of the other kinds."""

    words: int = 0
    code: int = 0
    output: int = 0
    kernel_new: int = 0  # kernel lines that are new to the reader
    kernel_known: int = 0

    @property
    def minutes(self) -> float:
        lines = sum(getattr(self, kind) * seconds for kind, seconds in SECONDS.items())
        return self.words / WORDS_A_MINUTE + lines / 60

    @property
    def to_state(self) -> int:
        """The minutes to print in the notebook, rounded up to a multiple of five."""
        return 5 * math.ceil(self.minutes / 5)

    def __add__(self, other: Reading) -> Reading:
        return Reading(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def reading(notebook) -> Reading:
    """The content of an executed notebook, as read by nbformat."""
    total, exercise = Reading(), False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for section in SECTION.split(cell.source):
                if section.startswith("## "):
                    exercise = bool(EXERCISE.match(section))
                total += Reading() if exercise else of_markdown(section)
        elif cell.cell_type == "code" and not exercise:
            total += Reading(code=len(filled(cell.source)))
            for text in plain_texts(cell.outputs):
                total += of_output(FOLDED.sub("", text))
    return total


def name_of(path: Path) -> str:
    """A notebook's name in the series: 03_shared, deeper/03_banks."""
    return path.relative_to(NOTEBOOKS).with_suffix("").as_posix()


def stated(notebook) -> int | None:
    """The minutes stated in a notebook's first cell (`**Time**: 15 minutes`); None if there are
    none."""
    match = STATED.search(notebook.cells[0].source)
    return int(match[1]) if match else None


# ---- Markdown ---------------------------------------------------------------------------------


def of_markdown(text: str) -> Reading:
    """Words of a Markdown cell, and the lines of its code fences."""
    text = COMMENT.sub("", DETAILS.sub("", text))
    total = Reading()
    for language, body in FENCE.findall(text):
        kind = "kernel_new" if language.lower() in KERNEL_FENCES else "code"
        total += Reading(**{kind: len(filled(body))})
    text = FENCE.sub("", text)
    tokens = sum(tokens_of(double or single) for double, single in FORMULA.findall(text))
    return total + Reading(words=tokens + words_of(FORMULA.sub(" ", text)))


def tokens_of(formula: str) -> int:
    """Numbers, names, relations and operators in a LaTeX formula."""
    return len(TOKEN.findall(LAYOUT.sub(" ", formula)))


def words_of(text: str) -> int:
    """Words of Markdown without formulas and fences; a word contains a letter or a digit."""
    total = 0
    for line in PICTURE.sub("", text).splitlines():
        if LINK.search(line) and not count(LABEL.sub("", LINK.sub("", line))):
            continue  # navigation
        total += count(TAG.sub(" ", LINK.sub(r"\1", line)))
    return total


def count(text: str) -> int:
    return sum(any(map(str.isalnum, word)) for word in text.replace("|", " ").split())


# ---- outputs ----------------------------------------------------------------------------------


def plain_texts(outputs) -> Iterator[str]:
    """The text of each output without colours and pictures."""
    for output in outputs:
        if output.output_type == "stream":
            yield output.text
        elif output.output_type == "error":
            yield ANSI.sub("", "\n".join(output.traceback))
        else:
            yield output.data.get("text/plain", "")


def of_output(text: str) -> Reading:
    """Lines of a text output, with kernel lines counted separately."""
    lines = [line for line in filled(text) if not FIGURE.fullmatch(line.strip())]
    if not lines:
        return Reading()
    if HEADING.match(lines[0]):
        return of_listing(lines)
    if lines[0].startswith("--- ") and lines[1:2] and lines[1].startswith("+++ "):
        new = sum(line.startswith("+") for line in lines[2:])
        return Reading(output=2, kernel_new=new, kernel_known=len(lines) - 2 - new)
    shown = next((at for at, line in enumerate(lines) if BARE.match(line)), len(lines))
    return Reading(output=sum(map(folds, lines[:shown])), kernel_new=len(lines) - shown)


def of_listing(lines: list[str]) -> Reading:
    """Lines of `show.kernel`. An indented line without a number continues the one above it; if the
    heading does not say since when lines are new, all are."""
    marks = [match[1] for match in map(NUMBERED.fullmatch, lines) if match and match[2].strip()]
    said = [line for line in lines if not line[0].isspace()]
    new = marks.count("+") if "+ marks lines that are" in " ".join(said) else len(marks)
    return Reading(output=len(said), kernel_new=new, kernel_known=len(marks) - new)


def filled(text: str) -> list[str]:
    """The lines of a text that are not blank."""
    return [line for line in text.splitlines() if line.strip()]


def folds(line: str) -> int:
    """The number of lines that a line fills on a text page."""
    return math.ceil(len(line) / COLUMNS)


TITLES = [("notebook", "<36"), ("minutes", ">8"), ("states", ">7")]
TITLES += [("words", ">6"), ("code", ">5"), ("output", ">7"), ("kernel: new", ">12")]
TITLES += [("known", ">6"), ("", "<10")]


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status: 0 if every notebook keeps its time and states it."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.commands.reading",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="only notebooks, deeper ones too, that start so")
    names = tuple(parser.parse_args(arguments).names)
    paths = [
        path
        for path in (*core_notebooks(), *deeper_notebooks())
        if not names or path.name.startswith(names)
    ]
    if not paths:
        print(f"no notebook starts with {' or '.join(names)}", file=sys.stderr)
        return 2
    rows = [row(path) for path in paths]
    print("\n".join(lines_of(TITLES, rows)))
    return 1 if any(one[-1] for one in rows) else 0


def row(path: Path) -> list[str]:
    """A notebook's line of the table; the last cell says what is wrong, or nothing."""
    import nbformat  # tests use this module also where there is no Jupyter

    notebook = nbformat.read(path, as_version=4)
    name = name_of(path)
    found, says = reading(notebook), stated(notebook)
    wrong = "too long" if found.minutes > MOST_MINUTES else ""
    if not wrong and says != found.to_state:
        wrong = f"is {found.to_state}"
    counts = [str(number) for number in astuple(found)]
    return [name, f"{found.minutes:.1f}", str(says or "-"), *counts, wrong]


if __name__ == "__main__":
    sys.exit(main())
