"""sass.jsonl: the machine instructions of every kernel."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from ...base.arguments import checked
from ...base.gpu import Gpu
from ...base.json_files import Natural
from ...catalogue import registry, store
from ...catalogue.store import Run
from ...problem.problem import Problem
from ...problem.shapes import LARGE_LONG_SHAPES, LARGE_SHAPES, Shape
from ...run.bound import load
from ...simt import compile_cubin
from ..records import step_hash
from .launches import Profiled, ProfilerFile, ToolRun, say_if_old

KEPT = frozenset(
    "LDG STG LDL STL LDS STS LDGSTS LDGDEPBAR DEPBAR ST LD STAS SYNCS UCGABAR_ARV UCGABAR_WAIT "
    "UBLKCP ACQBULK PREEXIT SHFL BAR MUFU BRA CALL EXIT".split()
)


class Compiled(NamedTuple):
    """A step and the problem that it is compiled for; None for a file without a Build table."""

    step: str
    at: Problem | None = None  # sizes and dtype

    def __str__(self) -> str:
        return f"{self.step} at {self.at.place(dtype=True)}" if self.at else self.step


@dataclass(frozen=True)
class Disassembly(Profiled):
    """The instructions of a kernel."""

    file = "sass"

    run: Run
    step: str
    kernel_hash: str
    options: list[str]  # compiler options
    in_order: list[str]  # memory, special functions and control only
    counts: dict[str, Natural]  # all instructions
    at: Problem | None = None

    @property
    def key(self) -> Compiled:
        return Compiled(self.step, self.at)

    @property
    def made_of(self) -> tuple:
        return self.kernel_hash, self.options


# ---- reading ------------------------------------------------------------------------------------


@checked
def sass(
    step: str, shape: Shape | None = None, dtype: str = "float32", gpu: str | None = None
) -> list[str]:
    """The kernel's machine instructions for memory, special functions and control, in order.

    `shape` and `dtype` select one of the compilations of a file with a Build table. Raises
    `KeyError` that lists them for any other.
    """
    return _disassembly(step, shape, dtype, gpu).in_order


@checked
def loads_in_a_row(step: str) -> list[int]:
    """The lengths of the sequences of consecutive loads from global memory in the order of the
    program: [4, 1] means four loads, another instruction of `sass`, and one load. Arithmetic is
    ignored.

    Raises `KeyError` as `sass` does for a kernel that is compiled for each shape.
    """
    names = (instruction.split(".")[0] for instruction in sass(step))
    return [len([*loads]) for name, loads in groupby(names) if name == "LDG"]


@checked
def opcodes(
    step: str, shape: Shape | None = None, dtype: str = "float32", gpu: str | None = None
) -> dict[str, int]:
    """How often each opcode occurs in the code of the kernel: "FMUL" -> 16. This is a static count:
    loops and branches are not followed.

    `shape` and `dtype` are as in `sass`.
    """
    return _disassembly(step, shape, dtype, gpu).counts


def _disassembly(step: str, shape: Shape | None, dtype: str, gpu: str | None) -> Disassembly:
    wanted = Compiled(step, Problem(*shape, dtype) if shape else None)
    found = store.find(Disassembly, wanted, gpu)
    if found is None:
        of_step = [str(one.key) for one in store.read(Disassembly, gpu) if one.step == step]
        there = f" of {step} there are {', '.join(of_step)};" if of_step else ""
        name = gpu or store.shown_gpu()
        raise KeyError(
            f"no disassembly of {wanted} on {name};{there} run make measure ARGS=profile there"
        )
    say_if_old(step, found.kernel_hash)
    return found


# ---- writing ------------------------------------------------------------------------------------


class SassFile(ProfilerFile):
    kind, title = Disassembly, "sass"
    protocol = {"version": 1, "command": "cuobjdump -sass kernel.cubin", "kept": sorted(KEPT)}

    def wanted(self) -> dict[Compiled, tuple]:
        return {
            one: (step_hash(one.step), [*options]) for one, _, options in compilations(self.run.gpu)
        }

    def batches(self, missing: Sequence[Compiled], steps: Sequence[str]) -> list[ToolRun]:
        of_missing = {one.step for one in missing}
        return [ToolRun(step) for step in steps if step in of_missing]

    def look(self, batch: ToolRun) -> list[Disassembly]:
        found = []
        for (step, at), code, options in compilations(self.run.gpu):
            if step == batch.step:
                read = disassemble(code, options, f"sm_{self.run.device['compute_capability']}")
                in_order = [name for name in read if name.split(".")[0] in KEPT]
                counts = Counter(name.split(".")[0] for name in read)
                hash_ = step_hash(step)
                found.append(
                    Disassembly(self.run, step, hash_, [*options], in_order, dict(counts), at)
                )
        return found


def disassemble(code: str, options: Sequence[str], arch: str) -> list[str]:
    """Compile a source and return all its instructions; a register spill shows as LDL and STL."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compile_cubin(code, options, arch))
        done = subprocess.run(
            ["cuobjdump", "-sass", str(cubin)], capture_output=True, text=True, check=True
        )
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", done.stdout)


def compilations(gpu: Gpu | None = None) -> Iterator[tuple[Compiled, str, tuple[str, ...]]]:
    """(what is compiled, source, options) for every step and variant; with a Build table, for each
    dtype at each large shape, as planned for a GPU."""
    for step in (*registry.steps(), *registry.variants()):
        kernel = load(step)
        if not kernel.header.build:
            yield Compiled(step), kernel.code, ()
            continue
        for dtype in (dtype.name for dtype in kernel.header.dtypes):
            for shape in (*LARGE_SHAPES, *LARGE_LONG_SHAPES):
                if kernel.accepts(*shape, dtype, gpu):
                    options = kernel.bind(*shape, dtype, gpu).options
                    yield Compiled(step, Problem(*shape, dtype)), kernel.code, options
