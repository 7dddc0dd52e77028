"""helpers/commands/install.py decides and speaks as promised, on machines that this one is not."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.commands import install

ALL = ["venv", "pip", "check"]  # the steps of a first run
MUSL = "cpython-312-x86_64-linux-musl"


class PretendedSys(SimpleNamespace):
    """The sys module but for the attributes given."""

    def __getattr__(self, name: str) -> object:
        return getattr(sys, name)


class Computer:
    """A pretended computer: what install.py asks of it, and the steps that it took."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.patch, self.steps, self.failing, self.lock = patch, [], "", ""
        venv = folder / ".venv"
        venv.mkdir()
        self.set(install, VENV=venv, STAMP=venv / "installed.txt")
        self.set(install.subprocess, call=self.call)
        self.set(install.sysconfig, get_config_var=lambda _: "cpython-312-x86_64-linux-gnu")
        self.set(install.platform, machine=lambda: "x86_64")
        self.system()
        self.driver("")

    def set(self, module: object, **names: object) -> None:
        for name, value in names.items():
            self.patch.setattr(module, name, value)

    def system(self, platform: str = "linux", version: tuple[int, int] = (3, 12)) -> None:
        self.set(install, sys=PretendedSys(platform=platform, version_info=version))

    def driver(self, said: str, status: int = 0) -> None:
        done = SimpleNamespace(returncode=status, stdout=said)
        self.set(install.subprocess, run=lambda *_, **__: done)

    def call(self, command: list[str], **_) -> int:
        step = "venv" if "venv" in command else "pip" if "pip" in command else "check"
        self.steps.append(step)
        self.lock = command[-1] if step == "pip" else self.lock
        return int(step == self.failing)

    def setup(self) -> tuple[int, list[str]]:
        """Run main(); its exit status and the steps that it took."""
        self.steps.clear()
        return install.main(), [*self.steps]


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Computer:
    return Computer(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("said", "major", "words"),
    [
        ("580.65.06", 13, "for NVIDIA driver 580.65.06."),
        ("579.99\n579.99\n", 12, "for NVIDIA driver 579.99."),
        ("525.60.13", 12, "for NVIDIA driver 525.60.13."),
        ("524.99", 13, "524.99 is too old"),
        ("No devices were found\n", 13, "no NVIDIA GPU here, so kernels run on the SIMT machine"),
    ],
)
def test_driver_decides_the_packages(
    computer: Computer, capsys, said: str, major: int, words: str
) -> None:
    computer.driver(said)
    assert computer.setup() == (0, ALL)
    assert computer.lock.endswith(f"cuda{major}.txt")
    choice = capsys.readouterr().out
    assert words in choice and choice.startswith(f"CUDA {major} packages")


def test_a_driver_that_does_not_answer_is_none(computer: Computer) -> None:
    computer.driver("580.65.06", status=9)
    assert install.driver_version() is None

    def missing(*_, **__):
        raise FileNotFoundError("nvidia-smi")

    computer.set(install.subprocess, run=missing)
    assert install.driver_version() is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.system("darwin"), "no wheels for macOS: run make run in a Debian"),
        (lambda c: c.set(install.platform, machine=lambda: "riscv64"), "linux on riscv64"),
        (lambda c: c.set(install.sysconfig, get_config_var=lambda _: MUSL), "without glibc"),
        (lambda c: c.system(version=(3, 6)), "This is Python 3.6; install one"),
        (lambda c: c.system(version=(3, 15)), "This is Python 3.15; install one"),
    ],
)
def test_what_is_missing_is_one_sentence(computer: Computer, capsys, change, words: str) -> None:
    change(computer)
    computer.set(install.shutil, which=lambda _: None)
    assert computer.setup() == (1, [])
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell script stands in for Python")
def test_the_newest_python_that_starts_is_taken(tmp_path: Path, monkeypatch) -> None:
    """Stand-ins for all versions are on PATH, as a version manager leaves them; one works."""
    for major, minor in install.PYTHONS:
        works = (major, minor) == sys.version_info[:2]
        script = tmp_path / f"python{major}.{minor}"
        script.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "$@"\n' if works else "#!/bin/sh\nexit 127\n"
        )
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    name = "python{}.{}".format(*sys.version_info[:2])
    assert install.other_python() == str(tmp_path / name)
    (tmp_path / name).unlink()
    assert install.other_python() is None


@pytest.mark.parametrize(
    ("step", "words"),
    [("venv", "Could not make .venv"), ("pip", "check the network"), ("check", "does not load")],
)
def test_a_failed_step_is_done_again(computer: Computer, capsys, step: str, words: str) -> None:
    computer.failing = step
    assert computer.setup() == (1, ALL[: ALL.index(step) + 1])
    assert words in capsys.readouterr().err and not install.STAMP.exists()
    computer.failing = ""
    assert computer.setup() == (0, ALL)


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        (lambda c: None, ALL[1:]),
        (lambda c: c.driver("550.54.15"), ALL),
        (lambda c: c.system(version=(3, 13)), ALL),
    ],
)
def test_another_cuda_or_python_makes_the_environment_anew(
    computer: Computer, change, steps: list[str]
) -> None:
    computer.setup()
    change(computer)
    assert computer.setup() == (0, steps)


def test_ctrl_c_is_one_line_and_the_next_run_begins_anew(computer: Computer, capsys) -> None:
    def interrupted(*_) -> None:
        raise KeyboardInterrupt

    computer.setup()
    computer.set(install, step=interrupted)
    capsys.readouterr()
    assert install.main() == 130
    assert capsys.readouterr().err == "interrupted: the same command again finishes the set-up\n"
    assert not install.STAMP.exists()
