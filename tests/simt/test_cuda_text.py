"""Reading C: what counts as code, which kernels a source has, and what they take."""

import re

import ml_dtypes
import numpy as np
import pytest

from helpers.catalogue.registry import source
from helpers.simt.cuda_text import is_template, kernel_names, signature, template_of, token_hash

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
        code.replace("y[0] = 1.0f", "y [ 0 ]=1.0f"),
        code.replace("{\n    ", "{").replace("\n", " "),
    ]
    assert {token_hash(text) for text in same} == {token_hash(code)}
    assert re.fullmatch("[0-9a-f]{16}", token_hash(code))


def test_hash_follows_code() -> None:
    code = "// see /* below\nint a = 1;\nint b = 2; // */ here\nint c = 3;\n"
    others = [code.replace(old, new) for old, new in (("1", "4"), ("2", "4"), ("3", "4"))]
    others += [code.replace("int b", "long b"), f"{code}int d;", f"#define N 1\n{code}"]
    hashes = {token_hash(text) for text in (code, *others)}
    assert len(hashes) == 1 + len(others)
    real = EXAMPLE.replace("col < cols", "col <= cols", 1)
    assert token_hash(real) != token_hash(EXAMPLE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a + +b", "a ++b"),
        ("a < < b", "a << b"),
        ("int ab;", "int a b;"),
        ("1.0f", "1.0 f"),
        ("#define N 1\nint a;", "#define N 1 int a;"),
        ("#define N(x) 1", "#define N (x) 1"),
        ('f("a  b")', 'f("a b")'),
        ('f("// a")', 'f("")'),
        ("'a'", "'b'"),
    ],
)
def test_hash_tells_tokens_apart_that_only_white_space_separates(one: str, other: str) -> None:
    assert token_hash(one) != token_hash(other)


def test_kernels_of_a_source() -> None:
    code = "// __global__ void commented(int nothing)\n__global__ void none() {} "
    code += 'extern "C" __global__ void two(int a, /* b, */ float c) {}'
    assert kernel_names(code) == ["none", "two"]
    assert signature(code, "none") == ()
    assert [one.name for one in signature(code, "two")] == ["a", "c"]


def test_signature_of_no_kernel_lists_the_kernels_there_are() -> None:
    with pytest.raises(ValueError, match="no kernel named 'a' in this source; .* there: b, c"):
        signature("__global__ void b() {} __global__ void c() {} void a() {}", "a")


SPELLINGS = {
    "float *y": ("y", np.float32, True, False),
    "float const * y": ("y", np.float32, True, True),
    "float* const __restrict__ y": ("y", np.float32, True, False),
    "/* double */ __half y": ("y", np.float16, False, False),
    "long long y": ("y", np.int64, False, False),
    "float y[]": ("y", np.float32, True, False),
    "const float y[16]": ("y", np.float32, True, True),
    "float y[][4]": ("y", np.float32, True, False),
    "const float (*y)[16]": ("y", np.float32, True, True),
    "const real y": ("y", np.float32, False, True),
    "real* y": ("y", np.float32, True, False),
    "const In y": ("y", np.float64, True, True),
    "Out y": ("y", np.int64, True, False),
    "ELEMENT* y": ("y", np.float16, True, False),
    "bool y": ("y", np.bool_, False, False),
    "std::size_t y": ("y", np.uint64, False, False),
    "const ::real* y": ("y", np.float32, True, True),
    "unsigned long int y": ("y", np.uint64, False, False),
    "long unsigned y": ("y", np.uint64, False, False),
    "uint8_t *y": ("y", np.uint8, True, False),
    "__nv_bfloat16 y": ("y", ml_dtypes.bfloat16, False, False),
    "struct Pair y": ("y", None, False, False),
    "Vec<float, 4> y": ("y", None, False, False),
    "const __grid_constant__ Pair y": ("y", None, False, True),
    "int y = max(1, 2)": ("y", np.int32, False, False),
    "int": ("argument 0", np.int32, False, False),
    "unsigned int": ("argument 0", np.uint32, False, False),
    "const float*": ("argument 0", np.float32, True, True),
}
ALIASES = """
typedef float real; using In = const double*; typedef long long wide; typedef wide* Out;
#define ELEMENT __half
"""


@pytest.mark.parametrize("text", SPELLINGS)
def test_spellings_of_a_parameter(text: str) -> None:
    (found,) = signature(f"{ALIASES}\n__global__ void k({text}) {{}}", "k")
    name, dtype, *rest = SPELLINGS[text]
    dtype = None if dtype is None else np.dtype(dtype)
    assert [found.name, found.dtype, found.pointer, found.const] == [name, dtype, *rest]
    assert not found.table


@pytest.mark.parametrize("text", ["float** y", "const float* const* y", "float* y[]", "Out* y"])
def test_pointers_to_pointers(text: str) -> None:
    (found,) = signature(f"{ALIASES}\n__global__ void k({text}) {{}}", "k")
    assert found.pointer and found.table and found.name == "y"


def test_template_arguments_give_types() -> None:
    code = (
        "template <typename T, int N, template <class> class C = A<T>> __launch_bounds__(B<N>::v)"
    )
    code += "__global__ void k(const T* x, T a, int n) {}"
    found = signature(code, "k<double, 4>")
    assert [one.dtype for one in found] == [np.float64, np.float64, np.int32]
    assert template_of(code, "k").template.endswith("class C = A<T>")
    assert is_template(code, "k") and not is_template("__global__ void k() {}", "k")


@pytest.mark.parametrize(
    "head",
    [
        "void __global__ {}(",
        "__global__ __launch_bounds__(32 * (2 + 2), 1) void {}(",
        "static __global__ void __cluster_dims__(2, 1, 1) {}(",
        "__launch_bounds__(128) __global__ void {}(",
        "__global__ auto {}(",
        "template <class T>\n__global__ void\n{}(",
    ],
)
def test_kernels_are_found_however_they_are_declared(head: str) -> None:
    code = head.format("k") + "int n);\n" + head.format("k") + "int n) { f<<<1, 2>>>(); }"
    assert kernel_names(code) == ["k"]
    assert [one.name for one in signature(code, "k")] == ["n"]


def test_an_alias_of_two_meanings_is_left_to_the_compiler() -> None:
    code = "#ifdef HALF\ntypedef __half T;\n#else\ntypedef float T;\n#endif\n"
    (found,) = signature(code + "__global__ void k(T* y) {}", "k")
    assert (found.dtype, found.type, found.pointer) == (None, "T", True)


def test_a_parameter_reads_as_in_c() -> None:
    code = "__global__ void k(const float* __restrict__ x, int n, float** rows) {}"
    assert [str(one) for one in signature(code, "k")] == ["const float* x", "int n", "float** rows"]
