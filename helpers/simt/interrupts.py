"""Ctrl-C while the command `simt` is imported, which takes longer than its start otherwise would.

NumPy turns the exception of Ctrl-C into an error of its own, or loses it. So until the command has
begun, Ctrl-C ends the process at once, as it does a program in C. Where the machine is used as a
library nothing changes.
"""

from __future__ import annotations

import os
import signal
import sys

_handler = None


def _is_command() -> bool:
    """Whether this process is `simt` or `python -m simt`."""
    if sys.argv[0] == "-m":  # which Python says while it looks for the module to run
        following = sys.orig_argv[sys.orig_argv.index("-m") + 1 :] if "-m" in sys.orig_argv else []
        return following[:1] == [__package__]
    return os.path.basename(sys.argv[0]) in ("simt", "simt.exe")


def command_begins() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again."""
    if _handler is not None:
        signal.signal(signal.SIGINT, _handler)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    _handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
