"""Run a command so that Ctrl-C ends it with one line, even while Python still imports it.

    python helpers/commands/stoppable.py run --all

Make reports a status other than 0 in a line of its own. Interrupted, it ends by the signal whatever
the status is, so under make it is 0; else it is 130, as a shell has it.
"""

import importlib
import os
import runpy
import signal
import sys
import time

STATUS = 0 if "MAKELEVEL" in os.environ else 130


def stop(*_: object) -> None:
    """End here and now: what is being imported, or tidied away, may swallow a KeyboardInterrupt."""
    say()
    os._exit(STATUS)


def say() -> None:
    time.sleep(0.2)  # make got the signal too, and is confused if its child ends before it looks
    print("\ninterrupted" if sys.stdout.isatty() else "interrupted", file=sys.stderr, flush=True)


def unraisable(info) -> None:
    """What Python does with an exception that it can raise nowhere."""
    if issubclass(info.exc_type, KeyboardInterrupt):
        stop()
    sys.__unraisablehook__(info)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, stop)
    sys.unraisablehook = unraisable
    _, name, *arguments = sys.argv
    sys.path[0] = os.path.dirname(os.path.dirname(sys.path[0]))  # the root, as with python -m
    sys.argv[1:] = arguments
    try:
        importlib.import_module("helpers")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        runpy.run_module(f"helpers.commands.{name}", run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        say()
        sys.exit(STATUS)
