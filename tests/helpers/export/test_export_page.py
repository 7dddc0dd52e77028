"""What docs/export.md and the README tell a programmer to type works unchanged."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.base.paths import ROOT
from helpers.commands.export import main
from tests.copied.compilers import needs_nvcc, nvcc

PAGE, README = ((ROOT / name).read_text("utf-8") for name in ("docs/export.md", "README.md"))
COMMAND = re.compile(r'make export ARGS="(.*--as (?:torch|cupy).*)"')
COMMANDS = COMMAND.findall(PAGE)
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.fixture
def files(tmp_path: Path, monkeypatch) -> Path:
    """A folder in which all the commands were typed."""
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        assert main(shlex.split(command)) == 0
    return tmp_path / "exports"


def test_the_commands_write_what_the_examples_import(files: Path) -> None:
    written = {file.stem: ast.parse(file.read_text()) for file in files.glob("*.py")}
    assert len(written) == len(COMMANDS) == 2
    assert COMMAND.findall(README) == COMMANDS[:1] and "`exports/fast_softmax.py`" in README
    for example in EXAMPLES:
        (name,) = re.findall(r"^from (\w+) import softmax$", example, flags=re.M)
        defined = {node.name for node in written[name].body if hasattr(node, "name")}
        assert {"softmax", "plan"} <= defined


@pytest.mark.gpu
@pytest.mark.parametrize("example", EXAMPLES, ids=["torch", "cupy"])
def test_the_examples_run(example: str, files: Path) -> None:
    if "import torch" in example:
        pytest.importorskip("torch")
    (files / "example.py").write_text(example)
    done = subprocess.run([sys.executable, "example.py"], cwd=files, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_nvcc
def test_the_cpp_commands_and_the_example_make_a_program(tmp_path: Path, monkeypatch) -> None:
    """With 16 bits too, and nvcc as it is installed: no folder of headers is named."""
    monkeypatch.chdir(tmp_path)
    arguments = re.search(r'make export ARGS="(best \d[^"]*fast_softmax)"', PAGE)[1]
    assert main([*shlex.split(arguments), "--dtype", "float32,bfloat16"]) == 0
    (example,) = re.findall(r"```cpp\n(.*?)```", PAGE, re.S)
    (tmp_path / "main.cu").write_text(example)
    command = shlex.split(re.search(r"^    nvcc (.*)", PAGE, re.M)[1])
    done = subprocess.run([*nvcc()[:2], *command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    subprocess.run(["./main"], timeout=60)  # without a GPU, an error
