"""How an exported Python file compiles and keeps its kernels, with NVRTC as it is here."""

from types import ModuleType

import pytest

from helpers.export.asked import request
from helpers.export.python import write
from helpers.machine_code import Build, Elf, machine_code
from tests.helpers.export.simulated_driver import Driver, loaded
from tests.helpers.export.stand_in_cupy import stand_in

SMALL = 'extern "C" __global__ void f(float* x) { *x = VALUE; }'


@pytest.fixture
def module(tmp_path, monkeypatch) -> ModuleType:
    monkeypatch.setenv("SOFTMAX_CACHE_DIR", str(tmp_path / "kept"))
    driver = Driver()
    return loaded(
        write(request("best", []), "cupy"), {"cupy": stand_in(driver)}, driver, nvrtc=True
    )


# One matrix for each kernel of the ranking; the last is for a GPU without clusters.
MATRICES = [
    (64, 256, "bfloat16"),
    (64, 4096, "float32"),
    (1, 2**20, "float32"),
    (512, 2**19, "float32"),
    (64, 77, "float16"),
    (64, 5001, "float32"),
    (64, 64, "float32"),
    (1, 2**21 + 1, "float32"),
    (64, 4096, "float32", 80),
]


def test_the_machine_code_is_that_of_the_project(module: ModuleType) -> None:
    """Instructions and registers, as they were measured."""
    met = set()
    for rows, cols, dtype, *old in MATRICES:
        gpu = module.Gpu(80, 108, 40 * 2**20) if old else module.TUNED_ON
        found = module.plan(rows, cols, dtype, gpu=gpu)
        kernel = module.KERNELS[found.kernel]
        made = Elf(module.machine_code(kernel.text, found.options, gpu.capability))
        ours = machine_code(Build(kernel.text, found.options), f"sm_{gpu.capability}")
        assert made.content(f".text.{kernel.function}") == ours[kernel.function].instructions
        met.add(found.kernel)
    assert met == set(module.KERNELS)


def test_another_option_is_other_machine_code(module: ModuleType) -> None:
    """So the test above can fail."""
    kernel, found = module.KERNELS["08_cluster"], module.plan(64, 4096)
    module.COMPILER_OPTIONS = module.COMPILER_OPTIONS[1:]  # without -ftz
    made = Elf(module.machine_code(kernel.text, found.options, 90))
    ours = machine_code(Build(kernel.text, found.options))[kernel.function].instructions
    assert made.content(f".text.{kernel.function}") != ours


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


def test_what_is_not_installed_is_named(module: ModuleType) -> None:
    with pytest.raises(module.CudaError, match="cannot load the NVIDIA driver: none of libno"):
        module._load(["libno.so.1"], "the NVIDIA driver")
