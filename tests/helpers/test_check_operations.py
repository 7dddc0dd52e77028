"""Kernels of every operation are checked, headers that name one are read, and arguments are its
own. tests/kernels has more defects, and every feature in every dtype."""

import numpy as np
import pytest

from helpers.catalogue.header import header
from helpers.catalogue.plan import HeaderError
from helpers.catalogue.registry import source
from helpers.run.bound import bind
from helpers.run.check import WrongResult
from helpers.run.execute import KernelBug
from helpers.run.launch import check_kernel
from helpers.run.references import make_input, poisoned

pytestmark = pytest.mark.usefixtures("replay_unless_live")

FUSED, ANY_AXIS, LOSS, GRADIENT = map(
    source, ("12_fused.cu", "13_any_axis.cu", "15_cross_entropy.cu", "15_gradient.cu")
)
SHAPES = ((3, 7), (9, 33))
AXES = ((3, 8, 4), (2, 33, 32))
PACKS = ((9, 512), (7, 1032))

DEFECTS = {  # beside those that tests/kernels plants
    "mask compared with one": (FUSED, PACKS, {"MASK": 1}, "(&mask)[c]", "(&mask)[c] == 1"),
    "causal hides the diagonal": (FUSED, PACKS, {"MASK": 2}, "query + 1 +", "query +"),
    "causal of the first matrix": (
        *(FUSED, PACKS, {"MASK": 2}),
        *("own_row / mask_repeat % mask_rows", "own_row / mask_repeat"),
    ),
    "bias of the first group": (FUSED, PACKS, {"BIAS": 1}, "row / group * rows + ", ""),
    "bias not repeated": (FUSED, PACKS, {"BIAS": 1}, "row / repeat % rows", "row % rows"),
    "the last element of an axis": (ANY_AXIS, AXES, {}, "] += e;", "] = e;"),
    "each line twice": (ANY_AXIS, AXES, {}, "slice * dim + line)", "slice * dim + line / 2 * 2)"),
    "the first pack of an axis": (ANY_AXIS, AXES, {}, "start + k * stride);", "start);"),
    "next target": (LOSS, SHAPES, {}, "(from[wanted])", "(from[max(wanted - 1, 0ll)])"),
    "smoothing forgotten": (LOSS, SHAPES, {}, "if (smoothing != 0.0f)", "if (false)"),
    "smoothing added": (LOSS, SHAPES, {}, "(1.0f - smoothing) * row_loss", "row_loss"),
    "-100 alone ignored": (LOSS, SHAPES, {}, "wanted == ignore_index", "wanted == -100"),
    "no statistics": (LOSS, SHAPES, {}, "statistics[2 * row + 1] = log_sum;", ""),
    "lse for log(sum)": (LOSS, SHAPES, {}, "1] = log_sum;", "1] = lse;"),
    "loss of all rows alike": (GRADIENT, SHAPES, {}, "dloss[row], ", "dloss[0], "),
    "no target, no word": (GRADIENT, SHAPES, {}, "inside ? given", "true ? given"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name: str) -> None:
    code, shapes, features, old, new = DEFECTS[name]
    assert old in code
    with pytest.raises((WrongResult, KernelBug)):
        check_kernel(code.replace(old, new), shapes, features=features)


def test_what_is_wrong_in_place_alone_is_found_there() -> None:
    """Right where the output is another array: x is read again after dx was written."""
    assert "2 shapes, 4 views" in check_kernel(GRADIENT, SHAPES), "an array may start anywhere"
    old, late = "gradient(v_hot) - hot", "gradient(to_float(from[hot_column])) - hot"
    assert old in GRADIENT
    with pytest.raises(WrongResult, match="backward at rows x cols = .* in place: "):
        check_kernel(GRADIENT.replace(old, late), SHAPES)


# ---- headers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "old", "new", "message"),
    [
        (
            GRADIENT,
            "cross_entropy_backward\n",
            "softmin\n",
            "`softmin` is not one of softmax, soft",
        ),
        (GRADIENT, "cross_entropy_backward\n", "softmax with LOG\n", "`LOG` is not NAME = value"),
        (
            GRADIENT,
            "cross_entropy_backward\n",
            "softmax with LOG = 2\n",
            "softmax has no LOG = 2; ",
        ),
        (GRADIENT, "dx = x\n", "x = y\n", "Inplace: `x = y` is no"),
        (FUSED, "(WIDE == 0 ||", "(wide == 0 ||", "Features: .* reads wide, unknown here"),
        (
            FUSED,
            "MASK       = 0",
            "MASK       = rows",
            "MASK is a feature, which must be a plain n",
        ),
    ],
)
def test_a_header_of_no_such_operation_is_refused(code, old, new, message: str) -> None:
    assert old in code
    with pytest.raises(HeaderError, match=message):
        header(code.replace(old, new, 1))


# ---- arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({}, "^softmax with MASK = 1 needs mask$"),
        ({"mask": None, "y": None}, "is given y twice"),
        ({"masks": None, "mask": None}, "takes x, y, scale, mask, .*, mask_group, not masks"),
        ({"mask": np.zeros((1, 256), bool)}, "mask is bool, but softmax takes uint8"),
        ({"mask": np.zeros((1, 32), np.uint8)}, "mask has shape .1, 32., which is not mask_rows x"),
    ],
)
def test_arguments_that_do_not_fit_are_named(named: dict, message: str) -> None:
    x = make_input(5, 256)
    with pytest.raises((TypeError, ValueError), match=message):
        bind(FUSED, 5, 256, features={"MASK": 1}).run(x, poisoned(x), **named)


def test_an_output_may_be_an_input_where_the_header_says_so() -> None:
    x = np.ones((5, 33), np.float32)
    statistics, rows = np.zeros((5, 2), np.float32), np.zeros(5, np.float32)
    target = np.zeros(5, np.int64)
    bind(GRADIENT, 5, 33).run(x, target, statistics, rows, x)
    assert not x.any(), "dloss is 0"
    with pytest.raises(ValueError, match="^dx overlaps x, but the kernel does not work in place"):
        plain = GRADIENT.replace("// Inplace:  dx = x\n", "")
        bind(plain, 5, 33).run(x, target, statistics, rows, x)
    space = np.zeros(6 * 33, np.float32)
    views = space[: 5 * 33].reshape(5, 33), space[33:].reshape(5, 33)
    with pytest.raises(ValueError, match="dx overlaps x: it must be x itself or a separate array"):
        bind(GRADIENT, 5, 33).run(views[0], target, statistics, rows, views[1])
