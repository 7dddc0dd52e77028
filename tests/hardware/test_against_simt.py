"""The SIMT machine beside an H200: its counters and Nsight Compute's, its findings and those of
compute-sanitizer.

The kernels are in tests/hardware, what the hardware said is in tests/data. Loads and stores of
global and shared memory must count the same; atomics, local memory, asynchronous copies and the
memory of other blocks are reported beside the hardware's.
"""

import json
from functools import cache
from types import SimpleNamespace

import pytest

from helpers.simt import Trace, simulate
from helpers.simt.cuda_text import token_hash
from tests.hardware import counters, sanitizer
from tests.hardware.cases import (
    DATA,
    FILES,
    Case,
    compared,
    measured_patterns,
    patterns,
    reported,
    source,
)
from tests.simt.launches import PLANTED

# (kernel, metric) -> why the machine may count something else. An entry that is not needed fails.
PREDICATED = (
    "the compiler predicates a short branch, and the hardware counts the instruction for warps "
    "none of whose lanes is active as well; wavefronts and conflicts are equal"
)
LOADS, STORES = (f"smsp__inst_executed_op_shared_{verb}.sum" for verb in ("ld", "st"))
EXCEPTIONS: dict[tuple[str, str], str] = {
    **{
        (kernel, LOADS): PREDICATED for kernel in ("scan", "transpose_padded", "transpose_unpadded")
    },
    **{
        (kernel, metric): PREDICATED
        for kernel in ("tree_divergent", "tree_interleaved", "tree_sequential")
        for metric in (LOADS, STORES)
    },
}
# (twin, tool) -> why the tool reports something that is no bug. Likewise needed, or it fails.
FALSE_ALARMS: dict[tuple[str, str], str] = {
    ("shared_barriers/waits_elsewhere_clean", "synccheck"): (
        "wants a block's threads at one instruction; PTX lets them wait for a barrier at several"
    ),
    ("mbarriers/too_few_arrivals_clean", "racecheck"): (
        "does not see that a lane's arrival, behind __syncwarp, stands for its whole warp"
    ),
    ("clusters/st_async_not_waited_clean", "racecheck"): (
        "warns of mbarrier.init and expect_tx by one and the same thread"
    ),
}
# What the kernels that are only reported are about: metrics that cannot be zero.
ABOUT = {
    "global_red": "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum",
    "global_atom": "l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum",
    "shared_atom": "smsp__inst_executed_op_shared_atom.sum",
    "local_array": "l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum",
    "async_copy_4": "smsp__inst_executed_op_ldgsts.sum",
    "async_copy_8": "smsp__inst_executed_op_ldgsts.sum",
    "async_copy_16": "smsp__inst_executed_op_ldgsts.sum",
}


def load(name: str) -> dict:
    """A file of tests/data; an empty table while nobody has measured."""
    path = DATA / f"{name}_h200.json"
    return json.loads(path.read_text()) if path.exists() else {}


COUNTERS, SANITIZER = load("counters"), load("sanitizer")
measured = pytest.mark.skipif(
    not COUNTERS, reason="no tests/data/counters_h200.json: run tests.hardware.counters on an H200"
)
checked = pytest.mark.skipif(
    not SANITIZER,
    reason="no tests/data/sanitizer_h200.json: run tests.hardware.sanitizer on an H200",
)


@cache
def run(case: Case) -> tuple[Trace, list[int]]:
    """(the machine's trace of a case, its arguments with wrong results)"""
    launch = case.launch()
    kernel = SimpleNamespace(code=source(case.kernel.file), name=case.kernel.name, options=())
    arguments = launch.arguments()
    trace = simulate(kernel, launch.grid, launch.block, arguments, launch.shared_mem)
    return trace, launch.wrong(arguments)


@cache
def hardware(case: Case) -> dict[str, int]:
    """The metrics of a case, by name."""
    (found,) = (
        row["metrics"]
        for group in ("compared", "reported")
        for row in COUNTERS[group]
        if (row["kernel"], tuple(row["shape"])) == (case.kernel.name, case.shape)
    )
    return found


def differences(case: Case) -> dict[str, tuple[int, int]]:
    """Metric -> (the machine's count, the hardware's), where they differ."""
    counted = vars(run(case)[0].counters)
    pairs = {
        metric: (counted[name], hardware(case)[metric])
        for name, metric in counters.COMPARED_METRICS.items()
    }
    return {metric: pair for metric, pair in pairs.items() if pair[0] != pair[1]}


def name_of(case: Case) -> str:
    return case.name


# ---- counters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*compared(), *reported()], ids=name_of)
def test_a_kernel_does_its_work_on_the_machine(case: Case) -> None:
    trace, wrong = run(case)
    assert not wrong
    assert not trace.findings, str(trace.findings)


@measured
@pytest.mark.parametrize("case", compared(), ids=name_of)
def test_loads_and_stores_count_as_on_the_hardware(case: Case) -> None:
    found = differences(case)
    allowed = {metric for kernel, metric in EXCEPTIONS if kernel == case.kernel.name}
    assert {metric: pair for metric, pair in found.items() if metric not in allowed} == {}


@measured
def test_every_exception_is_needed_and_has_a_reason() -> None:
    differing = {(case.kernel.name, metric) for case in compared() for metric in differences(case)}
    assert set(EXCEPTIONS) <= differing
    assert all(len(reason.split()) > 3 for reason in EXCEPTIONS.values())


def test_the_kernels_cover_what_differs_in_hardware() -> None:
    shapes: dict[str, set] = {}
    for case in compared():
        shapes.setdefault(case.kernel.name, set()).add(case.shape)
    assert {metric for _, metric in EXCEPTIONS} <= {LOADS, STORES}  # wavefronts tell all
    without = [kernel for kernel in shapes if kernel not in {name for name, _ in EXCEPTIONS}]
    assert len(without) >= 12
    assert all(len(found) >= 3 for found in shapes.values())
    assert {
        *("strided_loads", "strided_vectors", "transposed_store", "gather", "divergent"),
        *("strided_4", "strided_8", "strided_16"),
    } <= set(without)
    assert {"transpose_unpadded", "tree_interleaved"} <= set(shapes)


@measured
def test_every_metric_says_something() -> None:
    for metric in counters.COMPARED_METRICS.values():
        assert sum(hardware(case)[metric] > 0 for case in compared()) >= 12, metric


@measured
def test_the_counters_are_those_of_the_kernels_as_they_are() -> None:
    assert COUNTERS["device"]["name"] == "NVIDIA H200"
    assert COUNTERS["hashes"] == {file: token_hash(source(file)) for file in FILES}, (
        "run tests.hardware.counters on an H200"
    )
    assert COUNTERS["wrong_results"] == [] and COUNTERS["failures"] == {}
    for group, cases in (("compared", compared()), ("reported", reported())):
        assert COUNTERS["commands"][group].startswith("ncu --clock-control none ")
        launches = [
            (row["kernel"], *row["shape"], row["grid"], row["block"], row["shared_mem"])
            for row in COUNTERS[group]
        ]
        assert launches == [
            (
                case.kernel.name,
                *case.shape,
                *(
                    list(sizes) if isinstance(sizes, tuple) else sizes
                    for sizes in (case.launch().grid, case.launch().block)
                ),
                case.launch().shared_mem,
            )
            for case in cases
        ]


@measured
def test_wavefronts_of_the_patterns_are_those_measured_before() -> None:
    assert len(COUNTERS["patterns"]) == len(measured_patterns()) == len(patterns())
    for row, before in zip(COUNTERS["patterns"], measured_patterns(), strict=True):
        found = {
            name.removeprefix("shared_"): row["metrics"][metric]
            for name, metric in counters.SHARED_METRICS.items()
        }
        assert (row["type"], row["pattern"]) == (before["type"], before["pattern"])
        common = found.keys() & before.keys()
        assert len(common) == 4  # requests and wavefronts; bank conflicts were not counted then
        assert {name: found[name] for name in common} == {name: before[name] for name in common}


@measured
@pytest.mark.parametrize("case", reported(), ids=name_of)
def test_what_is_only_reported_used_its_feature(case: Case) -> None:
    metric = ABOUT.get(case.kernel.name)
    if metric and metric not in COUNTERS["metrics_unknown"]:
        assert hardware(case)[metric] > 0
    assert f"| {case.kernel.name} | {' x '.join(map(str, case.shape))} |" in counters.table(
        COUNTERS
    )


CSV = """==PROF== Connected to process 7
  compared 1/2 copy_bytes
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","7","copy_bytes(const char *, int)","a.sum","","1,024"
"0","7","copy_bytes(const char *, int)","b.sum","","n/a"
"1","7","copy_floats","a.sum","","2.5"
"""


def test_what_ncu_prints_is_read() -> None:
    assert counters.parse(CSV) == [
        {"kernel": "copy_bytes(const char *, int)", "metrics": {"a.sum": 1024}},
        {"kernel": "copy_floats", "metrics": {"a.sum": 2.5}},
    ]
    assert counters.parse("==ERROR== no\n") == []


def test_launches_that_ncu_missed_are_no_counters() -> None:
    names = [case.kernel.name for case in reported()]
    rows = [{"kernel": f"{name}(int)", "metrics": {"a.sum": 1}} for name in names]
    assert [row["kernel"] for row in counters.assign("reported", rows, {})] == names
    with pytest.raises(ValueError, match="27 launches wanted"):
        counters.assign("reported", rows[1:], {})
    with pytest.raises(ValueError, match="ncu saw"):
        counters.assign("reported", rows[::-1], {})


# ---- findings -----------------------------------------------------------------------------------


@checked
def test_the_verdicts_are_about_the_kernels_as_they_are() -> None:
    assert SANITIZER["device"]["name"] == "NVIDIA H200"
    kernels = SANITIZER["kernels"]
    assert set(kernels) == set(PLANTED), "run tests.hardware.sanitizer on an H200"
    for name, one in PLANTED.items():
        assert kernels[name]["bugs"] == [list(mark) for mark in one.marks]
        assert SANITIZER["hashes"][one.file] == token_hash(one.code)
        for tool in sanitizer.tools_of(SANITIZER):
            assert kernels[name][tool]["outcome"] != "not run"


@checked
@pytest.mark.parametrize("tool", sanitizer.tools_of(SANITIZER) or ["no tool"])
def test_the_tools_have_nothing_against_the_twins(tool: str) -> None:
    for name, kernel in SANITIZER["kernels"].items():
        if not kernel["bugs"]:
            quiet = (kernel[tool]["outcome"], kernel[tool]["errors"]) == ("ran", 0)
            assert quiet == ((name, tool) not in FALSE_ALARMS), name


@checked
def test_the_table_has_a_row_for_each_bug() -> None:
    text = sanitizer.table(SANITIZER)
    assert [row.split("`")[1] for row in text.splitlines() if row.startswith("| `")] == [
        name for name, one in PLANTED.items() if one.marks
    ]
    page = (DATA / "sanitizer_h200.md").read_text()
    assert text.strip() in page, "python -m tests.hardware.sanitizer --table > ..."


MEMCHECK = """========= COMPUTE-SANITIZER
preparing file/buggy
launching file/buggy
========= Invalid __global__ read of size 4 bytes
=========     at buggy+0x250 in /somewhere/kernels/file.cu:10
=========     by thread (35,0,0) in block (1,0,0)
=========     Access at 0x7f is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main in main.c:99
=========
========= Invalid __global__ read of size 4 bytes
=========     at buggy+0x250 in /somewhere/kernels/file.cu:10
=========     by thread (36,0,0) in block (1,0,0)
=========
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to "failure" on CUDA API call
=========     Saved host backtrace up to driver entry point at error
=========
failed file/buggy: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure
========= Target application returned an error
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """launching file/buggy
========= Error: Race reported between Write access at buggy+0x80 in /somewhere/kernels/file.cu:7
=========     and Read access at buggy+0xb0 in /somewhere/kernels/file.cu:9 [248 hazards]
=========
done file/buggy
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_what_the_tools_print_is_read() -> None:
    found = sanitizer.verdict(MEMCHECK, "file/buggy", [("out-of-bounds load", 10)])
    what = "Invalid __global__ read of size 4 bytes"
    assert found == {
        "outcome": "launch failed",
        "errors": 2,
        "on_the_line": [10],
        "reports": [{"what": what, "lines": [10], "count": 2}],
    }
    found = sanitizer.verdict(RACECHECK, "file/buggy", [("race on shared memory", 8)])
    assert (found["outcome"], found["errors"], found["on_the_line"]) == ("ran", 1, [])
    assert found["reports"][0]["lines"] == [7, 9]
    assert sanitizer.in_a_word(found) == "found"


@pytest.mark.parametrize(
    ("printed", "outcome", "word"),
    [
        ("launching a/b\ndone a/b\n", "ran", "-"),
        ("launching a/b\nhang a/b\n", "hang", "hangs"),
        ("launching a/b\n\nran past its time\n", "hang", "hangs"),
        ("launching a/b\n", "launch failed", "fails"),
        ("preparing a/b\n\nran past its time\n", "not run", "not run"),
        ("launching a/c\ndone a/c\n", "not run", "not run"),
    ],
)
def test_how_a_kernel_ended_is_read(printed: str, outcome: str, word: str) -> None:
    found = sanitizer.verdict(printed, "a/b", [])
    assert (found["outcome"], sanitizer.in_a_word(found)) == (outcome, word)
