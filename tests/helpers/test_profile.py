"""Named quantities against sums over the counters as they are stored."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from helpers.base.gpu import H200
from helpers.catalogue import store
from helpers.catalogue.registry import split_trial
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
    assert profile.of(*case).instructions_per_column == executed * 32 / 2**28
    assert profile.of(*case).instructions_per_row == executed / case.rows
    if launch_of(case.step, Problem(*case[1:]))["grid"] < 8 * 132:
        return  # SMs without a block do not count
    # The share of the slots is that of the instructions in those that the time has. The profiler
    # counts them in different replays, whose times differ by up to a third.
    clocks = seen["gpu__time_duration.sum"] * 1e-9 * HERTZ
    expected = executed / (clocks * 132 * 4)
    assert profile.of(*case).issuing == pytest.approx(expected, rel=0.4, abs=0.01)


@each_case
def test_warps_that_wait_are_some_of_those_that_are_active(case, seen) -> None:
    active = profile.of(*case).active_warps
    assert active == pytest.approx(
        0.64 * seen["sm__warps_active.avg.pct_of_peak_sustained_active"], rel=1e-12
    )
    issuing = seen["smsp__issue_active.avg.pct_of_peak_sustained_active"] / 100
    shares = []
    for why in profile.REASONS:
        waiting = profile.of(*case).waiting_warps(why=why)
        assert waiting == pytest.approx(4 * issuing * seen[STALL.format(why)], rel=1e-12)
        shares.append(profile.of(*case).waiting_share(why=why))
        assert shares[-1] == pytest.approx(waiting / active, rel=1e-12)
    if not case.step.endswith("copy_bulk"):  # a few instructions a block: the ratios are of none
        assert 0 < sum(shares) < 1.05, "a warp waits for one thing at a time"


@each_case
def test_memory(case, seen) -> None:
    size = 2 if case.dtype == "bfloat16" else 4
    read, written = profile.of(*case).dram_bytes
    assert (read, written) == (seen["dram__bytes_read.sum"], seen["dram__bytes_write.sum"])
    assert profile.of(*case).dram_passes == (read / 2**28 / size, written / 2**28 / size)
    reads_alone = (
        load(split_trial(case.step).file).operation.bandwidth_baseline == "variants/00_read"
    )
    assert (0.8 < profile.of(*case).dram_passes[1]) != reads_alone
    if not case.step.endswith("copy_bulk"):  # loads nothing itself
        assert 0 <= profile.of(*case).l1_hits <= 1
    assert profile.of(*case).time_us == seen["gpu__time_duration.sum"] / 1000
    for unit in ("l1tex", "lts", "dram"):
        assert 0 < profile.of(*case).busy(unit) <= 100
    # The DRAM of an H200 moves 4.8 TB in a second.
    rate = (read + written) / seen["gpu__time_duration.sum"] / 4800
    assert profile.of(*case).busy("dram") / 100 == pytest.approx(rate, rel=0.06)


def test_a_wide_request_asks_for_a_seventeenth_sector_in_half_of_the_odd_rows() -> None:
    assert profile.of("00_copy", *REFERENCE_SHAPE).loaded_passes == 1
    assert profile.of("05_float4", *REFERENCE_SHAPE).loaded_passes == 2
    for dtype in ("float32", "bfloat16"):
        place = "11_any_row", 5340, 50257, dtype
        seen = profile.of(*place)
        asked = seen.loaded_passes
        assert asked == pytest.approx(1 + 1 / 2 / 16, abs=0.001)
        # L1 had most of them, the L2 the rest: x is read once, so hits are of shared sectors.
        assert 1 <= seen.dram_passes[0] < 1.001 < asked * (1 - seen.l1_hits)


def test_bytes_in_flight_and_the_rate_of_the_copy() -> None:
    far, copy = (profile.of(step, *REFERENCE_SHAPE) for step in (profile.FAR_COPY, "00_copy"))
    rate = 2**30 / 132 / (1000 * far.case.median_us)  # bytes a nanosecond, of an SM
    assert far.read_rate() == pytest.approx(rate)
    assert far.latency_ns() * rate == pytest.approx(far.waiting_warps() * 128)
    assert profile.bytes_needed(2, latency=100) == pytest.approx(200 * copy.read_rate())
    assert far.copied_per_second == pytest.approx(2**28 / (far.case.copy_us * 1e-6))
    assert far.copied_per_clock * far.slots_per_column == pytest.approx(128), "lanes of an SM"


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
            dram, _ = profile.of(step, *shape).dram_passes
            l2 = 2 - 2 * profile.of(step, *shape).l1_hits - dram
            counted = 1.5 * profile.of(step, *shape).l2_sectors()[0]
            assert counted == pytest.approx(1.5 * dram + l2, rel=0.03)


def test_the_array_version_reads_five_matrices_and_writes_three() -> None:
    launches = profile.unfused_launches()
    us, read, written = (sum(launch[column] for launch in launches) for column in (1, 2, 3))
    assert us == pytest.approx(sum(seen["gpu__time_duration.sum"] for seen in UNFUSED) / 1e3)
    assert read == pytest.approx(5, rel=0.05) and written == pytest.approx(3, rel=0.05)
