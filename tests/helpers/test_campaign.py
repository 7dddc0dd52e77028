"""The loop of every campaign, with tasks that measure nothing."""

import argparse
from collections import deque
from dataclasses import dataclass, replace

import pytest

from helpers.catalogue import store
from helpers.measure import bench, campaign
from helpers.measure.campaign import Campaign, CampaignTask, Failure, add_shared_options
from helpers.measure.records import Case
from helpers.problem.problem import Problem
from tests import made_up
from tests.made_up import FOLDER

EVERY = [Problem(rows, 1024) for rows in (8, 16, 32, 64)]
MEASURED: list[Problem] = []


@dataclass(frozen=True)
class Made(CampaignTask):
    """A step at a problem. 32 rows are interrupted or fail, as often as `fails` says."""

    at: Problem
    how: str = ""
    left_out: str = ""

    def __str__(self) -> str:
        return self.at.place()

    def measure(self) -> list[Case]:
        MEASURED.append(self.at)
        if self.at.rows == 32 and self.how == "interrupt":
            raise KeyboardInterrupt
        if self.at.rows == 32 and self.how and not self.left_out:
            raise Failure("no room", self.how)
        return [made_up.case("01_naive", self.at)]

    def without(self, failure: Failure) -> tuple[CampaignTask | None, bool]:
        if failure.culprit == "torch":
            return replace(self, left_out="torch"), False
        return None, True


@pytest.fixture
def begun(tmp_path, monkeypatch):
    MEASURED.clear()
    made_up.on_a_gpu(tmp_path, monkeypatch)
    monkeypatch.setattr(campaign.time, "perf_counter", lambda: 40.0 * len(MEASURED))

    def begin(*options: str) -> Campaign:
        parser = argparse.ArgumentParser()
        add_shared_options(parser, "minutes", "jobs", "warm", "fresh")
        made = Campaign(Case, bench.PROTOCOL, parser.parse_args([*options]))
        made.order = {("01_naive", at): place for place, at in enumerate(EVERY)}
        return made

    return begin


def rows() -> list[int]:
    return [case.rows for case in store.read(Case, FOLDER)]


def test_each_result_is_stored_at_once_and_an_earlier_one_stays(begun) -> None:
    with pytest.raises(KeyboardInterrupt):
        begun().measure([Made(at, "interrupt") for at in EVERY])
    assert rows() == [8, 16]
    begun().measure([Made(EVERY[3])])
    begun().measure([Made(EVERY[2])])
    assert rows() == [8, 16, 32, 64], "in the order of the file"


def test_results_are_stored_in_order_whichever_came_first(begun, monkeypatch) -> None:
    def backwards(work, tasks: deque, jobs: int, apart: bool):
        assert (jobs, apart) == (3, True)
        return [(task, work(task)) for task in reversed(tasks)]

    monkeypatch.setattr(campaign, "deal", backwards)
    assert begun("--jobs", "3").measure([*map(Made, EVERY)], apart=True) == []
    assert rows() == [8, 16, 32, 64]


def test_nothing_is_begun_when_time_is_up(begun, capsys) -> None:
    made = begun("--minutes", "1")
    assert made.measure([*map(Made, EVERY)]) == [] and rows() == [8, 16]
    said = capsys.readouterr().out
    assert "[1/4, 40 s, 2 min to go] 8 x 1024\n" in said and "2 tasks left for another run" in said
    assert made.measure([*map(Made, EVERY)]) == [] and len(MEASURED) == 2


@pytest.mark.parametrize(
    ("culprit", "failed", "kept"),
    [
        ("01_naive", ["01_naive at 32 x 1024: no room"], [8, 16, 64]),
        ("torch", [], [8, 16, 32, 64]),
    ],
)
def test_a_failure_ends_a_task_or_a_part_of_it(begun, culprit, failed, kept, capsys) -> None:
    made = begun()
    assert made.measure([Made(at, culprit) for at in EVERY]) == failed and rows() == kept
    again = [32] * (culprit == "torch")
    assert [at.rows for at in MEASURED] == [8, 16, 32, *again, 64], "the rest of it at once"
    said = capsys.readouterr()
    assert failed == [] or said.err.endswith(f"{failed[0]}\n")
    assert made.end(failed) == len(failed)
    said = capsys.readouterr()
    assert said.out == f"records are in {store.path_of(Case, FOLDER)}\n"
    assert said.err == "".join(f"not recorded: {line}\n" for line in failed)
