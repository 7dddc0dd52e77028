"""Command-line entry points: `python -m helpers.commands.NAME`. No other package imports them.

Jupyter, IPython, CuPy and matplotlib need a writable home folder. A missing or read-only one is
replaced before a command imports them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import site
import sys
import tempfile

from ..base import lean  # noqa: F401

# The subfolders that they write to. A missing one is no problem: they can create it.
FOLDERS = (".cache", ".config", ".cupy", ".ipython", ".jupyter")
FOLDERS += (".local", ".local/share", ".local/share/jupyter")
XDG = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")


def ensure_writable_home() -> str:
    """Replace a missing or read-only home folder: set HOME to a temporary folder for this process
    and its child processes. The folder is deleted when this process ends.

    Return a sentence for the user, or "" if HOME is unchanged, as it always is on Windows.
    """
    unwritable = unwritable_home() if os.name == "posix" else ""
    if not unwritable:
        return ""
    os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())  # packages of the old one
    for name in XDG:
        if not writable(os.environ.get(name, "")):
            os.environ.pop(name, None)
    folder = os.environ["HOME"] = tempfile.mkdtemp(prefix="softmax-worklog-")
    creator = os.getpid()

    def remove() -> None:
        if os.getpid() == creator:  # not in a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return (
        f"{unwritable} is missing or not writable, so caches and settings go to a temporary "
        "folder and are lost afterwards; set HOME to a writable folder, or SOFTMAX_CACHE_DIR to "
        "keep only compiled kernels."
    )


def unwritable_home() -> str:
    """Return the home folder if it is not writable, else the first existing one of `FOLDERS` in it
    that is not; "" if all are."""
    home = os.path.expanduser("~")
    if not writable(home):
        return home
    inside = [os.path.join(home, name) for name in FOLDERS]
    return next((path for path in inside if os.path.lexists(path) and not writable(path)), "")


def writable(folder: str) -> bool:
    """Return whether a folder exists and files can be created in it."""
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


if sentence := ensure_writable_home():  # before a command imports CuPy, which fails without a home
    print(sentence, file=sys.stderr, flush=True)
