"""Kernels of other kinds, as textbooks write them, run on the SIMT machine and on a GPU and are
right. Then one line is spoilt, and the machine must show it: by a finding, or by a result that the
same comparison rejects."""

import pytest

from tests.simt.strangers import (
    RUNS,
    SPOILT,
    WRONG,
    Gpu,
    Launch,
    Simt,
    count_hits,
    layernorm,
    matmul,
    name_of,
    numbers,
    poisoned,
    sum_blocks,
    transpose,
    wrong,
)


@pytest.mark.parametrize("launch", [Simt, pytest.param(Gpu, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("case", RUNS, ids=name_of)
def test_the_kernel_is_right_and_clean(launch: type[Launch], case: tuple) -> None:
    compute, *arguments = case
    machine = launch()
    comparisons = compute(machine, *arguments)
    assert not machine.findings, "\n".join(map(str, machine.findings))
    assert not wrong(comparisons)


@pytest.mark.parametrize(
    ("case", "old", "new", "symptoms"),
    SPOILT,
    ids=[f"{name_of(case)}-{number}" for number, (case, *_) in enumerate(SPOILT)],
)
def test_a_spoilt_line_shows(case: tuple, old: str, new: str, symptoms: set[str]) -> None:
    compute, *arguments = case
    machine = Simt(old, new, limit=50_000)
    comparisons = compute(machine, *arguments)
    seen = {finding.kind for finding in machine.findings}
    if not seen and wrong(comparisons):
        seen = {WRONG}
    assert seen == symptoms, "\n".join(map(str, machine.findings))


def test_tiles_of_32_do_not_divide_a_block_of_50() -> None:
    machine = Simt()
    sum_blocks(machine, 40, 50)
    assert {f.kind for f in machine.findings} == {"shuffle from a lane that takes no part"}


def test_a_grid_can_meet_only_in_a_cooperative_launch() -> None:
    machine, x = Simt(), numbers(100, 1)
    machine("reduce_groups", "sum_grid", 2, 64, (x, poisoned(2), poisoned(1), 100))
    assert {f.kind for f in machine.findings} == {"trap"}


# ---- what the textbook says of their traffic ----------------------------------------------------


def test_a_tile_makes_the_stores_of_a_transpose_coalesced_and_padding_frees_its_banks() -> None:
    counted = {}
    for form in ("naive", "tiled", "padded"):
        machine = Simt()
        transpose(machine, form, 64, 96)
        counted[form] = machine.traces[0].counters
    assert [c.sectors_per_load for c in counted.values()] == [4] * 3
    assert [c.sectors_per_store for c in counted.values()] == [32, 4, 4]
    requests = 64 * 96 // 32
    assert [c.shared_load_requests for c in counted.values()] == [0, requests, requests]
    assert [c.shared_load_wavefronts for c in counted.values()] == [0, 32 * requests, requests]
    assert [c.shared_store_wavefronts for c in counted.values()] == [0, requests, requests]


@pytest.mark.parametrize("tile", [8, 16])
def test_a_larger_tile_makes_a_matrix_product_read_less(tile: int) -> None:
    machine = Simt()
    matmul(machine, "float", tile, 48, 48, 48)
    assert machine.traces[0].counters.load_bytes == 2 * 4 * 48**3 // tile


def test_four_floats_an_access_ask_a_quarter_as_often_for_the_same_sectors() -> None:
    by_four, by_one = Simt(), Simt("cols % 4 == 0", "false")
    for machine in (by_four, by_one):
        assert not wrong(layernorm(machine, 2, 512, 64))
    wide, narrow = by_four.traces[0].counters, by_one.traces[0].counters
    assert 4 * wide.load_requests == narrow.load_requests == 2 * 4 * 512 // 32
    assert 4 * wide.store_requests == narrow.store_requests == 2 * 512 // 32
    assert wide.load_sectors == narrow.load_sectors and wide.store_sectors == narrow.store_sectors


def test_a_sum_within_the_warp_leaves_one_atomic_a_warp() -> None:
    machine = Simt()
    count_hits(machine, 1000, 3, 64)
    assert machine.traces[0].counters.atomic_requests == 3 * 64 // 32
