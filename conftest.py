"""What pytest needs to know before it collects: how notebooks run, and which tests need a GPU."""

import gc
import importlib.util
import os
from collections.abc import Generator
from functools import cache

import pytest

import helpers.commands  # noqa: F401  (a home folder that Jupyter and CuPy can write)
from helpers.base import lean  # noqa: F401
from tests import warm_kernels

# Where kernels are only recorded and tested there is no Jupyter, and these import what it brings.
NEED_JUPYTER = [
    "tests/commands/test_lab.py",
    "tests/commands/test_pages.py",
    "tests/commands/test_run.py",
    "tests/simt/test_command.py",
]
# What somebody tuned or recorded here is no part of a test.
os.environ.setdefault("SOFTMAX_PLANS", "0")
os.environ.pop("SOFTMAX_RECORDS", None)
HAS_JUPYTER = all(map(importlib.util.find_spec, ("nbformat", "nbconvert", "jupyterlab")))
collect_ignore = [] if HAS_JUPYTER else NEED_JUPYTER


def pytest_report_header() -> list[str]:
    """Say what is left out."""
    left_out = ", ".join(collect_ignore)
    return [f"no Jupyter here, so these are left out: {left_out}"] if left_out else []


def pytest_configure(config: pytest.Config) -> None:
    """Make a bare `pytest --nbval` right: recorded timings, this interpreter, a short timeout."""
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
    """What is collected stays to the end, so the garbage collector need not look at it; and a
    launch on the SIMT machine makes so many objects that it would look at all others each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(200_000, 20, 20)


@pytest.hookimpl(trylast=True)  # behind -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked `gpu` where they cannot run, or skip them if nothing else is
    asked for."""
    live = [item for item in items if item.get_closest_marker("gpu")]
    if live and (reason := why_not_live()):
        if len(live) == len(items):
            for item in live:
                item.add_marker(pytest.mark.skip(reason=reason))
            return
        # A third of all: to skip each one, and say so, takes its time.
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
        config.stash[LEFT_OUT] = f"{len(live)} tests that need a GPU were left out: {reason}"


LEFT_OUT = pytest.StashKey[str]()  # what the summary says of tests that are not run


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist tells what it has left out. What is in memory now is gone with the
    process: nobody need search it for cycles."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = session.config.stash.get(LEFT_OUT, "")
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Each worker leaves out the same."""
    if said := getattr(node, "workeroutput", {}).get("left out"):
        node.config.stash[LEFT_OUT] = said


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say which tests were left out, and why."""
    if said := config.stash.get(LEFT_OUT, ""):
        terminalreporter.write_line(said)


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
