"""The shipped table of tuned plans: what `choose` makes of it, and how it is made; times are made
up."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.base import paths
from helpers.base.gpu import H200, Gpu
from helpers.catalogue import store, tuned
from helpers.catalogue.dispatch import best, candidates, choose, out_of_date, why
from helpers.catalogue.registry import split_trial
from helpers.catalogue.store import REFERENCE_GPU
from helpers.catalogue.tuned import Tuned, shipped_plans, tuned_table
from helpers.commands import measure as campaign
from helpers.measure.tuning import LEAST_SPEEDUP, LONG, SIZES, SIZES_OF_LONG, grid
from helpers.problem.problem import Problem
from helpers.run.bound import load
from tests.helpers.export.conftest import kernel_files_are_read_once  # noqa: F401
from tests.helpers.test_tuning import MadeUp
from tests.made_up import FOLDER, on_a_gpu

LINES = store.read(Tuned, REFERENCE_GPU)
PROBLEM = Problem(1302, 3072, "bfloat16")  # on the grid


# ---- the table ----------------------------------------------------------------------------------


def test_every_line_is_of_the_kernels_and_rules_as_they_are() -> None:
    """An edited kernel or rule needs `make measure ARGS=tuned` again; comments do not count."""
    assert [f"{line.problem}: {old}" for line in LINES if (old := out_of_date(line, H200))] == []
    line = next(line for line in LINES if line.rule_us)
    for step in (line.rule, line.trial):
        for name, other in (("launch", {"grid": 1}), ("hash", "another")):
            changed = {**line.kernels, step: {**line.kernels[step], name: other}}
            planted = replace(line, kernels=changed)
            assert out_of_date(planted, H200) == f"{step} is another text or another launch now"


def test_every_line_is_a_cell_of_the_grid_and_its_trial_is_worth_it() -> None:
    cells = {cell.problem: cell for cell in grid()}
    for line in LINES:
        cell = cells[line.problem]
        assert (tuple(line.rows), tuple(line.cols)) == (cell.rows, cell.cols)
        file, block, changes = split_trial(line.trial)
        macros = load(file).header.macros
        assert block is None and {name for name, _ in changes} <= {*macros}, "exports know no other"
        if line.rule_us:
            middle = sorted(line.rule_us)[len(line.rule_us) // 2]
            assert middle > LEAST_SPEEDUP * sorted(line.trial_us)[len(line.trial_us) // 2], (
                line.problem
            )


def test_cells_do_not_overlap_and_leave_no_length_out() -> None:
    for dtype in ("float32", "bfloat16"):
        for whole in (True, False):
            cells = [c for c in grid() if c.problem.dtype == dtype and c.problem.packed == whole]
            assert {c.cols[0] for c in cells} - {17} <= {c.cols[1] + 1 for c in cells}
            for cols in {c.cols for c in cells}:
                rows = sorted(c.rows for c in cells if c.cols == cols)
                assert all(one[1] + 1 == other[0] for one, other in itertools.pairwise(rows))
                row = Problem(1, cols[1], dtype).row_bytes
                least = min((SIZES if row < LONG else SIZES_OF_LONG).values())
                assert rows[0][0] == max(1, -int(-least // row))


@pytest.mark.parametrize("line", tuned_table(H200)[::8], ids=lambda line: line.problem.place(True))
def test_a_plan_is_chosen_in_its_range_and_on_its_gpu_alone(line: Tuned) -> None:
    for dtype in line.dtypes:
        problem = replace(line.problem, dtype=dtype)
        assert choose(*problem.shape, dtype, H200) == line.trial
        assert choose(*problem.shape, dtype) == line.trial, "replay plans for an H200"
        other = Gpu(90, 114, 50 * 2**20)
        assert choose(*problem.shape, dtype, other) == candidates(problem, other, 1)[0]
        for other in ({"alike": False}, {"aligned": False}, {"x_stride": problem.cols + 8}):
            asked = replace(problem, **other)
            assert (
                problem.rows == 1
                and "x_stride" in other
                or not [*shipped_plans(line.rule, asked, H200)]
            )
        for rows, cols in ((line.rows[0] - 1, problem.cols), (problem.rows, line.cols[1] + 1)):
            outside = replace(problem, rows=max(1, rows), cols=cols)
            assert rows < 1 or line not in shipped_plans(line.rule, outside, H200)
    first, second, *_ = why(*line.problem.shape, line.problem.dtype, H200).splitlines()
    assert first.startswith(f"{line.trial}: tuned on NVIDIA H200 on 2026-1") and second.endswith(
        "it is the rule's plan"
    )


def test_where_the_trial_takes_no_such_shape_the_rule_stays(tmp_path, monkeypatch) -> None:
    (rule,) = candidates(PROBLEM, H200, 1)
    line = replace(
        next(line for line in LINES if line.rule_us),
        **{"problem": PROBLEM, "rows": (1, 9999), "cols": (1, 4096), "dtypes": ["bfloat16"]},
        **{"rule": rule, "trial": f"{rule}-THREADS1024"},
    )
    table(tmp_path, monkeypatch, line)
    assert best(PROBLEM, H200) == rule
    assert f"not {rule}-THREADS1024 (tuned on" in why(*PROBLEM.shape, PROBLEM.dtype, H200)
    table(tmp_path, monkeypatch, replace(line, trial=f"{rule}-THREADS256"))
    assert best(PROBLEM, H200) == f"{rule}-THREADS256"


def table(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: Tuned) -> None:
    """Another table of the H200 instead of the shipped one."""
    store.write_file(folder / REFERENCE_GPU / "tuned.jsonl", lines)
    monkeypatch.setattr(paths, "RECORDS", folder)
    monkeypatch.setattr(store, "RECORDS", folder)
    tuned._by_rule.cache_clear()


# ---- how it is made -----------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    """A GPU, whose times a test sets."""
    made = MadeUp(lambda plan: 100.0)
    cells = [cell for cell in grid() if cell.problem.cols == 3072 and cell.problem.itemsize == 2]
    on_a_gpu(
        *(tmp_path, monkeypatch),
        (paths, "RECORDS", tmp_path),
        (campaign, "Lab", lambda: made),
        (campaign, "grid", lambda: cells),
    )
    tuned._by_rule.cache_clear()
    yield made
    tuned._by_rule.cache_clear()


def run() -> int:
    return campaign.main(["tuned"])


def test_what_is_faster_together_is_found_confirmed_and_kept(machine, capsys) -> None:
    machine.us = lambda plan: (
        100 - 5 * (plan.block == 192) - 3 * (plan.macros.get("RESIDENT") == 13)
    )
    machine.wrong = {"08_cluster-THREADS64"}
    assert run() == 0
    lines = store.read(Tuned, FOLDER)
    assert len(lines) == len(SIZES) and {line.rule for line in lines} == {"08_cluster"}
    found = next(line for line in lines if line.problem.rows > 20_000)
    launch = found.kernels[found.trial]["launch"]
    assert launch["block"] == 192 and launch["RESIDENT"] == 13, found.trial
    assert found.dtypes == ["float16", "bfloat16"]
    assert len(found.rule_us) == len(found.trial_us) == 15, "confirmed with more samples"
    assert f"{found.problem.place(True)}: {found.trial}" in capsys.readouterr().out
    asked = len(machine.asked)
    assert run() == 0 and len(machine.asked) == asked, "nothing is timed again"
    tuned._by_rule.cache_clear()
    assert best(found.problem, H200) == found.trial
