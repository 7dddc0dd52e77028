"""The machine installed alone: what `pip install .` packs is all of it, and needs nothing else of
the repository."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path

import pytest

from helpers.base.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, TOOL = PYPROJECT["project"], PYPROJECT["tool"]["setuptools"]
SOURCE = ROOT / TOOL["package-dir"]["simt"]
# What a package imports, by the name that pip has for it.
IMPORTS = {"numpy": "numpy", "ml_dtypes": "ml-dtypes", "cuda": "cuda-bindings"}


def packed() -> dict[str, Path]:
    """The files of a wheel, by their path in it."""
    files = {}
    for package in TOOL["packages"]:
        folder = SOURCE.joinpath(*package.split(".")[1:])
        files |= {f"{package.replace('.', '/')}/{one.name}": one for one in folder.glob("*.py")}
    for package, patterns in TOOL["package-data"].items():
        for pattern in patterns:
            found = SOURCE.joinpath(*package.split(".")[1:]).glob(pattern)
            files |= {f"simt/{one.relative_to(SOURCE).as_posix()}": one for one in found}
    return files


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for name, source in packed().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / name)
    return folder


def python(site: Path, code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    """Run code where of all the project only what is installed can be imported."""
    paths = [str(site), sysconfig.get_path("purelib")]
    code = f"import sys; sys.path += {paths!r}\n{code}"
    command = [sys.executable, "-I", "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def test_all_of_the_machine_is_packed() -> None:
    own = {
        f"simt/{one.relative_to(SOURCE).as_posix()}"
        for one in SOURCE.rglob("*")
        if one.is_file() and "__pycache__" not in one.parts
    }
    assert {*packed()} == own


def test_it_imports_what_it_depends_on_and_nothing_else() -> None:
    found = set()
    for source in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            found |= {name.partition(".")[0] for name in names}
    foreign = found - sys.stdlib_module_names
    wanted = {re.match(r"[\w-]+", text)[0] for text in PROJECT["dependencies"]}
    headers = {"nvidia-cuda-cccl", "nvidia-cuda-runtime"}
    assert {IMPORTS[name] for name in foreign} == wanted - headers - {"nvidia-cuda-nvrtc"}


KERNEL = """#include <cstdio>
__global__ void k(int* y, int n) { y[threadIdx.x] = n; }
int main() {}
"""
MAIN = """
from simt.command import main
status = main()
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"helpers", "cupy", "matplotlib"}, loaded
sys.exit(status)
"""


def test_the_command_runs_without_the_repository(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(KERNEL)
    arguments = ["k.cu", "--grid", "1", "--block", "5", "--args", "int32[4]", "7"]
    done = python(installed, MAIN, *arguments, "--format=json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    content = json.loads(done.stdout)
    assert content["outputs"]["y"]["max"] == 7 and len(content["findings"]) == 1


def test_an_installation_tests_itself_and_knows_its_version(
    installed: Path, tmp_path: Path
) -> None:
    done = python(installed, MAIN, "--self-test", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.count("passed: ") == 4
    metadata = tmp_path / "simt_machine-7.8.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: simt-machine\nVersion: 7.8\n")
    known = f"sys.path.insert(0, {str(tmp_path)!r})\n{MAIN}"
    assert python(installed, known, "--version", cwd=tmp_path).stdout == "simt 7.8\n"


def test_the_script_is_the_command() -> None:
    module, _, function = PROJECT["scripts"]["simt"].partition(":")
    source = SOURCE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    assert f"\ndef {function}(" in source.read_text(encoding="utf-8")


MISSING = {
    "sys.modules['cuda.bindings'] = None": "the Python bindings of CUDA cannot be loaded: pip inst",
    "from cuda.bindings import nvrtc\ndef fails(): raise RuntimeError('libnvrtc.so.13 not found')\n"
    "nvrtc.nvrtcVersion = fails": (
        "NVRTC cannot be loaded: pip install 'cuda-bindings>=13,<14' 'nvidia-cuda-nvrtc"
    ),
}


@pytest.mark.parametrize("broken", MISSING, ids=["the bindings", "NVRTC"])
def test_a_missing_package_is_named(broken: str, installed: Path, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(KERNEL)
    arguments = ["k.cu", "--grid", "1", "--block", "4", "--args", "int32[4]", "7"]
    done = python(installed, f"{broken}\n{MAIN}", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith(MISSING[broken])
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one process")
@pytest.mark.parametrize("start", ["-m", "script"])
def test_ctrl_c_while_it_starts_ends_it_without_a_traceback(
    start: str, installed: Path, tmp_path: Path
) -> None:
    """NumPy, on being imported, interrupts its own process, as Ctrl-C would."""
    (tmp_path / "numpy.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    script = tmp_path / "simt"
    script.write_text("import sys\nfrom simt.command import main\nsys.exit(main())\n")
    line = [sys.executable, *(["-m", "simt"] if start == "-m" else [str(script)]), "--version"]
    paths = os.pathsep.join(map(str, (tmp_path, installed)))
    done = subprocess.run(
        line,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        # A shell lets what it runs in the background ignore Ctrl-C, and so would this process.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
