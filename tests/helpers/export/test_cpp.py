"""The C++ file of a kernel: its plan is the header's, for any C++ compiler to read."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from helpers.base.gpu import H200, Gpu
from helpers.catalogue.dispatch import RANKINGS, SOFTMAX_RANKING
from helpers.catalogue.registry import split_trial, steps, variants
from helpers.catalogue.tuned import tuned_table
from helpers.export import cpp
from helpers.export.cpp_plan import identifier
from helpers.export.request import ExportRequest, export_request, takes_matrix
from helpers.run.bound import load
from tests.copied.compilers import host_compiled, needs_headers
from tests.golden import plans, sources
from tests.helpers.export.test_python_plan import corners

FOLDER = Path(__file__).parent
LAUNCH = ("grid", "block", "shared", "workspace", "cluster", "cooperative")
TRIALS = ["03_shared-b64", "06_registers-PACKS4", "07_warp-WIDTH1-ROWS2"]
TRIALS += ["11_any_row-LATE1"]
KERNELS = [*filter(takes_matrix, (*steps(), *variants(), *TRIALS))]
KERNELS += [  # those of related operations, alone and with features
    kernel
    for file in dict.fromkeys(rank.file for ranks in RANKINGS.values() for rank in ranks)
    for kernel in sources.kernels()[file]
    if {name for name, _ in split_trial(kernel).changes} <= {*load(file).features}
]
DTYPES = tuple(np.dtype(name) for name in ("float32", "float16", "bfloat16"))
SHAPES = ("37x1024", "64x8192", "64x524288", "1x262144", "37x200")  # each kernel takes one
AXIS = "3x64x7"  # of another axis
# Of each kernel that is chosen, a shape for which it is.
CHOSEN_SHAPES = ("8x100", "8x512", "64x2048", "64x32000", "32x524288", "2x1048576", "64x77")
CHOSEN_SHAPES += ("64x4099", "4x3000001", "4x2000", "1048576x128")


def name_of(step: str) -> str:
    return "of_" + re.sub(r"\W", "_", step)


def exported(step: str, dtypes: Sequence[str] = (), gpu: Gpu = H200) -> ExportRequest:
    """A request for the first shape that a kernel takes."""
    kernel = load(step)
    dtypes = dtypes or [dtype.name for dtype in kernel.header.dtypes]
    if kernel.features.get("WIDE"):
        dtypes = [name for name in dtypes if name != "float32"]
    if "inner" in kernel.operation.sizes:
        return export_request(step, [AXIS], name_of(step), dtypes, [gpu])
    for shape in SHAPES:
        rows, cols = map(int, shape.split("x"))
        if all(kernel.accepts(rows, cols, dtype, gpu) for dtype in dtypes):
            return export_request(step, [shape], name_of(step), dtypes, [gpu])
    raise AssertionError(f"{step} takes none of {SHAPES}")


class Program:
    """The plans of exported files, compiled by g++."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        """`files` maps the name of an exported function to its file's text."""
        for name, text in files.items():
            (folder / f"{name}.cu").write_text(text)
        exports = " else ".join(f"EXPORT({name})" for name in files)
        text = (FOLDER / "plans.cpp").read_text().replace("EXPORTS", exports)
        includes = "".join(f'#include "{name}.cu"\n' for name in files)
        (folder / "plans.cpp").write_text(includes + text)
        done = host_compiled(folder, "-Wpedantic", "plans.cpp", "-o", "plans")
        assert (done.returncode, done.stderr) == (0, "")
        self.path, self.files = folder / "plans", files

    def kernels(self, name: str) -> list[str]:
        """The names of a file's kernels, as it numbers them."""
        return re.search(r"enum class Kernel \{ (.*) \};", self.files[name])[1].split(", ")

    def answers(self, asked: Sequence[tuple[str, dict]]) -> list[dict | None]:
        """The plan of each (name of a file, problem) as `sources.plan` has it; None if it is
        refused."""
        lines = []
        for name, problem in asked:
            dtypes = re.search(r"enum class Dtype \{ (.*) \};", self.files[name])[1].split(", ")
            size, gpu = np.dtype(problem["dtype"]).itemsize, Gpu(*plans.GPUS[problem["gpu"]])
            aligned, alike = problem.get("aligned", True), problem.get("alike", True)
            numbers = [dtypes.index(problem["dtype"]), size, problem["rows"], problem["cols"]]
            numbers += [problem["x_stride"], problem["y_stride"]]
            numbers += [0 if aligned else size, size if alike and not aligned else 0]
            numbers += [gpu.sms, gpu.l2, gpu.capability, gpu.max_shared, problem["inner"]]
            lines.append(" ".join(map(str, [name, *numbers])))
        done = subprocess.run(
            [self.path], input="\n".join(lines), capture_output=True, text=True, check=True
        )
        found = []
        for (name, _), line in zip(asked, done.stdout.splitlines(), strict=True):
            error, kernel, *numbers = map(int, line.split())
            launch = dict(zip(LAUNCH, numbers, strict=False))
            launch |= {"kernel": self.kernels(name)[kernel], "macros": numbers[len(LAUNCH) :]}
            found.append(None if error else launch)
        return found


def wanted(problem: dict) -> dict | None:
    """What the project plans."""
    plan = sources.plan(**problem | {"gpu": plans.GPUS[problem["gpu"]]})
    return None if "refused" in plan else plan


def same(found: dict | None, plan: dict | None) -> bool:
    """Whether a program's answer is the project's plan."""
    if not (found and plan):
        return found == plan
    macros = [*plan["macros"].values()]
    fill = [0] * (len(found["macros"]) - len(macros))
    return found["macros"] == macros + fill and all(found[n] == plan[n] for n in LAUNCH)


@needs_headers
def test_the_plan_of_every_kernel_is_that_of_its_header(tmp_path: Path) -> None:
    program = Program(tmp_path, {name_of(k): cpp.write(exported(k)) for k in KERNELS})
    asked = []
    for step in KERNELS:
        subject = {"kernels": [step], "dtypes": [dtype.name for dtype in exported(step).dtypes]}
        drawn = (plans.drawn(number, subject) for number in range(60))
        asked += [(name_of(step), one) for one in drawn if one["dtype"] in subject["dtypes"]]
    pairs = [*zip(asked, program.answers(asked), strict=True)]
    assert [one for one, found in pairs if not same(found, wanted(one[1]))] == []
    assert {name for (name, _), found in pairs if found} == {*map(name_of, KERNELS)}


NUMBERS = """
using namespace f_parts;
constexpr Number one = 1, zero = 0, none = one / zero;
static_assert(!none.defined && !(one % zero).defined && !((zero - one) / one).defined);
static_assert(!(none < one).defined && !(one + none).defined && !max(none, one).defined);
static_assert((zero && none).defined && !(one && none).defined && !(none && zero).defined);
static_assert((one || none).defined && !(zero || none).defined && !(none || one).defined);
static_assert(pick(zero, none, 7).value == 7 && pick(one, 5, none).value == 5);
static_assert(!pick(none, 1, 2).defined && !pick(zero, 1).defined && pick(one, 1).defined);
static_assert(power_of_two(5).value == 8 && power_of_two(8).value == 8 && min(2, 3).value == 2);
static_assert(ceil_div(7, 2).value == 4 && max(2, 3).value == 3 && !ceil_div(7, zero).defined);
"""
# As windows.h, included before.
WINDOWS = "#include <map>\n#include <mutex>\n#define min(a, b) ?\n#define max(a, b) ?\n"


@needs_headers
def test_what_is_not_defined_is_where_the_header_has_no_value(tmp_path: Path) -> None:
    """What && and || decide before it does not matter, as in C."""
    text = cpp.write(export_request("07_warp", ["37x320"], "f", ["float32"], [H200]))
    (tmp_path / "numbers.cpp").write_text(WINDOWS + text + NUMBERS)
    done = host_compiled(tmp_path, "-fsyntax-only", "numbers.cpp")
    assert (done.returncode, done.stderr) == (0, "")


@needs_headers
def test_tuned_plans_of_other_kernels_alone_make_a_file(tmp_path: Path) -> None:
    """None of them changes a value of a Build table."""
    text = cpp.write(export_request("best", ["37500x320", "33000x2048"], "f", ["float32"], [H200]))
    assert "struct Changes {\n};" in text
    program = Program(tmp_path, {"f": text})
    sizes = {"rows": 37500, "cols": 320, "x_stride": 320, "y_stride": 320, "inner": 1}
    problem = {**sizes, "dtype": "float32", "gpu": "H200"}
    (answer,) = program.answers([("f", problem)])
    assert same(answer, wanted(problem)) and answer["kernel"] == "warp_07"


@needs_headers
def test_what_is_best_is_what_choose_picks_at_many_matrices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file has the tuned plans of its shapes alone; here it is asked about all others, too.
    monkeypatch.setattr(cpp, "tuned_plans", lambda request: tuned_table(request.gpus[0]))
    names = [dtype.name for dtype in DTYPES]
    new, old = (
        cpp.write(export_request("best", CHOSEN_SHAPES, name, names, [Gpu(*plans.GPUS[gpu])]))
        for name, gpu in (("newer", "H200"), ("older", "A100"))
    )
    program = Program(tmp_path, {"newer": new, "older": old})
    files = {split_trial(rank.file).file for rank in SOFTMAX_RANKING}
    assert {*program.kernels("newer"), *program.kernels("older")} == {*map(identifier, files)}
    drawn = (plans.drawn(n, {"operation": "softmax", "features": {}}) for n in range(1500))
    asked = [
        ("newer" if plans.GPUS[problem["gpu"]][0] >= 90 else "older", problem)
        for problem in (*drawn, *corners())
        if problem["dtype"] in names
    ]
    wrong, seen = [], set()
    for (_, problem), found in zip(asked, program.answers(asked), strict=True):
        plan = wanted(problem)
        kernel = plan and split_trial(plan["kernel"]).file
        seen.add(kernel)
        if not same(found, plan) or found and found["kernel"] != identifier(kernel):
            wrong.append((problem, found, plan))
    assert wrong == []
    assert seen == {*files, None}
