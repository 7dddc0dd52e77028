"""`make export`: a file is written, or there is one sentence."""

import re
from pathlib import Path

import pytest

from helpers.base.paths import ROOT
from helpers.catalogue.header import header
from helpers.catalogue.registry import source
from helpers.commands.export import FOLDER, main
from helpers.run.bound import bind
from helpers.simt import compile_ptx
from helpers.simt.cuda_text import token_hash


def exported(*arguments: object) -> int:
    return main([*map(str, arguments)])


def test_a_kernel_becomes_one_file(tmp_path: Path, capsys) -> None:
    file = tmp_path / "fast.cu"
    given = ("08_cluster", "8192x50304", "1..4096x32000", "--name", "fast", "-o", file)
    assert exported(*given) == 0
    text = file.read_text()
    compiling = "nvcc -std=c++17 -O3 -ftz=true -arch=sm_90 -c "
    printed = f"{file}: {text.count(chr(10))} lines\n{compiling}{file}\n"
    assert capsys.readouterr().out == printed  # where it lies
    assert f"    {compiling}fast.cu\n" in text  # wherever it lies
    assert "cudaError_t fast(const float* x, float* y, long long rows, long long cols," in text
    assert "kernels/08_cluster.cu" in text and "tuned on an NVIDIA H200" in text
    assert text.startswith("// SPDX-License-Identifier: MIT\n// Copyright (c) ")
    assert not re.search(r"/(work|home|tmp)/", text)


def test_the_folder_of_exports_is_not_gits() -> None:
    listed = (ROOT / ".gitignore").read_text().splitlines()
    assert f"/{FOLDER}/" in listed


def test_a_refused_export_makes_no_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert exported("08_cluster", "8x50303") == 2 and not [*tmp_path.iterdir()]


def test_the_head_names_the_file(tmp_path: Path) -> None:
    """In what is to be typed, and for compilers that do not know the name of what they read."""
    file = tmp_path / "my kernels.cu"
    assert exported("07_warp", "8x100", "--name", "fast", "-o", file) == 0
    text = file.read_text()
    assert "-arch=sm_90 -c 'my kernels.cu'\n" in text
    assert '#define FAST_SELF "my kernels.cu"' in text


def test_shapes_may_come_after_options(tmp_path: Path) -> None:
    one, other = tmp_path / "fast.cu", tmp_path / "other" / "fast.cu"
    other.parent.mkdir()
    assert exported("best", "8x32000", "--name", "fast", "-o", one) == 0
    assert exported("--name", "fast", "best", "-o", other, "8x32000") == 0
    assert one.read_text() == other.read_text()


@pytest.mark.parametrize("name", ["torch", "types"])
def test_a_file_hides_no_module(name: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert exported("07_warp", "--as", "torch", "--name", name) == 2
    assert capsys.readouterr().err.startswith(f"{FOLDER / name}.py would hide the module")
    assert exported("07_warp", "--as", "torch", "--name", name, "-o", "mine.py") == 0
    assert [file.name for file in tmp_path.iterdir()] == ["mine.py"]


REFUSED = {
    ("99_none", "8x8"): "no kernel file kernels/99_none.cu; there are: 00_copy",
    ("08_cluster", "8x50303"): "08_cluster accepts no float32 matrix of 8x50303: the kernel cannot",
    ("06_registers", "8x40000"): "06_registers accepts no float32 matrix of 8x40000: the kernel",
    ("06_registers", "8x40", "--dtype", "float16"): "06_registers supports float32, not float16",
    (
        "08_cluster",
        "8x32000",
        "--name",
        "2fast",
    ): "the name of a function must consist of letters, digits and single _, and must not be a "
    "reserved word of C++ or Python, got '2fast'",
    ("08_cluster", "8x32000", "--name", "new"): "the name of a function must consist of letters",
    ("08_cluster", "8by32000"): "shapes must be ROWSxCOLS, each a number or LOW..HIGH",
    ("08_cluster", "9..8x32000"): "sizes must be 1 to 2147483647, the lower number first, got 9..8",
    ("08_cluster", "0x32000"): "sizes must be 1 to 2147483647, the lower number first, got 0 in",
    (
        "08_cluster",
        "8x3000000000",
    ): "sizes must be 1 to 2147483647, the lower number first, got 3000000000",
    ("08_cluster",): "name the shapes to compile for, such as 8192x50304",
    ("09_grid", "1..1000000x1..10000000"): "1..1000000x1..10000000 has more than 16384 row",
    ("07_warp", "1..1000x1..1024"): "1..1000x1..1024 needs 73 specialisations, more than 64 in"
    " one file",
    ("08_cluster", "8x32000", "--strides"): "08_cluster requires rows without gaps; leave",
    (
        *("best", "8x32000", "--gpu", "132,62914560,90", "--gpu", "108,41943040,80"),
    ): "one file supports one compute capability, got 80 and 90",
    (
        "09_grid",
        "1x1048576",
        "--gpu",
        "108,41943040,80",
    ): "09_grid accepts no float32 matrix of 1x1",
    ("best", "1..64x32000", "--as", "torch"): "only C++ is written for certain shapes and GPUs: "
    "leave out 1..64x32000\n",
    (
        *("best", "--as", "cupy", "--dtype", "float16", "--strides", "--anywhere"),
        *("--gpu", "132,62914560,90"),
    ): "only C++ is written for certain shapes and GPUs: leave out --dtype, --gpu, --strides, "
    "--anywhere\n",
    ("best", "--as", "cuda"): "--as cuda takes the name of a kernel file, such as 08_cluster\n",
    ("07_warp-ROWS2", "--as", "cuda"): "--as cuda takes the name of a kernel file",
    ("07_warp", "8x8", "--as", "cuda"): "only C++ is written for certain shapes and GPUs: leave",
}


@pytest.mark.parametrize("given", REFUSED, ids=" ".join)
def test_what_is_no_export_is_told_in_one_sentence(given, tmp_path: Path, capsys) -> None:
    file = tmp_path / "out.cu"
    assert exported(*given, "-o", file) == 2
    said = capsys.readouterr()
    assert said.err.startswith(REFUSED[given]) and said.err.count("\n") == 1 and not said.out
    assert not file.exists()


def test_a_file_is_replaced_by_force_alone(tmp_path: Path, capsys) -> None:
    file = tmp_path / "softmax.cu"
    file.write_text("mine")
    assert exported("06_registers", "8x4096", "-o", file) == 2
    assert capsys.readouterr().err == f"{file} exists; --force replaces it\n"
    assert file.read_text() == "mine"
    assert exported("06_registers", "8x4096", "-o", file, "--force") == 0
    assert file.read_text() != "mine"


@pytest.mark.parametrize("given", ["--gpu=132", "--gpu=0,1,90", "--dtype=float64", "--as=rust"])
def test_options_that_make_no_sense_are_told(given: str, capsys) -> None:
    with pytest.raises(SystemExit):
        exported("08_cluster", "8x32000", given)
    assert "usage: " in capsys.readouterr().err


def test_a_cuda_file_is_the_kernel_with_what_it_includes(tmp_path: Path) -> None:
    file = tmp_path / "08.cu"
    assert exported("08_cluster", "--as", "cuda", "-o", file) == 0
    code, text = source("08_cluster.cu"), file.read_text()
    assert token_hash(text) == token_hash(code) and header(text).fields == header(code).fields
    assert not re.search(r'^#(line|include ")', text, flags=re.MULTILINE)
    assert compile_ptx(text, bind(code, 8, 4096).options)
