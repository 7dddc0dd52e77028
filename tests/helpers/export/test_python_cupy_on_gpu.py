"""The exported CuPy file where it belongs, on a GPU: large shapes, graphs and streams. All else is
tested in test_python_cupy.py."""

from types import ModuleType

import pytest

from helpers.run.check import check_softmax
from tests.helpers.export.exported_file import imported
from tests.helpers.export.test_python_torch_on_gpu import FEW_ROWS, SHAPES

pytestmark = pytest.mark.gpu

DTYPES = ("float32", "float16")  # CuPy's generators and NumPy's asnumpy know no bfloat16


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return imported("cupy", "cupy_softmax", tmp_path_factory.mktemp("cupy"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_of_cupy_arrays_is_right(shape: tuple, dtype: str, arrays) -> None:
    import cupy

    x = 4 * cupy.random.default_rng(1).standard_normal(shape, dtype=cupy.float32)
    x = x.astype(dtype)
    y = arrays.softmax(x)
    check_softmax(cupy.asnumpy(x), cupy.asnumpy(y))
    room = cupy.zeros((shape[0], shape[1] + 5), dtype)
    out = room[:, 2 : 2 + shape[1]]
    assert arrays.softmax(x, out=out) is out
    check_softmax(cupy.asnumpy(x), cupy.asnumpy(out))  # of another kernel, as a rule
    assert not room[:, :2].any() and not room[:, 2 + shape[1] :].any()


def test_a_graph_of_cupy_computes_what_its_input_holds(arrays) -> None:
    import cupy

    for shape in ((64, 4096), *FEW_ROWS):
        x, y = cupy.ones(shape, cupy.float32), cupy.empty(shape, cupy.float32)
        arrays.softmax(x, out=y)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.get_current_stream().synchronize()
        with stream:
            stream.begin_capture()
            with pytest.raises(ValueError, match="pass out"):
                arrays.softmax(x)
            arrays.softmax(x, out=y)
            graph = stream.end_capture()
            for scale in (1, 3):
                x[...] = scale * cupy.random.default_rng(1).standard_normal(shape, dtype="float32")
                graph.launch(stream)
                stream.synchronize()
                check_softmax(cupy.asnumpy(x), cupy.asnumpy(y))


def test_streams_that_come_and_go_do_not_mix(arrays) -> None:
    """Each is destroyed while its kernel may still run, and leaves its handle to a later one."""
    import cupy

    x = cupy.random.default_rng(1).standard_normal(FEW_ROWS[0], dtype=cupy.float32)
    assert arrays.plan(*FEW_ROWS[0]).workspace
    wanted = arrays.softmax(x)
    cupy.cuda.Device().synchronize()
    found, handles = [], set()
    for _ in range(100):
        stream = cupy.cuda.Stream(non_blocking=True)
        handles.add(stream.ptr)
        with stream:
            found.append(arrays.softmax(x))
        del stream
    cupy.cuda.Device().synchronize()
    assert all((y == wanted).all() for y in found)
    kept = arrays.device(0)._streams
    left = [len(kept[handle].workspaces) for handle in handles]
    assert left == [1] * len(handles), "the others are freed"
