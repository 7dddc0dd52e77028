"""Exported files in a C++ program: compiled and linked by nvcc, called as a stranger would, and
wrongly; without a GPU over a CUDA of main memory."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from helpers.bound import load
from helpers.catalogue import steps, variants
from helpers.export import cpp
from helpers.export.asked import request
from helpers.gpu import H200, Gpu, has_gpu
from helpers.mode import gpu_for_plans
from tests.copied.compilers import compiled, needs_nvcc

FOLDER = Path(__file__).parent
KERNELS = [*steps(), *variants()]
# Each kernel at the first that it takes; one that is built for a shape also at LONG, where it may
# want clusters of 16, much shared memory or all blocks at once.
SHAPES = ((37, 1003), (37, 8200), (37, 200), (5, 32768))
LONG = (1, 262144)
ERRORS = {"float32": (1e-5, 1e-37), "float16": (1e-3, 6e-8), "bfloat16": (8e-3, 1e-37)}


class Case(NamedTuple):
    """A kernel at a shape."""

    step: str
    rows: int
    cols: int
    dtype: str
    apart: bool = False  # rows further apart than cols, x and y starting at different places

    def __str__(self) -> str:
        name = f"{self.step}-{self.rows}x{self.cols}-{self.dtype}"
        return f"{name}-apart" if self.apart else name

    @property
    def name(self) -> str:
        return "of_" + re.sub(r"\W", "_", self.step)

    @property
    def places(self) -> list[int]:
        """Strides, and where x and y start, in elements."""
        return [self.cols + 5, self.cols + 2, 1, 3] if self.apart else [self.cols, self.cols, 0, 0]

    def text(self, gpu: Gpu) -> str:
        shape = f"{self.rows}x{self.cols}"
        return cpp.write(
            request(self.step, [shape], self.name, [self.dtype], [gpu], self.apart, self.apart)
        )


def first_case(step: str, dtype: str = "", gpu: Gpu = H200) -> Case:
    kernel = load(step)
    dtype = dtype or kernel.header.dtype.name
    shape = next(shape for shape in SHAPES if kernel.accepts(*shape, dtype, gpu))
    return Case(step, *shape, dtype)


def header(case: Case, text: str) -> str:
    """exported.h: how the function of a file is called."""
    contract = load(case.step).header if case.step != "best" else None
    strides = ", x_stride, y_stride" if case.apart else ""
    zeros = f"{case.name}_zeros" in text
    allowed, smallest = ERRORS[case.dtype]
    constants = {
        "allowed": allowed,
        "smallest": smallest,
        "copies": str("/00_copy" in f"/{case.step}").lower(),
        "strided": str(case.apart).lower(),
        "kernel_strided": str(contract is None or contract.strided).lower(),
        "aligned": contract.align(case.dtype) if contract else np.dtype(case.dtype).itemsize,
    }
    none = "struct Zeros { cudaError_t prepare(void*, size_t, cudaStream_t) { return {}; } };"
    rest = f"rows, cols{strides}"
    unused = [f"(void){name};" for name in ("x_stride", "y_stride", "rows", "cols", "zeros")]
    bytes = f"{case.name}_workspace({rest})" if zeros else "size_t(0)"
    lines = [
        f'#include "{case.name}.cu"',
        f"using T = {cpp.TYPES[case.dtype]};",
        *(f"[[maybe_unused]] constexpr auto {key} = {x};" for key, x in constants.items()),
        f"using Zeros = {case.name}_zeros;" if zeros else none,
        "inline size_t workspace(long long rows, long long cols, long long x_stride,",
        f"                        long long y_stride) {{ {' '.join(unused[:4])} return {bytes}; }}",
        "inline cudaError_t exported(const T* x, T* y, long long rows, long long cols,",
        "    long long x_stride, long long y_stride, Zeros& zeros, cudaStream_t stream)",
        f"{{ {' '.join([*unused[:2], unused[4]])}",
        f"  return {case.name}(x, y, {rest}{', zeros' * zeros}, stream); }}",
        "",
    ]
    return "\n".join(lines)


def built(folder: Path, case: Case, text: str, gpu: bool) -> Path:
    """The program with an exported file: for the GPU at hand, or with a CUDA of main memory."""
    (folder / f"{case.name}.cu").write_text(text)
    (folder / "exported.h").write_text(header(case, text))
    sources = ["softmax.cpp"] if gpu else ["softmax.cpp", "without_gpu.cpp"]
    for source in sources:
        done = compiled(folder, "-I.", "-c", FOLDER / source)
        assert (done.returncode, done.stderr) == (0, "")
    target = "native" if gpu else "sm_90"
    done = compiled(folder, f"-arch={target}", "-c", f"{case.name}.cu", "-o", "exported.o")
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    objects = [f"{Path(source).stem}.o" for source in sources]
    if gpu:
        done = compiled(folder, "exported.o", *objects, "-o", "program")
        assert done.returncode == 0, done.stderr
    else:
        subprocess.run(["g++", "exported.o", *objects, "-o", "program"], cwd=folder, check=True)
    return folder / "program"


class Said(NamedTuple):
    status: int
    calls: list[str]  # of a CUDA of main memory
    text: str

    @property
    def answers(self) -> dict[str, str]:
        """What each wrong call returned."""
        return dict(line.split(": ") for line in self.text.splitlines() if ": " in line)


def run(path: Path, *arguments: object, **environment: str) -> Said:
    done = subprocess.run(
        [path, *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    calls = [line.split(" ", 2)[2] for line in done.stderr.splitlines() if line[:5] == "call "]
    return Said(done.returncode, calls, done.stdout)


# ---- compilers ----------------------------------------------------------------------------------


ARCHES = sorted({load(step).header.arch for step in KERNELS})


@needs_nvcc
@pytest.mark.parametrize("arch", ARCHES)
def test_every_exported_kernel_compiles_as_cpp17_without_a_warning(
    arch: int, tmp_path: Path
) -> None:
    """For the oldest GPU that its header names, behind one another in one file."""
    gpu = Gpu(arch, H200.sms, H200.l2)
    cases = [first_case(step, gpu=gpu) for step in KERNELS if load(step).header.arch == arch]
    # Not included: of what is, nvcc tells fewer warnings.
    (tmp_path / "all.cu").write_text("".join(case.text(gpu) for case in cases))
    done = compiled(tmp_path, f"-arch=sm_{arch}", "-c", "all.cu")
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr


@needs_nvcc
def test_a_text_that_only_nvrtc_takes_does_not_pass(tmp_path: Path) -> None:
    text = first_case("05_float4").text(H200)
    broken = text.replace("#pragma unroll unroll", "#pragma unroll UNROLL")
    assert broken != text
    (tmp_path / "one.cu").write_text(broken)
    assert compiled(tmp_path, "-arch=sm_90", "-c", "one.cu").returncode != 0


LINKED = ["01_naive", "03_shared", "04_shuffle", "05_float4", "06_registers", "07_warp"]
LINKED += ["08_cluster", "09_grid", "11_any_row"]


@needs_nvcc
@pytest.mark.parametrize("option", ["-rdc=false", "-rdc=true"])
def test_nine_exports_link_into_one_program(option: str, tmp_path: Path) -> None:
    """Three to a file; the last of the nine takes every dtype, and rows that are apart."""
    cases = [first_case(step) for step in LINKED]
    for case in cases[:-1]:
        (tmp_path / f"{case.name}.cu").write_text(case.text(H200))
    all_of_it = request(LINKED[-1], ["37x8200"], cases[-1].name, ERRORS, [H200], True, True)
    (tmp_path / f"{cases[-1].name}.cu").write_text(cpp.write(all_of_it))
    files = []
    for place in range(0, 9, 3):
        includes = [f'#include "{case.name}.cu"\n' for case in cases[place : place + 3]]
        (tmp_path / f"{place}.cu").write_text("".join(includes))
        files.append(f"{place}.cu")
    first = cases[0].name
    (tmp_path / "main.cu").write_text(
        f"#define {first.upper()}_DECLARATIONS\n"
        f'#include "{first}.cu"\n'
        f"int main() {{ return {first}(nullptr, nullptr, 1, 1, nullptr); }}\n"
    )
    files.append("main.cu")
    done = compiled(tmp_path, "-arch=sm_90", option, "-t", "2", *files, "-o", "program")
    assert done.returncode == 0, done.stderr
    symbols = subprocess.run(
        ["nm", "-C", "--defined-only", tmp_path / "program"], capture_output=True, text=True
    ).stdout
    for case in cases:
        declared = len(re.findall(rf" T {case.name}\(", symbols))
        assert declared == (3 if case == cases[-1] else 1)
    assert subprocess.run([tmp_path / "program"]).returncode == int(INVALID)


@needs_nvcc
def test_a_file_gives_a_program_no_name_but_its_own(tmp_path: Path) -> None:
    case = Case("variants/11_any_length", 3, 5000, "float32", apart=True)
    (tmp_path / "one.cu").write_text(case.text(H200))
    assert compiled(tmp_path, "-arch=sm_90", "-c", "one.cu").returncode == 0
    symbols = subprocess.run(
        ["nm", "-g", "--defined-only", tmp_path / "one.o"], capture_output=True, text=True
    ).stdout
    # What the standard library leaves in every object is weak.
    strong = [line.split()[2] for line in symbols.splitlines() if line.split()[1] in "TDBR"]
    assert strong and all(case.name in symbol for symbol in strong), strong


@needs_nvcc
@pytest.mark.parametrize("dtype", ["double", "__half", "unsigned short", "float"])
def test_another_dtype_does_not_compile(dtype: str, tmp_path: Path) -> None:
    case = first_case("10_sixteen_bit", "bfloat16")
    (tmp_path / f"{case.name}.cu").write_text(case.text(H200))
    call = f"void f({dtype}* x) {{ {case.name}(x, x, 1, 8, nullptr); }}\n"
    includes = f'#include <cuda_fp16.h>\n#include "{case.name}.cu"\n'
    (tmp_path / "call.cpp").write_text(includes + call)
    done = compiled(tmp_path, "-c", "call.cpp")
    assert done.returncode != 0 and "cannot convert" in done.stderr
    (tmp_path / "call.cpp").write_text(includes + call.replace(f"{dtype}*", "__nv_bfloat16*"))
    assert compiled(tmp_path, "-c", "call.cpp").returncode == 0


# ---- the program, without a GPU -----------------------------------------------------------------

PRETENDED = (
    Case("variants/08_ahead", *LONG, "float32"),  # a cluster of 16, shared memory
    Case("09_grid", 2, 65536, "float32"),  # a workspace, all blocks at once
    Case("variants/11_any_length", 3, 5001, "float16", apart=True),
    Case("10_sixteen_bit", 37, 256, "bfloat16"),
)
INVALID, NO_STREAM, MISALIGNED, NOT_SUPPORTED = "1", "400", "716", "801"
CAPTURED, TOO_LARGE = "900", "720"
REFUSED = dict.fromkeys(
    ("no x", "no y", "in place", "overlap", "no rows", "no columns", "less than none"), INVALID
)
REFUSED |= dict.fromkeys(("rows past int", "columns past int", "columns that wrap"), INVALID)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Path]:
    made = {}
    for case in PRETENDED:
        folder = tmp_path_factory.mktemp(case.name)
        made[case] = built(folder, case, case.text(H200), gpu=False)
    return made


@needs_nvcc
@pytest.mark.parametrize("case", PRETENDED, ids=str)
def test_a_call_asks_for_what_the_launch_needs(case: Case, programs: dict[Case, Path]) -> None:
    plan = load(case.step).bind(case.rows, case.cols, case.dtype, H200, *case.places[:2]).plan
    said = run(programs[case], "run", *case[1:3], *case.places)
    assert said.status == 0 and said.text.count("largest error") == 4, said.text
    kind = "launch-cooperative" if plan.cooperative else "launch"
    name = load(case.step).name
    launches = [call for call in said.calls if call.startswith("launch")]
    wanted = rf"{kind} \w*{name}\w* {plan.block} {plan.grid} {plan.shared_mem}"
    assert len(launches) == 3 and all(re.fullmatch(wanted, launch) for launch in launches)
    once = ["shared 231424 0"] * bool(plan.shared_mem) + ["clusters 1 0"] * (plan.cluster > 8)
    assert [call for call in said.calls if call.startswith(("shared", "clusters"))] == once
    assert said.calls.count(f"occupancy {plan.block} {plan.shared_mem}") == 3 * plan.cooperative
    prepared = [f"cudaMemsetAsync {plan.workspace} 0"] * bool(plan.workspace)
    assert [call for call in said.calls if "Memset" in call] == prepared
    assert sum("DeviceGetAttribute" in call for call in said.calls) == 6  # once


@needs_nvcc
@pytest.mark.parametrize("case", PRETENDED, ids=str)
def test_every_call_that_cuda_refuses_is_told(case: Case, programs: dict[Case, Path]) -> None:
    good = run(programs[case], "run", *case[1:3], *case.places)
    asks = "Workspace" in load(case.step).header.fields
    for number in range(1, len(good.calls) + 1):
        said = run(programs[case], "run", *case[1:3], *case.places, FAIL=str(number))
        *_, named, call = said.text.splitlines()
        # The first calls may be those that ask for the bytes of a workspace, which are 0 then.
        told = {"999: refused", f"{INVALID}: refused"} if asks and number <= 7 else {"999: refused"}
        assert said.status == 2 and named in told and call[:4] == "    ", (number, said)


@needs_nvcc
@pytest.mark.parametrize("case", PRETENDED, ids=str)
def test_wrong_use_is_an_error_and_launches_nothing(case: Case, programs: dict[Case, Path]) -> None:
    longer = 16 * case.cols
    said = run(programs[case], "refuse", *case[1:3], longer)
    assert said.status == 0 and said.text.endswith("nothing was written\n"), said
    contract = load(case.step).header
    wanted = {**REFUSED, "misaligned": MISALIGNED}
    takes = contract.accepts(case.rows, longer, case.dtype)
    wanted["longer rows"] = NOT_SUPPORTED if takes else INVALID
    if case.apart:
        wanted["stride"] = INVALID
    if "Workspace" in contract.fields:
        wanted["workspace that was not prepared"] = INVALID
        wanted["workspace that is too small"] = INVALID
        wanted["workspace of another stream"] = NO_STREAM
        wanted["workspace that is captured"] = CAPTURED
        wanted["workspace that is left unprepared by that"] = INVALID
    assert said.answers == wanted
    assert not any(call.startswith("launch") for call in said.calls)


@needs_nvcc
@pytest.mark.parametrize("environment", [{"COOPERATES": "0"}, {"BLOCKS": "0"}])
def test_blocks_that_do_not_fit_at_once_are_refused(
    environment: dict[str, str], programs: dict[Case, Path]
) -> None:
    case = PRETENDED[1]
    said = run(programs[case], "run", *case[1:3], *case.places, **environment)
    assert said.status == 2 and said.text.startswith(f"{TOO_LARGE}: ")


@needs_nvcc
def test_workspace_is_not_lent_to_a_later_stream_of_the_same_handle(
    programs: dict[Case, Path],
) -> None:
    case = PRETENDED[1]
    said = run(programs[case], "run", *case[1:3], *case.places, RENUMBER="1")
    assert said.status == 2 and f"\n{NO_STREAM}: " in said.text  # the graph has run by then


@needs_nvcc
def test_the_program_names_the_first_wrong_result(programs: dict[Case, Path]) -> None:
    case = PRETENDED[3]
    wrong = 3 * case.cols + 5
    said = run(programs[case], "run", *case[1:3], *case.places, WRONG=str(wrong))
    first, count = said.text.splitlines()
    assert said.status == 1 and re.fullmatch(r"row 3, column 5: -?nan, not [\d.e-]+", first)
    assert count == "1 of 37 x 256 results are wrong"
    case = PRETENDED[2]
    between = case.cols  # behind the first row, of y
    said = run(programs[case], "run", *case[1:3], *case.places, WRONG=str(between))
    assert said.status == 1 and said.text.startswith(f"place {between + case.places[3]} was ")


# ---- on a GPU -----------------------------------------------------------------------------------


def gpu_cases() -> list[Case]:
    """Every kernel at the first shape that it takes and at the long one, those with strides in rows
    that are apart too, those of several dtypes in each."""
    found = []
    for step in KERNELS:
        kernel = load(step)
        for dtype in kernel.header.dtypes:
            for shape in (first_case(step, dtype.name)[1:3], LONG):
                if shape != LONG or (kernel.header.build and kernel.accepts(*LONG, dtype)):
                    found.append(Case(step, *shape, dtype.name))
            if kernel.header.strided:
                found.append(found[-1]._replace(apart=True))
    return found


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize("case", gpu_cases(), ids=str)
def test_an_exported_kernel_computes_what_it_should(case: Case, tmp_path: Path) -> None:
    gpu = gpu_for_plans()
    if not load(case.step).accepts(case.rows, case.cols, case.dtype, gpu):
        pytest.skip(f"{case.step} does not take it on this GPU")
    program = built(tmp_path, case, case.text(gpu), gpu=True)
    said = run(program, "run", *case[1:3], *case.places)
    assert said.status == 0, said.text


BEST = ((1, 1), (3, 7), (33, 1000), (8192, 257), (37, 50257), (64, 32000), (1, 1048576))


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("apart", [False, True])
def test_the_best_of_the_series_computes_what_it_should(
    dtype: str, apart: bool, tmp_path: Path
) -> None:
    shapes = [f"{rows}x{cols}" for rows, cols in BEST]
    text = cpp.write(request("best", shapes, "of_best", [dtype], [gpu_for_plans()], apart, apart))
    program = built(tmp_path, Case("best", 1, 1, dtype, apart), text, gpu=True)
    for rows, cols in BEST:
        said = run(program, "run", rows, cols, *Case("best", rows, cols, dtype, apart).places)
        assert said.status == 0, f"{rows} x {cols}: {said.text}"


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize("case", PRETENDED, ids=str)
def test_wrong_use_on_a_gpu_is_an_error_and_writes_nothing(case: Case, tmp_path: Path) -> None:
    program = built(tmp_path, case, case.text(gpu_for_plans()), gpu=True)
    said = run(program, "refuse", *case[1:3], 16 * case.cols)
    assert said.status == 0 and said.text.endswith("nothing was written\n"), said
    assert {"cudaSuccess"} & {*said.answers.values()} == set()


@pytest.mark.gpu
@needs_nvcc
def test_a_kernel_that_computes_something_else_is_noticed(tmp_path: Path) -> None:
    case = first_case("00_copy")
    text = case.text(gpu_for_plans())
    wrong = text.replace("(long long)rows * cols;", "(long long)rows * cols - 1;")
    assert wrong != text
    said = run(built(tmp_path, case, wrong, gpu=True), "run", *case[1:3], *case.places)
    assert said.status == 1 and said.text.startswith("row 36, column 1002: nan"), said


@needs_nvcc
@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_without_a_gpu_the_program_says_so(tmp_path: Path) -> None:
    case = first_case("04_shuffle")
    (tmp_path / f"{case.name}.cu").write_text(case.text(H200))
    (tmp_path / "exported.h").write_text(header(case, case.text(H200)))
    files: Sequence[object] = ("-I.", f"{case.name}.cu", FOLDER / "softmax.cpp")
    done = compiled(tmp_path, "-arch=sm_90", *files, "-o", "program")
    assert done.returncode == 0, done.stderr
    said = run(tmp_path / "program", "run", *case[1:3], *case.places)
    assert said.status == 2
    assert re.match(r"cudaError(InsufficientDriver|NoDevice): .*\n    cudaMalloc\(", said.text)
