"""Work dealt out to GPUs, with workers that touch none: they say what they see or fail."""

import os
import time
from collections import deque

import pytest

from helpers.measure import campaign, tuning
from helpers.measure.campaign import VISIBLE, Failure, deal


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


def first_name(job: tuple) -> tuple[str, str, int]:
    _, (name,), _ = job
    return worker(name)


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "gpu_names", lambda jobs: ["3", "5"][:jobs])
    monkeypatch.setattr(campaign, "gpu_is_usable", lambda: True)
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
    monkeypatch.setattr(campaign, "gpu_is_usable", lambda: False)
    seen = dict(deal(worker, deque(["a", "raise", "b"])))
    assert seen["a"][2] == os.getpid()
    assert isinstance(seen["raise"], Failure)
    assert seen["b"][1] == "3" and seen["b"][2] != os.getpid()


def test_a_batch_that_ends_its_process_is_a_failure_and_the_next_has_a_new_one(monkeypatch) -> None:
    monkeypatch.setattr(tuning, "timed", first_name)
    with tuning.Lab() as lab:
        for names in (["die"], ["blame"]):
            with pytest.raises(Failure, match="status 3|07_warp: wrong result"):
                lab.time(None, names, 0)
        first, second = (lab.time(None, ["a"], 0) for _ in range(2))
        assert first[0] == "a" and first[2] == second[2] != os.getpid()


def test_names_of_gpus(monkeypatch) -> None:
    cupy = pytest.importorskip("cupy")
    monkeypatch.undo()
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 2)
    monkeypatch.delenv(VISIBLE, raising=False)
    assert [campaign.gpu_names(jobs) for jobs in (1, 2, 8)] == [["0"], ["0", "1"], ["0", "1"]]
    monkeypatch.setenv(VISIBLE, "4,GPU-ab")
    assert campaign.gpu_names(2) == ["4", "GPU-ab"]
