"""What the README tells a Python programmer to type works as it stands."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.base.paths import ROOT
from helpers.commands.export import main

SECTION = re.search(
    r"^## Copy a kernel\n(.*?)^## ", (ROOT / "README.md").read_text("utf-8"), re.M | re.S
)[1]
COMMANDS = re.findall(r'make export ARGS="(.*--as (?:torch|cupy).*)"', SECTION)
EXAMPLES = re.findall(r"```python\n(.*?)```", SECTION, re.S)


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
