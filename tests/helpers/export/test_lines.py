"""Templates of exported code: which lines a mark includes."""

import pytest

from helpers.export.lines import chosen

PYTHON = """\
import a  # [one]
b = (  # [not one]
    2,
)
(c,) = b

# What f returns.  # [one]
def f(
    d,
):

    return d


def g():
    return (1, 2)  # a comment
"""
CPP = """\
// About f.  // [one]
static int f()
{
    return 1;
}

int x = 1;  // of g  // [not one]
int g() { return x; }
"""


@pytest.mark.parametrize(
    ("template", "properties", "left_out"),
    [
        (PYTHON, {"one"}, (1, 2, 3)),
        (PYTHON, {"two"}, (0, *range(5, 12))),
        (CPP, {"one"}, (6,)),
        (CPP, set(), (0, 1, 2, 3, 4)),
    ],
)
def test_a_mark_includes_indented_lines_and_brackets(template, properties, left_out) -> None:
    lines = template.replace("  # [one]", "").replace("  # [not one]", "")
    lines = lines.replace("  // [one]", "").replace("  // [not one]", "").splitlines()
    kept = [line for number, line in enumerate(lines) if number not in left_out]
    assert chosen(template, properties).splitlines() == kept
