"""Families of matrix shapes, (rows, cols): recorded, compared, profiled and checked.

"2^28 elements" is 1 GiB of float32. The families have names that tables and figures use:

    "grid"   2^28 elements, rows of 32 to 32768 columns
    "long"   the grid and, on the same axis, the long rows of up to 1048576 columns
    "few"    few rows: too little work to fill a GPU
    "sweep"  4096 rows of 256 to 12672 columns, the plot of many tutorials
    "square"  8192 rows of 8192 columns: attention scores, half of them hidden by a causal mask
    "vocabularies"  4096 rows of logits, for the loss of a language model
    "axes"   2^28 elements, or nearly, of outer x dim x inner: softmax along the middle
    "unaligned"  nearly 2^28 elements, unaligned rows of 33 to 128257 columns

predictions.json, which says where a step is recorded, has two more names:

    "fused"  shapes of the grid and the long rows with a length of `FUSED_COLUMNS`
    "few unaligned"  `UNALIGNED_FEW`
"""

from __future__ import annotations

from .problem import Problem

Shape = tuple[int, int]

REFERENCE_SHAPE = (65536, 4096)  # the shape of predictions and of comparisons between steps

# ---- recorded ---------------------------------------------------------------------------------

GRID_SHAPES = tuple((2**28 // cols, cols) for cols in (2**k for k in range(5, 16)))
LONG_SHAPES = tuple((2**28 // cols, cols) for cols in (2**k for k in range(16, 21)))
FEW_SHAPES = ((1, 32000), (4, 102400), (16, 131072), (128, 65536), (1, 1048576))
# Rows of a million columns, as many as take a grid and persistent clusters about the same time.
CROSSOVER_SHAPES = ((4, 2**20), (7, 2**20), (16, 2**20))
EVEN_SHAPE = (252, 2**20)  # rows divisible among seven clusters, for kernels that have seven
SWEEP_SHAPES = tuple((4096, cols) for cols in range(256, 12673, 128))
# With even numbers of rows, which the copy requires for 16 bits.
UNALIGNED_SHAPES = tuple(
    (2**27 // cols * 2, cols)
    for cols in (33, 77, 129, 513, 1023, 4097, 12673, 32001, 50257, 128257)
)
UNALIGNED_FEW = ((65536, 77), (1, 50257))
# For fused and related operations.
FUSED_COLUMNS = (512, 1024, 4096, 8192, 32768, 131072)
SQUARE_SHAPE = (8192, 8192)
VOCABULARY_SHAPES = tuple((4096, cols) for cols in (32000, 50257, 128256, 151936, 262144))
# (rows, dim, inner), rows being outer * inner.
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

# Timed by a live notebook, with as many rows as fit in memory.
LIVE_COLUMNS = {
    "grid": (32, 128, 512, 1024, 4096, 32768),
    "long": (1024, 4096, 32768, 131072, 2**18),
    "unaligned": (1023, 4097, 12673, 32001, 50257, 128257),
    "vocabularies": (32000, 50257, 128256, 151936, 262144),
}
LIVE_AXES = ((512, 2), (512, 7), (64, 1024), (512, 1024), (2048, 1024), (512, 4096))  # (dim, inner)

# ---- compared ------------------------------------------------------------------------------------

# Vocabularies of language models (the second is not padded to a power of two); attention scores in
# 16 bits; unaligned rows with about as many elements as the first family, and an even number of
# rows, which the copy requires for 16 bits.
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
)  # each once


def compared_family(rows: int, cols: int) -> str:
    """The first family in the table that contains a compared shape; "" for any other shape."""
    found = (name for name in COMPARED_TABLE if (rows, cols) in COMPARED_FAMILIES[name])
    return next(found, "")


def compared_shapes(dtype: str) -> tuple[Shape, ...]:
    """The shapes at which softmax of a dtype is compared."""
    alone = set(ATTENTION_SHAPES) - set(COMPARED_FAMILIES["2^28 elements"])
    return tuple(shape for shape in COMPARED_SHAPES if dtype != "float32" or shape not in alone)


# ---- in a pipeline ----------------------------------------------------------------------------

# From sizes dominated by the launch to sizes that exceed every cache, 0.1 MB to 1.6 GB, and denser
# around the size of the L2; short, medium and long rows of each size.
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
# Also for steps that are not recorded at the sweep.
SMALL_LONG_SHAPES = ((3, 20004), (1, 32000))
LARGE_LONG_SHAPES = ((1024, 262144), (256, 1048576))
LARGE_UNALIGNED_SHAPES = ((5340, 50257),)  # for steps recorded at few unaligned rows
SMALL_16_BIT_SHAPES = ((64, 1024), (129, 72), (3, 20000))

# ---- checked ----------------------------------------------------------------------------------

# Shapes that catch the usual mistakes and cost little: one column, one row, lengths around a
# warp, odd lengths, row counts around a block.
QUICK_SHAPES = ((1, 1), (3, 7), (129, 31), (128, 32), (5, 33), (257, 65), (64, 256), (33, 1000))
# In addition for a kernel that is compiled for each shape: it may accept long rows only.
LONG_QUICK_SHAPES = ((3, 20000), (1, 32001))
# outer x dim x inner: inner of one and many, a multiple of a pack or not, dims around a warp.
QUICK_AXES = (
    *((1, 1, 2), (3, 7, 5), (2, 33, 31), (5, 16, 32), (1, 130, 8), (3, 64, 100), (1, 1000, 3)),
)
# Columns of rows with infinities and NaN; the last for a kernel that only accepts short rows of
# whole packs.
SPECIAL_COLUMNS = (5, 100, 20000)
SPECIAL_PACKS = 64
SPECIAL_INNER = 4  # inner, for such rows along another axis


def family_of(problem: Problem) -> str:
    """The family of a recorded shape; "other" if no figure shows it. A smaller GPU records the grid
    and the long rows with fewer rows, so the number of columns distinguishes these two."""
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
