"""How a mask or a bias is broadcast to a matrix, and the diagonal of a causal mask."""

from __future__ import annotations

from math import prod


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Return whether NumPy broadcasts one shape to the other."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(size in (1, wanted) for size, wanted in pairs)


def diagonal_of(is_causal: bool, diagonal: int) -> int | None:
    """Return the diagonal of a causal mask, or None without `is_causal`. It is limited to -2**31 to
    2**31, beyond which no row or column number lies, because kernels add a row number to it in 64
    bits. Raises `ValueError` for a diagonal other than 0 without `is_causal`."""
    if is_causal:
        return max(-(2**31), min(diagonal, 2**31))
    if diagonal != 0:
        raise ValueError(f"diagonal must be 0 without is_causal=True, got {diagonal}")
    return None


def rows_of(
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
