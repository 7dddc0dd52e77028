"""What 14 and 15 compute is a gradient: of what they say, in place too; and a line of them that is
changed is found."""

import numpy as np
import pytest

from helpers.catalogue.registry import source
from helpers.problem.operations import BACKWARD, CROSS_ENTROPY_BACKWARD
from helpers.problem.problem import Problem
from helpers.run.bound import Kernel, bind, load
from helpers.run.check import WrongResult, check_outputs, strided_copy
from helpers.run.execute import KernelBug
from helpers.run.launch import check_kernel
from helpers.run.references import (
    UNIT_ROUNDOFF,
    Exact,
    Rows,
    allowed,
    expected,
    hidden,
    make_input,
    make_inputs,
    outputs,
)

pytestmark = pytest.mark.usefixtures("replay_unless_live")

LOSS, GRADIENT, BACK = "15_cross_entropy.cu", "15_gradient.cu", "14_backward.cu"
BOTH = "15_loss_and_gradient.cu"  # of cross-entropy, in one kernel
ANY = "14_any_row.cu"  # the gradient of softmax
RANDOM = np.random.default_rng(14)


def loss(x, target, **numbers) -> tuple[np.ndarray, np.ndarray]:
    """(loss, statistics) of the kernel."""
    found = np.full(len(x), np.nan, np.float32), np.full((len(x), 2), np.nan, np.float32)
    given = {"x": x, "target": target, "loss": found[0], "statistics": found[1], **numbers}
    bind(source(LOSS), *x.shape, x.dtype).run(**given)
    return found


def gradient(x, target, statistics, dloss, dx, **numbers) -> None:
    given = {"x": x, "target": target, "statistics": statistics, "dloss": dloss, "dx": dx}
    bind(source(GRADIENT), *x.shape, x.dtype).run(**given, **numbers)


def both(x, target, dloss, dx, **numbers: float) -> np.ndarray:
    """The loss of the kernel that also writes dx."""
    found = np.full(len(x), np.nan, np.float32)
    given = {"x": x, "target": target, "dloss": dloss, "loss": found, "dx": dx}
    bind(source(BOTH), *x.shape, x.dtype).run(**given, **numbers)
    return found


@pytest.mark.parametrize("sign", [1, -1])
def test_the_gradient_is_how_the_loss_changes(sign: int) -> None:
    """By central differences of the fp32 kernel: steps as large as its rounding asks for, so that
    two digits are left; for a z_loss below 0 too."""
    x = RANDOM.normal(size=(4, 37)).astype(np.float32)
    target, numbers = np.array([0, 36, 5, 7]), {"smoothing": 0.2, "z_loss": 0.05 * sign}
    dloss = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
    dx = np.full_like(x, np.nan)
    losses, statistics = loss(x, target, **numbers)
    gradient(x, target, statistics, dloss, dx, **numbers)
    np.testing.assert_allclose(both(x, target, dloss, dx.copy(), **numbers), losses, rtol=1e-5)
    step = 2.0**-5
    for col in (0, 5, 20, 36):
        aside = np.zeros_like(x)
        aside[:, col] = step
        change = loss(x + aside, target, **numbers)[0] - loss(x - aside, target, **numbers)[0]
        np.testing.assert_allclose(dx[:, col], dloss * change / (2 * step), rtol=0.02, atol=1e-4)


# ---- from x, by both kernels in a chain and by the one ------------------------------------------


def rows_of_logits(largest: float, sure: bool, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """(x, target): eight rows of 300 logits up to about `largest`, and targets of which a model is
    almost sure, or that have a probability of some percent."""
    random = np.random.default_rng(3)
    x, rows = random.normal(0, 1, (8, 300)), np.arange(8)
    target = random.integers(0, 300, 8)
    x[rows, target] = x.max(axis=1) + (12 if sure else -1)
    return (x - x.max() + largest).astype(dtype), target


def checked(dx: np.ndarray, x: np.ndarray, target: np.ndarray, dloss: np.ndarray) -> None:
    """Raise `AssertionError` unless dx is the gradient by x, from x alone in fp64. The tolerance is
    that of given statistics, and what log(sum) may be off as the loss stores it."""
    rows = Rows.of(x)
    exact = {"x": x, "target": target, "dloss": dloss, "statistics": rows.statistics}
    complete = Problem(*x.shape, operation=CROSS_ENTROPY_BACKWARD).complete(exact)
    found = expected(CROSS_ENTROPY_BACKWARD, complete)["dx"]
    stored = rows.log_error + np.abs(rows.log_sum) * UNIT_ROUNDOFF
    chain = Exact(found.value, found.error + np.abs(dloss[:, None]) * rows.softmax * stored)
    off = np.abs(dx.astype(np.float64) - found.value)
    assert (off <= allowed(chain, dx.dtype)).all(), f"off by {(off / np.abs(found.value)).max():g}"


each_size = pytest.mark.parametrize("largest", [8.0, 512.0, 8192.0])
each_kind = pytest.mark.parametrize("sure", [False, True], ids=["ordinary", "sure"])


@pytest.mark.parametrize("kernels", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@each_kind
@each_size
def test_the_gradient_is_right_from_x_at_large_logits(largest, sure, dtype, kernels) -> None:
    x, target = rows_of_logits(largest, sure, dtype)
    dloss, dx = np.full(len(x), 0.75, np.float32), np.full_like(x, np.nan)
    if kernels == 2:
        gradient(x, target, loss(x, target)[1], dloss, dx)
    else:
        both(x, target, dloss, dx)
    checked(dx, x, target, dloss)


def one_loss(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    return both(x, target, np.ones(len(x), np.float32), np.empty_like(x))


@pytest.mark.parametrize(
    "loss_of",
    [lambda *given: loss(*given)[0], one_loss],
    ids=["two", "one"],
)
@each_size
def test_the_loss_is_right_at_large_logits(largest: float, loss_of) -> None:
    """Of almost sure targets, where lse - x[target] with lse rounded would have no digit left."""
    x, target = rows_of_logits(largest, True, "float32")
    found = loss_of(x, target)
    rows = Rows.of(x)
    exact = (rows.log_sum + rows.top)[:, 0] - x[np.arange(len(x)), target].astype(np.float64)
    np.testing.assert_allclose(found, exact, rtol=0, atol=rows.log_error.max())
    assert (found > 0).all()


@pytest.mark.parametrize("cols", [1, 36, 77, 1003])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("phases", [(0, 0, 0), (1, 1, 1), (3, 3, 3), (1, 2, 1), (2, 2, 1)])
def test_the_gradient_of_softmax_is_right_anywhere(phases: tuple, dtype: str, cols: int) -> None:
    """y, dy and dx begin so many elements past a 16-byte boundary; what is around dx stays."""
    given = make_inputs(Problem(9, cols, dtype, operation=BACKWARD))
    y = strided_copy(given["y"], cols, phases[0], np.nan)
    dy = strided_copy(given["dy"], cols, phases[1], np.nan)
    dx = strided_copy(np.full_like(given["y"], np.nan), cols, phases[2], 7.0)
    trace = bind(source(ANY), 9, cols, dtype).simulate(y=y, dy=dy, dx=dx, scale=0.37)
    values = {"y": given["y"], "dy": given["dy"], "scale": 0.37}
    check_outputs(BACKWARD, values, {"dx": np.ascontiguousarray(dx)})
    dx[:] = 7
    assert (dx.base.astype(np.float32) == 7).all() and not trace.findings
    if len({*phases}) == 1:
        assert trace.counters.load_bytes == 2 * dx.nbytes, "read once"


@pytest.mark.parametrize("mask", [1, 2], ids=["bytes", "causal"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("file", "feature", "arrays"), [("12_fused", "ZERO", 1), ("14_backward", "FROM_X", 2)]
)
def test_a_mask_and_dropout_need_no_further_pass(file, feature, arrays, dtype: str, mask) -> None:
    """Each input is read once, a pack that causal hides not at all."""
    features = {"MASK": mask, "DROPOUT": 1, feature: 1}
    kernel = load(file).choosing(features)
    problem = kernel.problem(24, 512, dtype)
    given = make_inputs(problem)
    written = outputs(problem, given)
    counters = kernel.at(problem).simulate(**given, **written).counters
    values = problem.complete(given)
    check_outputs(problem.operation, values, written, kernel.features)
    shown = ~hidden(values, features, np.arange(24), 512)
    pack = 16 // problem.itemsize
    packs = shown.reshape(24, -1, pack).any(axis=2).sum() if mask == 2 else 24 * 512 // pack
    assert counters.load_bytes == arrays * 16 * packs + (24 * 512 if mask == 1 else 0)
    assert counters.store_bytes == 24 * 512 * problem.itemsize


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("diagonal", [0, 100, -100])
def test_a_causal_gradient_does_not_load_what_is_hidden(diagonal: int, dtype: str) -> None:
    queries, keys = 64, 512
    y, dy = (make_input(queries, keys, seed, dtype) for seed in (1, 2))
    dx = np.full_like(y, np.nan)
    bound = bind(source(BACK), queries, keys, dtype, features={"MASK": 2})
    given = {"mask_rows": queries, "diagonal": diagonal}
    counters = bound.simulate(y=y, dy=dy, dx=dx, **given).counters
    pack = 16 // y.itemsize
    visible = np.clip(np.arange(queries) + 1 + diagonal, 0, keys)
    assert counters.load_bytes == 2 * 16 * (-(-visible // pack)).sum()
    assert counters.store_bytes == dx.nbytes
    assert not dx[np.arange(keys) >= visible[:, None]].any()


@pytest.mark.parametrize(
    ("file", "old", "new", "features"),
    [
        (BACK, "y.x * dy.x + y.y * dy.y", "y.x + y.y", {}),
        (BACK, "factor = scale * dropout.factor()", "factor = scale", {"DROPOUT": 1}),
        (BACK, "factor = scale * ", "factor = ", {}),
        (BACK, "stays(drawn[k], 2 * c + 1)", "stays(drawn[k], 2 * c)", {"DROPOUT": 1}),
        (BACK, "dot += LOG ? other.z : other.z * weight", "dot += other.z", {"FROM_X": 1}),
        (BACK, "if (MASK) hidden.hide", "if (false) hidden.hide", {"MASK": 1}),
        (BACK, "reinterpret_cast<T*>(&dy[k])[c] = T(0.0f);", "", {"MASK": 1}),
        (BACK, "reinterpret_cast<T*>(&y[k])[c] = T(past_end());", "", {"MASK": 2}),
        (BACK, "width + c >= visible", "width + c > visible", {"MASK": 2}),
        (BACK, "if (MASK && of_row.sum == 0.0f)", "if (false)", {"MASK": 1, "FROM_X": 1}),
        (ANY, "dot += product(v_end[i], d_end[i])", "", {}),
        (ANY, "ROWS == 1 || row < rows ? cols : 0", "cols", {}),
        (ANY, "dy - fast_exp(y) * dot", "dy - y * dot", {"LOG": 1}),
        (LOSS, "sum *= fast_exp(thread_max - new_max);", "", {}),
        (LOSS, "total / cols", "total / packs", {}),
        (LOSS, "sum == 0.0f ? minus_inf() : row_max", "row_max + log_sum", {}),
        (LOSS, "wanted >= 0 && wanted < cols", "true", {}),
        (LOSS, "row < rows ? cols : 0", "cols", {}),
        (LOSS, "if (first + k * CLUSTER * lanes >= packs) break;", "", {}),
        (GRADIENT, "gradient(v_hot) - hot", "gradient(v_hot) - d", {}),
        (GRADIENT, "1.0f + 2.0f * z_loss * (", "1.0f + z_loss * (", {}),
        (GRADIENT, "(BLOCKS * THREADS) == rank * THREADS + thread", "BLOCKS == rank", {}),
        (BOTH, "exists ? target[row] : ignore_index", "target[row]", {}),
        (BOTH, "if (has_end[i]) total", "total", {}),
        (BOTH, "messages[i].y * fast_exp(messages[i].x - row_max)", "messages[i].y", {}),
        (BOTH, "row_total / cols", "total / cols", {}),
        (BOTH, "1.0f + 2.0f * z_loss * lse", "1.0f", {}),
        (BOTH, "ignored ? 0.0f : inside ? given", "inside ? given", {}),
        (BOTH, "hot_column < 0 ? exists && rank == 0 && thread == 0 : owns", "owns", {}),
    ],
)
def test_a_line_that_is_changed_is_found(file, old, new, features) -> None:
    code = source(file)
    assert code.count(old) == 1, old
    changed = Kernel(code.replace(old, new))
    # 77 columns have ends; 140,000 take two rounds.
    shapes = [*[(9, 77)] * (file in (ANY, BOTH)), (5, 512), *[(1, 140000)] * (file == LOSS)]
    with pytest.raises((WrongResult, KernelBug)):
        check_kernel(changed, shapes, features=features)
