"""Bad input to the command and to `simulate`: each gets one sentence that says what was expected,
what was given or what to do; input that can only mean one thing runs.

More is in test_command.py (arguments and files), test_signatures.py (arguments of `simulate`) and
test_loading.py (files and `__constant__` variables)."""

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
template <typename T> __global__ void twice(const T* x, T* y) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void scale(const float* x, float* y, int n, float a)
{
    int i = threadIdx.x;
    if (i < n) y[i] = a * x[i] + weights[0];
}
__global__ void pair(Pair p, float** rows, bool f) {}
"""
RUN = "m.cu --kernel scale --grid 1 --block 32"
ARGS = "--args float32[100] float32[100] 99 0.5"
FULL = f"{RUN} {ARGS}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("m.cu").write_text(CODE)
    Path("changed.cu").write_text("__global__ void changed(int& n) { n = 1; }\n")
    Path("twins.cu").write_text(
        "".join(f"__global__ void a({one} x) {{}}\n" for one in "int float".split())
    )
    Path("shared.cu").write_text(
        "__global__ void k(int* y) { __shared__ int s[99999]; s[*y] = 1; *y = s[0]; }\n"
    )
    Path("host.cu").write_text("int main() { return 0; }\n")
    Path("binary.cu").write_bytes(bytes(range(256)))
    Path("wide.cu").write_text(CODE, encoding="utf-16")
    Path("results").mkdir()
    np.save("x.npy", np.zeros(100, np.float32))
    np.save("fortran.npy", np.asfortranarray(np.zeros((10, 10), np.float32)))
    np.savez("several.npz", np.zeros(3))
    return tmp_path


def line(given: str) -> str:
    """With `scale` and right arguments: `given` are more options, or other arguments."""
    return f"{RUN} {given}" if given.startswith("-") else given


WRONG_LINES = {
    # ---- the kernel ----
    "m.cu --kernel '' --grid 1 --block 1": "the name of the kernel is empty; m.cu has: twice, sc",
    "m.cu --kernel nope --grid 1 --block 1": "no kernel named 'nope' in this source; kernels there",
    "m.cu --kernel 'twice<nope>' --grid 1 --block 1": (
        "'twice<nope>' names no kernel of this source and no instance of a template: identifier"
    ),
    "m.cu --grid 1 --block 1": "m.cu has 3 kernels, pass --kernel: twice, scale, pair",
    "m.cu --kernel twice --grid 1 --block 1": "twice is a template: name its arguments too, as in",
    "host.cu": "host.cu has no kernel: nothing in it is __global__",
    "binary.cu": "binary.cu has no kernel: nothing in it is __global__",
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
    "m.cu --kernel pair --grid 1 --block 1 --args pair.npy 'float[4];null' true",
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
    np.save("pair.npy", np.array((1, 2), [("a", "i4"), ("b", "i4")]))
    assert main(shlex.split(line(given))) == 0, capsys.readouterr()


X, Y = np.ones(32, np.float32), np.zeros(32, np.float32)
SOURCE = """__constant__ int c;
__global__ void k(const float* x, float* y, int n) {
    if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] + c;
}"""
OVERLAPPING = np.zeros(40, np.float32)
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
    ({"args": X}, "args must be a tuple with all arguments, such as (x, y, n)"),
    (
        {"args": (np.ma.masked_array(X, X > 0), Y, 3)},
        "x is a masked array: pass x.filled() or x.data",
    ),
    ({"args": (X.data, Y, 3)}, "x is a memoryview, the kernel takes float*: pass"),
    ({"args": (np.array([None]), Y, 3)}, "x is an array of objects, the kernel takes fl"),
    ({"args": (OVERLAPPING[:32], OVERLAPPING[8:], 3)}, "y overlaps x, which the SIMT"),
    ({"args": (Path("x.npy"), Y, 3)}, "x is PosixPath('x.npy'), the kernel"),
    ({"arch": "compute_999"}, "NVRTC rejects a compiler option: invalid"),
    ({"arch": 90}, "arch must be an architecture such as 'compute_90', not 90"),
    ({"volatile": "strong"}, "volatile must be 'relaxed' or 'plain', not 'strong"),
    ({"watch": 5}, "watch must be True or lines such as (30, 31), not 5"),
    ({"progress": 5}, "progress must be a function of two integers, not 5"),
    ({"symbols": [1]}, "symbols must be a dict of values by the names of"),
    # ---- sizes ----
    ({"block": 1025}, "block 1025 is outside CUDA's limits of 1 to (1024, 1024, "),
    ({"block": (64, 32)}, "block (64, 32, 1) has 2048 threads; CUDA allows 1024"),
    (
        {"kernel": KernelText(SOURCE.replace("void", "void __launch_bounds__(31)"), "k")},
        "block (32, 1, 1) has 32 threads; the kernel's __launch_bounds__ allow 31",
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
    # ---- names ----
    ({"names": "xyn"}, "names must be a sequence of strings, one per argument,"),
    ({"names": ("x", 1)}, "names must be a sequence of strings, one per arg"),
    ({"names": (*"xyna",)}, "3 arguments cannot have 4 names"),
    ({"names": ("x", "x")}, "two arguments are named 'x'"),
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
