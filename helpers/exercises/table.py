"""The exercises, two per notebook: a kernel to repair, then one to complete."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from .attempt import (
    Goal,
    Shape,
    backward,
    copy,
    log_softmax,
    minus_target,
    softmax,
    softmax_of_columns,
    softmax_of_seen,
)
from .conditions import (
    Condition,
    a_tree,
    by_shuffles,
    coalesced,
    empties_slots,
    in_registers,
    loads_seen_packs,
    moves,
    named_lanes,
    no_bank_conflicts,
    no_idle_blocks,
    sent_after_start,
    two_at_a_time,
    waits_for_messages,
    wide,
)


@dataclass(frozen=True)
class Exercise:
    goal: Goal
    asked: str  # expected y
    shapes: tuple[Shape, ...]  # shapes of the check
    conditions: tuple[Condition, ...]  # further conditions
    special: int = 64  # columns of rows with large differences, -inf and NaN; 0: none
    columns: bool = False  # whether softmax is along the columns
    dtype: str = "float32"


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


SOFTMAX = softmax, "y is the softmax of each row"
CLAIMED = (64, 512), (3, 300)  # rows longer than a block, aligned to sectors or not
USUAL = (3, 5), (40, 64), *CLAIMED  # also rows shorter than a warp
SERIAL = (3, 5), (40, 64), (64, 128), (3, 300)  # for one thread per row, which is slow to simulate
PACKS = (3, 4), (40, 64), *CLAIMED  # rows of whole float4s
SOFTMAX_OF_COLUMNS = softmax_of_columns, "y is the softmax of each column"
COLUMNS = (3, 5), (64, 96), (128, 40), (100, 33)  # rows that fit into the registers of eight warps
MINUS_TARGET = minus_target, "y is softmax, minus 1 in the target's column"
SEEN = "y is the softmax of the columns that each row sees"
MESSAGES = (8, 2048), (3, 2047)  # so long that messages are negligible


def any_columns(rows: int, cols: int) -> tuple[int, int]:
    """Loads and stores of a warp that processes each row in two passes: whole packs, with up to
    three single columns before and after them."""
    once = rows * (ceil_div(cols // 4, 32) + (6 if cols % 4 else 0))
    return 2 * once, once


ONCE = moves(1, *CLAIMED), coalesced(*CLAIMED)
TWICE = moves(2, *CLAIMED), coalesced(*CLAIMED)
A_COPY = Exercise(copy, "y equals x", USUAL, ONCE, special=0)

EXERCISES: dict[str, Exercise] = {
    "00_copy_a_row": A_COPY,
    "00_flat_copy": A_COPY,
    "01_columns": Exercise(
        *SOFTMAX_OF_COLUMNS,
        ((3, 5), (64, 40), (64, 128), (8, 300)),
        (moves(3, (64, 128), (8, 300)), coalesced((64, 128), (8, 300))),
        columns=True,
    ),
    "01_log_softmax": Exercise(
        log_softmax,
        "y is the logarithm of softmax of each row",
        SERIAL,
        (moves(3, *SERIAL),),
    ),
    "02_two_pairs": Exercise(*SOFTMAX, SERIAL, (moves(2, *SERIAL),)),
    "02_one_pass": Exercise(*SOFTMAX, SERIAL, (moves(2, *SERIAL),)),
    "03_one_array": Exercise(*SOFTMAX, USUAL, (moves(3, *CLAIMED), coalesced(*CLAIMED))),
    "03_tree": Exercise(
        *SOFTMAX,
        USUAL,
        (a_tree((3, 300), 150), *TWICE),
    ),
    "04_eight_lanes": Exercise(
        *SOFTMAX,
        ((3, 5), (40, 64), (64, 512), (13, 300)),
        (moves(2, (64, 512), (13, 300)), by_shuffles((13, 300)), named_lanes()),
    ),
    "04_butterfly": Exercise(
        *SOFTMAX,
        USUAL,
        (moves(2, *CLAIMED), by_shuffles((3, 300)), named_lanes()),
    ),
    "05_any_columns": Exercise(
        *SOFTMAX,
        ((3, 5), (40, 64), (64, 512), (5, 515), (5, 1)),
        (
            moves(2, (64, 512), (5, 515)),
            wide(any_columns, "whole packs move as float4s, in every row", (64, 512), (5, 515)),
            in_registers((64, 512), (5, 515)),
        ),
    ),
    "05_vector_loop": Exercise(
        *SOFTMAX,
        PACKS,
        (
            moves(2, *CLAIMED),
            wide(
                lambda rows, cols: (2 * rows * ceil_div(cols, 128), rows * ceil_div(cols, 128)),
                "each access of a lane moves 16 bytes",
                *CLAIMED,
            ),
            in_registers(*CLAIMED),
        ),
    ),
    "06_read_once": Exercise(
        *SOFTMAX,
        ((3, 5), (40, 64), (64, 128), (3, 100), (5, 77)),
        (
            moves(1, (64, 128), (3, 100), (5, 77)),
            in_registers((64, 128), (3, 100)),
            coalesced((64, 128), (3, 100)),
        ),
    ),
    "06_keep": Exercise(
        *SOFTMAX,
        PACKS,
        (
            moves(1, *CLAIMED),
            in_registers(*CLAIMED),
            wide(
                lambda rows, cols: (rows * ceil_div(cols, 128), rows * 4),
                "each load of a lane moves 16 bytes",
                *CLAIMED,
            ),
        ),
    ),
    "07_half_warps": Exercise(
        *SOFTMAX,
        ((3, 4), (40, 64), (64, 64), (65, 36)),
        (
            moves(1, (64, 64), (65, 36)),
            wide(
                lambda rows, cols: (ceil_div(rows, 2), ceil_div(rows, 2)),
                "one access of a warp moves two rows",
                (64, 64),
                (65, 36),
            ),
            no_idle_blocks((64, 64), threads_a_row=16),
            named_lanes(),
        ),
    ),
    "07_lanes": Exercise(
        *SOFTMAX,
        ((3, 5), (64, 32), (64, 8), (65, 9), (7, 1), (33, 2)),
        (
            moves(1, (64, 32), (64, 8), (65, 9)),
            by_shuffles((64, 32)),
            named_lanes(),
        ),
        special=32,
    ),
    "08_two_blocks": Exercise(*SOFTMAX, USUAL, (moves(2, *CLAIMED),)),
    "08_send": Exercise(
        *SOFTMAX,
        USUAL,
        (moves(2, *CLAIMED), sent_after_start((2, 64))),
    ),
    "09_messages": Exercise(
        *SOFTMAX,
        USUAL,
        (
            waits_for_messages(),
            empties_slots(USUAL, received=[0], sent=[1]),
            moves(2, *MESSAGES, beside=0.5),
        ),
    ),
    "09_publish": Exercise(
        *SOFTMAX,
        USUAL,
        (
            waits_for_messages(),
            empties_slots(USUAL, received=[1, 2, 3], sent=[4, 8, 12]),
            moves(2, *MESSAGES, beside=0.5),
        ),
    ),
    "10_eight_at_once": Exercise(
        *SOFTMAX,
        ((3, 8), (40, 64), (64, 256), (3, 264), (2, 2048)),
        (
            moves(3, (64, 256), (3, 264)),
            wide(
                lambda rows, cols: (3 * rows * ceil_div(cols, 256), rows * ceil_div(cols, 256)),
                "each access of a lane moves eight columns",
                (64, 256),
                (3, 264),
            ),
            in_registers((64, 256), (3, 264)),
        ),
        dtype="float16",
    ),
    "10_widen": Exercise(
        *SOFTMAX,
        ((3, 8), (40, 64), (64, 256), (3, 200)),
        (
            two_at_a_time((40, 64)),
            moves(1, (64, 256), (3, 200)),
            in_registers((64, 256), (3, 200)),
        ),
        dtype="float16",
    ),
    "11_ends": Exercise(
        *SOFTMAX,
        ((3, 5), (40, 64), (64, 509), (5, 301)),
        (
            moves(1, (64, 509), (5, 301)),
            wide(
                lambda rows, cols: 2 * (rows * (ceil_div(cols // 4, 32) + 2),),
                "the columns between boundaries are moved in packs",
                (64, 509),
                (5, 301),
            ),
            in_registers((64, 509), (5, 301)),
        ),
    ),
    "11_run": Exercise(
        *SOFTMAX,
        ((3, 5), (40, 64), (64, 77), (6, 301)),
        (
            moves(1, (64, 77), (6, 301)),
            wide(
                lambda rows, cols: 2 * (rows // 4 * ceil_div(cols, 32),),
                "four rows are moved as one run of packs",
                (64, 77),
                (40, 301),
            ),
        ),
    ),
    "12_causal": Exercise(
        softmax_of_seen,
        SEEN,
        ((3, 8), (40, 64), (64, 512), (70, 36)),
        (
            loads_seen_packs(None, (40, 64), (64, 512), (70, 36)),
            in_registers((64, 512)),
        ),
    ),
    "12_window": Exercise(
        partial(softmax_of_seen, window=64),
        SEEN,
        ((3, 8), (40, 64), (200, 512), (70, 36)),
        (
            loads_seen_packs(64, (40, 64), (200, 512), (70, 36)),
            in_registers((200, 512)),
        ),
    ),
    "13_banks": Exercise(
        *SOFTMAX_OF_COLUMNS,
        COLUMNS,
        (moves(1, *COLUMNS), coalesced(*COLUMNS[1:]), no_bank_conflicts(*COLUMNS)),
        columns=True,
    ),
    "13_pairs": Exercise(
        *SOFTMAX_OF_COLUMNS,
        COLUMNS,
        (moves(1, *COLUMNS), coalesced(*COLUMNS[1:]), in_registers((64, 96))),
        columns=True,
    ),
    "14_log": Exercise(
        partial(backward, log=1),
        "y is the backward pass of log-softmax, for each row",
        ((3, 5), (40, 64), (64, 509), (5, 301)),
        (moves(1, (64, 509), (5, 301)), in_registers((64, 509), (5, 301))),
        special=0,
    ),
    "14_merge": Exercise(
        backward,
        "y is the backward pass of softmax where dy is x, for each row",
        USUAL,
        TWICE,
        special=0,
    ),
    "15_target": Exercise(
        *MINUS_TARGET,
        ((3, 5), (40, 64), (64, 509), (5, 301)),
        (moves(1, (64, 509), (5, 301)), in_registers((64, 509), (5, 301))),
    ),
    "15_lse": Exercise(
        *MINUS_TARGET,
        USUAL,
        TWICE,
    ),
}
