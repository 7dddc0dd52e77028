"""Counters as named quantities: what the prose says of a launch, with its unit and its formula.

Nsight Compute's counters are of one launch of a step at a shape and in a dtype
(`helpers.measure.profiler.counters`), times are of the record of that step. Per SM and per
scheduler means the average over all SMs and the whole launch. An element of the matrix is a column
of a row.
"""

from __future__ import annotations

import numpy as np

from ..base.gpu import Gpu
from ..measure.profiler.counters import nsight, nsight_unfused
from ..measure.records import Case, Record, load_record
from ..problem.shapes import REFERENCE_SHAPE
from ..simt.hardware import (
    SECTOR,
    SM_BLOCKS,
    SM_SHARED_BYTES,
    SM_THREADS,
    SYSTEM_SHARED_BYTES,
    WARP,
)

# An SM of an H200, as is what comes from `simt.hardware`: records of other GPUs that have less of
# it (compute capability 8.6 and 8.9: 48 warps) are not for these functions. CUDA C++ Programming
# Guide, "Compute Capabilities", column 9.0.
SM_WARPS = SM_THREADS // WARP
SCHEDULERS = 4  # each issues one instruction of a warp in a clock
REGISTERS = 65536  # 32 bits each, a quarter of them for each scheduler
REGISTER_UNIT = 8  # registers of a thread that are given out at once

# What a warp can wait for, as Nsight Compute calls it.
REASONS = (
    "long_scoreboard",  # a load from global or local memory
    "short_scoreboard",  # a result of shared memory, of a shuffle or of a special function
    "barrier",
    "lg_throttle",  # room in the queue of loads and stores
    "mio_throttle",
    "math_pipe_throttle",
    "wait",  # a fixed number of clocks
)

UNITS = ("l1tex", "lts", "dram")  # of which it says how busy they are


def share(step: str, rows: int, cols: int, dtype: str = "float32") -> float:
    """What a step was recorded to reach, as a share of the copy's bandwidth."""
    return load_record(step).case(rows, cols, dtype).share


# ---- instructions -------------------------------------------------------------------------------


def instructions_per_column(step: str, rows: int, cols: int, dtype: str = "float32") -> float:
    """Instructions of a thread for each element: those of warps * 32 / (rows * cols)."""
    return _executed(step, rows, cols, dtype) * WARP / (rows * cols)


def instructions_per_row(step: str, rows: int, cols: int, dtype: str = "float32") -> float:
    """Instructions of all warps for each row: executed / rows."""
    return _executed(step, rows, cols, dtype) / rows


def _executed(step: str, rows: int, cols: int, dtype: str) -> float:
    return nsight(step, rows, cols, dtype)["smsp__inst_executed.sum"]


def issuing(step: str, rows: int, cols: int, dtype: str = "float32") -> float:
    """Share of the issue slots that are used, 0 to 1: clocks of a scheduler in which it issues."""
    seen = nsight(step, rows, cols, dtype)
    return seen["smsp__issue_active.avg.pct_of_peak_sustained_active"] / 100


def slots_per_column(step: str, rows: int, cols: int, dtype: str = "float32") -> float:
    """Issue slots of a lane for each element at the speed of the copy that was timed with the step:
    SMs * 4 schedulers * 32 lanes * clock / (elements that the copy moves in a second)."""
    record = load_record(step)
    lanes = record.gpu.sms * SCHEDULERS * WARP
    return lanes * clock_hz(record) / copied_per_second(record, rows, cols, dtype)


def copied_per_clock(step: str, rows: int, cols: int, dtype: str = "float32") -> float:
    """Elements that the copy timed with the step moves in a clock of one SM."""
    record = load_record(step)
    return copied_per_second(record, rows, cols, dtype) / clock_hz(record) / record.gpu.sms


def copied_per_second(record: Record, rows: int, cols: int, dtype: str = "float32") -> float:
    """Elements that the copy timed with a step moves in a second."""
    return rows * cols / record.case(rows, cols, dtype).copy_us * 1e6


def clock_hz(record: Record) -> float:
    """Clocks of an SM in a second, as the driver said when the record was begun."""
    return float(record.device["at_start"].split()[0]) * 1e6  # it says MHz


# ---- warps --------------------------------------------------------------------------------------


def active_share(step: str, rows: int, cols: int, dtype: str = "float32") -> float:
    """Warps that an SM has, as a share of the 64 that it could hold, 0 to 1."""
    seen = nsight(step, rows, cols, dtype)
    return seen["sm__warps_active.avg.pct_of_peak_sustained_active"] / 100


def active_warps(step: str, rows: int, cols: int, dtype: str = "float32") -> float:
    """Warps that an SM has, on average: 64 * `active_share`."""
    return SM_WARPS * active_share(step, rows, cols, dtype)


def active_blocks(case: Case, step: str) -> float:
    """Blocks that an SM has, on average: `active_warps` / warps of a block of the case."""
    return active_warps(step, *case.shape, case.dtype) / (case.launch["block"] / WARP)


def waiting_warps(
    step: str, rows: int, cols: int, dtype: str = "float32", *, why: str = "long_scoreboard"
) -> float:
    """Warps of an SM that wait for one of `REASONS`, on average over all clocks: 4 schedulers *
    `issuing` * warps that wait when one issues."""
    return SCHEDULERS * issuing(step, rows, cols, dtype) * stalled(step, rows, cols, dtype, why=why)


def waiting_share(
    step: str, rows: int, cols: int, dtype: str = "float32", *, why: str = "long_scoreboard"
) -> float:
    """Share of a warp's time that it waits for one of `REASONS`, 0 to 1: `waiting_warps` /
    `active_warps`."""
    waiting = waiting_warps(step, rows, cols, dtype, why=why)
    return waiting / active_warps(step, rows, cols, dtype)


def stalled(
    step: str, rows: int, cols: int, dtype: str = "float32", *, why: str = "long_scoreboard"
) -> float:
    """Clocks that a warp waits for one of `REASONS` between two of its instructions; by Little's
    law also the warps of a scheduler that wait for it when one issues."""
    if why not in REASONS:
        raise ValueError(f"{why!r} is none of {', '.join(REASONS)}")
    name = f"smsp__average_warps_issue_stalled_{why}_per_issue_active.ratio"
    return nsight(step, rows, cols, dtype)[name]


# ---- bytes in flight ----------------------------------------------------------------------------

# Little's law, J. D. C. Little, Operations Research 9 (1961): what is under way = rate * time under
# way. Here, of one SM: bytes in flight = bytes that it gets in a nanosecond * latency.

FAR_COPY = "variants/00_copy_scalar-b1024"  # of 4 bytes a lane: too slow for its loads to queue


def bytes_in_flight(
    step: str, rows: int, cols: int, dtype: str = "float32", *, lane_bytes: int = 4
) -> float:
    """Bytes that an SM has asked for and not got, on average: `waiting_warps` * 32 lanes * bytes
    that a lane loads at once, if a warp has one load under way."""
    return waiting_warps(step, rows, cols, dtype) * WARP * lane_bytes


def read_rate(
    step: str, rows: int, cols: int, dtype: str = "float32", *, passes: float = 1
) -> float:
    """Bytes that an SM gets in a nanosecond while the step runs, if it reads the matrix `passes`
    times."""
    record = load_record(step)
    case = record.case(rows, cols, dtype)
    return passes * case.bytes / 2 / case.median_us / 1e3 / record.gpu.sms


def latency_ns(
    step: str,
    rows: int,
    cols: int,
    dtype: str = "float32",
    *,
    lane_bytes: int = 4,
    passes: float = 1,
) -> float:
    """Nanoseconds from a load to its data, on average: `bytes_in_flight` / `read_rate`."""
    in_flight = bytes_in_flight(step, rows, cols, dtype, lane_bytes=lane_bytes)
    return in_flight / read_rate(step, rows, cols, dtype, passes=passes)


def bytes_needed(passes: float = 1, latency: float | None = None) -> float:
    """Bytes that an SM must have in flight to read a matrix `passes` times in the time of a copy:
    passes * the copy's `read_rate` * latency in ns, which is that of DRAM (`FAR_COPY`'s) unless
    given. At `REFERENCE_SHAPE` in float32."""
    if latency is None:
        latency = latency_ns(FAR_COPY, *REFERENCE_SHAPE)
    return passes * read_rate("00_copy", *REFERENCE_SHAPE) * latency


# ---- memory -------------------------------------------------------------------------------------


def dram_passes(step: str, rows: int, cols: int, dtype: str = "float32") -> tuple[float, float]:
    """(read, written) by DRAM, in units of the matrix: bytes / (rows * cols * bytes of an
    element)."""
    read, written = dram_bytes(step, rows, cols, dtype)
    size = _matrix_bytes(rows, cols, dtype)
    return read / size, written / size


def _matrix_bytes(rows: int, cols: int, dtype: str) -> int:
    return rows * cols * np.dtype(dtype).itemsize


def dram_bytes(step: str, rows: int, cols: int, dtype: str = "float32") -> tuple[float, float]:
    """Bytes (read, written) by DRAM."""
    seen = nsight(step, rows, cols, dtype)
    return seen["dram__bytes_read.sum"], seen["dram__bytes_write.sum"]


def l2_sectors(
    step: str, rows: int, cols: int, dtype: str = "float32", *, of: str = "00_copy"
) -> tuple[float, float]:
    """Sectors (read, written) that the L2 is asked for, in units of another step's, the copy's if
    none is named.

    This is not who answered: the counter has 1.5 sectors for each that comes from DRAM and about
    one for each that the L2 had. What L1 answered says `l1_hits`.
    """
    seen, unit = nsight(step, rows, cols, dtype), nsight(of, rows, cols, dtype)
    names = ("lts__t_sectors_op_read.sum", "lts__t_sectors_op_write.sum")
    read, written = (seen[name] / unit[name] for name in names)
    return read, written


def loaded_passes(step: str, rows: int, cols: int, dtype: str = "float32") -> float:
    """What loads from global memory ask L1 for, in units of the matrix: sectors * 32 / (rows * cols
    * bytes of an element). A sector that two requests touch counts twice."""
    sectors = nsight(step, rows, cols, dtype)["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"]
    return sectors * SECTOR / _matrix_bytes(rows, cols, dtype)


def l1_hits(step: str, rows: int, cols: int, dtype: str = "float32") -> float:
    """Share of the sectors of global loads that L1 had, 0 to 1. Raises `ZeroDivisionError` for a
    kernel that loads nothing through it."""
    seen = nsight(step, rows, cols, dtype)
    return (
        seen["l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit.sum"]
        / seen["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"]
    )


def busy(unit: str, step: str, rows: int, cols: int, dtype: str = "float32") -> float:
    """How busy "l1tex", "lts" (L2) or "dram" is, in percent of what it can do. Raises `ValueError`
    for another unit."""
    if unit not in UNITS:
        raise ValueError(f"{unit!r} is none of {', '.join(UNITS)}")
    seen = nsight(step, rows, cols, dtype)
    return seen[f"{unit}__throughput.avg.pct_of_peak_sustained_elapsed"]


def data_pipe_share(step: str, rows: int, cols: int, dtype: str = "float32") -> float:
    """Share of the time that the data pipe of L1 and shared memory would need at one wavefront a
    clock and SM, 0 to 1: wavefronts / (time in clocks * SMs)."""
    seen, record = nsight(step, rows, cols, dtype), load_record(step)
    clocks = seen["gpu__time_duration.sum"] / 1e9 * clock_hz(record) * record.gpu.sms
    return seen["l1tex__data_pipe_lsu_wavefronts.sum"] / clocks


def shared_wavefronts_per_row(step: str, rows: int, cols: int, dtype: str = "float32") -> float:
    """Wavefronts of loads from shared memory for each row."""
    seen = nsight(step, rows, cols, dtype)
    return seen["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] / rows


def time_us(step: str, rows: int, cols: int, dtype: str = "float32") -> float:
    """Microseconds of the launch that was profiled, which is slower than one of a record."""
    return nsight(step, rows, cols, dtype)["gpu__time_duration.sum"] / 1e3


def unfused_launches() -> list[tuple[str, float, float, float]]:
    """(CuPy's kernel, microseconds, matrices read by DRAM, matrices written) of each launch of the
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
    """Blocks of a case that an SM has room for, by warps, registers and shared memory.

    A warp's registers come in portions of 256 from one of four quarters of 16384; a block takes
    1024 bytes of shared memory for itself.
    """
    compiled = case.attributes or record.attributes
    warps = case.launch["block"] // WARP
    shared = case.launch["shared_mem"] + compiled["static_shared_bytes"] + SYSTEM_SHARED_BYTES
    by_registers = blocks_by_registers(compiled["registers"], warps)
    return min(SM_BLOCKS, SM_WARPS // warps, by_registers, SM_SHARED_BYTES // shared)


def blocks_by_registers(registers: int, warps: int) -> int:
    """Blocks of so many warps for which an SM has registers, if a thread takes so many."""
    of_a_warp = -(-registers // REGISTER_UNIT) * REGISTER_UNIT * WARP
    return SCHEDULERS * (REGISTERS // SCHEDULERS // of_a_warp) // warps


def kilobytes_held(record: Record, case: Case) -> float:
    """KB of the matrix in the blocks that an SM has room for."""
    return blocks_that_fit(record, case) * case.bytes / 2 / case.launch["grid"] / 1e3


def sms_in_use(case: Case, gpu: Gpu) -> int:
    """SMs that have a block, if each takes one before any takes two."""
    return min(gpu.sms, case.launch["grid"])
