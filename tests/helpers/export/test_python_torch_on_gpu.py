"""The exported PyTorch file where it belongs, on a GPU: large shapes, graphs, streams, threads,
and compilers. All else is tested in test_python_torch.py."""

import threading
from pathlib import Path

import pytest

from tests.helpers.export.conftest import Place
from tests.helpers.export.exported_file import imported
from tests.helpers.export.test_python_torch import (
    DTYPES,
    arguments,
    block,
    is_softmax,
    same,
)

pytestmark = pytest.mark.gpu

# Every kernel of the ranking is met: rows of one column to a million, whole packs and odd lengths.
SHAPES = (
    *((1, 1), (3, 7), (129, 31), (257, 64), (65536, 77), (33, 1000), (5, 1023), (4096, 512)),
    *((64, 4096), (100, 8192), (3, 12673), (8, 50257), (2, 65536), (200, 65536), (17, 262144)),
    *((1, 2**20), (3, 2**20), (18, 2**20), (1, 2**20 + 1), (30, 151936), (2, 1500001)),
)
FEW_ROWS = ((1, 2**20), (1, 2**20 + 3), (3, 2**19))  # whose kernels have a workspace


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_is_right(shape: tuple, dtype: str, gpu: Place) -> None:
    same(gpu, gpu.values(*shape, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [5, 100, 1000, 4097, 20000, 2**19 + 1])
def test_infinities_and_nan(cols: int, dtype: str, gpu: Place) -> None:
    torch, fast = gpu.torch, gpu.module
    x = gpu.values(6, cols, dtype=dtype)
    x[0, 1:] = -torch.inf
    x[1] = -torch.inf
    x[2, cols // 2] = torch.nan
    x[3, -1] = torch.inf
    x[4, ::2] = -torch.inf
    is_softmax(gpu, fast.softmax(x), x)


def test_any_dimension_of_much(gpu: Place) -> None:
    for shape in ((64, 256, 3136), (8, 21, 512, 512), (2**15, 77, 3)):
        same(gpu, gpu.values(*shape, dtype="bfloat16"), 1)


def test_what_is_on_another_gpu_is_refused_by_pytorch(gpu: Place) -> None:
    """No kernel reads what another GPU's stream may still write."""
    if gpu.torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    with pytest.raises(RuntimeError):
        gpu.module.scaled_masked_softmax(gpu.values(4, 512), gpu.mask(4, 512).to("cuda:1"))


# ---- graphs, streams, threads --------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(64, 4096), (64, 77), *FEW_ROWS])
def test_a_graph_computes_what_its_input_holds(shape: tuple, gpu: Place) -> None:
    torch, fast = gpu.torch, gpu.module
    x = gpu.values(*shape)
    fast.softmax(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fast.softmax(x)
        again = fast.softmax(y)
    for seed in range(3):
        x.copy_(gpu.values(*shape, scale=1 + seed))
        graph.replay()
        is_softmax(gpu, y, x)
        is_softmax(gpu, again, y)


def test_the_first_call_of_all_may_be_captured(gpu: Place, tmp_path: Path) -> None:
    torch = gpu.torch
    module = imported("torch", "first_call", tmp_path)
    x = gpu.values(*FEW_ROWS[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = module.softmax(x)
    graph.replay()
    is_softmax(gpu, y, x)


def test_graphs_and_streams_do_not_mix(gpu: Place) -> None:
    """Kernels with workspaces, on two streams and in a graph, all at once."""
    torch, fast = gpu.torch, gpu.module
    shape = FEW_ROWS[1]
    inputs = [gpu.values(*shape, scale=scale) for scale in (1.0, 2.0, 3.0)]
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


def test_threads_may_call_at_once(gpu: Place) -> None:
    torch, fast = gpu.torch, gpu.module
    inputs = [gpu.values(64, 4096, scale=1.0 + n) for n in range(4)]
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


# ---- compilers and training ----------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"mode": "reduce-overhead"}])
def test_it_compiles_with_its_gradients_without_a_break(options: dict, gpu: Place) -> None:
    torch, fast = gpu.torch, gpu.module
    torch._dynamo.reset()
    compiled = torch.compile(block(fast), fullgraph=True, **options)
    for rows in (40, 41):
        given = arguments(gpu, rows)
        wanted = torch.autograd.grad(block(fast)(*given), (given[0], given[2]))
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            found = torch.autograd.grad(compiled(*given), (given[0], given[2]))
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_dropout_compiles_and_is_refused_in_a_graph(gpu: Place) -> None:
    torch, fast = gpu.torch, gpu.module
    torch._dynamo.reset()
    x = gpu.values(40, 1024).requires_grad_()

    def drop(x):
        return fast.scaled_masked_softmax(x, scale=0.5, dropout_p=0.3)

    for options in ({}, {"mode": "reduce-overhead"}):
        compiled = torch.compile(drop, fullgraph=True, **options)
        first, second = compiled(x).clone(), compiled(x).clone()
        assert not torch.equal(first, second), "each call draws anew"
        (dx,) = torch.autograd.grad(compiled(x).sum(), x)
        assert dx.isfinite().all()
    drop(x.detach())
    with pytest.raises(RuntimeError, match="same elements at each replay"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            drop(x.detach())


def test_a_step_of_training_is_captured_in_a_graph(gpu: Place) -> None:
    torch, fast = gpu.torch, gpu.module
    x, mask, logits, target = given = arguments(gpu, 40)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # as PyTorch's notes on CUDA graphs warm up
        for _ in range(2):
            torch.autograd.grad(block(fast)(*given), (x, logits))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = torch.autograd.grad(block(fast)(*given), (x, logits))
    with torch.no_grad():
        x.mul_(0.5), logits.mul_(0.5)
    graph.replay()
    wanted = torch.autograd.grad(block(fast)(*given), (x, logits))
    torch.testing.assert_close(captured, wanted, rtol=1e-5, atol=1e-6)
