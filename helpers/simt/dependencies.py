"""Which headers NVRTC read for a kernel, and whether they are still the same.

The compiler says what it read: the trace of its time (`--fdevice-time-trace`) names each header
that it processed, however the source spelled its name. A header counts by its content and by the
place of its folder in the search list, not by that folder's path, so that clones share results.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

FIRST = "__nv_nvrtc_builtin_header.h"  # is part of NVRTC
EVENT = "Processing Header File"
SETTLED = 2_000_000_000  # nanoseconds
Read = tuple[int, str]  # number of the folder in the search list, path in it; -1: a path


def headers_read(trace: Path) -> list[str] | None:
    """The paths of the headers that NVRTC read; None if it does not say."""
    try:
        events = json.loads(trace.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
        names = [one["args"]["detail"] for one in events if one.get("name") == EVENT]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if FIRST not in names:
        return None
    return [os.path.normpath(name) for name in dict.fromkeys(names) if name != FIRST]


def placed(headers: Sequence[str], folders: Sequence[str]) -> list[Read]:
    """Each header by its place in the search list."""
    roots = [os.path.join(os.path.abspath(folder), "") for folder in folders]
    found = []
    for header in map(os.path.abspath, headers):
        inside = [number for number, root in enumerate(roots) if header.startswith(root)]
        number = max(inside, key=lambda one: len(roots[one]), default=-1)
        name = header[len(roots[number]) :] if inside else header
        found.append((number, name.replace(os.sep, "/")))
    return found


def state(reads: Sequence[Read], folders: Sequence[str], users: int) -> str | None:
    """A hash of what these headers hold now, and of which files by their names there are in the
    first `users` folders, where one could come before them. None if one cannot be read."""
    digest = hashlib.sha256()
    own = [name for number, name in reads if number < users]
    beside = {(number, os.path.dirname(name)) for number, name in reads if number < users}
    for number, name in reads:
        path = os.path.join(folders[number], name) if number >= 0 else name
        content = content_hash(path)
        if content is None:
            return None
        digest.update(f"{number} {name} {content}\n".encode())
        for folder in folders[:users]:
            digest.update(b"1" if os.path.isfile(os.path.join(folder, name)) else b"0")
    for number, part in sorted(beside):
        place = os.path.join(folders[number] if number >= 0 else "", part)
        for name in own:
            digest.update(b"1" if os.path.isfile(os.path.join(place, name)) else b"0")
    return digest.hexdigest()


def content_hash(path: str) -> str | None:
    """Of a regular file; None if it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not os.path.isfile(path):
        return None
    if time.time_ns() - status.st_mtime_ns < SETTLED:  # it may change and keep its time
        return _hashed.__wrapped__(path)
    return _hashed(path, status.st_mtime_ns, status.st_size, status.st_ino)


@functools.lru_cache(maxsize=4096)
def _hashed(path: str, *_changed: int) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None
