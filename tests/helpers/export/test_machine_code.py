"""The kernels of an exported C++ file are the machine code that was measured."""

import re

import pytest

from helpers.base.gpu import H200
from helpers.commands.carry import machine_code
from helpers.export import cpp
from helpers.export.request import export_request
from helpers.run.bound import load
from helpers.simt import compile_cubin

CASES = [
    ("01_naive", 64, 1000, "float32"),
    ("08_cluster", 8192, 50304, "bfloat16"),
    ("09_grid", 1, 1048576, "float32"),
    ("10_sixteen_bit", 64, 200, "float16"),
    ("11_short_rows", 65536, 77, "bfloat16"),
    ("12_fused-MASK2-WIDE1", 64, 8192, "bfloat16"),
    ("15_gradient", 64, 50257, "float32"),
]


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


def sections(cubin: bytes) -> list[tuple]:
    """What a cubin executes, without names: code, shared memory and constants of its kernels."""
    return sorted(machine_code(cubin).values())


@pytest.mark.parametrize("step, rows, cols, dtype", CASES)
def test_an_export_has_the_machine_code_that_is_measured(step, rows, cols, dtype) -> None:
    """Both by NVRTC, with CuPy's options: instructions, registers, shared memory, constants."""
    bound = load(step).bind(rows, cols, dtype, gpu=H200)
    text = cpp.write(export_request(step, [f"{rows}x{cols}"], "fast", [dtype], [H200]))
    measured = compile_cubin(bound.kernel.code, bound.options)
    assert sections(compile_cubin(kernels_of(text))) == sections(measured)
