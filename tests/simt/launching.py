"""Kernels from source, `k` if it has no other name, run on numpy arrays in place: on the machine or
on a GPU."""

import re
from collections.abc import Callable
from pathlib import Path

import cupy
import numpy as np

from helpers.simt import KernelText, include_folders, simulate

FILE = '#line 1 "kernels/x.cu"\n'
LIMIT = 3_000_000  # instructions; a wait that never ends is to be found soon
Run = Callable[..., None]
# Calls of mbarriers and of the copies that they count; BUG and FIX.
MBARRIERS, TWINS = (
    (Path(__file__).parent / f"kernels/{name}.cuh").read_text(encoding="utf-8")
    for name in ("mbarrier_calls", "twins")
)


# Blocks of a cluster, without the headers of the cooperative groups: they compile for a second.
CLUSTER = """
#define CLUSTER_SYNC() asm volatile("barrier.cluster.arrive;\\n barrier.cluster.wait;" ::: "memory")
template <class T> __device__ T* in_block(T* own, int rank)
{
    T* there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(own), "r"(rank));
    return there;
}
"""


def on_simt(code: str, grid, block, *args, name="k", options=(), ptx=()) -> None:
    """No finding is made, and the kernel's PTX matches the patterns `ptx`."""
    named = code if code.startswith("#line") else FILE + code
    source = KernelText(named, name, options)
    trace = simulate(source, grid, block, args, instruction_limit=LIMIT)
    assert not trace.findings, str(trace.findings)
    body = entry(trace.ptx, name) if ptx else ""
    for opcode in ptx:
        assert re.search(opcode, body), f"{opcode} is not in the PTX of {name}"


def entry(ptx: str, name: str) -> str:
    """The PTX of one kernel."""
    start = ptx.index(f".entry {name}(")
    following = ptx.find("\n.visible .entry", start)
    return ptx[start : following if following > 0 else len(ptx)]


def on_gpu(
    code: str, grid, block, *args, name="k", options=(), ptx=(), shared=0, cooperative=False
) -> None:
    module = cupy.RawModule(
        code=code,
        options=("--std=c++17", *options, *(f"-I{folder}" for folder in include_folders())),
        name_expressions=[name] if "<" in name else None,
        enable_cooperative_groups=cooperative,
    )
    arrays = {id(a): cupy.array(a) for a in args if isinstance(a, np.ndarray) and a.ndim}
    sizes = [(size,) if isinstance(size, int) else size for size in (grid, block)]
    values = tuple(arrays.get(id(a), a) for a in args)
    module.get_function(name)(*sizes, values, shared_mem=shared)
    for array in args:
        if id(array) in arrays and array.flags.writeable:
            array[...] = arrays[id(array)].get()


def with_twins(file: str, text: str) -> str:
    """The text of a file that uses BUG and FIX."""
    own = f'#line 1 "{file}"\n'
    return f'{own}#line 1 "kernels/twins.cuh"\n{TWINS}{own}{text}'


def kernel(body: str, parameters: str = "float* y, const float* x, int n", before="") -> str:
    """Source of a kernel `k`; `t` is the thread in its block, `i` in the launch."""
    return (
        f'{before}\nextern "C" __global__ void k({parameters})\n{{\n'
        f"    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;\n{body}\n}}\n"
    )
