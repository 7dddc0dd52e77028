"""Paths of the repository's folders and notebooks, and its public URL."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
NOTEBOOKS = ROOT / "notebooks"
RECORDS = NOTEBOOKS / "records"
MINE = ROOT / "mine"  # the reader's own files, ignored by git
BUILD = ROOT / "build"  # files that commands write, ignored by git
REPO_URL = ""  # the only place that defines the repository's public URL; empty until it has one


def core_notebooks() -> list[Path]:
    """Return the notebooks of the series, in order."""
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


def deeper_notebooks() -> list[Path]:
    """Return the notebooks that answer one question each, in the order of their steps."""
    return sorted(NOTEBOOKS.glob("deeper/[0-9][0-9]_*.ipynb"))
