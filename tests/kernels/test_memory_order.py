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
from helpers.run.references import make_input, poisoned
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


def accesses_of_matrices(name: str, dtype: str, code: str = "", **changes: int) -> set[str]:
    """How x is loaded and y is stored, 16 bytes each; types left out."""
    code = code or source(f"{name}.cu")
    cols = 20000 if header(source(f"{name}.cu")).accepts(Problem(17, 20000, dtype)) else 1000
    found = instructions(code, dtype, cols, **changes)
    return {i.partition(".v4")[0] for i in found if re.match(r"(ld|st)\.global.*\.v4", i)}


def check_streaming(name: str, dtype: str, code: str = "") -> None:
    off = dict(split_trial(registry.with_hints(name)).changes)
    plain = accesses_of_matrices(name, dtype, code, **off)
    assert {i.removesuffix(".nc").removesuffix(".ca") for i in plain} == {"ld.global", "st.global"}
    streaming = accesses_of_matrices(name, dtype, code, **{**off, "STREAMING": 1})
    assert streaming == {"ld.global.cs", "st.global.cs"}


@pytest.mark.parametrize("name", STREAMING)
def test_plain_accesses_are_usual_ones_and_others_stream(name: str) -> None:
    taken = {dtype.name for dtype in header(source(f"{name}.cu")).dtypes}
    for dtype in taken.intersection(DTYPES):
        check_streaming(name, dtype)


def test_an_access_that_streams_for_ever_is_found() -> None:
    code = source("09_grid.cu")
    for old, new in (
        ("__ldca(from) : *from", "*from : __ldcs(from)"),
        ("*to = bits;", "__stcs(to, bits);"),
    ):
        assert old in code
        with pytest.raises(AssertionError):
            check_streaming("09_grid", "float32", code.replace(old, new))


# ---- messages in global memory -----------------------------------------------------------------


def accesses_of_boxes(code: str, dtype: str) -> list[str]:
    """Accesses of global memory of 8 bytes: a slot holds so many, and nothing of x or y is moved by
    so many."""
    found = [i for i in instructions(code, dtype) if re.match(r"(ld|st|atom|red)\.(?!shared)", i)]
    return [i for i in found if re.search(r"[^.v]\.[ubs]64$", i) and not i.startswith("ld.param")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BY_MESSAGES)
def test_no_access_of_a_box_is_weak(name: str, dtype: str) -> None:
    """A slot is written by other blocks while its own reads and empties it."""
    found = accesses_of_boxes(source(f"{name}.cu"), dtype)
    assert {i for i in found if ".relaxed.gpu" in i} == set(found)
    assert len([i for i in found if i.startswith("st")]) >= 2  # messages, and zeros


@pytest.mark.parametrize("name", BY_MESSAGES)
def test_a_weak_store_to_a_box_is_found(name: str) -> None:
    code = source(f"{name}.cu")
    weak = re.sub(r"store_relaxed\((own_slot[^,]*), 0\);", r"*(\1) = 0;", code)
    assert weak != code
    assert any(".relaxed.gpu" not in i for i in accesses_of_boxes(weak, "float32"))
    bound = bind(weak, 1, 65536)
    x = make_input(1, 65536)
    found = {finding.kind for finding in bound.simulate(x, poisoned(x)).findings}
    assert found == {"race on global memory"}  # the machine sees it as well


# ---- after an early start ---------------------------------------------------------------------


def check_early_start(code: str, dtype: str, **changes: int) -> None:
    """x may be written by the grid before: not read-only, and not read before that one is done."""
    found = instructions(code, dtype, PROGRAMMATIC=1, **changes)
    loads = [place for place, i in enumerate(found) if i.startswith("ld.global")]
    assert loads and not any(".nc" in found[place] for place in loads)
    assert found.count("griddepcontrol.wait") == 1
    assert min(loads) > found.index("griddepcontrol.wait")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROGRAMMATIC)
def test_an_early_start_loads_late_and_not_as_read_only(name: str, dtype: str) -> None:
    code = source(f"{name}.cu")
    check_early_start(code, dtype)
    check_early_start(code, dtype, STREAMING=0)
    usual = instructions(code, dtype, PROGRAMMATIC=0, STREAMING=0)
    assert any(i.startswith("ld.global.nc") for i in usual)


def test_a_read_only_load_after_an_early_start_is_found() -> None:
    code = source("09_grid.cu")
    read_only = code.replace("PROGRAMMATIC ? __ldca(from) : *from", "*from")
    wait = '        asm volatile("griddepcontrol.wait;" ::: "memory");\n'
    early = code.replace(wait, "").replace(
        "        float thread_max", f"{wait}        float thread_max"
    )
    for wrong in (read_only, early):
        assert wrong != code
        with pytest.raises(AssertionError):
            check_early_start(wrong, "float32", STREAMING=0)


# ---- messages in shared memory -----------------------------------------------------------------


def check_arrivals(code: str, dtype: str, cols: int) -> None:
    """What a block has read of its messages is released before it lets others overwrite them."""
    found = instructions(code, dtype, cols, clusters=2)
    arrivals = [n for n, i in enumerate(found) if i.startswith("barrier.cluster.arrive")]
    assert len(arrivals) == 2, "one before all rows, one in each"
    release = found[arrivals[1] - 1]
    assert release == "fence.release.sync_restrict::shared::cta.cluster", release


@pytest.mark.parametrize("dtype", DTYPES)
def test_letters_are_released_before_others_may_overwrite_them(dtype: str) -> None:
    code = source("08_ahead.cu")
    for cols in (20000, 65536):
        check_arrivals(code, dtype, cols)


def test_an_arrival_that_releases_nothing_is_found() -> None:
    code = source("08_ahead.cu")
    wrong = code.replace("                fence_release_shared();\n", "")
    assert wrong != code
    with pytest.raises(AssertionError):
        check_arrivals(wrong, "float32", 20000)
