"""What a compiler made is taken again for the same text alone; a missing one is named."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from helpers.paths import ROOT
from tests.copied.compilers import host_compiled, key, needs_headers

COMMAND = ["g++", "-c", "one.cpp"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOFTMAX_CACHE_DIR", str(tmp_path / "kept"))
    (tmp_path / "one.cpp").write_text('#include "other.h"\nint one() { return other; }\n')
    (tmp_path / "other.h").write_text("constexpr int other = 1;\n")
    return tmp_path


def counted(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that run from now on."""
    commands, run = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda c, **o: (commands.append(c), run(c, **o))[1])
    return commands


@needs_headers
def test_an_object_is_compiled_once_and_has_the_same_bytes(folder: Path, monkeypatch) -> None:
    assert host_compiled(folder, "-c", "one.cpp").returncode == 0
    made = (folder / "one.o").read_bytes()
    (folder / "one.o").unlink()
    commands = counted(monkeypatch)
    assert host_compiled(folder, "-c", "one.cpp").returncode == 0
    assert (folder / "one.o").read_bytes() == made
    assert ["-M" in command for command in commands] == [True]  # asked what is read, no more


@needs_headers
def test_another_text_header_or_option_is_another_object(folder: Path) -> None:
    keys = {key(folder, COMMAND), key(folder, ["g++", "-O2", "-c", "one.cpp"])}
    for file in ("one.cpp", "other.h"):
        (folder / file).write_text((folder / file).read_text() + "// more\n")
        keys.add(key(folder, COMMAND))
    assert len(keys) == 4 and None not in keys


@needs_headers
def test_what_does_not_compile_is_told_each_time(folder: Path) -> None:
    (folder / "other.h").write_text("constexpr int other = none;\n")
    for _ in range(2):
        done = host_compiled(folder, "-c", "one.cpp")
        assert done.returncode != 0 and "none" in done.stderr
    (folder / "other.h").unlink()
    assert key(folder, COMMAND) is None


@needs_headers
def test_a_warning_is_told_again(folder: Path) -> None:
    (folder / "one.cpp").write_text("#warning careful\n")
    said = [host_compiled(folder, "-Wno-error", "-c", "one.cpp").stderr for _ in range(2)]
    assert "careful" in said[0] and said[0] == said[1]


@pytest.mark.skipif(os.name != "posix", reason="shell scripts stand in for compilers")
@pytest.mark.parametrize(
    ("compilers", "header", "reasons"),
    [
        ([], "", ["no host C++ compiler: install g++"]),
        (["gcc"], "", ["no host C++ compiler: install g++"]),
        (["gcc", "g++"], "cuda_runtime_api.h", ["no CUDA header crt/host_defines.h:", "no nvcc:"]),
        (["gcc", "g++", "nvcc"], "", ["no CUDA header cuda_runtime_api.h: make test installs it"]),
    ],
)
def test_what_is_missing_is_the_reason_to_skip(
    compilers: list[str], header: str, reasons: list[str], tmp_path: Path
) -> None:
    """In an environment with these packages, but for nvcc and all headers of CUDA except one."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in compilers:
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    own = tmp_path / "own"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", own], check=True)
    (site,) = own.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    headers = own / "targets" / "any" / "include"
    headers.mkdir(parents=True)
    if header:
        (headers / header).touch()
    command = "-m pytest -q -n 0 -rs -p no:nbval -p no:cacheprovider tests/copied -k".split()
    done = subprocess.run(
        [own / "bin/python", *command, "not reason_to_skip", f"--basetemp={tmp_path / 'base'}"],
        env=os.environ | {"PATH": str(tools)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(r"^SKIPPED \[\d+\] \S+ (.*)", done.stdout, re.M)
    assert len(told) > 20
    assert {r for r in reasons for one in told if one.startswith(r)} == {*reasons}
    assert [one for one in told if not one.startswith(tuple(reasons))] == []
