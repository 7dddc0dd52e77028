"""Templates of exported code: which lines a mark includes."""

import pytest

from helpers.export.lines import chosen

PYTHON = """\
import a  # [best]
b = (  # [not best]
    2,
)
(c,) = b

# What f returns.  # [best]
def f(
    d,
):

    return d


def g():
    return (1, 2)  # a comment
"""
CPP = """\
// About f.  // [best]
static int f()
{
    return 1;
}

int x = 1;  // of g  // [not best]
int g() { return x; }
"""


@pytest.mark.parametrize(
    ("template", "properties", "left_out"),
    [
        (PYTHON, {"best"}, (1, 2, 3)),
        (PYTHON, {"late"}, (0, *range(5, 12))),
        (CPP, {"best"}, (6,)),
        (CPP, set(), (0, 1, 2, 3, 4)),
    ],
)
def test_a_mark_includes_indented_lines_and_brackets(template, properties, left_out) -> None:
    lines = template.replace("  # [best]", "").replace("  # [not best]", "")
    lines = lines.replace("  // [best]", "").replace("  // [not best]", "").splitlines()
    kept = [line for number, line in enumerate(lines) if number not in left_out]
    assert chosen(template, properties).splitlines() == kept


def test_an_unknown_mark_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"marks must be one of .*, got # \[end\]"):
        chosen("a = 1\n# [end]\n", {"best"})
