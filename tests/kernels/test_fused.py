"""12 and its dropout: what is not loaded, how the rest is, and that a mistake in either end is
found."""

import re

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 after this)
import numpy as np
import pytest

from helpers.bound import bind, load
from helpers.catalogue import source
from helpers.check import WrongResult, check_kernel
from helpers.simt import compile_ptx

FUSED, DROPOUT = source("12_fused.cu"), source("variants/12_dropout.cu")
SHAPES = [(3, 512), (7, 1032)]


def test_what_is_not_built_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"does not build .*WIDE = 1; its header says WIDE == 0"):
        load("12_fused").bind(4, 512, "float32", features={"WIDE": 1})
    with pytest.raises(ValueError, match="does not build LOG = 1; it builds MASK"):
        load("variants/12_dropout").bind(4, 512, features={"LOG": 1})
    with pytest.raises(ValueError, match="does not build DROPOUT = 1"):
        load("12_fused").bind(4, 512, features={"DROPOUT": 1})


# ---- mistakes that a check finds --------------------------------------------------------------

MISTAKES = [
    ("no scale", {}, "fmaf(from.x, scale, ", "fmaf(from.x, 1.0f, "),
    ("bias of the first row", {"BIAS": 1}, "row % bias_rows", "0"),
    ("bias scaled too", {"BIAS": 1}, "fmaf(from.x, scale, plus.x", "scale * (from.x + plus.x"),
    ("mask the other way", {"MASK": 1}, "masked[c])", "!masked[c])"),
    ("mask without repetition", {"MASK": 1}, "row / mask_repeat % mask_rows", "row % mask_rows"),
    ("a finite number for -inf", {"MASK": 1}, "__int_as_float(0xff800000)", "-10000.0f"),
    ("whole packs of the future", {"MASK": 2}, "MASK == 2 && c >= here", "MASK == 2 && 0 >= here"),
    ("one column of the future", {"MASK": 2}, "mask_row + 1)", "mask_row + 2)"),
    ("the logarithm of softmax", {"LOG": 1}, "(v - row_max) - log_sum", "logf(expf(v - row_max))"),
    ("a maximum that eats the sum", {"LOG": 1}, "(v - row_max) - log_sum", "v - (row_max + 0.0f)"),
    ("a logarithm of base 2", {"LOG": 1}, "logf(row_sum)", "log2f(row_sum)"),
]


@pytest.mark.parametrize(
    ("features", "old", "new"), [one[1:] for one in MISTAKES], ids=[one[0] for one in MISTAKES]
)
def test_a_mistake_is_found(features: dict, old: str, new: str) -> None:
    assert old in FUSED
    with pytest.raises(WrongResult):
        check_kernel(FUSED.replace(old, new), SHAPES, features=features)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("drawn.y >= below", "drawn.x >= below"),
        ("round < 10", "round < 9"),
        ("(pack * width + c) / 4, row,", "(pack * width + c) / 4, 0,"),
        ("factor / (1.0f - p)", "factor"),
        ("(unsigned)offset, offset >> 32", "(unsigned)offset, 0"),
    ],
)
def test_a_mistake_of_dropout_is_found(old: str, new: str) -> None:
    assert old in DROPOUT
    with pytest.raises(WrongResult):
        check_kernel(DROPOUT.replace(old, new), SHAPES)


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


def straight(code: str, dtype: str, features: dict) -> bool:
    """Whether loads of x follow each other in one piece of code, without a branch or arithmetic on
    what they load between the first and the last."""
    bound = bind(code, 8192, 8192, dtype, features=features)
    ptx = compile_ptx(code, bound.options)
    loads = [match.start() for match in re.finditer(r"ld\.global\.nc\.L2::cache_hint\.v4", ptx)]
    assert len(loads) == bound["PACKS"] > 1
    between = ptx[loads[0] : loads[-1]]
    return not re.search(r"\bbra\b|^\$L_|\bfma\.|\bshr\.|\bcvt\.", between, re.MULTILINE)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("features", [{}, {"MASK": 1, "BIAS": 1}, {"MASK": 2}], ids=str)
def test_no_load_waits_for_another(features: dict, dtype: str) -> None:
    assert straight(FUSED, dtype, features)


def test_loads_in_branches_are_found() -> None:
    old, new = "fetched.x = load_if(wanted, ", "if (wanted) fetched.x = load_if(true, "
    assert not straight(FUSED.replace(old, new), "bfloat16", {})


def test_dropout_is_the_same_in_every_launch_and_dtype() -> None:
    """And its mean is what p says."""
    dropped = []
    for dtype, changes in (
        ("float32", {}),
        ("float16", {}),
        ("float32", {"CLUSTER": 2, "ROWS": 1}),
    ):
        x = np.zeros((4, 1024), dtype)
        y = np.full_like(x, np.nan)
        bind(DROPOUT, *x.shape, dtype, changes=changes).run(
            x=x, y=y, p=0.25, seed=2**40 + 5, offset=3
        )
        dropped.append(y == 0)
    assert (dropped[0] == dropped[1]).all() and (dropped[0] == dropped[2]).all()
    assert 0.2 < dropped[0].mean() < 0.3
