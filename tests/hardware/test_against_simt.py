"""The SIMT machine beside an H200: its counters and Nsight Compute's, its findings and those of
compute-sanitizer.

The kernels are in tests/hardware, what the hardware said is in tests/data. Loads and stores of
global and shared memory must count the same, or, where ptxas may unroll a ragged loop, no more
requests be missing than the report says. Atomics, local memory, asynchronous copies and the memory
of other blocks are reported beside the hardware's.
"""

import json
from functools import cache

import pytest

from helpers.simt.cuda_text import token_hash
from tests.golden import golden
from tests.hardware import counters, ragged, sanitizer
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
from tests.hardware.races import RACES
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


def load(name: str) -> dict:
    """A file of tests/data."""
    return json.loads((DATA / f"{name}_h200.json").read_text())


COUNTERS, RAGGED, SANITIZER, RACY = map(load, ("counters", "ragged", "sanitizer", "global_races"))
HARDWARE = {
    (row["kernel"], tuple(row["shape"])): row["metrics"]
    for row in (
        *(*COUNTERS["compared"], *COUNTERS["patterns"]),
        *(*COUNTERS["reported"], *RAGGED["ragged"]),
    )
}
CASES_OF = {
    **{"compared": compared(), "patterns": patterns()},
    **{"reported": reported(), "ragged": ragged.ragged()},
}


run = cache(Case.run)


def differences(case: Case) -> dict[str, tuple[int, int]]:
    """Metric -> (the machine's count, the hardware's), where they differ; of requests, where ptxas
    may have unrolled a loop, by more than the machine says. Of sectors no more is known there."""
    trace, seen, found = run(case)[0], HARDWARE[case.kernel.name, case.shape], {}
    more = sum(trace.more.values()) if case.kernel.file == ragged.FILE else 0
    shared_alone = case.kernel.name.startswith("pattern_")
    metrics = counters.SHARED_METRICS if shared_alone else counters.COMPARED_METRICS
    for name, metric in metrics.items():
        counted = getattr(trace.counters, name)
        if more and "requests" not in name:
            continue
        if not counted <= seen[metric] <= counted + more:
            found[metric] = counted, seen[metric]
    return found


# ---- counters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", sum(CASES_OF.values(), []), ids=lambda case: case.name)
def test_a_kernel_does_its_work_and_counts_as_on_the_hardware(case: Case) -> None:
    trace, wrong = run(case)
    assert not wrong
    assert not trace.findings, str(trace.findings)
    golden.hold("hardware", case.name, trace)
    if case not in CASES_OF["reported"]:
        allowed = {metric for kernel, metric in EXCEPTIONS if kernel == case.kernel.name}
        assert {
            metric: two for metric, two in differences(case).items() if metric not in allowed
        } == {}


def test_every_exception_is_needed() -> None:
    differing = {(case.kernel.name, metric) for case in compared() for metric in differences(case)}
    assert {*EXCEPTIONS} <= differing


def test_the_counters_are_those_of_the_kernels_as_they_are() -> None:
    for data, files in ((COUNTERS, FILES), (RAGGED, (ragged.FILE,))):
        assert data["device"]["name"] == "NVIDIA H200"
        assert data["hashes"] == {file: token_hash(source(file)) for file in files}, (
            "run tests.hardware.counters on an H200"
        )
        assert data["wrong_results"] == [] and data["failures"] == {}
    for group, cases in CASES_OF.items():
        rows = (RAGGED if group == "ragged" else COUNTERS)[group]
        launches = [
            (row["kernel"], *row["shape"], row["grid"], row["block"], row["shared_mem"])
            for row in rows
        ]
        assert launches == [
            (case.kernel.name, *case.shape, *json.loads(json.dumps(sizes)))
            for case in cases
            for sizes in [(case.launch().grid, case.launch().block, case.launch().shared_mem)]
        ]
    counts = ("load_requests", "load_wavefronts", "store_requests", "store_wavefronts")
    for row, measured in zip(COUNTERS["patterns"], measured_patterns(), strict=True):
        metrics = [counters.SHARED_METRICS[f"shared_{name}"] for name in counts]
        assert [row["metrics"][one] for one in metrics] == [measured[name] for name in counts]


# ---- findings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("data", "known"), [(SANITIZER, PLANTED), (RACY, RACES)])
def test_the_verdicts_and_the_page_are_about_the_kernels_as_they_are(data, known) -> None:
    assert data["device"]["name"] == "NVIDIA H200"
    assert {*data["kernels"]} == {*known}, "run tests.hardware.sanitizer on an H200"
    for name, one in known.items():
        assert data["kernels"][name]["bugs"] == [list(mark) for mark in one.marks]
        assert data["hashes"][one.file] == token_hash(one.code)
        for tool in sanitizer.tools_of(data):
            assert data["kernels"][name][tool]["outcome"] != "not run"
    text = sanitizer.table(data)
    assert [row.split("`")[1] for row in text.splitlines() if row.startswith("| `")] == [
        name for name, one in known.items() if one.marks
    ]
    page = "sanitizer" if known is PLANTED else "global_races"
    assert text.strip() in (DATA / f"{page}_h200.md").read_text(), "python -m ... --table > ..."


def test_the_tools_have_nothing_against_the_twins() -> None:
    for name, kernel in SANITIZER["kernels"].items():
        for tool in sanitizer.tools_of(SANITIZER) if not kernel["bugs"] else ():
            quiet = (kernel[tool]["outcome"], kernel[tool]["errors"]) == ("ran", 0)
            assert quiet == ((name, tool) not in FALSE_ALARMS), (name, tool)


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
    found = sanitizer.verdict("launching a/b\n\nran past its time\n", "a/b", [])
    assert (found["outcome"], sanitizer.in_a_word(found)) == ("hang", "hangs")
    assert sanitizer.verdict("preparing a/b\n", "a/b", [])["outcome"] == "not run"


NCU = """==PROF== Connected to process 7
checked 2 launches
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"1","late(int *)","gpu__time_duration.sum","ns","1,024.5"
"0","early(int *)","l1tex__t_sectors.sum","","12,000"
"0","early(int *)","unknown.sum","","n/a"
"0","early(int *)","broken.ratio","","nan"
==PROF== Disconnected
"""


def test_what_ncu_prints_is_read() -> None:
    """In the order of the launches, counts as integers, without what is not available."""
    assert counters.parse(NCU) == [
        {"kernel": "early(int *)", "metrics": {"l1tex__t_sectors.sum": 12000}},
        {"kernel": "late(int *)", "metrics": {"gpu__time_duration.sum": 1024.5}},
    ]
    assert isinstance(counters.parse(NCU)[0]["metrics"]["l1tex__t_sectors.sum"], int)
    assert counters.parse("==ERROR== no permission") == []
