"""Places in a kernel's source: how a message names them, the lines around one, and exceptions that
a notebook shows with those lines and without a traceback.
"""

from __future__ import annotations

import contextlib
import functools
import re
import textwrap
from collections.abc import Iterator

# kernels/03_shared.cu:52 of ours and kernels/03_shared.cu(52) of NVRTC
PLACE = re.compile(r"(?P<file>[\w./-]+)(:(?P<ours>\d+):|\((?P<nvrtc>\d+)\):)")
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"


def short_name(path: str) -> str:
    """A source file as messages name it: from `kernels/` on, or its last part."""
    cut = path.rfind("kernels/")
    return path[cut:] if cut >= 0 else path.rsplit("/", 1)[-1]


def own_file(code: str) -> str:
    """The name of the kernel's own source as messages have it."""
    named = re.match(r'#line 1 "(.*)"', code)
    return short_name(named[1]) if named else "kernel.cu"


@functools.lru_cache(maxsize=64)
def lines_of(code: str) -> dict[str, dict[int, str]]:
    """The lines of each file of a source by number, as its `#line` directives have them; the
    kernel's own file comes first. An `#include` that was resolved is a comment in the source."""
    file, number = "kernel.cu", 1
    found: dict[str, dict[int, str]] = {}
    for line in code.splitlines():
        if not (named := re.match(r'#line (\d+) "(.*)"', line)):
            found.setdefault(file, {})[number] = re.sub(r"^// (?=#include )", "", line)
            number += 1
            continue
        number, file = int(named[1]), short_name(named[2])
    return found


def around(code: str, file: str, line: int, reach: int = 2) -> list[tuple[int, str]]:
    """(number, text) of a line and of `reach` lines before and after it; none of a file that the
    source does not contain."""
    numbered = lines_of(code).get(short_name(file), {})
    if line not in numbered:
        return []
    near = range(max(line - reach, 1), line + reach + 1)
    return [(number, numbered[number]) for number in near if number in numbered]


class ShownShort(Exception):
    """A base before the exception's own: in a notebook the message stands without a traceback, and
    under the first two places that it names the lines around them."""

    MOST = 2
    # What NVRTC says beside its errors: the line again with a caret below it, warnings, a sum.
    NOISE = re.compile(
        r"^.*\n *\^ *$|^.*\): warning .*$|^Remark: .*$|^\d+ errors? detected in .*$", re.MULTILINE
    )

    def __init__(self, message: str, code: str = ""):
        """`code` is the source in which the places are."""
        super().__init__(message)
        self.code = code

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython prints."""
        name = type(self).__name__
        shown: list[str] = []
        places: list[tuple[str, str]] = []
        for text in self.NOISE.sub("", f"{name}: {self}").splitlines():
            found = PLACE.search(text)
            place = (found["file"], found["ours"] or found["nvrtc"]) if found else ("", "0")
            near = around(self.code, place[0], int(place[1]))
            again = place in places[-1:]
            if near and not again:
                places.append(place)
            if not text.strip() or len(places) > self.MOST:
                continue
            shown += textwrap.wrap(text, 80, subsequent_indent="    ", break_on_hyphens=False)
            shown += [] if again else excerpt(near, int(place[1]))
        if len(places) > self.MOST:
            shown.append(f"and {len(places) - self.MOST} more")
        shown[0] = shown[0].replace(name, f"{BOLD}{name}{PLAIN}", 1)
        return shown


def excerpt(near: list[tuple[int, str]], line: int) -> list[str]:
    """Lines with their numbers, that of the place in bold behind its mark."""
    wide = len(str(near[-1][0])) if near else 0
    return [
        f"{BOLD}  {number:>{wide}} > {text}{PLAIN}"
        if number == line
        else f"  {number:>{wide}}   {text}".rstrip()
        for number, text in near
    ]


@contextlib.contextmanager
def citing(code: str) -> Iterator[None]:
    """Errors that name places in this source know it."""
    try:
        yield
    except ShownShort as error:
        error.code = error.code or code
        raise
