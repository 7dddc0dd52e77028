"""A build that its header did not choose is refused or right: none is silently wrong.

Whoever copies a kernel out of its file compiles it with macros of their own. Here values of the
Build table, the block size and the GPU are changed at random; then the header has to refuse the
plan, the compiler the macros (`static_assert`), or the SIMT machine must find the result right.
"""

import random
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from helpers.base.gpu import H200, Gpu
from helpers.catalogue.header import header
from helpers.catalogue.registry import source, steps, variants
from helpers.problem.problem import Problem
from helpers.run.bound import bind
from helpers.run.check import WrongResult, check_outputs, strided_copy
from helpers.run.references import make_inputs, outputs
from helpers.simt import CompileError, compile_ptx

FILES = [name for name in (*steps(), *variants()) if header(source(f"{name}.cu")).build]
BUILDS = 4  # of each file at least, that its header does not refuse; four times as many at most
LEAST = {"right": 3, "refused by the header": 2}
TRIED = ("refused by the compiler", "right", "wrong")
ROWS = (1, 2, 3)
COLS = (
    *(1, 7, 12, 16, 40, 64, 96, 100, 128, 200, 256, 264, 520, 1000, 1024, 1500, 2048, 4096, 5000),
    *(8192, 9000, 12288, 16384),
)
INNER = (1, 2, 7, 8, 31, 32, 40, 100)  # elements from one column to the next, of any axis
GAPS = ((0, 0), (5, 2), (0, 1), (8, 16))  # where a kernel takes rows that are apart
# What a launch may have and a thread hold, so that the machine is done in no time.
MOST_THREADS, MOST_COLUMNS = 2**13, 64


class Build(NamedTuple):
    rows: int
    cols: int
    dtype: str
    block: int | None
    changes: dict[str, int]
    gpu: Gpu
    gaps: tuple[int, int] = (0, 0)  # elements between the rows of x and of y
    inner: int = 1

    def __str__(self) -> str:
        changed = ", ".join(f"{name} = {value}" for name, value in self.changes.items())
        block = f", block = {self.block}" if self.block else ""
        sms = f" on {self.gpu.sms} SMs" if self.gpu != H200 else ""
        apart = f", {self.gaps} between rows" if any(self.gaps) else ""
        apart += f", inner = {self.inner}" if self.inner > 1 else ""
        return f"{self.rows} x {self.cols} {self.dtype} with {changed}{block}{sms}{apart}"


def perturbed(code: str, seed: str) -> Iterator[Build]:
    """Builds of a kernel file, without end: for a shape that it takes, then changed."""
    choose = random.Random(seed)
    contract = header(code)
    names = [value.name for value in contract.build if value not in contract.built_features]
    while True:
        shape = choose.choice(ROWS), choose.choice(COLS)
        dtype = choose.choice(contract.dtypes).name
        inner = 1
        if "inner" in contract.operation.sizes:
            inner = choose.choice(INNER)
            shape = shape[0] * inner, max(1, shape[1] // inner)
        if not contract.accepts(Problem(*shape, dtype, inner=inner)):
            continue
        plan = contract.plan(Problem(*shape, dtype, inner=inner))
        changes = {}
        for name in choose.sample(names, min(len(names), choose.choice((1, 1, 2, 3)))):
            value = {**plan.macros, **plan.values}[name]
            near = (value - 1, value + 1, value // 2, 2 * value, 3 * value)
            changes[name] = max(0, choose.choice((*near, *near, 0, 1, 2, 3, 5, 16, 24, 33)))
        block = choose.choice((None,) * 9 + (32, plan.block // 2, plan.block + 1, 2 * plan.block))
        gpu = choose.choice((H200, H200, Gpu(capability=90, sms=3, l2=2**16)))
        gaps = choose.choice(GAPS) if contract.strided else (0, 0)
        yield Build(*shape, dtype, block, changes, gpu, gaps, inner)


def outcome(code: str, build: Build) -> str:
    """Who refuses the build, or whether its result is right."""
    rows, cols, dtype, block, changes, gpu, gaps, inner = build
    x_stride, y_stride = cols + gaps[0], cols + gaps[1]
    try:
        sizes = {"x_stride": x_stride, "y_stride": y_stride, "inner": inner}
        bound = bind(code, rows, cols, dtype, block, changes, gpu=gpu, **sizes)
    except ValueError:
        return "refused by the header"
    macros = bound.plan.macros
    if "ITEMS" in macros:  # of 4 bytes
        held = 2 * macros["ITEMS"]
    else:
        packs = macros.get("PACKS", macros.get("UNROLL"))
        assert packs is not None, f"{bound.name} has no PACKS, from which its size is told here"
        held = packs * macros.get("WIDTH", 4) * macros.get("ROWS", 1)
    if bound.plan.grid * bound.plan.block > MOST_THREADS or held > MOST_COLUMNS:
        return "too large"
    declared = {parameter.name for parameter in bound.kernel.parameters}
    given = {name: one for name, one in make_inputs(bound.problem).items() if name in declared}
    written = outputs(bound.problem, given)
    if any(gaps):
        given["x"] = strided_copy(given["x"], x_stride, 1)
        written["y"] = strided_copy(written["y"], y_stride, 3)
    try:
        trace = bound.simulate(**given, **written)
    except CompileError as error:
        assert "static assertion failed" in str(error), f"{build}: {error}"
        return "refused by the compiler"
    except ValueError as error:
        assert "LATE = 1" in str(error), f"{build}: {error}"
        return "refused by the launcher"
    try:
        values = bound.problem.complete(given)
        check_outputs(bound.kernel.operation, values, written, bound.features)
    except WrongResult:
        return "wrong"
    return "wrong" if trace.findings else "right"


@pytest.mark.parametrize("file", FILES)
def test_no_build_is_silently_wrong(file: str) -> None:
    code = source(f"{file}.cu")
    found: dict[str, list[Build]] = {}
    for build in perturbed(code, file):
        found.setdefault(outcome(code, build), []).append(build)
        tried = sum(len(found.get(what, ())) for what in TRIED)
        enough = all(len(found.get(what, ())) >= least for what, least in LEAST.items())
        if tried >= 4 * BUILDS or tried >= BUILDS and enough:
            break
    assert "wrong" not in found, "\n".join(map(str, found["wrong"]))
    for what, least in LEAST.items():
        builds = found.get(what, [])
        assert len(builds) >= least, (
            f"of the builds with other values in the Build table, {len(builds)} are {what}: the "
            "header or a static_assert refuses what the code can serve, or accepts what it cannot"
        )


@pytest.mark.parametrize(
    ("file", "old", "new", "build"),
    [
        ("07_warp", "LANES <= 32 && (LANES & (LANES - 1)) == 0", "true", "LANES=24"),
        ("10_sixteen_bit", "LANES <= 32 && (LANES & (LANES - 1)) == 0", "true", "LANES=24"),
        ("07_warp", "&& cols <= WIDTH * LANES * PACKS", "", "PACKS=1"),
        ("08_cluster", "&& THREADS % 32 == 0", "", "THREADS=100"),
        ("08_cluster", "&& row <= 16 * CLUSTER * THREADS * PACKS", "", "PACKS=1"),
        ("09_grid", "&& THREADS % 32 == 0", "", "THREADS=100"),
        ("13_any_axis", "&& dim * TILE <= CLUSTER * MEMBERS * PACKS * WIDTH", "", "PACKS=1"),
        ("08_ahead", "&& THREADS % 32 == 0", "", "THREADS=208"),
        ("08_ahead", "&& row > 16 * CLUSTER * THREADS * (PACKS - 1)", "", "PACKS=10"),
    ],
)
def test_a_loosened_condition_is_found(file: str, old: str, new: str, build: str) -> None:
    """Without a condition, a build that it refuses is wrong."""
    code = source(f"{file}.cu")
    assert old in code
    name, value = build.split("=")
    cols = {"07": 1000, "10": 1000, "09": 16384}.get(file[:2], 9000)
    dtype = header(code).dtypes[0].name
    tried = Build(3, cols, dtype, None, {name: int(value)}, H200)
    assert outcome(code, tried).startswith("refused")
    assert outcome(code.replace(old, new), tried) == "wrong"


@pytest.mark.parametrize("file", FILES)
def test_every_macro_is_asked_for(file: str) -> None:
    """By #error, which gives an example that compiles."""
    code = source(f"{file}.cu")
    joined = re.sub(r"\\\n *", "", code)
    ((condition, message),) = re.findall(r'^#if (.*)\n#error "(.*)"$', joined, re.MULTILINE)
    example = tuple(re.findall(r"-D\w+=\d+", message))
    macros = sorted(header(code).macros)
    assert sorted(condition.split(" || ")) == [f"!defined({name})" for name in macros]
    assert sorted(option[2:].partition("=")[0] for option in example) == macros
    compile_ptx(code, example)
    with pytest.raises(CompileError, match="compile with all macros of the Build table"):
        compile_ptx(code, example[1:])
