"""Baselines: softmax, fused and related operations by other libraries, and what they support.

    torch       eager PyTorch, with a preallocated output where a function takes one; several
                functions in a row if there is no single one; of gradients what its autograd calls
    compile     torch.compile of one formula for one shape, autotuned: best of several processes
    triton      the scheme of Triton's fused-softmax tutorial: persistent programs that take every
                n-th row, each row padded to a power of two
    liger       the Triton kernels of Liger-Kernel: softmax and its gradient, with an output that is
                given instead of one that Liger allocates; the loss, alone or with the gradient,
                which overwrites the logits and is checked before timing alone
    quack       QuACK, in CUTLASS's Python language: softmax, also with float32 out, its gradient,
                both of cross-entropy
    flashinfer  FlashInfer's OnlineSoftmax, built from its headers, by an ordinary launch
    cudnn       cudnnSoftmaxForward and cudnnSoftmaxBackward: log, gradients, another axis

`helpers.measure.interop` calls them, `helpers.measure.side_by_side` times them. Nothing else
depends on them; `requirements/baselines.txt` lists their packages.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace

from ..problem.operations import (
    ANY_AXIS,
    BACKWARD,
    CROSS_ENTROPY,
    CROSS_ENTROPY_BACKWARD,
    CROSS_ENTROPY_LOSS_AND_GRADIENT,
    SOFTMAX,
)
from ..problem.problem import Problem
from . import interop

PACKAGES = (
    *("torch", "triton", "liger-kernel", "quack-kernels", "nvidia-cutlass-dsl"),
    *("flashinfer-python", "cudnn"),
)
ABSENT = "is not installed"  # end of the reason why a baseline is missing altogether


NOT_OFFERED = "computes no such thing"  # end of the reason why a baseline is not in a comparison


@dataclass(frozen=True)
class Baseline:
    """Another library."""

    title: str  # its usual name
    packages: tuple[str, ...]  # the modules that it imports
    absent: Callable[[], str] = lambda: ""  # what else it needs and is missing
    disk_cache: bool = False  # whether compiled code is cached across processes
    draws: bool = False  # whether each process tunes anew, with varying results


@dataclass(frozen=True)
class Offer:
    """How a baseline computes an operation."""

    # -> a call on CuPy arrays; None for two kernels of ours, which need no other library.
    make: Callable[[Problem], interop.Call] | None
    refuses: Callable[[Problem], str] = lambda problem: ""  # why, or ""
    features: Set[str] | None = frozenset()  # that it has; None: all
    unwritten: tuple[str, ...] = ()  # outputs that it does not compute
    in_place: bool = False  # whether it overwrites its input: then it is checked once


def why_not(name: str, problem: Problem) -> str:
    """Why a baseline cannot run a problem here, in a few words; "" if it should."""
    baseline = BASELINES[name]
    for package in baseline.packages:
        if importlib.util.find_spec(package) is None:
            return f"{package} {ABSENT}"
    if missing := baseline.absent():
        return f"{missing} {ABSENT}"
    return refusal(name, problem)


def refusal(name: str, problem: Problem) -> str:
    """Why a baseline does not support a problem, in a few words; "" if it does."""
    offer = OFFERS[problem.operation.name].get(name)
    asked = {feature for feature, value in problem.features if value}
    if offer is None or (offer.features is not None and asked - offer.features):
        return f"{title(name)} {NOT_OFFERED}"
    return offer.refuses(problem)


def title(name: str) -> str:
    """The usual name of a baseline; any other name unchanged."""
    return BASELINES[name].title if name in BASELINES else name


def left_out(skipped: Mapping[str, str]) -> str:
    """A line for each baseline that was left out, unless it does not offer the operation."""
    told = {name: why for name, why in skipped.items() if not why.endswith(NOT_OFFERED)}
    return "".join(f"\n    {name}: {reason}" for name, reason in told.items())


def versions() -> dict[str, str]:
    """Versions of the installed ones of `PACKAGES`; for cuDNN that of its library."""
    found = {}
    for package in PACKAGES[:-1]:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if library := interop.cudnn():
        library.cudnnGetVersion.restype = ctypes.c_size_t
        found["cudnn"] = str(library.cudnnGetVersion())
    return found


# ---- all of them --------------------------------------------------------------------------------

LOSS_ALONE = ("statistics",)  # unwritten
TWO_KERNELS = "two kernels"  # of ours in sequence, beside the one that computes both


def liger_refuses(problem: Problem) -> str:
    most = 65536
    return f"Liger refuses more than {most} columns" if problem.cols > most else ""


def triton_refuses(problem: Problem) -> str:
    most = 65536
    why = f"a row of more than {most} columns fits no program's registers"
    return why if problem.cols > most else ""


def quack_refuses(problem: Problem) -> str:
    if problem.cols % (pack := 16 // problem.itemsize):
        return f"QuACK needs cols % {pack} == 0"
    tiles = 2 if problem.operation is BACKWARD else 1
    if tiles * problem.row_bytes > 16 * 227 * 1024:
        return "QuACK holds a row in the shared memory of at most 16 blocks of 227 KB"
    return ""


def flashinfer_refuses(problem: Problem) -> str:
    return "" if problem.itemsize == 4 else "FlashInfer's softmax takes float32 alone"


def flashinfer_absent() -> str:
    if not interop.folders("flashinfer", "data", "include", "flashinfer"):
        return "flashinfer"
    return "" if interop.nvcc() else "nvcc, with which flashinfer is built,"


BASELINES = {
    "torch": Baseline("PyTorch", ("torch",)),
    "compile": Baseline("torch.compile", ("torch", "triton"), disk_cache=True, draws=True),
    "triton": Baseline("Triton tutorial", ("torch", "triton"), disk_cache=True),
    "liger": Baseline("Liger", ("torch", "triton", "liger_kernel"), disk_cache=True),
    "quack": Baseline("QuACK", ("torch", "tvm_ffi", "cutlass", "quack"), disk_cache=True),
    "flashinfer": Baseline("FlashInfer", (), flashinfer_absent),
    "cudnn": Baseline("cuDNN", (), lambda: "" if interop.cudnn() else "cuDNN"),
}
EVERY = {
    "torch": Offer(interop.eager_call, features=None),
    "compile": Offer(interop.compiled_call, features=None),
}
FORWARD = interop.cudnn_softmax_call("cudnnSoftmaxForward")
OFFERS: Mapping[str, Mapping[str, Offer]] = {
    SOFTMAX.name: {
        **EVERY,
        "triton": Offer(interop.triton_call, triton_refuses),
        "liger": Offer(interop.liger_call, liger_refuses),
        "quack": Offer(
            interop.quack_call("softmax", "_softmax_fwd", lambda x, y: (x, y)),
            quack_refuses,
            features={"WIDE"},
        ),
        "flashinfer": Offer(interop.flashinfer_call, flashinfer_refuses),
        "cudnn": Offer(FORWARD, features={"LOG", "WIDE"}),
    },
    ANY_AXIS.name: {
        **EVERY,
        "cudnn": Offer(FORWARD, features={"LOG"}),
    },
    BACKWARD.name: {
        **EVERY,
        "liger": Offer(interop.liger_call, liger_refuses),
        "quack": Offer(
            interop.quack_call("softmax", "_softmax_backward", lambda y, dy, dx: (dy, y, dx)),
            quack_refuses,
        ),
        "cudnn": Offer(interop.cudnn_softmax_call("cudnnSoftmaxBackward"), features={"LOG"}),
    },
    CROSS_ENTROPY.name: {
        **{name: replace(offer, unwritten=LOSS_ALONE) for name, offer in EVERY.items()},
        "liger": Offer(interop.liger_loss_call, unwritten=LOSS_ALONE),
        "quack": Offer(
            interop.quack_call("cross_entropy", "cross_entropy_fwd_out", interop.loss_of_quack),
            unwritten=LOSS_ALONE,
        ),
    },
    CROSS_ENTROPY_BACKWARD.name: {
        **EVERY,
        "quack": Offer(interop.quack_gradient_call),
    },
    CROSS_ENTROPY_LOSS_AND_GRADIENT.name: {
        **EVERY,
        "liger": Offer(interop.liger_loss_call, in_place=True),
        "quack": Offer(
            interop.quack_call(
                "cross_entropy", "cross_entropy_fwd_out", interop.loss_and_gradient_of_quack
            )
        ),
        TWO_KERNELS: Offer(None),
    },
}
