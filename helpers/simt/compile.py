"""CUDA source to PTX, with NVRTC and the options that CuPy would use.

CuPy compiles a `RawKernel` for the GPU it finds. The SIMT machine has none, so it compiles the
same source for a virtual architecture (`compute_90` unless the file's header asks for a higher
floor) and stops at PTX, NVRTC's typed and stable intermediate language.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from . import cache, dependencies
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
    machine runs `arch`. Results are kept by content, in memory and on disk.

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


def _compile(
    code: str, options: tuple[str, ...], arch: str, form: str, expression: str = ""
) -> tuple[bytes, str]:
    """(what NVRTC made, the mangled name), compiled unless the same was before: by it the same
    NVRTC from the same text and options, and from headers that still hold the same."""
    from cuda.bindings import nvrtc

    flags = [option for option in options if not option.startswith(("-arch", "--gpu-arch"))]
    if not any(option.lstrip("-").startswith("std=") for option in options):
        flags.append("--std=c++17")
    own, rest = _folders_of(flags)
    users = (os.getcwd(), *own)
    folders = (*users, *include_folders())
    version = nvrtc.nvrtcVersion()[1:]
    key = repr((version, CUPY_OPTIONS, arch, rest, len(own), form, expression, code))
    entry = f"{hashlib.sha256(key.encode()).hexdigest()}.{form.lower()}"
    for look in (_MEMORY.get, _stored):
        kept = look(entry)
        if kept and kept.state == dependencies.state(kept.reads, folders, len(users)):
            break
    else:
        search = [f"-I{folder}" for folder in include_folders()]
        kept = _compile_anew(code, arch, (*flags, *search), form, expression, folders)
        if kept.reads is None or _asks_for_files(code, kept.reads, folders, len(users)):
            return kept.compiled, kept.name
        kept = replace(kept, state=dependencies.state(kept.reads, folders, len(users)))
        if kept.state is None:
            return kept.compiled, kept.name
        head = json.dumps([kept.name, kept.reads, kept.state])
        cache.write(entry, head.encode() + b"\n" + kept.compiled)
    if len(_MEMORY) >= MOST_IN_MEMORY:
        _MEMORY.pop(next(iter(_MEMORY)), None)
    _MEMORY[entry] = kept
    return kept.compiled, kept.name


@dataclass(frozen=True)
class Compiled:
    """What NVRTC made, and of which headers; None if it did not say."""

    compiled: bytes
    name: str
    reads: Sequence[dependencies.Read] | None
    state: str | None = ""  # of these headers; None: one is gone


MOST_IN_MEMORY = 256
_MEMORY: dict[str, Compiled] = {}


def _stored(entry: str) -> Compiled | None:
    body = cache.read(entry)
    if body is None:
        return None
    head, _, compiled = body.partition(b"\n")
    try:
        name, reads, state = json.loads(head)
        return Compiled(compiled, name, [(int(number), str(path)) for number, path in reads], state)
    except (ValueError, TypeError):  # of an earlier version
        return None


def _folders_of(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """(folders that the options search for headers, the other options)."""
    folders, rest, following = [], [], False
    for flag in flags:
        if following:
            folders.append(flag)
            following = False
        elif flag in ("-I", "--include-path"):
            following = True
        elif flag.startswith(("-I", "--include-path=")):
            folders.append(flag.removeprefix("--include-path=").removeprefix("-I"))
        else:
            rest.append(flag)
    return folders, rest


def search_folders(options: Sequence[str]) -> list[str]:
    """The folders that compiler options search for headers."""
    return _folders_of(options)[0]


def _asks_for_files(code: str, reads: Sequence, folders: Sequence[str], users: int) -> bool:
    """Whether the kernel's text or a header of its author asks which files there are: the compiler
    does not tell for which."""
    texts = [code]
    for number, name in reads:
        if number < users:
            path = Path(folders[number], name) if number >= 0 else Path(name)
            texts.append(path.read_text(encoding="utf-8", errors="replace"))
    return any("has_include" in _spliced(text) for text in texts)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[str | None]:
    """None where there is no place for one."""
    try:
        folder = tempfile.mkdtemp(prefix="simt-")
    except OSError:
        folder = None
    try:
        yield folder
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _compile_anew(
    code: str, arch: str, flags: Sequence[str], form: str, expression: str, folders: Sequence[str]
) -> Compiled:
    from cuda.bindings import nvrtc

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

    flags = [f"-arch={arch}", "-lineinfo", *CUPY_OPTIONS, *flags]
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
    compiled = bytes(result).rstrip(b"\0") if form == "PTX" else bytes(result)
    return Compiled(compiled, name.decode(), _reads(code, flags, folders))


# What another Python does to ask NVRTC which headers it reads.
ASK = """
import json, sys
asked = json.load(sys.stdin)
sys.path = asked["path"]
from cuda.bindings import nvrtc
_, program = nvrtc.nvrtcCreateProgram(asked["code"].encode(), b"kernel.cu", 0, [], [])
flags = [flag.encode() for flag in asked["flags"]]
nvrtc.nvrtcCompileProgram(program, len(flags), flags)
nvrtc.nvrtcDestroyProgram(program)
"""


def _reads(
    code: str, flags: Sequence[str], folders: Sequence[str]
) -> Sequence[dependencies.Read] | None:
    """Which headers NVRTC reads for a source that it compiles; None if it does not say.

    Another process asks it: NVRTC 13.5 crashes now and then where one writes several traces.
    """
    texts = [_spliced(code), *(flag for flag in flags if not flag.startswith("-I"))]
    if not any("include" in text for text in texts):
        return []
    with _temporary_folder() as folder:
        if folder is None:
            return None
        trace = Path(folder, "trace")  # NVRTC adds .json
        flags = [*flags, "--fdevice-syntax-only", f"--fdevice-time-trace={trace}"]
        asked = json.dumps({"path": sys.path, "code": code, "flags": flags})
        command = [sys.executable, "-I", "-c", ASK]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(command, input=asked.encode(), capture_output=True, timeout=60)
        headers = dependencies.headers_read(trace.with_suffix(".json"))
    return None if headers is None else dependencies.placed(headers, folders)


def _spliced(text: str) -> str:
    """Lines that end in a backslash are one with the next."""
    return re.sub(r"\\\r?\n", "", text)


@functools.lru_cache(maxsize=1)
def include_folders() -> tuple[str, ...]:
    """Folders of the CUDA headers installed beside this Python (wheels, then conda).

    Pinned to this environment on purpose: a system toolkit of another version must not leak in.
    """
    site = Path(sysconfig.get_path("purelib"))
    candidates = [
        *sorted(site.glob("nvidia/cu1[0-9]/include")),
        *sorted(site.glob("nvidia/cu1[0-9]/include/cccl")),
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
