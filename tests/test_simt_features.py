"""One small kernel for each feature of the SIMT machine, compared with numpy, and on a GPU too.

The kernels are in tests/kernels/features_*.cu and have no bugs, so that a finding is an error.
Each test names opcodes that the kernel's PTX must contain: without them the compiler would have
optimised the feature away. Inputs are such that a kernel which skips its feature is wrong.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path

import cupy
import numpy as np
import pytest

from helpers.simt import KernelText, UnsupportedPTX, include_folders, simulate

FOLDER = Path(__file__).parent / "kernels"
LIMIT = 3_000_000  # instructions; a wait that never ends is to be found soon
Run = Callable[..., None]


def text(file: str) -> str:
    name = f"features_{file}.cu"
    return f'#line 1 "kernels/{name}"\n' + (FOLDER / name).read_text(encoding="utf-8")


def on_simt(file, name, grid, block, *args, shared=0, cooperative=False, ptx=()) -> None:
    source = KernelText(text(file), name, (), cooperative)
    trace = simulate(source, grid, block, args, shared, instruction_limit=LIMIT)
    assert not trace.findings, str(trace.findings)
    body = entry(trace.ptx, name)
    for opcode in ptx:
        assert re.search(opcode, body), f"{opcode} is not in the PTX of {name}"


def entry(ptx: str, name: str) -> str:
    """The PTX of one kernel. Of a template there is nothing but its one instance."""
    start = 0 if "<" in name else ptx.index(f".entry {name}(")
    following = ptx.find("\n.visible .entry", start)
    return ptx[start : following if following > 0 else len(ptx)]


def on_gpu(file, name, grid, block, *args, shared=0, cooperative=False, ptx=()) -> None:
    if int(cupy.cuda.Device().compute_capability) < 90:
        pytest.skip("needs a GPU of compute capability 9.0")
    options = tuple(f"-I{folder}" for folder in include_folders())
    if "<" in name:
        module = cupy.RawModule(code=text(file), options=options, name_expressions=[name])
        function = module.get_function(name)
    else:
        function = cupy.RawKernel(text(file), name, options, enable_cooperative_groups=cooperative)
    arrays = {id(a): cupy.array(a) for a in args if isinstance(a, np.ndarray) and a.ndim}
    sizes = [(size,) if isinstance(size, int) else size for size in (grid, block)]
    function(*sizes, tuple(arrays.get(id(a), a) for a in args), shared_mem=shared)
    for array in args:
        if id(array) in arrays:
            array[...] = arrays[id(array)].get()


@pytest.fixture(params=["simt", pytest.param("gpu", marks=pytest.mark.gpu)])
def run(request: pytest.FixtureRequest) -> Run:
    """Launch a kernel of a file on numpy arrays, in place."""
    return on_simt if request.param == "simt" else on_gpu


def whole(*shape: int, low: int = -50, high: int = 50, dtype=np.int32) -> np.ndarray:
    """Small whole numbers, whose sums are exact also in fp32."""
    return np.random.default_rng(sum(shape)).integers(low, high, shape).astype(dtype)


def normal(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def wrapped(numbers) -> np.ndarray:
    """Python integers as an int32 holds them."""
    array = np.array(numbers, object) & 0xFFFFFFFF
    return array.astype(np.uint32).view(np.int32)


# ---- local memory and calls -------------------------------------------------------------------


def test_an_array_indexed_by_data_lives_in_local_memory(run: Run) -> None:
    n = 130
    x, y = whole(n, 9, low=0, high=9), np.zeros(n + 14, np.int32)
    run("local", "local_array", 3, 48, x, y, n, ptx=["st.local.u32", "ld.local.u32"])
    expected = []
    for i, row in enumerate(x.tolist()):
        at, total = i % 9, 0
        for _ in range(6):
            following = row[at]
            total = 31 * total + following
            row[at] = (following + i) % 9
            at = following
        expected.append(total)
    assert (y[:n] == wrapped(expected)).all() and not y[n:].any()


def test_local_elements_of_1_8_and_16_bytes(run: Run) -> None:
    n = 75
    x, y = whole(n, low=0, high=60), np.zeros(n, np.int64)
    run("local", "local_sizes", 2, 40, x, y, n, ptx=["ld.local.(s|u)8", "ld.local.u64", "local.v"])
    for v, found in zip(x.tolist(), y.tolist(), strict=True):
        small = (v * (v % 11 + 1) + 128) % 256 - 128
        j = v % 3
        assert found == small + ((v + v % 5) << 33) + v + j * v * j - 2


def test_a_function_takes_pointers_to_local_shared_and_global_memory(run: Run) -> None:
    n = 100
    y, scratch = np.zeros(n, np.int32), np.zeros((n, 7), np.int32)
    run("local", "local_pointer", 2, 64, y, scratch, n, ptx=["call", "cvta.local"])
    i = np.arange(n)
    grown = (i % 7) ** 2
    assert (y == grown - i + 1000 * (grown + 2 * i) + 1000000 * (grown + 3 * i)).all()
    assert (scratch == 3 * i[:, None] + np.arange(7) ** 2).all()


def test_the_slow_path_of_sine(run: Run) -> None:
    x = np.concatenate([normal(50) * 1e4, normal(51) * 1e12, normal(52) * 1e37]).astype(np.float32)
    x[:4] = 105615.0, -1e5, 3.0, 0.0
    y = np.zeros_like(x)
    run("local", "slow_sine", 4, 40, x, y, len(x), ptx=["st.local", "ld.local"])
    # The CUDA guide: at most 2 ulp; no sine has larger ones than 2^-24.
    assert np.abs(y - np.sin(x.astype(np.float64))).max() <= 2 * 2.0**-24


def test_a_struct_goes_into_a_call_and_comes_out(run: Run) -> None:
    n = 70
    x = normal(n, 5) * np.float32(3)
    largest, count, total = np.zeros(n, np.float32), np.zeros(n, np.int32), np.zeros(n)
    run("local", "struct_call", 3, 33, x, largest, count, total, n, ptx=["call", r"\.align 8 \.b8"])
    assert (largest == x.max(1)).all() and (count == 1 + 1 + 2 + 3 + 4).all()
    wide = x.astype(np.float64)
    expected = np.exp2(wide - wide.max(1, keepdims=True)).sum(1)
    # Up to four factors of exp2f, each wrong by 2 ulp and by the rounding of its argument.
    assert np.abs(total / expected - 1).max() < 4 * (2 + 16) * 2.0**-24


def test_a_called_function_calls_another(run: Run) -> None:
    n = 77
    x, y = whole(n), np.zeros(n, np.int32)
    run("local", "nested_calls", 3, 32, x, y, n, ptx=["call[^;]*horner", "call[^;]*square_plus"])
    i, a = np.arange(n), x.astype(np.int64)
    first, second = a * a + i, i * i + a
    assert (y == wrapped(first * first + second - (i * i + 1))).all()


def test_calls_from_divergent_code(run: Run) -> None:
    n = 200

    def collatz(value: int) -> int:
        steps = 0
        while value != 1:
            if steps > 60:
                return -steps
            value = 3 * value + 1 if value % 2 else value // 2
            steps += 1
        return steps

    def expected(i: int) -> int:
        if i % 3 == 0:
            return collatz(i + 1)
        total = 0
        for j in range(i % 5):
            total += 100 * collatz(i + j)
            if total > 5000:
                break
        return total

    y = np.full(n + 16, -7, np.int32)
    run("local", "call_in_divergence", 3, 72, y, n, ptx=["call"])
    assert y.tolist() == [expected(i) for i in range(n)] + [-7] * 16
    assert any(collatz(i) < 0 for i in range(1, n))  # both ways out of the function are taken


def test_a_called_function_shuffles(run: Run) -> None:
    x = whole(3, 2, 32)
    y = np.zeros_like(x)
    run("local", "call_with_shuffle", 3, 64, x, y, ptx=["call"])
    assert (y == x.cumsum(axis=2)).all()


def test_recursion_is_refused_by_name() -> None:
    y = np.zeros(40, np.int32)
    with pytest.raises(UnsupportedPTX, match="recursion"):
        simulate(KernelText(text("local"), "recursion"), 1, 40, (y, 40))
    assert not y.any()


@pytest.mark.gpu
def test_recursion_works_on_a_gpu() -> None:
    y = np.zeros(40, np.int32)
    on_gpu("local", "recursion", 2, 20, y, 40)
    assert y.tolist() == [[0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55][i % 11] for i in range(40)]


# ---- variables of the module ------------------------------------------------------------------


def test_variables_of_the_module_are_read_and_written(run: Run) -> None:
    x, y = whole(70), np.zeros(70, np.float32)
    run("local", "device_variables", 1, 70, x, y, ptx=["ld.global.u32[^;]*factor", "offsets"])
    offsets = np.array([0.5, -1.5, 2.25, 8.0])[np.arange(70) % 4]
    assert (y == x[::-1] * 3 * 7 + offsets).all()


def test_a_variable_starts_as_the_address_of_another(run: Run) -> None:
    n = 66
    y = np.zeros(n, np.int32)
    run("local", "device_pointer", 2, 40, y, n, ptx=["ld.global.u64[^;]*middle"])
    assert y.tolist() == [[2, 3, 5, 7, 11][i % 5] * i for i in range(n)]


def test_constant_memory_is_indexed_by_each_thread(run: Run) -> None:
    code = text("local")
    weights = np.array(re.search(r"weights\[33\] = \{([^}]*)", code)[1].split(","), np.int32)
    n = 90
    x, y = whole(n, low=0, high=33), np.zeros(n, np.float32)
    run("local", "constant_table", 3, 33, x, y, n, ptx=[r"ld.const.[su]16[^;]*\[%rd", "weights"])
    assert (y == weights[x] * 10 + weights[16]).all()


def test_a_table_within_a_function(run: Run) -> None:
    n = 50
    x, y = whole(n, low=0, high=7000), np.zeros(n)
    run("local", "lookup_table", 2, 33, x, y, n, ptx=[r"ld.(const|global|local)[.\w]*f64"])
    powers = np.array([1.0, 0.1, 1e-2, 1e3, 2.5, -7.0, 1e10])
    assert (y == powers[x % 7] * np.arange(n)).all()


@pytest.mark.parametrize(
    ("value", "dtype", "count"), [("float", np.float32, 4), ("double", np.float64, 3)]
)
def test_an_instance_of_a_template_is_named_in_c(run: Run, value, dtype, count: int) -> None:
    n = 101
    x, y = normal(n, dtype=dtype), np.zeros(n + 40, dtype)
    name = f"scale<{value}, {count}>"
    run("template", name, 2, 20, y, x, dtype(1.5), n, ptx=[f"st.global.f{8 * x.itemsize}"])
    reached = min(n, 2 * 20 * count)
    product = x[:reached].astype(np.float64) * 1.5
    error = np.abs(y[:reached] - (product + count))  # one rounding; another one of numpy's
    assert (error <= np.finfo(dtype).eps * (np.abs(product) + count)).all()
    assert not y[reached:].any()


# ---- caches and inline assembly ---------------------------------------------------------------


def test_loads_and_stores_with_cache_hints(run: Run) -> None:
    n = 85
    x = normal(n, 4)
    y = np.zeros_like(x)
    ptx = ["ld.global.nc.L1::no_allocate.v4.f32", "st.global.cs.v4.f32"]
    run("asm", "cache_hints", 3, 32, x, y, n, ptx=ptx)
    assert (y == x[::-1, ::-1]).all()


def test_an_eviction_policy(run: Run) -> None:
    n = 85
    x, y = normal(n), np.zeros(n + 11, np.float32)
    ptx = ["createpolicy.fractional.L2::evict_first.b64", "st.global.*L2::cache_hint"]
    run("asm", "eviction_policy", 3, 32, x, y, n, ptx=ptx)
    assert (y[:n] == x - 2 * np.roll(x, -1)).all() and not y[n:].any()


def test_load_and_store_functions_for_every_cache_operator(run: Run) -> None:
    n = 70
    x, z, w = normal(n, 4), whole(n, dtype=np.float64), whole(n)
    y = np.zeros((2 * n, 4), np.float32)
    ptx = [r"ld.global.cs.v4", r"ld.global.nc.f64", r"st.global.cs.v4", "ld.global.cg"]
    run(
        "asm",
        "streaming",
        3,
        32,
        x,
        z,
        w,
        y,
        n,
        ptx=[*ptx, "st.global.wt", "ld.volatile|ld.global.cv"],
    )
    i = np.arange(n)
    added = np.stack([z, w, w[::-1], w[i // 2] + w[i // 3]], axis=1).astype(np.float32)
    assert (y[:n] == x + added).all() and (y[n:] == 2 * y[:n]).all()


def test_the_fast_exponential(run: Run) -> None:
    x = np.concatenate([np.linspace(-150, 130, 200), normal(55) * 4]).astype(np.float32)
    x[:5] = -np.inf, np.inf, 0.0, -126.0, -127.0
    y = np.full(len(x), np.nan, np.float32)
    run("asm", "fast_exponential", 4, 66, x, y, len(x), ptx=["ex2.approx.ftz.f32"])
    with np.errstate(over="ignore"):
        exact = np.exp2(x.astype(np.float64)).astype(np.float32)
    exact[exact < np.finfo(np.float32).tiny] = 0  # .ftz
    assert y[:5].tolist() == [0.0, np.inf, 1.0, 2.0**-126, 0.0]
    finite = np.isfinite(exact)
    assert (y[~finite] == exact[~finite]).all()
    assert np.allclose(y[finite], exact[finite], rtol=2.0**-22, atol=0)  # PTX ISA: 2 ulp


def test_prefetches_change_nothing(run: Run) -> None:
    n = 500
    x, y = normal(n), np.zeros(n + 8, np.float32)
    run("asm", "prefetch", 2, 72, x, y, n, ptx=["prefetch.global.L2 ", "prefetchu.L1"])
    assert (y[:n] == x + np.float32(1)).all() and not y[n:].any()


def test_a_loop_in_inline_assembly(run: Run) -> None:
    n = 90
    x, y = whole(n, low=1, high=10**6, dtype=np.uint32), np.zeros(n, np.uint32)
    run("asm", "asm_loop", 3, 40, x, y, n, ptx=["bra AGAIN"])
    values = enumerate(x.tolist())
    expected = [1000 * math.gcd(v, 360360 + i) + math.gcd(v + 1, 30030) for i, v in values]
    assert y.tolist() == expected


def test_an_inner_scope_hides_the_registers_of_the_outer(run: Run) -> None:
    n = 45
    x, y = whole(n), np.zeros(n, np.int32)
    run("asm", "nested_scopes", 2, 33, x, y, n, ptx=[r"\.reg \.s32 t;"])
    assert (y == x + 5 - np.maximum(3 * x - 100, 3 * x)).all()


# ---- 16-bit numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eight_halves", "eight_bfloats"])
def test_eight_16_bit_numbers_an_access(run: Run, name: str) -> None:
    n = 8 * 75
    values = normal(n) * np.float32(9)
    bits = as_bfloat(values) if name == "eight_bfloats" else values.astype(np.float16)
    y = np.zeros_like(bits)
    run("half", name, 3, 32, bits, y, np.float32(1.5), n, ptx=["ld.global.(nc.)?v4.u32"])
    pairs = widened(bits).reshape(-1, 2) * np.float32(1.5)  # exact: 11 bits and 2 bits
    expected = np.stack([pairs[:, 1], pairs[:, 0] + np.float32(1)], axis=1).ravel()
    rounded = as_bfloat(expected) if name == "eight_bfloats" else expected.astype(np.float16)
    assert (y.view(np.uint16) == rounded.view(np.uint16)).all()


def as_bfloat(values: np.ndarray) -> np.ndarray:
    """fp32 to the bits of a bfloat16, to the nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def widened(values: np.ndarray) -> np.ndarray:
    if values.dtype == np.float16:
        return values.astype(np.float32)
    return (values.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_atomics_on_16_bit_numbers(run: Run, kind: str) -> None:
    n, groups = 150, 7
    values = whole(n, 2, low=-5, high=6, dtype=np.float32)  # all sums are exact in 8 bits
    x = as_bfloat(values) if kind == "bf16" else values.astype(np.float16)
    pairs, ones = np.zeros((groups, 2), x.dtype), np.zeros(groups, x.dtype)
    ptx = [f"add.noftz.{kind}x2", f"add.noftz.{kind} "]
    run("half", f"{kind}_sums", 3, 64, x, pairs, ones, groups, n, ptx=ptx)
    expected = np.array([values[group::groups].sum(0) for group in range(groups)])
    assert (widened(pairs) == expected).all() and (widened(ones) == expected[:, 1]).all()


def test_arithmetic_that_rounds_to_16_bits(run: Run) -> None:
    n = 100
    x, y = normal(n, 2, dtype=np.float16), np.zeros((n, 2), np.float16)
    run("half", "half_arithmetic", 2, 64, x, y, n, ptx=["fma.rn.f16x2"])
    other = x[:, ::-1]
    v = x * other + x  # numpy rounds after each operation as well
    exact = v.astype(np.float64) * other.astype(np.float64) + x.astype(np.float64)
    v = np.maximum(exact.astype(np.float16), -x)
    v = np.where(v[:, :1] > v[:, 1:], v - other, v)
    assert (y == v).all()


# ---- barriers and votes -----------------------------------------------------------------------


@pytest.mark.parametrize("block", [70, 96, 1])
def test_barriers_that_count_and_vote(run: Run, block: int) -> None:
    x = whole(5, block)
    x[0], x[1, -1], x[2] = 7, 40, -(x[2] ** 2)
    y = np.zeros_like(x)
    run("warp", "barrier_votes", 5, block, x, y, ptx=["bar.red.popc", "bar.red.and", "bar.red.or"])
    votes = 100 * (x > 0).sum(1) + 10 * (x < 40).all(1) + (x == 7).any(1)
    assert (y == votes[:, None]).all()


def test_named_barriers_between_producer_and_consumer_warps(run: Run) -> None:
    rounds = 5
    x, y = whole(rounds, 32), np.full((2, 3, rounds, 32), -5, np.int32)
    run("warp", "named_barriers", 2, 160, x, y, rounds, ptx=["bar.arrive", "bar.sync %r"])
    for b in range(2):
        for pair in range(2):
            assert (y[b, pair] == x[:, ::-1] + 1000 * pair + b).all()
        assert (y[b, 2].ravel()[:32] == -1).all() and (y[b, 2].ravel()[32:] == -5).all()


def test_a_named_barrier_whose_numbers_stand_in_the_instruction(run: Run) -> None:
    x, y = whole(3, 32), np.zeros((3, 32), np.int32)
    run("warp", "named_barrier", 3, 90, x, y, ptx=["bar.arrive 1, 64", "bar.sync 1, 64"])
    assert (y == 5 * x[:, np.arange(32) ^ 5]).all()


def test_one_lane_of_a_warp_is_elected(run: Run) -> None:
    x, y = whole(2, 3, 32), np.zeros(1 + 2 * 96, np.int32)
    run("warp", "elected", 2, 96, x, y, ptx=["elect.sync"])
    assert y[0] == 6  # one in each warp
    for values, found in zip(x.reshape(6, 32), y[1:].reshape(6, 32), strict=True):
        assert not found[:3].any() and not found[29:].any()
        (leader,) = 3 + np.flatnonzero(found[3:29] != np.median(found[3:29]))
        others = np.delete(found, leader)[3:28]
        assert found[leader] == 100 + values[leader] and (others == values[leader]).all()


# ---- threads that wait for each other ---------------------------------------------------------


def test_warps_take_tickets(run: Run) -> None:
    y = np.zeros(3, np.int32)
    run("warp", "ticket_lock", 3, 150, y, ptx=["ld.volatile.shared", "atom.shared"])
    chain = 0
    for ticket in range(5):
        chain = 3 * chain + ticket + 1
    assert y.tolist() == [chain] * 3


def test_warps_take_a_lock_in_global_memory(run: Run) -> None:
    x, times = whole(4 * 3), 3
    lock, total = np.zeros(1, np.int32), np.array([5], np.int32)
    run("warp", "spin_lock", 4, 96, lock, total, x, times, ptx=["cas.b32", "nanosleep"])
    assert total[0] == 5 + 6 * x.sum() and lock[0] == 0


def test_lanes_of_one_warp_take_a_lock(run: Run) -> None:
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    run("warp", "lock_within_a_warp", 2, 45, lock, total, ptx=["cas.b32", "atom.*exch"])
    assert total[0] == 2 * sum(range(46)) and lock[0] == 0


def test_blocks_take_turns(run: Run) -> None:
    blocks, block, rounds = 5, 70, 4
    turn, state = np.zeros(1, np.int32), whole(block)
    log, expected = np.zeros(blocks * rounds, np.int32), state.tolist()
    run("warp", "turns", blocks, block, turn, state, log, rounds, ptx=["exch", "membar|fence"])
    logged = []
    for _ in range(rounds):
        for b in range(blocks):
            expected = [3 * v + b + t for t, v in enumerate(expected)]
            logged.append(expected[0])
    assert (state == wrapped(expected)).all() and (log == wrapped(logged)).all()
    assert turn[0] == blocks * rounds


def test_the_last_block_adds_up(run: Run) -> None:
    x = whole(23, 70)
    partial, total = np.zeros(23, np.int32), np.zeros(1, np.int32)
    finished = np.zeros(1, np.uint32)
    run("warp", "last_block", 23, 70, x, partial, finished, total, ptx=["atom.*inc", "volatile"])
    expected = 0
    for part in x.sum(1).tolist():
        expected = 2 * expected + part
    assert total[0] == expected and finished[0] == 0 and (partial == x.sum(1)).all()


def test_a_barrier_of_the_grid_written_by_hand(run: Run) -> None:
    grid, block, rounds = 40, 96, 3
    a, b, arrived = whole(grid * block), np.zeros(grid * block, np.int32), np.zeros(1, np.uint32)
    expected = a.copy()
    for _ in range(rounds):
        expected = 2 * np.roll(expected, -(block + 1)) + expected
    args = (a, b, arrived, rounds)
    ptx = ["ld.volatile.global", "atom.global.add|red.global.add"]
    run("cooperative", "barrier_by_hand", grid, block, *args, cooperative=True, ptx=ptx)
    assert ((b if rounds % 2 else a) == expected).all() and arrived[0] == rounds * grid


@pytest.mark.parametrize(("grid", "block"), [(40, 96), (7, 45), (1, 33)])
def test_the_grid_barrier_of_cooperative_groups(run: Run, grid: int, block: int) -> None:
    x = whole(grid, block, low=1, dtype=np.float32)
    y, partial = np.zeros_like(x), np.zeros(grid, np.float32)
    run(
        "cooperative",
        "grid_sync",
        grid,
        block,
        x,
        y,
        partial,
        cooperative=True,
        ptx=["ld.acquire.gpu", "%envreg"],
    )
    assert (y == x / x.sum(dtype=np.float32)).all()


def test_tiles_of_cooperative_groups(run: Run) -> None:
    x = whole(2, 8, 8, low=0, high=16)
    x[0, 0, :2] = 13
    y = np.zeros_like(x)
    run("cooperative", "tiles", 2, 64, x, y, ptx=["shfl.sync.bfly"])
    any_13 = (x == 13).any(2, keepdims=True)
    assert (y == 100 * x.sum(2, keepdims=True) + 10 * any_13 + np.arange(8)).all()


def test_coalesced_threads_append_together(run: Run) -> None:
    n = 190
    x, y, count = whole(n), np.full(n, 1000, np.int32), np.zeros(1, np.int32)
    run("cooperative", "coalesced", 3, 70, x, y, count, n, ptx=["activemask", "shfl.sync.idx"])
    chosen = x[x % 5 == 0]
    assert count[0] == len(chosen) and (y[len(chosen) :] == 1000).all()
    assert sorted(y[: len(chosen)]) == sorted(chosen)


# ---- atomics ----------------------------------------------------------------------------------


def test_a_float_maximum_by_compare_and_swap(run: Run) -> None:
    n, groups = 150, 4
    x, y = normal(n), np.full(groups, -np.inf, np.float32)
    run("warp", "float_maximum", 3, 64, x, y, groups, n, ptx=["atom.*cas.b32"])
    assert (y == [x[group::groups].max() for group in range(groups)]).all()


def test_double_sums_by_atomics(run: Run) -> None:
    n, groups = 150, 3
    x, y, before = np.abs(normal(n, dtype=np.float64)), np.zeros(groups), np.full(n, np.nan)
    ptx = ["fma.rn.f64", "atom.*add.f64", "cvt.rni.f64"]
    run("warp", "double_sums", 3, 64, x, y, before, groups, n, ptx=ptx)
    added = np.rint((x * 3.0 + 1.0 / (1.0 + x * x)) * 1024.0)  # far from halves, so no error
    for group in range(groups):
        mine, start = added[group::groups], before[group::groups]
        order = np.argsort(start)
        assert (start[order] == mine[order].cumsum() - mine[order]).all()  # one after another
        assert y[group] == mine.sum()


def test_atomics_on_two_and_four_floats(run: Run) -> None:
    n = 150
    x = whole(n, dtype=np.float32)
    pairs, quads = np.zeros((3, 2), np.float32), np.zeros((5, 4), np.float32)
    old = np.full((n, 2), np.nan, np.float32)
    run("warp", "vector_sums", 3, 64, x, pairs, quads, old, n, ptx=["v2.f32", "v4.f32"])
    for group in range(3):
        mine = x[group::3]
        assert pairs[group].tolist() == [mine.sum(), len(mine)]
        order = old[group::3, 1].argsort()
        assert (old[group::3, 1][order] == np.arange(len(mine))).all()
        assert (old[group::3, 0][order] == mine[order].cumsum() - mine[order]).all()
    for group in range(5):
        mine = x[group::5]
        expected = [mine.sum(), -mine.sum(), 2 * len(mine), (mine * mine).sum()]
        assert quads[group].tolist() == expected


def test_the_vector_atomic_of_ptx(run: Run) -> None:
    y, old = np.array([3, 4], np.float32), np.zeros((90, 2), np.float32)
    run("warp", "vector_sum_by_asm", 2, 45, y, old, ptx=["atom.global.v2.f32.add"])
    assert y.tolist() == [93, 49]
    assert sorted(map(tuple, old.tolist())) == [(3 + k, 4 + k / 2) for k in range(90)]


def test_one_atomic_for_a_warp(run: Run) -> None:
    n = 200
    x, y, count = whole(n), np.full(n, 1000, np.int32), np.zeros(1, np.int32)
    run("warp", "compaction", 3, 70, x, y, count, n, ptx=["activemask", "atom.global.add"])
    chosen = x[x % 3 == 0]
    assert count[0] == len(chosen) and (y[len(chosen) :] == 1000).all()
    assert sorted(y[: len(chosen)]) == sorted(chosen)


# ---- time, and a trap that is not reached -----------------------------------------------------


def test_clocks_go_forward(run: Run) -> None:
    x, y = normal(90), np.zeros(90, np.float32)
    ticks, cycles = np.zeros(90, np.int64), np.zeros(90, np.uint32)
    ptx = ["%clock64", "%clock;", "%globaltimer", "nanosleep"]
    run("warp", "clocks", 2, 45, x, y, ticks, cycles, ptx=ptx)
    assert (ticks > 0).all() and (ticks < 2**40).all()
    assert (cycles > 0).all() and (cycles < 2**31).all()
    expected = x.copy()
    for _ in range(20):
        expected = expected * np.float32(0.5) + np.float32(1)
    assert np.allclose(y, expected, rtol=1e-6)


def test_a_trap_that_is_not_reached(run: Run) -> None:
    n = 50
    x, y = whole(n, low=0), np.zeros(64, np.int32)
    run("warp", "trap_not_reached", 2, 32, x, y, n, ptx=["trap"])
    assert (y[:n] == x + 1).all() and not y[n:].any()


# ---- asynchronous copies ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("block", [70, 32])
def test_asynchronous_copies_with_two_buffers(run: Run, size: int, block: int) -> None:
    x = normal(3, 5, block * size // 4)
    y = np.zeros_like(x)
    kind = "cg" if size == 16 else "ca"
    ptx = [f"cp.async.{kind}.shared.global[^;]*, {size};", "cp.async.wait_group 1"]
    run("async", f"copies_of_{size}", 3, block, x, y, 5, ptx=ptx)
    assert (y == x[:, :, ::-1]).all()


def test_the_pipeline_functions_of_the_headers(run: Run) -> None:
    x = normal(2, 6, 70, 2)
    y = np.zeros_like(x)
    run("async", "pipeline", 2, 70, x, y, 6, ptx=["cp.async.ca", "cp.async.wait_group"])
    assert (y == x[:, :, ::-1]).all()


def test_a_copy_that_fills_up_with_zeros(run: Run) -> None:
    grid, block, n = 3, 70, 4 * 170 + 3
    x, y = normal(n), np.full((grid, 4 * block), np.nan, np.float32)
    run("async", "zero_fill", grid, block, x, y, n, ptx=["cp.async.cg.*16, %r", "wait_all"])
    padded = np.zeros(grid * 4 * block, np.float32)
    padded[:n] = x
    assert (y == padded.reshape(grid, -1)[:, ::-1]).all()


@pytest.mark.parametrize("name", ["mbarrier_state", "mbarrier_parity"])
@pytest.mark.parametrize("block", [70, 33])
def test_an_mbarrier_holds_a_block_together(run: Run, name: str, block: int) -> None:
    x, rounds = whole(3, block), 5
    y = np.zeros_like(x)
    ptx = ["mbarrier.(test_wait|try_wait.parity).shared::cta", "mbarrier.init"]
    run("async", name, 3, block, x, y, rounds, ptx=ptx)
    expected = x.copy()
    for _ in range(rounds):
        expected = 3 * expected + np.roll(expected, -(33 % block), axis=1)
    assert (y == expected).all()


def test_the_mbarrier_functions_of_the_headers(run: Run) -> None:
    x = whole(3, 70)
    y = np.zeros_like(x)
    run("async", "mbarrier_header", 3, 70, x, y, ptx=["mbarrier.arrive", "mbarrier.inval"])
    assert (y == x[:, ::-1]).all()


@pytest.mark.parametrize("block", [70, 20])
def test_copies_arrive_at_an_mbarrier(run: Run, block: int) -> None:
    x = normal(2, 2, block, 4)
    y = np.zeros_like(x)
    run("async", "arrive_when_copied", 2, block, x, y, ptx=["cp.async.mbarrier.arrive.noinc"])
    assert (y == x[:, :, ::-1]).all()


@pytest.mark.parametrize("tiles", [1, 2, 7, 8])
def test_a_ring_of_two_stages(run: Run, tiles: int) -> None:
    x, y = whole(3, tiles, 64), np.zeros((3, 64), np.int32)
    run("async", "ring", 3, 96, x, y, tiles, ptx=["mbarrier.try_wait.parity", "mbarrier.arrive"])
    stored = np.concatenate([x[:, :, :32] + 1, x[:, :, 32:] * 2], axis=2)[:, :, ::-1]
    expected = np.zeros((3, 64), np.int64)
    for k in range(tiles):
        expected = 3 * expected + stored[:, k]
    assert (y == expected).all()


BULK_LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


@pytest.mark.parametrize(("n", "block"), [(100, 70), (1000, 32), (8, 33)])
def test_bulk_copies_bring_a_row(run: Run, n: int, block: int) -> None:
    x = normal(3, n)
    y = np.zeros_like(x)
    run("async", "bulk_row", 3, block, x, y, n, shared=4 * n, ptx=[BULK_LOAD, "expect_tx"])
    assert (y == x[:, ::-1]).all()


@pytest.mark.parametrize("tiles", [2, 3, 7])
def test_a_ring_that_bulk_copies_fill(run: Run, tiles: int) -> None:
    x, y = whole(2, tiles, 96, dtype=np.float32), np.zeros((2, 48), np.float32)
    run("async", "bulk_ring", 2, 48, x, y, tiles, ptx=[BULK_LOAD, "fence.proxy.async"])
    expected = np.zeros((2, 48), np.float32)
    for k in range(tiles):
        for part in (x[:, k, :47:-1], x[:, k, 47::-1]):
            expected = expected * np.float32(0.5) + part
    assert np.allclose(y, expected, rtol=0, atol=2e-5)  # 14 roundings of numbers below 100


@pytest.mark.parametrize(("n", "block"), [(100, 70), (256, 32)])
def test_bulk_copies_take_a_row_away(run: Run, n: int, block: int) -> None:
    x, y = normal(3, n), np.zeros((3, 2, n), np.float32)
    ptx = ["cp.async.bulk.global.shared::cta.bulk_group", "wait_group.read 0", "commit_group"]
    run("async", "bulk_out", 3, block, x, y, n, shared=4 * n, ptx=ptx)
    assert (y[:, 0] == 2 * x[:, ::-1]).all() and (y[:, 1] == 3 * x[:, ::-1]).all()


def test_a_row_goes_in_and_out_by_bulk_copies(run: Run) -> None:
    n = 260
    x = whole(4, n, dtype=np.float32)
    expected = x * x + 1
    ptx = [BULK_LOAD, "cp.async.bulk.global.shared::cta.bulk_group"]
    run("async", "bulk_round_trip", 4, 70, x, n, shared=4 * n, ptx=ptx)
    assert (x == expected).all()


def test_a_bulk_prefetch_changes_nothing(run: Run) -> None:
    n = 260
    x = whole(3, n, dtype=np.float32)
    y = np.zeros_like(x)
    run("async", "bulk_prefetch", 3, 70, x, y, n, ptx=["cp.async.bulk.prefetch.L2.global"])
    assert (y == x + 1).all()


# ---- clusters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [70, 32])
def test_blocks_of_a_cluster_add_up(run: Run, block: int) -> None:
    x = whole(3, 4, block, dtype=np.float32)
    y = np.zeros_like(x)
    run("cluster", "cluster_sum", 12, block, x, y, ptx=["mapa", "barrier.cluster.arrive"])
    totals = (x.sum(2) * [1, 2, 3, 4]).sum(1)
    ranks = 10000 * np.arange(4)[None, :, None]
    assert (y == x + totals[:, None, None] + ranks).all()


def test_shared_memory_of_other_blocks_by_inline_assembly(run: Run) -> None:
    x = whole(2, 4, 72, dtype=np.float32)
    y = np.zeros_like(x)
    ptx = ["mapa.shared::cluster.u32", "ld.shared::cluster.v4.f32", "st.shared::cluster.f32"]
    run("cluster", "cluster_by_asm", 8, 72, x, y, ptx=ptx)
    following = np.roll(x, -1, axis=1)
    quads = following.reshape(2, 4, 18, 4) @ np.array([1, 10, 100, 1000])
    assert (y == np.repeat(quads, 4, axis=2) + 2 * following[:, :, ::-1]).all()


def test_atomics_on_another_block(run: Run) -> None:
    n = 333
    x, y = whole(3, n, low=0, high=64), np.zeros((3, 64), np.int32)
    run("cluster", "remote_atomics", 12, 45, x, y, n, ptx=["atom.*add", "mapa"])
    assert y.tolist() == [np.bincount(row, minlength=64).tolist() for row in x]


def test_atomics_on_another_block_by_inline_assembly(run: Run) -> None:
    x, y = whole(3, 2, 70, low=1, high=9), np.zeros((3, 2, 2), np.int32)
    ptx = ["atom.shared::cluster.add.u32", "red.shared::cluster.max.u32"]
    run("cluster", "remote_atomics_by_asm", 6, 70, x, y, ptx=ptx)
    total, before_last = y[:, :, 0], y[:, :, 1]
    assert (total == x.sum(2)[:, ::-1]).all()
    assert ((total - before_last >= 1) & (total - before_last <= 8)).all()


def test_the_halves_of_a_cluster_barrier(run: Run) -> None:
    x = whole(3, 2, 70)
    y = np.zeros_like(x)
    ptx = ["barrier.cluster.arrive.release.aligned", "barrier.cluster.arrive.relaxed"]
    run("cluster", "split_barrier", 6, 70, x, y, ptx=ptx)
    v, t = np.zeros_like(x), np.arange(70)
    for j in range(5):
        v = np.where(j <= t % 5, 3 * v + x + j, v)
    assert (y == v + x[:, ::-1, ::-1]).all()


def test_asynchronous_stores_into_another_block(run: Run) -> None:
    x = whole(3, 2, 70)
    y = np.zeros_like(x)
    ptx = ["st.async.shared::cluster.mbarrier::complete_tx::bytes.b32", "complete_tx::bytes.v4"]
    run("cluster", "async_stores", 6, 70, x, y, ptx=ptx)
    other = x[:, ::-1]
    back = other[:, :, ::-1]
    quads = 100 * 2 * back - 10 * 3 * back + 100000 * np.arange(70)[::-1] - back
    assert (y == other + quads).all()


def test_arrivals_at_the_mbarrier_of_another_block(run: Run) -> None:
    x = whole(3, 4 * 70)
    y = np.zeros_like(x)
    ptx = ["mbarrier.arrive.release.cluster.shared::cluster", "try_wait.parity.acquire.cluster"]
    run("cluster", "remote_arrivals", 12, 70, x, y, ptx=ptx)
    assert (y == x[:, ::-1]).all()


def test_a_bulk_copy_to_another_block(run: Run) -> None:
    x = normal(2, 3, 72)
    y = np.zeros_like(x)
    run("cluster", "bulk_to_neighbour", 6, 72, x, y, ptx=["bulk.shared::cluster.shared::cta"])
    assert (y == np.roll(x, 1, axis=1)[:, :, ::-1]).all()


@pytest.mark.parametrize(
    ("name", "size"),
    [("places_alone", (1, 1)), ("places_in_pairs", (2, 1)), ("places_in_squares", (2, 2))],
)
def test_blocks_know_their_place_in_the_cluster(run: Run, name: str, size: tuple) -> None:
    grid, block = (4, 6, 2), 33
    y = np.zeros((2, 6, 4, block, 16), np.uint32)
    run("cluster", name, grid, block, y, ptx=["%cluster_ctarank", "%clusterid.x"])
    a, b = size
    for z, j, i in np.ndindex(2, 6, 4):
        rank = [i % a + a * (j % b), a * b]
        cluster = [i // a, j // b, z, 4 // a, 6 // b, 2]
        inside = [i % a, j % b, 0, a, b, 1]
        assert (y[z, j, i] == [*rank, *cluster, *inside, name != "places_alone", 77]).all()
