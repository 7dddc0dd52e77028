"""How long a notebook takes to read, which it has to state.

Time = prose words / (100 per minute) + 5 s per line of code + 2.5 s per line of text output, about
what two readers of the core notebooks estimated.

- Prose is Markdown, headings, tables and formulas too, without `<details>` blocks (hints and
  answers), lines that only contain links and bold labels (navigation, questions for deeper
  notebooks), addresses and pictures. A word contains a letter or a digit.
- Code is every line that is not blank in code cells and in code fences of Markdown.
- Output is every line of text that is not blank: streams, errors, the plain form of rich output
  other than that of a figure, `<figure: ...>`.

Exercises, from a heading that begins with "Exercise" to the next heading, are not counted: they
state their own minutes. Our prediction in the output of `predict` is not counted either, because it
is folded like a hint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from helpers.base.paths import NOTEBOOKS

WORDS_A_MINUTE = 100
SECONDS_OF_CODE, SECONDS_OF_OUTPUT = 5, 2.5  # a line

DETAILS = re.compile(r"<details\b.*?</details>", re.DOTALL | re.IGNORECASE)
NOT_READ = re.compile(r"<!--.*?-->|!\[[^\]]*\]\([^)]*\)|</?[a-zA-Z][^>\n]*>", re.DOTALL)
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
NAVIGATION = re.compile(r"^(?=.*\]\()(\*\*[^*]+\*\*|\[[^\]]*\]\([^)]*\)|[^\w\n])*$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
WORD = re.compile(r"[^\s|]*\w[^\s|]*")
SECTION = re.compile(r"^(?=## )", re.MULTILINE)
FOLDED = re.compile(r"^Our prediction, with its calculation\b.*", re.DOTALL | re.MULTILINE)
FIGURE = re.compile(r"<figure: .*>|<Figure size .*>", re.IGNORECASE)

MOST_MINUTES = 25  # of a notebook
STATED = re.compile(r"\*\*Time\*\*:? *(\d+) minutes")


class Reading(NamedTuple):
    """The content of a notebook: words of prose, lines of code and of output."""

    words: int = 0
    code: int = 0
    output: int = 0

    @property
    def minutes(self) -> float:
        seconds = self.code * SECONDS_OF_CODE + self.output * SECONDS_OF_OUTPUT
        return self.words / WORDS_A_MINUTE + seconds / 60

    @property
    def to_state(self) -> int:
        """The minutes to print in the notebook, rounded up to a multiple of five."""
        return 5 * math.ceil(self.minutes / 5)

    def fits(self, stated: int | None) -> bool:
        """Whether a notebook may state so many minutes: `to_state`, or if it is close, 5 more."""
        return stated == self.to_state or (stated or 0) - 7.5 < self.minutes <= (stated or 0) - 5


def reading(notebook) -> Reading:
    """The content of an executed notebook, as read by nbformat."""
    words = code = output = 0
    exercise = False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for section in SECTION.split(cell.source):
                if section.startswith("## "):
                    exercise = section.startswith("## Exercise")
                if not exercise:
                    words += words_of(section)
                    code += sum(map(filled, FENCE.findall(section)))
        elif cell.cell_type == "code" and not exercise:
            code += filled(cell.source)
            output += sum(filled(FOLDED.sub("", text)) for text in plain_texts(cell.outputs))
    return Reading(words, code, output)


def words_of(text: str) -> int:
    """The words of Markdown, without its code fences."""
    text = NAVIGATION.sub("", FENCE.sub("", NOT_READ.sub(" ", DETAILS.sub("", text))))
    return len(WORD.findall(LINK.sub(r"\1", text)))


def plain_texts(outputs) -> Iterator[str]:
    """The text of each output without pictures."""
    for output in outputs:
        if output.output_type == "stream":
            yield output.text
        elif output.output_type == "error":
            yield "\n".join(output.traceback)
        else:
            yield FIGURE.sub("", output.data.get("text/plain", ""))


def filled(text: str) -> int:
    """The number of lines that are not blank."""
    return sum(bool(line.strip()) for line in text.splitlines())


def name_of(path: Path) -> str:
    """A notebook's name in the series: 03_shared, deeper/03_banks."""
    return path.relative_to(NOTEBOOKS).with_suffix("").as_posix()


def stated(notebook) -> int | None:
    """The minutes stated in a notebook's first cell (`**Time**: 15 minutes`); None if there are
    none."""
    match = STATED.search(notebook.cells[0].source)
    return int(match[1]) if match else None
