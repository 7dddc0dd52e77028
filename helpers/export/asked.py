"""What is asked of an export, and what its head says of where it comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..bound import load
from ..catalogue import RANKING, split_trial
from ..gpu import Gpu
from ..mode import gpu_for_plans
from ..operations import COPY, SOFTMAX
from ..paths import REPO_URL
from ..plan import DTYPES, MAX_INT
from ..simt.cuda_text import code_hash

BEST = "best"  # instead of a kernel: those that `choose` picks
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


# What exported functions pass on.
PASSED = {"x", "y", "rows", "cols", "x_stride", "y_stride", "workspace"}


def exports(step: str) -> bool:
    """Whether a kernel can be exported: it takes a matrix and gives one, and nothing beside."""
    kernel = load(step)
    taken = {parameter.name for parameter in kernel.parameters}
    return kernel.operation in (SOFTMAX, COPY) and taken <= PASSED


class Refused(ValueError):
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
    """Matrices of so many rows and columns."""

    rows: Range
    cols: Range

    def __str__(self) -> str:
        return f"{self.rows}x{self.cols}"


@dataclass(frozen=True)
class Asked:
    """What is asked of an export."""

    kernels: tuple[str, ...]  # steps, variants or trials, in the order of `RANKING` if `best`
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
            f"text {code_hash(load(step).code)}.",
            f"Its plan was tuned on an {TUNED_ON}.",
        ]


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

    `kernel` is a step, a variant, a trial or `best`; a shape "8192x50257" or "1..4096x32000"; the
    name is by default softmax, the dtypes the kernel's first, the GPU the one in use or an H200.
    Raises `Refused` with a sentence.
    """
    name = "softmax" if name is None else name
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or "__" in name or name in KEYWORDS:
        raise Refused(f"{name!r} is no name of a function in C: letters, digits, single _")
    kernels = tuple(dict.fromkeys(rank.file for rank in RANKING)) if kernel == BEST else (kernel,)
    try:
        taken = [load(step).header.dtypes for step in kernels]
    except (FileNotFoundError, ValueError) as error:
        raise Refused(str(error)) from None
    if more := [step for step in kernels if not exports(step)]:
        raise Refused(f"{more[0]} does more than softmax of a matrix: it is not exported")
    known = [np.dtype(n) for n in DTYPES if any(np.dtype(n) in dtypes for dtypes in taken)]
    wanted = [np.dtype(n) for n in dtypes] or (known[:1] if kernel == BEST else [taken[0][0]])
    if other := [dtype.name for dtype in wanted if dtype not in known]:
        there = ", ".join(dtype.name for dtype in known)
        raise Refused(f"{kernel} takes {there}, not {', '.join(other)}")
    return Asked(
        kernels,
        kernel == BEST,
        tuple(map(shape, shapes)),
        name,
        tuple(dict.fromkeys(wanted)),
        tuple(gpus) or (gpu_for_plans(),),
        strides,
        anywhere,
    )


def shape(text: str) -> Shapes:
    """The shapes that a text names: `ROWSxCOLS`, each a number or LOW..HIGH. Raises `Refused`."""
    number = r"(\d+)(?:\.\.(\d+))?"
    found = re.fullmatch(f"{number}x{number}", text)
    if not found:
        raise Refused(f"{text!r} is not ROWSxCOLS, each a number or LOW..HIGH: 1..4096x32000, say")
    low_rows, high_rows, low_cols, high_cols = found.groups()
    ranges = [
        Range(int(low), int(high or low))
        for low, high in ((low_rows, high_rows), (low_cols, high_cols))
    ]
    for part in ranges:
        if not 1 <= part.low <= part.high <= MAX_INT:
            raise Refused(f"{text!r}: {part} is not 1 to {MAX_INT}, the lower number first")
    return Shapes(*ranges)
