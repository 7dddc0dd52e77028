"""Where things are: folders of the repository, its notebooks, and its public address."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
NOTEBOOKS = ROOT / "notebooks"
RECORDS = NOTEBOOKS / "records"
MINE = ROOT / "mine"  # the reader's own files, ignored by git
BUILD = ROOT / "build"  # output of commands, ignored by git
REPO_URL = ""  # the public address of the repository, defined here only; empty until it exists


def core_notebooks() -> list[Path]:
    """The series itself, in order."""
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


def deeper_notebooks() -> list[Path]:
    """One question each, in order of the step where it comes up."""
    return sorted(NOTEBOOKS.glob("deeper/[0-9][0-9]_*.ipynb"))
