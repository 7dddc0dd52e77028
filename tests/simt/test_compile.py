"""Compiled kernels are kept on disk by content: found again, never stale, never in the way. What
lies in their folder is trusted only as far as it can be."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cuda.bindings import nvrtc

from helpers.base.paths import ROOT
from helpers.simt import CompileError, cache, compile

CODE = 'extern "C" __global__ void k(float* y) { y[threadIdx.x] /= FACTOR + 2.0f; }'
OPTIONS = ("-DFACTOR=3",)
NAME = "0" * 64 + ".ptx"  # of an entry


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache on disk, and none in memory."""
    monkeypatch.setenv("SOFTMAX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_written", 0)
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


def test_second_process_does_not_compile(compiled: list, folder: Path) -> None:
    assert again() == again()
    assert len(compiled) == 1
    assert [path.suffix for path in folder.iterdir()] == [".ptx"]


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


@pytest.mark.parametrize(
    ("module", "name", "version"),
    [
        (nvrtc, "nvrtcVersion", (0, 99, 0)),
        (compile, "toolkit_versions", ("nvidia_cuda_runtime-99",)),
    ],
)
def test_another_compiler_or_toolkit_compiles_anew(
    module, name: str, version: tuple, compiled: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "#include <cuda_fp16.h>\n" + CODE
    assert again(code) == again(code)
    assert len(compiled) == 1
    assert any(one.startswith("nvidia_cuda_runtime-") for one in compile.toolkit_versions())
    monkeypatch.setattr(module, name, lambda: version)
    again(code)
    assert len(compiled) == 2


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-40], lambda b: b"x" + b, lambda b: b"", lambda b: b"short"]
)
def test_damaged_entry_is_compiled_again(damage, compiled: list, folder: Path) -> None:
    right = again()
    (entry,) = folder.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert again() == right
    assert len(compiled) == 2
    assert again() == right
    assert len(compiled) == 2, "the damaged entry was not replaced"


# What is before the kernel, or an option: it depends on factor.h, unless another file is named.
# Most hide that from whoever looks for lines that begin with #include.
READS = {
    "quoted": '#include "factor.h"',
    "in brackets": "#include <factor.h>",
    "an absolute path": "#include <{folder}/factor.h>",
    "a digraph": '%:include "factor.h"',
    "a comment": '# /* here */ include "factor.h"',
    "a comment before it": '/* here\n*/ #include "factor.h"',
    "a comment of two lines": '#include /*\n*/ "factor.h"',
    "a split line": '#inc\\\nlude "factor.h"',
    "another header": '#include "outer.h"',
    "a folder that is a link": ('#include "link/outer.h"', "far/factor.h"),
    "one that comes first": ('#include "late.h"', "first/late.h"),
    "whether there is one": (
        '#if __has_include("new.h")\n#define FACTOR 4\n#else\n#define FACTOR 3\n#endif',
        "new.h",
    ),
    "an option": "-include=factor.h",
    "another option": "--pre-include=factor.h",
}


@pytest.mark.parametrize("case", READS)
def test_header_is_read_again_when_it_changed(case: str, tmp_path: Path, compiled: list) -> None:
    for name in ("factor.h", "far/factor.h", "late.h", "first/other.h"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("#define FACTOR 3\n")
    (tmp_path / "outer.h").write_text('#include "factor.h"\n')
    (tmp_path / "far" / "deep").mkdir()
    (tmp_path / "far" / "deep" / "outer.h").write_text('#include "../factor.h"\n')
    (tmp_path / "link").symlink_to(tmp_path / "far" / "deep")
    text, file = READS[case] if isinstance(READS[case], tuple) else (READS[case], "factor.h")
    file, is_new = tmp_path / file, not (tmp_path / file).exists()
    options: tuple[str, ...] = (f"-I{tmp_path / 'first'}", "-I", str(tmp_path))
    code = f"{text.format(folder=tmp_path)}\n{CODE}"
    if text.startswith("-"):
        code, options = CODE, (*options, text)
    first = again(code, options)
    assert again(code, options) == compile.compile_ptx(code, options) == first
    assert len(compiled) == 1
    file.write_text("#define FACTOR 7\n")
    assert compile.compile_ptx(code, options) != first, "the old result, from memory"
    compile._MEMORY.clear()
    file.write_text("#define FACTOR 8\n")
    assert again(code, options) != first, "the old result, from disk"
    file.unlink() if is_new else file.write_text("#define FACTOR 3\n")
    assert again(code, options) == first


@pytest.mark.parametrize("condition", ["0", "1"])
def test_headers_that_may_be_read_count_too(condition: str, tmp_path: Path, compiled: list) -> None:
    (tmp_path / "factor.h").write_text("#define FACTOR 3\n")
    code = f'#if {condition}\n#include "factor.h"\n#else\n#define FACTOR 3\n#endif\n{CODE}'
    assert again(code, (f"-I{tmp_path}",)) == again(code, (f"-I{tmp_path}",))
    (tmp_path / "factor.h").write_text("#define FACTOR 7\n")
    again(code, (f"-I{tmp_path}",))
    assert len(compiled) == 2


@pytest.mark.parametrize(
    "asks",
    ["#include H", '#if __has_include(H)\n#include "factor.h"\n#endif'],
    ids=["include", "has_include"],
)
def test_a_name_that_is_computed_is_not_kept(asks: str, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "factor.h").write_text("#define FACTOR 3\n")
    options = (f"-I{tmp_path}", "-DH=<factor.h>")
    first = again(f"{asks}\n{CODE}", options)
    (tmp_path / "factor.h").write_text("#define FACTOR 7\n")
    assert again(f"{asks}\n{CODE}", options) != first
    assert not folder.exists()


def test_a_word_on_includes_in_a_comment_is_none(compiled: list) -> None:
    code = "// here an #include is missing\n" + CODE
    assert again(code) == again(code)
    assert len(compiled) == 1


def test_clones_share_results(
    tmp_path: Path, compiled: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "factor.h").write_text("#define FACTOR 3\n")
        monkeypatch.chdir(tmp_path / name)
        again('#include "factor.h"\n' + CODE, (f"-I{tmp_path / name}",))
    assert len(compiled) == 1


def test_header_of_the_host_that_one_of_the_toolkit_asks_for(
    tmp_path: Path, compiled: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toolkit").mkdir()
    (tmp_path / "toolkit" / "outer.h").write_text(
        "#include <limits.h>\n#ifdef H\n#include H\n#endif"
    )
    monkeypatch.setattr(compile, "include_folders", lambda: (str(tmp_path / "toolkit"),))
    (tmp_path / "limits.h").write_text("#define FACTOR 3\n")
    code, options = "#include <outer.h>\n" + CODE, (f"-I{tmp_path}",)
    first = again(code, options)
    assert again(code, options) == first and len(compiled) == 1
    (tmp_path / "limits.h").write_text("#define FACTOR 7\n")
    assert again(code, options) != first


def test_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, compiled: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SOFTMAX_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert again() == again()
    assert len(compiled) == 2


def test_error_is_not_kept(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(CompileError, match="FACTOR"):
            again(options=())
    assert not folder.exists()


def test_header_that_changes_while_it_is_compiled_is_not_kept(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = nvrtc.nvrtcCompileProgram

    def changing(*arguments):
        (tmp_path / "factor.h").write_text("#define FACTOR 7\n")
        return original(*arguments)

    (tmp_path / "factor.h").write_text("#define FACTOR 3\n")
    monkeypatch.setattr(nvrtc, "nvrtcCompileProgram", changing)
    again('#include "factor.h"\n' + CODE, (f"-I{tmp_path}",))
    assert not folder.exists()


def test_template_keeps_its_mangled_name(compiled: list) -> None:
    code = "template <int N> __global__ void k(int* y) { y[threadIdx.x] = N; }"
    found = []
    for _ in range(2):
        compile._MEMORY.clear()
        found.append(compile.compile_kernels(code, ("k<7>",)))
    assert found[0] == found[1] and f".entry {found[0][1]['k<7>']}" in found[0][0]
    assert len(compiled) == 1


# ---- the folder ----


def entry(number: int) -> str:
    return f"{number:064x}.ptx"


@pytest.mark.skipif(os.name != "posix", reason="FIFOs and owners are POSIX's")
def test_nothing_but_a_file_of_this_users_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write(NAME, b"a kernel")
    assert cache.read(NAME) == b"a kernel" and folder.stat().st_mode & 0o077 == 0
    (folder / entry(1)).symlink_to(folder / NAME)
    os.mkfifo(folder / entry(2))
    (folder / entry(3)).mkdir()
    (folder / entry(4)).write_bytes((folder / NAME).read_bytes())
    (folder / entry(4)).chmod(0o666)
    for number in range(1, 5):
        assert cache.read(entry(number)) is None, number  # a FIFO would wait forever
    cache.write(entry(2), b"instead of the FIFO")
    assert cache.read(entry(2)) == b"instead of the FIFO"
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert cache.read(NAME) is None


def test_the_entries_unused_for_longest_go_first(folder: Path) -> None:
    for number in range(10):
        cache.write(entry(number), b"x" * 68)  # 100 bytes with the checksum
        os.utime(folder / entry(number), (number, number))
    cache.read(entry(0))
    cache.trim(folder, 1000)
    assert len(list(folder.iterdir())) == 10
    cache.trim(folder, 800)
    left = {path.name for path in folder.iterdir()}
    assert left == {entry(number) for number in (0, 5, 6, 7, 8, 9)}


def test_temporaries_of_the_killed_go_and_other_files_stay(folder: Path) -> None:
    cache.write(NAME, b"a kernel")
    for name in (".keep", "notes.txt", "writing-old", "writing-now"):
        (folder / name).write_text("something")
    old = time.time() - 2 * cache.ABANDONED
    os.utime(folder / "writing-old", (old, old))
    cache.trim(folder, 0)
    assert {path.name for path in folder.iterdir()} == {".keep", "notes.txt", "writing-now"}


def test_a_failed_write_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", refuse)
    cache.write(NAME, b"a kernel")
    assert list(folder.iterdir()) == []


def test_make_clean_empties_it_with_any_python(folder: Path) -> None:
    """Without the packages of .venv, which is gone by then."""
    cache.write(NAME, b"a kernel")
    (folder / "writing-now").write_text("half")
    (line,) = [one for one in (ROOT / "Makefile").read_text().splitlines() if "cache.py" in one]
    code = line.split("-c ", 1)[1].strip().strip("'")
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not folder.exists()
