"""Compiled kernels are kept on disk by content: found again, never stale, never in the way."""

from pathlib import Path

import pytest
from cuda.bindings import nvrtc

from helpers.simt import CompileError, compile

CODE = 'extern "C" __global__ void k(float* y) { y[threadIdx.x] /= FACTOR + 2.0f; }'
OPTIONS = ("-DFACTOR=3",)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache on disk, and none in memory."""
    monkeypatch.setenv("SOFTMAX_CACHE_DIR", str(tmp_path / "cache"))
    compile._compile.cache_clear()
    yield tmp_path / "cache"
    compile._compile.cache_clear()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list:
    """One entry for each time that NVRTC compiles."""
    calls, original = [], nvrtc.nvrtcCompileProgram

    def counting(*arguments):
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(nvrtc, "nvrtcCompileProgram", counting)
    return calls


def again(code: str = CODE, options: tuple[str, ...] = OPTIONS, arch: str = "compute_90") -> str:
    """Compile as a new process would: with nothing in memory."""
    compile._compile.cache_clear()
    return compile.compile_ptx(code, options, arch)


def test_second_process_does_not_compile(compiled: list, cache: Path) -> None:
    assert again() == again()
    assert len(compiled) == 1
    assert [path.suffix for path in cache.iterdir()] == [".ptx"]


@pytest.mark.parametrize(
    "change",
    [
        {"code": CODE.replace("2.0f", "4.0f")},
        {"options": ("-DFACTOR=5",)},
        {"options": (*OPTIONS, "-use_fast_math")},
        {"arch": "compute_80"},
    ],
    ids=["code", "macro", "option", "architecture"],
)
def test_what_compiles_differently_is_kept_apart(change: dict, compiled: list) -> None:
    assert again() != again(**change)
    assert len(compiled) == 2


def test_another_compiler_compiles_anew(compiled: list, monkeypatch: pytest.MonkeyPatch) -> None:
    again()
    monkeypatch.setattr(nvrtc, "nvrtcVersion", lambda: (0, 99, 0))
    again()
    assert len(compiled) == 2


@pytest.mark.parametrize("damage", [lambda b: b[:-40], lambda b: b"x" + b, lambda b: b""])
def test_damaged_entry_is_compiled_again(damage, compiled: list, cache: Path) -> None:
    right = again()
    (entry,) = cache.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert again() == right
    assert len(compiled) == 2
    assert again() == right
    assert len(compiled) == 2, "the damaged entry was not replaced"


def test_source_that_includes_a_file_of_the_users_is_not_kept(
    tmp_path: Path, compiled: list
) -> None:
    (tmp_path / "factor.h").write_text("#define FACTOR 3\n")
    options = (f"-I{tmp_path}",)
    first = again('#include "factor.h"\n' + CODE, options)
    (tmp_path / "factor.h").write_text("#define FACTOR 7\n")
    assert again('#include "factor.h"\n' + CODE, options) != first
    again(CODE, (*OPTIONS, *options))
    again(CODE, (*OPTIONS, *options))
    assert len(compiled) == 4


def test_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, compiled: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SOFTMAX_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert again() == again()
    assert len(compiled) == 2


def test_error_is_not_kept(cache: Path) -> None:
    for _ in range(2):
        with pytest.raises(CompileError, match="FACTOR"):
            again(options=())
    assert not cache.exists()


def test_template_keeps_its_mangled_name(compiled: list) -> None:
    code = "template <int N> __global__ void k(int* y) { y[threadIdx.x] = N; }"
    found = []
    for _ in range(2):
        compile._compile.cache_clear()
        found.append(compile.compile_template(code, "k<7>"))
    assert found[0] == found[1] and f".entry {found[0][1]}" in found[0][0]
    assert len(compiled) == 1
