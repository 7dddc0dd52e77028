"""Kernel files copied into a C++ program: compiled by nvcc, launched as their headers say."""

import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from helpers.bound import bind, load
from helpers.catalogue import steps, variants
from helpers.gpu import H200, has_gpu
from helpers.header import header
from helpers.paths import KERNELS

FOLDER = Path(__file__).parent
NAMES = [  # the program computes in float32
    name for name in [*steps(), *variants()] if load(name).header.dtype == "float32"
]
# Each kernel at the first that it takes; one that is built for a shape also at LONG, where it may
# want clusters of 16, much shared memory, all blocks at once, or to be launched early.
SHAPES = ((37, 1003), (37, 8200), (37, 203))
LONG = (1, 262144)

Case = tuple[str, int, int]  # name, rows, cols


def cases(long: bool) -> list[Case]:
    found = []
    for name in NAMES:
        kernel = load(name)
        found.append((name, *next(shape for shape in SHAPES if kernel.accepts(*shape))))
        if long and kernel.header.build and kernel.accepts(*LONG):
            found.append((name, *LONG))
    return found


def name_of(case: Case) -> str:
    return "{}-{}x{}".format(*case)


@cache
def nvcc() -> tuple[str, ...]:
    """The compiler with the options it needs; () if there is none that works."""
    beside = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/bin/nvcc"))
    for candidate in (*map(str, beside), shutil.which("nvcc")):
        if candidate and shutil.which("g++"):
            done = subprocess.run([candidate, "--version"], capture_output=True)
            if done.returncode == 0:
                library = f"-L{Path(candidate).parent.parent / 'lib'}"
                return candidate, library, "-std=c++17", "-Xcompiler=-Wall"
    return ()


needs_nvcc = pytest.mark.skipif(
    not nvcc(), reason="no nvcc, or no g++ for it; `make nvcc` installs nvcc beside NVRTC"
)


def compiled(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run nvcc in a folder."""
    command = [*nvcc(), *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def build(
    case: Case, folder: Path, *arguments: str | Path, text: str = "", arch: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Compile a copy of the kernel file and its launch in an empty folder, planned and compiled for
    an architecture, or the GPU at hand. Rows are apart where the kernel takes such."""
    name, rows, cols = case
    code = text or (KERNELS / f"{name}.cu").read_text()
    gpu = replace(H200, capability=arch) if arch else None
    strided = header(code).strided
    strides = {"x_stride": cols + 5, "y_stride": cols + 2} if strided else {}
    bound = bind(code, rows, cols, gpu=gpu, **strides)
    plan = bound.plan
    copies = name.rpartition("/")[2].startswith("00_copy")
    flags = [int(flag) for flag in (strided, plan.cooperative, plan.programmatic, copies)]
    sizes = [rows, cols, *bound.strides, plan.grid, plan.block, plan.shared_mem, plan.workspace]
    values = ", ".join(map(str, [f"(const void*){bound.name}", *sizes, *flags]))
    (folder / "kernel.cu").write_text(code)
    # The macros not as -D options: nvcc takes a comma in them for the end of one.
    lines = ['#include "launch.h"', *(f"#define {key} {x}" for key, x in plan.macros.items())]
    lines += ['#include "kernel.cu"', f"const Launch launch = {{{values}}};", ""]
    (folder / "launch.cu").write_text("\n".join(lines))
    target = f"-arch=sm_{arch}" if arch else "-arch=native"
    return compiled(folder, f"-I{FOLDER}", target, *arguments, "launch.cu")


@needs_nvcc
@pytest.mark.parametrize("case", cases(long=False), ids=name_of)
def test_a_copied_file_compiles_as_cpp17_without_a_warning(case: Case, tmp_path: Path) -> None:
    """For the oldest GPU that its header names."""
    done = build(case, tmp_path, "-c", arch=load(case[0]).header.arch)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr


@needs_nvcc
def test_a_file_that_only_nvrtc_takes_does_not_pass(tmp_path: Path) -> None:
    code = (KERNELS / "05_float4.cu").read_text()
    broken = code.replace("#pragma unroll unroll", "#pragma unroll UNROLL")
    assert broken != code
    case = ("05_float4", *SHAPES[0])
    assert build(case, tmp_path, "-c", text=broken, arch=90).returncode != 0


# ---- the program, without a GPU -----------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program as an object, without a kernel."""
    folder = tmp_path_factory.mktemp("program")
    done = compiled(folder, "-c", FOLDER / "softmax.cpp", "-o", "softmax.o")
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "softmax.o"


@pytest.fixture(scope="module")
def pretended(program: Path) -> Path:
    """The program with a kernel and a CUDA of main memory."""
    folder = program.parent
    done = compiled(folder, "-c", FOLDER / "without_gpu.cpp", "-o", "without_gpu.o")
    assert (done.returncode, done.stderr) == (0, "")
    subprocess.run(["g++", "softmax.o", "without_gpu.o", "-o", "pretended"], cwd=folder, check=True)
    return folder / "pretended"


def run(path: Path, **environment: str) -> tuple[int, list[str], str]:
    """(exit status, the calls that a pretended CUDA saw, everything else that was printed)"""
    done = subprocess.run(
        [path], env=os.environ | environment, capture_output=True, text=True, timeout=60
    )
    lines = done.stdout.splitlines()
    calls = [line.split(" ", 2)[2] for line in lines if line.startswith("call ")]
    said = "\n".join(line for line in lines if not line.startswith("call "))
    return done.returncode, calls, said


@needs_nvcc
@pytest.mark.parametrize(
    "kind", ["launch", "cooperative", "programmatic", "programmaticcooperative", "strided"]
)
def test_the_program_asks_for_what_the_launch_needs(pretended: Path, kind: str) -> None:
    status, calls, said = run(pretended, ASKS=kind)
    kind = "launch" if kind == "strided" else kind
    assert status == 0 and said.startswith("largest relative error")
    assert {"shared 102400 0", "clusters 1 0", "cudaMemset 256 0"} <= set(calls)
    assert calls.count(f"{kind} 10 102400") == 2
    assert max(map(calls.index, ("shared 102400 0", "clusters 1 0"))) < calls.index(
        f"{kind} 10 102400"
    )


@needs_nvcc
def test_the_program_names_every_call_that_cuda_refuses(pretended: Path) -> None:
    _, calls, _ = run(pretended)
    names = {"shared": "cudaFuncSetAttribute", "clusters": "cudaFuncSetAttribute"}
    names["launch"] = "cudaLaunchKernelExC"
    assert len(calls) == 16
    for number, call in enumerate(calls, 1):
        status, seen, said = run(pretended, FAIL=str(number))
        assert (status, len(seen)) == (2, number)
        *_, error, where = said.splitlines()
        assert error == "cudaErrorInvalidValue: invalid argument"
        kind = call.split()[0]
        assert where.startswith(f"    {names.get(kind, kind)}(")


def test_the_program_leaves_no_call_unchecked() -> None:
    text = (FOLDER / "softmax.cpp").read_text()
    calls = re.findall(r"(CALL\()?\b(cuda[A-Z]\w*)\(", text)
    assert len(calls) > 10
    assert {name for checked, name in calls if not checked} == {
        "cudaGetErrorName",
        "cudaGetErrorString",
    }


@needs_nvcc
def test_the_program_names_the_first_wrong_result(pretended: Path) -> None:
    status, _, said = run(pretended, WRONG=str(3 * 70 + 5))
    assert status == 1
    first, count = said.splitlines()
    assert re.fullmatch(r"row 3, column 5: -?nan, not [\d.e-]+", first)
    assert count == "1 of 5 x 70 results are wrong"
    status, _, said = run(pretended, WRONG=str(3 * 72 + 70), ASKS="strided")
    assert status == 1 and said.startswith("behind row 3, column 70: 0 was written\n1 of 5 x 70")


@needs_nvcc
@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_without_a_gpu_the_program_says_so(program: Path, tmp_path: Path) -> None:
    case = ("04_shuffle", *SHAPES[0])
    built = build(case, tmp_path, program, "-o", "program", arch=90)
    assert built.returncode == 0, built.stderr
    status, _, said = run(tmp_path / "program")
    assert status == 2
    assert re.match(
        r"cudaError(InsufficientDriver|NoDevice): .*\n    cudaFuncGetAttributes\(", said
    )


# ---- on a GPU -----------------------------------------------------------------------------------


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize("case", cases(long=True), ids=name_of)
def test_a_copied_kernel_computes_what_it_should(case: Case, program: Path, tmp_path: Path) -> None:
    built = build(case, tmp_path, program, "-o", "program")
    assert built.returncode == 0, built.stderr
    status, _, said = run(tmp_path / "program")
    assert status == 0, said


@pytest.mark.gpu
@needs_nvcc
def test_a_kernel_that_computes_something_else_is_noticed(program: Path, tmp_path: Path) -> None:
    code = (KERNELS / "00_copy.cu").read_text()
    case = ("00_copy", *SHAPES[0])
    wrong = code.replace("rows * cols", "rows * cols - 1")
    assert wrong != code
    built = build(case, tmp_path, program, "-o", "program", text=wrong)
    assert built.returncode == 0, built.stderr
    status, _, said = run(tmp_path / "program")
    assert status == 1 and said.startswith("row 36, column 1002: nan"), said
