"""The plan of an exported Python file: what `choose` picks and what its header says, at random
matrices and on six GPUs."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator

import pytest

from helpers.base.gpu import H200
from helpers.base.paths import ROOT
from helpers.catalogue.dispatch import RANKINGS, SOFTMAX_RANKING
from helpers.catalogue.header import header
from helpers.catalogue.registry import source, split_trial, steps, variants
from helpers.catalogue.tuned import tuned_table
from helpers.export.python import exported_rules, write
from helpers.export.request import ExportError, export_request, takes_matrix
from helpers.run.bound import load
from helpers.simt.cuda_text import token_hash
from tests.golden import plans, sources
from tests.golden.sources import planning


def fields(found: dict) -> tuple | None:
    """A plan of the project or of an exported file, as both have it; None if it is refused."""
    if "refused" in found:
        return None
    numbers = (found[name] for name in ("grid", "block", "workspace", "cooperative", "cluster"))
    shared = found.get("shared", found.get("shared_mem"))
    return split_trial(found["kernel"]).file, sorted(found["options"]), shared, *numbers


def compared(problems: Iterable[dict]) -> tuple[list[tuple], set[str | None]]:
    """The problems that an exported file plans otherwise than the project, and the kernels that the
    project chose."""
    wrong, chosen = [], set()
    for problem in problems:
        given = problem | {"gpu": plans.GPUS[problem["gpu"]]}
        wanted, found = fields(sources.plan(**given)), fields(sources.exported_plan(**given))
        chosen.add(wanted and wanted[0])
        wrong += [(problem, wanted, found)] * (wanted != found)
    return wrong, chosen


def corners() -> Iterator[dict]:
    """The first and last shapes of each tuned plan's ranges, and those just outside."""
    for plan in tuned_table(H200):
        (rows, last_rows), (cols, last_cols) = plan.rows, plan.cols
        whole = 16 // plan.problem.itemsize if plan.problem.packed else 1
        first = -(-cols // whole) * whole
        for row, col in (
            *((rows, first), (rows - 1, first), (rows, first - whole)),
            *((last_rows, last_cols), (last_rows + 1, last_cols), (last_rows, last_cols + whole)),
        ):
            if 1 <= row <= 2**20:
                sizes = {"rows": row, "cols": col, "inner": 1, "x_stride": col, "y_stride": col}
                yield {**sizes, "dtype": plan.dtypes[0], "gpu": "H200", "operation": "softmax"}


def test_exported_plans_are_those_of_choose_and_of_the_header() -> None:
    asked = [subject for subject in plans.subjects() if "operation" in subject]
    drawn = (plans.drawn(n, asked[n % len(asked)]) for n in range(2500))
    wrong, chosen = compared([*drawn, *corners()])
    assert wrong == []
    ranks = (SOFTMAX_RANKING, *RANKINGS.values())
    assert chosen == {split_trial(rank.file).file for of in ranks for rank in of} | {None}


@pytest.mark.parametrize(
    ("matrix", "given", "said"),
    [
        ((0, 5), {}, "rows and cols must be 1 to 2147483647, got 0 and 5"),
        ((5, 0), {}, "rows and cols must be"),
        ((2**31, 5), {}, "rows and cols must be"),
        ((5, 5, "float64"), {}, "dtype must be one of float32, float16, bfloat16, got float64"),
        ((5, 5, "float32", 4), {}, "x_stride and y_stride must be at least cols = 5"),
        ((5, 5, "float32", 5, 2**60), {}, "address at most 2[*][*]57 bytes"),
        ((5.0, 5), {}, "float"),
        ((5, "5"), {}, "str"),
        ((64, 4096), {"operation": "attention"}, "operation must be one of softmax, .* attention"),
        ((64, 4096), {"features": {"LOG": 1}, "inner": 2}, "13_any_axis: does not support LOG = 1"),
        ((64, 64), {"gpu": (70, 80, 6 * plans.MB)}, "requires sm_75, the GPU is sm_70"),
        ((64, 64), {"operation": "scaled_softmax"}, "12_fused: does not accept rows = 64, cols ="),
    ],
)
def test_a_refusal_says_why(matrix: tuple, given: dict, said: str) -> None:
    module = planning("torch")
    given = given | {"gpu": module.Gpu(*given["gpu"])} if "gpu" in given else given
    with pytest.raises((TypeError, module.Refused), match=said):
        module.plan(*matrix, **given)


APART = {"aligned": False, "alike": False}


@pytest.mark.parametrize(
    ("step", "cols", "start", "found"),
    [
        ("07_warp", 77, {}, "-DLANES=32"),
        ("07_warp", 1025, {}, "does not accept rows = 64, cols = 1025"),
        ("08_cluster-CLUSTER2", 16384, {}, "-DCLUSTER=2"),
        ("11_any_row", 5001, APART, "-DLATE=1"),
        ("11_any_row-LATE0", 5001, {}, "-DLATE=0"),
        ("11_any_row-LATE0", 5001, APART, "requires x and y with equal addresses modulo 16 bytes"),
    ],
)
def test_a_file_of_one_kernel_has_its_limits_and_the_values_of_a_trial(
    step: str, cols: int, start: dict, found: str
) -> None:
    module = planning("cupy", step)
    try:
        assert found in module.plan(64, cols, **start).options
    except module.Refused as error:
        assert str(error) == found


def test_a_file_of_one_kernel_has_what_this_includes_and_a_trial_only_its_table() -> None:
    assert [*planning("cupy", "07_warp").SOURCES] == ["07_warp"]
    with pytest.raises(ExportError, match="01_naive-b32 changes more than its Build table"):
        write(export_request("01_naive-b32", []), "cupy")


def test_a_plan_says_why() -> None:
    module = planning("torch")
    assert module.plan(8192, 50257).reason.startswith("rows that are no whole packs")
    assert module.plan(14, 2**20).reason == "rows that go evenly into the 7 clusters that stay"
    assert module.plan(64, 4096, operation="scaled_softmax").kernel == "12_fused"


def test_a_table_has_no_value_where_no_case_holds() -> None:
    code = re.sub(r"(THREADS += 512 when rows == 1)\n.* 384", r"\1", source("09_grid.cu"))
    rule = exported_rules(header(code))["THREADS"]
    assert eval(rule, {"rows": 1}) == 512
    with pytest.raises(ZeroDivisionError):  # which refuses the matrix
        eval(rule, {"rows": 2})


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
    for name in (name for name in planning(framework).SOURCES if not name.endswith(".cuh")):
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
    subject = {"kernels": [step], "dtypes": sources.dtypes(step)}
    wrong, chosen = compared(plans.drawn(number, subject) for number in range(60))
    assert wrong == [] and split_trial(step).file in chosen


WORDS = {  # what only files of certain kernels contain
    "workspace": ("graph_workspace", "_Stream", "PER_THREAD_STREAM"),
    "cooperative": ("_Attribute", "CU_LAUNCH_ATTRIBUTE_COOPERATIVE"),
    "shared": ("_shared", "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"),
    "cluster": ("CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED",),
    "late": ('"LATE"',),
    "best": ("RANKING", "TUNED:", "features", "inner", "def log_softmax", "_loss", "bits_of"),
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
