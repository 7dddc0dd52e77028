"""Numbers, parameters and memory: small CUDA kernels give what Python says, and on a GPU too."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from tests.simt.launching import Run, floats, rounded
from tests.simt.launching import small_kernel as kernel

# ---- numbers ------------------------------------------------------------------------------------


def test_index_arithmetic_has_64_bits(run: Run) -> None:
    y = np.zeros(96, np.int64)
    parameters = "long long* y, int rows, unsigned cols, long long base"
    body = """
        long long at = (long long)(rows - i) * (long long)cols + base;
        size_t there = (size_t)(i + 1) * 3000000000ull;
        y[i] = at / 7 + (long long)(there % 1000003) - (at >> 33);
        y += (1ll << 40) + i; y -= 1ll << 40; *y += at & 1;"""
    rows, cols, base = 2**31 - 1, 2**32 - 5, -(2**61)
    run(kernel(body, parameters), 3, 32, y, rows, cols, base)
    for i, found in enumerate(y.tolist()):
        at = (rows - i) * cols + base
        truncated = abs(at) // 7 * (1 if at > 0 else -1)
        assert found == truncated + (i + 1) * 3000000000 % 1000003 - (at >> 33) + (at & 1)


INTEGER_TYPES = {
    "signed char": np.int8,
    "unsigned char": np.uint8,
    "short": np.int16,
    "unsigned short": np.uint16,
    "int": np.int32,
    "unsigned": np.uint32,
    "long long": np.int64,
    "unsigned long long": np.uint64,
    "bool": np.bool_,
}


@pytest.mark.parametrize("name", INTEGER_TYPES)
def test_integers_of_every_size_load_and_store(run: Run, name: str) -> None:
    dtype = np.dtype(INTEGER_TYPES[name])
    chance = random.Random(name)
    is_bool = dtype.kind == "b"
    if is_bool:
        low, high = 0, 1
    else:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    values = [low, high, 0, 1] + [chance.randint(low, high) for _ in range(60)]
    x, y, wide = np.array(values, dtype), np.zeros(65, dtype), np.zeros(64, np.int64)
    y[64] = 1
    body = "y[i] = x[i] / 3 + x[i ^ 1]; wide[i] = x[i] * 2ll + (x[i] < s);"
    code = kernel(body, f"{name}* y, const {name}* x, long long* wide, {name} s")
    run(code, 2, 32, y, x, wide, values[-1])
    for i, value in enumerate(values):
        third = abs(value) // 3 * (-1 if value < 0 else 1)
        expected = third + values[i ^ 1]
        assert int(y[i]) == (bool(expected) if is_bool else wrapped(expected, dtype))
        assert int(wide[i]) == wrapped(2 * value + (value < values[-1]), np.dtype(np.int64))
    assert y[64] == 1


def wrapped(number: int, dtype: np.dtype) -> int:
    number %= 1 << 8 * dtype.itemsize
    over = dtype.kind == "i" and number >> (8 * dtype.itemsize - 1)
    return number - (1 << 8 * dtype.itemsize) if over else number


def test_doubles_keep_their_precision(run: Run) -> None:
    x = np.random.default_rng(1).normal(size=64)
    y, z = np.zeros(64), np.zeros(64, np.float32)
    body = "y[i] = x[i] / 3.0 - sqrt(x[i] * x[i]) * s; z[i] = (float)(x[i] / 7.0);"
    parameters = "double* y, const double* x, float* z, double s"
    run(kernel(body, parameters), 2, 32, y, x, z, 0.1, options=("--fmad=false",))
    for i, value in enumerate(x.tolist()):
        assert y[i] == value / 3.0 - math.sqrt(value * value) * 0.1
        assert z[i] == rounded(value / 7.0)


def test_single_precision_rounds_after_every_operation(run: Run) -> None:
    x, y = floats(64), np.zeros(64, np.float32)
    body = "float v = x[i] + 0.1f; v = v * v; y[i] = v / 3.0f - sqrtf(v);"
    run(kernel(body, "float* y, const float* x"), 2, 32, y, x, options=("--fmad=false",))
    for found, value in zip(y.tolist(), x.tolist(), strict=True):
        v = rounded(value + rounded(0.1))
        v = rounded(v * v)
        assert found == rounded(rounded(v / 3.0) - rounded(math.sqrt(v)))


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("expf(v)", math.exp),
        ("__expf(v)", math.exp),
        ("exp2f(v)", lambda v: 2.0**v),
        ("logf(v + 9)", lambda v: math.log(rounded(v + 9))),
        ("__logf(v + 9)", lambda v: math.log(rounded(v + 9))),
        ("rsqrtf(v + 9)", lambda v: 1 / math.sqrt(rounded(v + 9))),
        ("powf(v + 9, 1.7f)", lambda v: rounded(v + 9) ** rounded(1.7)),
        ("tanhf(v)", math.tanh),
        ("erff(v)", math.erf),
        ("__sinf(v) + 2", lambda v: math.sin(v) + 2),
        ("__fdividef(v, 3)", lambda v: v / 3),
        ("fabsf(v) + fmaxf(v, 0.1f) + fminf(v, 0.1f)", lambda v: abs(v) + v + rounded(0.1)),
        ("floorf(v) + ceilf(v) + rintf(v) + truncf(v)", lambda v: sums_of_roundings(v)),
        ("fmodf(v, 0.25f)", lambda v: math.fmod(v, 0.25)),
        ("(float)__float2int_rd(v * 100)", lambda v: math.floor(rounded(v * 100))),
        ("__saturatef(v)", lambda v: min(max(v, 0), 1)),
        ("isnan(v / v - 1) ? 1 : copysignf(2, v)", lambda v: math.copysign(2, v)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_mathematical_functions_are_right_to_a_few_ulp(
    run: Run, expression: str, function: Callable[[float], float]
) -> None:
    x, y = floats(96) * np.float32(2), np.zeros(96, np.float32)
    body = f"float v = x[i]; y[i] = {expression};"
    run(kernel(body, "float* y, const float* x"), 3, 32, y, x)
    for value, found in zip(x.tolist(), y.tolist(), strict=True):
        expected = function(value)
        assert abs(found - expected) <= 1e-6 * abs(expected), value


def sums_of_roundings(v: float) -> float:
    return math.floor(v) + math.ceil(v) + round(v) + math.trunc(v)


@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("__popc(v)", lambda v: bin(v).count("1")),
        ("__clz(v)", lambda v: 32 - v.bit_length()),
        ("__ffs(v)", lambda v: (v & -v).bit_length()),
        ("__brev(v)", lambda v: int(f"{v:032b}"[::-1], 2)),
        ("__byte_perm(v, 0x01020304u, 0x5170u)", lambda v: byte_permutation(v)),
        ("__funnelshift_l(v, ~v, v & 63)", lambda v: left_funnel(v)),
        ("__umulhi(v, 0xdeadbeefu)", lambda v: v * 0xDEADBEEF >> 32),
        ("v % 10 + v / 10 % 7 * 100", lambda v: v % 10 + v // 10 % 7 * 100),
        ("(unsigned)((int)v % 12)", lambda v: math.fmod(signed(v), 12)),
        ("(unsigned)((int)v / -7)", lambda v: math.trunc(signed(v) / -7)),
        ("v << 7 | v >> 25", lambda v: v << 7 | v >> 25),
        ("(unsigned)((int)v >> 3)", lambda v: signed(v) >> 3),
        ("min(v, 77u) + max((int)v, -5)", lambda v: min(v, 77) + max(signed(v), -5)),
        ("(unsigned)abs((int)v)", lambda v: abs(signed(v))),
        ("v & 0xff ? v ^ n : ~v", lambda v: v ^ 3 if v & 0xFF else ~v),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_integer_intrinsics_are_exact(
    run: Run, expression: str, function: Callable[[int], int]
) -> None:
    chance = random.Random(5)
    values = [0, 1, 2**31 - 1, 2**31, 2**32 - 1] + [chance.getrandbits(32) for _ in range(59)]
    x, y = np.array(values, np.uint32), np.zeros(64, np.uint32)
    body = f"unsigned v = x[i]; y[i] = {expression};"
    run(kernel(body, "unsigned* y, const unsigned* x, int n"), 2, 32, y, x, 3)
    assert y.tolist() == [int(function(value)) & 0xFFFFFFFF for value in values]


def signed(v: int) -> int:
    return v - 2**32 if v >> 31 else v


def byte_permutation(v: int) -> int:
    source = v.to_bytes(4, "little") + (0x01020304).to_bytes(4, "little")
    return int.from_bytes(bytes(source[place] for place in (0, 7, 1, 5)), "little")


def left_funnel(v: int) -> int:
    shift = v & 31
    return ((~v & 0xFFFFFFFF) << 32 | v) << shift >> 32


# ---- memory -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vector", "scalar", "lanes", "dtype"),
    [
        ("float2", "float", 2, np.float32),
        ("float4", "float", 4, np.float32),
        ("int4", "int", 4, np.int32),
        ("uint2", "unsigned", 2, np.uint32),
        ("uchar4", "unsigned char", 4, np.uint8),
        ("short2", "short", 2, np.int16),
        ("ushort4", "unsigned short", 4, np.uint16),
        ("double2", "double", 2, np.float64),
        ("longlong2", "long long", 2, np.int64),
    ],
)
def test_vectors_load_and_store_whole(
    run: Run, vector: str, scalar: str, lanes: int, dtype: type
) -> None:
    x = np.random.default_rng(2).integers(0, 100, (70, lanes)).astype(dtype)
    y = np.zeros((70, lanes), dtype)
    fields = "xyzw"[:lanes]
    turned = fields[1:] + fields[0]
    moves = " ".join(f"w.{a} = ({scalar})(v.{b} + 1);" for a, b in zip(fields, turned, strict=True))
    body = f"if (i >= n) return; {vector} v = x[i], w; {moves} y[i] = w;"
    run(kernel(body, f"{vector}* y, const {vector}* x, int n"), 3, 32, y, x, 70)
    assert y.tolist() == [[*(v + 1 for v in row[1:]), row[0] + 1] for row in x.tolist()]


def test_a_struct_is_passed_by_value(run: Run) -> None:
    dtype = np.dtype(
        [("a", "u1"), ("b", "f4"), ("c", "i2"), ("d", "f8"), ("e", "i4", 3), ("f", "u8")],
        align=True,
    )
    struct_code = (
        "struct S { unsigned char a; float b; short c; double d; int e[3]; unsigned long long f; };"
    )
    value = np.zeros((), dtype)
    for name, number in (("a", 200), ("b", 1.5), ("c", -7), ("d", 1e-3), ("f", 2**63 + 5)):
        value[name] = number
    value["e"] = 10, -20, 30
    body = """
        if (i == 0) y[i] = s.a; if (i == 1) y[i] = s.b; if (i == 2) y[i] = s.c;
        if (i == 3) y[i] = s.d; if (i == 4) y[i] = s.e[0]; if (i == 5) y[i] = s.e[1];
        if (i == 6) y[i] = s.e[2]; if (i == 7) y[i] = s.f / 2; if (i == 8) y[i] = n;"""
    y = np.zeros(9)
    code = kernel(body, "int n, S s, double* y", struct_code)
    run(code, 1, 32, 42, value, y)
    assert y.tolist() == [200, 1.5, -7, 1e-3, 10, -20, 30, float((2**63 + 5) // 2), 42]


def test_a_small_struct_is_not_a_number(run: Run) -> None:
    pair = np.array((3, -4), np.dtype([("x", "i4"), ("y", "i4")]))
    y = np.zeros(32, np.int32)
    run(kernel("y[i] = p.x * 100 + p.y;", "int* y, int2 p"), 1, 32, y, pair)
    assert y.tolist() == [296] * 32


def test_parameters_keep_their_order_and_alignment(run: Run) -> None:
    y = np.zeros(6)
    parameters = (
        "signed char a, double b, short c, double* y, float d, bool e, unsigned long long f"
    )
    body = "if (!i) { y[0] = a; y[1] = b; y[2] = c; y[3] = d; y[4] = e; y[5] = f; }"
    args = (np.int8(-3), 2.5, np.int16(-300), y, np.float32(0.5), np.bool_(True), np.uint64(2**60))
    run(kernel(body, parameters), 1, 1, *args)
    assert y.tolist() == [-3, 2.5, -300, 0.5, 1, 2.0**60]


def test_one_array_may_be_two_arguments(run: Run) -> None:
    y = np.arange(64, dtype=np.int32)
    run(kernel("x[i] = i * 3; y[i] += 1;", "int* y, int* x"), 2, 32, y, y)
    assert y.tolist() == [3 * i + 1 for i in range(64)]


def test_only_what_was_stored_changes(run: Run) -> None:
    whole = np.arange(100, dtype=np.float32)
    view = whole[32:64]
    run(kernel("if (i % 4 == 1) y[i] = -1;", "float* y"), 1, 32, view)
    assert whole.tolist() == [-1 if 32 <= i < 64 and i % 4 == 1 else i for i in range(100)]


def test_read_only_arrays_can_be_read(run: Run) -> None:
    x = np.arange(32, dtype=np.float32)
    x.flags.writeable = False
    y = np.zeros(32, np.float32)
    run(kernel("y[i] = x[31 - i];", "float* y, const float* x"), 1, 32, y, x)
    assert y.tolist() == list(range(31, -1, -1))


def test_inline_ptx_runs(run: Run) -> None:
    x, y = np.arange(128, dtype=np.float32) / 8, np.zeros(128, np.float32)
    body = r"""
        float a, b, c, d, e;
        asm("ld.global.nc.L1::no_allocate.L2::256B.v4.f32 {%0, %1, %2, %3}, [%4];"
            : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "l"(x + 4 * i));
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(a));
        asm volatile("st.global.L1::evict_last.f32 [%0+4], %1;" :: "l"(y + 4 * i), "f"(b));
        asm volatile("st.global.cs.v2.f32 [%0], {%1, %2};" :: "l"(y + 4 * i + 2), "f"(c), "f"(d));
        y[4 * i] = e;"""
    run(kernel(body, "float* y, const float* x"), 1, 32, y, x)
    for i, value in enumerate(x.tolist()):
        expected = 2.0**value if i % 4 == 0 else value
        assert abs(y[i] - expected) <= 2.0**-21 * expected


def test_inline_ptx_may_declare_registers_in_a_scope(run: Run) -> None:
    y = np.zeros(32, np.int32)
    body = r"""
        int a, b;
        asm("{ .reg .b32 t<2>, u; add.s32 t0, %1, 5; mov.b32 u, t0;"
            "{ .reg .b32 t0; mov.b32 t0, 100; mad.lo.s32 t1, u, t0, t0; } add.s32 %0, t0, t1; }"
            : "=r"(a) : "r"(i));
        asm("{.reg .b32 t0; mov.b32 t0, %1; neg.s32 %0, t0;}" : "=r"(b) : "r"(n));
        y[i] = a + b + i;"""
    run(kernel(body), 1, 32, y, 3)
    assert y.tolist() == [i + 5 + (i + 5) * 100 + 100 - 3 + i for i in range(32)]


def test_inline_ptx_may_address_backwards(run: Run) -> None:
    x, y = floats(40), np.zeros(32, np.float32)
    body = r"""
        float a, b;
        asm("ld.global.f32 %0, [%1+-8];" : "=f"(a) : "l"(x + i + 3));
        asm("ld.global.f32 %0, [%1 + 0x8];" : "=f"(b) : "l"(x + i));
        y[i] = a - b;"""
    run(kernel(body, "float* y, const float* x"), 1, 32, y, x)
    values = x.tolist()
    assert y.tolist() == [rounded(values[i + 1] - values[i + 2]) for i in range(32)]


@pytest.mark.parametrize("load", ["__ldg", "__ldca", "__ldcg", "__ldcs", "__ldlu", "__ldcv"])
def test_cache_hints_change_no_value(run: Run, load: str) -> None:
    x, y = floats(64), np.zeros(64, np.float32)
    body = f"__stcs(y + i, {load}(x + i)); if (i < 9) __stwt(y + i, 1.0f);"
    run(kernel(body, "float* y, const float* x"), 2, 32, y, x)
    assert y.tolist() == [1.0] * 9 + x.tolist()[9:]
