"""Bad input to `launch` gives one clear error that names the culprit, before anything runs."""

import re

import cupy
import ml_dtypes
import numpy as np
import pytest

from helpers.catalogue.header import header
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


def shifted(rows: int, cols: int, items: int) -> np.ndarray:
    """A float32 array that starts `items` elements into its base array."""
    return np.full(rows * cols + items, np.nan, np.float32)[items:].reshape(rows, cols)


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


# ---- arrays -----------------------------------------------------------------------------------

X, Y = arrays()
WIDE = make_input(ROWS, COLS + 1)
BAD_ARRAYS = [  # x, y, what is said
    (make_input(COLS, ROWS).T, Y, "x is not C-contiguous"),
    (WIDE[:, :COLS], Y, "pass numpy.ascontiguousarray(x)"),
    (X, np.zeros((COLS, ROWS), np.float32).T, "y is not C-cont"),
    (X.astype(np.float64), Y, "x is float64, but the kernel takes float32"),
    (X.astype(np.int32), Y, "x is int32, but the kernel takes float32"),
    (X, Y.astype(np.float16), "y is float16, but the kernel takes float32"),
    (X.tolist(), Y, "x must be a numpy array of one or more dimensions, not a Python list"),
    (X, 0.0, "y must be a numpy array of one or more dimensions, not a"),
    (X, np.array(0, np.float32), "y must be a numpy array of one or"),
    (None, Y, "x must be a numpy array, not None"),
    (X, read_only(np.zeros_like(X)), "y is read-only"),
    (X, arrays(ROWS + 1)[1], "y has shape (7, 8), which is not rows x cols = 6 x 8"),
    (X[:-1], Y, "x has shape (5, 8), which is not rows x cols"),
    (X, Y.reshape(COLS, ROWS), "y has shape (8, 6), which is"),
    (X, Y.reshape(-1), "x has shape (6, 8), but y has shape (48,)"),
    (np.ma.masked_invalid(X), Y, "not a numpy.ma.MaskedArray"),
]


@pytest.mark.parametrize(("x", "y", "text"), BAD_ARRAYS, ids=[text for *_, text in BAD_ARRAYS])
def test_array_that_does_not_fit_is_named(x, y, text: str) -> None:
    kernel = raw("00_copy")
    assert text in refusal(kernel, *shape_of(kernel, ROWS, COLS), (x, y, ROWS, COLS))


def test_output_in_place_is_refused() -> None:
    kernel = raw("01_naive")
    base = np.zeros(ROWS * COLS + COLS, np.float32)
    overlapping = [base[start:][: ROWS * COLS].reshape(ROWS, COLS) for start in (0, COLS)]
    for x, y in ((Y, Y), (Y, Y[:]), overlapping, overlapping[::-1]):
        message = refusal(kernel, 1, 128, (x, y, ROWS, COLS), error=ValueError)
        assert "y overlaps x" in message
    neighbours = np.zeros((2, ROWS, COLS), np.float32)
    launch(kernel, 1, 128, (*neighbours, ROWS, COLS))
    assert (neighbours[1] == 1 / COLS).all() and not neighbours[0].any()


@pytest.mark.parametrize("items", [1, 2, 3])
def test_view_that_is_not_aligned_as_the_header_asks_is_refused(items: int) -> None:
    kernel = raw("00_copy")
    grid, block = shape_of(kernel, ROWS, COLS)
    assert header(kernel.code).align("float32") == 16
    for name, x, y in (
        ("x", shifted(ROWS, COLS, items), Y),
        ("y", X, shifted(ROWS, COLS, items)),
    ):
        message = refusal(kernel, grid, block, (x, y, ROWS, COLS), error=ValueError)
        assert f"{name} must start at a multiple of 16 bytes" in message
        assert f"starts {4 * items} bytes into its base array" in message


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
    assert message(105.0, 102) == "x_stride must be an integer (long long), not 105.0"
    assert message(105, 2**63) == f"y_stride = {2**63} does not fit the kernel's long long"
    launch(kernel, plan.grid, plan.block, (far, y, ROWS, 100, np.int64(105), 102, workspace))
    check_softmax(x, y)
    other = cupy.RawKernel(APART.replace("x_stride,\n", "stride,\n"), kernel.name, kernel.options)
    args = (x, poisoned(x), ROWS, 100, 100, 100, workspace)
    said = refusal(other, plan.grid, plan.block, args)
    assert "must be x, y, rows, cols, x_stride, y_stride, workspace; they are x" in said


# ---- numbers ----------------------------------------------------------------------------------

TWO = np.float32(2)
BAD_NUMBERS = [  # the kernel, its numbers, what is said
    (SCALE, (48, 0.5), "factor is a Python float, which CuPy passes"),
    (SCALE, (48, 2), "pass numpy.float32(2)"),
    (SCALE, (48, True), "factor is a Python bool"),
    (SCALE, (48, np.float64(0.5)), "factor is a numpy.float64; the kernel takes a float"),
    (SCALE, (48, np.ones(1, np.float32)), "factor must be a number (float)"),
    (SCALE, (48, np.array(2, np.float32)), "factor must be a number"),
    (SCALE, (48, None), "factor is a Python NoneType"),
    (SCALE, (48.0, TWO), "count must be an integer (int), not 48.0"),
    (SCALE, (np.float32(48), TWO), "count must be an integer"),
    (SCALE, (True, TWO), "count must be an integer (int), not True"),
    (SCALE, (np.arange(2), TWO), "count must be a number (int)"),
    (SCALE, (2**31, TWO), "count = 2147483648 does not fit"),
    (SCALE, (-(2**31) - 1, TWO), "does not fit the kernel's int"),
    (NUMBERS, (1, 0, 0), "number is a Python int, which CuPy passes as 8 bytes; the kernel takes"),
    (NUMBERS, (np.float32(1), 0, 0), "number is a numpy.float32; the kernel takes a double"),
    (NUMBERS, (0.5, -1, 0), "small = -1 does not fit the kernel's unsigned"),
    (NUMBERS, (0.5, 2**32, 0), "small = 4294967296 does not fit the kernel's unsigned"),
    (NUMBERS, (0.5, 0, 2**63), "does not fit the kernel's long long"),
]


@pytest.mark.parametrize(("kernel", "numbers", "text"), BAD_NUMBERS)
def test_number_that_does_not_fit_is_named(kernel, numbers: tuple, text: str) -> None:
    arrays = (X, Y) if kernel is SCALE else (np.zeros(3),)
    assert text in refusal(kernel, 1, 64, (*arrays, *numbers))


def test_numbers_that_fit_are_passed_unchanged() -> None:
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


@pytest.mark.parametrize(("rows", "cols"), [(0, COLS), (-1, COLS), (ROWS, 0), (ROWS, -1)])
@pytest.mark.parametrize("name", ["00_copy", "01_naive"])
def test_empty_matrix_is_refused(name: str, rows: int, cols: int) -> None:
    kernel = raw(name)
    x = np.zeros((max(rows, 0), max(cols, 0)), np.float32)
    message = refusal(kernel, 1, 128, (x, x.copy(), rows, cols), error=ValueError)
    wrong = f"rows = {rows}" if rows < 1 else f"cols = {cols}"
    assert message.endswith(f"{wrong} is not 1 to 2147483647")


# ---- launch shape -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args", [(), (X,), (X, Y, ROWS), (X, Y, ROWS, COLS, 1), (X, Y, ROWS, COLS, X, Y)], ids=len
)
def test_wrong_number_of_arguments_is_counted(args: tuple) -> None:
    message = refusal(raw("01_naive"), 1, 128, args, error=TypeError)
    expected = f"softmax_naive takes 4 arguments (x, y, rows, cols), not {len(args)}"
    assert message == expected


@pytest.mark.parametrize("name", ["00_copy", "01_naive", "variants/00_copy_scalar"])
@pytest.mark.parametrize("change", [-1, 1, 100])
def test_wrong_grid_is_refused(name: str, change: int) -> None:
    kernel = raw(name)
    x, y = arrays(300, 40)
    grid, block = shape_of(kernel, 300, 40)
    for wrong in (grid + change, (grid + change,), (grid, 2)):
        message = refusal(kernel, wrong, block, (x, y, 300, 40), error=ValueError)
        assert f"requires grid = {grid} and 0 bytes of shared memory" in message
        assert f"got grid = {int(np.prod(wrong))}, 0 bytes" in message


@pytest.mark.parametrize(("grid", "block"), [(1, (16, 8)), (1, (1, 1, 64)), ((1, 1), (1, 128))])
def test_threads_in_two_dimensions_are_refused_where_the_header_plans_one(grid, block) -> None:
    """The kernel would number half of them alike, and leave rows unwritten."""
    message = refusal(raw("01_naive"), grid, block, (X, Y, ROWS, COLS), error=ValueError)
    assert message == (
        f"softmax_naive has a header, which requires a one-dimensional block; got block = {block}"
    )
    message = refusal(raw("00_copy"), (1, 3), 4, (*arrays(), ROWS, COLS), error=ValueError)
    assert "requires a one-dimensional grid; got grid = (1, 3)" in message
    launch(raw("01_naive"), (1, 1, 1), (128, 1), (*arrays(), ROWS, COLS))


@pytest.mark.parametrize("shared_mem", [4, 1024])
def test_wrong_shared_memory_is_refused(shared_mem: int) -> None:
    message = refusal(raw("01_naive"), 1, 128, (X, Y, ROWS, COLS), shared_mem, ValueError)
    assert "0 bytes of shared memory" in message and f"got grid = 1, {shared_mem} bytes" in message
    needs_some = raw("01_naive", ("Shared:   0", "Shared:   4 * block"))
    message = refusal(needs_some, 1, 128, (X, Y, ROWS, COLS), error=ValueError)
    assert "requires grid = 1 and 512 bytes of shared memory" in message


@pytest.mark.parametrize("kernel", [SCALE, raw("01_naive")], ids=lambda k: k.name)
@pytest.mark.parametrize(("grid", "block"), [(300 / 128, 128), (3, 128.0)])
def test_grid_or_block_that_is_no_integer_is_named(kernel, grid, block) -> None:
    x, y = arrays(300, 40)
    last = np.float32(1) if kernel is SCALE else 40
    message = refusal(kernel, grid, block, (x, y, 300, last), error=TypeError)
    culprit, value = ("block", block) if isinstance(block, float) else ("grid", grid)
    assert message == f"{culprit} must be one to three integers, not {value!r}; divide with //"


@pytest.mark.parametrize(
    ("grid", "block", "culprit"),
    [
        (-1, 64, "grid -1"),
        (1, (64, 32), "block (64, 32, 1) has 2048 threads"),
    ],
)
def test_grid_or_block_outside_the_limits_is_named(grid, block, culprit: str) -> None:
    message = refusal(SCALE, grid, block, (X, Y, 48, np.float32(2)), error=ValueError)
    assert message.startswith(culprit)


# ---- compiled for a shape, workspace, cooperative -----------------------------------------------


def together(rows: int, cols: int, dtype: str = "float32") -> tuple:
    """(kernel, grid, block, arguments, shared memory) of a kernel whose blocks wait for all."""
    bound = bind(TOGETHER, rows, cols, dtype)
    x = make_input(rows, cols, dtype=dtype)
    plan = bound.plan
    values = bound.arguments(x, poisoned(x))
    return bound.compiled, plan.grid, plan.block, values, plan.shared_mem


def test_workspace_of_any_type_and_length_is_taken_if_it_is_zero_and_long_enough() -> None:
    kernel, grid, block, args, shared_mem = together(3, 70)
    for workspace in (np.zeros(24, np.uint8), np.zeros((7, 2), np.float64)):
        launch(kernel, grid, block, (*args[:4], workspace), shared_mem)
    used = np.zeros(3, np.int64)
    used[2] = 1
    for workspace, text in (
        (used, "workspace must be all zero before the launch"),
        (np.zeros(23, np.uint8), "workspace has 23 bytes, but the header requires 24"),
    ):
        wrong = (*args[:4], workspace)
        assert refusal(kernel, grid, block, wrong, shared_mem, ValueError) == text
    message = refusal(kernel, grid, block, args[:4], shared_mem, TypeError)
    assert "takes 5 arguments (x, y, rows, cols, workspace), not 4" in message
    other = cupy.RawKernel(kernel.code.replace("* workspace)", "* counter)"), kernel.name)
    counter = np.zeros(6, np.uint32)
    message = refusal(other, grid, block, (*args[:4], counter), shared_mem, ValueError)
    assert "must be x, y, rows, cols, workspace; they are" in message


def test_kernel_without_its_macros_says_how_to_compile_it() -> None:
    kernel, grid, block, args, shared_mem = together(3, 70)
    bare = cupy.RawKernel(kernel.code, kernel.name, enable_cooperative_groups=True)
    assert refusal(bare, grid, block, args, shared_mem, ValueError) == (
        "copy_together is compiled without -DLANES: compile it for a shape, with "
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
    assert args[0].tobytes() == args[1].tobytes()
    assert args[4].view(np.uint32)[0] == grid


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
        "twice must be a bool, not 2": (x, y, 2, ml_dtypes.bfloat16(1), None, rows),
        "pass ml_dtypes.bfloat16(1.5)": (x, y, True, 1.5, None, rows),
        "x is float64, but the kernel takes float32": (X64, y, True, None, None, rows),
        "rows[0] is float64, but the kernel": (x, y, True, ml_dtypes.bfloat16(1), None, [X64]),
    }
    for sentence, args in refused.items():
        with pytest.raises((TypeError, ValueError)) as caught:
            simulate(kernel, 1, 4, args)
        assert sentence in str(caught.value)
