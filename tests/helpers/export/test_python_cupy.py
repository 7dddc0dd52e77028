"""The exported CuPy file: what its functions give against fp64, what they refuse, and over the SIMT
machine, how every exported Python file launches its kernels. Every test of `place` runs with a CuPy
whose arrays are NumPy's over the SIMT machine, and on a GPU with CuPy as installed."""

import threading
from types import ModuleType

import numpy as np
import pytest

from helpers.base.gpu import H200, Gpu
from helpers.export.python import write
from helpers.export.request import export_request
from helpers.problem.operations import (
    BACKWARD,
    CROSS_ENTROPY,
    CROSS_ENTROPY_BACKWARD,
    CROSS_ENTROPY_LOSS_AND_GRADIENT,
    SOFTMAX,
    Operation,
)
from helpers.problem.problem import Problem
from helpers.run.check import check_outputs, check_softmax
from helpers.run.references import make_inputs, outputs
from tests.helpers.export.exported_file import DTYPES, OLD, imported, values
from tests.helpers.export.stand_in_cupy import Here

SHAPES = ((33, 64), (7, 77), (2, 3, 1000), (5, 4096), (3, 5001), (129,), (1, 65536))
SHAPE = 2, 3, 5, 256  # batch, heads, queries, keys
MASKS = (SHAPE, (5, 256), (2, 1, 1, 256), (2, 1, 5, 256), (3, 5, 256), (1, 3, 1, 256), (256,))
NUMBERS = {"ignore_index": 3, "label_smoothing": 0.1, "z_loss": 1e-3}


@pytest.fixture(scope="module")
def text() -> str:
    return write(export_request("best", []), "cupy")


@pytest.fixture
def here(text: str) -> Here:
    """A fresh import of the file, with the package and the driver that it uses."""
    return Here(text)


class OnGpu:
    """The file with CuPy as installed, called as `Here` is."""

    def __init__(self, module: ModuleType):
        import cupy

        self.module, self.softmax, self.put, self.host = (
            module,
            module.softmax,
            cupy.asarray,
            cupy.asnumpy,
        )


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> OnGpu:
    return OnGpu(imported("cupy", "cupy_softmax", tmp_path_factory.mktemp("cupy")))


@pytest.fixture(params=["here", pytest.param("on_gpu", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest) -> Here | OnGpu:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=DTYPES, ids=[np.dtype(dtype).name for dtype in DTYPES])
def dtype(request: pytest.FixtureRequest, place: Here | OnGpu) -> np.dtype:
    dtype = np.dtype(request.param)
    if isinstance(place, OnGpu) and dtype.name == "bfloat16":
        pytest.skip("CuPy copies no bfloat16 to or from NumPy")
    return dtype


def along(axis: int, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Arrays whose last axis is that."""
    return tuple(np.ascontiguousarray(np.moveaxis(array, axis, -1)) for array in arrays)


def hidden(*shape: int) -> np.ndarray:
    """A mask that hides a third, and no row wholly."""
    mask = np.random.default_rng(2).random(shape) < 0.3
    mask[..., 0] = False
    return mask


def check(y: np.ndarray, x: np.ndarray, features: dict | None = None, **given) -> None:
    """Hold the rows of y against softmax of those of x."""
    x = x.reshape(-1, x.shape[-1])
    values = Problem(*x.shape, x.dtype, features=features or {}).complete({"x": x, **given})
    check_outputs(SOFTMAX, values, {"y": y.reshape(x.shape)}, features or {})


# ---- softmax -------------------------------------------------------------------------------------


def test_it_computes_softmax(dtype, place) -> None:
    for shape in SHAPES:
        x = values(*shape, dtype=dtype)
        check_softmax(x, place.host(place.softmax(place.put(x))))


@pytest.mark.parametrize(
    ("step", "shape"),
    [("07_warp", (9, 64)), ("08_cluster", (2, 3, 65536)), ("09_grid", (1, 65536))],
)
def test_a_file_of_one_kernel_computes_softmax(step: str, shape: tuple) -> None:
    here, x = Here(write(export_request(step, []), "cupy")), values(*shape)
    check_softmax(x, here.softmax(here.put(x)).host)
    with pytest.raises(ValueError, match="takes the last axis, got axis = 0"):
        here.softmax(here.put(values(4, 9)), 0)
    with pytest.raises(ValueError, match="does not accept rows = 4, cols = 7"):
        here.softmax(here.put(values(4, 7000001)))
    assert len(here.driver.launches) == 1


def test_rows_may_be_apart_and_start_anywhere(place) -> None:
    x = place.put(values(9, 600))[:, 3:504]
    check_softmax(place.host(x), place.host(place.softmax(x)))
    out = place.put(values(9, 700))
    around = place.host(out).copy()
    place.softmax(x, out=out[:, 1:502])
    found = place.host(out)
    check_softmax(place.host(x), found[:, 1:502])
    around[:, 1:502] = found[:, 1:502]
    assert (found == around).all(), "what is between the rows is left alone"
    whole, room = place.put(values(256)), place.put(values(256))
    for first, start in ((0, 0), (1, 0), (0, 1), (1, 2), (2, 2)):  # places are part of what is kept
        x, out = whole[first : first + 192].reshape((3, 64)), room[start : start + 192]
        place.softmax(x, out=out.reshape((3, 64)))
        check_softmax(place.host(x), place.host(out).reshape(3, 64))


def test_other_strides_are_copied_first(place) -> None:
    x, deep, whole = (place.put(values(*shape)) for shape in ((40, 9), (4, 6, 40), (8, 20, 24)))
    views = [x.transpose(1, 0), x[:, ::2], deep[:, :3], deep.transpose(1, 0, 2), deep[::-1]]
    for view in (*views, deep[:, :1]):
        check_softmax(*along(-1, place.host(view), place.host(place.softmax(view))))
    flat = place.put(values(200))[1:181].reshape((5, 12, 3))  # starts between two packs
    for view in (whole[:, :16], whole.transpose(1, 0, 2)[1:], whole[1:, 0, 2:3][:, :, None], flat):
        check_softmax(*along(1, place.host(view), place.host(place.softmax(view, 1))))
    with pytest.raises(ValueError, match="out must have contiguous rows, got strides"):
        place.softmax(place.put(values(5, 12, 3)), 1, flat)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((4, 33, 40), 1), ((4, 33, 40), -3), ((70, 9), 0), ((6, 1), 0), ((5, 1, 3), 1)],
)
def test_another_axis_is_taken(shape: tuple, axis: int, place) -> None:
    x, out = values(*shape), place.put(values(*shape))
    assert place.softmax(place.put(x), axis, out) is out
    check_softmax(*along(axis, x, place.host(out)))


@pytest.mark.parametrize("shape", [(0, 256), (5, 0), (2, 0, 3)])
def test_of_nothing_nothing_is_launched(shape: tuple, here: Here) -> None:
    x, module = here.put(values(*shape)), here.module
    for y in (here.softmax(x), module.log_softmax(x), module.softmax_backward(x, x)):
        assert y.shape == shape
    target = here.put(np.zeros(shape[:-1], np.int64))
    if target.size:
        with pytest.raises(ValueError, match="rows without columns have no loss"):
            module.cross_entropy(x, target)
    else:
        loss, statistics = module.cross_entropy(x, target)
        dx = module.cross_entropy_backward(x, target, statistics, loss)
        assert loss.shape == shape[:-1] and statistics.shape == (*shape[:-1], 2)
        assert dx.shape == shape
    assert not here.driver.launches


# ---- scale, masks, bias, dropout, gradients ------------------------------------------------------


FUNCTIONS = {
    SOFTMAX: "scaled_masked_softmax",
    BACKWARD: "softmax_backward",
    CROSS_ENTROPY: "cross_entropy",
    CROSS_ENTROPY_BACKWARD: "cross_entropy_backward",
    CROSS_ENTROPY_LOSS_AND_GRADIENT: "cross_entropy_with_gradient",
}
# What the functions call numbers and features of kernels.
KEYWORDS = {"p": "dropout_p", "smoothing": "label_smoothing"}
FLAGS = {"LOG": "log", "FROM_X": "from_x", "ZERO": "zero_masked_rows"}


@pytest.mark.parametrize(
    ("operation", "cols", "features"),
    [
        (SOFTMAX, 1032, {"LOG": 1, "BIAS": 1}),
        (SOFTMAX, 1032, {"MASK": 1, "ZERO": 1, "WIDE": 1}),
        (SOFTMAX, 1032, {"MASK": 2, "DROPOUT": 1}),
        (BACKWARD, 1003, {}),
        (BACKWARD, 1003, {"LOG": 1}),
        (BACKWARD, 1032, {"FROM_X": 1, "MASK": 1}),
        (BACKWARD, 1032, {"MASK": 2, "DROPOUT": 1}),
        (BACKWARD, 1032, {"MASK": 1}),
        (BACKWARD, 1032, {"FROM_X": 1, "MASK": 2}),
        *((operation, cols, {}) for operation in [*FUNCTIONS][2:] for cols in (1003, 2048)),
    ],
    ids=str,
)
def test_a_function_computes_its_operation(
    operation: Operation, cols: int, features: dict, dtype: np.dtype, place: Here | OnGpu
) -> None:
    """Dropout draws the same elements again for the gradient: both are held against a reference."""
    features = features | ({"WIDE": 0} if dtype == np.float32 else {})
    features = {name: value for name, value in features.items() if name in operation.features}
    problem = Problem(4, cols, dtype, operation=operation, features=features)
    given = make_inputs(problem)
    if "diagonal" in given:
        given["mask_rows"] = np.int32(4)  # the queries of a matrix
    arguments = {
        KEYWORDS.get(name, name): place.put(value) if np.ndim(value) else value.item()
        for name, value in given.items()
        if not name.endswith(("_rows", "_repeat", "_group"))  # which follow from shapes
    }
    arguments |= {FLAGS[name]: bool(value) for name, value in features.items() if name in FLAGS}
    arguments |= {"is_causal": True} if "diagonal" in given else {}
    arguments |= {"dtype": "float32"} if operation is SOFTMAX and "WIDE" in features else {}
    out = tuple(map(place.put, outputs(problem, given).values()))
    for more in ({}, {"out": out if len(out) > 1 else out[0]}):
        found = getattr(place.module, FUNCTIONS[operation])(**arguments, **more)
        found = map(place.host, found if isinstance(found, tuple) else (found,))
        written = dict(zip(outputs(problem, given), found, strict=True))
        check_outputs(operation, given, written, features)


def test_a_gradient_may_take_the_place_of_the_logits(place) -> None:
    given, module = make_inputs(Problem(5, 1003, operation=CROSS_ENTROPY)), place.module
    x, target, dloss = place.put(given["x"]), place.put(given["target"]), place.put(values(5))
    losses = module.cross_entropy(x, target, **NUMBERS)
    statistics = losses.statistics
    assert (place.host(losses.lse) == place.host(statistics).sum(axis=-1)).all()
    wanted = place.host(module.cross_entropy_backward(x, target, statistics, dloss, **NUMBERS))
    with pytest.raises(ValueError, match="overlap"):
        module.cross_entropy_with_gradient(x, target, dloss, out=(dloss, x))
    again = place.put(given["x"])
    out = place.put(values(5)), again
    _, dx = module.cross_entropy_with_gradient(again, target, dloss, **NUMBERS, out=out)
    assert dx is again
    assert np.allclose(place.host(dx), wanted, rtol=1e-4, atol=1e-7)
    again = module.cross_entropy_backward(x, target, statistics, dloss, **NUMBERS, out=x)
    assert again is x and (place.host(x) == wanted).all()


@pytest.mark.parametrize("shape", MASKS)
def test_a_mask_and_a_bias_are_broadcast_but_not_written_out(shape: tuple, place) -> None:
    x, mask, bias = values(*SHAPE), hidden(*shape), 3 * values(*shape)
    given, fused = (place.put(mask), place.put(bias)), place.module.scaled_masked_softmax
    y = fused(place.put(x), given[0], bias=given[1], scale=0.5)
    mask, bias = (np.broadcast_to(array, SHAPE).reshape(-1, 256) for array in (mask, bias))
    of = {"mask": mask.view(np.uint8), "bias": bias, "scale": 0.5}
    check(place.host(y), x, {"MASK": 1, "BIAS": 1}, **of)
    if isinstance(place, Here):
        launch = place.driver.launches[-1]
        assert (launch.mask, launch.bias) == tuple(array.data.ptr for array in given)


def test_causal_hides_what_is_above_the_diagonal(place) -> None:
    x = values(2, 256, 256)
    y = place.module.scaled_masked_softmax(place.put(x), is_causal=True)
    check(place.host(y), x, {"MASK": 2})
    y = place.module.scaled_masked_softmax(place.put(x[0]), is_causal=True)
    check(place.host(y), x[0], {"MASK": 2})
    for diagonal in (253, -1):  # three queries, of which the last sees all, or the first nothing
        given = {"is_causal": True, "diagonal": diagonal, "zero_masked_rows": True}
        y = place.module.scaled_masked_softmax(place.put(x[:, :3]), **given)
        of = {"mask_rows": 3, "diagonal": diagonal}
        check(place.host(y), x[:, :3], {"MASK": 2, "ZERO": 1}, **of)
    one = place.host(place.module.scaled_masked_softmax(place.put(x[0, 0]), is_causal=True))
    assert one[0] == 1 and not one[1:].any()
    y = place.module.scaled_masked_softmax(place.put(x[0]), is_causal=True, diagonal=2**70)
    check(place.host(y), x[0], {})


def test_what_does_not_follow_or_starts_between_packs_is_copied(place) -> None:
    whole, mask = place.put(values(9, 600)), place.put(hidden(9, 600))
    for first in (3, 16):
        x, part = whole[:, first : first + 512], mask[:, first : first + 512]
        rows = np.ascontiguousarray(place.host(x))
        packed = np.ascontiguousarray(place.host(part)).view(np.uint8)
        check(place.host(place.module.log_softmax(x)), rows, {"LOG": 1})
        y = place.host(place.module.scaled_masked_softmax(x, part))
        check(y, rows, {"MASK": 1}, mask=packed)
    flat, deep = place.put(values(520))[1:513], place.put(values(2, 3, 512))
    check(place.host(place.module.log_softmax(flat)), place.host(flat), {"LOG": 1})
    check(place.host(place.module.log_softmax(deep, 2)), place.host(deep), {"LOG": 1})


# ---- what is refused -----------------------------------------------------------------------------


def test_wrong_use_is_refused(here: Here) -> None:
    put, soft, module = here.put, here.softmax, here.module
    fused, back = module.scaled_masked_softmax, module.softmax_backward
    x, whole, small = put(values(4, 512)), put(values(9, 512)), put(values(4, 64))
    mask, half = put(hidden(4, 512)), put(values(512, dtype=np.float16))
    ints, apart = put(np.zeros((4, 512), np.int64)), put(values(4, 600))[:, :512]
    turned = put(values(64, 4)).transpose(1, 0)
    for words, call in (
        ("got float64", lambda: soft(put(values(4, 4, dtype=np.float64)))),
        ("axis = 2 is out of range for 2", lambda: soft(small, 2)),
        ("axis = -3 is out of range for 2", lambda: soft(small, -3)),
        ("x must have at least one dim", lambda: soft(put(np.array(1, np.float32)))),
        ("an output must not overlap", lambda: soft(small, -1, small)),
        ("an output must not overlap", lambda: soft(whole[:4], -1, whole[3:7])),
        (r"out must have shape \(4, 64\), got \(4, 512\)", lambda: soft(small, -1, x)),
        ("out must be a CuPy array of float32, got bool", lambda: soft(x, -1, mask)),
        ("have contiguous rows, got strides", lambda: soft(small, -1, turned)),
        ("x must be a CuPy array, got ndarray", lambda: fused(values(4, 512))),
        ("got int64", lambda: fused(ints)),
        ("mask must be a CuPy array of bool or uint8, got fl", lambda: fused(x, x)),
        ("cannot be broadcast to", lambda: fused(x, put(hidden(3, 512)))),
        ("cannot be broadcast to", lambda: fused(x, put(hidden(1, 4, 512)))),
        ("exclude each other", lambda: fused(x, mask, is_causal=True)),
        ("exclude each other", lambda: back(x, x, mask, is_causal=True)),
        ("exclude each other", lambda: fused(x, log=True, zero_masked_rows=True)),
        ("float", lambda: fused(x, is_causal=True, diagonal=0.5)),
        ("diagonal must be 0 without is_causal=True", lambda: fused(x, diagonal=1)),
        ("diagonal must be 0 without", lambda: back(x, x, mask, diagonal=-1)),
        ("bias must be a CuPy array of float32, got float16", lambda: fused(x, bias=half)),
        ("dropout_p must be 0 to 1, got -0.1", lambda: fused(x, dropout_p=-0.1)),
        ("dropout_p must be 0 to 1, got nan", lambda: fused(x, dropout_p=float("nan"))),
        ("float", lambda: fused(x, dropout_p=0.1, seed=1.5)),
        ("seed must be .*, got 18446744073", lambda: fused(x, dropout_p=0.1, seed=2**64)),
        ("offset must be 0 to 2.*, got -1", lambda: fused(x, dropout_p=0.1, offset=-1)),
        ("dtype must be float32 or that of x", lambda: fused(x, dtype="float16")),
        ("an output must not overlap another", lambda: fused(x, out=x)),
        (r"out must have shape \(4, 512\), got \(9, 512\)", lambda: fused(x, out=whole)),
        ("out must be contiguous", lambda: fused(x, out=apart)),
        ("out must be a CuPy array of float32, got bool", lambda: fused(x, out=mask)),
        ("12_fused: does not accept rows = 4, cols", lambda: fused(put(values(4, 77)))),
        ("only the last of 2 axes, got axis = 0", lambda: module.log_softmax(x, 0)),
        (r"dy must have shape \(4, 512\), got \(9, 512\)", lambda: back(x, whole)),
        ("dy must be a CuPy array of float32, got int64", lambda: back(x, ints)),
        ("an output must not overlap", lambda: back(x, whole[:4], out=whole[3:7])),
        ("seed must be .*, got 1180591620", lambda: back(x, x, dropout_p=0.1, seed=2**70)),
        ("dropout_p must be 0 to 1, got 2.0", lambda: back(x, x, dropout_p=2.0)),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            call()
    assert not here.driver.launches


def test_wrong_use_of_a_loss_is_refused(here: Here) -> None:
    put, loss, back = here.put, here.module.cross_entropy, here.module.cross_entropy_backward
    x, row, short = put(values(4, 77)), put(values(4)), put(values(3))
    two, fewer = put(values(4, 2)), put(values(3, 2))
    target, ints = put(np.zeros(4, np.int64)), put(np.zeros(4, np.int32))
    for words, call in (
        ("target must be a CuPy array of int64, got int32", lambda: loss(x, ints)),
        (r"target must .*, got \(3,\)", lambda: loss(x, target[:3])),
        ("label_smoothing must be 0 to 1", lambda: loss(x, target, label_smoothing=1.5)),
        (r"statistics must .*, got \(3, 2\)", lambda: loss(x, target, out=(row, fewer))),
        (r"statistics must .*, got \(4,\)", lambda: loss(x, target, out=(row, row))),
        ("output must not", lambda: loss(x, target, out=(two[2:].reshape(4), two))),
        ("output must not overlap", lambda: loss(x, target, out=(x[0, :4], two))),
        (r"must have shape \(4, 2\), got \(3, 2\)", lambda: back(x, target, fewer, row)),
        ("both statistics .* not their .* lse", lambda: back(x, target, row, row)),
        ("dloss must be a CuPy array of float32, got int", lambda: back(x, target, two, ints)),
        ("output must not", lambda: back(x[:3], target[:3], fewer, short, out=x[1:])),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            call()
    assert not here.driver.launches


def test_an_array_that_no_graph_would_keep_is_refused(here: Here) -> None:
    put, module = here.put, here.module
    x, out, target = put(values(4, 512)), put(values(4, 512)), put(np.zeros(4, np.int64))
    row, other, two = put(values(4)), put(values(4)), put(values(4, 2))
    part = put(values(4, 600))[:, :512]
    here.driver.capturing.add(0)
    for call in (
        lambda: here.softmax(x),
        lambda: here.softmax(put(values(4, 80))[:, ::2], out=put(values(4, 40))),
        lambda: module.log_softmax(x),
        lambda: module.log_softmax(part, out=out),
        lambda: module.scaled_masked_softmax(x, bias=part, out=out),
        lambda: module.softmax_backward(x, part, out=out),
        lambda: module.cross_entropy(x, target),
        lambda: module.cross_entropy(part, target, out=(row, two)),
        lambda: module.cross_entropy_backward(x, target, two, other),
        lambda: module.cross_entropy_backward(part, target, two, other, out=out),
    ):
        with pytest.raises(ValueError, match="a captured graph does not keep new arrays alive"):
            call()
    assert not here.driver.launches
    here.softmax(x[:, :40], out=out[:, :40])
    module.log_softmax(x, out=out)
    module.scaled_masked_softmax(x, bias=put(values(1, 1, 512)).reshape((1, 512)), out=out)
    module.cross_entropy(x, target, out=(row, two))
    module.cross_entropy_backward(x, target, two, other, out=x)
    assert len(here.driver.launches) == 5


def test_an_old_gpu_has_no_fused_kernel(text: str) -> None:
    here = Here(text, OLD)
    with pytest.raises(ValueError, match="12_fused: requires sm_90, the GPU is sm_80"):
        here.module.log_softmax(here.put(values(4, 512)))
    x = here.put(values(4, 512))
    assert here.module.softmax_backward(x, x).shape == (4, 512)


# ---- launches: what is asked of the driver ------------------------------------------------------


def test_the_current_stream_is_used(here: Here) -> None:
    x = here.put(values(4, 64))
    for here.cupy.stream.ptr in (0, 5):
        here.softmax(x)
    assert [launch.stream for launch in here.driver.launches] == [0, 5]


def test_a_launch_is_made_once(here: Here) -> None:
    x = here.put(values(4, 64))
    here.softmax(x)
    here.driver.calls.clear()
    here.softmax(x)
    assert here.driver.calls == {}, "the launch itself is bound already"
    assert len(here.driver.launches) == 2
    here.softmax(here.put(values(5, 64)))
    assert here.driver.calls["cuModuleLoadData"] == 0, "the same macros, so the same kernel"
    kept = here.module.device(0)._launches.cache_info()
    assert (kept.currsize, kept.maxsize) == (2, 4096), "shapes that keep changing fill no memory"
    here.softmax(here.put(values(9, 600))[:, 3:504])
    assert here.driver.launches[-1].x_stride == 600, "rows that are apart are not copied"


# ---- workspaces: rows that blocks anywhere on the GPU share ------------------------------------


def workspaces(here: Here) -> list[int]:
    """The address of each launch's workspace."""
    return [launch.workspace for launch in here.driver.launches]


def test_each_stream_has_a_workspace_of_its_own_for_each_size(text: str) -> None:
    here, x = Here(text, OLD), values(9, 40001)
    one, many = here.put(x[:1]), here.put(x)
    for stream in (0, 0, 7, 0, 7):
        here.cupy.stream.ptr = stream
        check_softmax(x[:1], here.softmax(one).host)
    first, again, other, third, fourth = workspaces(here)
    assert first == again == third != other == fourth
    assert all(launch.cooperative for launch in here.driver.launches)
    here.driver.calls.clear()
    here.softmax(one)
    assert here.driver.calls == {}, "questions and launch are bound already"
    for array in (many, one):
        check_softmax(array.host, here.softmax(array).host)
    *_, larger, smaller = workspaces(here)
    assert larger != other == smaller, "another thread may be about to launch with it"


@pytest.mark.parametrize(("shape", "axis"), [((1, 40001), 1), ((40000, 2), 0)])
def test_a_captured_call_gets_a_workspace_of_its_own(
    shape: tuple[int, int], axis: int, text: str
) -> None:
    here, x = Here(text, OLD), values(*shape)
    array, out = here.put(x), here.put(x)
    here.driver.capturing.add(0)  # the first call of all: it compiles and loads too
    here.softmax(array, axis, out=out)
    here.softmax(array, axis, out=out)
    here.driver.capturing.clear()
    here.softmax(array, axis, out=out)
    check_softmax(np.moveaxis(x, axis, 1), np.moveaxis(out.host, axis, 1))
    assert len({*workspaces(here)}) == 3


@pytest.mark.parametrize(("shape", "gpu"), [((4, 64), H200), ((1, 40001), OLD)])
def test_a_thread_that_never_used_the_gpu_may_call(shape: tuple, gpu: Gpu, text: str) -> None:
    here, x = Here(text, gpu), values(*shape)
    array, found = here.put(x), []
    here.softmax(array)
    thread = threading.Thread(target=lambda: found.append(here.softmax(array)))
    thread.start()
    thread.join()
    check_softmax(x, found[0].host)
    assert here.driver.calls["cuCtxSetCurrent"] == 2, "one for each thread"


def test_per_thread_streams_share_a_handle_but_no_workspace(text: str) -> None:
    here = Here(text, OLD)
    here.cupy.stream.ptr = 2
    array = here.put(values(1, 40001))
    here.softmax(array)
    thread = threading.Thread(target=here.softmax, args=(array,))
    thread.start()
    thread.join()
    here.softmax(array)
    first, other, again = workspaces(here)
    assert first == again != other
    assert {first, other} < {*here.driver.memory}


def test_a_later_stream_of_the_same_handle_gets_a_workspace_of_its_own(text: str) -> None:
    """Kernels of the former may still run, or have left something when they were aborted."""
    here = Here(text, OLD)
    here.cupy.stream.ptr = 7
    arrays = [here.put(values(rows, 40001)) for rows in (1, 9)]
    for array in arrays:
        here.softmax(array)
    here.driver.destroyed[7] += 1
    for array in arrays:
        check_softmax(array.host, here.softmax(array).host)
    assert here.driver.calls["cuMemAlloc_v2"] == 4, "nothing is handed on"
    assert here.driver.calls["cuMemFree_v2"] == 2, "nothing is kept for a stream that is gone"
