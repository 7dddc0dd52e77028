"""What is around softmax in the exported PyTorch file, run as it stands over the SIMT machine: what
its functions give, and its gradients, against fp64. What PyTorch itself makes of it is tested on a
GPU, in test_python_torch_on_gpu.py."""

import ast
import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.check import check_outputs
from helpers.export.asked import request
from helpers.export.python import write
from helpers.operations import BACKWARD, CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD
from helpers.references import dropout
from tests.helpers.export.exported_file import DTYPES, check_noticed, values
from tests.helpers.export.stand_in_torch import Here

HALF = DTYPES[1]
NAME = "fast_softmax"


@pytest.fixture(scope="module")
def text() -> str:
    return write(request("best", [], NAME), "torch")


def gradient(here: Here, name: str, inputs: tuple, dy: np.ndarray, needed=(0,)) -> list:
    """The operator's output, and the gradients by its inputs as autograd would ask for them."""
    operator = here.torch.operators[here.module.OPERATORS][name]
    output = operator.run(*inputs)
    context = SimpleNamespace(marked=())
    context.save_for_backward = lambda *tensors: setattr(context, "saved_tensors", tensors)
    context.mark_non_differentiable = lambda tensor: setattr(context, "marked", (tensor,))
    context.needs_input_grad = [n in needed for n in range(len(inputs))]
    operator.keep(context, inputs, output)
    assert context.marked == (output[1:] if isinstance(output, tuple) else ())
    given = (here.put(dy), *([None] if isinstance(output, tuple) else []))
    found = operator.gradient(context, *given)
    assert len(found) == len(inputs), "one for each input"
    return [output, *(found[n] for n in needed)]


def exact(z: np.ndarray, log: bool = False) -> np.ndarray:
    z = z.astype(np.float64)
    z = z - z.max(-1, keepdims=True)
    with np.errstate(divide="ignore", over="ignore"):
        total = np.exp(z).sum(-1, keepdims=True)
        return z - np.log(total) if log else np.exp(z) / total


def exact_gradient(z: np.ndarray, dy: np.ndarray, log: bool = False) -> np.ndarray:
    """By z, of softmax of the last axis."""
    y, dy = exact(z), dy.astype(np.float64)
    return dy - y * dy.sum(-1, keepdims=True) if log else y * (dy - (y * dy).sum(-1, keepdims=True))


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    rounding = {2: 2e-2, 4: 2e-5}[found.dtype.itemsize]
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=rounding, atol=rounding / 20)


def functions(here: Here) -> list[str]:
    """Names of the kernels that were launched since it was last asked."""
    names = [launch.function for launch in here.driver.launches]
    here.driver.launches.clear()
    return names


def test_the_head_says_how_they_are_called(text: str) -> None:
    """Names and keywords as they are, and nothing public is left out."""
    tree = ast.parse(text)
    defined = {node.name: node.args for node in tree.body if isinstance(node, ast.FunctionDef)}
    said = re.findall(r"^    (\w+ = \w+\(.*)$", ast.get_docstring(tree), flags=re.MULTILINE)
    calls = {node.value.func.id: node.value for line in said for node in ast.parse(line).body}
    assert [*calls] == ["softmax", "log_softmax", "scaled_masked_softmax", "cross_entropy"]
    for name, call in calls.items():
        taken = {given.arg for given in (*defined[name].args, *defined[name].kwonlyargs)}
        assert {keyword.arg for keyword in call.keywords} <= taken


# ---- softmax and its logarithm -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_softmax_of_the_last_dimension_has_a_kernel(dtype, here: Here) -> None:
    x = values(2, 3, 512, dtype=dtype)
    for tensor in (here.put(x), here.put(values(2, 3, 520, dtype=dtype))[..., 8:]):
        y = here.module.log_softmax(tensor, -1).host
        close(y, exact(tensor.host, log=True))
    assert functions(here) == ["softmax_fused"] * 2 and not here.torch.own


def test_other_logarithms_are_pytorchs(here: Here) -> None:
    for shape, dim in (((4, 512), 0), ((4, 40), -1), ((4, 515), 1)):
        here.module.log_softmax(here.put(values(*shape)), dim)
        assert here.torch.own.pop() == ("log", dim)
    assert not here.driver.launches


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_of_the_last_dimension_has_a_kernel(dtype, log: bool, here: Here) -> None:
    x, dy = values(5, 512, dtype=dtype), values(5, 512, dtype=dtype)[::-1]
    name = "log_softmax" if log else "softmax"
    y, dx = gradient(here, name, (here.put(x), -1), dy)
    given = {"y": y.host, "dy": dy, "scale": 1.0}
    check_outputs(BACKWARD, given, {"dx": dx.host}, {"LOG": int(log)})
    assert functions(here)[1:] == ["softmax_backward"] and not here.torch.own


@pytest.mark.parametrize(("shape", "dim"), [((5, 77), -1), ((3, 16, 8), 1)])
def test_other_gradients_are_pytorchs(shape: tuple, dim: int, here: Here) -> None:
    x, dy = values(*shape), values(*shape)[::-1]
    _, dx = gradient(here, "softmax", (here.put(x), dim), dy)
    moved = exact_gradient(np.moveaxis(x, dim, -1), np.moveaxis(dy, dim, -1))
    close(dx.host, np.moveaxis(moved, -1, dim))
    assert here.torch.own == [("backward", dim)] and len(functions(here)) == 1


def test_a_second_derivative_is_refused_by_name(here: Here) -> None:
    for name in ("softmax_backward", "cross_entropy_backward"):
        with pytest.raises(NotImplementedError, match="fast_softmax has no second derivative"):
            here.torch.operators[here.module.OPERATORS][name].gradient(None, None)


# ---- scale, masks, bias --------------------------------------------------------------------------

SHAPE = 2, 3, 5, 256  # batch, heads, queries, keys
MASKS = (SHAPE, (5, 256), (2, 1, 1, 256), (2, 1, 5, 256), (3, 5, 256), (1, 3, 1, 256), (256,))


def hidden(*shape: int) -> np.ndarray:
    """A mask that hides a third, and no row wholly."""
    mask = np.random.default_rng(2).random(shape) < 0.3
    mask[..., 0] = False
    return mask


@pytest.mark.parametrize("shape", MASKS)
def test_a_mask_is_broadcast_as_pytorch_does(shape: tuple, here: Here) -> None:
    x, mask = values(*SHAPE), hidden(*shape)
    y = here.module.scaled_masked_softmax(here.put(x), here.put(mask), scale=0.5)
    close(y.host, exact(np.where(mask, -np.inf, np.float32(0.5) * x)))
    assert functions(here) == ["softmax_fused"] and not here.torch.own


@pytest.mark.parametrize(("rows", "repeat", "shape"), [(5, 1, (5, 256)), (2, 15, (2, 1, 1, 256))])
def test_rows_of_a_mask_that_repeat_are_not_written_out(rows, repeat, shape, here: Here) -> None:
    here.module.scaled_masked_softmax(here.put(values(*SHAPE)), here.put(hidden(*shape)))
    launch = here.driver.launches[-1]
    assert (launch.mask_rows, launch.mask_repeat) == (rows, repeat)


@pytest.mark.parametrize("shape", [*MASKS, (5, 1), (3, 1, 256)])
def test_a_bias_and_its_gradient(shape: tuple, here: Here) -> None:
    x, bias, dy = values(*SHAPE), values(*shape)[::-1], values(*SHAPE)[:, ::-1]
    inputs = here.put(x), None, here.put(bias), 0.5, False, False, False, 0.0, None
    y, dx, dbias = gradient(here, "scaled_masked_softmax", inputs, dy, needed=(0, 2))
    z = 0.5 * x.astype(np.float64) + bias
    close(y.host, exact(z))
    dz = exact_gradient(z, dy)
    close(dx.host, 0.5 * dz)
    axes = [n for n, size in enumerate((1,) * (4 - len(shape)) + shape) if size == 1]
    close(dbias.host, dz.sum(tuple(axes), keepdims=True).reshape(shape))
    assert functions(here) == ["softmax_fused", "softmax_backward"]


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("kind", ["mask", "causal", "both"])
def test_gradients_of_what_is_masked(kind: str, log: bool, here: Here) -> None:
    x, dy, mask = values(*SHAPE), values(*SHAPE)[:, ::-1], None
    causal = kind != "mask"
    hides = np.triu(np.ones((5, 256), bool), 1) if causal else np.zeros((5, 256), bool)
    if kind != "causal":
        mask = hidden(2, 1, 5, 256)
        hides = hides | mask
    inputs = here.put(x), None if mask is None else here.put(mask), None, 0.5, causal, log
    inputs += False, 0.0, None
    y, dx = gradient(here, "scaled_masked_softmax", inputs, dy)
    z = np.where(hides, -np.inf, 0.5 * x.astype(np.float64))
    close(y.host, exact(z, log))
    close(dx.host, np.where(hides, 0.0, 0.5 * exact_gradient(z, dy, log)))
    assert functions(here) == ["softmax_fused", "softmax_backward"] and not here.torch.own


@pytest.mark.parametrize("cols", [256, 77])  # by a kernel, and by PyTorch's own operations
@pytest.mark.parametrize("masked", [False, True])
def test_a_causal_mask_of_one_dimension_keeps_the_first_column(masked, cols, here: Here) -> None:
    x, mask = here.put(values(cols)), here.put(hidden(cols)) if masked else None
    y = here.module.scaled_masked_softmax(x, mask, is_causal=True)
    assert y.host.tolist() == [1, *[0] * (cols - 1)]
    inputs = x, mask, None, 1.0, True, True, False, 0.0, None
    _, dx = gradient(here, "scaled_masked_softmax", inputs, values(cols))
    assert dx.shape == (cols,)


def test_what_is_on_another_gpu_is_refused_by_pytorch(here: Here) -> None:
    """No kernel reads what another GPU's stream may still write."""
    x, given = here.put(values(4, 256)), losses()
    for options in ({"mask": here.put(hidden(4, 256))}, {"bias": here.put(values(4, 256))}):
        for tensor in options.values():
            tensor.device.index = 1
        here.module.scaled_masked_softmax(x, **options)
    target = here.put(given["target"])
    target.device.index = 1
    here.module.cross_entropy(here.put(given["x"]), target)
    assert here.torch.own == [-1, -1, ("cross_entropy", "mean")] and not here.torch.dispatched


def test_a_row_that_is_wholly_hidden_is_nan(here: Here) -> None:
    """The gradient of its softmax too, but that of its logarithm is 0; other rows do not notice."""
    x, dy, mask = values(4, 512), values(4, 512)[::-1], np.zeros((4, 512), bool)
    mask[2] = True
    for log in (False, True):
        inputs = here.put(x), here.put(mask), None, 1.0, False, log, False, 0.0, None
        y, dx = gradient(here, "scaled_masked_softmax", inputs, dy)
        assert np.isnan(y.host[2]).all() and (log or np.isnan(dx.host[2]).all())
        assert not log or (dx.host[2] == 0).all()
        close(dx.host[[0, 1, 3]], exact_gradient(x, dy, log)[[0, 1, 3]])


def test_float32_of_sixteen_bits(here: Here) -> None:
    x, dy = values(4, 512, dtype=HALF), values(4, 512)[::-1]
    y = here.module.scaled_masked_softmax(here.put(x), scale=0.5, dtype="float32")
    assert y.dtype == "float32"
    np.testing.assert_allclose(y.host, exact(0.5 * x.astype(np.float64)), rtol=1e-4, atol=1e-7)
    here.torch.state.autocast = True
    assert (here.module.scaled_masked_softmax(here.put(x), scale=0.5).host == y.host).all()
    inputs = here.put(x), None, None, 0.5, False, False, True, 0.0, None
    _, dx = gradient(here, "scaled_masked_softmax", inputs, dy)
    assert dx.dtype == "float16"
    close(dx.host, 0.5 * exact_gradient(0.5 * x.astype(np.float64), dy))
    assert functions(here)[-1] == "softmax_backward" and not here.torch.own


def test_a_scale_alone_is_computed(here: Here) -> None:
    x = values(4, 512)
    for dtype in (None, "float32"):
        y = here.module.scaled_masked_softmax(here.put(x), scale=0.25, dtype=dtype)
        close(y.host, exact(0.25 * x))
        assert functions(here) == ["softmax_fused"]


def test_what_no_kernel_takes_is_composed_of_pytorchs_operations(here: Here) -> None:
    x, mask, bias = values(2, 5, 77), hidden(5, 77), values(5, 77)[::-1]
    later = np.triu(np.ones((5, 77), bool), 1)
    for log in (False, True):
        given = {"bias": here.put(bias), "scale": 0.5, "is_causal": True, "log": log}
        y = here.module.scaled_masked_softmax(here.put(x), here.put(mask), **given)
        z = np.where(mask | later, -np.inf, 0.5 * x + bias)
        close(y.host, exact(z, log))
    assert here.torch.own == [-1, ("log", -1)] and not functions(here)
    assert here.torch.dispatched == ["scaled_masked_softmax"] * 2, "as the operator all the same"
    here.module.scaled_masked_softmax(here.put(x.astype(np.float64)), scale=0.5)
    assert len(here.torch.dispatched) == 2


def test_a_compiler_sees_the_operators(here: Here) -> None:
    """What tells of transforms is not to be trusted while it traces."""
    here.torch.state.dynamo, here.torch.state.transforms = True, "traced"
    given = losses()
    here.module.scaled_masked_softmax(here.put(values(5, 256)), here.put(hidden(5, 256)))
    here.module.cross_entropy(here.put(given["x"]), here.put(given["target"]))
    assert here.torch.dispatched == ["scaled_masked_softmax", "cross_entropy"]
    here.torch.state.dynamo = False
    here.module.scaled_masked_softmax(here.put(values(5, 256)), here.put(hidden(5, 256)))
    assert len(here.torch.dispatched) == 2 and here.torch.own == [-1]


def test_what_a_mask_or_a_bias_must_be(here: Here) -> None:
    x, fused = here.put(values(4, 512)), here.module.scaled_masked_softmax
    with pytest.raises(TypeError, match="mask is of bool, True where x is hidden, not float32"):
        fused(x, here.put(values(4, 512)))
    with pytest.raises(ValueError, match=r"mask of \(2, 4, 512\) is not broadcast to \(4, 512\)"):
        fused(x, here.put(hidden(2, 4, 512)))
    with pytest.raises(ValueError, match=r"bias of \(3, 512\) is not broadcast"):
        fused(x, bias=here.put(values(3, 512)))


# ---- dropout -------------------------------------------------------------------------------------


def kept(rows: int, cols: int, seed: int, p: float) -> np.ndarray:
    """What dropout of the kernels multiplies by."""
    drawn = {"p": p, "seed": seed, "offset": 0}
    return dropout(drawn, np.arange(rows), cols)


@pytest.mark.parametrize("how", ["plain", "scaled", "causal", "biased", "wide"])
def test_dropout_and_its_gradient_drop_the_same(how: str, here: Here) -> None:
    x, dy, p, seed = values(6, 512), values(6, 512)[::-1], 0.3, 2**40 + 5
    scale, causal, wide = 0.5 if how == "scaled" else 1.0, how == "causal", how == "wide"
    x, bias = x.astype(HALF) if wide else x, values(512)[::-1] * (how == "biased")
    added = here.put(bias) if how == "biased" else None
    inputs = here.put(x), None, added, scale, causal, False, wide, p, here.put(np.int64(seed))
    y, dx = gradient(here, "scaled_masked_softmax", inputs, dy)
    hides = np.triu(np.ones((6, 512), bool), 1) & causal
    z = np.where(hides, -np.inf, scale * x.astype(np.float64) + bias)
    factor = kept(6, 512, seed, p)
    close(y.host, exact(z) * factor)
    close(dx.host, scale * exact_gradient(z, dy * factor))
    again = [] if how == "plain" else ["softmax_fused"]  # y is computed anew where x is not enough
    assert functions(here) == ["softmax_fused", *again, "softmax_backward"]


@pytest.mark.parametrize(("cols", "wide"), [(40, False), (41, False), (256, True)])
def test_dropout_of_short_rows_drops_the_same_on_the_way_back(cols, wide, here: Here) -> None:
    """256 columns of 16 bits are short, those of the float32 of their softmax are not."""
    x, dy, p = values(6, cols, dtype=HALF if wide else np.float32), values(6, cols)[::-1], 0.25
    inputs = here.put(x), None, None, 1.0, False, False, wide, p, here.put(np.int64(3))
    y, dx = gradient(here, "scaled_masked_softmax", inputs, dy)
    factor = (y.host != 0) / (1 - p)
    assert 0.1 < (y.host == 0).mean() < 0.4 and "softmax_fused" not in functions(here)
    close(y.host, exact(x) * factor)
    close(dx.host, exact_gradient(x, dy * factor))


def test_dropout_of_short_rows_is_that_of_float32_whatever_the_default(here: Here) -> None:
    """Of bfloat16 there are 256 numbers, of which more or less than p are below it."""
    inputs = here.put(values(64, 41)), None, None, 1.0, False, False, False, 0.01
    run = here.torch.operators[here.module.OPERATORS]["scaled_masked_softmax"].run
    y = run(*inputs, here.put(np.int64(3))).host
    here.torch.state.dtype = "bfloat16"
    assert (run(*inputs, here.put(np.int64(3))).host == y).all() and (y == 0).any()


@pytest.mark.parametrize("made_on", ["cpu", "cuda"])  # by default: torch.set_default_device
def test_a_seed_is_drawn_for_each_call(made_on: str, here: Here) -> None:
    x = here.put(values(6, 256))
    here.torch.state.made_on = made_on
    for seed in (7, 2**61 + 1):
        here.torch.state.seed = seed
        y = here.module.scaled_masked_softmax(x, dropout_p=0.5)
        close(y.host, exact(x.host) * kept(6, 256, seed, 0.5))
    assert not here.torch.own


def test_dropout_that_no_kernel_builds_is_pytorchs(here: Here) -> None:
    x = here.put(values(6, 512))
    here.module.scaled_masked_softmax(x, dropout_p=0.5, log=True)
    assert here.torch.own.pop() == ("dropout", 0.5) and functions(here) == ["softmax_fused"]
    here.module.scaled_masked_softmax(x, dropout_p=1.0)
    assert here.torch.own[-1] == ("dropout", 1.0)


def test_dropout_in_a_graph_is_refused(here: Here) -> None:
    here.torch.state.capturing = True
    x = here.put(values(6, 256))
    with pytest.raises(RuntimeError, match="would drop the same at every replay"):
        here.module.scaled_masked_softmax(x, dropout_p=0.5)
    here.module.scaled_masked_softmax(x, scale=0.5)


# ---- cross-entropy -------------------------------------------------------------------------------


def losses(smoothing: float = 0.0, z_loss: float = 0.0, dtype=np.float32, cols: int = 301) -> dict:
    """What the operator is given, by name."""
    target = np.arange(7, dtype=np.int64) * 41
    target[3] = -100
    given = {"x": values(7, cols, dtype=dtype), "target": target}
    numbers = {"ignore_index": -100, "smoothing": smoothing, "z_loss": z_loss}
    return {**given, **numbers}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("smoothing", "z_loss"), [(0.0, 0.0), (0.1, 0.01)])
def test_cross_entropy_and_its_gradient(smoothing, z_loss, dtype, here: Here) -> None:
    given = losses(smoothing, z_loss, dtype)
    inputs = [here.put(v) if isinstance(v, np.ndarray) else v for v in given.values()]
    dloss = values(7)
    (loss, statistics), dx = gradient(here, "cross_entropy", tuple(inputs), dloss)
    check_outputs(CROSS_ENTROPY, given, {"loss": loss.host, "statistics": statistics.host})
    given |= {"statistics": statistics.host, "dloss": dloss}
    check_outputs(CROSS_ENTROPY_BACKWARD, given, {"dx": dx.host})
    assert dx.dtype == np.dtype(dtype).name
    assert functions(here) == ["cross_entropy", "cross_entropy_backward"]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_is_reduced_as_pytorchs(reduction: str, here: Here) -> None:
    given = losses()
    x, target = given["x"], given["target"]
    loss = here.module.cross_entropy(here.put(x), here.put(target), reduction=reduction)
    rows = -exact(x, log=True)[np.arange(7), target.clip(0)] * (target != -100)
    wanted = {"mean": rows.sum() / 6, "sum": rows.sum(), "none": rows}[reduction]
    close(loss.host, wanted)
    half = here.module.cross_entropy(here.put(x.astype(HALF)), here.put(target))
    assert half.dtype == "float16"
    here.torch.state.autocast = True
    assert here.module.cross_entropy(here.put(x.astype(HALF)), here.put(target)).dtype == "float32"
    with pytest.raises(ValueError, match="reduction is mean, sum or none, not 'max'"):
        here.module.cross_entropy(here.put(x), here.put(target), reduction="max")


def test_one_row_and_none(here: Here) -> None:
    x = values(300)
    loss = here.module.cross_entropy(here.put(x), here.put(np.int64(5).reshape(())))
    close(loss.host, -exact(x, log=True)[5])
    empty = here.put(values(0, 5)), here.put(np.zeros(0, np.int64))
    assert here.module.cross_entropy(*empty, reduction="none").shape == (0,)


def test_rows_without_columns_have_no_loss(here: Here) -> None:
    """No target is a class, so all are NaN but those that are ignored."""
    x, target = here.put(values(3, 0)), here.put(np.array([0, -100, 5]))
    (loss, statistics), dx = gradient(here, "cross_entropy", (x, target, -100, 0.0, 0.0), values(3))
    np.testing.assert_array_equal(loss.host, [np.nan, 0, np.nan])
    assert (statistics.host == -np.inf).all() and dx.shape == (3, 0) and not here.driver.launches


def test_smoothing_outside_0_to_1_is_pytorchs_to_refuse(here: Here) -> None:
    x, target = here.put(values(4, 77)), here.put(np.zeros(4, np.int64))
    for smoothing in (-0.1, 1.5, float("nan")):
        here.module.cross_entropy(x, target, label_smoothing=smoothing)
        assert here.torch.own.pop() == ("cross_entropy", "mean")
    assert not here.torch.dispatched
    for smoothing in (0, 1):
        here.module.cross_entropy(x, target, label_smoothing=smoothing)
    assert not here.torch.own


def test_what_is_ignored_may_be_infinite(here: Here) -> None:
    """In PyTorch's own operations too, of a dtype that has no kernel."""
    x, target = np.zeros((3, 5)), np.array([1, -100, 4])
    x[1, 2] = np.inf
    loss = here.module.cross_entropy(here.put(x), here.put(target), z_loss=0.5)
    np.testing.assert_allclose(loss.host[[0, 2]], 0.5 * np.log(5) ** 2, rtol=1e-6)
    assert here.torch.own == [("cross_entropy", "mean")]


def test_other_losses_are_pytorchs(here: Here) -> None:
    x, target = here.put(values(4, 5, 6)), here.put(np.zeros((4, 6), np.int64))
    here.module.cross_entropy(x, target, reduction="sum")  # classes in the middle
    here.module.cross_entropy(here.put(values(4, 5)), here.put(values(4, 5)))  # probabilities
    assert here.torch.own == [("cross_entropy", "sum"), ("cross_entropy", "mean")]
    here.module.cross_entropy(x, here.put(np.zeros((4, 5), np.int64)))  # refused by PyTorch
    here.module.cross_entropy(here.put(values(4, 5)), here.put(np.zeros(4, np.uint8)))
    assert len(here.torch.own) == 4
    assert not here.torch.dispatched


# ---- these tests can fail ----------------------------------------------------------------------

masked = partial(test_a_mask_is_broadcast_as_pytorch_does, (2, 1, 5, 256))
batch = partial(test_rows_of_a_mask_that_repeat_are_not_written_out, 2, 15, (2, 1, 1, 256))
queries = partial(test_rows_of_a_mask_that_repeat_are_not_written_out, 5, 1, (5, 256))
biased = partial(test_a_bias_and_its_gradient, (3, 1, 256))
logs = partial(test_gradients_of_what_is_masked, "mask", True)
causal_logs = partial(test_gradients_of_what_is_masked, "causal", True)
both = partial(test_gradients_of_what_is_masked, "both", False)
dropped = partial(test_dropout_and_its_gradient_drop_the_same, "plain")
dropped_scaled = partial(test_dropout_and_its_gradient_drop_the_same, "scaled")
short = partial(test_dropout_of_short_rows_drops_the_same_on_the_way_back, 41, False)
dropped_wide = partial(test_dropout_and_its_gradient_drop_the_same, "wide")
dropped_biased = partial(test_dropout_and_its_gradient_drop_the_same, "biased")
smooth = partial(test_cross_entropy_and_its_gradient, 0.1, 0.01, np.float32)
mean = partial(test_a_loss_is_reduced_as_pytorchs, "mean")
composed = test_what_no_kernel_takes_is_composed_of_pytorchs_operations
wide = test_float32_of_sixteen_bits
odd = partial(test_other_gradients_are_pytorchs, (5, 77), -1)


@pytest.mark.parametrize(
    ("line", "changed", "noticed"),
    [
        (
            "others = (1.0,)",
            "others = (2.0,)",
            partial(test_log_softmax_of_the_last_dimension_has_a_kernel, np.float32),
        ),
        (
            '(("LOG", 1),)',
            '(("LOG", 0),)',
            partial(test_log_softmax_of_the_last_dimension_has_a_kernel, np.float32),
        ),
        ('struct.pack("<f", value)', 'struct.pack("<f", 1.0)', dropped_scaled),
        ("first = own[0] if own else len(rows)", "first = 0", queries),
        ("if own and repeats else", "if own else", biased),
        ("own[-1] + 1 if own and repeats else len(rows)", "len(rows)", batch),
        ("prod(rows[last:])", "1", batch),
        ("mask, causal = mask | _later(x), False", "causal = False", both),
        (".triu(1)", ".triu(0)", both),
        ("if ctx.log and mask is not None:", "if False:", logs),
        (
            "if ctx.log and mask is not None:",
            "if mask is not None:",
            test_a_row_that_is_wholly_hidden_is_nan,
        ),
        ("if ctx.log and ctx.causal:", "if False:", causal_logs),
        ("if by_bias and scale != 1:", "if False:", biased),
        ("1.0 if by_bias else scale", "scale", biased),
        (".to(ctx.dtype)", "", wide),
        ("x.dtype != torch.float32 and (dtype", "(dtype", test_a_scale_alone_is_computed),
        ('or _autocast("cuda"))', ")", wide),
        (
            "from_x = mask is bias is None and not ctx.causal and not ctx.wide and scale == 1",
            "from_x = False",
            dropped,
        ),
        (
            "from_x = mask is bias is None and not ctx.causal and not ctx.wide and scale == 1",
            "from_x = True",
            dropped_scaled,
        ),
        ("mask is bias is None", "mask is None", dropped_biased),
        ("not ctx.causal and not ctx.wide", "not ctx.causal", dropped_wide),
        ("bias if ctx.p else None)", "None)", dropped_biased),
        ('"float16" if wide else DTYPES[y.dtype]', "DTYPES[y.dtype]", dropped_wide),
        ("        dy = _dropped(dy, p, seed)", "        pass", short),
        ("if p and not drops else y", "if False else y", short),
        ("y = torch.softmax(y, dim) if from_x else y", "y = y", short),
        ("_log_softmax_backward_data if log else", "_log_softmax_backward_data if True else", odd),
        ("prod(x.shape[dim:][1:])", "1", partial(test_other_gradients_are_pytorchs, (3, 16, 8), 1)),
        ('{"p": p, "seed": int(seed)}', '{"p": p, "seed": 0}', dropped),
        ("torch.cuda.is_current_stream_capturing()", "False", test_dropout_in_a_graph_is_refused),
        ('operation.removeprefix("scaled_")', "operation", test_a_scale_alone_is_computed),
        ("x if scale == 1 else x * scale", "x", composed),
        ("z if bias is None else z + bias", "z", composed),
        ("ctx.mark_non_differentiable(output[1])", "pass", smooth),
        (
            "dx.data_ptr(), ignore_index, smoothing, z_loss",
            "dx.data_ptr(), ignore_index, 0.0, z_loss",
            smooth,
        ),
        ("(target != ignore_index).sum() if", "7 if", mean),
        ("_stream(x), loss.data_ptr()", "_stream(x), statistics.data_ptr()", smooth),
        ("_compiling() or all(map", "all(map", test_a_compiler_sees_the_operators),
        ("or all(map(_is_plain, given))", "or True", test_a_compiler_sees_the_operators),
        ("other.device != x.device", "False", test_what_is_on_another_gpu_is_refused_by_pytorch),
        (
            "return hidden if x.dim() > 1 else hidden[0]",
            "return hidden",
            partial(test_a_causal_mask_of_one_dimension_keeps_the_first_column, True, 256),
        ),
        (
            ", dtype=torch.float32) >= p",
            ") >= p",
            test_dropout_of_short_rows_is_that_of_float32_whatever_the_default,
        ),
        (', device="cpu")', ")", partial(test_a_seed_is_drawn_for_each_call, "cuda")),
        (
            "loss.fill_(0).masked_fill(target != ignore_index, torch.nan)",
            "loss.fill_(0)",
            test_rows_without_columns_have_no_loss,
        ),
        (
            "and 0 <= label_smoothing <= 1",
            "",
            test_smoothing_outside_0_to_1_is_pytorchs_to_refuse,
        ),
        (
            "torch.where(target != ignore, more, 0)",
            "more * (target != ignore)",
            test_what_is_ignored_may_be_infinite,
        ),
        ("and logits.dim() <= 2", "", test_other_losses_are_pytorchs),
        ("and target.dtype == torch.int64", "", test_other_losses_are_pytorchs),
    ],
)
def test_a_changed_line_is_noticed(line: str, changed: str, noticed, text: str) -> None:
    check_noticed(noticed, text, Here, line, changed)
