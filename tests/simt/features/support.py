"""Launches kernels of tests/simt/kernels/features_*.cu, on the machine or on a GPU."""

import re
from collections.abc import Callable
from pathlib import Path

import cupy
import numpy as np
import pytest

from helpers.simt import KernelText, include_folders, simulate

FOLDER = Path(__file__).parents[1] / "kernels"
LIMIT = 3_000_000  # instructions; a wait that never ends is to be found soon
Run = Callable[..., None]


def text(file: str) -> str:
    name = f"features_{file}.cu"
    return f'#line 1 "kernels/{name}"\n' + (FOLDER / name).read_text(encoding="utf-8")


def on_simt(file, name, grid, block, *args, shared=0, cooperative=False, ptx=()) -> None:
    source = KernelText(text(file), name, (), cooperative)
    trace = simulate(source, grid, block, args, shared, instruction_limit=LIMIT)
    assert not trace.findings, str(trace.findings)
    body = entry(trace.ptx, name)
    for opcode in ptx:
        assert re.search(opcode, body), f"{opcode} is not in the PTX of {name}"


def entry(ptx: str, name: str) -> str:
    """The PTX of one kernel. Of a template there is nothing but its one instance."""
    start = 0 if "<" in name else ptx.index(f".entry {name}(")
    following = ptx.find("\n.visible .entry", start)
    return ptx[start : following if following > 0 else len(ptx)]


def on_gpu(file, name, grid, block, *args, shared=0, cooperative=False, ptx=()) -> None:
    if int(cupy.cuda.Device().compute_capability) < 90:
        pytest.skip("needs a GPU of compute capability 9.0")
    options = tuple(f"-I{folder}" for folder in include_folders())
    if "<" in name:
        module = cupy.RawModule(code=text(file), options=options, name_expressions=[name])
        function = module.get_function(name)
    else:
        function = cupy.RawKernel(text(file), name, options, enable_cooperative_groups=cooperative)
    arrays = {id(a): cupy.array(a) for a in args if isinstance(a, np.ndarray) and a.ndim}
    sizes = [(size,) if isinstance(size, int) else size for size in (grid, block)]
    function(*sizes, tuple(arrays.get(id(a), a) for a in args), shared_mem=shared)
    for array in args:
        if id(array) in arrays:
            array[...] = arrays[id(array)].get()


def whole(*shape: int, low: int = -50, high: int = 50, dtype=np.int32) -> np.ndarray:
    """Small whole numbers, whose sums are exact also in fp32."""
    return np.random.default_rng(sum(shape)).integers(low, high, shape).astype(dtype)


def normal(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def wrapped(numbers) -> np.ndarray:
    """Python integers as an int32 holds them."""
    array = np.array(numbers, object) & 0xFFFFFFFF
    return array.astype(np.uint32).view(np.int32)
