"""Bad input to `launch` gives one clear error that names the culprit, before anything runs."""

import re

import cupy
import ml_dtypes
import numpy as np
import pytest

from helpers.run.bound import bind
from helpers.run.check import check_softmax, strided_copy
from helpers.run.execute import KernelBug
from helpers.run.launch import launch, simulate
from helpers.run.references import make_input, poisoned
from helpers.simt import CompileError
from tests.helpers.sources import APART, TOGETHER, raw, shape_of

pytestmark = pytest.mark.usefixtures("replay_unless_live")

SCALE = cupy.RawKernel(
    """
    extern "C" __global__ void scale(const float* x, float* y, int count, float factor)
    {
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < count)
            y[i] = factor * x[i];
    }
    """,
    "scale",
)
NUMBERS = cupy.RawKernel(
    """
    extern "C" __global__ void numbers(double* y, double number, unsigned small, long long large)
    {
        y[0] = number;
        y[1] = small;
        y[2] = large;
    }
    """,
    "numbers",
)
ROWS, COLS = 6, 8


def arrays(rows: int = ROWS, cols: int = COLS) -> tuple[np.ndarray, np.ndarray]:
    x = make_input(rows, cols)
    return x, poisoned(x)


def refusal(kernel, grid, block, args, shared_mem: int = 0, error=(TypeError, ValueError)) -> str:
    """The message with which launch and simulate refuse; one line, and no array was written."""
    outputs = [value for value in args if isinstance(value, np.ndarray)]
    before = [value.tobytes() for value in outputs]
    messages = set()
    for run in (launch, simulate):
        with pytest.raises(error) as caught:
            run(kernel, grid, block, args, shared_mem=shared_mem)
        messages.add(str(caught.value))
    assert [value.tobytes() for value in outputs] == before
    (message,) = messages
    assert "\n" not in message and len(message) < 250
    return message


def shifted(items: int) -> np.ndarray:
    """A float32 array that starts `items` elements into its base array."""
    return np.full(ROWS * COLS + items, np.nan, np.float32)[items:].reshape(ROWS, COLS)


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


# ---- arrays -----------------------------------------------------------------------------------

X, Y = arrays()
ONE = shifted(COLS)  # with the base array of the next one, which begins a row earlier
OTHER = ONE.base[: ROWS * COLS].reshape(ROWS, COLS)
BAD_ARRAYS = [  # x, y, what is said
    (make_input(COLS, ROWS).T, Y, "x is not C-contiguous"),
    (make_input(ROWS, COLS + 1)[:, :COLS], Y, "pass numpy.ascontiguousarray(x)"),
    (X.astype(np.float64), Y, "x is float64, the kernel takes float32"),
    (X, Y.astype(np.float16), "y is float16, the kernel takes float32"),
    (X.tolist(), Y, "x is a list, the kernel takes float*: pass a numpy array"),
    (X, np.array(0, np.float32), "y is 0.0, the kernel takes float*: pass an array or None"),
    (np.ma.masked_invalid(X), Y, "x is a masked array: pass x.filled() or x.data"),
    (None, Y, "x must be a numpy array, not None"),
    (0, Y, "x must be a numpy array, not 0"),
    (X, read_only(np.zeros_like(X)), "y is read-only"),
    (X, arrays(ROWS + 1)[1], "y has shape (7, 8), which is not rows x cols = 6 x 8"),
    (X[:-1], Y, "x has shape (5, 8), which is not rows x cols"),
    (X, Y.reshape(-1), "x has shape (6, 8), but y has shape (48,)"),
    (shifted(1), Y, "x must start at a multiple of 16 bytes, but it is a view that starts 4 bytes"),
    (X, shifted(3), "y must start at a multiple of 16 bytes, but it is a view that starts 12 byt"),
    *((x, y, "y overlaps x") for x, y in ((Y, Y), (Y, Y[:]), (ONE, OTHER), (OTHER, ONE))),
]


@pytest.mark.parametrize(("x", "y", "text"), BAD_ARRAYS, ids=[text for *_, text in BAD_ARRAYS])
def test_array_that_does_not_fit_is_named(x, y, text: str) -> None:
    kernel = raw("00_copy")
    assert text in refusal(kernel, *shape_of(kernel, ROWS, COLS), (x, y, ROWS, COLS))


def test_arrays_that_are_neighbours_do_not_overlap() -> None:
    neighbours = np.zeros((2, ROWS, COLS), np.float32)
    launch(raw("01_naive"), 1, 128, (*neighbours, ROWS, COLS))
    assert (neighbours[1] == 1 / COLS).all() and not neighbours[0].any()


def test_rows_that_are_apart_are_held_against_the_strides() -> None:
    bound = bind(APART, ROWS, 100, x_stride=105, y_stride=102)
    kernel, plan = bound.compiled, bound.plan
    x = make_input(ROWS, 100)
    far, y = strided_copy(x, 105, 1, np.nan), strided_copy(poisoned(x), 102, 3, 7)
    workspace = np.zeros(ROWS, np.uint32)

    def message(*strides: int, x=far, y=y) -> str:
        args = (x, y, ROWS, 100, *strides, workspace)
        return refusal(kernel, plan.grid, plan.block, args)

    assert message(105, 100) == (
        "the rows of y start 408 bytes apart, which is not y_stride = 100 elements"
    )
    assert message(100, 102).startswith("the rows of x start 420 bytes apart, which is not x_strid")
    assert message(105, 102, x=x).startswith("the rows of x start 400 bytes apart, which is not x_")
    assert message(99, 102).startswith("softmax_apart: x_stride = 99 is less than a row, which has")
    assert message(105.0, 102) == "x_stride is 105.0, the kernel takes long long"
    assert message(105, 2**63).startswith(f"y_stride is {2**63}, the kernel takes long long (-")
    launch(kernel, plan.grid, plan.block, (far, y, ROWS, 100, np.int64(105), 102, workspace))
    check_softmax(x, y)
    other = cupy.RawKernel(APART.replace("x_stride,\n", "stride,\n"), kernel.name, kernel.options)
    args = (x, poisoned(x), ROWS, 100, 100, 100, workspace)
    said = refusal(other, plan.grid, plan.block, args)
    assert "must be x, y, rows, cols, x_stride, y_stride, workspace; they are x" in said


# ---- numbers ----------------------------------------------------------------------------------

TWO = np.float32(2)
BAD_NUMBERS = [  # the kernel, its numbers, what is said
    (SCALE, (48, None), "factor is None, the kernel takes float"),
    (SCALE, (48, 1e39), "factor is 1e+39, the kernel takes float (at most 3.40282e+38)"),
    (SCALE, (48.0, TWO), "count is 48.0, the kernel takes int"),
    (SCALE, (np.arange(2), TWO), "count is an array, the kernel takes int"),
    (SCALE, (2**31, TWO), "count is 2147483648, the kernel takes int (-2147483648 to 2147483647)"),
    (NUMBERS, (0.5, -1, 0), "small is -1, the kernel takes unsigned (0 to 4294967295)"),
]


@pytest.mark.parametrize(("kernel", "numbers", "text"), BAD_NUMBERS)
def test_number_that_does_not_fit_is_named(kernel, numbers: tuple, text: str) -> None:
    arrays = (X, Y) if kernel is SCALE else (np.zeros(3),)
    assert text in refusal(kernel, 1, 64, (*arrays, *numbers))


def test_numbers_that_fit_are_passed_as_the_kernel_declares_them() -> None:
    x, y = arrays()
    for factor in (TWO, 2, 2.0, np.float64(2), np.array(2)):
        launch(SCALE, 1, 64, (x, y, np.int64(48), factor))
        assert np.array_equal(y, 2 * x)
    y = np.zeros(3)
    for number in (0.1, np.float64(0.1)):
        for large in (-(2**62), np.int64(-(2**62))):
            launch(NUMBERS, 1, 1, (y, number, 2**32 - 1, large))
            assert list(y) == [0.1, 2.0**32 - 1, -(2.0**62)]


@pytest.mark.parametrize("kind", [np.int16, np.uint16])
def test_numpy_integers_serve_as_rows_and_cols(kind: type) -> None:
    """200 * 200 is more than an int16 holds."""
    kernel = raw("00_copy")
    x, y = arrays(200, 200)
    rows, cols = kind(200), kind(200)
    launch(kernel, *shape_of(kernel, 200, 200), (x, y, rows, cols))
    assert np.array_equal(x, y)


# ---- launch shape -----------------------------------------------------------------------------

NAIVE, COPY, WIDE = (
    raw("01_naive"),
    raw("00_copy"),
    raw("01_naive", ("Shared:   0", "Shared:   4 * block")),
)
ARGS, TWICE = (X, Y, ROWS, COLS), (X, Y, ROWS * COLS, np.float32(2))
NO_BYTES = "0 bytes of shared memory for rows = 6, cols = 8, block = "
IN_LINE = " has a header, which requires a one-dimensional "
BAD_LAUNCHES = [  # the kernel, grid, block, arguments and shared memory, what is said
    (NAIVE, 1, 128, (), 0, "softmax_naive takes 4 arguments (x, y, rows, cols), not 0"),
    (NAIVE, 1, 128, (*ARGS, 1), 0, "softmax_naive takes 4 arguments (x, y, rows, cols), not 5"),
    (NAIVE, 1, 128, (X[:0], X[:0], 0, COLS), 0, "rows = 0 is not 1 to 2147483647"),
    (COPY, 1, 128, (X[:, :0], X[:, :0], ROWS, -1), 0, "cols = -1 is not 1 to 2147483647"),
    (NAIVE, 2, 128, ARGS, 0, f"requires grid = 1 and {NO_BYTES}128; got grid = 2, 0 bytes"),
    (NAIVE, (1, 2), 128, ARGS, 0, f"requires grid = 1 and {NO_BYTES}128; got grid = 2, 0 bytes"),
    (COPY, 2, 4, ARGS, 0, f"requires grid = 3 and {NO_BYTES}4; got grid = 2, 0 bytes"),
    (NAIVE, 1, 128, ARGS, 4, f"requires grid = 1 and {NO_BYTES}128; got grid = 1, 4 bytes"),
    (WIDE, 1, 128, ARGS, 0, "requires grid = 1 and 512 bytes of shared memory"),
    (NAIVE, 1, (16, 8), ARGS, 0, f"softmax_naive{IN_LINE}block; got block = (16, 8, 1)"),
    (NAIVE, 1, (1, 1, 64), ARGS, 0, f"softmax_naive{IN_LINE}block; got block = (1, 1, 64)"),
    (COPY, (1, 3), 4, ARGS, 0, f"{IN_LINE}grid; got grid = (1, 3, 1)"),
    (NAIVE, 0.5, 128, ARGS, 0, "grid must be one to three integers, not 0.5"),
    (SCALE, 3, 128.0, TWICE, 0, "block must be one to three integers, not 128.0"),
    (SCALE, -1, 64, TWICE, 0, "grid -1"),
    (SCALE, 1, (64, 32), TWICE, 0, "block (64, 32, 1) has 2048 threads"),
]


@pytest.mark.parametrize("case", BAD_LAUNCHES, ids=[case[-1] for case in BAD_LAUNCHES])
def test_launch_that_the_kernel_does_not_take_is_refused(case: tuple) -> None:
    """A block in two dimensions would number half of its threads alike."""
    *given, text = case
    assert text in refusal(*given)


def test_further_dimensions_of_one_are_taken() -> None:
    launch(NAIVE, (1, 1, 1), (128, 1), (*arrays(), ROWS, COLS))


# ---- compiled for a shape, workspace, cooperative -----------------------------------------------


def together(rows: int, cols: int, dtype: str = "float32") -> tuple:
    """(kernel, grid, block, arguments, shared memory) of a cooperative kernel."""
    bound = bind(TOGETHER, rows, cols, dtype)
    x = make_input(rows, cols, dtype=dtype)
    plan = bound.plan
    values = bound.arguments(x, poisoned(x))
    return bound.compiled, plan.grid, plan.block, values, plan.shared_mem


def test_workspace_of_any_type_and_length_is_taken_if_it_is_zero_and_long_enough() -> None:
    kernel, grid, block, args, shared_mem = together(3, 70)
    for workspace in (np.zeros(12, np.uint8), np.zeros((7, 2), np.float64)):
        launch(kernel, grid, block, (*args[:-1], workspace), shared_mem)
    used = np.zeros(3, np.int64)
    used[2] = 1
    for workspace, text in (
        (used, "workspace must be all zero before the launch"),
        (np.zeros(11, np.uint8), "workspace has 11 bytes, but the header requires 12"),
    ):
        wrong = (*args[:-1], workspace)
        assert refusal(kernel, grid, block, wrong, shared_mem, ValueError) == text
    message = refusal(kernel, grid, block, args[:-1], shared_mem, TypeError)
    assert "takes 7 arguments (x, y, rows, cols, x_stride, y_stride, workspace), not 6" in message
    other = cupy.RawKernel(kernel.code.replace("* workspace)", "* counter)"), kernel.name)
    counter = args[-1].view(np.uint32)
    message = refusal(other, grid, block, (*args[:-1], counter), shared_mem, ValueError)
    assert "must be x, y, rows, cols, x_stride, y_stride, workspace; they are" in message


def test_kernel_without_its_macros_says_how_to_compile_it() -> None:
    kernel, grid, block, args, shared_mem = together(3, 70)
    bare = cupy.RawKernel(kernel.code, kernel.name, enable_cooperative_groups=True)
    assert refusal(bare, grid, block, args, shared_mem, ValueError) == (
        "softmax_apart is compiled without -DCLUSTER, -DAHEAD: compile it for a shape, with "
        "the options of bind(code, rows, cols, dtype)"
    )


@pytest.mark.parametrize("of", ["float32", "float16", "bfloat16"])
def test_arrays_must_have_the_dtype_that_the_kernel_is_compiled_for(of: str) -> None:
    kernel, grid, block, _, shared_mem = together(3, 70, of)
    for dtype in {"float32", "float16", "bfloat16"} - {of}:
        *_, args, _ = together(3, 70, dtype)
        message = refusal(kernel, grid, block, args, shared_mem, TypeError)
        assert message == f"x is {dtype}, but the kernel is compiled for {of}"


def test_cooperative_kernel_must_be_compiled_as_one() -> None:
    kernel, grid, block, args, shared_mem = together(3, 70)
    alone = cupy.RawKernel(kernel.code, kernel.name, options=kernel.options)
    message = refusal(alone, grid, block, args, shared_mem, ValueError)
    assert (
        "requires a cooperative launch: compile it with enable_cooperative_groups=True" in message
    )


# ---- source -----------------------------------------------------------------------------------


def line_of(code: str, text: str) -> int:
    """Line of the kernel file; the source's first line is the #line directive."""
    return code[: code.index(text)].count("\n")


@pytest.mark.parametrize("name", ["01_naive", "variants/01_naive_fast"])
def test_typo_in_a_kernel_names_file_and_line(name: str) -> None:
    kernel = raw(name, ("fmaxf", "fmaxx"))
    line = line_of(kernel.code, "fmaxx")
    with pytest.raises(CompileError, match=rf"kernels/{name}\.cu\({line}\): error: .*fmaxx"):
        launch(kernel, 1, 128, (X, Y, ROWS, COLS))


@pytest.mark.parametrize(
    ("old", "new", "kind", "array"),
    [
        ("if (row >= rows) return;", "", "out-of-bounds load", "x"),
        ("col < cols; ++col)\n        y", "col <= cols; ++col)\n        y", "out-of-bounds", "x"),
        ("y[col] =", "y[col + 1] =", "out-of-bounds store", "y"),
    ],
)
def test_kernel_that_leaves_its_arrays_is_reported_with_its_line(old, new, kind, array) -> None:
    kernel = raw("01_naive", (old, new))
    args = (*arrays(), ROWS, COLS)
    with pytest.raises(KernelBug) as caught:
        launch(kernel, 1, 128, args)
    first, *findings = str(caught.value).splitlines()
    assert first == "softmax_naive has bugs:"
    pattern = rf"kernels/01_naive\.cu:\d+: {kind}.* the end of {array} \(192 bytes\)"
    assert any(re.match(pattern, finding) for finding in findings), findings
    assert simulate(kernel, 1, 128, args).findings, "simulate returns what launch raises"


# ---- what a launch returns --------------------------------------------------------------------


def test_const_of_the_pointer_itself_leaves_an_array_writable() -> None:
    """`float* const y` is written; only `const float*` is not."""
    code = 'extern "C" __global__ void fill(float* const __restrict__ y) { y[threadIdx.x] = 7; }'
    kernel = cupy.RawKernel(code, "fill")
    y = np.zeros(4, np.float32)
    launch(kernel, 1, 4, (y,))
    assert (y == 7).all()
    assert "y is read-only" in refusal(kernel, 1, 4, (read_only(y),), error=ValueError)


def test_arrays_of_a_pointer_table_are_checked_like_any_other() -> None:
    code = 'extern "C" __global__ void fill(float** y) { y[threadIdx.x][0] = 7; }'
    kernel, y = cupy.RawKernel(code, "fill"), np.zeros((4, 2), np.float32)
    said = refusal(kernel, 1, 2, ([y[0], read_only(y[1])],))
    assert said.startswith("y[1] is read-only")
    assert refusal(kernel, 1, 2, ([y[0], y[:, 0]],)).startswith("y[1] is not C-contiguous")


def test_a_16_bit_integer_is_held_to_its_range() -> None:
    code = 'extern "C" __global__ void put(int* y, short number) { y[0] = number; }'
    kernel, y = cupy.RawKernel(code, "put"), np.zeros(1, np.int32)
    assert "number is 40000" in refusal(kernel, 1, 1, (y, np.uint16(40000)))
    launch(kernel, 1, 1, (y, np.int16(-5)))
    assert y[0] == -5


# ---- on a GPU ---------------------------------------------------------------------------------


@pytest.mark.gpu
def test_gpu_launch_writes_outputs_in_place() -> None:
    x, y = arrays()
    assert launch(SCALE, 1, 64, (x, y, x.size, np.float32(2))) is None
    assert np.array_equal(y, 2 * x)
    numbers = np.zeros(3)
    launch(NUMBERS, 1, 1, (numbers, 0.1, 2**32 - 1, -(2**62)))
    assert list(numbers) == [0.1, 2.0**32 - 1, -(2.0**62)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gpu_runs_a_cooperative_kernel_in_each_dtype(dtype: str) -> None:
    kernel, grid, block, args, shared_mem = together(3, 70, dtype)
    launch(kernel, grid, block, args, shared_mem)
    check_softmax(args[0], args[1])


@pytest.mark.gpu
def test_gpu_launch_can_ask_for_much_shared_memory() -> None:
    code = """
    extern "C" __global__ void last_byte(int* y, int size)
    {
        extern __shared__ char space[];
        space[size - 1] = 77;
        y[0] = space[size - 1];
    }
    """
    y = np.zeros(1, np.int32)
    launch(cupy.RawKernel(code, "last_byte"), 1, 1, (y, 64 * 1024), shared_mem=64 * 1024)
    assert y[0] == 77


X64 = np.ones(4)
ORDINARY = """
#include <cuda_bf16.h>
typedef const float* In;
extern "C" __global__ void k(
    In x, float y[], bool twice, __nv_bfloat16 a, const float* bias, float** rows)
{
    const int i = threadIdx.x;
    y[i] = (twice ? 2 : 1) * x[i] * __bfloat162float(a) + (bias ? bias[i] : 0) + rows[0][i];
}
"""


def test_ordinary_signatures_are_launched() -> None:
    x, y, rows = np.ones(4, np.float32), np.zeros(4, np.float32), [np.full(4, 10, np.float32)]
    kernel = cupy.RawKernel(ORDINARY, "k")
    simulate(kernel, 1, 4, (x, y, True, ml_dtypes.bfloat16(1.5), None, rows))
    assert y.tolist() == [13] * 4
    refused = {
        "twice is 2, the kernel takes bool (0 to 1)": (x, y, 2, ml_dtypes.bfloat16(1), None, rows),
        "a is None, the kernel takes __nv_bfloat16": (x, y, True, None, None, rows),
        "x is float64, the kernel takes float32": (X64, y, True, None, None, rows),
        "rows[0] is float64, the kernel": (x, y, True, ml_dtypes.bfloat16(1), None, [X64]),
    }
    for sentence, args in refused.items():
        with pytest.raises((TypeError, ValueError)) as caught:
            simulate(kernel, 1, 4, args)
        assert sentence in str(caught.value)
