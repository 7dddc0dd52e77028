"""The kernel registry: the kernel files, their source, and the trials that are measured.

A step is a file in `kernels/` with a notebook ("07_warp"), a variant is an alternative to a step
("variants/07_waiting_loads", or "08_ahead", which dispatch uses), and a trial is either of them
with another block size or overrides of its Build table ("07_warp-ROWS2", "01_naive-b32").
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import PurePath
from types import MappingProxyType
from typing import NamedTuple

from ..base.arguments import checked
from ..base.paths import KERNELS
from .header import header

COPY = "00_copy"  # the bandwidth baseline of softmax
# Recorded without a kernel file: softmax as five CuPy array operations, and PyTorch's softmax.
UNFUSED, TORCH = "00_unfused", "00_torch"
WITHOUT_FILE = (UNFUSED, TORCH)
# Variants that dispatch uses: they stand in kernels/ beside the steps, but have no notebook.
PRODUCTION = (
    *("08_ahead", "11_any_length", "11_short_rows", "13_long_columns", "13_whole_slices"),
    *("14_any_row", "15_gradient", "15_loss_and_gradient"),
)

INCLUDE = re.compile(r'#include "([^"\n]+)"')
ONCE = "#pragma once"


@checked
def source(name: str) -> str:
    """Return the source of a kernel file of the series for `cupy.RawKernel`, with the files of
    `kernels/include/` that it includes. (`page.rich.source` also looks into the reader's mine/.)

    `name` is a path below `kernels/`, such as "01_naive.cu". `#line` directives precede the text of
    each file, so that a compiler error names the file and its line.

    Raises `FileNotFoundError`, which lists the kernel files in that folder.
    """
    path = KERNELS / name
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else KERNELS
        known = ", ".join(
            sorted(file.relative_to(KERNELS).as_posix() for file in folder.glob("*.cu"))
        )
        raise FileNotFoundError(f"no kernel file kernels/{name}; there are: {known}")
    return resolved(name, lambda file: (KERNELS / file).read_text(encoding="utf-8"))


def resolved(name: str, read: Callable[[str], str]) -> str:
    """Return the text of a kernel file with `#line` directives and, once each, the files that it
    includes by `#include "..."`; that line becomes a comment. `read` returns the text of a path
    below `kernels/`."""
    done = {name}

    def pieces(file: str) -> Iterator[str]:
        for piece, path in _pieces(file, read(file)):
            yield piece
            if path and path not in done:
                done.add(path)
                yield from pieces(path)

    return "\n".join(pieces(name)) + "\n"


@cache
def _pieces(file: str, text: str) -> list[tuple[str, str]]:
    """Return a file's text in pieces that end with an `#include`, each with the path that it
    includes, and the rest with an empty path."""
    found: list[tuple[str, str]] = []
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        lines += [] if lines else [f'#line {number} "kernels/{file}"']
        if named := INCLUDE.match(line):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(file), named[1]))
            found.append(("\n".join([*lines, f"// {line}"]), path))
            lines = []
        else:
            lines.append("" if line == ONCE else line)
    return [*found, ("\n".join(lines), "")] if lines else found


def self_contained(code: str) -> str:
    """Return a source without its `#line` directives: a file that compiles by itself."""
    return re.sub(r"^#line .*\n", "", code, flags=re.MULTILINE)


def steps() -> list[str]:
    """Return the steps of the series in order: names of kernel files without `.cu`."""
    files = (file.stem for file in KERNELS.glob("[0-9][0-9]_*.cu"))
    return sorted(name for name in files if name not in PRODUCTION)


def variants() -> list[str]:
    """Return the variants in the order of their steps: those of `PRODUCTION`, and experiments such
    as "variants/01_naive_fast", which dispatch never chooses."""
    experiments = [f"variants/{file.stem}" for file in (KERNELS / "variants").glob("*.cu")]
    return sorted([*PRODUCTION, *experiments], key=lambda name: PurePath(name).name)


def step_number(step: str) -> int:
    """Return the step number of a step, a variant or a trial: 7 for "07_warp-ROWS2"."""
    return int(PurePath(step).name[:2])


# The trials that are measured: a kernel with one or more overrides of its block size or macros,
# such as "01_naive-b32" and "06_registers-PACKS4".
TRIALS = (
    "variants/00_copy_scalar-b1024",
    "01_naive-b32",
    "03_shared-b64",
    "03_shared-b128",
    "03_shared-b512",
    "03_shared-b1024",
    "05_float4-UNROLL1",
    "06_registers-PACKS2",
    "06_registers-PACKS4",
    "06_registers-PACKS16",
    "07_warp-WIDTH1",
    "07_warp-WIDTH1-ROWS2",
    "07_warp-WIDTH2-ROWS2",
    "07_warp-ROWS2",
    "07_warp-ROWS4",
    "07_warp-LANES32",
    "08_cluster-CLUSTER1",
    "08_cluster-RESIDENT1",
    "08_cluster-EVICT_LAST0",
    "08_ahead-EVICT_LAST0",
    "variants/08_shared-CLUSTER1",
    "09_grid-PROGRAMMATIC1",
    "10_sixteen_bit-EVICT_LAST0",
    "11_any_row-LATE1",
    "12_fused-MASK1",
    "12_fused-MASK2",
    "12_fused-LOG1",
    "12_fused-WIDE1",
    "12_fused-DROPOUT1",
    "13_any_axis-TILE16",
    "13_any_axis-TILE8",
    "14_backward-LOG1",
    "14_backward-FROM_X1",
    "14_backward-DROPOUT1",
)


class Trial(NamedTuple):
    """A kernel file with overrides of its header."""

    file: str  # path below kernels/, without .cu
    block: int | None  # threads per block; None: the header's
    changes: tuple[tuple[str, int], ...]  # (name in capitals, value)


def split_trial(step: str) -> Trial:
    """Parse the name of a step, a variant or a trial into file, block size and overrides.

    Raises `ValueError` for a duplicate override and for a name with unprintable characters.
    """
    if not step.isprintable():
        raise ValueError(f"{step!r} is not a valid step name")
    file, changes = re.fullmatch(r"(.*?)((?:-b\d+|-[A-Z_]+\d+)*)", step).groups()
    values = [(name, int(value)) for name, value in re.findall(r"-(b|[A-Z_]+)(\d+)", changes)]
    if len(values) > len(dict(values)):
        raise ValueError(f"{step!r} sets a value twice")
    block = dict(values).get("b")
    return Trial(file, block, tuple((name, value) for name, value in values if name != "b"))


# Macros that enable cache hints and programmatic launches if they are 1.
HINT_MACROS = ("STREAMING", "EVICT_LAST", "PROGRAMMATIC")


def with_hints(step: str, values: Mapping[str, int] = MappingProxyType({})) -> str:
    """Return the trial of a step, a variant or a trial that sets each macro of `HINT_MACROS` which
    its file has, to its value in `values` or else to 0: without `values` it has no cache hints,
    default loads and stores, and an ordinary launch. If the file has none of these macros, the name
    is returned unchanged.

    Raises `FileNotFoundError` if there is no such kernel file.
    """
    file, block, changes = split_trial(step)
    names = [name for name in HINT_MACROS if name in header(source(f"{file}.cu")).macros]
    others = [(name, value) for name, value in changes if name not in names]
    overrides = [*others, *((name, values.get(name, 0)) for name in names)]
    size = f"-b{block}" if block else ""
    return "".join([file, size, *(f"-{name}{value}" for name, value in overrides)])


def known_steps() -> list[str]:
    """Return all kernels of this project that are recorded, including the array version."""
    return [UNFUSED, *steps(), *variants(), *TRIALS]
