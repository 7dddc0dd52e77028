"""Kernels for the tests of helpers: one for strided rows, also launched cooperatively, and those of
the series with a text replaced."""

from pathlib import Path

import cupy

from helpers.catalogue.registry import source
from helpers.run.bound import bind
from helpers.simt.cuda_text import kernel_names

APART = (Path(__file__).parent / "apart.cu").read_text("utf-8")
TOGETHER = APART.replace("grid = rows * CLUSTER\n", "grid = rows * CLUSTER, cooperative\n")


def edited(name: str, *changes: tuple[str, str]) -> str:
    """A kernel file's text, with texts replaced wherever they occur."""
    code = source(f"{name}.cu")
    for old, new in changes:
        assert old in code, f"{name} no longer has {old!r}"
        code = code.replace(old, new)
    return code


def raw(name: str, *changes: tuple[str, str]):
    """The same as a `cupy.RawKernel` without options."""
    code = edited(name, *changes)
    return cupy.RawKernel(code, kernel_names(code)[0])


def shape_of(kernel, rows: int, cols: int) -> tuple[int, int]:
    """(grid, block) as the header plans them."""
    plan = bind(kernel, rows, cols).plan
    return plan.grid, plan.block
