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
        monkeypatch.setattr(install, "ROOT", folder)
        monkeypatch.setattr(install, "VENV", folder / ".venv")
        monkeypatch.setattr(install, "STAMP", folder / ".venv" / "installed.txt")
        monkeypatch.setattr(install, "DRIVER", folder / "driver")
        monkeypatch.setattr(install, "run", self.run)
        monkeypatch.setattr(install.subprocess, "run", self.no_nvidia_smi)
        self.system()

    @staticmethod
    def no_nvidia_smi(command: list[str], **_: object) -> None:
        raise FileNotFoundError(command[0])

    def system(
        self, platform: str = "linux", machine: str = "x86_64", version: tuple[int, int] = (3, 12)
    ) -> None:
        self.patch.setattr(install.platform, "machine", lambda: machine)
        self.patch.setattr(
            install.sysconfig, "get_config_var", lambda _: "cpython-x86_64-linux-gnu"
        )
        pretended = PretendedSys(platform=platform, version_info=version)
        self.patch.setattr(install, "sys", pretended)

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
    computer: Computer,
    capsys: pytest.CaptureFixture[str],
    driver: str | None,
    major: int,
    words: str,
) -> None:
    computer.driver(driver)
    assert computer.setup() == (0, ["venv", "pip", install.CHECK])
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


@pytest.mark.parametrize(
    ("platform", "machine", "name"),
    [
        ("darwin", "arm64", "macOS"),
        ("darwin", "x86_64", "macOS"),
        ("linux", "riscv64", "linux on riscv64"),
        ("win32", "x86", "win32 on x86"),
        ("freebsd14", "amd64", "freebsd14 on amd64"),
    ],
)
def test_platform_without_wheels(
    computer: Computer, sentence: Sentence, platform: str, machine: str, name: str
) -> None:
    computer.system(platform, machine)
    assert computer.setup() == (1, [])
    said = sentence()
    assert f"no wheels for {name}: " in said and "Colab" in said and "container" in said


def test_linux_without_glibc(computer: Computer, sentence: Sentence) -> None:
    computer.patch.setattr(
        install.sysconfig, "get_config_var", lambda _: "cpython-312-x86_64-linux-musl"
    )
    assert computer.setup() == (1, [])
    assert "Linux without glibc" in sentence()


@pytest.mark.parametrize("version", [(3, 6), (3, 9), (3, 15)])
def test_python_out_of_range(
    computer: Computer, sentence: Sentence, version: tuple[int, int]
) -> None:
    computer.system(version=version)
    computer.patch.setattr(install.shutil, "which", lambda _: None)
    assert computer.setup() == (1, [])
    said = sentence()
    assert said.startswith("This is Python {}.{}; install one".format(*version))


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


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_python_without_venv(computer: Computer, sentence: Sentence, module: str) -> None:
    found = install.importlib.util.find_spec
    computer.patch.setattr(
        install.importlib.util, "find_spec", lambda name: None if name == module else found(name)
    )
    assert computer.setup() == (1, [])
    assert "sudo apt install python3.12-venv" in sentence()


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
    assert computer.setup() == (0, ["venv", "pip", install.CHECK])


# ------------------------------------------------------------ a second run


AGAIN = {  # what has changed since the first run -> the steps that the second takes
    "another CUDA": (lambda c: c.driver("550.54.15"), ["pass", "venv", "pip", install.CHECK]),
    "another Python": (lambda c: c.system(version=(3, 13)), ["pass", "venv", "pip", install.CHECK]),
    "no python": (lambda c: install.venv_python().unlink(), ["pass", "venv", "pip", install.CHECK]),
    "no stamp": (lambda c: install.STAMP.unlink(), ["venv", "pip", install.CHECK]),
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


@pytest.mark.parametrize(("level", "status"), [(None, 130), ("1", 0)])
def test_ctrl_c_is_one_line_and_the_next_run_finishes(
    computer: Computer, monkeypatch, capsys, level: str | None, status: int
) -> None:
    """Under make, which ends by the signal itself, it is no failure to be reported once more."""

    def interrupted(command: list[str]) -> tuple[int, str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(install, "run", interrupted)
    monkeypatch.delenv("MAKELEVEL", raising=False)
    if level:
        monkeypatch.setenv("MAKELEVEL", level)
    assert install.main() == status
    assert capsys.readouterr().err == "interrupted: the same command again finishes the set-up\n"
    assert not install.STAMP.exists()
