"""sass.json: the machine instructions of every kernel."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from ...base.arguments import checked
from ...base.gpu import Gpu
from ...catalogue import registry
from ...problem.problem import Problem
from ...problem.shapes import LARGE_LONG_SHAPES, LARGE_SHAPES, Shape
from ...run.bound import load
from ...simt import compile_cubin
from ..store import REFERENCE_GPU
from .cases import Batch
from .part import Part, hashes_of, read_part

KEPT = frozenset(
    "LDG STG LDL STL LDS STS LDGSTS LDGDEPBAR DEPBAR ST LD STAS SYNCS UCGABAR_ARV UCGABAR_WAIT "
    "UBLKCP ACQBULK PREEXIT SHFL BAR MUFU BRA CALL EXIT".split()
)


# ---- reading ------------------------------------------------------------------------------------


@checked
def sass(
    step: str, shape: Shape | None = None, dtype: str = "float32", gpu: str = REFERENCE_GPU
) -> list[str]:
    """The kernel's machine instructions for memory, special functions and control, in order.

    `shape` and `dtype` choose among those that a file with a Build table was compiled for.
    Raises `KeyError` that lists those of the step for others.
    """
    return _disassembly(step, shape, dtype, gpu)["in_order"]


@checked
def loads_in_a_row(step: str) -> list[int]:
    """How many loads from global memory the compiler put one after the other, in the order of the
    program: [4, 1] is four, another instruction of `sass`, and one. Arithmetic may stand between.

    Raises `KeyError` as `sass` does for a kernel that is compiled for each shape.
    """
    names = (instruction.split(".")[0] for instruction in sass(step))
    return [len([*loads]) for name, loads in groupby(names) if name == "LDG"]


@checked
def opcodes(
    step: str, shape: Shape | None = None, dtype: str = "float32", gpu: str = REFERENCE_GPU
) -> dict[str, int]:
    """How often each machine instruction stands in the kernel: "FMUL" -> 16. Loops and branches are
    not followed.

    `shape` and `dtype` choose as in `sass`.
    """
    return _disassembly(step, shape, dtype, gpu)["counts"]


def _disassembly(step: str, shape: Shape | None, dtype: str, gpu: str) -> dict:
    known = read_part("sass", gpu)["kernels"]
    name = sass_name(step, shape, dtype)
    if name not in known:
        of_step = [other for other in known if step_of(other) == step]
        there = f" of {step} there are {', '.join(of_step)};" if of_step else ""
        raise KeyError(
            f"no disassembly of {name} on {gpu};{there} run make measure ARGS=profile there"
        )
    return known[name]


def sass_name(step: str, shape: Shape | None, dtype: str = "float32") -> str:
    """What a disassembly is filed under: "07_warp at 65536 x 4096 float32"."""
    return f"{step} at {Problem(*shape, dtype).place(dtype=True)}" if shape else step


def step_of(name: str) -> str:
    """The step of such a name."""
    return name.partition(" at ")[0]


# ---- writing ------------------------------------------------------------------------------------


class SassPart(Part):
    name = title = "sass"
    entries = "kernels"

    def __init__(self, stored: dict, device: dict):
        super().__init__(stored, device)
        self.arch = f"sm_{device['compute_capability']}"
        self.options = {name: list(options) for name, _, options in compilations(self.gpu)}
        self.found = {
            name: entry
            for name, entry in stored.get("kernels", {}).items()
            if name in self.options
            and stored.get("kept") == sorted(KEPT)
            and entry["options"] == self.options[name]
            and self.is_current(step_of(name))
        }

    def batches(self, steps: Sequence[str], fresh: bool) -> list[Batch]:
        missing = {step_of(name) for name in self.options if fresh or name not in self.found}
        return [Batch(step) for step in steps if step in missing]

    def look(self, batch: Batch) -> dict[str, dict]:
        return {
            name: disassemble(code, options, self.arch)
            for name, code, options in compilations(self.gpu)
            if step_of(name) == batch.step
        }

    def keep(self, batch: Batch, found: dict[str, dict]) -> None:
        self.found.update(found)

    def content(self) -> dict:
        ordered = {name: self.found[name] for name in self.options if name in self.found}
        return {
            "hashes": hashes_of(map(step_of, ordered)),
            "arch": self.arch,
            "command": "cuobjdump -sass kernel.cubin",
            "kept": sorted(KEPT),  # in "in_order"
            "kernels": ordered,
        }


def disassemble(code: str, options: Sequence[str], arch: str) -> dict:
    """An entry of the file: compile a source, list its memory, special-function and control
    instructions, and count all; a register spill would show as LDL and STL."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compile_cubin(code, options, arch))
        done = subprocess.run(
            ["cuobjdump", "-sass", str(cubin)], capture_output=True, text=True, check=True
        )
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", done.stdout)
    kept = [code for code in found if code.split(".")[0] in KEPT]
    counts = Counter(code.split(".")[0] for code in found)
    return {"options": list(options), "in_order": kept, "counts": dict(counts)}


def compilations(gpu: Gpu | None = None) -> list[tuple[str, str, tuple[str, ...]]]:
    """(name in the file, source, options) of every step and variant; of one with a Build table for
    each dtype at each large shape, as it is planned for a GPU."""
    found = []
    for step in (*registry.steps(), *registry.variants()):
        kernel = load(step)
        if not kernel.header.build:
            found.append((step, kernel.code, ()))
            continue
        for dtype in (dtype.name for dtype in kernel.header.dtypes):
            for shape in (*LARGE_SHAPES, *LARGE_LONG_SHAPES):
                if kernel.accepts(*shape, dtype, gpu):
                    options = kernel.bind(*shape, dtype, gpu).options
                    found.append((sass_name(step, shape, dtype), kernel.code, options))
    return found
