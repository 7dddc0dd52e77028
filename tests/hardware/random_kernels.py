"""Random kernels on a GPU and on the SIMT machine: every bit of their results must be the same.

python -m tests.hardware.random_kernels              on a GPU: writes what came out
python -m tests.hardware.random_kernels --compare    the machine against it, without a GPU
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import sys
from pathlib import Path

import cupy
import numpy as np

from helpers.base.gpu import describe_device, describe_versions, has_gpu
from helpers.simt.cuda_text import token_hash
from tests.hardware.processes import write_data
from tests.simt.random_programs import (
    BLOCKS,
    OPTIONS,
    THREADS,
    BlockProgram,
    Program,
    arrays,
    by_the_machine,
    cuda_source,
)

DATA = Path(__file__).parent.parent / "data" / "random_kernels_h200.json"
COUNT, TOGETHER = 300, 20  # kernels of each kind; those that are compiled at once


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}.random_kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--compare", action="store_true", help="run the machine, name what differs")
    options = parser.parse_args(arguments)
    if options.compare:
        wrong = [text for batch in batches() for text in differences(batch, stored())]
        print("\n".join([*wrong, f"{len(wrong)} of {2 * COUNT} differ"]))
        return 1 if wrong else 0
    if not has_gpu():
        print("needs a GPU, and CuPy finds none", file=sys.stderr)
        return 1
    return record()


def batches() -> list[list[Program]]:
    """The kernels, those of a list compiled at once."""
    return [
        [kind(number) for number in range(first, first + TOGETHER)]
        for kind in (BlockProgram, Program)
        for first in range(0, COUNT, TOGETHER)
    ]


def digest(results: list[np.ndarray]) -> str:
    """Of the bytes of y and g."""
    return hashlib.sha256(b"".join(one.tobytes() for one in results)).hexdigest()[:16]


def stored() -> dict[str, dict]:
    """Name -> {"source": hash, "results": digest}"""
    return json.loads(DATA.read_text())["programs"]


def differences(batch: list[Program], known: dict[str, dict]) -> list[str]:
    """The kernels of which the machine finds other results than those stored, or a bug."""
    source = cuda_source(batch)
    found = []
    for program in batch:
        results, trace = by_the_machine(source, program)
        found += [f"{program.name}: {finding}" for finding in trace.findings]
        if known[program.name]["source"] != token_hash(program.in_cuda()):
            found.append(f"{program.name} is another program than the GPU's")
        elif known[program.name]["results"] != digest(results):
            found.append(f"{program.name} gives other results")
    return found


# ---- on a GPU -----------------------------------------------------------------------------------


def on_gpu(batch: list[Program]) -> dict[str, dict]:
    """Run a batch; what is stored of each kernel."""
    source, found = cuda_source(batch), {}
    for program in batch:
        given = [cupy.asarray(one) for one in arrays()]
        places = [cupy.zeros(BLOCKS * THREADS, np.uint32)] * isinstance(program, BlockProgram)
        kernel = cupy.RawKernel(source, program.name, OPTIONS)
        kernel((BLOCKS,), (THREADS,), (*given, *places))
        results = [one.get() for one in given[2:]]
        known = {"source": token_hash(program.in_cuda()), "results": digest(results)}
        found[program.name] = known
    return found


def record() -> int:
    programs = {name: one for batch in batches() for name, one in on_gpu(batch).items()}
    head = {
        "device": describe_device(),
        "versions": describe_versions(),
        "utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    write_data(DATA, {**head, "programs": programs})
    print(f"wrote {DATA}: {len(programs)} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
