"""What is around softmax in the exported CuPy file, run as it stands over the SIMT machine: what
its functions give against fp64, and what they refuse."""

from functools import partial

import numpy as np
import pytest

from helpers.check import check_outputs
from helpers.export.asked import request
from helpers.export.python import write
from helpers.operations import BACKWARD, CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD, SOFTMAX, Sizes
from helpers.references import make_inputs
from tests.helpers.export.exported_file import DTYPES, OLD, check_noticed, values
from tests.helpers.export.stand_in_cupy import Here

SHAPE = 2, 3, 5, 256  # batch, heads, queries, keys
MASKS = (SHAPE, (5, 256), (2, 1, 1, 256), (2, 1, 5, 256), (3, 5, 256), (1, 3, 1, 256), (256,))


@pytest.fixture(scope="module")
def text() -> str:
    return write(request("best", []), "cupy")


def hidden(*shape: int) -> np.ndarray:
    """A mask that hides a third, and no row wholly."""
    mask = np.random.default_rng(2).random(shape) < 0.3
    mask[..., 0] = False
    return mask


def check(y: np.ndarray, x: np.ndarray, features: dict | None = None, **given) -> None:
    """Hold the rows of y against softmax of those of x."""
    rows = {"x": x.reshape(-1, x.shape[-1]), "scale": 1.0, **given}
    check_outputs(SOFTMAX, rows, {"y": y.reshape(rows["x"].shape)}, features or {})


# ---- scale, masks, bias, dropout -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_softmax_scale_and_a_wide_result(dtype, here: Here) -> None:
    x = values(2, 3, 512, dtype=dtype)
    check(here.module.log_softmax(here.cupy.put(x)).host, x, {"LOG": 1})
    check(here.module.log_softmax(here.cupy.put(x), 2).host, x, {"LOG": 1})
    wide = here.module.scaled_masked_softmax(here.cupy.put(x), scale=0.37, dtype="float32").host
    assert wide.dtype == np.float32
    check(wide, x, {"WIDE": int(dtype != np.float32)}, scale=np.float32(0.37))


@pytest.mark.parametrize("shape", MASKS)
def test_a_mask_is_broadcast(shape: tuple, here: Here) -> None:
    x, mask = values(*SHAPE), hidden(*shape)
    y = here.module.scaled_masked_softmax(here.cupy.put(x), here.cupy.put(mask), scale=0.5)
    of_all = np.ascontiguousarray(np.broadcast_to(mask, SHAPE)).reshape(-1, 256).view(np.uint8)
    given = {"mask": of_all, "mask_rows": len(of_all), "mask_repeat": 1, "scale": 0.5}
    check(y.host, x, {"MASK": 1}, **given)


@pytest.mark.parametrize(("rows", "repeat", "shape"), [(5, 1, (5, 256)), (2, 15, (2, 1, 1, 256))])
def test_rows_of_a_mask_that_repeat_are_not_written_out(rows, repeat, shape, here: Here) -> None:
    mask = here.cupy.put(hidden(*shape))
    here.module.scaled_masked_softmax(here.cupy.put(values(*SHAPE)), mask)
    launch = here.driver.launches[-1]
    assert (launch.mask_rows, launch.mask_repeat) == (rows, repeat)
    assert launch.mask is not None


def test_causal_hides_what_is_above_the_diagonal(here: Here) -> None:
    x = values(2, 256, 256)
    y = here.module.scaled_masked_softmax(here.cupy.put(x), is_causal=True)
    check(y.host, x, {"MASK": 2}, mask_rows=256, mask_repeat=1)
    one = here.module.scaled_masked_softmax(here.cupy.put(x[0, 0]), is_causal=True)
    assert one.host[0] == 1 and not one.host[1:].any()


@pytest.mark.parametrize("shape", [(5, 256), (3, 1, 256), (256,)])
def test_a_bias_is_added(shape: tuple, here: Here) -> None:
    x, bias = values(*SHAPE), 3 * values(*shape)
    y = here.module.scaled_masked_softmax(here.cupy.put(x), bias=here.cupy.put(bias))
    of_all = np.broadcast_to(bias, SHAPE).reshape(-1, 256)
    check(y.host, x, {"BIAS": 1}, bias=of_all, bias_rows=len(of_all))


def test_dropout_is_drawn_again_on_the_way_back(here: Here) -> None:
    x, dy = values(4, 512), values(4, 512)[::-1].copy()
    numbers = {"dropout_p": 0.3, "seed": 2**63 + 7, "offset": 2**33 + 1}
    given = {"p": np.float32(0.3), "seed": 2**63 + 7, "offset": 2**33 + 1}
    y = here.module.scaled_masked_softmax(here.cupy.put(x), **numbers).host
    check(y, x, {"DROPOUT": 1}, **given)
    kept = here.softmax(here.cupy.put(x))
    dx = here.module.softmax_backward(kept, here.cupy.put(dy), **numbers).host
    features = {"DROPOUT": 1}
    given |= {"y": kept.host, "dy": dy, "scale": 1.0}
    check_outputs(BACKWARD, given, {"dx": dx}, features)


@pytest.mark.parametrize("features", [{}, {"LOG": 1}, {"FROM_X": 1}])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_way_back(features: dict, dtype, here: Here) -> None:
    given = make_inputs(BACKWARD, Sizes(6, 520), np.dtype(dtype).name, features)
    options = {name.lower(): bool(value) for name, value in features.items()}
    y, dy = (here.cupy.put(given[name].reshape(2, 3, 520)) for name in ("y", "dy"))
    dx = here.module.softmax_backward(y, dy, scale=0.37, **options).host
    check_outputs(
        BACKWARD, given | {"scale": np.float32(0.37)}, {"dx": dx.reshape(6, 520)}, features
    )


# ---- cross-entropy -------------------------------------------------------------------------------

NUMBERS = {"ignore_index": 3, "label_smoothing": 0.1, "z_loss": 1e-3}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [1003, 2048])
def test_a_loss_and_its_gradient(cols: int, dtype, here: Here) -> None:
    given = make_inputs(CROSS_ENTROPY, Sizes(5, cols), np.dtype(dtype).name)
    x, target = here.cupy.put(given["x"]), here.cupy.put(given["target"])
    found = loss, statistics = here.module.cross_entropy(x, target, **NUMBERS)
    check_outputs(CROSS_ENTROPY, given, {"loss": loss.host, "statistics": statistics.host})
    assert (found.lse.host == statistics.host.sum(axis=-1)).all()
    dloss = here.cupy.put(values(5))
    dx = here.module.cross_entropy_backward(x, target, statistics, dloss, **NUMBERS)
    given |= {"statistics": statistics.host, "dloss": dloss.host}
    check_outputs(CROSS_ENTROPY_BACKWARD, given, {"dx": dx.host})
    again = here.module.cross_entropy_backward(x, target, statistics, dloss, **NUMBERS, out=x)
    assert again is x and (x.host == dx.host).all()


def test_a_loss_into_arrays_that_are_given(here: Here) -> None:
    given = make_inputs(CROSS_ENTROPY, Sizes(5, 77), "float32")
    x, target = here.cupy.put(given["x"]), here.cupy.put(given["target"])
    out = here.cupy.put(values(5)), here.cupy.put(values(5, 2))
    found = here.module.cross_entropy(x, target, **NUMBERS, out=out)
    assert found[0] is out[0] and found[1] is out[1]
    check_outputs(CROSS_ENTROPY, given, {"loss": out[0].host, "statistics": out[1].host})


# ---- how arrays lie ------------------------------------------------------------------------------


def test_what_does_not_follow_or_starts_between_packs_is_copied(here: Here) -> None:
    whole, mask = here.cupy.put(values(9, 600)), here.cupy.put(hidden(9, 600))
    for first in (3, 16):
        x, part = whole[:, first : first + 512], mask[:, first : first + 512]
        rows, packed = np.ascontiguousarray(x.host), np.ascontiguousarray(part.host).view(np.uint8)
        check(here.module.log_softmax(x).host, rows, {"LOG": 1})
        y = here.module.scaled_masked_softmax(x, part).host
        check(y, rows, {"MASK": 1}, mask=packed, mask_rows=9, mask_repeat=1)
    flat = here.cupy.ndarray(here.cupy.put(values(520)).host[1:513])
    check(here.module.log_softmax(flat).host, flat.host, {"LOG": 1})


@pytest.mark.parametrize("shape", [(0, 256), (5, 0), (2, 0, 3)])
def test_of_nothing_nothing_is_launched(shape: tuple, here: Here) -> None:
    x = here.cupy.put(values(*shape))
    assert here.module.log_softmax(x).shape == here.module.softmax_backward(x, x).shape == shape
    target = here.cupy.put(np.zeros(shape[:-1], np.int64))
    if target.size:
        with pytest.raises(ValueError, match="rows without columns have no loss"):
            here.module.cross_entropy(x, target)
    else:
        loss, statistics = here.module.cross_entropy(x, target)
        dx = here.module.cross_entropy_backward(x, target, statistics, loss)
        assert loss.shape == shape[:-1] and statistics.shape == (*shape[:-1], 2)
        assert dx.shape == shape
    assert not here.driver.launches


def test_wrong_use_is_refused(here: Here) -> None:
    put, fused = here.cupy.put, here.module.scaled_masked_softmax
    back = here.module.softmax_backward
    x, whole = put(values(4, 512)), put(values(9, 512))
    mask, bias = put(hidden(4, 512)), put(values(512, dtype=np.float16))
    ints = put(np.zeros((4, 512), np.int64))
    for function, given, options, error, words in (
        (fused, (values(4, 512),), {}, TypeError, "x is no CuPy array but ndarray"),
        (fused, (ints,), {}, TypeError, "not int64"),
        (fused, (x, x), {}, TypeError, "mask is no CuPy array of bool or uint8 but float32"),
        (fused, (x, put(hidden(3, 512))), {}, ValueError, "is not broadcast to"),
        (fused, (x, put(hidden(1, 4, 512))), {}, ValueError, "is not broadcast to"),
        (fused, (x, mask), {"is_causal": True}, ValueError, "takes no mask beside it"),
        (fused, (x,), {"bias": bias}, TypeError, "bias is no CuPy array of float32 but float16"),
        (fused, (x,), {"dropout_p": -0.1}, ValueError, "dropout_p = -0.1 is not 0 to 1"),
        (fused, (x,), {"dropout_p": float("nan")}, ValueError, "dropout_p = nan is not 0 to 1"),
        (fused, (x,), {"dropout_p": 0.1, "seed": 1.5}, TypeError, "float"),
        (fused, (x,), {"dropout_p": 0.1, "seed": 2**64}, ValueError, "seed = 18446744073709551616"),
        (fused, (x,), {"dropout_p": 0.1, "offset": -1}, ValueError, "offset = -1 is not 0 to 2"),
        (fused, (x,), {"dtype": "float16"}, ValueError, "the result is of float32 or float32"),
        (fused, (x,), {"out": x}, ValueError, "an output overlaps another array"),
        (fused, (x,), {"out": whole}, ValueError, r"out has shape \(9, 512\), not \(4, 512\)"),
        (fused, (x,), {"out": put(values(4, 600))[:, :512]}, ValueError, "must follow each other"),
        (fused, (x,), {"out": mask}, TypeError, "out is no CuPy array of float32 but bool"),
        (fused, (put(values(4, 77)),), {}, ValueError, "12_fused: it does not take rows = 4, cols"),
        (here.module.log_softmax, (x, 0), {}, ValueError, "axis = 0 of 2 is not the last"),
        (back, (x, whole), {}, ValueError, r"dy has shape \(9, 512\), not \(4, 512\)"),
        (back, (x, ints), {}, TypeError, "dy is no CuPy array of float32 but int64"),
        (back, (x, whole[:4]), {"out": whole[3:7]}, ValueError, "an output overlaps another"),
        (back, (x, whole[:4]), {"dropout_p": 0.1, "seed": 2**70}, ValueError, "seed = 1180591620"),
        (back, (x, whole[:4]), {"dropout_p": 2.0}, ValueError, "dropout_p = 2.0 is not 0 to 1"),
    ):
        with pytest.raises(error, match=words):
            function(*given, **options)
    assert not here.driver.launches


def test_wrong_use_of_a_loss_is_refused(here: Here) -> None:
    put, loss = here.cupy.put, here.module.cross_entropy
    back = here.module.cross_entropy_backward
    x, row, short = put(values(4, 77)), put(values(4)), put(values(3))
    two, fewer = put(values(4, 2)), put(values(3, 2))
    target, ints = put(np.zeros(4, np.int64)), put(np.zeros(4, np.int32))
    for function, given, options, error, words in (
        (loss, (x, ints), {}, TypeError, "target is no CuPy array of int64 but int32"),
        (loss, (x, put(np.zeros(3, np.int64))), {}, ValueError, r"target has shape \(3,\), not"),
        (loss, (x, target), {"label_smoothing": 1.5}, ValueError, "label_smoothing = 1.5 is not"),
        (loss, (x, target), {"out": (row, fewer)}, ValueError, r"statistics has shape \(3, 2\)"),
        (loss, (x, target), {"out": (row, row)}, ValueError, r"statistics has shape \(4,\), not"),
        (loss, (x, target), {"out": (two[2:].reshape(4), two)}, ValueError, "an output overlaps"),
        (loss, (x, target), {"out": (x[0, :4], two)}, ValueError, "an output overlaps another"),
        (back, (x, target, fewer, row), {}, ValueError, r"has shape \(3, 2\), not \(4, 2\)"),
        (back, (x, target, row, row), {}, ValueError, r"both statistics .* not their .* lse"),
        (back, (x, target, two, ints), {}, TypeError, "dloss is no CuPy array of float32 but int"),
        (back, (x[:3], target[:3], fewer, short), {"out": x[1:]}, ValueError, "output overlaps"),
    ):
        with pytest.raises(error, match=words):
            function(*given, **options)
    assert not here.driver.launches


def test_an_array_that_no_graph_would_keep_is_refused(here: Here) -> None:
    put, module = here.cupy.put, here.module
    x, out, target = put(values(4, 512)), put(values(4, 512)), put(np.zeros(4, np.int64))
    row, other, two = put(values(4)), put(values(4)), put(values(4, 2))
    part = put(values(4, 600))[:, :512]
    here.driver.capturing.add(0)
    for call in (
        lambda: module.log_softmax(x),
        lambda: module.log_softmax(part, out=out),
        lambda: module.scaled_masked_softmax(x, bias=part, out=out),
        lambda: module.softmax_backward(x, part, out=out),
        lambda: module.cross_entropy(x, target),
        lambda: module.cross_entropy(part, target, out=(row, two)),
        lambda: module.cross_entropy_backward(x, target, two, other),
        lambda: module.cross_entropy_backward(part, target, two, other, out=out),
    ):
        with pytest.raises(ValueError, match="a graph is captured, which keeps no new array alive"):
            call()
    assert not here.driver.launches
    module.log_softmax(x, out=out)
    module.scaled_masked_softmax(x, bias=put(values(1, 1, 512)).reshape((1, 512)), out=out)
    module.cross_entropy(x, target, out=(row, two))
    module.cross_entropy_backward(x, target, two, other, out=x)
    assert len(here.driver.launches) == 4


def test_an_old_gpu_has_no_fused_kernel(text: str) -> None:
    here = Here(text, OLD)
    with pytest.raises(ValueError, match="12_fused: it needs sm_90, the GPU is sm_80"):
        here.module.log_softmax(here.cupy.put(values(4, 512)))
    x = here.cupy.put(values(4, 512))
    assert here.module.softmax_backward(x, x).shape == (4, 512)


# ---- these tests can fail ------------------------------------------------------------------------

batch = partial(test_a_mask_is_broadcast, (2, 1, 1, 256))
heads = partial(test_a_mask_is_broadcast, (1, 3, 1, 256))
added = partial(test_a_bias_is_added, (3, 1, 256))
losses = partial(test_a_loss_and_its_gradient, 1003, np.float32)
into = test_a_loss_into_arrays_that_are_given
apart = test_what_does_not_follow_or_starts_between_packs_is_copied
wrong = test_wrong_use_is_refused
wrong_loss = test_wrong_use_of_a_loss_is_refused
graph = test_an_array_that_no_graph_would_keep_is_refused
dropped = test_dropout_is_drawn_again_on_the_way_back
nothing = partial(test_of_nothing_nothing_is_launched, (5, 0))
causal = test_causal_hides_what_is_above_the_diagonal


@pytest.mark.parametrize(
    ("line", "changed", "noticed"),
    [
        ("operator.index(offset)}", "0}", dropped),
        ("operator.index(seed)", "seed", wrong),
        ("if not 0 <= value < 2**64:", "if value < 0:", wrong),
        ("if not 0 <= value < 2**64:", "if value >= 2**64:", wrong),
        ("        numbers |= drawn\n", "", dropped),
        ('"scale": float(scale)} | drawn', '"scale": float(scale)}', dropped),
        ("prod(rows[last:])", "1", batch),
        ("size if first <= n < last else 1", "1", heads),
        ("rows_of(bias.shape, x.shape, False)", "rows_of(bias.shape, x.shape, True)", added),
        ('{"mask_rows": x.shape[-2] if x.ndim > 1 else 1,', '{"mask_rows": 1,', causal),
        ("x.copy() if x.data.ptr % 16 else _contiguous(x)", "_contiguous(x)", apart),
        ("x if x.flags.c_contiguous else x.copy()", "x", apart),
        ("if target.size and not x.size:", "if False:", nothing),
        ("if not 0 <= value <= 1:", "if value < 0:", wrong),
        ("if array.shape != shape:", "if False:", wrong),
        ("if not array.flags.c_contiguous:", "if False:", wrong),
        ("if any(_overlap(out, other) for other in others):", "if False:", wrong_loss),
        ("_check_apart(out, *given[inplace:])", "pass", wrong_loss),
        ("_check_apart(loss, x, target, statistics)", "pass", wrong_loss),
        ("array.data.ptr not in kept for array in arrays", "() for _ in ()", graph),
        ("_check_kept(out, arrays, (x, target))", "pass", graph),
        ("_check_kept(out, arrays, given)\n        dx", "dx", graph),
        (
            '{"loss": loss.data.ptr, "statistics": statistics.data.ptr}',
            '{"statistics": loss.data.ptr, "loss": statistics.data.ptr}',
            losses,
        ),
        ('"dloss": arrays[3]', '"dloss": arrays[2]', losses),
        ("loss, statistics = out or (", "loss, statistics = (", into),
        ("if is_causal and mask is not None:", "if False:", wrong),
        ("len(shape) <= len(to) and all", "all", wrong),
    ],
)
def test_a_changed_line_is_noticed(line: str, changed: str, noticed, text: str) -> None:
    check_noticed(noticed, text, Here, line, changed)
