"""Compilers for exported files: nvcc of this environment, and g++ for what is host code alone."""

import hashlib
import json
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pytest

from helpers.simt import cache
from helpers.simt.compile import include_folders

INSTALL = "make test installs it into .venv with CUDA 13; requirements/nvcc.txt has its packages"
WARNINGS = ("-Wall", "-Wextra", "-Werror")
NO_RUN = ("-Xptxas=-O0",)  # for kernels that are not run


@lru_cache
def nvcc() -> tuple[str, ...]:
    """nvcc with the options that an exported file asks for; () if there is none that works."""
    beside = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/bin/nvcc"))
    for candidate in (*map(str, beside), shutil.which("nvcc")):
        if candidate:
            done = subprocess.run([candidate, "--version"], capture_output=True)
            if done.returncode == 0:
                library = f"-L{Path(candidate).parent.parent / 'lib'}"
                warnings = f"-Xcompiler={','.join(WARNINGS)}"
                own = [f"-isystem={folder}" for folder in include_folders()] if beside else []
                return candidate, library, "-std=c++17", "-O3", "-ftz=true", warnings, *own
    return ()


def headers() -> tuple[str, ...]:
    """Folders of CUDA's headers for a host compiler."""
    beside = (str(Path(found).parent.parent / "include") for found in nvcc()[:1])
    return *include_folders(), *beside


def lacks(folders: Sequence[str], *names: str) -> str:
    """Return why tests of CUDA headers are skipped, an empty string if each is in a folder."""
    for name in names:
        if not any((Path(folder) / name).is_file() for folder in folders):
            return f"no CUDA header {name}: {INSTALL}"
    return ""


# Why tests are skipped here; empty where they are not. nvcc calls gcc as well as g++.
NO_HOST_COMPILER = (
    ""
    if shutil.which("g++") and shutil.which("gcc")
    else "no host C++ compiler: install g++ (Debian, Ubuntu: sudo apt install g++)"
)
NO_HEADERS = NO_HOST_COMPILER or lacks(headers(), "cuda_runtime_api.h", "crt/host_defines.h")
NO_NVCC = NO_HOST_COMPILER or ("" if nvcc() else f"no nvcc: {INSTALL}") or NO_HEADERS
needs_host_compiler = pytest.mark.skipif(bool(NO_HOST_COMPILER), reason=NO_HOST_COMPILER)
needs_nvcc = pytest.mark.skipif(bool(NO_NVCC), reason=NO_NVCC)
needs_headers = pytest.mark.skipif(bool(NO_HEADERS), reason=NO_HEADERS)


def compiled(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run nvcc in a folder."""
    return _kept(folder, [*nvcc(), *map(str, arguments)])


def host_compiled(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run g++ in a folder, with CUDA's headers."""
    includes = [f"-isystem{path}" for path in headers()]
    return _kept(folder, ["g++", "-std=c++17", *WARNINGS, *includes, *map(str, arguments)])


def _kept(folder: Path, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a compiler. Of one file, what it made and said is kept beside the compiled kernels, for
    the same compiler, command and text."""
    native = "-arch=native" in command  # another GPU may be at hand
    entry = None
    if "-c" in command and not native:
        what = repr((version(command[0]), command, text_of(folder, folder / command[-1])))
        entry = f"{hashlib.sha256(what.encode()).hexdigest()}.cubin"
    made = folder / f"{Path(command[-1]).stem}.o"
    if entry and (body := cache.read(entry)):
        said, _, content = body.partition(b"\n")
        made.write_bytes(content)
        return subprocess.CompletedProcess(command, 0, "", json.loads(said))
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if entry and done.returncode == 0 and made.is_file():
        cache.write(entry, json.dumps(done.stderr).encode() + b"\n" + made.read_bytes())
    return done


def text_of(folder: Path, file: Path) -> str:
    """A file, and behind it what it includes that is not the compiler's own."""
    text = file.read_text(encoding="utf-8")
    names = re.findall(r'^#include "(.+)"', text, re.MULTILINE)
    return "".join([text, *(text_of(folder, folder / name) for name in names)])


@lru_cache
def version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
