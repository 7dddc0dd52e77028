"""The plan of an exported Python file: what `choose` picks and what its header says, at random
matrices and on six GPUs."""

import ast
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from helpers.base.gpu import H200
from helpers.base.paths import ROOT
from helpers.catalogue.dispatch import RANKINGS
from helpers.catalogue.registry import steps, variants
from helpers.catalogue.tuned import tuned_table
from helpers.export.python import write
from helpers.export.request import ExportError, export_request, takes_matrix
from helpers.run.bound import load
from helpers.simt.cuda_text import token_hash
from tests.helpers.export.plans import (
    MB,
    PLAIN,
    Around,
    Launch,
    Matrix,
    arounds,
    chosen,
    matrices,
    on_axes,
)
from tests.helpers.export.plans import planned as header_plan

DTYPES = tuple(np.dtype(name) for name in ("float32", "float16", "bfloat16"))
DTYPE_OPTIONS = {"float16": "-DFLOAT16", "bfloat16": "-DBFLOAT16"}


def planned(text: str) -> ModuleType:
    """An exported file's plan, which needs none of the framework's packages."""
    module = ModuleType("exported")
    sys.modules["exported"] = module  # where typing.NamedTuple looks for what a file defines
    text = re.sub(r"^(import|from) (cupy|torch).*\n", "", text, flags=re.MULTILINE)
    before, launching, rest = text.partition("# ---- compiling and launching")
    kernels = rest[rest.index("# ---- the kernels") :]
    exec(compile(before + kernels, "exported.py", "exec"), vars(module))
    return module


def plan_of_export(module: ModuleType, matrix: Matrix, **around) -> tuple[str, Launch] | None:
    """The file and the launch, as `chosen` has them; None if it refuses."""
    *shape, dtype, x_stride, y_stride, x, y, gpu = matrix
    strides, places = (x_stride, y_stride), (x == y == 0, x == y)
    gpu = module.Gpu(gpu.capability, gpu.sms, gpu.l2)
    try:
        found = module.plan(*shape, dtype.name, *strides, *places, gpu, **around)
    except module.Refused:
        return None
    given = [option[2:].split("=") for option in found.options if "=" in option]
    kernel, macros = module.kernel(found.kernel), {name: int(value) for name, value in given}
    others = {name: macros.pop(name) for name in {*macros} - {*kernel.macros}}
    asked = around.get("features", {}).items()
    assert others == {name: value for name, value in asked if name not in macros}, (
        "features that are not in the Build table"
    )
    dtypes = [option for option in found.options if "=" not in option]
    first = kernel.dtypes[0]
    assert dtypes == ([] if dtype.name == first else [DTYPE_OPTIONS[dtype.name]])
    sizes = found.grid, found.block, found.shared_mem, found.workspace, found.cluster
    programmatic = bool(macros.get("PROGRAMMATIC"))
    return found.kernel, Launch(*sizes, programmatic, found.cooperative, tuple(macros.values()))


Plans = dict[tuple[Matrix, Around, int], tuple[str, Launch] | None]  # None: refused


@pytest.fixture(scope="module")
def wanted() -> Plans:
    """The project's plans of softmax without features."""
    drawn = [*matrices(4000, DTYPES), *corners()]
    whole = (m for m in drawn if m.x_start % m.dtype.itemsize == m.y_start % m.dtype.itemsize == 0)
    return {(m, PLAIN, 1): chosen(m) for m in whole}


@pytest.fixture(scope="module")
def wanted_around() -> Plans:
    """The project's plans of all that is computed beside softmax."""
    chance = random.Random(0)
    drawn = [m for m in matrices(1500, DTYPES) if not (m.x_start or m.y_start) % m.dtype.itemsize]
    asked = [(matrix, chance.choice(arounds()), 1) for matrix in drawn]
    axes = (Around("softmax_any_axis", ()), Around("softmax_any_axis", (("LOG", 1),)))
    axes += (PLAIN, Around("softmax_backward", ()))
    asked += [(m, chance.choice(axes), inner) for m, inner in on_axes(1000, DTYPES)]
    return {each: chosen(*each) for each in asked}


def corners() -> Iterator[Matrix]:
    """The first and last shapes of each tuned plan's ranges, and those just outside."""
    for plan in tuned_table(H200):
        (rows, last_rows), (cols, last_cols) = plan.rows, plan.cols
        pack, dtype = 16 // plan.problem.itemsize, np.dtype(plan.dtypes[0])
        whole = pack if plan.problem.packed else 1
        first = -(-cols // whole) * whole
        for row, col in (
            *((rows, first), (rows - 1, first), (rows, first - whole)),
            *((last_rows, last_cols), (last_rows + 1, last_cols), (last_rows, last_cols + whole)),
        ):
            if 1 <= row <= 2**20:
                yield Matrix(row, col, dtype, col, col, 0, 0, H200)


def differences(module: ModuleType, wanted: Plans) -> Iterator[tuple]:
    for (matrix, (operation, features), inner), plan in wanted.items():
        around = {"operation": operation, "features": dict(features), "inner": inner}
        if plan_of_export(module, matrix, **around) != plan:
            yield matrix, operation, features, inner


@pytest.fixture(scope="module")
def text() -> str:
    return write(export_request("best", []), "torch")


def test_exported_plan_is_that_of_choose_and_of_the_header(text: str, wanted: dict) -> None:
    assert len(wanted) > 3000 and None in wanted.values()
    assert list(differences(planned(text), wanted)) == []
    files = {found[0] for found in wanted.values() if found}
    assert files == {entry[0] for entry in planned(text).RANKING}, (
        "every kernel of the ranking is met"
    )


@pytest.mark.parametrize(
    ("matrix", "error"),
    [
        ((0, 5), ValueError),
        ((5, 0), ValueError),
        ((2**31, 5), ValueError),
        ((5, 5, "float64"), ValueError),
        ((5, 5, "float32", 4), ValueError),
        ((5, 5, "float32", 5, 2**60), ValueError),
        ((5.0, 5), TypeError),
        ((5, "5"), TypeError),
    ],
)
def test_what_no_kernel_takes_is_refused(matrix: tuple, error: type, text: str) -> None:
    with pytest.raises(error):
        planned(text).plan(*matrix)


def test_exported_plans_around_softmax_are_those_of_choose(text, wanted_around) -> None:
    assert list(differences(planned(text), wanted_around)) == []
    met = {plan[0] for plan in wanted_around.values() if plan}
    assert {rank.file for ranks in RANKINGS.values() for rank in ranks} <= met
    assert sum(plan is None for plan in wanted_around.values()) > 250


def test_a_softmax_that_is_only_scaled_has_the_plan_of_the_fused(text: str) -> None:
    module = planned(text)
    assert module.plan(64, 4096, operation="scaled_softmax").kernel == "12_fused"
    with pytest.raises(module.Refused, match="12_fused: does not accept rows = 64, cols = 64"):
        module.plan(64, 64, operation="scaled_softmax")


def test_a_refusal_says_why(text: str) -> None:
    with pytest.raises(ValueError, match="operation must be one of softmax, .* got attention"):
        planned(text).plan(64, 4096, operation="attention")
    with pytest.raises(ValueError, match="13_any_axis: does not support LOG = 1"):
        planned(text).plan(64, 4096, features={"LOG": 1}, inner=2)
    module = planned(text)
    with pytest.raises(module.Refused, match="requires sm_75, the GPU is sm_70"):
        module.plan(64, 64, gpu=module.Gpu(70, 80, 6 * MB))


def test_one_kernel_takes_what_its_header_takes() -> None:
    module = planned(write(export_request("07_warp", []), "cupy"))
    assert module.plan(64, 77).kernel == "07_warp"
    assert [*module.SOURCES] == ["formats.cuh", "reductions.cuh", "07_warp"]
    with pytest.raises(module.Refused, match="does not accept rows = 64, cols = 1025"):
        module.plan(64, 1025)


def test_a_trial_has_its_values() -> None:
    module = planned(write(export_request("08_cluster-CLUSTER2", []), "cupy"))
    assert "-DCLUSTER=2" in module.plan(64, 16384).options
    with pytest.raises(ExportError, match="01_naive-b32 changes more than its Build table"):
        write(export_request("01_naive-b32", []), "cupy")


def test_a_kernel_that_takes_no_late_y_gets_none() -> None:
    module = planned(write(export_request("11_any_row-LATE0", []), "cupy"))
    assert "-DLATE=0" in module.plan(64, 5001).options
    with pytest.raises(module.Refused, match="equal addresses modulo 16 bytes"):
        module.plan(64, 5001, aligned=False, alike=False)
    module = planned(write(export_request("11_any_row", []), "cupy"))
    assert "-DLATE=1" in module.plan(64, 5001, aligned=False, alike=False).options


def test_a_plan_says_why(text: str) -> None:
    module = planned(text)
    assert module.plan(8192, 50257).reason.startswith("rows that are no whole packs")
    assert module.plan(14, 2**20).reason == "rows that go evenly into the 7 clusters that stay"


def test_only_comparisons_are_joined() -> None:
    """C's && and || give 0 or 1, Python's `and` and `or` an operand."""
    for step in (*steps(), *variants()):
        header = load(step).header
        rules = [part for entry in header.build for case in entry.cases for part in case if part]
        for rule in (*rules, *header.rules.values()):
            for node in ast.walk(rule.tree):
                for part in node.values if isinstance(node, ast.BoolOp) else ():
                    assert isinstance(part, ast.BoolOp | ast.Compare), rule.text


# ---- the file as text --------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["torch", "cupy"])
def test_the_file_is_clean_and_says_where_it_comes_from(framework: str) -> None:
    text = write(export_request("best", [], "fast_softmax"), framework)
    command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", "exported.py", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    head = ast.get_docstring(ast.parse(text))
    module = planned(text)
    for name in (name for name in module.SOURCES if not name.endswith(".cuh")):
        code = load(name).code
        assert f"kernels/{name}.cu, text {token_hash(code)}." in head
    assert "# SPDX-License-Identifier: MIT\n# Copyright (c) 2026" in text
    assert "tuned on an NVIDIA H200" in " ".join(head.split())
    assert not re.search(r"^(from|import) (\.|helpers|numpy)", text, flags=re.MULTILINE)
    check_head(text, ["softmax", "scaled_masked_softmax", "cross_entropy"])
    check_head(write(export_request("07_warp", []), framework), ["softmax"])


def check_head(text: str, wanted: list[str]) -> None:
    """It says how the functions are called, with keywords as they are."""
    tree = ast.parse(text)
    defined = {node.name: node.args for node in tree.body if isinstance(node, ast.FunctionDef)}
    said = re.findall(r"^    (.* = \w+\(.*)$", ast.get_docstring(tree), flags=re.MULTILINE)
    calls = {node.value.func.id: node.value for line in said for node in ast.parse(line).body}
    assert {*wanted} <= {*calls} and ("plan" in defined) and (len(calls) == 1) == (len(wanted) == 1)
    for name, call in calls.items():
        taken = {given.arg for given in (*defined[name].args, *defined[name].kwonlyargs)}
        assert {keyword.arg for keyword in call.keywords} <= taken


@pytest.mark.parametrize("step", [*filter(takes_matrix, (*steps(), *variants()))])
def test_every_kernel_alone_is_planned_as_its_header_says(step: str) -> None:
    if load(step).name.startswith("copy"):
        with pytest.raises(ExportError, match="computes no softmax"):
            write(export_request(step, []), "cupy")
        return
    module = planned(write(export_request(step, []), "cupy"))
    dtypes = load(step).header.dtypes
    taken = 0
    for matrix in matrices(150, dtypes):
        places = matrix.x_start, matrix.y_start
        if any(place % matrix.dtype.itemsize for place in places):
            continue
        wanted = header_plan(step, matrix)
        taken += wanted is not None
        assert plan_of_export(module, matrix) == (wanted and (step, wanted))
    assert taken > 0


WORDS = {  # what only files of certain kernels contain
    "workspace": ("graph_workspace", "_Stream", "PER_THREAD_STREAM"),
    "cooperative": ("_Attribute", "CU_LAUNCH_ATTRIBUTE_COOPERATIVE"),
    "shared": ("_shared", "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"),
    "cluster": ("CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED",),
    "late": ('"LATE"',),
    "best": ("RANKING", "TUNED:", "features", "inner", "log_softmax", "cross_entropy", "_bits"),
}


@pytest.mark.parametrize("framework", ["torch", "cupy"])
@pytest.mark.parametrize(
    ("step", "own"),
    [
        ("03_shared", ("shared",)),
        ("07_warp", ()),
        ("08_cluster", ("cluster",)),
        ("08_ahead", ("cluster", "shared")),
        ("09_grid", ("workspace", "cooperative")),
        ("11_any_length", ("workspace", "cooperative")),
        ("11_any_row", ("cluster", "late")),
    ],
)
def test_a_file_of_one_kernel_has_what_this_needs_alone(framework, step, own) -> None:
    text = write(export_request(step, []), framework)
    runtime = text.partition("# ---- the kernels")[0]
    for name, words in WORDS.items():
        assert [word in runtime for word in words] == [name in own] * len(words), (name, words)
    command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", "exported.py", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout  # an import too many, a name that is missing
