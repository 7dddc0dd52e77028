"""What is around softmax in the exported PyTorch file, where it belongs: on a GPU, against fp64 of
PyTorch. `test_a_small_transformer_learns_the_same` writes its losses to $OUT/transformer.json."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.export.exported_file import on_gpu as values

pytestmark = pytest.mark.gpu

DTYPES = ("float32", "float16", "bfloat16")
ROUNDING = {"float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}
LEAST = {"float32": 0.0, "float16": 2**-25, "bfloat16": 0.0}  # half of what small numbers are apart
SHAPES = ((33, 256), (7, 1000), (5, 4096), (64, 50257), (3, 65536), (2, 3, 5, 512))
AXES = (((5, 64), 0), ((3, 100, 7), 1), ((2, 512, 33), 1), ((4, 5, 6, 50), 2), ((2, 5000, 8), -2))


def close(torch, found, wanted, dtype: str, size: float = 1.0, terms=0.0, small=0.0) -> None:
    """Within a few roundings of an element, of `size` times the largest of its row, and of the
    `terms` that it is a sum of, which may cancel; and within `small` roundings of the numbers of
    float16 below 2^-14, which are as large however small the number is."""
    assert found.shape == wanted.shape
    found, wanted = found.double(), wanted.double()
    assert torch.equal(found.isnan(), wanted.isnan())
    finite = wanted.isfinite()
    assert torch.equal(found[~finite].nan_to_num(), wanted[~finite].nan_to_num())
    found, wanted = found.where(finite, 0), wanted.where(finite, 0)
    largest = wanted.abs().amax(-1, keepdim=True) if wanted.dim() else 0
    scale = wanted.abs() + size * largest + terms
    off = (found - wanted).abs() / (16 * ROUNDING[dtype] * scale + LEAST[dtype] * small + 1e-30)
    assert off.max() <= 1, f"{float(off.max()):.3g} times what is allowed"


def check(torch, mine: Callable, theirs: Callable, dtype: str, *inputs, size: float = 1.0) -> None:
    """The result and the gradients by all inputs, against PyTorch's in fp64."""
    ours = [x.detach().clone().requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    y, z = mine(*ours), theirs(*exact)
    assert y.is_contiguous()
    close(torch, y.detach(), z.detach(), str(y.dtype).removeprefix("torch."), size)
    dy = values(torch, *y.shape, scale=1.0).to(y.dtype).where(y.isfinite(), 0)
    found = torch.autograd.grad(y, ours, dy)
    wanted = torch.autograd.grad(z, exact, dy.double())
    for by, gradient, right in zip(inputs, found, wanted, strict=True):
        assert gradient.dtype == by.dtype
        parts = summed(z.detach(), dy.double(), by.shape)
        close(torch, gradient, right, dtype, size, *parts)


def summed(z, dy, shape: tuple[int, ...]) -> tuple:
    """The terms of a gradient by x, or by what was broadcast to it, each as large as it is: y (dy -
    sum of y dy), or dy - exp(y) (sum of dy) of a logarithm. 0 for what has another shape.

    And how much of a rounding of small numbers, r, a gradient of softmax has. PyTorch rounds y,
    then y dy, then the gradient, y dy - y (sum of y dy). If y is off by r, y dy is by r (1 + |dy|),
    and the sum by as much of each column, of which the gradient has y times. With r (sum of y dy),
    and r for the gradient itself, that is r (2 + |dy| + |sum of y dy| + y sum of (1 + |dy|))."""
    if z.dim() < len(shape) or z.shape[-1] != shape[-1] and shape[-1] != 1:
        return 0.0, 0.0
    z, dy = z.nan_to_num(0.0, 0.0, 0.0), dy.abs()
    if (z < 0).any():
        terms = dy + z.exp() * (1 + z.abs()) * dy.sum(-1, keepdim=True)
        return terms.sum_to_size(shape), 0.0
    total = (z * dy).sum(-1, keepdim=True)
    small = 2 + dy + total + z * (1 + dy).sum(-1, keepdim=True)
    return (z * (dy + total)).sum_to_size(shape), small.sum_to_size(shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_and_its_gradient(shape: tuple, dtype: str, torch, fast) -> None:
    x = values(torch, *shape, dtype=dtype)
    check(torch, fast.softmax, lambda x: torch.softmax(x, -1), dtype, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_log_softmax_and_its_gradient(shape: tuple, dtype: str, torch, fast) -> None:
    x = values(torch, *shape, dtype=dtype)
    # Softmax is the exponential of a rounded logarithm: off by as much as that is large.
    check(torch, fast.log_softmax, lambda x: torch.log_softmax(x, -1), dtype, x, size=16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dim"), AXES)
def test_any_dimension_and_its_gradient(shape, dim: int, dtype: str, torch, fast) -> None:
    x = values(torch, *shape, dtype=dtype).movedim(dim, -1).contiguous()

    def along(softmax: Callable, whole: bool = True) -> Callable:
        def found(x):  # `check` knows rows
            x = x.movedim(-1, dim)
            return softmax(x.contiguous() if whole else x, dim).movedim(dim, -1).contiguous()

        return found

    check(torch, along(fast.softmax), along(torch.softmax), dtype, x)
    check(torch, along(fast.softmax, False), along(torch.softmax), dtype, x)
    check(torch, along(fast.log_softmax), along(torch.log_softmax), dtype, x, size=16)


def test_any_dimension_of_much(torch, fast) -> None:
    for shape in ((64, 256, 3136), (8, 21, 512, 512), (2**15, 77, 3)):
        x = values(torch, *shape, dtype="bfloat16")
        found, wanted = fast.softmax(x, 1), torch.softmax(x.float(), 1)
        torch.testing.assert_close(found.float(), wanted, rtol=2**-7, atol=1e-6)


MASKS = ((2, 3, 5, 512), (5, 512), (2, 1, 1, 512), (2, 1, 5, 512), (3, 5, 512), (512,), (5, 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("shape", MASKS)
def test_masks_scales_and_biases(shape: tuple, log: bool, dtype: str, torch, fast) -> None:
    x, bias = values(torch, 2, 3, 5, 512, dtype=dtype), values(torch, *shape, dtype=dtype)
    mask = torch.rand(shape, device="cuda") < 0.3
    if shape != (5, 1):
        mask[..., 0] = False
    else:
        mask[:] = False
    later = torch.ones(5, 512, dtype=torch.bool, device="cuda").triu(1)
    own = torch.log_softmax if log else torch.softmax

    def mine(x, bias=None, mask=None, **more):
        return fast.scaled_masked_softmax(x, mask, scale=0.125, bias=bias, log=log, **more)

    def theirs(x, bias=None, mask=None):
        z = x * 0.125 if bias is None else x * 0.125 + bias
        return own(z if mask is None else z.masked_fill(mask, -torch.inf), -1)

    check(torch, lambda x: mine(x, mask=mask), lambda x: theirs(x, mask=mask), dtype, x, size=16)
    check(torch, mine, theirs, dtype, x, bias, size=64)
    causal = {"mask": mask, "is_causal": True}
    hidden = mask | later
    check(torch, lambda x: mine(x, **causal), lambda x: theirs(x, mask=hidden), dtype, x, size=16)
    check(
        torch,
        lambda x, bias: mine(x, bias, is_causal=True),
        lambda x, bias: theirs(x, bias, later),
        *(dtype, x, bias),
        size=64,
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float32_of_sixteen_bits(dtype: str, torch, fast) -> None:
    x = values(torch, 40, 1024, dtype=dtype)
    check(
        torch,
        lambda x: fast.scaled_masked_softmax(x, scale=0.5, dtype=torch.float32),
        lambda x: torch.softmax(x * 0.5, -1),
        *(dtype, x),
    )
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert fast.scaled_masked_softmax(x, scale=0.5).dtype == torch.float32
        assert fast.log_softmax(x).dtype == torch.float32


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [64, 1001, 1024, 8192, 400000])
def test_dropout_and_its_gradient(cols: int, dtype: str, torch, fast) -> None:
    """Rows of a kernel that drops, of a composed one, and of 1 MB, which only the way there has.

    The kernels round p down to a multiple of 1/65536, and divide by what that leaves. 0.3 * 65536
    is 19660.8: divided by 1 - 0.3 it would be more by 0.8 / 65536 / 0.7 = 1.7e-5. Allowed of the
    largest of a row are 16 roundings of five times itself, 4.8e-6 of float32, so that a test of
    float32 tells one from the other."""
    x, p = values(torch, 24, cols, dtype=dtype), 0.3
    dropped = int(p * 65536) / 65536 if cols in (1024, 8192) else p
    torch.manual_seed(1)
    y = fast.scaled_masked_softmax(x, scale=0.5, dropout_p=p)
    whole = fast.scaled_masked_softmax(x, scale=0.5)
    kept = (y != 0) | (whole == 0)
    assert abs(kept[whole != 0].float().mean() - 0.7) < 0.05
    torch.manual_seed(1)
    check(
        torch,
        lambda x: fast.scaled_masked_softmax(x, scale=0.5, dropout_p=p),
        lambda x: torch.softmax(x * 0.5, -1) * kept / (1 - dropped),
        *(dtype, x),
        size=4,
    )
    assert not torch.equal(y, fast.scaled_masked_softmax(x, scale=0.5, dropout_p=p))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [7, 1000, 32000, 50257, 128256])
def test_cross_entropy_and_its_gradient(cols: int, dtype: str, torch, fast) -> None:
    cross_entropy = torch.nn.functional.cross_entropy
    x = values(torch, 40, cols, dtype=dtype, scale=1.0)
    target = torch.randint(cols, (40,), device="cuda")
    target[3] = -100
    for reduction in ("mean", "sum", "none"):
        for smoothing, z_loss in ((0.0, 0.0), (0.1, 1e-3)):

            def theirs(x, z_loss=z_loss, smoothing=smoothing, reduction=reduction):
                options = {"label_smoothing": smoothing, "reduction": reduction}
                more = z_loss * x.logsumexp(-1) ** 2 * (target != -100)
                more = more if reduction == "none" else more.sum()
                more = more / 39 if reduction == "mean" else more
                return cross_entropy(x, target, **options) + more

            options = {"label_smoothing": smoothing, "z_loss": z_loss, "reduction": reduction}
            check(
                torch,
                lambda x, o=options: fast.cross_entropy(x, target, **o),
                theirs,
                dtype,
                x,
                size=4,
            )


def test_a_second_derivative_is_refused_by_name(torch, fast) -> None:
    x = values(torch, 6, 256).requires_grad_()
    target = torch.zeros(6, dtype=torch.int64, device="cuda")
    for y in (fast.softmax(x).square().sum(), fast.cross_entropy(x, target)):
        (dx,) = torch.autograd.grad(y, x, create_graph=True)
        with pytest.raises(NotImplementedError, match="fast_softmax has no second derivative"):
            torch.autograd.grad(dx.sum(), x)


# ---- what PyTorch makes of it ------------------------------------------------------------------


def test_the_operators_are_sound(torch, fast) -> None:
    operators, check = getattr(torch.ops, fast.OPERATORS), torch.library.opcheck
    x = values(torch, 2, 5, 512).requires_grad_()
    mask = torch.rand(5, 512, device="cuda") < 0.3
    mask[:, 0] = False
    bias = values(torch, 5, 512).requires_grad_()
    seed, plain = torch.tensor(5), x.detach()
    check(operators.softmax.default, (x, 1))
    check(operators.log_softmax.default, (x, -1))
    for given in (
        (x, mask, bias, 0.5, False, False, False, 0.0, None),
        (x, mask, None, 0.5, True, True, False, 0.0, None),
        (x, None, None, 0.5, True, False, False, 0.3, seed),
        (plain.bfloat16().requires_grad_(), None, None, 0.5, True, False, True, 0.0, None),
        (
            plain[..., :77].clone().requires_grad_(),
            mask[:, :77],
            None,
            1.0,
            *[False] * 3,
            0.0,
            None,
        ),
    ):
        check(operators.scaled_masked_softmax.default, given)
    target = torch.randint(512, (5,), device="cuda")
    check(
        operators.cross_entropy.default,
        (plain[0].clone().requires_grad_(), target, -100, 0.1, 0.01),
    )
    y = torch.softmax(plain, -1)
    check(operators.softmax_backward.default, (y, plain, -1, 0.5, *[False] * 3, 0.0, None))
    given = plain[0], target, values(torch, 5, 2), values(torch, 5), -100, 0.1, 0.01
    check(operators.cross_entropy_backward.default, given)


def block(fast) -> Callable:
    """All of it in one function of scores, a mask, logits and targets."""

    def found(x, mask, logits, target):
        y = fast.scaled_masked_softmax(x * 2, mask, scale=0.5, is_causal=True)
        z = fast.softmax(y + 1, 1) + fast.log_softmax(x, -1)
        return z.square().sum() + fast.cross_entropy(logits, target, label_smoothing=0.1)

    return found


def arguments(torch, rows: int) -> tuple:
    mask = torch.rand(rows, 512, device="cuda") < 0.3
    mask[:, 0] = False
    x = values(torch, 3, rows, 512, scale=1.0).requires_grad_()
    logits = values(torch, rows, 1000).requires_grad_()
    return x, mask, logits, torch.randint(1000, (rows,), device="cuda")


@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"mode": "reduce-overhead"}])
def test_it_compiles_with_its_gradients_without_a_break(options: dict, torch, fast) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(block(fast), fullgraph=True, **options)
    for rows in (40, 41):
        given = arguments(torch, rows)
        wanted = torch.autograd.grad(block(fast)(*given), (given[0], given[2]))
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            found = torch.autograd.grad(compiled(*given), (given[0], given[2]))
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_compiler_is_given_the_operators(torch, fast) -> None:
    names = []

    def backend(graph, inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch._dynamo.reset()
    torch.compile(block(fast), fullgraph=True, backend=backend)(*arguments(torch, 40))
    wanted = "scaled_masked_softmax", "softmax", "log_softmax", "cross_entropy"
    assert {f"{fast.OPERATORS}.{name}.default" for name in wanted} <= {*names}


def test_dropout_compiles_and_is_refused_in_a_graph(torch, fast) -> None:
    torch._dynamo.reset()
    x = values(torch, 40, 1024).requires_grad_()

    def drop(x):
        return fast.scaled_masked_softmax(x, scale=0.5, dropout_p=0.3)

    for options in ({}, {"mode": "reduce-overhead"}):
        compiled = torch.compile(drop, fullgraph=True, **options)
        first, second = compiled(x).clone(), compiled(x).clone()
        assert not torch.equal(first, second), "each call draws anew"
        (dx,) = torch.autograd.grad(compiled(x).sum(), x)
        assert dx.isfinite().all()
    drop(x.detach())
    with pytest.raises(RuntimeError, match="same at every replay"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            drop(x.detach())


def test_a_step_of_training_is_captured_in_a_graph(torch, fast) -> None:
    x, mask, logits, target = given = arguments(torch, 40)
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


# ---- a small transformer -----------------------------------------------------------------------

STEPS, LENGTH, WORDS = 200, 512, 1000


def transformer(torch, attend: Callable, loss: Callable):
    """A decoder of four blocks, with attention and loss as they are given."""

    class Block(torch.nn.Module):
        def __init__(self, width: int = 256, heads: int = 4):
            super().__init__()
            self.heads = heads
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
            self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.up, self.down = (
                torch.nn.Linear(width, 4 * width),
                torch.nn.Linear(4 * width, width),
            )

        def forward(self, x):
            batch, length, width = x.shape
            qkv = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            mixed = attend(q @ k.transpose(-1, -2), q.shape[-1] ** -0.5).to(v.dtype) @ v
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))

    class Model(torch.nn.Module):
        def __init__(self, width: int = 256):
            super().__init__()
            self.words = torch.nn.Embedding(WORDS, width)
            self.places = torch.nn.Parameter(torch.randn(LENGTH, width) * 0.02)
            self.blocks = torch.nn.Sequential(*(Block() for _ in range(4)))
            self.head = torch.nn.Linear(width, WORDS)

        def forward(self, text):
            logits = self.head(self.blocks(self.words(text[:, :-1]) + self.places))
            return loss(logits.reshape(-1, WORDS), text[:, 1:].reshape(-1))

    return Model()


def texts(torch):
    """Batches of texts: a word follows from the one before it, each fourth from the one before
    that, and one of twenty from nothing."""
    generator = torch.Generator().manual_seed(7)
    rule = torch.randperm(WORDS, generator=generator)
    text = torch.randint(WORDS, (STEPS * 8, LENGTH + 1), generator=generator)
    noise = torch.rand(text.shape, generator=generator) < 0.05
    for n in range(2, LENGTH + 1):
        follows = rule[text[:, n - 2 if n % 4 == 0 else n - 1]]
        text[:, n] = torch.where(noise[:, n], text[:, n], follows)
    return text.cuda().split(8)


def losses(torch, attend: Callable, loss: Callable, dtype: str, nudge: int = 0) -> list[float]:
    """The loss of each step. `dtype` is that of the weights; "autocast" is float32 weights under
    autocast to bfloat16. A `nudge` is the seed of an error of one rounding in each weight."""
    torch.manual_seed(0)
    model = transformer(torch, attend, loss).cuda()
    torch.manual_seed(nudge)
    for weight in model.parameters() if nudge else ():
        weight.data *= 1 + torch.empty_like(weight).uniform_(-1, 1).sign() * 2**-23
    if dtype != "autocast":
        model = model.to(getattr(torch, dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    found = []
    for text in texts(torch):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == "autocast"):
            step = model(text)
        optimizer.zero_grad()
        step.backward()
        optimizer.step()
        found.append(step.detach().float())
    return torch.stack(found).tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "autocast"])
def test_a_small_transformer_learns_the_same(dtype: str, torch, fast) -> None:
    """Two hundred steps with the exported file and with PyTorch. Training multiplies what rounding
    differs by, so the noise is measured, by what else PyTorch might have given: the same again;
    softmax of the columns in reverse, another order of the same sums; softmax as exp(x -
    logsumexp(x)); weights that are off by one rounding of float32 at the start, twice. The curve of
    the exported file may be no further from PyTorch's than twice the farthest of these: the
    largest difference up to each step, and the mean of the last 50."""
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device="cuda").triu(1)

    def attending(softmax: Callable) -> Callable:
        return lambda x, scale: softmax((x * scale).masked_fill(later, -torch.inf))

    def subtracted(z):
        return (z - z.logsumexp(-1, keepdim=True)).exp()

    def fused(x, scale: float):
        return fast.scaled_masked_softmax(x, scale=scale, is_causal=True)

    own = attending(lambda z: torch.softmax(z, -1)), torch.nn.functional.cross_entropy
    reverse = attending(lambda z: torch.softmax(z.flip(-1), -1).flip(-1)), own[1]
    curves = {
        "torch": losses(torch, *own, dtype),
        "exported": losses(torch, fused, fast.cross_entropy, dtype),
        "again": losses(torch, *own, dtype),
        "reversed": losses(torch, *reverse, dtype),
        "subtracted": losses(torch, attending(subtracted), own[1], dtype),
        "nudged": losses(torch, *own, dtype, nudge=1),
        "nudged again": losses(torch, *own, dtype, nudge=2),
    }
    record(torch, dtype, curves)
    theirs, mine, *others = map(torch.tensor, curves.values())
    assert theirs[-10:].mean() < 0.75 * theirs[0], "it learns"
    noise = torch.stack([(other - theirs).abs() for other in others]).amax(0).cummax(0).values
    # A loss moves by so much at least: a few roundings of float32, one of 16 bits.
    least = (4 * 2**-24 if dtype == "float32" else 2**-8) * theirs[0]
    off = (mine - theirs).abs().cummax(0).values
    assert (off <= 2 * noise + least).all(), float((off / (2 * noise + least)).max())
    end = max(abs(other[-50:].mean() - theirs[-50:].mean()) for other in others)
    assert abs(mine[-50:].mean() - theirs[-50:].mean()) <= 2 * end + least


def record(torch, dtype: str, curves: dict[str, list[float]]) -> None:
    """Add the curves to $OUT/transformer.json, if there is such a folder."""
    if "OUT" not in os.environ:
        return
    file = Path(os.environ["OUT"]) / "transformer.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    known |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    known.setdefault("losses", {})[dtype] = curves
    file.write_text(json.dumps(known))


def test_the_kernels_are_used(torch, fast, monkeypatch) -> None:
    """So that what was tested above is not PyTorch: each launch is noted."""
    launched, launcher = set(), fast._launcher

    def noting(function, found, *others) -> Callable:
        launch = launcher(function, found, *others)

        def noted(*given) -> None:
            launch(*given)
            launched.add(found.kernel)

        return noted

    monkeypatch.setattr(fast, "_launcher", noting)
    monkeypatch.setattr(fast, "_calls", {})  # what was launched before is made anew
    monkeypatch.setattr(fast.device(torch.cuda.current_device()), "_launches", {})
    x, mask, logits, target = arguments(torch, 40)
    torch.autograd.grad(block(fast)(x, mask, logits, target), (x, logits))
    assert {file for files in fast.AROUND.values() for file in files} <= launched
