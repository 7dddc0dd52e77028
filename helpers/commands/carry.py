"""Keep the records of kernels whose text changed and whose machine code did not.

    python -m helpers.commands.carry REVISION [KERNEL ...]

A record belongs to the tokens of a kernel's text, so that any edit but one of comments and layout
hides it. This compares each kernel file with its text at a git revision, as the same NVRTC compiles
both for sm_90, at every build that is recorded: records of equal builds are those of the new text
from now on. It needs no GPU. The exit status is 1 if the machine code of a build differs; its
records then stay as they are, until it is measured again.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ..base.json_files import write_text
from ..base.paths import RECORDS, ROOT
from ..catalogue.plan import DTYPE_OPTIONS
from ..catalogue.registry import resolved, source, split_trial, steps, variants
from ..simt import compile_cubin
from ..simt.cuda_text import token_hash

Build = tuple[str, ...]  # compiler options
NO_BITS = 8  # the type of a section without contents


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.commands.carry",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("revision", help="the git revision that the records belong to")
    parser.add_argument(
        "kernels", nargs="*", metavar="KERNEL", help="such as 08_cluster; by default all"
    )
    options = parser.parse_args(arguments)
    known = [*steps(), *variants()]
    if unknown := [name for name in options.kernels if name not in known]:
        parser.error(f"no kernel {', '.join(unknown)}; there are: {', '.join(known)}")
    files = sorted(RECORDS.glob("*/*.jsonl"))
    recorded = builds_of(files)
    renamed: dict[str, str] = {}
    different: dict[str, list[Build]] = {}
    for name in options.kernels or known:
        before, now = text_at(options.revision, name), source(f"{name}.cu")
        if before is None or token_hash(before) == token_hash(now):
            continue
        builds = sorted(recorded.get(token_hash(before), ()))
        print(f"{name}: {len(builds)} builds", end="", flush=True)
        renamed[token_hash(before)] = token_hash(now)
        if changed := different_builds(before, now, builds):
            different[token_hash(before)] = changed
            print(f", {len(changed)} differ, the first with {' '.join(changed[0])}")
        else:
            print(", all equal")
    replace_hashes(files, renamed, different)
    return 1 if different else 0


def replace_hashes(
    files: Sequence[Path], renamed: Mapping[str, str], different: Mapping[str, Sequence[Build]]
) -> None:
    """Let the records of some texts be those of others: hash before -> hash now, but not those of
    the `different` builds of a text, nor those that do not say which build they are of."""
    pattern = re.compile("|".join(renamed) or "(?!)")

    def carried(line: str) -> str:
        if any(hash in line for hash in different):
            builds = [
                (hash, build) for hash, build in _builds(json.loads(line)) if hash in different
            ]
            if not builds or any(build in different[hash] for hash, build in builds):
                return line
        return pattern.sub(lambda match: renamed[match[0]], line)

    for path in files:
        text = path.read_text(encoding="utf-8")
        if (new := "".join(map(carried, text.splitlines(keepends=True)))) != text:
            write_text(path, new)


def different_builds(before: str, now: str, builds: Iterable[Build]) -> list[Build]:
    """The builds for which two texts compile to different machine code. Raises `CompileError`."""
    return [
        build
        for build in builds
        if machine_code(compile_cubin(before, build)) != machine_code(compile_cubin(now, build))
    ]


def text_at(revision: str, name: str) -> str | None:
    """The text of a kernel file, with what it includes, at a git revision; None if it was not
    there."""

    def read(file: str) -> str:
        command = ["git", "show", f"{revision}:kernels/{file}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise FileNotFoundError(done.stderr.strip())
        return done.stdout

    try:
        return resolved(f"{name}.cu", read)
    except FileNotFoundError:
        return None


def machine_code(cubin: bytes) -> dict[str, tuple]:
    """What a cubin makes of its kernels: for each section of code or of shared memory its contents,
    size and registers per thread. Other sections hold names, places in the source and parameters,
    which a kernel may have without reading them."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 58)
    # Of each section (ELF-64): name, type, flags, address, place, size, link, info, ...
    sections = [struct.unpack_from("<IIQQQQII", cubin, table + size * i) for i in range(count)]
    found = {}
    for name_at, kind, _, _, place, length, _, info in sections:
        start = sections[names_at][4] + name_at
        name = cubin[start : cubin.index(b"\0", start)].decode()
        if name.startswith((".text.", ".nv.shared.")):
            code = cubin[place : place + length] if kind != NO_BITS else b""
            found[name] = code, length, info >> 24
    return found


def builds_of(files: Sequence[Path]) -> dict[str, set[Build]]:
    """Hash of a kernel's text -> the compiler options of all builds that are recorded."""
    found: dict[str, set[Build]] = {}
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            for hash, build in _builds(json.loads(line)):
                found.setdefault(hash, set()).add(build)
    return found


def _builds(fields: dict) -> Iterator[tuple[str, Build]]:
    """(hash of the text, compiler options) of each build of an observation."""
    hash = fields.get("kernel_hash", "")
    at = fields.get("at") or fields.get("problem") or {}
    dtype = at.get("dtype", "float32")
    if hash and "options" in fields:
        yield hash, tuple(fields["options"])
    if hash and "launch" in fields:
        yield hash, _options(fields["launch"], dtype)
    hashes = fields.get("hashes", {})
    for name, launch in fields.get("launches", {}).items():
        if hashes:  # of trials, some followed by ", ordinary launch"
            hash = hashes.get(split_trial(name.partition(",")[0]).file, "")
        else:  # of shapes and dtypes
            dtype = name.rpartition(" ")[2]
        yield hash, _options(launch, dtype)


def _options(launch: dict[str, int], dtype: str) -> Build:
    macros = [f"-D{name}={value}" for name, value in launch.items() if name.isupper()]
    return (*([DTYPE_OPTIONS[dtype]] if dtype in DTYPE_OPTIONS else []), *macros)


if __name__ == "__main__":
    sys.exit(main())
