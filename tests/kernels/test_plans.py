"""Plans of every kernel at random shapes, for GPUs of many sizes: within CUDA's limits, blocks that
wait for one another all at once, every row and column owned."""

import functools
import random

import pytest

from helpers.bound import Kernel
from helpers.catalogue import source, steps, variants
from helpers.gpu import Gpu
from helpers.header import header
from helpers.plan import MAX_BLOCK, MAX_GRID, Plan

GPUS = [Gpu(90, sms, l2 * 2**20) for sms in (36, 84, 108, 114, 132, 148) for l2 in (6, 50, 126)]
NAMES = [*steps(), *variants()]
each_kernel = pytest.mark.parametrize("name", NAMES)


def random_shapes(count: int) -> list[tuple[int, int]]:
    """Few rows and many, short rows and long; most of whole packs, for which most kernels are."""
    chance = random.Random(0)
    found = []
    for _ in range(count):
        rows = chance.choice([chance.randint(1, 40), int(2 ** chance.uniform(0, 24))])
        cols = chance.choice([2 ** chance.randint(0, 21), int(2 ** chance.uniform(0, 21.5))])
        found.append((rows, max(8, cols // 8 * 8) if chance.random() < 0.8 else cols))
    return found


SHAPES = random_shapes(400)


def macro(plan: Plan, name: str) -> int:
    """A macro without which these tests cannot tell who owns what."""
    assert name in plan.macros, f"the Build table has no {name}, which its header's claims ask for"
    return plan.macros[name]


def plans_of(code: str) -> list[tuple]:
    """(rows, cols, dtype, GPU, plan) wherever the header takes the shape."""
    contract = header(code)
    found = []
    for number, (rows, cols) in enumerate(SHAPES):
        dtype = contract.dtypes[number % len(contract.dtypes)]
        for gpu in GPUS[number % 3 :: 3]:
            if contract.accepts(rows, cols, dtype, gpu):
                plan = contract.plan(rows, cols, dtype, gpu=gpu)
                found.append((rows, cols, dtype, gpu, plan))
    return found


@functools.cache
def plans(name: str) -> list[tuple]:
    return plans_of(source(f"{name}.cu"))


@each_kernel
def test_every_plan_is_within_cudas_limits(name: str) -> None:
    seen = 0
    for *_, gpu, plan in plans(name):
        seen += 1
        assert 1 <= plan.grid <= MAX_GRID and plan.shared_mem <= gpu.max_shared
        assert 32 <= plan.block <= MAX_BLOCK and plan.block % 32 == 0
        assert 1 <= plan.cluster <= 16 and plan.grid % plan.cluster == 0
    assert seen >= 100, "the header refuses nearly every shape"


def too_many(found: list[tuple]) -> list[tuple]:
    """The plans whose blocks wait for one another, or stay, and are more than run at once."""
    wrong = []
    for *place, gpu, plan in found:
        at_once = gpu.sms * (macro(plan, "RESIDENT") if "clusters" in plan.values else 1)
        if (plan.cooperative or "clusters" in plan.values) and plan.grid > at_once:
            wrong.append((*place, gpu, plan.grid))
    return wrong


@each_kernel
def test_blocks_that_wait_for_one_another_run_at_once(name: str) -> None:
    """A cooperative launch is refused if they do not; clusters that stay would run one after the
    other, each with all rows of its share."""
    assert too_many(plans(name)) == []


@pytest.mark.parametrize(
    ("name", "old"),
    [("09_grid", "min(rows, sms / BLOCKS)"), ("variants/08_ahead", "sms * 10 / 11")],
)
def test_a_number_of_one_gpu_in_their_place_is_noticed(name: str, old: str) -> None:
    code = source(f"{name}.cu")
    assert old in code
    assert too_many(plans_of(code.replace(old, old.replace("sms", "132"))))


@each_kernel
def test_every_row_has_its_threads(name: str) -> None:
    contract = header(source(f"{name}.cu"))
    for rows, cols, dtype, gpu, plan in plans(name):
        place = (rows, cols, dtype, gpu)
        row_bytes, macros = cols * dtype.itemsize, plan.macros
        owner = contract.fields["Row"]
        if owner == "one thread":
            assert 0 <= plan.grid * plan.block - rows < plan.block, place
        elif owner == "one block":
            assert plan.grid == rows, place
        elif owner.startswith("LANES"):
            lanes, packs = macro(plan, "LANES"), macro(plan, "PACKS")
            taken = plan.grid * plan.block // lanes * macros.get("ROWS", 1)
            assert 0 <= taken - rows < plan.block // lanes * macros.get("ROWS", 1), place
            width = macros.get("WIDTH", 8)
            assert cols % width == 0 and width * lanes * packs >= cols, place
        elif "PACKS" in macros:  # several blocks, 16 bytes a pack
            blocks = macros.get("BLOCKS", plan.cluster)
            assert plan.grid % blocks == 0 and plan.grid <= rows * blocks, place
            assert 16 * blocks * plan.block * macros["PACKS"] >= row_bytes, place
            assert "clusters" in plan.values or plan.cooperative or plan.grid == rows * blocks


def test_a_macro_that_is_missing_is_named() -> None:
    with pytest.raises(AssertionError, match="^the Build table has no LANES, which"):
        macro(Plan(1, 32, 0, macros={"PACKS": 4}), "LANES")


@each_kernel
def test_a_kernel_compiled_for_a_plan_has_that_plan(name: str) -> None:
    """`launch` plans again, from the options of a kernel that a reader built."""
    code = source(f"{name}.cu")
    for rows, cols, dtype, gpu, plan in plans(name)[::25]:
        raw = type("Raw", (), {"code": code, "name": "kernel", "options": plan.options})()
        again = Kernel(code, raw=raw).bind(rows, cols, dtype, gpu).plan
        assert again == plan
