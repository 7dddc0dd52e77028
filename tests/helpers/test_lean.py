"""What reads notebooks imports no grammar, and finds the same faults in them."""

import subprocess
import sys

import pytest

from helpers import lean
from helpers.paths import ROOT

pytest.importorskip("nbformat")  # not where kernels are only recorded and tested

READS = """
import sys, runpy
if {lean}: runpy.run_path({file!r})
nbformat = __import__("nbformat")
page = nbformat.v4.new_notebook()
page.cells.append({{"cell_type": "markdown"}})
try: nbformat.validate(page)
except nbformat.ValidationError as error: print(error.message)
print("lark" in sys.modules)
"""


def read(without_grammar: bool) -> list[str]:
    code = READS.format(lean=without_grammar, file=lean.__file__)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.split("\n")


def test_the_grammar_is_left_out_and_notebooks_are_checked() -> None:
    fault, grammar, _ = read(without_grammar=True)
    assert "'metadata' is a required property" in fault and grammar == "False"


def test_commands_leave_it_out_first() -> None:
    """Before they import what reads notebooks."""
    code = (ROOT / "helpers/commands/__init__.py").read_text("utf-8")
    assert code.index("lean") < code.index("home")
