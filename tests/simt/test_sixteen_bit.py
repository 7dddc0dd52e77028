"""Rounding to 16-bit floats."""

import itertools

import numpy as np
import pytest

from helpers.simt.operations.rounding import narrow, widen
from tests.simt.forms_of_floats import DIRECTIONS
from tests.simt.ptx_forms import NOT_A_NUMBER, SIXTEEN, decode


@np.errstate(all="ignore")
@pytest.mark.parametrize("base", SIXTEEN)
def test_every_value_survives_widening_and_narrowing(base: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    wide = widen(bits.view(np.float16) if base == "f16" else bits, base)
    expected = np.array([decode(int(one), base) for one in bits])
    np.testing.assert_array_equal(wide, expected.astype(np.float32))
    assert np.array_equal(np.signbit(wide), bits >> 15 == 1)
    numbers = ~np.isnan(wide)
    for values, direction in itertools.product((wide, wide.astype(np.float64)), DIRECTIONS):
        back = narrow(values, base, direction).view(np.uint16)
        assert np.array_equal(back[numbers], bits[numbers])
        assert (back[~numbers] == NOT_A_NUMBER).all()
