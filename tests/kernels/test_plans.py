"""Plans of every kernel at random shapes, for GPUs of many sizes: within CUDA's limits, blocks that
wait for one another all at once, every row and column owned; and one for every matrix there is."""

import random
from typing import NamedTuple

import numpy as np
import pytest

from helpers.base.gpu import Gpu
from helpers.catalogue.dispatch import choose
from helpers.catalogue.expressions import MAX_BLOCK
from helpers.catalogue.header import header
from helpers.catalogue.plan import Header, Plan
from helpers.catalogue.registry import PRODUCTION, source, split_trial, steps, variants
from helpers.problem.problem import DTYPES, MAX_INT, Problem
from helpers.run.bound import load

SIZES = [(sms, l2 * 2**20) for sms in (36, 84, 108, 114, 132, 148) for l2 in (4, 50, 126)]
CAPABILITIES = (75, 80, 86, 89, 100, 120)
GPUS = [Gpu(90, *size) for size in SIZES]
GPUS += [Gpu(CAPABILITIES[n % 6], *size) for n, size in enumerate(SIZES)]
NAMES = [*steps(), *variants()]


def random_shapes(count: int) -> list[tuple[int, int]]:
    """Few rows and many, short rows and long; most of whole packs, for which most kernels are."""
    chance = random.Random(0)
    found = []
    for _ in range(count):
        rows = chance.choice([chance.randint(1, 40), int(2 ** chance.uniform(0, 24))])
        cols = chance.choice([2 ** chance.randint(0, 21), int(2 ** chance.uniform(0, 21.5))])
        found.append((rows, max(8, cols // 8 * 8) if chance.random() < 0.8 else cols))
    return found


SHAPES = random_shapes(100)


def macro(plan: Plan, name: str) -> int:
    """A macro without which these tests cannot tell who owns what."""
    assert name in plan.macros, f"the Build table has no {name}, which its header's claims ask for"
    return plan.macros[name]


class Planned(NamedTuple):
    """A matrix and a GPU that a header takes."""

    rows: int
    cols: int
    dtype: np.dtype
    gpu: Gpu
    x_stride: int
    y_stride: int
    plan: Plan


def planned(code: str, *matrix) -> Planned:
    *_, gpu, _, _ = matrix
    return Planned(*matrix, header(code).plan(problem_of(matrix), gpu))


def problem_of(matrix: tuple) -> Problem:
    rows, cols, dtype, _, x_stride, y_stride = matrix[:6]
    return Problem(rows, cols, dtype, x_stride=x_stride, y_stride=y_stride)


def plans_of(code: str) -> list[Planned]:
    """Wherever the header takes the shape, in rows that are apart if it takes such."""
    contract = header(code)
    found = []
    for number, (rows, cols) in enumerate(SHAPES):
        dtype = contract.dtypes[number % len(contract.dtypes)]
        further = ((0, 0), (5, 2), (8, 0), (-cols % 8, 8 - cols % 8))[number % 4]
        gaps = further if contract.strided else (0, 0)
        for gpu in GPUS[number % 6 :: 6]:
            matrix = rows, cols, dtype, gpu, cols + gaps[0], cols + gaps[1]
            if contract.accepts(problem_of(matrix), gpu):
                found.append(planned(code, *matrix))
    return found


def check_limits(gpu: Gpu, plan: Plan) -> None:
    """What CUDA and the GPU allow."""
    assert 1 <= plan.grid <= MAX_INT and 0 <= plan.shared_mem <= gpu.max_shared
    assert 32 <= plan.block <= MAX_BLOCK and plan.block % 32 == 0
    assert 1 <= plan.cluster <= 16 and plan.grid % plan.cluster == 0
    assert gpu.capability >= 90 or not (plan.cluster > 1 or plan.programmatic)


def too_many(found: list[Planned]) -> list[Planned]:
    """The plans whose blocks wait for one another, or stay, and are more than run at once."""
    wrong = []
    for one in found:
        plan = one.plan
        at_once = one.gpu.sms * (macro(plan, "RESIDENT") if "clusters" in plan.values else 1)
        if (plan.cooperative or "clusters" in plan.values) and plan.grid > at_once:
            wrong.append(one)
    return wrong


def check_rows(contract: Header, found: list[Planned]) -> None:
    """Hold that every row has its threads, and every column."""
    for *place, plan in found:
        rows, cols, dtype, *_ = place
        row_bytes, macros = cols * dtype.itemsize, plan.macros
        owner = contract.fields["Row"]
        if "TILE" in macros:  # columns side by side; a row here is one
            tiles = macros.get("RUN") or plan.block // macro(plan, "MEMBERS")
            assert 0 <= plan.grid // plan.cluster * tiles - rows < tiles, place
            held = plan.cluster * macro(plan, "MEMBERS") * macros["PACKS"] * macros["WIDTH"]
            assert held >= cols * macros["TILE"], place
        elif owner.startswith(("one thread", "one block")):
            a_block = plan.block if "thread" in owner else 1
            least = 0 if owner in ("one thread", "one block") else 1 - rows  # else row after row
            assert least <= plan.grid * a_block - rows < a_block, place
        elif owner.startswith("LANES"):
            lanes, warps = macro(plan, "LANES"), plan.block // 32
            a_warp = macros.get("RUN") or 32 // lanes * macros.get("ROWS", 1)
            assert 0 <= plan.grid * warps * a_warp - rows < warps * a_warp, place
            if "ITEMS" in macros:  # of 4 bytes
                assert 4 * lanes * macros["ITEMS"] >= row_bytes - row_bytes % 4, place
                continue
            if contract.align(dtype) < 16:  # packs of 16 bytes; the ends are moved apart
                assert 16 * lanes * macros["PACKS"] >= row_bytes - 15, place
                continue
            width = macros.get("WIDTH", 8)
            held = width * lanes * macro(plan, "PACKS")
            assert cols % width == 0 and held >= cols, (
                f"{place}: lanes hold {held} columns, with WIDTH = {width} (8 if the file has none)"
            )
        elif "PACKS" in macros:  # several blocks, 16 bytes a pack
            blocks = macros.get("BLOCKS", plan.cluster)
            together = macros.get("ROWS", plan.block // macros.get("THREADS", plan.block))
            assert plan.grid % blocks == 0 and plan.grid <= rows * blocks, place
            held = 16 * blocks * plan.block // together * macros["PACKS"]
            ends = 15 if contract.align(dtype) < 16 else 0  # are moved apart
            assert held >= row_bytes - ends or " to " in contract.fields["Reads"], place
            stay = "clusters" in plan.values or plan.cooperative
            assert stay or plan.grid == -(-rows // together) * blocks


@pytest.mark.parametrize("name", NAMES)
def test_every_plan_is_one_that_cuda_runs_and_leaves_nothing_out(name: str) -> None:
    """A cooperative launch is refused if its blocks do not run at once; clusters that stay would
    run one after the other, each with all rows of its share."""
    code = source(f"{name}.cu")
    found = plans_of(code)
    assert len(found) >= 50, "the header refuses nearly every shape"
    for one in found:
        check_limits(one.gpu, one.plan)
    assert too_many(found) == []
    check_rows(header(code), found)


# ---- a kernel for every matrix ------------------------------------------------------------------

LARGEST = 2**31 - 1


def random_matrices(count: int) -> list[tuple]:
    """(rows, cols, dtype, GPU, x_stride, y_stride, aligned) of matrices of up to 2^40 elements,
    half of them of whole packs that follow each other."""
    chance = random.Random(1)
    found = []
    for _ in range(count):
        rows = min(LARGEST, int(2 ** chance.uniform(0, chance.choice((4, 14, 31)))))
        cols = min(LARGEST, int(2 ** chance.uniform(0, chance.choice((5, 12, 22, 31)))))
        cols = max(1, min(cols, 2**40 // rows))
        gaps, aligned = (0, 0), True
        if chance.random() < 0.5:
            cols = max(8, cols // 8 * 8)
        elif chance.random() < 0.7:
            far = 2**33 if rows < 2**20 else 1000
            gaps = [chance.choice((0, 1, 5, 8, 64, far)) for _ in range(2)]
            aligned = chance.random() < 0.3
        gpu = Gpu(chance.choice((90, *CAPABILITIES)), *chance.choice(SIZES))
        strides = cols + gaps[0], cols + gaps[1]
        found.append((rows, cols, chance.choice(DTYPES), gpu, *strides, aligned))
    return found


def test_every_matrix_has_a_kernel_and_a_plan_that_the_gpu_runs() -> None:
    chosen: dict[str, list[Planned]] = {}
    for *matrix, aligned in random_matrices(1500):
        *sizes, gpu, x_stride, y_stride = matrix
        file = choose(*sizes, gpu, x_stride=x_stride, y_stride=y_stride, aligned=aligned)
        one = planned(source(f"{file}.cu"), *matrix)
        check_limits(one.gpu, one.plan)
        contract = header(source(f"{file}.cu"))
        assert aligned or contract.align(one.dtype) == np.dtype(one.dtype).itemsize, one
        assert (one.plan.workspace > 0) == ("Workspace" in contract.fields), one
        chosen.setdefault(file, []).append(one)
    for found in chosen.values():
        assert too_many(found) == []
    wanted = {name for name in PRODUCTION if not name.startswith(("13_", "14_", "15_"))}
    wanted |= {"07_warp", "08_cluster", "09_grid"}
    assert wanted <= {split_trial(file).file for file in chosen}
    old = {file for file, found in chosen.items() for one in found if one.gpu.capability < 90}
    assert {header(source(f"{file}.cu")).arch for file in old} == {75, 80}


def test_the_largest_and_the_smallest_matrix_have_a_kernel() -> None:
    for rows, cols in ((1, 1), (LARGEST, 1), (1, LARGEST), (LARGEST, 3), (3, LARGEST)):
        for dtype in DTYPES:
            for gpu in GPUS[::5]:
                for aligned in (True, False):
                    file = choose(rows, cols, dtype, gpu, aligned=aligned)
                    one = planned(source(f"{file}.cu"), rows, cols, dtype, gpu, cols, cols)
                    check_limits(gpu, one.plan)
                    assert too_many([one]) == []


@pytest.mark.parametrize(
    ("file", "problem", "capability"),
    [
        ("12_fused", Problem(64, 1048576, "bfloat16"), 90),
        (
            "13_any_axis",
            Problem(8192, 8192, "float16", inner=1024, operation="softmax_any_axis"),
            80,
        ),
        ("13_any_axis", Problem(8, 256521, "float16", inner=8, operation="softmax_any_axis"), 120),
        (
            "13_whole_slices",
            Problem(16384, 4096, "bfloat16", inner=8, operation="softmax_any_axis"),
            90,
        ),
        (
            "13_whole_slices",
            Problem(1140, 111, "float16", inner=285, operation="softmax_any_axis"),
            75,
        ),
        ("14_backward", Problem(64, 300000, operation="softmax_backward"), 90),
    ],
)
def test_a_plan_that_its_code_would_not_compile_is_refused(file, problem, capability) -> None:
    """By the header, before a compiler fails on one of its assertions."""
    gpu = Gpu(capability, 108, 40 * 2**20)
    with pytest.raises(ValueError, match="its header says"):
        assert load(file).at(problem, gpu).plan
