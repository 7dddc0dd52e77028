"""What is to be exported, as requested, and the origin that an exported file states."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..base.gpu import Gpu, gpu_for_plans
from ..base.paths import REPO_URL
from ..catalogue.dispatch import RANKINGS, SOFTMAX_RANKING, with_features
from ..catalogue.registry import split_trial
from ..problem.operations import COPY, SOFTMAX, Operation
from ..problem.problem import DTYPES, MAX_INT
from ..run.bound import load
from ..simt.cuda_text import token_hash

BEST = "best"  # stands for the kernels that `choose` picks for softmax
PROJECT = "softmax-worklog"
LICENCE = "SPDX-License-Identifier: MIT"
COPYRIGHT = "Copyright (c) 2026 softmax-worklog developers"
TUNED_ON = "NVIDIA H200"
# Reserved words of C++; those of Python are in `keyword.kwlist`.
KEYWORDS = frozenset(
    "alignas alignof and asm auto bool break case catch char class const constexpr continue "
    "default delete do double else enum explicit export extern false float for friend goto if "
    "inline int long mutable namespace new noexcept not nullptr operator or private protected "
    "public register return short signed sizeof static struct switch template this throw true try "
    "typedef typeid typename union unsigned using virtual void volatile wchar_t while xor "
    "main".split()
)
# The parameters of a kernel that computes one matrix from another.
MATRIX_PARAMETERS = {"x", "y", "rows", "cols", "x_stride", "y_stride", "workspace"}


class ExportError(ValueError):
    """Why an export is impossible, in one sentence."""


@dataclass(frozen=True)
class Range:
    """The integers from `low` to `high`, inclusive."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}..{self.high}"


@dataclass(frozen=True)
class Shapes:
    """Ranges of rows and cols; with `inner`, of an outer x dim x inner array: `rows` is outer and
    `cols` is dim."""

    rows: Range
    cols: Range
    inner: Range | None = None

    def __str__(self) -> str:
        sizes = (self.rows, self.cols, self.inner)
        return "x".join(str(size) for size in sizes if size)


@dataclass(frozen=True)
class ExportRequest:
    """What an exported file is to support."""

    kernels: tuple[str, ...]  # steps, variants or trials; if `best`, in the order of the ranking
    best: bool
    shapes: tuple[Shapes, ...]  # empty: every shape
    name: str  # of the function
    dtypes: tuple[np.dtype, ...]
    gpus: tuple[Gpu, ...]
    strided: bool = False  # whether row strides may be larger than cols
    any_start: bool = False  # whether x and y may be aligned to one element, each differently


def origin(step: str) -> str:
    """Return where an exported kernel comes from, in a sentence."""
    file = split_trial(step).file
    trial = f", as {step}" if file != step else ""
    text = token_hash(load(step).code)
    return f"From {REPO_URL or PROJECT}, kernels/{file}.cu{trial}, text {text}."


def takes_matrix(step: str) -> bool:
    """Return whether a kernel computes one matrix from another, without further arguments."""
    kernel = load(step)
    parameters = {parameter.name for parameter in kernel.parameters}
    return kernel.operation in (SOFTMAX, COPY) and parameters <= MATRIX_PARAMETERS


def is_exportable(step: str) -> bool:
    """Return whether a kernel computes an operation that dispatch knows, or a copy."""
    return load(step).operation.name in (*RANKINGS, COPY.name)


def is_function_name(name: str) -> bool:
    """Return whether a function may have this name in C++ and in Python."""
    plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) and "__" not in name
    return bool(plain) and name not in KEYWORDS and not keyword.iskeyword(name)


def kernels_for(name: str) -> tuple[str, ...]:
    """Return the kernels that a name stands for: those that `choose` may pick for "best", the one
    that it tries first for an operation with features, written like a trial: "softmax-MASK2-LOG1".
    Raises `ValueError` for features that the operation does not have."""
    if name == BEST:
        return tuple(dict.fromkeys(rank.file for rank in SOFTMAX_RANKING))
    trial = split_trial(name)
    if trial.file not in RANKINGS:
        return (name,)
    return (with_features(RANKINGS[trial.file][0].file, dict(trial.changes)),)


def export_request(
    kernel: str,
    shapes: Sequence[str],
    name: str | None = None,
    dtypes: Sequence[str] = (),
    gpus: Sequence[Gpu] = (),
    strided: bool = False,
    any_start: bool = False,
) -> ExportRequest:
    """Return the request for a kernel, checked as far as that is possible without a language.

    `kernel` is a step, a variant, a trial, an operation or "best". A shape is "8192x50257" or
    "1..4096x32000", with another axis "64x1024x3136". The name defaults to that of the operation,
    the dtype to the kernel's first, the GPU to the one in use or an H200. Raises `ExportError`.
    """
    if name is not None and not is_function_name(name):
        raise ExportError(
            f"the name of a function must consist of letters, digits and single _, and must not be "
            f"a reserved word of C++ or Python, got {name!r}"
        )
    try:
        kernels = kernels_for(kernel)
        supported = [load(step).header.dtypes for step in kernels]
        operation = load(kernels[0]).operation
    except (FileNotFoundError, ValueError) as error:
        raise ExportError(str(error)) from None
    if others := [step for step in kernels if not is_exportable(step)]:
        raise ExportError(f"{others[0]} computes {operation.name}, which cannot be exported")
    known = [np.dtype(n) for n in DTYPES if any(np.dtype(n) in dtypes for dtypes in supported)]
    wanted = [np.dtype(n) for n in dtypes] or (known[:1] if kernel == BEST else [supported[0][0]])
    if others := [dtype.name for dtype in wanted if dtype not in known]:
        names = ", ".join(dtype.name for dtype in known)
        raise ExportError(f"{kernel} supports {names}, not {', '.join(others)}")
    return ExportRequest(
        kernels,
        kernel == BEST,
        tuple(parse_shapes(text, operation) for text in shapes),
        operation.name if name is None else name,
        tuple(dict.fromkeys(wanted)),
        tuple(gpus) or (gpu_for_plans(),),
        strided,
        any_start,
    )


def parse_shapes(text: str, operation: Operation = SOFTMAX) -> Shapes:
    """Parse `ROWSxCOLS`, or the sizes of another operation, each a number or LOW..HIGH. Raises
    `ExportError`."""
    sizes = operation.sizes
    found = re.fullmatch("x".join([r"(\d+)(?:\.\.(\d+))?"] * len(sizes)), text)
    if not found:
        example = "1..64x1024x3136" if len(sizes) == 3 else "1..4096x32000"
        form = "x".join(size.upper() for size in sizes)
        raise ExportError(
            f"shapes must be {form}, each a number or LOW..HIGH, such as {example}, got {text!r}"
        )
    numbers = found.groups()
    ranges = [
        Range(int(low), int(high or low))
        for low, high in zip(numbers[::2], numbers[1::2], strict=True)
    ]
    for part in ranges:
        if not 1 <= part.low <= part.high <= MAX_INT:
            raise ExportError(
                f"sizes must be 1 to {MAX_INT}, the lower number first, got {part} in {text!r}"
            )
    return Shapes(*ranges)
