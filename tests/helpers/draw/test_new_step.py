"""A step is its kernel file and its entry in predictions.json: no code and no list names it."""

import pytest

from helpers.catalogue.registry import source, steps
from helpers.measure.profiling import launches
from helpers.measure.records import predictions, takes
from helpers.page import draw
from helpers.page.replay import predict
from helpers.problem.problem import Problem
from helpers.problem.shapes import FEW_SHAPES, GRID_SHAPES, SWEEP_SHAPES
from helpers.run.bound import bind
from helpers.run.check import check_softmax
from helpers.run.references import make_input, poisoned
from tests import made_up

pytest.importorskip("matplotlib")

NEW = f"{len(steps()):02}_next"


def test_a_new_step_needs_its_kernel_and_its_entry_alone(tmp_path, monkeypatch, shown) -> None:
    monkeypatch.setenv("SOFTMAX_REPLAY", "1")  # without what a reader predicted
    entry = {**predictions()["06_registers"], "recorded": ["grid", "few"]}
    monkeypatch.setitem(predictions(), NEW, entry)
    name = ("softmax_registers", "softmax_next")
    made_up.Kernels(tmp_path, monkeypatch).edit("06_registers.cu", name, as_file=f"{NEW}.cu")

    x = make_input(3, 100)
    y = poisoned(x)
    bind(source(f"{NEW}.cu"), *x.shape).simulate(x, y)
    check_softmax(x, y)
    assert takes(NEW, Problem(*GRID_SHAPES[0])) and takes(NEW, Problem(*FEW_SHAPES[0]))
    assert not takes(NEW, Problem(*SWEEP_SHAPES[0])) and not takes(
        NEW, Problem(*GRID_SHAPES[0], "float16")
    )
    assert any(launch.step == NEW for launch in launches("small"))

    before, after = made_up.steady("06_registers", us=40.0), made_up.steady(NEW)
    draw.step(after, before)
    assert f"{NEW}: 2.0 times as fast as 06_registers" in shown.take()[1]
    draw.series([before, after])
    assert NEW in shown.take()[1]
    said: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.display.display", lambda texts, **_: said.append(texts))
    predict(NEW)
    assert entry["question"] in said[0]["text/html"]
