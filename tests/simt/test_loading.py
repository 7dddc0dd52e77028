"""Files as people have them: what a kernel does not need is left out, what cannot run is named."""

from pathlib import Path

import numpy as np
import pytest

from helpers.simt import CompileError, KernelText, UnsupportedPTX, simulate
from helpers.simt.command import main
from helpers.simt.loading import load_kernel

MAIN = "int main() { return 0; }\n"
KERNEL = "__global__ void k(int* y) { y[threadIdx.x] = VALUE; }\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(files: dict[str, str] | str) -> Path:
    """Write files; the first is the one to load."""
    files = {"x.cu": files} if isinstance(files, str) else files
    for name, text in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Path(next(iter(files)))


def value_of(path: Path, name: str = "k", *options: str) -> tuple[int, tuple[str, ...]]:
    """(what the kernel stores, what was left out)."""
    kernel, left_out = load_kernel(path, name, options)
    y = np.zeros(32, np.int32)
    assert not simulate(kernel, 1, 32, (y,)).findings
    return int(y[0]), left_out


# Files that load; the value of VALUE, and what the report says was left out.
LOADED = {
    "a missing header, and no other sign of nvcc": (
        {"x.cu": "#include <helper_cuda.h>\n#define VALUE 7\n" + KERNEL + MAIN},
        ["helper_cuda.h (not found)"],
    ),
    "a missing header in a header": (
        {
            "x.cu": '#include "inc/common.h"\n' + KERNEL + MAIN,
            "inc/common.h": "#pragma once\n#include <cublas_v2.h>\n#include <cuda_mine.h>\n"
            '#include "b.h"\n',
            "inc/b.h": '#pragma once\n#include "common.h"\n#define VALUE 7\n',
        },
        ["cublas_v2.h (only the host can use it)", "cuda_mine.h (not found)"],
    ),
    "host code in a header": (
        {
            "x.cu": '#include "common.h"\n' + KERNEL + MAIN,
            "common.h": "#define HD __host__ __device__\n#include <vector>\n#include <cstdlib>\n"
            "HD int seven() { return 7; }\n"
            "inline std::vector<int> all() { return {}; }\nvoid stop() { exit(1); }\n"
            "#define VALUE seven()\n",
        },
        [],
    ),
    "a macro of a header": (
        {
            "x.cu": '#include "a.h"\nHD int seven() { return 7; }\n#define VALUE seven()\n'
            + KERNEL
            + MAIN,
            "a.h": "#define HD __host__ __device__\nint host() { return 1; }\n",
        },
        [],
    ),
    "host globals, and what they call": (
        "#include <cstdio>\nint counter() { return 1; }\nint rows = 64; int tiles = rows * 2;\n"
        "const int more = counter();\nconst int last = more + 1;\nconst int VALUE = 7;\n"
        'static const char* names[] = {"a"};\nfloat *buffer = NULL;\nstruct P { int a; } ;\n'
        "struct P *head = NULL;\nP origin = {1};\n" + KERNEL + MAIN,
        [],
    ),
    "a typedef of an aligned struct": (
        "typedef struct __align__(8) { int a, b; } Pair;\n#define VALUE (Pair{3, 4}.a + 4)\n"
        + KERNEL
        + MAIN,
        [],
    ),
    "a kernel beside it that does not compile": (
        "#define VALUE 7\n__global__ void bad(int* y) { *y = oops; }\n" + KERNEL + MAIN,
        [],
    ),
    "a device function that does not compile": (
        "#define VALUE 7\n__device__ static int bad(int* y) { return oops; }\n" + KERNEL + MAIN,
        ['line 2 of x.cu: identifier "oops" is undefined'],
    ),
    "a class that does not compile": (
        "#define VALUE 7\nstruct Bad {\n    Oops a;\n    Oops b;\n};\n" + KERNEL + MAIN,
        ['line 4 of x.cu: identifier "Oops" is undefined'],
    ),
    "what g++ and nvcc define": (
        "#if !defined(__linux__) || !defined(__NVCC__)\n#error which?\n#endif\n#define VALUE 7\n"
        + KERNEL
        + MAIN,
        [],
    ),
    "a trait without its header": (
        "#define VALUE (std::is_same<int, int>::value * 7)\n" + KERNEL + MAIN,
        [],
    ),
    "headers of C within extern C": (
        'extern "C" {\n#include <stdint.h>\n#include <float.h>\n#include <stdlib.h>\n}\n'
        "#define VALUE 7\n" + KERNEL + MAIN,
        [],
    ),
    "headers of the system": (
        "#include <sys/time.h>\n#include <unistd.h>\n#include <deque>\n#include <omp.h>\n"
        '#include "process.h"\n#define VALUE 7\n' + KERNEL + MAIN,
        ["process.h (not found)"],
    ),
    "the headers that nvcc has": (
        '#include "half.h"\n#define VALUE ((int)(INFINITY > 1) + 6)\n' + KERNEL + MAIN,
        ["half.h (not found)"],
    ),
}


@pytest.mark.parametrize("case", LOADED)
def test_a_kernel_loads_without_what_it_does_not_need(case: str) -> None:
    files, left_out = LOADED[case]
    assert value_of(written(files)) == (7, tuple(left_out))


# Planted: leaving code out must not change what a kernel computes, it must stop it.
STOPPED = {
    "an overload": (
        "__device__ int f(int v) { return oops; }\n__device__ int f(double v) { return 1; }\n"
        "#define VALUE f(1)\n",
        UnsupportedPTX,
        "cannot call f, which this source does not define, at x.cu:4",
    ),
    "an overload that returns an unknown type": (
        "__device__ Oops f(int v);\n__device__ int f(double v) { return 1; }\n#define VALUE f(1)\n",
        CompileError,
        r"x.cu\(1\): error: identifier .Oops. is undefined",
    ),
    "a specialisation": (
        "template <class T> struct S { static const int v = 1; };\n"
        "template <> struct S<int> { Oops o; static const int v = 2; };\n#define VALUE S<int>::v\n",
        CompileError,
        r"x.cu\(4\): error: incomplete type .S<int>",
    ),
    "an assertion": (
        'static_assert(sizeof(int) == 8, "wide");\n#define VALUE 1\n',
        CompileError,
        "static assertion failed",
    ),
    "a variable of the host": ("int rows = 64;\n#define VALUE rows\n", CompileError, '"rows"'),
    "a kernel behind #if": (
        "#ifdef NEVER\n__global__ void m(int* y) {}\n#endif\n#define VALUE 1\n#define k k2\n",
        ValueError,
        "k is in x.cu, but an #if leaves it out",
    ),
}


@pytest.mark.parametrize("case", STOPPED)
def test_a_kernel_that_needs_what_was_left_out_is_stopped(case: str) -> None:
    text, error, message = STOPPED[case]
    with pytest.raises(error, match=message):
        value_of(written(text + KERNEL + MAIN))


def test_the_list_names_instances_and_reasons(capsys) -> None:
    path = written(
        "#include <gone.h>\ntemplate <class T, int N> __global__ void many(T* y) { *y = N; }\n"
        "template <class T, bool B> __global__ void none(T* y) { *y = 1; }\n"
        "__global__ void bad(int* y) { *y = oops; }\n"
        "namespace n { template <class T> __global__ void one(const T* __restrict__ y) {} }\n"
        "__global__ void good(float* y) { *y = 1; }\n"
        "__global__ void heap(int** y) { *y = (int*)malloc(4); }\n"
        "template <class T> void run(T* y) {\n"
        "    constexpr int WIDE{2}; const int HIGH = WIDE *\n4;\n"
        "    many<T, HIGH><<<1, 1>>>(y);\n    short *a, *b; n::one<<<1, 1>>>(b);\n}\n"
        "int main() { run<float>(0); run<double>(0); many<int, 3> <<<1, 1>>>(0); }\n"
    )
    assert main([str(path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:-1] == [
        "x.cu: 6 kernels",
        "  many<...>(T* y)",
        '      --kernel "many<float, (2 * 4)>"',
        '      --kernel "many<double, (2 * 4)>"',
        '      --kernel "many<int, 3>"',
        "  none<...>(T* y)",
        "      template arguments: class T, bool B",
        "  bad(int* y)",
        '      does not compile: identifier "oops" is undefined, at x.cu:4',
        "  one<...>(const T* y)",
        '      --kernel "one<short>"',
        "  good(float* y)",
        "  heap(int** y)",
        "      the SIMT machine does not run malloc and new in a kernel, at x.cu:7; pass a buffer "
        "as an argument instead",
        "left out: gone.h (not found)",
    ]
    assert shown[-1].startswith('to run one: --kernel "many<float, (2 * 4)>" --grid BLOCKS')
    sizes = ["--grid", "1", "--block", "1", "--args", "float32[1]"]
    assert main([str(path), "--kernel", "many<float, (2 * 4)>", *sizes]) == 0
    shown = capsys.readouterr().out
    assert "y: float32[1], min 8" in shown and "left out: gone.h (not found)" in shown


# A kernel's text, and what it is refused for.
REFUSED = {
    "wmma": (
        "#include <mma.h>\nusing namespace nvcuda;\n__global__ void k(half* y) {\n"
        "    wmma::fragment<wmma::accumulator, 16, 16, 16, half> a;\n"
        "    wmma::fill_fragment(a, 0);\n"
        "    wmma::store_matrix_sync(y, a, 16, wmma::mem_row_major);\n}\n",
        "tensor cores",
        6,
    ),
    "ldmatrix": (
        "__global__ void k(int* y) {\n    int v;\n    asm volatile("
        '"ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(v) : "r"(0));\n'
        "    *y = v;\n}\n",
        "tensor cores",
        3,
    ),
    "a tensor copy": (
        '__global__ void k(int* y) {\n    asm volatile("cp.async.bulk.tensor.2d.shared::cluster'
        '.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%0, %0}], [%0];" :: "r"(0), "l"(y));'
        "\n}\n",
        "tensor copies",
        2,
    ),
    "a texture object": (
        "__global__ void k(cudaTextureObject_t t, float* y) {\n"
        "    *y = tex2D<float>(t, 1, 2);\n}\n",
        "textures",
        2,
    ),
    "a texture reference": (
        "texture<float, 2> old;\n__global__ void k(float* y) { *y = tex2D(old, 1, 2); }\n",
        "textures",
        2,
    ),
    "a texture in a function": (
        "texture<int, 2> old;\n__device__ int f(int v) {\n    return tex2D(old, v, v);\n}\n"
        "__global__ void k(int* y) { *y = f(1); }\n",
        "textures",
        3,
    ),
    "a texture of one dimension": (
        "__global__ void k(cudaTextureObject_t t, int* y) {\n"
        "    *y = tex1Dfetch<float>(t, 3);\n}\n",
        "textures",
        2,
    ),
    "tiles of several warps": (
        "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"
        "__global__ void k(int* y) {\n    __shared__ cg::block_tile_memory<256> memory;\n"
        "    cg::tiled_partition<64>(cg::this_thread_block(memory)).sync();\n}\n",
        "block_tile_memory",
        5,
    ),
    "a surface": (
        "__global__ void k(cudaSurfaceObject_t t, float* y) {\n    surf2Dwrite(*y, t, 1, 2);\n}\n",
        "surfaces",
        2,
    ),
    "a launch": (
        "__global__ void inner(int* y);\n__global__ void k(int* y) {\n    inner<<<1, 1>>>(y);\n}\n",
        "a kernel that launches kernels",
        3,
    ),
    "a launch on a stream": (
        "__global__ void inner(int* y) {}\n__global__ void k(int* y) {\n    cudaStream_t s;\n"
        "    cudaStreamCreateWithFlags(&s, 1);\n    inner<<<1, 1, 0, s>>>(y);\n}\n",
        "a kernel that launches kernels",
        4,
    ),
    "malloc": ("__global__ void k(int** y) {\n    *y = (int*)malloc(4);\n}\n", "malloc and new", 2),
    "new": ("__global__ void k(int** y) {\n    *y = new int;\n}\n", "malloc and new", 2),
    "cudaMalloc": ("__global__ void k(int** y) {\n    cudaMalloc(y, 4);\n}\n", "malloc and new", 2),
    "delete": ("__global__ void k(int** y) {\n    delete *y;\n}\n", "free and delete", 2),
    "alloca": (
        "__global__ void k(int** y) {\n    *y = (int*)alloca(**y);\n}\n",
        "alloca in a kernel",
        2,
    ),
    "a function pointer": (
        "__global__ void k(int (*f)(int), int* y) {\n    *y = f(*y);\n}\n",
        "a function pointer that the host passes",
        2,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_feature_that_is_not_run_is_named_with_what_to_do(case: str, capsys) -> None:
    text, feature, line = REFUSED[case]
    path = written(text + MAIN)
    with pytest.raises(UnsupportedPTX) as caught:
        load_kernel(path, "k")
    message = str(caught.value)
    assert feature in message and f"at x.cu:{line}; " in message and "\n" not in message
    assert main([str(path)]) == 0 and message in capsys.readouterr().out


GRID = """#include <cooperative_groups.h>
using namespace cooperative_groups;
__global__ void syncs(int* y)
{
    this_grid().sync();
}
__global__ void asks(int* y) { if (this_grid().is_valid()) this_grid().sync(); }
__global__ void traps(int* y) { if (!this_grid().is_valid()) __trap(); }
"""


def test_a_barrier_of_the_grid_in_an_ordinary_launch_says_what_it_needs(capsys) -> None:
    path = str(written(GRID + MAIN))
    sizes = "--grid 2 --block 32 --args int32[64]".split()
    needs = "a barrier of the grid needs a cooperative launch: pass --cooperative"
    assert main([path, "--kernel", "syncs", *sizes]) == 1
    assert f"x.cu:5: trap, 64 times: {needs}" in capsys.readouterr().out
    assert main([path, "--kernel", "syncs", *sizes, "--cooperative"]) == 0
    assert main([path, "--kernel", "asks", *sizes]) == 0
    assert main([path, "--kernel", "traps", *sizes]) == 1
    assert needs not in capsys.readouterr().out


def test_the_package_of_a_missing_header_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helpers.simt.sources.include_folders", lambda: ())
    text = "#include <curand_kernel.h>\n__global__ void k(curandState* s) { curand(s); }\n"
    with pytest.raises(CompileError, match=r"curand_kernel.h \(pip install nvidia-curand\)"):
        load_kernel(written(text + MAIN), "k")


def test_the_package_of_a_header_is_named_for_a_text_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helpers.simt.compile.include_folders", lambda: ())
    for header, package in (
        ("curand_kernel.h", "nvidia-curand"),
        ("cuda/std/array", "nvidia-cuda-cccl"),
        ("cub/block/block_scan.cuh", "nvidia-cuda-cccl"),
        ("cooperative_groups.h", "nvidia-cuda-runtime"),
    ):
        text = KernelText(f"#include <{header}>\n__global__ void k(int* y) {{ *y = 1; }}\n", "k")
        with pytest.raises(CompileError, match=f"no {header} here: pip install {package}\n"):
            simulate(text, 1, 32, (np.zeros(32, np.int32),))
    plain = KernelText("__global__ void k(int* y) { *y = INT_MAX; }\n", "k")
    assert not simulate(plain, 1, 1, (y := np.zeros(1, np.int32),)).findings
    assert y[0] == 2**31 - 1


LIBRARIES = {
    "CUB": (
        "#include <cub/cub.cuh>\n__global__ void k(int* y) {\n"
        "    __shared__ cub::BlockReduce<int, 32>::TempStorage s;\n"
        "    int sum = cub::BlockReduce<int, 32>(s).Sum(threadIdx.x);\n"
        "    if (threadIdx.x == 0) *y = sum;\n}\n",
        496,
    ),
    "cuda::std": (
        "#include <cuda/std/array>\n__global__ void k(int* y) {\n"
        "    cuda::std::array<int, 2> a{3, 4};\n    *y = a[0] * a[1];\n}\n",
        12,
    ),
    "what starts after another kernel": (
        "__global__ void k(int* y) {\n    cudaGridDependencySynchronize();\n"
        "    *y = 5;\n    cudaTriggerProgrammaticLaunchCompletion();\n}\n",
        5,
    ),
    "wide integers": (
        "__global__ void k(int* y) {\n    __int128 v = threadIdx.x + 3;\n    v <<= 70;\n"
        "    if (threadIdx.x == 0) *y = (int)(v >> 70);\n}\n",
        3,
    ),
}


@pytest.mark.parametrize("case", LIBRARIES)
def test_libraries_of_the_toolkit_work(case: str) -> None:
    text, expect = LIBRARIES[case]
    kernel, left_out = load_kernel(written(text + MAIN), "k")
    y = np.zeros(32, np.int32)
    simulate(kernel, 1, 32, (y,))
    assert y[0] == expect and not left_out


def test_what_nvcc_has_is_there_for_a_text_too() -> None:
    text = (
        "#include <stdio.h>\n#include <assert.h>\n__global__ void k(float* y) {\n"
        '    assert(y); printf("%d", INT_MAX);\n    cudaGridDependencySynchronize();\n'
        "    y[threadIdx.x] = -INFINITY + (float)M_PI;\n}\n"
    )
    y = np.zeros(32, np.float32)
    trace = simulate(KernelText(text, "k"), 1, 32, (y,))
    assert np.isneginf(y).all() and trace.printed.startswith("2147483647")


# ---- values of __constant__ variables ----

SMOOTH = """#include <cstdio>
#define LENGTH 3
__constant__ float weights[LENGTH];
static __constant__ int offset = 3;
__device__ unsigned count;
namespace deep { __constant__ double scale[2][2]; }
__global__ void smooth(float* y)
{
    float sum = offset + count + deep::scale[1][1];
    for (int k = 0; k < LENGTH; ++k) sum += weights[k];
    y[threadIdx.x] = sum;
}
"""


def test_constants_are_filled_from_the_command_line(capsys) -> None:
    np.save("w.npy", np.array([1, 2, 4], np.float32))
    np.save("s.npy", np.full((2, 2), 0.5))
    for args, mean in (
        ((), "3"),
        (("offset=4",), "4"),
        (("count=7", "weights=w.npy", "scale=s.npy"), "17.5"),
        (("weights=float32[2]",), "2.99363"),
    ):
        sizes = "--grid 1 --block 32 --args float32[32]".split()
        assert main([str(written(SMOOTH + MAIN)), *sizes, *args]) == 0
        assert f"mean {mean}," in capsys.readouterr().out
