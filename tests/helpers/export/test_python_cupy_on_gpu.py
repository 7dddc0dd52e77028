"""What is around softmax in the exported CuPy file, on a GPU with CuPy as installed."""

from types import ModuleType

import numpy as np
import pytest

from helpers.check import check_outputs, check_softmax
from helpers.operations import (
    BACKWARD,
    CROSS_ENTROPY,
    CROSS_ENTROPY_BACKWARD,
    SOFTMAX,
    Operation,
    Sizes,
)
from helpers.references import make_inputs
from tests.helpers.export.test_python_on_gpu import imported

pytestmark = pytest.mark.gpu

DTYPES = ("float32", "float16")  # CuPy's generators and NumPy's asnumpy know no bfloat16
SHAPES = ((6, 512), (300, 4096), (7, 131072))
FUSED = {  # what the function is given -> features
    "log": ({"log": True}, {"LOG": 1}),
    "causal": ({"is_causal": True}, {"MASK": 2}),
    "mask": ({}, {"MASK": 1}),
    "bias": ({}, {"BIAS": 1}),
    "dropout": ({"dropout_p": 0.3, "seed": 2**63 + 7, "offset": 2**33 + 5}, {"DROPOUT": 1}),
}


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return imported("cupy", "cupy_family", tmp_path_factory.mktemp("cupy"))


def put(host: np.ndarray):
    import cupy

    return cupy.asarray(host)


def made(operation: Operation, rows: int, cols: int, dtype: str, features: dict) -> dict:
    """Inputs whose numbers are those that the functions are given."""
    given = make_inputs(operation, Sizes(rows, cols), dtype, features)
    if features.get("MASK") == 2:
        given |= {"mask_rows": rows, "mask_repeat": 1}
    if features.get("DROPOUT"):
        given |= {"p": np.float32(0.3), "seed": 2**63 + 7, "offset": 2**33 + 5}
    return operation.complete(given, features, Sizes(rows, cols))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axis"), [((64, 50, 56), 1), ((3, 4096, 40), 1), ((999, 7), 0)])
def test_another_axis(shape: tuple, axis: int, dtype: str, arrays) -> None:
    x = np.random.default_rng(1).normal(0, 4, shape).astype(dtype)
    y = arrays.softmax(put(x), axis).get()
    check_softmax(*(np.ascontiguousarray(np.moveaxis(a, axis, -1)) for a in (x, y)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("what", FUSED)
def test_what_comes_before_softmax_and_behind_it(what, shape, dtype: str, arrays) -> None:
    options, features = FUSED[what]
    given = made(SOFTMAX, *shape, dtype, features)
    own = {}
    if what == "mask":
        row = np.arange(shape[0]) // int(given["mask_repeat"]) % len(given["mask"])
        own = {"mask": put(given["mask"][row] != 0)}
    if what == "bias":
        own = {"bias": put(given["bias"])}
    y = arrays.scaled_masked_softmax(put(given["x"]), scale=0.37, **options, **own).get()
    check_outputs(SOFTMAX, given, {"y": y}, features)


@pytest.mark.parametrize("features", [{}, {"LOG": 1}, {"FROM_X": 1}, {"DROPOUT": 1}], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[:2])
def test_the_way_back(shape: tuple, dtype: str, features: dict, arrays) -> None:
    given = made(BACKWARD, *shape, dtype, features)
    options = {"log": bool(features.get("LOG")), "from_x": bool(features.get("FROM_X"))}
    options |= FUSED["dropout"][0] if features.get("DROPOUT") else {}
    dx = arrays.softmax_backward(put(given["y"]), put(given["dy"]), scale=0.37, **options).get()
    check_outputs(BACKWARD, given, {"dx": dx}, features)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 1003), (300, 50257), (64, 128256)])
def test_a_loss_and_its_gradient_in_place(shape: tuple, dtype: str, arrays) -> None:
    given = make_inputs(CROSS_ENTROPY, Sizes(*shape), dtype)
    options = {"ignore_index": int(given["ignore_index"]), "label_smoothing": 0.1, "z_loss": 1e-3}
    x, target = put(given["x"]), put(given["target"])
    loss, statistics = arrays.cross_entropy(x, target, **options)
    check_outputs(CROSS_ENTROPY, given, {"loss": loss.get(), "statistics": statistics.get()})
    dloss = put(np.random.default_rng(2).normal(size=shape[0]).astype(np.float32))
    dx = arrays.cross_entropy_backward(x, target, statistics, dloss, **options)
    again = arrays.cross_entropy_backward(x, target, statistics, dloss, **options, out=x)
    given |= {"statistics": statistics.get(), "dloss": dloss.get()}
    check_outputs(CROSS_ENTROPY_BACKWARD, given, {"dx": dx.get()})
    assert again is x and (x == dx).all()


def test_a_graph_computes_what_its_input_holds(arrays) -> None:
    import cupy

    x, y = cupy.ones((64, 4096), cupy.float32), cupy.empty((64, 4096), cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        stream.begin_capture()
        with pytest.raises(ValueError, match="give out"):
            arrays.log_softmax(x)
        arrays.log_softmax(x, out=y)
        graph = stream.end_capture()
        x[...] = cupy.random.default_rng(1).standard_normal(x.shape, dtype="float32")
        graph.launch(stream)
        stream.synchronize()
    given = {"x": x.get(), "scale": np.float32(1)}
    check_outputs(SOFTMAX, given, {"y": y.get()}, {"LOG": 1})
