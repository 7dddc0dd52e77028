"""Work dealt out to GPUs, with workers that touch none: they say what they see or fail; and the
recorder, which names what failed and keeps the rest."""

import contextlib
import os
import pickle
import time
from collections import deque
from pathlib import Path

import pytest

from helpers import bench, gpus, kernels, race, recorder, records
from helpers.check import WrongResult
from helpers.gpus import VISIBLE, Failure, deal, one_line
from helpers.records import Case


def worker(task: str) -> tuple[str, str, int]:
    """(task, the GPU it sees, its process), or what the task's name asks for."""
    kind = task.partition("-")[0]
    if kind == "raise":
        raise ValueError("not this\none")
    if kind == "blame":
        raise Failure("wrong result", "07_warp")
    if kind == "die":
        os._exit(3)
    if kind == "slow":
        time.sleep(2)
    return task, os.environ.get(VISIBLE, ""), os.getpid()


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "gpu_names", lambda jobs: ["3", "5"][:jobs])
    monkeypatch.setattr(gpus, "gpu_is_usable", lambda: True)
    monkeypatch.setenv(VISIBLE, "3,5")


def test_one_job_is_done_here_in_order_and_takes_what_is_added() -> None:
    tasks, seen = deque(["a", "raise", "blame"]), []
    for task, result in deal(worker, tasks):
        seen.append((task, result))
        if task == "blame":
            tasks.append("b")
    assert [task for task, _ in seen] == ["a", "raise", "blame", "b"]
    assert seen[0][1] == ("a", "3,5", os.getpid()) and seen[3][1][2] == os.getpid()
    failed, blamed = seen[1][1], seen[2][1]
    assert (failed.reason, failed.culprit) == ("ValueError: not this", "")
    assert (blamed.reason, blamed.culprit) == ("wrong result", "07_warp")


def test_interruption_is_no_failure() -> None:
    def interrupted(task: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(deal(interrupted, deque(["a"])))


def test_each_gpu_has_one_process_that_takes_the_next_task() -> None:
    """A slow task holds one GPU while the other does the rest; failures stay with their tasks, and
    a process that dies is replaced."""
    tasks = deque(["slow", "a", "blame", "die", "b", "raise"])
    seen = {}
    for task, result in deal(worker, tasks, 2):
        seen[task] = result
        if task == "blame":
            tasks.append("again")
    assert set(seen) == {"slow", "a", "blame", "die", "b", "raise", "again"}
    assert {seen[task][1] for task in ("slow", "a", "b", "again")} <= {"3", "5"}
    assert {seen["slow"][1], seen["a"][1]} == {"3", "5"}
    assert os.getpid() not in {seen[task][2] for task in ("slow", "a", "b", "again")}
    assert seen["blame"].culprit == "07_warp"
    assert seen["die"].reason == "its process ended with status 3"
    assert seen["raise"].reason == "ValueError: not this"
    assert os.environ[VISIBLE] == "3,5", "the parent's own is as it was"


def test_after_an_error_that_breaks_its_gpu_the_rest_is_done_in_a_new_process(monkeypatch) -> None:
    monkeypatch.setattr(gpus, "gpu_is_usable", lambda: False)
    seen = dict(deal(worker, deque(["a", "raise", "b"])))
    assert seen["a"][2] == os.getpid()
    assert isinstance(seen["raise"], Failure)
    assert seen["b"][1] == "3" and seen["b"][2] != os.getpid()


def test_names_of_gpus(monkeypatch) -> None:
    cupy = pytest.importorskip("cupy")
    monkeypatch.undo()
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 2)
    monkeypatch.delenv(VISIBLE, raising=False)
    assert [gpus.gpu_names(jobs) for jobs in (1, 2, 8)] == [["0"], ["0", "1"], ["0", "1"]]
    monkeypatch.setenv(VISIBLE, "4,GPU-ab")
    assert gpus.gpu_names(2) == ["4", "GPU-ab"]


def test_message_names_no_folder() -> None:
    error = OSError("no '/opt/site/lib.so' (see ~/log): 1/2 of a/b\nmore")
    assert one_line(error) == "OSError: no 'lib.so' (see log): 1/2 of a/b"


# ---- the recorder -------------------------------------------------------------------------------

NAMES = ("00_copy", "01_naive", "04_shuffle")
WRONG = {(16384, 16384): "01_naive", (8192, 32768): "04_shuffle"}


def launch(x, y) -> None:
    """What a candidate of the fake GPU does."""


def measure(makers, rows: int, cols: int, dtype: str) -> dict[str, Case]:
    """A GPU on which 01 is wrong at one shape, and 04 stops the GPU at another."""
    candidates = {name: make(rows, cols, dtype) for name, make in makers.items()}
    for name, candidate in candidates.items():
        candidate.run(None, None)
        if WRONG.get((rows, cols)) == name:
            if name == "01_naive":
                raise WrongResult(f"{name} at {rows, cols}: zero", "got 1")
            raise bench.CandidateFailed(name) from RuntimeError("illegal address")
    names = {bench.COPY: None, **makers}  # the copy is always measured
    plans = {name: kernels.step_plan(name, rows, cols).launch for name in names}
    return {
        name: Case(dtype, rows, cols, plan, [2.0], [1.0], 50, "right")
        for name, plan in plans.items()
    }


def maker(step: str):
    return lambda *shape: bench.Candidate(launch, {}, {}, None)


@pytest.fixture
def recorder_of_two_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, replacement in (
        (records, "FOLDER", tmp_path),
        (recorder, "has_gpu", lambda: True),
        (recorder, "describe_device", lambda: {"name": "NVIDIA Test"}),
        (recorder, "describe_versions", lambda: {"driver": "1.2"}),
        (recorder, "shapes_that_fit", lambda shapes: [(32768, 8192), *WRONG]),
        (recorder, "maker", maker),
        (bench, "measure", measure),
        (bench, "fresh_pool", contextlib.nullcontext),
    ):
        monkeypatch.setattr(module, name, replacement)


def shapes_of(name: str) -> list[tuple[int, int]]:
    return [case.shape for case in records.load_record(name, "nvidia-test").cases]


def test_recorder_keeps_what_is_right_and_names_what_is_not(recorder_of_two_shapes, capsys) -> None:
    every = [(32768, 8192), *WRONG]
    assert recorder.main(["--steps", *NAMES]) == 1
    for name in NAMES:
        assert shapes_of(name) == [shape for shape in every if WRONG.get(shape) != name]
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-2:] == [
        "not recorded: 01_naive at 16384 x 16384 float32: wrong result: at (16384, 16384): zero",
        "not recorded: 04_shuffle at 8192 x 32768 float32: RuntimeError: illegal address",
    ]
    assert "[3/3, " in printed.out
    assert recorder.main(["--steps", *NAMES]) == 1, "what failed is tried again"
    assert recorder.main(["--steps", "00_copy"]) == 0
    assert recorder.main(["--steps", "02_online"]) == 0, "beside a copy that nobody asked for"
    assert shapes_of("00_copy") == every and shapes_of("02_online") == every


def test_failure_that_nobody_is_to_blame_for_concerns_all(
    recorder_of_two_shapes, monkeypatch, capsys
) -> None:
    def no_room(makers, rows, cols, dtype):
        for make in makers.values():
            make(rows, cols, dtype)
        raise MemoryError("buffers")

    monkeypatch.setattr(bench, "measure", no_room)
    assert recorder.main(["--steps", *NAMES]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == (
        f"not recorded: {', '.join(NAMES)} at 8192 x 32768 float32: MemoryError: buffers"
    )
    assert len(lines) == 6


def test_recorder_deals_out_shapes_and_keeps_their_order(
    recorder_of_two_shapes, monkeypatch
) -> None:
    def backwards(work, tasks, jobs):
        assert jobs == 3 and all(task.names == NAMES[:1] for task in tasks)
        return [(task, work(task)) for task in reversed(tasks)]

    monkeypatch.setattr(gpus, "deal", backwards)
    assert recorder.main(["--steps", NAMES[0], "--jobs", "3"]) == 0
    assert shapes_of(NAMES[0]) == [(32768, 8192), *WRONG]


@pytest.mark.parametrize("module", [recorder, race])
def test_tasks_can_be_handed_to_another_process(module) -> None:
    tasks = {
        recorder: (recorder.measure_task, recorder.Task(64, 128, "float32", NAMES)),
        race: (race.run_task, race.Task(64, 128, "float32", ("torch",), (("liger", "why"),))),
    }
    assert pickle.loads(pickle.dumps(tasks[module])) == tasks[module]
    failure = pickle.loads(pickle.dumps(Failure("why", "who")))
    assert (failure.reason, failure.culprit) == ("why", "who")
