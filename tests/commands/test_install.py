"""helpers/commands/install.py decides and speaks as promised, on machines that this one is not."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.commands import install

CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Oct 19 18:56:32 UTC 2023\nGCC 12.2.0"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (root@host)"

ALL = ["venv", "pip", install.CHECK]  # the steps of a first run

posix = pytest.mark.skipif(os.name == "nt", reason="a POSIX shell script stands in for Python")


class PretendedSys(SimpleNamespace):
    """The sys module but for the attributes given."""

    def __getattr__(self, name: str) -> object:
        return getattr(sys, name)


class Computer:
    """A pretended computer: what install.py asks of it, and the commands that it was given."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.patch = monkeypatch
        self.commands: list[list[str]] = []
        self.failing: dict[str, str] = {}
        for major in (12, 13):
            lock = folder / "requirements" / f"cuda{major}.txt"
            lock.parent.mkdir(exist_ok=True)
            lock.write_text(f"made-for-cuda=={major}\n")
        venv = folder / ".venv"
        self.set(install, ROOT=folder, VENV=venv, STAMP=venv / "installed.txt", run=self.run)
        self.set(install, DRIVER=folder / "driver")
        self.set(install.subprocess, run=self.no_nvidia_smi)
        self.set(install.sysconfig, get_config_var=lambda _: "cpython-x86_64-linux-gnu")
        self.system()

    def set(self, module: object, **names: object) -> None:
        for name, value in names.items():
            self.patch.setattr(module, name, value)

    def hide(self, module: str) -> None:
        found = install.importlib.util.find_spec
        self.set(install.importlib.util, find_spec=lambda n: None if n == module else found(n))

    @staticmethod
    def no_nvidia_smi(command: list[str], **_: object) -> None:
        raise FileNotFoundError(command[0])

    def system(
        self, platform: str = "linux", machine: str = "x86_64", version: tuple[int, int] = (3, 12)
    ) -> None:
        self.set(install.platform, machine=lambda: machine)
        self.set(install, sys=PretendedSys(platform=platform, version_info=version))

    def driver(self, version: str | None) -> None:
        if version is None:
            install.DRIVER.unlink(missing_ok=True)
        else:
            install.DRIVER.write_text(CLOSED.format(version))

    def lock(self, major: int) -> None:
        (self.folder / f"requirements/cuda{major}.txt").write_text("other==1\n")

    def run(self, command: list[str]) -> tuple[int, str]:
        step = "venv" if "venv" in command else "pip" if "pip" in command else command[-1]
        self.commands.append([step, *command])
        if step == "venv" and "venv" not in self.failing:
            shutil.rmtree(install.VENV, ignore_errors=True)
            install.venv_python().parent.mkdir(parents=True)
            install.venv_python().touch()
        if step == "pass" and not install.venv_python().exists():
            return 1, "no such file"
        return (1, self.failing[step]) if step in self.failing else (0, "")

    def setup(self) -> tuple[int, list[str]]:
        """Run main(); its exit status and the steps that it took."""
        self.commands.clear()
        status = install.main()
        return status, [step for step, *_ in self.commands]


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Computer:
    return Computer(tmp_path, monkeypatch)


Sentence = Callable[[], str]


@pytest.fixture
def sentence(capsys: pytest.CaptureFixture[str]) -> Sentence:
    def read() -> str:
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].endswith(".")
        return lines[0]

    return read


# ------------------------------------------------------------ the driver decides


@pytest.mark.parametrize(
    ("driver", "major", "words"),
    [
        ("580.65.06", 13, "CUDA 13 packages, for NVIDIA driver 580.65.06."),
        ("601.10", 13, "for NVIDIA driver 601.10."),
        ("579.99", 12, "CUDA 12 packages, for NVIDIA driver 579.99."),
        ("525.60.13", 12, "for NVIDIA driver 525.60.13."),
        ("524.99", 13, "524.99 is too old"),
        ("470.256.02", 13, "timings are replayed"),
        (None, 13, "no NVIDIA GPU here, so kernels run on the SIMT machine"),
    ],
)
def test_driver_decides_the_packages(
    computer: Computer, capsys, driver: str | None, major: int, words: str
) -> None:
    computer.driver(driver)
    assert computer.setup() == (0, ALL)
    assert computer.commands[1][-1].endswith(f"cuda{major}.txt")
    choice, *_ = capsys.readouterr().out.splitlines()
    assert words in choice and choice.startswith(f"CUDA {major} packages")
    too_old_or_none = driver is None or int(driver[:3]) < 525
    assert ("replayed" in choice) == too_old_or_none


@pytest.mark.parametrize("text", [CLOSED, OPEN])
def test_driver_from_the_kernel_module(computer: Computer, text: str) -> None:
    install.DRIVER.write_text(text.format("535.129.03"))
    assert install.driver_version() == "535.129.03"


@pytest.mark.parametrize(
    ("status", "output", "version"),
    [
        (0, "576.52\n576.52\n", "576.52"),
        (9, "NVIDIA-SMI has failed because it couldn't communicate with driver 535.1", None),
        (0, "No devices were found\n", None),
    ],
)
def test_driver_from_nvidia_smi(
    computer: Computer, status: int, output: str, version: str | None
) -> None:
    def nvidia_smi(command: list[str], **options: object) -> SimpleNamespace:
        assert command[0] == "nvidia-smi" and options["timeout"]
        return SimpleNamespace(returncode=status, stdout=output)

    computer.patch.setattr(install.subprocess, "run", nvidia_smi)
    assert install.driver_version() == version


# ------------------------------------------------------------ what is missing

WITHOUT = "no wheels for {}: run make setup in a Debian or Ubuntu container"
MUSL = {"get_config_var": lambda _: "cpython-312-x86_64-linux-musl"}
MISSING = {  # what the computer is like -> words of the sentence
    "macOS, Arm": (lambda c: c.system("darwin", "arm64"), WITHOUT.format("macOS")),
    "macOS": (lambda c: c.system("darwin"), WITHOUT.format("macOS")),
    "riscv": (lambda c: c.system("linux", "riscv64"), WITHOUT.format("linux on riscv64")),
    "win32": (lambda c: c.system("win32", "x86"), WITHOUT.format("win32 on x86")),
    "BSD": (lambda c: c.system("freebsd14", "amd64"), WITHOUT.format("freebsd14 on amd64")),
    "musl": (lambda c: c.set(install.sysconfig, **MUSL), WITHOUT.format("Linux without glibc")),
    "Python 3.6": (lambda c: c.system(version=(3, 6)), "This is Python 3.6; install one"),
    "Python 3.9": (lambda c: c.system(version=(3, 9)), "This is Python 3.9; install one"),
    "Python 3.15": (lambda c: c.system(version=(3, 15)), "This is Python 3.15; install one"),
    "no venv": (lambda c: c.hide("venv"), "sudo apt install python3.12-venv"),
    "no ensurepip": (lambda c: c.hide("ensurepip"), "sudo apt install python3.12-venv"),
}


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_is_one_sentence(computer: Computer, sentence: Sentence, what: str) -> None:
    change, words = MISSING[what]
    change(computer)
    computer.set(install.shutil, which=lambda _: None)
    assert computer.setup() == (1, []) and words in sentence()


@posix
def test_the_newest_python_that_starts_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    ("step", "line", "words"),
    [
        ("venv", "Error: [Errno 13] Permission denied", "Could not make .venv"),
        ("pip", "ERROR: No matching distribution found for anyio==4", "check the network"),
        (install.CHECK, "ImportError: libnvrtc.so.13: cannot open", "does not load"),
    ],
)
def test_failed_step_is_one_sentence_and_is_done_again(
    computer: Computer, sentence: Sentence, step: str, line: str, words: str
) -> None:
    computer.failing = {step: line}
    status, steps = computer.setup()
    assert status == 1 and steps[-1] == step
    said = sentence()
    assert words in said and line in said
    assert not install.STAMP.exists()
    computer.failing = {}
    assert computer.setup() == (0, ALL)


# ------------------------------------------------------------ a second run


AGAIN = {  # what has changed since the first run -> the steps that the second takes
    "another CUDA": (lambda c: c.driver("550.54.15"), ["pass", *ALL]),
    "another Python": (lambda c: c.system(version=(3, 13)), ["pass", *ALL]),
    "no python": (lambda c: install.venv_python().unlink(), ["pass", *ALL]),
    "no stamp": (lambda c: install.STAMP.unlink(), ALL),
    "the lock": (lambda c: c.lock(13), ["pass", "pip", install.CHECK]),
    "another lock": (lambda c: c.lock(12), ["pass"]),
}


@pytest.mark.parametrize("changed", AGAIN)
def test_second_run_does_what_the_change_asks_for(computer: Computer, changed: str) -> None:
    change, steps = AGAIN[changed]
    computer.setup()
    change(computer)
    assert computer.setup() == (0, steps)
    assert all("--clear" in command for step, *command in computer.commands if step == "venv")
    assert computer.setup() == (0, ["pass"])


# ------------------------------------------------------------ interrupted


def test_ctrl_c_is_one_line_and_the_next_run_finishes(computer: Computer, capsys) -> None:
    def interrupted(command: list[str]) -> tuple[int, str]:
        raise KeyboardInterrupt

    computer.set(install, run=interrupted)
    assert install.main() == 130
    assert capsys.readouterr().err == "interrupted: the same command again finishes the set-up\n"
    assert not install.STAMP.exists()
