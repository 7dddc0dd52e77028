"""Families of matrix shapes (rows, cols) that are recorded, compared, profiled and checked.

2^28 elements are 1 GiB of float32. Tables and figures refer to the families by name:

    "grid"   2^28 elements, rows of 32 to 32768 columns
    "long"   the grid and, on the same axis, long rows of up to 1048576 columns
    "few"    few rows: too little work to fill a GPU
    "sweep"  4096 rows of 256 to 12672 columns, the plot of Triton's fused-softmax tutorial
    "square"  8192 rows of 8192 columns: attention scores, half of them hidden by a causal mask
    "vocabularies"  4096 rows of logits, for the loss of a language model
    "axes"   about 2^28 elements of outer x dim x inner: softmax along the middle axis
    "unaligned"  about 2^28 elements, unaligned rows of 33 to 128257 columns: most do not start at a
             multiple of 16 bytes

predictions.json, which says at which shapes a step is recorded, uses two more names:

    "fused"  the shapes of the grid and the long rows whose length is in `FUSED_COLUMNS`
    "few unaligned"  `UNALIGNED_FEW`
"""

from __future__ import annotations

from .problem import Problem

Shape = tuple[int, int]

REFERENCE_SHAPE = (65536, 4096)  # at which predictions are made and steps are compared

# ---- recorded ---------------------------------------------------------------------------------

GRID_SHAPES = tuple((2**28 // cols, cols) for cols in (2**k for k in range(5, 16)))
LONG_SHAPES = tuple((2**28 // cols, cols) for cols in (2**k for k in range(16, 21)))
FEW_SHAPES = ((1, 32000), (4, 102400), (16, 131072), (128, 65536), (1, 1048576))
# Row counts at which a row per grid and persistent clusters take about the same time.
CROSSOVER_SHAPES = ((4, 2**20), (7, 2**20), (16, 2**20))
EVEN_SHAPE = (252, 2**20)  # rows divide evenly among the seven persistent clusters of some kernels
SWEEP_SHAPES = tuple((4096, cols) for cols in range(256, 12673, 128))
# Even numbers of rows, which the 16-bit copy requires.
UNALIGNED_SHAPES = tuple(
    (2**27 // cols * 2, cols)
    for cols in (33, 77, 129, 513, 1023, 4097, 12673, 32001, 50257, 128257)
)
UNALIGNED_FEW = ((65536, 77), (1, 50257))
# Row lengths and shapes of fused and related operations.
FUSED_COLUMNS = (512, 1024, 4096, 8192, 32768, 131072)
SQUARE_SHAPE = (8192, 8192)
VOCABULARY_SHAPES = tuple((4096, cols) for cols in (32000, 50257, 128256, 151936, 262144))
# (rows, dim, inner) with rows = outer * inner.
AXES = tuple(
    (2**28 // (dim * inner) * inner, dim, inner)
    for inner, dims in (
        *((2, (64, 512, 8192)), (3, (512,)), (7, (64, 512)), (16, (512, 8192)), (31, (512,))),
        *((32, (16, 512, 8192)), (64, (64, 512)), (100, (64, 512)), (256, (64, 512, 8192))),
        *((1024, (16, 64, 512, 2048, 8192)), (4096, (16, 512, 8192))),
    )
    for dim in dims
)
RECORDED_SHAPES = (
    *(*GRID_SHAPES, *LONG_SHAPES, *FEW_SHAPES, *CROSSOVER_SHAPES, EVEN_SHAPE, *SWEEP_SHAPES),
    *(*UNALIGNED_SHAPES, *UNALIGNED_FEW, SQUARE_SHAPE, *VOCABULARY_SHAPES),
)

# Row lengths that a live notebook times, with as many rows as fit in memory.
LIVE_COLUMNS = {
    "grid": (32, 128, 512, 1024, 4096, 32768),
    "long": (1024, 4096, 32768, 131072, 2**18),
    "unaligned": (1023, 4097, 12673, 32001, 50257, 128257),
    "vocabularies": (32000, 50257, 128256, 151936, 262144),
}
LIVE_AXES = ((512, 2), (512, 7), (64, 1024), (512, 1024), (2048, 1024), (512, 4096))  # (dim, inner)

# ---- compared ------------------------------------------------------------------------------------

# Vocabulary sizes of language models, of which the second (50257) is not padded to a power of two;
# attention scores, in 16 bits; unaligned rows, with about as many elements as the last family but
# even numbers of rows, which the 16-bit copy requires.
VOCABULARIES = (32000, 50257, 128256, 151936, 262144)
ATTENTION_SHAPES = tuple((131072, cols) for cols in (128, 512, 2048, 8192))
COMPARED_FAMILIES = {  # in the order in which they are compared
    "few rows": FEW_SHAPES,
    "vocabularies": tuple((rows, cols) for cols in VOCABULARIES for rows in (1, 8, 64, 4096)),
    "rows that start anywhere": (
        *((8192, 50257), (65536, 77)),
        *((2**27 // cols * 2, cols) for cols in (77, 129, 1000, 1023, 4097, 12673, 50257, 128257)),
    ),
    "medium sizes": (
        *((8192, cols) for cols in (1024, 4096, 8192, 50304)),
        *((4096, cols) for cols in (256, 1024, 4096, 12672)),
    ),
    "attention": ATTENTION_SHAPES,
    "2^28 elements": tuple(
        (2**28 // cols, cols) for cols in (32, *(2**k for k in range(7, 19) if k != 8), 2**20)
    ),
}
COMPARED_TABLE = tuple(dict.fromkeys(("2^28 elements", "medium sizes", *COMPARED_FAMILIES)))
COMPARED_SHAPES = tuple(
    dict.fromkeys(shape for name in COMPARED_TABLE for shape in COMPARED_FAMILIES[name])
)  # without duplicates


def compared_family(rows: int, cols: int) -> str:
    """Return the first family of the table that contains a compared shape; "" if none does, as for
    a shape given on the command line."""
    families = (name for name in COMPARED_TABLE if (rows, cols) in COMPARED_FAMILIES[name])
    return next(families, "")


def compared_shapes(dtype: str) -> tuple[Shape, ...]:
    """Return the shapes at which a dtype is compared."""
    only_16_bit = set(ATTENTION_SHAPES) - set(COMPARED_FAMILIES["2^28 elements"])
    return tuple(
        shape for shape in COMPARED_SHAPES if dtype != "float32" or shape not in only_16_bit
    )


# ---- in a pipeline ----------------------------------------------------------------------------

# From launch-bound to far beyond the L2, 0.1 MB to 1.6 GB, denser around the capacity of the L2;
# short, medium and long rows of each size.
PIPELINE_SHAPES = (
    *((1, 32000), (4, 102400), (1, 2**20), (16, 131072)),
    *((4096, 256), (65536, 256), (2**18, 256), (2**21, 128)),
    *((4096, 1024), (8192, 1024), (2**18, 1024)),
    *((4096, 4096), (6144, 4096), (8192, 4096), REFERENCE_SHAPE),
    *((8192, 8192), (2**14, 2**14), (512, 32768), (8192, 50304)),
    *((128, 65536), (1024, 65536), (2048, 2**17), (32, 2**20), (256, 2**20)),
)

# ---- profiled ---------------------------------------------------------------------------------

SMALL_SHAPES = ((64, 1024), (129, 77), (1000, 100))
LARGE_SHAPES = ((8388608, 32), (262144, 1024), REFERENCE_SHAPE, (16384, 16384))  # 2^28 elements
# Also profiled for steps that are not recorded at the sweep.
SMALL_LONG_SHAPES = ((3, 20004), (1, 32000))
LARGE_LONG_SHAPES = ((1024, 262144), (256, 1048576))
LARGE_UNALIGNED_SHAPES = ((5340, 50257),)  # for steps recorded at "few unaligned"
SMALL_16_BIT_SHAPES = ((64, 1024), (129, 72), (3, 20000))

# ---- checked ----------------------------------------------------------------------------------

# Cheap shapes that catch the usual mistakes: one column, one row, lengths around a warp, odd
# lengths, row counts around a block.
QUICK_SHAPES = ((1, 1), (3, 7), (129, 31), (128, 32), (5, 33), (257, 65), (64, 256), (33, 1000))
# Also for a kernel that is compiled per shape and may accept only long rows.
LONG_QUICK_SHAPES = ((3, 20000), (1, 32001))
# outer x dim x inner: dim 1 and larger, inner with and without whole packs, dims around a warp.
QUICK_AXES = (
    *((1, 1, 2), (3, 7, 5), (2, 33, 31), (5, 16, 32), (1, 130, 8), (3, 64, 100), (1, 1000, 3)),
)
# Lengths of rows with infinities and NaN; `SPECIAL_PACKS` is for a kernel that accepts only short
# rows of whole packs.
SPECIAL_COLUMNS = (5, 100, 20000)
SPECIAL_PACKS = 64
SPECIAL_INNER = 4  # `inner` of such rows, if softmax is along another axis


def family_of(problem: Problem) -> str:
    """Return the family of a recorded shape; "other" if no figure shows it. A smaller GPU records
    the grid and the long rows with fewer rows, so only their columns distinguish them."""
    rows, cols = problem.shape
    if problem.inner > 1:
        return "axes"
    if (rows, cols) == SQUARE_SHAPE or (rows, cols) in VOCABULARY_SHAPES:
        return "square" if (rows, cols) == SQUARE_SHAPE else "vocabularies"
    if (rows, cols) in FEW_SHAPES:
        return "few"
    if (rows, cols) in (*CROSSOVER_SHAPES, EVEN_SHAPE, *UNALIGNED_FEW):
        return "other"
    if any(cols == unaligned for _, unaligned in UNALIGNED_SHAPES):
        return "unaligned"
    if (rows, cols) in SWEEP_SHAPES:
        return "sweep"
    return "grid" if cols <= GRID_SHAPES[-1][1] else "long"
