"""The two package lists, the locks, the Makefile, CI and pytest's set-up agree with each other."""

import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

from helpers.commands.install import PYTHONS
from tests import warm_kernels

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, GROUPS = PYPROJECT["project"], PYPROJECT["dependency-groups"]

# Where conda-forge's name is not PyPI's. What only conda has to be told follows.
CONDA_NAME = {
    "cupy-cuda12x": "cupy",
    "cupy-cuda13x": "cupy",
    "matplotlib": "matplotlib-base",
    "ml-dtypes": "ml_dtypes",
    "nvidia-cuda-nvrtc": "cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12": "cuda-nvrtc",
    "nvidia-cuda-runtime": "cuda-cudart-dev",
    "nvidia-cuda-runtime-cu12": "cuda-cudart-dev",
}
CONDA_ONLY = {"python", "cuda-version"}

PLATFORMS = {
    "linux": {"sys_platform": "linux", "os_name": "posix", "platform_system": "Linux"},
    "win32": {"sys_platform": "win32", "os_name": "nt", "platform_system": "Windows"},
}
LOCKS = ("cuda12", "cuda13", "nvcc")
# A pin with its marker, each hash on a line of its own; no option, host name or path has this form.
PIN = re.compile(
    r"(?P<pin>[a-z0-9-]+==[a-z0-9.]+( ; [^/@\\]+)?)"
    r"(?P<hashes>( \\\n    --hash=sha256:[0-9a-f]{64})+)\n"
)

needs_make = pytest.mark.skipif(not shutil.which("make"), reason="no make")


def wanted(major: int) -> list[Requirement]:
    """What the series asks for with the packages of one CUDA major, and its tests."""
    return [
        Requirement(text) for name in ("series", f"cuda{major}", "dev") for text in GROUPS[name]
    ]


def lock(name: str) -> str:
    return (ROOT / "requirements" / f"{name}.txt").read_text()


def locked(name: str) -> list[Requirement]:
    return [Requirement(found["pin"]) for found in PIN.finditer(lock(name))]


def pins(major: int, python: str, platform: str) -> dict[str, list[str]]:
    """The versions that pip would install on one Python and platform, by package."""
    environment = default_environment() | PLATFORMS[platform]
    environment |= {"python_version": python, "python_full_version": f"{python}.5"}
    found: dict[str, list[str]] = {}
    for requirement in locked(f"cuda{major}"):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            found.setdefault(requirement.name, []).append(str(requirement.specifier)[2:])
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_lock_holds_pins_with_hashes_and_nothing_else(name: str) -> None:
    header, command, rest = lock(name).split("\n", 2)
    assert header.startswith("# ") and "/" not in header
    assert command == "#    requirements/lock"
    assert PIN.sub("", rest) == ""
    for found in PIN.finditer(rest):
        hashes = found["hashes"].split(" \\\n")[1:]
        assert len(set(hashes)) == len(hashes), found["pin"]


def test_whatever_is_installed_is_held_against_its_hash() -> None:
    commands = (ROOT / "Makefile").read_text() + (ROOT / "helpers/commands/install.py").read_text()
    assert commands.count("--require-hashes") == commands.count(":all:") == 2


@pytest.mark.parametrize("major", [12, 13])
def test_lock_pins_each_dependency_once(major: int) -> None:
    for (one, other), platform in itertools.product(PYTHONS, PLATFORMS):
        found = pins(major, f"{one}.{other}", platform)
        assert {name: v for name, v in found.items() if len(v) != 1} == {}
        for requirement in wanted(major):
            (version,) = found[requirement.name]
            assert requirement.specifier.contains(version), requirement


@pytest.mark.parametrize("major", [12, 13])
def test_lock_stays_small(major: int) -> None:
    """One CuPy, and of NVIDIA's packages only the compiler and the headers."""
    names = {requirement.name for requirement in locked(f"cuda{major}")}
    cuda = {name for name in names if name.startswith(("nvidia-", "cupy", "torch"))}
    asked = {requirement.name for requirement in wanted(major)}
    assert cuda == {name for name in asked if name.startswith(("nvidia-", "cupy"))}


def test_nvcc_is_of_the_version_of_nvrtc() -> None:
    """CCCL, of which the 16-bit headers include one file, counts its own versions."""
    (nvrtc,) = pins(13, "3.12", "linux")["nvidia-cuda-nvrtc"]
    found = {requirement.name: str(requirement.specifier) for requirement in locked("nvcc")}
    assert found.pop("nvidia-cuda-cccl").startswith("==13.")
    assert {*found.values()} == {f"=={nvrtc}"}


def conda_packages() -> dict[str, str]:
    text = (ROOT / "environment.yml").read_text().split("dependencies:\n")[1]
    lines = [line.strip().lstrip("- ") for line in text.splitlines() if "#" not in line]
    return {name: spec for name, _, spec in (line.partition(" ") for line in lines)}


@pytest.mark.parametrize("major", [12, 13])
def test_conda_names_the_same_packages(major: int) -> None:
    pip_names = {CONDA_NAME.get(r.name, r.name) for r in wanted(major)}
    assert set(conda_packages()) - CONDA_ONLY == pip_names


def test_one_range_of_pythons() -> None:
    oldest, newest = PYTHONS[-1], PYTHONS[0]
    assert PROJECT["requires-python"] == f">={oldest[0]}.{oldest[1]}"
    beyond = f"{newest[0]}.{newest[1] + 1}"
    assert conda_packages()["python"] == f">={oldest[0]}.{oldest[1]},<{beyond}"
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    matrix = re.search(r"python: \[(.*)\]", workflow).group(1).replace('"', "").split(", ")
    assert matrix == [f"{major}.{minor}" for major, minor in reversed(PYTHONS)]
    sentence = (ROOT / "helpers/commands/install.py").read_text()
    assert f"from {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}" in sentence


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell script stands in for make")
@pytest.mark.parametrize(
    ("failing", "typed"), [("", ["run", "test"]), ("run", ["run"]), ("test", ["run", "test"])]
)
def test_ci_types_what_the_readme_says(failing: str, typed: list[str], tmp_path: Path) -> None:
    """Nothing else, without input; a failure ends it. Only seconds are printed."""
    make = tmp_path / "make"
    make.write_text(
        f'#!/bin/sh\nread line && exit\necho "$@" >> {tmp_path}/typed\ntest "$*" != "{failing}"\n'
    )
    make.chmod(0o755)
    script = ROOT / ".ci/run"
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    done = subprocess.run(
        [script], env=environment, input="y\n" * 9, capture_output=True, text=True
    )
    assert (tmp_path / "typed").read_text().splitlines() == typed
    assert (done.returncode != 0) == bool(failing)
    passed = [target for target in typed if target != failing]
    said = "".join(rf"make {target}: \d+ s\n" for target in passed)
    assert re.fullmatch(said, done.stdout) and not done.stderr
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = re.search(r"^## Two commands\n(.*?)^## ", readme, re.M | re.S)[1]
    assert all(f"make {target}" in section for target in typed)
    assert "bash .ci/run" in (ROOT / ".github/workflows/ci.yml").read_text()


def test_ci_trusts_little() -> None:
    """Actions by commit, no credentials left behind, no run that a newer one has superseded."""
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    actions = re.findall(r"uses: (.*)", workflow)
    assert actions
    for action in actions:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action), action
    checkouts = len(re.findall("uses: actions/checkout@", workflow))
    assert workflow.count("persist-credentials: false") == checkouts
    assert re.findall(r"permissions:\n((?: .*\n)+)", workflow) == ["  contents: read\n"]
    assert "cancel-in-progress: true" in workflow and "secrets." not in workflow


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make on the project's Makefile as from a fresh shell, not as a child of make test."""
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "PYTHON", "ARGS")}
    command = ["make", "--no-print-directory", "-C", str(ROOT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


LOCK_12, LOCK_13, LOCK_NVCC = (f"requirements/{name}.txt" for name in LOCKS)
READY, NVCC = ".venv/installed.txt", ".venv/nvcc.txt"
OWN = ".venv/Scripts/python.exe" if os.name == "nt" else ".venv/bin/python"


@needs_make
@pytest.mark.parametrize(
    ("there", "packages", "nvcc"),
    [  # files, oldest first; whether make run and make test install packages, and make test nvcc
        ([LOCK_12, LOCK_13, LOCK_NVCC], True, True),
        ([LOCK_12, LOCK_13, LOCK_NVCC, OWN, READY], False, True),
        ([LOCK_12, LOCK_13, LOCK_NVCC, OWN, READY, NVCC], False, False),
        ([LOCK_12, LOCK_13, OWN, READY, NVCC, LOCK_NVCC], False, True),
        ([LOCK_12, LOCK_NVCC, OWN, READY, NVCC, LOCK_13], True, True),
        ([LOCK_13, LOCK_NVCC, OWN, READY, NVCC, LOCK_12], True, True),
        ([LOCK_12, LOCK_13, LOCK_NVCC, NVCC, OWN, READY], False, True),  # an environment made anew
        ([LOCK_12, LOCK_13, LOCK_NVCC, READY, NVCC], True, True),  # the Python of .venv is gone
    ],
)
def test_each_command_does_the_set_up_that_it_needs(
    there: list[str], packages: bool, nvcc: bool, tmp_path: Path
) -> None:
    for age, name in enumerate(there):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(0o755)
        os.utime(tmp_path / name, (age, age))
    for target in ("run", "lab", "export", "test"):
        done = make("-C", str(tmp_path), "-f", str(ROOT / "Makefile"), "-n", target)
        assert done.returncode == 0, done.stderr
        assert ("install.py" in done.stdout) == packages, target
        assert ("-r requirements/nvcc.txt" in done.stdout) == (nvcc and target == "test"), target


@needs_make
@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell script stands in for Python")
@pytest.mark.parametrize(
    ("installed", "status", "asked", "done"),
    [("CUDA 13", 0, True, True), ("CUDA 13", 1, True, False), ("CUDA 12", 0, False, True)],
)
def test_nvcc_is_installed_beside_cuda_13_and_until_it_succeeds(
    installed: str, status: int, asked: bool, done: bool, tmp_path: Path
) -> None:
    for name in ("requirements", ".venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    for name in (LOCK_12, LOCK_13, LOCK_NVCC):
        (tmp_path / name).touch()
    (tmp_path / READY).write_text(f"{installed}, Python 3.12, lock 0\n")
    python = tmp_path / ".venv/bin/python"
    python.write_text(f"#!/bin/sh\necho asked >{tmp_path}/asked\nexit {status}\n")
    python.chmod(0o755)
    make("-C", str(tmp_path), "-f", str(ROOT / "Makefile"), NVCC)
    assert (tmp_path / "asked").exists() == asked
    assert (tmp_path / NVCC).exists() == done


@needs_make
@pytest.mark.parametrize("lacks", ["cupy", "ml_dtypes", "numpy"])
@pytest.mark.parametrize("target", ["measure", "export"])
def test_what_a_python_lacks_is_told_in_a_sentence(target: str, lacks: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *{lacks}*) exit 1; esac\n')
    python.chmod(0o755)
    done, asked = make(target, f"PYTHON={python}"), "numpy" if target == "export" else "cupy"
    if lacks not in (asked, "ml_dtypes"):
        assert done.returncode == 0 and not done.stderr
        return
    assert done.returncode != 0 and done.stderr.startswith(
        f"{python} cannot import {asked} and ml_dtypes: install them there, or run 'make run'"
    )
    assert "helpers" not in done.stdout


def configured(
    monkeypatch: pytest.MonkeyPatch, replay: str | None, **flags: bool
) -> SimpleNamespace:
    """What conftest.py makes of pytest's options; SOFTMAX_REPLAY is `replay` before it."""
    spec = importlib.util.spec_from_file_location("root_conftest", ROOT / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    environment = {} if replay is None else {"SOFTMAX_REPLAY": replay}
    monkeypatch.setattr(os, "environ", environment)
    used = Mock()
    monkeypatch.setattr(warm_kernels, "use", used)
    option = SimpleNamespace(nbval_current_env=False, nbval_cell_timeout=2000, **flags)
    module.pytest_configure(SimpleNamespace(option=option))
    return SimpleNamespace(option=option, environ=environment, module=module, warm=used.called)


@pytest.mark.parametrize(
    ("lax", "before", "after"),
    [(False, None, "1"), (False, "0", "1"), (True, None, "1"), (True, "0", "0")],
)
def test_nbval_replays_and_the_lax_one_may_run_live(monkeypatch, lax: bool, before, after) -> None:
    seen = configured(monkeypatch, before, nbval=True, nbval_lax=lax)
    assert seen.environ["SOFTMAX_REPLAY"] == after and seen.option.nbval_cell_timeout == 120
    assert seen.warm == (not lax), "a kernel that uses a GPU is started as a reader starts it"
    assert seen.environ.get("SOFTMAX_PICTURES") == (None if lax else "0")


@pytest.mark.parametrize(
    ("gpu", "replay", "reason"),
    [(False, None, "no GPU"), (True, "1", "SOFTMAX_REPLAY=1"), (True, "0", ""), (True, None, "")],
)
def test_gpu_tests_say_why_they_are_skipped(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, replay: str | None, reason: str
) -> None:
    fake = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: gpu))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    seen = configured(monkeypatch, replay)
    assert seen.module.why_not_live() == reason
