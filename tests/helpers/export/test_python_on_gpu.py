"""The exported Python files where they belong: on a GPU, with PyTorch and CuPy as installed."""

import sys
import threading
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

from helpers.check import check_softmax
from tests.helpers.export.exported_file import imported
from tests.helpers.export.exported_file import on_gpu as values

pytestmark = pytest.mark.gpu

# Every kernel of the ranking is met: rows of one column to a million, whole packs and odd lengths.
SHAPES = (
    *((1, 1), (3, 7), (129, 31), (257, 64), (65536, 77), (33, 1000), (5, 1023), (4096, 512)),
    *((64, 4096), (100, 8192), (3, 12673), (8, 50257), (2, 65536), (200, 65536), (17, 262144)),
    *((1, 2**20), (3, 2**20), (18, 2**20), (1, 2**20 + 1), (30, 151936), (2, 1500001)),
)
FEW_ROWS = ((1, 2**20), (1, 2**20 + 3), (3, 2**19))  # whose kernels have a workspace
DTYPES = ("float32", "float16", "bfloat16")


def host(tensor) -> np.ndarray:
    """A tensor as numpy has it, bfloat16 as ml_dtypes."""
    tensor = tensor.detach().contiguous().cpu()
    if str(tensor.dtype) != "torch.bfloat16":
        return tensor.numpy()
    return tensor.view(__import__("torch").int16).numpy().view(ml_dtypes.bfloat16)


def check(x, y) -> None:
    assert (x.shape, x.dtype, x.device) == (y.shape, y.dtype, y.device) and y.is_contiguous()
    cols = x.shape[-1]
    check_softmax(host(x).reshape(-1, cols), host(y).reshape(-1, cols))


# ---- results -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_is_right(shape: tuple, dtype: str, torch, fast) -> None:
    x = values(torch, *shape, dtype=dtype)
    check(x, fast.softmax(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [5, 64, 100, 513, 1000, 4096, 20000, 50257])
def test_rows_that_are_apart_and_start_anywhere(cols: int, dtype: str, torch, fast) -> None:
    whole = values(torch, 37, cols + 9, dtype=dtype)
    for first in (0, 1, 3, 8):
        x = whole[:, first : first + cols]
        check(x, fast.softmax(x))
    flat = values(torch, 37 * cols + 8, dtype=dtype)
    for first in (1, 2, 4, 8):
        x = flat[first : first + 37 * cols].view(37, cols)
        check(x, fast.softmax(x))


def test_any_strides_and_dimensions(torch, fast) -> None:
    deep = values(torch, 4, 6, 5, 96)
    views = (
        *(deep, deep[:, 2], deep[:, :3], deep[..., ::2], deep.transpose(1, 3), deep[1:3, 1:4]),
        *(deep.permute(2, 0, 1, 3), deep[:, :1], deep[0, 0, 0], deep[:1].expand(3, 6, 5, 96)),
        deep.to(memory_format=torch.channels_last),
    )
    for x in views:
        check(x, fast.softmax(x))
        assert torch.equal(fast.softmax(x, x.dim() - 1), fast.softmax(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [5, 100, 1000, 4097, 20000, 2**19 + 1])
def test_infinities_and_nan(cols: int, dtype: str, torch, fast) -> None:
    x = values(torch, 6, cols, dtype=dtype)
    x[0, 1:] = -torch.inf
    x[1] = -torch.inf
    x[2, cols // 2] = torch.nan
    x[3, -1] = torch.inf
    x[4, ::2] = -torch.inf
    check(x, fast.softmax(x))


def test_everything_else_gets_the_answer_of_pytorch(torch, fast) -> None:
    x = values(torch, 6, 8)
    cases = [(x.double(), 0), (x.double(), -1), (x.cpu(), -1), (x[0, 0], -1), (x[0, 0], 0)]
    cases += [(x[:0], -1), (x[:0], 0), (x[:, :0], -1), (x.to("meta"), -1)]
    for tensor, dim in cases:
        mine, theirs = fast.softmax(tensor, dim), torch.softmax(tensor, dim)
        assert (mine.shape, mine.dtype, mine.device) == (theirs.shape, theirs.dtype, theirs.device)
        assert mine.is_meta or torch.equal(mine, theirs)
    for dim in (2, -3):
        with pytest.raises(IndexError):
            fast.softmax(x, dim)
    with torch.autocast("cuda"):
        assert fast.softmax(x.half()).dtype == torch.softmax(x.half(), -1).dtype == torch.float32


def test_transforms_are_pytorchs(torch, fast) -> None:
    from torch.func import jvp, vmap

    weights = values(torch, 6, 100)
    assert torch.equal(vmap(fast.softmax)(weights), vmap(lambda x: torch.softmax(x, -1))(weights))
    mine, theirs = (
        jvp(f, (weights,), (weights,))[1] for f in (fast.softmax, lambda x: torch.softmax(x, -1))
    )
    assert torch.equal(mine, theirs)


def test_samples_of_pytorchs_own_tests(torch, fast) -> None:
    methods = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    (info,) = (op for op in methods.op_db if op.name == "softmax" and not op.variant_test_name)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        for sample in info.sample_inputs("cuda", dtype):
            given = {**dict(zip(["dim"], sample.args, strict=False)), **sample.kwargs}
            mine = fast.softmax(sample.input, given["dim"])
            torch.testing.assert_close(mine, torch.softmax(sample.input, given["dim"]))


# ---- what PyTorch makes of it ------------------------------------------------------------------


def test_two_copies_live_in_one_process(torch, fast, tmp_path) -> None:
    """Of one name, as in two packages, and the same one imported again."""
    other, x = imported("torch", "fast_softmax", tmp_path), values(torch, 6, 100)
    sys.modules["fast_softmax"] = fast
    assert other is not fast and torch.equal(other.softmax(x), fast.softmax(x))
    assert torch.equal(torch.compile(other.softmax, backend="eager")(x), fast.softmax(x))


def test_the_operator_is_sound(torch, fast) -> None:
    operator = getattr(torch.ops, fast.OPERATORS).softmax.default
    deep = values(torch, 4, 6, 96)
    for x in (deep, deep.bfloat16(), deep[:, :3], deep.transpose(0, 1), deep[..., 1:], deep[:0]):
        torch.library.opcheck(operator, (x, -1))
        torch.library.opcheck(operator, (x.clone().requires_grad_(), 0))


def test_it_compiles_without_a_break(torch, fast) -> None:
    def steps(x):
        return fast.softmax(x * 2) + 1

    for options in ({}, {"dynamic": True}, {"mode": "reduce-overhead"}):
        compiled = torch.compile(steps, fullgraph=True, **options)
        for rows in (40, 41, 42):
            x = values(torch, rows, 1000)
            for _ in range(3):
                torch.testing.assert_close(compiled(x), steps(x))
    x = values(torch, *FEW_ROWS[1])
    compiled = torch.compile(steps, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        torch.testing.assert_close(compiled(x), steps(x))


@pytest.mark.parametrize("shape", [(64, 4096), (64, 77), *FEW_ROWS])
def test_a_graph_computes_what_its_input_holds(shape: tuple, torch, fast) -> None:
    x = values(torch, *shape)
    fast.softmax(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fast.softmax(x)
        again = fast.softmax(y)
    for seed in range(3):
        x.copy_(values(torch, *shape, scale=1 + seed))
        graph.replay()
        check(x, y)
        check(y, again)


def test_the_first_call_of_all_may_be_captured(torch, tmp_path) -> None:
    module = imported("torch", "first_call", tmp_path)
    x = values(torch, *FEW_ROWS[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = module.softmax(x)
    graph.replay()
    check(x, y)


def test_graphs_and_streams_do_not_mix(torch, fast) -> None:
    """Kernels with workspaces, on two streams and in a graph, all at once."""
    shape = FEW_ROWS[1]
    inputs = [values(torch, *shape, scale=scale) for scale in (1.0, 2.0, 3.0)]
    wanted = [fast.softmax(x) for x in inputs]
    graph, streams = torch.cuda.CUDAGraph(), [torch.cuda.Stream() for _ in range(3)]
    with torch.cuda.graph(graph, stream=streams[0]):
        captured = fast.softmax(inputs[0])
    torch.cuda.synchronize()
    found = {1: [], 2: []}
    for _ in range(50):
        for n in found:
            with torch.cuda.stream(streams[n]):
                found[n].append(fast.softmax(inputs[n]))
        with torch.cuda.stream(streams[0]):
            graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, wanted[0])
    for n, results in found.items():
        assert all(torch.equal(y, wanted[n]) for y in results)


def test_threads_may_call_at_once(torch, fast) -> None:
    inputs = [values(torch, 64, 4096, scale=1.0 + n) for n in range(4)]
    wanted = [torch.softmax(x, -1) for x in inputs]
    torch.cuda.synchronize()
    wrong = []

    def work(n: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            results = [fast.softmax(inputs[n]) for _ in range(200)]
            torch.cuda.current_stream().synchronize()
        wrong.extend(n for y in results if not torch.allclose(y, wanted[n]))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_small_transformer_says_the_same(dtype: str, torch, fast) -> None:
    class Block(torch.nn.Module):
        def __init__(self, width: int = 256, heads: int = 4):
            super().__init__()
            self.heads, self.softmax = heads, torch.softmax
            self.qkv = torch.nn.Linear(width, 3 * width)
            self.out = torch.nn.Linear(width, width)
            self.norm = torch.nn.LayerNorm(width)

        def forward(self, x):
            batch, length, width = x.shape
            qkv = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            mixed = self.softmax(scores, -1) @ v
            return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block() for _ in range(4)), torch.nn.Linear(256, 5003))
    model = model.cuda().to(getattr(torch, dtype)).eval()
    x = values(torch, 3, 199, 256, dtype=dtype, scale=1.0)
    with torch.no_grad():
        theirs = torch.softmax(model(x), -1)
        for block in model[:-1]:
            block.softmax = fast.softmax
        mine = fast.softmax(model(x))
    rounding = {"float32": 1e-5, "bfloat16": 2**-6}[dtype]
    assert ((mine - theirs).abs() <= rounding * theirs.abs() + 1e-7).float().mean() > 0.999
    assert (mine - theirs).abs().max() <= 4 * rounding * theirs.max()


def test_a_call_costs_the_host_about_what_pytorchs_costs(torch, fast) -> None:
    """Printed; a record has the figures. The bound only catches what was forgotten in a call."""
    from torch.utils.benchmark import Timer

    names = {"x": values(torch, 4, 1000), "torch": torch, "softmax": fast.softmax}
    us = {
        statement: Timer(statement, globals=names).blocked_autorange(min_run_time=0.3).median * 1e6
        for statement in ("softmax(x)", "torch.softmax(x, -1)", "torch.empty_like(x)")
    }
    print("host, us a call:", {statement: round(time, 2) for statement, time in us.items()})
    assert us["softmax(x)"] < us["torch.softmax(x, -1)"] + 10


# ---- CuPy ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def arrays(tmp_path_factory) -> ModuleType:
    return imported("cupy", "cupy_softmax", tmp_path_factory.mktemp("cupy"))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_of_cupy_arrays_is_right(shape: tuple, dtype: str, arrays) -> None:
    import cupy

    x = cupy.random.default_rng(1).standard_normal(shape, dtype=cupy.float32).astype(dtype) * 4
    x = x.astype(dtype)
    y = arrays.softmax(x)
    check_softmax(cupy.asnumpy(x), cupy.asnumpy(y))
    room = cupy.zeros((shape[0], shape[1] + 5), dtype)
    out = room[:, 2 : 2 + shape[1]]
    assert arrays.softmax(x, out=out) is out
    check_softmax(cupy.asnumpy(x), cupy.asnumpy(out))  # of another kernel, as a rule
    assert not room[:, :2].any() and not room[:, 2 + shape[1] :].any()


def test_views_of_cupy_arrays(arrays) -> None:
    import cupy

    deep = cupy.random.default_rng(1).standard_normal((4, 6, 96), dtype=cupy.float32)
    for x in (
        deep[:, 2],
        deep[:, :3],
        deep[..., ::2],
        deep.T,
        deep[..., 3:],
        deep[::-1],
        deep[0, 0],
    ):
        check_softmax(np.ascontiguousarray(cupy.asnumpy(x)), cupy.asnumpy(arrays.softmax(x)))
    assert arrays.softmax(deep[:0]).shape == (0, 6, 96)
    for wrong in (deep.astype("float64"), cupy.asnumpy(deep)):
        with pytest.raises(TypeError):
            arrays.softmax(wrong)
    with pytest.raises(ValueError, match="out overlaps x"):
        arrays.softmax(deep, out=deep)


def test_a_graph_of_cupy_computes_what_its_input_holds(arrays) -> None:
    import cupy

    for shape in ((64, 4096), *FEW_ROWS):
        x, y = cupy.ones(shape, cupy.float32), cupy.empty(shape, cupy.float32)
        arrays.softmax(x, out=y)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.get_current_stream().synchronize()
        with stream:
            stream.begin_capture()
            with pytest.raises(ValueError, match="give out"):
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
    assert all(len(kept[handle].given.addresses) == 1 for handle in handles), "the others are freed"
