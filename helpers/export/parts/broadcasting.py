"""How a mask or a bias is broadcast to a matrix."""

from __future__ import annotations

from math import prod

# ---- masks and biases that are broadcast ---------------------------------------------------------


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether what has a shape is broadcast to another, as NumPy has it."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, wanted) for size, wanted in pairs)


def rows_of(
    shape: tuple[int, ...], to: tuple[int, ...], repeats: bool
) -> tuple[tuple[int, ...], int, int]:
    """(the shape in which it is written out, its rows, how often each repeats) of what is broadcast
    to a shape, as kernels take it: row r of that goes with row r // repeat % rows, and repeat is 1
    unless it `repeats`.

    Dimensions of 1 in front are what % does, those behind what // does; others are written out.
    """
    *rows, cols = to
    own = [n for n, size in enumerate(shape[:-1], len(to) - len(shape)) if size != 1]
    first = own[0] if own else len(rows)
    last = own[-1] + 1 if own and repeats else len(rows)
    kept = [size if first <= n < last else 1 for n, size in enumerate(rows)]
    return (*kept, cols), prod(kept), prod(rows[last:])
