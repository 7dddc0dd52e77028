"""Kernel files copied into a C++ program: compiled by nvcc, launched as their headers say."""

import re
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

import pytest

from helpers import kernels
from helpers.gpu import has_gpu
from helpers.kernels import header, kernel_names, source

PROGRAM = Path(__file__).parent / "copied" / "softmax.cu"
# The program has no workspace to give and computes in float32.
NAMES = [
    name
    for name in [*kernels.steps(), *kernels.variants()]
    if "Workspace" not in (contract := header(source(f"{name}.cu"))).fields
    and contract.dtype == "float32"
]
SHAPES = ((37, 1003), (37, 8200))  # the first that the file takes; clusters of 4 in the second


@cache
def nvcc() -> tuple[str, ...]:
    """The compiler with the options it needs; () if there is none that works."""
    beside = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/bin/nvcc"))
    for candidate in (*map(str, beside), shutil.which("nvcc")):
        if candidate and shutil.which("g++"):
            done = subprocess.run([candidate, "--version"], capture_output=True)
            if done.returncode == 0:
                return candidate, f"-L{Path(candidate).parent.parent / 'lib'}"
    return ()


needs_nvcc = pytest.mark.skipif(
    not nvcc(), reason="no nvcc, or no g++ for it; `make nvcc` installs nvcc beside NVRTC"
)


def build(name: str, folder: Path, *options: str, text: str = "") -> subprocess.CompletedProcess:
    """Compile the program with a copy of the kernel file in an empty folder."""
    code = text or (kernels.FOLDER / f"{name}.cu").read_text()
    (folder / "kernel.cu").write_text(code)
    shutil.copy(PROGRAM, folder / "program.cu")
    contract = header(code)
    fields = contract.fields
    rows, cols = next(shape for shape in SHAPES if contract.accepts(*shape))
    rule = re.fullmatch(r"block = (.+?)(?:, block .+)?, grid = (.+)", fields["Launch"])
    macros = {
        **contract.plan(rows, cols).macros,
        "ROWS": rows,
        "COLS": cols,
        "KERNEL_FILE": '"kernel.cu"',
        "KERNEL": kernel_names(code)[0],
        "BLOCK": f"({rule[1]})",
        "GRID": f"({rule[2]})",
        "SHARED": f"({fields['Shared']})",
        "COPY": str(int(name.rpartition("/")[2].startswith("00_copy"))),
    }
    # Not as -D options: nvcc takes a comma in them for the end of one.
    lines = [f"#define {key} {value}" for key, value in macros.items()]
    (folder / "launch.h").write_text("\n".join(lines) + "\n")
    command = [*nvcc(), "-std=c++17", *options]
    return subprocess.run(
        [*command, "-o", "program", "program.cu"], cwd=folder, capture_output=True, text=True
    )


@needs_nvcc
@pytest.mark.parametrize("name", NAMES)
def test_a_copied_file_compiles_as_cpp17_without_a_warning(name: str, tmp_path: Path) -> None:
    floor = header(source(f"{name}.cu")).arch
    done = build(name, tmp_path, f"-arch=sm_{floor}", "-Xcompiler=-Wall")
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr


@needs_nvcc
def test_a_file_that_only_nvrtc_takes_does_not_pass(tmp_path: Path) -> None:
    code = (kernels.FOLDER / "05_float4.cu").read_text()
    broken = code.replace("#pragma unroll unroll", "#pragma unroll UNROLL")
    assert broken != code
    assert build("05_float4", tmp_path, "-arch=sm_90", text=broken).returncode != 0


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize("name", NAMES)
def test_a_copied_kernel_computes_what_it_should(name: str, tmp_path: Path) -> None:
    assert has_gpu()
    built = build(name, tmp_path, "-arch=native")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
