"""Compilers for exported files: nvcc of this environment, and g++ for what is host code alone."""

import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

import pytest

from helpers.simt.compile import include_folders

WARNINGS = ("-Wall", "-Wextra", "-Werror")


@cache
def nvcc() -> tuple[str, ...]:
    """nvcc with the options that an exported file asks for; () if there is none that works."""
    beside = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/bin/nvcc"))
    for candidate in (*map(str, beside), shutil.which("nvcc")):
        if candidate and shutil.which("g++"):
            done = subprocess.run([candidate, "--version"], capture_output=True)
            if done.returncode == 0:
                library = f"-L{Path(candidate).parent.parent / 'lib'}"
                warnings = f"-Xcompiler={','.join(WARNINGS)}"
                own = [f"-isystem={folder}" for folder in include_folders()] if beside else []
                return candidate, library, "-std=c++17", "-O3", "-ftz=true", warnings, *own
    return ()


needs_nvcc = pytest.mark.skipif(
    not nvcc(), reason="no nvcc, or no g++ for it; `make nvcc` installs nvcc beside NVRTC"
)


def runtime_headers() -> bool:
    return any((Path(folder) / "cuda_runtime_api.h").is_file() for folder in include_folders())


needs_headers = pytest.mark.skipif(
    not shutil.which("g++") or not runtime_headers(), reason="no g++, or no headers of CUDA"
)


def compiled(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run nvcc in a folder."""
    command = [*nvcc(), *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def host_compiled(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run g++ in a folder, with CUDA's headers."""
    folders = [*include_folders(), *(Path(found).parent.parent / "include" for found in nvcc()[:1])]
    headers = [f"-isystem{path}" for path in folders]
    command = ["g++", "-std=c++17", *WARNINGS, *headers, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)
