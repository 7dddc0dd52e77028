"""Command-line entry points: `python -m helpers.commands.NAME`. No other package imports them.

Jupyter, IPython, CuPy and matplotlib need a writable home folder. A missing or read-only one is
replaced before a command imports them. Ctrl-C ends a command with one line.
"""

from __future__ import annotations

import atexit
import os
import shutil
import site
import sys
import tempfile

from ..base import lean  # noqa: F401

XDG = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")


def ensure_writable_home() -> str:
    """If the home folder is missing or read-only, set HOME to a temporary folder for this process
    and its child processes, which is deleted when this process ends.

    Return a sentence for the user, or "" if HOME is unchanged, as it always is on Windows.
    """
    home = os.path.expanduser("~")
    if os.name != "posix" or (os.path.isdir(home) and os.access(home, os.W_OK | os.X_OK)):
        return ""
    os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())  # packages of the old one
    for name in XDG:
        os.environ.pop(name, None)
    folder = os.environ["HOME"] = tempfile.mkdtemp(prefix="softmax-worklog-")
    creator = os.getpid()

    def remove() -> None:
        if os.getpid() == creator:  # not in a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return (
        f"{home} is missing or not writable, so caches and settings go to a temporary folder and "
        "are lost afterwards; set HOME to a writable folder, or SOFTMAX_CACHE_DIR to keep only "
        "compiled kernels."
    )


if sentence := ensure_writable_home():  # before a command imports CuPy, which fails without a home
    print(sentence, file=sys.stderr, flush=True)


def _say(kind: type[BaseException], *error: object) -> None:
    if issubclass(kind, KeyboardInterrupt):
        print("\ninterrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, *error)


sys.excepthook = _say
