"""A load counts where its value is used: small kernels, a rule each, and the twin that breaks it.

The compiler loads early, and more than it needs, and throws away what it does not. In the clean
kernels an undefined value is loaded and dropped.
"""

import numpy as np
import pytest

from helpers.simt import Findings, KernelText, simulate
from tests.simt.launching import with_twins

UNWRITTEN, RACE = "read of unwritten shared memory", "race on shared memory"
ABSENT = "shuffle from a lane that takes no part"
UNSET = "read of an uninitialised variable"
THREADS = 64

HEAD = """struct Pair { int number; char letter; };
struct alignas(16) Point { float x, y, z; };
__device__ __noinline__ float twice(float v) { return 2 * v; }
extern "C" __global__ void k(float* y, const float* x, int n)
{
    const int t = threadIdx.x;
"""

# Name: (kind, n, body), with BUG and FIX of kernels/twins.cuh; `// <-` marks the load that is a bug
# and `// used` its use.
TWINS: dict[str, tuple[str, int, str]] = {
    "a flag that is asked only sometimes": (UNWRITTEN, 0, """
__shared__ bool last;
if (n && t == 0) last = x[0] > 0;
__syncthreads();
y[t] = n BUG(||) FIX(&&) last ? 2 : 1;  // <-"""),
    "a value that one thread keeps, loaded behind the store": (RACE, 0, """
__shared__ float best;
if (t == 0) best = x[3];
__syncwarp();
y[t] = t == 0 BUG(|| t == 50) ? best : -1.0f;  // <-"""),
    "a vector load of a struct with padding": (UNWRITTEN, 0, """
__shared__ Point s[64];
s[t].x = x[t], s[t].y = 2 FIX(, s[t].z = 3);
__syncthreads();
const Point p = s[t ^ 1];  // <-
y[t] = p.x + p.y + p.z;  // used"""),
    "padding that is copied": (UNWRITTEN, 0, """
__shared__ Pair s[64], u[64];
s[t].number = t FIX(, s[t].letter = 'a');
__syncthreads();
u[t] = s[t ^ 1];  // <-
__syncthreads();
BUG(y[t] = u[t ^ 2].letter;)  // used
FIX(reinterpret_cast<Pair*>(y)[t] = u[t ^ 2];)"""),
    "the sign of a byte": (UNWRITTEN, 0, """
__shared__ signed char s[64];
if (t % 2) s[t] = -t;
__syncthreads();
const int v = s[t];  // <-
y[t] = BUG(v >> 12) FIX(t % 2 ? v >> 12 : 0);  // used"""),
    "a condition that another decides": (UNWRITTEN, 0, """
__shared__ int f[64];
if (n) f[t] = 1;
__syncthreads();
y[t] = n > BUG(-1) FIX(0) && f[t ^ 1] > 0 ? 1 : 2;  // <-"""),
    "a shuffle whose result is dropped": (ABSENT, 0, """
float v = x[t];
if (t % 32 < 24) {
    for (int d = 16; d; d /= 2) {
        const float w = __shfl_down_sync(0xffffff, v, d);  // <-
        v += BUG(w) FIX(t % 32 + d < 24 ? w : 0);
    }
    BUG(y[t] = v;)  // used
    FIX(if (t % 32 == 0) y[t] = v;)
}"""),
    "a lane that takes from another": (UNWRITTEN, 0, """
__shared__ float s[64];
if (t % 32 < 16) s[t] = x[t];
__syncwarp();
const float v = __shfl_xor_sync(~0u, s[t], 16);  // <-
if (t % 32 BUG(<) FIX(>=) 16) y[t] = v;  // used"""),
    "a racing value that is kept": (RACE, 0, """
__shared__ float s[64], u[64];
s[t] = x[t];
BUG(const float v = s[63 - t];)  // <-
FIX(__syncthreads();)
u[t] = BUG(v) FIX(s[63 - t]);  // used
__syncthreads();
if (n) y[t] = u[t ^ 1];"""),
    "an argument of a call": (UNWRITTEN, 0, """
__shared__ float s[64];
if (t < 60) s[t] = 1;
__syncthreads();
const float v = twice(s[t]);  // <-
y[t] = BUG(v) FIX(t < 60 ? v : 0);  // used"""),
    "a vote": (UNWRITTEN, 0, """
__shared__ int f[64];
if (t < 60) f[t] = 0;
__syncthreads();
y[t] = __any_sync(~0u, FIX(t < 60 &&) f[t]) ? 1 : 2;  // <-"""),
    "an array of each thread": (UNSET, 5, """
float a[8];
for (int j = 0; j < n; ++j) a[j] = x[j];
float m = 0;
for (int j = 0; j < n; ++j) m += a[(j + t) % BUG(8) FIX(n)];  // <-
y[t] = m;  // used"""),
    "a variable that is set on one way": (UNSET, 5, """
float u;
if (t < n) u = x[t];
else y[t + 64] = 1;
if (t % 2 < n - BUG(4) FIX(5) || t < 3) y[t] = u;  // <-"""),
    "a variable that a loop carries": (UNSET, 5, """
float FIX(last,) sum FIX(= 0);
for (int j = 0; j < n; ++j) {
    BUG(sum = 2 * sum + x[j];)  // <-
    FIX(if (j > 0) sum += last;)
    FIX(last = x[j] * t;)
}
y[t] = sum;  // used"""),
    "a sum of many terms": (UNWRITTEN, 48, """
__shared__ float s[96];
if (t < n) s[t] = x[t];
__syncthreads();
float sum = 0;
for (int j = 0; j < 16; ++j) sum += s[t + j];  // <-
sum = __shfl_down_sync(~0u, sum, 1);
if (t < n BUG(+ 14) FIX(- 16)) y[t] = sum;  // used"""),
    "a sum of many terms of several lines": (UNWRITTEN, 0, """
__shared__ float s[96], u[96], v[96];
if (t < n) s[t] = u[t] = v[t] = x[t];
__syncthreads();
float sum = 0;
for (int j = 0; j < 12; ++j) {
    sum += s[t + j];  // <-
    sum += u[t + j];  // <-
    sum += v[t + j];  // <-
}
sum = __shfl_down_sync(~0u, sum, 1);
BUG(y[t] = sum;)
FIX(if (t < n) y[t] = sum;)"""),
    "a word in which the lowest byte decides": (UNWRITTEN, 0, """
__shared__ __align__(4) unsigned char s[256];
s[4 * t] = t, s[4 * t + BUG(2) FIX(1)] = 0;
__syncthreads();
const unsigned word = *reinterpret_cast<unsigned*>(s + (4 * t + 4) % 256);  // <-
y[t] = __ffs(word - 0x01010101u & ~word & 0x80808080u) / 8;  // used"""),
    "a word in which the highest byte decides": (UNWRITTEN, 0, """
__shared__ __align__(4) signed char s[256];
s[4 * t + 3] = t % 2 ? -t : t + 1;
__syncthreads();
const int word = *reinterpret_cast<int*>(s + (4 * t + 4) % 256);  // <-
if (word < BUG(0x01ffff00) FIX(0x00ffffff)) y[t] = BUG(t) FIX(__clz(word) + 1);  // used"""),
}  # fmt: skip


def text(name: str) -> str:
    return f"{HEAD}{TWINS[name][2]}\n}}\n"


def findings(name: str, planted: bool) -> Findings:
    x, y = np.arange(1, 129, dtype=np.float32), np.zeros(512, np.float32)
    code, options = with_twins("kernels/x.cu", text(name)), ("-DPLANTED",) if planted else ()
    return simulate(KernelText(code, "k", options), 1, THREADS, (y, x, TWINS[name][1])).findings


def lines_of(name: str, mark: str) -> list[int]:
    lines = enumerate(text(name).splitlines(), 1)
    return [number for number, line in lines if line.endswith(mark)]


@pytest.mark.parametrize("name", TWINS)
def test_what_is_loaded_and_dropped_is_no_finding(name: str) -> None:
    assert not findings(name, planted=False)


@pytest.mark.parametrize("name", TWINS)
def test_what_is_used_is_a_finding_where_it_was_loaded(name: str) -> None:
    found = findings(name, planted=True)
    assert {finding.kind for finding in found} == {TWINS[name][0]}
    assert sorted(finding.line for finding in found) == lines_of(name, "// <-")
    for line in lines_of(name, "// used"):
        assert [finding.used for finding in found] == [("kernels/x.cu", line)]
        assert f"is used in line {line}" in str(found)
