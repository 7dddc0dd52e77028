"""The C++ file of a kernel: its plan is the header's, for any C++ compiler to read."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from helpers.base.gpu import H200, Gpu
from helpers.catalogue.dispatch import SOFTMAX_RANKING
from helpers.catalogue.registry import split_trial, steps, variants
from helpers.catalogue.tuned import tuned_table
from helpers.export import cpp
from helpers.export.cpp_plan import identifier
from helpers.export.request import ExportRequest, export_request, takes_matrix
from tests.copied.compilers import host_compiled, needs_headers
from tests.helpers.export.plans import (
    GPUS,
    Launch,
    Matrix,
    OnAxis,
    chosen,
    family,
    load,
    matrices,
    on_axes,
    planned,
)

FOLDER = Path(__file__).parent
TRIALS = ["03_shared-b64", "06_registers-PACKS4", "07_warp-WIDTH1-ROWS2"]
TRIALS += ["09_grid-PROGRAMMATIC1", "11_any_row-LATE1"]
KERNELS = [*filter(takes_matrix, (*steps(), *variants(), *TRIALS)), *family()]
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

    def answers(
        self, asked: Sequence[tuple[str, Matrix | OnAxis]]
    ) -> list[tuple[str, Launch] | None]:
        """(kernel, launch) of (name, matrix), None if it is refused."""
        lines = []
        for name, matrix in asked:
            matrix, inner = matrix if isinstance(matrix, OnAxis) else (matrix, 1)
            rows, cols, dtype, *places, gpu = matrix
            dtypes = re.search(r"enum class Dtype \{ (.*) \};", self.files[name])[1].split(", ")
            numbers = [dtypes.index(dtype.name), dtype.itemsize, rows, cols, *places]
            numbers += [gpu.sms, gpu.l2, gpu.capability, gpu.max_shared, inner]
            lines.append(" ".join(map(str, [name, *numbers])))
        done = subprocess.run(
            [self.path], input="\n".join(lines), capture_output=True, text=True, check=True
        )
        found = []
        for (name, _), line in zip(asked, done.stdout.splitlines(), strict=True):
            error, kernel, *numbers = map(int, line.split())
            *sizes, programmatic, cooperative = numbers[:7]
            launch = Launch(*sizes, bool(programmatic), bool(cooperative), tuple(numbers[7:]))
            found.append(None if error else (self.kernels(name)[kernel], launch))
        return found


def header_plan(step: str, matrix: Matrix | OnAxis) -> Launch | None:
    return planned(step, *matrix) if isinstance(matrix, OnAxis) else planned(step, matrix)


def differences(program: Program, asked: Sequence[tuple[str, str, Matrix | OnAxis]]) -> list[str]:
    """What a program answers otherwise than the headers, of (name, step, matrix)."""
    answers = program.answers([(name, matrix) for name, _, matrix in asked])
    return [
        f"{name} at {matrix}: {found} instead of {wanted}"
        for (name, step, matrix), answer in zip(asked, answers, strict=True)
        if (wanted := header_plan(step, matrix)) != (found := shortened(answer, step))
    ]


def shortened(answer: tuple[str, Launch] | None, step: str) -> Launch | None:
    """A launch with as many macros as the kernel has."""
    if answer is None:
        return None
    count = len(load(step).header.macros)
    assert not any(answer[1].macros[count:])
    return answer[1]._replace(macros=answer[1].macros[:count])


def drawn(step: str, count: int, seed: int = 0) -> list[Matrix] | list[OnAxis]:
    """Matrices of the dtypes that a kernel's file is exported for."""
    axis = "inner" in load(step).operation.sizes
    return (on_axes if axis else matrices)(count, exported(step).dtypes, seed=seed)


@needs_headers
def test_the_plan_of_every_kernel_is_that_of_its_header(tmp_path: Path) -> None:
    program = Program(tmp_path, {name_of(k): cpp.write(exported(k)) for k in KERNELS})
    asked = [
        (name_of(step), step, matrix)
        for seed, step in enumerate(KERNELS)
        for matrix in drawn(step, 120, seed)
    ]
    assert differences(program, asked) == []
    answers = program.answers([(name, matrix) for name, _, matrix in asked])
    taken = {name for (name, *_), answer in zip(asked, answers, strict=True) if answer}
    assert taken == {*map(name_of, KERNELS)}


@needs_headers
def test_tuned_plans_of_other_kernels_alone_make_a_file(tmp_path: Path) -> None:
    """None of them changes a value of a Build table."""
    text = cpp.write(export_request("best", ["37500x320", "33000x2048"], "f", ["float32"], [H200]))
    assert "struct Changes {\n};" in text
    program = Program(tmp_path, {"f": text})
    matrix = Matrix(37500, 320, np.dtype("float32"), 320, 320, 0, 0, H200)
    (answer,) = program.answers([("f", matrix)])
    assert identifier(chosen(matrix)[0]) == answer[0]


@needs_headers
def test_what_is_best_is_what_choose_picks_at_thousands_of_matrices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file has the tuned plans of its shapes alone; here it is asked about all others, too.
    monkeypatch.setattr(cpp, "tuned_plans", lambda request: tuned_table(request.gpus[0]))
    names = [dtype.name for dtype in DTYPES]
    new, old = (
        cpp.write(export_request("best", CHOSEN_SHAPES, name, names, [gpu]))
        for name, gpu in (("newer", GPUS[0]), ("older", GPUS[3]))
    )
    program = Program(tmp_path, {"newer": new, "older": old})
    files = {split_trial(rank.file).file for rank in SOFTMAX_RANKING}
    numbered = {identifier(file): file for file in files}
    assert {*program.kernels("newer"), *program.kernels("older")} == {*numbered}
    asked = [
        ("newer" if matrix.gpu.capability >= 90 else "older", matrix)
        for matrix in matrices(4000, DTYPES)
    ]
    wrong, seen = [], set()
    for (_, matrix), answer in zip(asked, program.answers(asked), strict=True):
        wanted = chosen(matrix)
        found = answer and (numbered[answer[0]], shortened(answer, numbered[answer[0]]))
        seen.add(found and found[0])
        if wanted != found:
            wrong.append(f"{matrix}: {found} instead of {wanted}")
    assert wrong == []
    assert seen == {*files, None}
