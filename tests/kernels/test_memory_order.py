"""What orders the accesses of 08 and 09, and what accesses ask of caches, where no machine can be
trusted to show a mistake: in PTX.

The SIMT machine runs blocks in lock-step and lets every store be seen at once. A weak store where a
relaxed one is needed gives right results there, and a finding; an arrival without the fence before
it, or what is read too early of the grid before, gives none.
"""

import re

import pytest

from helpers.catalogue import registry
from helpers.catalogue.header import header
from helpers.catalogue.registry import source, split_trial, steps, variants
from helpers.problem.problem import Problem
from helpers.run.bound import bind
from helpers.simt import compile_ptx

NAMES = (*steps(), *variants())
PROGRAMMATIC = [n for n in NAMES if "PROGRAMMATIC" in header(source(f"{n}.cu")).macros]
STREAMING = [n for n in NAMES if "STREAMING" in header(source(f"{n}.cu")).macros]
BY_MESSAGES = [n for n in NAMES if "Workspace" in header(source(f"{n}.cu")).fields]
DTYPES = ("float32", "bfloat16")  # float16 moves as bfloat16 does: numbers of 2 bytes


def instructions(code: str, dtype: str, cols: int = 20000, **changes: int) -> list[str]:
    """The PTX instructions of a kernel for 17 rows, guards left out, in their order."""
    bound = bind(code, 17, cols, dtype, changes=changes)
    body = compile_ptx(code, bound.options).partition(".entry")[2].partition("{")[2]
    words = re.findall(r"^\s*(?:\{\s*)?(?:@!?%\w+ )?([a-z][\w.:]+)[^\n]*;", body, re.MULTILINE)
    return [word for word in words if not word.startswith(("mov", "add"))]


def test_files_that_this_is_about_are_found() -> None:
    assert {"08_cluster", "09_grid", "08_ahead"} <= {*STREAMING}
    assert {*PROGRAMMATIC} == {"09_grid"}
    assert {"09_grid", "11_any_length"} <= {*BY_MESSAGES}


# ---- what is asked of caches ------------------------------------------------------------------


def accesses_of_matrices(name: str, dtype: str, **changes: int) -> set[str]:
    """How x is loaded and y is stored, 16 bytes each; types left out."""
    code = source(f"{name}.cu")
    cols = 20000 if header(code).accepts(Problem(17, 20000, dtype)) else 1000
    found = instructions(code, dtype, cols, **changes)
    return {i.partition(".v4")[0] for i in found if re.match(r"(ld|st)\.global.*\.v4", i)}


@pytest.mark.parametrize("name", STREAMING)
def test_plain_accesses_are_usual_ones_and_others_stream(name: str) -> None:
    taken = {dtype.name for dtype in header(source(f"{name}.cu")).dtypes}
    off = dict(split_trial(registry.with_hints(name)).changes)
    for dtype in taken.intersection(DTYPES):
        plain = accesses_of_matrices(name, dtype, **off)
        usual = {i.removesuffix(".nc").removesuffix(".ca") for i in plain}
        assert usual == {"ld.global", "st.global"}
        streaming = accesses_of_matrices(name, dtype, **{**off, "STREAMING": 1})
        assert streaming == {"ld.global.cs", "st.global.cs"}


# ---- messages in global memory -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BY_MESSAGES)
def test_no_access_of_a_box_is_weak(name: str, dtype: str) -> None:
    """A slot is written by other blocks while its own reads and empties it. It holds 8 bytes, and
    nothing of x or y is moved by so many."""
    found = instructions(source(f"{name}.cu"), dtype)
    found = [
        i for i in found if re.match(r"(ld|st|atom|red)\.(?!shared|param).*[^.v]\.[ubs]64$", i)
    ]
    assert {i for i in found if ".relaxed.gpu" in i} == set(found)
    assert len([i for i in found if i.startswith("st")]) >= 2  # messages, and zeros


# ---- after an early start ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROGRAMMATIC)
def test_an_early_start_loads_late_and_not_as_read_only(name: str, dtype: str) -> None:
    """x may be written by the grid before: not read-only, and not read before that one is done."""
    code = source(f"{name}.cu")
    for changes in ({}, {"STREAMING": 0}):
        found = instructions(code, dtype, PROGRAMMATIC=1, **changes)
        loads = [place for place, i in enumerate(found) if i.startswith("ld.global")]
        assert loads and not any(".nc" in found[place] for place in loads)
        assert found.count("griddepcontrol.wait") == 1
        assert min(loads) > found.index("griddepcontrol.wait")
    usual = instructions(code, dtype, PROGRAMMATIC=0, STREAMING=0)
    assert any(i.startswith("ld.global.nc") for i in usual)


# ---- messages in shared memory -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [20000, 65536])
def test_letters_are_released_before_others_may_overwrite_them(cols: int, dtype: str) -> None:
    """What a block has read of its messages is released before it lets others overwrite them."""
    found = instructions(source("08_ahead.cu"), dtype, cols, clusters=2)
    arrivals = [n for n, i in enumerate(found) if i.startswith("barrier.cluster.arrive")]
    assert len(arrivals) == 2, "one before all rows, one in each"
    release = found[arrivals[1] - 1]
    assert release == "fence.release.sync_restrict::shared::cta.cluster", release
