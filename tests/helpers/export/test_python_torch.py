"""The exported PyTorch file with PyTorch as installed: results and gradients against fp64, which
calls reach a kernel, and what PyTorch itself makes of the operators. Every test of `place` runs on
the CPU, where kernels run on the SIMT machine, and on a GPU."""

import re
from collections.abc import Callable, Iterator
from itertools import product

import pytest

from helpers.base.gpu import Gpu
from helpers.catalogue.dispatch import choose
from helpers.export.python import write
from helpers.export.request import export_request
from tests.helpers.export.conftest import Place
from tests.helpers.export.exported_file import OLD

DTYPES = ("float32", "float16", "bfloat16")
# Of the largest element of a row. What kernels compute is tested more closely elsewhere.
TOLERANCE = {"float64": 1e-5, "float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}
SHAPES = {
    "cpu": ((33, 64), (7, 77), (2, 3, 1000), (3, 5001), (129,), (5, 512), (1, 65536)),
    "cuda": ((33, 256), (7, 1000), (5, 4096), (64, 50257), (3, 65536), (2, 3, 5, 512)),
}
AXES = (((5, 64), 0), ((3, 100, 7), 1), ((2, 16, 1, 3), 1), ((4, 5, 6, 50), 2), ((2, 40, 8), -2))


def close(place: Place, found, wanted, dtype: str, terms=0.0) -> None:
    """Within `TOLERANCE` of the largest element of a row and of the terms that it is a sum of,
    which may cancel."""
    assert found.shape == wanted.shape
    found, wanted = found.double(), wanted.double()
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    largest = wanted.abs().where(wanted.isfinite(), 0)
    largest = largest.amax(-1, keepdim=True) if wanted.dim() else largest
    off = (found - wanted).abs()
    fine = same | (off <= TOLERANCE[dtype] * (largest + terms))
    assert fine.all(), f"{found[~fine][:3]}, not {wanted[~fine][:3]}"


def check(place: Place, mine: Callable, theirs: Callable, dtype: str, *inputs) -> tuple:
    """The result and the gradients by all inputs, held against PyTorch's in fp64."""
    ours = [x.detach().clone().requires_grad_() for x in inputs]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    y, z = mine(*ours), theirs(*exact)
    assert y.is_contiguous()
    close(place, y.detach(), z.detach(), str(y.dtype).removeprefix("torch."))
    dy = place.values(*y.shape, scale=1.0).to(y.dtype)
    found = place.torch.autograd.grad(y, ours, dy)
    wanted = place.torch.autograd.grad(z, exact, dy.double())
    terms = dy.abs().amax() if z.shape == inputs[0].shape else 0.0
    for by, gradient, right in zip(inputs, found, wanted, strict=True):
        assert gradient.dtype == by.dtype
        close(place, gradient, right, dtype, terms)
    return y, *found


def is_softmax(place: Place, y, x, dim: int = -1) -> None:
    """y is softmax of x, as PyTorch computes it in fp64."""
    assert (y.shape, y.dtype) == (x.shape, x.dtype) and y.is_contiguous()
    name = str(x.dtype).removeprefix("torch.")
    close(place, y.movedim(dim, -1), place.torch.softmax(x.double(), dim).movedim(dim, -1), name)


def same(place: Place, x, dim: int = -1) -> None:
    """Softmax of x is right, and by a kernel."""
    is_softmax(place, place.module.softmax(x, dim), x, dim)
    assert place.kernels()


# ---- softmax and its logarithm -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_its_logarithm_and_their_gradients(dtype: str, place: Place) -> None:
    """By a kernel of the gradient, and of the logarithm where rows are whole packs of 16 bytes."""
    torch, fast = place.torch, place.module
    for shape in SHAPES[place.device]:
        x = place.values(*shape, dtype=dtype)
        check(place, fast.softmax, lambda x: torch.softmax(x, -1), dtype, x)
        packs = shape[-1] * x.itemsize % 16 == 0
        back = choose(x.numel() // shape[-1], shape[-1], dtype, operation="softmax_backward")
        assert place.kernels()[1:] == [back]
        check(place, fast.log_softmax, lambda x: torch.log_softmax(x, -1), dtype, x)
        logarithm = ["12_fused"] * (packs and shape[-1] * x.itemsize >= 1024)
        assert place.kernels() == [*logarithm, back]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dim"), AXES)
def test_any_dimension_and_its_gradient(shape, dim: int, dtype: str, place: Place) -> None:
    torch, fast = place.torch, place.module
    x = place.values(*shape, dtype=dtype).movedim(dim, -1).contiguous()

    def along(softmax: Callable, whole: bool = True) -> Callable:
        def found(x):  # `check` knows rows
            x = x.movedim(-1, dim)
            return softmax(x.contiguous() if whole else x, dim).movedim(dim, -1).contiguous()

        return found

    check(place, along(fast.softmax), along(torch.softmax), dtype, x)
    assert {*place.kernels()} <= {"13_any_axis", "13_whole_slices"}
    check(place, along(fast.softmax, False), along(torch.softmax), dtype, x)
    check(place, along(fast.log_softmax), along(torch.log_softmax), dtype, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides_and_any_start(dtype: str, place: Place) -> None:
    """One shape at several places and with several strides: both are part of what is kept."""
    whole, flat = place.values(9, 600, dtype=dtype), place.values(9 * 501 + 8, dtype=dtype)
    for first in (0, 1, 3, 8):
        same(place, whole[:, first : first + 501])
        same(place, flat[first : first + 9 * 501].view(9, 501))
    deep = place.values(4, 6, 5, 96, dtype=dtype)
    views = (
        *(deep[:, 2], deep[:, :3], deep[..., ::2], deep.transpose(1, 3), deep[1:3, 1:4], deep[:2]),
        *(deep.permute(2, 0, 1, 3), deep[:, :1], deep[0, 0, 0], deep[:1].expand(3, 6, 5, 96)),
        deep.to(memory_format=place.torch.channels_last),
    )
    for x in views:
        same(place, x)
        same(place, x, x.dim() - 1)
    for x in (whole.view(40, 27, 5)[1:], flat[1 : 1 + 4480].view(4, 140, 8), deep.transpose(0, 2)):
        same(place, x, 1)
    ones = place.values(5, 192, 1, 1, dtype=dtype)
    for x in (ones, ones[:, ::2]):  # dimensions of one behind it: rows
        same(place, x, 1)


def test_everything_else_gets_the_answer_of_pytorch(place: Place) -> None:
    torch, fast, x = place.torch, place.module, place.values(6, 8)
    cases = [(x.double(), 0), (x.double(), -1), (x[0, 0], -1), (x[0, 0], 0), (x.to("meta"), -1)]
    cases += [(x[:0], -1), (x[:0], 0), (x[:, :0], -1)]
    cases += [(x.cpu(), -1)] if place.device == "cuda" else []
    for tensor, dim in cases:
        mine, theirs = fast.softmax(tensor, dim), torch.softmax(tensor, dim)
        assert (mine.shape, mine.dtype, mine.device) == (theirs.shape, theirs.dtype, theirs.device)
        assert mine.is_meta or torch.equal(mine, theirs)
    for wrong in (2, -3):
        for tensor in (x, x.clone().requires_grad_()):
            with pytest.raises(IndexError):
                fast.softmax(tensor, wrong)
    with pytest.raises(TypeError):
        fast.softmax([1.0, 2.0])
    for more in ({}, {"requires_grad": True}, {"layout": torch.jagged}):
        nested = torch.nested.nested_tensor([x[0], x[1]], **more)
        assert torch.equal(*(f(nested, 1).values() for f in (fast.softmax, torch.softmax)))
    for shape in ((4, 40), (4, 515)):  # short rows, and rows that are no whole packs
        x = place.values(*shape)
        assert torch.equal(fast.log_softmax(x), torch.log_softmax(x, -1))
    assert not place.kernels()
    with torch.autocast(place.device, torch.bfloat16):
        y = fast.softmax(place.values(6, 8, dtype="float16"))
    assert y.dtype == torch.float32 and place.kernels()


def test_calls_are_kept_and_shapes_that_keep_changing_fill_no_memory(place: Place) -> None:
    fast, x = place.module, place.values(4, 64)
    with pytest.MonkeyPatch.context() as patched:
        fast.softmax(x)
        patched.setattr(fast, "_call_for", None)  # nothing is made anew
        fast.softmax(x)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fast, "MAX_CALLS", 4)
        for rows in range(1, 9):
            same(place, place.values(rows, 64))
        assert len(fast._calls) <= 4


# ---- scale, masks, bias, dropout -----------------------------------------------------------------

SHAPE = 2, 3, 5, 512  # batch, heads, queries, keys
MASKS = (SHAPE, (5, 512), (2, 1, 1, 512), (2, 1, 5, 512), (3, 5, 512), (1, 3, 1, 512), (512,))


def fused_options() -> Iterator[dict]:
    """Options of `scaled_masked_softmax` with the dtype and columns of x: a shape stands for a mask
    or a bias, and a diagonal for a causal mask."""
    for (shape, dtype), log in product(
        zip((*MASKS, (5, 1), (5, 77)), 3 * DTYPES, strict=False), (False, True)
    ):
        of = {"scale": 0.125, "log": log, "x": dtype, "cols": 77 if 77 in shape else 512}
        for what, causal in product(("mask", "bias"), ({}, {"diagonal": 0})):
            yield of | causal | {what: shape}
    for cols, dropout_p in product((512, 77), (0.0, 0.3)):  # all keys for the last query, or none
        of = {"cols": cols, "dropout_p": dropout_p, "zero_masked_rows": True}
        masks = product((cols - 5, -2), ({}, {"mask": (2, 1, 5, cols)}))
        yield from (of, *(of | {"diagonal": diagonal} | mask for diagonal, mask in masks))
    for cols in (41, 256, 1024):
        of = {"cols": cols, "dropout_p": 0.3}
        yield from (of, of | {"scale": 2.0}, of | {"bias": (cols,)}, of | {"mask": (2, 1, 5, cols)})
        yield from (of | {"diagonal": 0}, of | {"wide": True, "x": "float16"})
    yield from ({"cols": 1024, "scale": 0.5, "wide": True, "x": dtype} for dtype in DTYPES)


@pytest.mark.parametrize("options", [*fused_options()], ids=str)
def test_the_fused_softmax_and_its_gradients(options: dict, place: Place) -> None:
    """Short rows, and those that are no whole packs, are computed by PyTorch's operations, but for
    a gradient. The kernel rounds p down to a multiple of 1/65536."""
    torch, options = place.torch, dict(options)
    dtype, cols, scale = options.pop("x", "float32"), options.pop("cols"), options.get("scale", 1)
    mask, bias = options.pop("mask", None), options.pop("bias", None)
    diagonal, wide = options.pop("diagonal", None), options.pop("wide", False)
    zero, p = options.get("zero_masked_rows", False), options.get("dropout_p", 0.0)
    x = place.values(*SHAPE[:3], cols, dtype=dtype)
    hidden = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    if mask:
        mask = place.mask(*mask)
        if zero:
            mask[1, :, 3] = True
        hidden |= mask
    if diagonal is not None:
        hidden |= torch.ones(5, cols, dtype=torch.bool, device=x.device).triu(diagonal + 1)
        options |= {"is_causal": True, "diagonal": diagonal}
    elif zero:
        x[1, 2, 3] = -torch.inf
    inputs = (x, place.values(*bias, dtype=dtype)) if bias else (x,)

    def mine(x, bias=None, seed=1):
        torch.manual_seed(seed)
        own = {"dtype": torch.float32} if wide else {}
        return place.module.scaled_masked_softmax(x, mask, bias=bias, **options, **own)

    def exact(x, bias=None):
        z = (scale * x + (0 if bias is None else bias)).masked_fill(hidden, -torch.inf)
        empty = (z == -torch.inf).all(-1, keepdim=True) & zero
        own = torch.log_softmax if options.get("log") else torch.softmax
        return own(z.masked_fill(empty, 0), -1).masked_fill(empty, 0)

    kept, kernel = 1, cols * x.itemsize >= 1024 and cols * x.itemsize % 16 == 0
    if p:
        y, whole = mine(*inputs), exact(*(given.double() for given in inputs)) != 0
        assert abs((y[whole] != 0).float().mean() - 0.7) < 3 / whole.sum() ** 0.5
        kept = ((y != 0) | ~whole) / (1 - (int(p * 65536) / 65536 if kernel else p))
        assert not torch.equal(y, mine(*inputs, seed=2)), "each call draws anew"
    place.kernels()
    y, dx, *_ = check(place, mine, lambda *given: exact(*given) * kept, dtype, *inputs)
    assert not dx[hidden].any() and (options.get("log") or not y[hidden].any())
    forward, *others = place.kernels() or [""]
    masked = mask is not None or "diagonal" in options
    if kernel and p:  # softmax is computed anew where x is not enough
        anew = wide or bias or scale != 1 or (zero and not masked)
        assert [forward, *others] == ["12_fused", *["12_fused"] * bool(anew), "14_backward"]
    elif kernel:
        assert forward == "12_fused" and others[0] in ("14_any_row", "14_backward")
    elif not p:
        assert {forward, *others} <= {"", "14_any_row"}


@pytest.mark.parametrize("shape", MASKS)
def test_masks_and_biases_are_not_written_out(shape: tuple, cpu: Place) -> None:
    mask, bias = cpu.mask(*shape), cpu.values(*shape)
    cpu.module.scaled_masked_softmax(cpu.values(*SHAPE), mask, bias=bias)
    launch = cpu.module.runtime.launches[-1]
    assert (launch.mask, launch.bias) == (mask.data_ptr(), bias.data_ptr())


@pytest.mark.parametrize("cols", [256, 77])  # by a kernel, and by PyTorch's own operations
def test_a_causal_mask_of_one_dimension_keeps_the_first_column(cols: int, place: Place) -> None:
    for mask in (None, place.mask(cols)):
        x = place.values(cols).requires_grad_()
        y = place.module.scaled_masked_softmax(x, mask, is_causal=True)
        assert y.tolist() == [1, *[0] * (cols - 1)]
        y.sum().backward()
        assert x.grad.shape == (cols,)


def test_a_row_that_is_wholly_hidden_is_nan(place: Place) -> None:
    """The gradient of its softmax too, but that of its logarithm is 0; other rows do not notice."""
    mask = place.torch.zeros(4, 512, dtype=bool, device=place.device)
    mask[2] = True
    for log, own in ((False, place.torch.softmax), (True, place.torch.log_softmax)):
        x = place.values(4, 512).requires_grad_()
        y = place.module.scaled_masked_softmax(x, mask, log=log)
        assert y[2].isnan().all()
        y[:, ::2].sum().backward()
        assert (x.grad[2] == 0).all() if log else x.grad[2].isnan().all()
        right = place.values(4, 512).double().requires_grad_()
        own(right, -1)[:, ::2].sum().backward()
        rows = [0, 1, 3]
        place.torch.testing.assert_close(
            x.grad[rows].double(), right.grad[rows], rtol=1e-4, atol=1e-4
        )


def test_a_diagonal_is_any_integer_and_autocast_gives_float32(place: Place) -> None:
    x, fused = place.values(5, 512), place.module.scaled_masked_softmax
    given = {"is_causal": True, "zero_masked_rows": True}
    for diagonal, wanted in ((2**63 - 1, fused(x)), (-(2**63), place.torch.zeros_like(x))):
        assert place.torch.equal(fused(x, diagonal=diagonal, **given), wanted)
    x = place.values(8, 1024, dtype="bfloat16")
    with place.torch.autocast(place.device, dtype=place.torch.bfloat16):
        for y in (fused(x, scale=0.5), place.module.log_softmax(x)):
            assert y.dtype == place.torch.float32


def test_what_a_mask_or_a_bias_must_be(place: Place) -> None:
    x, fused = place.values(4, 512), place.module.scaled_masked_softmax
    for words, call in (
        ("mask must be bool, True for elements to hide, got torch.float32", lambda: fused(x, x)),
        (r"mask of shape \(2, 4, 512\) cannot be", lambda: fused(x, place.mask(2, 4, 512))),
        (r"bias of shape \(3, 512\) cannot be", lambda: fused(x, bias=place.values(3, 512))),
        ("exclude each other", lambda: fused(x, log=True, zero_masked_rows=True)),
        ("diagonal must be 0 without is_causal=True, got 1", lambda: fused(x, diagonal=1)),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            call()


def test_dropout_depends_on_no_default(place: Place) -> None:
    """Of bfloat16 there are 256 numbers, of which more or less than p are below it; and the seed is
    drawn on the CPU."""
    torch = place.torch
    for cols in (41, 512):
        x, found = place.values(64, cols), []
        for kind, device in ((torch.float32, "cpu"), (torch.bfloat16, "meta")):
            torch.manual_seed(1)
            try:
                torch.set_default_dtype(kind)
                torch.set_default_device(device)
                found.append(place.module.scaled_masked_softmax(x, dropout_p=0.01))
            finally:
                torch.set_default_dtype(torch.float32)
                torch.set_default_device(None)
        assert torch.equal(*found) and (found[0] == 0).any()


def test_dropout_that_no_kernel_builds_is_pytorchs(place: Place) -> None:
    x = place.values(6, 512)
    y = place.module.scaled_masked_softmax(x, dropout_p=0.5, log=True)
    assert 0.3 < (y == 0).float().mean() < 0.7 and place.kernels() == ["12_fused"]
    assert not place.module.scaled_masked_softmax(x, dropout_p=1.0).any()


# ---- what PyTorch makes of it ------------------------------------------------------------------


def test_who_follows_a_call_sees_the_operator(place: Place) -> None:
    """Modes, tracing, autograd, views that PyTorch resolves, and classes that are tensors."""
    torch, softmax, x = place.torch, place.module.softmax, place.values(4, 64)
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    class Called(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    operator = f"{place.module.OPERATORS}.softmax.default"
    for mode in (Dispatched, Called):
        seen.clear()
        with mode():
            softmax(x)
            softmax(x, 0)
        assert seen.count(operator) == 2
    assert "softmax" in str(torch.jit.trace(softmax, x, check_trace=False).graph)
    assert softmax(x.clone().requires_grad_()).grad_fn
    assert softmax(torch.nn.Parameter(x)).grad_fn
    negated = torch._neg_view(x)
    assert negated.is_neg() and torch.allclose(softmax(negated), torch.softmax(negated, -1))
    traced = make_fx(lambda x: softmax(x), tracing_mode="fake")(x)
    assert operator in {str(node.target) for node in traced.graph.nodes}


def test_transforms_derivatives_and_other_classes_are_pytorchs(place: Place) -> None:
    torch, softmax, x = place.torch, place.module.softmax, place.values(6, 100)
    from torch.func import grad, jvp, vmap

    class Derived(torch.Tensor):
        pass

    own = lambda x: torch.softmax(x, -1)  # noqa: E731
    assert torch.equal(vmap(softmax)(x), vmap(own)(x))
    assert torch.equal(jvp(softmax, (x,), (x,))[1], jvp(own, (x,), (x,))[1])
    assert torch.equal(*(grad(lambda x, f=f: f(x).square().sum())(x) for f in (softmax, own)))
    with torch.autograd.forward_ad.dual_level():
        mine, theirs = (
            torch.autograd.forward_ad.unpack_dual(f(torch.autograd.forward_ad.make_dual(x, x)))
            for f in (softmax, own)
        )
    assert torch.equal(mine.tangent, theirs.tangent)
    derived = x.as_subclass(Derived)
    assert type(softmax(derived)) is Derived and torch.equal(softmax(derived), own(derived))
    assert not place.kernels()


def test_a_second_derivative_is_refused_by_name(place: Place) -> None:
    x = place.values(6, 256).requires_grad_()
    target = place.torch.zeros(6, dtype=place.torch.int64, device=place.device)
    for y in (place.module.softmax(x).square().sum(), place.module.cross_entropy(x, target)):
        (dx,) = place.torch.autograd.grad(y, x, create_graph=True)
        with pytest.raises(NotImplementedError, match="softmax.* has no second derivative"):
            place.torch.autograd.grad(dx.sum(), x)


def test_the_operators_are_sound(place: Place) -> None:
    torch = place.torch
    operators, check = getattr(torch.ops, place.module.OPERATORS), torch.library.opcheck
    x = place.values(2, 5, 512).requires_grad_()
    mask, bias = place.mask(5, 512), place.values(5, 512).requires_grad_()
    seed, plain = torch.tensor(5), x.detach()
    options = place.module.Options
    for view in (x, plain[:, :3], plain.transpose(0, 1), plain[..., 1:], plain[:0]):
        check(operators.softmax.default, (view, 1, False))
    check(operators.softmax.default, (x, -1, True))
    half = plain.bfloat16().requires_grad_()
    short = plain[..., :77].clone().requires_grad_()
    for y, given in (
        (x, options(mask, bias, 0.5)),
        (x, options(mask, scale=0.5, diagonal=0, log=True)),
        (x, options(scale=0.5, diagonal=500, zero=True, p=0.3, seed=seed)),
        (x, options(mask, zero=True, p=0.3, seed=seed)),
        (half, options(scale=0.5, diagonal=0, wide=True)),
        (short, options(mask[:, :77])),
    ):
        check(operators.scaled_masked_softmax.default, (y, *given))
    target = torch.arange(5, device=place.device)
    given = plain[0].clone().requires_grad_(), target, -100, 0.1, 0.01
    check(operators.cross_entropy.default, given)
    assert not operators.cross_entropy(*given)[1].requires_grad
    y = torch.softmax(plain, -1)
    check(operators.softmax_backward.default, (y, plain, -1, *options(mask, scale=0.5)))
    given = plain[0], target, place.values(5, 2), place.values(5), -100, 0.1, 0.01
    check(operators.cross_entropy_backward.default, given)


def block(fast) -> Callable:
    """All of it in one function of scores, a mask, logits and targets."""

    def found(x, mask, logits, target):
        y = fast.scaled_masked_softmax(x * 2, mask, scale=0.5, is_causal=True)
        z = fast.softmax(y + 1, 1) + fast.log_softmax(x, -1)
        return z.square().sum() + fast.cross_entropy(logits, target, label_smoothing=0.1)

    return found


def arguments(place: Place, rows: int) -> tuple:
    x = place.values(3, rows, 512, scale=1.0).requires_grad_()
    logits = place.values(rows, 1000).requires_grad_()
    return x, place.mask(rows, 512), logits, place.torch.arange(rows, device=place.device)


def test_it_compiles_with_its_gradients_without_a_break(place: Place) -> None:
    """A compiler is given the operators, and Autograd finds their gradients."""
    torch, names = place.torch, []
    from torch._dynamo.backends.debugging import aot_eager

    def backend(graph, inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return aot_eager(graph, inputs)

    torch._dynamo.reset()
    given = arguments(place, 10)
    compiled = torch.compile(block(place.module), fullgraph=True, backend=backend)
    found = torch.autograd.grad(compiled(*given), (given[0], given[2]))
    wanted = torch.autograd.grad(block(place.module)(*given), (given[0], given[2]))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    met = [name for name in names if name.startswith(place.module.OPERATORS)]
    wanted = ["scaled_masked_softmax", "softmax", "softmax", "cross_entropy"]
    assert [name.split(".")[1] for name in met] == wanted


# ---- copies, older versions, GPUs, streams: over the SIMT machine alone --------------------------


@pytest.fixture
def made(torch, tmp_path) -> Callable[..., Place]:
    """Another copy of the file."""
    from tests.helpers.export.torch_on_cpu import on_cpu

    return lambda name, *more, **options: Place(
        torch, on_cpu(tmp_path, name, *more, **options), "cpu"
    )


@pytest.mark.parametrize(("step", "cols"), [("08_cluster", 65536), ("09_grid", 65536)])
def test_a_file_of_one_kernel_has_a_gradient_too(step: str, cols: int, torch, made) -> None:
    copy = made(f"only_{step}", step=step, changed=())
    x = copy.values(3, cols, scale=1.0).requires_grad_()
    y, own = copy.module.softmax(x), torch.softmax(x, -1)
    is_softmax(copy, y.detach(), x.detach())
    assert copy.kernels() == [step]
    found, wanted = (torch.autograd.grad(y[:, 0].sum(), x)[0] for y in (y, own))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-9)
    x = copy.values(2, 3, cols, scale=1.0).transpose(0, 1)
    is_softmax(copy, copy.module.softmax(x), x)
    assert copy.kernels() == [step]
    x = copy.values(3, cols, scale=1.0).requires_grad_()  # the operator of all files has a log
    operator = getattr(torch.ops, copy.module.OPERATORS).softmax
    for y in (operator(x, -1, True), torch.log_softmax(x, -1)):
        torch.testing.assert_close(y, torch.log_softmax(x, -1))
        (dx,) = torch.autograd.grad(y[:, 0].sum(), x)
        torch.testing.assert_close(dx.sum(-1), torch.zeros(3), rtol=0, atol=1e-4)
    short = copy.values(4, 77)
    for other, dim in ((short, -1), (short, 0), (x.double(), -1)):
        assert torch.equal(copy.module.softmax(other, dim), torch.softmax(other, dim))
    assert not copy.kernels()


def test_exports_of_one_name_live_beside_each_other(made) -> None:
    """Of what is the same one is registered; what differs has operators of its own."""
    copies = [made("beside"), made("beside", step="03_shared"), made("beside")]
    assert copies[0].module.OPERATORS == copies[2].module.OPERATORS != copies[1].module.OPERATORS
    for copy, kernel in zip(copies, ("07_warp", "03_shared", "07_warp"), strict=True):
        with pytest.MonkeyPatch.context() as patched:
            for other in copies:  # an operator may be that of the first copy
                patched.setattr(other, "noted", copy.noted)
            y = copy.module.softmax(copy.values(4, 64).requires_grad_())
            assert y.grad_fn and copy.noted == [kernel]


def test_a_name_is_that_of_the_file_and_of_its_content() -> None:
    text, again, other = (
        write(export_request("best", [], n), "torch") for n in ("fast", "fast", None)
    )
    assert text == again and 'NAME = "softmax_worklog"' in other
    (digest,) = re.findall(r'^CONTENT = "(\w{8})"  #', text, flags=re.MULTILINE)
    assert digest not in other


@pytest.mark.parametrize("name", ["_len_torch_dispatch_stack", "_is_tracing"])
def test_another_pytorch_has_the_operator_alone(name: str, made) -> None:
    """Without what tells who follows a call, every call goes by the dispatcher, and without a
    function that allocates past that, results come from PyTorch's own."""
    without = (
        (rf"torch\._C\.{name}", "torch._C._none"),
        ("guards._empty_strided_cpu", "guards._none"),
    )
    copy = made(f"without{name}", changed=without)
    for x in (copy.values(4, 64), copy.torch.nn.Parameter(copy.values(4, 64))):
        same(copy, x)


def test_a_gpu_that_no_kernel_is_for_gets_the_answer_of_pytorch(made) -> None:
    copy = made("old", Gpu(70, 80, 6 * 2**20))
    x = copy.values(4, 64)
    assert copy.torch.equal(copy.module.softmax(x), copy.torch.softmax(x, -1))
    assert not copy.kernels()


def test_the_current_stream_and_device_are_used(made) -> None:
    copy = made("streams")
    runtime, x = copy.module.runtime, copy.values(4, 64)
    for runtime.stream in (0, 5):
        copy.module.softmax(x)
    assert [launch.stream for launch in runtime.launches] == [0, 5]
    runtime.count, runtime.current, seen = 2, 1, []
    runtime.CurrentRawStream = lambda index: seen.append(runtime.current) or 0
    copy.module._calls.clear()
    copy.module.softmax(x)
    assert seen == [None] and runtime.current == 1, "that of the tensor, and then as before"


def test_a_graph_has_a_workspace_of_its_own_and_no_dropout(made) -> None:
    copy = made("graph", OLD)
    runtime, x = copy.module.runtime, copy.values(1, 40001)
    copy.module.softmax(x)
    runtime.capturing.add(0)
    same(copy, x)
    copy.module.softmax(x)
    copy.module.softmax(copy.values(40000, 2), 0)
    used = [launch.workspace for launch in runtime.launches if launch.cooperative]
    assert len({*used}) == 4
    with pytest.raises(RuntimeError, match="would drop the same elements at each replay"):
        copy.module.scaled_masked_softmax(copy.values(6, 256), dropout_p=0.5)
    copy.module.scaled_masked_softmax(copy.values(6, 256), scale=0.5)
