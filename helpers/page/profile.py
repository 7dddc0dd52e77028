"""Counters as named quantities: what the prose says about a launch, with its unit and its formula.

Nsight Compute's counters belong to one launch of a step at a shape and in a dtype
(`helpers.measure.profiler`); times are those of the step's record. Per SM and per
scheduler means the average over all SMs and the whole launch. An element of the matrix is a column
of a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..base.arguments import checked
from ..catalogue.registry import COPY
from ..measure.profiler import nsight_unfused, profiled
from ..measure.records import Case, Record, load_record
from ..problem.problem import Problem
from ..problem.shapes import REFERENCE_SHAPE
from ..simt.hardware import (
    SECTOR,
    SM_BLOCKS,
    SM_SHARED_BYTES,
    SM_THREADS,
    SYSTEM_SHARED_BYTES,
    WARP,
)

# Limits per SM of an H200, as in `simt.hardware`; GPUs with lower limits (compute capability 8.6
# and 8.9: 48 warps) need other values. CUDA C++ Programming Guide, "Compute Capabilities", column
# 9.0.
SM_WARPS = SM_THREADS // WARP
SCHEDULERS = 4  # each issues one warp instruction per clock
REGISTERS = 65536  # 32 bits each, a quarter of them per scheduler
REGISTER_UNIT = 8  # allocation granularity, registers per thread

# What a warp can wait for, by Nsight Compute's names.
REASONS = (
    "long_scoreboard",  # a load from global or local memory
    "short_scoreboard",  # a result of shared memory, of a shuffle or of a special function
    "barrier",
    "lg_throttle",  # space in the queue of loads and stores
    "mio_throttle",
    "math_pipe_throttle",
    "wait",  # a fixed number of clocks
)

# Little's law, J. D. C. Little, Operations Research 9 (1961): in flight = rate * latency. Here, per
# SM: bytes in flight = bytes that arrive per nanosecond * latency in nanoseconds.

FAR_COPY = "variants/00_copy_scalar-b1024"  # 4 bytes per lane: too slow for its loads to queue


@checked
def of(step: str, rows: int, cols: int, dtype: str = "float32") -> Profile:
    """The named quantities of a step's launch on a matrix.

    Each raises `KeyError` if the launch was not profiled, or not timed where it needs the time.
    """
    return Profile(step, Problem(rows, cols, dtype))


@dataclass(frozen=True)
class Profile:
    """The counters and times of one launch."""

    step: str
    problem: Problem

    @property
    def counters(self) -> dict[str, float]:
        """All counters by Nsight Compute's names."""
        ((_, metrics),) = profiled(self.step, self.problem).metrics
        return metrics

    @property
    def record(self) -> Record:
        """The record of the step."""
        return load_record(self.step)

    @property
    def case(self) -> Case:
        """The timed case of the record."""
        return self.record.case(*self.problem.shape, self.problem.dtype)

    @property
    def share(self) -> float:
        """Recorded bandwidth as a fraction of the copy's."""
        return self.case.share

    @property
    def time_us(self) -> float:
        """Microseconds of the profiled launch, which is slower than a timed one."""
        return self.counters["gpu__time_duration.sum"] / 1e3

    # ---- instructions ---------------------------------------------------------------------------

    @property
    def instructions_per_column(self) -> float:
        """Instructions per thread and element: executed * 32 / (rows * cols)."""
        return self._executed * WARP / math.prod(self.problem.shape)

    @property
    def instructions_per_row(self) -> float:
        """Instructions of all warps per row: executed / rows."""
        return self._executed / self.problem.rows

    @property
    def _executed(self) -> float:
        return self.counters["smsp__inst_executed.sum"]

    @property
    def issuing(self) -> float:
        """Fraction of the issue slots that are used, 0 to 1: clocks in which a scheduler issues."""
        return self.counters["smsp__issue_active.avg.pct_of_peak_sustained_active"] / 100

    @property
    def slots_per_column(self) -> float:
        """Issue slots per lane and element at the speed of the copy that was timed with the step:
        SMs * 4 schedulers * 32 lanes * clock / (elements that the copy moves per second)."""
        lanes = self.record.gpu.sms * SCHEDULERS * WARP
        return lanes * clock_hz(self.record) / self.copied_per_second

    @property
    def copied_per_clock(self) -> float:
        """Elements that the copy timed with the step moves per clock and SM."""
        return self.copied_per_second / clock_hz(self.record) / self.record.gpu.sms

    @property
    def copied_per_second(self) -> float:
        """Elements that the copy timed with the step moves per second."""
        return math.prod(self.problem.shape) / self.case.copy_us * 1e6

    # ---- warps ----------------------------------------------------------------------------------

    @property
    def active_share(self) -> float:
        """Resident warps per SM, as a fraction of the 64 that it can hold, 0 to 1."""
        return self.counters["sm__warps_active.avg.pct_of_peak_sustained_active"] / 100

    @property
    def active_warps(self) -> float:
        """Resident warps per SM, on average: 64 * `active_share`."""
        return SM_WARPS * self.active_share

    @property
    def active_blocks(self) -> float:
        """Resident blocks per SM, on average: `active_warps` / warps per block."""
        launch = profiled(self.step, self.problem).launch
        return self.active_warps / (launch["block"] / WARP)

    def waiting_warps(self, why: str = "long_scoreboard") -> float:
        """Warps per SM that wait for one of `REASONS`, on average over all clocks: 4 schedulers *
        `issuing` * clocks that a warp waits between two of its instructions, which by Little's law
        are also the warps per scheduler that wait when one issues."""
        counter = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
        stalled = self._one_of(REASONS, why, counter)
        return SCHEDULERS * self.issuing * stalled

    @checked
    def _one_of(self, known: tuple[str, ...], name: str, counter: str) -> float:
        if name not in known:
            raise ValueError(f"{name!r} is none of {', '.join(known)}")
        return self.counters[counter.format(name)]

    def waiting_share(self, why: str = "long_scoreboard") -> float:
        """Fraction of a warp's time that it waits for one of `REASONS`, 0 to 1: `waiting_warps` /
        `active_warps`."""
        return self.waiting_warps(why) / self.active_warps

    # ---- bytes in flight ------------------------------------------------------------------------

    def bytes_in_flight(self, lane_bytes: int = 4) -> float:
        """Bytes that an SM has requested and not received, on average: `waiting_warps` * 32 lanes *
        bytes per load of a lane, if a warp has one load in flight."""
        return self.waiting_warps() * WARP * lane_bytes

    def read_rate(self, passes: float = 1) -> float:
        """Bytes that an SM receives per nanosecond, if the step reads the matrix `passes` times."""
        case = self.case
        return passes * case.bytes / 2 / case.median_us / 1e3 / self.record.gpu.sms

    def latency_ns(self, passes: float = 1) -> float:
        """Nanoseconds from a load of 4 bytes per lane to its data, on average: `bytes_in_flight` /
        `read_rate`."""
        return self.bytes_in_flight() / self.read_rate(passes)

    # ---- memory ---------------------------------------------------------------------------------

    @property
    def dram_bytes(self) -> tuple[float, float]:
        """Bytes (read, written) by DRAM."""
        return self.counters["dram__bytes_read.sum"], self.counters["dram__bytes_write.sum"]

    @property
    def dram_passes(self) -> tuple[float, float]:
        """(read, written) by DRAM, in units of the matrix: bytes / (rows * cols * bytes per
        element)."""
        read, written = self.dram_bytes
        return read / self._matrix_bytes, written / self._matrix_bytes

    @property
    def _matrix_bytes(self) -> int:
        return self.problem.rows * self.problem.row_bytes

    def l2_sectors(self) -> tuple[float, float]:
        """Sectors (read, written) requested from the L2, in units of the copy's.

        This does not say which cache answered: the counter has 1.5 sectors for each that comes from
        DRAM and about one for each that the L2 had. `l1_hits` says what L1 answered.
        """
        mine, unit = self.counters, Profile(COPY, self.problem).counters
        names = ("lts__t_sectors_op_read.sum", "lts__t_sectors_op_write.sum")
        read, written = (mine[name] / unit[name] for name in names)
        return read, written

    @property
    def loaded_passes(self) -> float:
        """What global loads request from L1, in units of the matrix: sectors * 32 / (rows * cols *
        bytes per element). A sector that two requests touch counts twice."""
        sectors = self.counters["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"]
        return sectors * SECTOR / self._matrix_bytes

    @property
    def l1_hits(self) -> float:
        """Fraction of the sectors of global loads that L1 had, 0 to 1. Raises `ZeroDivisionError`
        for a kernel that loads nothing through it."""
        seen = self.counters
        return (
            seen["l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum"]
            / seen["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"]
        )

    def busy(self, unit: str) -> float:
        """Utilisation of "l1tex", "lts" (L2) or "dram", in percent of its peak. Raises `ValueError`
        for another unit."""
        units = ("l1tex", "lts", "dram")
        return self._one_of(units, unit, "{}__throughput.avg.pct_of_peak_sustained_elapsed")

    @property
    def data_pipe_share(self) -> float:
        """Fraction of the time that the data pipe of L1 and shared memory would need at one
        wavefront per clock and SM, 0 to 1: wavefronts / (time in clocks * SMs)."""
        seen, record = self.counters, self.record
        clocks = seen["gpu__time_duration.sum"] / 1e9 * clock_hz(record) * record.gpu.sms
        return seen["l1tex__data_pipe_lsu_wavefronts.sum"] / clocks

    @property
    def shared_wavefronts_per_row(self) -> float:
        """Wavefronts of loads from shared memory per row."""
        wavefronts = self.counters["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"]
        return wavefronts / self.problem.rows


def clock_hz(record: Record) -> float:
    """Clock rate of the SMs, as the driver reported it when the record was begun."""
    return float(record.device["at_start"].split()[0]) * 1e6  # it says MHz


def bytes_needed(passes: float = 1, latency: float | None = None) -> float:
    """Bytes that an SM must have in flight to read a matrix `passes` times in the time of a copy:
    passes * the copy's `read_rate` * latency in ns, by default that of DRAM (`FAR_COPY`'s). At
    `REFERENCE_SHAPE` in float32."""
    if latency is None:
        latency = of(FAR_COPY, *REFERENCE_SHAPE).latency_ns()
    return passes * of(COPY, *REFERENCE_SHAPE).read_rate() * latency


def unfused_launches() -> list[tuple[str, float, float, float]]:
    """(CuPy's kernel, microseconds, matrices read by DRAM, matrices written) for each launch of the
    array version at `REFERENCE_SHAPE`."""
    rows, cols = REFERENCE_SHAPE
    size = 4 * rows * cols
    return [
        (
            kernel,
            seen["gpu__time_duration.sum"] / 1e3,
            seen["dram__bytes_read.sum"] / size,
            seen["dram__bytes_write.sum"] / size,
        )
        for kernel, seen in nsight_unfused()
    ]


# ---- what an SM has room for --------------------------------------------------------------------


def blocks_that_fit(record: Record, case: Case) -> int:
    """Blocks of a case that fit on an SM, by warps, registers and shared memory.

    Registers are allocated per warp in units of 256, from one of four quarters of 16384; each block
    reserves 1024 bytes of shared memory.
    """
    compiled = case.attributes or record.attributes
    warps = case.launch["block"] // WARP
    shared = case.launch["shared_mem"] + compiled["static_shared_bytes"] + SYSTEM_SHARED_BYTES
    of_a_warp = -(-compiled["registers"] // REGISTER_UNIT) * REGISTER_UNIT * WARP
    by_registers = SCHEDULERS * (REGISTERS // SCHEDULERS // of_a_warp) // warps
    return min(SM_BLOCKS, SM_WARPS // warps, by_registers, SM_SHARED_BYTES // shared)


def kilobytes_held(record: Record, case: Case) -> float:
    """KB of the matrix held by the blocks that fit on an SM."""
    return blocks_that_fit(record, case) * case.bytes / 2 / case.launch["grid"] / 1e3
