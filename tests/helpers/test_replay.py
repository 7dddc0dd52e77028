"""Timings for notebooks: measured ones do not claim to be recorded, and the reverse."""

from dataclasses import replace

import cupy
import pytest

from helpers import draw
from helpers.catalogue.dispatch import launch_of
from helpers.catalogue.registry import source
from helpers.measure import bench
from helpers.measure.records import load_record
from helpers.page import replay
from helpers.problem.problem import Problem
from helpers.problem.shapes import FEW_SHAPES
from helpers.simt.cuda_text import token_hash
from tests import made_up


def live(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[str, ...], Problem]]:
    """A GPU that measures nothing; lists what was timed together, and what that computes."""
    problems = []

    def measure(makers: dict, problem: Problem) -> dict:
        problems.append((tuple(makers), problem))
        return {name: made_up.timed() for name in makers}

    for module, name, replacement in (
        (replay, "replaying", lambda: False),
        (replay, "describe_device", lambda: made_up.DEVICE),
        (replay, "describe_versions", lambda: made_up.VERSIONS),
        (bench, "measure", measure),
    ):
        monkeypatch.setattr(module, name, replacement)
    monkeypatch.setattr(cupy.cuda.runtime, "memGetInfo", lambda: (2**36, 2**37))
    return problems


@pytest.mark.parametrize("shapes", ["grid", "long", "few"])
def test_live_timings_leave_a_kernel_out_where_it_refuses(monkeypatch, shapes) -> None:
    problems = live(monkeypatch)
    texts = {name: source(f"{name}.cu") for name in ("06_registers", "08_cluster")}
    timed = replay.timings(texts, shapes=shapes)
    wanted = {
        "grid": [(2**28 // cols, cols) for cols in (32, 128, 512, 1024, 4096, 32768)],
        "long": [(2**28 // cols, cols) for cols in (1024, 4096, 32768, 131072, 2**18)],
        "few": [*FEW_SHAPES],
    }[shapes]
    for record in timed:
        found = [case.shape for case in record.cases]
        assert found == [shape for shape in wanted if launch_of(record.step, Problem(*shape))] != []
        assert record.label.endswith(", now")
    assert len(timed[0].cases) != len(timed[1].cases) and all(one.plain for _, one in problems)


@pytest.mark.parametrize(
    "step, shapes",
    [
        *(("08_cluster", family) for family in ("grid", "long", "few")),
        *(("11_any_row", "unaligned"), ("12_fused", "square"), ("13_any_axis", "axes")),
        *(("15_cross_entropy", "vocabularies"), ("15_gradient", "vocabularies")),
    ],
)
def test_live_timings_are_of_the_family_asked_for(monkeypatch, step: str, shapes: str) -> None:
    """Their rows are not the recorded ones, and a figure looks for them by family."""
    live(monkeypatch)
    (record,) = replay.timings({step: source(f"{step}.cu")}, shapes=shapes)
    cases = [case for case in record.cases if launch_of(step, case.at)]
    assert {case.shape for case in record.of_family(shapes)} == {case.shape for case in cases} != {}


def test_an_edited_kernel_has_no_recorded_time(monkeypatch, capsys) -> None:
    class Kernel:
        code = "__global__ void softmax_naive(float* x) { x[0] = 1; }"

    monkeypatch.setenv("SOFTMAX_REPLAY", "1")
    both = replay.timings({"01_naive": Kernel, "02_online": source("02_online.cu")})
    edited, whole = both
    assert not edited.cases and whole.cases
    says = capsys.readouterr().out
    assert says.startswith("01_naive: to be measured.") and says.count(".") == 2
    draw.step(edited)
    assert capsys.readouterr().out == "", "it was said"
    draw.step(whole, edited)
    assert "times as fast" not in capsys.readouterr().out
    lines = {one.step: ([c.cols for c in one.cases], [c.share for c in one.cases]) for one in both}
    draw.curves(lines, "Both", "columns", "fraction of a copy", "Only one is timed.")


def test_shapes_of_no_family_are_refused() -> None:
    for shapes in ("nope", ["grid"]):
        with pytest.raises(ValueError, match="shapes are one of grid, .*, not "):
            replay.timings({"01_naive": source("01_naive.cu")}, shapes=shapes)


def test_an_older_kernel_has_the_times_recorded_for_it(monkeypatch) -> None:
    record = load_record("01_naive")
    older = [replace(case, kernel_hash=token_hash("int older;")) for case in record.cases[:2]]
    both = replace(record, cases=[*older, *record.cases[2:]])
    monkeypatch.setattr(replay, "load_record", lambda name: both)
    monkeypatch.setenv("SOFTMAX_REPLAY", "1")
    (found,) = replay.timings({"01_naive": "int  older; // mine"})
    assert found.cases == older


def test_beside_an_edited_live_kernel_no_record_is_drawn(monkeypatch) -> None:
    live(monkeypatch)
    text = source("01_naive.cu")
    (record,) = replay.timings({"01_naive": text})
    assert replay.recorded_beside(record) != []
    (record,) = replay.timings({"01_naive": text.replace("row_max", "largest")})
    assert replay.recorded_beside(record) == []
