"""Open the series in JupyterLab: `make lab`. What is opened is the reader's own copy, in mine/.

mine/ mirrors notebooks/ at the same depth below the root, so that imports and links work from
both, and git ignores it. Where a notebook asks for a prediction, the copy shows no measurement: its
cells from "How fast" on have no output until the reader runs them. A copy whose cells the reader
has not edited is renewed when the committed notebook changes; an edited one stays. The committed
notebooks can be opened there too, but not saved. All arguments go to JupyterLab.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from nbformat.sign import NotebookNotary
from tornado.web import HTTPError

from ..base.json_files import read_json, typed, write_json
from ..base.paths import MINE, NOTEBOOKS, ROOT, core_notebooks, deeper_notebooks

FIRST = "00_the_limit.ipynb"
STATE = ".copies.json"  # in mine/: page -> hash of its cells, hash of the whole file
HIDDEN = "Not shown before your prediction. Run this cell to see its output.\n"
HEADING = re.compile(r"^## (How fast|Exercise)?", re.MULTILINE)


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
    """Bring mine/ up to date with notebooks/; return what a reader should know, in sentences.

    Raises `OSError` if mine/ cannot be written.
    """
    (MINE / "kernels").mkdir(parents=True, exist_ok=True)  # where readers put theirs
    copied = known_copies()
    kept = [name for name, page in pages().items() if not copy(name, page, copied)]
    gone = [name for name in copied if name not in pages()]
    left = [name for name in gone if not forget(name, copied)]
    write_json(MINE / STATE, copied)
    sentences = []
    if kept:
        sentences.append(
            f"You edited these notebooks, and the series has newer ones: {', '.join(kept)}. Your "
            f"copies stay; to get the newer ones, rename or delete yours in {MINE.name}/ and run "
            "make lab again."
        )
    if left:
        sentences.append(
            f"No longer in the series; your edited copies stay in {MINE.name}/: {', '.join(left)}."
        )
    return sentences


def pages() -> dict[str, Path]:
    """Name in mine/ -> the committed file, of everything that a reader gets a copy of."""
    files = [*core_notebooks(), *deeper_notebooks(), NOTEBOOKS / "GLOSSARY.md"]
    return {path.relative_to(NOTEBOOKS).as_posix(): path for path in files}


def known_copies() -> dict[str, tuple[str, str]]:
    """What was copied last time; empty if that is not known."""
    try:
        return typed(MINE / STATE, read_json(MINE / STATE), dict[str, tuple[str, str]])
    except (FileNotFoundError, ValueError):
        return {}


def copy(name: str, page: Path, copied: dict[str, tuple[str, str]]) -> bool:
    """Copy a page to mine/ unless the reader edited their copy; False if an edited copy hides a
    newer page. A copy of the current page stays, with the outputs of the reader's own runs."""
    mine, cells, whole = MINE / name, cells_of(page), hash_of(page.read_bytes())
    cells_before, whole_before = copied.get(name, ("", ""))
    if mine.exists() and cells_of(mine) not in (cells, cells_before):
        return cells == cells_before
    if not mine.exists() or whole != whole_before:
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_bytes(without_measurements(page))
        copied[name] = cells, whole
        trust(page)
    trust(mine)
    return True


def without_measurements(page: Path) -> bytes:
    """The content of a page. Where it asks for a prediction, a sentence replaces the outputs of the
    cells from "How fast" on, except those of exercises."""
    notebook = nbformat.read(page, as_version=4) if page.suffix == ".ipynb" else None
    cells = notebook.cells if notebook else []
    if not any(re.search(r"^predict\(", cell.source, re.MULTILINE) for cell in cells):
        return page.read_bytes()
    timed = exercise = False
    for cell in cells:
        if cell.cell_type == "markdown":
            for kind in HEADING.findall(cell.source):
                timed, exercise = timed or kind == "How fast", kind == "Exercise"
        elif cell.get("outputs") and timed and not exercise:
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=HIDDEN)]
            cell.execution_count = None
    return nbformat.writes(notebook).encode() + b"\n"


def trust(page: Path) -> None:
    """Have JupyterLab show a notebook's tables and figures unchanged, as if they had been made
    here: whoever runs the series trusts it. Where signatures cannot be stored, some colours are
    lost."""
    if page.suffix == ".ipynb":
        NotebookNotary().sign(nbformat.read(page, as_version=4))


def forget(name: str, copied: dict[str, tuple[str, str]]) -> bool:
    """Remove the copy of a page that no longer exists; False if the reader edited it, so that it
    stays."""
    mine, (before, _) = MINE / name, copied.pop(name)
    if mine.exists() and cells_of(mine) != before:
        return False
    mine.unlink(missing_ok=True)
    return True


def cells_of(path: Path) -> str:
    """A hash of what a reader can edit: the cells of a notebook without outputs, since running,
    opening and saving it change the rest of the file; all of another file."""
    content = path.read_bytes()
    if path.suffix == ".ipynb":
        try:
            cells = json.loads(content)["cells"]
            content = repr([(one["cell_type"], "".join(one["source"])) for one in cells]).encode()
        except (ValueError, LookupError, TypeError):  # no notebook: its bytes are compared
            pass
    return hash_of(content)


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ---- in JupyterLab ----------------------------------------------------------------------------


class Contents(AsyncLargeFileManager):
    """Files as JupyterLab sees them: those of notebooks/ can be read and run, but not saved."""

    async def get(self, path, *arguments, **options):
        model = await super().get(path, *arguments, **options)
        if is_committed(path):
            model["writable"] = False  # so JupyterLab says so and does not autosave
        return model

    async def save(self, model, path=""):
        if is_committed(path):
            raise HTTPError(403, reason=f"This is the series itself: edit the copy in {MINE.name}/")
        return await super().save(model, path)


def is_committed(path: str) -> bool:
    return path.strip("/").split("/")[0] == NOTEBOOKS.name


if __name__ == "__main__":
    sys.exit(main())
