"""What docs/export.md and the README tell a Python programmer to type works unchanged."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.base.paths import ROOT
from helpers.commands.export import main

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
