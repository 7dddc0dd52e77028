"""How long a notebook takes to read: what counts as what, on made-up notebooks."""

import nbformat
import pytest

from helpers.commands.reading import Reading, of_markdown, of_output, reading

new_markdown = nbformat.v4.new_markdown_cell
new_code = nbformat.v4.new_code_cell
new_output = nbformat.v4.new_output

LISTING = """\
kernels/03_shared.cu, 5 lines; + marks lines that are new since 02_online.cu
   9   extern "C" __global__ void softmax_shared(const float* x,
           float* y, int rows, int cols)
  10   {
  11 +     __shared__ float maxima[256];
  12
  13 +     maxima[threadIdx.x] = maximum;
       ... merge, 6 lines, 4 new
"""


def notebook(*cells):
    return nbformat.v4.new_notebook(cells=list(cells))


def stream(text: str):
    return new_output("stream", name="stdout", text=text)


@pytest.mark.parametrize(("words", "minutes"), [(1, 5), (650, 5), (651, 10), (1300, 10)])
def test_a_notebook_states_its_minutes_rounded_up_to_five(words: int, minutes: int) -> None:
    assert Reading(words=words).to_state == minutes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# Three short words", 3),
        ("A row -- a *whole* row -- is read twice.", 8),
        ("| lane | sector |\n|---|---|\n| 0 | 3 |", 4),
        ("See [the next step](04_shuffle.ipynb) for more.", 6),
        ("![thirty-two lanes](lanes.png) One word.", 2),
        ("Before.\n<details><summary>Hint</summary>\nmany words here\n</details>\nAfter.", 2),
        ("Before. <!-- not shown --> After.", 2),
        ("<b>Bold</b> word", 2),
        # navigation: links alone, whatever they are called
        ("**Deeper**: [Why not two?](deeper/03_two.ipynb)", 0),
        ("- [Why not two?](deeper/03_two.ipynb), [Why?](deeper/03_why.ipynb)", 0),
        ("Also read [Why not two?](deeper/03_two.ipynb)", 5),
        ("**No link** here", 3),
        # formulas
        ("$N$ columns", 2),
        ("$x_i - m$", 4),  # x, i, -, m
        (r"$$\frac{e^{x}}{2.5}$$", 3),  # e, x, 2.5
        (r"$\max_j x_j$ and $\left( a \cdot b \right)$", 8),  # max j x j, and, a cdot b
    ],
)
def test_words_of_prose(text: str, words: int) -> None:
    assert of_markdown(text) == Reading(words=words)


def test_fences_are_code_and_those_of_cuda_are_kernels() -> None:
    text = "Words.\n```python\nx = 1\n\ny = 2\n```\n```cuda\nfloat x;\n```\nMore."
    assert of_markdown(text) == Reading(words=2, code=2, kernel_new=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\n\ntwo\n", Reading(output=2)),
        ("x" * 80, Reading(output=1)),
        ("x" * 161, Reading(output=3)),
        ("<figure: Lanes on sectors>", Reading()),
        ("<Figure size 840x440 with 1 Axes>", Reading()),
        (LISTING, Reading(output=1, kernel_new=2, kernel_known=2)),
        (
            LISTING.replace("; + marks lines that are new since 02_online.cu", ""),
            Reading(output=1, kernel_new=4),
        ),
        (LISTING.replace("; +", ";\n+"), Reading(output=2, kernel_new=2, kernel_known=2)),
        ("kernel.cu as edited, 1 line\n  1   x", Reading(output=1, kernel_new=1)),
        ("--- old\n+++ new\n@@ -1 +1 @@\n same\n-was\n+is\n", Reading(0, 0, 2, 1, 3)),
        ('Here:\n#line 1 "kernels/x.cu"\n// Idea\n\nfloat x;', Reading(output=1, kernel_new=3)),
        ('extern "C" __global__ void f()\n{\n}', Reading(kernel_new=3)),
        ("  7 + 3", Reading(output=1)),  # numbered, but no listing
    ],
)
def test_lines_of_output(text: str, expected: Reading) -> None:
    assert of_output(text) == expected
    assert reading(notebook(new_code("", outputs=[stream(text)]))) == expected


def test_a_rich_output_counts_by_its_plain_form() -> None:
    data = {"text/html": "<p>1<p>2<p>3", "text/plain": "verdict\n"}
    figure = {"image/png": "iVBO", "text/plain": "<figure: The plot>"}
    outputs = [new_output("display_data", data=data), new_output("display_data", data=figure)]
    assert reading(notebook(new_code("", outputs=outputs))) == Reading(output=1)


def test_an_exercise_and_a_folded_prediction_are_outside() -> None:
    asked = "What share?\nOur prediction, with its calculation: 0.5 of a copy.\n  1 / 2 = 0.5\n"
    whole = notebook(
        new_markdown("# T\n\nfour words of prose\n\n## Exercises\n\nMend it."),
        new_code("grade(1)", outputs=[stream("1. no\n")]),
        new_markdown("more to do\n\n## Why\n\nBecause."),
        new_code("predict(1)", outputs=[stream(asked)]),
    )
    assert reading(whole) == Reading(words=1 + 4 + 2, code=1, output=1)
    plainly = notebook(new_markdown("## The exercise that we did"), new_code("a = 1"))
    assert reading(plainly) == Reading(words=5, code=1)
