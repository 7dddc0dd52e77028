"""A matrix whose rows are apart: nobody may touch what is between them, and it stays as it is."""

from types import SimpleNamespace

import numpy as np
import pytest

from helpers.simt import Trace, rows_apart, simulate, span
from tests.simt.launching import MBARRIERS

ROWS, COLS = 3, 8
# A thread for each element of x and y, WIDTH of them at once.
CODE = """#line 1 "kernels/x.cu"
typedef KIND T;
struct alignas(sizeof(T) * WIDTH) Pack { T element[WIDTH]; };
extern "C" __global__ void k(const T* x, T* y, int cols, long long x_stride, long long y_stride)
{
    const int row = blockIdx.x, col = WIDTH * threadIdx.x;
    if (col >= cols) return;
    const Pack pack = *reinterpret_cast<const Pack*>(x + row * x_stride + col);
    *reinterpret_cast<Pack*>(y + row * y_stride + col) = pack;
}
"""
# A thread for each block: two bulk copies of `bytes`, through shared memory.
BULK = f"""#line 1 "kernels/x.cu"
{MBARRIERS}
typedef KIND T;
extern "C" __global__ void k(const T* x, T* y, int bytes, long long x_stride, long long y_stride)
{{
    __shared__ alignas(128) char s[256];
    __shared__ Barrier full;
    init(&full, 1);
    EXPECT(&full, bytes);
    BULK_LOAD(s, x + blockIdx.x * x_stride, bytes, &full);
    WAIT(&full, 0);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::
                 "l"(y + blockIdx.x * y_stride), "r"(place(s)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group;\\ncp.async.bulk.wait_group 0;" ::: "memory");
}}
"""


def matrix(stride: int, phase: int, rows: int = ROWS, dtype=np.float32) -> tuple:
    """(rows of 0, 1, 2... that are `stride` apart, the base around them, which holds 77)"""
    base = np.full(phase + rows * stride + 5, 77, dtype)
    view = base[phase : phase + rows * stride].reshape(rows, stride)[:, :COLS]
    view[:] = np.arange(rows * COLS).reshape(rows, COLS)
    return view, base


def run(code: str, x, y, cols: int = COLS, width: int = 1, strides=()) -> Trace:
    kind = {2: "unsigned short", 4: "float", 8: "double"}[x.itemsize]
    kernel = SimpleNamespace(code=code, name="k", options=(f"-DKIND={kind}", f"-DWIDTH={width}"))
    strides = strides or [array.strides[0] // array.itemsize for array in (x, y)]
    threads = 32 if code is CODE else 1
    return simulate(kernel, len(x), threads, (x, y, cols, *strides))


@pytest.mark.parametrize("dtype", [np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("phase", range(5))
@pytest.mark.parametrize("gap", [1, 3, 8])
def test_what_stays_in_its_rows_is_no_bug(gap: int, phase: int, dtype) -> None:
    x, _ = matrix(COLS + gap, phase, dtype=dtype)
    y, around = matrix(COLS + gap + 2, 2 * phase, dtype=dtype)
    y[:] = 0
    kept = around.copy()
    assert not run(CODE, x, y).findings
    assert np.array_equal(x, y)
    y[:] = 0
    assert np.array_equal(around, kept), "what is between the rows and around them is as it was"


def test_a_read_between_rows_is_a_bug_of_each_row() -> None:
    x, _ = matrix(COLS + 3, 1)
    y, _ = matrix(COLS + 3, 2)
    for cols, count in ((COLS + 1, 3), (COLS + 3, 9)):
        load, store = run(CODE, x, y, cols).findings
        assert (load.kind, load.count) == ("out-of-bounds load", count)
        assert (store.kind, store.count) == ("out-of-bounds store", count)
        assert load.block == (0, 0, 0) and load.thread == (COLS, 0, 0)
        assert load.message == (
            "4 bytes not inside any array: byte 32 of row 0 of x, whose rows have 32 "
            "bytes and start 44 bytes apart"
        )


def test_a_write_between_rows_is_a_bug_and_dropped() -> None:
    x, _ = matrix(COLS + 3, 0)
    y, around = matrix(COLS + 4, 1)
    kept = around.copy()
    wide = np.ascontiguousarray(np.pad(x, ((0, 0), (0, 1))))  # so that the reads are none
    (store,) = run(CODE, wide, y, COLS + 1).findings
    assert (store.kind, store.count) == ("out-of-bounds store", 3)
    assert "byte 32 of row 0 of y, whose rows have 32 bytes and start 48 bytes" in store.message
    assert np.array_equal(x, y)
    y[:] = kept[1:-5].reshape(ROWS, -1)[:, :COLS]
    assert np.array_equal(around, kept)


def test_what_hangs_over_the_end_of_a_row_is_a_bug_as_a_whole() -> None:
    """Two packs of 4 are a row of 8; two and a half reach into the next row, which holds them."""
    x, _ = matrix(COLS + 2, 0)
    y, _ = matrix(COLS + 2, 0)
    assert not run(CODE, x, y, width=2).findings
    found = run(CODE, x[:, :7], y[:, :7], 7, width=2).findings
    assert [(one.kind, one.count) for one in found] == [
        ("out-of-bounds load", 3),
        ("out-of-bounds store", 3),
    ]
    assert "8 bytes not inside any array: byte 24 of row 0" in found[0].message


def test_copies_of_whole_pieces_stay_in_a_row() -> None:
    x, _ = matrix(COLS + 4, 0)
    y, _ = matrix(COLS + 8, 0)
    y[:] = 0
    assert not run(BULK, x, y, 4 * COLS).findings
    assert np.array_equal(x, y)
    y[:] = 0
    load, store = (one.message for one in run(BULK, x, y, 4 * COLS + 16).findings)
    assert load.startswith("48 bytes not inside any array: byte 0 of row 0 of x, whos")
    assert store.startswith("48 bytes not inside any array: byte 0 of row 0 of y, who")
    assert not y.any()


def test_rows_may_be_apart_only_where_the_kernel_takes_their_stride() -> None:
    x, _ = matrix(COLS + 3, 0)
    with pytest.raises(TypeError, match="x is not C-contiguous; a kernel ignores strides"):
        run(CODE.replace("x_stride", "stride"), x, x.copy())
    for wrong in (x[:, ::2], x[::-1], x.T, np.broadcast_to(x[0], (3, COLS))):
        assert not rows_apart(wrong)
        with pytest.raises(TypeError, match="x is not C-contiguous"):
            run(CODE, wrong, np.zeros(wrong.shape, np.float32), strides=(COLS, COLS))


def test_a_matrix_between_the_rows_of_another_is_refused() -> None:
    base = np.zeros((ROWS, 2 * COLS), np.float32)
    with pytest.raises(TypeError, match="y overlaps x, which the SIMT machine cannot do"):
        run(CODE, base[:, :COLS], base[:, COLS:])
    one = base[:, :COLS]
    assert not run(CODE, one, one).findings, "one array twice"
    with pytest.raises(TypeError, match="y overlaps x"):
        run(CODE, one, base[:, :7])


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float64])
def test_a_span_is_all_bytes_from_the_first_to_the_last(dtype) -> None:
    x, base = matrix(COLS + 3, 2, dtype=dtype)
    assert np.array_equal(span(x), base[2:-8].view(np.uint8))
    span(x)[-1] += 1
    assert span(x)[-1] == base[2:-8].view(np.uint8)[-1], "a view"
    for whole in (base, x[:1], np.zeros((2, 3, 4), dtype)):
        assert span(whole).size == whole.nbytes
    assert span(x[1:, :1]).size == (COLS + 4) * x.itemsize
    x.flags.writeable = False
    assert not span(x).flags.writeable
