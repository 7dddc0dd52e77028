"""The reader's own files in mine/: kernels that replace those of the series, and links to files.

Both exist only in a notebook that runs in mine/. Committed outputs, tests, records, measurements
and exports use `catalogue.registry`, which never looks there.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..base.arguments import checked
from ..base.gpu import replay_is_forced
from ..base.paths import KERNELS, MINE, ROOT
from ..catalogue import registry
from .rich import escape


@checked
def source(name: str) -> str:
    """Return the source of a kernel file for `cupy.RawKernel`, with the files of `kernels/include/`
    that it includes.

    `name` is a path below `kernels/`, such as "01_naive.cu". In a notebook of mine/, the file of
    that name in `mine/kernels/` takes its place, if there is one. `#line` directives precede the
    text of each file, so that a compiler error names the file and its line.

    Raises `FileNotFoundError`, which lists the kernel files in that folder.
    """
    text, own = registry.source(name), own_kernel(name)
    if not own.is_file() or not in_own_notebook():
        return text
    text = registry.resolved(
        name, lambda file: (own if file == name else KERNELS / file).read_text(encoding="utf-8")
    )
    return text.replace(f'"kernels/{name}"', f'"{named(own)}"')  # in its #line directives


def in_own_notebook() -> bool:
    """Whether this process runs a notebook of mine/, and no forced replay."""
    return not replay_is_forced() and Path.cwd().is_relative_to(MINE.resolve())


def own_kernel(name: str) -> Path:
    """The file that replaces kernels/<name>, whether or not it exists."""
    return MINE / "kernels" / name


def note(file: str) -> tuple[str, str]:
    """What a listing of `file`, "kernels/01_naive.cu", says in a notebook of mine/, as text and as
    HTML: that the kernel is the reader's, or how to change it. Empty elsewhere."""
    name = file.removeprefix("kernels/")
    if name == file or not in_own_notebook():
        return "", ""
    own = own_kernel(name)
    if own.is_file():
        before, behind = "yours: ", "; delete it to return"
    else:
        before, behind = f"to change this kernel, copy {file} to ", ""
    return f"{before}{named(own)}{behind}", f"{before}{anchor(own)}{behind}"


def named(path: Path) -> str:
    """A file of this repository as text: its path from the root."""
    return path.relative_to(ROOT).as_posix()


def anchor(path: Path, line: int | None = None, text: str = "") -> str:
    """HTML that opens an existing file, at a line from 1 on, when it is clicked in JupyterLab;
    `text` is by default the file's name. It is plain text if the file does not exist, and in a
    forced replay, since committed outputs are read from more than one folder."""
    text = escape(text or named(path))
    if replay_is_forced() or not path.is_file():
        return text
    try:
        address = Path(os.path.relpath(path, Path.cwd())).as_posix()
    except ValueError:  # on another drive of Windows
        return text
    at = f"#line={line - 1}" if line else ""  # JupyterLab counts from zero
    return f'<a href="{address}{at}">{text}</a>'
