"""Exported files in a C++ program: compiled and linked by nvcc, called as a stranger would, and
wrongly; without a GPU over a CUDA of main memory."""

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from helpers.base.gpu import H200, Gpu
from helpers.base.mode import gpu_for_plans
from helpers.catalogue.registry import steps, variants
from helpers.export import cpp, cpp_call
from helpers.export.request import export_request, takes_matrix
from helpers.problem.problem import Problem
from helpers.run.bound import load
from tests.copied.compilers import NO_RUN, compiled, host_compiled, needs_headers, needs_nvcc

FOLDER = Path(__file__).parent
KERNELS = [*filter(takes_matrix, (*steps(), *variants()))]
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
            export_request(
                self.step, [shape], self.name, [self.dtype], [gpu], self.apart, self.apart
            )
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
        "#pragma once",
        f'#include "{case.name}.cu"',
        f"using T = {cpp_call.TYPES[case.dtype]};",
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


def linked(folder: Path, case: Case, text: str, exported: Path, gpu: bool) -> Path:
    """The program with the object of an exported file: for the GPU at hand, or with a CUDA of main
    memory."""
    (folder / f"{case.name}.cu").write_text(text)
    (folder / "exported.h").write_text(header(case, text))
    without = ["launch_softmax.cpp", "without_gpu.cpp"]
    sources = ["softmax.cpp", *([] if gpu else without)]
    includes = [f'#include "{FOLDER / source}"\n' for source in sources]
    (folder / "program.cpp").write_text("".join(includes))
    done = host_compiled(folder, "-I.", "-c", "program.cpp")
    assert (done.returncode, done.stderr) == (0, "")
    if gpu:
        done = compiled(folder, exported, "program.o", "-o", "program")
        assert done.returncode == 0, done.stderr
    else:
        objects = [exported, "program.o"]
        subprocess.run(["g++", *objects, "-o", "program"], cwd=folder, check=True)
    return folder / "program"


def clean(done: subprocess.CompletedProcess[str]) -> None:
    """Hold that nvcc took it without a warning."""
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr


def built(folder: Path, case: Case, text: str) -> Path:
    """The program with an exported file, for the GPU at hand."""
    (folder / f"{case.name}.cu").write_text(text)
    clean(compiled(folder, "-arch=native", "-c", f"{case.name}.cu"))
    return linked(folder, case, text, folder / f"{case.name}.o", gpu=True)


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
RELOCATABLE = 80  # the few kernels of it are linked as relocatable device code


def of_arch(arch: int) -> list[tuple[Case, str]]:
    """The kernels whose headers name it as the oldest GPU, and their files for that."""
    gpu = Gpu(arch, H200.sms, H200.l2)
    steps = [step for step in KERNELS if load(step).header.arch == arch]
    return [(case, case.text(gpu)) for case in (first_case(step, gpu=gpu) for step in steps)]


class Objects:
    """Objects that several tests link, each compiled when the first of them asks for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[str, Path] = {}

    def of(self, name: str, text: str, *options: str) -> Path:
        """The object of a file, which nvcc compiles without a warning."""
        if name not in self.known:
            (self.folder / f"{name}.cu").write_text(text)
            clean(compiled(self.folder, *NO_RUN, *options, "-c", f"{name}.cu"))
            self.known[name] = self.folder / f"{name}.o"
        return self.known[name]

    def of_arch(self, arch: int) -> Path:
        """All kernels of it behind one another in one file, for that GPU. They are not included: of
        what is, nvcc tells fewer warnings."""
        text = "".join(text for _, text in of_arch(arch))
        relocatable = str(arch == RELOCATABLE).lower()
        return self.of(f"sm_{arch}", text, f"-arch=sm_{arch}", f"-rdc={relocatable}")

    def program(self, *arguments: object) -> list[str]:
        """What a program that nvcc makes of objects defines; it calls a function wrongly."""
        done = compiled(self.folder, *arguments, "-o", "program")
        assert done.returncode == 0, done.stderr
        assert subprocess.run([self.folder / "program"]).returncode == int(INVALID)
        return symbols(self.folder / "program")


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    return Objects(tmp_path_factory.mktemp("objects"))


def symbols(path: Path, kinds: str = "TDBR") -> list[str]:
    """What an object or a program defines for others; what the standard library leaves in every
    object is weak."""
    done = subprocess.run(["nm", "-gC", "--defined-only", path], capture_output=True, text=True)
    lines = (line.split(" ", 2) for line in done.stdout.splitlines())
    return [symbol for _, kind, symbol in lines if kind in kinds]


@needs_nvcc
@pytest.mark.parametrize("arch", ARCHES)
def test_every_exported_kernel_compiles_as_cpp17_without_a_warning(
    arch: int, objects: Objects
) -> None:
    assert objects.of_arch(arch).is_file()


@needs_nvcc
def test_a_file_finds_itself_under_any_name_in_any_folder(tmp_path: Path) -> None:
    """It includes itself once for each build, whichever way it was found."""
    text = cpp.write(export_request("08_cluster", ["1..4096x32000"], "fast"), "fast.cu")
    old = text.replace("#ifdef __FILE_NAME__", "#if 0")  # a compiler that does not know it
    assert old != text and text.count("softmax_cluster(const") == 1
    (tmp_path / "inner").mkdir()
    for name, content in (("other", old), ("renamed", text), ("fast", old)):
        (tmp_path / "inner" / f"{name}.cu").write_text(content)
        (tmp_path / "including.cu").write_text(f"#include <{name}.cu>\n")
        for arguments in (["-E", f"inner/{name}.cu"], ["-E", "-Iinner", "including.cu"]):
            done = compiled(tmp_path, "-arch=sm_90", *arguments)
            if name == "other":
                assert done.returncode and "fast.cu: No such file" in done.stderr
                continue
            assert done.returncode == 0, done.stderr
            builds = text.count("{ namespace build_")
            assert done.stdout.count("softmax_cluster(const") == builds > 3


def calling(case: Case, text: str, folder: Path) -> str:
    """A program that calls, wrongly, what another file defines."""
    (folder / f"{case.name}.cu").write_text(text)
    return (
        f"#define {case.name.upper()}_DECLARATIONS\n"
        f'#include "{case.name}.cu"\n'
        f"int main() {{ return {case.name}(nullptr, nullptr, 1, 1, nullptr); }}\n"
    )


@needs_nvcc
def test_all_exports_link_into_one_program(objects: Objects) -> None:
    arches = [arch for arch in ARCHES if arch != RELOCATABLE]
    exports = [export for arch in arches for export in of_arch(arch)]
    main = objects.of("main", calling(*exports[1], objects.folder))
    defined = objects.program(main, *map(objects.of_arch, arches))
    assert len(exports) > 20
    for case, _ in exports:
        assert sum(symbol.startswith(f"{case.name}(") for symbol in defined) == 1, case


@needs_nvcc
def test_exports_link_as_relocatable_device_code(objects: Objects) -> None:
    """Those of one file with one of another."""
    exports = of_arch(RELOCATABLE)
    gpu = Gpu(RELOCATABLE, H200.sms, H200.l2)
    other = export_request("11_any_row", ["37x8200"], "of_other", ["float32"], [gpu])
    options = f"-arch=sm_{RELOCATABLE}", "-rdc=true"
    main = objects.of("caller", calling(*exports[0], objects.folder), *options)
    files = objects.of_arch(RELOCATABLE), objects.of("other", cpp.write(other), *options)
    defined = objects.program(*options, main, *files)
    for name, count in ((exports[0][0].name, 1), (exports[1][0].name, 1), ("of_other", 1)):
        assert sum(symbol.startswith(f"{name}(") for symbol in defined) == count, name


@needs_nvcc
def test_a_file_gives_a_program_no_name_but_its_own(pretended: Path) -> None:
    strong = symbols(pretended)
    names = [case.name for case in PRETENDED]
    assert {name for name in names if any(name in symbol for symbol in strong)} == {*names}
    assert all(any(name in symbol for name in names) for symbol in strong), strong
    assert not symbols(pretended, "u"), "libraries would share it, whatever they are loaded for"


@needs_headers
def test_another_dtype_does_not_compile(tmp_path: Path) -> None:
    case = first_case("10_sixteen_bit", "bfloat16")
    (tmp_path / f"{case.name}.cu").write_text(case.text(H200))
    call = f"{case.name}(x, x, 1, 8, nullptr);"
    dtypes = "__nv_bfloat16", "double", "__half", "unsigned short", "float"
    functions = "".join(f"void with({dtype}* x) {{ {call} }}\n" for dtype in dtypes)
    (tmp_path / "call.cpp").write_text(
        f'#include <cuda_fp16.h>\n#include "{case.name}.cu"\n{functions}'
    )
    errors = host_compiled(tmp_path, "-fsyntax-only", "call.cpp").stderr
    wrong = re.findall(r"call.cpp:(\d+):\d+: error: cannot convert", errors)
    assert wrong == ["4", "5", "6", "7"], errors  # all but the first, in line 3


# ---- the program, without a GPU -----------------------------------------------------------------

PRETENDED = (
    Case("08_ahead", *LONG, "float32"),  # a cluster of 16, shared memory
    Case("09_grid", 2, 65536, "float32"),  # a workspace, all blocks at once
    Case("11_any_length", 3, 5001, "float16", apart=True),
    Case("10_sixteen_bit", 37, 256, "bfloat16"),
)
INVALID, NO_STREAM, MISALIGNED, NOT_SUPPORTED = "1", "400", "716", "801"
CAPTURED, TOO_LARGE = "900", "720"
REFUSED = dict.fromkeys(
    ("no x", "no y", "in place", "overlap", "less than none", "no rows but less than no columns"),
    INVALID,
)
REFUSED |= dict.fromkeys(("rows past int", "columns past int", "columns that wrap"), INVALID)


@pytest.fixture(scope="module")
def pretended(objects: Objects) -> Path:
    """Their object, of one file that includes them all."""
    for case in PRETENDED:
        (objects.folder / f"{case.name}.cu").write_text(case.text(H200))
    includes = [f'#include "{case.name}.cu"\n' for case in PRETENDED]
    return objects.of("pretended", "".join(includes), "-arch=sm_90")


@pytest.fixture(scope="module")
def programs(pretended: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Path]:
    made = {}
    for case in PRETENDED:
        folder = tmp_path_factory.mktemp(case.name)
        made[case] = linked(folder, case, case.text(H200), pretended, gpu=False)
    return made


@needs_nvcc
@pytest.mark.parametrize("case", PRETENDED, ids=str)
def test_a_call_asks_for_what_the_launch_needs(case: Case, programs: dict[Case, Path]) -> None:
    plan = (
        load(case.step)
        .bind(
            *(case.rows, case.cols, case.dtype, H200),
            **dict(zip(("x_stride", "y_stride"), case.places, strict=False)),
        )
        .plan
    )
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
    asked = sum("DeviceGetAttribute" in call for call in said.calls)
    assert asked == 5 + plan.cooperative  # once


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
    takes = contract.accepts(Problem(case.rows, longer, case.dtype))
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
    program = built(tmp_path, case, case.text(gpu))
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
    text = cpp.write(
        export_request("best", shapes, "of_best", [dtype], [gpu_for_plans()], apart, apart)
    )
    program = built(tmp_path, Case("best", 1, 1, dtype, apart), text)
    for rows, cols in BEST:
        said = run(program, "run", rows, cols, *Case("best", rows, cols, dtype, apart).places)
        assert said.status == 0, f"{rows} x {cols}: {said.text}"


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize("case", PRETENDED, ids=str)
def test_wrong_use_on_a_gpu_is_an_error_and_writes_nothing(case: Case, tmp_path: Path) -> None:
    program = built(tmp_path, case, case.text(gpu_for_plans()))
    said = run(program, "refuse", *case[1:3], 16 * case.cols)
    assert said.status == 0 and said.text.endswith("nothing was written\n"), said
    assert {"cudaSuccess"} & {*said.answers.values()} == set()
