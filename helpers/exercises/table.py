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
    shapes: tuple[Shape, ...]  # shapes of the check; the last two are those of the conditions
    conditions: tuple[Condition, ...]  # further conditions
    special: int = 64  # columns of rows with large differences, -inf and NaN; 0: none
    columns: bool = False  # whether softmax is along the columns
    dtype: str = "float32"


SOFTMAX = softmax, "y is the softmax of each row"
SOFTMAX_OF_COLUMNS = softmax_of_columns, "y is the softmax of each column"
MINUS_TARGET = minus_target, "y is softmax, minus 1 in the target's column"
SEEN = "y is the softmax of the columns that each row sees"

LONG = (64, 512), (3, 300)  # rows longer than a block, aligned to sectors or not
USUAL = (3, 5), (40, 64), *LONG  # also rows shorter than a warp
SERIAL = (3, 5), (40, 64), (64, 128), (3, 300)  # for one thread per row, which is slow to simulate
PACKS = (3, 4), (40, 64), *LONG  # rows of whole float4s
COLUMNS = (3, 5), (64, 96), (128, 40), (100, 33)  # rows that fit into the registers of eight warps
ENDS = (3, 5), (40, 64), (64, 509), (5, 301)  # rows of up to 512 columns, most of them unaligned
MESSAGES = *USUAL[:3], (8, 2048), (3, 2047)  # the last two so long that messages are negligible


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def any_columns(rows: int, cols: int) -> tuple[int, int]:
    """Loads and stores of a warp that processes each row in two passes: whole packs, with up to
    three single columns before and after them."""
    once = rows * (ceil_div(cols // 4, 32) + (6 if cols % 4 else 0))
    return 2 * once, once


EXERCISES: dict[str, Exercise] = {
    "00_copy_a_row": Exercise(copy, "y equals x", USUAL, (moves(1), coalesced), special=0),
    "00_flat_copy": Exercise(copy, "y equals x", USUAL, (moves(1), coalesced), special=0),
    "01_columns": Exercise(
        *SOFTMAX_OF_COLUMNS,
        ((3, 5), (64, 40), (64, 128), (8, 300)),
        (moves(3), coalesced),
        columns=True,
    ),
    "01_log_softmax": Exercise(
        log_softmax, "y is the logarithm of softmax of each row", SERIAL, (moves(3),)
    ),
    "02_two_pairs": Exercise(*SOFTMAX, SERIAL, (moves(2),)),
    "02_one_pass": Exercise(*SOFTMAX, SERIAL, (moves(2),)),
    "03_one_array": Exercise(*SOFTMAX, USUAL, (moves(3), coalesced)),
    "03_tree": Exercise(*SOFTMAX, USUAL, (a_tree, moves(2), coalesced)),
    "04_eight_lanes": Exercise(
        *SOFTMAX,
        ((3, 5), (40, 64), (64, 512), (13, 300)),
        (moves(2), by_shuffles, named_lanes),
    ),
    "04_butterfly": Exercise(*SOFTMAX, USUAL, (moves(2), by_shuffles, named_lanes)),
    "05_any_columns": Exercise(
        *SOFTMAX,
        ((3, 5), (40, 64), (5, 1), (64, 512), (5, 515)),
        (
            moves(2),
            wide(any_columns, "whole packs move as float4s, in every row"),
            in_registers,
        ),
    ),
    "05_vector_loop": Exercise(
        *SOFTMAX,
        PACKS,
        (
            moves(2),
            wide(
                lambda rows, cols: (2 * rows * ceil_div(cols, 128), rows * ceil_div(cols, 128)),
                "each access of a lane moves 16 bytes",
            ),
            in_registers,
        ),
    ),
    "06_read_once": Exercise(
        *SOFTMAX,
        ((3, 5), (40, 64), (5, 77), (64, 128), (3, 100)),
        (moves(1), in_registers, coalesced),
    ),
    "06_keep": Exercise(
        *SOFTMAX,
        PACKS,
        (
            moves(1),
            in_registers,
            wide(
                lambda rows, cols: (rows * ceil_div(cols, 128), rows * 4),
                "each load of a lane moves 16 bytes",
            ),
        ),
    ),
    "07_half_warps": Exercise(
        *SOFTMAX,
        ((3, 4), (40, 64), (64, 64), (65, 36)),
        (
            moves(1),
            wide(
                lambda rows, cols: 2 * (ceil_div(rows, 2),), "one access of a warp moves two rows"
            ),
            no_idle_blocks,
            named_lanes,
        ),
    ),
    "07_lanes": Exercise(
        *SOFTMAX,
        ((3, 5), (64, 8), (7, 1), (33, 2), (65, 9), (64, 32)),
        (moves(1), by_shuffles, named_lanes),
        special=32,
    ),
    "08_two_blocks": Exercise(*SOFTMAX, USUAL, (moves(2),)),
    "08_send": Exercise(*SOFTMAX, USUAL, (moves(2), sent_after_start)),
    "09_messages": Exercise(
        *SOFTMAX,
        MESSAGES,
        (waits_for_messages, empties_slots(received=[0], sent=[1]), moves(2, beside=0.5)),
    ),
    "09_publish": Exercise(
        *SOFTMAX,
        MESSAGES,
        (
            waits_for_messages,
            empties_slots(received=[1, 2, 3], sent=[4, 8, 12]),
            moves(2, beside=0.5),
        ),
    ),
    "10_eight_at_once": Exercise(
        *SOFTMAX,
        ((3, 8), (40, 64), (2, 2048), (64, 256), (3, 264)),
        (
            moves(3),
            wide(
                lambda rows, cols: (3 * rows * ceil_div(cols, 256), rows * ceil_div(cols, 256)),
                "each access of a lane moves eight columns",
            ),
            in_registers,
        ),
        dtype="float16",
    ),
    "10_widen": Exercise(
        *SOFTMAX,
        ((3, 8), (40, 64), (64, 256), (3, 200)),
        (two_at_a_time, moves(1), in_registers),
        dtype="float16",
    ),
    "11_ends": Exercise(
        *SOFTMAX,
        ENDS,
        (
            moves(1),
            wide(
                lambda rows, cols: 2 * (rows * (ceil_div(cols // 4, 32) + 2),),
                "the columns between boundaries are moved in packs",
            ),
            in_registers,
        ),
    ),
    "11_run": Exercise(
        *SOFTMAX,
        ((3, 5), (40, 64), (6, 301), (64, 77), (40, 301)),
        (
            moves(1),
            wide(
                lambda rows, cols: 2 * (rows // 4 * ceil_div(cols, 32),),
                "four rows are moved as one run of packs",
            ),
        ),
    ),
    "12_causal": Exercise(
        softmax_of_seen,
        SEEN,
        ((3, 8), (40, 64), (64, 512), (70, 36)),
        (loads_seen_packs(None), in_registers),
    ),
    "12_window": Exercise(
        partial(softmax_of_seen, window=64),
        SEEN,
        ((3, 8), (40, 64), (200, 512), (70, 36)),
        (loads_seen_packs(64), in_registers),
    ),
    "13_banks": Exercise(
        *SOFTMAX_OF_COLUMNS, COLUMNS, (moves(1), coalesced, no_bank_conflicts), columns=True
    ),
    "13_pairs": Exercise(
        *SOFTMAX_OF_COLUMNS, COLUMNS, (moves(1), coalesced, in_registers), columns=True
    ),
    "14_log": Exercise(
        partial(backward, log=1),
        "y is the backward pass of log-softmax, for each row",
        ENDS,
        (moves(1), in_registers),
        special=0,
    ),
    "14_merge": Exercise(
        backward,
        "y is the backward pass of softmax where dy is x, for each row",
        USUAL,
        (moves(2), coalesced),
        special=0,
    ),
    "15_target": Exercise(*MINUS_TARGET, ENDS, (moves(1), in_registers)),
    "15_lse": Exercise(*MINUS_TARGET, USUAL, (moves(2), coalesced)),
}
