"""CUDA source to PTX, with NVRTC and the options that CuPy would use.

CuPy compiles a `RawKernel` for the GPU it finds. The SIMT machine has none, so it compiles the
same source for a virtual architecture (`compute_90` unless the file's header asks for a higher
floor) and stops at PTX, NVRTC's typed and stable intermediate language.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

from .places import ShownShort

# What CuPy 14 adds to every RawKernel. Without them the PTX differs: -ftz alone turns every
# fp32 operation into another opcode.
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")
DEFAULT_ARCH = "compute_90"


class CompileError(ShownShort, ValueError):
    """NVRTC rejected the source; the message is its log, which names file and line."""


def compile_ptx(code: str, options: tuple[str, ...] = (), arch: str = DEFAULT_ARCH) -> str:
    """Compile CUDA C++ source text to PTX.

    `options` are those given to `cupy.RawKernel`; an `-arch` among them is dropped, since the
    machine runs `arch`. Results are cached by content, in memory and in `cache_folder()`.

    Raises `CompileError` with NVRTC's log if the source or an option is wrong.
    """
    return _compile(code, tuple(options), arch, "PTX")[0].decode()


def compile_template(
    code: str, name: str, options: tuple[str, ...] = (), arch: str = DEFAULT_ARCH
) -> tuple[str, str]:
    """Compile and return (PTX, the name in it) of a kernel that may be a template.

    `name` is a name expression as `cupy.RawModule` takes them, such as "softmax<float, 4>", or
    simply the name of an `extern "C"` kernel. Raises what `compile_ptx` raises.
    """
    if re.fullmatch(r"\w+", name):
        return compile_ptx(code, options, arch), name
    ptx, mangled = _compile(code, tuple(options), arch, "PTX", name)
    return ptx.decode(), mangled


def compile_cubin(code: str, options: tuple[str, ...] = (), arch: str = "sm_90") -> bytes:
    """Compile CUDA C++ source text to machine code for `arch`, as a cubin file's bytes.

    The SIMT machine does not run it; its disassembly shows what the hardware executes. Raises
    what `compile_ptx` raises.
    """
    return _compile(code, tuple(options), arch, "CUBIN")[0]


@functools.lru_cache(maxsize=256)
def _compile(
    code: str, options: tuple[str, ...], arch: str, form: str, expression: str = ""
) -> tuple[bytes, str]:
    from cuda.bindings import nvrtc

    flags = [f"-arch={arch}", "-lineinfo", *CUPY_OPTIONS]
    flags += [option for option in options if not option.startswith(("-arch", "--gpu-arch"))]
    if not any(option.lstrip("-").startswith("std=") for option in options):
        flags.append("--std=c++17")
    flags += [f"-I{folder}" for folder in include_folders()]
    entry = None
    # A file that the source or an option names may change while both stay the same.
    if not re.search(r'#\s*include\s*"', code) and not any(
        "include" in option or option.startswith("-I") for option in options
    ):
        version = nvrtc.nvrtcVersion()[1:]
        key = repr((version, flags, form, expression, code)).encode()
        if (folder := cache_folder()) is not None:
            entry = folder / f"{hashlib.sha256(key).hexdigest()}.{form.lower()}"
            if (cached := _read(entry)) is not None:
                return cached

    def call(function, *arguments):
        status, *values = function(*arguments)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC could not compile the kernel ({status.name})\n{log()}", code)
        return values[0] if values else None

    def log() -> str:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        text = bytearray(size)
        nvrtc.nvrtcGetProgramLog(program, text)
        return text.decode(errors="replace").rstrip("\0\n ")

    _, program = nvrtc.nvrtcCreateProgram(code.encode(), b"kernel.cu", 0, [], [])
    try:
        if expression:
            call(nvrtc.nvrtcAddNameExpression, program, expression.encode())
        call(nvrtc.nvrtcCompileProgram, program, len(flags), [flag.encode() for flag in flags])
        name = call(nvrtc.nvrtcGetLoweredName, program, expression.encode()) if expression else b""
        result = bytearray(call(getattr(nvrtc, f"nvrtcGet{form}Size"), program))
        call(getattr(nvrtc, f"nvrtcGet{form}"), program, result)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    compiled = bytes(result).rstrip(b"\0") if form == "PTX" else bytes(result), name.decode()
    if entry is not None:
        _write(entry, *compiled)
    return compiled


# ---- cache on disk ----------------------------------------------------------------------------


def cache_folder() -> Path | None:
    """Where compiled kernels are kept: `$SOFTMAX_CACHE_DIR`, by default below `~/.cache`; None for
    a user without a home."""
    chosen = os.environ.get("SOFTMAX_CACHE_DIR")
    if chosen:
        return Path(chosen)
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # no HOME, and no such user
        return None
    return Path(base) / "softmax-worklog"


def _read(entry: Path) -> tuple[bytes, str] | None:
    """A cached result: the mangled name, a line feed, the compiled kernel, a checksum."""
    try:
        content = entry.read_bytes()
    except OSError:
        return None
    body, checksum = content[:-32], content[-32:]
    if hashlib.sha256(body).digest() != checksum:  # cut short or damaged: compile again
        return None
    name, _, compiled = body.partition(b"\n")
    return compiled, name.decode()


def _write(entry: Path, compiled: bytes, name: str) -> None:
    """Keep a result; a folder that cannot be written to is no error, only slower."""
    body = name.encode() + b"\n" + compiled
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=entry.parent, delete=False) as file:
            file.write(body + hashlib.sha256(body).digest())
        os.replace(file.name, entry)
    except OSError:
        pass


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
    cupy = find_spec("cupy")
    if cupy and cupy.origin:  # brings <nv/target>, which the cooperative groups include
        candidates.append(
            Path(cupy.origin).parent / "_core" / "include" / "cupy" / "_cccl" / "libcudacxx"
        )
    return tuple(str(folder) for folder in candidates if folder.is_dir())
