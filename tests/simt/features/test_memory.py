"""Local memory, calls, variables of the module, caches.

The kernels are in tests/simt/kernels/features_*.cu and have no bugs, so that a finding is an error.
"""

import re

import numpy as np
import pytest

from tests.simt.features.support import normal, text, whole, wrapped
from tests.simt.launching import Run

# ---- local memory and calls -------------------------------------------------------------------


def test_an_array_indexed_by_data_lives_in_local_memory(launch: Run) -> None:
    n = 130
    x, y = whole(n, 9, low=0, high=9), np.zeros(n + 14, np.int32)
    launch("local", "local_array", 3, 48, x, y, n, ptx=["st.local.u32", "ld.local.u32"])
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


def test_local_elements_of_1_8_and_16_bytes(launch: Run) -> None:
    n = 75
    x, y = whole(n, low=0, high=60), np.zeros(n, np.int64)
    launch(
        "local", "local_sizes", 2, 40, x, y, n, ptx=["ld.local.(s|u)8", "ld.local.u64", "local.v"]
    )
    for v, found in zip(x.tolist(), y.tolist(), strict=True):
        small = (v * (v % 11 + 1) + 128) % 256 - 128
        j = v % 3
        assert found == small + ((v + v % 5) << 33) + v + j * v * j - 2


def test_a_function_takes_pointers_to_local_shared_and_global_memory(launch: Run) -> None:
    n = 100
    y, scratch = np.zeros(n, np.int32), np.zeros((n, 7), np.int32)
    launch("local", "local_pointer", 2, 64, y, scratch, n, ptx=["call", "cvta.local"])
    i = np.arange(n)
    grown = (i % 7) ** 2
    assert (y == grown - i + 1000 * (grown + 2 * i) + 1000000 * (grown + 3 * i)).all()
    assert (scratch == 3 * i[:, None] + np.arange(7) ** 2).all()


def test_the_slow_path_of_sine(launch: Run) -> None:
    x = np.concatenate([normal(50) * 1e4, normal(51) * 1e12, normal(52) * 1e37]).astype(np.float32)
    x[:4] = 105615.0, -1e5, 3.0, 0.0
    y = np.zeros_like(x)
    launch("local", "slow_sine", 4, 40, x, y, len(x), ptx=["st.local", "ld.local"])
    # The CUDA guide: at most 2 ulp; no sine has larger ones than 2^-24.
    assert np.abs(y - np.sin(x.astype(np.float64))).max() <= 2 * 2.0**-24


def test_a_struct_goes_into_a_call_and_comes_out(launch: Run) -> None:
    n = 70
    x = normal(n, 5) * np.float32(3)
    largest, count, total = np.zeros(n, np.float32), np.zeros(n, np.int32), np.zeros(n)
    launch(
        "local", "struct_call", 3, 33, x, largest, count, total, n, ptx=["call", r"\.align 8 \.b8"]
    )
    assert (largest == x.max(1)).all() and (count == 1 + 1 + 2 + 3 + 4).all()
    wide = x.astype(np.float64)
    expected = np.exp2(wide - wide.max(1, keepdims=True)).sum(1)
    # Up to four factors of exp2f, each wrong by 2 ulp and by the rounding of its argument.
    assert np.abs(total / expected - 1).max() < 4 * (2 + 16) * 2.0**-24


def test_calls_from_divergent_code(launch: Run) -> None:
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
    launch("local", "call_in_divergence", 3, 72, y, n, ptx=["call"])
    assert y.tolist() == [expected(i) for i in range(n)] + [-7] * 16
    assert any(collatz(i) < 0 for i in range(1, n))  # both ways out of the function are taken


def test_a_function_calls_itself(launch: Run) -> None:
    y = np.zeros(40, np.int32)
    launch("local", "recursion", 2, 20, y, 40, ptx=["call"])
    assert y.tolist() == [[0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55][i % 11] for i in range(40)]


# ---- variables of the module ------------------------------------------------------------------


def test_a_variable_starts_as_the_address_of_another(launch: Run) -> None:
    n = 66
    y = np.zeros(n, np.int32)
    launch("local", "device_pointer", 2, 40, y, n, ptx=["ld.global.u64[^;]*middle"])
    assert y.tolist() == [[2, 3, 5, 7, 11][i % 5] * i for i in range(n)]


def test_constant_memory_is_indexed_by_each_thread(launch: Run) -> None:
    code = text("local")
    weights = np.array(re.search(r"weights\[33\] = \{([^}]*)", code)[1].split(","), np.int32)
    n = 90
    x, y = whole(n, low=0, high=33), np.zeros(n, np.float32)
    launch("local", "constant_table", 3, 33, x, y, n, ptx=[r"ld.const.[su]16[^;]*\[%rd", "weights"])
    assert (y == weights[x] * 10 + weights[16]).all()


@pytest.mark.parametrize(
    ("value", "dtype", "count"), [("float", np.float32, 4), ("double", np.float64, 3)]
)
def test_an_instance_of_a_template_is_named_in_c(launch: Run, value, dtype, count: int) -> None:
    n = 101
    x, y = normal(n, dtype=dtype), np.zeros(n + 40, dtype)
    name = f"scale<{value}, {count}>"
    launch("template", name, 2, 20, y, x, dtype(1.5), n, ptx=[f"st.global.f{8 * x.itemsize}"])
    reached = min(n, 2 * 20 * count)
    product = x[:reached].astype(np.float64) * 1.5
    error = np.abs(y[:reached] - (product + count))  # one rounding; another one of numpy's
    assert (error <= np.finfo(dtype).eps * (np.abs(product) + count)).all()
    assert not y[reached:].any()


# ---- caches and inline assembly ---------------------------------------------------------------


def test_load_and_store_functions_for_every_cache_operator(launch: Run) -> None:
    n = 70
    x, z, w = normal(n, 4), whole(n, dtype=np.float64), whole(n)
    y = np.zeros((2 * n, 4), np.float32)
    ptx = [r"ld.global.cs.v4", r"ld.global.nc.f64", r"st.global.cs.v4", "ld.global.cg"]
    launch(
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


def test_the_fast_exponential(launch: Run) -> None:
    x = np.concatenate([np.linspace(-150, 130, 200), normal(55) * 4]).astype(np.float32)
    x[:5] = -np.inf, np.inf, 0.0, -126.0, -127.0
    y = np.full(len(x), np.nan, np.float32)
    launch("asm", "fast_exponential", 4, 66, x, y, len(x), ptx=["ex2.approx.ftz.f32"])
    with np.errstate(over="ignore"):
        exact = np.exp2(x.astype(np.float64)).astype(np.float32)
    exact[exact < np.finfo(np.float32).tiny] = 0  # .ftz
    assert y[:5].tolist() == [0.0, np.inf, 1.0, 2.0**-126, 0.0]
    finite = np.isfinite(exact)
    assert (y[~finite] == exact[~finite]).all()
    assert np.allclose(y[finite], exact[finite], rtol=2.0**-22, atol=0)  # PTX ISA: 2 ulp
