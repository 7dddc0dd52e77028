"""Small CUDA kernels give on the SIMT machine what Python says they should, and on a GPU too.

The second half is about what is refused: a kernel that the machine cannot run, or a launch that
CUDA would not take, is one clear error before anything runs.
"""

import math
import random
import struct
from collections.abc import Callable

import cupy
import numpy as np
import pytest

from helpers.simt import CompileError, UnsupportedPTX, simulate
from helpers.simt.geometry import BATCH_THREADS

FILE = '#line 1 "kernels/x.cu"\n'
Run = Callable[..., None]


def on_simt(code: str, grid, block, *args, options: tuple[str, ...] = ()) -> None:
    trace = simulate(cupy.RawKernel(FILE + code, "k", options), grid, block, args)
    assert not trace.findings, str(trace.findings)


def on_gpu(code: str, grid, block, *args, options: tuple[str, ...] = ()) -> None:
    arrays = {id(a): cupy.array(a) for a in args if isinstance(a, np.ndarray) and a.ndim}
    sizes = [(size,) if isinstance(size, int) else size for size in (grid, block)]
    cupy.RawKernel(code, "k", options)(*sizes, tuple(arrays.get(id(a), a) for a in args))
    for array in args:
        if id(array) in arrays and array.flags.writeable:
            array[...] = arrays[id(array)].get()


@pytest.fixture(params=["simt", pytest.param("gpu", marks=pytest.mark.gpu)])
def run(request: pytest.FixtureRequest) -> Run:
    """Compile the kernel `k` and run it on numpy arrays, in place."""
    return on_simt if request.param == "simt" else on_gpu


def kernel(body: str, parameters: str = "int* y, int n", before: str = "") -> str:
    """Source of a kernel `k`; `i` is its thread's number in a one-dimensional launch."""
    return (
        f'{before}\nextern "C" __global__ void k({parameters})\n{{\n'
        f"    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n{body}\n}}\n"
    )


def floats(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def rounded(number: float) -> float:
    """To fp32 and back."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


# ---- control flow -------------------------------------------------------------------------------


def nested_ifs(i: int, n: int) -> int:
    if i & 1:
        v = (i * 3 if i & 4 else i - 7) if i & 2 else -i
    elif i % 3 == 0:
        v = i * i
    else:
        v = 5
    return v + 1000


def triangle(i: int, n: int) -> int:
    return sum(j * j + i for j in range(i % 37))


def collatz(i: int, n: int) -> int:
    steps = 0
    while i > 1:
        i = 3 * i + 1 if i % 2 else i // 2
        steps += 1
    return steps


def early_return(i: int, n: int) -> int | None:
    if i >= n:
        return None
    for j in range(2, 12):
        if (i + 2) % j == 0:
            return j
    return -1


def break_and_continue(i: int, n: int) -> int:
    total = 0
    for j in range(40):
        if (i + j) % 3 == 0:
            continue
        if total > 5 * (i % 29):
            break
        total += j
    return 100 * total + i


def switch(i: int, n: int) -> int:
    case = i % 23
    v = 10 * i if case in (0, 1) else i
    if case in (0, 1, 7):
        v += 7  # 0 and 1 fall through
    elif case == 11:
        v = -v
    elif case == 22:
        return 1
    elif case != 12:
        v ^= 0x55
    return v + 1


def dense_switch(i: int, n: int) -> int:
    weights = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
    return i * weights[i % 16] + i % 16 if i % 16 < 14 else -1


def nested_loops(i: int, n: int) -> int:
    found = 0
    for a in range(i % 7):
        b = a
        while True:
            b += 2
            if b > i % 11:
                break
            if (a * b) % 5 == 4:
                found += 100
                continue
            found += b
        if found > 300:
            break
    return found


def unsigned_wraps(i: int, n: int) -> int:
    return ((i - 50) & 0xFFFFFFFF) // 3 & 0x7FFFFFFF


CONTROL_FLOW = {
    nested_ifs: """
        int v;
        if (i & 1) { if (i & 2) { if (i & 4) v = i * 3; else v = i - 7; } else v = -i; }
        else if (i % 3 == 0) v = i * i;
        else v = 5;
        y[i] = v + 1000;""",
    triangle: """
        int v = 0;
        for (int j = 0; j < i % 37; ++j) v += j * j + i;
        y[i] = v;""",
    collatz: """
        long long m = i; int steps = 0;
        while (m > 1) { m = m % 2 ? 3 * m + 1 : m / 2; ++steps; }
        y[i] = steps;""",
    early_return: """
        if (i >= n) return;
        for (int j = 2; j < 12; ++j) if ((i + 2) % j == 0) { y[i] = j; return; }
        y[i] = -1;""",
    break_and_continue: """
        int total = 0;
        for (int j = 0; j < 40; ++j) {
            if ((i + j) % 3 == 0) continue;
            if (total > 5 * (i % 29)) break;
            total += j;
        }
        y[i] = 100 * total + i;""",
    switch: """
        int v = i;
        switch (i % 23) {
        case 0: case 1: v = 10 * i;
        case 7: v += 7; break;
        case 11: v = -v; break;
        case 12: break;
        case 22: y[i] = 1; return;
        default: v ^= 0x55;
        }
        y[i] = v + 1;""",
    dense_switch: "int v; switch (i % 16) {"
    + "".join(
        f"case {case}: v = i * {weight} + {case}; break;"
        for case, weight in enumerate((3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7))
    )
    + "default: v = -1; } y[i] = v;",
    nested_loops: """
        int found = 0;
        for (int a = 0; a < i % 7; ++a) {
            int b = a;
            do {
                b += 2;
                if (b > i % 11) break;
                if (a * b % 5 == 4) { found += 100; continue; }
                found += b;
            } while (true);
            if (found > 300) break;
        }
        y[i] = found;""",
    unsigned_wraps: "y[i] = ((unsigned)i - 50u) / 3u & 0x7fffffff;",
}


@pytest.mark.parametrize("block", [32, 96])
@pytest.mark.parametrize("expect", CONTROL_FLOW, ids=lambda function: function.__name__)
def test_lanes_part_and_meet_again(run: Run, expect: Callable, block: int) -> None:
    grid, n, untouched = 5, 100, -12345
    y = np.full(grid * block, untouched, np.int32)
    run(kernel(CONTROL_FLOW[expect]), grid, block, y, n)
    results = [expect(i, n) for i in range(len(y))]
    assert y.tolist() == [untouched if result is None else result for result in results]


def test_parted_lanes_share_one_store_once_they_have_met() -> None:
    body = """
        int v = n;
        for (int j = 0; j < i % 5; ++j) { if ((i ^ j) & 1) v += i; else v *= 3; }
        if (i % 3) v -= 2;
        y[i] = v;"""
    y = np.zeros(128, np.int32)
    trace = simulate(cupy.RawKernel(kernel(body), "k"), 2, 64, (y, 1))
    assert trace.counters.divergent_branches > 0
    assert trace.counters.store_requests == 4  # warps


@pytest.mark.parametrize(
    ("condition", "chosen"),
    [
        ("n > 3", lambda i: True),
        ("n > 30", lambda i: False),
        ("blockIdx.x % 2", lambda i: i // 64 % 2 == 1),
        ("threadIdx.x / 32", lambda i: i % 64 >= 32),
        ("i == 77", lambda i: i == 77),
        ("i % 2", lambda i: i % 2 == 1),
        ("x[i] > 0", lambda i: i % 7 > 3),
    ],
)
def test_branches_follow_uniform_and_divergent_predicates(
    run: Run, condition: str, chosen: Callable[[int], bool]
) -> None:
    x = np.array([i % 7 - 3 for i in range(192)], np.int32)
    y = np.zeros_like(x)
    # The loop keeps the compiler from turning the branch into a selection.
    body = f"if ({condition}) {{ for (int j = 0; j < n; ++j) y[i] += x[j]; }} else y[i] = -1;"
    run(kernel(body, "int* y, const int* x, int n"), 3, 64, y, x, 5)
    assert y.tolist() == [sum(x[:5].tolist()) if chosen(i) else -1 for i in range(192)]


def test_guarded_loads_read_only_where_the_guard_holds(run: Run) -> None:
    x = floats(70)
    y = np.full(96, np.nan, np.float32)
    body = "y[i] = (i < n ? x[i] : -1.0f) + (i >= 1 && i <= n ? x[i - 1] : 0.0f);"
    run(kernel(body, "float* y, const float* x, int n"), 3, 32, y, x, len(x))
    values = x.tolist()
    for i, found in enumerate(y.tolist()):
        here = values[i] if i < 70 else -1.0
        assert found == rounded(here + (values[i - 1] if 1 <= i <= 70 else 0.0))


# ---- launch shapes ------------------------------------------------------------------------------


WHERE = """
extern "C" __global__ void k(int* y)
{
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int size = blockDim.x * blockDim.y * blockDim.z;
    int* at = y + 6 * (block * size + thread);
    at[0] = blockIdx.x; at[1] = blockIdx.y; at[2] = blockIdx.z;
    at[3] = threadIdx.x; at[4] = threadIdx.y; at[5] = threadIdx.z;
}
"""


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((1,), (1,)),
        ((4,), (31,)),
        ((3,), (33,)),
        ((2, 3), (32,)),
        ((2, 1, 3), (5, 3)),
        ((1, 2, 2), (4, 3, 5)),
        ((2,), (1, 1, 64)),
        ((1, 5), (1, 100)),
        ((3, 2, 2), (8, 8, 2)),
        ((2,), (1024,)),
    ],
    ids=str,
)
def test_every_thread_knows_its_place(run: Run, grid: tuple, block: tuple) -> None:
    blocks = [(x, y, z) for z in axis(grid, 2) for y in axis(grid, 1) for x in axis(grid, 0)]
    threads = [(x, y, z) for z in axis(block, 2) for y in axis(block, 1) for x in axis(block, 0)]
    y = np.full((len(blocks), len(threads), 6), -1, np.int32)
    run(WHERE, grid, block, y)
    assert y.tolist() == [[[*where, *who] for who in threads] for where in blocks]


def axis(sizes: tuple, number: int) -> range:
    return range(sizes[number] if number < len(sizes) else 1)


@pytest.mark.parametrize("block", [1, 31, 33, 50, 1000])
def test_blocks_need_not_be_whole_warps(run: Run, block: int) -> None:
    y = np.zeros(3 * block + 10, np.int32)
    run(kernel("y[i] += i % 5 ? 2 * i : n;"), 3, block, y, 9)
    assert y.tolist() == [2 * i if i % 5 else 9 for i in range(3 * block)] + [0] * 10


@pytest.mark.parametrize(("grid", "block"), [(300, 256), (1100, 33), (40, 1024)])
def test_launches_larger_than_a_batch_run_to_the_end(run: Run, grid: int, block: int) -> None:
    assert grid * -(-block // 32) * 32 > BATCH_THREADS
    y = np.zeros(grid * block, np.int32)
    body = "int v = 0; for (int j = 0; j < blockIdx.x % 5 + i % 3; ++j) v += i; y[i] += v + n;"
    run(kernel(body), grid, block, y, 7)
    assert y.tolist() == [i * (i // block % 5 + i % 3) + 7 for i in range(grid * block)]


def test_blocks_may_stride_over_the_data(run: Run) -> None:
    x, y = floats(5000), np.zeros(5000, np.float32)
    body = "for (int j = i; j < n; j += gridDim.x * blockDim.x) y[j] = -x[j];"
    run(kernel(body, "float* y, const float* x, int n"), 3, 96, y, x, 5000)
    assert y.tolist() == [-value for value in x.tolist()]


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


# ---- compilation --------------------------------------------------------------------------------


def test_options_reach_the_compiler(run: Run) -> None:
    y = np.zeros(32, np.int32)
    run(kernel("y[i] = N * VALUE;"), 1, 32, y, 0, options=("-DN=6", "-D", "VALUE=7"))
    assert y.tolist() == [42] * 32


def test_device_functions_and_templates_run_inline(run: Run) -> None:
    before = """
        template <int N> __device__ int power(int v) { return v * power<N - 1>(v); }
        template <> __device__ int power<0>(int) { return 1; }
        struct Square { __device__ int operator()(int v) const { return v * v; } };
        template <class F> __device__ int apply(F f, int v) { return f(v); }"""
    y = np.zeros(32, np.int32)
    body = "y[i] = power<3>(i) + apply(Square(), i) + apply([n](int v) { return v - n; }, i);"
    run(kernel(body, before=before), 1, 32, y, 4)
    assert y.tolist() == [i**3 + i**2 + i - 4 for i in range(32)]


def test_the_kernel_asked_for_is_the_one_that_runs() -> None:
    code = "".join(
        f'extern "C" __global__ void {name}(int* y) {{ y[threadIdx.x] = {number}; }}\n'
        for number, name in enumerate(("k1", "k", "kk"))
    )
    for number, name in enumerate(("k1", "k", "kk")):
        y = np.full(32, -1, np.int32)
        simulate(cupy.RawKernel(code, name), 1, 32, (y,))
        assert y.tolist() == [number] * 32


# ---- refusals -----------------------------------------------------------------------------------


# What the machine does not execute, and the name that the error must give.
UNSUPPORTED = {
    "red.async": 'asm volatile("red.async.relaxed.cluster.global.shared::cluster.mbarrier'
    '::complete_tx::bytes.add.u32 [%0], 1, [%0];" :: "r"(n));',
    "multimem.ld_reduce": 'float v; asm volatile("multimem.ld_reduce.global.add.f32 %0, [%1];"'
    ' : "=f"(v) : "l"(y)); y[i] = v;',
    "cp.reduce.async.bulk": 'asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group'
    '.add.u32 [%0], [%1], 16;" :: "l"(y), "r"(n));',
    "prefetch.tensor": 'asm volatile("cp.async.bulk.prefetch.tensor.1d.L2.global.tile'
    ' [%0, {%1}];" :: "l"(y), "r"(n));',
    "mma.sync": "float c = 0; int a = i; asm volatile("
    '"mma.sync.aligned.m8n8k4.row.col.f32.tf32.tf32.f32 {%0}, {%1}, {%1}, {%0};"'
    ' : "+f"(c) : "r"(a)); y[i] = c;',
    "add.s32": 'asm("add.s32 %0, %1;" : "=r"(y[i]) : "r"(n));',
    "%pm0": 'asm volatile("mov.u32 %0, %%pm0;" : "=r"(y[i]));',
    "vprintf": 'printf("%d", i);',
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_the_machine_cannot_run_is_refused_by_name_and_line(name: str) -> None:
    y = np.zeros(32, np.int32)
    code = FILE + kernel("    y[i] = 5;\n    " + UNSUPPORTED[name])
    with pytest.raises(UnsupportedPTX) as caught:
        simulate(cupy.RawKernel(code, "k"), 1, 32, (y, 0))
    message = str(caught.value)
    assert name in message and "kernels/x.cu:6" in message and "\n" not in message
    assert not y.any()  # refused before anything ran


def test_a_wrong_kernel_name_is_answered_with_the_names_there_are() -> None:
    with pytest.raises(KeyError, match="softmx.*kernels there: k"):
        simulate(cupy.RawKernel(kernel("y[i] = n;"), "softmx"), 1, 32, (np.zeros(32), 0))


def test_a_wrong_number_of_arguments_is_refused() -> None:
    y = np.zeros(32, np.int32)
    for args in ((y,), (y, 1, 2), ()):
        with pytest.raises(TypeError, match=f"k takes 2 arguments, {len(args)} were given"):
            simulate(cupy.RawKernel(kernel("y[i] = n;"), "k"), 1, 32, args)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((np.zeros((32, 2), np.int32)[:, 0], 1), "y is not C-contiguous"),
        ((np.zeros(32, np.int32), np.zeros(32, np.int32)), "n has 8 bytes, the kernel takes 4"),
        ((np.zeros(32, np.int32), 2.5), "float"),
        ((np.zeros(32, np.int32), np.zeros((), [("a", "i4", 3)])), "n has 12 bytes"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args: tuple, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        simulate(cupy.RawKernel(kernel("y[i] = n;"), "k"), 1, 32, args, names=("y", "n"))


def test_a_number_for_a_struct_is_refused() -> None:
    code = kernel("y[i] = p.x;", "int* y, int4 p")
    with pytest.raises(TypeError, match="argument 1 is a struct of 16 bytes, not 3"):
        simulate(cupy.RawKernel(code, "k"), 1, 32, (np.zeros(32, np.int32), 3))


@pytest.mark.parametrize(
    ("grid", "block", "what"),
    [
        (1, 1025, "block"),
        (1, (64, 32), "block .* 2048 threads; CUDA allows 1024"),
        (1, (1, 1, 65), "block"),
        (1, 0, "block"),
        (0, 32, "grid"),
        ((1, 65536), 32, "grid"),
        ((1, -1), 32, "grid"),
        ((1, 1, 1, 1), 32, "grid"),
        (1, (), "block"),
    ],
)
def test_launch_shapes_outside_cudas_limits_are_refused(grid, block, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        simulate(cupy.RawKernel(kernel("y[i] = n;"), "k"), grid, block, (np.zeros(32), 1))


def test_a_syntax_error_names_the_kernel_file_and_line() -> None:
    code = FILE + kernel("    y[i] = 1;\n    y[i] = n +;\n    y[i] = 2;")
    with pytest.raises(CompileError, match=r"kernels/x\.cu\(6\): error: expected an expression"):
        simulate(cupy.RawKernel(code, "k"), 1, 32, (np.zeros(32, np.int32), 1))


def test_an_undeclared_name_is_a_compile_error_that_says_so() -> None:
    with pytest.raises(CompileError, match='identifier "INFINITY" is undefined'):
        simulate(cupy.RawKernel(kernel("y[i] = INFINITY;"), "k"), 1, 32, (np.zeros(32), 1))


def test_a_wrong_compiler_option_is_a_compile_error() -> None:
    raw = cupy.RawKernel(kernel("y[i] = n;"), "k", ("--nonsense",))
    with pytest.raises(CompileError, match="nonsense"):
        simulate(raw, 1, 32, (np.zeros(32, np.int32), 1))


@pytest.mark.parametrize("name", ["eq", "lt", "le", "gt", "ge"])
def test_lane_mask_registers(name):
    body = f'asm("mov.u32 %0, %%lanemask_{name};" : "=r"(y[threadIdx.x]));'
    y = np.zeros(64, np.uint32)
    code = f'extern "C" __global__ void masks(unsigned* y) {{ {body} }}'
    simulate(cupy.RawKernel(code, "masks"), 1, 64, (y,))
    compare = {"eq": int.__eq__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__}
    compare["ge"] = int.__ge__
    for lane in range(64):
        bits = sum(1 << k for k in range(32) if compare[name](k, lane % 32))
        assert y[lane] == bits


@pytest.mark.parametrize(
    "statement",
    [
        "__threadfence();",
        "__threadfence_block();",
        'asm volatile("prefetch.global.L2 [%0];" :: "l"(y));',
    ],
)
def test_fences_and_prefetches_change_no_result(statement):
    code = f'extern "C" __global__ void f(int* y) {{ {statement} y[threadIdx.x] = 5; }}'
    y = np.zeros(32, np.int32)
    trace = simulate(cupy.RawKernel(code, "f"), 1, 32, (y,))
    assert (y == 5).all() and not trace.findings
