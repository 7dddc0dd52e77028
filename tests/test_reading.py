"""How long a notebook takes to read: what counts as what, on made-up notebooks."""

import nbformat
import pytest

from tests.reading import Reading, reading, words_of

new_markdown = nbformat.v4.new_markdown_cell
new_code = nbformat.v4.new_code_cell
new_output = nbformat.v4.new_output


def stream(text: str):
    return new_output("stream", name="stdout", text=text)


@pytest.mark.parametrize(("words", "minutes"), [(1, 5), (500, 5), (501, 10), (1000, 10)])
def test_a_notebook_states_its_minutes_rounded_up_to_five(words: int, minutes: int) -> None:
    found = Reading(words=words)
    assert found.to_state == minutes and found.fits(minutes)
    assert found.fits(minutes + 5) == (words in (500, 1000))
    assert not found.fits(minutes - 5) and not found.fits(minutes + 10) and not found.fits(None)


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
        ("$x_i - m$ columns", 3),
        ("Two words.\n```python\nx = 1\n```", 2),
    ],
)
def test_words_of_prose(text: str, words: int) -> None:
    assert words_of(text) == words


def test_exercises_folded_predictions_and_figures_are_outside() -> None:
    asked = "What share?\nOur prediction, with its calculation: 0.5 of a copy.\n  1 / 2 = 0.5\n"
    data = {"text/html": "<p>1<p>2", "text/plain": "verdict\n\nof two lines"}
    figure = {"image/png": "iVBO", "text/plain": "<figure: The plot>"}
    cells = [
        new_markdown("# T\n\nfour words of prose\n```python\nx = 1\n```\n## Exercises\n\nMend it."),
        new_code("grade(1)", outputs=[stream("1. no\n")]),
        new_markdown("more to do\n\n## Why\n\nBecause."),
        new_code("predict(1)\n\n", outputs=[stream(asked)]),
        new_markdown("## The exercise that we did"),
        new_code(
            "a = 1",
            outputs=[new_output("display_data", data=one) for one in (data, figure)],
        ),
    ]
    whole = nbformat.v4.new_notebook(cells=cells)
    assert reading(whole) == Reading(words=1 + 4 + 2 + 5, code=3, output=1 + 2)
