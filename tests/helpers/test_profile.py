"""Named quantities against sums over the counters as they are stored."""

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


def check_instructions(case: Place, seen: dict[str, float]) -> None:
    executed, found = seen["smsp__inst_executed.sum"], profile.of(*case)
    assert found.instructions_per_column == executed * 32 / 2**28
    assert found.instructions_per_row == executed / case.rows
    launch = launch_of(case.step, Problem(*case[1:]))
    if launch["grid"] < 8 * 132:
        return  # SMs without a block do not count
    # The share of the slots is that of the instructions in those that the time has. The profiler
    # counts them in different replays, whose times differ by up to a third. Clusters of 16 leave
    # 20 SMs without a block.
    sms = 112 if launch.get("CLUSTER") == 16 else 132
    clocks = seen["gpu__time_duration.sum"] * 1e-9 * HERTZ
    assert found.issuing == pytest.approx(executed / (clocks * sms * 4), rel=0.33, abs=0.01)


def check_warps(case: Place, seen: dict[str, float]) -> None:
    """Those that wait are some of those that are active."""
    found = profile.of(*case)
    percent = seen["sm__warps_active.avg.pct_of_peak_sustained_active"]
    assert found.active_warps == pytest.approx(0.64 * percent, rel=1e-12)
    for why in profile.REASONS:
        waiting = 4 * found.issuing * seen[STALL.format(why)]
        assert found.waiting_warps(why=why) == pytest.approx(waiting, rel=1e-12)
    if not case.step.endswith("copy_bulk"):  # a few instructions a block: the ratios are of none
        shares = [found.waiting_share(why=why) for why in profile.REASONS]
        assert 0 < sum(shares) < 1.05, "a warp waits for one thing at a time"


def check_memory(case: Place, seen: dict[str, float]) -> None:
    size, found = 2 if case.dtype == "bfloat16" else 4, profile.of(*case)
    read, written = found.dram_bytes
    assert found.dram_passes == (read / 2**28 / size, written / 2**28 / size)
    operation = load(split_trial(case.step).file).operation
    assert (0.8 < found.dram_passes[1]) != (operation.bandwidth_baseline == "variants/00_read")
    if not case.step.endswith("copy_bulk"):  # loads nothing itself
        assert 0 <= found.l1_hits <= 1
    for unit in ("l1tex", "lts", "dram"):
        assert 0 < found.busy(unit) <= 100
    # The DRAM of an H200 moves 4.8 TB in a second.
    rate = (read + written) / found.time_us / 1e3 / 4800
    assert found.busy("dram") / 100 == pytest.approx(rate, rel=0.06)


@pytest.mark.parametrize("check", [check_instructions, check_warps, check_memory])
def test_quantities_of_every_profiled_launch(check) -> None:
    for case, seen in LARGE.items():
        try:
            check(case, seen)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
