"""Signatures as people write them: what a kernel is called, and what it can be given."""

import re

import cupy
import ml_dtypes
import numpy as np
import pytest

from helpers.simt import KernelText, simulate
from helpers.simt.cuda_text import plain_name, signature
from tests.simt.launching import FILE


def run(parameters: str, body: str, *args, before: str = "") -> None:
    kernel = f"__global__ void k({parameters})\n{{\nint i = threadIdx.x;\n{body}\n}}\n"
    trace = simulate(KernelText(f"{FILE}{before}\n{kernel}", "k"), 1, 4, args)
    assert not trace.findings, str(trace.findings)


def test_pointers_to_pointers_are_arrays_of_addresses() -> None:
    rows = [np.full(4, number, np.float32) for number in (3, 4)]
    y = np.zeros(4, np.float32)
    run("float** rows, float* y", "y[i] = rows[0][i] + rows[1][i]; rows[1][i] = 9;", rows, y)
    assert y.tolist() == [7] * 4
    assert rows[0].tolist() == [3] * 4 and rows[1].tolist() == [9] * 4


def test_a_null_among_pointers_and_one_past_the_last_are_found_out() -> None:
    code = (
        f"{FILE}__global__ void k(float** rows, float* y, int n)\n"
        "{ y[threadIdx.x] = rows[n] ? rows[n][threadIdx.x] : -1; }\n"
    )
    rows, y = [np.full(4, 3, np.float32), None], np.zeros(4, np.float32)
    assert not simulate(KernelText(code, "k"), 1, 4, (rows, y, 1)).findings
    assert y.tolist() == [-1] * 4
    trace = simulate(KernelText(code, "k"), 1, 4, (rows, y, 2))
    assert "past the end of rows" in str(trace.findings)


PAIR = "struct Pair { char tag; int n; }; struct Pointer { float* data; };"
ALIGNED = np.array((1, 42), np.dtype([("tag", "i1"), ("n", "i4")], align=True))
# Parameters behind y, the value of y[i], what is passed, and what each y[i] then is.
PASSED = {
    "int* y, bool b": ("b ? 42 : n", (True, 5), 42),
    "int* y, bool flag": ("flag ? 42 : n", (np.True_, 5), 42),
    "int* y, bool one": ("one ? 42 : n", (1, 5), 42),
    "float y[], const float (*x)[16]": ("x[2][3]", (np.eye(4, 16, 1, dtype=np.float32), 5), 1),
    "float* y, const float* bias": ("bias ? bias[i] : n", (None, 7), 7),
    "__half* y, __half a": ("a * a", (np.float16(1.5), 5), 2.25),
    "__nv_bfloat16* y, __nv_bfloat16 a": ("a * a", (ml_dtypes.bfloat16(1.5), 5), 2.25),
    "int* y, Pair p": ("p.n * p.tag", (ALIGNED[()], 5), 42),
    "int* y, Pair element": ("element.n * element.tag", (ALIGNED, 5), 42),
}


@pytest.mark.parametrize("parameters", PASSED)
def test_a_value_of_the_type_that_is_declared_is_passed(parameters: str) -> None:
    expression, values, expected = PASSED[parameters]
    kind = signature(f"__global__ void k({parameters}) {{}}", "k")[0].dtype
    y = np.zeros(4, kind)
    before = f"#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n{PAIR}"
    run(f"{parameters}, int n", f"y[i] = {expression};", y, *values, before=before)
    assert y.tolist() == [expected] * 4


TABLE = "struct Row { float* data; int n; }; struct Table { Row rows[2]; float** all; int* null; };"


def test_pointers_of_a_struct_are_arrays_in_object_fields() -> None:
    row = np.dtype([("data", "O"), ("n", "i4")], align=True)
    kind = np.dtype([("rows", row, (2,)), ("all", "O"), ("null", "O")], align=True)
    a, b, c, y = (np.full(4, number, np.float32) for number in (1, 20, 300, 0))
    table = np.array(([(a, 4), (b, 2)], [a, c], None), kind)[()]
    body = """if (t.null == nullptr && i < t.rows[1].n) t.rows[0].data[i] += t.rows[1].data[i];
        y[i] = t.all[1][i] + t.rows[0].n;"""
    run("float* y, Table t", body, y, table, before=TABLE)
    assert y.tolist() == [304] * 4 and a.tolist() == [21, 21, 1, 1] and b.tolist() == [20] * 4


PACKED = np.array((1, 42), np.dtype([("tag", "i1"), ("n", "i4")]))
SWAPPED = [("tag", ">i4"), ("n", ">i4")]
REFUSED = [
    ("Pair p", 3, "p is a struct of 8 bytes, not 3: pass a numpy.void"),
    ("Pair p", PACKED, "p has 5 bytes, the kernel takes a struct of 8 bytes"),
    ("int n", 1024.5, "n is 1024.5, the kernel takes int"),
    ("int n", PACKED, "n is a struct of 5 bytes, the kernel takes int"),
    ("int n", np.zeros(3), "n is an array, the kernel takes int"),
    ("int n", None, "n is None, the kernel takes int"),
    ("Pair p", np.zeros(3), "p is an array, the kernel takes a struct"),
    ("float a", "many", "a is 'many', the kernel takes float"),
    ("int n", 99999999999, "n is 99999999999, the kernel takes int (-2147"),
    ("__half h", 1.5, "h is a struct of 2 bytes, not 1.5: pass numpy.float1"),
    ("float** r", ["x"], "r[0] is 'x', the kernel takes float*: pass an"),
    ("const float* x", np.ones(4), "x is float64, the kernel takes float32 (float*)"),
    ("const float* x", np.ones(4, np.int32), "x is int32, the kernel takes float32 (flo"),
    ("const float* x", np.zeros(16, np.uint8), "x is uint8, the kernel takes float32 (flo"),
    ("float* x", np.ones(4, ">f4"), "x is >f4, the kernel takes float32 (float*)"),
    ("char* x", np.ones(4, ">f4"), "x is >f4, the kernel takes int8 (char*)"),
    ("unsigned char* x", np.ones(4), "x is float64, the kernel takes uint8 (u"),
    ("Pair* p", np.ones(4, SWAPPED), "p is ["),
    ("__half* h", np.ones(4, ml_dtypes.bfloat16), "h is bfloat16, the kernel"),
    ("float** r", [np.ones(4)], "r[0] is float64, the kernel takes float32"),
    ("float** r", np.ones(4), "r is float64, the kernel takes uint64 (float**)"),
    ("float* x", [np.ones(4)], "x is a list, the kernel takes float*: pass a n"),
    ("float* x", 5, "x is 5, the kernel takes float*: pass an array or N"),
    ("float* x", np.array(5), "x is 5, the kernel takes float*"),
    ("float** r", [5], "r[0] is 5, the kernel takes float*"),
    ("long long n", np.ones(4), "n is an array, the kernel takes long long"),
    ("long long n", [np.ones(4)], "n is a list, the kernel takes long long"),
    ("double n", None, "n is None, the kernel takes double"),
    ("Pointer p", np.array(("x",), np.dtype([("data", "O")])), "p.data is no array: 'x'"),
]


@pytest.mark.parametrize(
    ("parameter", "value", "message"), REFUSED, ids=[one[-1] for one in REFUSED]
)
def test_what_does_not_fit_is_one_sentence(parameter: str, value, message: str) -> None:
    before = PAIR + "\n#include <cuda_fp16.h>"
    with pytest.raises((TypeError, ValueError)) as caught:
        run(parameter, "", value, before=before)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


HALVES = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>"
DEFAULT = "#ifndef REAL\n#define REAL float\n#endif"
LEFT_OUT = "#if 0\n__global__ void k(const float* x) {}\n#endif"
# What a pointer takes besides its own dtype: (parameter, array, what is before the kernel).
TAKEN = {
    "bits of half": ("const __half* x", np.ones(4, np.uint16), HALVES),
    "bits of half as signed integers": ("const __half* x", np.ones(4, np.int16), HALVES),
    "bfloat16 as numpy loads it": ("__nv_bfloat16* x", np.ones(4, np.uint16).view("V2"), HALVES),
    "integers of the other sign": ("const unsigned* x", np.ones(4, np.int32), ""),
    "bytes for bool": ("const bool* x", np.ones(4, np.uint8), ""),
    "anything for a workspace": ("float* workspace", np.zeros(32, np.uint8), ""),
    "anything for void": ("const void* x", np.ones(4), ""),
    "anything for char": ("const char* x", np.ones(4), ""),
    "arrays of anything for char": ("char** x", [np.ones(4), None], ""),
    "anything for a vector": ("const float4* x", np.ones(4), ""),
    "null": ("const float* x", 0, ""),
    "a type by an option": ("const REAL* x", np.ones(4), ""),
    "another by an option": ("const REAL* x", np.ones(4), DEFAULT),
    "one of two declarations": ("const double* x", np.ones(4), LEFT_OUT),
}


@pytest.mark.parametrize("case", TAKEN)
def test_an_array_of_the_same_bits_or_an_unknown_type_is_taken(case: str) -> None:
    parameter, value, before = TAKEN[case]
    code = f"{before}\n__global__ void k({parameter}) {{}}\n"
    kernel = KernelText(code, "k", ("-D", "REAL=double"))
    assert not simulate(kernel, 1, 4, (value,)).findings


EITHER = """#include <cuda_bf16.h>
#ifdef WIDE
typedef float T;
#else
typedef __nv_bfloat16 T;
#endif
"""
HELD = {
    "const REAL* x": "float64 (double*)",
    "const T* x": "bfloat16 (__nv_bfloat16*)",
    "T** x": "uint64 (__nv_bfloat16**)",
    "int* x) {}\n#ifdef WIDE\n__global__ void k(T* x) {}\n#endif\nint f(int n": "int32 (int*)",
    "T* const a, const T* b, const T* x": "bfloat16 (__nv_bfloat16*)",
}


@pytest.mark.parametrize("declared", HELD)
def test_an_array_is_held_to_the_type_that_the_compiler_sees(declared: str) -> None:
    kernel = KernelText(f"{EITHER}__global__ void k({declared}) {{}}", "k", ("-D", "REAL=double"))
    args = [None] * declared.count(",") + [np.ones(4, np.float32)]
    with pytest.raises(
        TypeError, match=re.escape(f"x is float32, the kernel takes {HELD[declared]}")
    ):
        simulate(kernel, 1, 4, args)


ENUM = """enum Kind { A, B };
extern "C" __global__ void k(long long* y, Kind kind, int n) { y[0] = kind; y[1] = n; }"""


@pytest.mark.parametrize("value", [5, -5, True, np.int64(5), np.uint8(5), np.array(-5)])
def test_a_number_of_any_kind_is_taken_where_the_source_does_not_tell_the_type(value) -> None:
    y = np.zeros(2, np.int64)
    simulate(KernelText(ENUM, "k"), 1, 1, (y, value, value))
    assert y.astype(np.int32).tolist() == [int(value)] * 2


@pytest.mark.parametrize("value", [1.5, 2**32, -(2**31) - 1, "5", np.zeros((), "i4,i4")[()]])
def test_a_number_is_held_to_the_type_in_ptx_where_the_source_does_not_tell_it(value) -> None:
    with pytest.raises((TypeError, ValueError), match="kind is .*, the kernel takes an integer of"):
        simulate(KernelText(ENUM, "k"), 1, 1, (np.zeros(2, np.int64), value, 5))


MANGLED = {
    "_Z5scalePKfPfif": "scale",
    "_ZL5scalePf": "scale",
    "_ZN2ns5scaleEPf": "scale",
    "_ZN2ns5scaleIfLi3EEEvPT_": "scale",
    "_ZN40_GLOBAL__N__deadbeef_9_kernel_cu_cafe0005scaleEPf": "scale",
    "_Z1kv": "k",
    "_Z1k4Pair": "k",
    "scale": "scale",
}


@pytest.mark.parametrize("mangled", MANGLED)
def test_names_within_mangled_ones(mangled: str) -> None:
    assert plain_name(mangled) == MANGLED[mangled]


def test_a_kernel_in_a_namespace_goes_by_its_plain_name() -> None:
    code = f"{FILE}namespace ns {{ __global__ void k(int* y) {{ y[threadIdx.x] = 5; }} }}\n"
    for name in ("k", "ns::k"):
        y = np.zeros(4, np.int32)
        simulate(KernelText(code, name), 1, 4, (y,))
        assert y.tolist() == [5] * 4


def test_two_kernels_of_one_name_are_told_apart() -> None:
    code = "__global__ void k(int* y) { *y = 1; } __global__ void k(float* y) { *y = 2; }"
    with pytest.raises(KeyError, match="2 kernels are named 'k'.*_Z1kPi, _Z1kPf"):
        simulate(KernelText(code, "k"), 1, 1, (np.zeros(1),))
    y = np.zeros(1, np.float32)
    simulate(KernelText(code, "_Z1kPf"), 1, 1, (y,))
    assert y[0] == 2


def test_a_raw_kernel_goes_by_its_name_in_the_machine_code_as_on_a_gpu() -> None:
    kernel = cupy.RawKernel("__global__ void k(int* y) { *y = 1; }", "k")
    with pytest.raises(KeyError, match=r'kernels there: k \(is extern \\?"C\\?" missing\?\)'):
        simulate(kernel, 1, 1, (np.zeros(1, np.int32),))
