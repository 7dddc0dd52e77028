"""What CuPy cannot ask of CUDA is asked of the driver; what is launched goes there and back."""

import ctypes

import cupy
import numpy as np
import pytest

from helpers.catalogue.plan import Plan
from helpers.run.bound import bind
from helpers.run.check import check_softmax, strided_copy
from helpers.run.execute import KernelBug, device_dtype, enqueue, prepare, to_gpu
from helpers.run.launch import launch
from helpers.run.references import make_input, poisoned
from helpers.simt import CompileError, span
from tests.helpers.sources import APART, edited

pytestmark = pytest.mark.usefixtures("replay_unless_live")


def test_attributes_are_set_where_the_plan_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver

    class Kernel:
        name = "wide"
        shared_size_bytes = 0
        max_dynamic_shared_size_bytes = None
        kernel = type("Function", (), {"ptr": 77})

    calls, results = [], [driver.CUresult.CUDA_SUCCESS]

    def set_attribute(*arguments) -> tuple:
        calls.append(arguments)
        return (results[-1],)

    monkeypatch.setattr(driver, "cuFuncSetAttribute", set_attribute)
    kernel = Kernel()
    prepare(kernel, Plan(1, 32, 48 * 1024, macros={"CLUSTER": 8}))
    assert kernel.max_dynamic_shared_size_bytes is None and not calls
    prepare(kernel, Plan(1, 32, 48 * 1024 + 16, macros={"CLUSTER": 16}))
    assert kernel.max_dynamic_shared_size_bytes == 48 * 1024 + 16
    kernel.max_dynamic_shared_size_bytes, kernel.shared_size_bytes = None, 16  # and its own arrays
    prepare(kernel, Plan(1, 32, 48 * 1024))
    assert kernel.max_dynamic_shared_size_bytes == 48 * 1024
    name = "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED"
    assert calls == [(77, getattr(driver.CUfunction_attribute, name), 1)]
    results.append(driver.CUresult.CUDA_ERROR_INVALID_VALUE)
    with pytest.raises(
        RuntimeError, match="wide: clusters of more than 8 .*CUDA_ERROR_INVALID_VALUE"
    ):
        prepare(kernel, Plan(1, 32, 0, macros={"CLUSTER": 16}))


def test_what_cupy_cannot_compile_is_said_as_the_machine_says_it() -> None:
    from cupy.cuda.compiler import CompileException

    class Kernel:
        name, code = "wide", "int one;\nint two\n"

        @property
        def shared_size_bytes(self) -> int:
            log = 'cache/1f2e.cubin.cu(2): error: expected a ";"\n  int two\n     ^\n'
            raise CompileException(log, self.code, "wide", ())

    with pytest.raises(CompileError) as caught:
        prepare(Kernel(), Plan(1, 32, 0))
    assert "kernel.cu(2): error" in str(caught.value) and caught.value.code == Kernel.code
    assert any("2 > int two" in line for line in caught.value._render_traceback_())


def test_a_programmatic_call_is_enqueued_through_the_driver(monkeypatch) -> None:
    """With the plan's sizes and both attributes; rows and cols as ints, strides as long longs,
    addresses as pointers."""
    from cuda.bindings import driver

    calls, results = [], [driver.CUresult.CUDA_SUCCESS]

    def launch(config, function, arguments, extra) -> tuple:
        calls.append((config, function, arguments, extra))
        return (results[-1],)

    class Stream:
        ptr = 55

    monkeypatch.setattr(driver, "cuLaunchKernelEx", launch)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", Stream)
    kernel = type("Kernel", (), {"name": "early", "kernel": type("Function", (), {"ptr": 77})})
    array = type("Array", (), {"data": type("Memory", (), {"ptr": 1234})})
    kinds = driver.CUlaunchAttributeID
    for cooperative in (False, True):
        plan = Plan(6, 96, 16, 8, cooperative, macros={"PROGRAMMATIC": 1})
        pointer, wide = ctypes.c_void_p, ctypes.c_longlong
        for strides in ((), (2**33, 2**34)):
            sizes = np.int32(3), np.int32(5)
            enqueue(kernel, plan, [array, array, *sizes, *map(np.int64, strides), array])
            config, function, (values, types), _ = calls.pop()
            assert function == 77 and values == (1234, 1234, 3, 5, *strides, 1234)
            several = [wide] * len(strides)
            assert types == (pointer, pointer, ctypes.c_int, ctypes.c_int, *several, pointer)
        assert (config.gridDimX, config.blockDimX, config.sharedMemBytes) == (6, 96, 16)
        assert [attribute.id for attribute in config.attrs] == [
            kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            *([kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE] if cooperative else []),
        ]
    results.append(driver.CUresult.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)
    with pytest.raises(RuntimeError, match="^early cannot be launched: CUDA_ERROR_COOPERATIVE"):
        enqueue(kernel, plan, [array, array, np.int32(3), array])


# ---- on a GPU ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("named", [True, False])
def test_gpu_names_the_line_that_does_not_compile(named: bool) -> None:
    code = edited("01_naive", ("fmaxf", "fmaxx"))
    code = code if named else code.partition("\n")[2]
    kernel = cupy.RawKernel(code, "softmax_naive")
    x = make_input(3, 7)
    with pytest.raises(
        CompileError, match=r"(kernels/01_naive|kernel)\.cu\(\d+\): error"
    ) as caught:
        launch(kernel, 1, 128, (x, np.zeros_like(x), 3, 7))
    assert any("fmaxx" in line and " > " in line for line in caught.value._render_traceback_())


@pytest.mark.gpu
@pytest.mark.parametrize("items", [0, 1, 3, 4, 61])
def test_gpu_copy_of_a_view_keeps_its_alignment(items: int) -> None:
    x = make_input(6, 8)
    view = np.full(48 + items, np.nan, np.float32)[items:].reshape(6, 8)
    view[:] = x
    copy = to_gpu(view)
    assert copy.data.ptr % 256 == 4 * items
    assert np.array_equal(cupy.asnumpy(copy), x)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("phase", [0, 1, 3])
def test_gpu_copy_of_rows_that_are_apart_keeps_the_gaps(phase: int, dtype: str) -> None:
    x = strided_copy(make_input(6, 8, dtype=dtype), 13, phase, 7)
    copy = to_gpu(x)
    assert copy.data.ptr % 256 == phase * x.itemsize and copy.strides == x.strides
    stored = device_dtype(x.dtype)
    assert np.array_equal(cupy.asnumpy(copy), x.view(stored))
    whole = cupy.ndarray((6 * 13 - 5,), stored, copy.data)
    assert np.array_equal(cupy.asnumpy(whole), span(x).view(stored))


@pytest.mark.gpu
def test_gpu_brings_back_what_a_kernel_writes_between_rows_and_names_what_is_further_off() -> None:
    x = make_input(3, 7)
    one = "y[col] ="
    for new, writes in ((one, False), (f"{one} y[col + (col == 6 && row < 2)] =", True)):
        bound = bind(APART.replace(one, new), 3, 7, x_stride=12, y_stride=9)
        y = strided_copy(poisoned(x), 9, 3, 8)
        assert bound.run(strided_copy(x, 12, 1, np.nan), y) is None
        check_softmax(x, y)
        gaps = y.base[3:30].reshape(3, 9)[:2, 7:]
        assert (gaps[:, 0] != 8).all() == writes and (gaps[:, 1] == 8).all()
    for place in ("-1 - row * y_stride", "(rows - row) * y_stride"):
        code = APART.replace(one, f"y[{place}] = {one}")
        with pytest.raises(KernelBug, match="^softmax_apart wrote outside of y$"):
            bind(code, 3, 7).run(x, poisoned(x))


@pytest.mark.gpu
def test_gpu_passes_strides_of_more_than_32_bits() -> None:
    """Two rows 2^31 + 40 elements apart, in an ordinary and in a programmatic launch."""
    stride = 2**31 + 40
    x = make_input(2, 100, dtype="float16")
    far = cupy.empty(stride + 100, cupy.float16)
    far[:100], far[stride:] = cupy.asarray(x[0]), cupy.asarray(x[1])
    early = APART.replace("// Launch:", "//           PROGRAMMATIC = 1\n// Launch:")
    early = early.replace("static_assert(", "static_assert(PROGRAMMATIC && ")
    for code in (APART, early):
        bound = bind(code, 2, 100, "float16", x_stride=stride)
        assert bound.plan.programmatic == (code is early)
        y, workspace = cupy.full((2, 100), cupy.nan, cupy.float16), bound.workspace()
        bound.prepare()
        cupy.cuda.get_current_stream().synchronize()
        bound.enqueue(far, y, workspace=workspace)
        check_softmax(x, cupy.asnumpy(y))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gpu_enqueues_what_was_bound(dtype: str) -> None:
    """Twice on one workspace: each call leaves behind what the next one needs."""
    bound = bind(edited("09_grid"), 3, 20000, dtype)
    x = make_input(3, 20000, dtype=dtype)
    on_gpu, y = to_gpu(x), to_gpu(np.zeros_like(x))
    bound.prepare()
    workspace = bound.workspace()
    results = []
    for _ in range(2):
        bound.enqueue(on_gpu, y, workspace=workspace)
        results.append(cupy.asnumpy(y).tobytes())
    expected = np.zeros_like(x)
    bound.run(x, expected)
    assert results == [expected.tobytes()] * 2 and not cupy.asnumpy(workspace[0]).any()
