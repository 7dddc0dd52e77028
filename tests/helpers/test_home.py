"""A temporary folder replaces a missing or read-only home folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.base.paths import ROOT


@pytest.mark.skipif(os.name != "posix", reason="HOME is no matter there")
@pytest.mark.parametrize("there", [True, False])
def test_a_command_that_imports_cupy_runs_and_leaves_nothing(tmp_path: Path, there: bool) -> None:
    """CuPy makes its cache folder when it is imported, and fails if it cannot. Not even root can
    make a folder in a file."""
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    home = tmp_path if there else tmp_path / "file/home"
    environment = {k: v for k, v in os.environ.items() if k != "SOFTMAX_REPLAY"}
    done = subprocess.run(
        [sys.executable, "-m", "helpers.commands.plan", "06_registers", "64", "4096"],
        env=environment | {"TMPDIR": str(tmp_path / "tmp"), "HOME": str(home)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "06_registers" in done.stdout
    said = [] if there else [f"{home} is missing or not writable"]
    assert [line.partition(", so")[0] for line in done.stderr.splitlines()] == said
    assert list((tmp_path / "tmp").iterdir()) == []
