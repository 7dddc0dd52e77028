"""Every kernel file: its header, its signature, and that it compiles alone wherever it says so."""

import ast
import hashlib
import os
import re
from collections.abc import Sequence

import pytest
from cuda.bindings import nvrtc

from helpers.base.gpu import H200, Gpu
from helpers.base.paths import KERNELS
from helpers.catalogue.dispatch import RANKINGS, SOFTMAX_RANKING
from helpers.catalogue.expressions import MAX_BLOCK
from helpers.catalogue.header import KEYS, OPTIONAL_KEYS, header
from helpers.catalogue.plan import DTYPE_OPTIONS, Header
from helpers.catalogue.registry import (
    PRODUCTION,
    source,
    split_trial,
    step_number,
    steps,
    variants,
)
from helpers.problem.operations import COPY, SOFTMAX
from helpers.problem.problem import MAX_INT, Problem
from helpers.run.bound import Kernel, kernel_of
from helpers.run.references import make_inputs, outputs
from helpers.simt import cache
from helpers.simt.compile import CompileError, include_folders, toolkit_versions
from helpers.simt.cuda_text import kernel_names, signature, strip_comments, token_hash

CONDITION = ast.Compare | ast.BoolOp  # 0 or 1
ARCHS = (75, 80, 86, 89, 90, 100, 120)
GPUS = {arch: Gpu(arch, H200.sms, H200.l2) for arch in ARCHS}
# Where passes are counted: the first that a kernel takes.
PASSES_SHAPES = ((8, 96, 1), (3, 20000, 1))
PASSES_AXES = ((2 * 32, 48, 32), (3 * 7, 40, 7))  # rows, cols, inner
HEADER = re.compile(r'<cuda_[bf]p?16\.h>|"(\.\./)?include/\w+\.cuh"')
SHAPES = (
    *((1, 1), (1, 32768), (33, 1000), (4096, 12672), (8388608, 32), (100_000_000, 1)),
    *((3, 20000), (16, 131072), (1, 1048576), (33, 64), (5, 8), (262144, 1024)),
)


def kernel_files() -> list[str]:
    """Paths below kernels/. An exercise may do without a header, a kernel of the series not."""
    files = sorted(path.relative_to(KERNELS).as_posix() for path in KERNELS.rglob("*.cu"))
    return [file for file in files if "exercises/" not in file or "// Launch:" in source(file)]


FILES = kernel_files()
# Of the benchmarks, which are no steps, are those in timing/.
SERIES = [file for file in FILES if not file.startswith(("exercises/", "timing/"))]
DISPATCHED = {rank.file for ranks in (SOFTMAX_RANKING, *RANKINGS.values()) for rank in ranks}
each_file = pytest.mark.parametrize("file", FILES)


def accepted_shapes(code: str, dtype: str, gpu: Gpu = H200) -> list[tuple[int, int]]:
    contract = header(code)
    return [shape for shape in SHAPES if contract.accepts(Problem(*shape, dtype), gpu)]


def yes_or_no(contract: Header) -> set[str]:
    """The macros of a Build table whose every case is 0, 1 or a condition; of any other 0 is a
    mistake."""
    found = set()
    for entry in contract.build:
        values = [value for value, _ in entry.cases]
        plain = {value.text for value in values if not isinstance(value.tree, CONDITION)}
        if entry.is_macro and plain <= {"0", "1"} and not (plain == {"1"} and len(values) == 1):
            found.add(entry.name)
    return found


def compiler_options(code: str, arch: int) -> list[tuple[str, ...]]:
    """One set of options for each dtype of the file, each for another shape, as planned for an
    architecture. A later one may have less shared memory than all of its plans ask for."""
    contract, gpu = header(code), GPUS[arch]
    found = []
    for number, dtype in enumerate(contract.dtypes):
        shapes = accepted_shapes(code, dtype.name, gpu)
        if shapes or arch == contract.arch:
            assert shapes, f"{dtype} is taken at none of the shapes {SHAPES}: add one that is"
            found.append(contract.plan(Problem(*shapes[number % len(shapes)], dtype), gpu).options)
    return found


def architectures(code: str, production: bool = True) -> list[int]:
    """The lowest of the header; for what is used outside of its lesson also those for which it may
    compile otherwise. NVRTC's headers for 16 bits tell 8.0 and 9.0 apart; assembly may use what was
    dropped again; a file may ask for the architecture itself."""
    lowest, text = header(code).arch, strip_comments(code)
    asks = "__CUDA_ARCH" in text or "capability" in header(code).fields.get("Build", "")
    later = (80, 90, ARCHS[-1]) if asks else (80, 90) if "#include" in text else ()
    later = {*later, *(ARCHS[-1:] if "asm" in text else ())} if production else ()
    return sorted({lowest, *(arch for arch in later if arch > lowest)})


def compile_plain(code: str, target: str, options: Sequence[str] = ()) -> str:
    """What NVRTC has to say about the source as plain C++17, without CuPy's options; for a target
    "sm_90" also the assembler, which alone reads what stands in `asm`. What it says of a text that
    it takes is kept beside the compiled kernels, as long as no header changes."""
    flags = [f"--gpu-architecture={target}", "--std=c++17", *options]
    state = cache.state(code, (), (os.getcwd(),))
    what = repr(("said", nvrtc.nvrtcVersion()[1:], toolkit_versions(), flags, code, state))
    entry = f"{hashlib.sha256(what.encode()).hexdigest()}.ptx"
    if state and (said := cache.read(entry)) is not None:
        return said.decode()
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
    if state:
        cache.write(entry, text.encode())
    return text


def test_series_is_complete() -> None:
    """The lists that notebooks and recorder use are the files that are there."""
    listed = [*steps(), *variants()]
    assert sorted(f"{name}.cu" for name in listed) == SERIES
    numbers = [int(name[:2]) for name in steps()]
    assert numbers == list(range(len(numbers))) and len(numbers) >= 3
    for name in variants():
        assert re.match(r"(variants/)?\d\d_", name), f"{name} belongs to no step"
        assert step_number(name) in numbers
    chosen = {split_trial(name).file for name in DISPATCHED}
    assert {*PRODUCTION} <= chosen <= {*steps(), *PRODUCTION}


# ---- each file --------------------------------------------------------------------------------


def text_complaints(text: str) -> list[str]:
    """What every file must be and have, whatever it computes."""
    found = []
    if not text.startswith("// SPDX-License-Identifier: MIT\n"):
        found.append("no licence on its first line")
    if not text.endswith("\n") or "\t" in text or "\r" in text:
        found.append("a tab, a carriage return, or no end of the last line")
    if any(len(line) > 100 for line in text.splitlines()):
        found.append("a line of more than 100 columns")
    included = re.findall(r"^\s*#\s*include\s*(\S+)", text, flags=re.MULTILINE)
    if not all(map(HEADER.fullmatch, included)):
        found.append("a header that is neither for 16 bits nor in include/")
    # `make notebooks` rewrites the line; that must not make the record an old one.
    measured = text.replace("// Measured: ", "// Measured: 4321 GB/s, or ")
    if measured == text or token_hash(measured) != token_hash(text):
        found.append("a hash that depends on its header")
    return found


def test_texts_keep_the_rules() -> None:
    texts = {file: (KERNELS / file).read_bytes().decode() for file in FILES}
    assert {file: said for file, text in texts.items() if (said := text_complaints(text))} == {}


@each_file
def test_a_header_has_its_keys_and_says_what_the_code_is(file: str) -> None:
    contract = header(source(file))
    assert contract is not None
    used = [key for key in KEYS if key in contract.fields or key not in OPTIONAL_KEYS]
    assert list(contract.fields) == used
    assert all(contract.fields.values())
    check_launch(file, contract)
    check_dtypes(file, contract)
    check_parameters(file)


def check_launch(file: str, contract: Header) -> None:
    """Hold that launches are sensible."""
    for dtype in contract.dtypes:
        shapes = accepted_shapes(source(file), dtype.name)
        assert len(shapes) >= 3, "the header refuses nearly every shape"
        for rows, cols in shapes:
            plan = contract.plan(Problem(rows, cols, dtype))
            assert 1 <= plan.grid <= MAX_INT
            assert 32 <= plan.block <= MAX_BLOCK and plan.block % 32 == 0
            assert 0 <= plan.shared_mem <= H200.max_shared
            zero = {name for name, value in plan.macros.items() if value == 0}
            assert zero <= yes_or_no(contract), (
                f"{', '.join(zero - yes_or_no(contract))} = 0 at {rows} x {cols} {dtype}: only a "
                "macro whose every case is 0 or 1 may be 0"
            )
            if contract.fields["Row"] == "one thread":
                assert 0 <= plan.grid * plan.block - rows < plan.block
            if not re.search("block (==|<)", contract.fields["Launch"]) and plan.block < MAX_BLOCK:
                wider = contract.plan(Problem(rows, cols, dtype), block=plan.block + 32)
                assert wider.block == plan.block + 32 and wider.grid >= 1


def check_dtypes(file: str, contract: Header) -> None:
    """Hold that dtypes, alignment and architecture are those of the code."""
    code = source(file)
    declared = {one.name: one for one in signature(code, kernel_names(code)[0])}
    typed = [a.name for a in contract.operation.arrays({}) if a.dtype == "T"]
    if len(contract.dtypes) == 1:
        assert {declared[name].dtype for name in typed} == {contract.dtype}
    else:
        wide = {"y"} if "WIDE" in contract.features else set()  # a name of its own, or T
        assert {declared[name].type for name in {*typed} - wide} == {"T"}, (
            "the file's name for the dtype it is compiled for"
        )
        names = [option.removeprefix("-D") for option in DTYPE_OPTIONS.values()]
        used = [f"-D{name}" for name in names if re.search(rf"\b{name}\b", code)]
        assert {*used} >= {DTYPE_OPTIONS[dtype.name] for dtype in contract.dtypes[1:]}
    for dtype in contract.dtypes:
        assert dtype.itemsize <= contract.align(dtype) <= 16
    assert contract.arch in ARCHS and contract.fields["Arch"] == f"sm_{contract.arch}"


def check_parameters(file: str) -> None:
    """Hold that there is one kernel, which takes what its operation says: in its order, inputs
    const, numbers in the types that the operation gives them."""
    code = source(file)
    (name,) = kernel_names(code)
    kernel = Kernel(code)
    if file != "timing/sums.cu" and "exercises/" not in file:
        assert name.startswith("copy") == (kernel.operation is COPY)
    kernel.check_signature()
    arguments = {argument.name: argument for argument in kernel.operation.arguments}
    inplace = kernel.header.fields.get("Inplace", "").split(" = ")
    types = {**dict.fromkeys(kernel.operation.sizes, "int"), "workspace": ""}
    types |= dict.fromkeys(("x_stride", "y_stride"), "long long")
    for parameter in kernel.parameters:
        argument = arguments.get(parameter.name)
        if argument is None:
            assert types[parameter.name] in (parameter.type, "")
        elif argument.shape:
            assert parameter.pointer and parameter.const == (not argument.output), parameter
            if argument.dtype != "T" and parameter.name != "y":
                assert parameter.dtype == argument.dtype
        else:
            assert not parameter.pointer and parameter.dtype == argument.dtype, parameter
    assert inplace == [""] or "__restrict__" not in re.search(rf"\w+\* \w* ?{inplace[0]},", code)[0]


@each_file
def test_compiles_alone_without_a_warning(file: str) -> None:
    """As plain C++17, to machine code where the assembler may refuse the file. With CuPy's
    options it is compiled wherever it is run: they make every function a device function, so that a
    missing __device__ shows here alone."""
    production = file[0].isdigit() or file.removesuffix(".cu") in DISPATCHED
    compiles_alone(source(file), production)


def compiles_alone(code: str, production: bool = True) -> None:
    lowest, *later = architectures(code, production)
    kind = "sm" if production or "asm" in strip_comments(code) else "compute"
    first, *others = compiler_options(code, lowest)
    for options in (first, *(others[-1:] if later else others)):
        assert compile_plain(code, f"{kind}_{lowest}", options) == ""
    for number, arch in enumerate(later):  # the dtypes take turns
        target, every = "sm" if arch == ARCHS[-1] else "compute", compiler_options(code, arch)
        if every:
            assert compile_plain(code, f"{target}_{arch}", every[number % len(every)]) == ""


@pytest.mark.parametrize("file", SERIES)
def test_header_counts_the_passes_that_the_kernel_makes(file: str) -> None:
    code = source(file)
    contract = header(code)
    claim = re.match(r"(?:(\d+) to )?(\d+) reads? \+ (\d+) writes?", contract.fields["Reads"])
    operation, axes = contract.operation, "inner" in contract.operation.sizes
    least, most, writes = (float(claim[number] or claim[2]) for number in (1, 2, 3))
    for dtype in dict.fromkeys((contract.dtypes[0], contract.dtypes[-1])):
        every = PASSES_AXES if axes else PASSES_SHAPES
        problems = [Problem(*s[:2], dtype, s[2], operation, contract.features) for s in every]
        taken = [problem for problem in problems if contract.accepts(problem)]
        assert taken, f"{file} takes {dtype} at none of {every}: add a shape that it takes"
        problem = taken[0 if operation in (SOFTMAX, COPY) else -1]
        bound = kernel_of(code).at(problem)
        values = make_inputs(problem)
        declared = {parameter.name for parameter in bound.kernel.parameters}
        values = {name: value for name, value in values.items() if name in declared}
        written = outputs(problem, values)
        counters = bound.simulate(**values, **written).counters
        elements = problem.rows * problem.cols
        read, written = counters.passes(elements, dtype.itemsize)
        # A workspace is read and written too, by threads that wait as often as they must; and what
        # has an element for each row, by one thread of a row or by all.
        by_row = [one for one in operation.arrays({}) if one.shape == ("rows",) and not one.output]
        asked = sum(one.numpy_dtype(dtype).itemsize for one in by_row)
        by_all = asked * bound.plan.grid * bound.plan.block / (elements * dtype.itemsize)
        exact = not bound.plan.workspace and operation in (SOFTMAX, COPY)
        whole = float if exact else round
        assert least <= whole(read) and whole(read - by_all) <= most and whole(written) == writes


# The macros that some includes need, and the includes that hold the options of one kernel.
NEEDED = {"CLUSTER": 2, "THREADS": 64, "PACKS": 2, "LOG": 0, "FROM_X": 1, "DROPOUT": 1}
NEEDED |= {"MASK": 1, "BIAS": 1, "WIDE": 0, "EVICT_LAST": 1, "WIDTH": 4, "TILE": 32, "MEMBERS": 64}
OF_ONE_KERNEL = {"fused.cuh", "from_x.cuh", "hidden.cuh"}


def test_every_include_compiles_alone_and_serves_two_kernels() -> None:
    files = sorted((KERNELS / "include").glob("*.cuh"))
    needed = tuple(f"-D{name}={value}" for name, value in NEEDED.items())
    texts = [path.read_text() for path in KERNELS.rglob("*.cu*")]
    for path in files:
        code = source(f"include/{path.name}")
        for dtype in ((), *((option,) for option in DTYPE_OPTIONS.values())):
            said = compile_plain(code, "sm_90", (*dtype, *needed))
            assert re.fullmatch(r"(.*was declared but never referenced|[^:]*)*", said), said
        users = sum(f'include/{path.name}"' in text or f'"{path.name}"' in text for text in texts)
        assert users >= 2 - (path.name in OF_ONE_KERNEL), f"{path.name} is included by {users} file"
        assert "#pragma once\n" in path.read_text() and len(path.read_text().splitlines()) <= 130
