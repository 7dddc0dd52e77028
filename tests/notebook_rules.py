"""The rules of notebooks, as functions from a notebook to what breaks them, in words.

`of_every_notebook` is about what is committed, `of_core` and `of_deeper` about what is read;
CONTRIBUTING.md says how to write one. tests/test_notebooks.py applies them, and
tests/test_notebook_rules.py plants a breach of each.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from helpers.reading import (
    DETAILS,
    FENCE,
    FORMULA,
    LINK,
    limit,
    plain_texts,
    reading,
    stated,
    words_of,
)
from helpers.rich import FIGURE

TAGS = {"gpu", "raises-exception", "nbval-skip", "nbval-ignore-output"}
# A measured figure typed in prose: 4283 GB/s, 0.88 of a copy, 12 us, 3 x faster than a copy.
MEASURED = re.compile(
    r"\d[\d.,]*\s*(GB/s|TB/s|us\b|µs|ms\b|ns\b|(x|times) (faster|slower)|of a copy|% of a copy)"
)
OLDER = "a record is older than its kernel"
COUNTER = re.compile(r"[a-z0-9]+__\w+(\{\w*\}\w*)?\.(sum|avg|ratio)\b")  # Nsight Compute's names
MACHINE_PATH = re.compile(r"/(home|root|tmp|work|Users)/|[A-Z]:\\\\")
IMAGE = re.compile(r"!\[([^\]]*)\]\(|<img\b([^>]*)>")

# Markdown reads nothing in HTML, which goes on from such a tag to the next blank line.
RAW_HTML = re.compile(r"^ *</?(?:details|summary|div|p|table)\b(?:.+\n?)*", re.MULTILINE)
MARKDOWN = re.compile(r"`|\*\w[^*\n]*\*|\]\(")

MOST_IMPORTS = 9  # names from helpers
MOST_LINES = 12  # of a code cell, without blank ones and imports
MOST_FORMATS = 3  # f-strings with a format specification, in a notebook
CODE_COLUMNS = 88
COLUMNS = 80
MOST_BYTES = 1_000_000
ANSWERS = 3  # of "Check yourself"
CHECKS = {"check_kernel", "check_softmax"}
CHECK_YOURSELF, WASTED, ANSWER = "Check yourself", "What is still wasted", "The answer"
LANDMARKS = ["predict", "show.kernel", "check", "draw.step", "grade", CHECK_YOURSELF, WASTED]
WANTED = {"timings": "is timed", "draw.step": "is plotted", "grade": "is graded"}


@dataclass
class Page:
    """A notebook and its place in the series; names are those of files without .ipynb."""

    notebook: object
    name: str  # "03_shared", "deeper/03_banks"
    previous: str | None = None
    next: str | None = None
    exceptions: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def code(self) -> list:
        return [cell for cell in self.notebook.cells if cell.cell_type == "code"]

    @property
    def prose(self) -> list[str]:
        return [cell.source for cell in self.notebook.cells if cell.cell_type == "markdown"]

    def calls(self) -> Iterator[tuple[int, str, ast.Call]]:
        """(place of the cell, name of what is called, the call) of every call, in order."""
        for at, cell in enumerate(self.notebook.cells):
            if cell.cell_type == "code":
                for node in ast.walk(parsed(cell.source)):
                    if isinstance(node, ast.Call):
                        yield at, ast.unparse(node.func), node


def parsed(source: str) -> ast.Module:
    """The tree of a cell; its magics are comments."""
    lines = [f"# {x}" if x.startswith(("%", "!")) else x for x in source.splitlines()]
    return ast.parse("\n".join(lines))


# ---- every notebook ---------------------------------------------------------------------------


def of_every_notebook(page: Page) -> Iterator[str]:
    """What must hold of a committed notebook, whatever it says."""
    if [cell.execution_count for cell in page.code] != list(range(1, len(page.code) + 1)):
        yield "cells were not executed once, in order"
    for cell in page.code:
        outputs = json.dumps(cell.outputs)
        tags = set(cell.metadata.get("tags", []))
        if any(output.get("name") == "stderr" for output in cell.outputs):
            yield "a cell wrote to stderr"
        failed = any(output.output_type == "error" for output in cell.outputs)
        if failed and "raises-exception" not in tags:
            yield "a cell failed"
        if cell.source.rstrip().endswith(";"):
            yield "a trailing semicolon does not hide output under nbval"
        if COUNTER.search(cell.source):
            yield "a counter is spelled out; profile has named quantities"
        if not tags <= TAGS:
            yield "unknown tag"
        if MACHINE_PATH.search(outputs):
            yield "an output names a path of one machine"
        if "earlier version" in outputs:
            yield OLDER
        for line in cell.source.splitlines():
            if len(line) > CODE_COLUMNS:
                yield f"code line too long: {line}"
    if sum(text.count("\n# ") + text.startswith("# ") for text in page.prose) != 1:
        yield "a notebook has one top heading"
    for match in filter(None, map(MEASURED.search, page.prose)):
        yield f"measured figure in prose: {match[0]}"
    raw = (html for text in page.prose for html in RAW_HTML.findall(FENCE.sub("", text)))
    for line in filter(MARKDOWN.search, "\n".join(raw).split("\n")):
        yield f"Markdown within HTML: {line}"
    if page.notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "kernelspec is not python3"
    if "widgets" in page.notebook.metadata:
        yield "widgets do not render on code hosts"


# ---- core and deeper --------------------------------------------------------------------------


def of_core(page: Page) -> Iterator[str]:
    """What a core notebook keeps."""
    yield from of_time(page)
    yield from of_code(page)
    yield from of_outputs(page)
    yield from of_figures(page)
    yield from of_what_is_visible(page)
    yield from of_order(page)
    yield from of_check_yourself(page)
    yield from of_links(page)


def of_deeper(page: Page) -> Iterator[str]:
    """What a deeper notebook keeps: its cells may be as long as the evidence takes."""
    yield from of_time(page)
    yield from of_outputs(page)
    yield from of_figures(page)
    yield from of_question_and_answer(page)


def of_time(page: Page) -> Iterator[str]:
    """Not too long, and it says so."""
    found, says, most = reading(page.notebook), stated(page.notebook), limit(page.name)
    if found.minutes > most:
        yield f"takes {found.minutes:.1f} minutes of at most {most}: {found}"
    if says != found.to_state:
        yield f"**Time** says {says} minutes where {found.to_state} are right"


def of_code(page: Page) -> Iterator[str]:
    """Short cells, few names, little formatting."""
    trees = [parsed(cell.source) for cell in page.code]
    names = [name for tree in trees for name in imported_from_helpers(tree)]
    if len(names) > MOST_IMPORTS:
        yield f"imports {len(names)} names from helpers, at most {MOST_IMPORTS}"
    longer = set()
    for cell, tree in zip(page.code, trees, strict=True):
        lines, first = written_lines(cell.source, tree), cell.source.strip().split("\n")[0]
        if lines > MOST_LINES:
            longer.add((page.name, first))
            if (page.name, first) not in page.exceptions:
                yield f"a cell of {lines} lines, at most {MOST_LINES}: {first}"
    for key in page.exceptions:
        if key[0] == page.name and key not in longer:
            yield f"the exception for the cell {key[1]!r} is needed no more"
    formats = sum(has_format(node) for tree in trees for node in ast.walk(tree))
    if formats > MOST_FORMATS:
        yield f"{formats} strings with format specifications, at most {MOST_FORMATS}"


def imported_from_helpers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "helpers":
            yield from (alias.name for alias in node.names)


def written_lines(source: str, tree: ast.Module) -> int:
    """Lines of a cell that are not blank and not of an import."""
    imports = {
        line
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    lines = enumerate(source.splitlines(), start=1)
    return sum(bool(line.strip()) for number, line in lines if number not in imports)


def has_format(node: ast.AST) -> bool:
    """An f-string with a format specification, or another call that formats."""
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(x, ast.FormattedValue) and x.format_spec for x in node.values)
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).split(".")[-1] in ("format", "ljust", "rjust", "center")
    return False


def of_outputs(page: Page) -> Iterator[str]:
    """Everything rich has a plain form, and what is plain fits a page of text."""
    for cell in page.code:
        for output in cell.outputs:
            if output.output_type in ("display_data", "execute_result"):
                plain = output.data.get("text/plain", "")
                if not plain.strip() or re.match(r"<(IPython|Figure|[\w.]+ object)\b", plain):
                    yield f"a rich output without a plain form: {plain!r}"
        for text in plain_texts(cell.outputs):
            for line in text.splitlines():
                if len(line) > COLUMNS:
                    yield f"output wider than {COLUMNS} columns: {line}"
    for text in page.prose:
        for line in FENCE.sub("", text).splitlines():
            shown = " ".join(re.sub(r"[`|]", " ", LINK.sub(r"\1", line)).split())
            if line.startswith("|") and len(shown) > COLUMNS:
                yield f"table wider than {COLUMNS} columns: {line}"


def of_figures(page: Page) -> Iterator[str]:
    """A figure says what it shows, to those too who do not see it, and to `make test`."""
    for cell in page.code:
        for output, after in zip(cell.outputs, [*cell.outputs[1:], {}], strict=False):
            if "image/png" in output.get("data", {}):
                if not output.data.get(FIGURE):
                    yield "a figure without a digest: run make notebooks"
                if not after.get("text", "").strip():
                    yield "a figure without its sentence under it"
                if not output.metadata.get("image/png", {}).get("alt", "").strip():
                    yield "a figure without alt text"
    for text in page.prose:
        for alt, attributes in IMAGE.findall(text):
            if not alt.strip() and not re.search(r"""\balt=["'][^"']""", attributes):
                yield "an image without alt text"


def of_what_is_visible(page: Page) -> Iterator[str]:
    """What teaches stands in the notebook's own cells."""
    source = "\n".join(cell.source for cell in page.code)
    calls = [(name, call) for _, name, call in page.calls()]
    names = {name for name, _ in calls}
    if "cupy.RawKernel(source(" not in source:
        yield "nowhere cupy.RawKernel(source(...), name)"
    if not any(name in ("launch", "simulate") and len(call.args) >= 4 for name, call in calls):
        yield "nowhere launch or simulate(kernel, grid, block, arguments)"
    if not names & CHECKS:
        yield "nothing is checked"
    if not any(changes_a_line(page, name, call) for name, call in calls):
        yield "nothing is broken: no .replace(old, new) of a line, both visible"
    if not any("my_prediction = None" in x.source and "predict(" in x.source for x in page.code):
        yield "the reader does not predict: my_prediction = None and predict( in one cell"
    for name, what in WANTED.items():
        if name not in names:
            yield f"nothing {what}: {name}("
    for at, name, _ in page.calls():
        if name == "grade" and "minutes" not in page.notebook.cells[at - 1].source:
            yield "grade without the exercise's text and minutes above it"


def changes_a_line(page: Page, name: str, call: ast.Call) -> bool:
    """`text.replace(old, new)` where both are literals, or names of literals in the notebook."""
    if not name.endswith(".replace") or len(call.args) != 2:
        return False
    literals = {
        target.id
        for cell in page.code
        for node in ast.walk(parsed(cell.source))
        if isinstance(node, ast.Assign) and is_text(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return all(is_text(x) or isinstance(x, ast.Name) and x.id in literals for x in call.args)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def of_order(page: Page) -> Iterator[str]:
    """Prediction, kernel, check, plot, exercise, questions, what is wasted: in this order."""
    places: dict[str, list[int]] = {}
    for at, name, call in page.calls():
        if name != "show.kernel" or not call.args or of_this_step(page, call.args[0]):
            places.setdefault("check" if name in CHECKS else name, []).append(at)
    for at, cell in enumerate(page.notebook.cells):
        if cell.cell_type == "markdown":
            for title in re.findall(r"^##+ (.*)", cell.source, re.MULTILINE):
                places.setdefault(title.strip(), []).append(at)
    at, before = 0, "the first cell"
    for name in LANDMARKS:
        if name == WASTED and page.next is None:
            continue  # nothing follows that would save it
        later = [place for place in places.get(name, []) if place >= at]
        if not later:
            yield f"{name!r} is missing after {before}"
            continue
        at, before = min(later), repr(name)


def of_this_step(page: Page, node: ast.AST) -> bool:
    """What is shown is no other step's kernel by its name."""
    return not is_text(node) or node.value.startswith(page.name[:2])


def of_check_yourself(page: Page) -> Iterator[str]:
    """Three questions with folded answers."""
    text = section(page, CHECK_YOURSELF)
    answers = DETAILS.findall(text)
    if len(answers) != ANSWERS:
        yield f"{CHECK_YOURSELF!r} has {len(answers)} folded answers, not {ANSWERS}"
    if not re.search(r"(^|>|\*|\d\.) *What would happen if", text, re.MULTILINE):
        yield f"no question of {CHECK_YOURSELF!r} begins with 'What would happen if'"


def section(page: Page, title: str) -> str:
    """The Markdown under a heading of the second level, up to the next one."""
    parts = re.split(r"^## +(.*)\n", "\n".join(page.prose) + "\n", flags=re.MULTILINE)
    return dict(zip([x.strip() for x in parts[1::2]], parts[2::2], strict=True)).get(title, "")


def of_links(page: Page) -> Iterator[str]:
    """To the neighbours from the first cell, to the glossary and to what is deeper."""
    first, everything = page.prose[0], "\n".join(page.prose)
    if "**You need**" not in first:
        yield "the first cell does not say what you need"
    for word, name in {"Previous": page.previous, "Next": page.next}.items():
        line = re.search(rf"\*\*{word}\*\*:?([^\n]*)", first)
        if not line or (name and f"({name}.ipynb)" not in line[1]):
            yield f"the first cell lacks **{word}**: {name or 'none'}"
    if "](GLOSSARY.md" not in everything:
        yield "no link to the glossary"
    if "](deeper/" not in everything:
        yield "no link to a deeper question"


def of_question_and_answer(page: Page) -> Iterator[str]:
    """A deeper notebook: its question, the way back, the answer."""
    first, number = page.prose[0], page.name.removeprefix("deeper/")[:2]
    title = re.search(r"^# (.*)", first, re.MULTILINE)
    if not title or not title[1].strip().endswith("?"):
        yield "the title is no question"
    back = f"](../{number}_"
    if back not in first:
        yield "the first cell does not link back to its core notebook"
    titles = re.findall(r"^## +(.*)", "\n".join(page.prose), re.MULTILINE)
    if not titles or titles[-1].strip() != ANSWER:
        yield f"it does not end with '## {ANSWER}'"
        return
    text = section(page, ANSWER)
    if back not in text:
        yield "the answer does not link back"
    words = [x for x in text.splitlines() if back not in x]
    sentences = len(re.findall(r"[.!?](?=\s|$)", "\n".join(words).strip()))
    if not 1 <= sentences <= 2:
        yield f"the answer has {sentences} sentences, not one or two"


def of_way_in(page: Page, core: list[Page]) -> Iterator[str]:
    """A deeper notebook is linked from the core notebook of its number."""
    if not any(f"({page.name}.ipynb)" in text for one in core for text in one.prose):
        yield "its core notebook does not link to it"


def of_table(page: Page, readme: str) -> Iterator[str]:
    """A core notebook has a row in the README's table: its title, its idea, what one learns."""
    title = re.search(r"^# (.*)", page.prose[0], re.MULTILINE)[1].strip()
    link = re.escape(f"(notebooks/{page.name}.ipynb)")
    rows = re.findall(rf"^\| \[(\d\d [^]]+)\]{link} \|.+\|.+\|$", readme, re.MULTILINE)
    if len(rows) != 1 or not title.startswith(rows[0]):
        yield f"the README's table of notebooks has {rows or 'no row'} for {title}"


def of_readme(page: Page, readme: str) -> Iterator[str]:
    """The README lists a deeper notebook by its question."""
    question = re.search(r"^# (.*)", page.prose[0], re.MULTILINE)
    if f"[{question[1].strip()}](notebooks/{page.name}.ipynb)" not in readme:
        yield "the README does not list its question"


# ---- files ------------------------------------------------------------------------------------


def of_size(path: Path) -> Iterator[str]:
    """Code hosts show no large notebooks."""
    if (size := path.stat().st_size) >= MOST_BYTES:
        yield f"{size} bytes, not below {MOST_BYTES}"


def of_links_between(path: Path, glossary: Path) -> Iterator[str]:
    """Links of a file to other files, and to entries of the glossary, lead somewhere."""
    entries = anchors(glossary.read_text(encoding="utf-8"))
    text = path.read_text(encoding="utf-8")
    for link, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", text):
        target = path.parent / link if link else path
        if link.startswith("http"):
            continue
        if not target.exists():
            yield f"links to {link}, which is not there"
        elif anchor and target.resolve() == glossary.resolve() and anchor not in entries:
            yield f"links to {anchor}, which is not in the glossary"


# ---- words ------------------------------------------------------------------------------------

# What stands in the glossary and is nobody's everyday word: explained or linked where it first
# stands in the series.
TERMS = [
    "alignment",
    "asynchronous copy",
    "bank",
    "barrier",
    "bfloat16",
    "block",
    "butterfly",
    "coalesced",
    "cooperative launch",
    "distributed shared memory",
    "divergence",
    "DRAM",
    "fence",
    "grid",
    "L1",
    "L2",
    "lane",
    "latency",
    "local memory",
    "mailbox",
    "mbarrier",
    "occupancy",
    "online softmax",
    "persistent",
    "pointer",
    "PTX",
    "register",
    "request",
    "SASS",
    "sector",
    "shared memory",
    "shuffle",
    "SIMT machine",
    "SM",
    "spill",
    "stall",
    "cluster",
    "tree reduction",
    "ulp",
    "warp",
    "wavefront",
]
MARK = re.compile(r"\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\]]*)\]\([^)]*GLOSSARY\.md#[^)]*\)")
WHOLE_GLOSSARY = re.compile(r"\]\([^)#]*GLOSSARY\.md\)")
FIRST_IN = re.compile(r'<a id="([^"]+)">.*?\*First in \[\d\d\]\((\w+)\.ipynb\)', re.DOTALL)
ENTRY = re.compile(r'<a id="([^"]+)"></a>\n\*\*([^*]+)\*\*')


def of_first_words(pages: list[Page]) -> Iterator[str]:
    """The sentence in which a term first stands in the series sets it in italics or bold, as one
    does that explains it, or links it to the glossary."""
    for term in TERMS:
        pattern = spelled(term)
        first = ((page.name, text) for page in pages for text in sentences(page))
        name, text = next((one for one in first if pattern.search(one[1])), ("", ""))
        marked = ["".join(words) for words in MARK.findall(text)]
        if text and not any(map(pattern.search, marked)):
            yield f"{name}: *{term}* is neither explained nor linked where it first stands: {text}"


def spelled(term: str) -> re.Pattern:
    """A term as a whole word, in plural too; in any case if it is written in small letters."""
    flags = re.IGNORECASE if term.islower() else 0
    return re.compile(rf"\b{re.escape(term)}(s|es)?\b", flags)


def sentences(page: Page) -> Iterator[str]:
    """The sentences of a notebook's prose: no headings, answers, code, formulas, navigation, and
    none that names words only to say that the glossary has them."""
    for text in page.prose:
        text = re.sub(r"`[^`]*`", "", FORMULA.sub("", FENCE.sub("", DETAILS.sub("", text))))
        text = re.sub(r"^#.*$", "\n", text, flags=re.MULTILINE)
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-|>\d])", text):
            lines = [line for line in paragraph.splitlines() if words_of(line)]
            for sentence in re.split(r"(?<=[.!?:])\s+", " ".join(lines)):
                if sentence and not WHOLE_GLOSSARY.search(sentence):
                    yield sentence


def anchors(glossary: str) -> list[str]:
    return [anchor for anchor, _ in ENTRY.findall(glossary)]


def of_glossary(glossary: str) -> Iterator[str]:
    """Entries in alphabetical order, each with its anchor, half a sentence, and where it is first
    used; none of the terms is missing."""
    found = ENTRY.findall(glossary)
    order = [sorted_by(word) for _, word in found]
    for before, after in zip(order, order[1:], strict=False):
        if before >= after:
            yield f"{after!r} stands after {before!r}"
    for anchor, word in found:
        if anchor != slug(word):
            yield f"the anchor of {word!r} is {anchor!r}, not {slug(word)!r}"
    for paragraph in re.split(r"\n\s*\n", glossary.strip()):
        if re.match(r"\*\*|<a ", paragraph) and not re.fullmatch(
            r"<a id=.*\*\*: .+\.\n\*First in \[\d\d\]\(\d\d_\w+\.ipynb\)\.\*", paragraph, re.DOTALL
        ):
            yield f"not '**word**: half a sentence. *First in [NN](...).*': {paragraph[:60]}"
    for term in TERMS:
        if slug(term) not in anchors(glossary):
            yield f"{term!r} is not in the glossary"


def sorted_by(word: str) -> str:
    """What the alphabet sees of an entry's word."""
    return re.sub(r"[^a-z0-9 ]", "", word.lower()).strip()


def of_first_places(pages: list[Page], glossary: str) -> Iterator[str]:
    """The glossary names the notebook in which a term first stands."""
    texts = {page.name: " ".join(sentences(page)) for page in pages}
    said = dict(FIRST_IN.findall(glossary))
    for term in TERMS:
        first = next((name for name, text in texts.items() if spelled(term).search(text)), None)
        if first and said.get(slug(term)) != first:
            yield f"{term!r} is first used in {first}"


def slug(word: str) -> str:
    """The anchor of a word, as code hosts make it of a heading."""
    return re.sub(r"[^\w -]", "", word.lower()).strip().replace(" ", "-")
