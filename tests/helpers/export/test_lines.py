"""Templates of exported code: which lines a mark includes."""

import pytest

from helpers.export.lines import chosen

TEMPLATE = """\
import a  # [best]
b = (  # [not best]
    2,
)
(c,) = b

# What f returns.  // [best]
static int f(
    d,
)
{

    return d;
}

int x = 1;  // of g  // [not best]
"""


@pytest.mark.parametrize(
    ("properties", "left_out"), [({"best"}, (1, 2, 3, 15)), ({"late"}, (0, *range(5, 14)))]
)
def test_a_mark_includes_indented_lines_and_brackets(properties, left_out) -> None:
    lines = TEMPLATE.replace("  # [best]", "").replace("  # [not best]", "")
    lines = lines.replace("  // [best]", "").replace("  // [not best]", "").splitlines()
    kept = [line for number, line in enumerate(lines) if number not in left_out]
    assert chosen(TEMPLATE, properties).splitlines() == kept
