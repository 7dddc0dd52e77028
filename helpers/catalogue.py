"""The kernel files: which there are, their text, and which of them suits a shape.

A step is a file of `kernels/` ("07_warp"), a variant what was tried beside it
("variants/07_waiting_loads"), a trial either of them with another block size or other values of its
Build table ("07_warp-ROWS2", "01_naive-b32").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from .gpu import Gpu
from .header import header
from .mode import gpu_for_plans
from .paths import KERNELS
from .plan import integer

# What is recorded without a kernel file: softmax as five CuPy array operations, and PyTorch's own.
UNFUSED, TORCH = "00_unfused", "00_torch"
WITHOUT_FILE = (UNFUSED, TORCH)


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
    "08_cluster-PROGRAMMATIC0",
    "08_cluster-PROGRAMMATIC1",
    "variants/08_ahead-EVICT_LAST0",
    "variants/08_shared-CLUSTER1",
    "09_grid-FEW_PACKS4",
    "09_grid-FEW_PACKS8",
    "09_grid-FEW_PACKS16",
    "09_grid-PROGRAMMATIC0",
    "10_sixteen_bit-EVICT_LAST0",
)


class Trial(NamedTuple):
    """A kernel file and how it is used otherwise than its header says."""

    file: str  # path below kernels/, without .cu
    block: int | None  # None: the header's
    changes: tuple[tuple[str, int], ...]  # (name in capitals, value)


def split_trial(step: str) -> Trial:
    """The file, block size and changed values of a step, a variant or a trial.

    Raises `ValueError` for a value that is given twice.
    """
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


def choose(rows: int, cols: int, dtype: str = "float32", gpu: Gpu | None = None) -> str | None:
    """The kernel file that ought to be fastest for a matrix of rows x cols, as measured on an H200;
    None if none takes it. It is from 07 on, or 06 on a GPU without clusters.

    `gpu` is that in use, or in replay an H200. Raises `TypeError` for what is no integer.
    """
    rows, cols = integer("rows", rows), integer("cols", cols)
    gpu = gpu or gpu_for_plans()
    row_bytes = cols * np.dtype(dtype).itemsize
    ranked = ["08_cluster", "09_grid"]
    ahead = header(source("variants/08_ahead.cu"))
    if row_bytes <= 1024:  # a block for each row would be too many blocks
        ranked = ["10_sixteen_bit"]
    elif row_bytes <= 2048 and rows <= 4096:  # in so small a matrix a warp for each is faster
        ranked = ["10_sixteen_bit", *ranked]
    elif row_bytes > 2**20 and rows > 16:  # a block of a cluster that holds it fills an SM
        ranked = ["variants/08_ahead", *ranked]
    elif ahead.accepts(rows, cols, dtype, gpu):  # rows that go evenly into the clusters that run
        clusters = ahead.plan(rows, cols, dtype, gpu=gpu).values["clusters"]
        if rows % clusters == 0:
            ranked.insert(1, "variants/08_ahead")
    ranked.append("07_warp")
    if gpu.capability < 90:  # without clusters
        ranked.append("06_registers")
    for file in ranked:
        if header(source(f"{file}.cu")).accepts(rows, cols, dtype, gpu):
            return file
    return None
