"""What docs/export.md tells a C++ programmer to type works unchanged."""

import re
import shlex
import subprocess
from pathlib import Path

from helpers.base.paths import ROOT
from helpers.commands.export import main
from tests.copied.compilers import needs_nvcc, nvcc

PAGE = (ROOT / "docs/export.md").read_text("utf-8")


@needs_nvcc
def test_the_commands_and_the_example_make_a_program(tmp_path: Path, monkeypatch) -> None:
    """In every dtype, with nvcc as it is installed: no folder of headers is named."""
    monkeypatch.chdir(tmp_path)
    arguments = re.search(r'make export ARGS="(best \d[^"]*fast_softmax)"', PAGE)[1]
    assert main([*shlex.split(arguments), "--dtype", "float32,float16,bfloat16"]) == 0
    (example,) = re.findall(r"```cpp\n(.*?)```", PAGE, re.S)
    (tmp_path / "main.cu").write_text(example)
    command = shlex.split(re.search(r"^    nvcc (.*)", PAGE, re.M)[1])
    done = subprocess.run([*nvcc()[:2], *command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    subprocess.run(["./main"], timeout=60)  # without a GPU, an error
