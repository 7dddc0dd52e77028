"""Reading C: what counts as code, which kernels a source has, and what they take."""

import re

import numpy as np
import pytest

from helpers.catalogue import source
from helpers.simt.cuda_text import code_hash, kernel_names, signature

EXAMPLE = source("01_naive.cu")


def test_hash_ignores_comments_and_white_space() -> None:
    code = 'extern "C" __global__ void k(float* y)\n{\n    y[0] = 1.0f;\n}\n'
    same = [
        code.replace("\n", "\r\n"),
        code.replace("    ", "\t"),
        f"// a comment\n{code}",
        f"{code}// at the end, without a new line",
        code.replace("1.0f;", "1.0f;  // one"),
        code.replace("{", "{ /* two\n lines */"),
        code.replace("y[0] =", "y[0] /* here */ ="),
        f'#line 1 "kernels/k.cu"\n{code}',
        f"// SPDX-License-Identifier: MIT\n// Idea: none\n\n{code}",
    ]
    assert {code_hash(text) for text in same} == {code_hash(code)}
    assert re.fullmatch("[0-9a-f]{16}", code_hash(code))


def test_hash_follows_code() -> None:
    code = "// see /* below\nint a = 1;\nint b = 2; // */ here\nint c = 3;\n"
    others = [code.replace(old, new) for old, new in (("1", "4"), ("2", "4"), ("3", "4"))]
    others += [code.replace("int b", "long b"), f"{code}int d;", f"#define N 1\n{code}"]
    hashes = {code_hash(text) for text in (code, *others)}
    assert len(hashes) == 1 + len(others)
    real = EXAMPLE.replace("col < cols", "col <= cols", 1)
    assert code_hash(real) != code_hash(EXAMPLE)


def test_signature_tells_types_and_pointers_apart() -> None:
    code = """
    // __global__ void commented(int nothing)
    extern "C" __global__ void __launch_bounds__(128)
    many(const float* __restrict__ a, float *b, float const * c, float* const __restrict__ d,
         unsigned int e, long long f, const int g, /* double */ __half h, thing i, size_t j)
    {
    }
    __global__ void none() {}
    """
    assert kernel_names(code) == ["many", "none"]
    assert signature(code, "none") == ()
    found = [(p.name, p.dtype, p.pointer, p.const) for p in signature(code, "many")]
    f32 = np.dtype(np.float32)
    assert found == [
        ("a", f32, True, True),
        ("b", f32, True, False),
        ("c", f32, True, True),
        ("d", f32, True, False),
        ("e", np.dtype(np.uint32), False, False),
        ("f", np.dtype(np.int64), False, False),
        ("g", np.dtype(np.int32), False, True),
        ("h", np.dtype(np.float16), False, False),
        ("i", None, False, False),
        ("j", np.uint64, False, False),
    ]


def test_signature_of_no_kernel_lists_the_kernels_there_are() -> None:
    with pytest.raises(ValueError, match="no kernel named 'a' in this source; .* there: b, c"):
        signature("__global__ void b() {} __global__ void c() {} void a() {}", "a")
