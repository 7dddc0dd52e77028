"""Each rule of notebooks finds the breach that is planted in a notebook that keeps them all."""

import pytest

nbformat = pytest.importorskip("nbformat")

from tests import notebook_rules as rules  # noqa: E402

v4 = nbformat.v4

FIRST = """\
# 03 One block per row

One block reads a row together.
**You need**: [02](02_online.ipynb). **Time**: 5 minutes.
**Previous**: [02 One pass less](02_online.ipynb). **Next**: [04 Shuffles](04_shuffle.ipynb).
Words such as *lane* are in the [glossary](GLOSSARY.md).
"""
IMPORTS = """\
import cupy

from helpers import check_kernel, draw, grade, predict, show, simulate, source, timings
"""
QUESTIONS = """\
## Check yourself

1. What would happen if a barrier were missing?
<details><summary>Answer</summary>A race.</details>

2. Why 256?
<details><summary>Answer</summary>So.</details>

3. Why not?
<details><summary>Answer</summary>Because.</details>
"""
DEEPER_FIRST = """\
# Does the order of the tree matter?

Came up in [03](../03_shared.ipynb). **Time**: 5 minutes.
"""
ANSWER = """\
## The answer

Hardly. Instructions matter more (see the table).

Back to [03 One block per row](../03_shared.ipynb).
"""


def stream(text):
    return v4.new_output("stream", name="stdout", text=text)


def figure():
    return v4.new_output(
        "display_data",
        data={"image/png": "iVBO", "text/plain": "<figure: The plot>", rules.FIGURE: "5ee"},
        metadata={"image/png": {"alt": "It goes up."}},
    )


def notebook(cells):
    made, number = [], 0
    for kind, text, *outputs in cells:
        if kind == "markdown":
            made.append(v4.new_markdown_cell(text))
        else:
            number += 1
            made.append(v4.new_code_cell(text, execution_count=number, outputs=outputs))
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return v4.new_notebook(cells=made, metadata={"kernelspec": spec})


def core(exceptions=()) -> rules.Page:
    """A core notebook that keeps the rules."""
    cells = [
        ("markdown", FIRST),
        ("code", IMPORTS),
        ("markdown", "## Your prediction\n\nA [*barrier*](GLOSSARY.md#barrier) costs."),
        ("code", 'my_prediction = None\npredict("03_shared", my_prediction)'),
        ("code", 'show.kernel("03_shared", since="02_online")', stream("kernels/03_shared.cu\n")),
        ("code", 'kernel = cupy.RawKernel(source("03_shared.cu"), "softmax_shared")'),
        ("code", "simulate(kernel, 4, 256, (x, y, 4, 64), 2048)\ncheck_kernel(kernel)"),
        ("code", 'broken = source("03_shared.cu").replace("__syncthreads();", "")'),
        ("code", "after, before = timings({})\ndraw.step(after, before)", figure(), stream("Up.")),
        ("markdown", "## Exercise (8 minutes)\n\n[Why not two?](deeper/03_order.ipynb)"),
        ("code", 'grade("03_one_array")'),
        ("markdown", QUESTIONS),
        ("markdown", "## What is still wasted\n\nBarriers."),
    ]
    return rules.Page(
        notebook(cells), "03_shared", "02_online", "04_shuffle", exceptions=dict(exceptions)
    )


def deeper() -> rules.Page:
    """A deeper notebook that keeps the rules."""
    cells = [("markdown", DEEPER_FIRST), ("code", "x = 1"), ("markdown", ANSWER)]
    return rules.Page(notebook(cells), "deeper/03_order")


def cell_with(page, text):
    return next(cell for cell in page.notebook.cells if text in cell.source)


def swap(old, new):
    """A plant: `old` becomes `new` in the cell where it stands."""

    def plant(page):
        cell = cell_with(page, old)
        cell.source = cell.source.replace(old, new)

    return plant


def code(text):
    """A plant: more code in the last code cell."""
    return lambda page: page.code[-1].update(source=f"{page.code[-1].source}\n{text}")


def prose(text):
    """A plant: more Markdown in the first cell."""
    return lambda page: page.notebook.cells[0].update(source=f"{page.prose[0]}\n{text}")


def output(*outputs):
    """A plant: the outputs of the first code cell."""
    return lambda page: page.code[0].update(outputs=list(outputs))


def display(**data):
    return v4.new_output("display_data", data={key.replace("_", "/"): x for key, x in data.items()})


def complaints(page, *found_by):
    return [complaint for rule in found_by for complaint in rule(page)]


def test_the_made_up_notebooks_keep_the_rules():
    assert complaints(core(), rules.of_every_notebook, rules.of_core) == []
    assert complaints(deeper(), rules.of_every_notebook, rules.of_deeper) == []


HINT = "<details><summary>Hint</summary>"
EVERY = {
    "not executed": lambda page: page.code[0].update(execution_count=None),
    "stderr": output(v4.new_output("stream", name="stderr", text="warning")),
    "a cell failed": output(v4.new_output("error", ename="E", evalue="e", traceback=[])),
    "trailing semicolon": code("x = 1;"),
    "a counter is spelled out": code('"dram__bytes_read.sum"'),
    "unknown tag": lambda page: page.code[0].metadata.update(tags=["whatever"]),
    "path of one machine": output(stream("see /home/me/x.py")),
    "a record is older": output(stream("recorded for an earlier version")),
    "code line too long": code("x" * 89),
    "one top heading": prose("# Two"),
    "measured figure in prose": prose("It reaches 4200 GB/s."),
    "Markdown within HTML: A `lane`": prose(f"{HINT}\nA `lane`.\n</details>"),
    "Markdown within HTML:    all *to*": prose(f"1. Why?\n   {HINT}\n   all *to* it."),
    "Markdown within HTML: <details><summary>A": prose("<details><summary>A `lane`?</summary>"),
    "Markdown within HTML: see [a](": prose(f"{HINT}\nsee [a](GLOSSARY.md)\n</details>"),
    "kernelspec": lambda page: page.notebook.metadata["kernelspec"].update(name="julia"),
    "widgets": lambda page: page.notebook.metadata.update(widgets={}),
}
BOTH = {
    "too long": (prose("word " * 3000), "minutes of at most"),
    "other minutes": (swap("5 minutes", "10 minutes"), "**Time** says 10 minutes where 5"),
    "minutes in words": (swap("5 minutes", "five minutes"), "**Time** says None"),
    "no plain form": (output(display(text_html="<p>")), "without a plain form: ''"),
    "useless plain form": (
        output(display(text_plain="<IPython.core.display.HTML object>")),
        "without a plain form: '<IPython",
    ),
    "wide output": (output(stream("x" * 81)), "output wider than 80"),
    "wide table": (prose(f"\n| {'x' * 40} | {'x' * 40} |"), "table wider than 80"),
    "no sentence": (output(figure()), "a figure without its sentence"),
    "one sentence of two": (output(figure(), figure(), stream("Up.")), "without its sentence"),
    "an empty sentence": (output(figure(), stream(" ")), "a figure without its sentence"),
    "no digest": (output(display(image_png="iVBO"), stream("Up.")), "a figure without a digest"),
    "no alt text": (output(display(image_png="iVBO"), stream("Up.")), "a figure without alt"),
    "a nameless image": (prose("![](a.png)"), "an image without alt"),
    "a nameless img": (prose('<img src="a.png">'), "an image without alt"),
}
CORE = {
    "many names": (code("from helpers import a, b, c, d, e, f, g, h, i, j"), "names from helpers"),
    "a long cell": (code("x = 1\n" * 13), "lines, at most 12: "),
    "many formats": (code('f"{x:5}"\n' * 4), "4 strings with format specifications"),
    "other formats": (code('"".format(x).ljust(3)\n' * 2), "4 strings with format specific"),
    "no RawKernel": (swap("cupy.RawKernel(source(", "load(("), "nowhere cupy.RawKernel"),
    "no launch": (swap("simulate(kernel, 4, 256,", "simulate("), "nowhere launch or simulate"),
    "no check": (swap("check_kernel(kernel)", ""), "nothing is checked"),
    "nothing broken": (swap(".replace(", ".cut("), "nothing is broken"),
    "a hidden line": (swap('"__syncthreads();"', "hidden"), "nothing is broken"),
    "no own prediction": (swap("my_prediction = None", "my_prediction = 0.3"), "does not predict"),
    "two cells": (swap("predict(", "print("), "does not predict"),
    "no timing": (swap("timings({})", "1, 2"), "nothing is timed"),
    "no plot": (swap("draw.step", "draw.ledger"), "nothing is plotted"),
    "no exercise": (swap('grade("', 'print("'), "nothing is graded"),
    "no text of it": (swap("(8 minutes)", ""), "grade without the exercise's text and minutes"),
    "kernel not shown": (swap("show.kernel", "show.diff"), "'show.kernel' is missing after 'pred"),
    "another kernel": (swap('kernel("03_shared"', 'kernel("02_online"'), "'show.kernel' is missin"),
    "no questions": (swap("## Check y", "## Ask y"), "'Check yourself' is missing after 'grade'"),
    "no waste": (swap("## What is still", "## What is"), "'What is still wasted' is missing after"),
    "two answers": (
        swap("<details><summary>Answer</summary>So.</details>", ""),
        "2 folded answers",
    ),
    "no what if": (swap("What would happen if", "What if"), "no question of 'Check yourself'"),
    "no prerequisites": (swap("**You need**", "Needs"), "what you need"),
    "previous": (
        swap("(02_online.ipynb). **Next", "(01.ipynb). **Next"),
        "lacks **Previous**: 02_",
    ),
    "next": (swap("(04_shuffle.ipynb)", "(05_float4.ipynb)"), "lacks **Next**: 04_shuffle"),
    "no next": (swap("**Next**", "Next"), "lacks **Next**: 04_shuffle"),
    "deeper": (swap("](deeper/", "](dee"), "no link to a deeper question"),
}
DEEPER = {
    "no question": (swap("matter?", "matters"), "the title is no question"),
    "no way back": (swap("[03](../03_shared.ipynb)", "03"), "the first cell does not link back"),
    "no answer": (swap("## The answer", "## Answer"), "does not end with '## The answer'"),
    "more after": (swap("Back to", "## More\n\nBack to"), "does not end with '## The answer'"),
    "answer without link": (
        swap("row](../03_shared.ipynb)", "row]"),
        "the answer does not link back",
    ),
    "a long answer": (swap("Hardly.", "Hardly. Not at all."), "3 sentences, not one or two"),
    "no sentence": (swap("Hardly. Instructions matter more (see the table).", ""), "0 sentences"),
}


@pytest.mark.parametrize("made", [core, deeper])
@pytest.mark.parametrize("complaint", EVERY)
def test_breach_in_any_notebook_is_found(complaint, made):
    page = made()
    EVERY[complaint](page)
    assert any(complaint in found for found in rules.of_every_notebook(page))


@pytest.mark.parametrize(
    ("made", "rule", "plant", "complaint"),
    [
        pytest.param(made, rule, *breach, id=f"{made.__name__}-{name}")
        for made, rule, breaches in (
            (core, rules.of_core, {**BOTH, **CORE}),
            (deeper, rules.of_deeper, {**BOTH, **DEEPER}),
        )
        for name, breach in breaches.items()
    ],
)
def test_breach_is_found(made, rule, plant, complaint):
    page = made()
    plant(page)
    assert any(complaint in found for found in rule(page)), list(rule(page))


@pytest.mark.parametrize(
    "text",
    [
        f"{HINT}\n\nA `lane`, *one* of 32.\n\n</details>",
        f"{HINT}\nA <code>lane</code>: sum * exp(a) + b * c, <em>one</em> of 32.\n</details>",
        f"{HINT}\nOne.\n</details>\n\nThen `code`, and *that*.",
        f"```\n{HINT}`\n```",
    ],
)
def test_html_without_markdown_and_markdown_behind_a_blank_line_are_no_breach(text):
    page = core()
    prose(text)(page)
    assert complaints(page, rules.of_every_notebook) == []


def test_imports_do_not_count_as_lines_of_a_cell():
    page = core()
    names = "".join(f"    {name},\n" for name in "abcdefghi")
    page.code[0].source = f"import numpy\nfrom helpers import (\n{names})\n" + "x = 1\n" * 12
    assert complaints(page, rules.of_code) == []


def test_a_long_cell_may_be_an_exception_and_only_while_it_is_long():
    exceptions = {("03_shared", 'grade("03_one_array")'): "it is all one figure"}
    page = core(exceptions)
    code("x = 1\n" * 13)(page)
    assert complaints(page, rules.of_code) == []
    assert complaints(core(exceptions), rules.of_code) == [
        "the exception for the cell 'grade(\"03_one_array\")' is needed no more"
    ]


def test_the_changed_line_may_have_a_name():
    page = core()
    swap('.replace("__syncthreads();", "")', ".replace(BARRIER, NOTHING)")(page)
    assert "nothing is broken" in complaints(page, rules.of_core)[0]
    code('BARRIER, x = "__syncthreads();", 1\nBARRIER = "__syncthreads();"\nNOTHING = ""')(page)
    assert complaints(page, rules.of_core) == []


def test_the_last_notebook_need_not_waste_anything():
    page = core()
    page.next = None
    page.notebook.cells.pop()
    assert complaints(page, rules.of_core) == []


def test_a_deeper_notebook_is_linked_and_listed():
    page, readme = deeper(), "[Does the order of the tree matter?](notebooks/deeper/03_order.ipynb)"
    assert complaints(page, lambda page: rules.of_way_in(page, [core()])) == []
    assert complaints(page, lambda page: rules.of_way_in(page, [deeper()])) != []
    assert complaints(page, lambda page: rules.of_readme(page, readme)) == []
    assert complaints(page, lambda page: rules.of_readme(page, readme.replace("?", ""))) != []


def test_core_notebook_has_a_row_in_the_readme() -> None:
    page = core()
    title = page.prose[0].splitlines()[0].removeprefix("# ")
    row = f"| [{title}](notebooks/{page.name}.ipynb) | an idea | what one learns |"
    assert complaints(page, lambda page: rules.of_table(page, row)) == []
    for readme in ("", row.replace("| an", "an"), f"{row}\n{row}", row.replace(title, "99 Other")):
        assert complaints(page, lambda page, readme=readme: rules.of_table(page, readme)) != []


# ---- files ------------------------------------------------------------------------------------


def test_a_large_file_is_found(tmp_path):
    path = tmp_path / "03_large.ipynb"
    path.write_text("x" * 999_999)
    assert list(rules.of_size(path)) == []
    path.write_text("x" * 1_000_000)
    assert list(rules.of_size(path)) == ["1000000 bytes, not below 1000000"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "[here](03.md), [warp](03.md#x), [w](GLOSSARY.md#warp), [a](https://a.b/c#d), [b](#b)",
            [],
        ),
        ("[gone](04.md)", ["links to 04.md, which is not there"]),
        ("[lane](GLOSSARY.md#lane)", ["links to lane, which is not in the glossary"]),
    ],
)
def test_a_link_that_leads_nowhere_is_found(text, found, tmp_path):
    page, glossary = tmp_path / "03.md", tmp_path / "GLOSSARY.md"
    glossary.write_text('<a id="warp"></a>\n**warp**: 32 threads. [here](#warp)')
    page.write_text(text)
    assert list(rules.of_links_between(page, glossary)) == found
    assert list(rules.of_links_between(glossary, glossary)) == []
    glossary.write_text(glossary.read_text() + " [lane](#lane)")
    assert list(rules.of_links_between(glossary, glossary)) == [
        "links to lane, which is not in the glossary"
    ]


# ---- words ------------------------------------------------------------------------------------


def series(*texts):
    """Core notebooks 00, 01, ... of one Markdown cell each."""
    return [
        rules.Page(notebook([("markdown", text)]), f"{number:02}_name")
        for number, text in enumerate(texts)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "A *warp* is 32 threads.",
        "Thirty-two threads are **a warp**. Each warp is one.",
        "A [warp](GLOSSARY.md#warp) is a warp.",
        "Warped. Forewarps. `warp`",
        "# Two warps\n\n$warp$ and\n<details>warp</details>",
        "Words such as *warp* are in the [glossary](GLOSSARY.md).",
    ],
)
def test_a_word_that_is_explained_linked_or_not_there_is_no_breach(text):
    assert list(rules.of_first_words(series(text))) == []


@pytest.mark.parametrize(
    "text",
    [
        "A warp is 32 threads.",
        "Two warps. A *warp* is 32 threads.",
        "Words such as *warp* are in the [glossary](GLOSSARY.md). A warp is one.",
        "A *block* has a *thread-block cluster*, a warp, or *none*.",
        "A [warp](other.md#warp).",
    ],
)
def test_a_word_that_is_not_explained_is_a_breach(text):
    (complaint,) = (x for x in rules.of_first_words(series(text)) if "*warp*" in x)
    assert complaint.startswith("00_name: *warp* is neither explained nor linked")


def test_only_the_first_notebook_with_a_word_explains_it():
    assert list(rules.of_first_words(series("A *warp* is.", "A warp is not."))) == []
    assert len(list(rules.of_first_words(series("Nothing.", "A warp.", "A *warp*.")))) == 1


def glossary():
    """A glossary that keeps the rules."""
    terms = sorted(rules.TERMS, key=rules.sorted_by)
    return "# Glossary\n\nIntroduction.\n\n" + "\n\n".join(
        f'<a id="{rules.slug(term)}"></a>\n**{term}**: what it is. More.\n'
        "*First in [00](00_name.ipynb).*"
        for term in terms
    )


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"warp"', '"wrap"', "the anchor of 'warp' is 'wrap', not 'warp'"),
        ('"bank"></a>\n**bank**', '"zoo"></a>\n**zoo**', "'barrier' stands after 'zoo'"),
        ('"bank"></a>\n**bank**', '"banks"></a>\n**banks**', "'bank' is not in the glossary"),
        ("**warp**: what it is. More.\n", "**warp**: what it is\n", "**word**: half a sentence"),
        ("**warp**: what", "**warp** what", "**word**: half a sentence"),
        ("*First in [00](00_name.ipynb).*", "", "**word**: half a sentence"),
    ],
)
def test_breach_in_the_glossary_is_found(old, new, complaint):
    assert list(rules.of_glossary(glossary())) == []
    assert old in glossary()
    assert any(complaint in found for found in rules.of_glossary(glossary().replace(old, new, 1)))


def test_the_glossary_says_where_a_word_first_stands():
    assert list(rules.of_first_places(series("A warp."), glossary())) == []
    assert list(rules.of_first_places(series("", "A warp."), glossary())) == [
        "'warp' is first used in 01_name"
    ]
