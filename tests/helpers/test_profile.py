"""Named quantities against sums over the counters as they are stored."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from helpers.base.gpu import H200
from helpers.catalogue.registry import split_trial
from helpers.measure import store
from helpers.measure.profiler.counters import NsightCounters
from helpers.measure.records import launch_of, load_record
from helpers.page import profile
from helpers.problem.problem import Problem
from helpers.problem.shapes import REFERENCE_SHAPE
from helpers.run.bound import load


class Place(NamedTuple):
    """As the named quantities are asked for."""

    step: str
    rows: int
    cols: int
    dtype: str


ARRAYS, *KERNELS = store.read(NsightCounters)
LARGE = {
    Place(one.step, one.rows, one.cols, one.dtype): one.metrics[0][1]
    for one in KERNELS
    if one.rows * one.cols == 2**28
}
UNFUSED = [metrics for _, metrics in ARRAYS.metrics]
HERTZ = 1980 * 10**6
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def each_case(test: Callable) -> Callable[[], None]:
    """One test of all cases, which are many and short; the first that is wrong is named."""

    def every() -> None:
        for case, seen in LARGE.items():
            try:
                test(case, seen)
            except AssertionError as error:
                raise AssertionError(f"{case}: {error}") from error

    every.__name__, every.__doc__ = test.__name__, test.__doc__
    return every


@each_case
def test_instructions_and_slots(case, seen) -> None:
    executed = seen["smsp__inst_executed.sum"]
    assert profile.instructions_per_column(*case) == executed * 32 / 2**28
    assert profile.instructions_per_row(*case) == executed / case.rows
    if launch_of(case.step, Problem(*case[1:]))["grid"] < 8 * 132:
        return  # SMs without a block do not count
    # The share of the slots is that of the instructions in those that the time has.
    clocks = seen["gpu__time_duration.sum"] * 1e-9 * HERTZ
    expected = executed / (clocks * 132 * 4)
    assert profile.issuing(*case) == pytest.approx(expected, rel=0.3, abs=0.01)


@each_case
def test_warps_that_wait_are_some_of_those_that_are_active(case, seen) -> None:
    active = profile.active_warps(*case)
    assert active == pytest.approx(
        0.64 * seen["sm__warps_active.avg.pct_of_peak_sustained_active"], rel=1e-12
    )
    issuing = seen["smsp__issue_active.avg.pct_of_peak_sustained_active"] / 100
    shares = []
    for why in profile.REASONS:
        waiting = profile.waiting_warps(*case, why=why)
        assert waiting == pytest.approx(4 * issuing * seen[STALL.format(why)], rel=1e-12)
        shares.append(profile.waiting_share(*case, why=why))
        assert shares[-1] == pytest.approx(waiting / active, rel=1e-12)
    if not case.step.endswith("copy_bulk"):  # a few instructions a block: the ratios are of none
        assert 0 < sum(shares) < 1.05, "a warp waits for one thing at a time"


def test_bytes_in_flight_obey_littles_law() -> None:
    step, shape = profile.FAR_COPY, profile.REFERENCE_SHAPE
    in_flight = profile.bytes_in_flight(step, *shape)
    assert in_flight == profile.waiting_warps(step, *shape) * 128
    assert profile.bytes_in_flight(step, *shape, lane_bytes=16) == 4 * in_flight
    case = load_record(step).case(*shape)
    got = 4 * shape[0] * shape[1] / 132 / (1000 * case.median_us)  # bytes a nanosecond, of an SM
    assert profile.read_rate(step, *shape) == pytest.approx(got)
    assert profile.latency_ns(step, *shape) == pytest.approx(in_flight / got)
    # At the rate of the copy, which is faster by the share that the slow one reaches.
    share = case.median_us / load_record("00_copy").case(*shape).median_us
    assert profile.bytes_needed() == pytest.approx(in_flight * share)
    assert profile.bytes_needed(2, latency=100) == pytest.approx(
        200 * profile.read_rate("00_copy", *shape)
    )


@each_case
def test_memory(case, seen) -> None:
    size = 2 if case.dtype == "bfloat16" else 4
    read, written = profile.dram_bytes(*case)
    assert (read, written) == (seen["dram__bytes_read.sum"], seen["dram__bytes_write.sum"])
    assert profile.dram_passes(*case) == (read / 2**28 / size, written / 2**28 / size)
    reads_alone = (
        load(split_trial(case.step).file).operation.bandwidth_baseline == "variants/00_read"
    )
    assert (0.8 < profile.dram_passes(*case)[1]) != reads_alone
    if not case.step.endswith("copy_bulk"):  # loads nothing itself
        assert 0 <= profile.l1_hits(*case) <= 1
    assert profile.time_us(*case) == seen["gpu__time_duration.sum"] / 1000
    for unit in ("l1tex", "lts", "dram"):
        assert 0 < profile.busy(unit, *case) <= 100
    # The DRAM of an H200 moves 4.8 TB in a second.
    rate = (read + written) / seen["gpu__time_duration.sum"] / 4800
    assert profile.busy("dram", *case) / 100 == pytest.approx(rate, rel=0.06)


def test_a_wide_request_asks_for_a_seventeenth_sector_in_half_of_the_odd_rows() -> None:
    assert profile.loaded_passes("00_copy", *REFERENCE_SHAPE) == 1
    assert profile.loaded_passes("05_float4", *REFERENCE_SHAPE) == 2
    for dtype in ("float32", "bfloat16"):
        place = "11_any_row", 5340, 50257, dtype
        asked = profile.loaded_passes(*place)
        assert asked == pytest.approx(1 + 1 / 2 / 16, abs=0.001)
        # L1 had most of them, the L2 the rest: x is read once, so hits are of shared sectors.
        assert 1 <= profile.dram_passes(*place)[0] < 1.001 < asked * (1 - profile.l1_hits(*place))


def test_speed_of_the_copy() -> None:
    record = load_record("04_shuffle")
    case = record.case(*REFERENCE_SHAPE)
    assert profile.clock_hz(record) == HERTZ
    columns = 2**28 / (case.copy_us * 1e-6)
    assert profile.copied_per_second(record, *REFERENCE_SHAPE) == pytest.approx(columns)
    slots = 132 * 128 * HERTZ / columns
    assert profile.slots_per_column("04_shuffle", *REFERENCE_SHAPE) == pytest.approx(slots)
    copied = profile.copied_per_clock("04_shuffle", *REFERENCE_SHAPE)
    assert copied * slots == pytest.approx(128), "lanes that an SM serves in a clock"


def test_blocks_that_fit() -> None:
    for step in ("06_registers", "08_cluster", "09_grid"):
        record = load_record(step)
        for case in record.cases:
            if not case.attributes and step != "06_registers":
                continue
            registers = (case.attributes or record.attributes)["registers"]
            block, shared = case.launch["block"], case.launch["shared_mem"]
            fit = profile.blocks_that_fit(record, case)
            assert 1 <= fit <= 32 and fit * block <= 2048
            assert fit * block * registers <= 65536 and fit * (shared + 1024) <= 228 * 1024
            held = profile.kilobytes_held(record, case)
            assert held == pytest.approx(fit * case.bytes / 2 / case.launch["grid"] / 1e3)
            assert profile.sms_in_use(case, H200) == min(132, case.launch["grid"])
    assert profile.blocks_by_registers(registers=32, warps=8) == 8
    assert profile.blocks_by_registers(registers=33, warps=8) == 4 * (16384 // 1280) // 8 == 6
    assert profile.blocks_by_registers(registers=255, warps=32) == 0, "8 such warps fit"


def test_l1_l2_and_dram_answer_two_reads() -> None:
    """1.5 sectors of the L2's counter for each from DRAM, one for each that the L2 had."""
    for step in ("03_shared", "04_shuffle", "05_float4"):
        for cols in (1024, 4096, 16384):
            shape = 2**28 // cols, cols
            dram, _ = profile.dram_passes(step, *shape)
            l2 = 2 - 2 * profile.l1_hits(step, *shape) - dram
            counted = 1.5 * profile.l2_sectors(step, *shape)[0]
            assert counted == pytest.approx(1.5 * dram + l2, rel=0.03)


def test_the_array_version_reads_five_matrices_and_writes_three() -> None:
    launches = profile.unfused_launches()
    us, read, written = (sum(launch[column] for launch in launches) for column in (1, 2, 3))
    assert us == pytest.approx(sum(seen["gpu__time_duration.sum"] for seen in UNFUSED) / 1e3)
    assert read == pytest.approx(5, rel=0.05) and written == pytest.approx(3, rel=0.05)
