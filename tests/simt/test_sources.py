"""A file for nvcc: what is the host's is set aside, every line keeps its number."""

from pathlib import Path

import numpy as np
import pytest

from helpers.simt import CompileError, KernelText, simulate, sources
from helpers.simt.compile import compile_kernels

FILE = r"""// a comment with main()
#include <cstdio>
#include <cassert>
#include <cstdint>
#include <cmath>
#include <vector>
#include <iostream>
#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include "my.h"
using namespace std;
#define CHECK(x) do { cudaError_t e = (x); \
    if (e != cudaSuccess) { printf("error %s\n", cudaGetErrorString(e)); exit(1); } } while (0)
const int N = 1024;
constexpr float PI = 3.0f;
__constant__ float table[4] = {1, 2, 3, 4};
struct Pair { float a; int b; };
static std::vector<float> cached;
class Timer { cudaEvent_t start; public: void go() { cudaEventRecord(start); } };
template <typename T> __device__ T twice(T v) { return v + v; }
template <typename T> void fill(std::vector<T>& v) { for (auto& e : v) e = 1; }
void helper(float* p, int n);
__host__ __device__ inline int both(int v) { return v + 1; }
namespace ns {
int counter() { return 3; }
__device__ float deep(float v) { return v * 2; }
}
__global__ void scale(const float* x, float* y, int n, float a)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(n > 0);
    if (i < n) y[i] = a * twice(x[i]) + MINE + ns::deep(0) + both(-1);
    if (i == 0) printf("n is %d, a is %g {\n", n, a);
}
int main(int argc, char** argv)
{
    std::vector<float> h(N);
    float *d; CHECK(cudaMalloc(&d, N * sizeof(float)));
    scale<<<N / 256, 256>>>(d, d, N, 2.0f);
    cout << "done }" << endl;
    return 0;
}
"""
HEADER = "#include <cstdint>\n#define MINE 1\n"


def prepared(folder: Path, text: str) -> sources.Source:
    """A file in that folder, made ready."""
    path = folder / "x.cu"
    path.write_text(text, encoding="utf-8")
    return sources.prepare(path)


def kernel(source: sources.Source, name: str) -> KernelText:
    return KernelText(source.code, name, source.options, headers=source.headers)


def compiled(folder: Path, text: str) -> str:
    """The PTX of a file in that folder."""
    source = prepared(folder, text)
    return compile_kernels(source.code, ("k",), source.options, headers=source.headers)[0]


def test_a_program_of_host_and_device_runs(tmp_path: Path) -> None:
    (tmp_path / "my.h").write_text(HEADER)
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    trace = simulate(kernel(prepared(tmp_path, FILE), "scale"), 1, 32, (x, y, 4, np.float32(0.5)))
    assert y.tolist() == [1, 2, 3, 4] and trace.printed == "n is 4, a is 0.5 {\n"
    assert not trace.findings
    lines = {number for (file, number), one in trace.lines.items() if one.load_requests}
    assert [FILE.splitlines()[number - 1].split()[0] for number in lines] == ["if"]


def test_what_is_set_aside_leaves_lines_where_they_were(tmp_path: Path) -> None:
    (part,) = prepared(tmp_path, FILE).texts.values()  # without my.h
    assert len(part) == len(FILE) and part.count("\n") == FILE.count("\n")
    for gone in ("main(int", "std::vector", "cudaEvent_t start", "using namespace", "counter()"):
        assert gone not in part
    for kept in ("#define CHECK(x)", "twice(T v)", "struct Pair", "both(int v)", "table[4]", "N ="):
        assert kept in part


SPELLED = """#include <cstdio>
#define K extern "C" __global__ void
#ifdef __CUDACC__
#define HD __host__ \\
    __device__
#else
#define HD
#endif
#define INLINE_HD HD inline
#define SIZE 32
struct Twice { float v; HD float get() const { return 2 * v; } };
INLINE_HD float half(float v) { return v / 2; }  // HD: here and there
K scale(float* y, const float* x)
{
    y[threadIdx.x] = Twice{x[threadIdx.x]}.get() + half(x[threadIdx.x]);
}
int main() { puts("K scale"); scale<<<1, SIZE>>>(nullptr, nullptr); }
"""


def test_macros_that_stand_for_the_device_are_seen(tmp_path: Path) -> None:
    source = prepared(tmp_path, SPELLED)
    (part,) = source.texts.values()
    assert part.count("\n") == SPELLED.count("\n") and "main" not in part
    assert "__host__ __device__ inline float half" in part and "// HD: here" in part
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    assert not simulate(kernel(source, "scale"), 1, 32, (y, x)).findings
    assert (y == 2.5 * x).all()
    only_host = SPELLED.replace("__device__", "").replace("__global__", "")
    assert "half" not in prepared(tmp_path, f"__global__ void k();\n{only_host}").code


KEPT = {
    "no sign of nvcc": "int f(int v) { return v; } __global__ void k(int* y) { *y = f(*y); }",
    "only in a comment": "// int main()\nint f() { return 1; } __global__ void k() { f(); }",
}


@pytest.mark.parametrize("case", KEPT)
def test_a_text_for_cupy_is_left_as_it_is(case: str, tmp_path: Path) -> None:
    assert [*prepared(tmp_path, KEPT[case]).texts.values()] == [KEPT[case]]


TAKEN = {  # what FILE does not have
    "main in pieces": "int\nmain(void)\n{\n  if (1) { return 2; }\n  return 0;\n}",
    "braces in literals": "int main() { char c = '{'; const char* s = \"}{\"; return 1'000; }",
    "a raw string": 'int main() { const char* s = R"x(} )x" /* } */; return 0; }',
    "directives": "int main() {\n#ifdef A\n  f();\n#else\n  g();\n#endif\n}",
    "a lambda": "int main() { auto f = [](int a) { return a; }; return f(1); }",
    "a timer": "#include <chrono>\ndouble now() { return std::chrono::x(); }\nint main() {}",
    "ints": (
        "#include <cstdint>\n#include <cooperative_groups.h>\n"
        "__device__ uint64_t u; __device__ std::int8_t v; int main() {}"
    ),
    "an initialised struct": "struct P { int a; };\n__constant__ P p = {1};\nint main() {}",
    "an enum": "enum Kind { A, B };\nenum class Other : int { C };\nint main() {}",
    "windows line ends": "int main()\r\n{\r\n  return 0;\r\n}\r\n",
    "a byte order mark": "\ufeffint main() {}",
    "extern C": (
        'extern "C" { int host(int a) { return a; }\n__device__ int own() { return 1; } }\n'
        "int main() {}"
    ),
    "a class that frees": (
        "#include <memory>\nstruct Free { void operator()(float* p) const { cudaFree(p); } };\n"
        "int main() {}"
    ),
    "methods of both sides": """#include <vector>
template <typename T> class Buffer {
public:
    T* data; int n;
    explicit Buffer(int n) : n(n) { cudaMalloc(&data, n * sizeof(T)); }
    Buffer(const Buffer&) = default;
    void fill(const std::vector<T>& v) { cudaMemcpy(data, v.data(), n, cudaMemcpyDefault); }
    __device__ T& operator[](int i) const { return data[i]; }
    struct Size { int w; dim3 blocks() const { return dim3(w); } } size;
private:
    template <class F> void go(F f) { f<<<1, n>>>(data); }
    int other;
public: void wait() { cudaDeviceSynchronize(); } __device__ int count() const { return n; }
};
__global__ void use(Buffer<int> b) { b[0] = b.count() + b.size.w; }
int main() {}""",
    "lambdas of a kernel": """[[nodiscard]] __device__ int twice(int v) { return 2 * v; }
__global__ void use(int* y) {
    auto f = [=] __device__(int i) { y[i] = twice(i); };
    auto g = [] __host__ __device__ (int i) mutable -> int { return i; };
    f(g(1));
}
int main() {}""",
}


@pytest.mark.parametrize("case", TAKEN)
def test_files_of_all_kinds_compile(case: str, tmp_path: Path) -> None:
    text = TAKEN[case] + "\n__global__ void k(int* y) { y[threadIdx.x] = 1; }\n"
    assert ".entry _Z1kPi(" in compiled(tmp_path, text)


def test_an_error_names_the_line_of_the_file(tmp_path: Path) -> None:
    text = "int main()\n{\n}\n__global__ void k(int* y)\n{\n    *y = oops;\n}\n"
    with pytest.raises(CompileError, match=r"\(6\): error: identifier \"oops\" is undefined"):
        compiled(tmp_path, text)


def test_headers_that_are_nowhere_are_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "my.h").write_text("")
    text = '#include <mpi.h>\n#include "my.h"\n#  include <thrust/sort.h>\nint main() {}\n'
    (tmp_path / "x.cu").write_text(text)
    source = sources.prepare(tmp_path / "x.cu")
    assert source.missing == ("mpi.h", "thrust/sort.h")
    assert source.code.splitlines()[1:3] == [" " * 16, '#include "1/my.h"']
    (tmp_path / "x.cu").write_text('#include "gone.h"\n')
    source = sources.prepare(tmp_path / "x.cu")
    assert not source.missing and source.code.endswith('#include "gone.h"\n')


def test_headers_of_the_host_can_be_included_together_and_twice(tmp_path: Path) -> None:
    names = sorted(path.name for path in sources.HEADERS.iterdir() if path.is_file())
    text = "#include <cuda_runtime.h>\n" + "".join(f"#include <{name}>\n" for name in 2 * names)
    use = "*y = std::max(1, INT_MAX) + FLT_MAX + std::numeric_limits<int>::max() + UINT32_MAX;"
    assert ".entry" in compiled(tmp_path, f"{text}__global__ void k(float* y) {{ {use} }}\n")


# nvcc has these without an include: it begins with cuda_runtime.h.
MACROS = "-INFINITY NAN INT_MAX LLONG_MIN M_PI_2 CHAR_BIT HUGE_VAL".split()
OTHERS = (
    "uint{1} ushort{1} int64_t{1} std::size_t{1} std::max(1,2) std::hypot(3.,4.) std::log2(8.f) "
    "std::fma(1.f,2.f,3.f) std::isfinite(1.f) std::abs(-1) std::numeric_limits<float>::max()"
).split()
MAIN = "int main() {}\n"


@pytest.mark.parametrize("host", ["", MAIN, "#include <cmath>\n#include <cstdint>\n" + MAIN])
def test_what_nvcc_has_without_an_include(tmp_path: Path, host: str) -> None:
    names = MACROS + (OTHERS if host else [])
    lines = "".join(f"    y[{place}] = {name};\n" for place, name in enumerate(names))
    compiled(tmp_path, f"{host}__global__ void k(double* y)\n{{\n{lines}}}\n")


def test_a_file_may_define_what_is_there(tmp_path: Path) -> None:
    own = "#define INFINITY __int_as_float(0x7f800000)\n#define INT_MAX 7\n"
    types = "typedef long long int64_t;\ntypedef unsigned int uint;\n"
    text = f"{own}{types}__global__ void k(uint* y) {{ *y = INT_MAX; }}\n"
    for host in ("", MAIN):
        assert ", 7;" in compiled(tmp_path, text + host)
