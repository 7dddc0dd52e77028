"""Every kernel file: its header, its signature, and that it compiles alone wherever it says so."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
from cuda.bindings import nvrtc

from helpers import kernels
from helpers.check import make_input, poisoned
from helpers.evidence.cases import SMALL_TRIALS
from helpers.kernels import (
    DTYPE_OPTIONS,
    FOLDER,
    KEYS,
    OPTIONAL_KEYS,
    code_hash,
    compiled_for,
    evaluate,
    header,
    kernel_names,
    signature,
    source,
)
from helpers.launch import arguments, simulate
from helpers.shapes import REFERENCE_SHAPE
from helpers.simt.compile import CompileError, compile_ptx, include_folders

ARCHS = (75, 80, 86, 89, 90, 100, 120)
HEADERS = {"<cuda_fp16.h>", "<cuda_bf16.h>"}
SHAPES = (
    *((1, 1), (1, 32768), (33, 1000), (4096, 12672), (8388608, 32), (100_000_000, 1)),
    *((3, 20000), (16, 131072), (1, 1048576), (33, 64), (5, 8), (262144, 1024)),
)


def kernel_files() -> list[str]:
    """Paths below kernels/. An exercise may do without a header, a kernel of the series not."""
    files = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.cu"))
    return [file for file in files if "exercises/" not in file or "// Launch:" in source(file)]


FILES = kernel_files()
SERIES = [file for file in FILES if not file.startswith("exercises/")]
EXAMPLE = source("01_naive.cu")
each_file = pytest.mark.parametrize("file", FILES)


def accepted_shapes(file: str, dtype: str) -> list[tuple[int, int]]:
    contract = header(source(file))
    return [shape for shape in SHAPES if contract.accepts(*shape, dtype)]


def compiler_options(file: str) -> list[tuple[str, ...]]:
    """One set of options for each dtype of the file, each for another shape."""
    contract = header(source(file))
    found = []
    for number, dtype in enumerate(contract.dtypes):
        shapes = accepted_shapes(file, dtype.name)
        found.append(contract.plan(*shapes[number % len(shapes)], dtype).options)
    return found


def compile_plain(code: str, arch: int, options: Sequence[str] = ()) -> str:
    """What NVRTC has to say about the source as plain C++17, without CuPy's options."""
    flags = [f"--gpu-architecture=compute_{arch}", "--std=c++17", *options]
    flags += [f"-I{folder}" for folder in include_folders()]
    _, program = nvrtc.nvrtcCreateProgram(code.encode(), b"kernel.cu", 0, [], [])
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = bytearray(size)
        nvrtc.nvrtcGetProgramLog(program, log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    text = log.decode(errors="replace").strip("\0\n ")
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"{status.name}\n{text}")
    return text


def test_series_is_complete() -> None:
    """The lists that notebooks and recorder use are the files that are there."""
    listed = [*kernels.steps(), *kernels.variants()]
    assert sorted(f"{name}.cu" for name in listed) == SERIES
    numbers = [int(name[:2]) for name in kernels.steps()]
    assert numbers == list(range(len(numbers))) and len(numbers) >= 3
    for name in kernels.variants():
        assert re.match(r"variants/\d\d_", name), f"{name} belongs to no step"
        assert int(name.split("/")[1][:2]) in numbers


# ---- each file --------------------------------------------------------------------------------


@each_file
def test_license_is_on_the_first_line(file: str) -> None:
    text = (FOLDER / file).read_text(encoding="utf-8")
    assert text.splitlines()[0] == "// SPDX-License-Identifier: MIT"
    assert text.endswith("\n") and "\t" not in text and "\r" not in text


@each_file
def test_header_has_every_key_in_order(file: str) -> None:
    contract = header(source(file))
    assert contract is not None
    used = [key for key in KEYS if key in contract.fields or key not in OPTIONAL_KEYS]
    assert list(contract.fields) == used
    assert all(contract.fields.values())


@each_file
def test_header_launch_is_sensible(file: str) -> None:
    contract = header(source(file))
    for dtype in contract.dtypes:
        assert not contract.accepts(8, 0, dtype) and not contract.accepts(8, -4, dtype)
        shapes = accepted_shapes(file, dtype.name)
        assert len(shapes) >= 3, "the header refuses nearly every shape"
        for rows, cols in shapes:
            plan = contract.plan(rows, cols, dtype)
            assert 1 <= plan.grid < 2**31
            assert 32 <= plan.block <= 1024 and plan.block % 32 == 0
            assert 0 <= plan.shared_mem <= 227 * 1024
            yes_or_no = {"PROGRAMMATIC", "EVICT_LAST"}
            assert all(v in (0, 1) for name, v in plan.macros.items() if name in yes_or_no)
            assert all(v >= 1 for name, v in plan.macros.items() if name not in yes_or_no), plan
            if contract.fields["Row"] == "one thread":
                assert 0 <= plan.grid * plan.block - rows < plan.block
            if "block ==" not in contract.fields["Launch"]:
                wider = contract.plan(rows, cols, dtype, block=plan.block + 32)
                assert wider.block == plan.block + 32 and wider.grid >= 1


@each_file
def test_header_names_dtype_alignment_and_architecture_of_the_code(file: str) -> None:
    code = source(file)
    contract = header(code)
    x, y = signature(code, kernel_names(code)[0])[:2]
    if len(contract.dtypes) == 1:
        assert x.dtype == y.dtype == contract.dtype
    else:
        assert (x.type, y.type) == ("T", "T"), "the file's name for the dtype it is compiled for"
        names = [option.removeprefix("-D") for option in DTYPE_OPTIONS.values()]
        used = [f"-D{name}" for name in names if re.search(rf"\b{name}\b", code)]
        assert used == [DTYPE_OPTIONS[dtype.name] for dtype in contract.dtypes[1:]]
    assert contract.align in (4, 8, 16) and contract.align >= contract.dtype.itemsize
    assert contract.arch in ARCHS and contract.fields["Arch"] == f"sm_{contract.arch}"


@each_file
def test_lines_fit_a_hundred_columns(file: str) -> None:
    assert [line for line in source(file).splitlines() if len(line) > 100] == []


@each_file
def test_one_kernel_that_takes_x_y_rows_cols_first(file: str) -> None:
    code = source(file)
    (name,) = kernel_names(code)
    x, y, rows, cols = signature(code, name)[:4]
    assert [p.name for p in (x, y, rows, cols)] == ["x", "y", "rows", "cols"]
    assert x.pointer and x.const and y.pointer and not y.const
    assert (rows.type, cols.type) == ("int", "int") and not rows.pointer and not cols.pointer
    assert name.startswith("copy") == ("copy" in file), (
        "its name decides what it is checked against"
    )


@each_file
def test_only_fp16_headers_are_included(file: str) -> None:
    included = re.findall(r"^\s*#\s*include\s*(\S+)", source(file), flags=re.MULTILINE)
    assert set(included) <= HEADERS


@each_file
@pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: f"sm_{arch}")
def test_compiles_alone_without_a_warning(file: str, arch: int) -> None:
    """Under CuPy's options as on the SIMT machine, and as plain C++17: CuPy's options make every
    function a device function, so that a missing __device__ shows in the second alone."""
    code = source(file)
    if arch < header(code).arch:
        pytest.skip(f"needs {header(code).fields['Arch']}")
    for options in compiler_options(file):
        assert f".target sm_{arch}" in compile_ptx(code, options, arch=f"compute_{arch}")
        assert compile_plain(code, arch, options) == ""


@pytest.mark.parametrize("file", SERIES)
def test_header_counts_the_passes_that_the_kernel_makes(file: str) -> None:
    code = source(file)
    contract = header(code)
    claim = re.match(r"(\d+) reads? \+ (\d+) writes?", contract.fields["Reads"])
    for dtype in contract.dtypes:
        shapes = [s for s in ((64, 96), (3, 20000)) if contract.accepts(*s, dtype)]
        x = make_input(*shapes[0], dtype=dtype)
        kernel, plan = compiled_for(code, *x.shape, dtype)
        values = arguments(plan, x, poisoned(x))
        counters = simulate(kernel, plan.grid, plan.block, values, plan.shared_mem).counters
        passes = counters.passes(x.size, x.itemsize)
        # A workspace is read and written too, by threads that wait as often as they must.
        exact = [round(value) if plan.workspace else value for value in passes]
        assert exact == list(map(float, claim.groups()))


def test_plain_compilation_catches_a_missing_device() -> None:
    """The check above can fail: this compiles with CuPy's options and not without."""
    code = """
    float twice(float value) { return 2.0f * value; }
    extern "C" __global__ void kernel(float* y) { y[0] = twice(y[0]); }
    """
    compile_ptx(code)
    with pytest.raises(CompileError, match="is considered a host function"):
        compile_plain(code, 90)
    assert compile_plain(code.replace("float twice", "__device__ float twice"), 90) == ""


def test_plain_compilation_reports_warnings() -> None:
    code = 'extern "C" __global__ void kernel(float* y) { int unused; y[0] = 1.0f; }'
    assert "never referenced" in compile_plain(code, 90)


# ---- reading a header -------------------------------------------------------------------------


def test_header_fields_run_over_several_lines() -> None:
    fields = header(EXAMPLE).fields
    assert fields["Launch"] == "block = 128, grid = (rows + block - 1) / block"
    assert fields["Wastes"].startswith("reads the row three times where two would do (02); neighb")
    assert "\n" not in fields["Wastes"] and "  " not in fields["Wastes"]
    launch = {"grid": 2, "block": 128, "shared_mem": 0}
    assert header(EXAMPLE).plan(129, 7).launch == launch
    launch = {"grid": 5, "block": 32, "shared_mem": 0}
    assert header(EXAMPLE).plan(129, 7, block=32).launch == launch


def test_source_without_header_has_none() -> None:
    assert header('// Idea: not much\nextern "C" __global__ void bare() {}') is None
    assert header("") is None


def without(key: str) -> str:
    return re.sub(rf"^// {key}:.*\n(//  .*\n)*", "", EXAMPLE, flags=re.MULTILINE)


@pytest.mark.parametrize("key", [key for key in KEYS if key not in {"Launch", *OPTIONAL_KEYS}])
def test_missing_key_is_named(key: str) -> None:
    with pytest.raises(ValueError, match=f"missing: {key}; unknown: none"):
        header(without(key))


def test_unknown_and_misplaced_keys_are_named() -> None:
    with pytest.raises(ValueError, match="missing: none; unknown: Speed"):
        header(EXAMPLE.replace("// Measured:", "// Speed:    high\n// Measured:"))
    with pytest.raises(ValueError, match="missing: Align; unknown: Alingment"):
        header(EXAMPLE.replace("Align: ", "Alingment:"))
    align = re.search(r"// Align:.*\n", EXAMPLE)[0]
    moved = EXAMPLE.replace(align, "").replace("// Shared:", f"{align}// Shared:")
    with pytest.raises(ValueError, match="in this order.*; missing: none; unknown: none"):
        header(moved)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("block = 128, grid =", "grid =", "Launch"),
        ("/ block", "/ blocks", "Launch"),
        ("/ block", "// block", "Launch"),
        ("Shared:   0", "Shared:   4 * warps", "Shared"),
        ("cols >= 1", "any", "Columns"),
        ("Row:      one thread\n", "Row:      one thread\n// Build:    LANES = warps\n", "Build"),
        ("Row:      one thread\n", "Row:      one thread\n// Build:    LANES: 4\n", "Build"),
        ("Row:      one thread\n", "Row:      one thread\n// Build:    A = B, B = 1\n", "Build"),
        ("Shared:   0\n", "Shared:   0\n// Workspace: 0\n", "Workspace"),
        ("Shared:   0\n", "Shared:   0\n// Workspace: 8 * blocks\n", "Workspace"),
        ("Dtype:    float32", "Dtype:    float16, float32", "Dtype"),
        ("Dtype:    float32", "Dtype:    float32, float64", "Dtype"),
        ("Align:    4", "Align:    none", "Align"),
        ("Align:    4", "Align:    0", "Align"),
        ("Dtype:    float32", "Dtype:    float23", "Dtype"),
        ("Arch:     sm_75", "Arch:     volta", "Arch"),
    ],
)
def test_malformed_value_is_named(old: str, new: str, key: str) -> None:
    assert old in EXAMPLE
    with pytest.raises(ValueError, match=f"a kernel header is malformed at .*{key}"):
        header(EXAMPLE.replace(old, new, 1))


# ---- expressions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("0", 0),
        ("rows", 33),
        ("(rows + block - 1) / block", 1),
        ("(rows * cols + 4 * block - 1) / (4 * block)", 65),
        ("rows / 2 * 2", 32),
        ("rows % 32", 1),
        ("min(cols, 256)", 256),
        ("max(rows, min(block, 64))", 64),
        ("4 * (cols / 32)", 124),
        ("cols >= 1", True),
        ("cols >= 1 && cols <= 999", False),
        ("1 <= rows <= 40 && cols == 1000 && cols % 8 == 0", True),
        ("rows < 33", False),
        ("rows > 32", True),
        ("rows != 3", True),
        ("rows != 33", False),
        ("cols < 9 or rows == 33", True),
        ("cols < 9 || rows < 9", False),
        ("cols % 4 == 0 ? 4 : 1", 4),
        ("cols % 16 == 0 ? 16 : cols % 8 == 0 ? 8 : 1", 8),
        ("cols % 16 == 0 ? 16 : cols % 32 == 0 ? 8 : 1", 1),
        ("cols > 9 ? (rows > 99 ? 1 : 2) : 3", 2),
        ("2 * (rows == 33 && cols < 9 ? 10 : 20)", 40),
        ("min(cols > 9 ? rows : 7, cols < 9 ? 1 : max(2, 5))", 5),
        ("rows == 33 ? 1 : rows / 0", 1),
        ("power_of_two(cols)", 1024),
        ("power_of_two(1024) + power_of_two(1025)", 3072),
        ("power_of_two(1) + power_of_two(0)", 2),
        ("power_of_two(rows - 1)", 32),
    ],
)
def test_expression_is_evaluated_as_c_integers(expression: str, value: int) -> None:
    assert evaluate(expression, rows=33, cols=1000, block=128) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "rows +",
        "columns",
        "rows // 2",
        "rows ** 2",
        "rows << 2",
        "-rows",
        "not rows",
        "rows ? cols",
        "rows ? cols > 1 ? 1 : 2 : 3",
        "rows : cols",
        "(rows",
        "rows)",
        "!rows",
        "1.5 * rows",
        "'rows'",
        "rows if cols else 1",
        "rows in (1, 2)",
        "[rows]",
        "abs(rows)",
        "rows.real",
        "(lambda: rows)()",
        "__import__('os').getcwd()",
        "open('x')",
        "rows; cols",
        "rows := 3",
    ],
)
def test_anything_but_arithmetic_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="is not an expression"):
        evaluate(expression, rows=33, cols=1000)


# ---- reading code -----------------------------------------------------------------------------


def test_source_starts_with_a_line_directive() -> None:
    first, rest = source("variants/01_naive_fast.cu").split("\n", 1)
    assert first == '#line 1 "kernels/variants/01_naive_fast.cu"'
    assert rest == (FOLDER / "variants" / "01_naive_fast.cu").read_text(encoding="utf-8")


def test_hash_ignores_comments_and_white_space() -> None:
    code = 'extern "C" __global__ void k(float* y)\n{\n    y[0] = 1.0f;\n}\n'
    same = [
        code.replace("\n", "\r\n"),
        code.replace("    ", "\t"),
        f"// a comment\n{code}",
        f"{code}// at the end, without a new line",
        code.replace("1.0f;", "1.0f;  // one"),
        code.replace("{", "{ /* two\n lines */"),
        code.replace("y[0] =", "y[0] /* here */ ="),
        f'#line 1 "kernels/k.cu"\n{code}',
        f"// SPDX-License-Identifier: MIT\n// Idea: none\n\n{code}",
    ]
    assert {code_hash(text) for text in same} == {code_hash(code)}
    assert re.fullmatch("[0-9a-f]{16}", code_hash(code))


def test_hash_follows_code() -> None:
    code = "// see /* below\nint a = 1;\nint b = 2; // */ here\nint c = 3;\n"
    others = [code.replace(old, new) for old, new in (("1", "4"), ("2", "4"), ("3", "4"))]
    others += [code.replace("int b", "long b"), f"{code}int d;", f"#define N 1\n{code}"]
    hashes = {code_hash(text) for text in (code, *others)}
    assert len(hashes) == 1 + len(others)
    real = EXAMPLE.replace("col < cols", "col <= cols", 1)
    assert code_hash(real) != code_hash(EXAMPLE)


@each_file
def test_hash_of_a_file_does_not_depend_on_its_header(file: str) -> None:
    """`make figures` rewrites the line; that must not make the record an old one."""
    code = source(file)
    measured = code.replace("// Measured: ", "// Measured: 4321 GB/s, or ")
    assert measured != code and code_hash(measured) == code_hash(code)


def test_signature_tells_types_and_pointers_apart() -> None:
    code = """
    // __global__ void commented(int nothing)
    extern "C" __global__ void __launch_bounds__(128)
    many(const float* __restrict__ a, float *b, float const * c, float* const __restrict__ d,
         unsigned int e, long long f, const int g, /* double */ __half h, thing i, size_t j)
    {
    }
    __global__ void none() {}
    """
    assert kernel_names(code) == ["many", "none"]
    assert signature(code, "none") == ()
    found = [(p.name, p.dtype, p.pointer, p.const) for p in signature(code, "many")]
    f32 = np.dtype(np.float32)
    assert found == [
        ("a", f32, True, True),
        ("b", f32, True, False),
        ("c", f32, True, True),
        ("d", f32, True, False),
        ("e", np.dtype(np.uint32), False, False),
        ("f", np.dtype(np.int64), False, False),
        ("g", np.dtype(np.int32), False, True),
        ("h", np.dtype(np.float16), False, False),
        ("i", None, False, False),
        ("j", np.uint64, False, False),
    ]


def test_diff_shows_changed_code_without_headers() -> None:
    text = kernels.diff("01_naive.cu", "variants/01_naive_fast.cu")
    changed = [line[1:].strip() for line in text.splitlines() if line[0] in "+-"][2:]
    assert "sum += __expf(x[col] - row_max);" in changed
    assert not any(line.startswith("Idea") or "SPDX" in line for line in changed)


def test_trial_is_named_after_its_kernel_and_what_is_tried() -> None:
    assert kernels.split_trial("01_naive-b32") == ("01_naive", 32, ())
    assert kernels.split_trial("06_registers-PACKS4") == ("06_registers", None, ("-DPACKS=4",))
    assert kernels.split_trial("variants/00_copy_scalar") == ("variants/00_copy_scalar", None, ())
    two = kernels.split_trial("08_cluster-CLUSTER2-b512-PACKS_A4")
    assert two == ("08_cluster", 512, ("-DCLUSTER=2", "-DPACKS_A=4"))
    assert [kernels.step_number(step) for step in ("variants/07_a-b64", "10_b")] == [7, 10]


@pytest.mark.parametrize("trial", (*kernels.TRIALS, *SMALL_TRIALS))
def test_a_trial_differs_from_its_kernel(trial: str) -> None:
    file, block, options = kernels.split_trial(trial)
    code = source(f"{file}.cu")
    own = header(code)
    first = own.dtypes[0].name
    lengths = (*SHAPES, REFERENCE_SHAPE, (2**18, 1024))
    shapes = [shape for shape in lengths if kernels.step_plan(trial, *shape, first)]
    assert shapes
    changed = header(code, options)
    if block:
        assert block % 32 == 0
        assert all(block != own.plan(*shape).block for shape in shapes if own.accepts(*shape))
        assert all(kernels.step_plan(trial, *shape).block == block for shape in shapes)
    for name, value in changed.defined.items():
        assert name in {*own.macros, *own.build}, f"{file} has no macro {name}"
        assert own.macros.get(name) != value
        if name in own.build:
            plans = [
                own.plan(*shape, dtype)
                for shape in shapes
                for dtype in own.dtypes
                if own.accepts(*shape, dtype)
            ]
            assert any(plan.macros[name] != value for plan in plans)


def test_a_header_may_use_numbers_that_the_file_defines() -> None:
    code = EXAMPLE.replace("block = 128,", "block = 32 * WIDTH,") + "\n#define WIDTH 2  // why\n"
    assert header(code).plan(100, 10).block == 64
    assert header(code, ("-DWIDTH=8", "-O3")).plan(100, 10).block == 256


def test_a_header_may_rule_out_block_sizes() -> None:
    code = EXAMPLE.replace("block = 128,", "block = 128, block % 32 == 0,")
    assert header(code).plan(100, 10, block=64).block == 64
    with pytest.raises(ValueError, match="block = 48 is not what the header asks: block % 32 == 0"):
        header(code).plan(100, 10, block=48)


# ---- compiled for each shape ------------------------------------------------------------------

BUILD = """// Row:      2 to 32 lanes
// Build:    WIDTH = size == 4 && cols % 4 == 0 ? 4 : 1,
//           LANES = min(32, power_of_two(cols / WIDTH))
"""
PER_SHAPE = (
    EXAMPLE.replace("// Row:      one thread\n", BUILD)
    .replace("(rows + block - 1) / block", "rows * LANES / ROWS, cooperative")
    .replace("Shared:   0\n", "Shared:   size * LANES\n// Workspace: 8 * rows * LANES\n")
    .replace("cols >= 1", "cols >= 2 && cols <= 1000 * WIDTH")
    .replace("float32", "float32, float16, bfloat16")
    .replace('extern "C"', '#define ROWS 1\nextern "C"', 1)
)


def test_plan_computes_macros_launch_and_workspace() -> None:
    plan = header(PER_SHAPE).plan(10, 64)
    assert plan.options == ("-DWIDTH=4", "-DLANES=16")
    assert plan.macros == {"WIDTH": 4, "LANES": 16}
    assert (plan.grid, plan.block, plan.shared_mem) == (160, 128, 64)
    assert (plan.workspace, plan.cooperative) == (1280, True)
    assert plan.launch == {"grid": 160, "block": 128, "shared_mem": 64, "WIDTH": 4, "LANES": 16}
    half = header(PER_SHAPE).plan(10, 64, "float16")
    assert half.options == ("-DWIDTH=1", "-DLANES=32", "-DFLOAT16") and half.shared_mem == 64
    assert header(PER_SHAPE).plan(10, 64, "bfloat16").options[-1] == "-DBFLOAT16"
    plain = header(EXAMPLE).plan(129, 7)
    assert plain.options == () and plain.macros == {} and not plain.cooperative
    assert (plain.grid, plain.block, plain.shared_mem, plain.workspace) == (2, 128, 0, 0)


def test_plan_takes_other_values_of_macros() -> None:
    contract = header(PER_SHAPE)
    plan = contract.plan(10, 64, macros={"WIDTH": 1})
    assert plan.options == ("-DWIDTH=1", "-DLANES=32"), "what follows from it changes too"
    plan = contract.plan(10, 64, macros={"LANES": 8, "ROWS": 2})
    assert plan.options == ("-DWIDTH=4", "-DLANES=8", "-DROWS=2") and plan.grid == 40
    again = header(PER_SHAPE, plan.options).plan(10, 64)
    assert again.macros == plan.macros and again.grid == 40
    with pytest.raises(ValueError, match="the kernel has no macro LINES"):
        contract.plan(10, 64, macros={"LINES": 8})


def test_plan_refuses_what_the_header_excludes() -> None:
    contract = header(PER_SHAPE)
    with pytest.raises(ValueError, match="rows = 3, cols = 1; its header says rows >= 1, cols >="):
        contract.plan(3, 1)
    assert contract.accepts(3, 2000) and not contract.accepts(3, 2001)
    assert not contract.accepts(3, 2000, "bfloat16"), "Columns may use the macros"
    with pytest.raises(ValueError, match="float32, float16, bfloat16, not float64"):
        contract.plan(3, 64, "float64")
    assert not contract.accepts(3, 64, "float64") and not contract.accepts(0, 64)


def test_options_choose_the_dtype_of_a_kernel() -> None:
    names = [dtype.name for dtype in header(PER_SHAPE).dtypes]
    assert names == ["float32", "float16", "bfloat16"]
    for name in names:
        options = header(PER_SHAPE).plan(3, 64, name).options
        assert header(PER_SHAPE, options).dtype.name == name
    only = header(PER_SHAPE.replace("float32, float16, bfloat16", "float16, bfloat16"))
    assert only.plan(3, 64, "float16").options == ("-DWIDTH=1", "-DLANES=32")
    assert only.dtype == np.float16 and not only.accepts(3, 64)


def test_a_build_line_may_have_no_sense_for_shapes_that_are_refused() -> None:
    code = PER_SHAPE.replace("cols / WIDTH)", "cols / (cols / 2000))").replace(
        "cols >= 2 && cols <= 1000 * WIDTH", "cols >= 2000"
    )
    assert not header(code).accepts(3, 64)
    assert header(code).plan(3, 4000).macros["LANES"] == 32


def test_steps_are_planned_by_their_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "source", lambda name: PER_SHAPE)
    assert kernels.step_plan("07_some", 10, 64) == header(PER_SHAPE).plan(10, 64)
    assert kernels.step_plan("07_some", 10, 1) is None
    assert kernels.step_plan("07_some", 10, 64, "float64") is None
    trial = kernels.step_plan("07_some-LANES8-ROWS2-b64", 10, 64, "float16")
    assert trial == header(PER_SHAPE).plan(10, 64, "float16", 64, {"LANES": 8, "ROWS": 2})
    kernel = kernels.step_kernel("07_some-LANES8-ROWS2-b64", trial)
    assert kernel.options == trial.options and kernel.enable_cooperative_groups
    assert kernels.step_kernel("07_some-LANES8").options == ("-DLANES=8",)
    again, plan = compiled_for(PER_SHAPE, 10, 64, "float16")
    assert again.options == plan.options == header(PER_SHAPE).plan(10, 64, "float16").options
    assert compiled_for(kernel, 10, 64, "float16")[0] is kernel
    assert compiled_for(kernel, 10, 64, "float16", 64)[1] == trial
