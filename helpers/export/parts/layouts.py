"""How rows lie in memory, and how a mask or a bias is broadcast to them."""

from __future__ import annotations

from math import prod  # [best]


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


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:  # [best]
    """Return whether NumPy broadcasts one shape to the other."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, wanted) for size, wanted in pairs)


def diagonal_of(is_causal: bool, diagonal: int) -> int | None:  # [best]
    """Return the diagonal of a causal mask, or None without `is_causal`. It is limited to -2**31 to
    2**31, beyond which no row or column number lies, because kernels add a row number to it in 64
    bits. Raises `ValueError` for a diagonal other than 0 without `is_causal`."""
    if is_causal:
        return max(-(2**31), min(diagonal, 2**31))
    if diagonal != 0:
        raise ValueError(f"diagonal must be 0 without is_causal=True, got {diagonal}")
    return None


def rows_of(  # [best]
    name: str, shape: tuple[int, ...], to: tuple[int, ...]
) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return how a mask or a bias that broadcasts to a shape is passed to a kernel: the shape to
    expand it to, and numbers by name. Row r of the matrix uses its row r // group * rows +
    r // repeat % rows.

    Nothing is expanded over up to three leading dimensions. If there are more, dimensions of size 1
    between others are, unless they follow each other and all others before them are kept.
    """
    *rows, cols = to
    kept = [*(1,) * (len(to) - len(shape)), *shape[:-1]]
    own = [n for n, size in enumerate(kept) if size != 1]
    first, last = (own[0], own[-1] + 1) if own else (0, 0)
    gap = [n for n in range(first, last) if kept[n] != rows[n]]
    numbers = {"rows": prod(kept), "repeat": prod(rows[last:]), "group": prod(rows)}
    if gap:
        follow = prod(kept[gap[0] : gap[-1]]) == 1
        if follow and prod(rows[:first]) == 1:
            numbers |= {"rows": prod(kept[gap[-1] :]), "group": prod(rows[gap[0] :])}
        else:
            kept[first:last] = rows[first:last]
            numbers["rows"] = prod(kept)
    return (*kept, cols), {f"{name}_{key}": number for key, number in numbers.items()}
