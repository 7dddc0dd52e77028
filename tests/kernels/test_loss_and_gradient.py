"""What 14 and 15 compute is a gradient: of what they say, in place too; and a line of them that is
changed is found."""

import numpy as np
import pytest

from helpers.bound import Kernel, bind
from helpers.catalogue import source
from helpers.check import WrongResult, check_kernel
from helpers.execute import KernelBug

pytestmark = pytest.mark.usefixtures("replay_unless_live")

LOSS, GRADIENT, BACK = "15_cross_entropy.cu", "variants/15_gradient.cu", "14_backward.cu"
RANDOM = np.random.default_rng(14)


def loss(x: np.ndarray, target: np.ndarray, **numbers: float) -> tuple[np.ndarray, np.ndarray]:
    """(loss, lse) of the kernel."""
    found = np.full(len(x), np.nan, np.float32), np.full(len(x), np.nan, np.float32)
    given = {"x": x, "target": target, "loss": found[0], "lse": found[1], **numbers}
    bind(source(LOSS), *x.shape).run(**given)
    return found


def gradient(x, target, lse, dloss, dx, **numbers: float) -> None:
    given = {"x": x, "target": target, "lse": lse, "dloss": dloss, "dx": dx, **numbers}
    bind(source(GRADIENT), *x.shape).run(**given)


def test_the_gradient_is_how_the_loss_changes() -> None:
    """By central differences of the fp32 kernel: steps as large as its rounding asks for, so that
    two digits are left."""
    x = RANDOM.normal(size=(4, 37)).astype(np.float32)
    target, numbers = np.array([0, 36, 5, 7]), {"smoothing": 0.2, "z_loss": 0.05}
    dloss = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
    dx = np.full_like(x, np.nan)
    gradient(x, target, loss(x, target, **numbers)[1], dloss, dx, **numbers)
    step = 2.0**-5
    for col in (0, 5, 20, 36):
        aside = np.zeros_like(x)
        aside[:, col] = step
        change = loss(x + aside, target, **numbers)[0] - loss(x - aside, target, **numbers)[0]
        np.testing.assert_allclose(dx[:, col], dloss * change / (2 * step), rtol=0.02, atol=1e-4)


def test_the_gradient_may_take_the_place_of_x() -> None:
    x = RANDOM.normal(size=(5, 1003)).astype(np.float32)
    target, dloss = np.array([0, 1002, -100, 77, 500]), RANDOM.normal(size=5).astype(np.float32)
    lse = loss(x, target)[1]
    elsewhere = np.full_like(x, np.nan)
    gradient(x, target, lse, dloss, elsewhere)
    gradient(x, target, lse, dloss, x)
    np.testing.assert_array_equal(x, elsewhere)
    assert not x[2].any(), "a row that is ignored has no gradient"


def test_the_loss_of_a_sure_row_is_small_and_not_zero() -> None:
    """Four digits of it are left, where lse - x[target] with lse rounded would have one."""
    x = np.full((1, 64), -1000.0, np.float32)
    x[0, :2] = 100.0, 90.0
    (found,), _ = loss(x, np.array([0]))
    assert found == pytest.approx(np.log1p(np.exp(-10.0)), rel=1e-3)


@pytest.mark.parametrize(
    ("file", "old", "new", "features"),
    [
        (BACK, "e.x * g.x + e.y * g.y", "e.x + e.y", {}),
        (BACK, "s.x * (g.x - dot), s.y * (g.y - dot)", "s.x * g.x - dot, s.y * g.y - dot", {}),
        (BACK, "factor = scale * dropout.factor()", "factor = scale", {"DROPOUT": 1}),
        (BACK, "factor = scale;", "factor = 1.0f;", {}),
        (BACK, "stays(drawn[k], 2 * c + 1)", "stays(drawn[k], 2 * c)", {"DROPOUT": 1}),
        (BACK, "dot += LOG ? other.z : other.z * weight", "dot += other.z", {"FROM_X": 1}),
        (BACK, "if (FROM_X && !LOG) dot /= sum;", "", {"FROM_X": 1}),
        (BACK, "if (row >= rows) return;", "", {}),
        (LOSS, "sum *= fast_exp2((thread_max - new_max) * log2e);", "", {}),
        (LOSS, "total / cols", "total / packs", {}),
        (LOSS, "wanted == ignore_index ? 0.0f : ", "", {}),
        (LOSS, "wanted >= 0 && wanted < cols", "true", {}),
        (LOSS, "rank == 0 && threadIdx.x < ends", "rank == 0 && threadIdx.x < head", {}),
        (GRADIENT, "gradient(v_hot) - hot", "gradient(v_hot) - d", {}),
        (GRADIENT, "1.0f + 2.0f * z_loss * row_lse", "1.0f + z_loss * row_lse", {}),
        (GRADIENT, "has_end && end == hot_column", "false", {}),
        (GRADIENT, "if (ignored) v_end = 0.0f;", "", {}),
        (GRADIENT, "pack < packs && whole", "pack < packs", {}),
    ],
)
def test_a_line_that_is_changed_is_found(file, old, new, features) -> None:
    code = source(file)
    assert code.count(old) == 1, old
    changed = Kernel(code.replace(old, new))
    shapes = [(5, 512), (3, 1000)] if file == BACK else [(5, 512), (9, 77), (3, 4099)]
    with pytest.raises((WrongResult, KernelBug)):
        check_kernel(changed, shapes, features=features)
