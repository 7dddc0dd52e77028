"""Command-line entry points: `python -m helpers.commands.NAME`. No other package imports them.

CuPy and Jupyter need a writable home folder: a temporary one replaces it where it is missing or
read-only, as in some containers. Ctrl-C ends a command with one line, and without any while
`helpers` is imported.
"""

from __future__ import annotations

import os
import signal
import site
import sys
import tempfile

from ..base import lean  # noqa: F401

home = os.path.expanduser("~")
if os.name == "posix" and not (os.path.isdir(home) and os.access(home, os.W_OK | os.X_OK)):
    os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())  # packages of the old one
    for name in "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME":
        os.environ.pop(name, None)
    stand_in = tempfile.TemporaryDirectory(prefix="softmax-worklog-")  # until this process ends
    os.environ["HOME"] = stand_in.name
    print(
        f"{home} is missing or not writable, so caches and settings are lost afterwards: set HOME "
        "to a writable folder, or SOFTMAX_CACHE_DIR to keep only compiled kernels.",
        file=sys.stderr,
        flush=True,
    )


def say(kind: type[BaseException], *error: object) -> None:
    """Report an unhandled error."""
    if issubclass(kind, KeyboardInterrupt):
        print("\ninterrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, *error)


if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # by helpers, while it was imported
    signal.signal(signal.SIGINT, signal.default_int_handler)
sys.excepthook = say
