"""The table of what the checks cost is that of the stored runs, and they are cheap enough."""

import json

from tests.helpers import cost_of_checks
from tests.helpers.cost_of_checks import DATA, every_case

STORED = json.loads(DATA.read_text())


def test_the_page_shows_what_is_stored() -> None:
    assert DATA.with_suffix(".md").read_text() == cost_of_checks.page(STORED)


def test_the_steps_are_there_at_the_shapes_that_they_take() -> None:
    stored = {(case["step"], case["rows"], case["cols"], case["dtype"]) for case in STORED["cases"]}
    taken = set(every_case())
    assert stored <= taken
    assert {case for case in taken if case[0] < "12"} <= stored


def test_the_checks_cost_less_than_half_of_the_time_again() -> None:
    for case in STORED["cases"]:
        if case["seconds_without"] > 0.1:  # of shorter ones the clock says little
            assert case["seconds_with"] < 1.5 * case["seconds_without"], case


def test_small_launches_of_kernels_with_a_block_or_a_warp_for_a_row_are_quick() -> None:
    for case in STORED["cases"]:
        if case["rows"] == 64 and case["step"] >= "03":
            assert case["seconds_with"] < 0.1, case
