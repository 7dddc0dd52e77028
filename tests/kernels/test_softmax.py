"""Every kernel of the series computes what it should: on the SIMT machine, and live on a GPU."""

import itertools
from collections.abc import Iterable, Iterator

import cupy
import numpy as np
import pytest

from helpers.base.gpu import H200, Gpu
from helpers.catalogue.header import header
from helpers.catalogue.registry import source, steps, variants
from helpers.problem.operations import COPY, SOFTMAX
from helpers.problem.problem import Problem
from helpers.run.bound import Kernel, bind, load
from helpers.run.check import check_copy, check_softmax, strided_copy
from helpers.run.launch import UNTOUCHED
from helpers.run.references import make_input, poisoned, special_rows

pytestmark = pytest.mark.usefixtures("replay_unless_live")

CODE = {name: source(f"{name}.cu") for name in [*steps(), *variants()]}
CONTRACT = {name: header(code) for name, code in CODE.items()}
# Those of other operations, or made for a feature, are in test_operations.py.
NAMES = [
    name for name, one in CONTRACT.items() if one.operation in (SOFTMAX, COPY) and not one.made_for
]
PER_SHAPE = [name for name in NAMES if CONTRACT[name].build]
DTYPES = ("float32", "float16", "bfloat16")
SIXTEEN_BIT_DTYPES = DTYPES[1:]
SIXTEEN_BIT = [name for name in NAMES if any(d.itemsize == 2 for d in CONTRACT[name].dtypes)]
STRIDED = [name for name in NAMES if CONTRACT[name].strided]
# Columns below, at and above a vector, a warp and a block, and few or many rows; at most 2^18
# elements. Where a thread computes a row, time follows the columns.
SHAPES = (
    *((1, 1), (2**18, 1), (33, 4), (4097, 7), (257, 31), (8192, 32), (5, 33), (2, 257)),
    *((64, 1024), (5, 4097)),
)
# Beside them for kernels that are compiled for each shape, and for 16 bits.
LONG_SHAPES = ((1, 32001), (2, 65544), (1, 2**18))
SIXTEEN_BIT_SHAPES = (
    *((1, 1), (33, 4), (257, 31), (5, 33), (33, 520), (64, 1024), (3, 4097), (3, 20000)),
    *((1, 32001), (1, 131072)),
)
SPECIAL_COLS = (33, 264, 20000)  # of rows with infinities, NaN and large numbers
BLOCKS = (32, 1024)

LIVE_COLS = (
    *(1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 77, 100, 127, 128, 129),
    *(255, 256, 257, 500, 512, 1000, 1024, 1025, 2047, 2048, 2049, 4096, 4097),
    *(8192, 12672, 16384, 32768, 65537, 131072),
)
LIVE_ROWS = (1, 5, 33, 128, 1000, 4097)
LIVE_SHAPES = [(r, c) for c in LIVE_COLS for r in LIVE_ROWS if r * c <= 2**26]
CHECKED = 2**20  # elements of a live result that go through the fp64 reference, in whole rows

each_kernel = pytest.mark.parametrize("name", NAMES)


def allows(name: str, block: int) -> bool:
    """Whether a kernel may be launched with blocks of another size, and of this one."""
    try:
        CONTRACT[name].plan(Problem(37, 132), block=block)
    except ValueError:
        return False
    return "block ==" not in CONTRACT[name].fields["Launch"]


each_block = pytest.mark.parametrize(
    ("name", "block"), [(name, block) for block in BLOCKS for name in NAMES if allows(name, block)]
)


def computed(name: str, x: np.ndarray, block: int | None = None) -> np.ndarray:
    """What the kernel gives for x; NaN where it wrote nothing."""
    y = poisoned(x)
    bind(CODE[name], *x.shape, x.dtype, block).run(x, y)
    return y


def check(name: str, x: np.ndarray, y: np.ndarray) -> None:
    (check_copy if CONTRACT[name].operation is COPY else check_softmax)(x, y)


def complaint(name: str, x: np.ndarray, block: int | None = None) -> str:
    """What is wrong with what the kernel gives for x, and at which shape; empty if nothing is."""
    kept = x.copy()
    try:
        check(name, x, computed(name, x, block))
        assert x.tobytes() == kept.tobytes(), "x was written"
    except Exception as error:
        return f"{x.shape[0]} x {x.shape[1]} {x.dtype}: {type(error).__name__}: {error}"
    return ""


def check_all(name: str, matrices: Iterable[np.ndarray]) -> None:
    """Each of those that the header takes; one at least."""
    contract = CONTRACT[name]
    taken = [x for x in matrices if contract.accepts(Problem(*x.shape, x.dtype))]
    if not taken:
        pytest.skip(f"the header says {contract.fields['Columns']}, {contract.fields['Dtype']}")
    wrong = [said for x in taken if (said := complaint(name, x))]
    assert not wrong, "\n".join(wrong)


# ---- on the SIMT machine ----------------------------------------------------------------------

MOST_THREADS = 2**14  # of a launch where a block computes a row: every block does the same


def fitting(name: str, rows: int, cols: int, block: int | None = None) -> int:
    """As many of the rows as tell something: few where a block computes a row, or one after the
    other."""
    plan = CONTRACT[name].plan(Problem(rows, cols), block=block)
    if plan.cooperative:
        return min(rows, 2 * plan.grid + 1)
    return min(rows, MOST_THREADS // plan.block + 1) if plan.grid == rows else rows


def inputs(name: str) -> Iterator[np.ndarray]:
    """All shapes for a step; every third for a variant, which shares most of its code with one. The
    dtypes of 16 bits differ in how a number is converted, so they share the shapes."""
    shapes = [*SHAPES, *(LONG_SHAPES if name in PER_SHAPE else ())]
    # The loop of one thread over 1000 columns is that over more.
    if CONTRACT[name].fields["Row"].startswith("one thread"):
        shapes = [shape for shape in shapes if shape[1] <= 1000]
    if "thread0" in name:  # one thread of each block merges all pairs, which takes its time
        shapes = [shape for shape in shapes if shape[0] <= 33]
    shapes = [shape for shape in shapes if CONTRACT[name].accepts(Problem(*shape))]
    for rows, cols in shapes[:: 3 if name in variants() else 1]:
        yield make_input(fitting(name, rows, cols), cols)
    taken = [
        s for s in SIXTEEN_BIT_SHAPES if CONTRACT[name].accepts(Problem(*s, SIXTEEN_BIT_DTYPES[0]))
    ]
    if len(taken) < 4:
        taken = [shape for shape in taken for _ in SIXTEEN_BIT_DTYPES]
    for number, shape in enumerate(taken):
        yield make_input(*shape, dtype=SIXTEEN_BIT_DTYPES[number % 2])


@each_kernel
def test_results_are_right(name: str) -> None:
    check_all(name, inputs(name))


def large_rows(cols: int, dtype: str) -> np.ndarray:
    """Rows of ten small columns with the others masked, of nothing but masks, and of large columns:
    whatever multiplies a column by log2(e) before it subtracts must not overflow, nor round."""
    random = np.random.default_rng(0)
    masks = [-1e4] if dtype == "float16" else [-1e4, -1e9, -1.1e10, -1e20, -1e30, -3.38e38]
    scales = [1e3] if dtype == "float16" else [1e7, 3e8, 1e9, 1e10, 1e20, 1e37]
    rows = [np.full(cols, mask) for mask in masks]
    for row in [row.copy() for row in rows]:
        row[random.choice(cols, 10, replace=False)] = random.normal(size=10)
        rows.append(row)
    rows += [random.normal(size=cols) * scale for scale in scales]
    rows += [np.full(cols, -mask) for mask in masks]
    return np.array(rows).astype(make_input(1, 1, dtype=dtype).dtype)


def close_rows(cols: int) -> np.ndarray:
    """A row of two columns that are neighbours just below 2^30, in different threads: what is added
    to a maximum must be exact."""
    row = np.full((1, cols), -(2.0**30), np.float32)
    row[0, [0, -1]] = 2**30 - 192, 2**30 - 256
    return row


def extreme_rows() -> np.ndarray:
    """Ascending and descending rows move an online maximum at every column and at none."""
    ramp, largest = np.linspace(-300, 300, 64), float(np.finfo(np.float32).max)
    rows = [ramp, ramp[::-1], np.full(64, largest), np.full(64, -1e38), np.zeros(64)]
    rows.append(np.where(np.arange(64) == 63, largest, 0))
    rows.append(np.where(np.arange(64) % 2, 1e-40, -1e-40))  # subnormals
    return np.array(rows, np.float32)


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype.name) for name in NAMES for dtype in CONTRACT[name].dtypes]
)
def test_special_and_large_rows_are_right(name: str, dtype: str) -> None:
    """Infinities, NaN, masks and columns whose product with log2(e) is no number."""
    lengths = [*SPECIAL_COLS]
    if name not in PER_SHAPE:  # compiled once; a loop over 264 columns is that over more
        lengths = lengths[1:2] if "thread0" in name else lengths[:2]
    if name in steps() and dtype == "float32":
        lengths += [4]
    matrices = [special_rows(cols, dtype) for cols in lengths]
    if CONTRACT[name].operation is SOFTMAX:
        long = [cols for cols in lengths if cols >= 100]
        taken = [cols for cols in long if CONTRACT[name].accepts(Problem(6, cols, dtype))]
        matrices += [large_rows(cols, dtype) for cols in taken[:2]]
        matrices += [close_rows(cols) for cols in long if dtype == "float32"]
    check_all(name, matrices + ([extreme_rows()] if dtype == "float32" else []))


@each_block
def test_result_is_right_with_another_block_size(name: str, block: int) -> None:
    if "thread0" in name and block > 64:
        pytest.skip("one thread merges all pairs, a second and more for each shape")
    block_a_row = CONTRACT[name].fields["Row"].startswith("one block")
    for rows, cols in ((1, 5), (37, 132), (1025, 33), *([] if block_a_row else [(2049, 4)])):
        if CONTRACT[name].accepts(Problem(rows, cols)):
            x = make_input(fitting(name, rows, cols, block), cols)
            check(name, x, computed(name, x, block))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in STRIDED])
def test_rows_may_start_anywhere_that_the_header_allows(name: str) -> None:
    """A view `Align` bytes into its base: too little asked for is a misaligned access. Kernels that
    take rows which are apart have layouts of their own."""
    contract = CONTRACT[name]
    shapes = (*((3, 32), (5, 7)), *([(3, 20000), (1, 32001)] if contract.build else []))
    runs = [(*shape, dtype) for shape in shapes for dtype in contract.dtypes]
    for rows, cols, dtype in runs:
        if contract.accepts(Problem(rows, cols, dtype)):
            size, items = rows * cols, contract.align(dtype) // dtype.itemsize
            x, y = (
                np.full(items + size, np.nan, dtype)[items:].reshape(rows, cols) for _ in range(2)
            )
            x[:] = make_input(rows, cols, dtype=dtype)
            bind(CODE[name], rows, cols, dtype).run(x, y)
            check(name, x, y)


LAYOUTS = {  # elements between the rows of x and y, and where these start
    "apart": ((5, 2), (1, 3)),
    "apart by a pack": ((8, 16), (0, 0)),
    "x apart": ((3, 0), (0, 2)),
    "shifted": ((0, 0), (3, 1)),
    "shifted alike": ((0, 0), (5, 5)),
}


def check_layout(name: str, x: np.ndarray, layout: str) -> None:
    """Softmax of rows that are apart or start anywhere, into such rows; nothing else is written."""
    gaps, phases = LAYOUTS[layout]
    strides = [x.shape[1] + gap for gap in gaps]
    y = strided_copy(poisoned(x), strides[1], phases[1], UNTOUCHED)
    before = y.base.copy()
    given = strided_copy(x, strides[0], phases[0])
    kernel = Kernel(CODE[name]).starting_at(given, y)
    strides = dict(zip(("x_stride", "y_stride"), strides, strict=True))
    kernel.bind(*x.shape, x.dtype, **strides).run(given, y)
    check(name, x, y)
    y[:] = poisoned(x)
    assert y.base.tobytes() == before.tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", STRIDED)
def test_rows_that_are_apart_are_right(name: str, layout: str) -> None:
    """Each number of columns in one dtype; another one where no row begins apart from the last. Of
    the last, in 16 bits, a row may begin and end within a word."""
    first = int(layout.startswith("shifted"))
    for number, cols in enumerate((33, 257, 1001, 131073, 78), first):
        rows, dtype = 37 if cols < 300 else 2, DTYPES[number % 3]
        usual = make_input(rows, cols, dtype=dtype)
        x = special_rows(cols, dtype) if 300 < cols < 10000 else usual
        if CONTRACT[name].accepts(Problem(*x.shape, dtype)):
            check_layout(name, x, layout)


STAYS = "08_ahead"  # clusters of it take row after row


def check_few(x: np.ndarray, clusters: int) -> None:
    """Of so few clusters that each has more rows than one."""
    bound = Kernel(CODE[STAYS], changes=(("clusters", clusters),)).bind(*x.shape, x.dtype)
    y = poisoned(x)
    findings = bound.simulate(x, y).findings
    check_softmax(x, y)
    assert not findings


@pytest.mark.parametrize(
    ("rows", "cols", "dtype"),
    [
        (5, 9000, "float32"),
        (7, 20000, "float32"),
        (6, 20000, "float16"),
        (5, 40008, "bfloat16"),
        (5, 65536, "float32"),
        (3, 300000, "float32"),
    ],
)
def test_clusters_that_stay_take_row_after_row(rows: int, cols: int, dtype: str) -> None:
    """Few enough that each of them has a first row, one between and a last one."""
    check_few(make_input(rows, cols, dtype=dtype), 1 + (rows > 3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_special_row_does_not_change_the_next(dtype: str) -> None:
    cols = 9000 if dtype == "float32" else 20000
    for x in (special_rows(cols, dtype), large_rows(cols, dtype)):
        check_few(x, 1)


@pytest.mark.parametrize("name", ["variants/00_copy_bulk", "variants/00_copy_persistent"])
def test_a_block_copies_more_tiles_than_it_has_room_for(name: str) -> None:
    x = make_input(31, 4096)
    y = poisoned(x)
    gpu = Gpu(H200.capability, 2, H200.l2)
    findings = Kernel(CODE[name]).bind(*x.shape, x.dtype, gpu).simulate(x, y).findings
    check_copy(x, y)
    assert not findings


def computed_in_groups(
    x: np.ndarray, sms: int = H200.sms, code: str = CODE["09_grid"], **changes: int
) -> tuple:
    """(y, findings, workspace) of a kernel whose blocks exchange results through global memory."""
    gpu = Gpu(H200.capability, sms, H200.l2)
    kernel = Kernel(code, changes=tuple(changes.items()))
    bound = kernel.bind(*x.shape, x.dtype, gpu)
    *_, workspace = values = bound.arguments(x, poisoned(x))
    findings = bound.simulate_arguments(values).findings
    return values[1], findings, workspace


@pytest.mark.parametrize(("sms", "changes"), [(1, {}), (4, {}), (4, {"BLOCKS": 2})], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_groups_of_blocks_take_row_after_row(dtype: str, sms: int, changes) -> None:
    for x in (make_input(7, 20000, dtype=dtype), special_rows(20000, dtype)):
        y, findings, workspace = computed_in_groups(x, sms, **changes)
        check_softmax(x, y)
        assert not findings and not workspace.any()


def test_a_row_may_have_more_blocks_than_a_warp_has_lanes() -> None:
    x = make_input(1, 200000)
    y, findings, workspace = computed_in_groups(x, few_packs=1)
    assert len(workspace) > 8 * 32**2
    check_softmax(x, y)
    assert not findings and not workspace.any()


@pytest.mark.parametrize(
    ("name", "cols", "dtype"),
    [
        *(("08_cluster", 1000, "float32"), ("08_cluster", 20000, "float16")),
        *((STAYS, 20000, "float32"), (STAYS, 20000, "bfloat16")),
        *(("09_grid", 20000, "bfloat16"), ("10_sixteen_bit", 1000, "float16")),
    ],
)
def test_what_is_asked_of_caches_changes_no_result(name: str, cols: int, dtype: str) -> None:
    """Each of three sets of loads, and of two of stores."""
    results = []
    for trial in ("STREAMING0", "STREAMING1", "EVICT_LAST0", "EVICT_LAST1"):
        if trial[:-1] not in header(CODE[name]).macros:
            continue
        x = make_input(3, cols, dtype=dtype)
        results.append(poisoned(x))
        trace = load(f"{name}-{trial}").bind(3, cols, dtype).simulate(x, results[-1])
        check_softmax(x, results[-1])
        assert not trace.findings
        read, written = trace.counters.passes(x.size, x.itemsize)
        assert 1 <= read < 1.1 and 1 <= written < 1.1
    assert len(results) >= 2 and all(np.array_equal(results[0], other) for other in results)


# ---- live -------------------------------------------------------------------------------------


def check_live(name: str, x: np.ndarray, y: np.ndarray) -> None:
    """Every element for NaN, and as many rows, evenly spread, as fit in `CHECKED` elements."""
    assert not np.isnan(y).any(), f"{name} left NaN at {x.shape}"
    rows, cols = x.shape
    count = max(2, min(rows, CHECKED // cols))
    sample = np.unique(np.linspace(0, rows - 1, count).astype(int))
    check(name, x[sample], y[sample])


@pytest.mark.gpu
@pytest.mark.parametrize("cols", LIVE_COLS)
def test_live_results_are_right(cols: int) -> None:
    for rows in (rows for rows, columns in LIVE_SHAPES if columns == cols):
        x = make_input(rows, cols)
        for name in NAMES:
            if CONTRACT[name].accepts(Problem(rows, cols)):
                check_live(name, x, computed(name, x))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", SIXTEEN_BIT_DTYPES)
@pytest.mark.parametrize("name", SIXTEEN_BIT)
def test_live_16_bit_results_are_right(name: str, dtype: str) -> None:
    for rows, cols in itertools.product((1, 33, 4097), (*LIVE_COLS, 2**18, 2**20)):
        if rows * cols <= 2**25 and CONTRACT[name].accepts(Problem(rows, cols, dtype)):
            x = make_input(rows, cols, dtype=dtype)
            check_live(name, x, computed(name, x))


@pytest.mark.gpu
@each_kernel
def test_live_special_and_large_rows_are_right(name: str) -> None:
    for dtype in CONTRACT[name].dtypes:
        for cols in (1, 2, 5, 33, 64, 100, 257, 1000, 1024, 4097, 20000, 131072):
            matrices = [special_rows(cols, dtype)]
            if cols >= 100 and CONTRACT[name].operation is SOFTMAX:
                matrices.append(large_rows(cols, dtype.name))
            for x in matrices:
                if CONTRACT[name].accepts(Problem(*x.shape, dtype)):
                    check(name, x, computed(name, x))


@pytest.mark.gpu
@each_block
def test_live_result_is_right_with_another_block_size(name: str, block: int) -> None:
    for rows, cols in ((1, 5), (37, 132), (1025, 33), (513, 1000)):
        if CONTRACT[name].accepts(Problem(rows, cols)):
            x = make_input(fitting(name, rows, cols, block), cols)
            check(name, x, computed(name, x, block))


@pytest.fixture(scope="module")
def huge() -> tuple:
    """x and y of more than 2^32 elements on the GPU: past what int and unsigned offsets reach."""
    cols = 4099  # odd, so that no row start is a round number
    rows = 2**32 // cols + 1000
    needed = 2 * 4 * rows * cols + 2**30
    free, _ = cupy.cuda.runtime.memGetInfo()
    pool = cupy.get_default_memory_pool()
    if free + pool.free_bytes() < max(needed, 40e9):
        pytest.skip(f"needs 40 GB of free GPU memory, there are {free / 1e9:.0f}")
    pool.free_all_blocks()
    random = cupy.random.default_rng(0)
    x, y = (cupy.empty((rows, cols), cupy.float32) for _ in range(2))
    for first in range(0, rows, 2**16):
        piece = x[first : first + 2**16]
        random.standard_normal(piece.shape, cupy.float32, out=piece)
        piece += random.random((len(piece), 1), cupy.float32) * 100 + 100
    return x, y


def run_huge(code: str, x, y) -> None:
    """Launch past `run`, which would need as much memory again on the host; y starts as NaN."""
    bound = bind(code, *x.shape)
    bound.prepare()
    y.fill(cupy.nan)
    bound.enqueue(x, y, workspace=bound.workspace())


def unwritten_rows(y) -> list[int]:
    """The pieces of y, by their first row, in which something is NaN."""
    starts = range(0, len(y), 2**16)
    return [first for first in starts if cupy.isnan(y[first : first + 2**16]).any()]


@pytest.mark.gpu
@each_kernel
def test_live_rows_past_32_bit_offsets_are_right(name: str, huge) -> None:
    x, y = huge
    rows, cols = x.shape
    assert rows * cols > 2**32
    if not CONTRACT[name].accepts(Problem(rows, cols)):
        pytest.skip(f"the header says {CONTRACT[name].fields['Columns']}")
    run_huge(CODE[name], x, y)
    assert not unwritten_rows(y)
    for row in (0, 2**31 // cols, 2**32 // cols, rows // 3, rows - 1):
        near = slice(max(row - 4, 0), row + 5)
        check(name, cupy.asnumpy(x[near]), cupy.asnumpy(y[near]))
