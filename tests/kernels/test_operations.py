"""Kernels of related operations: features in pairs and at random, at random shapes, with special
values, in each layout that a file takes. On the SIMT machine, and live on a GPU.
"""

import itertools
import random
import re
from collections.abc import Iterator

import pytest

from helpers.base.gpu import gpu_for_plans
from helpers.catalogue.registry import steps, variants
from helpers.problem.operations import COPY, SOFTMAX
from helpers.problem.problem import Problem
from helpers.run.bound import Kernel, load
from helpers.run.launch import check_case, check_kernel
from helpers.run.references import make_inputs

pytestmark = pytest.mark.usefixtures("replay_unless_live")


def features_of(kernel: Kernel) -> Iterator[dict[str, int]]:
    """Every combination of a file's features, whether it is built or not."""
    contract = kernel.header
    chosen = [name for name in contract.features if name not in contract.made_for]
    values = [range(len(contract.operation.features[name])) for name in chosen]
    for numbers in itertools.product(*values):
        yield dict(zip(chosen, numbers, strict=True))


KERNELS = {name: load(name) for name in [*steps(), *variants()]}
# Softmax and copies without features are in test_softmax.py.
NAMES = [
    name
    for name, kernel in KERNELS.items()
    if kernel.operation not in (SOFTMAX, COPY) or kernel.features
]
SHAPES = {
    False: [(3, 512), (5, 1000), (2, 4096), (3, 77), (2, 20000)],
    True: [(2, 33, 40), (3, 64, 7), (1, 130, 64), (3, 16, 2)],
}


def problem_at(kernel: Kernel, shape: tuple[int, ...], dtype: str) -> Problem:
    """Of rows x cols, or outer x dim x inner."""
    outer, cols, inner = (*shape, 1)[:3]
    return kernel.problem(outer * inner, cols, dtype, inner=inner)


def builds(kernel: Kernel, dtype: str, chosen: dict[str, int]) -> Iterator[tuple[int, ...]]:
    """The shapes at which a file takes these features."""
    one = kernel.choosing(chosen)
    shapes = SHAPES["inner" in kernel.operation.sizes]
    return (shape for shape in shapes if one.header.accepts(problem_at(one, shape, dtype)))


def paired(combinations: list[dict[str, int]]) -> Iterator[dict[str, int]]:
    """Each feature alone, and few of the other combinations, in which each two values meet that
    meet in any."""
    alone = [one for one in combinations if sum(map(bool, one.values())) < 2]
    left = set().union(*map(pairs, combinations))
    while left or alone:
        one = alone.pop(0) if alone else max(combinations, key=lambda one: len(pairs(one) & left))
        left -= pairs(one)
        yield one


def pairs(chosen: dict[str, int]) -> set[tuple]:
    """Each two values of a combination."""
    return {*itertools.combinations(chosen.items(), 2)}


def built() -> Iterator[tuple[str, str, dict[str, int]]]:
    """Such combinations, each in one of its dtypes, which follow each other."""
    for name in NAMES:
        kernel, dtypes = KERNELS[name], {}
        for chosen in features_of(kernel):
            every = (dtype.name for dtype in kernel.header.dtypes)
            found = [dtype for dtype in every if any(builds(kernel, dtype, chosen))]
            if found:
                dtypes[tuple(chosen.items())] = found
        for number, chosen in enumerate(paired([*map(dict, dtypes)])):
            found = dtypes[tuple(chosen.items())]
            yield name, found[number % len(found)], chosen


BUILT = [*built()]
each_build = pytest.mark.parametrize(
    ("name", "dtype", "chosen"),
    BUILT,
    ids=lambda value: (
        "".join(f"{n}{v}" for n, v in value.items()) if type(value) is dict else value
    ),
)


def test_every_feature_that_a_file_has_is_built_somewhere() -> None:
    for name in NAMES:
        for feature, words in KERNELS[name].operation.features.items():
            if feature in KERNELS[name].features:
                found = {
                    KERNELS[name].choosing(c).features[feature] for n, _, c in BUILT if n == name
                }
                made = {KERNELS[name].header.made_for.get(feature)} - {None}
                assert found == made or len(found) >= 2, f"{name}: {feature} is {found} of {words}"
        assert any(name == built for built, *_ in BUILT), f"{name} is taken at no shape"


@each_build
def test_every_build_is_right(name: str, dtype: str, chosen: dict[str, int]) -> None:
    """With the special rows of the check of the notebooks; which shape is a matter of chance."""
    kernel = KERNELS[name]
    shapes = [*builds(kernel, dtype, chosen)]
    shape = shapes[sum(map(ord, f"{name}{dtype}{chosen}")) % len(shapes)]
    said = check_kernel(kernel, [shape], dtype=dtype, features=chosen)
    assert re.search("correct for 1 shape( and|, )", said)


def random_shape(chance: random.Random, axes: bool) -> tuple[int, ...]:
    cols = chance.choice([2 ** chance.randint(0, 12), chance.randint(1, 5000)])
    if chance.random() < 0.6:
        cols = -(-cols // 8) * 8
    if not axes:
        return chance.randint(1, 9), cols
    cols, inner = min(cols, 600), chance.choice([2, 3, 8, 31, 32, 33, 64, 100])
    return chance.randint(1, 3), cols, inner


@pytest.mark.parametrize("name", NAMES)
def test_random_cases_are_right(name: str) -> None:
    """Shapes, dtypes, features and layouts by chance; the seed is the number of the case."""
    check_random(name, 6)


@pytest.mark.gpu
@pytest.mark.parametrize("part", range(20))
@pytest.mark.parametrize("name", NAMES)
def test_live_random_cases_are_right(name: str, part: int) -> None:
    """2000 of each file, in parts that workers share."""
    check_random(name, 100, part)


def check_random(name: str, count: int, part: int = 0) -> None:
    chance, kernel = random.Random(f"{name} {part}"), KERNELS[name]
    every = [*features_of(kernel)]
    done = 0
    for number in range(50 * count):
        shape = random_shape(chance, "inner" in kernel.operation.sizes)
        dtype, chosen = chance.choice(kernel.header.dtypes), chance.choice(every)
        one = kernel.choosing(chosen)
        problem = problem_at(one, shape, dtype)
        if not one.header.accepts(problem, gpu_for_plans()):
            continue
        check_case(one, problem, make_inputs(problem, 1000 * part + number), number)
        done += 1
        if done == count:
            return
    raise AssertionError(f"{name} takes {done} of {50 * count} random cases")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 131075, 2), "float16"),  # columns past 130,000
        ((2, 3, 1045), "bfloat16"),  # more packs than threads until columns repeat
        ((3, 9, 41), "float16"),  # slices that begin between packs
        ((140, 30, 3), "float32"),  # more slices than groups of blocks
    ],
)
def test_long_columns_are_right(shape: tuple[int, int, int], dtype: str) -> None:
    outer, cols, inner = shape
    kernel = KERNELS["13_long_columns"]
    problem = kernel.problem(outer * inner, cols, dtype, inner=inner)
    check_case(kernel, problem, make_inputs(problem), 0)
