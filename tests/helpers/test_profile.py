"""Named quantities against sums over the counters as they are stored."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from helpers.catalogue import store
from helpers.catalogue.dispatch import launch_of
from helpers.catalogue.registry import split_trial
from helpers.measure.profiler import NsightCounters
from helpers.page import profile
from helpers.problem.problem import Problem
from helpers.run.bound import load


class Place(NamedTuple):
    """As the named quantities are asked for."""

    step: str
    rows: int
    cols: int
    dtype: str


_, *KERNELS = store.read(NsightCounters)
LARGE = {
    Place(one.step, one.rows, one.cols, one.dtype): one.metrics[0][1]
    for one in KERNELS
    if one.rows * one.cols == 2**28
}
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
