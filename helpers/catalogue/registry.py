"""The kernel registry: which kernel files there are, and their text.

A step is a file in `kernels/` ("07_warp"), a variant an alternative to it
("variants/07_waiting_loads"), and a trial one of these with another block size or other values in
its Build table ("07_warp-ROWS2", "01_naive-b32").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple

from ..base.arguments import checked
from ..base.paths import KERNELS
from .header import header

# Recorded without a kernel file: softmax as five CuPy array operations, and PyTorch's softmax.
UNFUSED, TORCH = "00_unfused", "00_torch"
WITHOUT_FILE = (UNFUSED, TORCH)


@checked
def source(name: str) -> str:
    """Return the text of a kernel file for `cupy.RawKernel`.

    `name` is a path below `kernels/`, such as "01_naive.cu". A `#line` directive goes first, so
    that a compiler error names the kernel file and its line.

    Raises `FileNotFoundError` that lists the files in that folder.
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
    """The variants of the steps: "variants/01_naive_fast" and so on."""
    return sorted(f"variants/{file.stem}" for file in (KERNELS / "variants").glob("*.cu"))


def step_number(step: str) -> int:
    """The number of a step: 7 for 07, its variants and its trials."""
    return int(PurePath(step).name[:2])


# Alternative block sizes and macros: "01_naive-b32", "06_registers-PACKS4"; any number of them may
# be appended.
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
    """A kernel file and the changes to what its header says."""

    file: str  # path below kernels/, without .cu
    block: int | None  # None: the header's
    changes: tuple[tuple[str, int], ...]  # (name in capitals, value)


def split_trial(step: str) -> Trial:
    """The file, block size and changed values of a step, a variant or a trial.

    Raises `ValueError` for a name that is not that of one, or gives a value twice.
    """
    if not step.isprintable():
        raise ValueError(f"{step!r} is no name of a step")
    file, changes = re.fullmatch(r"(.*?)((?:-b\d+|-[A-Z_]+\d+)*)", step).groups()
    values = [(name, int(value)) for name, value in re.findall(r"-(b|[A-Z_]+)(\d+)", changes)]
    if len(values) > len(dict(values)):
        raise ValueError(f"{step!r} gives one value twice")
    block = dict(values).get("b")
    return Trial(file, block, tuple((name, value) for name, value in values if name != "b"))


# Macros that are 1 where a kernel uses cache hints or a programmatic launch.
ASKED_FOR = ("STREAMING", "EVICT_LAST", "PROGRAMMATIC")


def asking(step: str, values: Mapping[str, int]) -> str:
    """The trial of a step, a variant or a trial that spells out its requests: each of `ASKED_FOR`
    that its file has, with the value given here, otherwise 0. It is the step itself if the file has
    none.

    Raises `FileNotFoundError` for a file that does not exist.
    """
    file, block, changes = split_trial(step)
    names = [name for name in ASKED_FOR if name in header(source(f"{file}.cu")).macros]
    kept = [(name, value) for name, value in changes if name not in names]
    spelled = [*kept, *((name, values.get(name, 0)) for name in names)]
    size = f"-b{block}" if block else ""
    return "".join([file, size, *(f"-{name}{value}" for name, value in spelled)])


def plain(step: str) -> str:
    """The trial without requests: plain loads and stores, no hint, an ordinary launch."""
    return asking(step, {})


def known_steps() -> list[str]:
    """Everything of ours that has a record: the steps, the array version, variants and trials."""
    return [UNFUSED, *steps(), *variants(), *TRIALS]
