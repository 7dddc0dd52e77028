"""How an exported Python file compiles and keeps its kernels, with NVRTC as it is here."""

import ctypes
from types import ModuleType

import pytest
from cuda.bindings import driver

from helpers.commands.carry import machine_code
from helpers.export.python import write
from helpers.export.request import export_request
from helpers.run.bound import load
from helpers.simt import compile_cubin
from tests.helpers.export.simulated_driver import Driver, loaded
from tests.helpers.export.stand_in_cupy import stand_in

SMALL = 'extern "C" __global__ void f(float* x) { *x = VALUE; }'


@pytest.fixture
def module(tmp_path, monkeypatch) -> ModuleType:
    monkeypatch.setenv("SOFTMAX_CACHE_DIR", str(tmp_path / "kept"))
    simulated = Driver()
    packages = {"cupy": stand_in(simulated)}
    return loaded(write(export_request("best", []), "cupy"), packages, simulated, nvrtc=True)


# Rows, columns and inner; a kernel is compiled for the first that it takes.
SHAPES = ((5, 1003, 1), (6, 2048, 1), (37, 200, 1), (2, 32768, 1), (21, 64, 7))


def test_the_machine_code_is_that_of_the_project(module: ModuleType) -> None:
    """Instructions and registers of each kernel in its last dtype, as they were measured."""
    for file in module.KERNELS:
        kernel = load(file)
        problems = (
            kernel.problem(*shape[:2], kernel.header.dtypes[-1], inner=shape[2]) for shape in SHAPES
        )
        plan = next(kernel.header.plan(at) for at in problems if kernel.header.accepts(at))
        made = module.machine_code(module.source(file), plan.options, 90)
        ours = compile_cubin(kernel.code, plan.options, "sm_90")
        assert machine_code(made) == machine_code(ours), file


def test_a_kernel_is_compiled_once(module: ModuleType, tmp_path, monkeypatch) -> None:
    first = module.machine_code(SMALL, ("-DVALUE=1",), 90)
    assert len(list((tmp_path / "kept").iterdir())) == 1
    compile_, calls = module._compile, []
    monkeypatch.setattr(module, "_compile", lambda *a: calls.append(a) or compile_(*a))
    assert module.machine_code(SMALL, ("-DVALUE=1",), 90) == first and not calls
    for text, options, capability in (
        (SMALL, ("-DVALUE=2",), 90),
        (SMALL, ("-DVALUE=1",), 80),
        (SMALL + "\n", ("-DVALUE=1",), 90),
    ):
        module.machine_code(text, options, capability)
    assert len(calls) == 3, "text, options and GPU are part of what it is kept under"


def test_a_damaged_file_is_compiled_again(module: ModuleType, tmp_path) -> None:
    first = module.machine_code(SMALL, ("-DVALUE=1",), 90)
    (entry,) = (tmp_path / "kept").iterdir()
    for damage in (entry.read_bytes()[:-1], b"", entry.read_bytes() + b"x"):
        entry.write_bytes(damage)
        assert module.machine_code(SMALL, ("-DVALUE=1",), 90) == first
    assert [*(tmp_path / "kept").iterdir()] == [entry], "nothing half written is left"


def test_a_folder_that_cannot_be_written_to_is_only_slower(module, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SOFTMAX_CACHE_DIR", str(tmp_path / "file" / "folder"))
    assert module.machine_code(SMALL, ("-DVALUE=1",), 90)[:4] == b"\x7fELF"


def test_what_does_not_compile_is_told_with_the_compilers_log(module: ModuleType) -> None:
    with pytest.raises(module.CudaError, match=r'(?s)arch=sm_90.*"VALUE" is undefined'):
        module.machine_code(SMALL, (), 90)


def test_headers_that_are_missing_are_named(module: ModuleType, monkeypatch) -> None:
    """A package of NVRTC alone has none; kernels of float32 need none."""
    monkeypatch.setattr(module, "_include_folders", lambda nvrtc: [])
    text, found = module.source("08_cluster"), module.plan(64, 4096, "bfloat16")
    with pytest.raises(module.CudaError, match="(?s)^CUDA's cuda_fp16.h .*nvidia-cuda-runtime"):
        module.machine_code(text, found.options, 90)
    assert module.machine_code(text, module.plan(64, 4096).options, 90)
    monkeypatch.undo()
    with pytest.raises(module.CudaError, match="^NVRTC"):
        module.machine_code("oh", (), 90)


def test_what_is_not_installed_is_named(module: ModuleType) -> None:
    with pytest.raises(module.CudaError, match="cannot load the NVIDIA driver: none of libno"):
        module._load(["libno.so.1"], "the NVIDIA driver")


# ---- the driver's structs and numbers, as its own bindings have them ---------------------------


def test_structs_are_laid_out_as_the_drivers(module: ModuleType) -> None:
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    attribute.value.cooperative = 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = 11, 12, 13
    config.blockDimX, config.blockDimY, config.blockDimZ = 14, 15, 16
    config.sharedMemBytes, config.hStream = 17, driver.CUstream(18)
    config.attrs, config.numAttrs = [attribute], 1
    read = module._Config.from_address(config.getPtr())
    assert [*read.grid, *read.block, read.shared_mem, read.stream] == [*range(11, 19)]
    assert read.attribute_count == 1
    assert (read.attributes[0].id, read.attributes[0].value[0]) == (2, 1)
    assert ctypes.sizeof(module._Attribute) == 72, "as far as the next of an array is"


def test_numbers_are_the_drivers() -> None:
    """Those that the file and the simulated driver know by number."""
    device, function = driver.CUdevice_attribute, driver.CUfunction_attribute
    assert [
        device.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        device.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        device.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        device.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE,
    ] == [75, 76, 16, 38]
    assert function.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == 8
    assert function.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED == 14
    assert driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED == 2
    assert driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE == 1
    assert driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL == 9
    assert driver.CUresult.CUDA_ERROR_INVALID_CONTEXT == 201
    assert driver.CU_STREAM_PER_THREAD == 2
