"""The kernels of an exported C++ file are the machine code that was measured."""

import re
import subprocess
from pathlib import Path

import pytest
from cuda.bindings import nvrtc

from helpers.base.gpu import H200
from helpers.export import cpp
from helpers.export.request import export_request
from helpers.run.bound import load
from helpers.simt import compile_cubin
from tests.copied.compilers import compiled, needs_nvcc, nvcc
from tests.helpers.export.machine_code import Build, Elf, differences

CASES = [
    ("01_naive", 64, 1000, "float32"),
    ("07_warp", 64, 256, "bfloat16"),
    ("08_cluster", 8192, 50304, "bfloat16"),
    ("09_grid", 1, 1048576, "float32"),
    ("10_sixteen_bit", 64, 200, "float16"),
    ("10_sixteen_bit", 64, 200, "bfloat16"),
    ("11_any_row", 8192, 50257, "float32"),
    ("11_short_rows", 65536, 77, "bfloat16"),
    ("11_any_length", 4, 3000001, "float32"),
    ("12_fused-MASK2-WIDE1", 64, 8192, "bfloat16"),
    ("14_backward-LOG1", 64, 4096, "float32"),
    ("15_cross_entropy", 4096, 128256, "bfloat16"),
    ("15_gradient", 64, 50257, "float32"),
]
each_case = pytest.mark.parametrize("step, rows, cols, dtype", CASES)


def exported(step: str, rows: int, cols: int, dtype: str, name: str = "fast") -> str:
    return cpp.write(export_request(step, [f"{rows}x{cols}"], name, [dtype], [H200]))


def kernels_of(text: str) -> str:
    """The part of an exported file that a GPU runs, which NVRTC takes too; what the file includes
    of itself stands in its place."""
    includes = "".join(re.findall(r"^#include <cuda_[bf]\w*16.h>\n", text, flags=re.MULTILINE))
    _, *texts = re.split(r"^#elif defined\(FAST_TEXT\) .*\n", text[: -len("#endif\n")], flags=re.M)
    begin, end = text.index("// ---- specialisations"), text.index("#undef SOFTMAX_WORKLOG_TEXT")

    def placed(part: str) -> str:
        one = r"#define FAST_TEXT (\d+)(.*?)#include FAST_SELF"
        return re.sub(one, lambda at: at[2] + placed(texts[int(at[1]) - 1]), part, flags=re.DOTALL)

    return includes + placed(text[begin:end])


def own(step: str, rows: int, cols: int, dtype: str) -> Build:
    """The kernel as it is measured."""
    bound = load(step).bind(rows, cols, dtype, gpu=H200)
    return Build(bound.kernel.code, bound.options)


@each_case
def test_an_export_has_the_machine_code_that_is_measured(step, rows, cols, dtype) -> None:
    """Both by NVRTC, with CuPy's options: instructions, registers, shared memory, constants."""
    text = kernels_of(exported(step, rows, cols, dtype))
    assert differences(own(step, rows, cols, dtype), Build(text)) == []


def instructions(cubin: bytes) -> list[bytes]:
    """Of every kernel."""
    elf = Elf(cubin)
    return [elf.content(f".text.{name}") for name in sorted(elf.functions)]


def release() -> tuple[int, ...]:
    """nvcc's version: (13, 0)."""
    said = subprocess.run([nvcc()[0], "--version"], capture_output=True, text=True).stdout
    return tuple(map(int, re.search(r"release (\d+)\.(\d+)", said).groups()))


@needs_nvcc
def test_nvcc_makes_the_same_instructions_of_it(tmp_path: Path) -> None:
    """By the compile line in its head, where nvcc and NVRTC are of one version."""
    if release() != nvrtc.nvrtcVersion()[1:]:
        pytest.skip("nvcc and NVRTC are of different versions")
    cases = CASES[1:4]
    (tmp_path / "three.cu").write_text("".join(exported(*case, f"of_{case[0]}") for case in cases))
    done = compiled(tmp_path, "-arch=sm_90", "-cubin", "three.cu", "-o", "three.cubin")
    assert done.returncode == 0, done.stderr
    builds = [own(*case) for case in cases]
    measured = [code for b in builds for code in instructions(compile_cubin(b.code, b.options))]
    assert sorted(instructions((tmp_path / "three.cubin").read_bytes())) == sorted(measured)
