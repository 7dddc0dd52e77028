"""CUDA source to PTX, with NVRTC and the options that CuPy would use.

CuPy compiles a `RawKernel` for the GPU it finds. The SIMT machine has none, so it compiles the
same source for a virtual architecture (`compute_90` unless the file's header asks for a higher
floor) and stops at PTX, NVRTC's typed and stable intermediate language.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from pathlib import Path

# What CuPy 14 adds to every RawKernel. Without them the PTX differs: -ftz alone turns every
# fp32 operation into another opcode.
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")
DEFAULT_ARCH = "compute_90"


class CompileError(ValueError):
    """NVRTC rejected the source; the message is its log, which names file and line."""


def compile_ptx(code: str, options: tuple[str, ...] = (), arch: str = DEFAULT_ARCH) -> str:
    """Compile CUDA C++ source text to PTX.

    `options` are those given to `cupy.RawKernel`; an `-arch` among them is dropped, since the
    machine runs `arch`. Results are cached by content for the life of the process.

    Raises `CompileError` with NVRTC's log if the source or an option is wrong.
    """
    return _compile(code, tuple(options), arch, "PTX").decode()


def compile_cubin(code: str, options: tuple[str, ...] = (), arch: str = "sm_90") -> bytes:
    """Compile CUDA C++ source text to machine code for `arch`, as a cubin file's bytes.

    The SIMT machine does not run it; its disassembly shows what the hardware executes. Raises
    what `compile_ptx` raises.
    """
    return _compile(code, tuple(options), arch, "CUBIN")


@functools.lru_cache(maxsize=256)
def _compile(code: str, options: tuple[str, ...], arch: str, form: str) -> bytes:
    from cuda.bindings import nvrtc

    flags = [f"-arch={arch}", "-lineinfo", *CUPY_OPTIONS]
    flags += [option for option in options if not option.startswith(("-arch", "--gpu-arch"))]
    if not any(option.lstrip("-").startswith("std=") for option in options):
        flags.append("--std=c++17")
    flags += [f"-I{folder}" for folder in include_folders()]

    def call(function, *arguments):
        status, *values = function(*arguments)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC could not compile the kernel ({status.name})\n{log()}")
        return values[0] if values else None

    def log() -> str:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        text = bytearray(size)
        nvrtc.nvrtcGetProgramLog(program, text)
        return text.decode(errors="replace").rstrip("\0\n ")

    _, program = nvrtc.nvrtcCreateProgram(code.encode(), b"kernel.cu", 0, [], [])
    try:
        call(nvrtc.nvrtcCompileProgram, program, len(flags), [flag.encode() for flag in flags])
        result = bytearray(call(getattr(nvrtc, f"nvrtcGet{form}Size"), program))
        call(getattr(nvrtc, f"nvrtcGet{form}"), program, result)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return bytes(result).rstrip(b"\0") if form == "PTX" else bytes(result)


@functools.lru_cache(maxsize=1)
def include_folders() -> tuple[str, ...]:
    """Folders of the CUDA headers installed beside this Python (wheels, then conda).

    Pinned to this environment on purpose: a system toolkit of another version must not leak in.
    """
    site = Path(sysconfig.get_path("purelib"))
    candidates = [
        *sorted(site.glob("nvidia/cu1[0-9]/include")),
        site / "nvidia" / "cuda_runtime" / "include",
        *sorted(Path(sys.prefix).glob("targets/*/include")),
        Path(sys.prefix) / "Library" / "include",
    ]
    return tuple(str(folder) for folder in candidates if folder.is_dir())
