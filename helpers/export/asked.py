"""What is asked of an export, and what its head says of where it comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..base.gpu import Gpu
from ..base.mode import gpu_for_plans
from ..base.paths import REPO_URL
from ..catalogue.dispatch import RANKINGS, SOFTMAX_RANKING, with_features
from ..catalogue.registry import split_trial
from ..problem.operations import COPY, SOFTMAX, Operation
from ..problem.problem import DTYPES, MAX_INT
from ..run.bound import load
from ..simt.cuda_text import token_hash

BEST = "best"  # instead of a kernel: those that `choose` picks of softmax
PROJECT = "softmax-worklog"
LICENCE = "SPDX-License-Identifier: MIT"
# The shipped tables were tuned there; a header that was tuned elsewhere would have to say so.
TUNED_ON = "NVIDIA H200"
# C++ and Python both take these for their own.
KEYWORDS = frozenset(
    "alignas alignof and asm assert async auto await bool break case catch char class const "
    "constexpr continue def default del delete do double elif else enum except explicit export "
    "extern false finally float for friend from global goto if import in inline int is lambda "
    "long mutable namespace new noexcept nonlocal not nullptr operator or pass private protected "
    "public raise register return short signed sizeof static struct switch template this throw "
    "true try typedef typeid typename union unsigned using virtual void volatile wchar_t while "
    "with xor yield main".split()
)


# What functions of a matrix pass on.
PASSED = {"x", "y", "rows", "cols", "x_stride", "y_stride", "workspace"}


def of_a_matrix(step: str) -> bool:
    """Whether a kernel takes a matrix and gives one, and nothing beside."""
    kernel = load(step)
    taken = {parameter.name for parameter in kernel.parameters}
    return kernel.operation in (SOFTMAX, COPY) and taken <= PASSED


def exports(step: str) -> bool:
    """Whether a kernel can be exported: it computes softmax, something around it, or a copy."""
    return load(step).operation.name in (*RANKINGS, COPY.name)


class NoSuchExport(ValueError):
    """Why there is no such export, in one sentence."""


@dataclass(frozen=True)
class Range:
    """Whole numbers from `low` to `high`."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}..{self.high}"


@dataclass(frozen=True)
class Shapes:
    """Matrices of so many rows and columns; of another axis outer x dim x inner, whose rows here
    are those of `outer`."""

    rows: Range
    cols: Range
    inner: Range | None = None

    def __str__(self) -> str:
        sizes = (self.rows, self.cols, self.inner)
        return "x".join(str(size) for size in sizes if size)


@dataclass(frozen=True)
class Asked:
    """What is asked of an export."""

    kernels: tuple[str, ...]  # steps, variants or trials, in their ranking if `best`
    best: bool
    shapes: tuple[Shapes, ...]  # empty: every shape
    name: str  # of the function
    dtypes: tuple[np.dtype, ...]
    gpus: tuple[Gpu, ...]  # for which plans must be there
    strides: bool = False  # whether rows may be further apart than cols
    anywhere: bool = False  # whether x and y may start at any element, each at its own

    def origin(self, step: str) -> list[str]:
        """Lines for the head of a file, or of a part of it: licence, file, text, plan."""
        file = split_trial(step).file
        trial = f", as {step}" if file != step else ""
        return [
            LICENCE,
            "Copyright (c) 2026 softmax-worklog developers",
            f"From {REPO_URL or PROJECT}, kernels/{file}.cu{trial}, "
            f"text {token_hash(load(step).code)}.",
            f"Its plan was tuned on an {TUNED_ON}.",
        ]


def named(name: str) -> bool:
    """Whether a function may have this name in C++ and in Python."""
    plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) and "__" not in name
    return bool(plain) and name not in KEYWORDS


def steps_of(kernel: str) -> tuple[str, ...]:
    """The kernels that a name stands for: those that `choose` may pick for `best`, the one that it
    picks for an operation, with its features as a trial has them: "softmax-MASK2-LOG1". Raises
    `ValueError` for features that it has not."""
    if kernel == BEST:
        return tuple(dict.fromkeys(rank.file for rank in SOFTMAX_RANKING))
    trial = split_trial(kernel)
    if trial.file not in RANKINGS:
        return (kernel,)
    return (with_features(RANKINGS[trial.file][0].file, dict(trial.changes)),)


def request(
    kernel: str,
    shapes: Sequence[str],
    name: str | None = None,
    dtypes: Sequence[str] = (),
    gpus: Sequence[Gpu] = (),
    strides: bool = False,
    anywhere: bool = False,
) -> Asked:
    """What is asked for, checked as far as that goes without a language.

    `kernel` is a step, a variant, a trial, an operation or `best`; a shape "8192x50257" or
    "1..4096x32000", of another axis "64x1024x3136"; the name is by default that of the operation,
    the dtypes the kernel's first, the GPU the one in use or an H200. Raises `NoSuchExport` with a
    sentence.
    """
    if name is not None and not named(name):
        raise NoSuchExport(
            f"{name!r} is no name of a function in C: letters, digits, single _, no word of C's"
        )
    try:
        kernels = steps_of(kernel)
        taken = [load(step).header.dtypes for step in kernels]
        operation = load(kernels[0]).operation
    except (FileNotFoundError, ValueError) as error:
        raise NoSuchExport(str(error)) from None
    if more := [step for step in kernels if not exports(step)]:
        raise NoSuchExport(f"{more[0]} computes {operation.name}: it is not exported")
    known = [np.dtype(n) for n in DTYPES if any(np.dtype(n) in dtypes for dtypes in taken)]
    wanted = [np.dtype(n) for n in dtypes] or (known[:1] if kernel == BEST else [taken[0][0]])
    if other := [dtype.name for dtype in wanted if dtype not in known]:
        there = ", ".join(dtype.name for dtype in known)
        raise NoSuchExport(f"{kernel} takes {there}, not {', '.join(other)}")
    return Asked(
        kernels,
        kernel == BEST,
        tuple(shape(text, operation) for text in shapes),
        operation.name if name is None else name,
        tuple(dict.fromkeys(wanted)),
        tuple(gpus) or (gpu_for_plans(),),
        strides,
        anywhere,
    )


def shape(text: str, operation: Operation = SOFTMAX) -> Shapes:
    """The shapes that a text names: `ROWSxCOLS`, each a number or LOW..HIGH, or the sizes that an
    operation has. Raises `NoSuchExport`."""
    sizes = operation.sizes
    found = re.fullmatch("x".join([r"(\d+)(?:\.\.(\d+))?"] * len(sizes)), text)
    if not found:
        example = "1..64x1024x3136" if len(sizes) == 3 else "1..4096x32000"
        wanted = "x".join(size.upper() for size in sizes)
        raise NoSuchExport(f"{text!r} is not {wanted}, each a number or LOW..HIGH: {example}, say")
    numbers = found.groups()
    ranges = [
        Range(int(low), int(high or low))
        for low, high in zip(numbers[::2], numbers[1::2], strict=True)
    ]
    for part in ranges:
        if not 1 <= part.low <= part.high <= MAX_INT:
            raise NoSuchExport(f"{text!r}: {part} is not 1 to {MAX_INT}, the lower number first")
    return Shapes(*ranges)
