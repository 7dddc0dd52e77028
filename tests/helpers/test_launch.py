"""Bad input to `launch` gives one clear error that names the culprit, before anything runs."""

import cupy
import numpy as np
import pytest

from helpers.run.bound import bind
from helpers.run.check import check_softmax
from helpers.run.launch import launch, simulate
from helpers.run.references import make_input, poisoned
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
    (X, Y.astype(np.float16), "y is float16, the kernel takes float32"),
    (X.tolist(), Y, "x is a list, the kernel takes float*: pass a numpy array"),
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


def test_parameters_that_are_not_those_of_the_header_are_named() -> None:
    bound = bind(APART, ROWS, 100)
    args = bound.arguments(make_input(ROWS, 100), poisoned(make_input(ROWS, 100)))
    kernel = cupy.RawKernel(
        APART.replace("x_stride,\n", "stride,\n"), bound.name, bound.compiled.options
    )
    said = refusal(kernel, bound.plan.grid, bound.plan.block, args)
    assert "must be x, y, rows, cols, x_stride, y_stride, workspace; they are x" in said


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


# ---- what a launch returns --------------------------------------------------------------------


def test_arrays_of_a_pointer_table_are_checked_like_any_other() -> None:
    code = 'extern "C" __global__ void fill(float** y) { y[threadIdx.x][0] = 7; }'
    kernel, y = cupy.RawKernel(code, "fill"), np.zeros((4, 2), np.float32)
    said = refusal(kernel, 1, 2, ([y[0], read_only(y[1])],))
    assert said.startswith("y[1] is read-only")
    assert refusal(kernel, 1, 2, ([y[0], y[:, 0]],)).startswith("y[1] is not C-contiguous")


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
