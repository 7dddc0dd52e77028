"""Kernels of every operation are checked: right ones pass, each planted defect is found."""

import numpy as np
import pytest

from helpers.catalogue.header import header
from helpers.catalogue.plan import HeaderError
from helpers.problem.operations import OPERATIONS
from helpers.run import launch
from helpers.run.bound import bind, kernel_of
from helpers.run.check import WrongResult
from helpers.run.execute import KernelBug
from helpers.run.launch import check_kernel
from helpers.run.references import make_input, poisoned, reference
from tests.helpers.family import ANY_AXIS, BACKWARD, CROSS_ENTROPY, EACH, FUSED, GRADIENT

pytestmark = pytest.mark.usefixtures("replay_unless_live")

SHAPES = ((1, 1), (3, 7), (9, 33), (40, 100))
AXES = ((1, 1, 2), (3, 7, 5), (2, 33, 31))
FEATURES = {
    "softmax": (
        {"MASK": "causal", "LOG": 1},
        {"DROPOUT": 1},
        {"BIAS": 1, "MASK": "bytes", "ZERO": 1},
    ),
    "softmax_backward": ({"LOG": 1}, {"MASK": 2}),
}
EVERY = [(name, chosen) for name in EACH for chosen in FEATURES.get(name, ({},))]


@pytest.fixture(autouse=True)
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of these kernels takes column after column: its loop over 1000 is that over more."""
    short = tuple(cols for cols in launch.SPECIAL_COLUMNS if cols <= 1000)
    monkeypatch.setattr(launch, "SPECIAL_COLUMNS", short)


def shapes_of(name: str):
    return AXES if name == "softmax_any_axis" else SHAPES


@pytest.mark.parametrize(
    ("name", "chosen", "dtype"),
    [*((*one, "float32") for one in EVERY), *((name, {}, "bfloat16") for name in EACH)],
    ids=str,
)
def test_a_right_kernel_is_accepted(name: str, chosen: dict, dtype: str) -> None:
    said = check_kernel(EACH[name], shapes_of(name), dtype=dtype, features=chosen)
    assert f"correct for {len(shapes_of(name))} shapes" in said and "rows with -inf" in said
    if name.startswith("cross"):
        assert "4 views" in said, "an array that may start anywhere does"


DEFECTS = {  # beside those that tests/kernels plants in the kernels of the series
    "mask compared with one": (FUSED, {"MASK": 1}, "if (byte)", "if (byte == 1)"),
    "causal hides the diagonal": (FUSED, {"MASK": 2}, "col > query", "col >= query"),
    "causal of the first matrix": (
        FUSED,
        {"MASK": 2},
        "= 2 ? row / mask_repeat % mask_rows",
        "= 2 ? row / mask_repeat",
    ),
    "scale after softmax": (FUSED, {}, "scale * float(x[start + col])", "float(x[start + col])"),
    "bias forgotten": (FUSED, {"BIAS": 1}, "if (BIAS)", "if (false)"),
    "bias of the first group": (FUSED, {"BIAS": 1}, "row / bias_group * bias_rows + ", ""),
    "bias not repeated": (FUSED, {"BIAS": 1}, "row / bias_repeat % bias_rows", "row % bias_rows"),
    "dropout of what stays": (FUSED, {"DROPOUT": 1}, ">= below", "< below"),
    "wrong inner": (ANY_AXIS, {}, "+ column % inner", "+ column / outer"),
    "last of the axis": (ANY_AXIS, {}, "sum += expf", "if (k + 1 < dim) sum += expf"),
    "along inner": (ANY_AXIS, {}, "(long long)k * inner]) - largest);", "k]) - largest);"),
    "sums dy": (BACKWARD, {}, ": given(y, col) * g", ": g"),
    "y where log y is": (BACKWARD, {"LOG": 1}, "expf(kept)", "kept"),
    "next target": (CROSS_ENTROPY, {}, "float(x[t]) :", "float(x[t > 0 ? t - 1 : t]) :"),
    "smoothing forgotten": (CROSS_ENTROPY, {}, "if (smoothing > 0.0f) value", "if (false) value"),
    "smoothing added": (CROSS_ENTROPY, {}, "(1.0f - smoothing) * (largest", "(largest"),
    "-100 alone ignored": (CROSS_ENTROPY, {}, "t == ignore_index", "t == -100"),
    "no statistics": (CROSS_ENTROPY, {}, "statistics[2 * row + 1] = log_sum;", ""),
    "lse for log(sum)": (CROSS_ENTROPY, {}, "1] = log_sum;", "1] = all;"),
    "loss of all rows alike": (GRADIENT, {}, "dloss[row] *", "dloss[0] *"),
    "no target, no word": (GRADIENT, {}, "value = there ?", "value = true ?"),
    "reads x after it wrote it": (
        GRADIENT,
        {},
        "below = float(x[start + col])",
        "below = float(x[start + (col + cols - 1) % cols])",
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name: str) -> None:
    code, chosen, old, new = DEFECTS[name]
    assert old in code
    axes = "softmax_any_axis" in code
    with pytest.raises((WrongResult, KernelBug)):
        check_kernel(code.replace(old, new), AXES if axes else SHAPES, features=chosen)


def test_what_is_wrong_in_place_alone_is_found_there() -> None:
    """Right where the output is another array: x is read again after dx was written."""
    old = "        dx[start + col] = T(ignored ? 0.0f : value);\n"
    new = old + "        if (col && float(x[start]) > 1e30f) dx[start] = T(0.0f);\n"
    late = new.replace("float(x[start]) > 1e30f", "float(x[start]) == float(dx[start])")
    assert old in GRADIENT
    with pytest.raises(WrongResult, match="gradient at rows x cols = .* in place: "):
        check_kernel(GRADIENT.replace(old, late), SHAPES)


# ---- headers ----------------------------------------------------------------------------------


def test_a_header_says_what_is_computed() -> None:
    assert header(FUSED).operation is OPERATIONS["softmax"]
    assert header(FUSED).features == dict.fromkeys(OPERATIONS["softmax"].features, 0)
    made = header(FUSED.replace("Computes: softmax", "Computes: softmax with LOG = 1"))
    assert made.features["LOG"] == 1 and made.made_for == {"LOG": 1}
    table = FUSED.replace("// Launch:", "// Build:    MASK = 0\n// Launch:").replace(
        "#ifndef MASK\n#define MASK 0\n#endif\n", ""
    )
    chosen = kernel_of(table).choosing({"MASK": "causal"})
    assert chosen.features["MASK"] == 2 and "-DMASK=2" in chosen.bind(3, 7).options
    assert check_kernel(table, SHAPES, features={"MASK": "causal"})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("softmax\n", "softmin\n", "Computes: `softmin` is not one of softmax, softmax_any_axis"),
        ("softmax\n", "softmax with LOG\n", "Computes: `LOG` is not NAME = value"),
        ("softmax\n", "softmax with LOG = 2\n", "Computes: softmax has no LOG = 2; its features"),
        ("WIDE == 0 ||", "wide == 0 ||", "Features: .* reads wide, unknown here"),
        (
            "// Align:    size\n",
            "// Align:    size\n// Inplace:  x = y\n",
            "Inplace: `x = y` is no",
        ),
        (
            "// Launch:",
            "// Build:    MASK = rows\n// Launch:",
            "MASK is a feature, which must be a plain n",
        ),
    ],
)
def test_a_header_of_no_such_operation_is_refused(old: str, new: str, message: str) -> None:
    code = FUSED.replace("#define MASK 0\n", "") if "MASK" in new else FUSED
    assert old in code
    with pytest.raises(HeaderError, match=message):
        header(code.replace(old, new, 1))


# ---- arguments --------------------------------------------------------------------------------


def test_arrays_are_given_in_order_or_by_name_and_numbers_are_neutral() -> None:
    x = make_input(5, 33)
    y = poisoned(x)
    bound = bind(FUSED, 5, 33)
    bound.run(x, y)
    assert np.allclose(y, reference(x))
    again = poisoned(x)
    bound.run(y=again, x=x, scale=0.5)
    assert np.allclose(again, reference(x * 0.5), rtol=1e-4)
    values = bound.arguments(x, y)
    assert values[2:4] == (5, 33) and values[4] == np.float32(1) and values[5] is values[7] is None
    masked = bind(FUSED, 5, 33, features={"MASK": 1})
    mask = np.zeros((1, 33), np.uint8)
    names = [parameter.name for parameter in masked.kernel.parameters]
    known = dict(zip(names, masked.arguments(x, y, mask=mask), strict=True))
    assert (known["mask_rows"], known["mask_repeat"]) == (1, 1) and known["mask"] is mask
    causal = bind(FUSED, 5, 33, features={"MASK": 2})
    assert dict(zip(names, causal.arguments(x, y), strict=True))["mask_rows"] == 33


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({}, "^softmax with MASK = 1 needs mask$"),
        ({"mask": None, "y": None}, "is given y twice"),
        ({"masks": None, "mask": None}, "takes x, y, scale, mask, .*, mask_group, not masks"),
        ({"mask": np.zeros((1, 33), bool)}, "mask is bool, but the kernel takes uint8"),
        ({"mask": np.zeros((1, 32), np.uint8)}, "mask has shape .1, 32., which is not mask_rows x"),
    ],
)
def test_arguments_that_do_not_fit_are_named(named: dict, message: str) -> None:
    x = make_input(5, 33)
    with pytest.raises((TypeError, ValueError), match=message):
        bind(FUSED, 5, 33, features={"MASK": 1}).run(x, poisoned(x), **named)


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


def test_another_axis_is_bound_by_its_inner() -> None:
    bound = bind(ANY_AXIS, 2 * 31, 33, inner=31)
    assert bound.arguments(None, None)[2:] == (2, 33, 31) and "2 x 33 x 31 float32" in repr(bound)
    x = make_input(62, 33).reshape(2, 31, 33).transpose(0, 2, 1).copy()
    with pytest.raises(ValueError, match="x has shape .62, 33., which is not outer x dim x inner"):
        bound.run(x.reshape(62, 33), poisoned(x.reshape(62, 33)))
    with pytest.raises(ValueError, match="rows = 62 is not outer . inner, with inner = 3"):
        bind(ANY_AXIS, 62, 33, inner=3)
    with pytest.raises(ValueError, match="columns follow each other: inner = 1, not 31"):
        bind(FUSED, 62, 33, inner=31)
