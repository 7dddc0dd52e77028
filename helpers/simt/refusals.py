"""Features of CUDA that the machine does not run: their names, and what to do instead.

A feature is recognised by an opcode or a called function in PTX, or, before there is PTX, by what
the compiler says of a declaration that NVRTC does not have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from .instructions import UnsupportedPTX


class Feature(NamedTuple):
    """A feature that is refused."""

    name: str
    instead: str


LAUNCH_FROM_HOST = "launch the inner kernel from the host, or simulate it by itself"
TENSOR_CORES = Feature("tensor cores (wmma, mma)", "multiply with ordinary instructions instead")
TMA = Feature(
    "tensor copies (TMA)", "copy with ordinary loads, cp.async, or one-dimensional cp.async.bulk"
)
BULK = Feature("this form of a bulk copy (TMA)", "copy or add with ordinary instructions instead")
TEXTURES = Feature("textures (tex1D, tex2D, ...)", "pass a pointer and load from it instead")
SURFACES = Feature(
    "surfaces (surf2Dread, surf2Dwrite, ...)", "pass a pointer and access it instead"
)
PARALLELISM = Feature("dynamic parallelism (a kernel that launches kernels)", LAUNCH_FROM_HOST)
GRAPHS = Feature("dynamic parallelism (a kernel that launches graphs)", LAUNCH_FROM_HOST)
SYNCHRONIZE = Feature("dynamic parallelism (cudaDeviceSynchronize in a kernel)", LAUNCH_FROM_HOST)
HEAP = Feature("malloc and new in a kernel", "pass a buffer as an argument instead")
UNHEAP = Feature("free and delete in a kernel", "pass a buffer as an argument instead")
ALLOCA = Feature("alloca in a kernel", "declare an array of constant size instead")
LARGE_TILES = Feature(
    "cooperative groups of several warps (tiled_partition past 32, block_tile_memory)",
    "use this_thread_block() or tiles of up to 32 threads",
)
FUNCTION_POINTER = Feature(
    "calls through a function pointer that the host passes",
    "call the function by its name, or take its address in the kernel or in a __device__ variable",
)
MULTIMEM = Feature("multimem (memory of several GPUs)", "run on the memory of one GPU")

OPCODES = {
    **dict.fromkeys(("tex", "tld4", "txq", "istypep"), TEXTURES),
    **dict.fromkeys(("suld", "sust", "sured", "suq"), SURFACES),
    **dict.fromkeys(("wmma", "mma", "wgmma", "tcgen05"), TENSOR_CORES),
    **dict.fromkeys(("ldmatrix", "stmatrix", "movmatrix"), TENSOR_CORES),
    **dict.fromkeys(("alloca", "stacksave", "stackrestore"), ALLOCA),
    "tensormap": TMA,
    "multimem": MULTIMEM,
}
CALLS = {  # by a part of the function's name
    "DeviceSynchronize": SYNCHRONIZE,
    "cudaGraph": GRAPHS,
    "malloc": HEAP,
    "Malloc": HEAP,
    "free": UNHEAP,
    "Free": UNHEAP,
    "cudaCDP2": PARALLELISM,
    "cudaLaunchDevice": PARALLELISM,
    "cudaGetParameterBuffer": PARALLELISM,
}
# What the compiler does not know, and the feature it belongs to.
UNKNOWN = {
    r"\b(nvcuda|wmma|mma_sync)\b": TENSOR_CORES,
    r"\btexture\b|\"tex[123]D\w*\"": TEXTURES,
    r"\bsurface\b|\"surf[123]D\w*\"": SURFACES,
    r"device-side kernel launch|kernel launch from __device__": PARALLELISM,
    r"\"cudaMalloc\w*(\"|\()": HEAP,
    r"\"cudaDeviceSynchronize\" is undefined": SYNCHRONIZE,
    r"\"alloca\" is undefined": ALLOCA,
    r"\bCUtensorMap\b": TMA,
}


def refused(feature: Feature, where: str, found: str = "") -> UnsupportedPTX:
    """The error for a feature at a place, "kernel.cu:12"; `found` is what was found there."""
    what = f"{feature.name}: {found}" if found else feature.name
    return UnsupportedPTX(f"the SIMT machine does not run {what}, at {where}; {feature.instead}")


def of_opcode(opcode: str, modifiers: Sequence[str], text: str) -> Feature | None:
    """The feature that an instruction belongs to, if it is one that is refused."""
    if "%reserved_smem_offset" in text:
        return LARGE_TILES
    if opcode == "cp" and "bulk" in modifiers:
        if "tensor" in modifiers:
            return TMA
        if "reduce" in modifiers:
            return BULK
    return OPCODES.get(opcode)


def of_call(name: str) -> Feature | None:
    """The feature that a function of the runtime belongs to, if it is one that is refused."""
    return next((what for part, what in CALLS.items() if part in name.lstrip("_")), None)


def of_message(message: str) -> Feature | None:
    """The feature that an error of the compiler is about, if it is one that is refused."""
    return next((what for said, what in UNKNOWN.items() if re.search(said, message)), None)
