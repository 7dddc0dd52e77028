"""Open the series in JupyterLab: `make lab`. What is opened is the reader's own copy, in mine/.

mine/ mirrors notebooks/ at the same depth below the root, so that imports and links work from
both, and git ignores it. A copy that its reader never changed follows the committed notebook; one
that they changed stays as it is. The committed notebooks can be opened there too, not written.
All arguments go to JupyterLab.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from nbformat.sign import NotebookNotary
from tornado.web import HTTPError

from ..base.json_files import read_json, write_json
from ..base.paths import MINE, NOTEBOOKS, ROOT, core_notebooks, deeper_notebooks
from ..page.notebooks import NO_NOTEBOOK, text_of

FIRST = "00_the_limit.ipynb"
STATE = ".copied.json"  # in mine/: page -> fingerprint of what was copied


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status when JupyterLab has ended."""
    from jupyterlab.labapp import LabApp

    try:
        for sentence in refresh():
            print(sentence, flush=True)
    except OSError as error:
        print(f"{error.filename or MINE} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    options = [
        f"--ServerApp.root_dir={ROOT}",
        f"--ServerApp.contents_manager_class=helpers.commands.lab.{Contents.__name__}",
        f"--LabApp.default_url=/lab/tree/{MINE.name}/{FIRST}",
    ]
    LabApp.launch_instance([*options, *(sys.argv[1:] if arguments is None else arguments)])
    return 0


# ---- copies -----------------------------------------------------------------------------------


def refresh() -> list[str]:
    """Bring mine/ up to date with notebooks/; returns what a reader should know, in sentences.

    Raises `OSError` if mine/ cannot be written.
    """
    copied = known_copies()
    kept = [name for name, page in pages().items() if not copy(name, page, copied)]
    gone = [name for name in copied if name not in pages()]
    left = [name for name in gone if not forget(name, copied)]
    write_json(MINE / STATE, copied)
    sentences = []
    if kept:
        sentences.append(
            f"Newer than your copies, which you changed and which stay: {names_of(kept)}; to get "
            f"the new ones, rename or delete yours in {MINE.name}/ and run make lab again."
        )
    if left:
        sentences.append(
            f"No longer in the series; your changed copies stay in {MINE.name}/: {names_of(left)}."
        )
    return sentences


def pages() -> dict[str, Path]:
    """Name in mine/ -> the committed file, of everything that a reader gets a copy of."""
    files = [*core_notebooks(), *deeper_notebooks(), NOTEBOOKS / "GLOSSARY.md"]
    return {path.relative_to(NOTEBOOKS).as_posix(): path for path in files}


def known_copies() -> dict[str, str]:
    """What was copied last time; nothing if that is not known."""
    try:
        return read_json(MINE / STATE)
    except (FileNotFoundError, ValueError):
        return {}


def copy(name: str, page: Path, copied: dict[str, str]) -> bool:
    """Copy a page to mine/ unless its reader changed theirs; False if that hides a newer one."""
    mine, new = MINE / name, fingerprint(page)
    if mine.exists() and fingerprint(mine) not in (new, copied.get(name)):
        return copied.get(name) == new
    if not mine.exists() or mine.read_bytes() != page.read_bytes():
        mine.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, mine)
    trust(mine)
    copied[name] = new
    return True


def trust(copy: Path) -> None:
    """Have JupyterLab show a copy's tables and figures as they are, as if they had been made here:
    who runs the series trusts it. Where signatures cannot be kept it leaves out some colour."""
    if copy.suffix == ".ipynb":
        NotebookNotary().sign(nbformat.read(copy, as_version=4))


def forget(name: str, copied: dict[str, str]) -> bool:
    """Remove the copy of a page that is no more; False if its reader changed it, so that it
    stays."""
    mine, before = MINE / name, copied.pop(name)
    if mine.exists() and fingerprint(mine) != before:
        return False
    mine.unlink(missing_ok=True)
    return True


def fingerprint(path: Path) -> str:
    """A hash of what a reader reads: of a notebook its sources and outputs without pixels, since
    opening and saving one alters the rest of the file."""
    content = path.read_bytes()
    if path.suffix == ".ipynb":
        try:
            notebook = nbformat.reads(content.decode(), as_version=4)
            content = json.dumps(text_of(notebook), sort_keys=True).encode()
        except NO_NOTEBOOK:  # its bytes will do
            pass
    return hashlib.sha256(content).hexdigest()


def names_of(names: Sequence[str]) -> str:
    return ", ".join(names)


# ---- in JupyterLab ----------------------------------------------------------------------------


class Contents(AsyncLargeFileManager):
    """Files as JupyterLab sees them: those of notebooks/ can be read and run, not written."""

    async def get(self, path, *arguments, **options):
        model = await super().get(path, *arguments, **options)
        if is_committed(path):
            model["writable"] = False  # JupyterLab says so, and does not save by itself
        return model

    async def save(self, model, path=""):
        if is_committed(path):
            raise HTTPError(403, reason=f"This is the series itself: write in {MINE.name}/")
        return await super().save(model, path)


def is_committed(path: str) -> bool:
    return path.strip("/").split("/")[0] == NOTEBOOKS.name


if __name__ == "__main__":
    sys.exit(main())
