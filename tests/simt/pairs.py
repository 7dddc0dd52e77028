"""Idioms of CUDA, each in one file right and, with -DPLANTED, wrong by a line, as BUG(...) and
FIX(...) of kernels/twins.cuh say: tests/strangers/pairs.

The first line says how it is launched: `// grid 2, block 64: float32[64]=i 5`, arrays with what is
in them (a formula of i, 0 if there is none) and numbers.
"""

import re
from pathlib import Path

import numpy as np

from helpers.simt import KernelText, Trace, simulate
from tests.simt.launching import with_twins

FOLDER = Path(__file__).parents[1] / "strangers" / "pairs"
FILES = sorted(path.stem for path in FOLDER.glob("*.cu"))
HEAD = re.compile(r"// grid ([\d ]+), block ([\d ]+)(?:, shared (\d+))?: (.*)")


def argument(text: str) -> np.ndarray | int:
    """float32[64]=i: an array; 5: a number."""
    match = re.fullmatch(r"(\w+)\[(\d+)\](?:=(.*))?", text)
    if not match:
        return int(text)
    dtype, count, formula = match.groups()
    values = eval(formula or "0", {"i": np.arange(int(count))})
    return np.broadcast_to(values, int(count)).astype(dtype)


def run(file: str, racy: bool) -> Trace:
    text = (FOLDER / f"{file}.cu").read_text(encoding="utf-8")
    grid, block, shared, args = HEAD.match(text).groups()
    kernel = KernelText(with_twins(f"{file}.cu", text), "k", ("-DPLANTED",) if racy else ())
    shape = [tuple(map(int, sizes.split())) for sizes in (grid, block)]
    arguments = [argument(one) for one in args.split()]
    return simulate(kernel, *shape, arguments, int(shared or 0), instruction_limit=1_000_000)
