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
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from . import cache
from .places import ShownShort

# What CuPy 14 adds to every RawKernel. Without them the PTX differs: -ftz alone turns every
# fp32 operation into another opcode.
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")
DEFAULT_ARCH = "compute_90"
Headers = Sequence[tuple[str, str]]
NOT_FOUND = re.compile(r'cannot open source file "([^"]+)"')
PACKAGES = {  # of what pip installs, by the beginning of a header's name
    "curand": "nvidia-curand",
    "cub/": "nvidia-cuda-cccl",
    "thrust/": "nvidia-cuda-cccl",
    "cuda/": "nvidia-cuda-cccl",
    "nv/": "nvidia-cuda-cccl",
    "cooperative_groups": "nvidia-cuda-runtime",
    "cuda_runtime": "nvidia-cuda-runtime",
    "cuda_fp": "nvidia-cuda-runtime",
    "cuda_bf16": "nvidia-cuda-runtime",
    "mma.h": "nvidia-cuda-crt",
    "crt/": "nvidia-cuda-crt",
    "cutlass/": "nvidia-cutlass",
}


# Options with a value that may be the next one.
PREFIXES = ("-D", "-U", "-I", "--define-macro", "--undefine-macro", "--include-path")
PREFIXES += ("--pre-include", "-include")


class CompileError(ShownShort, ValueError):
    """NVRTC rejected the source; the message is its log, which names file and line."""


def compile_ptx(code: str, options: tuple[str, ...] = (), arch: str = DEFAULT_ARCH) -> str:
    """Compile CUDA C++ source text to PTX.

    `options` are those given to `cupy.RawKernel`. Results are kept by content, in memory and on
    disk.

    Raises `CompileError` with NVRTC's log if the source or an option is wrong, and `ValueError` for
    an option that names another architecture than `arch`.
    """
    return _compile(code, tuple(options), arch, "PTX")[0].decode()


def compile_kernels(
    code: str,
    names: Sequence[str],
    options: tuple[str, ...] = (),
    arch: str = DEFAULT_ARCH,
    headers: Headers = (),
) -> tuple[str, dict[str, str]]:
    """Compile and return (PTX, the names in it) of kernels that may be templates.

    `names` are name expressions as `cupy.RawModule` takes them, such as "softmax<float, 4>", or
    simply the names of `extern "C"` kernels. `headers` are (name, text) of those that are not read
    from disk. Raises what `compile_ptx` raises.
    """
    expressions = tuple(name for name in names if not re.fullmatch(r"\w+", name))
    ptx, mangled = _compile(code, tuple(options), arch, "PTX", expressions, tuple(headers))
    known = dict(zip(expressions, mangled.split(), strict=True))
    return ptx.decode(), {name: known.get(name, name) for name in names}


def compile_cubin(code: str, options: tuple[str, ...] = (), arch: str = "sm_90") -> bytes:
    """Compile CUDA C++ source text to machine code for `arch`, as a cubin file's bytes.

    The SIMT machine does not run it; its disassembly shows what the hardware executes. Raises
    what `compile_ptx` raises.
    """
    return _compile(code, tuple(options), arch, "CUBIN")[0]


def _compile(
    code: str,
    options: tuple[str, ...],
    arch: str,
    form: str,
    expressions: tuple[str, ...] = (),
    headers: Headers = (),
) -> tuple[bytes, str]:
    """(what NVRTC made, the mangled names), compiled unless the same was before: by it the same
    NVRTC from the same text, options and headers."""
    nvrtc = _nvrtc()
    _check_options(options)
    named = [option for option in options if option.startswith(("-arch", "--gpu-arch"))]
    for option in named:
        if not option.endswith(arch[arch.index("_") :]):
            raise ValueError(
                f"{option}: the SIMT machine models an H200 and compiles for {arch}; leave this "
                "option out"
            )
    flags = [option for option in options if option not in named]
    if not any(option.lstrip("-").startswith("std=") for option in options):
        flags.append("--std=c++17")
    folders, named, rest = files_of(flags)
    texts = "\n".join((code, *(text for _, text in headers)))
    files = texts, named, (os.getcwd(), *folders)
    state = cache.state(*files)
    flags += [f"-I{folder}" for folder in include_folders()]
    if state is None:
        return _compile_anew(code, arch, flags, form, expressions, headers)
    versions = nvrtc.nvrtcVersion()[1:], toolkit_versions()
    text = code, tuple(headers), state
    key = repr((versions, CUPY_OPTIONS, arch, rest, form, expressions, *text))
    entry = f"{hashlib.sha256(key.encode()).hexdigest()}.{form.lower()}"
    kept = _MEMORY.get(entry) or _stored(entry)
    if kept is None:
        kept = _compile_anew(code, arch, flags, form, expressions, headers)
        if state != cache.state(*files):  # NVRTC may have read what is there now
            return kept
        cache.write(entry, kept[1].encode() + b"\n" + kept[0])
    if len(_MEMORY) >= MOST_IN_MEMORY:
        _MEMORY.pop(next(iter(_MEMORY)), None)
    _MEMORY[entry] = kept
    return kept


@functools.lru_cache(maxsize=1)
def _nvrtc() -> ModuleType:
    """The bindings of NVRTC. Raises `ImportError` that names the packages if they or it are
    missing."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        what = "the Python bindings of CUDA" if isinstance(error, ImportError) else "NVRTC"
        raise ImportError(
            f"{what} cannot be loaded: pip install 'cuda-bindings>=13,<14' "
            "'nvidia-cuda-nvrtc>=13,<14' 'nvidia-cuda-runtime>=13,<14'"
        ) from error
    return nvrtc


MOST_IN_MEMORY = 256
_MEMORY: dict[str, tuple[bytes, str]] = {}


def _stored(entry: str) -> tuple[bytes, str] | None:
    body = cache.read(entry)
    if body is None:
        return None
    name, _, compiled = body.partition(b"\n")
    return compiled, name.decode()


def _check_options(options: Sequence[str]) -> None:
    """Raise `ValueError` for an option that is empty or lacks its value."""
    if not all(option.strip() for option in options):
        raise ValueError("a compiler option is empty: leave it out, or write one such as -DTILE=32")
    for option, following in zip(options, (*options, "-")[1:], strict=True):
        if option in PREFIXES and following.startswith("-"):
            raise ValueError(f"{option} needs a value after it, as in -DTILE=32 or -Iinclude")


def files_of(flags: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """(folders that the options search for headers, headers that they name, the other options)."""
    folders, headers, rest = [], [], []
    words = iter(flags)
    for flag in words:
        name, _, value = flag.partition("=")
        if flag.startswith("-I"):
            folders.append(flag[2:] or next(words, ""))
        elif name in ("--include-path", "--pre-include", "-include"):
            kind = folders if name == "--include-path" else headers
            kind.append(value or next(words, ""))
        else:
            rest.append(flag)
    return folders, headers, rest


def _compile_anew(
    code: str,
    arch: str,
    flags: Sequence[str],
    form: str,
    expressions: tuple[str, ...],
    headers: Headers,
) -> tuple[bytes, str]:
    nvrtc = _nvrtc()

    def call(function, *arguments):
        status, *values = function(*arguments)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            message = _complaint(status.name, log())
            header = NOT_FOUND.search(message)
            if header and package(header[1]):
                message = f"no {header[1]} here: pip install {package(header[1])}\n{message}"
            raise CompileError(message, code)
        return values[0] if values else None

    def log() -> str:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        text = bytearray(size)
        nvrtc.nvrtcGetProgramLog(program, text)
        return text.decode(errors="replace").rstrip("\0\n ")

    flags = [f"-arch={arch}", "-lineinfo", *CUPY_OPTIONS, *flags]
    names, texts = ([one[k].encode() for one in headers] for k in (0, 1))
    _, program = nvrtc.nvrtcCreateProgram(code.encode(), b"kernel.cu", len(headers), texts, names)
    try:
        for one in expressions:
            call(nvrtc.nvrtcAddNameExpression, program, one.encode())
        call(nvrtc.nvrtcCompileProgram, program, len(flags), [flag.encode() for flag in flags])
        found = [call(nvrtc.nvrtcGetLoweredName, program, one.encode()) for one in expressions]
        result = bytearray(call(getattr(nvrtc, f"nvrtcGet{form}Size"), program))
        call(getattr(nvrtc, f"nvrtcGet{form}"), program, result)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    compiled = bytes(result).rstrip(b"\0") if form == "PTX" else bytes(result)
    return compiled, b" ".join(found).decode()


def _complaint(status: str, log: str) -> str:
    """What to say of a compilation that failed: the log, or a sentence if no source line is at
    fault."""
    if status == "NVRTC_ERROR_INVALID_OPTION":
        said = " ".join(log.split()).removeprefix("nvrtc: error: ")
        return f"NVRTC rejects a compiler option: {said}; leave it out, or use one that NVRTC has"
    if named := re.match(r"__nv_name_map\(\d+\): error: (.*)\n *#pragma nv_mangled_name (.*)", log):
        return (
            f"{named[2]!r} names no kernel of this source and no instance of a template: "
            f"{named[1]}; write a kernel's name, or a template's with its arguments, as in "
            "'scale<float, 4>'"
        )
    return f"NVRTC could not compile the kernel ({status})\n{log}"


def package(header: str) -> str:
    """The pip package that has a header; "" if none is known."""
    return next((name for start, name in PACKAGES.items() if header.startswith(start)), "")


@functools.lru_cache(maxsize=1)
def include_folders() -> tuple[str, ...]:
    """Folders of the CUDA headers installed beside this Python (wheels, then conda).

    Pinned to this environment on purpose: a system toolkit of another version must not leak in.
    """
    site = Path(sysconfig.get_path("purelib"))
    candidates = [
        *sorted(site.glob("nvidia/cu1[0-9]/include")),
        *sorted(site.glob("nvidia/cu1[0-9]/include/cccl")),
        *sorted(site.glob("nvidia/cu[a-z]*/include")),  # nvidia/curand of the wheels for CUDA 12
        *sorted(Path(sys.prefix).glob("targets/*/include")),
        Path(sys.prefix) / "Library" / "include",
    ]
    cupy = find_spec("cupy")
    if cupy and cupy.origin:  # brings <nv/target>, which the cooperative groups include
        candidates.append(
            Path(cupy.origin).parent / "_core" / "include" / "cupy" / "_cccl" / "libcudacxx"
        )
    return tuple(str(folder) for folder in candidates if folder.is_dir())


@functools.lru_cache(maxsize=1)
def toolkit_versions() -> tuple[str, ...]:
    """The installed packages, with their versions, that the folders of the CUDA headers are of."""
    parents = {parent for folder in include_folders() for parent in Path(folder).parents}
    sites = [one for one in parents if one.name in ("site-packages", "dist-packages")]
    known = [name for site in sites for name in site.glob("*.dist-info")]
    known += Path(sys.prefix).glob("conda-meta/*.json")
    return tuple(sorted(one.name for one in known if one.name.startswith(("nvidia", "cu"))))
