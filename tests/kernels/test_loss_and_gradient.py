"""What 14 and 15 compute is a gradient: of what they say, in place too; and a line of them that is
changed is found."""

import numpy as np
import pytest

from helpers.catalogue.registry import source
from helpers.problem.operations import BACKWARD, CROSS_ENTROPY_BACKWARD
from helpers.problem.problem import Problem
from helpers.run.bound import Kernel, bind
from helpers.run.check import WrongResult, check_outputs, strided_copy
from helpers.run.execute import KernelBug
from helpers.run.launch import check_kernel
from helpers.run.references import (
    UNIT_ROUNDOFF,
    Exact,
    Rows,
    allowed,
    expected,
    make_input,
    make_inputs,
)

pytestmark = pytest.mark.usefixtures("replay_unless_live")

LOSS, GRADIENT, BACK = "15_cross_entropy.cu", "15_gradient.cu", "14_backward.cu"
BOTH = "15_loss_and_gradient.cu"  # of cross-entropy, in one kernel
ANY = "14_any_row.cu"  # the gradient of softmax
GRADIENT_CODE, BOTH_CODE, FUSED_CODE = map(source, (GRADIENT, BOTH, "12_fused.cu"))
RANDOM = np.random.default_rng(14)


def loss(x, target, code: str = source(LOSS), **numbers) -> tuple[np.ndarray, np.ndarray]:
    """(loss, statistics) of the kernel."""
    found = np.full(len(x), np.nan, np.float32), np.full((len(x), 2), np.nan, np.float32)
    given = {"x": x, "target": target, "loss": found[0], "statistics": found[1], **numbers}
    bind(code, *x.shape, x.dtype).run(**given)
    return found


def gradient(x, target, statistics, dloss, dx, code: str = GRADIENT_CODE, **numbers) -> None:
    given = {"x": x, "target": target, "statistics": statistics, "dloss": dloss, "dx": dx}
    bind(code, *x.shape, x.dtype).run(**given, **numbers)


def both(x, target, dloss, dx, code: str = BOTH_CODE, **numbers: float) -> np.ndarray:
    """The loss of the kernel that also writes dx."""
    found = np.full(len(x), np.nan, np.float32)
    given = {"x": x, "target": target, "dloss": dloss, "loss": found, "dx": dx}
    bind(code, *x.shape, x.dtype).run(**given, **numbers)
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


def test_the_gradient_may_take_the_place_of_x() -> None:
    x = RANDOM.normal(size=(5, 1003)).astype(np.float32)
    target, dloss = np.array([0, 1002, -100, 77, 500]), RANDOM.normal(size=5).astype(np.float32)
    statistics = loss(x, target)[1]
    elsewhere = np.full_like(x, np.nan)
    gradient(x, target, statistics, dloss, elsewhere)
    gradient(x, target, statistics, dloss, x)
    np.testing.assert_array_equal(x, elsewhere)
    assert not x[2].any(), "a row that is ignored has no gradient"


@pytest.mark.parametrize("cols", [77, 1003, 20000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_kernel_gives_what_two_give(dtype: str, cols: int) -> None:
    """To within rounding; with targets at either end of a row, in none of its columns, and with an
    ignored one, of a row that has NaN in head, body and tail."""
    x = make_input(6, cols, dtype=dtype)
    x[2, [0, cols // 2, -1]] = np.nan
    target = np.array([0, cols - 1, -100, cols, cols // 2, 1])
    dloss, numbers = RANDOM.normal(size=6).astype(np.float32), {"smoothing": 0.2, "z_loss": 0.05}
    dx, wanted = np.full_like(x, np.nan), np.full_like(x, np.nan)
    losses, statistics = loss(x, target, **numbers)
    gradient(x, target, statistics, dloss, wanted, **numbers)
    np.testing.assert_allclose(both(x, target, dloss, dx, **numbers), losses, rtol=1e-5)
    ulp = 2.0**-7 if dtype == "bfloat16" else 2.0**-14
    np.testing.assert_allclose(*(a.astype(np.float32) for a in (dx, wanted)), ulp, 1e-9)


# ---- from x, by both kernels in a chain and by the one ------------------------------------------

OLD_FORMULA = "value - row_max - log_sum", "value - (row_max + log_sum)"
ROUNDED = "fast_exp(thread_max - row_max) / row_sum", "fast_exp(thread_max - lse)"


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


def chain(largest: float, sure: bool, dtype: str, code: str = GRADIENT_CODE) -> None:
    """Check the gradient by a file's code, which reads statistics or finds them itself."""
    x, target = rows_of_logits(largest, sure, dtype)
    dloss, dx = np.full(len(x), 0.75, np.float32), np.full_like(x, np.nan)
    if "__restrict__ statistics" in code:
        gradient(x, target, loss(x, target)[1], dloss, dx, code)
    else:
        both(x, target, dloss, dx, code)
    checked(dx, x, target, dloss)


each_code = pytest.mark.parametrize("code", [GRADIENT_CODE, BOTH_CODE], ids=["two", "one"])


@each_code
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@each_kind
@each_size
def test_the_gradient_is_right_from_x_at_large_logits(largest, sure, dtype, code) -> None:
    chain(largest, sure, dtype, code)


@each_code
@each_kind
@pytest.mark.parametrize("largest", [512.0, 8192.0])
def test_a_gradient_from_a_rounded_lse_is_found(largest: float, sure: bool, code: str) -> None:
    old, new = OLD_FORMULA if code == GRADIENT_CODE else ROUNDED
    assert code.count(old) == 1
    with pytest.raises(AssertionError, match="off by"):
        chain(largest, sure, "float32", code.replace(old, new))


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


@pytest.mark.parametrize("log", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_gradient_of_softmax_is_right_from_x(dtype: str, log: int) -> None:
    """14 behind 12, which stores y: rounded once more in 16 bits."""
    x = make_input(6, 512, dtype=dtype)
    dy = np.random.default_rng(4).normal(0.3, 1, x.shape).astype(dtype)
    y, dx = np.full_like(x, np.nan), np.full_like(x, np.nan)
    bind(FUSED_CODE, *x.shape, dtype, features={"LOG": log}).run(x=x, y=y)
    bind(source(BACK), *x.shape, dtype, features={"LOG": log}).run(y=y, dy=dy, dx=dx)
    rows, g = Rows.of(x), dy.astype(np.float64)
    kept = rows.logarithm if log else rows.softmax
    found = expected(BACKWARD, {"y": kept, "dy": dy, "scale": 1.0}, {"LOG": log})["dx"]
    error = rows.log_error + 2 * (rows.distance + np.abs(kept)) * UNIT_ROUNDOFF if log else 0.0
    stored = allowed(Exact(kept, error + (0 if log else rows.relative * kept)), y.dtype)
    total = np.abs((g if log else kept * g).sum(axis=-1, keepdims=True))
    by_sum = (stored * np.abs(g)).sum(axis=-1, keepdims=True)
    slope = (
        2 * rows.softmax * total * stored if log else stored * (np.abs(g) + total) + kept * by_sum
    )
    off = np.abs(dx.astype(np.float64) - found.value)
    assert (off <= allowed(Exact(found.value, found.error + slope), dx.dtype)).all()


def check_anywhere(code: str, cols: int, dtype: str, phases: tuple[int, int, int]) -> None:
    """y, dy and dx that begin so many elements past a 16-byte boundary; what is around dx stays."""
    given = make_inputs(Problem(9, cols, dtype, operation=BACKWARD))
    y, dy, dx = (
        strided_copy(array, cols, phase, around)
        for array, phase, around in zip(
            (given["y"], given["dy"], np.full_like(given["y"], np.nan)),
            phases,
            (np.nan, np.nan, 7.0),
            strict=True,
        )
    )
    trace = bind(code, 9, cols, dtype).simulate(y=y, dy=dy, dx=dx, scale=0.37)
    values = {"y": given["y"], "dy": given["dy"], "scale": 0.37}
    check_outputs(BACKWARD, values, {"dx": np.ascontiguousarray(dx)})
    dx[:] = 7
    assert (dx.base.astype(np.float32) == 7).all() and not trace.findings
    if len({*phases}) == 1:
        assert trace.counters.load_bytes == 2 * dx.nbytes, "read once"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("phases", [(0, 0, 0), (1, 1, 1), (3, 3, 3), (1, 2, 1), (2, 2, 1)])
def test_the_gradient_of_softmax_is_right_anywhere(phases: tuple, dtype: str) -> None:
    for cols in (1, 36, 77, 1003):
        check_anywhere(source(ANY), cols, dtype, phases)


@pytest.mark.parametrize(
    ("old", "phases"),
    [("phase(from) == phase(from_d) && ", (1, 2, 1)), (" && phase(from) == phase(to)", (2, 2, 1))],
)
def test_packs_of_arrays_that_are_aligned_differently_are_found(old: str, phases: tuple) -> None:
    code = source(ANY)
    assert code.count(old) == 1
    with pytest.raises((WrongResult, KernelBug)):
        check_anywhere(code.replace(old, ""), 77, "float32", phases)


@pytest.mark.parametrize("mask", [1, 2], ids=["bytes", "causal"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_mask_and_dropout_need_no_further_pass(dtype: str, mask: int) -> None:
    """12 and, from x, 14 under a mask (batch, 1, queries, keys) or a causal one, with fully
    masked queries: against fp64, with the columns that 12 dropped. Both read what they need once.
    """
    batch, heads, queries, keys = 2, 3, 4, 512
    rows, p = batch * heads * queries, 0.25
    x = make_input(rows, keys, dtype=dtype)
    dy = np.random.default_rng(5).normal(0.3, 1, x.shape).astype(dtype)
    of_all = np.zeros((batch, heads, queries, keys), bool)
    given = {"p": p, "seed": 7, "offset": 1, "mask_rows": queries}
    if mask == 1:
        of_all |= np.random.default_rng(6).random((batch, 1, queries, keys)) < 0.3
        of_all[1, :, 2] = True
        given |= {"mask": of_all[:, 0].reshape(-1, keys).view(np.uint8)}
        given |= {"mask_group": heads * queries}
    else:
        of_all |= np.arange(keys) > np.arange(queries)[:, None] - 2
        given |= {"diagonal": -2}
    masked = of_all.reshape(rows, keys)
    y, dx = np.full_like(x, np.nan), np.full_like(x, np.nan)
    features = {"MASK": mask, "DROPOUT": 1}
    forward = bind(FUSED_CODE, *x.shape, dtype, features={**features, "ZERO": 1})
    back = bind(source(BACK), *x.shape, dtype, features={**features, "FROM_X": 1})
    traces = forward.simulate(x=x, y=y, **given), back.simulate(y=x, dy=dy, dx=dx, **given)

    exact = np.where(masked, -np.inf, x.astype(np.float64))
    with np.errstate(invalid="ignore"):
        softmax = np.where(masked.all(axis=1, keepdims=True), 0.0, Rows.of(exact).softmax)
    left = np.where(y == 0, 0.0, 1 / (1 - p))
    assert 0.2 < (left[~masked] == 0).mean() < 0.3 or mask == 2
    g = dy.astype(np.float64) * left
    right = softmax * (g - (softmax * g).sum(axis=1, keepdims=True))
    unit = 2.0**-24 if dtype == "float32" else 2.0**-8
    near = 64 * unit * softmax * (np.abs(g) + np.abs(softmax * g).sum(axis=1, keepdims=True))
    assert (np.abs(y - softmax * left) <= 64 * unit * softmax * left).all()
    assert (np.abs(dx - right) <= near + 1e-30).all()
    assert not dx[masked].any() and not y[masked].any()

    packs = (~masked).reshape(rows, -1, 16 // x.itemsize).any(axis=2).sum() if mask == 2 else 0
    once = 16 * packs or x.nbytes
    for trace, arrays in zip(traces, (1, 2), strict=True):
        assert trace.counters.load_bytes == arrays * once + (x.size if mask == 1 else 0)
        assert trace.counters.store_bytes == x.nbytes and not trace.findings


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
        (BACK, "if (FROM_X && !LOG) of_row.dot /= of_row.sum;", "", {"FROM_X": 1}),
        (BACK, "if (MASK) hidden.hide", "if (false) hidden.hide", {"MASK": 1}),
        (BACK, "reinterpret_cast<T*>(&dy[k])[c] = T(0.0f);", "", {"MASK": 1}),
        (BACK, "reinterpret_cast<T*>(&y[k])[c] = T(past_end());", "", {"MASK": 2}),
        (BACK, "width + c >= visible", "width + c > visible", {"MASK": 2}),
        (BACK, "if (MASK && of_row.sum == 0.0f)", "if (false)", {"MASK": 1, "FROM_X": 1}),
        (BACK, "row / group * rows + ", "", {"MASK": 1}),
        (BACK, "1 + diagonal", "1 + 0 * diagonal", {"MASK": 2}),
        (ANY, "dot += product(v_end[i], d_end[i])", "", {}),
        (ANY, "i < head ? 0 : packs * width", "packs * width", {}),
        (ANY, "ROWS == 1 || row < rows ? cols : 0", "cols", {}),
        (ANY, "lanes < 32 ? lanes : 32", "32", {}),
        (ANY, "threadIdx.x % lanes", "threadIdx.x", {}),
        (ANY, "LOG ? dy : y * dy", "y * dy", {"LOG": 1}),
        (ANY, "dy - fast_exp(y) * dot", "dy - y * dot", {"LOG": 1}),
        (LOSS, "sum *= fast_exp(thread_max - new_max);", "", {}),
        (LOSS, "total / cols", "total / packs", {}),
        (LOSS, "sum == 0.0f ? minus_inf() : row_max", "row_max + log_sum", {}),
        (LOSS, "wanted >= 0 && wanted < cols", "true", {}),
        (LOSS, "log_sum + (row_max - x_target)", "log_sum - x_target", {}),
        (LOSS, "row < rows ? cols : 0", "cols", {}),
        (LOSS, "end < head ? 0 : packs * width", "packs * width", {}),
        (LOSS, "sum += fast_exp(to_float(v_end[i]) - row_max)", "sum += 0.0f", {}),
        (LOSS, "warp_sum<group>(sum)", "warp_sum(sum)", {}),
        (LOSS, "if (first + k * CLUSTER * lanes >= packs) break;", "", {}),
        (GRADIENT, "gradient(v_hot) - hot", "gradient(v_hot) - d", {}),
        (GRADIENT, "1.0f + 2.0f * z_loss * (", "1.0f + z_loss * (", {}),
        (GRADIENT, *OLD_FORMULA, {}),
        (GRADIENT, "owns || end[i] == hot_column", "owns", {}),
        (GRADIENT, "together > 1 && row >= rows", "false", {}),
        (GRADIENT, "(BLOCKS * THREADS) == rank * THREADS + thread", "BLOCKS == rank", {}),
        (GRADIENT, "if (whole)", "if (true)", {}),
        (BOTH, "exists ? cols : 0", "cols", {}),
        (BOTH, "exists ? target[row] : ignore_index", "target[row]", {}),
        (BOTH, "threadIdx.x % lanes", "threadIdx.x", {}),
        (BOTH, "thread + i * lanes", "thread", {}),
        (BOTH, "if (has_end[i]) total", "total", {}),
        (BOTH, "sum += v_end[i] = fast_exp", "v_end[i] = fast_exp", {}),
        (BOTH, "lanes < 32 ? lanes : 32", "32", {}),
        (BOTH, "sum * fast_exp(thread_max - row_max)", "sum", {}),
        (BOTH, "messages[i].y * fast_exp(messages[i].x - row_max)", "messages[i].y", {}),
        (BOTH, "row_total / cols", "total / cols", {}),
        (BOTH, "1.0f + 2.0f * z_loss * lse", "1.0f", {}),
        (BOTH, "ignored ? 0.0f : inside ? given", "inside ? given", {}),
        (BOTH, "hot_pack < packs", "true", {}),
        (BOTH, "has_end[i] && end[i] == hot_column", "false", {}),
        (BOTH, "== pack_of(0)", "== threadIdx.x", {}),
        (BOTH, "hot_column < 0 ? exists && rank == 0 && thread == 0 : owns", "owns", {}),
        (BOTH, "factor, -level) - hot", "factor, -level) - d", {}),
        (BOTH, *ROUNDED, {}),
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
