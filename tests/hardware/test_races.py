"""What compute-sanitizer said of races on global memory is about the kernels as they are."""

import json

import pytest

from helpers.simt.cuda_text import token_hash
from tests.hardware import sanitizer
from tests.hardware.races import RACES
from tests.hardware.sanitizer import DATA
from tests.simt.global_races import CASES, RULES

FILE = DATA / "global_races_h200.json"
STORED = json.loads(FILE.read_text()) if FILE.exists() else {}
checked = pytest.mark.skipif(not STORED, reason="run tests.hardware.sanitizer --races on an H200")


def test_each_rule_has_a_kernel_and_a_racy_twin() -> None:
    assert len(CASES) >= 50 and len(RACES) == 2 * len(CASES)
    assert sum(bool(race.marks) for race in RACES.values()) == len(CASES)
    assert {race.twin for race in RACES.values() if race.twin} == {
        race.kernel for race in RACES.values() if not race.twin
    }
    assert all(f" {race.kernel}(" in RULES.source for race in RACES.values())


def test_many_kernels_run_in_a_process() -> None:
    batches = sanitizer.first_batches(RACES, ("memcheck", "racecheck"), together=14)
    assert max(len(names) for _, names in batches) == 14
    assert sorted(name for tool, names in batches for name in names if tool == "memcheck") == (
        sorted(RACES)
    )


@checked
def test_every_tool_ran_every_kernel_as_it_is() -> None:
    assert STORED["hashes"] == {"global_races": token_hash(RULES.source)}
    assert list(STORED["kernels"]) == list(RACES)
    for kernel in STORED["kernels"].values():
        for tool in sanitizer.tools_of(STORED):
            assert kernel[tool]["outcome"] == "ran"


@checked
def test_the_page_shows_what_is_stored() -> None:
    page = (DATA / "global_races_h200.md").read_text()
    assert sanitizer.table(STORED).strip() in page
