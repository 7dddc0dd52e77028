"""An address that is reckoned from one shared array must stay in it, though it may well lie in the
next one and in the block's shared memory."""

import numpy as np
import pytest

from helpers.simt import Findings, KernelText, simulate
from tests.simt.launching import FILE, MBARRIERS, kernel

LOAD, STORE = "out-of-bounds shared load", "out-of-bounds shared store"
FILL = """__shared__ float a[32], b[64];
    b[t] = x[t];
    if (t < 32) a[t] = x[t];
    __syncthreads();
    """


def findings(body: str, n: int, shared: int = 0) -> Findings:
    x, y = np.arange(1, 65, dtype=np.float32), np.zeros(64, np.float32)
    code = FILE + kernel(body, before=f"{MBARRIERS}\nextern __shared__ float dynamic[];")
    return simulate(KernelText(code, "k"), 1, 64, (y, x, n), shared).findings


# With n = 32 each stays in its array, with n = 33 one thread leaves it.
LEAVING = [
    ("if (t < n) a[t] = 2; __syncthreads(); y[t] = b[t] + a[t % 32];", STORE, "128 of a", "b"),
    ("y[t] = b[t] + a[t < n ? t : 0];", LOAD, "128 of a", "b"),
    ("y[t] = a[0] + b[t - (t >= 64 - n && t < 33 ? 32 : 0)];", LOAD, "-4 of b", "a"),
]
WITHIN = {
    "a pointer to either": "const float* p = n ? a : b; y[t] = p[t % 32] + a[0] + b[t];",
    "two that change places": """float* p = a;
        float* q = b;
        for (int j = 0; j < n; ++j) {
            if (t < 32) q[t] = p[t ^ 1];
            float* r = p; p = q; q = r;
            __syncthreads();
        }
        y[t] = p[t % 32];""",
    "indices that start behind it": "y[t] = a[t % 32 + 64 - 64] + (b + 32)[t - 32];",
    "what is loaded and dropped": "y[t] = b[t] + (t < n ? a[t] : 0);",
    "dynamic memory behind it": """dynamic[t] = b[t];
        __syncthreads();
        y[t] = a[0] + dynamic[63 - t];""",
}


@pytest.mark.parametrize(("body", "kind", "place", "neighbour"), LEAVING)
def test_a_neighbour_is_not_reached_through_an_array(body, kind, place, neighbour) -> None:
    assert not findings(FILL + body, 32)
    (found,) = findings(FILL + body, 33)
    assert (found.kind, found.thread[0]) == (kind, 31 if "-" in place else 32)
    assert f"4 bytes at byte {place}, which has" in found.message
    assert found.message.endswith(f"{neighbour} lies there")


@pytest.mark.parametrize("shared", [0, 256])
def test_dynamic_memory_that_the_kernel_does_not_declare_is_not_reached_either(shared: int) -> None:
    body = "__shared__ float a[32]; if (t < n) a[t] = x[t]; __syncthreads(); y[t] = a[t % 32];"
    assert not findings(body, 32, shared)
    (found,) = findings(body, 33, shared)
    assert (found.kind, found.thread[0]) == (STORE, 32)


# What is reached is not said to be of one array.
UNNAMED = {
    "a pointer to either": "float* p = n > 99 ? a : b; p[s] = 1;",
    "an atomic": "float* p = n > 99 ? a : b; atomicAdd(p + s, 1);",
    "an asynchronous copy": """asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::
        "r"((unsigned)__cvta_generic_to_shared(b + s)), "l"(x + t) : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");""",
}


@pytest.mark.parametrize("name", UNNAMED)
def test_static_arrays_do_not_extend_into_undeclared_dynamic_memory(name: str) -> None:
    body = f"""__shared__ float a[32], b[32];
        if (t < 32) {{
            const int s = t + n - 32;
            a[t] = b[t] = x[t];
            __syncwarp();
            {UNNAMED[name]}
            y[t] = a[t] + b[t];
        }}"""
    assert not findings(body, 32, 256)
    for shared in (0, 256):
        found = [one for one in findings(body, 33, shared) if one.kind == STORE]
        assert [one.thread[0] for one in found] == [31], shared
    assert found[0].message.endswith("it must declare an extern __shared__ array")
    assert not findings(f"if (n < 0) dynamic[t] = 0;{body}", 32, 256)


BULK = """__shared__ alignas(16) float s[32];
    __shared__ Barrier full;
    if (t == 0) {
        init(&full, 1);
        EXPECT(&full, 4 * n);
        BULK_LOAD((char*)s + SHIFT, x, 4 * n, &full);
        WAIT(&full, 0);
        y[0] = s[0];
    }"""


@pytest.mark.parametrize(("shift", "tail"), [("0", 8), ("0", 13), ("16384", 8)])
def test_a_bulk_copy_stays_in_the_memory_that_the_kernel_declares(shift: str, tail: int) -> None:
    """Of what is copied some of the bytes fit, an odd number of them, or none."""
    body = f"__shared__ char tail[{tail}]; if (n < 0) y[t] = tail[t];\n{BULK}"
    assert not findings(body.replace("SHIFT", "0"), 32, 256)
    found = [one for one in findings(body.replace("SHIFT", shift), 64, 256) if one.kind == STORE]
    assert len(found) == 1 and "256 bytes at byte" in found[0].message
    assert found[0].message.endswith("it must declare an extern __shared__ array")


def test_addresses_without_a_declaration_reach_all_dynamic_memory() -> None:
    body = """int v;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(4 * t), "r"(t) : "memory");
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(4 * t) : "memory");
        y[t] = v;"""
    assert not findings(body, 0, 256)
    assert {one.kind for one in findings(body, 0, 128)} == {STORE, LOAD}


@pytest.mark.parametrize("name", WITHIN)
def test_what_stays_in_its_array_is_no_finding(name: str) -> None:
    assert not findings(FILL + WITHIN[name], 32, shared=256)
