"""Where things are: the folders of the repository, and its public address."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "kernels"
NOTEBOOKS = ROOT / "notebooks"
RECORDS = NOTEBOOKS / "records"
MINE = ROOT / "mine"  # what belongs to a reader, which git ignores
BUILD = ROOT / "build"  # what commands write and git ignores
REPO_URL = ""  # the one place for the repository's public address; empty until there is one
