"""Bad input to the command and to `simulate`: each gets one sentence that says what was expected,
what was given or what to do; input that can only mean one thing runs.

More is in test_signatures.py (arguments of `simulate`) and test_loading.py (files)."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from helpers.simt import KernelText, simulate
from helpers.simt.command import main

CODE = """#include <cstdio>
struct Pair { int a, b; };
__constant__ float weights[5];
__constant__ int offset, unused;
template <typename T> __global__ void twice(const T* x, T* y) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void scale(const float* x, float* y, int n, float a)
{
    int i = threadIdx.x;
    if (i < n) y[i] = a * x[i] + weights[0] + offset;
}
__global__ void many(bool f, unsigned u, long long l, Pair p, float** rows, const int* z) {}
"""
RUN = "m.cu --kernel scale --grid 1 --block 32"
ARGS = "--args float32[100] float32[100] 99 0.5"
FULL = f"{RUN} {ARGS}"
MANY = ["1", "1", "1", "pair.npy", "float32[4];float32[4]", "int32[4]"]
NO_ARRAYS = {
    "pickled": b"\x80\x04N.",
    "empty": b"",
    "text": b"not an array",
    "random": bytes(range(7, 256, 3)),
    "zip": b"PK\x03\x04",
    "cut": b"\x93NUMPY\x01\x00",
    "header": b"\x93NUMPY\x01\x00\x08\x00{'a': [\n",  # a cut one
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("m.cu").write_text(CODE)
    Path("changed.cu").write_text("__global__ void changed(int& n) { n = 1; }\n")
    Path("macros.cu").write_text("#define K(k) __global__ \\\n void k(int* y) {}\nK(k)\n")
    Path("twins.cu").write_text(
        "".join(f"__global__ void a({one} x) {{}}\n" for one in "int float".split())
    )
    Path("shared.cu").write_text(
        "__global__ void k(int* y) { __shared__ int s[99999]; s[*y] = 1; *y = s[0]; }\n"
    )
    Path("host.cu").write_text("int main() { return 0; }\n")
    Path("binary.cu").write_bytes(bytes(range(256)))
    Path("wide.cu").write_text(CODE, encoding="utf-16")
    Path("clusters.cu").write_text("__global__ void __cluster_dims__(16) k(int* y) { *y = 1; }\n")
    Path("results").mkdir()
    for name, content in NO_ARRAYS.items():
        Path(f"{name}.npy").write_bytes(content)
    np.save("pair.npy", np.array((1, 2), [("a", "i4"), ("b", "i4")]))
    np.save("swapped.npy", np.array((1, 2), [("a", ">i4"), ("b", "i4")]))
    np.save("x.npy", np.zeros(100, np.float32))
    np.save("fortran.npy", np.asfortranarray(np.zeros((10, 10), np.float32)))
    np.savez("several.npz", np.zeros(3))
    return tmp_path


def many(place: int, value: str) -> list[str]:
    """A line for the kernel `many`, with one argument in place of a right one."""
    args = [*MANY[:place], value, *MANY[place + 1 :]]
    return ["m.cu", "--kernel", "many", "--grid", "1", "--block", "1", "--args", *args]


def line(given: str) -> str:
    """With `scale` and right arguments: `given` are more options, or other arguments; or with
    `many`: a place and an argument."""
    if given.startswith("many "):
        _, place, value = given.split(" ")
        return shlex.join(many(int(place), value))
    return f"{RUN} {given}" if given.startswith("-") else given


WRONG_LINES = {
    # ---- the kernel ----
    "m.cu --kernel '' --grid 1 --block 1": "the name of the kernel is empty; m.cu has: twice, sc",
    "m.cu --kernel nope --grid 1 --block 1": "no kernel named 'nope' in this source; kernels there",
    "m.cu --kernel 'twice<nope>' --grid 1 --block 1": (
        "'twice<nope>' names no kernel of this source and no instance of a template: identifier"
    ),
    "m.cu --grid 1 --block 1": "m.cu has 3 kernels, pass --kernel: twice, scale, many",
    "m.cu --kernel twice --grid 1 --block 1": "twice is a template: name its arguments too, as in",
    "host.cu": "host.cu has no kernel: nothing in it, outside of macros, is __global__",
    "binary.cu": "binary.cu has no kernel: nothing in it, outside of macros, is __global__",
    "macros.cu": "macros.cu has no kernel: nothing in it, outside of macros, is __global__",
    "macros.cu --kernel k --grid 1 --block 1": "no kernel named 'k' in this source; kernels there",
    "none.cu": "cannot read none.cu: No such file",
    "results": "cannot read results: Is a directory",
    "": "a CUDA source file is needed, as in: simt mine.cu",
    "twins.cu --kernel a --grid 1 --block 1 --args 1": "2 kernels are named 'a' in this source",
    "shared.cu --grid 1 --block 1 --args int[4]": "k requests 399996 bytes of static, 0 of dynamic",
    "m.cu more.cu --kernel scale": "unrecognized arguments: more.cu",
    "m.cu:6 --kernel scale --grid 1 --block 1": "cannot read m.cu:6: No such file",
    # ---- the launch ----
    "m.cu --kernel scale": "--grid and --block are needed to run a kernel",
    f"--grid 0 {ARGS}": "argument --grid: 0 is below 1",
    f"--grid 1.5 {ARGS}": "argument --grid: '1.5' is not an integer",
    f"--shared 48k {ARGS}": "argument --shared: '48k' is not an integer",
    f"--shared -1 {ARGS}": "argument --shared: -1 is below 0",
    f"--shared 300000 {ARGS}": "scale requests 0 bytes of static, 300000 of dynamic shared memory",
    f"--limit 0 {ARGS}": "argument --limit: 0 is below 1",
    f"--grid 1000 --block 1024 --cooperative {ARGS}": "a cooperative launch of 1000 blocks",
    f"--block 1024 2 {ARGS}": "block (1024, 2, 1) has 2048 threads; CUDA allows 1024",
    f"--grid {ARGS}": "argument --grid: expected at least one argument",
    # ---- options ----
    f"--format pdf {ARGS}": "argument --format: invalid choice: 'pdf'",
    f"--option=-arch=sm_10 {ARGS}": "-arch=sm_10: the SIMT machine models an H200 and compiles",
    f"--option=--gpu-architecture=sm_80 {ARGS}": "--gpu-architecture=sm_80: the SIMT machine mod",
    f"--option=-arch=sm_90a {ARGS}": "-arch=sm_90a: the SIMT machine models an H200 and compiles",
    f"--nope {ARGS}": "unrecognized arguments: --nope",
    f"--orders 3 {ARGS}": "argument --orders: invalid choice: 3",
    f"--volatile strong {ARGS}": "argument --volatile: invalid choice: 'strong'",
    f"--option=-O3 {ARGS}": "NVRTC rejects a compiler option: unrecognized option -O3",
    f"--option=-std=c++99 {ARGS}": "NVRTC rejects a compiler option: invalid value for --std",
    f"--option= {ARGS}": "a compiler option is empty: leave it out",
    f"--option=-D {ARGS}": "-D needs a value after it, as in -DTILE=32",
    f"--option=-D --option=-DX {ARGS}": "-D needs a value after it, as in -DTILE=32",
    # ---- the report ----
    f"-o m.cu {ARGS}": "-o m.cu is the file to be checked: name another",
    f"-o results/../m.cu {ARGS}": "-o results/../m.cu is the file to be checked: name another",
    f"-o results {ARGS}": "-o results is a folder: name a file in it",
    f"-o nowhere/r.xml {ARGS}": "-o nowhere/r.xml: there is no folder nowhere; create it",
    "-o x.npy --args x.npy float32[100] 99 0.5": "-o x.npy is an argument of the kernel: name",
    "m.cu -o report.sarif": "--format and -o are for the report of a run: pass --grid and --block",
    "m.cu --format sarif": "--format and -o are for the report of a run: pass --grid and --block",
    f"-o x.npy/report {ARGS}": "-o x.npy/report: there is no folder x.npy; create it first",
    # ---- arguments ----
    "changed.cu --grid 1 --block 1 --args 4": "n: the kernel takes int*, not 4: pass an array",
    "--args 'float32[9];' float32[9] 9 0.5": "x: the kernel takes float*, not the list of arrays",
    "--args float32[100] float32[100] 99 float32[1]": "a: the kernel takes float, not the array",
    f"{ARGS} weights=null": "weights is an array of float: pass an array",
    f"{ARGS} weights=float32[6]": "weights has 20 bytes, too few for the 24 that are given",
    "--args": "scale takes 4 arguments (x, y, n, a), not 0",
    "--args float32[100 float32[100] 99 0.5": "x: 'float32[100' is not a number, an array such as",
    "--args float32[100] float32[100] 010 0.5": "n: 010 may be read as octal: write 10",
    "--args float32[100] float32[100] null 0.5": "n: the kernel takes int, not null",
    "--args float32[100] float32[100] 99 1e400": "a: 1e400 is too large for a number",
    "--args float32[100] float32[100] 99 1e39": "a is 1e+39, the kernel takes float (at most",
    "--args fortran.npy float32[100] 99 0.5": "x is not C-contiguous; a kernel ignores strides",
    "--args several.npz float32[100] 99 0.5": "x: 'several.npz' is not a number, an array such",
    f"{ARGS} weights=float32[5] weights=x.npy": "weights has two values among --args: leave one",
    f"{ARGS} weights=3": "weights: the kernel takes float*, not 3",
    f"{ARGS} offset=float32[1]": "offset: the kernel takes int, not the array float32[1]",
    f"{ARGS} unused=1": "scale uses no variable 'unused'; __constant__ and __device__ variables",
    "many 0 2": "f is 2, the kernel takes bool (0 to 1)",
    "many 1 -1": "u is -1, the kernel takes unsigned (0 to 4294967295)",
    "many 1 float32[4]": "u: the kernel takes unsigned, not the array float32[4]",
    "many 3 swapped.npy": "p has numbers in a byte order that is not this machine's",
    "many 5 7": "z: the kernel takes int*, not 7: pass an array",
    "many 5 none.npy": "z: cannot read none.npy: No such file",
    "many 5 int32[100000000000000]": "z: int32[100000000000000] has 3.73e+05 GB",
    f"many 5 int32[{'9' * 40}]": "z: int32[999",
    "many 5 int32[4];int32[4]": "z: the kernel takes int*, not the list",
    "many 5 int32[,]": "z: int32[,] has no size",
    "many 5 float31[4]": "z: 'float31' is not a dtype such as float32",
    "many 5 object[4]": "z: 'object' is not a dtype of numbers",
    "many 2 ": "l: '' is not a number",
    **{
        f"--args {name}.npy float32[100] 99 0.5": f"x: {name}.npy is not a .npy file of numbers"
        for name in NO_ARRAYS
    },
    f"{ARGS} n=99": "n is not a __constant__ or __device__ variable of this file; it has: weights",
}
RIGHT_LINES = [
    f"--option -DX=1 {ARGS}",
    f"--option=-G {ARGS}",
    "--args float[100] float[100] 99 0.5",
    "--args 'float32[10, 10]' float32[100] 99 0.5",
    "--args float32[100] float32[100] 0x10 0.5",
    "--args NULL nullptr 0 0.5",
    "--args float32[0] float32[0] 0 0.5",
    f"{ARGS} weights=float[5]",
    "many 0 true",
    "many 1 4294967295",
    "many 2 -5",
    "many 4 float[4];null",
    "many 5 null",
    "clusters.cu --grid 16 --block 1 --args int[1]",
    f"--option=-arch=sm_90 {ARGS}",
    FULL.replace("m.cu", "wide.cu"),
    FULL.replace("--kernel scale", "--kernel _Z5scalePKfPfif"),
]


@pytest.mark.parametrize("given", WRONG_LINES)
def test_a_wrong_command_line_is_answered_by_one_sentence(given: str, capsys) -> None:
    before = {path.name: path.stat().st_size for path in Path().iterdir()}
    try:
        status = main(shlex.split(line(given)))
    except SystemExit as ended:
        status = ended.code
    out, err = capsys.readouterr()
    assert status == 2 and not out, out
    said = re.sub(r"usage: .*^simt: error: ", "", err, flags=re.DOTALL | re.MULTILINE)
    assert said.startswith(WRONG_LINES[given]) and said.count("\n") == 1, err
    assert {path.name: path.stat().st_size for path in Path().iterdir()} == before


@pytest.mark.parametrize("given", RIGHT_LINES)
def test_what_can_only_mean_one_thing_runs(given: str, capsys) -> None:
    assert main(shlex.split(line(given))) == 0, capsys.readouterr()


ODD = [
    *("", "-", "-1", "1e400", "nan", "-inf", "0x", "1_000", "9" * 5000, "1e", "1,5", "null"),
    *("int32[0]", "int32[-1]", "int32[1,", "int32[9999999999999]", "int32[3];", ";", "[]"),
    *("cut.npy", "none.npy", "pickled.npy", ".npy", "datetime64[3]", "complex64[2]", "U5[2]"),
    *("\ud800", "a" * 5000, "float32 [3]", "null;null", "int64[2];null", "+3", "half[1]"),
    *("None", "\x00", "V8[3]"),
]


def test_whatever_is_typed_for_an_argument_ends_in_a_status_and_a_sentence(capsys) -> None:
    before = sorted(Path().iterdir())
    refused = 0
    for place in range(len(MANY)):
        for odd in ODD:
            status = main(many(place, odd))
            error = capsys.readouterr().err
            assert (status, error.count("\n")) in ((0, 0), (2, 1)), (place, odd[:40], error[:200])
            refused += status == 2
    assert refused > 150 and sorted(Path().iterdir()) == before


X, Y = np.ones(32, np.float32), np.zeros(32, np.float32)
SOURCE = """__constant__ int c;
__constant__ float w[3];
__global__ void k(const float* x, float* y, int n) {
    if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] + c + w[0];
}"""
OVERLAPPING = np.zeros(40, np.float32)
READ_ONLY = np.zeros(32, np.float32)
READ_ONLY.flags.writeable = False
# (what is passed instead, the beginning of the sentence)
WRONG_CALLS = [
    ({"kernel": KernelText("k.cu", "k")}, "the code of a kernel is its source, not"),
    ({"kernel": KernelText(SOURCE.encode(), "k")}, "the code of a kernel must be the CUDA"),
    ({"kernel": KernelText(SOURCE, "")}, "the name of the kernel is empty: pass"),
    ({"kernel": SOURCE}, "kernel must be a cupy.RawKernel or KernelText(source, name)"),
    ({"kernel": KernelText(SOURCE, "k", "-DX=1")}, "options must be a tuple of"),
    ({"kernel": KernelText(SOURCE, "k", ("-O3",))}, "NVRTC rejects a compiler"),
    ({"kernel": KernelText(SOURCE, "k", headers=("a.h", ""))}, "headers must be pairs"),
    (
        {"kernel": KernelText(SOURCE, "k", headers={"a.h": ""})},
        "headers must be pairs (name, text), not {'a.h': ''}",
    ),
    ({"args": None}, "args must be a tuple with all arguments, such as (x, y, n), not"),
    ({"args": (X, Y)}, "k takes 3 arguments (x, y, n), not 2"),
    ({"args": X}, "args must be a tuple with all arguments, such as (x, y, n)"),
    (
        {"args": (np.ma.masked_array(X, X > 0), Y, 3)},
        "x is a masked array: pass x.filled() or x.data",
    ),
    ({"args": (X.data, Y, 3)}, "x is a memoryview, the kernel takes float*: pass"),
    ({"args": (np.array([None]), Y, 3)}, "x is an array of objects, the kernel takes fl"),
    ({"args": (X, READ_ONLY, 3)}, "y is read-only, and the kernel"),
    ({"args": (OVERLAPPING[:32], OVERLAPPING[8:], 3)}, "y overlaps x, which the SIMT"),
    ({"args": (Path("x.npy"), Y, 3)}, "x is PosixPath('x.npy'), the kernel"),
    ({"arch": "compute_999"}, "NVRTC rejects a compiler option: invalid"),
    ({"arch": 90}, "arch must be an architecture such as 'compute_90', not 90"),
    ({"volatile": "strong"}, "volatile must be 'relaxed' or 'plain', not 'strong"),
    ({"watch": 5}, "watch must be True or lines such as (30, 31), not 5"),
    ({"progress": 5}, "progress must be a function of two integers, not 5"),
    ({"symbols": [1]}, "symbols must be a dict of values by the names of"),
    ({"symbols": {"w": 3}}, "w is an array of float: pass an array"),
    ({"symbols": {"w": np.zeros(1)}}, "w is float64, the kernel takes float32"),
    ({"symbols": {"c": np.zeros(2, np.int32)}}, "c is an array, the kernel takes int"),
    ({"symbols": {"c": 4.5}}, "c is 4.5, the kernel takes int"),
    ({"symbols": {"c": 2**40}}, "c is 1099511627776, the kernel takes int"),
    (
        {"symbols": {"none": 3}},
        "k uses no variable 'none'; __constant__ and __device__ variables that it uses: c, w",
    ),
    # ---- sizes ----
    ({"block": 1025}, "block 1025 is outside CUDA's limits of 1 to (1024, 1024, "),
    ({"block": (64, 32)}, "block (64, 32, 1) has 2048 threads; CUDA allows 1024"),
    (
        {"kernel": KernelText(SOURCE.replace("void", "void __launch_bounds__(31)"), "k")},
        "block (32, 1, 1) has 32 threads; the kernel's __launch_bounds__ allow 31",
    ),
    (
        {"kernel": KernelText(SOURCE.replace("void", "void __cluster_dims__(17)"), "k")},
        "k: cluster (17, 1, 1) has 17 blocks; an H200 allows at most 16",
    ),
    ({"block": 0}, "block 0 is outside CUDA's limits of 1 to"),
    ({"block": ()}, "block () must have one to three sizes"),
    ({"block": (32, 1.0)}, "block must be one to three integers, not (32, "),
    ({"grid": (1, 65536)}, "grid (1, 65536) is outside CUDA's limits of 1 to"),
    ({"grid": 1.5}, "grid must be one to three integers, not 1.5"),
    ({"shared_mem": -1}, "shared_mem must be at least 0, not -1"),
    ({"shared_mem": 1.5}, "shared_mem must be an integer, not 1.5"),
    ({"instruction_limit": 0}, "instruction_limit must be at least 1, not 0"),
    ({"instruction_limit": 1e6}, "instruction_limit must be an integer, not"),
]


@pytest.mark.parametrize(("given", "sentence"), WRONG_CALLS, ids=[one[-1] for one in WRONG_CALLS])
def test_a_wrong_call_is_answered_by_one_sentence(given: dict, sentence: str) -> None:
    options = {"kernel": KernelText(SOURCE, "k"), "grid": 1, "block": 32, "args": (X, Y, 32)}
    with pytest.raises((TypeError, ValueError)) as caught:
        simulate(**options | given)
    said = str(caught.value)
    assert said.startswith(sentence) and "\n" not in said
    assert not Y.any() and not OVERLAPPING.any()


@pytest.mark.parametrize("value", [np.array(3), np.int32(3), 3])
def test_a_number_of_any_kind_fills_a_variable(value) -> None:
    y = np.zeros(32, np.float32)
    simulate(KernelText(SOURCE, "k"), 1, 32, (X, y, 32), symbols={"c": value})
    assert (y == 4).all()
