"""The kernel registry: which kernel files there are, and their text.

A step is a file of `kernels/` ("07_warp"), a variant what was tried beside it
("variants/07_waiting_loads"), a trial either of them with another block size or other values of its
Build table ("07_warp-ROWS2", "01_naive-b32").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple

from ..base.arguments import checked
from ..base.paths import KERNELS
from .header import header

# What is recorded without a kernel file: softmax as five CuPy array operations, and PyTorch's own.
UNFUSED, TORCH = "00_unfused", "00_torch"
WITHOUT_FILE = (UNFUSED, TORCH)


@checked
def source(name: str) -> str:
    """Return the text of a kernel file for `cupy.RawKernel`.

    `name` is a path below `kernels/`, such as "01_naive.cu". A `#line` directive goes first, so
    that a compiler error names the kernel file and its line.

    Raises `FileNotFoundError` that lists the files there are in that folder.
    """
    path = KERNELS / name
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else KERNELS
        known = ", ".join(
            sorted(file.relative_to(KERNELS).as_posix() for file in folder.glob("*.cu"))
        )
        raise FileNotFoundError(f"no kernel file kernels/{name}; there are: {known}")
    return f'#line 1 "kernels/{name}"\n{path.read_text(encoding="utf-8")}'


def steps() -> list[str]:
    """The steps of the series in order: the names of the kernel files without `.cu`."""
    return sorted(file.stem for file in KERNELS.glob("[0-9][0-9]_*.cu"))


def variants() -> list[str]:
    """What was tried beside the steps: "variants/01_naive_fast" and so on."""
    return sorted(f"variants/{file.stem}" for file in (KERNELS / "variants").glob("*.cu"))


def step_number(step: str) -> int:
    """7 for the step, a variant or a trial of 07."""
    return int(PurePath(step).name[:2])


# Block sizes and macros tried beside a kernel's own: "01_naive-b32", "06_registers-PACKS4"; any
# number of them may follow each other.
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
    "08_cluster-CLUSTER2",
    "08_cluster-CLUSTER4",
    "08_cluster-CLUSTER8",
    "08_cluster-CLUSTER16",
    "08_cluster-RESIDENT1",
    "08_cluster-EVICT_LAST0",
    "08_cluster-PROGRAMMATIC1",
    "variants/08_ahead-EVICT_LAST0",
    "variants/08_shared-CLUSTER1",
    "09_grid-FEW_PACKS4",
    "09_grid-FEW_PACKS8",
    "09_grid-FEW_PACKS16",
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
    """A kernel file and how it is used otherwise than its header says."""

    file: str  # path below kernels/, without .cu
    block: int | None  # None: the header's
    changes: tuple[tuple[str, int], ...]  # (name in capitals, value)


def split_trial(step: str) -> Trial:
    """The file, block size and changed values of a step, a variant or a trial.

    Raises `ValueError` for a value that is given twice, or what no line can hold.
    """
    if not step.isprintable():
        raise ValueError(f"{step!r} is no name of a step")
    file, changes = re.fullmatch(r"(.*?)((?:-b\d+|-[A-Z_]+\d+)*)", step).groups()
    values = [(name, int(value)) for name, value in re.findall(r"-(b|[A-Z_]+)(\d+)", changes)]
    if len(values) > len(dict(values)):
        raise ValueError(f"{step!r} gives one value twice")
    block = dict(values).get("b")
    return Trial(file, block, tuple((name, value) for name, value in values if name != "b"))


# What a kernel may ask of caches and launches, in macros that are 1 where it does.
ASKED_FOR = ("STREAMING", "EVICT_LAST", "PROGRAMMATIC")


def asking(step: str, values: Mapping[str, int]) -> str:
    """The trial of a step, a variant or a trial that spells out what it asks for: each of
    `ASKED_FOR` that its file has, with the value given here, or else 0. It is the step itself where
    the file has none.

    Raises `FileNotFoundError` for a file that there is not.
    """
    file, block, changes = split_trial(step)
    names = [name for name in ASKED_FOR if name in header(source(f"{file}.cu")).macros]
    kept = [(name, value) for name, value in changes if name not in names]
    spelled = [*kept, *((name, values.get(name, 0)) for name in names)]
    size = f"-b{block}" if block else ""
    return "".join([file, size, *(f"-{name}{value}" for name, value in spelled)])


def plain(step: str) -> str:
    """The trial that asks for nothing: usual loads and stores, no hint, an ordinary launch."""
    return asking(step, {})


def known_steps() -> list[str]:
    """What is ours and has a record: the steps, the array version, and what was tried."""
    return [UNFUSED, *steps(), *variants(), *TRIALS]
