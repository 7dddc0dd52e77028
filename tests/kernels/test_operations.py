"""Kernels of the family around softmax: every combination of features that a file builds, at random
shapes, with special values, in each layout that it takes. On the SIMT machine, and live on a GPU.
"""

import itertools
import random
import re
from collections.abc import Iterator

import pytest

from helpers.catalogue.registry import steps, variants
from helpers.problem.operations import COPY, SOFTMAX, Sizes
from helpers.run.bound import Kernel, load
from helpers.run.check import check_case, check_kernel
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
    False: [Sizes(3, 512), Sizes(5, 1000), Sizes(2, 4096), Sizes(3, 77), Sizes(2, 20000)],
    True: [Sizes(2 * 40, 33, 40), Sizes(3 * 7, 64, 7), Sizes(64, 130, 64), Sizes(3 * 2, 16, 2)],
}


def builds(kernel: Kernel, dtype: str, chosen: dict[str, int]) -> list[Sizes]:
    """The shapes at which a file takes these features."""
    shapes = SHAPES["inner" in kernel.operation.sizes]
    return [s for s in shapes if kernel.accepts(*s[:2], dtype, inner=s.inner, features=chosen)]


def built() -> Iterator[tuple[str, str, dict[str, int]]]:
    """Each combination in one of the dtypes that it is built for, which follow each other."""
    for name in NAMES:
        kernel = KERNELS[name]
        for number, chosen in enumerate(features_of(kernel)):
            dtypes = [d.name for d in kernel.header.dtypes if builds(kernel, d.name, chosen)]
            if dtypes:
                yield name, dtypes[number % len(dtypes)], chosen


BUILT = [*built()]
each_build = pytest.mark.parametrize(
    ("name", "dtype", "chosen"),
    BUILT,
    ids=lambda value: (
        "".join(f"{n}{v}" for n, v in value.items()) if type(value) is dict else value
    ),
)


def shape_for(kernel: Kernel, sizes: Sizes) -> tuple[int, ...]:
    if "inner" in kernel.operation.sizes:
        return sizes.outer, sizes.cols, sizes.inner
    return sizes[:2]


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
    shapes = builds(kernel, dtype, chosen)
    sizes = shapes[sum(map(ord, f"{name}{dtype}{chosen}")) % len(shapes)]
    said = check_kernel(kernel, [shape_for(kernel, sizes)], dtype=dtype, features=chosen)
    assert re.search("right on 1 shape( and|, )", said)


def random_sizes(chance: random.Random, axes: bool) -> Sizes:
    cols = chance.choice([2 ** chance.randint(0, 12), chance.randint(1, 5000)])
    if chance.random() < 0.6:
        cols = -(-cols // 8) * 8
    if not axes:
        return Sizes(chance.randint(1, 9), cols)
    cols, inner = min(cols, 600), chance.choice([2, 3, 8, 31, 32, 33, 64, 100])
    return Sizes(chance.randint(1, 3) * inner, cols, inner)


@pytest.mark.parametrize("name", NAMES)
def test_random_cases_are_right(name: str) -> None:
    """Shapes, dtypes, features and layouts by chance; the seed is the number of the case."""
    check_random(name, 24)


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
        sizes = random_sizes(chance, "inner" in kernel.operation.sizes)
        dtype, chosen = chance.choice(kernel.header.dtypes), chance.choice(every)
        if not kernel.accepts(*sizes[:2], dtype, inner=sizes.inner, features=chosen):
            continue
        one = kernel.choosing(chosen)
        values = make_inputs(one.operation, sizes, dtype, one.features, 1000 * part + number)
        check_case(one, sizes, dtype, values, number)
        done += 1
        if done == count:
            return
    raise AssertionError(f"{name} takes {done} of {50 * count} random cases")
