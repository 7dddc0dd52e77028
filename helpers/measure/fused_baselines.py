"""Fused and related operations by other libraries: log-softmax, masks, gradients, another axis,
cross-entropy.

    torch     eager PyTorch, with a preallocated output where a function takes one; several
              functions in a row if there is no single one
    compile   the same formula by torch.compile, as one or two kernels
    liger     the Triton kernels of Liger-Kernel: softmax's gradient, the loss
    quack     QuACK: 16 bits in and float32 out, softmax's gradient, both of cross-entropy
    cudnn     cudnnSoftmaxForward and cudnnSoftmaxBackward: log, gradients, another axis

Arrays come in the order of the operation (`helpers.problem.operations`), numbers are those of the
comparison (`problem_groups.numbers`). `helpers.measure.baselines` times them as it times softmax.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..problem.operations import (
    ANY_AXIS,
    BACKWARD,
    CAUSAL,
    CROSS_ENTROPY,
    CROSS_ENTROPY_BACKWARD,
    SOFTMAX,
    Operation,
)
from ..problem.problem import Problem
from ..run.check import WrongResult
from ..run.references import allowed, expected
from ..simt.words import are
from .interop import (
    ACCURATE,
    CHANNEL,
    INSTANCE,
    LOGARITHM,
    Call,
    compiled,
    cudnn_call,
    with_tensors,
)
from .problem_groups import SCALE

NOT_OFFERED = "computes no such thing"  # end of the reason why a baseline is not in a comparison
MOST_OF_A_PROGRAM = 65536  # columns that Liger supports; bytes that 16 blocks can hold:
MOST_OF_A_CLUSTER = 16 * 227 * 1024


@dataclass(frozen=True)
class Offer:
    """How a baseline computes an operation."""

    make: Callable[[Problem], Call]  # -> a call on CuPy arrays
    refuses: Callable[[Problem], str] = lambda problem: ""  # why, or ""
    unwritten: tuple[str, ...] = ()  # outputs that it does not compute
    note: str = ""


def why_not(name: str, title: str, problem: Problem) -> str:
    """Why a baseline is not in the comparison of an operation; "" if it should be."""
    offer = OFFERS[problem.operation.name].get(name)
    return offer.refuses(problem) if offer else f"{title} {NOT_OFFERED}"


def torch_dtypes(problem: Problem) -> list[str]:
    """The PyTorch types of the arrays of a problem; a byte mask becomes a boolean one."""
    names = [argument.numpy_dtype(problem.dtype).name for argument in problem.arrays]
    return ["bool" if name == "uint8" else name for name in names]


def empty_arrays(problem: Problem) -> list:
    """Zeroed CuPy arrays for a problem, on which baselines are called to compile ahead."""
    import cupy

    stored = {"bfloat16": "uint16", "float16": "uint16"}
    return [
        cupy.zeros(problem.array_shape(argument, problem.numbers), stored.get(name, name))
        for argument in problem.arrays
        for name in [argument.numpy_dtype(problem.dtype).name]
    ]


# ---- right enough -------------------------------------------------------------------------------

ROUNDED = {4: 1e-4, 2: 2.0**-7}  # bytes per element -> additional relative error of a baseline
# Eager PyTorch rounds biased logits and log-probabilities to 16 bits: errors of up to 2^-4 each
# between 16 and 32.
ROUNDED_LOGITS = 2.0**-3


def check_result(
    operation: Operation,
    values: Mapping[str, object],
    written: Mapping[str, np.ndarray],
    features: Mapping[str, int],
    at: np.ndarray | None = None,
) -> None:
    """`check.check_outputs` with a larger tolerance, because some baselines round more often.
    Raises `WrongResult`.

    Each element may have a relative error of `ROUNDED`; a gradient of softmax, which is a
    difference, has that of its terms.
    """
    exact = expected(operation, values, features, at)
    itemsize = values["dy" if operation is BACKWARD else "x"].dtype.itemsize
    share = ROUNDED[itemsize]
    if itemsize == 2 and (features.get("BIAS") or operation is CROSS_ENTROPY_BACKWARD):
        share = ROUNDED_LOGITS
    for name, array in written.items():
        wanted = exact[name].value
        size = np.abs(wanted)
        if operation is BACKWARD:
            y, g = (values[key].astype(np.float64) for key in ("y", "dy"))
            y, terms = (np.exp(y), np.abs(g)) if features.get("LOG") else (y, np.abs(y * g))
            size = terms + y * terms.sum(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            error = np.abs(array.astype(np.float64) - wanted)
            right = (error <= allowed(exact[name], array.dtype) + share * size) | (array == wanted)
        if not right.all():
            known = ~right & np.isfinite(error)
            off = float(np.max(error / np.maximum(size, 1e-30), initial=0, where=known))
            wrong = np.count_nonzero(~right)
            raise WrongResult(
                f"{wrong} of {array.size} elements of {name} {are(wrong)} wrong, by up to {off:.1%}"
            )


# ---- PyTorch: formulas on tensors ---------------------------------------------------------------


def _causal(x):
    """The mask of the columns above the diagonal, for consecutive squares of scores."""
    import torch

    cols = x.shape[-1]
    return torch.ones(cols, cols, dtype=torch.bool, device=x.device).triu(1)


def eager(problem: Problem) -> Callable:
    """A function of tensors as people write it: one kernel per operation."""
    import torch

    features, never, kept = dict(problem.features), -float("inf"), {}
    aten = torch.ops.aten

    def masked(x, y, mask):
        torch.softmax((x * SCALE).masked_fill_(mask, never), -1, out=y)

    def causal(x, y):
        if "mask" not in kept:
            kept["mask"] = _causal(x)
        scores = (x * SCALE).view(-1, *kept["mask"].shape).masked_fill_(kept["mask"], never)
        torch.softmax(scores, -1, out=y.view(scores.shape))

    def loss(x, target, loss, statistics):
        loss.copy_(torch.nn.functional.cross_entropy(x, target, reduction="none"))

    def gradient_of_loss(x, target, statistics, dloss, dx):
        """The function that autograd calls, with the log-probabilities kept from the loss."""
        if x.data_ptr() not in kept:
            kept[x.data_ptr()] = torch.log_softmax(x, -1), x.new_zeros(())
        logarithms, weight = kept[x.data_ptr()]
        g = aten.nll_loss_backward(dloss.to(x.dtype), logarithms, target, None, 0, -100, weight)
        aten._log_softmax_backward_data.out(g, logarithms, -1, x.dtype, out=dx)

    def gradient(y, dy, dx):
        aten._softmax_backward_data.out(dy, y, -1, y.dtype, grad_input=dx)

    def gradient_of_log(y, dy, dx):
        aten._log_softmax_backward_data.out(dy, y, -1, y.dtype, out=dx)

    if problem.operation is ANY_AXIS:
        return lambda x, y: torch.softmax(x, 1, out=y)
    if problem.operation is BACKWARD:
        return gradient_of_log if features.get("LOG") else gradient
    if problem.operation is CROSS_ENTROPY:
        return loss
    if problem.operation is CROSS_ENTROPY_BACKWARD:
        return gradient_of_loss
    if features.get("MASK"):
        return causal if features["MASK"] == CAUSAL else masked
    if features.get("LOG"):
        return lambda x, y: torch.log_softmax(x, -1, out=y)
    if features.get("WIDE"):
        return lambda x, y: torch.softmax(x, -1, dtype=torch.float32, out=y)
    return lambda x, y, bias: torch.softmax(torch.add(bias, x, alpha=SCALE), -1, out=y)


def formula(problem: Problem) -> Callable:
    """The same as one expression for torch.compile. The copy becomes the store of the last kernel;
    a returned result would be allocated by each call."""
    import torch

    features, never = dict(problem.features), -float("inf")

    def masked(x, y, mask):
        y.copy_(torch.softmax(torch.where(mask, never, x * SCALE), -1))

    def causal(x, y):
        row = torch.arange(x.shape[0], device=x.device)[:, None] % x.shape[1]
        hidden = torch.arange(x.shape[1], device=x.device)[None] > row
        y.copy_(torch.softmax(torch.where(hidden, never, x * SCALE), -1))

    def logarithm(x, y):
        y.copy_(torch.log_softmax(x, -1))

    def wide(x, y):
        y.copy_(torch.softmax(x, -1, dtype=torch.float32))

    def biased(x, y, bias):
        y.copy_(torch.softmax(x * SCALE + bias, -1))

    def any_axis(x, y):
        y.copy_(torch.softmax(x, 1))

    def gradient(y, dy, dx):
        g, kept = dy.float(), y.float()
        dx.copy_(kept * (g - (kept * g).sum(-1, keepdim=True)))

    def gradient_of_log(y, dy, dx):
        g = dy.float()
        dx.copy_(g - torch.exp(y.float()) * g.sum(-1, keepdim=True))

    def loss(x, target, loss, statistics):
        loss.copy_(torch.nn.functional.cross_entropy(x.float(), target, reduction="none"))

    def gradient_of_loss(x, target, lse, dloss, dx):
        here = torch.arange(x.shape[1], device=x.device)[None] == target[:, None]
        dx.copy_((torch.exp(x.float() - lse[:, None]) - here.float()) * dloss[:, None])

    if problem.operation is SOFTMAX:
        if features.get("MASK"):
            return causal if features["MASK"] == CAUSAL else masked
        return logarithm if features.get("LOG") else wide if features.get("WIDE") else biased
    if problem.operation is BACKWARD:
        return gradient_of_log if features.get("LOG") else gradient
    others = {ANY_AXIS: any_axis, CROSS_ENTROPY: loss, CROSS_ENTROPY_BACKWARD: gradient_of_loss}
    return others[problem.operation]


def _torch(problem: Problem) -> Call:
    return with_tensors(eager(problem), *torch_dtypes(problem))


def _compile(problem: Problem) -> Call:
    call = compiled(formula(problem))
    if problem.operation is CROSS_ENTROPY_BACKWARD:
        call = _given_lse(call)
    return with_tensors(call, *torch_dtypes(problem))


def _given_lse(call: Callable) -> Callable:
    """A gradient from one number per row, lse, whose tensor the first call makes before anything is
    timed. It is less precise at large logits, and not slower than from two numbers."""
    lse = {}

    def given(x, target, statistics, dloss, dx) -> None:
        key = statistics.data_ptr()
        if key not in lse:
            lse[key] = _summed(statistics)
        call(x, target, lse[key], dloss, dx)

    return given


def _summed(statistics):
    """The sum of the statistics per row, in CuPy's memory: PyTorch may reuse the memory of a tensor
    that is freed during a capture, while replays of the graph still write to it."""
    import cupy
    import torch

    found = torch.as_tensor(cupy.empty(len(statistics), cupy.float32), device="cuda")
    return torch.sum(statistics, -1, out=found)


# ---- Liger --------------------------------------------------------------------------------------


def _liger_backward(problem: Problem) -> Call:
    liger = importlib.import_module("liger_kernel.ops.softmax")
    rows, cols = problem.shape
    width, warps = liger.calculate_settings(cols)
    kernel = liger._softmax_single_block_backward_kernel[(rows,)]

    def call(y, dy, dx) -> None:
        kernel(dy, cols, y, cols, dx, cols, cols, BLOCK_SIZE=width, num_warps=warps)

    return with_tensors(call, *torch_dtypes(problem))


def _liger_refuses(problem: Problem) -> str:
    if dict(problem.features).get("LOG"):
        return f"Liger {NOT_OFFERED}"
    if problem.cols > MOST_OF_A_PROGRAM:
        return f"Liger refuses more than {MOST_OF_A_PROGRAM} columns"
    return ""


def _liger_loss(problem: Problem) -> Call:
    """Its kernel as called for logits without a gradient; with one, it would overwrite the
    logits."""
    import triton

    liger = importlib.import_module("liger_kernel.ops.cross_entropy")
    rows, cols = problem.shape
    width = min(liger.MAX_FUSED_SIZE, triton.next_power_of_2(cols))
    kernel = liger.liger_cross_entropy_kernel[(rows,)]

    def call(x, target, loss, statistics) -> None:
        kernel(
            *(x, cols, target, 1, None, loss, None, 1, None, 0, None, 0),
            *(cols, rows, rows, 0.0, -100),  # columns; counted rows, their weight; ignored index
            lse_square_scale=0.0,
            label_smoothing=0.0,
            reduction="none",
            softcap=None,
            RETURN_Z_LOSS=False,
            RETURN_TOKEN_ACCURACY=False,
            RETURN_PREDICTED_TOKENS=False,
            BLOCK_SIZE=width,
            HAS_WEIGHT=False,
            HAS_SOFTCAPPING=False,
            HAS_GRADIENTS=False,
            num_warps=32,
        )

    return with_tensors(call, *torch_dtypes(problem))


# ---- QuACK --------------------------------------------------------------------------------------


def _quack(module: str, function: str, order: Callable) -> Callable[[Problem], Call]:
    """A QuACK function, called on the arrays in the order that `order` returns."""

    def make(problem: Problem) -> Call:
        # The package has functions of the modules' names, which hide the modules.
        called = getattr(importlib.import_module(f"quack.{module}"), function)
        return with_tensors(lambda *tensors: called(*order(*tensors)), *torch_dtypes(problem))

    return make


def _quack_refuses(problem: Problem) -> str:
    features, itemsize = dict(problem.features), problem.itemsize
    if features.keys() - {"WIDE"}:
        return f"QuACK {NOT_OFFERED}"
    if problem.cols % (16 // itemsize):
        return f"QuACK needs cols % {16 // itemsize} == 0"
    tiles = 2 if problem.operation is BACKWARD else 1
    if tiles * problem.cols * itemsize > MOST_OF_A_CLUSTER:
        return "QuACK holds a row in the shared memory of at most 16 blocks of 227 KB"
    return ""


# ---- cuDNN --------------------------------------------------------------------------------------


def _cudnn(function: str) -> Callable[[Problem], Call]:
    def make(problem: Problem) -> Call:
        images = (problem.outer, problem.cols, problem.inner, 1)
        mode = CHANNEL if problem.inner > 1 else INSTANCE
        algorithm = LOGARITHM if dict(problem.features).get("LOG") else ACCURATE
        return cudnn_call(function, algorithm, mode, images, *torch_dtypes(problem))

    return make


def _cudnn_refuses(problem: Problem) -> str:
    other = dict(problem.features).keys() - {"LOG", "WIDE"}
    return f"cuDNN {NOT_OFFERED}" if other else ""


# ---- all of them --------------------------------------------------------------------------------


def _loss_of_quack(x, target, loss, statistics) -> tuple:
    """It writes only lse, into the first half of the statistics, which are not compared."""
    return x, target, None, loss, statistics.reshape(-1)[: len(x)], None, None


def _gradient_of_quack(problem: Problem) -> Call:
    called = importlib.import_module("quack.cross_entropy").cross_entropy_bwd_out

    def gradient(x, target, lse, dloss, dx) -> None:
        called(x, target, dloss, lse, dx)

    return with_tensors(_given_lse(gradient), *torch_dtypes(problem))


LOSS_ALONE = ("statistics",)  # unwritten
AGAIN = "what its autograd calls, of logarithms of probabilities that are kept"
OFFERS: Mapping[str, Mapping[str, Offer]] = {
    SOFTMAX.name: {
        "torch": Offer(_torch),
        "compile": Offer(_compile),
        "quack": Offer(_quack("softmax", "_softmax_fwd", lambda x, y: (x, y)), _quack_refuses),
        "cudnn": Offer(_cudnn("cudnnSoftmaxForward"), _cudnn_refuses),
    },
    ANY_AXIS.name: {
        "torch": Offer(_torch),
        "compile": Offer(_compile),
        "cudnn": Offer(_cudnn("cudnnSoftmaxForward")),
    },
    BACKWARD.name: {
        "torch": Offer(_torch, note="what its autograd calls, with an output that is given"),
        "compile": Offer(_compile),
        "liger": Offer(
            _liger_backward, _liger_refuses, note="its kernel, with an output that is given"
        ),
        "quack": Offer(
            _quack("softmax", "_softmax_backward", lambda y, dy, dx: (dy, y, dx)),
            _quack_refuses,
        ),
        "cudnn": Offer(_cudnn("cudnnSoftmaxBackward"), _cudnn_refuses),
    },
    CROSS_ENTROPY.name: {
        "torch": Offer(_torch, unwritten=LOSS_ALONE),
        "compile": Offer(_compile, unwritten=LOSS_ALONE),
        "liger": Offer(_liger_loss, unwritten=LOSS_ALONE, note="its kernel, for the loss alone"),
        "quack": Offer(
            _quack("cross_entropy", "cross_entropy_fwd_out", _loss_of_quack),
            unwritten=LOSS_ALONE,
        ),
    },
    CROSS_ENTROPY_BACKWARD.name: {
        "torch": Offer(_torch, note=AGAIN),
        "compile": Offer(_compile),
        "quack": Offer(_gradient_of_quack),
    },
}
