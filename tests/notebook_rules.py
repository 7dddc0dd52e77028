"""The rules of notebooks that matter to a reader, as functions from a notebook to what breaks them.

CONTRIBUTING.md says how to write a notebook. tests/test_notebooks.py applies the rules to every
notebook, and to an example in which a breach of each is planted.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from helpers.page.rich import FIGURE
from tests.reading import (
    DETAILS,
    FENCE,
    LINK,
    MOST_MINUTES,
    plain_texts,
    reading,
    stated,
    words_of,
)

FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(\S|\S[^$\n]*?\S)\$(?!\d)", re.DOTALL)
# A measured figure typed in prose: 4283 GB/s, 0.88 of a copy, 12 us, 3 x faster than a copy.
MEASURED = re.compile(
    r"\d[\d.,]*\s*(GB/s|TB/s|us\b|µs|ms\b|ns\b|(x|times) (faster|slower)|of a copy|% of a copy)"
)
OLDER = "a record is older than its kernel"
MACHINE_PATH = re.compile(r"/(home|root|tmp|work|Users)/|[A-Z]:\\\\")
IMAGE = re.compile(r"!\[([^\]]*)\]\(|<img\b([^>]*)>")
# Markdown reads nothing in HTML, which goes on from such a tag to the next blank line.
RAW_HTML = re.compile(r"^ *</?(?:details|summary|div|p|table)\b(?:.+\n?)*", re.MULTILINE)
MARKDOWN = re.compile(r"`|\*\w[^*\n]*\*|\]\(")
MOST_LINES, MOST_FORMATS = 12, 3  # of a code cell; f-strings with a format, in a notebook
MOST_IMPORTS = 9  # names from helpers
CODE_COLUMNS, COLUMNS = 88, 80
MOST_BYTES = 1_000_000  # code hosts show no large notebooks
CHECKS = {"check_kernel", "check_softmax"}
CHECK_YOURSELF, WASTED, ANSWER = "Check yourself", "What is still wasted", "The answer"
LANDMARKS = ["predict", "show.kernel", "check", "draw.step", "grade", CHECK_YOURSELF, WASTED]


@dataclass
class Page:
    """A notebook and its place in the series; names are those of files without .ipynb."""

    notebook: object
    name: str  # "03_shared", "deeper/03_banks"
    previous: str | None = None
    next: str | None = None
    long_cells: tuple[str, ...] = ()  # first lines of cells that may be longer

    @property
    def code(self) -> list:
        return [cell for cell in self.notebook.cells if cell.cell_type == "code"]

    @property
    def prose(self) -> list[str]:
        return [cell.source for cell in self.notebook.cells if cell.cell_type == "markdown"]


def parsed(source: str) -> ast.Module:
    """The tree of a cell; its magics are comments."""
    lines = [f"# {x}" if x.startswith(("%", "!")) else x for x in source.splitlines()]
    return ast.parse("\n".join(lines))


def of_every_notebook(page: Page) -> Iterator[str]:
    """What must hold of a committed notebook, core or deeper."""
    if [cell.execution_count for cell in page.code] != list(range(1, len(page.code) + 1)):
        yield "cells were not executed once, in order"
    for cell in page.code:
        outputs = json.dumps(cell.outputs)
        if any(output.get("name") == "stderr" for output in cell.outputs):
            yield "a cell wrote to stderr"
        failed = any(output.output_type == "error" for output in cell.outputs)
        if failed and "raises-exception" not in cell.metadata.get("tags", []):
            yield "a cell failed"
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
    found, says = reading(page.notebook), stated(page.notebook)
    if found.minutes > MOST_MINUTES:
        yield f"takes {found.minutes:.1f} minutes of at most {MOST_MINUTES}: {found}"
    if not found.fits(says):
        yield f"**Time** says {says} minutes where {found.to_state} are right"
    yield from of_outputs(page)


def of_outputs(page: Page) -> Iterator[str]:
    """Rich outputs have a plain form, figures a digest, a sentence and alt text; lines fit."""
    for cell in page.code:
        for output, after in zip(cell.outputs, [*cell.outputs[1:], {}], strict=False):
            data = output.get("data", {})
            plain = data.get("text/plain", "")
            if data and (
                not plain.strip() or re.match(r"<(IPython|Figure|[\w.]+ object)\b", plain)
            ):
                yield f"a rich output without a plain form: {plain!r}"
            if "image/png" in data:
                if not data.get(FIGURE):
                    yield "a figure without a digest: run make notebooks"
                said = after.get("text") or after.get("data", {}).get("text/plain", "")
                if not said.strip() or said.startswith("<figure"):
                    yield "a figure without its sentence under it"
                if not output.metadata.get("image/png", {}).get("alt", "").strip():
                    yield "a figure without alt text"
        for line in (line for text in plain_texts(cell.outputs) for line in text.splitlines()):
            if len(line) > COLUMNS:
                yield f"output wider than {COLUMNS} columns: {line}"
    for text in page.prose:
        for alt, attributes in IMAGE.findall(text):
            if not alt.strip() and not re.search(r"""\balt=["'][^"']""", attributes):
                yield "an image without alt text"
        for line in FENCE.sub("", text).splitlines():
            shown = " ".join(re.sub(r"[`|]", " ", LINK.sub(r"\1", line)).split())
            if line.startswith("|") and len(shown) > COLUMNS:
                yield f"table wider than {COLUMNS} columns: {line}"


def of_core(page: Page) -> Iterator[str]:
    """What a core notebook has besides: short cells, the parts of a step in order, links."""
    calls: list[tuple[int, str, ast.Call]] = []
    formats, imports = 0, 0
    for at, cell in enumerate(page.notebook.cells):
        if cell.cell_type == "code":
            tree, first = parsed(cell.source), cell.source.strip().split("\n")[0]
            lines = written_lines(cell.source, tree)
            if (lines > MOST_LINES) != (first in page.long_cells):
                yield f"a cell of {lines} lines, at most {MOST_LINES}: {first}"
            nodes = [*ast.walk(tree)]
            calls += [(at, ast.unparse(x.func), x) for x in nodes if isinstance(x, ast.Call)]
            modules = [x for x in nodes if isinstance(x, ast.ImportFrom)]
            imports += sum(len(x.names) for x in modules if f"{x.module}.".startswith("helpers."))
            strings = (x for x in nodes if isinstance(x, ast.JoinedStr))
            formats += sum(any(getattr(x, "format_spec", 0) for x in s.values) for s in strings)
    if imports > MOST_IMPORTS:
        yield f"imports {imports} names from helpers, at most {MOST_IMPORTS}"
    if formats > MOST_FORMATS:
        yield f"{formats} strings with format specifications, at most {MOST_FORMATS}"
    if not any(name in ("launch", "simulate") and len(call.args) >= 4 for _, name, call in calls):
        yield "nowhere launch or simulate(kernel, grid, block, arguments)"
    if not any(name.endswith(".replace") for _, name, _ in calls):
        yield "nothing is broken: no .replace(old, new) of a line"
    if not any("my_prediction = None" in x.source and "predict(" in x.source for x in page.code):
        yield "the reader does not predict: my_prediction = None and predict( in one cell"
    yield from of_order(page, calls)
    questions = section(page, CHECK_YOURSELF)
    if len(DETAILS.findall(questions)) != 3 or "What would happen if" not in questions:
        yield f"{CHECK_YOURSELF!r} has three folded answers and asks 'What would happen if'"
    first = page.prose[0]
    for word, name in {"You need": "", "Previous": page.previous, "Next": page.next}.items():
        line = re.search(rf"\*\*{word}\*\*:?([^\n]*)", first)
        if not line or (name and f"({name}.ipynb)" not in line[1]):
            yield f"the first cell lacks **{word}**: {name or 'none'}"
    for link in ("](GLOSSARY.md", "](deeper/"):
        if link not in "\n".join(page.prose):
            yield f"no link {link}"


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


def of_order(page: Page, calls: list[tuple[int, str, ast.Call]]) -> Iterator[str]:
    """Prediction, kernel, check, plot, exercise, questions, what is wasted: in this order."""
    places: dict[str, list[int]] = {}
    for at, name, call in calls:
        shown = call.args[0] if name == "show.kernel" and call.args else None
        if not isinstance(shown, ast.Constant) or shown.value.startswith(page.name[:2]):
            places.setdefault("check" if name in CHECKS else name, []).append(at)
    for at, cell in enumerate(page.notebook.cells):
        if cell.cell_type == "markdown":
            for title in re.findall(r"^##+ (.*)", cell.source, re.MULTILINE):
                places.setdefault(title.strip(), []).append(at)
    at, before = 0, "the first cell"
    for name in LANDMARKS if page.next else LANDMARKS[:-1]:
        later = [place for place in places.get(name, []) if place >= at]
        if not later:
            yield f"{name!r} is missing after {before}"
            continue
        at, before = min(later), repr(name)


def section(page: Page, title: str) -> str:
    """The Markdown under a heading of the second level, up to the next one."""
    parts = re.split(r"^## +(.*)\n", "\n".join(page.prose) + "\n", flags=re.MULTILINE)
    return dict(zip([x.strip() for x in parts[1::2]], parts[2::2], strict=True)).get(title, "")


def of_deeper(page: Page) -> Iterator[str]:
    """A deeper notebook: its question, the way back, a short answer at the end."""
    first, back = page.prose[0], f"](../{page.name.removeprefix('deeper/')[:2]}_"
    if not re.search(r"^# .*\?\s*$", first, re.MULTILINE):
        yield "the title is no question"
    titles = re.findall(r"^## +(.*)", "\n".join(page.prose), re.MULTILINE)
    if not titles or titles[-1].strip() != ANSWER:
        yield f"it does not end with '## {ANSWER}'"
    answer = section(page, ANSWER)
    if back not in first or back not in answer:
        yield "the first cell or the answer does not link back to the core notebook"
    words = "\n".join(x for x in answer.splitlines() if back not in x).strip()
    if not 1 <= len(re.findall(r"[.!?](?=\s|$)", words)) <= 2:
        yield "the answer has not one or two sentences"


def of_links_between(path: Path, glossary: Path) -> Iterator[str]:
    """Links of a file to other files, and to entries of the glossary, lead somewhere."""
    entries = re.findall(r'<a id="([^"]+)"></a>', glossary.read_text(encoding="utf-8"))
    for link, anchor in re.findall(
        r"\]\(([^)#]*)(?:#([^)]+))?\)", path.read_text(encoding="utf-8")
    ):
        target = path.parent / link if link else path
        if link.startswith("http"):
            continue
        if not target.exists():
            yield f"links to {link}, which is not there"
        elif anchor and target.resolve() == glossary.resolve() and anchor not in entries:
            yield f"links to {anchor}, which is not in the glossary"


# ---- words --------------------------------------------------------------------------------------

# What stands in the glossary and is nobody's everyday word.
TERMS = """alignment; asynchronous copy; bank; barrier; bfloat16; block; butterfly; coalesced;
cooperative launch; distributed shared memory; divergence; DRAM; fence; grid; L1; L2; lane; latency;
local memory; mbarrier; occupancy; online softmax; persistent; pointer; PTX; register;
request; SASS; sector; shared memory; shuffle; SIMT machine; SM; spill; stall; cluster;
tree reduction; ulp; warp; wavefront"""
TERMS = [" ".join(term.split()) for term in TERMS.split(";")]
MARK = re.compile(r"\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\]]*)\]\([^)]*GLOSSARY\.md#[^)]*\)")
WHOLE_GLOSSARY = re.compile(r"\]\([^)#]*GLOSSARY\.md\)")
FIRST_IN = re.compile(r'<a id="([^"]+)">.*?\*First in \[\d\d\]\((\w+)\.ipynb\)', re.DOTALL)


def of_words(pages: list[Page], glossary: str) -> Iterator[str]:
    """Where a term first stands in the series, its sentence explains it in italics or bold or links
    it to the glossary, and the glossary names that notebook."""
    said = dict(FIRST_IN.findall(glossary))
    stand = [(page.name, text) for page in pages for text in sentences(page)]
    for term in TERMS:
        pattern = re.compile(
            rf"\b{re.escape(term)}(s|es)?\b", re.IGNORECASE if term.islower() else 0
        )
        name, text = next((one for one in stand if pattern.search(one[1])), ("", ""))
        anchor = term.lower().replace(" ", "-")
        if anchor not in said:
            yield f"{term!r} is not in the glossary"
        elif name and said[anchor] != name:
            yield f"{term!r} is first used in {name}"
        if text and not any(pattern.search("".join(words)) for words in MARK.findall(text)):
            yield f"{name}: *{term}* is neither explained nor linked where it first stands: {text}"


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
