"""What pytest needs to know before it collects: how notebooks run, and which tests need a GPU."""

import gc
import importlib.util
import os
from collections.abc import Generator
from functools import cache

import pytest

from helpers.home import stand_in_for_home
from tests import warm_kernels

# Where kernels are only recorded and tested there is no Jupyter, and these import what it brings.
NEED_JUPYTER = [
    "tests/commands/test_lab.py",
    "tests/commands/test_pages.py",
    "tests/commands/test_run.py",
    "tests/helpers/test_reading.py",
    "tests/simt/test_command.py",
]
# What a GPU has still to measure again, and since when: tests of it fail, and say so here. As soon
# as it is measured they pass, which fails, so that no name stays here for nothing.
RECORDS, STORED = "tests/helpers/test_records.py", "tests/helpers/evidence/test_stored.py"
STEP_13 = ("13_any_axis", "13_any_axis-TILE16", "13_any_axis-TILE8")
FEATURES = tuple(f"12_fused-{name}1" for name in ("MASK", "LOG", "WIDE")) + ("12_fused-MASK2",)
FEATURES += tuple(f"14_backward-{name}1" for name in ("LOG", "FROM_X", "DROPOUT"))
FAMILY = ("12_fused", "13_any_axis", "14_backward", "15_cross_entropy")
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# reason -> {test: its parameters}
TO_MEASURE: dict[str, dict[str, tuple[str, ...]]] = {
    "13 is not recorded, and its notebook waits for that": {
        f"{RECORDS}::test_attributes_of_the_kernel_are_recorded": STEP_13,
        f"{RECORDS}::test_every_case_was_checked_and_timed_often_enough": STEP_13,
        f"{RECORDS}::test_grid_is_complete": STEP_13,
        f"{RECORDS}::test_launch_is_what_the_header_says": STEP_13,
        f"{RECORDS}::test_long_and_few_rows_are_complete": STEP_13,
        f"{RECORDS}::test_record_is_of_the_kernel_as_it_is_now": STEP_13,
        f"{RECORDS}::test_record_says_where_it_comes_from": STEP_13,
        f"{RECORDS}::test_sweep_is_complete": STEP_13[:1],
        f"{RECORDS}::test_timings_are_plausible": STEP_13,
        f"{RECORDS}::test_every_record_belongs_to_a_kernel": (),
        f"{RECORDS}::test_every_prediction_has_a_record_to_hold_it_against": (),
        "tests/test_notebooks.py::test_every_step_has_its_notebook": (),
    },
    "features and yardsticks are recorded at few lengths": {
        f"{RECORDS}::test_grid_is_complete": (
            *FEATURES,
            "variants/00_read",
            "variants/00_two_reads",
        ),
        f"{RECORDS}::test_long_and_few_rows_are_complete": FEATURES,
    },
    "12 to 15 have not been profiled": {
        f"{STORED}::test_every_step_is_compared_at_two_shapes_or_more": FAMILY,
        f"{STORED}::test_every_step_is_compared_in_each_dtype": FAMILY,
        f"{STORED}::test_counters_are_of_the_cases_that_the_evidence_asks_for": (),
        f"{STORED}::test_sanitizer_found_no_error": TOOLS,
        f"{STORED}::test_sanitizer_saw_every_step": (),
        f"{STORED}::test_evidence_is_of_the_kernels_as_they_are": ("counters", "sanitizer", "sass"),
        f"{STORED}::test_evidence_is_of_the_launches_as_they_are": (),
    },
}
os.environ.setdefault("SOFTMAX_PLANS", "0")  # what somebody tuned here is no part of a test
collect_ignore = [] if importlib.util.find_spec("nbformat") else NEED_JUPYTER


def pytest_report_header() -> list[str]:
    """Say what is left out."""
    left_out = ", ".join(collect_ignore)
    return [f"no nbformat here, so these are left out: {left_out}"] if left_out else []


def pytest_configure(config: pytest.Config) -> None:
    """Make a bare `pytest --nbval` right: recorded timings, this interpreter, a short timeout; and
    a home folder that Jupyter and CuPy can write."""
    stand_in_for_home()
    option = config.option
    lax = getattr(option, "nbval_lax", False)
    if not (lax or getattr(option, "nbval", False)):
        return
    # Committed outputs are those of replay mode. Only --nbval-lax, which compares nothing, may
    # run the notebooks on a GPU: SOFTMAX_REPLAY=0 pytest --nbval-lax notebooks
    if lax:
        os.environ.setdefault("SOFTMAX_REPLAY", "1")
    else:
        os.environ["SOFTMAX_REPLAY"] = "1"
        warm_kernels.use()
        os.environ["SOFTMAX_PICTURES"] = "0"
    # A warning names its cell's temporary file, which differs from run to run.
    os.environ.setdefault("IPYKERNEL_CELL_NAME", "<cell>")
    option.nbval_current_env = True
    if option.nbval_cell_timeout == 2000:  # nbval's default, for a dead kernel too
        option.nbval_cell_timeout = 120


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end, so the garbage collector need not look at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` where they cannot run, expect those to fail that hold what is to
    be measured again, and say why."""
    reasons = {
        f"{test}[{parameter}]" if parameter else test: reason
        for reason, tests in TO_MEASURE.items()
        for test, parameters in tests.items()
        for parameter in parameters or ("",)
    }
    for item in items:
        if reason := reasons.get(item.nodeid):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
        if item.get_closest_marker("gpu") and (reason := why_not_live()):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def replay_unless_live(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tests marked `gpu` use a GPU that is there; the others use the SIMT machine."""
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setenv("SOFTMAX_REPLAY", "1")


@cache
def why_not_live() -> str:
    """Why kernels do not run on a GPU here, or an empty string if they do."""
    try:
        import cupy

        if not cupy.cuda.is_available():
            return "no GPU"
    except ImportError:
        return "no GPU"
    return "SOFTMAX_REPLAY=1" if os.environ.get("SOFTMAX_REPLAY") == "1" else ""
