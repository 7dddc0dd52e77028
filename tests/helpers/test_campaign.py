"""The loop of every campaign, with tasks that measure nothing."""

import argparse
from dataclasses import dataclass, replace

import pytest

from helpers.base import gpu
from helpers.catalogue import store
from helpers.catalogue.store import Run
from helpers.commands.measure import add_options
from helpers.measure import bench, campaign
from helpers.measure.campaign import Campaign, CampaignTask, Failure
from helpers.measure.records import Case
from helpers.problem.problem import Problem
from tests import made_up
from tests.made_up import FOLDER, VERSIONS

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

    def wanted_keys(self) -> list[tuple[str, Problem]]:
        return [("01_naive", self.at)]

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
        add_options(parser, ("minutes", "jobs", "warm"))
        made = Campaign(Case, bench.PROTOCOL, parser.parse_args([*options]))
        made.order = [("01_naive", at) for at in EVERY]
        return made

    return begin


def rows() -> list[int]:
    return [case.rows for case in store.read(Case, FOLDER)]


def test_nothing_is_begun_when_time_is_up(begun, capsys) -> None:
    made = begun("--minutes", "1.1")
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


# ---- what is measured again ---------------------------------------------------------------------


WITH_TORCH = replace(made_up.RUN, versions={**VERSIONS, "torch": "1"})


def of_protocol(**changes) -> Run:
    return replace(made_up.RUN, protocol={**bench.PROTOCOL, **changes})


@pytest.mark.parametrize(
    ("change", "versions", "why"),
    [
        ({}, {}, ""),
        *(({}, {name: "another"}, "versions changed") for name in VERSIONS),
        ({}, {"torch": "2.0"}, "versions changed"),
        ({"run": WITH_TORCH}, {"torch": "1"}, ""),
        ({"run": WITH_TORCH}, {}, ""),  # not here now
        ({"kernel_hash": "0" * 16}, {}, "kernels changed"),
        ({"launch": {"grid": 1}}, {}, "kernels changed"),
        ({"run": of_protocol(version=1)}, {}, ""),  # what is still valid is not timed again
        ({"run": of_protocol(warmup_s=9)}, {}, "versions changed"),
    ],
)
def test_why_something_is_measured_again(begun, monkeypatch, change, versions, why) -> None:
    case = replace(made_up.case("01_naive", EVERY[0]), **change)
    store.write(Case, FOLDER, [case])
    now = {name: version for name, version in versions.items() if name in VERSIONS}
    libraries = {name: version for name, version in versions.items() if name not in VERSIONS}
    options = begun("--minutes", "1").options
    monkeypatch.setattr(gpu, "describe_versions", lambda: {**VERSIONS, **now})
    made = Campaign(Case, bench.PROTOCOL, options, libraries)
    assert made.why(case.key) == why
    assert made.why(("01_naive", EVERY[1])) == "new"
    options.fresh = True
    assert made.why(case.key) == "new"


def test_tasks_are_found_by_any_of_the_patterns(begun, capsys) -> None:
    assert begun().asked("64 x 1024 float32")
    some = begun("--only", "^64 x", "bfloat16")
    assert some.asked("64 x 1024 float32") and some.asked("8 x 1024 bfloat16")
    assert not some.asked("164 x 1024 float32")
    assert [task.at.rows for task in some.due(map(Made, EVERY))] == [64] and some.wanted == 1
    assert begun("--only", "no such").carry_out([]) == ["--only finds no task"]
    with pytest.raises(SystemExit):
        begun("--only", "(")
    assert "'(' is no regular expression: missing )" in capsys.readouterr().err


def test_what_is_compiled_ahead_is_deleted_if_it_was_tuned_and_failures_are_said(
    begun, monkeypatch, tmp_path, capsys
) -> None:
    monkeypatch.setattr(campaign, "CACHE", tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.best_config").write_text("")
    jobs = [(print, "07_warp", EVERY[0]), (divmod, "liger", EVERY[1]), (print, "07_warp", EVERY[0])]
    monkeypatch.setattr(Made, "to_compile", lambda task: jobs)
    campaign.compile_ahead([Made(EVERY[0])], 1, 60.0)
    said = capsys.readouterr().out
    assert "warm-up: liger at 16 x 1024 float32: TypeError\n" in said
    assert "warm-up of 2 kernels" in said and not [*tmp_path.rglob("*.best_config")]
