"""A writable home folder, which Jupyter, IPython, CuPy and matplotlib expect."""

from __future__ import annotations

import atexit
import os
import shutil
import site
import tempfile

# Where they write below it, and where compiled kernels are cached. A missing one can be created.
FOLDERS = (".cache", ".config", ".cupy", ".ipython", ".jupyter")
FOLDERS += (".local", ".local/share", ".local/share/jupyter")
XDG = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")


def stand_in_for_home() -> str:
    """If the home folder is missing or not writable, set HOME to a temporary folder for this
    process and its children; the folder is removed when this process ends.

    Returns a sentence that says so, or "" if nothing was necessary. Does nothing on Windows.
    """
    wrong = unwritable_home() if os.name == "posix" else ""
    if not wrong:
        return ""
    os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())  # packages installed in the old one
    for name in XDG:
        if not writable(os.environ.get(name, "")):
            os.environ.pop(name, None)
    folder = os.environ["HOME"] = tempfile.mkdtemp(prefix="softmax-worklog-")
    made_by = os.getpid()

    def remove() -> None:
        if os.getpid() == made_by:  # not a fork of it
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return (
        f"{wrong} is not there or cannot be written, so caches and settings are kept in a "
        "temporary folder and then lost: set HOME to a folder of yours, or SOFTMAX_CACHE_DIR for "
        "compiled kernels alone."
    )


def unwritable_home() -> str:
    """The home folder, or the first folder in it that should be writable and is not; "" if there is
    none."""
    home = os.path.expanduser("~")
    if not writable(home):
        return home
    inside = [os.path.join(home, name) for name in FOLDERS]
    return next((path for path in inside if os.path.lexists(path) and not writable(path)), "")


def writable(folder: str) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
