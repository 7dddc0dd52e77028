"""How long the notebooks take to read: `python -m helpers.commands.reading [NAME ...]`.

One line a notebook, core and deeper: the honest minutes that helpers/page/reading.py computes, what
the notebook states, and what is read in it. The exit status is 1 if one takes over 20 minutes or
states other minutes.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import astuple
from pathlib import Path

import nbformat

from ..base.paths import core_notebooks, deeper_notebooks
from ..page.reading import MOST_MINUTES, name_of, reading, stated
from ..page.tables import lines_of

COLUMNS = [("notebook", "<36"), ("minutes", ">8"), ("states", ">7")]
COLUMNS += [("words", ">6"), ("code", ">5"), ("output", ">7"), ("kernel: new", ">12")]
COLUMNS += [("known", ">6"), ("", "<10")]


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status: 0 if every notebook keeps its time and states it."""
    parser = argparse.ArgumentParser(prog="python -m helpers.commands.reading", description=__doc__)
    parser.add_argument("names", nargs="*", help="only notebooks, deeper ones too, that start so")
    names = tuple(parser.parse_args(arguments).names)
    paths = [
        path
        for path in (*core_notebooks(), *deeper_notebooks())
        if not names or path.name.startswith(names)
    ]
    if not paths:
        print(f"no notebook starts with {' or '.join(names)}", file=sys.stderr)
        return 2
    rows = [row(path) for path in paths]
    print("\n".join(lines_of(COLUMNS, rows)))
    return 1 if any(one[-1] for one in rows) else 0


def row(path: Path) -> list[str]:
    """A notebook's line of the table; the last cell says what is wrong, or nothing."""
    notebook = nbformat.read(path, as_version=4)
    name = name_of(path)
    found, says = reading(notebook), stated(notebook)
    wrong = "too long" if found.minutes > MOST_MINUTES else ""
    if not wrong and says != found.to_state:
        wrong = f"is {found.to_state}"
    counts = [str(number) for number in astuple(found)]
    return [name, f"{found.minutes:.1f}", str(says or "-"), *counts, wrong]


if __name__ == "__main__":
    sys.exit(main())
