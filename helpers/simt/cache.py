"""Compiled kernels on disk: found by a key, whole or not at all, the oldest out first.

An entry is a file `KEY.SUFFIX`: a body and its checksum. Nothing here trusts the folder: what is no
regular file of this user, or is damaged, is as good as absent, and is never waited for.

A result also depends on what NVRTC could read for a kernel. Every `#include` of the text counts,
and every one of the headers found, whatever the conditions around it, and of all files with that
name, wherever NVRTC searches: what it reads is among them. A header counts by its content and by
its place in the search, not by its path, so that clones share results. The headers of CUDA are not
read: they count by the versions of their packages, and are taken to ask for no header but their own
and those of the host.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

LIMIT = 512 << 20  # bytes of all entries
KEPT = 3 / 4  # of them, once they were too many
ABANDONED = 3600  # seconds after which a temporary file's writer is gone
TRIM_EVERY = 64  # entries that a process writes

ENTRY = re.compile(r"[0-9a-f]{64}\.(ptx|cubin)")
TEMPORARY = "writing-"
_written = 0  # by this process


def cache_folder() -> Path | None:
    """Where compiled kernels are kept: `$SOFTMAX_CACHE_DIR`, by default below `~/.cache`; None for
    a user without a home."""
    chosen = os.environ.get("SOFTMAX_CACHE_DIR")
    if chosen:
        return Path(chosen)
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # no HOME, and no such user
        return None
    return Path(base) / "softmax-worklog"


def read(name: str) -> bytes | None:
    """The body of an entry, `KEY.SUFFIX`; None if there is none, or none that can be trusted."""
    folder = cache_folder()
    if folder is None:
        return None
    # A FIFO would wait for a writer, a link may lead anywhere.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        with open(os.open(folder / name, flags | getattr(os, "O_BINARY", 0)), "rb") as file:
            if not _ours(os.fstat(file.fileno())):
                return None
            content = file.read()
        with contextlib.suppress(OSError):
            os.utime(folder / name)  # the youngest now
    except OSError:
        return None
    body, checksum = content[:-32], content[-32:]
    return body if hashlib.sha256(body).digest() == checksum else None


def write(name: str, body: bytes) -> None:
    """Keep an entry; a folder that cannot be written to is no error, only slower."""
    global _written
    folder = cache_folder()
    if folder is None:
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        put(folder / name, body + hashlib.sha256(body).digest(), TEMPORARY)
    except OSError:
        return
    if _written % TRIM_EVERY == 0:
        trim(folder)
    _written += 1


def put(path: Path, content: bytes, prefix: str, mode: int = 0o600) -> None:
    """Write a file whole or not at all; until it is whole its name begins with `prefix`."""
    number, temporary = tempfile.mkstemp(dir=path.parent, prefix=prefix)
    try:
        with open(number, "wb") as file:
            file.write(content)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def trim(folder: Path, limit: int = LIMIT) -> None:
    """Remove the entries that were not used for longest, if they have more than `limit` bytes in
    all, and what writers left behind that were killed."""
    entries, temporaries = _files(folder)
    now = time.time()
    for path, status in temporaries:
        if now - status.st_mtime > ABANDONED:
            _remove(path)
    total = sum(status.st_size for _, status in entries)
    if total <= limit:
        return
    for path, status in sorted(entries, key=lambda entry: entry[1].st_mtime):
        if total <= KEPT * limit:
            break
        _remove(path)
        total -= status.st_size


def clear() -> None:
    """Remove all entries, and the folder if nothing else is in it."""
    folder = cache_folder()
    if folder is None:
        return
    for files in _files(folder):
        for path, _ in files:
            _remove(path)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _ours(status: os.stat_result) -> bool:
    """Whether it is a file that this user wrote, and nobody else may write to."""
    if not stat.S_ISREG(status.st_mode):
        return False
    return os.name != "posix" or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)


def _files(folder: Path) -> tuple[list, list]:
    """(entries, temporary files), each as (path, status); whatever else lies there is left out."""
    entries, temporaries = [], []
    try:
        with os.scandir(folder) as found:
            for one in found:
                with contextlib.suppress(OSError):
                    status = one.stat(follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode):
                        continue
                    if ENTRY.fullmatch(one.name):
                        entries.append((one.path, status))
                    elif one.name.startswith(TEMPORARY):
                        temporaries.append((one.path, status))
    except OSError:
        pass
    return entries, temporaries


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


# ---- what a kernel depends on -------------------------------------------------------------------


WORD = re.compile(r"include(?:_next)?\b")
NAME = re.compile(r'(?:\s|/\*(?:[^*]|\*(?!/))*\*/)*(?:<([^>\n]+)>|"([^"\n]+)")')
COMPUTED = ""  # a name that the preprocessor alone knows
OWN = Path(__file__).with_name("headers")  # what headers of CUDA may ask for outside of CUDA
HOST_HEADERS = sorted(os.listdir(OWN))


@functools.lru_cache(maxsize=1)
def own_headers() -> bytes:
    """A hash of them, which stay as they are in a process."""
    return hashlib.sha256(b"\n".join((OWN / name).read_bytes() for name in HOST_HEADERS)).digest()


def state(code: str, named: Sequence[str], folders: Sequence[str]) -> str | None:
    """A hash of all files that the text, a header of it or an option (`named`) asks for, in the
    working directory, which comes first, and the folders that are searched before those of CUDA.
    None if the preprocessor alone knows what is asked for, or a file cannot be read.
    """
    digest, met = hashlib.sha256(own_headers()), set()
    folders = [folder for folder in folders if folder != OWN.as_posix()]
    names = (*named, *asked_for(code))
    waiting = [(folders[0], (*names, *HOST_HEADERS) if names else ())]
    for home, names in waiting:
        if COMPUTED in names:
            return None
        for name in names:
            digest.update(f"\n{name}".encode())
            for path in (os.path.join(folder, name) for folder in (home, *folders)):
                content = b""
                if os.path.isfile(path):
                    inside = os.path.realpath(os.path.dirname(path))
                    try:
                        content = Path(path).read_bytes()
                    except OSError:
                        return None
                    if (inside, os.path.basename(path)) not in met:
                        met.add((inside, os.path.basename(path)))
                        waiting.append((inside, asked_for(content.decode(errors="replace"))))
                    content += b" is there"
                digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


@functools.lru_cache(maxsize=256)
def asked_for(text: str) -> tuple[str, ...]:
    """The names of files that a text includes or asks for, COMPUTED for some; a few more do not
    matter."""
    whole, names = text.replace("\\\r\n", "").replace("\\\n", ""), {}
    for word in WORD.finditer(whole):
        start, stop = word.span()
        line = whole[max(whole.rfind(end, 0, start) for end in "\r\n") + 1 : start]
        _, comment, last = line.rpartition("*/")
        question = line.endswith("has_")
        if question or last.strip() in ("#", "%:", *(("",) if comment else ())):
            bracket = question and whole[stop : stop + 1] == "("
            name = NAME.match(whole, stop + bracket)
            names[name[1] or name[2] if name else COMPUTED] = None
    return tuple(names)
