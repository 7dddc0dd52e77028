"""How rows lie in memory."""

from __future__ import annotations


def row_stride(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """Return the row stride of an array with these strides, in elements; cols for a single row.

    Returns None if there is no single stride, if rows overlap, or if a row is not contiguous.
    """
    *rows, cols = shape
    if cols > 1 and strides[-1] != 1:
        return None
    found, end = cols, None
    for count, stride in zip(reversed(rows), reversed(strides[:-1]), strict=True):
        if count == 1:  # its stride does not matter
            continue
        if end is None:
            found = stride
        elif stride != end:
            return None
        end = stride * count
    return found if found >= cols else None
