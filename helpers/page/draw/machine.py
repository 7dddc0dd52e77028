"""The locator strip of a notebook: launch levels and memories, with those of the notebook
highlighted."""

from __future__ import annotations

from itertools import accumulate

from ...base.arguments import checked
from ...base.gpu import H200
from ...problem.shapes import REFERENCE_SHAPE
from ...simt.hardware import BANKS, MAX_CLUSTER, MAX_THREADS, SMS, WARP, WORD
from ..profile import FAR_COPY, clock_hz, of
from .style import (
    BLACK,
    BLUE,
    DARK,
    FONT_PLACED,
    LIT,
    Box,
    canvas,
    end_of,
    finish,
    ink,
    rounded,
    words,
)

# CUDA C++ Programming Guide, "Compute Capabilities", technical specifications, column 9.0: 32-bit
# registers per SM; L1 and shared memory per SM, divided by a launch.
REGISTER_KB, L1_AND_SHARED_KB = 65536 * 4 // 1024, 256
# NVIDIA H200 data sheet, SXM.
DRAM_GB, DRAM_TB_PER_SECOND = 141, 4.8
# Published for an H100, rounded. Latencies in clocks: W. Luo et al., "Benchmarking and Dissecting
# the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024. L2 bandwidth: Chips and Cheese,
# "Nvidia's H100: Funny L2, and Tons of Bandwidth", 2023.
SHARED_CLOCKS, L2_CLOCKS, L2_TB_PER_SECOND = 30, 260, "5 to 7"

LEVELS = {  # name: (note in the picture, what the sentence says)
    "grid": ("all blocks", "a grid, all blocks of one launch"),
    "cluster": (
        f"≤ {MAX_CLUSTER} blocks",
        f"a cluster, up to {MAX_CLUSTER} blocks that reach one another's shared memory",
    ),
    "block": (f"≤ {MAX_THREADS} threads", f"a block, up to {MAX_THREADS} threads on one SM"),
    "warp": (
        f"{WARP} threads",
        f"a warp, {WARP} threads that execute one instruction together",
    ),
    "lane": ("a thread", f"a lane, one of the {WARP} threads of a warp"),
}
MEMORIES = {  # name: what the sentence says
    "DRAM": f"DRAM, {DRAM_GB} GB, with x and y",
    "L2": f"the L2 cache, {H200.l2 >> 20} MB for all SMs",
    "shared": "the shared memory that the threads of a block share",
    "L1": "the L1 cache, which keeps what an SM has loaded",
    "SM": f"an SM, one of {SMS}, where a block stays from start to end",
    "registers": "the registers, which hold each thread's own values",
}
HEIGHT, LEFT, GAP = 90, 10, 5  # pixels
WIDTHS = (112, 150, 162, 127, 109), (133, 150, 198, 184)  # of levels and of memories
NAME = 10  # points


def _boxes() -> dict[tuple[str, ...], tuple[str, str, str]]:
    """Parts of a box -> its name, its size, and its bandwidth and latency."""
    far = of(FAR_COPY, *REFERENCE_SHAPE)
    clock = clock_hz(far.record) / 1e9  # GHz
    shared = SMS * BANKS * WORD * clock / 1e3  # TB/s: a word of each bank per clock
    l2, near = (5 * round(clocks / clock / 5) for clocks in (L2_CLOCKS, SHARED_CLOCKS))
    return {
        ("DRAM",): (
            "DRAM",
            f"{DRAM_GB} GB",
            f"{DRAM_TB_PER_SECOND} TB/s, {far.latency_ns():.0f} ns",
        ),
        ("L2",): ("L2", f"{H200.l2 >> 20} MB", f"{L2_TB_PER_SECOND} TB/s, ~{l2} ns"),
        ("shared", "L1", "SM"): (
            "shared, L1",
            f"{L1_AND_SHARED_KB} KB per SM",
            f"{shared:.0f} TB/s, ~{near} ns",
        ),
        ("registers",): ("registers", f"{REGISTER_KB} KB per SM", "each thread's own"),
    }


@checked
def machine(*lit: str) -> None:
    """Show the launch levels and the memories of an H200 with size, bandwidth and latency, with
    these parts highlighted.

    Levels are "grid", "cluster", "block", "warp" and "lane"; memories "DRAM", "L2", "shared", "L1",
    "SM" (in one box) and "registers". The latency of DRAM is that of the record.

    Raises `ValueError` for another name, listing these.
    """
    lit = tuple(dict.fromkeys(lit))
    for name in lit:
        if name not in LEVELS and name not in MEMORIES:
            known = ", ".join([*LEVELS, *MEMORIES])
            raise ValueError(f"the machine has no part {name!r}; its parts: {known}")
    axes = canvas(HEIGHT)
    levels, memories = (_row(*row) for row in zip((7, 39), (26, 44), WIDTHS, strict=True))
    for box, (name, (note, _)) in zip(levels, LEVELS.items(), strict=True):
        _part(axes, box, name in lit, name, note)
    for box, (parts, said) in zip(memories, _boxes().items(), strict=True):
        _part(axes, box, not {*parts}.isdisjoint(lit), *said)
    finish(axes.figure, "where we are: " + (", ".join(lit) or "the machine"), _sentence(lit))


def _row(y: float, height: float, widths: tuple[int, ...]) -> list[Box]:
    left = accumulate(widths, lambda x, width: x + width + GAP, initial=LEFT)
    return [Box(x, y, width, height) for x, width in zip(left, widths, strict=False)]


def _part(axes, box: Box, lit: bool, name: str, note: str, below: str = "") -> None:
    rounded(axes, box, lit)
    style = {"color": ink(BLUE, LIT), "fontweight": "bold"} if lit else {"color": BLACK}
    y = box.y + 14 if below else box.middle
    name = words(axes, box.x + 8, y, name, NAME, **style)
    words(axes, end_of(name) + 5, y, note, color=DARK, **FONT_PLACED)
    words(axes, box.x + 8, box.y + 32, below, color=DARK)


def _sentence(lit: tuple[str, ...]) -> str:
    if not lit:
        return "What you launch, from the grid down to a lane, and where it lives."
    said = [LEVELS[name][1] if name in LEVELS else MEMORIES[name] for name in lit]
    return f"Highlighted: {'; '.join(said)}."
