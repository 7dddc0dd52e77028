"""The arrays of a timed problem on the GPU, and the check of its result.

Softmax of x into y shares its arrays with the copy; kernels of other operations get the arrays that
they take, and their bandwidth baseline gets arrays of the same size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..problem.operations import CROSS_ENTROPY_LOSS_AND_GRADIENT, MATRIX, SUMMED
from ..problem.problem import Problem
from ..run.check import WrongResult, check_outputs
from ..run.references import make_inputs, outputs

SAMPLED = 200_000  # approximate number of elements that are checked against fp64


def buffers(problem: Problem, random) -> tuple:
    """The CuPy arrays of a problem: inputs like those of `references.make_inputs`, and outputs
    filled with NaN; bfloat16 as its bits. Those of softmax alone are `with_room`."""
    import cupy

    features, found = dict(problem.features), {}
    x = matrix(random, problem.shape)
    for argument in problem.arrays:
        name, kind = argument.name, argument.numpy_dtype(problem.dtype).name
        shape = problem.array_shape(argument, problem.numbers)
        if argument.output:
            found[name] = cupy.empty(shape, "uint16" if kind == "bfloat16" else kind)
            found[name] = with_room(found[name]) if problem.plain else found[name]
            poison(found[name])
            continue
        if name in ("x", "a") or (name == "y" and features.get("FROM_X")):
            value = x
        elif name == "y":
            value = _softmax(x, features.get("LOG", 0))
        elif name == "mask":
            value = random.random(shape, dtype=cupy.float32) < 0.3
        elif name == "target":
            value = random.integers(0, problem.cols, shape)
        elif name == "statistics":
            value = _statistics(widened(rounded(x, problem.dtype)))
        elif name == "dloss" and problem.operation is CROSS_ENTROPY_LOSS_AND_GRADIENT:
            value = cupy.ones(shape, cupy.float32)  # which is what other libraries compute
        else:
            value = random.standard_normal(shape, dtype=cupy.float32)
        if argument.shape == MATRIX and problem.inner > 1 and value.ndim == 2:
            value = value.reshape(problem.outer, problem.cols, problem.inner)
        found[name] = rounded(value, kind)
        found[name] = with_room(found[name]) if problem.plain else found[name]
    return tuple(found.values())


def host_arrays(problem: Problem) -> dict[str, np.ndarray]:
    """The same as NumPy arrays from `references.make_inputs`, for a small shape on the SIMT
    machine."""
    values = make_inputs(problem)
    every = {**values, **outputs(problem, values)}
    return {array.name: every[array.name] for array in problem.arrays}


def verify(
    problem: Problem,
    numbers: Mapping[str, float],
    given: Sequence,
    check: Callable[..., None] = check_outputs,
    unwritten: Sequence[str] = (),
) -> None:
    """Check the outputs of a kernel for given numbers: every element for NaN, and sampled rows with
    `check` against fp64. `unwritten` outputs are skipped."""
    import cupy

    arrays = {argument.name: array for argument, array in zip(problem.arrays, given, strict=True)}
    asked = [argument for argument in problem.arrays if argument.name not in unwritten]
    place = problem.shape if problem.plain else problem.place()
    for argument in asked:
        if argument.output and bool(has_nan(arrays[argument.name]).any()):
            name = "its output" if problem.plain else argument.name
            raise WrongResult(f"left NaN in {name} at {place}")
    take = _Sample(problem)
    host = {
        one.name: cupy.asnumpy(take(one.shape, arrays[one.name])).view(
            one.numpy_dtype(problem.dtype)
        )
        for one in asked
    }
    outputs = {argument.name: host.pop(argument.name) for argument in asked if argument.output}
    values = problem.complete({**host, **numbers})
    try:
        check(problem.operation, values, outputs, dict(problem.features), take.rows)
    except WrongResult as error:
        raise WrongResult(f"at {place}: {error.summary}", error.values) from None


class _Sample:
    """Evenly spread rows, including the first and the last; for three axes, columns of some."""

    def __init__(self, problem: Problem) -> None:
        rows, cols, inner = self.sizes = *problem.shape, problem.inner
        count = max(3, SAMPLED // cols)
        if inner > 1:
            self.outer = _spread(problem.outer, max(2, count // inner))
            self.inner = _spread(inner, count)
            self.rows = None
        else:
            summed = any(one.shape == ("sums",) for one in problem.operation.arguments)
            self.together = _rows_of_sums(problem.shape) if summed else 1
            first = _spread(rows // self.together, count) * self.together
            self.rows = (first[:, None] + np.arange(self.together)).reshape(-1)

    def __call__(self, shape: Sequence[str], array):
        rows, cols, inner = self.sizes
        if inner > 1:
            return array[self.outer][:, :, self.inner]
        if shape[0] == "rows":
            return array[self.rows]
        if shape == ("sums",):
            groups = self.rows[:: self.together] // self.together
            return array.reshape(rows // self.together, -1)[groups].reshape(-1)
        return array


def _rows_of_sums(shape: tuple[int, int]) -> int:
    """The number of rows per complete set of sums: one if each row has one, all if no number
    fits."""
    rows, cols = shape
    for together in (1, SUMMED // cols):
        if together and together * cols % SUMMED == 0 and rows % together == 0:
            return together
    return rows


def _spread(count: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def matrix(random, shape: tuple[int, int]):
    """Normal values in float32 on the GPU, each row shifted up or down by 100 to 200."""
    import cupy

    x = random.standard_normal(shape, dtype=cupy.float32)
    shifts = random.random((shape[0], 1), dtype=cupy.float32) * 100 + 100
    x += cupy.where(random.random((shape[0], 1)) < 0.5, shifts, -shifts)
    return x


def with_room(matrix):
    """The same matrix in memory with two more elements: a copy moves whole floats, and `later`
    starts one element later."""
    import cupy

    room = cupy.empty(matrix.size + 2, matrix.dtype)
    room[:-2] = matrix.reshape(-1)
    return room[:-2].reshape(matrix.shape)


def later(matrix):
    """A matrix in the memory of one from `with_room` that starts one element later."""
    return matrix.base[1:-1].reshape(matrix.shape)


def _statistics(x):
    """(rows, 2): the maximum of each row and log(sum(exp(x - maximum)))."""
    import cupy

    top = x.max(axis=1, keepdims=True)
    return cupy.concatenate([top, cupy.log(cupy.exp(x - top).sum(axis=1, keepdims=True))], axis=1)


def _softmax(x, log: int):
    import cupy

    top, log_sum = cupy.hsplit(_statistics(x), 2)
    logarithm = x - top - log_sum
    return logarithm if log else cupy.exp(logarithm)


def rounded(x, dtype: str):
    """Convert a float32 array on the GPU, rounding to nearest even; bfloat16 as its bits."""
    import cupy

    if dtype != "bfloat16":
        return x.astype(dtype, copy=False)
    bits = x.view(cupy.uint32)
    bits = bits + (((bits >> 16) & 1) + 0x7FFF)
    return (bits >> 16).astype(cupy.uint16)


def widened(x):
    """The inverse of `rounded`: an array of any dtype as float32."""
    import cupy

    if x.dtype.kind != "u":
        return x.astype(cupy.float32)
    return (x.astype(cupy.uint32) << 16).view(cupy.float32)


def poison(y) -> None:
    """Fill an output with NaN, so that unwritten elements are visible."""
    y.fill(0x7FFF if y.dtype.kind == "u" else np.nan)


def has_nan(y):
    """Elementwise whether an array on the GPU is NaN."""
    import cupy

    return (y & 0x7FFF) > 0x7F80 if y.dtype.kind == "u" else cupy.isnan(y)


def rotations(problem: Problem, l2_bytes: int) -> int:
    """The number of sets of arrays, at least two, that exceed three times the L2 cache."""
    return max(2, math.ceil(3 * l2_bytes / problem.compulsory_bytes))
