"""Where things are: folders of the repository, its notebooks, and its public address."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
NOTEBOOKS = ROOT / "notebooks"
RECORDS = NOTEBOOKS / "records"
MINE = ROOT / "mine"  # what belongs to a reader, which git ignores
BUILD = ROOT / "build"  # what commands write and git ignores
REPO_URL = ""  # the one place for the repository's public address; empty until there is one


def core_notebooks() -> list[Path]:
    """The series itself, in order."""
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


def deeper_notebooks() -> list[Path]:
    """One question each, in order of the step where it comes up."""
    return sorted(NOTEBOOKS.glob("deeper/[0-9][0-9]_*.ipynb"))
