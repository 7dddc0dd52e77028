"""Command-line entry points: `python -m helpers.commands.NAME`. No other package imports them."""

import sys

from ..base import lean  # noqa: F401
from ..base.home import ensure_writable_home

if sentence := ensure_writable_home():  # before a command imports CuPy, which fails without a home
    print(sentence, file=sys.stderr, flush=True)
