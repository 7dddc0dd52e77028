"""Cross-entropy of the exported PyTorch file: losses and gradients against fp64, which calls reach
a kernel, and what PyTorch computes."""

import pytest

from tests.helpers.export.conftest import Place
from tests.helpers.export.test_python_torch import DTYPES, check


def check_loss(place: Place, x, target, dtype: str, z_loss: float, **options) -> None:
    def theirs(x):
        more = z_loss * x.logsumexp(-1) ** 2 * (target != -100)
        more = more if options["reduction"] == "none" else more.sum()
        more = more / 39 if options["reduction"] == "mean" else more
        return place.torch.nn.functional.cross_entropy(x, target, **options) + more

    def mine(x):
        return place.module.cross_entropy(x, target, z_loss=z_loss, **options)

    check(place, mine, theirs, dtype, x)
    assert place.kernels() == ["15_cross_entropy", "15_gradient"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy_and_its_gradient(dtype: str, place: Place) -> None:
    torch = place.torch
    for cols in (7, 301) if place.device == "cpu" else (7, 1000, 32000, 50257, 128256):
        x = place.values(40, cols, dtype=dtype, scale=1.0)
        target = torch.arange(40, device=place.device) * 41 % cols
        target[3] = -100
        for reduction in ("mean", "sum", "none"):
            for smoothing, z_loss in ((0.0, 0.0), (0.1, 1e-3), (1, 0.0)):
                options = {"label_smoothing": smoothing, "reduction": reduction}
                check_loss(place, x, target, dtype, z_loss, **options)
    with torch.autocast(place.device, dtype=torch.bfloat16):
        assert place.module.cross_entropy(x, target).dtype == torch.float32
        place.kernels()
        check_loss(place, x, target, dtype, 0.0, reduction="mean")


@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy_with_gradient_gives_what_autograd_gives(dtype: str, place: Place) -> None:
    """By one kernel; in float32 also at rows of 4 MB, by two."""
    torch, both = place.torch, place.module.cross_entropy_with_gradient
    options = {"label_smoothing": 0.1, "z_loss": 1e-3}
    for rows, cols in ((40, 301), (1, 2**20)) if dtype == "float32" else ((40, 301),):
        x = place.values(rows, cols, dtype=dtype, scale=1.0).requires_grad_()
        target = torch.arange(rows, device=place.device) * 41 % cols
        target[3:4] = -100
        dloss = torch.linspace(-1, 2, rows, device=place.device)
        wanted = place.module.cross_entropy(x.float(), target, reduction="none", **options)
        (gradient,) = torch.autograd.grad((wanted * dloss).sum(), x)
        place.kernels()
        loss, dx = both(x, target, dloss.clone().requires_grad_(), **options)
        two = ["15_cross_entropy", "15_gradient"]
        assert place.kernels() == (["15_loss_and_gradient"] if cols < 2**20 else two)
        assert not loss.requires_grad and not dx.requires_grad
        torch.testing.assert_close(loss, wanted.detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(dx, gradient, rtol=2e-2 if x.itemsize == 2 else 1e-4, atol=1e-7)
    for wrong in ((x, target, dloss.double()), (x, target, dloss[None])):
        with pytest.raises(ValueError, match="dloss float32, both in the shape of the rows"):
            both(*wrong)
    for wrong in (
        (x.double(), target, dloss),
        (x, target.to("meta"), dloss),
        (x, target, dloss.to("meta")),
    ):
        with pytest.raises(ValueError, match="on the GPU of target and dloss, got"):
            both(*wrong)


def test_one_row_none_and_no_columns(place: Place) -> None:
    """No target is a class of no columns, so all are NaN but those that are ignored."""
    torch, loss = place.torch, place.module.cross_entropy
    x, own = place.values(300), torch.nn.functional.cross_entropy
    five = torch.tensor(5, device=place.device)
    torch.testing.assert_close(loss(x, five), own(x, five))
    empty = torch.zeros(0, dtype=torch.int64, device=place.device)
    assert loss(place.values(0, 5), empty, reduction="none").shape == (0,)
    place.kernels()
    x = place.values(3, 0).requires_grad_()
    target = torch.tensor([0, -100, 5], device=place.device)
    y = loss(x, target, reduction="none")
    assert y.isnan().tolist() == [True, False, True] and y[1] == 0
    assert torch.autograd.grad(y.sum(), x)[0].shape == (3, 0) and not place.kernels()


def test_other_losses_are_pytorchs(place: Place) -> None:
    torch, loss, own = (
        place.torch,
        place.module.cross_entropy,
        place.torch.nn.functional.cross_entropy,
    )
    x, target = place.values(4, 5), torch.zeros(4, dtype=torch.int64, device=place.device)
    for given in (
        (place.values(4, 5, 6), target[:, None].expand(4, 6).contiguous()),  # classes in the middle
        (x, torch.softmax(x, -1)),  # probabilities
        (x.double(), target),
    ):
        assert torch.equal(loss(*given, reduction="sum"), own(*given, reduction="sum"))
    for smoothing in (-0.1, float("nan")):
        options = {"label_smoothing": smoothing}
        mine, theirs = loss(x, target, **options), own(x, target, **options)
        assert torch.equal(mine.nan_to_num(7.0), theirs.nan_to_num(7.0))
    for given, options, error in (
        ((place.values(4, 5, 6), target[:, None].expand(4, 5)), {}, RuntimeError),
        ((x, target.int()), {}, RuntimeError),
        ((x, target), {"label_smoothing": 1.5}, RuntimeError),
        ((x, target), {"reduction": "max"}, ValueError),
        ((x, torch.softmax(x, -1)), {"z_loss": 0.1}, ValueError),
    ):
        with pytest.raises(error):
            loss(*given, **options)
    ignored = torch.tensor([1, -100, 4, 0], device=place.device)
    x = x.double() * 0
    x[1, 2] = torch.inf
    assert torch.allclose(
        loss(x, ignored, z_loss=0.5), own(x, ignored) + 0.5 * torch.tensor(5.0).log() ** 2
    )
    assert not place.kernels()
