"""How a mask or a bias is broadcast to a matrix."""

from __future__ import annotations

from math import prod


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Return whether NumPy broadcasts one shape to the other."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, wanted) for size, wanted in pairs)


def rows_of(
    shape: tuple[int, ...], to: tuple[int, ...], repeats: bool
) -> tuple[tuple[int, ...], int, int]:
    """Return how an array that broadcasts to a shape is passed to a kernel: (the shape to expand it
    to, its rows, repeat). Row r of the matrix uses its row r // repeat % rows.

    Leading dimensions of size 1 become the modulus. Trailing ones become `repeat`, which is 1 if
    not `repeats`. Dimensions in between are expanded.
    """
    *rows, cols = to
    own = [n for n, size in enumerate(shape[:-1], len(to) - len(shape)) if size != 1]
    first = own[0] if own else len(rows)
    last = own[-1] + 1 if own and repeats else len(rows)
    kept = [size if first <= n < last else 1 for n, size in enumerate(rows)]
    return (*kept, cols), prod(kept), prod(rows[last:])
