"""Rules that every committed notebook keeps, which nbval does not check, with a planted breach of
each; pages and headers show the records."""

import copy
import re
from collections.abc import Iterator

import pytest

from helpers.base.paths import ROOT, core_notebooks, deeper_notebooks
from helpers.catalogue.registry import steps
from helpers.commands import figures
from helpers.measure import records
from tests.earlier import EARLIER, SHOWN_EARLIER
from tests.helpers.export.conftest import kernel_files_are_read_once  # noqa: F401
from tests.reading import name_of

nbformat = pytest.importorskip("nbformat")  # not where kernels are only recorded and tested

from tests import notebook_rules as rules  # noqa: E402

CORE, DEEPER = core_notebooks(), deeper_notebooks()
GLOSSARY = ROOT / "notebooks/GLOSSARY.md"
DOCS = sorted((ROOT / "docs").glob("*.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
LISTED = (ROOT / "docs/notebooks.md").read_text(encoding="utf-8")

# Notebook -> first lines of cells that must be longer than a dozen lines.
LONG_CELLS = {
    "00_the_limit": ("exponential = cupy.RawKernel(", "x = np.ones((100, 1000))"),
    "04_shuffle": ("exchange = cupy.RawKernel(",),
}


def page_of(path) -> rules.Page:
    names = [name_of(one) for one in CORE]
    place = names.index(name_of(path)) if path in CORE else len(names)
    return rules.Page(
        nbformat.read(path, as_version=4),
        name_of(path),
        previous=names[place - 1] if 0 < place < len(names) else None,
        next=names[place + 1] if place + 1 < len(names) else None,
        long_cells=LONG_CELLS.get(name_of(path), ()),
    )


@pytest.mark.parametrize("path", [*CORE, *DEEPER], ids=name_of)
def test_notebook_keeps_the_rules(path):
    page = page_of(path)
    nbformat.validate(page.notebook)
    assert path.stat().st_size < rules.MOST_BYTES
    of_its_kind = rules.of_core if path in CORE else rules.of_deeper
    found = [*rules.of_every_notebook(page), *of_its_kind(page), *listed_wrongly(path, page)]
    wrong = [complaint for complaint in found if complaint != rules.OLDER]
    assert not wrong, "\n".join(["", *wrong])
    steps = EARLIER if path.parent.name == "notebooks" else frozenset()
    assert (rules.OLDER in found) == (path.stem in steps | SHOWN_EARLIER)


def listed_wrongly(path, page: rules.Page) -> Iterator[str]:
    """How a notebook stands in the lists and in the folder: its line, the links to it, its path."""
    # nbval's kernels know helpers already, a reader's do not.
    root = ".." if path in CORE else "../.."
    if f'\nsys.path.insert(0, "{root}")' not in page.code[0].source:
        yield f'the first cell lacks sys.path.insert(0, "{root}")'
    title = "".join(re.findall(r"^# (.*)", page.prose[0], re.MULTILINE)[:1]).strip()
    if path in CORE:
        lines = re.findall(rf"^- \[([^]]+)\]\(notebooks/{page.name}\.ipynb\): ", README, re.M)
        if len(lines) != 1 or not title.startswith(lines[0]):
            yield f"README.md lacks - [{title}](notebooks/{page.name}.ipynb): ..."
        if (line := f"- [{title[:2]}](../notebooks/{page.name}.ipynb): ") not in LISTED:
            yield f"docs/notebooks.md lacks {line}..."
    else:
        if (link := f"[{title}](../notebooks/{page.name}.ipynb)") not in LISTED:
            yield f"docs/notebooks.md lacks {link}"
        core = [one.read_text(encoding="utf-8") for one in CORE if one.stem[:2] == path.stem[:2]]
        if not any(f"({page.name}.ipynb)" in text for text in core):
            yield "no core notebook links to it"


def test_every_step_has_its_notebook():
    assert [path.stem[:2] for path in CORE] == sorted({step[:2] for step in steps()})


def test_words_are_explained_where_they_first_stand():
    glossary = GLOSSARY.read_text(encoding="utf-8")
    assert list(rules.of_words([page_of(path) for path in CORE], glossary)) == []


def test_links_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS, GLOSSARY]
    for path in (*CORE, *DEEPER, *pages):
        assert list(rules.of_links_between(path, GLOSSARY)) == [], path.name


def test_pages_headers_and_plot_show_the_records():
    assert figures.out_of_date() == {}, "write them by: python -m helpers.commands.figures"


def test_a_changed_record_makes_a_plot_stale(monkeypatch):
    def slower(step):
        record = copy.deepcopy(real(step))
        for case in record.cases:
            case.samples_us[:] = [2 * us for us in case.samples_us]
        return record

    real = records.load_record
    monkeypatch.setattr(records, "load_record", slower)
    monkeypatch.setattr(figures, "wanted_texts", dict)
    assert [path.name for path in figures.out_of_date()] == ["series.png"]


# ---- a planted breach of each rule --------------------------------------------------------------

HINT = "<details><summary>Hint</summary>"
FOLDED = "<details><summary>Answer</summary>So.</details>"
CELLS = [
    """# 03 One block per row\n\nOne block reads a row together.
**You need**: [02](02_online.ipynb). **Time**: 5 minutes.
**Previous**: [02 One pass less](02_online.ipynb). **Next**: [04 Shuffles](04_shuffle.ipynb).
Words such as *lane* are in the [glossary](GLOSSARY.md).""",
    "my_prediction = None\npredict(my_prediction)",
    'show.kernel("03_shared")',
    "simulate(kernel, 4, 256, (x, y, 4, 64), 2048)\ncheck_kernel(kernel)",
    'broken = code.replace("__syncthreads();", "")',
    "draw.step(after, before)",
    "## Exercise (8 minutes)\n\n[Why not two?](deeper/03_order.ipynb)",
    'grade("03_one_array")',
    f"## Check yourself\n\n1. What would happen if?\n{FOLDED}\n\n2. Why?\n{FOLDED}\n\n3. Who?\n"
    + FOLDED,
    "## What is still wasted\n\nBarriers.",
]
DEEPER_CELLS = [
    "# Does order matter?\n\nCame up in [03](../03_shared.ipynb). **Time**: 5 minutes.",
    "draw.step(after, before)",
    "## The answer\n\nHardly. It is so.\n\nBack to [03](../03_shared.ipynb).",
]
FIGURE = {
    "output_type": "display_data",
    "data": {"image/png": "iVBO", "text/plain": "<figure: The plot>", rules.FIGURE: "5ee"},
    "metadata": {"image/png": {"alt": "It goes up."}},
}
SENTENCE = {"output_type": "stream", "name": "stdout", "text": "Up."}


def example(cells, name, old="", new="", outputs=(FIGURE, SENTENCE), count=None) -> rules.Page:
    """A notebook that keeps the rules, but for `new` in the place of `old`; the cell with the plot
    has the outputs. `old` that begins no cell's text and is empty adds `new` to the first cell."""
    texts = [text.replace(old, new) for text in cells] if old else [cells[0] + new, *cells[1:]]
    assert texts != cells or not new and not old
    made, number = [], 0
    for text, original in zip(texts, cells, strict=True):
        if original.startswith(("#", "##")):
            made.append(nbformat.v4.new_markdown_cell(text))
            continue
        number += 1
        shown = outputs if original.startswith("draw.step") else ()
        cell = nbformat.v4.new_code_cell(text, execution_count=count or number)
        cell.outputs = [nbformat.from_dict(dict(one)) for one in shown]
        made.append(cell)
    return rules.Page(nbformat.v4.new_notebook(cells=made), name, "02_online", "04_shuffle")


def core(*change, **options) -> list[str]:
    page = example(CELLS, "03_shared", *change, **options)
    return [*rules.of_every_notebook(page), *rules.of_core(page)]


def deeper(*change, **options) -> list[str]:
    page = example(DEEPER_CELLS, "deeper/03_order", *change, **options)
    return [*rules.of_every_notebook(page), *rules.of_deeper(page)]


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def figure(**change):
    return [{**FIGURE, **change}, SENTENCE]


PLANTED = [  # the complaint, and what is planted: text in place of text, or outputs
    ("code line too long", "simulate(", f"simulate({'1 + ' * 20}"),
    ("one top heading", "", "\n# Two"),
    ("measured figure in prose", "", " It reaches 4200 GB/s."),
    ("measured figure in prose", "", " It is 3 times faster."),
    ("Markdown within HTML: A `lane`", "", f"\n{HINT}\nA `lane`.\n</details>"),
    ("Markdown within HTML: see [a](", "", f"\n{HINT}\nsee [a](GLOSSARY.md)\n</details>"),
    ("minutes of at most", "", "word " * 3000),
    ("**Time** says 10 minutes where 5", "5 minutes", "10 minutes"),
    ("**Time** says None", "5 minutes", "five minutes"),
    ("table wider than 80", "", f"\n\n| {'x' * 40} | {'x' * 40} |"),
    ("an image without alt text", "", "\n![](a.png)"),
    ("an image without alt text", "", '\n<img src="a.png">'),
    ("a cell of 14 lines", "broken = ", "x = 1\n" * 13 + "broken = "),
    (
        "imports 10 names",
        "broken = ",
        "from helpers import a, b, c, d, e, f, g, h, i, j\nbroken = ",
    ),
    ("4 strings with format", "broken = ", 'f"{x:5}{x:5}"\n' * 4 + "broken = "),
    ("nowhere launch", "simulate(kernel, 4, 256,", "simulate("),
    ("nothing is broken", ".replace(", ".cut("),
    ("the reader does not predict", "my_prediction = None", "my_prediction = 0.3"),
    ("'check' is missing", "check_kernel(", "print("),
    ("'draw.step' is missing", "draw.step", "draw.race"),
    ("'grade' is missing", "grade(", "print("),
    ("'show.kernel' is missing after 'predict'", '"03_shared"', '"02_online"'),
    ("'What is still wasted' is missing", "## What is still", "## What is"),
    ("three folded answers", "2. Why?\n" + FOLDED, "2. Why?"),
    ("three folded answers", "What would happen if", "What if"),
    ("lacks **You need**", "**You need**", "Needs"),
    ("lacks **Previous**: 02_online", "(02_online.ipynb). **Next", "(01.ipynb). **Next"),
    ("lacks **Next**: 04_shuffle", "(04_shuffle.ipynb)", "(05_float4.ipynb)"),
    ("no link ](deeper/", "](deeper/", "](dee"),
    ("no link ](GLOSSARY", "](GLOSSARY", "](GLOS"),
]
OUTPUTS = [
    ("stderr", [stream("warning", "stderr")]),
    ("a cell failed", [{"output_type": "error", "ename": "E", "evalue": "e", "traceback": []}]),
    ("path of one machine", [stream("see /home/me/x.py")]),
    (rules.OLDER, [stream("recorded for an earlier version")]),
    ("output wider than 80", [stream("x" * 81)]),
    ("without a plain form", figure(data={"text/html": "<p>"})),
    ("without a plain form", figure(data={"text/plain": "<IPython.core.display.HTML object>"})),
    ("a figure without its sentence", [FIGURE]),
    ("a figure without its sentence", [FIGURE, FIGURE, SENTENCE]),
    ("a figure without a digest", figure(data={"image/png": "iVBO", "text/plain": "<figure: a>"})),
    ("a figure without alt", figure(metadata={})),
]
PLANTED_DEEPER = [
    ("the title is no question", "matter?", "matters"),
    ("does not link back", "[03](../03_shared.ipynb). **", "03. **"),
    ("does not link back", "Back to [03](../03_shared.ipynb)", "Back"),
    ("does not end with '## The answer'", "## The answer", "## Answer"),
    ("does not end with '## The answer'", "Back to", "## More\n\nBack to"),
    ("one or two sentences", "Hardly.", "Hardly. Not at all."),
    ("one or two sentences", "Hardly. It is so.", ""),
]


def test_a_breach_of_each_rule_is_found():
    assert core() == deeper() == []
    assert any("executed" in found for found in core(count=7))
    for complaint, old, new in PLANTED:
        assert any(complaint in found for found in core(old, new)), complaint
    for complaint, outputs in OUTPUTS:
        assert any(complaint in found for found in deeper(outputs=outputs)), complaint
    for complaint, old, new in PLANTED_DEEPER:
        assert any(complaint in found for found in deeper(old, new)), complaint
    for html in (f"{HINT}\n\nA `lane`, *one* of 32.\n\n</details>", f"```\n{HINT}`\n```"):
        assert core("", f"\n{html}") == []


def test_a_word_that_is_not_explained_and_a_link_that_leads_nowhere_are_found(tmp_path):
    entries = "".join(
        f'<a id="{term.lower().replace(" ", "-")}"></a>\n**{term}**: so.\n'
        "*First in [00](00_a.ipynb).*\n"
        for term in rules.TERMS
    )

    def complaints(*texts, glossary=entries):
        cells = [[nbformat.v4.new_markdown_cell(text)] for text in texts]
        books = [nbformat.v4.new_notebook(cells=one) for one in cells]
        pages = [rules.Page(book, f"00_{'ab'[at]}") for at, book in enumerate(books)]
        return [*rules.of_words(pages, glossary)]

    for text in ("A *warp* is 32 threads.", "A [warp](GLOSSARY.md#warp).", "Warped. `warp`"):
        assert complaints(text) == []
    assert complaints("A *warp* is.", "A warp is not.") == []
    for text in (
        "A warp is 32 threads.",
        "Two warps. A *warp* is one.",
        "A [warp](other.md#warp).",
    ):
        assert "neither explained nor linked" in complaints(text)[0]
    assert complaints("", "A *warp* is.") == ["'warp' is first used in 00_b"]
    assert complaints("", glossary=entries.replace('"warp"', '"wrap"')) == [
        "'warp' is not in the glossary"
    ]
    page, glossary = tmp_path / "03.md", tmp_path / "GLOSSARY.md"
    glossary.write_text(entries)
    for text, found in (
        ("[here](03.md), [warp](03.md#x), [w](GLOSSARY.md#warp), [a](https://a.b/c#d)", []),
        ("[gone](04.md)", ["links to 04.md, which is not there"]),
        ("[zoo](GLOSSARY.md#zoo)", ["links to zoo, which is not in the glossary"]),
    ):
        page.write_text(text)
        assert list(rules.of_links_between(page, glossary)) == found
