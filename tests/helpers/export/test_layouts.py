"""Where exported files find the row of a mask or a bias, against NumPy's own broadcasting."""

import itertools
from math import prod

import numpy as np

from helpers.export.parts.layouts import broadcasts, rows_of

SIZES = (1, 2, 3)
LEADING = [sizes for n in range(5) for sizes in itertools.product(SIZES, repeat=n)]


def test_each_row_is_that_of_numpy_and_few_are_written_out() -> None:
    for to in ((2, 3, 2), (3, 1, 2), (1, 2, 1), (4,), (), (2, 3, 2, 2), (1, 3, 2, 3, 2)):
        for shape in filter(lambda shape: broadcasts(shape, to), LEADING):
            given = np.arange(prod(shape)).reshape(*shape, 1)
            kept, numbers = rows_of("mask", given.shape, (*to, 1))
            rows, repeat, group = (numbers[f"mask_{key}"] for key in ("rows", "repeat", "group"))
            written = np.broadcast_to(given, kept).ravel()
            wanted = np.broadcast_to(given, (*to, 1)).ravel()
            found = [written[r // group * rows + r // repeat % rows] for r in range(prod(to))]
            assert found == wanted.tolist()
            if len(to) <= 3:
                assert len(written) == prod(shape), "nothing is written out"


def test_what_broadcasts_is_what_numpy_says() -> None:
    for shape, to in itertools.product(LEADING, LEADING):
        try:
            fits = np.broadcast_shapes(shape, to) == to
        except ValueError:
            fits = False
        assert broadcasts(shape, to) == fits
