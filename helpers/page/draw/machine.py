"""The locator figure of a notebook: launch levels and memories, with those of the notebook
highlighted."""

from __future__ import annotations

from ...base.arguments import checked
from ...base.gpu import H200
from ...simt.hardware import MAX_CLUSTER, MAX_THREADS, SM_SHARED_BYTES, WARP
from .canvas import NAME, Box, canvas, flow, rounded, words
from .style import BLACK, BLUE, DARK, GREY, LIT, PALE, finish, ink

# CUDA C++ Programming Guide, "Compute Capabilities", technical specifications, column 9.0.
REGISTER_BYTES = 65536 * 4  # 32-bit registers per SM
L1_AND_SHARED_BYTES = 256 * 1024  # L1 and shared memory per SM, divided by a launch
# NVIDIA H200 data sheet, SXM.
DRAM_GB = 141
DRAM_TB_PER_SECOND = 4.8


def _kb(size: int) -> str:
    return f"{size // 1024} KB"


LEVELS = {  # name: (note in the picture, what the sentence says)
    "grid": ("all blocks of one launch", "a grid, all blocks of one launch"),
    "cluster": (
        f"up to {MAX_CLUSTER} blocks that share memory",
        f"a cluster, up to {MAX_CLUSTER} blocks that reach one another's shared memory",
    ),
    "block": (
        f"up to {MAX_THREADS} threads on one SM",
        f"a block, up to {MAX_THREADS} threads on one SM",
    ),
    "warp": (
        f"{WARP} threads, one instruction",
        f"a warp, {WARP} threads that execute one instruction together",
    ),
    "lane": ("a thread each", f"a lane, one of the {WARP} threads of a warp"),
}
MEMORIES = {  # name: (size in the picture, note there, what the sentence says)
    "SM": (
        f"× {H200.sms}",
        "a block stays on one of them",
        f"an SM, one of {H200.sms}, where a block stays from start to end",
    ),
    "registers": (
        _kb(REGISTER_BYTES),
        "each thread's own",
        "the registers, which hold each thread's own values",
    ),
    "shared": (
        "",
        f"up to {_kb(SM_SHARED_BYTES)}",
        "the shared memory that the threads of a block share",
    ),
    "L1": ("", "the rest", "the L1 cache, which keeps what an SM has loaded"),
    "L2": (
        f"{H200.l2 >> 20} MB",
        "a cache for all SMs",
        f"the L2 cache, {H200.l2 >> 20} MB for all SMs",
    ),
    "DRAM": (
        f"{DRAM_GB} GB",
        f"x and y; {DRAM_TB_PER_SECOND} TB/s on the data sheet",
        f"DRAM, {DRAM_GB} GB, which holds x and y",
    ),
}
# The levels that use a memory, its own level first.
USERS = {
    "registers": ("lane", "warp", "block", "cluster", "grid"),
    "shared": ("block", "cluster", "warp", "lane", "grid"),
    "L1": ("block", "warp", "lane", "cluster", "grid"),
    "SM": ("block", "warp", "lane", "cluster", "grid"),
    "L2": ("grid", "cluster", "block", "warp", "lane"),
    "DRAM": ("grid", "cluster", "block", "warp", "lane"),
}
HEIGHT = 372


@checked
def machine(*lit: str) -> None:
    """Show the launch levels and memories, with these parts highlighted; arrows lead from
    highlighted levels to the highlighted memories that they use.

    Levels are "grid", "cluster" (drawn only if highlighted), "block", "warp" and "lane"; memories
    "DRAM", "L2", "SM", "L1", "shared" and "registers". Sizes are an H200's.

    Raises `ValueError` for another name, listing these.
    """
    lit = tuple(dict.fromkeys(lit))
    for name in lit:
        if name not in LEVELS and name not in MEMORIES:
            known = ", ".join([*LEVELS, *MEMORIES])
            raise ValueError(f"the machine has no part {name!r}; its parts: {known}")
    axes = canvas(HEIGHT)
    levels = _levels(axes, lit)
    memories = _memories(axes, lit)
    for start, end in _arrows(lit):
        box, memory = levels[start], memories[end]
        flow(axes, (box.right, box.middle), (memory.x - 1, memory.middle))
    finish(axes.figure, "where we are: " + (", ".join(lit) or "the machine"), _sentence(lit))


def _levels(axes, lit: tuple[str, ...]) -> dict[str, Box]:
    """Draw the nested launch levels; returns where an arrow leaves each."""
    words(axes, 10, 15, "what you launch", NAME, color=DARK)
    names = [name for name in LEVELS if name != "lane" and (name != "cluster" or name in lit)]
    step = 62 if len(names) == 3 else 52
    box, ports = Box(10, 32, 306, HEIGHT - 42), {}
    for depth, name in enumerate(names):
        if depth:  # copies behind the box
            for shift in (10, 5):
                behind = Box(box.x + shift, box.y + shift, box.width, box.height)
                rounded(axes, behind, edgecolor=PALE)
        rounded(axes, box, name in lit)
        _name(axes, box.x + 12, box.y + 17, name, name in lit)
        words(axes, box.x + 12, box.y + 36, LEVELS[name][0], color=DARK)
        ports[name] = Box(box.x, box.y, box.width, 2 * step - 20)
        inner = 20 if depth + 1 < len(names) else 0
        last = box
        box = Box(box.x + 12, box.y + step, box.width - 24 - inner / 2, box.height - step - 22)
    ports[names[-1]] = Box(last.x, last.y, last.width, 70)
    ports["lane"] = _lanes(axes, last, "lane" in lit)
    return ports


def _lanes(axes, warp: Box, lit: bool) -> Box:
    """Draw some lanes along the lower edge of the warp."""
    labels = ["0", "1", "2", "…", str(WARP - 1)]
    y = warp.bottom - 42
    _name(axes, warp.x + 12, y + 15, "lanes", lit)
    start = warp.x + 66
    pitch = (warp.right - 10 - start) / len(labels)
    for place, label in enumerate(labels):
        cell = Box(start + place * pitch, y, pitch - 5, 30)
        if label != "…":
            rounded(axes, cell, lit, radius=3, linewidth=1.6 if lit else 0.9)
        words(axes, cell.x + cell.width / 2, cell.middle, label, ha="center")
    return Box(start, y, warp.right - 15 - start, 30)


def _memories(axes, lit: tuple[str, ...]) -> dict[str, Box]:
    """Draw the memories from the registers down to DRAM; returns the box of each."""
    left, width = 356, 334
    words(axes, left, 15, "where it lives", NAME, color=DARK)
    sm = Box(left, 32, width, 186)
    boxes = {"SM": sm, "L2": Box(left, 238, width, 52), "DRAM": Box(left, 310, width, 52)}
    for shift in (8, 4):
        rounded(axes, Box(sm.x + shift, sm.y + shift, sm.width - 8, sm.height), edgecolor=PALE)
    sm = boxes["SM"] = Box(sm.x, sm.y, width - 8, sm.height)
    rows = Box(sm.x + 12, sm.y + 54, sm.width - 24, 34)
    both = Box(rows.x, rows.bottom + 8, rows.width, 82)
    boxes["registers"] = rows
    for place, name in enumerate(("shared", "L1")):
        boxes[name] = Box(both.x, both.y + place * 44, 212, 38)
    for name in ("SM", "registers", "shared", "L1", "L2", "DRAM"):
        box, (size, note, _) = boxes[name], MEMORIES[name]
        rounded(axes, box, name in lit)
        label = "multiprocessor (SM)" if name == "SM" else name
        if box.height < 40:
            _name(axes, box.x + 12, box.middle, label, name in lit)
            words(axes, box.x + 100, box.middle, note, color=DARK)
            words(axes, box.right - 12, box.middle, size, NAME, ha="right")
        else:
            _name(axes, box.x + 12, box.y + 17, label, name in lit)
            words(axes, box.right - 12, box.y + 17, size, NAME, ha="right")
            words(axes, box.x + 12, box.y + 36, note, color=DARK)
    bracket = boxes["shared"].right + 8
    axes.plot(
        [bracket - 4, bracket, bracket, bracket - 4],
        [both.y + 2, both.y + 2, both.bottom - 2, both.bottom - 2],
        color=GREY,
        linewidth=0.9,
    )
    words(axes, both.right - 12, both.middle, _kb(L1_AND_SHARED_BYTES), NAME, ha="right")
    return boxes


def _name(axes, x: float, y: float, name: str, lit: bool) -> None:
    style = {"color": ink(BLUE, LIT), "fontweight": "bold"} if lit else {"color": BLACK}
    words(axes, x, y, name, NAME, **style)


def _arrows(lit: tuple[str, ...]) -> list[tuple[str, str]]:
    """(level, memory) for each arrow: to every highlighted memory from its highlighted level."""
    users = {memory: [one for one in USERS[memory] if one in lit] for memory in USERS}
    return [(users[memory][0], memory) for memory in USERS if memory in lit and users[memory]]


def _sentence(lit: tuple[str, ...]) -> str:
    if not lit:
        return "What you launch, from the grid down to a lane, and where it lives."
    said = [(LEVELS.get(name) or MEMORIES[name])[-1] for name in lit]
    return f"Highlighted: {'; '.join(said)}."
