"""12 and its dropout: what is not loaded, how the rest is, and that a mistake in either end is
found."""

import re

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 after this)
import numpy as np
import pytest

from helpers.catalogue.registry import source
from helpers.run.bound import bind
from helpers.run.check import WrongResult
from helpers.run.execute import KernelBug
from helpers.run.launch import check_kernel
from helpers.simt import compile_ptx

FUSED, BACK = source("12_fused.cu"), source("14_backward.cu")
SHAPES = [(9, 512), (7, 1032), (1, 256)]


# ---- mistakes that a check finds --------------------------------------------------------------

MISTAKES = [
    ("no scale", {}, "fmaf(from.x, scale, ", "fmaf(from.x, 1.0f, "),
    ("bias scaled too", {"BIAS": 1}, "fmaf(from.x, scale, plus.x", "scale * (from.x + plus.x"),
    ("mask the other way", {"MASK": 1}, "return MASK == 1 && ", "return MASK == 1 && !"),
    ("a row past the last one", {"MASK": 1}, "min(row, rows - 1)", "row"),
    ("a finite number for -inf", {"MASK": 1}, "__int_as_float(0xff800000)", "-10000.0f"),
    ("whole packs of the future", {"MASK": 2}, "MASK == 2 && c >= here", "MASK == 2 && 0 >= here"),
    ("causal from the corner", {"MASK": 2}, "1 + diagonal", "1 + 0 * diagonal"),
    ("a fully masked row is NaN", {"MASK": 2, "ZERO": 1}, "ZERO && row_pair", "false && row_pair"),
    ("a row with NaN is 0", {"ZERO": 1}, "row_pair.y == 0.0f", "!(row_pair.y > 0.0f)"),
    ("the logarithm of softmax", {"LOG": 1}, "(v - row_max) - log_sum", "logf(expf(v - row_max))"),
    ("six rounds", {"DROPOUT": 1}, "round < 7", "round < 6"),
    ("neighbours alike", {"DROPOUT": 1}, "c % 2 ? word : word << 16", "word"),
    ("rows alike", {"DROPOUT": 1}, "width / 8, row,", "width / 8, 0,"),
    ("half an offset", {"DROPOUT": 1}, "offset >> 32)", "0)"),
    ("what stays is unchanged", {"DROPOUT": 1}, " * dropout.factor()", ""),
]


@pytest.mark.parametrize(
    ("features", "old", "new"), [one[1:] for one in MISTAKES], ids=[one[0] for one in MISTAKES]
)
def test_a_mistake_is_found(features: dict, old: str, new: str) -> None:
    assert old in FUSED
    with pytest.raises((WrongResult, KernelBug)):
        check_kernel(FUSED.replace(old, new), SHAPES, features=features)


def test_what_is_masked_or_behind_the_row_is_not_looked_at() -> None:
    """A bias that is no number included; rows of 1032 columns leave threads without any."""
    x = np.zeros((2, 1032), np.float32)
    bias, mask = np.zeros((1, 1032), np.float32), np.zeros((1, 1032), np.uint8)
    x[:, 0], bias[0, 0], mask[0, 0] = np.nan, np.nan, 1
    y = np.full_like(x, np.nan)
    bind(FUSED, *x.shape, features={"MASK": 1, "BIAS": 1}).run(x=x, y=y, bias=bias, mask=mask)
    assert (y[:, 0] == 0).all() and np.allclose(y[:, 1:], 1 / 1031, rtol=1e-5)


# ---- what is loaded, and how ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packs_that_causal_hides_are_not_loaded(dtype: str) -> None:
    rows = cols = 512
    x = np.random.default_rng(0).normal(size=(rows, cols)).astype(dtype)
    y = np.empty_like(x)
    counters = bind(FUSED, rows, cols, dtype, features={"MASK": 2}).simulate(x, y).counters
    pack = 16 // x.itemsize
    assert counters.load_bytes == sum(16 * (row // pack + 1) for row in range(rows))
    assert counters.store_bytes == y.nbytes


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("features", [{}, {"MASK": 1, "BIAS": 1}, {"MASK": 2}], ids=str)
def test_no_load_waits_for_another(features: dict, dtype: str) -> None:
    """Loads of x follow each other in one piece of code, without a branch or arithmetic on what
    they load between the first and the last."""
    bound = bind(FUSED, 8192, 8192, dtype, features=features)
    ptx = compile_ptx(FUSED, bound.options)
    loads = [match.start() for match in re.finditer(r"ld\.global\.nc\.L2::cache_hint\.v4", ptx)]
    assert len(loads) == bound["PACKS"] > 1
    between = ptx[loads[0] : loads[-1]]
    assert not re.search(r"\bbra\b|^\$L_|\bfma\.|\bshr\.|\bcvt\.", between, re.MULTILINE)


# ---- dropout ----------------------------------------------------------------------------------

GIVEN = {"seed": 2**40 + 5, "offset": 3}


def left(rows: int, cols: int, p: float, dtype: str = "float32", **changes: int) -> np.ndarray:
    """What dropout leaves of softmax of zeros, in units of that: 0 where a column is dropped."""
    x = np.zeros((rows, cols), dtype)
    y = np.full_like(x, np.nan)
    bound = bind(FUSED, rows, cols, dtype, changes=changes, features={"DROPOUT": 1})
    bound.run(x=x, y=y, p=p, **GIVEN)
    return y.astype(np.float64) * cols


def test_dropout_is_the_same_in_every_launch_and_dtype_and_on_the_way_back() -> None:
    dropped = left(4, 1024, 0.25) == 0
    assert ((left(4, 1024, 0.25, "float16") == 0) == dropped).all()
    assert ((left(4, 1024, 0.25, CLUSTER=2, ROWS=1, THREADS=64) == 0) == dropped).all()
    for dtype in ("float32", "bfloat16"):  # dx = y (dy - sum): of dy alike, below 0 where it is 0
        y = np.full((4, 1024), 1 / 1024, dtype)
        dx = np.zeros_like(y)
        back = bind(BACK, *y.shape, dtype, features={"DROPOUT": 1})
        back.run(y=y, dy=np.ones_like(y), dx=dx, p=0.25, **GIVEN)
        assert ((dx < 0) == dropped).all()


def test_what_dropout_drops_is_random() -> None:
    """Its share, of each of the eight numbers of a counter, neighbours and rows; by how many
    standard deviations they differ from what chance makes of them. The seed is fixed."""
    p = 0.25
    dropped = left(32, 4096, p) == 0

    def deviations(share: np.ndarray, expected: float, count: int) -> float:
        return np.abs(share - expected).max() / np.sqrt(expected * (1 - expected) / count)

    assert deviations(dropped.mean(), p, dropped.size) < 4
    for lanes in (2, 4, 8, 32):  # the columns of a word, of a pack, of a counter
        share = dropped.reshape(-1, lanes).mean(axis=0)
        assert deviations(share, p, dropped.size // lanes) < 4
    for apart in (1, 2, 3, 4, 8, 16, 1024):
        both = dropped[:, apart:] & dropped[:, :-apart]
        assert deviations(both.mean(), p * p, both.size) < 4
    both = dropped[1:] & dropped[:-1]
    assert deviations(both.mean(), p * p, both.size) < 4
    patterns = np.bincount(np.packbits(dropped, axis=1).ravel(), minlength=256)
    ones = np.array([bin(byte).count("1") for byte in range(256)])
    expected = p**ones * (1 - p) ** (8 - ones) * patterns.sum()
    chi_square = ((patterns - expected) ** 2 / expected).sum()
    assert abs(chi_square - 255) < 4 * np.sqrt(2 * 255)


def test_the_mean_stays_for_p_as_it_was_rounded() -> None:
    """0.1 is 6553 of 65536; and the least p that drops anything drops with that chance."""
    kept = left(2, 1024, 0.1).max()
    assert kept == pytest.approx(65536 / (65536 - 6553), rel=1e-6)
    assert (left(2, 1024, 0.99 / 65536) == 1).all(), "rounded down to 0"


def test_all_is_dropped_or_nothing() -> None:
    """At the ends of what p may be; NaN stays, and what lies outside is refused by name."""
    assert (left(2, 1024, 1.0) == 0).all() and (left(2, 1024, 0.0) == 1).all()
    x = np.zeros((2, 512), np.float32)
    x[1, 3] = np.nan
    y, dx = np.ones_like(x), np.ones_like(x)
    bound = bind(FUSED, *x.shape, features={"DROPOUT": 1})
    bound.run(x=x, y=y, p=1.0)
    assert (y[0] == 0).all() and np.isnan(y[1]).all()
    back = bind(BACK, *x.shape, features={"DROPOUT": 1})
    back.run(y=np.full_like(x, 1 / 512), dy=np.ones_like(x), dx=dx, p=1.0)
    assert (dx == 0).all()
    for p in (-0.1, 1.5, np.nan, np.float32(2)):
        with pytest.raises(ValueError, match=f"p = {p} is not 0 to 1"):
            bound.run(x=x, y=y, p=p)
