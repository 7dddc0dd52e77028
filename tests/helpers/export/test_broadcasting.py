"""Where exported files find the row of a mask or a bias, against NumPy's own broadcasting."""

import itertools
from math import prod

import numpy as np
import pytest

from helpers.export.parts.broadcasting import broadcasts, rows_of

SIZES = (1, 2, 3)
LEADING = [sizes for n in range(4) for sizes in itertools.product(SIZES, repeat=n)]


@pytest.mark.parametrize("repeats", [False, True])
def test_each_row_is_that_of_numpy_and_few_are_written_out(repeats: bool) -> None:
    for to in ((2, 3, 2), (3, 1, 2), (1, 2, 1), (4,), ()):
        for shape in filter(lambda shape: broadcasts(shape, to), LEADING):
            given = np.arange(prod(shape)).reshape(*shape, 1)
            kept, count, repeat = rows_of(given.shape, (*to, 1), repeats)
            written = np.broadcast_to(given, kept).ravel()
            wanted = np.broadcast_to(given, (*to, 1)).ravel()
            assert len(written) == count and (repeats or repeat == 1)
            assert [written[r // repeat % count] for r in range(prod(to))] == wanted.tolist()
            between = [
                n for n, size in enumerate((*[1] * (len(to) - len(shape)), *shape)) if size > 1
            ]
            if repeats and between:  # nothing outside of what it has of its own
                assert count == prod(to[between[0] : between[-1] + 1])


def test_what_broadcasts_is_what_numpy_says() -> None:
    for shape, to in itertools.product(LEADING, LEADING):
        try:
            fits = np.broadcast_shapes(shape, to) == to
        except ValueError:
            fits = False
        assert broadcasts(shape, to) == fits
