"""What the README tells a C++ programmer to type works as it stands."""

import re
import shlex
import subprocess
from pathlib import Path

from helpers.commands.export import main
from helpers.paths import ROOT
from tests.copied.compilers import compiled, needs_nvcc, nvcc

SECTION = re.search(
    r"^## Copy a kernel\n(.*?)^## ", (ROOT / "README.md").read_text("utf-8"), re.M | re.S
)[1]


@needs_nvcc
def test_the_commands_and_the_example_make_a_program(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = re.search(r'make export ARGS="(best [^"]*fast_softmax)"', SECTION)[1]
    assert main(shlex.split(arguments)) == 0
    (example,) = re.findall(r"```cpp\n(.*?)```", SECTION, re.S)
    (tmp_path / "main.cu").write_text(example)
    command = shlex.split(re.search(r"^    nvcc (.*)", SECTION, re.M)[1])
    done = compiled(tmp_path, *command)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    subprocess.run(["./main"], timeout=60)  # without a GPU, an error


@needs_nvcc
def test_sixteen_bits_compile_with_nvcc_as_it_is_installed(tmp_path: Path, monkeypatch) -> None:
    """No folder of headers is named."""
    monkeypatch.chdir(tmp_path)
    arguments = "best 8x4096 --dtype float32,float16,bfloat16 --name fast_softmax"
    assert main(arguments.split()) == 0
    command = re.search(r"^    nvcc (.*) main.cu", SECTION, re.M)[1].split()
    done = subprocess.run([nvcc()[0], *command, "-c"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_example_is_short() -> None:
    (example,) = re.findall(r"```cpp\n(.*?)```", SECTION, re.S)
    lines = [line for line in example.splitlines() if line.strip(" {}")]
    assert len(lines) <= 10
