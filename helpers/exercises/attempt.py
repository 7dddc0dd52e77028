"""A graded kernel, and its runs on the SIMT machine, each made once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..catalogue.header import header
from ..run.bound import BoundKernel, bind
from ..run.references import make_input
from ..simt import Counters, Trace
from ..simt.cuda_text import kernel_names
from .results import unwritten

Shape = tuple[int, int]


@dataclass(frozen=True)
class Execution:
    """One launch at one shape."""

    x: np.ndarray
    y: np.ndarray
    trace: Trace

    @property
    def counters(self) -> Counters:
        return self.trace.counters

    @property
    def place(self) -> str:
        rows, cols = self.x.shape
        return f"At {rows} x {cols}"

    @property
    def passes(self) -> tuple[float, float]:
        """The number of passes over x and y."""
        return self.counters.passes(self.x.size, self.x.itemsize)


class Attempt:
    """The text of a kernel file, under the learner's name for it.

    `code` is CUDA C++ that begins with a `#line` directive. Errors show when it runs:
    `run` raises `CompileError`, `UnsupportedPTX`, `ValueError`, `TypeError` or `KeyError`.
    """

    def __init__(self, code: str, file: str, dtype: str):
        self.code, self.file, self.dtype = code, file, dtype
        self._runs: dict[object, Execution] = {}

    @cached_property
    def plain(self) -> str:
        """The code without comments, with the same line numbers."""
        pattern = r"//[^\n]*|/\*.*?\*/"
        return re.sub(
            pattern, lambda found: "\n" * found[0].count("\n"), self.code, flags=re.DOTALL
        )

    def bind(self, rows: int, cols: int) -> BoundKernel:
        if len(kernel_names(self.code)) != 1 or header(self.code) is None:
            raise ValueError("the file needs its header and one __global__ function")
        return bind(self.code, rows, cols, self.dtype)

    def run(self, shape: Shape) -> Execution:
        """The launch on a matrix of `shape` that exposes mistakes."""
        return self.run_on(shape, make_input(*shape, dtype=self.dtype))

    def run_on(self, key: object, x: np.ndarray) -> Execution:
        """The launch on x, made once per key."""
        if key not in self._runs:
            y = unwritten(x)
            trace = self.bind(*x.shape).simulate(x, y, instruction_limit=limit(x.shape))
            self._runs[key] = Execution(x, y, trace)
        return self._runs[key]

    def watch(self, shape: Shape) -> Trace:
        """The launch at `shape` with everything recorded in the trace."""
        x = make_input(*shape, dtype=self.dtype)
        return self.bind(*shape).simulate(
            x, unwritten(x), watch=True, instruction_limit=limit(shape)
        )


def limit(shape: Shape) -> int:
    """The number of instructions of a batch of blocks after which a kernel counts as hanging: at
    least six times what a serial answer needs."""
    return 3_000 + 300 * max(shape)
