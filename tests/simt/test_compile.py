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
    compile._MEMORY.clear()
    yield tmp_path / "cache"
    compile._MEMORY.clear()


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
    compile._MEMORY.clear()
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


# Each reads factor.h; the last four hide that from whoever searches the text for an include.
SPELLINGS = {
    "quoted": '#include "factor.h"',
    "in brackets": "#include <factor.h>",
    "a macro": '#define H "factor.h"\n#include H',
    "an absolute path": "#include <{folder}/factor.h>",
    "a digraph": '%:include "factor.h"',
    "a comment": '# /* here */ include "factor.h"',
    "a split line": '#inc\\\nlude "factor.h"',
    "another header": '#include "outer.h"',
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_header_is_read_again_when_it_changed(
    spelling: str, tmp_path: Path, compiled: list
) -> None:
    (tmp_path / "outer.h").write_text('#include "factor.h"\n')
    (tmp_path / "factor.h").write_text("#define FACTOR 3\n")
    code, options = SPELLINGS[spelling].format(folder=tmp_path) + "\n" + CODE, (f"-I{tmp_path}",)
    first = again(code, options)
    assert again(code, options) == compile.compile_ptx(code, options) == first
    assert len(compiled) == 1
    (tmp_path / "factor.h").write_text("#define FACTOR 7\n")
    assert compile.compile_ptx(code, options) != first, "the old result, from memory"
    compile._MEMORY.clear()
    (tmp_path / "factor.h").write_text("#define FACTOR 8\n")
    assert again(code, options) != first, "the old result, from disk"
    (tmp_path / "factor.h").write_text("#define FACTOR 3\n")
    assert again(code, options) == first


@pytest.mark.parametrize("option", ["-include=factor.h", "--pre-include=factor.h"])
def test_header_that_an_option_names_is_read_again(option: str, tmp_path: Path) -> None:
    options = ("-I", str(tmp_path), option)
    (tmp_path / "factor.h").write_text("#define FACTOR 3\n")
    first = again(options=options)
    (tmp_path / "factor.h").write_text("#define FACTOR 7\n")
    assert again(options=options) != first


def test_header_that_now_comes_first_is_read(tmp_path: Path) -> None:
    for name in ("first", "last"):
        (tmp_path / name).mkdir()
    options = (f"-I{tmp_path / 'first'}", f"-I{tmp_path / 'last'}")
    (tmp_path / "last" / "factor.h").write_text("#define FACTOR 3\n")
    old = again('#include "factor.h"\n' + CODE, options)
    (tmp_path / "first" / "factor.h").write_text("#define FACTOR 7\n")
    assert again('#include "factor.h"\n' + CODE, options) != old


def test_source_that_asks_which_files_there_are_is_not_kept(tmp_path: Path, cache: Path) -> None:
    code = '#if __has_include("factor.h")\n#define FACTOR 3\n#else\n#define FACTOR 4\n#endif\n'
    old = again(code + CODE, (f"-I{tmp_path}",))
    (tmp_path / "factor.h").write_text("\n")
    assert again(code + CODE, (f"-I{tmp_path}",)) != old
    assert not cache.exists()


def test_clones_share_results(
    tmp_path: Path, compiled: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "factor.h").write_text("#define FACTOR 3\n")
        monkeypatch.chdir(tmp_path / name)
        again('#include "factor.h"\n' + CODE, (f"-I{tmp_path / name}",))
    assert len(compiled) == 1


def test_headers_of_the_toolkit_are_held_against_their_content(compiled: list) -> None:
    code = "#include <cuda_fp16.h>\n" + CODE
    assert again(code) == again(code)
    assert len(compiled) == 1


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


def test_a_compiler_that_does_not_say_what_it_read_is_asked_each_time(
    tmp_path: Path, compiled: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "factor.h").write_text("#define FACTOR 3\n")
    monkeypatch.setattr(compile, "ASK", "import os; os.abort()")
    for _ in range(2):
        again('#include "factor.h"\n' + CODE, (f"-I{tmp_path}",))
    assert len(compiled) == 2


def test_template_keeps_its_mangled_name(compiled: list) -> None:
    code = "template <int N> __global__ void k(int* y) { y[threadIdx.x] = N; }"
    found = []
    for _ in range(2):
        compile._MEMORY.clear()
        found.append(compile.compile_template(code, "k<7>"))
    assert found[0] == found[1] and f".entry {found[0][1]}" in found[0][0]
    assert len(compiled) == 1
