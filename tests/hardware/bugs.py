"""The kernels with planted bugs, launched here exactly as the tests launch them.

The launches are not written down a second time: they are those that the tests hand to the SIMT
machine. A test file with new kernels joins by a table `BUGS`, whose keys are "file/kernel" (the
twin is "file/kernel_clean") and whose values are (grid, block, arguments, dynamic shared memory)
or, for a cooperative launch, one more entry, True; or a function that returns such a tuple.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from unittest.mock import patch

import numpy as np

from .cases import FOLDER

TESTS = FOLDER.parent
TABLES = ("test_simt_asynchronous",)  # test files with a table BUGS


@dataclass
class Planted:
    """One launch of a kernel, and the (kind, line) that its comments announce: none on a twin."""

    file: str
    kernel: str
    code: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: list
    shared_mem: int = 0
    options: tuple[str, ...] = ()
    cooperative: bool = False
    twin: str | None = None  # the name of the kernel without the bug
    marks: list[tuple[str, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.file}/{self.kernel}"


class _Captured(Exception):
    """Carries a launch out of the test that was about to simulate it."""


def collect() -> dict[str, Planted]:
    """Every kernel with a planted bug and every twin, by name."""
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    return {planted.name: planted for planted in (*_findings(), *_shared(), *_warps(), *_tables())}


def _findings() -> Iterator[Planted]:
    module = importlib.import_module("test_simt_findings")
    launches = {(file, "buggy"): launch for file, launch in module.TWINS.items()}
    y = np.zeros(64, np.float32)
    launches["bad_index", "bad_pointer"] = (2, 32, np.zeros(64, np.uint64), y, 64)
    launches["bad_index", "unsigned_bound"] = (2, 32, np.ones(64, np.uint32), y, 64)
    for (file, kernel), launch in launches.items():
        twin = "clean" if kernel == "buggy" else None
        for name in (kernel, twin):
            if name:
                planted = capture(module, module.run, file, name, *launch)
                yield _described(planted, file, twin if name == kernel else None)


def _shared() -> Iterator[Planted]:
    module = importlib.import_module("test_simt_shared")
    for file, name in module.CASES:
        yield from _twins(file, name, partial(capture, module, module.run_planted, file))


def _warps() -> Iterator[Planted]:
    module = importlib.import_module("test_simt_collectives")
    for name in module.PLANTED:
        yield from _twins("warp_operations", name, partial(capture, module, module.run_planted))


def _tables() -> Iterator[Planted]:
    for name in TABLES:
        if (TESTS / f"{name}.py").exists():
            module = importlib.import_module(name)
            yield from from_table(module.BUGS)


def from_table(table: dict) -> Iterator[Planted]:
    """The kernels of a table as the text at the top describes it."""
    for key, launch in table.items():
        file, kernel = key.split("/")

        def planted(name: str, file: str = file, launch=launch) -> Planted:
            grid, block, args, shared_mem, *more = launch() if callable(launch) else launch
            path = TESTS / "kernels" / f"{file}.cu"
            code = f'#line 1 "kernels/{file}.cu"\n{path.read_text()}'
            sizes = _sizes(grid), _sizes(block)
            one = Planted(file, name, code, *sizes, list(args), shared_mem)
            one.cooperative = bool(more and more[0])
            return one

        yield from _twins(file, kernel, planted)


def _twins(file: str, kernel: str, planted: Callable[[str], Planted]) -> Iterator[Planted]:
    yield _described(planted(kernel), file, f"{kernel}_clean")
    yield _described(planted(f"{kernel}_clean"), file, None)


def _described(planted: Planted, file: str, twin: str | None) -> Planted:
    module = importlib.import_module("test_simt_findings")
    planted.file, planted.twin = file, twin
    planted.marks = module.marks(file, planted.kernel)
    return planted


def capture(module: ModuleType, function: Callable, *arguments) -> Planted:
    """What a test's function would have simulated."""

    def instead(kernel, grid, block, args, shared_mem: int = 0, **_) -> None:
        raise _Captured(
            Planted(
                "",
                kernel.name,
                kernel.code,
                _sizes(grid),
                _sizes(block),
                list(args),
                shared_mem,
                tuple(kernel.options),
                bool(getattr(kernel, "enable_cooperative_groups", False)),
            )
        )

    with patch.object(module, "simulate", instead):
        try:
            function(*arguments)
        except _Captured as caught:
            return caught.args[0]
    raise RuntimeError(f"{function.__name__}{arguments} of {module.__name__} simulates nothing")


def _sizes(sizes) -> tuple[int, ...]:
    return (int(sizes),) if isinstance(sizes, int) else tuple(int(size) for size in sizes)
